/* SPDX-License-Identifier: Apache-2.0 */
/* Status names, and the message of the last failure per thread. */
#include "status.h"

#include <stdio.h>
#include <string.h>

/* A library that was opened with dlopen gets its thread-local variables from malloc when a thread first touches them, unless they fit the little room that
 * the C library keeps ready. They do, so tess_run takes no memory on any thread, and reporting "out of memory" needs none. */
#ifdef __GLIBC__
#define READY_WITH_THE_THREAD __attribute__((tls_model("initial-exec")))
#else
#define READY_WITH_THE_THREAD
#endif

static _Thread_local READY_WITH_THE_THREAD struct {
    const char *function;
    uint64_t runtime_id;
    bool failed;
    unsigned recovering;
    char text[TESS_ERROR_BYTES];
} call;

_Static_assert(sizeof call <= 512, "the room is shared by all libraries of the process");

const char *tess_status_name(tess_status status) {
    switch (status) {
#define STATUS_NAME(name, text) \
    case name: return #name;
        TESS_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "TESS_ERROR_?";
}

const char *tess_status_text(tess_status status) {
    switch (status) {
#define STATUS_TEXT(name, text) \
    case name: return text;
        TESS_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

const char *tess_last_error(void) { return call.text; }

uint32_t tess_version(void) { return TESS_VERSION_NUMBER; }

void tess_one_line(char *text) {
    size_t length = 0;
    for (size_t n = 0; text[n] != '\0'; n++) {
        if ((unsigned char)text[n] < ' ' || text[n] == 127) text[n] = ' ';
        if (text[n] != ' ') length = n + 1;
    }
    text[length] = '\0';
}

void tess_format(char *text, size_t size, const char *format, va_list arguments) {
    if (vsnprintf(text, size, format, arguments) < 0) snprintf(text, size, "%s", format);
    tess_one_line(text);
}

tess_status tess_fail(tess_status status, const char *format, ...) {
    /* The arguments may point into the previous message, so the new one is made beside it. */
    char text[TESS_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    tess_format(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(call.text, text, sizeof text);
    call.failed = true;
    if (call.recovering == 0) tess_log_failure(call.runtime_id, call.text);
    return status;
}

void tess_log_errors(bool on) {
    if (on)
        call.recovering--;
    else
        call.recovering++;
}

tess_status tess_past_end(const char *function, uint32_t index, const char *what) {
    tess_log_errors(false);
    tess_fail(TESS_ERROR_INVALID, "%s: index: %u is past the last %s", function, index, what);
    tess_log_errors(true);
    return TESS_ERROR_INVALID;
}

tess_status tess_fail_in(tess_status status, const char *who, const char *text) {
    if (call.function == NULL) return tess_fail(status, "%s", text);
    return tess_fail(status, "%s: %s: %s", call.function, who, text);
}

void tess_call_begin(const char *function, uint64_t runtime_id) {
    call.function = function;
    call.runtime_id = runtime_id;
    call.failed = false;
}

bool tess_call_failed(void) { return call.failed; }

void tess_recover_begin(tess_recovery *recovery) {
    recovery->function = call.function;
    recovery->failed = call.failed;
    memcpy(recovery->text, call.text, sizeof call.text);
    call.function = NULL;
    call.failed = false;
    call.text[0] = '\0';
    call.recovering++;
}

void tess_recover_end(const tess_recovery *recovery) {
    call.function = recovery->function;
    call.failed = recovery->failed;
    memcpy(call.text, recovery->text, sizeof call.text);
    call.recovering--;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Status names, and the message of the last failure per thread. */
#include "status.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Every call writes here, and tess_run must not allocate, so the storage has to exist before a
 * thread's first call. Without the attribute it would come from malloc when a thread first touches
 * it. With it the storage comes from a small reserve, which the C library shares among all
 * libraries opened with dlopen. So we take only a pointer and a word, and a process may load many
 * copies of this library.
 */
#ifdef __GLIBC__
#define READY_WITH_THE_THREAD __attribute__((tls_model("initial-exec")))
#else
#define READY_WITH_THE_THREAD
#endif

static _Thread_local READY_WITH_THE_THREAD struct {
    const char *function;
    uint64_t runtime_id : 48;
    uint64_t recovering : 8;
    uint64_t failed : 1;
    /* status of the last failure, if there was no memory for its message; else 0 */
    uint64_t untold : 7;
} call;

_Static_assert(sizeof call <= 16,
               "a pointer and a word: the room is shared by all libraries of the process");

/* ------------------------------------------------------------------ the message */

/* A thread's first failure allocates it; the end of the thread frees it. */

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static atomic_bool key_works;

/* The destructor is free() itself: a thread may end after this library was closed. */
static void key_make(void) { atomic_store(&key_works, pthread_key_create(&key, free) == 0); }

/* A process has few keys, so this one is deleted when the library is closed. Messages of other
 * threads are freed with the process. */
#if defined(__GNUC__)
static void key_give_back(void) __attribute__((destructor));
static void key_give_back(void) {
    if (!atomic_exchange(&key_works, false)) return;
    free(pthread_getspecific(key));
    pthread_key_delete(key);
}
#endif

static char *message(void) {
    pthread_once(&key_once, key_make);
    return atomic_load(&key_works) ? pthread_getspecific(key) : NULL;
}

/* Allocates the message if the thread has none. NULL: no memory. */
static char *message_make(void) {
    char *text = message();
    if (text != NULL || !atomic_load(&key_works)) return text;
    text = malloc(TESS_ERROR_BYTES);
    if (text == NULL) return NULL;
    text[0] = '\0';
    if (pthread_setspecific(key, text) == 0) return text;
    free(text);
    return NULL;
}

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

static const char *const untold[] = {
#define STATUS_UNTOLD(name, text) text "; there is no memory for a message that says more",
    TESS_STATUS_LIST(STATUS_UNTOLD)
#undef STATUS_UNTOLD
};
enum { N_STATUSES = sizeof untold / sizeof untold[0] };

const char *tess_last_error(void) {
    if (call.untold != 0) return untold[call.untold];
    const char *text = message();
    return text != NULL ? text : "";
}

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

static _Atomic tess_failure_fn observer;

void tess_failures_observe(tess_failure_fn tell) {
    atomic_store_explicit(&observer, tell, memory_order_release);
}

tess_status tess_fail(tess_status status, const char *format, ...) {
    /* The arguments may point into the previous message, so the new one is made beside it. */
    char text[TESS_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    tess_format(text, sizeof text, format, arguments);
    va_end(arguments);
    char *kept = message_make();
    if (kept != NULL) memcpy(kept, text, sizeof text);
    call.untold = kept != NULL                              ? 0
                  : (unsigned)status < (unsigned)N_STATUSES ? (unsigned)status & 0x7f
                                                            : TESS_ERROR_NATIVE;
    call.failed = true;
    const tess_failure_fn tell = atomic_load_explicit(&observer, memory_order_acquire);
    if (call.recovering == 0 && tell != NULL) tell(call.runtime_id, text);
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
    call.runtime_id = runtime_id & 0xffffffffffff;
    call.failed = false;
}

bool tess_call_failed(void) { return call.failed; }

void tess_recover_begin(tess_recovery *recovery) {
    recovery->function = call.function;
    recovery->failed = call.failed;
    recovery->untold = call.untold;
    recovery->text[0] = '\0';
    char *text = message();
    if (text != NULL) {
        memcpy(recovery->text, text, sizeof recovery->text);
        text[0] = '\0';
    }
    call.function = NULL;
    call.failed = false;
    call.untold = 0;
    call.recovering++;
}

void tess_recover_end(const tess_recovery *recovery) {
    call.function = recovery->function;
    call.failed = recovery->failed;
    call.untold = recovery->untold & 0x7f;
    char *text = message();
    if (text != NULL) memcpy(text, recovery->text, sizeof recovery->text);
    call.recovering--;
}

tess_status tess_check_index(const char *function, const char *field, int64_t value,
                             int64_t count) {
    if (value >= 0 && value < count) return TESS_OK;
    return tess_invalid("%s: %s: must be 0 to %lld, got %lld", function, field,
                        (long long)count - 1, (long long)value);
}

tess_status tess_check_not_negative(const char *function, const char *field, int64_t value) {
    if (value >= 0) return TESS_OK;
    return tess_invalid("%s: %s: must be at least 0, got %lld", function, field, (long long)value);
}

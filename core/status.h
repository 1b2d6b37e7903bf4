/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the public call that runs on a thread: its name and runtime, which messages need,
 * and whether it recovers from failures. */
#ifndef TESSERA_CORE_STATUS_H
#define TESSERA_CORE_STATUS_H

#include <stdarg.h>

#include "common.h"

/* Longer messages are cut. */
#define TESS_ERROR_BYTES 480

/* Notes which public function runs on this thread and on behalf of which runtime (0: none).
 * Costs a few thread-local stores and never memory, so tess_run may afford it. */
void tess_call_begin(const char *function, uint64_t runtime_id);
/* Whether tess_fail was called on this thread since tess_call_begin or tess_recover_begin. */
bool tess_call_failed(void);

/* Failures between begin and end are handled by the caller: tess_last_error() reads afterwards as
 * it did before, nothing is logged under "errors", and messages of a backend come without a prefix.
 * Scopes may be nested. */
typedef struct tess_recovery {
    const char *function;
    bool failed;
    unsigned untold; /* status of the failure whose message found no memory */
    char text[TESS_ERROR_BYTES];
} tess_recovery;
void tess_recover_begin(tess_recovery *recovery);
void tess_recover_end(const tess_recovery *recovery);

/* Turns the logging of this call's failures off, and on again. Calls come in pairs. */
void tess_log_errors(bool on);
/* Fails because an enumeration is at its end. The message is kept but not logged: every loop over
 * all items ends this way. */
tess_status tess_past_end(const char *function, uint32_t index, const char *what);

/* Fails with "<function>: <who>: <text>", where `who` is a device or a backend. Within a recovery
 * the message is `text` alone, because the caller adds the rest. */
tess_status tess_fail_in(tess_status status, const char *who, const char *text);

/* "invalid argument" and so on. */
const char *tess_status_text(tess_status status);

/* Formats one line. Where vsnprintf fails, the text is the format itself. */
void tess_format(char *text, size_t size, const char *format, va_list arguments);

/* Makes one line of `text` in place: control characters become spaces, and spaces at the end go. */
void tess_one_line(char *text);

/* Sets the function that is told of every failure outside a recovery. The runtime's log uses it as
 * soon as a runtime asks for "errors". `runtime_id` is that of the running call. */
typedef void (*tess_failure_fn)(uint64_t runtime_id, const char *message);
void tess_failures_observe(tess_failure_fn tell);

#endif

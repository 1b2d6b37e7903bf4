/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread knows about the public call it is in: its name and runtime, for messages, and
 * failures that are recovered from. */
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
    unsigned untold; /* status of a failure whose message had no memory */
    char text[TESS_ERROR_BYTES];
} tess_recovery;
void tess_recover_begin(tess_recovery *recovery);
void tess_recover_end(const tess_recovery *recovery);

/* Whether failures of the running call are logged under "errors"; they are unless it says false
 * here, and true again soon after. */
void tess_log_errors(bool on);
/* The failure that ends an enumeration, with a message as any other, but never logged: a loop over
 * all there is ends so. */
tess_status tess_past_end(const char *function, uint32_t index, const char *what);

/* Fails with "<function>: <who>: <text>", `who` being a device or a backend; within a recovery with
 * `text` alone, because the caller says the rest. */
tess_status tess_fail_in(tess_status status, const char *who, const char *text);

/* "invalid argument" and so on. */
const char *tess_status_text(tess_status status);

/* Formats one line; a format that cannot be applied stands for itself. */
void tess_format(char *text, size_t size, const char *format, va_list arguments);

/* Makes one line of `text` in place: control characters become spaces, and spaces at the end go. */
void tess_one_line(char *text);

/* Who hears of failures that are not recovered from: the log of the runtimes, once one of them asks
 * for "errors". `runtime_id` is that of the running call. */
typedef void (*tess_failure_fn)(uint64_t runtime_id, const char *message);
void tess_failures_observe(tess_failure_fn tell);

#endif

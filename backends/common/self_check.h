/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that nobody has run on the hardware at hand check themselves. Before the first plan takes
 * such a row, a small problem runs on it and on a portable kernel, through the device's own queue,
 * and both results are compared by the tolerance rule. Each instance of the kernel (an element type
 * and a largest head_dim) is checked for itself, once: its verdict is kept in the disk cache, by
 * device, driver and the kernel's code. An instance that fails takes the row out for good.
 */
#ifndef TESS_COMMON_SELF_CHECK_H
#define TESS_COMMON_SELF_CHECK_H

#include <pthread.h>

#include "cache.h"

/* float16 and bfloat16, with a head_dim up to 64, 128 and 256 */
enum { TESS_CHECK_DTYPES = 2, TESS_CHECK_DIMS = 3, TESS_CHECK_MOST_ROWS = 16 };

/* What is known of a row of a device's table. */
typedef struct tess_checked_row {
    int loaded;                                     /* the cache was asked for verdicts */
    int passed[TESS_CHECK_DTYPES][TESS_CHECK_DIMS]; /* of each instance */
    char failure[128];                              /* why the row is out; "": it is not */
} tess_checked_row;

/* Of a device. */
typedef struct tess_checks {
    pthread_mutex_t lock; /* of all below; held during a check, so that others wait for it */
    tess_checked_row rows[TESS_CHECK_MOST_ROWS];
} tess_checks;

/* A row that is to be checked, and how its device is used for that. */
typedef struct tess_check_subject {
    const tess_host *host;
    const tess_backend *backend; /* memory and launches */
    void *device;
    tess_checks *checks; /* of the device */
    int may_run;         /* 0: only a verdict of an earlier check counts */
    uint32_t row;        /* number in the table */
    const char *name;
    uint32_t
        references[2]; /* rows that it is compared with: the first one that takes the problem */
    /* Makes a row ready for a key, without a check; UNSUPPORTED where it does not take the key. */
    tess_status (*prepare)(void *device, uint32_t row, const tess_kernel_key *key,
                           tess_kernel *kernel);
    /* Fills all of a key but its options, for the row's code for an element type; `text` has room
     * for names. */
    void (*code)(void *device, uint32_t row, uint32_t dtype, tess_cache_key *key, char *text,
                 size_t size);
} tess_check_subject;

void tess_checks_init(tess_checks *checks);
void tess_checks_destroy(tess_checks *checks);

/* Why the row is out, as far as is known without running anything, in `why`; or NULL. */
const char *tess_check_failure(const tess_check_subject *subject, char *why, size_t size);

/* Checks the instance that a key of float16 or bfloat16 needs, unless there is a verdict. OK: the
 * row may be taken. UNSUPPORTED, with a message: it may not. Else the check itself failed, and
 * there is no verdict; but a device that was lost or did not answer while the kernel ran is one. */
tess_status tess_self_check(const tess_check_subject *subject, const tess_kernel_key *key);

#endif /* TESS_COMMON_SELF_CHECK_H */

/* SPDX-License-Identifier: Apache-2.0 */
/* A backend library for tests: devices whose memory the core cannot read, a kernel that is a plain
 * loop over the jobs, and calls that fail on request. */
#ifndef TESSERA_TESTS_FAULTS_FAKE_DEVICE_H
#define TESSERA_TESTS_FAULTS_FAKE_DEVICE_H

#include <tessera/tessera_backend.h>

/* The symbol `fake_control_symbol` of the library. A test opens the library once more to reach
 * it. */
typedef struct fake_control {
    int64_t calls;      /* fallible calls so far, over all devices */
    int64_t fail_at;    /* the call that fails, counted from 1; 0: none */
    int sticky;         /* every later call fails as well */
    tess_status status; /* of a failing call */
    int only_device;    /* count and fail calls on this device alone; -1: on all */
    int64_t failures;
    const char *failed;               /* the function that failed last */
    int64_t devices, buffers, states; /* open, allocated, alive */
    int64_t leaked;                   /* buffers alive when a device was closed that was not lost */
    int64_t launches;
    uint64_t range_blocks;
} fake_control;

#endif

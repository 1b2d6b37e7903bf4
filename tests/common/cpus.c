/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the C library's sched_getaffinity: no setting gives more workers than CPUs, and tests
 * need them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/testlib.h"

static int pretended;

void test_pretend_cpus(int cpus) { pretended = cpus; }

/* The system call tells how many bytes it wrote, and leaves the rest as it was. */
__attribute__((visibility("default"))) int sched_getaffinity(pid_t pid, size_t size,
                                                             cpu_set_t *set) {
    if (pretended > 0) {
        CPU_ZERO_S(size, set);
        for (int n = 0; n < pretended && (size_t)n < 8 * size; n++) CPU_SET_S(n, size, set);
        return 0;
    }
    const long written = syscall(SYS_sched_getaffinity, pid, size, set);
    if (written < 0) return -1;
    memset((char *)set + written, 0, size - (size_t)written);
    return 0;
}

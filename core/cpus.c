/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs this process may keep busy. A container often sees all CPUs of its host but gets
 * the time of a few. With more threads than that, every launch waits for a thread that the kernel
 * put to sleep. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "settings.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the start of a small file as text. It uses plain system calls, because stdio would allocate
 * behind the application's allocator. */
static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    size_t length = 0;
    while (length + 1 < size) {
        ssize_t got = read(file, text + length, size - 1 - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    close(file);
    text[length] = '\0';
    return length > 0;
}

/* CPUs of a quota in microseconds per period, rounded up: half a CPU still needs a thread.
 * UINT32_MAX without a quota. */
static uint32_t quota_cpus(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return UINT32_MAX;
    long long cpus = (quota - 1) / period + 1;
    return cpus < TESS_CPU_THREADS_MOST ? (uint32_t)cpus : TESS_CPU_THREADS_MOST;
}

/* Version 2: every group from this process's own up to the root may hold a quota, and the lowest
 * counts. */
static uint32_t quota_unified(const char *membership, const char *mount) {
    char groups[4096], path[4400], text[64];
    if (!read_text(membership, groups, sizeof groups)) return UINT32_MAX;
    char *group = strncmp(groups, "0::/", 4) == 0 ? groups + 3 : strstr(groups, "\n0::/");
    if (group == NULL) return UINT32_MAX;
    group = strchr(group, '/');
    group[strcspn(group, "\n")] = '\0';
    uint32_t least = UINT32_MAX;
    for (;;) {
        snprintf(path, sizeof path, "%s%s/cpu.max", mount, group);
        if (read_text(path, text, sizeof text)) {
            char *end;
            long long quota = strtoll(text, &end, 10); /* 0 for "max" */
            uint32_t cpus = quota_cpus(quota, strtoll(end, NULL, 10));
            if (cpus < least) least = cpus;
        }
        char *slash = strrchr(group, '/');
        if (slash == NULL) return least;
        *slash = '\0';
    }
}

/* Version 1: inside a container the controller is mounted at the container's own group. */
static uint32_t quota_controller(const char *mount) {
    char path[512], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu/cpu.cfs_quota_us", mount);
    if (!read_text(path, quota, sizeof quota)) return UINT32_MAX;
    snprintf(path, sizeof path, "%s/cpu/cpu.cfs_period_us", mount);
    if (!read_text(path, period, sizeof period)) return UINT32_MAX;
    return quota_cpus(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
}

uint32_t tess_cpus_quota(const char *membership, const char *mount) {
    uint32_t unified = quota_unified(membership, mount), controller = quota_controller(mount);
    return unified < controller ? unified : controller;
}

static uint32_t affinity_cpus(void) {
#if defined(__linux__)
    /* Room for 16,384 CPUs; the kernel refuses a mask that is smaller than its own. */
    unsigned long mask[16384 / (8 * sizeof(unsigned long))] = {0};
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)(void *)mask) == 0) {
        uint32_t count = 0;
        for (size_t n = 0; n < sizeof mask / sizeof mask[0]; n++)
            count += (uint32_t)__builtin_popcountl(mask[n]);
        if (count > 0) return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t tess_cpus_usable(void) {
    uint32_t cpus = affinity_cpus();
    uint32_t quota = tess_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota < cpus) cpus = quota;
    return cpus < TESS_CPU_THREADS_MOST ? cpus : TESS_CPU_THREADS_MOST;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Copies the value of the first line of `path` that begins with `key`, without blanks, quotes,
 * separators and the end of line. Returns 0 when found. */
static int file_value(const char *path, const char *key, char separator, char *value, size_t size) {
    FILE *f = fopen(path, "r");
    char line[512];
    int found = -1;
    if (!f) return -1;
    while (found != 0 && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        char *at = strchr(line, separator);
        if (!at) continue;
        at += 1 + strspn(at + 1, " \t\"");
        at[strcspn(at, "\"\r\n")] = 0;
        snprintf(value, size, "%s", at);
        found = 0;
    }
    fclose(f);
    return found;
}

static uint64_t meminfo(const char *key) {
    char text[64];
    return file_value("/proc/meminfo", key, ':', text, sizeof text) == 0
               ? (uint64_t)strtoull(text, NULL, 10) * 1024
               : 0;
}

/* The limit of the container that this process may stand in; UINT64_MAX without one. */
static uint64_t cgroup_limit(void) {
    static const char *const files[] = {"/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(files[i], "r");
        char text[64];
        if (!f) continue;
        char *got = fgets(text, sizeof text, f);
        fclose(f);
        if (got && text[0] >= '0' && text[0] <= '9') return strtoull(text, NULL, 10);
    }
    return UINT64_MAX;
}

uint64_t machine_memory_bytes(void) {
    uint64_t total = meminfo("MemTotal"), limit = cgroup_limit();
    if (!total) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        if (pages > 0 && page > 0) total = (uint64_t)pages * (uint64_t)page;
    }
    return total < limit ? total : limit;
}

uint64_t machine_memory_available(void) {
    uint64_t available = meminfo("MemAvailable"), limit = cgroup_limit();
    if (!available) available = machine_memory_bytes() / 2;
    return available < limit ? available : limit;
}

uint64_t machine_cache_bytes(int level) {
    long bytes = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    bytes = sysconf(level == 3 ? _SC_LEVEL3_CACHE_SIZE : _SC_LEVEL2_CACHE_SIZE);
#else
    (void)level;
#endif
    return bytes > 0 ? (uint64_t)bytes : 0;
}

double machine_other_seconds(void) {
    FILE *f = fopen("/proc/stat", "r");
    char line[512] = "";
    /* user, nice, system, idle, waiting, interrupts, soft interrupts, stolen */
    uint64_t ticks[8] = {0};
    int n = 0;
    if (!f) return NAN;
    if (fgets(line, sizeof line, f) && strncmp(line, "cpu ", 4) == 0)
        for (char *at = line + 4, *end; n < 8; n++, at = end) {
            ticks[n] = strtoull(at, &end, 10);
            if (end == at) break;
        }
    fclose(f);
    long second = sysconf(_SC_CLK_TCK);
    if (n < 7 || second <= 0) return NAN;
    double busy =
        (double)(ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) / (double)second;
    static const int whose[2] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    for (int i = 0; i < 2; i++) {
        struct rusage own;
        if (getrusage(whose[i], &own) != 0) return NAN;
        busy -= (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    }
    return busy;
}

void machine_describe(bench_machine *m) {
    struct utsname name;
    memset(m, 0, sizeof *m);
    if (file_value("/proc/cpuinfo", "model name", ':', m->cpu, sizeof m->cpu) != 0 &&
        file_value("/proc/cpuinfo", "Hardware", ':', m->cpu, sizeof m->cpu) != 0)
        snprintf(m->cpu, sizeof m->cpu, "unknown");
    if (file_value("/etc/os-release", "PRETTY_NAME", '=', m->os, sizeof m->os) != 0)
        snprintf(m->os, sizeof m->os, "unknown");
    if (uname(&name) == 0) {
        snprintf(m->kernel, sizeof m->kernel, "%.60s %.60s", name.sysname, name.release);
        snprintf(m->arch, sizeof m->arch, "%.31s", name.machine);
    }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    m->cpus = m->cpus_allowed = cpus > 0 ? (int)cpus : 1;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) m->cpus_allowed = CPU_COUNT(&allowed);
#endif
    m->memory_bytes = machine_memory_bytes();
    m->l2_bytes = machine_cache_bytes(2);
    m->l3_bytes = machine_cache_bytes(3);
}

#ifdef __linux__
/* The new thread begins where it stays: one that moved away by itself would first wait for its turn
 * on the CPU of whoever made it. */
static void pin(pthread_attr_t *attributes, int thread) {
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) == 0) return;
    int left = thread % CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && left-- == 0) CPU_SET(cpu, &own);
    pthread_attr_setaffinity_np(attributes, sizeof own, &own);
}
#else
static void pin(pthread_attr_t *attributes, int thread) { (void)attributes, (void)thread; }
#endif

int machine_thread(pthread_t *id, int thread, void *(*work)(void *), void *of) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return -1;
    pin(&attributes, thread);
    const int status = pthread_create(id, &attributes, work, of);
    pthread_attr_destroy(&attributes);
    return status == 0 ? 0 : -1;
}

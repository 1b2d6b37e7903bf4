/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a backend: one device, host memory, and a thread pool per open device. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "functions.h"
#include "object.h"

extern const tess_backend tess_cpu_backend;

static tess_status tess_cpu_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    if (index > 0)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "cpu: there is one device, cpu:0");
    info->kind = TESS_DEVICE_CPU;
    info->compute_units = TESS_CPU_PTHREADPOOL ? host->cpu_threads : 1;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    info->memory_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    tess_cpu_model_name(info->name, sizeof info->name);
    tess_cpu_isa_list(info->arch, sizeof info->arch);
    snprintf(info->driver, sizeof info->driver, "%s", tess_cpu_pool_name());
    return TESS_OK;
}

static tess_status tess_cpu_open(const tess_host *host, uint32_t index, const void *native,
                                 void **device) {
    if (index > 0)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "cpu: there is one device, cpu:0");
    if (native)
        return host->fail(host, TESS_ERROR_INVALID,
                          "native: the cpu backend has nothing to wrap; it must be NULL");
    cpu_device *d = tess_object(host, sizeof *d, "the device");
    if (!d) return TESS_ERROR_OUT_OF_MEMORY;
    d->host = host;
    d->threads = TESS_CPU_PTHREADPOOL && host->cpu_threads ? host->cpu_threads : 1;
    d->pid = getpid();
    d->pool = tess_cpu_pool_create(host, d->threads);
    if (!d->pool) {
        host->free(host, d, sizeof *d);
        return TESS_ERROR_OUT_OF_MEMORY;
    }
    *device = d;
    return TESS_OK;
}

static void tess_cpu_close(void *device) {
    cpu_device *d = device;
    /* In the child of a fork the pool's threads do not exist, and waiting for them would not
     * end. */
    if (d->pid == getpid()) tess_cpu_pool_destroy(d->pool);
    d->host->free(d->host, d, sizeof *d);
}

static tess_status tess_cpu_query(void *device, tess_caps *caps) {
    (void)device;
    const uint32_t size = caps->struct_size;
    memset(caps, 0, sizeof *caps);
    caps->struct_size = size;
    caps->host_memory = 1;
    caps->buffer_kind = TESS_BUFFER_HOST;
    caps->features = TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_STEPS;
    caps->parallel_jobs = CPU_PARALLEL_JOBS;
    caps->workspace_align = 64;
    caps->features |= TESS_FEATURE_APPEND | TESS_FEATURE_MERGE | TESS_FEATURE_KV_8BIT;
    caps->features |= TESS_FEATURE_BACKWARD | TESS_FEATURE_PARTS;
    return TESS_OK;
}

static tess_status tess_cpu_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    cpu_device *d = device;
    void *pointer = size <= SIZE_MAX ? d->host->alloc(d->host, (size_t)size, 256) : NULL;
    if (!pointer)
        return d->host->fail(d->host, TESS_ERROR_OUT_OF_MEMORY, "cpu: %llu bytes",
                             (unsigned long long)size);
    *buffer = tess_host_buffer(pointer, size);
    return TESS_OK;
}

static tess_status tess_cpu_free(void *device, tess_buffer *buffer) {
    cpu_device *d = device;
    d->host->free(d->host, (void *)(uintptr_t)buffer->handle, (size_t)buffer->size);
    return TESS_OK;
}

static tess_status tess_cpu_copy(void *device, tess_buffer destination, tess_buffer source,
                                 uint64_t bytes) {
    (void)device;
    memmove((char *)(uintptr_t)destination.handle + destination.offset,
            (const char *)(uintptr_t)source.handle + source.offset, (size_t)bytes);
    return TESS_OK;
}

static tess_status tess_cpu_wait(void *device, uint64_t timeout_ns) {
    (void)device;
    (void)timeout_ns;
    return TESS_OK; /* launches return when the work is done */
}

const tess_backend tess_cpu_backend = {TESS_BACKEND_FUNCTIONS(tess_cpu), .name = "cpu"};

/* SPDX-License-Identifier: Apache-2.0 */
/* What every file of the core uses: failing with a message, host memory, logging, and the state
 * behind runtime and device. */
#ifndef TESSERA_CORE_COMMON_H
#define TESSERA_CORE_COMMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera_backend.h>

#include "structures.h"
#include "table_pool.h"

#if defined(__GNUC__)
#define TESS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TESS_PRINTF(f, a)
#endif

/* status.c: stores the message of this thread and returns `status`. Messages read "<function>:
 * <field>: <what is wrong>". */
tess_status tess_fail(tess_status status, const char *format, ...) TESS_PRINTF(2, 3);
#define tess_invalid(...)     tess_fail(TESS_ERROR_INVALID, __VA_ARGS__)
#define tess_unsupported(...) tess_fail(TESS_ERROR_UNSUPPORTED, __VA_ARGS__)

/* status.c: refuse an argument that is not in [0, count), or is negative. */
tess_status tess_check_index(const char *function, const char *field, int64_t value, int64_t count);
tess_status tess_check_not_negative(const char *function, const char *field, int64_t value);

/* runtime.c: host memory through the runtime's allocator. Alignment is a power of two. NULL when
 * out of memory or size overflows. */
void *tess_mem_alloc(tess_runtime *runtime, size_t size, size_t alignment);
void tess_mem_free(tess_runtime *runtime, void *pointer, size_t size);
/* Whether that is the C library's. */
bool tess_mem_is_default(const tess_runtime *runtime);

/* runtime.c: references, and whether the handle comes from before a fork(). */
void tess_runtime_retain(tess_runtime *runtime);
/* fails when NULL or forked */
tess_status tess_runtime_check(const tess_runtime *runtime, const char *function);
/* fails: handle `name` is NULL; nothing is logged, since no runtime is known */
tess_status tess_handle_missing(const char *function, const char *name);
/* in the child of a fork() nothing of a backend may be called, not even to release it */
bool tess_runtime_forked(const tess_runtime *runtime);
void tess_log(const tess_runtime *runtime, const char *topic, const char *format, ...)
    TESS_PRINTF(3, 4);
bool tess_log_wanted(const tess_runtime *runtime, const char *topic);
const char *tess_setting(const tess_runtime *runtime, const char *name); /* "" when unset */

/* device.c */
struct tess_device {
    atomic_uint refs;
    atomic_bool lost; /* sticky: set by tess_device_result */
    tess_runtime *runtime;
    const tess_backend *backend;
    void *native;
    tess_caps caps;
    tess_device_info info;
    pthread_mutex_t preparing; /* of all below */
    /* by tess_dtype: kernels of operations without a plan, ready where `release` is not NULL */
    tess_kernel copy_pages[TESS_BF16 + 1], merge[TESS_BF16 + 1];
    tess_table_pool pool;
};
void tess_device_retain(tess_device *device);
/* NULL, forked, or lost */
tess_status tess_device_check(const tess_device *device, const char *function);
/* NULL or forked */
tess_status tess_device_handle(const tess_device *device, const char *function);
/* passes `status` on, and remembers DEVICE_LOST */
tess_status tess_device_result(tess_device *device, tess_status status);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that libcuda.so.1 and libamdhip64.so.6 have in common but for their names. A stand-in
 * gives the names, a group at a time, and defines before_call(), which runs first in every call. */
#ifndef TESSERA_TESTS_DRIVERS_FAKE_CALLS_H
#define TESSERA_TESTS_DRIVERS_FAKE_CALLS_H

#include <stdio.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))

/* The codes that both drivers give. */
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101 };

/* A call whose arguments are not logged, or one that logs them itself. */
#define CALL(name, parameters, ...)   \
    EXPORT int name parameters;       \
    int name parameters {             \
        before_call();                \
        int code = fake_begin(#name); \
        if (!code) { __VA_ARGS__; }   \
        return fake_end(code);        \
    }

/* A call that destroys: it does so even if it has to fail. */
#define DESTROY(name, parameters, action)    \
    EXPORT int name parameters;              \
    int name parameters {                    \
        before_call();                       \
        const int fail = fake_begin(#name);  \
        const int code = action;             \
        return fake_end(fail ? fail : code); \
    }

static int started;

static void before_call(void);

EXPORT fake_get_fn fake_get;
const fake_exports *fake_get(void) { return &fake_table; }

static inline int devices(void) { return fake_setting("FAKE_DRIVER_DEVICES", FAKE_DEVICES); }

#define DEVICE_CALLS(init, get_count, get, get_name, total_memory, get_attribute) \
    CALL(init, (unsigned flags), {                                                \
        (void)flags;                                                              \
        code = fake_setting("FAKE_DRIVER_INIT", 0);                               \
        started = !code;                                                          \
    })                                                                            \
    CALL(get_count, (int *count), {                                               \
        *count = devices();                                                       \
        code = started ? 0 : NOT_INITIALIZED;                                     \
    })                                                                            \
    CALL(get, (int *device, int index), {                                         \
        fake_note(" %d", index);                                                  \
        *device = index;                                                          \
        code = index < devices() ? 0 : INVALID_DEVICE;                            \
    })                                                                            \
    CALL(get_name, (char *name, int size, int device), {                          \
        fake_note(" %d", device);                                                 \
        snprintf(name, (size_t)size, "Pretended GPU %d", device);                 \
    })                                                                            \
    CALL(total_memory, (size_t * bytes, int device), {                            \
        fake_note(" %d", device);                                                 \
        *bytes = (size_t)1 << 30;                                                 \
    })                                                                            \
    CALL(get_attribute, (int *value, int attribute, int device),                  \
         code = attribute_of(value, attribute, device))

#define MODULE_CALLS(load, unload, get_function, launch)                                    \
    CALL(load, (void **module, const void *image), code = fake_module_load(module, image))  \
    DESTROY(unload, (void *module), fake_module_unload(module))                             \
    CALL(get_function, (void **function, void *module, const char *name),                   \
         code = fake_module_function(function, module, name))                               \
    CALL(launch,                                                                            \
         (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,  \
          unsigned bz, unsigned shared, void *stream, void **parameters, void **extra),     \
         {                                                                                  \
             const unsigned grid[3] = {gx, gy, gz};                                         \
             const unsigned block[3] = {bx, by, bz};                                        \
             code = extra ? INVALID_VALUE                                                   \
                          : fake_launch(function, grid, block, shared, stream, parameters); \
         })

#define STREAM_CALLS(create, destroy, query, synchronize)         \
    CALL(create, (void **stream, unsigned flags), {               \
        fake_note(" %u", flags);                                  \
        code = fake_stream_create(stream);                        \
    })                                                            \
    DESTROY(destroy, (void *stream), fake_stream_destroy(stream)) \
    CALL(query, (void *stream), code = fake_stream_query(stream)) \
    CALL(synchronize, (void *stream), code = fake_stream_wait(stream))

#define EVENT_CALLS(create, destroy, record, synchronize, elapsed_time, query)         \
    CALL(create, (void **event, unsigned flags), {                                     \
        fake_note(" %u", flags);                                                       \
        code = fake_event_create(event);                                               \
    })                                                                                 \
    DESTROY(destroy, (void *event), fake_event_destroy(event))                         \
    CALL(record, (void *event, void *stream), code = fake_event_record(event, stream)) \
    CALL(synchronize, (void *event), code = fake_event_wait(event))                    \
    CALL(elapsed_time, (float *milliseconds, void *first, void *last),                 \
         code = fake_event_time(milliseconds, first, last))                            \
    CALL(query, (void *event), code = fake_event_query(event))

#define MEMORY_CALLS(alloc, release, to_device, to_host, within_device, set_words)     \
    CALL(alloc, (uint64_t * pointer, size_t bytes), code = fake_alloc(pointer, bytes)) \
    DESTROY(release, (uint64_t pointer), fake_free(pointer))                           \
    CALL(to_device, (uint64_t to, const void *from, size_t bytes, void *stream),       \
         code = fake_copy(to, 0, (uint64_t)(uintptr_t)from, 1, bytes, stream))         \
    CALL(to_host, (void *to, uint64_t from, size_t bytes, void *stream),               \
         code = fake_copy((uint64_t)(uintptr_t)to, 1, from, 0, bytes, stream))         \
    CALL(within_device, (uint64_t to, uint64_t from, size_t bytes, void *stream),      \
         code = fake_copy(to, 0, from, 0, bytes, stream))                              \
    CALL(set_words, (uint64_t to, unsigned value, size_t words, void *stream),         \
         code = fake_fill(to, value, words, stream))

#endif

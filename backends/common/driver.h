/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host code of the CUDA and HIP backends, whose drivers differ in names and in little else. A
 * vendor describes its driver in a tess_driver_vendor; the rest is shared. It builds without an
 * SDK: this header declares the few calls, and the driver's library is opened at run time.
 */
#ifndef TESS_COMMON_DRIVER_H
#define TESS_COMMON_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "backward.h"
#include "portable.h"
#include "row.h"
#include <tessera/tessera_backend.h>

/* The calls that both drivers have, in the order of a vendor's list of symbols. Device pointers are
 * 64-bit integers in one and void * in the other, which the ABI passes alike. */
typedef struct tess_driver_calls {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int index);
    int (*name)(char *name, int size, int device);
    int (*memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **parameters, void **extra);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_time)(float *milliseconds, void *first, void *last);
    int (*event_query)(void *event);
    int (*alloc)(uint64_t *pointer, size_t bytes);
    int (*free)(uint64_t pointer);
    int (*to_device)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*to_host)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*on_device)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*fill)(uint64_t to, unsigned value, size_t words, void *stream);
} tess_driver_calls;

enum {
    TESS_DRIVER_CALLS = sizeof(tess_driver_calls) / sizeof(void (*)(void)),
    TESS_DRIVER_EXTRAS = 10,
    TESS_DRIVER_TIMERS = 8,
    TESS_DRIVER_MODULES = 7
};

/* The name of a call in messages: tess_driver_symbol(driver, alloc) is "cuMemAlloc_v2" or
 * "hipMalloc". */
#define tess_driver_symbol(driver, call) \
    ((driver)->vendor->symbols[offsetof(tess_driver_calls, call) / sizeof(void (*)(void))])

/* Codes that mean the same in both drivers. */
enum { DRIVER_OK = 0, DRIVER_OUT_OF_MEMORY = 2, DRIVER_NOT_READY = 600 };
/* Likewise: the flag of a stream that does not wait for the legacy one. */
enum { DRIVER_STREAM_NON_BLOCKING = 1 };
/* ... and of an event that only tells whether it was passed. */
enum { DRIVER_EVENT_WITHOUT_TIME = 2 };

/* Device code that the build has embedded, deflated (inflate.h); `data` NULL ends a list. */
typedef struct tess_driver_image {
    const char *arch; /* "sm_90", "sm_90a", "compute_75" (PTX), "gfx90a" */
    const unsigned char *data, *end;
} tess_driver_image;

struct tess_driver;
typedef struct tess_driver_device tess_driver_device;
typedef struct tess_driver_row tess_driver_row;

typedef struct tess_driver_vendor {
    const char *name;             /* of the backend */
    const char *const *libraries; /* NULL-ended */
    /* NULL-ended: those of tess_driver_calls, then the vendor's own */
    const char *const *symbols;
    const tess_driver_image *images;
    const char *build_hint;                /* what to install when there are no images */
    const tess_driver_row *const *kernels; /* NULL-ended, best first */
    int units_attribute, time_limit_attribute, cache_attribute;
    /* Make the device's context current, and restore the previous one. Return the driver's codes;
     * enter_call names the call in messages. */
    const char *enter_call;
    int (*enter)(tess_driver_device *d, void **before);
    void (*leave)(tess_driver_device *d, void *before);
    /* The context: kept for the device's life, or found in `native`. Sets a message and returns a
     * status. */
    tess_status (*attach)(tess_driver_device *d, const void *native);
    void (*detach)(tess_driver_device *d);
    /* Writes the architecture as images name it. Returns the driver's code. */
    const char *arch_call;
    int (*arch)(const struct tess_driver *driver, int device, char *arch, size_t size);
    /* Index of the best image for an architecture, without those in `refused` (bit n: index n), or
     * -1. */
    int (*image)(const tess_driver_image *images, const char *arch, uint32_t refused);
    const char *(*error_name)(const struct tess_driver *driver, int code);
    /* Writes the driver's version number as text. */
    void (*version)(int number, char *text, size_t size);
    /* Whether kernels of an image for `arch` wait by themselves for the writes of earlier ones in
     * the stream, and the driver can start them while those end, which hides their launch latency.
     * NULL: it never can. */
    int (*is_early)(const struct tess_driver *driver, const char *arch);
    /* Launches such a kernel. Returns the driver's code. */
    int (*start)(const tess_driver_device *d, void *function, unsigned groups, unsigned threads,
                 unsigned shared_bytes, void *stream, void **parameters);
    /* Loads a function's code onto the device, which a driver may otherwise put off until its first
     * launch. NULL: nothing to do. Returns the driver's code. */
    int (*load)(const struct tess_driver *driver, void *function);
} tess_driver_vendor;

/* The fields of tess_driver_vendor for which a vendor's file has a function, list or constant of
 * the field's name, and what the build names by the vendor. */
#define TESS_DRIVER_VENDOR_FIELDS(vendor)                                                          \
    .name = #vendor, .images = tess_##vendor##_images, .libraries = libraries, .symbols = symbols, \
    .kernels = kernels, .units_attribute = ATTRIBUTE_UNITS,                                        \
    .time_limit_attribute = ATTRIBUTE_TIME_LIMIT, .cache_attribute = ATTRIBUTE_CACHE,              \
    .enter = enter, .leave = leave, .attach = attach, .detach = detach, .arch = arch,              \
    .image = image, .error_name = error_name, .version = version

/* An opened driver; one for each vendor and process. */
typedef struct tess_driver {
    const tess_driver_vendor *vendor;
    tess_driver_calls call;
    void (*extra[TESS_DRIVER_EXTRAS])(void); /* the vendor's own symbols, in order */
    int number;                              /* of its version */
    int count;
    char why[512]; /* why there is none; "" when it works */
    tess_status status;
} tess_driver;

/* A function that was found in a module. */
typedef struct tess_driver_found {
    char name[64];
    int module;
    void *function;
    unsigned shared_bytes; /* that it was allowed to have at a launch; 0: not asked for */
} tess_driver_found;

enum { TESS_DRIVER_FOUND = 64 }; /* that a device remembers: plans in use have about a dozen */

struct tess_driver_device {
    const tess_host *host;
    const tess_driver *driver;
    int device, units, time_limited, cache_bytes;
    char arch[32];
    void *context; /* vendor's */
    int borrowed;  /* the context is the application's */
    void *stream;
    pthread_mutex_t loading;
    /* index in the vendor's list, or -1: there is no code for the portable kernels */
    int image;
    void *modules[TESS_DRIVER_MODULES]; /* NULL until a plan needs them */
    /* What each was loaded from, with which HIP does not say that it is done. */
    void *code[TESS_DRIVER_MODULES];
    size_t code_bytes[TESS_DRIVER_MODULES];
    int is_early[TESS_DRIVER_MODULES]; /* the vendor's answer for a module's image */
    /* The lock `loading` is held. Packed batches make plans in every step, of the same kernels. */
    tess_driver_found found[TESS_DRIVER_FOUND];
    int n_found;
    void *timers[TESS_DRIVER_TIMERS][2];
    atomic_int timer_busy[TESS_DRIVER_TIMERS];
};

/* A row of a vendor's table of kernels. */
struct tess_driver_row {
    tess_row_head head;
    /* Why the device cannot run it, or, with a key, why it does not take the problem; NULL if it
     * does. `buffer` may hold the text. */
    const char *(*refuses)(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size);
    /* Fills *kernel, whose state comes from tess_driver_state_create. In the device's context. */
    tess_status (*prepare)(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel);
    /* Enqueues jobs [launch->first_job, + n_jobs). In the device's context. */
    tess_status (*launch)(tess_driver_device *d, const tess_launch *launch, void *stream);
    /* [NULL: any] tess_kernel_info.most_rows for a problem that it takes, or for the device. */
    uint32_t (*most_rows)(const tess_kernel_key *key);
    /* [NULL: by the portable kernel] Enqueues merges [launch->first_merge, + n_merges). */
    tess_status (*merge)(tess_driver_device *d, const tess_launch *launch, void *stream);
    /* [NULL: never] Whether a later row is faster on a problem that it takes, which it then takes
     * only when named. */
    int (*yields)(const tess_kernel_key *key);
};

enum { TESS_DRIVER_PASSES = 5 };

/* kernel->state of every row: the functions of a plan. */
typedef struct tess_driver_state {
    tess_driver_device *device;
    void *forward, *merge;            /* or the kernel of another operation, and none */
    const tess_portable_shape *shape; /* of the portable forward kernel */
    const tess_backward_shape *backward;
    void *passes[TESS_DRIVER_PASSES]; /* of backward: kernels of the stages */
    uint32_t groups, warps, stages;   /* where the kernel has workgroups of several sizes */
} tess_driver_state;

extern const tess_driver_row tess_driver_portable;
extern const tess_driver_row tess_driver_merge_parts, tess_driver_backward;
/* driver_paging.c: the kernels that write a cache */
extern const tess_driver_row tess_driver_append, tess_driver_copy_pages;
/* driver_prepare.c */
extern const tess_driver_row tess_driver_prepare;

/* host->fail with the call's name, what it was about, and the code's name. The status follows from
 * the code. */
tess_status tess_driver_fail(const tess_driver_device *d, const char *call, const char *what,
                             int code);

/* Makes the device's context current; vendor->leave puts back the one before. */
tess_status tess_driver_enter(tess_driver_device *d, void **before);

/* Finds function `name` in `module`, which is loaded from the image if that was not done
 * before. Module 0 is the portable kernels', of whose images it takes the best that the driver
 * takes. */
tess_status tess_driver_function(tess_driver_device *d, int module, const tess_driver_image *image,
                                 const char *name, void **function);

/* What is remembered of a function, while the lock `loading` is held; NULL: nothing. */
tess_driver_found *tess_driver_remembered(tess_driver_device *d, const void *function);

/* Writes into `buffer`, and returns, that there is no image for the device and which there are.
 * `before` begins the sentence. */
const char *tess_driver_no_code(const tess_driver_device *d, const tess_driver_image *images,
                                const char *before, char *buffer, size_t size);

/* Allocates and fills kernel->state: function `name` of a module, which runs the key's operation,
 * and with a forward kernel the merge kernel of the key's type, which is one of the portable
 * kernels. */
tess_status tess_driver_state_create(tess_driver_device *d, const tess_kernel_key *key, int module,
                                     const tess_driver_image *image, const char *name,
                                     tess_kernel *kernel);
/* The same of a portable kernel. */
tess_status tess_driver_state_portable(tess_driver_device *d, const tess_kernel_key *key,
                                       const char *name, tess_kernel *kernel);
void tess_driver_state_release(tess_kernel *kernel);

/* Launches a kernel of `module` that waits by itself for earlier ones, on a one-dimensional
 * grid. */
tess_status tess_driver_start(const tess_driver_device *d, int module, void *function,
                              unsigned groups, unsigned threads, unsigned shared_bytes,
                              void *stream, void **parameters);

/* Launches a portable kernel behind all earlier ones. */
tess_status tess_driver_start_plain(const tess_driver_device *d, void *function, unsigned groups,
                                    unsigned threads, void *stream, void **parameters);

/* Where a buffer begins on the device. */
static inline uint64_t tess_driver_address(const tess_buffer *buffer) {
    return buffer->handle + buffer->offset;
}

/* The parameters of a portable kernel: addresses of buffers, and behind them a structure of
 * arguments. */
enum { TESS_DRIVER_BUFFERS = TESS_PORTABLE_TENSORS + 2 };
typedef struct tess_driver_parameters {
    uint64_t addresses[TESS_DRIVER_BUFFERS];
    void *all[TESS_DRIVER_BUFFERS + 1];
    uint32_t count;
} tess_driver_parameters;

static inline void tess_driver_pass(tess_driver_parameters *p, const tess_buffer *buffer) {
    p->addresses[p->count] = tess_driver_address(buffer);
    p->all[p->count] = &p->addresses[p->count];
    p->all[++p->count] = NULL;
}
/* The tensors of a table, in its order. */
static inline void tess_driver_pass_tensors(tess_driver_parameters *p, const tess_launch *l,
                                            const tess_portable_tensor *tensors, int count) {
    for (int n = 0; n < count; n++) tess_driver_pass(p, &l->tensor[tensors[n].role].buffer);
}

/* kernels of the table, and launches */
tess_status tess_driver_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel);
tess_status tess_driver_launch(void *device, const tess_launch *launch);

/* The functions of tess_backend; `driver` is the vendor's, opened on first use. */
void tess_driver_load(tess_driver *driver, const tess_driver_vendor *vendor);
tess_status tess_driver_list(const tess_driver *driver, const tess_host *host, uint32_t index,
                             tess_device_info *info);
tess_status tess_driver_open(const tess_driver *driver, const tess_host *host, uint32_t index,
                             const void *native, void **device);
void tess_driver_close(void *device);
tess_status tess_driver_query(void *device, tess_caps *caps);
tess_status tess_driver_alloc(void *device, uint64_t size, tess_buffer *buffer);
tess_status tess_driver_free(void *device, tess_buffer *buffer);
tess_status tess_driver_copy(void *device, tess_buffer destination, tess_buffer source,
                             uint64_t bytes);
tess_status tess_driver_wait(void *device, uint64_t timeout_ns);
tess_status tess_driver_mark(void *device, const tess_stream *stream, void **mark);
tess_status tess_driver_passed(void *device, void *mark);
void tess_driver_unmark(void *device, void *mark);

/* Defines a vendor's backend, `symbol`, whose driver is opened once, on first use. */
#define TESS_DRIVER_BACKEND(symbol, backend_name, vendor, tune_table)                        \
    static tess_driver driver;                                                               \
    static pthread_once_t once = PTHREAD_ONCE_INIT;                                          \
    static void load(void) { tess_driver_load(&driver, &(vendor)); }                         \
    static const tess_driver *opened(void) {                                                 \
        pthread_once(&once, load);                                                           \
        return &driver;                                                                      \
    }                                                                                        \
    static tess_status list(const tess_host *host, uint32_t index, tess_device_info *info) { \
        return tess_driver_list(opened(), host, index, info);                                \
    }                                                                                        \
    static tess_status open(const tess_host *host, uint32_t index, const void *native,       \
                            void **device) {                                                 \
        return tess_driver_open(opened(), host, index, native, device);                      \
    }                                                                                        \
    const tess_backend symbol = {.abi = TESS_BACKEND_ABI,                                    \
                                 .struct_size = sizeof(tess_backend),                        \
                                 .name = (backend_name),                                     \
                                 .list = list,                                               \
                                 .open = open,                                               \
                                 .close = tess_driver_close,                                 \
                                 .query = tess_driver_query,                                 \
                                 .kernel = tess_driver_kernel,                               \
                                 .launch = tess_driver_launch,                               \
                                 .alloc = tess_driver_alloc,                                 \
                                 .free = tess_driver_free,                                   \
                                 .copy = tess_driver_copy,                                   \
                                 .wait = tess_driver_wait,                                   \
                                 .tune = (tune_table),                                       \
                                 .mark = tess_driver_mark,                                   \
                                 .passed = tess_driver_passed,                               \
                                 .unmark = tess_driver_unmark}

#endif /* TESS_COMMON_DRIVER_H */

/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the Vulkan backend: the loader and its devices, memory and waiting, pipelines, the table
 * of kernels, and launches. */
#ifndef TESSERA_VULKAN_VK_H
#define TESSERA_VULKAN_VK_H

#include <pthread.h>
#include <stdatomic.h>

#include "api.h"
#include "backward.h"
#include "kernels/bindings.h"
#include "paging.h"
#include "prepare.h"
#include "row.h"
#include "self_check.h"
#include <tessera/tessera_backend.h>

enum {
    VK_MOST_DEVICES = 16,
    VK_DTYPES = 3,
    VK_PAIRS = VK_DTYPES, /* the module of both 16-bit types that reads words of two elements */
    VK_MODULES = 4,
    VK_VARIANTS = 4, /* of pipelines: each row's for tiles, and those for few rows */
    VK_WORKSPACE_ALIGN = 256,
    VK_MATRIX_SHAPES = 2, /* of the kernel on matrix units */
    VK_VENDOR_NVIDIA = 0x10de,
    VK_DRIVER_NVIDIA = 4, /* NVIDIA's own driver, and not Mesa's for the same GPUs */
    VK_SPARE_STATES = 4,
    VK_LEAST_BUFFERS = 4, /* storage buffers of a stage: slots.c */
};

/* Kernels that give the bindings of tensors the same meaning. */
enum { VK_ATTENTION, VK_PAGING, VK_PREPARE, VK_FAMILIES };

/* Limit of each wait that the application did not ask for. */
#define VK_WAIT_LIMIT_NS UINT64_C(600000000000)

/* Matrix products of subgroups: coopmat.c. */
typedef struct tess_vk_matrices {
    char missing[80]; /* what the kernel needs and the device lacks; empty: nothing */
    vk_bool bfloat16; /* the type is there */
    uint32_t subgroup;
    struct {
        uint32_t m, n, k; /* 0: no size that the kernel takes */
    } product[VK_DTYPES];
} tess_vk_matrices;

/* What is known of a physical device before anything is opened on it. */
typedef struct tess_vk_found {
    vk_physical physical;
    vk_properties properties;
    uint32_t family;         /* has compute; preferably without graphics */
    uint32_t timestamp_bits; /* 0: that family has no timestamps */
    vk_bool storage_16bit;
    uint32_t driver_id; /* VkDriverId; 0: not known */
    tess_vk_matrices matrices;
    char refusal[80]; /* why it cannot be used, where the reason holds a number */
} tess_vk_found;

/* A buffer with memory of its own: from tess_alloc, or for the backend itself. */
typedef struct tess_vk_memory {
    struct tess_vk_memory *next;
    vk_handle buffer, memory;
    uint64_t size;
    char *mapped; /* NULL: not mapped */
} tess_vk_memory;

/* A fence for tess_wait and its like. After a timeout it stays pending until it is signalled. */
typedef struct tess_vk_fence {
    struct tess_vk_fence *next;
    vk_handle fence;
    int pending;
} tess_vk_fence;

/* What copies need: copy.c. */
typedef struct tess_vk_copier {
    tess_vk_memory staging;
    vk_handle pool, fence;
    vk_commands commands;
    vk_handle set_layout, layout, pipeline, sets, set; /* of the kernel */
} tess_vk_copier;

/* How the driver refused to compile the kernel on matrix units: the last result, and how often. */
typedef struct tess_vk_refusal {
    vk_result result;
    int count;
} tess_vk_refusal;

typedef struct tess_vk_device {
    const tess_host *host;
    vk_api vk;
    vk_instance instance;
    vk_device device;
    vk_queue queue;
    tess_vk_found found;
    vk_memory_properties memory;
    int wrapped;  /* instance and device are the application's */
    int timeline; /* timeline semaphores may be used */
    void (*lock)(void *user), (*unlock)(void *user);
    void *lock_user;
    char driver[96];
    uint32_t units;   /* multiprocessors; 0: not known */
    atomic_int stuck; /* a wait reached its limit: objects may be in use and are not destroyed */

    pthread_mutex_t queue_lock;
    pthread_mutex_t memory_lock; /* of `allocations` */
    tess_vk_memory *allocations;
    pthread_mutex_t fence_lock; /* of `fences` */
    tess_vk_fence *fences;

    pthread_mutex_t spare_lock; /* of `spare_states`, the latest first */
    struct tess_vk_state *spare_states[VK_SPARE_STATES];

    pthread_mutex_t copy_lock; /* of `copier` */
    tess_vk_copier copier;

    uint32_t storage_buffers;                  /* that are bound */
    uint8_t slots[VK_FAMILIES][TESS_BINDINGS]; /* where each binding of the kernels is */
    vk_handle set_layout, layout;
    pthread_mutex_t pipeline_lock; /* of all below */
    vk_handle cache;
    size_t cached_bytes; /* of the cache when it was last loaded or stored */
    vk_handle forward[VK_VARIANTS][TESS_PORTABLE_BUCKETS][VK_DTYPES], merge[VK_DTYPES];
    vk_handle append[2], copy_pages[2]; /* for elements of 32 and of 16 bits */
    vk_handle merge_parts[VK_DTYPES];
    vk_handle prepare;
    vk_handle backward[TESS_BACKWARD_STAGES][TESS_PORTABLE_BUCKETS][VK_DTYPES];
    vk_handle coopmat[VK_MATRIX_SHAPES][VK_DTYPES];
    tess_vk_refusal coopmat_refusal[VK_MATRIX_SHAPES][VK_DTYPES];

    tess_checks checks; /* of rows that nobody has run on such a device: table.c */
} tess_vk_device;

/* loader.c: the library, an instance, the devices on it. */
vk_get_instance_proc tess_vk_library(char *why, size_t size);
/* Fills the functions that need no device. */
tess_status tess_vk_instance_functions(const tess_host *host, vk_get_instance_proc get,
                                       vk_instance instance, vk_api *vk);
tess_status tess_vk_connect(const tess_host *host, vk_api *vk, vk_instance *instance);
tess_status tess_vk_find(const tess_host *host, const vk_api *vk, vk_instance instance,
                         uint32_t index, tess_vk_found *found);
/* Fills *found for one physical device; returns why it cannot be used, or NULL. */
const char *tess_vk_inspect(const vk_api *vk, vk_physical physical, tess_vk_found *found);
/* The driver's name and version as a text, and its number in *found. */
void tess_vk_driver_find(const tess_host *host, const vk_api *vk, tess_vk_found *found, char *text,
                         size_t size);
/* Whether code is compiled by NVIDIA's own compiler, for which some shapes were measured. */
int tess_vk_is_nvidia(const tess_vk_found *found);
int tess_vk_has_extension(const tess_host *host, const vk_api *vk, vk_physical physical,
                          const char *name);
int tess_vk_has_timeline(const tess_host *host, const vk_api *vk, const tess_vk_found *found);
uint32_t tess_vk_compute_units(const tess_host *host, const vk_api *vk, vk_physical physical);
tess_status tess_vk_list(const tess_host *host, uint32_t index, tess_device_info *info);

/* result.c: a failed call as a status, with the result's name in the message. */
const char *tess_vk_result_name(vk_result result);
tess_status tess_vk_status(vk_result result);
tess_status tess_vk_fail(const tess_host *host, vk_result result, const char *call,
                         const char *what);

/* device.c */
tess_status tess_vk_open(const tess_host *host, uint32_t index, const void *native, void **device);
void tess_vk_close(void *device);
tess_status tess_vk_query(void *device, tess_caps *caps);
/* Steps (a row tile times 64 keys) that take less than 200 ms; 0: this device has no watchdog. */
uint64_t tess_vk_range_steps(const tess_vk_device *d);
/* About how many workgroups run at a time. */
uint32_t tess_vk_parallel_jobs(const tess_vk_device *d);
vk_result tess_vk_submit(tess_vk_device *d, vk_queue queue, uint32_t count,
                         const vk_submit_info *submits, vk_handle fence);

/* memory.c */
tess_status tess_vk_alloc(void *device, uint64_t size, tess_buffer *buffer);
tess_status tess_vk_free(void *device, tess_buffer *buffer);
tess_status tess_vk_wait(void *device, uint64_t timeout_ns);
/* Waits until everything submitted to the queue so far is done; TVK_TIMEOUT after timeout_ns. */
vk_result tess_vk_drain(tess_vk_device *d, uint64_t timeout_ns);
/* Drains the queue before objects are destroyed. Where that fails the device is marked stuck. */
void tess_vk_quiesce(tess_vk_device *d);
/* The same for the work of one fence. */
vk_result tess_vk_wait_fence(tess_vk_device *d, vk_handle fence);
/* The same for work that ends soon: asks for a while before it sleeps. */
vk_result tess_vk_await_fence(tess_vk_device *d, vk_handle fence);
/* `preferred`: combinations of TVK_MEMORY_*, the best one first. The memory is mapped if the best
 * one asks for memory that the host sees. */
tess_status tess_vk_memory_create(tess_vk_device *d, uint64_t size, uint32_t usage,
                                  const uint32_t *preferred, int count, tess_vk_memory *m);
void tess_vk_memory_destroy(tess_vk_device *d, tess_vk_memory *m);
void tess_vk_memory_close(tess_vk_device *d);

/* copy.c */
tess_status tess_vk_copy(void *device, tess_buffer destination, tess_buffer source, uint64_t bytes);
/* Destroys what copies needed. */
void tess_vk_copier_close(tess_vk_device *d);

/* slots.c: the bindings of a device. */
uint32_t tess_vk_family(uint32_t op);
void tess_vk_slots_find(tess_vk_device *d);
/* Numbers the bindings of a module by them. */
void tess_vk_slots_place(const uint8_t slots[TESS_BINDINGS], uint32_t *code, size_t words);

/* pipeline.c */
tess_status tess_vk_layouts_create(tess_vk_device *d);
void tess_vk_pipelines_close(tess_vk_device *d);
tess_status tess_vk_forward_pipeline(tess_vk_device *d, const tess_portable_shape *shape,
                                     uint32_t dtype, vk_handle *pipeline);
tess_status tess_vk_merge_pipeline(tess_vk_device *d, uint32_t dtype, vk_handle *pipeline);
/* Specialization constants of a module (kernels/bindings.h), by their number. Constant 3 is the
 * threads of a workgroup, and 4 the type of a module of pairs. */
enum { VK_CONSTANTS = 11 };
typedef struct tess_vk_constants {
    uint32_t word[VK_CONSTANTS];
} tess_vk_constants;
/* UNSUPPORTED where the driver does not compile it, which is tried once or twice. */
tess_status tess_vk_matrix_pipeline(tess_vk_device *d, uint32_t shape, uint32_t dtype,
                                    const tess_vk_constants *constants, vk_handle *pipeline);
/* The code of the kernel on matrix units, for verdicts of its self-check (self_check.h). */
void tess_vk_matrix_code(void *device, uint32_t row, uint32_t dtype, tess_cache_key *key,
                         char *text, size_t size);
/* of a stage of backward, by tess_backward_number */
tess_status tess_vk_backward_pipeline(tess_vk_device *d, const tess_backward_shape *shape,
                                      uint32_t dtype, uint32_t number, vk_handle *pipeline);
tess_status tess_vk_copy_pipeline(tess_vk_device *d, vk_handle layout, vk_handle *pipeline);
/* of any other operation */
tess_status tess_vk_other_pipeline(tess_vk_device *d, uint32_t op, uint32_t dtype,
                                   vk_handle *pipeline);

/* resources.c: what max_in_flight launches of a plan need. */
enum { VK_MOST_SUBMISSIONS = 64 };
enum {
    VK_RESOURCES_FREE,
    VK_RESOURCES_TAKEN,
    VK_RESOURCES_SUBMITTED,
    VK_RESOURCES_RECORDED,
    VK_RESOURCES_UNTRACKED
};

typedef struct tess_vk_resources {
    atomic_int state;
    vk_handle pool, fence;
    vk_handle *sets;       /* one for each binding range */
    vk_commands *commands; /* one for each submission */
    /* RECORDED: the event that frees them. Both 0: they are taken until the plan is released. */
    vk_handle until_semaphore, until_fence;
    uint64_t until_value;
} tess_vk_resources;

typedef struct tess_vk_state {
    tess_vk_device *device;
    vk_handle forward, merge; /* or the pipeline of another operation, and none */
    vk_handle stages[TESS_BACKWARD_STAGES];
    /* queries 2n and 2n + 1 are those of resources[n]; 0 where there are no timestamps */
    vk_handle descriptor_pool, queries;
    uint32_t max_in_flight, n_submissions; /* n_submissions: the most that one run is split into */
    uint32_t most_bind_ranges;             /* of a run: bind_ranges.c */
    uint32_t most_rows, most_keys;         /* of a sequence; 0: not known */
    uint64_t jobs_per_submission;          /* 0: no limit */
    tess_vk_memory parameters;             /* of all dispatches of all runs: parameters.c */
    uint32_t parameters_stride;            /* bytes from one dispatch's parameters to the next */
    size_t bytes;                          /* of the state with all that follows it */
    tess_vk_resources *resources;          /* [max_in_flight] */
} tess_vk_state;

tess_status tess_vk_state_create(tess_vk_device *d, uint32_t max_in_flight, uint32_t submissions,
                                 uint32_t bind_ranges, tess_vk_state **state);
void tess_vk_state_release(tess_kernel *kernel);
/* Destroys those that were kept. */
void tess_vk_states_close(tess_vk_device *d);
/* Finds resources that no run uses, their fence unsignalled; BUSY. */
tess_status tess_vk_resources_take(tess_vk_state *state, uint32_t *index);

/* coopmat.c: the forward kernel on matrix units. */
enum { VK_MATRIX_EXTENSIONS = 5 }; /* the last one is for bfloat16 */
extern const char *const tess_vk_matrix_extensions[VK_MATRIX_EXTENSIONS];
/* What vkCreateDevice is given to enable all that the kernel needs. */
typedef struct tess_vk_matrix_chain {
    vk_matrix_features matrix;
    vk_memory_model_features memory;
    vk_float16_features half;
    vk_subgroup_size_features subgroups;
    vk_bfloat16_features bfloat16;
} tess_vk_matrix_chain;
void tess_vk_matrix_chain_make(tess_vk_matrix_chain *chain, int bfloat16);
void tess_vk_matrices_find(const tess_host *host, const vk_api *vk, tess_vk_found *found);
/* The shape that takes a key of float16 or bfloat16. */
enum { VK_MATRIX_DIMS = 128 }; /* largest head_dim */
void tess_vk_matrix_shape(const tess_vk_device *d, const tess_kernel_key *key,
                          tess_portable_shape *shape);
tess_status tess_vk_matrix_prepare(tess_vk_device *d, const tess_kernel_key *key,
                                   const tess_portable_shape *shape, vk_handle *pipeline);

/* table.c */

tess_status tess_vk_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                           tess_kernel_info *info, tess_kernel *kernel);
tess_status tess_vk_launch(void *device, const tess_launch *launch);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the OpenCL backend share. */
#ifndef TESS_OPENCL_OPENCL_H
#define TESS_OPENCL_OPENCL_H

#include <pthread.h>

#include "backward.h"
#include "cl.h"
#include "paging.h"
#include "prepare.h"
#include "row.h"
#include "self_check.h"
#include <tessera/tessera_backend.h>

enum {
    OPENCL_VARIANTS = 3, /* of instances: each row's for tiles, and those for few rows */
    OPENCL_DTYPES = 3,
    OPENCL_INTEL_SHAPES = 2,               /* of the kernel for Intel's matrix engines */
    OPENCL_KERNELS = TESS_BACKWARD_STAGES, /* most of one row of the table */
    OPENCL_TEXT = 96,                      /* of names and versions that go into tess_device_info */
};

/* A device as the driver describes it. */
typedef struct opencl_found {
    cl_platform_id platform;
    cl_device_id device;
    uint32_t kind; /* tess_device_kind */
    char platform_name[OPENCL_TEXT];
} opencl_found;

/* What intel_dpas.c has found. */
typedef struct opencl_intel {
    const char *lacks; /* the first extension that is needed and not there, or NULL */
    const char *lacks_dtype[OPENCL_DTYPES]; /* likewise, for one type */
    uint32_t lanes;                         /* of the smallest subgroup; 0: not known */
} opencl_intel;

/* One compiled instance of the kernels. */
typedef struct opencl_program {
    cl_program program;
    int may_fail; /* a row below takes its problems if the driver's compiler does not take it */
    int refusals; /* how often that compiler did not take it */
    int refused;  /* nobody tries again */
    char refusal[256]; /* why the device cannot run it */
} opencl_program;

typedef struct opencl_device {
    const tess_host *host;
    const cl_api *cl;
    cl_device_id device;
    int retained; /* it may be a sub-device of the application's */
    cl_context context;
    cl_command_queue queue; /* in order */
    uint32_t kind, compute_units, clock_mhz;
    int time_limited; /* a watchdog may stop kernels after some seconds */
    uint32_t vendor;  /* CL_DEVICE_VENDOR_ID, which most take from the PCI list */
    int may_check;    /* kernels may check themselves: the device or its queue is not wrapped */
    cl_uint nv[2];    /* NVIDIA's compute capability; 0.0: of another vendor */
    int nv_options;   /* its compiler has those of NVIDIA's */
    opencl_intel intel;
    size_t most_threads;
    uint64_t local_bytes, most_bytes;
    char names[2][512]; /* device and driver, for the cache */
    pthread_mutex_t building;
    opencl_program programs[OPENCL_DTYPES][OPENCL_VARIANTS][TESS_PORTABLE_BUCKETS];
    opencl_program nv_mma[OPENCL_DTYPES][TESS_PORTABLE_BUCKETS];
    opencl_program intel_dpas[OPENCL_DTYPES][OPENCL_INTEL_SHAPES];
    opencl_program paging[2]; /* for elements of 32 and of 16 bits */
    opencl_program parts[OPENCL_DTYPES];
    opencl_program backward[OPENCL_DTYPES][TESS_PORTABLE_BUCKETS];
    opencl_program step;
    tess_checks checks; /* of rows that nobody has run on such a device */
} opencl_device;

/* The entry points, found once for the process; NULL with the reason in `why`. */
const cl_api *tess_opencl_api(char *why, size_t size);

/* Device `index` in the order of tess_runtime_device; UNAVAILABLE past the last, and for index 0
 * with the reason why there is none. */
tess_status tess_opencl_find(const tess_host *host, const cl_api *cl, uint32_t index,
                             opencl_found *found);
tess_status tess_opencl_list(const tess_host *host, uint32_t index, tess_device_info *info);

/* A device property as text or as a number; "" or 0 where the driver does not know it. */
void tess_opencl_text(const cl_api *cl, cl_device_id device, cl_uint what, char *text, size_t size);
/* Whether the device has an extension. Only then does it know the queries of that extension. */
int tess_opencl_has(const cl_api *cl, cl_device_id device, const char *extension);
uint64_t tess_opencl_number(const cl_api *cl, cl_device_id device, cl_uint what, size_t bytes);

/* The status that an error stands for, its name, and both in a message "call: what (NAME,
 * code)". */
tess_status tess_opencl_status(cl_int code);
const char *tess_opencl_error_name(cl_int code);
tess_status tess_opencl_fail(const tess_host *host, const char *call, const char *what,
                             cl_int code);

/* kernels.c */
/* About how many workgroups run at a time. */
static inline uint32_t tess_opencl_parallel_jobs(const opencl_device *d) {
    return d->compute_units ? 2 * d->compute_units : 2;
}

/* What the table knows of a forward kernel that is for one vendor's matrix units. Its program has
 * tess_forward and tess_merge as well, with the same arguments. */
typedef struct opencl_matrix_row {
    /* The vendor on whose devices it has run; 0: on none. On those of others it checks itself. */
    uint32_t proved_on;
    const unsigned char *source; /* deflated */
    const size_t *source_size;
    /* Why the device cannot run it, or with a key, why it does not take the problem; or NULL. */
    const char *(*refuses)(const opencl_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size);
    /* The place of the key's program, what it is compiled with, and its threads. */
    opencl_program *(*instance)(opencl_device *d, const tess_kernel_key *key, char *options,
                                size_t size, uint32_t *threads);
    void (*describe)(const opencl_device *d, const tess_kernel_key *key, tess_kernel *kernel);
} opencl_matrix_row;

extern const opencl_matrix_row tess_opencl_nv_mma_row, tess_opencl_intel_dpas_row;

/* Finds what intel_dpas needs of the device. */
void tess_opencl_intel_find(opencl_device *d);

/* Whether the device has room for a workgroup; if not, `why` says what is missing. */
int tess_opencl_fits(const opencl_device *d, uint32_t threads, uint32_t shared_bytes, char *why,
                     size_t size);
tess_status tess_opencl_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel);
void tess_opencl_programs_release(opencl_device *d);

/* Kernel objects hold their arguments, so each launch needs a set of its own while it is enqueued.
 */
typedef struct opencl_kernel_set {
    cl_kernel kernels[OPENCL_KERNELS]; /* forward and merge; a stage each; or one */
    int busy;                          /* atomic */
} opencl_kernel_set;

typedef struct opencl_state {
    opencl_device *device;
    const tess_backward_shape *backward; /* NULL: of another operation */
    uint32_t n_sets, threads;            /* threads: of a workgroup of the forward kernel */
    opencl_kernel_set sets[];
} opencl_state;

/* launch.c */
tess_status tess_opencl_launch(void *device, const tess_launch *launch);

#endif /* TESS_OPENCL_OPENCL_H */

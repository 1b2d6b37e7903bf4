/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the limits of a GPU are measured with: its interface, opened at run time, and small loops in
 * that interface's language. The library's API runs attention and copies memory, so the suite talks
 * to the drivers itself, as a vendor's own bandwidth test does, and in a process of its own
 * (server.h), which holds no device of the library.
 */
#ifndef TESSERA_BENCH_LIMITS_GPU_H
#define TESSERA_BENCH_LIMITS_GPU_H

#include "operands.h"
#include "results.h"

typedef enum gpu_loop { GPU_COPY, GPU_READ, GPU_F32, GPU_F16, GPU_BF16, GPU_LOOPS } gpu_loop;

/* Threads of a group, and vectors of 16 bytes that each thread moves; the same in every language.
 */
enum { GPU_GROUP = 256, GPU_VECTORS = 4, GPU_TILE = GPU_GROUP * GPU_VECTORS * 16 };
/* Groups that multiply and add on each compute unit. */
enum { GPU_GROUPS_A_UNIT = 8 };

/* What a driver makes ready. */
typedef struct gpu_job {
    int loop;        /* gpu_loop */
    uint64_t bytes;  /* of a loop that moves, a multiple of GPU_TILE; a driver may take fewer */
    int turns;       /* of a loop that multiplies */
    char method[64]; /* found by the driver */
    char why[256];   /* likewise, where it failed */
} gpu_job;

/* Bytes or FLOP of a run of so many groups. `flop`: of a thread in a turn. */
double gpu_work(const gpu_job *job, uint64_t bytes, uint64_t groups, double flop);

/* `gpu` points to `size` bytes, which are 0 at first. */
typedef struct gpu_driver {
    const char *backend;
    size_t size;
    /* Sets uuid and pci of a device where the driver tells them. */
    void (*identify)(bench_device *d);
    /* 0, or -1 with a reason; closed in either case. */
    int (*open)(void *gpu, const bench_device *d, char *why, size_t size);
    void (*close)(void *gpu);
    /* Makes a loop ready. Returns the work of a run; 0 where the device has no such thing or, with
     * a reason, where it failed. */
    double (*prepare)(void *gpu, gpu_job *job);
    double (*run)(void *gpu); /* seconds on the device, NaN after a failure */
} gpu_driver;

extern const gpu_driver gpu_cuda, gpu_hip, gpu_opencl, gpu_vulkan;
/* Of a device's backend, or NULL. */
const gpu_driver *gpu_driver_of(const bench_device *d);
/* A device's own loops, opened; NULL with a reason. */
void *gpu_open(const gpu_driver *driver, const bench_device *d, char *why, size_t size);
void gpu_close(const gpu_driver *driver, void *gpu);

/* Writes the bytes of a UUID as bench_device has them. */
void gpu_uuid_text(const unsigned char uuid[16], char text[40]);

/* A library for matrix products, opened at run time on a GPU: n x n x n products of a type. */
enum { GPU_ANYBODYS = 1, GPU_VENDORS = 2, GPU_RANKS };
typedef struct gpu_library {
    const char *backend;
    int rank; /* the vendor's own is asked before others */
    size_t size;
    /* As of gpu_driver. Also writes the library's name and version, and the call. */
    int (*open)(void *p, const bench_device *d, const operands *o, bench_ceiling *c, char *why,
                size_t size);
    double (*run)(void *p); /* seconds on the device, NaN after a failure */
    /* Some bytes of C, from `at` on; 0 or an error. */
    int (*fetch)(void *p, void *to, uint64_t at, size_t bytes);
    void (*close)(void *p);
} gpu_library;

extern const gpu_library gpu_cublas, gpu_rocblas, gpu_hipblaslt, gpu_clblast;
/* The products of a library, opened and warm; NULL with a reason. */
typedef struct gpu_products gpu_products;
gpu_products *gpu_products_open(const gpu_library *library, const bench_device *d, uint32_t dtype,
                                int64_t n, bench_ceiling *c, char *why, size_t size);
double gpu_products_run(gpu_products *p);
int gpu_products_check(gpu_products *p); /* whether a few elements are right */
void gpu_products_close(gpu_products *p);

/* Of the library that is known for the device's backend; 0: none is. */
int gpu_library_rank(const bench_device *d);
/* The number behind the colon of its id. */
int gpu_index(const bench_device *d);

/* In a process of its own: measures everything that can be, and gives each ceiling to `found` and
 * each reason for a missing one to `note`. Loops run beside what a library multiplies: the best of
 * all counts. */
typedef struct gpu_sink {
    void (*found)(void *user, const bench_ceiling *c);
    void (*note)(void *user, const char *text);
    void *user;
} gpu_sink;
void gpu_limits(const bench_device *d, double seconds, const gpu_sink *sink);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the limits of a GPU are measured with: its interface, opened at run time, and small loops in
 * that interface's language. The library's API runs attention and copies memory, so the suite talks
 * to the drivers itself, as a vendor's own bandwidth test does, and in a process of its own
 * (server.h), which holds no device of the library.
 */
#ifndef TESSERA_BENCH_LIMITS_GPU_H
#define TESSERA_BENCH_LIMITS_GPU_H

#include "results.h"

typedef enum gpu_loop { GPU_COPY, GPU_READ, GPU_F32, GPU_F16, GPU_BF16, GPU_LOOPS } gpu_loop;

/* Threads of a group, and vectors of 16 bytes that each thread moves; the same in every language.
 */
enum { GPU_GROUP = 256, GPU_VECTORS = 4, GPU_TILE = GPU_GROUP * GPU_VECTORS * 16 };

typedef struct gpu_driver {
    const char *backend;
    /* Sets uuid and pci of a device where the driver tells them. */
    void (*identify)(bench_device *d);
    /* NULL with a reason. */
    void *(*open)(const bench_device *d, char *why, size_t size);
    void (*close)(void *gpu);
    /* Makes a loop ready: `bytes` in all for copies and reads, a multiple of GPU_TILE; else `turns`
     * of the loop. Returns bytes or FLOP of a run; 0 with a reason where the device has no such
     * thing. */
    double (*prepare)(void *gpu, int loop, uint64_t bytes, int turns, char *why, size_t size);
    double (*run)(void *gpu); /* seconds on the device, NaN after a failure */
    const char *(*method)(int loop);
} gpu_driver;

extern const gpu_driver gpu_cuda, gpu_hip, gpu_opencl, gpu_vulkan;
/* Of a device's backend, or NULL. */
const gpu_driver *gpu_driver_of(const bench_device *d);

/* Writes the bytes of a UUID as bench_device has them. */
void gpu_uuid_text(const unsigned char uuid[16], char text[40]);

/* A vendor's library for matrix products, opened at run time on a GPU. */
typedef struct gpu_products gpu_products;
enum { GPU_ANYBODYS = 1, GPU_VENDORS = 2, GPU_RANKS };
typedef struct gpu_library {
    const char *backend;
    int rank; /* the vendor's own is asked before others */
    /* n x n x n products of `dtype`; NULL with a reason. */
    gpu_products *(*open)(const bench_device *d, uint32_t dtype, int64_t n, char *why, size_t size);
    double (*run)(gpu_products *p);               /* seconds on the device, NaN after a failure */
    int (*check)(gpu_products *p);                /* whether a few elements are right */
    const char *(*name)(const gpu_products *p);   /* "cuBLAS 13.0.1" */
    const char *(*method)(const gpu_products *p); /* the call */
    void (*close)(gpu_products *p);
} gpu_library;

extern const gpu_library gpu_cublas, gpu_rocblas, gpu_clblast;
/* Of the library that is known for the device's backend; 0: none is. */
int gpu_library_rank(const bench_device *d);
/* The number behind the colon of its id. */
int gpu_index(const bench_device *d);

/* In a process of its own: measures everything that can be, and gives each ceiling to `found` and
 * each reason for a missing one to `note`. Multiply-add loops run where no library gives a product.
 */
typedef struct gpu_sink {
    void (*found)(void *user, const bench_ceiling *c);
    void (*note)(void *user, const char *text);
    void *user;
} gpu_sink;
void gpu_limits(const bench_device *d, double seconds, const gpu_sink *sink);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, and their programs: binaries from the cache on disk where it has them, else
 * built from source. */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "opencl.h"

/* Made at build time from kernels/portable.cl. */
extern const char tess_opencl_portable[];
extern const size_t tess_opencl_portable_size;

/* A row of the table of kernels. */
typedef struct opencl_row {
    tess_row_head head;
    const tess_portable_variant *variant;
    const char *function; /* of the program */
} opencl_row;

/* Best first. */
static const opencl_row kernels[OPENCL_VARIANTS] = {
    {{TESS_OP_FORWARD, "portable", 0}, &tess_portable, "tess_forward"},
    {{TESS_OP_FORWARD, "portable_small", 0}, &tess_portable_small, "tess_forward"},
};

enum { MOST_PAIRS = 1024, MOST_OPTIONS = 256, MOST_DEVICES = 64 };

/* ------------------------------------------------------------------ limits */

/* Whether the device has room for a workgroup of the shape; if not, `why` says what is missing. */
static int fits(const opencl_device *d, const tess_portable_shape *shape, char *why, size_t size) {
    if (d->most_threads < shape->threads) {
        snprintf(why, size, "needs workgroups of %u work-items, and the device has at most %zu",
                 (unsigned)shape->threads, d->most_threads);
        return 0;
    }
    if (d->local_bytes < shape->shared_bytes) {
        snprintf(why, size, "needs %u bytes of local memory, and the device has %llu",
                 (unsigned)shape->shared_bytes, (unsigned long long)d->local_bytes);
        return 0;
    }
    return 1;
}

/* The limits that are known only once the kernel is compiled. */
static int kernel_fits(const opencl_device *d, cl_kernel kernel, uint32_t threads, char *why,
                       size_t size) {
    size_t most = threads;
    cl_ulong local = 0;
    /* Where the driver does not answer, the launch will fail instead. */
    if (d->cl->clGetKernelWorkGroupInfo(kernel, d->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most,
                                        &most, NULL) == CL_SUCCESS &&
        most < threads) {
        snprintf(why, size,
                 "compiled for this device it runs %zu work-items in a group and needs %u", most,
                 (unsigned)threads);
        return 0;
    }
    if (d->cl->clGetKernelWorkGroupInfo(kernel, d->device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local,
                                        &local, NULL) == CL_SUCCESS &&
        local > d->local_bytes) {
        snprintf(
            why, size,
            "compiled for this device it needs %llu bytes of local memory, and the device has %llu",
            (unsigned long long)local, (unsigned long long)d->local_bytes);
        return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ building */

static cl_int build(const opencl_device *d, cl_program program, const char *options) {
    return d->cl->clBuildProgram(program, 1, &d->device, options, NULL, NULL);
}

/* The first lines of the compiler's log, joined into one. */
static void build_log(const opencl_device *d, cl_program program, char *text, size_t size) {
    size_t bytes = 0;
    text[0] = '\0';
    if (d->cl->clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) !=
            CL_SUCCESS ||
        bytes == 0)
        return;
    char *log = d->host->alloc(d->host, bytes + 1, 1);
    if (!log) return;
    if (d->cl->clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL) ==
        CL_SUCCESS) {
        log[bytes] = '\0';
        d->host->log(d->host, "device", "build log: %s", log);
        snprintf(text, size, "%s", log);
        for (char *c = text; *c; c++)
            if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    }
    d->host->free(d->host, log, bytes + 1);
}

static cl_program from_cache(const opencl_device *d, const tess_cache_key *key) {
    size_t size = 0;
    cl_int code = CL_SUCCESS, loaded = CL_SUCCESS;
    void *binary = tess_cache_load(d->host, key, &size);
    if (!binary) return NULL;
    const unsigned char *bytes = binary;
    cl_program program =
        d->cl->clCreateProgramWithBinary(d->context, 1, &d->device, &size, &bytes, &loaded, &code);
    d->host->free(d->host, binary, size);
    if (program && (code != CL_SUCCESS || loaded != CL_SUCCESS ||
                    build(d, program, key->options) != CL_SUCCESS)) {
        d->host->log(
            d->host, "device",
            "the driver does not take its own binary from the cache; building from source");
        d->cl->clReleaseProgram(program);
        program = NULL;
    }
    return program;
}

/* In a wrapped context a program may belong to several devices, and was built for ours alone. */
static void to_cache(const opencl_device *d, const tess_cache_key *key, cl_program program) {
    const cl_api *cl = d->cl;
    cl_uint count = 0;
    cl_device_id devices[MOST_DEVICES];
    size_t sizes[MOST_DEVICES] = {0};
    unsigned char *binaries[MOST_DEVICES] = {NULL};
    if (cl->clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof count, &count, NULL) !=
            CL_SUCCESS ||
        count == 0 || count > MOST_DEVICES)
        return;
    if (cl->clGetProgramInfo(program, CL_PROGRAM_DEVICES, count * sizeof(cl_device_id), devices,
                             NULL) != CL_SUCCESS)
        return;
    if (cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, count * sizeof *sizes, sizes,
                             NULL) != CL_SUCCESS)
        return;
    cl_uint own = 0;
    while (own < count && devices[own] != d->device) own++;
    if (own == count || sizes[own] == 0) return;
    binaries[own] = d->host->alloc(d->host, sizes[own], 64);
    if (!binaries[own]) return;
    if (cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof *binaries, binaries,
                             NULL) == CL_SUCCESS)
        tess_cache_store(d->host, key, binaries[own], sizes[own]);
    d->host->free(d->host, binaries[own], sizes[own]);
}

static tess_status from_source(const opencl_device *d, const tess_cache_key *key, cl_program *out) {
    const tess_host *host = d->host;
    const char *source = tess_opencl_portable;
    char text[600];
    cl_int code = CL_SUCCESS;
    cl_program program =
        d->cl->clCreateProgramWithSource(d->context, 1, &source, &tess_opencl_portable_size, &code);
    if (!program) return tess_opencl_fail(host, "clCreateProgramWithSource", "no program", code);
    code = build(d, program, key->options);
    if (code == CL_SUCCESS) {
        to_cache(d, key, program);
        *out = program;
        return TESS_OK;
    }
    build_log(d, program, text, sizeof text);
    d->cl->clReleaseProgram(program);
    return host->fail(host, tess_opencl_status(code),
                      "clBuildProgram: the portable kernels do not compile (%s, %d): %s",
                      tess_opencl_error_name(code), (int)code, text);
}

/* Compiles one instance, once. UNSUPPORTED: the device cannot run it, and entry->refusal says why.
 */
static tess_status instance(opencl_device *d, uint32_t dtype, uint32_t row, uint32_t bucket,
                            opencl_program **out) {
    const tess_portable_shape *shape = &kernels[row].variant->shapes[bucket];
    opencl_program *entry = &d->programs[dtype][row][bucket];
    char options[MOST_OPTIONS];
    *out = entry;
    if (entry->refusal[0]) return TESS_ERROR_UNSUPPORTED;
    if (entry->program) return TESS_OK;
    snprintf(options, sizeof options,
             "-cl-std=CL1.2 -D TESS_DTYPE=%u -D TESS_DIMS=%u -D TESS_ROWS=%u -D TESS_KEYS=%u -D "
             "TESS_THREADS=%u",
             dtype, shape->head_dim, shape->rows, shape->keys, shape->threads);
    const tess_cache_key key = {.backend = "opencl",
                                .device = d->names[0],
                                .driver = d->names[1],
                                .source = tess_opencl_portable,
                                .source_size = tess_opencl_portable_size,
                                .options = options};
    cl_program program = from_cache(d, &key);
    if (!program) TESS_RETURN_IF_ERROR(from_source(d, &key, &program));
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = d->cl->clCreateKernel(program, kernels[row].function, &code);
    if (!kernel) {
        d->cl->clReleaseProgram(program);
        return tess_opencl_fail(d->host, "clCreateKernel", kernels[row].function, code);
    }
    const int runs = kernel_fits(d, kernel, shape->threads, entry->refusal, sizeof entry->refusal);
    d->cl->clReleaseKernel(kernel);
    if (!runs) {
        d->cl->clReleaseProgram(program);
        return TESS_ERROR_UNSUPPORTED;
    }
    entry->program = program;
    return TESS_OK;
}

void tess_opencl_programs_release(opencl_device *d) {
    opencl_program *all = &d->programs[0][0][0];
    for (size_t n = 0; n < sizeof d->programs / sizeof *all; n++)
        if (all[n].program) d->cl->clReleaseProgram(all[n].program);
}

/* ------------------------------------------------------------------ objects of a plan */

static size_t state_bytes(uint32_t pairs) {
    return sizeof(opencl_state) + pairs * sizeof(opencl_kernel_pair);
}

static void state_release(opencl_state *state) {
    const opencl_device *d = state->device;
    for (uint32_t n = 0; n < state->n_pairs; n++) {
        if (state->pairs[n].forward) d->cl->clReleaseKernel(state->pairs[n].forward);
        if (state->pairs[n].merge) d->cl->clReleaseKernel(state->pairs[n].merge);
    }
    d->host->free(d->host, state, state_bytes(state->n_pairs));
}

static void release(tess_kernel *kernel) {
    if (kernel->state) state_release(kernel->state);
    kernel->state = NULL;
}

/* A launch holds its pair only while it is enqueued, so there is no use for more pairs than
 * threads. */
static tess_status state_create(opencl_device *d, const opencl_row *row, cl_program program,
                                uint32_t pairs, uint32_t threads, opencl_state **out) {
    const tess_host *host = d->host;
    if (pairs > MOST_PAIRS) pairs = MOST_PAIRS;
    opencl_state *state = host->alloc(host, state_bytes(pairs), 64);
    if (!state)
        return host->fail(host, TESS_ERROR_OUT_OF_MEMORY,
                          "opencl: %zu bytes for the kernels of a plan", state_bytes(pairs));
    memset(state, 0, state_bytes(pairs));
    state->device = d;
    state->n_pairs = pairs;
    state->threads = threads;
    cl_int code = CL_SUCCESS;
    for (uint32_t n = 0; n < pairs && code == CL_SUCCESS; n++) {
        state->pairs[n].forward = d->cl->clCreateKernel(program, row->function, &code);
        if (code == CL_SUCCESS)
            state->pairs[n].merge = d->cl->clCreateKernel(program, "tess_merge", &code);
    }
    if (code == CL_SUCCESS) {
        *out = state;
        return TESS_OK;
    }
    state_release(state);
    return tess_opencl_fail(host, "clCreateKernel", "no kernels for the plan", code);
}

/* ------------------------------------------------------------------ the choice */

/* Why the device cannot run a row, or with a key, why the row does not take the problem. */
static const char *refuses(const opencl_device *d, const opencl_row *row,
                           const tess_kernel_key *key, char *buffer, size_t size) {
    const tess_portable_shape *shape = &row->variant->shapes[0];
    if (key) {
        const char *why = tess_portable_refusal(key);
        if (why) return why;
        shape = tess_portable_find(row->variant, key->head_dim);
    }
    return fits(d, shape, buffer, size) ? NULL : buffer;
}

/* Compiles the row's program, unless that was done, and makes the objects of a plan. */
static tess_status prepare(opencl_device *d, uint32_t index, const tess_kernel_key *key,
                           tess_kernel *kernel) {
    const tess_host *host = d->host;
    const opencl_row *row = &kernels[index];
    const tess_portable_shape *shape = tess_portable_find(row->variant, key->head_dim);
    opencl_program *entry = NULL;
    opencl_state *state = NULL;
    pthread_mutex_lock(&d->building);
    const tess_status status =
        instance(d, key->dtype, index, (uint32_t)(shape - row->variant->shapes), &entry);
    pthread_mutex_unlock(&d->building);
    if (status == TESS_ERROR_UNSUPPORTED) return host->fail(host, status, "%s", entry->refusal);
    TESS_RETURN_IF_ERROR(status);
    TESS_RETURN_IF_ERROR(state_create(d, row, entry->program,
                                      key->max_in_flight ? key->max_in_flight : 1, shape->threads,
                                      &state));
    tess_portable_describe(shape, tess_opencl_parallel_jobs(d), kernel);
    kernel->impl = row;
    kernel->state = state;
    kernel->release = release;
    host->log(host, "dispatch", "%s runs in an instance for a head_dim of %u", row->head.name,
              (unsigned)shape->head_dim);
    return TESS_OK;
}

tess_status tess_opencl_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel) {
    if (index >= OPENCL_VARIANTS) return TESS_ERROR_INVALID;
    const opencl_row *row = &kernels[index];
    const char *why = refuses(device, row, key, info->reason, sizeof info->reason);
    if (!tess_row_answer(&row->head, key, why, info) || !kernel) return TESS_OK;
    return prepare(device, index, key, kernel);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, and their programs: binaries from the cache on disk where it has them, else
 * built from source. */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "inflate.h"
#include "opencl.h"

extern const tess_backend tess_opencl_backend;

/* Made at build time from kernels/portable.cl and so on, deflated. */
extern const unsigned char tess_opencl_portable[], tess_opencl_paging[], tess_opencl_parts[],
    tess_opencl_step[], tess_opencl_backward[];
extern const size_t tess_opencl_portable_size, tess_opencl_paging_size, tess_opencl_parts_size,
    tess_opencl_step_size, tess_opencl_backward_size;

/* A row of the table of kernels. */
typedef struct opencl_row {
    tess_row_head head;
    const tess_portable_variant *variant;  /* NULL: it is of another operation, or ... */
    const char *functions[OPENCL_KERNELS]; /* of the program */
    const opencl_matrix_row *matrix;       /* ... for matrix units */
    uint32_t most_rows;                    /* of a kv head that it is meant for; 0: any number */
} opencl_row;

#define FORWARD(name, variant, matrix, most_rows) \
    { {TESS_OP_FORWARD, name, 0}, variant, {"tess_forward", "tess_merge"}, matrix, most_rows }
#define OTHER(op, name, ...) \
    { {op, name, 0}, NULL, {__VA_ARGS__}, NULL, 0 }

/* Best first. The portable kernel for few rows is a row of its own where it is faster than the next
 * one: it reads dense keys at 3.5 TB/s on an H200 for 4 rows of a kv head, where nv_mma reads 2.7,
 * and at 1.0 TB/s for 16, where nv_mma reads 2.4. */
static const opencl_row kernels[] = {
    FORWARD("portable_few", &tess_portable_few, NULL, 4),
    FORWARD("nv_mma", NULL, &tess_opencl_nv_mma_row, 0),
    FORWARD("intel_dpas", NULL, &tess_opencl_intel_dpas_row, 0),
    FORWARD("portable", &tess_portable, NULL, 0),
    FORWARD("portable_small", &tess_portable_small, NULL, 0),
    OTHER(TESS_OP_BACKWARD, "portable", "tess_backward_delta", "tess_backward_rows",
          "tess_backward_columns"),
    OTHER(TESS_OP_APPEND, "append", "tess_append"),
    OTHER(TESS_OP_COPY_PAGES, "copy_pages", "tess_copy_pages"),
    OTHER(TESS_OP_MERGE, "merge_parts", "tess_merge_parts"),
    OTHER(TESS_OP_PREPARE, "prepare", "tess_prepare"),
};
enum { ROWS = sizeof kernels / sizeof *kernels, OPENCL_FEW = OPENCL_VARIANTS - 1 };
_Static_assert((int)ROWS <= (int)TESS_CHECK_MOST_ROWS, "each row has a place for its check");

enum { MOST_SETS = 1024, PAGING_SETS = 4, MOST_OPTIONS = 256, MOST_DEVICES = 64 };

/* ------------------------------------------------------------------ limits */

int tess_opencl_fits(const opencl_device *d, uint32_t threads, uint32_t shared_bytes, char *why,
                     size_t size) {
    if (d->most_threads < threads) {
        snprintf(why, size, "needs workgroups of %u work-items, and the device has at most %zu",
                 (unsigned)threads, d->most_threads);
        return 0;
    }
    if (d->local_bytes < shared_bytes) {
        snprintf(why, size, "needs %u bytes of local memory, and the device has %llu",
                 (unsigned)shared_bytes, (unsigned long long)d->local_bytes);
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

/* How often the compiler may refuse a program before it is not asked again, which takes seconds.
 * Some errors speak of the program. Others may have a cause that passes, but need not: NVIDIA's
 * driver answers -9999 where its assembler does not take the PTX. So a later plan tries once more.
 * Lack of memory and a lost device are no refusals. */
static int most_refusals(cl_int code) {
    switch (code) {
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_COMPILE_PROGRAM_FAILURE:
    case CL_LINK_PROGRAM_FAILURE:
    case CL_INVALID_BUILD_OPTIONS: return 1;
    default: return tess_opencl_status(code) == TESS_ERROR_NATIVE ? 2 : 0;
    }
}

/* UNSUPPORTED: the compiler does not take what may fail, and entry->refusal says so. */
static tess_status from_source(const opencl_device *d, const tess_cache_key *key,
                               opencl_program *entry, cl_program *out) {
    const tess_host *host = d->host;
    size_t bytes = 0;
    char *source =
        tess_inflate_new(host, key->source, key->source_size, "the source of a kernel", &bytes);
    if (!source) return TESS_ERROR_OUT_OF_MEMORY;
    char text[600];
    cl_int code = CL_SUCCESS;
    const char *lines = source;
    const size_t length = bytes - 1;
    cl_program program = d->cl->clCreateProgramWithSource(d->context, 1, &lines, &length, &code);
    host->free(host, source, bytes);
    if (!program) return tess_opencl_fail(host, "clCreateProgramWithSource", "no program", code);
    code = build(d, program, key->options);
    if (code == CL_SUCCESS) {
        to_cache(d, key, program);
        *out = program;
        return TESS_OK;
    }
    build_log(d, program, text, sizeof text);
    d->cl->clReleaseProgram(program);
    const int most = entry->may_fail ? most_refusals(code) : 0;
    if (most > 0) {
        entry->refused = ++entry->refusals >= most;
        snprintf(entry->refusal, sizeof entry->refusal,
                 "the driver's compiler does not take it (%s, %d): %.160s",
                 tess_opencl_error_name(code), (int)code, text);
        return TESS_ERROR_UNSUPPORTED;
    }
    return host->fail(host, tess_opencl_status(code),
                      "clBuildProgram: the kernels do not compile (%s, %d): %s",
                      tess_opencl_error_name(code), (int)code, text);
}

static tess_cache_key key_of(const opencl_device *d, const unsigned char *source, size_t size,
                             const char *options) {
    return (tess_cache_key){.backend = "opencl",
                            .device = d->names[0],
                            .driver = d->names[1],
                            .source = source,
                            .source_size = size,
                            .options = options};
}

/* Compiles a program, unless the entry has it already. UNSUPPORTED: the device cannot run
 * `function` of it, and entry->refusal says why. */
static tess_status compile(const opencl_device *d, const tess_cache_key *key, const char *function,
                           uint32_t threads, opencl_program *entry) {
    if (entry->refused) return TESS_ERROR_UNSUPPORTED;
    if (entry->program) return TESS_OK;
    cl_program program = from_cache(d, key);
    tess_status status = program ? TESS_OK : from_source(d, key, entry, &program);
    if (status != TESS_OK) return status;
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = d->cl->clCreateKernel(program, function, &code);
    if (!kernel) {
        status = tess_opencl_fail(d->host, "clCreateKernel", function, code);
        d->cl->clReleaseProgram(program);
        return status;
    }
    entry->refused = !kernel_fits(d, kernel, threads, entry->refusal, sizeof entry->refusal);
    if (entry->refused) status = TESS_ERROR_UNSUPPORTED;
    d->cl->clReleaseKernel(kernel);
    if (status == TESS_OK)
        entry->program = program;
    else
        d->cl->clReleaseProgram(program);
    return status;
}

/* NVIDIA's compiler gives tiles so many registers that a multiprocessor has room for two
 * workgroups. With those of three, and CUDA's exponential, they run 13 % faster on an H200. */
#define TILES_ON_NVIDIA " -D TESS_ON_NVIDIA -cl-nv-maxrregcount=168"

/* Compiles one instance, once. */
static tess_status instance(opencl_device *d, uint32_t dtype, const opencl_row *row,
                            const tess_portable_shape *shape, opencl_program **out) {
    const tess_portable_variant *variant = shape->few ? &tess_portable_few : row->variant;
    const int number = shape->few ? OPENCL_FEW : row->variant == &tess_portable_small;
    char options[MOST_OPTIONS];
    *out = &d->programs[dtype][number][shape - variant->shapes];
    snprintf(options, sizeof options,
             "-cl-std=CL1.2 -D TESS_DTYPE=%u -D TESS_FEW=%u -D TESS_DIMS=%u -D TESS_ROWS=%u -D "
             "TESS_KEYS=%u -D TESS_THREADS=%u%s",
             dtype, shape->few, shape->head_dim, shape->rows, shape->keys, shape->threads,
             d->nv_options && row->variant == &tess_portable && !shape->few ? TILES_ON_NVIDIA : "");
    const tess_cache_key key = key_of(d, tess_opencl_portable, tess_opencl_portable_size, options);
    return compile(d, &key, row->functions[0], shape->threads, *out);
}

static tess_status matrix_instance(opencl_device *d, const tess_kernel_key *key,
                                   const opencl_row *row, opencl_program **out, uint32_t *threads) {
    const opencl_matrix_row *matrix = row->matrix;
    char options[MOST_OPTIONS];
    *out = matrix->instance(d, key, options, sizeof options, threads);
    (*out)->may_fail = 1;
    const tess_cache_key text = key_of(d, matrix->source, *matrix->source_size, options);
    return compile(d, &text, row->functions[0], *threads, *out);
}

_Static_assert((int)TESS_PAGING_THREADS == (int)TESS_PARTS_THREADS, "one size for both below");

/* The program of another operation's kernel: of those that write a cache, or of the one that merges
 * parts of keys. */
static tess_status other_instance(opencl_device *d, uint32_t dtype, const opencl_row *row,
                                  opencl_program **out) {
    const int merges = row->head.op == TESS_OP_MERGE;
    const uint32_t bits = tess_paging_bits(dtype);
    char options[MOST_OPTIONS];
    *out = merges ? &d->parts[dtype] : &d->paging[bits == 16];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -D TESS_%s=%u", merges ? "DTYPE" : "BITS",
             (unsigned)(merges ? dtype : bits));
    const tess_cache_key key =
        key_of(d, merges ? tess_opencl_parts : tess_opencl_paging,
               merges ? tess_opencl_parts_size : tess_opencl_paging_size, options);
    return compile(d, &key, row->functions[0], TESS_PARTS_THREADS, *out);
}

/* The pass over columns has the most threads and the most in workgroup memory. */
static tess_status backward_instance(opencl_device *d, uint32_t dtype, const opencl_row *row,
                                     const tess_backward_shape *shape, opencl_program **out) {
    char options[MOST_OPTIONS];
    *out = &d->backward[dtype][shape - tess_backward_shapes];
    snprintf(options, sizeof options,
             "-cl-std=CL1.2 -D TESS_DTYPE=%u -D TESS_DIMS=%u -D TESS_TILE=%u -D TESS_THREADS=%u",
             (unsigned)dtype, (unsigned)shape->head_dim, (unsigned)shape->tile,
             (unsigned)shape->threads);
    const tess_cache_key key = key_of(d, tess_opencl_backward, tess_opencl_backward_size, options);
    return compile(d, &key, row->functions[OPENCL_KERNELS - 1], shape->threads, *out);
}

static tess_status step_instance(opencl_device *d, const char *function, opencl_program **out) {
    const tess_cache_key key = key_of(d, tess_opencl_step, tess_opencl_step_size, "-cl-std=CL1.2");
    *out = &d->step;
    return compile(d, &key, function, TESS_PREPARE_GROUP, *out);
}

void tess_opencl_programs_release(opencl_device *d) {
    opencl_program *all = &d->programs[0][0][0];
    for (size_t n = 0; n < sizeof d->programs / sizeof *all; n++)
        if (all[n].program) d->cl->clReleaseProgram(all[n].program);
    opencl_program *matrix = &d->nv_mma[0][0], *intel = &d->intel_dpas[0][0];
    for (size_t n = 0; n < sizeof d->nv_mma / sizeof *matrix; n++)
        if (matrix[n].program) d->cl->clReleaseProgram(matrix[n].program);
    for (size_t n = 0; n < sizeof d->intel_dpas / sizeof *intel; n++)
        if (intel[n].program) d->cl->clReleaseProgram(intel[n].program);
    for (int n = 0; n < 2; n++)
        if (d->paging[n].program) d->cl->clReleaseProgram(d->paging[n].program);
    for (int n = 0; n < OPENCL_DTYPES; n++)
        if (d->parts[n].program) d->cl->clReleaseProgram(d->parts[n].program);
    opencl_program *backward = &d->backward[0][0];
    for (size_t n = 0; n < sizeof d->backward / sizeof *backward; n++)
        if (backward[n].program) d->cl->clReleaseProgram(backward[n].program);
    if (d->step.program) d->cl->clReleaseProgram(d->step.program);
}

/* ------------------------------------------------------------------ objects of a plan */

static size_t state_bytes(uint32_t sets) {
    return sizeof(opencl_state) + sets * sizeof(opencl_kernel_set);
}

static void state_release(opencl_state *state) {
    const opencl_device *d = state->device;
    for (uint32_t n = 0; n < state->n_sets; n++)
        for (int i = 0; i < OPENCL_KERNELS; i++)
            if (state->sets[n].kernels[i]) d->cl->clReleaseKernel(state->sets[n].kernels[i]);
    d->host->free(d->host, state, state_bytes(state->n_sets));
}

static void release(tess_kernel *kernel) {
    if (kernel->state) state_release(kernel->state);
    kernel->state = NULL;
}

/* A launch holds its set only while it is enqueued, so there is no use for more sets than
 * threads. */
static tess_status state_create(opencl_device *d, const opencl_row *row, cl_program program,
                                uint32_t sets, opencl_state **out) {
    const tess_host *host = d->host;
    const uint32_t most = row->functions[1] ? MOST_SETS : PAGING_SETS;
    if (sets > most) sets = most;
    opencl_state *state = host->alloc(host, state_bytes(sets), 64);
    if (!state)
        return host->fail(host, TESS_ERROR_OUT_OF_MEMORY,
                          "opencl: %zu bytes for the kernels of a plan", state_bytes(sets));
    memset(state, 0, state_bytes(sets));
    state->device = d;
    state->n_sets = sets;
    cl_int code = CL_SUCCESS;
    for (uint32_t n = 0; n < sets && code == CL_SUCCESS; n++)
        for (int i = 0; i < OPENCL_KERNELS && row->functions[i] && code == CL_SUCCESS; i++)
            state->sets[n].kernels[i] = d->cl->clCreateKernel(program, row->functions[i], &code);
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
    if (row->matrix) return row->matrix->refuses(d, key, buffer, size);
    if (row->head.op == TESS_OP_PREPARE)
        return tess_opencl_fits(d, TESS_PREPARE_GROUP, TESS_PREPARE_SHARED_BYTES, buffer, size)
                   ? NULL
                   : buffer;
    if (row->head.op == TESS_OP_BACKWARD) {
        const char *why = key ? tess_portable_refusal(key) : NULL;
        if (why) return why;
        const tess_backward_shape *shape = tess_backward_find(key ? key->head_dim : 1);
        return tess_opencl_fits(d, shape->threads, shape->shared_bytes, buffer, size) ? NULL
                                                                                      : buffer;
    }
    if (!row->variant) {
        const char *why = !key                            ? NULL
                          : row->head.op == TESS_OP_MERGE ? tess_portable_refusal(key)
                                                          : tess_paging_refusal(key);
        return why || tess_opencl_fits(d, TESS_PAGING_THREADS, 0, buffer, size) ? why : buffer;
    }
    const tess_portable_shape *shape = &row->variant->shapes[0];
    if (row->variant == &tess_portable_few && tess_opencl_nv_mma_row.refuses(d, key, buffer, size))
        return "nv_mma takes none of these problems, and portable takes few rows as well";
    if (key) {
        const char *why = tess_portable_refusal(key);
        if (why) return why;
        shape = tess_portable_choose(row->variant, key);
    }
    return tess_opencl_fits(d, shape->threads, shape->shared_bytes, buffer, size) ? NULL : buffer;
}

/* The row's program, compiled unless that was done, and its threads. A shape is NULL where it is of
 * another operation. */
static tess_status program_of(opencl_device *d, const opencl_row *row, const tess_kernel_key *key,
                              const tess_portable_shape *shape, const tess_backward_shape *backward,
                              opencl_program **entry, uint32_t *threads) {
    *threads = shape ? shape->threads : TESS_PAGING_THREADS;
    if (row->matrix) return matrix_instance(d, key, row, entry, threads);
    if (shape) return instance(d, key->dtype, row, shape, entry);
    if (backward) return backward_instance(d, key->dtype, row, backward, entry);
    if (key->op == TESS_OP_PREPARE) return step_instance(d, row->functions[0], entry);
    return other_instance(d, key->dtype, row, entry);
}

/* Compiles the row's program and makes the objects of a plan. */
static tess_status prepare(opencl_device *d, uint32_t index, const tess_kernel_key *key,
                           tess_kernel *kernel) {
    const tess_host *host = d->host;
    const opencl_row *row = &kernels[index];
    const tess_portable_shape *shape =
        row->variant ? tess_portable_choose(row->variant, key) : NULL;
    const tess_backward_shape *backward =
        key->op == TESS_OP_BACKWARD ? tess_backward_find(key->head_dim) : NULL;
    opencl_program *entry = NULL;
    opencl_state *state = NULL;
    uint32_t threads = 0;
    pthread_mutex_lock(&d->building);
    const tess_status status = program_of(d, row, key, shape, backward, &entry, &threads);
    if (status == TESS_ERROR_UNSUPPORTED) host->fail(host, status, "%s", entry->refusal);
    pthread_mutex_unlock(&d->building);
    TESS_RETURN_IF_ERROR(status);
    TESS_RETURN_IF_ERROR(
        state_create(d, row, entry->program, key->max_in_flight ? key->max_in_flight : 1, &state));
    state->threads = threads;
    state->backward = backward;
    kernel->impl = row;
    kernel->state = state;
    kernel->release = release;
    if (backward) tess_backward_describe(backward, kernel);
    if (row->matrix) row->matrix->describe(d, key, kernel);
    if (!shape) return TESS_OK;
    tess_portable_describe(shape, key, tess_opencl_parallel_jobs(d), kernel);
    host->log(host, "dispatch", "%s runs in an instance for a head_dim of %u and %u rows",
              row->head.name, (unsigned)shape->head_dim, (unsigned)shape->rows);
    return TESS_OK;
}

/* ------------------------------------------------------------------ self-checks */

/* For a check, which looks for the row that takes the key. */
static tess_status prepare_for_check(void *device, uint32_t index, const tess_kernel_key *key,
                                     tess_kernel *kernel) {
    opencl_device *d = device;
    char why[256];
    const char *refusal = refuses(d, &kernels[index], key, why, sizeof why);
    if (refusal) return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED, "%s", refusal);
    return prepare(d, index, key, kernel);
}

static void source_of(void *device, uint32_t row, uint32_t dtype, tess_cache_key *key, char *text,
                      size_t size) {
    const opencl_matrix_row *matrix = kernels[row].matrix;
    (void)dtype, (void)text, (void)size;
    *key = key_of(device, matrix->source, *matrix->source_size, "");
}

static uint32_t row_named(const char *name) {
    uint32_t n = 0;
    while (kernels[n].head.op != TESS_OP_FORWARD || strcmp(kernels[n].head.name, name) != 0) n++;
    return n;
}

static tess_check_subject subject_of(opencl_device *d, uint32_t index) {
    return (tess_check_subject){.host = d->host,
                                .backend = &tess_opencl_backend,
                                .device = d,
                                .checks = &d->checks,
                                .may_run = d->may_check,
                                .row = index,
                                .name = kernels[index].head.name,
                                .references = {row_named("portable"), row_named("portable_small")},
                                .prepare = prepare_for_check,
                                .code = source_of};
}

tess_status tess_opencl_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel) {
    if (index >= ROWS) return TESS_ERROR_INVALID;
    opencl_device *d = device;
    const opencl_row *row = &kernels[index];
    const int checks =
        row->matrix && (!row->matrix->proved_on || row->matrix->proved_on != d->vendor);
    const tess_check_subject subject = subject_of(d, index);
    const char *why = refuses(d, row, key, info->reason, sizeof info->reason);
    if (!why && checks) why = tess_check_failure(&subject, info->reason, sizeof info->reason);
    info->most_rows = row->most_rows;
    if (!tess_row_answer(&row->head, key, why, info) || !kernel) return TESS_OK;
    if (checks) TESS_RETURN_IF_ERROR(tess_self_check(&subject, key));
    return prepare(d, index, key, kernel);
}

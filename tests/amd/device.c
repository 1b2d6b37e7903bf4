/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend library whose kernels run elsewhere: emulate.py executes AMD code objects in it. Memory
 * is one file that both processes map; a launch is a message to a socket, and done when the answer
 * comes. So the programs of tests/conformance, with all that they check, run on instruction sets
 * without the hardware.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backward.h"
#include "common/backend_table.h"
#include "kernels/step_shape.h"
#include "paging.h"
#include "portable.h"
#include "prepare.h"
#include "row.h"

enum { WORKERS = 4 };

/* Added to every address that leaves the backend: whoever reads through a handle of this device
 * crashes. */
static const uint64_t far_away = 1ULL << 60;

/* emulate.py unpacks the same fields. */
typedef struct message {
    char kernel[48];
    uint32_t workgroups, threads, shared_bytes;
    uint32_t plain; /* workgroups lie in one dimension, else in two */
    uint32_t buffers, args_bytes;
    uint64_t memory[TESS_PORTABLE_BUFFERS]; /* of each buffer, bytes into the shared memory */
    union {
        tess_args attention;
        tess_paging_args paging;
    } args;
} message;
_Static_assert(sizeof(tess_args) == 336 && sizeof(tess_paging_args) <= sizeof(tess_args),
               "ARGS_BYTES of emulate.py");

typedef struct emulated_device {
    const tess_host *host;
    char *memory;
    uint64_t size, used, live;
    int socket;
} emulated_device;

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : -1;
}

static tess_status emulated_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    if (index > 0 || number_of("TESSERA_EMULATED_SOCKET") < 0)
        return host->fail(
            host, TESS_ERROR_UNAVAILABLE,
            "emulated_list: tests/amd/emulate.py starts the programs that have a device");
    info->kind = TESS_DEVICE_SOFTWARE;
    info->compute_units = 1;
    info->memory_bytes = 1 << 30;
    snprintf(info->name, sizeof info->name, "emulated AMD GPU");
    snprintf(info->arch, sizeof info->arch, "%s",
             getenv("TESSERA_EMULATED_ARCH") ? getenv("TESSERA_EMULATED_ARCH") : "");
    snprintf(info->driver, sizeof info->driver, "none");
    return TESS_OK;
}

static tess_status emulated_open(const tess_host *host, uint32_t index, const void *native,
                                 void **out) {
    struct stat status;
    const int file = number_of("TESSERA_EMULATED_MEMORY");
    if (index > 0 || native || fstat(file, &status) != 0)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "emulated_open: no shared memory");
    emulated_device *device = host->alloc(host, sizeof *device, 64);
    if (!device) return host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "emulated_open: no host memory");
    memset(device, 0, sizeof *device);
    device->host = host;
    device->socket = number_of("TESSERA_EMULATED_SOCKET");
    device->size = (uint64_t)status.st_size;
    void *memory = mmap(NULL, device->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        host->free(host, device, sizeof *device);
        return host->fail(host, TESS_ERROR_OUT_OF_MEMORY,
                          "emulated_open: the shared memory cannot be mapped");
    }
    device->memory = memory;
    *out = device;
    return TESS_OK;
}

static void emulated_close(void *opaque) {
    emulated_device *device = opaque;
    munmap(device->memory, device->size);
    device->host->free(device->host, device, sizeof *device);
}

static tess_status emulated_query(void *opaque, tess_caps *caps) {
    (void)opaque;
    caps->buffer_kind = TESS_BUFFER_POINTER;
    caps->features = TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_APPEND |
                     TESS_FEATURE_MERGE | TESS_FEATURE_STEPS | TESS_FEATURE_KV_8BIT |
                     TESS_FEATURE_BACKWARD | TESS_FEATURE_PARTS;
    caps->parallel_jobs = WORKERS;
    caps->workspace_align = 256;
    return TESS_OK;
}

/* Memory is given out from the front, and taken back when all of it is free: programs of tests hold
 * little at a time. */
static tess_status emulated_alloc(void *opaque, uint64_t size, tess_buffer *buffer) {
    emulated_device *device = opaque;
    if (size > device->size || device->used > device->size - size)
        return device->host->fail(device->host, TESS_ERROR_OUT_OF_MEMORY,
                                  "emulated_alloc: no memory for %llu bytes",
                                  (unsigned long long)size);
    *buffer =
        (tess_buffer){.kind = TESS_BUFFER_POINTER, .handle = far_away + device->used, .size = size};
    device->used = (device->used + size + 255) / 256 * 256;
    device->live++;
    return TESS_OK;
}

static tess_status emulated_free(void *opaque, tess_buffer *buffer) {
    emulated_device *device = opaque;
    (void)buffer;
    if (--device->live == 0) device->used = 0;
    return TESS_OK;
}

static char *address(const emulated_device *device, const tess_buffer *buffer) {
    const uint64_t handle = buffer->handle + buffer->offset;
    return buffer->kind == TESS_BUFFER_POINTER ? device->memory + (handle - far_away)
                                               : (char *)(uintptr_t)handle;
}

static tess_status emulated_copy(void *opaque, tess_buffer destination, tess_buffer source,
                                 uint64_t bytes) {
    memcpy(address(opaque, &destination), address(opaque, &source), (size_t)bytes);
    return TESS_OK;
}

static tess_status emulated_wait(void *opaque, uint64_t timeout_ns) {
    (void)opaque;
    (void)timeout_ns;
    return TESS_OK;
}

static void release_kernel(tess_kernel *kernel) { (void)kernel; }

static tess_status emulated_kernel(void *opaque, uint32_t index, const tess_kernel_key *key,
                                   tess_kernel_info *info, tess_kernel *kernel) {
    static const tess_row_head rows[] = {
        {TESS_OP_FORWARD, "portable", 0},  {TESS_OP_BACKWARD, "portable", 0},
        {TESS_OP_APPEND, "append", 0},     {TESS_OP_COPY_PAGES, "copy_pages", 0},
        {TESS_OP_MERGE, "merge_parts", 0}, {TESS_OP_PREPARE, "prepare", 0}};
    (void)opaque;
    if (index >= sizeof rows / sizeof *rows) return TESS_ERROR_INVALID;
    const uint32_t op = rows[index].op;
    const char *why = !key || op == TESS_OP_PREPARE ? NULL
                      : tess_is_paging(op)          ? tess_paging_refusal(key)
                                                    : tess_portable_refusal(key);
    if (!tess_row_answer(&rows[index], key, why, info) || !kernel) return TESS_OK;
    kernel->release = release_kernel;
    if (op == TESS_OP_BACKWARD) {
        const tess_backward_shape *shape = tess_backward_find(key->head_dim);
        tess_backward_describe(shape, kernel);
        kernel->impl = shape;
    } else if (op == TESS_OP_FORWARD) {
        const tess_portable_shape *shape = tess_portable_choose(&tess_portable, key);
        tess_portable_describe(shape, key, WORKERS, kernel);
        kernel->impl = shape;
    }
    return TESS_OK;
}

static uint64_t place(const emulated_device *device, const tess_buffer *buffer) {
    return buffer->kind == TESS_BUFFER_POINTER
               ? (uint64_t)(address(device, buffer) - device->memory)
               : 0;
}

/* A message with these tensors and the tables. */
static message begin(const emulated_device *device, const tess_launch *l,
                     const tess_portable_tensor *tensors, uint32_t count) {
    message m = {.buffers = count + 1, .args_bytes = sizeof m.args.attention};
    for (uint32_t n = 0; n < count; n++)
        m.memory[n] = place(device, &l->tensor[tensors[n].role].buffer);
    m.memory[count] = place(device, &l->tables->device);
    return m;
}

/* The same of a kernel that takes the buffers of attention. */
static message begin_attention(const emulated_device *device, const tess_launch *l) {
    message m = begin(device, l, tess_portable_tensors, TESS_PORTABLE_TENSORS);
    m.memory[m.buffers++] = place(device, &l->workspace);
    return m;
}

static tess_status run(const emulated_device *device, message *m) {
    int32_t answer = -1;
    if (write(device->socket, m, sizeof *m) != (ssize_t)sizeof *m ||
        read(device->socket, &answer, sizeof answer) != (ssize_t)sizeof answer || answer != 0)
        return device->host->fail(device->host, TESS_ERROR_NATIVE,
                                  "emulated_launch: the emulator failed (%d)", (int)answer);
    return TESS_OK;
}

static tess_status forward(const emulated_device *device, const tess_launch *l) {
    enum { STEP_GROUPS = 3 };
    const tess_portable_shape *shape = l->kernel->impl;
    const char *dtype = tess_portable_dtype(l->dtype);
    message m = begin_attention(device, l);
    m.threads = shape->threads;
    m.shared_bytes = shape->shared_bytes;
    if (l->n_jobs) {
        snprintf(m.kernel, sizeof m.kernel, "tess_forward_%s%s_%u", shape->few ? "few_" : "", dtype,
                 (unsigned)shape->head_dim);
        tess_portable_forward_args(l, 0, l->n_jobs, 1, &m.args.attention);
        m.workgroups = m.args.attention.items;
        TESS_RETURN_IF_ERROR(run(device, &m));
    }
    if (!l->n_merges) return TESS_OK;
    snprintf(m.kernel, sizeof m.kernel, "tess_merge_%s", dtype);
    m.threads = TESS_MERGE_THREADS;
    m.shared_bytes = TESS_MERGE_SHARED_BYTES;
    tess_portable_merge_args(l, 0, l->n_merges, 1, &m.args.attention);
    m.workgroups = m.args.attention.items * tess_portable_merge_groups(l);
    /* The workgroups of a step share out its merges: here there are too few for one each. As in
     * driver_kernels.c they lie in one dimension, whose size is the kernel's stride. */
    m.plain = l->tables->has_step != 0;
    if (m.plain && m.workgroups > STEP_GROUPS) m.workgroups = STEP_GROUPS;
    return run(device, &m);
}

static tess_status backward(const emulated_device *device, const tess_launch *l) {
    static const char *const passes[TESS_BACKWARD_STAGES] = {"delta", "rows", "columns"};
    const tess_backward_shape *shape = l->kernel->impl;
    const uint32_t number = tess_backward_number(l->stage);
    tess_launch as;
    char dims[16] = "";
    if (number != 0) snprintf(dims, sizeof dims, "_%u", (unsigned)shape->head_dim);
    tess_backward_stage(l, &as);
    message m = begin_attention(device, &as);
    m.threads = tess_backward_threads(shape, l->stage);
    m.shared_bytes = shape->shared_bytes;
    snprintf(m.kernel, sizeof m.kernel, "tess_backward_%s_%s%s", passes[number],
             tess_portable_dtype(l->dtype), dims);
    tess_backward_args(&as, 0, as.n_jobs, 1, &m.args.attention);
    m.workgroups = m.args.attention.items;
    return run(device, &m);
}

static tess_status merge_parts(const emulated_device *device, const tess_launch *l) {
    tess_launch as;
    tess_portable_parts(l, &as);
    message m = begin_attention(device, &as);
    snprintf(m.kernel, sizeof m.kernel, "tess_merge_parts_%s", tess_portable_dtype(l->dtype));
    m.threads = TESS_PARTS_THREADS;
    tess_portable_parts_args(&as, 0, as.n_jobs, 1, &m.args.attention);
    m.workgroups = m.args.attention.items;
    return run(device, &m);
}

static tess_status paging(const emulated_device *device, const tess_launch *l) {
    const int appends = l->op == TESS_OP_APPEND;
    message m = begin(device, l, tess_paging_tensors, TESS_PAGING_TENSORS);
    if (!appends) {
        m.memory[0] = place(device, &l->tensor[TESS_ROLE_K].buffer);
        m.memory[1] = place(device, &l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
        m.buffers = 2;
    }
    snprintf(m.kernel, sizeof m.kernel, "tess_%s_%u", appends ? "append" : "copy_pages",
             (unsigned)tess_paging_bits(l->dtype));
    m.threads = TESS_PAGING_THREADS;
    m.args_bytes = sizeof m.args.paging;
    m.plain = 1;
    tess_paging_fill(l, 0, l->n_jobs, 1, &m.args.paging);
    m.workgroups = (uint32_t)l->n_jobs;
    return run(device, &m);
}

static tess_status prepare(const emulated_device *device, const tess_launch *l) {
    enum { SHARED_BYTES = 65536 }; /* of a workgroup on every AMD GPU */
    message m = begin(device, l, tess_prepare_tensors, TESS_PREPARE_TENSORS);
    snprintf(m.kernel, sizeof m.kernel, "tess_prepare");
    m.threads = TESS_STEP_THREADS;
    m.shared_bytes = SHARED_BYTES;
    m.plain = 1;
    tess_prepare_args(l, 1, &m.args.attention);
    m.workgroups = (uint32_t)l->n_jobs * TESS_STEP_SHARES;
    return run(device, &m);
}

static tess_status emulated_launch(void *opaque, const tess_launch *l) {
    const tess_status status = l->op == TESS_OP_BACKWARD  ? backward(opaque, l)
                               : l->op == TESS_OP_MERGE   ? merge_parts(opaque, l)
                               : l->op == TESS_OP_PREPARE ? prepare(opaque, l)
                               : tess_is_paging(l->op)    ? paging(opaque, l)
                                                          : forward(opaque, l);
    if (l->seconds) *l->seconds = 1e-3;
    return status;
}

TEST_BACKEND(emulated, "emulated")

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
#include "portable.h"
#include "row.h"

/* Added to every address that leaves the backend: whoever reads through a handle of this device
 * crashes. */
static const uint64_t far_away = 1ULL << 60;

/* emulate.py unpacks the same fields. */
typedef struct message {
    char kernel[48];
    uint32_t workgroups, threads, shared_bytes, reserved;
    /* Q, K, V, O, LSE, block table, scales of K and V, tables, workspace: bytes into the shared
     * memory */
    uint64_t memory[TESS_PORTABLE_BUFFERS];
    tess_args args;
} message;
_Static_assert(sizeof(tess_args) == 336, "ARGS_BYTES of emulate.py");

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
    info->kind = TESS_DEVICE_GPU;
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
    caps->features = TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_KV_8BIT |
                     TESS_FEATURE_BACKWARD | TESS_FEATURE_PARTS;
    caps->parallel_jobs = 4;
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
    static const tess_row_head rows[] = {{TESS_OP_FORWARD, "portable", 0},
                                         {TESS_OP_BACKWARD, "portable", 0}};
    (void)opaque;
    if (index >= sizeof rows / sizeof *rows) return TESS_ERROR_INVALID;
    const char *why = key ? tess_portable_refusal(key) : NULL;
    if (!tess_row_answer(&rows[index], key, why, info) || !kernel) return TESS_OK;
    kernel->release = release_kernel;
    if (key->op == TESS_OP_BACKWARD) {
        const tess_backward_shape *shape = tess_backward_find(key->head_dim);
        tess_backward_describe(shape, kernel);
        kernel->impl = shape;
        return TESS_OK;
    }
    const tess_portable_shape *shape = tess_portable_choose(&tess_portable, key);
    kernel->tile_rows = shape->rows;
    kernel->tile_step = 1;
    kernel->pack_rows = shape->rows;
    kernel->impl = shape;
    return TESS_OK;
}

static uint64_t place(const emulated_device *device, const tess_buffer *buffer) {
    return buffer->kind == TESS_BUFFER_POINTER
               ? (uint64_t)(address(device, buffer) - device->memory)
               : 0;
}

static void fill(const emulated_device *device, const tess_launch *l, message *m) {
    const tess_buffer *buffers[TESS_PORTABLE_BUFFERS] = {&l->tensor[TESS_ROLE_Q].buffer,
                                                         &l->tensor[TESS_ROLE_K].buffer,
                                                         &l->tensor[TESS_ROLE_V].buffer,
                                                         &l->tensor[TESS_ROLE_O].buffer,
                                                         &l->tensor[TESS_ROLE_LSE].buffer,
                                                         &l->tensor[TESS_ROLE_BLOCK_TABLE].buffer,
                                                         &l->tensor[TESS_ROLE_K_SCALE].buffer,
                                                         &l->tensor[TESS_ROLE_V_SCALE].buffer,
                                                         &l->tables->device,
                                                         &l->workspace};
    for (int n = 0; n < TESS_PORTABLE_BUFFERS; n++) m->memory[n] = place(device, buffers[n]);
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
    const tess_portable_shape *shape = l->kernel->impl;
    const char *dtype = tess_portable_dtype(l->dtype);
    message m = {.threads = shape->threads, .shared_bytes = shape->shared_bytes};
    fill(device, l, &m);
    if (l->n_jobs) {
        snprintf(m.kernel, sizeof m.kernel, "tess_forward_%s%s_%u", shape->few ? "few_" : "", dtype,
                 (unsigned)shape->head_dim);
        tess_portable_forward_args(l, 0, l->n_jobs, 1, &m.args);
        m.workgroups = m.args.items;
        TESS_RETURN_IF_ERROR(run(device, &m));
    }
    if (!l->n_merges) return TESS_OK;
    snprintf(m.kernel, sizeof m.kernel, "tess_merge_%s", dtype);
    m.threads = TESS_MERGE_THREADS;
    m.shared_bytes = TESS_MERGE_SHARED_BYTES;
    tess_portable_merge_args(l, 0, l->n_merges, 1, &m.args);
    m.workgroups = m.args.items * tess_portable_merge_groups(l);
    return run(device, &m);
}

static tess_status backward(const emulated_device *device, const tess_launch *l) {
    static const char *const passes[TESS_BACKWARD_STAGES] = {"delta", "rows", "columns"};
    const tess_backward_shape *shape = l->kernel->impl;
    const uint32_t number = tess_backward_number(l->stage);
    message m = {.threads = tess_backward_threads(shape, l->stage),
                 .shared_bytes = shape->shared_bytes};
    tess_launch as;
    char dims[16] = "";
    if (number != 0) snprintf(dims, sizeof dims, "_%u", (unsigned)shape->head_dim);
    snprintf(m.kernel, sizeof m.kernel, "tess_backward_%s_%s%s", passes[number],
             tess_portable_dtype(l->dtype), dims);
    tess_backward_stage(l, &as);
    fill(device, &as, &m);
    tess_backward_args(&as, 0, as.n_jobs, 1, &m.args);
    m.workgroups = m.args.items;
    return run(device, &m);
}

static tess_status emulated_launch(void *opaque, const tess_launch *l) {
    const tess_status status = l->op == TESS_OP_BACKWARD ? backward(opaque, l) : forward(opaque, l);
    if (l->seconds) *l->seconds = 1e-3;
    return status;
}

TEST_BACKEND(emulated, "emulated")

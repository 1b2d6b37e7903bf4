/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, their modules, and launches, for CUDA and HIP. */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "inflate.h"
#include "object.h"

/* ------------------------------------------------------------------ modules and functions */

static tess_status try_image(tess_driver_device *d, int module, const tess_driver_image *image) {
    size_t bytes = 0;
    void *data = tess_inflate_new(d->host, image->data, (size_t)(image->end - image->data),
                                  "device code", &bytes);
    if (!data) return TESS_ERROR_OUT_OF_MEMORY;
    const int code = d->driver->call.module_load(&d->modules[module], data);
    if (code == DRIVER_OK) {
        d->code[module] = data;
        d->code_bytes[module] = bytes;
        const tess_driver_vendor *vendor = d->driver->vendor;
        d->is_early[module] = vendor->is_early && vendor->is_early(d->driver, image->arch);
        d->host->log(d->host, "device", "%s: %s runs code for %s", d->driver->vendor->name, d->arch,
                     image->arch);
        return TESS_OK;
    }
    d->modules[module] = NULL;
    d->host->free(d->host, data, bytes);
    char what[96];
    snprintf(what, sizeof what, "the code for %s on %s", image->arch, d->arch);
    /* Unless the device itself is in trouble, the driver refuses the code, most often because that
     * is newer than the driver. */
    const tess_status status =
        tess_driver_fail(d, tess_driver_symbol(d->driver, module_load), what, code);
    return status == TESS_ERROR_NATIVE ? TESS_ERROR_UNAVAILABLE : status;
}

/* A driver that is older than the compiler of the best image may still take another image. */
static tess_status load_module(tess_driver_device *d, int module, const tess_driver_image *image) {
    const tess_driver_vendor *vendor = d->driver->vendor;
    if (d->modules[module]) return TESS_OK;
    if (module != 0) return try_image(d, module, image);
    tess_status status = TESS_ERROR_UNAVAILABLE;
    uint32_t refused = 0;
    for (int n = d->image; n >= 0 && n < 32 && status == TESS_ERROR_UNAVAILABLE;
         n = vendor->image(vendor->images, d->arch, refused)) {
        status = try_image(d, 0, &vendor->images[n]);
        refused |= 1u << n;
    }
    return status;
}

/* The function, from the driver, and remembered as far as there is room. */
static tess_status look_up(tess_driver_device *d, int module, const tess_driver_image *image,
                           const char *name, void **function) {
    TESS_RETURN_IF_ERROR(load_module(d, module, image));
    int code = d->driver->call.module_function(function, d->modules[module], name);
    if (code == DRIVER_OK && d->driver->vendor->load)
        code = d->driver->vendor->load(d->driver, *function);
    if (code != DRIVER_OK)
        return tess_driver_fail(d, tess_driver_symbol(d->driver, module_function), name, code);
    if (d->n_found == TESS_DRIVER_FOUND || strlen(name) >= sizeof d->found->name) return TESS_OK;
    tess_driver_found *found = &d->found[d->n_found++];
    snprintf(found->name, sizeof found->name, "%s", name);
    found->module = module;
    found->function = *function;
    return TESS_OK;
}

tess_status tess_driver_function(tess_driver_device *d, int module, const tess_driver_image *image,
                                 const char *name, void **function) {
    tess_status status = TESS_OK;
    int n = 0;
    pthread_mutex_lock(&d->loading);
    while (n < d->n_found && (d->found[n].module != module || strcmp(d->found[n].name, name) != 0))
        n++;
    if (n < d->n_found)
        *function = d->found[n].function;
    else
        status = look_up(d, module, image, name, function);
    pthread_mutex_unlock(&d->loading);
    return status;
}

tess_driver_found *tess_driver_remembered(tess_driver_device *d, const void *function) {
    for (int n = 0; n < d->n_found; n++)
        if (d->found[n].function == function) return &d->found[n];
    return NULL;
}

tess_status tess_driver_state_create(tess_driver_device *d, const tess_kernel_key *key, int module,
                                     const tess_driver_image *image, const char *name,
                                     tess_kernel *kernel) {
    char merge[64];
    tess_driver_state *state = tess_object(d->host, sizeof *state, "a plan");
    if (!state) return TESS_ERROR_OUT_OF_MEMORY;
    state->device = d;
    snprintf(merge, sizeof merge, "tess_merge_%s", tess_portable_dtype(key->dtype));
    tess_status status = tess_driver_function(d, module, image, name, &state->forward);
    if (status == TESS_OK && key->op == TESS_OP_FORWARD)
        status = tess_driver_function(d, 0, d->driver->vendor->images, merge, &state->merge);
    if (status != TESS_OK) {
        d->host->free(d->host, state, sizeof *state);
        return status;
    }
    kernel->state = state;
    return TESS_OK;
}

tess_status tess_driver_state_portable(tess_driver_device *d, const tess_kernel_key *key,
                                       const char *name, tess_kernel *kernel) {
    return tess_driver_state_create(d, key, 0, d->driver->vendor->images, name, kernel);
}

void tess_driver_state_release(tess_kernel *kernel) {
    tess_driver_state *state = kernel->state;
    if (state) state->device->host->free(state->device->host, state, sizeof *state);
    kernel->state = NULL;
}

/* ------------------------------------------------------------------ the portable kernel */

const char *tess_driver_no_code(const tess_driver_device *d, const tess_driver_image *images,
                                const char *before, char *buffer, size_t size) {
    int used =
        snprintf(buffer, size, "%sno device code for %s; there is some for", before, d->arch);
    for (; images->data && used > 0 && (size_t)used < size; images++)
        used += snprintf(buffer + used, size - (size_t)used, " %s", images->arch);
    return buffer;
}

static const char *portable_refuses(const tess_driver_device *d, const tess_kernel_key *key,
                                    char *buffer, size_t size) {
    const tess_driver_vendor *vendor = d->driver->vendor;
    if (d->image >= 0) return key ? tess_portable_refusal(key) : NULL;
    if (!vendor->images[0].data) {
        snprintf(buffer, size, "the library was built without device code for %s (%s)",
                 vendor->name, vendor->build_hint);
        return buffer;
    }
    return tess_driver_no_code(d, vendor->images, "", buffer, size);
}

static tess_status portable_prepare(tess_driver_device *d, const tess_kernel_key *key,
                                    tess_kernel *kernel) {
    const tess_portable_shape *shape = tess_portable_choose(&tess_portable, key);
    char name[64];
    snprintf(name, sizeof name, "tess_forward_%s%s_%u", shape->few ? "few_" : "",
             tess_portable_dtype(key->dtype), (unsigned)shape->head_dim);
    TESS_RETURN_IF_ERROR(tess_driver_state_portable(d, key, name, kernel));
    tess_driver_state *state = kernel->state;
    state->shape = shape;
    tess_portable_describe(shape, key, 2 * (uint32_t)(d->units > 0 ? d->units : 1), kernel);
    return TESS_OK;
}

static tess_status launch_result(const tess_driver_device *d, int code) {
    return code == DRIVER_OK ? TESS_OK
                             : tess_driver_fail(d, tess_driver_symbol(d->driver, launch),
                                                "the launch failed", code);
}

tess_status tess_driver_start_plain(const tess_driver_device *d, void *function, unsigned groups,
                                    unsigned threads, void *stream, void **parameters) {
    return launch_result(d, d->driver->call.launch(function, groups, 1, 1, threads, 1, 1, 0, stream,
                                                   parameters, NULL));
}

tess_status tess_driver_start(const tess_driver_device *d, int module, void *function,
                              unsigned groups, unsigned threads, unsigned shared_bytes,
                              void *stream, void **parameters) {
    return launch_result(d, d->is_early[module]
                                ? d->driver->vendor->start(d, function, groups, threads,
                                                           shared_bytes, stream, parameters)
                                : d->driver->call.launch(function, groups, 1, 1, threads, 1, 1,
                                                         shared_bytes, stream, parameters, NULL));
}

/* Launches the portable forward or merge kernel, which take the same arguments. `waits`: the kernel
 * waits for earlier ones by itself. */
static tess_status launch_portable(tess_driver_device *d, const tess_launch *l, void *function,
                                   tess_args *args, uint32_t groups, uint32_t threads, int waits,
                                   void *stream) {
    tess_driver_parameters p = {.count = 0};
    tess_driver_pass_tensors(&p, l, tess_portable_tensors, TESS_PORTABLE_TENSORS);
    tess_driver_pass(&p, &l->tables->device);
    tess_driver_pass(&p, &l->workspace);
    p.all[p.count] = args;
    return waits ? tess_driver_start(d, 0, function, groups, threads, 0, stream, p.all)
                 : tess_driver_start_plain(d, function, groups, threads, stream, p.all);
}

/* The most workgroups of a launch: HIP counts threads, 128 for each workgroup, in 32 bits. */
enum { MOST_GROUPS = 1 << 24 };

/* Fills the arguments of `items` jobs behind the first `skip`. */
typedef void args_fn(const tess_launch *l, uint64_t skip, uint64_t items, int base_in_handle,
                     tess_args *args);

/* Launches a portable kernel that has a workgroup for each job. */
static tess_status launch_jobs(tess_driver_device *d, const tess_launch *l, void *function,
                               args_fn *fill, uint32_t threads, void *stream) {
    for (uint64_t done = 0; done < l->n_jobs; done += MOST_GROUPS) {
        tess_args args;
        const uint64_t rest = l->n_jobs - done, items = rest < MOST_GROUPS ? rest : MOST_GROUPS;
        fill(l, done, items, 1, &args);
        TESS_RETURN_IF_ERROR(
            launch_portable(d, l, function, &args, args.items, threads, 0, stream));
    }
    return TESS_OK;
}

static tess_status portable_forward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    return launch_jobs(d, l, state->forward, tess_portable_forward_args, state->shape->threads,
                       stream);
}

/* A step has room for more merges than it most often has. Its workgroups are those that run at a
 * time, and take one after the other. */
static tess_status merge(tess_driver_device *d, const tess_launch *l, void *stream) {
    enum { GROUPS_OF_A_UNIT = 8 };
    const tess_driver_state *state = l->kernel->state;
    const uint32_t groups = tess_portable_merge_groups(l),
                   most = groups < MOST_GROUPS ? MOST_GROUPS / groups : 1,
                   workers = GROUPS_OF_A_UNIT * (d->units > 0 ? (uint32_t)d->units : 1);
    for (uint64_t done = 0; done < l->n_merges;) {
        tess_args args;
        const uint64_t items = l->n_merges - done < most ? l->n_merges - done : most;
        tess_portable_merge_args(l, done, items, 1, &args);
        const uint32_t all = (uint32_t)items * groups;
        TESS_RETURN_IF_ERROR(launch_portable(d, l, state->merge, &args,
                                             l->tables->has_step && all > workers ? workers : all,
                                             TESS_MERGE_THREADS, 1, stream));
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_driver_portable = {
    {TESS_OP_FORWARD, "portable", 0}, portable_refuses, portable_prepare, portable_forward};

/* ------------------------------------------------------------------ parts of keys */

static tess_status parts_prepare(tess_driver_device *d, const tess_kernel_key *key,
                                 tess_kernel *kernel) {
    char name[64];
    snprintf(name, sizeof name, "tess_merge_parts_%s", tess_portable_dtype(key->dtype));
    return tess_driver_state_portable(d, key, name, kernel);
}

static tess_status parts_launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    tess_launch as;
    tess_portable_parts(l, &as);
    return launch_jobs(d, &as, state->forward, tess_portable_parts_args, TESS_PARTS_THREADS,
                       stream);
}

const tess_driver_row tess_driver_merge_parts = {
    {TESS_OP_MERGE, "merge_parts", 0}, portable_refuses, parts_prepare, parts_launch};

/* ------------------------------------------------------------------ backward */

static tess_status backward_prepare(tess_driver_device *d, const tess_kernel_key *key,
                                    tess_kernel *kernel) {
    static const char *const passes[] = {"rows", "columns"};
    const tess_backward_shape *shape = tess_backward_find(key->head_dim);
    const char *dtype = tess_portable_dtype(key->dtype);
    char name[64];
    snprintf(name, sizeof name, "tess_backward_delta_%s", dtype);
    TESS_RETURN_IF_ERROR(tess_driver_state_portable(d, key, name, kernel));
    tess_driver_state *state = kernel->state;
    tess_status status = TESS_OK;
    state->backward = shape;
    state->passes[0] = state->forward;
    for (int n = 0; n < 2 && status == TESS_OK; n++) {
        snprintf(name, sizeof name, "tess_backward_%s_%s_%u", passes[n], dtype,
                 (unsigned)shape->head_dim);
        status = tess_driver_function(d, 0, d->driver->vendor->images, name, &state->passes[n + 1]);
    }
    if (status != TESS_OK) tess_driver_state_release(kernel);
    tess_backward_describe(shape, kernel);
    return status;
}

static tess_status backward_launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    void *function = state->passes[tess_backward_number(l->stage)];
    tess_launch as;
    tess_backward_stage(l, &as);
    return launch_jobs(d, &as, function, tess_backward_args,
                       tess_backward_threads(state->backward, l->stage), stream);
}

const tess_driver_row tess_driver_backward = {
    {TESS_OP_BACKWARD, "portable", 0}, portable_refuses, backward_prepare, backward_launch};

/* ------------------------------------------------------------------ the table */

tess_status tess_driver_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel) {
    tess_driver_device *d = device;
    const tess_driver_row *const *kernels = d->driver->vendor->kernels;
    for (uint32_t n = 0; n <= index; n++)
        if (!kernels[n]) return TESS_ERROR_INVALID;
    const tess_driver_row *row = kernels[index];
    const char *why = row->refuses(d, key, info->reason, sizeof info->reason);
    const int accepts = tess_row_answer(&row->head, key, why, info);
    if (row->most_rows) info->most_rows = row->most_rows(key);
    if (row->yields && key && row->yields(key)) info->flags |= TESS_KERNEL_ONLY_NAMED;
    if (!accepts || !kernel) return TESS_OK;
    void *before = NULL;
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    const tess_status status = row->prepare(d, key, kernel);
    d->driver->vendor->leave(d, before);
    kernel->impl = row;
    kernel->release = tess_driver_state_release;
    return status;
}

/* ------------------------------------------------------------------ launches */

/* A pair of events that no other launch is using, or -1. */
static int take_timer(tess_driver_device *d) {
    for (int n = 0; n < TESS_DRIVER_TIMERS; n++) {
        int idle = 0;
        if (atomic_compare_exchange_strong(&d->timer_busy[n], &idle, 1)) return n;
    }
    return -1;
}

static tess_status read_timer(tess_driver_device *d, void *const *events, double *seconds) {
    const tess_driver_calls *c = &d->driver->call;
    float milliseconds = 0;
    const char *symbol = tess_driver_symbol(d->driver, event_wait);
    int code = c->event_wait(events[1]);
    if (code == DRIVER_OK) {
        code = c->event_time(&milliseconds, events[0], events[1]);
        symbol = tess_driver_symbol(d->driver, event_time);
    }
    if (code != DRIVER_OK) return tess_driver_fail(d, symbol, "no time", code);
    *seconds = (double)milliseconds * 1e-3;
    return TESS_OK;
}

static tess_status enqueue(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_row *row = l->kernel->impl;
    if (l->n_jobs) TESS_RETURN_IF_ERROR(row->launch(d, l, stream));
    if (l->n_merges == 0) return TESS_OK;
    return row->merge ? row->merge(d, l, stream) : merge(d, l, stream);
}

static tess_status enqueue_timed(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_calls *c = &d->driver->call;
    const int timer = take_timer(d);
    if (timer < 0)
        return d->host->fail(d->host, TESS_ERROR_BUSY,
                             "device_seconds: %d calls are being timed already",
                             TESS_DRIVER_TIMERS);
    void *const *events = d->timers[timer];
    int code = c->event_record(events[0], stream);
    tess_status status =
        code == DRIVER_OK
            ? enqueue(d, l, stream)
            : tess_driver_fail(d, tess_driver_symbol(d->driver, event_record), "no event", code);
    if (status == TESS_OK) {
        code = c->event_record(events[1], stream);
        status = code == DRIVER_OK
                     ? read_timer(d, events, l->seconds)
                     : tess_driver_fail(d, tess_driver_symbol(d->driver, event_record), "no event",
                                        code);
    }
    atomic_store(&d->timer_busy[timer], 0);
    return status;
}

tess_status tess_driver_launch(void *device, const tess_launch *l) {
    tess_driver_device *d = device;
    void *before = NULL, *stream = d->stream;
    if (l->stream.kind == TESS_STREAM_RECORD)
        return d->host->fail(
            d->host, TESS_ERROR_UNSUPPORTED,
            "stream.kind: %s records by capturing a stream; give that one as SUBMIT",
            d->driver->vendor->name);
    if (l->stream.extra)
        return d->host->fail(d->host, TESS_ERROR_INVALID, "stream.extra: must be NULL for %s",
                             d->driver->vendor->name);
    /* Kernels index the tables by 32-bit words. */
    if (l->tables->device.size > (uint64_t)UINT32_MAX * 4)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "batch: tables of %llu bytes; this backend takes 16 GiB",
                             (unsigned long long)l->tables->device.size);
    if (l->stream.kind == TESS_STREAM_SUBMIT) stream = (void *)(uintptr_t)l->stream.handle;
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    const tess_status status = l->seconds ? enqueue_timed(d, l, stream) : enqueue(d, l, stream);
    d->driver->vendor->leave(d, before);
    return status;
}

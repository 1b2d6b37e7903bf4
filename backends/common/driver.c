/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, memory and waiting, for CUDA and HIP. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

#include "library.h"
#include "object.h"
#include "polling.h"

/* ------------------------------------------------------------------ errors */

/* After these codes every call in the context fails: uncorrectable memory and link errors,
 * contained errors, a destroyed context, all faults of a kernel, and failures behind the process (a
 * server that shares the device, an external device). */
static int is_sticky(int code) {
    static const int codes[] = {214, 220, 226, 700, 702, 709, 710, 714,
                                715, 716, 717, 718, 719, 721, 810, 911};
    for (size_t n = 0; n < sizeof codes / sizeof *codes; n++)
        if (codes[n] == code) return 1;
    return 0;
}

static tess_status status_of(int code) {
    if (code == DRIVER_OUT_OF_MEMORY) return TESS_ERROR_OUT_OF_MEMORY;
    /* Not initialised, deinitialised, in exclusive use elsewhere, no device, invalid device. */
    if (code == 3 || code == 4 || code == 46 || code == 100 || code == 101)
        return TESS_ERROR_UNAVAILABLE;
    return is_sticky(code) ? TESS_ERROR_DEVICE_LOST : TESS_ERROR_NATIVE;
}

static const char *code_name(const tess_driver *driver, int code) {
    const char *name = driver->vendor->error_name(driver, code);
    return name ? name : "unknown error";
}

tess_status tess_driver_fail(const tess_driver_device *d, const char *call, const char *what,
                             int code) {
    return d->host->fail(d->host, status_of(code), "%s: %s (%s, %d)", call, what,
                         code_name(d->driver, code), code);
}

/* ------------------------------------------------------------------ the driver */

void tess_driver_load(tess_driver *driver, const tess_driver_vendor *vendor) {
    void (*table[TESS_DRIVER_CALLS + TESS_DRIVER_EXTRAS])(void);
    memset(driver, 0, sizeof *driver);
    memset(table, 0, sizeof table);
    driver->vendor = vendor;
    driver->status = TESS_ERROR_UNAVAILABLE;
    void *library = tess_library_open(vendor->libraries, driver->why, sizeof driver->why);
    if (!library ||
        !tess_library_symbols(library, vendor->symbols, table, driver->why, sizeof driver->why))
        return;
    memcpy(&driver->call, table, sizeof driver->call);
    memcpy(driver->extra, table + TESS_DRIVER_CALLS, sizeof driver->extra);
    int code = driver->call.init(0);
    const char *call = tess_driver_symbol(driver, init);
    if (code == DRIVER_OK) {
        code = driver->call.version(&driver->number);
        call = tess_driver_symbol(driver, version);
    }
    if (code == DRIVER_OK) {
        code = driver->call.count(&driver->count);
        call = tess_driver_symbol(driver, count);
    }
    if (code != DRIVER_OK) {
        snprintf(driver->why, sizeof driver->why, "%s: the driver does not start (%s, %d)", call,
                 code_name(driver, code), code);
        return;
    }
    if (driver->count <= 0) {
        driver->count = 0;
        snprintf(driver->why, sizeof driver->why, "%s: the driver is there, and finds no device",
                 call);
        return;
    }
    driver->status = TESS_OK;
}

tess_status tess_driver_list(const tess_driver *driver, const tess_host *host, uint32_t index,
                             tess_device_info *info) {
    if (driver->status != TESS_OK) return host->fail(host, driver->status, "%s", driver->why);
    if (index >= (uint32_t)driver->count)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "there are %d devices", driver->count);
    const tess_driver_calls *c = &driver->call;
    int device = 0, units = 0, version = 0;
    size_t memory = 0;
    char text[128] = "";
    const char *call = tess_driver_symbol(driver, get);
    int code = c->get(&device, (int)index);
    if (code == DRIVER_OK) {
        call = tess_driver_symbol(driver, name);
        code = c->name(text, sizeof text, device);
    }
    if (code == DRIVER_OK) {
        call = tess_driver_symbol(driver, memory);
        code = c->memory(&memory, device);
    }
    if (code == DRIVER_OK) {
        call = tess_driver_symbol(driver, attribute);
        code = c->attribute(&units, driver->vendor->units_attribute, device);
    }
    if (code == DRIVER_OK) {
        call = driver->vendor->arch_call;
        code = driver->vendor->arch(driver, device, info->arch, sizeof info->arch);
    }
    if (code == DRIVER_OK) {
        call = tess_driver_symbol(driver, version);
        code = c->version(&version);
    }
    if (code != DRIVER_OK)
        return host->fail(host, status_of(code), "%s: device %u cannot be asked (%s, %d)", call,
                          (unsigned)index, code_name(driver, code), code);
    info->kind = TESS_DEVICE_GPU;
    info->compute_units = units > 0 ? (uint32_t)units : 0;
    info->memory_bytes = memory;
    text[sizeof text - 1] = '\0';
    snprintf(info->name, sizeof info->name, "%s", text);
    driver->vendor->version(version, info->driver, sizeof info->driver);
    return TESS_OK;
}

/* ------------------------------------------------------------------ devices */

tess_status tess_driver_enter(tess_driver_device *d, void **before) {
    const int code = d->driver->vendor->enter(d, before);
    return code == DRIVER_OK ? TESS_OK
                             : tess_driver_fail(d, d->driver->vendor->enter_call,
                                                "the context cannot be made current", code);
}

static void leave(tess_driver_device *d, void *before) { d->driver->vendor->leave(d, before); }

static void drop_objects(tess_driver_device *d) {
    const tess_driver_calls *c = &d->driver->call;
    for (int n = 0; n < TESS_DRIVER_TIMERS; n++)
        for (int i = 0; i < 2; i++)
            if (d->timers[n][i]) c->event_destroy(d->timers[n][i]);
    for (int n = 0; n < TESS_DRIVER_MODULES; n++) {
        if (!d->modules[n]) continue;
        c->module_unload(d->modules[n]);
        d->host->free(d->host, d->code[n], d->code_bytes[n]);
    }
    if (d->stream) c->stream_destroy(d->stream);
}

static tess_status make_objects(tess_driver_device *d) {
    const tess_driver_calls *c = &d->driver->call;
    int code = c->stream_create(&d->stream, DRIVER_STREAM_NON_BLOCKING);
    if (code != DRIVER_OK) {
        d->stream = NULL;
        return tess_driver_fail(d, tess_driver_symbol(d->driver, stream_create), "no stream", code);
    }
    for (int n = 0; n < TESS_DRIVER_TIMERS; n++)
        for (int i = 0; i < 2; i++) {
            code = c->event_create(&d->timers[n][i], 0);
            if (code == DRIVER_OK) continue;
            d->timers[n][i] = NULL;
            return tess_driver_fail(d, tess_driver_symbol(d->driver, event_create), "no event",
                                    code);
        }
    return TESS_OK;
}

tess_status tess_driver_open(const tess_driver *driver, const tess_host *host, uint32_t index,
                             const void *native, void **out) {
    const tess_driver_vendor *vendor = driver->vendor;
    if (driver->status != TESS_OK) return host->fail(host, driver->status, "%s", driver->why);
    if (index >= (uint32_t)driver->count)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "there are %d devices", driver->count);
    tess_driver_device *d = tess_object(host, sizeof *d, "the device");
    if (!d) return TESS_ERROR_OUT_OF_MEMORY;
    d->host = host;
    d->driver = driver;
    d->image = -1;
    pthread_mutex_init(&d->loading, NULL);
    int code = driver->call.get(&d->device, (int)index);
    if (code == DRIVER_OK)
        code = driver->call.attribute(&d->units, vendor->units_attribute, d->device);
    if (code == DRIVER_OK) code = vendor->arch(driver, d->device, d->arch, sizeof d->arch);
    tess_status status = code == DRIVER_OK
                             ? TESS_OK
                             : tess_driver_fail(d, tess_driver_symbol(d->driver, attribute),
                                                "the device cannot be asked", code);
    if (status == TESS_OK) {
        /* Not every driver knows these attributes. Without an answer, assume no limit. */
        if (driver->call.attribute(&d->time_limited, vendor->time_limit_attribute, d->device) !=
            DRIVER_OK)
            d->time_limited = 0;
        if (driver->call.attribute(&d->cache_bytes, vendor->cache_attribute, d->device) !=
            DRIVER_OK)
            d->cache_bytes = 0;
        d->image = vendor->image(vendor->images, d->arch, 0);
        status = vendor->attach(d, native);
    }
    if (status == TESS_OK) {
        void *before = NULL;
        status = tess_driver_enter(d, &before);
        if (status == TESS_OK) {
            status = make_objects(d);
            if (status != TESS_OK) drop_objects(d);
            leave(d, before);
        }
        if (status != TESS_OK) vendor->detach(d);
    }
    if (status != TESS_OK) {
        pthread_mutex_destroy(&d->loading);
        host->free(host, d, sizeof *d);
        return status;
    }
    *out = d;
    return TESS_OK;
}

void tess_driver_close(void *device) {
    tess_driver_device *d = device;
    void *before = NULL;
    /* Destroy the objects even without the context: the driver knows most of them by handle, and
     * nobody else will. */
    const int code = d->driver->vendor->enter(d, &before);
    drop_objects(d);
    if (code == DRIVER_OK) leave(d, before);
    d->driver->vendor->detach(d);
    pthread_mutex_destroy(&d->loading);
    d->host->free(d->host, d, sizeof *d);
}

tess_status tess_driver_query(void *device, tess_caps *caps) {
    tess_driver_device *d = device;
    tess_portable_caps(TESS_BUFFER_POINTER, (uint32_t)(d->units > 0 ? d->units : 1), caps);
    caps->cache_bytes = d->cache_bytes > 0 ? (uint64_t)d->cache_bytes : 0;
    if (d->time_limited) {
        /* A step (64 rows by 64 keys) is 2 MFLOP at head_dim 128. Assume a quarter of a TFLOP/s for
         * each ten units, which is slow even for the portable kernel. */
        caps->steps_per_second = 12000u * (uint64_t)(d->units > 0 ? d->units : 1);
        caps->range_blocks = caps->steps_per_second / 5;
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ memory */

tess_status tess_driver_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    tess_driver_device *d = device;
    void *before = NULL;
    uint64_t pointer = 0;
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    const int code =
        size <= SIZE_MAX ? d->driver->call.alloc(&pointer, (size_t)size) : DRIVER_OUT_OF_MEMORY;
    leave(d, before);
    if (code != DRIVER_OK) {
        char what[64];
        snprintf(what, sizeof what, "%llu bytes", (unsigned long long)size);
        return tess_driver_fail(d, tess_driver_symbol(d->driver, alloc), what, code);
    }
    memset(buffer, 0, sizeof *buffer);
    buffer->kind = TESS_BUFFER_POINTER;
    buffer->handle = pointer;
    buffer->size = size;
    return TESS_OK;
}

tess_status tess_driver_free(void *device, tess_buffer *buffer) {
    tess_driver_device *d = device;
    void *before = NULL;
    const int entered = d->driver->vendor->enter(d, &before),
              code = d->driver->call.free(buffer->handle);
    if (entered == DRIVER_OK) leave(d, before);
    /* A lost context has no memory any more, and the host holds nothing of the buffer. */
    if (code == DRIVER_OK || is_sticky(code) || is_sticky(entered)) return TESS_OK;
    return tess_driver_fail(d, tess_driver_symbol(d->driver, free), "not a buffer of the device",
                            code);
}

/* Copies on the device's own stream, behind all earlier work there. */
tess_status tess_driver_copy(void *device, tess_buffer to, tess_buffer from, uint64_t bytes) {
    tess_driver_device *d = device;
    const tess_driver_calls *c = &d->driver->call;
    void *before = NULL;
    if (bytes == 0) return TESS_OK;
    if (bytes > SIZE_MAX)
        return d->host->fail(d->host, TESS_ERROR_INVALID,
                             "bytes: %llu do not fit the address space", (unsigned long long)bytes);
    const char *symbol = tess_driver_symbol(d->driver, on_device);
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    int code = DRIVER_OK;
    const uint64_t target = to.handle + to.offset, source = from.handle + from.offset;
    if (to.kind == TESS_BUFFER_HOST && from.kind == TESS_BUFFER_HOST) {
        memmove((void *)(uintptr_t)target, (const void *)(uintptr_t)source, (size_t)bytes);
    } else if (from.kind == TESS_BUFFER_HOST) {
        symbol = tess_driver_symbol(d->driver, to_device);
        code = c->to_device(target, (const void *)(uintptr_t)source, (size_t)bytes, d->stream);
    } else if (to.kind == TESS_BUFFER_HOST) {
        symbol = tess_driver_symbol(d->driver, to_host);
        code = c->to_host((void *)(uintptr_t)target, source, (size_t)bytes, d->stream);
    } else {
        code = c->on_device(target, source, (size_t)bytes, d->stream);
    }
    if (code == DRIVER_OK) {
        code = c->stream_wait(d->stream);
        if (code != DRIVER_OK) symbol = tess_driver_symbol(d->driver, stream_wait);
        /* The caller may free its memory now, so wait until the copy has ended. */
        if (code != DRIVER_OK && !is_sticky(code)) c->stream_wait(d->stream);
    }
    leave(d, before);
    return code == DRIVER_OK ? TESS_OK : tess_driver_fail(d, symbol, "the copy failed", code);
}

tess_status tess_driver_wait(void *device, uint64_t timeout_ns) {
    tess_driver_device *d = device;
    const tess_driver_calls *c = &d->driver->call;
    void *before = NULL;
    const char *symbol = tess_driver_symbol(d->driver, stream_wait);
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    int code;
    if (timeout_ns == UINT64_MAX) {
        code = c->stream_wait(d->stream);
    } else {
        const uint64_t start = tess_polling_now();
        uint64_t waited = 0;
        symbol = tess_driver_symbol(d->driver, stream_query);
        while ((code = c->stream_query(d->stream)) == DRIVER_NOT_READY &&
               (waited = tess_polling_now() - start) < timeout_ns)
            tess_polling_nap(waited);
    }
    leave(d, before);
    if (code == DRIVER_NOT_READY)
        return d->host->fail(d->host, TESS_ERROR_TIMEOUT, "work is still under way after %llu ns",
                             (unsigned long long)timeout_ns);
    return code == DRIVER_OK ? TESS_OK : tess_driver_fail(d, symbol, "waiting failed", code);
}

/* ------------------------------------------------------------------ marks */

tess_status tess_driver_mark(void *device, const tess_stream *stream, void **mark) {
    tess_driver_device *d = device;
    const tess_driver_calls *c = &d->driver->call;
    void *before = NULL,
         *at = stream->kind == TESS_STREAM_SUBMIT ? (void *)(uintptr_t)stream->handle : d->stream;
    const char *symbol = tess_driver_symbol(d->driver, event_create);
    int code = DRIVER_OK;
    TESS_RETURN_IF_ERROR(tess_driver_enter(d, &before));
    if (!*mark) {
        code = c->event_create(mark, DRIVER_EVENT_WITHOUT_TIME);
        if (code != DRIVER_OK) *mark = NULL;
    }
    if (code == DRIVER_OK) {
        symbol = tess_driver_symbol(d->driver, event_record);
        code = c->event_record(*mark, at);
    }
    leave(d, before);
    return code == DRIVER_OK ? TESS_OK : tess_driver_fail(d, symbol, "no mark on a stream", code);
}

/* If the driver cannot tell, the place counts as not passed. */
tess_status tess_driver_passed(void *device, void *mark) {
    tess_driver_device *d = device;
    void *before = NULL;
    if (d->driver->vendor->enter(d, &before) != DRIVER_OK) return TESS_ERROR_BUSY;
    const int code = d->driver->call.event_query(mark);
    leave(d, before);
    return code == DRIVER_OK          ? TESS_OK
           : code == DRIVER_NOT_READY ? TESS_ERROR_BUSY
                                      : TESS_ERROR_NATIVE;
}

void tess_driver_unmark(void *device, void *mark) {
    tess_driver_device *d = device;
    void *before = NULL;
    const int entered = d->driver->vendor->enter(d, &before);
    d->driver->call.event_destroy(mark);
    if (entered == DRIVER_OK) leave(d, before);
}

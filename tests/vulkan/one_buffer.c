/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goes in front of libtessera (LD_PRELOAD): tess_alloc gives pieces of one buffer a device, as an
 * application does that manages memory itself. So programs that know nothing of it run on devices
 * that bind few storage buffers.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

enum { PIECES = 256, DEVICES = 8, ALIGN = 256, SIZE = 120 << 20 };

typedef struct arena {
    tess_device *device;
    tess_buffer whole;
    struct {
        uint64_t at, end;
    } pieces[PIECES]; /* by rising places */
    int count;
} arena;

static arena arenas[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tess_status (*real_alloc)(tess_device *device, uint64_t size, tess_buffer *buffer);
static tess_status (*real_free)(tess_device *device, tess_buffer *buffer);

static void find_real(void) {
    void *symbol = dlsym(RTLD_NEXT, "tess_alloc");
    memcpy(&real_alloc, &symbol, sizeof symbol);
    symbol = dlsym(RTLD_NEXT, "tess_free");
    memcpy(&real_free, &symbol, sizeof symbol);
}

static arena *arena_of(tess_device *device) {
    arena *unused = NULL;
    for (int n = 0; n < DEVICES; n++) {
        if (arenas[n].count && arenas[n].device == device) return &arenas[n];
        if (!arenas[n].count && !unused) unused = &arenas[n];
    }
    return unused;
}

/* The first gap that is large enough. */
static tess_status take(arena *a, tess_device *device, uint64_t size, tess_buffer *buffer) {
    uint64_t at = 0;
    int place = 0;
    while (place < a->count && a->pieces[place].at - at < size) {
        at = (a->pieces[place].end + ALIGN - 1) / ALIGN * ALIGN;
        place++;
    }
    if (a->count == PIECES || at + size > SIZE) return TESS_ERROR_OUT_OF_MEMORY;
    if (a->count == 0) {
        const tess_status status = real_alloc(device, SIZE, &a->whole);
        if (status != TESS_OK) return status;
        a->device = device;
    }
    memmove(&a->pieces[place + 1], &a->pieces[place],
            (size_t)(a->count - place) * sizeof *a->pieces);
    a->pieces[place].at = at;
    a->pieces[place].end = at + size;
    a->count++;
    *buffer = a->whole;
    buffer->offset += at;
    buffer->size = buffer->offset + size;
    return TESS_OK;
}

tess_status tess_alloc(tess_device *device, uint64_t size, tess_buffer *buffer) {
    pthread_mutex_lock(&lock);
    if (!real_alloc) find_real();
    arena *a = arena_of(device);
    const int fits = a && device && buffer && size && size <= SIZE;
    const tess_status status =
        fits ? take(a, device, size, buffer) : real_alloc(device, size, buffer);
    if (status != TESS_OK && fits)
        printf("one_buffer: no room for %llu bytes\n", (unsigned long long)size);
    pthread_mutex_unlock(&lock);
    return status;
}

static tess_status give(arena *a, int place, tess_buffer *buffer) {
    a->count--;
    memmove(&a->pieces[place], &a->pieces[place + 1],
            (size_t)(a->count - place) * sizeof *a->pieces);
    memset(buffer, 0, sizeof *buffer);
    return a->count ? TESS_OK : real_free(a->device, &a->whole);
}

tess_status tess_free(tess_device *device, tess_buffer *buffer) {
    tess_status status = TESS_OK;
    pthread_mutex_lock(&lock);
    if (!real_free) find_real();
    arena *a = arena_of(device);
    int place = 0;
    if (!a || !buffer || !a->count || buffer->handle != a->whole.handle) a = NULL;
    while (a && place < a->count && a->whole.offset + a->pieces[place].at != buffer->offset)
        place++;
    status = a && place < a->count ? give(a, place, buffer) : real_free(device, buffer);
    pthread_mutex_unlock(&lock);
    return status;
}

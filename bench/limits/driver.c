/* SPDX-License-Identifier: Apache-2.0 */
/* Loops on the drivers of CUDA and HIP: PTX, which the driver compiles, and HIP C++, which ROCm's
 * run-time compiler does. */
#include "driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "find.h"
#include "hiprtc.h"
#include "loops.h"
#include "ptx.h"

enum { CUDA, HIP, VENDORS };

/* ------------------------------------------------------------------ the driver */

typedef struct driver {
    driver_api api;
    int state; /* 1: works, -1: does not, 0: not tried */
    char why[96];
} driver;

static void load(driver *v, int vendor) {
    static const char *const files[VENDORS][5] = {
        {"libcuda.so.1"},
        {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}};
    const char *const file = files[vendor][vendor == HIP ? 3 : 0], *missing = NULL;
    void *library = find_named(files[vendor]);
    v->state = -1;
    v->api.name = vendor == HIP ? "HIP" : "CUDA";
    if (!library) {
        snprintf(v->why, sizeof v->why, "%s cannot be opened", file);
        return;
    }
#define FIND(member, cuda, hip, parameters)                                            \
    {                                                                                  \
        const char *symbol = vendor == HIP ? (hip) : (cuda);                           \
        if (symbol && !find_symbol(library, symbol, &v->api.member)) missing = symbol; \
    }
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    const int code = missing ? 0 : v->api.init(0);
    if (missing)
        snprintf(v->why, sizeof v->why, "%s has no %.60s", file, missing);
    else if (code != 0)
        snprintf(v->why, sizeof v->why, "%sInit: error %d", vendor == HIP ? "hip" : "cu", code);
    else
        v->state = 1;
}

static const driver_api *driver_of(const bench_device *d, char *why, size_t size) {
    static driver drivers[VENDORS];
    const int vendor = strcmp(d->backend, "hip") == 0 ? HIP : CUDA;
    driver *v = &drivers[vendor];
    if (v->state == 0) load(v, vendor);
    snprintf(why, size, "%s", v->why);
    return v->state == 1 ? &v->api : NULL;
}

int driver_open(driver_gpu *g, const bench_device *d, char *why, size_t size) {
    const driver_api *a = driver_of(d, why, size);
    if (!(g->api = a)) return -1;
    int code = a->device_get(&g->device, gpu_index(d));
    if (code == 0 && a->set_device) code = a->set_device(g->device);
    if (code == 0 && a->retain) code = a->retain(&g->context, g->device);
    if (code == 0 && a->set_current) code = a->set_current(g->context);
    for (int i = 0; i < 2 && code == 0; i++) code = a->event_create(&g->events[i], 0);
    if (code == 0) return 0;
    snprintf(why, size, "%s: error %d", a->name, code);
    return -1;
}

void driver_close(driver_gpu *g) {
    for (int i = 0; i < 2; i++)
        if (g->events[i]) g->api->event_destroy(g->events[i]);
    if (g->context) g->api->release(g->device);
    memset(g, 0, sizeof *g);
}

double driver_seconds(driver_gpu *g, int (*work)(void *user), void *user) {
    float ms = 0;
    if (g->api->event_record(g->events[0], NULL) != 0 || work(user) != 0 ||
        g->api->event_record(g->events[1], NULL) != 0 || g->api->event_wait(g->events[1]) != 0 ||
        g->api->event_elapsed(&ms, g->events[0], g->events[1]) != 0)
        return NAN;
    return 1e-3 * (double)ms;
}

static void identify(bench_device *d) {
    char why[128], pci[32] = "";
    unsigned char uuid[16];
    int device;
    const driver_api *a = driver_of(d, why, sizeof why);
    if (!a || a->device_get(&device, gpu_index(d)) != 0) return;
    if (a->device_uuid(uuid, device) == 0) gpu_uuid_text(uuid, d->uuid);
    if (a->device_pci(pci, (int)sizeof pci - 1, device) != 0) return;
    for (char *c = pci; *c; c++) *c = (char)(*c >= 'A' && *c <= 'F' ? *c + 'a' - 'A' : *c);
    snprintf(d->pci, sizeof d->pci, "%.20s", pci);
}

/* ------------------------------------------------------------------ loops */

typedef struct loops {
    driver_gpu gpu;
    char *code; /* of all loops, through HIP; of the one that is ready, through CUDA */
    int is_hip, capability;
    uint32_t compute_units;
    void *module, *function;
    uint64_t memory[2];
    loops_launch ready;
} loops;

static void drop(loops *l) {
    for (int i = 0; i < 2; i++)
        if (l->memory[i]) l->gpu.api->free(l->memory[i]);
    if (l->module) l->gpu.api->module_unload(l->module);
    if (!l->is_hip) {
        free(l->code);
        l->code = NULL;
    }
    l->memory[0] = l->memory[1] = 0;
    l->module = NULL;
}

static void close_loops(void *gpu) {
    loops *l = gpu;
    if (!l->gpu.api) return;
    drop(l);
    driver_close(&l->gpu);
    free(l->code);
}

static int open_loops(void *gpu, const bench_device *d, char *why, size_t size) {
    loops *l = gpu;
    const char *sm = strstr(d->arch, "sm_");
    l->is_hip = strcmp(d->backend, "hip") == 0;
    l->capability = sm ? atoi(sm + 3) : 0;
    l->compute_units = d->compute_units ? d->compute_units : 64;
    if (driver_open(&l->gpu, d, why, size) != 0) return -1;
    return l->is_hip && !(l->code = hiprtc_compile(loops_source, why, size)) ? -1 : 0;
}

static int launch(void *user) {
    loops *l = user;
    uint32_t turns = (uint32_t)l->ready.turns;
    void *moving[] = {&l->memory[0], &l->memory[1]}, *adding[] = {&l->memory[1], &turns};
    return l->gpu.api->launch(l->function, (unsigned)l->ready.groups, 1, 1, GPU_GROUP, 1, 1, 0,
                              NULL, l->ready.moves ? moving : adding, NULL);
}

static double run(void *gpu) {
    loops *l = gpu;
    return driver_seconds(&l->gpu, launch, l);
}

/* Makes a launch ready, in a module of its own; 0 or the driver's error. */
static int place(loops *l, loops_launch next) {
    const driver_api *a = l->gpu.api;
    l->ready = next;
    int code = a->module_load(&l->module, l->code);
    if (code == 0) code = a->get_function(&l->function, l->module, next.kind.name);
    for (int i = 0; i < 2 && code == 0; i++) {
        code = a->alloc(&l->memory[i], next.bytes);
        if (code == 0) code = a->fill(l->memory[i], 0x3c003c00u, next.bytes / 4);
    }
    return code;
}

/* FLOP of a thread in a turn on matrix units, which HIP's compiler alone knows; 0: there are none.
 */
static uint32_t unit_flop(loops *l) {
    uint32_t flop = 0;
    int code = place(l, loops_unit_flop);
    if (code == 0) code = launch(l);
    if (code == 0) code = l->gpu.api->to_host(&flop, l->memory[1], sizeof flop);
    drop(l);
    return code == 0 ? flop : 0;
}

static double prepare(void *gpu, gpu_job *job) {
    loops *l = gpu;
    drop(l);
    const loops_kind kind =
        !l->is_hip ? ptx_kind_of(job->loop, l->capability)
                   : loops_kind_of(job->loop, job->loop > GPU_F32 ? unit_flop(l) : 0, 1);
    if (!kind.name) return 0; /* that of f32 counts */
    const loops_launch next = loops_launch_of(job, kind, l->compute_units);
    if (!l->is_hip) l->code = ptx_loop(job->loop);
    return loops_ready(job, &next, l->is_hip ? "HIP, " : "", l->gpu.api->name,
                       l->code ? place(l, next) : 2);
}

const gpu_driver gpu_cuda = {"cuda",      sizeof(loops), identify, open_loops,
                             close_loops, prepare,       run};
const gpu_driver gpu_hip = {"hip", sizeof(loops), identify, open_loops, close_loops, prepare, run};

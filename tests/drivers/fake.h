/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated driver: what the stand-ins for libcuda.so.1 and libamdhip64.so.6 share. It keeps
 * contexts, streams, events, modules and memory as a driver would, in host memory, refuses what a
 * driver would refuse, logs its calls, and fails on request.
 *
 * Work is done when somebody waits for it, not when it is enqueued, so a missing wait shows. A call
 * that destroys an object and has to fail destroys it all the same: what is left alive in the end
 * was forgotten.
 */
#ifndef TESSERA_TESTS_DRIVERS_FAKE_H
#define TESSERA_TESTS_DRIVERS_FAKE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { FAKE_CONTEXT, FAKE_STREAM, FAKE_EVENT, FAKE_MODULE, FAKE_MEMORY, FAKE_GRAPH, FAKE_KINDS };

enum { FAKE_DEVICES = 2, FAKE_UNITS = 3 };

typedef struct fake_control {
    int calls;          /* since it was last set to 0 */
    int fail_at;        /* the call that fails, counted from 1; 0: none */
    int sticky;         /* every later call fails as well */
    int only_device;    /* calls that concern this device alone count and fail; -1: all */
    int code;           /* the error that failing calls give */
    int failures;       /* calls that failed */
    const char *failed; /* the name of the first of them ... */
    const char *next;   /* ... and of the first call after it */
    int live[FAKE_KINDS];
    int depth;      /* contexts pushed and not popped, by all threads */
    int wrong;      /* calls that a driver would refuse or that would crash it */
    char what[160]; /* the first of them */
    int hold;       /* work never seems to end */
    int time_limited;
    char arch[FAKE_DEVICES][16]; /* "sm_80", "gfx1100"; set before the devices are listed */
    uint64_t most_bytes;         /* more cannot be allocated; 0: no limit */
    int logging;
    size_t used;
    char log[1 << 16]; /* one line for each call */
} fake_control;

/* What a test may use of a stand-in, which exports fake_get. */
typedef struct fake_exports {
    fake_control *control;
    void (*make_current)(int device); /* in the calling thread, as an application does */
    int (*current_device)(void);      /* -1: none */
} fake_exports;
typedef const fake_exports *fake_get_fn(void);

/* ------------------------------------------------------------------ for the stand-ins alone */

typedef struct fake_object fake_object;

/* Begins a call: takes the lock and logs its name without a version suffix. Returns the code with
 * which it has to fail, or 0. */
int fake_begin(const char *name);
/* of a call that concerns another device than the current one; -1: none */
int fake_begin_on(const char *name, int device);
int fake_end(int code); /* lets the lock go; returns `code` */
#define fake_note(...)                                                                        \
    fake_noted(snprintf(fake.log + fake.used, fake.logging ? sizeof fake.log - fake.used : 0, \
                        __VA_ARGS__))
void fake_noted(int length);
/* A handle as text: "stream 2". NULL is "0". */
const char *fake_name(const void *handle);
/* Keeps the text of the first misuse; gives `code`. */
#define fake_misuse(code, ...) \
    (snprintf(fake.what, fake.wrong ? 0 : sizeof fake.what, __VA_ARGS__), fake_misused(code))
int fake_misused(int code);

/* The thread's current context. Contexts belong to a device; a driver without contexts uses those
 * of fake_primary. */
fake_object *fake_primary(int device);
fake_object *fake_context_create(int device);
int fake_context_destroy(fake_object *context);
fake_object *fake_current(void);
void fake_set_current(fake_object *context);
int fake_push(fake_object *context);
int fake_pop(fake_object **context);
int fake_device_of(const fake_object *context);

/* Calls within the current context. They return the driver's codes. */
int fake_stream_create(void **stream);
int fake_stream_destroy(void *stream);
int fake_stream_query(void *stream);
int fake_stream_wait(void *stream);
int fake_event_create(void **event);
int fake_event_destroy(void *event);
int fake_event_record(void *event, void *stream);
int fake_event_wait(void *event);
int fake_event_time(float *milliseconds, void *first, void *last);
int fake_event_query(void *event);
int fake_module_load(void **module, const char *image);
int fake_module_unload(void *module);
int fake_module_function(void **function, void *module, const char *name);
int fake_alloc(uint64_t *pointer, size_t bytes);
int fake_free(uint64_t pointer);
int fake_copy(uint64_t to, int to_host, uint64_t from, int from_host, size_t bytes, void *stream);
int fake_fill(uint64_t to, unsigned value, size_t words, void *stream);
/* What a function is called, and the architecture that its code is for; "" if it is none. */
const char *fake_function_name(const void *function);
const char *fake_function_arch(const void *function);
int fake_launch(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared,
                void *stream, void **parameters);
int fake_capture_begin(void *stream);
int fake_capture_end(void *stream, void **graph);
int fake_graph_launch(void *graph, void *stream);
int fake_graph_destroy(void *graph);

/* The number at the start of a text; that of a variable of the environment. */
int fake_number(const char *text);
int fake_setting(const char *name, int otherwise);

/* The architecture of a device: as the test wants it, else FAKE_DRIVER_ARCH, else as given. */
const char *fake_arch(int device, const char *otherwise);
/* Whether an image can run on an architecture; each stand-in has its own. */
int fake_can_run(const char *image_arch, const char *arch);

extern fake_control fake;
extern const fake_exports fake_table;

/* ------------------------------------------------------------------ kernels.c */

/* The kernel that a name stands for, or -1; bytes of each parameter, ended by 0; threads of a
 * workgroup. */
int fake_kernel_find(const char *name);
const size_t *fake_kernel_parameters(int kernel);
int fake_kernel_takes(int kernel, unsigned threads); /* threads of a block */
/* Text about the arguments for the log. */
void fake_kernel_describe(int kernel, void *const *parameters, char *text, size_t size);
/* Computes. Device pointers are turned into host ones by fake_host, which complains about pointers
 * into nothing. */
void fake_kernel_run(int kernel, unsigned groups, void *const *parameters);
void *fake_host(uint64_t pointer);

/* ------------------------------------------------------------------ other operations */

/* backward.c: those of backward. */
int fake_backward_find(const char *name);
const size_t *fake_backward_parameters(int number);
void fake_backward_describe(int number, void *const *parameters, char *text, size_t size);
int fake_backward_takes(int number, unsigned threads);
void fake_backward_run(int number, unsigned groups, void *const *parameters);

/* backward_sm90.c: those of backward for Hopper. */
enum { FAKE_BACKWARD_SM90_KERNELS = 20 };
int fake_backward_sm90_find(const char *name);
int fake_backward_sm90_takes(int number, unsigned threads);
const size_t *fake_backward_sm90_parameters(int number);
void fake_backward_sm90_describe(int number, void *const *parameters, char *text, size_t size);
void fake_backward_sm90_run(int number, unsigned groups, void *const *parameters);

/* paging.c: those that write a cache. All have numbers of their own. */
enum { FAKE_PAGING_KERNELS = 4, FAKE_PAGING_THREADS = 64 };
int fake_paging_find(const char *name);
const size_t *fake_paging_parameters(int kernel);
void fake_paging_describe(int kernel, void *const *parameters, char *text, size_t size);
void fake_paging_run(int kernel, unsigned groups, void *const *parameters);

/* prepare.c: the same for the kernel that prepares steps. */
enum { FAKE_PREPARE_THREADS = 512, FAKE_PREPARE_SHARES = 8 };
extern const size_t fake_prepare_parameters[];
void fake_prepare_describe(void *const *parameters, char *text, size_t size);
void fake_prepare_run(unsigned groups, void *const *parameters);

#endif

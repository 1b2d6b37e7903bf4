/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the GPU of fake_cuda.c is: bytes and FLOP a second. */
#ifndef TESSERA_TESTS_BENCH_FAKE_CUDA_H
#define TESSERA_TESTS_BENCH_FAKE_CUDA_H

#define FAKE_COPY  4.0e12
#define FAKE_READ  5.0e12
#define FAKE_F32   5.0e11
#define FAKE_F16   7.0e14
#define FAKE_BF16  1.5e12
#define FAKE_UNITS 3.0e14

#include <stddef.h>

/* Of a thread on matrix units in a turn, through HIP. */
enum { FAKE_UNIT_FLOP = 512 };

/* What other fake interfaces of the same GPU share. */
int fake_has(const char *word);
int fake_fetch(void *to, const void *from, size_t bytes);
int fake_release(void *p);
int fake_event(void **event, unsigned flags);
int fake_record(void *event, void *stream);
int fake_elapsed(float *ms, const void *first, const void *last);
/* What HIP has alike: events are times, modules are text. */
#define FAKE_EVENTS(create, destroy, record, wait, elapsed, unload)                         \
    API int create(void **event, unsigned flags) { return fake_event(event, flags); }       \
    API int destroy(void *event) { return fake_release(event); }                            \
    API int record(void *event, void *stream) { return fake_record(event, stream); }        \
    API int wait(void *event) { return event ? OK : INVALID; }                              \
    API int elapsed(float *ms, void *from, void *to) { return fake_elapsed(ms, from, to); } \
    API int unload(void *module) { return fake_release(module); }
/* A function is its name in a module, after the words that stand before it there. */
int fake_find(void **function, void *module, const char *before, const char *name);
int fake_launch(const char *name, unsigned groups, unsigned threads, void **arguments);
/* A product of n x n matrices in the order of columns, by the number of CUDA's type. */
void fake_product(const void *a, const void *b, void *c, int n, int type);

#endif

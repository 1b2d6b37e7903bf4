/* SPDX-License-Identifier: Apache-2.0 */
/* What the applications of this folder share: one allocation holds all that a run reads and writes,
 * and the bytes between must stay as they were. */
#ifndef TESSERA_TESTS_INTEROP_PARTS_H
#define TESSERA_TESTS_INTEROP_PARTS_H

#include "common/testlib.h"
#include "problem.h"

enum { PARTS = 6, PARTS_GUARD = 512 }; /* Q, K, V, O, LSE, workspace */

/* Where the parts are, in bytes. */
typedef struct parts {
    uint64_t bytes[PARTS], offset[PARTS], size;
} parts;

/* What Tessera holds on an application's device. */
typedef struct tessera_side {
    tess_runtime *runtime;
    tess_device *device;
    problem p;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    parts parts;
} tessera_side;

/* Plans the problem of `line`, which has to be split among jobs, and places the parts. Runtime and
 * device are there already. */
void parts_prepare(tessera_side *t, const char *line, const char *kernel, uint32_t max_in_flight,
                   int odd);
void parts_release(tessera_side *t);

/* The plan of a problem, by a kernel of that name (NULL: the plan's own choice) and with that many
 * runs in flight (0: the default). */
tess_plan *parts_plan(const problem *p, const tess_layout *layout, tess_device *device,
                      const char *kernel, uint32_t max_in_flight);

/* Places the parts of a plan with guards between. An application may put its tensors anywhere: when
 * `odd`, none is aligned to more than its elements. */
void parts_place(parts *x, const tess_plan *plan, uint64_t element, int odd);

/* Fills an image of the memory, except for inputs: outputs and workspace are NaN, and all else
 * differs from byte to byte. */
void parts_fill(const parts *x, unsigned char *image);

/* A run on the parts of a buffer. */
tess_run_desc parts_run(const parts *x, const tess_plan *plan, tess_buffer whole);

/* The same problem on another device of Tessera's, with memory from there; O and LSE are copied
 * out. */
void parts_run_elsewhere(const parts *x, const problem *p, const tess_layout *layout,
                         tess_device *device, const char *kernel, const void *const inputs[3],
                         void *o, void *lse);

/* Fails the test unless everything but outputs and workspace is as in the image. */
void parts_check_rest(const parts *x, const unsigned char *got, const unsigned char *image);

/* Fails the test unless every third row of O and LSE, which may lie anywhere, is that of the
 * reference. */
void parts_check_rows(const problem *p, void *const inputs[3], const unsigned char *o,
                      const unsigned char *lse);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A problem whose tensors may have any layout in memory: what the properties need beyond the
 * contiguous tensors of support/instance.h. */
#ifndef TESSERA_TESTS_CONFORMANCE_RIG_H
#define TESSERA_TESTS_CONFORMANCE_RIG_H

#include "common/testlib.h"
#include "reference.h"

typedef struct rig_dims {
    int64_t batch, tokens, heads, elements;
} rig_dims;

/* Where the elements of a tensor are, in elements. */
typedef struct rig_view {
    int64_t batch, token, head, offset;
} rig_view;

typedef struct rig {
    const test_target *target;
    problem p;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    rig_dims dims[5];  /* by tess_role */
    size_t size[5];    /* bytes of an element */
    void *data[3];     /* Q, K, V, contiguous */
    float *scales[2];  /* of K and V of 8 bits, contiguous */
    uint64_t bytes[5]; /* of the contiguous tensors */
    int refused; /* the forced kernel does not take this problem, or it is not its turn; nothing
                    else is set */
} rig;

/* Whether the instance that a problem needs is one that the target's device compiles, as in
 * test_has_instance. */
int rig_has_instance(const test_target *target, const char *line);

/* Whether a target computes the gradients of a problem, or it is another kernel's turn. Software
 * takes seconds to compile each instance of these kernels, so its own choice has one of the nine,
 * which is enough for what instances share: problems of other types become such of float32. */
int rig_has_gradients(const test_target *target, problem *p);

/* Makes the problem of `line` ready on a target. `edit` (may be NULL) changes the plan's
 * descriptor. Failures fail the test. */
void rig_create(rig *r, const test_target *target, const char *line,
                void (*edit)(tess_plan_desc *desc, void *user), void *user);
void rig_release(rig *r);

typedef struct rig_options {
    const rig_view *views; /* five, by role; NULL: contiguous */
    uint64_t step;         /* jobs a call; 0: all at once */
    int without_lse;       /* no LSE tensor */
    int workspace_byte;    /* what fills the workspace before the run */
    const void *data[3];   /* other contiguous inputs; NULL: the rig's */
} rig_options;

/* Runs and gathers the outputs into contiguous arrays. Bytes between the elements of an output, and
 * guard bytes around outputs and workspace, must stay as they were; the test fails otherwise.
 * `options` may be NULL. */
void rig_run(const rig *r, const rig_options *options, void *o, float *lse);

/* Copies a contiguous array into an image laid out as `view` says, and back. */
void rig_scatter(const rig *r, tess_role role, const rig_view *view, const void *contiguous,
                 void *image);
void rig_gather(const rig *r, tess_role role, const rig_view *view, void *contiguous,
                const void *image);
uint64_t rig_extent(const rig *r, tess_role role, const rig_view *view); /* bytes of the image */

rig_view rig_contiguous(const rig *r, tess_role role);

/* Zeroed memory for outputs, which the test frees. */
void *rig_room(uint64_t bytes);

/* Fails the test if the arrays differ in a bit. */
void rig_same_bits(const char *what, const void *a, const void *b, uint64_t bytes);

/* Zeroed memory for both outputs, and a test of both. */
typedef struct rig_outputs {
    void *o;
    float *lse;
} rig_outputs;
rig_outputs rig_outputs_of(const rig *r);
void rig_outputs_free(rig_outputs *out);
void rig_same_outputs(const char *what, const rig *r, const rig_outputs *a, const rig_outputs *b);

/* A problem, what a plain run of it gives, and room for what another run gives. */
typedef struct rig_pair {
    rig r;
    rig_outputs plain, got;
} rig_pair;

/* Makes the problem of `line` ready and runs it plainly. Returns 0 if the kernel refuses it; then
 * there is nothing to release. */
int rig_pair_create(rig_pair *x, const test_target *target, const char *line);
void rig_pair_release(rig_pair *x);
/* Fails the test unless the other run gave the same bits. */
void rig_pair_same(const char *what, const rig_pair *x);

/* Fails the test unless every row equals the reference: |difference| <= tolerance (1 +
 * |reference|), and the LSE likewise. */
void rig_check(const rig *r, const void *o, const float *lse, double tolerance);
/* rows of that head only */
void rig_check_head(const rig *r, int32_t head, const void *o, const float *lse, double tolerance);

/* How often a test of repeats runs: TESSERA_TEST_REPEATS, or as given here for memory of the host
 * and for other devices, where copies to and fro take most of the time. */
int rig_repeats(const test_target *target, int of_host, int elsewhere);

#endif

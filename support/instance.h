/* SPDX-License-Identifier: Apache-2.0 */
/* A problem made ready on a device: layout, plan, inputs, guarded outputs and workspace; and the
 * check of its result against the reference. */
#ifndef TESSERA_SUPPORT_INSTANCE_H
#define TESSERA_SUPPORT_INSTANCE_H

#include "cache.h"
#include "reference.h"
#include "tensors.h"

/* What instances of one problem have in common whatever runs them: their inputs, and the rows of
 * the reference. Made for the first of them and kept for the next ones; all zero at first. */
typedef struct instance_memo {
    void *inputs[5]; /* Q, K, V, and the scales of K and V */
    uint64_t bytes[5];
    double *rows; /* of the reference, in the order in which they are compared */
    int64_t n_rows, most_rows;
    int64_t wanted; /* rows of a comparison */
} instance_memo;
void instance_memo_clear(instance_memo *memo);

/* K and V of a layer: of each storage group K, then of each V, then their scales likewise. */
typedef struct instance_layer {
    tess_buffer *memory;
    tess_tensor *pools;
} instance_layer;

/* What backward has besides: dO, dLSE and the gradients, in the order of their roles. Host copies
 * are contiguous. O and LSE are what a forward plan of the same problem gave. */
enum { INSTANCE_D_O, INSTANCE_D_Q, INSTANCE_D_K, INSTANCE_D_V, INSTANCE_D_LSE, N_BACKWARD };
typedef struct instance_backward {
    void *host[N_BACKWARD];
    float *before[N_BACKWARD]; /* what a gradient is added to, or NULL; runs once then */
    uint64_t bytes[N_BACKWARD];
    tess_buffer memory[N_BACKWARD];
} instance_backward;

typedef struct instance {
    const problem *problem;
    instance_memo *memo; /* NULL: there is none */
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    void *q, *k, *v, *o; /* host copies, contiguous, in the problem's dtype */
    float *lse;
    float *k_scale, *v_scale; /* where K and V have some */
    uint64_t q_bytes, k_bytes, v_bytes, o_bytes, lse_bytes, k_scale_bytes, v_scale_bytes;
    /* on the device, guard words on both sides of o, lse and workspace */
    tess_buffer dq, dk, dv, d_o, dlse, dwork, dtable, dk_scale, dv_scale;
    tess_run_desc run; /* of the first layer */
    /* Where problem_cached. Without, K and V are one group, in the order of k and v. */
    cache cache;
    instance_layer *layers;
    int n_layers;
    instance_backward backward;
    int host_memory; /* the device reads host memory */
    unsigned flags;  /* INSTANCE_... */
    uint64_t guard;  /* bytes of guard words before and after each guarded part */
    char error[512]; /* why the last function failed; also after a failed instance_create */
} instance;

enum {
    /* fill outputs, workspace and what lies around K and V (between sequences too, unless
     * packed) with NaN */
    INSTANCE_POISON = 1 << 0,
    /* guard words around outputs and workspace, verified by instance_check */
    INSTANCE_GUARDS = 1 << 1,
    /* backward: with a gradient of LSE */
    INSTANCE_WITH_D_LSE = 1 << 2,
};

/* `kernel` may be NULL. Inputs are fill_normal(seed of the problem), streams 1, 2 and 3 for Q, K
 * and V. On failure everything is released and x->error tells why. The problem must outlive the
 * instance. */
tess_status instance_create(instance *x, tess_device *device, const problem *p, const char *kernel,
                            unsigned flags);
/* The same with a memo of that problem. */
tess_status instance_create_again(instance *x, tess_device *device, const problem *p,
                                  const char *kernel, unsigned flags, instance_memo *memo);
/* Runs and waits. device_seconds may be NULL. Several threads may run instances of their own. */
tess_status instance_run(instance *x, double *device_seconds);
/* The same keys once more in memory of their own, for runs that find nothing of them in a cache of
 * the processor. A failure leaves the layers that are there. */
tess_status instance_add_layer(instance *x);
/* Runs a layer, below n_layers, without waiting. */
tess_status instance_launch(instance *x, int layer);
tess_status instance_wait(instance *x);
tess_status instance_fetch(instance *x); /* outputs back into o and lse */
void instance_release(instance *x);

typedef struct instance_verdict {
    int64_t rows;          /* rows compared */
    double nmse, max_rel;  /* f32: over all rows compared */
    double worst, allowed; /* 16-bit: max |out - ref| and the tolerance of the rule */
    double lse_error;      /* max |difference| */
    int pass;
    /* the first failure: sequence, head, row, element, got, wanted; or guard word */
    char what[256];
} instance_verdict;

/* Compares `max_rows` rows (0: all), spread over sequences, heads and rows, first and last
 * included, with the reference; tolerances as docs/testing.md. */
void instance_check(const instance *x, int64_t max_rows, instance_verdict *verdict);

#endif

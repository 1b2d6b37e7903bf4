/* SPDX-License-Identifier: Apache-2.0 */
#include "backward.h"

#include <string.h>

#include "shapes.h"

enum {
    ITEMS = 32,
    STRIP_BYTES = TESS_STRIP_ROWS * 2 * sizeof(float), /* LSE and Delta */
    ALL_STAGES = TESS_STAGE_DELTA | TESS_STAGE_ROWS | TESS_STAGE_COLUMNS
};

/* kernels/backward_state.h: two slices or items for sums, and weights; then the state of rows and
 * of keys. */
#define SHARED(tile) (16 * 512 + 4 * (tile)*ITEMS + 4 * (7 * (tile) + 5 * ITEMS))
#define SHAPE(dims)                                                    \
    {                                                                  \
        dims, TESS_BACKWARD_TILE_##dims, TESS_BACKWARD_THREADS_##dims, \
            SHARED(TESS_BACKWARD_TILE_##dims)                          \
    }

const tess_backward_shape tess_backward_shapes[TESS_PORTABLE_BUCKETS] = {SHAPE(64), SHAPE(128),
                                                                         SHAPE(256)};

/* Each thread has whole entries of the tile and whole groups of 4 dims, and 512 vectors hold both
 * slices as well as items for sums. */
#define FITS(dims)                                                                       \
    (SHARED(TESS_BACKWARD_TILE_##dims) <= 16384 && TESS_BACKWARD_TILE_##dims <= ITEMS && \
     TESS_BACKWARD_TILE_##dims * ITEMS / 4 % TESS_BACKWARD_THREADS_##dims == 0)
_Static_assert(FITS(64) && FITS(128) && FITS(256), "the shapes of backward fit 16 KiB");

const tess_backward_shape *tess_backward_find(int32_t head_dim) {
    const tess_backward_shape *shape = tess_backward_shapes;
    while (head_dim > (int32_t)shape->head_dim) shape++;
    return shape;
}

void tess_backward_describe(const tess_backward_shape *shape, tess_kernel *kernel) {
    static const tess_kernel_costs none = {0}; /* keys are never split */
    tess_portable_tiles(shape->tile, 1, &none, kernel);
    kernel->stages = ALL_STAGES;
    kernel->tile_keys = shape->tile;
    kernel->step_rows = ITEMS;
    kernel->strip_rows = TESS_STRIP_ROWS;
    kernel->strip_bytes = STRIP_BYTES;
}

uint32_t tess_backward_threads(const tess_backward_shape *shape, uint32_t stage) {
    return stage == TESS_STAGE_DELTA ? TESS_STRIP_THREADS : shape->threads;
}

/* ------------------------------------------------------------------ tensors by stage */

typedef struct place {
    uint32_t stages, role, as; /* of the stages, and the place of attention's that it takes */
    const char *name;
} place;

enum {
    PASSES = TESS_STAGE_ROWS | TESS_STAGE_COLUMNS,
    WRITES_D_Q = TESS_STAGE_ROWS | TESS_STAGE_FINISH /* a kernel has one of them */
};

static const place places[] = {
    {TESS_STAGE_DELTA, TESS_ROLE_O, TESS_ROLE_Q, "o"},
    {TESS_STAGE_DELTA, TESS_ROLE_LSE, TESS_ROLE_LSE, "lse"},
    {TESS_STAGE_DELTA, TESS_ROLE_D_LSE, TESS_ROLE_K_SCALE, "d_lse"},
    {ALL_STAGES, TESS_ROLE_D_O, TESS_ROLE_O, "d_o"},
    {PASSES, TESS_ROLE_Q, TESS_ROLE_Q, "q"},
    {PASSES, TESS_ROLE_K, TESS_ROLE_K, "k"},
    {PASSES, TESS_ROLE_V, TESS_ROLE_V, "v"},
    {WRITES_D_Q, TESS_ROLE_D_Q, TESS_ROLE_LSE, "d_q"},
    {TESS_STAGE_COLUMNS, TESS_ROLE_D_K, TESS_ROLE_LSE, "d_k"},
    {TESS_STAGE_COLUMNS, TESS_ROLE_D_V, TESS_ROLE_V_SCALE, "d_v"},
};
enum { PLACES = sizeof places / sizeof *places };

static const place *place_of(uint32_t stage, uint32_t as) {
    for (size_t n = 0; n < PLACES; n++)
        if (places[n].stages & stage && places[n].as == as) return &places[n];
    return NULL;
}

const char *tess_portable_name(const tess_launch *l, const tess_portable_tensor *t) {
    const place *p = l->op == TESS_OP_BACKWARD ? place_of(l->stage, t->role) : NULL;
    if (p) return p->name;
    return l->op == TESS_OP_MERGE && t->role == TESS_ROLE_Q ? "o_parts" : t->name;
}

static int is_float32(const tess_launch *l) {
    const uint32_t flag = l->stage & WRITES_D_Q ? TESS_PLAN_DQ_F32 : TESS_PLAN_DKV_F32;
    return l->dtype == TESS_F32 || l->gradients & flag;
}

uint32_t tess_backward_item(const tess_launch *l, const tess_portable_tensor *t) {
    const place *p = place_of(l->stage, t->role);
    const uint32_t role = p ? p->role : t->role;
    if (role == TESS_ROLE_D_Q || role == TESS_ROLE_D_K || role == TESS_ROLE_D_V)
        return is_float32(l) ? sizeof(float) : tess_portable_element(l->dtype);
    return t->element ? t->element : tess_portable_element(l->dtype);
}

void tess_backward_stage(const tess_launch *l, tess_launch *as) {
    *as = *l;
    memset(as->tensor, 0, sizeof as->tensor);
    memset(as->bytes, 0, sizeof as->bytes);
    for (size_t n = 0; n < PLACES; n++) {
        if (!(places[n].stages & l->stage)) continue;
        as->tensor[places[n].as] = l->tensor[places[n].role];
        as->bytes[places[n].as] = l->bytes[places[n].role];
    }
    as->kv_batch = 0; /* K and V have a batch dimension where Q has one */
    as->partials_at = l->strips_at;
}

static int is_given(const tess_launch *l, uint32_t as) {
    return l->tensor[as].buffer.kind != TESS_BUFFER_NONE;
}

static uint32_t flags_of(const tess_launch *l) {
    const uint32_t adds = l->stage & WRITES_D_Q ? TESS_PLAN_DQ_ADD : TESS_PLAN_DKV_ADD;
    uint32_t flags =
        (is_float32(l) ? TESS_ARGS_F32 : 0) | (l->gradients & adds ? TESS_ARGS_ADD : 0);
    if (l->stage == TESS_STAGE_DELTA) flags |= is_given(l, TESS_ROLE_K_SCALE) ? TESS_ARGS_D_LSE : 0;
    if (l->stage == TESS_STAGE_COLUMNS)
        flags |= (is_given(l, TESS_ROLE_LSE) ? TESS_ARGS_D_K : 0) |
                 (is_given(l, TESS_ROLE_V_SCALE) ? TESS_ARGS_D_V : 0);
    return flags;
}

void tess_backward_args(const tess_launch *l, uint64_t skip, uint64_t items, int base_in_handle,
                        tess_args *a) {
    const tess_tables *t = l->tables;
    uint64_t at = t->strips_at;
    size_t record = sizeof(tess_strip);
    if (l->stage == TESS_STAGE_ROWS) {
        at = t->jobs_at;
        record = sizeof(tess_job);
    } else if (l->stage == TESS_STAGE_COLUMNS) {
        at = t->columns_at;
        record = sizeof(tess_column);
    }
    tess_portable_args(l, base_in_handle, at, l->first_job + skip, record, items, a);
    a->flags = flags_of(l);
    a->pages = l->n_strips;
    a->page = l->n_heads;
    a->slots_at = (tess_arg_u32)(t->first_strips_at / 4);
    a->kv_heads_at = (tess_arg_u32)(t->segments_at / 4);
}

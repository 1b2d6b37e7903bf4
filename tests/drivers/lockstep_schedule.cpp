/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warp that schedules the columns of Hopper's backward kernel, on the host. Here its steps are
 * taken as late as the kernel's other warps may take them, so that descriptions which are written
 * over too early show.
 */
#include "lockstep_schedule.h"

#include "lockstep.h"

/* In the place of ptx.cuh. */
#define TESS_CUDA_SM90_PTX_CUH
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline uint32_t atomicAdd(uint32_t *at, uint32_t x) {
    const uint32_t before = *at;
    *at += x;
    return before;
}
static void arrive(const uint64_t *barrier);
namespace tess {
static inline void mbarrier_arrive(uint64_t *barrier) { arrive(barrier); }
static inline void mbarrier_wait(uint64_t *, uint32_t) {}
} // namespace tess

#include "kernels/sm90/schedule_backward.cuh"

namespace {

using namespace tess;

/* How far the consumers may be behind the step that is being described. */
enum { BEHIND = STEPS_AHEAD + 1 + STEP_STAGES };

template <typename Shape> struct listener {
    alignas(1024) backward_memory<Shape> m;
    uint32_t described, taken, columns; /* how many */
    bool chained;                       /* the step before says that this one follows it */
    void (*visit)(void *, const lockstep_step *);
    void *context;

    void take() {
        const step_info *x = &m.steps[taken % STEPS];
        const column_info *c = &m.columns[x->column];
        const bool both = x->kind == STEP_FULL || x->kind == STEP_MASKED;
        lockstep_step y;
        y.first = (x->ends & STEP_FIRST) != 0;
        y.last = (x->ends & STEP_LAST) != 0;
        if (x->column != columns % COLUMNS) lockstep::fail("a step of another column");
        if (!y.first && chained != both) lockstep::fail("scores in advance where none are used");
        if (y.last && (x->ends & STEP_CHAINED)) lockstep::fail("the last step is chained");
        if (x->kind != STEP_EMPTY && !(c->loads && x->has_strip))
            lockstep::fail("products of a step without K and V, or without a strip");
        chained = x->ends & STEP_CHAINED;
        y.column = columns;
        columns += y.last;
        y.empty = x->kind == STEP_EMPTY;
        y.has_strip = x->has_strip;
        y.strip = x->strip;
        y.before = c->before;
        y.wait = x->wait;
        y.leave = x->leave;
        y.head = x->head;
        y.batch = x->batch;
        y.token = x->token;
        y.position = x->position;
        for (int k = 0; k < COLUMN_KEYS; k++) keep(&y, x, c, k);
        visit(context, &y);
    }
    /* As find_kept of mainloop_backward.cuh, which a step that is full does not ask. */
    void keep(lockstep_step *y, const step_info *x, const column_info *c, int k) const {
        y->from[k] = y->to[k] = 0;
        if (x->kind == STEP_EMPTY || (x->kind == STEP_HALF && k / HALF_KEYS != x->half)) return;
        const segment_mask *mask = &m.masks[x->mask];
        const uint32_t block = k / block_size;
        key_rows rows = {INT32_MAX, INT32_MIN};
        if (x->kind == STEP_FULL)
            rows = {INT32_MIN, INT32_MAX};
        else if (c->token[k] != NO_KEY && block - mask->first < mask->blocks &&
                 (x->bits >> (block & 31) & 1))
            rows.find(*mask, c->token[k], block_size);
        const int64_t first = max((int64_t)rows.low, (int64_t)x->position + x->row_begin),
                      end = min((int64_t)rows.high + 1, (int64_t)x->position + x->row_end);
        if (first >= end) return;
        y->from[k] = (int32_t)(first - x->position);
        y->to[k] = (int32_t)(end - x->position);
        if (x->kind == STEP_PARTIAL && (k / 16 < x->begin16 || k / 16 >= x->end16))
            lockstep::fail("a piece of a step that its units of 16 keys leave out");
    }
    uint32_t block_size;
};

void *listening;
void (*arrived)(const uint64_t *);

template <typename Shape> void on_arrival(const uint64_t *barrier) {
    auto *x = (listener<Shape> *)listening;
    if (barrier < x->m.step_full || barrier >= x->m.step_full + STEPS) return;
    if (barrier != &x->m.step_full[x->described % STEPS]) lockstep::fail("steps out of order");
    const bool stop = x->m.steps[x->described % STEPS].kind == STEP_STOP;
    x->described++;
    for (; x->taken + (stop ? 1 : BEHIND) < x->described; x->taken++) x->take();
}

template <typename Shape>
void run(const tess_sm90_backward_args *args,
         void (*visit)(void *context, const lockstep_step *step), void *context) {
    static listener<Shape> x;
    tess_sm90_backward_args a = *args;
    uint32_t counter = 0;
    a.counter = (uint64_t)(uintptr_t)&counter;
    static unsigned runs;
    memset((void *)&x, runs++ % 2 ? 0xa5 : 0, sizeof x);
    x.described = x.taken = x.columns = 0;
    x.chained = false;
    x.visit = visit;
    x.context = context;
    x.block_size = a.block;
    listening = &x;
    arrived = on_arrival<Shape>;
    lockstep::run(1, 32, 0, 0, [&] {
        scheduler<Shape> own;
        own.m = &x.m;
        own.a = &a;
        own.lane = (int)lockstep::current->index;
        own.run();
    });
    if (x.columns != a.items) lockstep::fail("columns without steps");
}

} // namespace

static void arrive(const uint64_t *barrier) { arrived(barrier); }

extern "C" void lockstep_schedule(const tess_sm90_backward_args *args, int head_dim,
                                  void (*visit)(void *context, const lockstep_step *step),
                                  void *context) {
#define RUN(D, ROWS) \
    if (head_dim == D) run<backward_shape<D, ROWS>>(args, visit, context);
    TESS_SM90_BACKWARD_INSTANCES(RUN)
}

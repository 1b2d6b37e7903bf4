/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one launch, spread over the device's thread pool. Each worker takes the next job from
 * a shared counter (jobs come longest first), or from one of its own, and has its own slice of the
 * workspace. What a job computes depends on nothing but the job, so bits are equal for every number
 * of threads.
 */
#include "cpu.h"

#include <stdatomic.h>
#include <time.h>

#include "fp_mode.h"
#include "kernels/chunk.h"
#include "kernels/turns.h"

/* The jobs that a worker takes first. Homes share lines of the caches, as all workers would share
 * one counter: on lines of their own they would take too much of the caller's stack. */
typedef struct home {
    atomic_uint_fast64_t next;
    uint64_t end;
} home;

typedef struct work {
    const tess_launch *launch;
    const cpu_row *row;
    char *scratch;
    size_t thread_bytes;
    atomic_uint_fast64_t next;
    uint64_t end;
    uint32_t at_once; /* most jobs that take turns on a worker */
    int takes_turns;  /* several workers add to dQ */
    uint32_t homes;   /* 1: all take jobs from `next` */
    home home[CPU_HOMES];
} work;

/* Whether two jobs are parts of one tile. */
static int same_tile(const tess_job *a, const tess_job *b) {
    return a->sequence == b->sequence && a->head == b->head && a->row == b->row;
}

/* Whether b reads the keys that a reads, of the next kv head. */
static int same_keys(const tess_job *a, const tess_job *b) {
    return a->sequence == b->sequence && a->head + a->heads == b->head && a->heads == b->heads &&
           a->row == b->row && a->rows == b->rows && a->cls == b->cls &&
           a->left_offset == b->left_offset && a->left_count == b->left_count &&
           a->right_offset == b->right_offset && a->right_count == b->right_count &&
           a->interval_start == b->interval_start && a->interval_blocks == b->interval_blocks;
}

/*
 * The jobs that take turns with job n of [first, end), which is the first of them: as many as are
 * returned, *apart jobs from each other. 0 if another job is the first. Such jobs are heads of one
 * sequence, whose keys lie side by side. The parts of a tile follow each other, so the same part of
 * the next head is as far away as there are parts. Both ends of a link look at the same jobs; so a
 * job is taken once, whichever worker comes to it. Those of tiles with more than MOST_PARTS parts
 * are taken alone: looking for their neighbours would take longer than they do.
 */
enum { MOST_PARTS = 256 };

static uint32_t taking_turns(const work *w, uint64_t first, uint64_t n, uint64_t *apart) {
    const tess_job *jobs = w->launch->tables->jobs, *job = &jobs[n];
    uint64_t begin = n, end = n + 1;
    *apart = 1;
    if (w->at_once < 2 || (uint32_t)job->rows * job->heads > CPU_FEW_ROWS) return 1;
    while (begin > first && n - begin <= MOST_PARTS && same_tile(&jobs[begin - 1], job)) begin--;
    while (end < w->end && end - n <= MOST_PARTS && same_tile(&jobs[end], job)) end++;
    const uint64_t parts = end - begin;
    if (parts > MOST_PARTS) return 1;
    if (job->head / job->heads % w->at_once != 0 && begin - first >= parts &&
        same_tile(&jobs[begin - parts], &jobs[begin - 1]) &&
        (begin - first == parts || !same_tile(&jobs[begin - parts - 1], &jobs[begin - 1])) &&
        same_keys(job - parts, job))
        return 0;
    uint32_t count = 1;
    *apart = parts;
    for (; count < w->at_once; count++, job += parts, end += parts) {
        if ((job->head / job->heads + 1) % w->at_once == 0 || w->end - end < parts ||
            !same_tile(&jobs[end], &jobs[end + parts - 1]) ||
            (w->end - end > parts && same_tile(&jobs[end], &jobs[end + parts])) ||
            !same_keys(job, job + parts))
            break;
    }
    return count;
}

/* Takes the next job: of the worker's home, and when that is empty, of the homes behind it. *left
 * is the number of homes that the worker has not left. 0 if there is no job. */
static int take_job(work *w, uint32_t worker, uint32_t *left, uint64_t *n) {
    if (w->homes == 1) {
        *n = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        return *n < w->end;
    }
    for (; *left > 0; --*left) {
        home *h = &w->home[(worker + w->homes - *left) % w->homes];
        *n = atomic_fetch_add_explicit(&h->next, 1, memory_order_relaxed);
        if (*n < h->end) return 1;
    }
    return 0;
}

static void do_jobs(void *context, uint32_t worker) {
    work *w = context;
    char *scratch = w->scratch + worker * w->thread_bytes;
    uint32_t left = w->homes;
    const cpu_fp_mode before = cpu_fp_enter();
    if (w->row->enter) w->row->enter();
    for (uint64_t n, apart; take_job(w, worker, &left, &n);) {
        const uint32_t count = taking_turns(w, w->launch->first_job, n, &apart);
        if (count > 0) w->row->jobs(w->launch, &w->launch->tables->jobs[n], count, apart, scratch);
    }
    if (w->row->leave) w->row->leave();
    cpu_fp_leave(before);
}

/* The same for a stage of backward. */
static void do_stage(void *context, uint32_t worker) {
    work *w = context;
    const cpu_fp_mode before = cpu_fp_enter();
    char *own = w->scratch + worker * w->thread_bytes;
    cpu_turn *turn = w->takes_turns ? (cpu_turn *)(void *)own : NULL;
    if (w->row->enter) w->row->enter();
    for (uint64_t n;;) {
        if (!turn) n = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        if (turn ? !tess_cpu_turn_take(turn, w->launch, &w->next, w->end, &n) : n >= w->end) break;
        w->row->job(w->launch, n, own, turn);
    }
    if (w->row->leave) w->row->leave();
    cpu_fp_leave(before);
}

/* Calls `item` for what is left of the launch, of which a worker takes `at_once` at a time. */
static void do_each(work *w, uint64_t at_once, void (*item)(const tess_launch *, uint64_t)) {
    const cpu_fp_mode before = cpu_fp_enter();
    for (;;) {
        const uint64_t n = atomic_fetch_add_explicit(&w->next, at_once, memory_order_relaxed);
        for (uint64_t i = n; i < w->end && i < n + at_once; i++) item(w->launch, i);
        if (n >= w->end) break;
    }
    cpu_fp_leave(before);
}

static void merge(const tess_launch *launch, uint64_t n) {
    tess_cpu_merge(launch, &launch->tables->merges[n]);
}

static void do_merges(void *context, uint32_t worker) {
    (void)worker;
    do_each(context, 1, merge);
}

/* Rows are short: a worker takes some at a time. */
enum { ITEMS_AT_ONCE = 16 };

static void do_items(void *context, uint32_t worker) {
    work *w = context;
    (void)worker;
    do_each(w, ITEMS_AT_ONCE, w->row->item);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How many of the launch's `count` items from `first` on there are, if those of a step end at
 * `end`. */
static uint64_t present(uint64_t first, uint64_t count, uint64_t end) {
    const uint64_t behind = end > first ? end - first : 0;
    return count < behind ? count : behind;
}

/* Workers for so many things to do, one at a time. */
static uint32_t at_most(uint64_t things, uint32_t threads) {
    return things < threads ? (uint32_t)things : threads;
}

/* How many jobs may take turns: as many as leave the threads about equal work. */
static uint32_t jobs_at_once(uint64_t n_jobs, uint32_t threads) {
    const uint64_t alone = (n_jobs + threads - 1) / threads;
    uint32_t count = CPU_JOBS_AT_ONCE;
    for (; count > 1; count /= 2) {
        const uint64_t turns = (n_jobs + count - 1) / count;
        if ((turns + threads - 1) / threads * count * 4 <= alone * 5) break;
    }
    return count;
}

/* Whether merging takes less than waking the threads once more would. */
static int merges_are_few(const tess_launch *launch, uint64_t n_merges) {
    enum { FEW_PARTIAL_ROWS = 512 };
    uint64_t rows = 0;
    for (uint64_t n = 0; n < n_merges && rows <= FEW_PARTIAL_ROWS; n++) {
        const tess_merge *m = &launch->tables->merges[launch->first_merge + n];
        rows += (uint64_t)m->rows * m->heads * m->parts;
    }
    return rows <= FEW_PARTIAL_ROWS;
}

/* A thread takes so long to begin a job, and reads so fast from the second-level cache. */
enum { JOB_NS = 300, BYTES_PER_NS = 40 };

/* What the jobs take one thread, at the speed of the second-level cache or of the products, or
 * something above `limit`. */
static double work_ns(const tess_launch *launch, uint32_t rate, uint64_t n_jobs, double limit) {
    /* The softmax takes a nanosecond for a row and a key in short jobs, on tiles too. */
    enum { SOFTMAX_NS = 1 };
    double ns = (double)n_jobs * JOB_NS;
    for (uint64_t n = 0; n < n_jobs && ns < limit; n++) {
        const tess_job *job = &launch->tables->jobs[launch->first_job + n];
        const double keys = (double)tess_key_blocks(job) * launch->block,
                     pairs = (double)job->rows * job->heads * keys,
                     flop = 4.0 * pairs * launch->head_dim,
                     bytes = 2.0 * cpu_element_size(launch->kv_dtype) * keys * launch->head_dim;
        ns += flop / rate + pairs * SOFTMAX_NS + bytes / BYTES_PER_NS;
    }
    return ns;
}

/* How many workers the launch is worth: all, or the caller alone where its work takes less than
 * `worth_ns`. A launch that looks as small has few jobs, so each of them is counted. */
uint32_t tess_cpu_workers(const tess_launch *launch, uint32_t rate, uint64_t n_jobs,
                          uint32_t threads, uint32_t worth_ns) {
    return work_ns(launch, rate, n_jobs, worth_ns) < worth_ns ? 1 : at_most(n_jobs, threads);
}

static uint64_t job_pairs(const tess_job *job) {
    return (uint64_t)tess_key_blocks(job) * job->rows * job->heads;
}

/*
 * Divides jobs among the workers' homes: those of worker n end before job end[n] of the launch.
 * Returns the number of homes. It is 1 where workers share all jobs: where jobs differ in length,
 * the longest come first, which leaves the least to wait for at the end.
 *
 * A worker that takes the same jobs in launch after launch finds their K and V in its own caches.
 * In those of the other core they are twice as far away. This counts where the work is little. The
 * other workers wake later than the caller, about a third of what makes waking worth it; so the
 * caller has more jobs. A worker without jobs takes some of the others'.
 */
uint32_t tess_cpu_homes(const tess_launch *launch, uint32_t rate, uint64_t n_jobs, uint32_t workers,
                        uint32_t worth_ns, uint64_t *end) {
    enum { LITTLE = 16 };
    const double little = (double)LITTLE * worth_ns;
    if (workers < 2 || workers > CPU_HOMES) return 1;
    const tess_job *jobs = launch->tables->jobs + launch->first_job;
    if (job_pairs(&jobs[0]) * 4 > job_pairs(&jobs[n_jobs - 1]) * 5) return 1;
    const double ns = work_ns(launch, rate, n_jobs, little);
    if (ns >= little) return 1;
    const double late = worth_ns / 3.0 / ns, share = (1 - (late < 1 ? late : 1)) / workers;
    for (uint32_t n = 0; n < workers; n++)
        end[n] = n_jobs - (uint64_t)((double)n_jobs * share * (workers - 1 - n) + 0.5);
    return workers;
}

/* Gives each worker its home. Jobs that take turns stay together, so that a worker does not take
 * one that counts as another's. */
static void move_in(work *w, uint64_t n_jobs, uint32_t workers, uint32_t worth_ns) {
    const uint64_t first = w->launch->first_job;
    uint64_t end[CPU_HOMES], begin = 0, apart;
    w->homes = tess_cpu_homes(w->launch, w->row->rate, n_jobs, workers, worth_ns, end);
    for (uint32_t n = 0; w->homes > 1 && n < w->homes; begin = end[n++]) {
        for (uint32_t back = 1; back < w->at_once && end[n] > begin && end[n] < n_jobs; back++)
            if (taking_turns(w, first, first + end[n], &apart) == 0) end[n]--;
        atomic_init(&w->home[n].next, first + begin);
        w->home[n].end = first + end[n];
    }
}

static void run_attention(const cpu_device *d, const tess_launch *launch, work *w) {
    const tess_step_head *step = launch->tables->step;
    uint64_t n_jobs = launch->n_jobs, n_merges = launch->n_merges;
    if (step) {
        n_jobs = present(launch->first_job, n_jobs, launch->tables->step_ends[launch->storage]);
        n_merges = present(launch->first_merge, n_merges, step->n_merges);
        w->end = launch->first_job + n_jobs;
    }
    w->thread_bytes = cpu_thread_bytes(w->row, launch->head_dim);
    if (n_jobs) {
        const uint32_t worth_ns = tess_cpu_pool_worth(d->pool),
                       workers =
                           tess_cpu_workers(launch, w->row->rate, n_jobs, d->threads, worth_ns);
        w->at_once = jobs_at_once(n_jobs, workers);
        move_in(w, n_jobs, workers, worth_ns);
        tess_cpu_pool_run(d->pool, do_jobs, w, workers);
    }
    if (n_merges == 0) return;
    atomic_init(&w->next, launch->first_merge);
    w->end = launch->first_merge + n_merges;
    if (merges_are_few(launch, n_merges))
        do_merges(w, 0);
    else
        tess_cpu_pool_run(d->pool, do_merges, w, at_most(n_merges, d->threads));
}

/* What a column takes, in nanoseconds: products of its keys with the rows that may keep them, at
 * twice the rate that is told of a slow core, and packing and storing its keys and rows. */
static double column_ns(const tess_launch *l, const tess_column *column, uint32_t rate) {
    enum { HALF_PANEL = 16, PANEL = 32, ELEMENTS_PER_NS = 3 };
    const tess_tables *tables = l->tables;
    const double keys = (column->keys + HALF_PANEL - 1) / HALF_PANEL * HALF_PANEL;
    double rows = 0, pairs = 0;
    for (uint32_t g = 0; g < column->segments; g++) {
        const tess_segment *segment = &tables->segments[column->segment + g];
        const uint32_t flags = tables->classes[segment->cls].flags,
                       blocks = segment->step || flags & TESS_CLASS_BITS;
        const double own = (double)segment->rows * (blocks ? l->block : 1);
        pairs += own * keys * segment->heads;
        if (flags & TESS_CLASS_CAUSAL && keys > PANEL) /* panels above the diagonal */
            pairs -= (own < keys ? own : keys) * (keys - PANEL) / 2 * segment->heads;
        rows += own * segment->heads;
    }
    return JOB_NS + 10.0 * pairs * l->head_dim / (2.0 * rate) +
           (2 * keys + rows) * l->head_dim / ELEMENTS_PER_NS;
}

/* The same for a stage of backward. A strip reads O and dO of its rows, or dQ's accumulators. The
 * tensors of so small a run lie in the caches of its caller's core, from where the others have to
 * fetch them, so waking is worth it later. */
uint32_t tess_cpu_stage_workers(const tess_launch *l, uint32_t rate, uint32_t threads,
                                uint32_t worth_ns) {
    const double worth = 1.75 * worth_ns;
    double ns = 0;
    for (uint64_t n = 0; n < l->n_jobs && ns < worth; n++)
        ns += l->stage == TESS_STAGE_COLUMNS
                  ? column_ns(l, &l->tables->columns[l->first_job + n], rate)
                  : JOB_NS + 8.0 * CPU_STRIP_ROWS * l->n_heads * l->head_dim / BYTES_PER_NS;
    return ns < worth ? 1 : at_most(l->n_jobs, threads);
}

static void run_stage(const cpu_device *d, const tess_launch *launch, work *w) {
    const uint32_t workers =
        tess_cpu_stage_workers(launch, w->row->rate, d->threads, tess_cpu_pool_worth(d->pool));
    w->thread_bytes = cpu_thread_bytes(w->row, launch->head_dim);
    w->takes_turns = launch->stage == TESS_STAGE_COLUMNS && workers > 1 &&
                     launch->tensor[TESS_ROLE_D_Q].buffer.kind != TESS_BUFFER_NONE;
    if (w->takes_turns) tess_cpu_turns_begin(w->scratch, w->thread_bytes, workers);
    tess_cpu_pool_run(d->pool, do_stage, w, workers);
}

tess_status tess_cpu_launch(void *device, const tess_launch *launch) {
    cpu_device *d = device;
    if (launch->stream.kind != TESS_STREAM_DEFAULT)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "stream.kind: the CPU has no streams but the default one");
    const double start = launch->seconds ? seconds() : 0;
    work w;
    w.launch = launch;
    w.row = launch->kernel->impl;
    atomic_init(&w.next, launch->first_job);
    w.end = launch->first_job + launch->n_jobs;
    w.scratch = (char *)(uintptr_t)(launch->workspace.handle + launch->workspace.offset);
    if (w.row->job) {
        run_stage(d, launch, &w);
    } else if (w.row->item) {
        const uint64_t shares = (launch->n_jobs + ITEMS_AT_ONCE - 1) / ITEMS_AT_ONCE;
        tess_cpu_pool_run(d->pool, do_items, &w, at_most(shares, d->threads));
    } else
        run_attention(d, launch, &w);
    if (launch->seconds) *launch->seconds = seconds() - start;
    return TESS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every problem of the conformance list, on every device and every kernel found, against the fp64
 * reference.
 *
 *   conformance [--shard I/N] [--device BACKEND] [--every N] [--random COUNT] [--seed S]
 *               [--masks FOLDER] [--line "k=v ..."] [--list] [--bits FILE] [--backward]
 *               [--any-order] [--own] [--repeats COUNT]
 *
 * --masks names the folder that block masks are written to, which must exist. Without it they lie
 * in a temporary one, which stays after a failure, since problems are reproduced with them.
 * --device BACKEND/KERNEL takes one kernel alone, and the end tells how many problems it took.
 * --repeats runs each forward problem that often again, and compares bits.
 * --own leaves each device its own choice of a kernel, or that of TESSERA_KERNEL, and forces none.
 * --backward computes the gradients of each problem that has no KV cache instead. With --any-order
 * their sums may be added in any order (determinism 1), where the problem allows that.
 * --bits compares nothing and writes a line for each result: the kernel, a hash of O and LSE, and
 * the problem. Two such files tell whether two libraries give the same bits (same_bits.sh).
 *
 * TESSERA_REQUIRE (comma list of backends) turns a missing one into a failure; TESSERA_TEST_FULL=1
 * compares many more rows of large problems; TESSERA_RANDOM_PROBLEMS overrides --random.
 */
#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/testlib.h"
#include "instance.h"
#include "list.h"

/* What a device or kernel is known to do wrong, and why that is so. An entry whose problems pass is
 * out of date and fails the test. */
typedef struct exception {
    const char *target; /* backend, or backend/kernel */
    const char *words;  /* part of the problem's line */
    const char *reason;
} exception;
static const exception exceptions[] = {
    {NULL, NULL, NULL},
};

typedef struct one_case {
    const char *line;
    test_target *target;
    double most_flops; /* more are a mistake of the list; 0: no limit */
    int repeats;       /* runs after the first one, whose bits must be the same */
    int *accepted;     /* of the target: how many problems its kernel took */
    FILE *bits;        /* NULL: compare with the reference */
    int backward, any_order;
    int must_take; /* of the last case of a kernel: it fails if that took nothing */
} one_case;

/* Of the problem that ran last: all targets take a problem before any takes the next one. */
static instance_memo memo;
static const char *memo_line;

static instance_memo *memo_of(const char *line) {
    if (line != memo_line) instance_memo_clear(&memo);
    memo_line = line;
    return &memo;
}

static const exception *exception_for(const test_target *target, const char *line) {
    for (const exception *e = exceptions; e->target; e++)
        if ((strcmp(e->target, target->backend) == 0 || strcmp(e->target, target->kernel) == 0) &&
            strstr(line, e->words))
            return e;
    return NULL;
}

/* Rows to compare: all of a small problem; of a large one as many as the reference does in a
 * fraction of a second. The plain loop in a 16-bit type rounds after every operation, which costs
 * about six times as much. */
static int64_t rows_to_check(const instance *x, const problem *p) {
    const double budget = test_full() ? 6e8 : 5e7;
    const double rows = (double)problem_q_tokens(p) * p->heads;
    if (rows <= 0) return 0;
    const double row =
        (double)x->info.kept_pairs / rows * p->head_dim * (p->dtype == TESS_F32 ? 3 : 18) +
        8 * (double)problem_max_kv(p) + 50;
    if (row * rows <= budget) return 0;
    return budget / row < 48 ? 48 : (int64_t)(budget / row);
}

/* FNV-1a, 64 bits. */
static uint64_t hash_more(uint64_t hash, const void *data, uint64_t bytes) {
    for (uint64_t n = 0; n < bytes; n++)
        hash = (hash ^ ((const unsigned char *)data)[n]) * 0x100000001b3ull;
    return hash;
}

static void write_bits(const one_case *c, const instance *x) {
    uint64_t hash = hash_more(0xcbf29ce484222325ull, x->o, x->o_bytes);
    hash = hash_more(hash, x->lse, x->lse_bytes);
    for (int n = INSTANCE_D_Q; n <= INSTANCE_D_V; n++)
        hash = hash_more(hash, x->backward.host[n], x->backward.bytes[n]);
    fprintf(c->bits, "%s %016llx %s\n", x->info.kernel, (unsigned long long)hash, c->line);
}

static void reproduce(const one_case *c, const problem *p) {
    char line[LIST_LINE];
    const int n = problem_format(p, line, sizeof line);
    print_error("problem: %s\n", n > 0 && n < (int)sizeof line ? line : c->line);
    print_error("reproduce: TESSERA_BACKEND=%s%s%s tessera bench %s\n", c->target->id,
                c->target->kernel[0] ? " TESSERA_KERNEL=" : "", c->target->kernel,
                n > 0 && n < (int)sizeof line ? line : c->line);
}

/* Repeated runs. The outputs of a batch of them lie one behind the other, each in a slot, so that a
 * batch needs two copies: processes that share a GPU wait for it whenever they copy or run. */
enum { BATCH = 10, SLOT_ALIGN = 256 };

typedef struct repeats {
    uint64_t lse_at, slot;         /* bytes; O begins a slot */
    unsigned char *image, *wanted; /* of a batch; of a slot, where nothing is written NaN */
    tess_buffer outputs;
} repeats;

static tess_buffer part_of(const tess_buffer *whole, uint64_t from) {
    tess_buffer part = *whole;
    part.offset += from;
    return part;
}

/* Runs a batch and says which run, from 0 on, has other bits; `count` where none has. */
static tess_status run_batch(repeats *r, instance *x, int count, int *other) {
    const uint64_t bytes = (uint64_t)count * r->slot;
    memset(r->image, 0xff, bytes);
    tess_status status = tess_copy(x->device, r->outputs, tess_host_buffer(r->image, bytes), bytes);
    for (int n = 0; n < count && status == TESS_OK; n++) {
        const uint64_t at = (uint64_t)n * r->slot;
        x->run.o.buffer = part_of(&r->outputs, at);
        if (x->lse_bytes) x->run.lse.buffer = part_of(&r->outputs, at + r->lse_at);
        status = instance_run(x, NULL);
    }
    if (status == TESS_OK)
        status = tess_copy(x->device, tess_host_buffer(r->image, bytes), r->outputs, bytes);
    for (*other = 0; *other < count; ++*other)
        if (memcmp(r->image + (uint64_t)*other * r->slot, r->wanted, r->slot) != 0) break;
    return status;
}

static tess_status repeat(const one_case *c, instance *x, instance_verdict *verdict) {
    if (!c->repeats || c->backward || !verdict->pass) return TESS_OK;
    repeats r = {.lse_at = (x->o_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN};
    r.slot = r.lse_at + (x->lse_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    if (r.slot == 0) return TESS_OK;
    const tess_buffer o = x->run.o.buffer, lse = x->run.lse.buffer;
    r.image = malloc(BATCH * r.slot);
    r.wanted = malloc(r.slot);
    if (!r.image || !r.wanted) exit(1);
    memset(r.wanted, 0xff, r.slot);
    if (x->o_bytes) memcpy(r.wanted, x->o, x->o_bytes);
    if (x->lse_bytes) memcpy(r.wanted + r.lse_at, x->lse, x->lse_bytes);
    tess_status status = tess_alloc(x->device, BATCH * r.slot, &r.outputs);
    for (int n = 0; n < c->repeats && status == TESS_OK && verdict->pass; n += BATCH) {
        const int left = c->repeats - n, count = left < BATCH ? left : BATCH;
        int other;
        status = run_batch(&r, x, count, &other);
        verdict->pass = status != TESS_OK || other == count;
        if (!verdict->pass)
            snprintf(verdict->what, sizeof verdict->what, "repeat %d has other bits",
                     n + other + 1);
    }
    x->run.o.buffer = o;
    x->run.lse.buffer = lse;
    if (r.outputs.size) tess_free(x->device, &r.outputs);
    free(r.image);
    free(r.wanted);
    return status;
}

/* Backward in place of forward: every eighth problem has dQ in float32, one adds to dK and dV, and
 * one adds to all gradients. */
static void turn_backward(problem *p, int any_order) {
    const int64_t kind = (p->q_len + p->kv_len + p->head_dim / 8 + p->heads) % 8;
    p->op = PROBLEM_BACKWARD;
    if (p->kv_split > 1) p->kv_split = 0; /* of forward alone */
    if (!p->batch_invariant) p->determinism = any_order;
    p->dq_f32 = kind == 5 || kind == 7;
    p->dkv_f32 = p->dkv_add = kind >= 6;
    p->dq_add = kind == 7;
}

/* The kernel that TESSERA_KERNEL names, if plans of the target use no other; or NULL. */
static const char *named_kernel(const test_target *target) {
    const char *name = getenv("TESSERA_KERNEL");
    const size_t length = strlen(target->backend);
    return name && !target->kernel[0] && strncmp(name, target->backend, length) == 0 &&
                   name[length] == '/'
               ? name
               : NULL;
}

/* A fast path may refuse, and any kernel what lavapipe cannot run: on a device in software alone.
 */
static int may_refuse(const test_target *target, const char *why) {
    const char *named = named_kernel(target);
    return (target->kernel[0] && !target->portable) ||
           (named && strcmp(strchr(named, '/'), "/portable") != 0) ||
           (target->software && strstr(why, "lavapipe ends loops") != NULL);
}

static void test_problem(void **state) {
    const one_case *c = *state;
    problem p;
    char error[512];
    if (problem_parse(&p, c->line, error, sizeof error) != 0) {
        problem_free(&p);
        fail_msg("%s: %s", c->line, error);
    }
    instance x;
    unsigned flags = INSTANCE_POISON | INSTANCE_GUARDS;
    if (c->backward && p.op != PROBLEM_BACKWARD) turn_backward(&p, c->any_order);
    if (c->backward && (p.head_dim / 8 + p.heads) % 2) flags |= INSTANCE_WITH_D_LSE;
    const tess_status status = instance_create_again(
        &x, c->target->device, &p, c->target->kernel[0] ? c->target->kernel : NULL, flags,
        memo_of(c->line));
    if (status == TESS_ERROR_UNSUPPORTED && may_refuse(c->target, x.error)) {
        problem_free(&p);
        print_message("skipped: %s\n", x.error);
        skip();
    }
    if (status != TESS_OK) {
        reproduce(c, &p);
        problem_free(&p);
        fail_msg("%s: %s", tess_status_name(status), x.error);
    }
    (*c->accepted)++;
    if (c->target->kernel[0] && strcmp(x.info.kernel, c->target->kernel) != 0) {
        reproduce(c, &p);
        fail_msg("kernel %s was asked for and the plan took %s", c->target->kernel, x.info.kernel);
    }
    instance_verdict verdict = {0};
    tess_status run = instance_run(&x, NULL);
    if (run == TESS_OK) run = instance_fetch(&x);
    if (run == TESS_OK && c->bits) {
        write_bits(c, &x);
        verdict.pass = 1;
    } else if (run == TESS_OK) {
        instance_check(&x, rows_to_check(&x, &p), &verdict);
        run = repeat(c, &x, &verdict);
    }
    const double flops = x.info.flops;
    instance_release(&x);
    const exception *known = exception_for(c->target, c->line);
    if (run != TESS_OK || (!verdict.pass && !known) || (verdict.pass && known) ||
        (c->most_flops > 0 && flops > c->most_flops))
        reproduce(c, &p);
    problem_free(&p);
    if (run != TESS_OK) fail_msg("%s: %s", tess_status_name(run), x.error);
    if (known && verdict.pass)
        fail_msg("passes, although the table of exceptions says: %s", known->reason);
    if (!known && !verdict.pass) fail_msg("%s", verdict.what);
    if (c->most_flops > 0 && flops > c->most_flops)
        fail_msg("%.0f FLOP are more than the list allows", flops);
}

/* Whether all rows of this name are for other operations than that of the list. */
static int is_for_others(const test_target *target, const char *name, int backward) {
    const uint32_t op = backward ? TESS_OP_BACKWARD : TESS_OP_FORWARD;
    int others = 0;
    tess_kernel_info info = {.struct_size = sizeof info};
    for (uint32_t n = 0; tess_device_kernel(target->device, n, &info) == TESS_OK; n++) {
        if (strcmp(info.name, name) != 0) continue;
        if (info.op == op) return 0;
        others = 1;
    }
    return others;
}

/* A kernel that refuses every problem would pass every test. */
static void test_kernel_took_something(void **state) {
    const one_case *c = *state;
    const char *named = named_kernel(c->target), *kernel = named ? named : c->target->kernel;
    print_message("%s took %d problems\n", kernel, *c->accepted);
    if (!*c->accepted && is_for_others(c->target, kernel, c->backward)) {
        print_message("skipped: %s has no %s\n", kernel, c->backward ? "gradients" : "attention");
        skip();
    }
    if (!*c->accepted && c->must_take) fail_msg("kernel %s took no problem at all", kernel);
}

static void test_list_covers(void **state) {
    const problem_list *list = *state;
    assert_int_equal(list->covered + list->infeasible, list->pairs);
    assert_int_equal(list->infeasible, 0);
    assert_in_range(list->count, 300, LIST_MOST);
    assert_in_range(list->pairs, 3000, 10000);
}

/* The line of a problem must give the same problem again, or reproducing a failure is luck. */
static void test_lines_reproduce(void **state) {
    const problem_list *list = *state;
    for (int n = 0; n < list->count; n++) {
        problem a, b;
        char first[LIST_LINE], second[LIST_LINE], error[512];
        if (problem_parse(&a, list->lines[n], error, sizeof error) != 0)
            fail_msg("%s: %s", list->lines[n], error);
        assert_in_range(problem_format(&a, first, sizeof first), 1, LIST_LINE - 1);
        if (problem_parse(&b, first, error, sizeof error) != 0) fail_msg("%s: %s", first, error);
        assert_in_range(problem_format(&b, second, sizeof second), 1, LIST_LINE - 1);
        assert_string_equal(first, second);
        assert_true(a.op == b.op && a.dtype == b.dtype && a.kv_dtype == b.kv_dtype &&
                    a.batch == b.batch && a.q_len == b.q_len && a.kv_len == b.kv_len &&
                    a.heads == b.heads);
        assert_true(a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.causal == b.causal &&
                    a.scale == b.scale && a.seed == b.seed);
        assert_true(a.pattern == b.pattern && a.block == b.block && a.local == b.local &&
                    a.local_right == b.local_right && a.stride == b.stride);
        assert_true(a.offset == b.offset && a.dense_heads == b.dense_heads &&
                    a.per_kv_head == b.per_kv_head && a.homo == b.homo);
        assert_true(a.head_first == b.head_first && a.heads_total == b.heads_total &&
                    a.kv_heads_total == b.kv_heads_total);
        assert_true(!a.head_ids == !b.head_ids);
        if (a.head_ids)
            assert_memory_equal(a.head_ids, b.head_ids, (size_t)a.heads * sizeof *a.head_ids);
        assert_true(a.left == b.left && a.right == b.right && a.sinks == b.sinks &&
                    a.mask_heads == b.mask_heads);
        assert_true(a.kv_split == b.kv_split && a.batch_invariant == b.batch_invariant &&
                    a.tile_rows == b.tile_rows);
        for (int64_t s = 0; s < a.batch; s++)
            assert_true(problem_q_len(&a, s) == problem_q_len(&b, s) &&
                        problem_kv_len(&a, s) == problem_kv_len(&b, s) &&
                        problem_q_first(&a, s) == problem_q_first(&b, s) &&
                        problem_kv_first(&a, s) == problem_kv_first(&b, s));
        problem_free(&a);
        problem_free(&b);
    }
}

static void options_error(const char *program) {
    fprintf(stderr,
            "usage: %s [--shard I/N] [--device BACKEND] [--every N] [--random COUNT] [--seed S] "
            "[--masks FOLDER] [--line WORDS] [--list] [--bits FILE] [--backward] [--any-order] "
            "[--own] [--repeats COUNT]\n",
            program);
    exit(2);
}

static int failed_early(problem_list *list) {
    list_free(list);
    return 1;
}

static long number(const char *text) {
    char *end;
    const long value = strtol(text, &end, 10);
    return *end ? -1 : value;
}

/* "I/N": part I of N. */
static int read_shard(const char *text, int *shard, int *shards) {
    char *end;
    *shard = (int)strtol(text, &end, 10);
    if (*end != '/') return -1;
    *shards = (int)number(end + 1);
    return *shard >= 0 && *shards > *shard ? 0 : -1;
}

typedef struct settings {
    int shard, shards, every, print, backward, any_order, own, repeats;
    long random_count; /* -1: the list */
    uint64_t seed;
    const char *backend, *masks, *single;
    FILE *bits;
} settings;

static settings read_options(int argc, char **argv) {
    static const struct option options[] = {
        {"shard", 1, NULL, 's'},    {"device", 1, NULL, 'd'},    {"every", 1, NULL, 'e'},
        {"random", 1, NULL, 'r'},   {"seed", 1, NULL, 'x'},      {"masks", 1, NULL, 'm'},
        {"line", 1, NULL, 'l'},     {"list", 0, NULL, 'p'},      {"bits", 1, NULL, 'b'},
        {"backward", 0, NULL, 'g'}, {"any-order", 0, NULL, 'o'}, {"own", 0, NULL, 'w'},
        {"repeats", 1, NULL, 'n'},  {NULL, 0, NULL, 0}};
    settings x = {.shards = 1, .every = 1, .random_count = -1, .seed = 1};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 's' && read_shard(optarg, &x.shard, &x.shards) == 0)
            continue;
        else if (o == 'd')
            x.backend = optarg;
        else if (o == 'e' && number(optarg) > 0)
            x.every = (int)number(optarg);
        else if (o == 'r')
            x.random_count = number(optarg);
        else if (o == 'x')
            x.seed = strtoull(optarg, NULL, 10);
        else if (o == 'm')
            x.masks = optarg;
        else if (o == 'l')
            x.single = optarg;
        else if (o == 'p')
            x.print = 1;
        else if (o == 'g')
            x.backward = 1;
        else if (o == 'o')
            x.any_order = 1;
        else if (o == 'w')
            x.own = 1;
        else if (o == 'n' && number(optarg) >= 0)
            x.repeats = (int)number(optarg);
        else if (o == 'b' && (x.bits = fopen(optarg, "w")) != NULL)
            continue;
        else
            options_error(argv[0]);
    }
    const char *count = getenv("TESSERA_RANDOM_PROBLEMS");
    if (x.random_count >= 0 && count && *count) x.random_count = number(count);
    return x;
}

/* The problem of --line, those of --random, or the list. */
static int make_list(const settings *x, problem_list *list) {
    if (!x->single && x->random_count < 0) return list_build(list, x->masks);
    list->lines = calloc(x->single ? 1 : (size_t)x->random_count + 1, sizeof *list->lines);
    if (!list->lines) return -1;
    if (x->single) {
        snprintf(list->lines[list->count++], LIST_LINE, "%s", x->single);
        return 0;
    }
    for (; list->count < x->random_count; list->count++)
        if (list_random(x->seed, (uint64_t)list->count, x->masks, list->lines[list->count]) != 0)
            return -1;
    return 0;
}

/* What a problem takes of a device that computes the lanes of a tile which have no row, and those
 * of a vector which have no element, like all others. */
static double padded_flops(double flops, const problem *p) {
    enum { TILE_ROWS = 64, VECTOR = 64 };
    if (p->tile_rows > 0 && p->tile_rows < TILE_ROWS) flops *= (double)TILE_ROWS / p->tile_rows;
    return p->head_dim < VECTOR ? flops * VECTOR / p->head_dim : flops;
}

/* Whether a problem has no backward: it is of a KV cache. */
static int forward_only(const problem *p) {
    return p->op == PROBLEM_DECODE || problem_has_scales(p);
}

/* Whether a target leaves out problem `n` of the list. One that cannot be read fails everywhere. */
static int leaves_out(const problem_list *list, int n, const test_target *target, int backward) {
    problem p;
    char error[512];
    if (problem_parse(&p, list->lines[n], error, sizeof error) != 0) return 0;
    const double flops = list->flops ? list->flops[n] : 0;
    const int out = test_leaves_out(target, n, p.dtype, p.head_dim) ||
                    (padded_flops(flops, &p) > 1.25 * LIST_FLOPS ? test_leaves_padded(target)
                     : flops > LIST_FLOPS / 4                    ? test_leaves_heavy(target, n)
                                                                 : 0) ||
                    (backward && forward_only(&p));
    problem_free(&p);
    return out;
}

/* So many problems of a shard, or random ones, have one that a kernel takes; of a list that --every
 * has thinned, which may leave out a kernel's few, so many more. Who thins the list of one kernel
 * by its name has seen which problems are left. */
enum { ENOUGH = 8, ENOUGH_OF_THINNED = 100 };

/* Whether the problems that were offered to a kernel must hold one that it takes: all of the list
 * must, and one line that is named. */
static int must_take(const settings *x, int offered) {
    const int one_kernel = x->backend && strchr(x->backend, '/');
    if (offered == 0) return 0;
    if (x->every > 1) return one_kernel || offered >= ENOUGH_OF_THINNED;
    return (x->shards == 1 && x->random_count < 0) || offered >= ENOUGH;
}

/* Every problem on every target is a test. Returns how many fail. */
static int run_list(const settings *x, problem_list *list, test_targets *targets) {
    const size_t most = (size_t)(list->count + 2) * (size_t)targets->count + 2;
    struct CMUnitTest *tests = calloc(most, sizeof *tests);
    one_case *cases = calloc(most, sizeof *cases);
    int *accepted = calloc((size_t)targets->count, sizeof *accepted);
    if (!tests || !cases || !accepted) exit(1);
    int offered[sizeof targets->items / sizeof targets->items[0]] = {0}; /* problems, by target */
    size_t n_tests = 0, n_cases = 0;
    if (!x->single && x->random_count < 0 && x->shard == 0 && !x->backward) {
        tests[n_tests++] = (struct CMUnitTest){"every pair of values is covered", test_list_covers,
                                               NULL, NULL, list};
        tests[n_tests++] = (struct CMUnitTest){"lines reproduce their problems",
                                               test_lines_reproduce, NULL, NULL, list};
    }
    for (int n = x->shard; n < list->count; n += x->shards * x->every) {
        for (int t = 0; t < targets->count; t++) {
            if (!x->single && leaves_out(list, n, &targets->items[t], x->backward)) continue;
            offered[t]++;
            cases[n_cases] =
                (one_case){list->lines[n],
                           &targets->items[t],
                           x->single || x->random_count >= 0 || x->backward ? 0 : LIST_FLOPS,
                           x->repeats,
                           &accepted[t],
                           x->bits,
                           x->backward,
                           x->any_order,
                           0};
            tests[n_tests++] =
                (struct CMUnitTest){list->lines[n], test_problem, NULL, NULL, &cases[n_cases++]};
        }
    }
    for (int t = 0; t < targets->count; t++) {
        const char *named = named_kernel(&targets->items[t]);
        if (!named && (x->single || !targets->items[t].kernel[0])) continue;
        cases[n_cases] = (one_case){.line = "",
                                    .target = &targets->items[t],
                                    .accepted = &accepted[t],
                                    .backward = x->backward,
                                    .must_take = must_take(x, offered[t])};
        tests[n_tests++] =
            (struct CMUnitTest){named ? named : targets->items[t].kernel,
                                test_kernel_took_something, NULL, NULL, &cases[n_cases++]};
    }
    const int failed = _cmocka_run_group_tests("conformance", tests, n_tests, NULL, NULL);
    instance_memo_clear(&memo);
    free(tests);
    free(cases);
    free(accepted);
    return failed;
}

static int run(const settings *x) {
    problem_list list = {0};
    if (make_list(x, &list) != 0) return failed_early(&list);
    if (x->print) {
        for (int n = 0; n < list.count; n++) puts(list.lines[n]);
        list_free(&list);
        return 0;
    }
    test_targets targets;
    const int absent = test_targets_open(
        &targets, x->backend, (x->own ? 0 : TEST_EACH_KERNEL) | (x->backward ? TEST_BACKWARD : 0));
    if (absent != 0) {
        list_free(&list);
        return absent;
    }
    const int failed = run_list(x, &list, &targets);
    test_targets_close(&targets);
    list_free(&list);
    if (x->bits && fclose(x->bits) != 0) return 1;
    return failed != 0;
}

/* A temporary folder for masks, and its end, unless somebody needs what is in it. */
static int masks_begin(char *folder, size_t size) {
    const char *place = getenv("TMPDIR");
    snprintf(folder, size, "%s/tessera-masks-XXXXXX", place && *place ? place : "/tmp");
    if (mkdtemp(folder)) return 0;
    perror(folder);
    return -1;
}

static void masks_end(const char *folder, int keep) {
    DIR *entries = keep || !*folder ? NULL : opendir(folder);
    if (keep && *folder) fprintf(stderr, "masks are kept in %s\n", folder);
    if (!entries) return;
    for (const struct dirent *e; (e = readdir(entries)) != NULL;)
        if (e->d_name[0] != '.') (void)unlinkat(dirfd(entries), e->d_name, 0);
    closedir(entries);
    (void)rmdir(folder);
}

int main(int argc, char **argv) {
    settings x = read_options(argc, argv);
    char folder[512] = "";
    if (!x.masks && !x.single) {
        if (masks_begin(folder, sizeof folder) != 0) return 1;
        x.masks = folder;
    }
    const int status = run(&x);
    masks_end(folder, x.print || (status != 0 && status != TEST_SKIPPED));
    return status;
}

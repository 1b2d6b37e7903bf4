/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits over repeats, thread counts, job ranges, other rows of a tile and, in batch-invariant
 * mode, other sequences of the batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/elements.h"
#include "common/fp_control.h"
#include "instance.h"
#include "properties.h"
#include "rig.h"

static const char *const lines[] = {
    "pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=3 head_dim=64 q_len=150 kv_len=400",
    "pattern=s2 block=32 local=1 stride=4 heads=4 kv_heads=1 head_dim=80 q_len=2 kv_len=900 "
    "dtype=bf16",
    "pattern=dense heads=2 head_dim=128 q_len=1 kv_len=3000 kv_split=7 dtype=f16",
    "pattern=dense causal=0 heads=2 head_dim=32 q_len=90 kv_len=333",
    "pattern=window left=30 right=0 sinks=5 heads=3 head_dim=48 q_lens=40,1,70 kv_lens=300,211,70 "
    "dtype=f16",
    "pattern=s2 block=16 local=3 stride=5 heads=4 kv_heads=2 head_dim=128 q_len=130 kv_len=400 "
    "kv_split=3 dtype=bf16",
};
enum { LINES = sizeof lines / sizeof lines[0] };

void test_repeats(void **state) {
    const int repeats = rig_repeats(*state, 100, 5);
    for (int n = 0; n < LINES; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, *state, lines[n])) continue;
        for (int repeat = 0; repeat < repeats; repeat++) {
            rig_run(&x.r, NULL, x.got.o, x.got.lse);
            rig_pair_same("a repeat", &x);
        }
        rig_pair_release(&x);
    }
}

/* The caller's floating-point mode changes no bit of a result and is the same after the call.
 * Threads inherit the mode of the thread that starts them, so the mode at opening must not matter
 * either. */
void test_rounding_mode(void **state) {
    const test_target *target = *state;
    if (strcmp(target->backend, "cpu") != 0) return;
    const uint64_t usual = fp_control_read();
    tess_runtime *runtime = test_runtime(3);
    test_target odd = *target;
    fp_control_write(fp_control_odd[0]);
    odd.device = test_cpu(runtime);
    fp_control_write(usual);
    tess_runtime_release(runtime);
    for (int n = 0; n < LINES; n++) {
        rig r, s;
        rig_create(&r, target, lines[n], NULL, NULL);
        if (r.refused) continue;
        rig_create(&s, &odd, lines[n], NULL, NULL);
        rig_outputs out = rig_outputs_of(&r), other = rig_outputs_of(&r);
        rig_run(&r, NULL, out.o, out.lse);
        for (int m = -1; m < FP_CONTROL_ODD; m++) {
            fp_control_write(m < 0 ? usual : fp_control_odd[m]);
            const uint64_t before = fp_control_read();
            rig_run(m < 0 ? &s : &r, NULL, other.o, other.lse);
            const uint64_t after = fp_control_read();
            fp_control_write(usual);
            if (before != after)
                fail_msg("the mode of floating point was %#llx and is %#llx",
                         (unsigned long long)before, (unsigned long long)after);
            rig_same_outputs("in another mode", &r, &out, &other);
        }
        rig_outputs_free(&out);
        rig_outputs_free(&other);
        rig_release(&r);
        rig_release(&s);
    }
    tess_device_release(odd.device);
}

void test_threads(void **state) {
    static const uint32_t threads[] = {1, 2, 3, 5};
    const test_target *target = *state;
    if (strcmp(target->backend, "cpu") != 0) return;
    test_pretend_cpus(5);
    for (int n = 0; n < LINES; n++) {
        rig_outputs out = {NULL, NULL};
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            tess_runtime *runtime = test_runtime(threads[t]);
            test_target with = *target;
            with.device = test_cpu(runtime);
            tess_runtime_release(runtime);
            tess_device_info info = {.struct_size = sizeof info};
            assert_ok(tess_device_query(with.device, &info));
            assert_in_range(info.compute_units, 1, threads[t]);
            if (n == 0 && info.compute_units < threads[t])
                print_message("a quota of control groups allows %u of %u threads\n",
                              info.compute_units, threads[t]);
            rig r;
            rig_create(&r, &with, lines[n], NULL, NULL);
            if (!r.refused) {
                rig_outputs got = rig_outputs_of(&r);
                rig_run(&r, NULL, got.o, got.lse);
                if (out.o) {
                    rig_same_outputs("with other threads", &r, &out, &got);
                    rig_outputs_free(&got);
                } else {
                    out = got;
                }
                rig_release(&r);
            }
            tess_device_release(with.device);
        }
        rig_outputs_free(&out);
    }
    test_pretend_cpus(0);
}

/* The ranges of a plan follow each other and hold all of its jobs. */
static void assert_ranges(const rig *r) {
    uint64_t expected = 0, first, count;
    for (uint64_t index = 0; index < r->info.n_ranges; index++) {
        assert_ok(tess_plan_range(r->plan, index, &first, &count));
        assert_true(first == expected && count > 0);
        expected += count;
    }
    assert_true(expected == r->info.n_jobs);
}

void test_ranges(void **state) {
    for (int n = 0; n < LINES; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, *state, lines[n])) continue;
        const uint64_t jobs = x.r.info.n_jobs, steps[] = {1, 2, 7, jobs > 1 ? jobs - 1 : 1, jobs};
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
            const rig_options options = {.step = steps[s]};
            rig_run(&x.r, &options, x.got.o, x.got.lse);
            rig_pair_same("job ranges", &x);
        }
        assert_ranges(&x.r);
        rig_pair_release(&x);
    }
}

/* A range of jobs writes the results of its own jobs, and no others. */
void test_range_alone(void **state) {
    const test_target *target = *state;
    static const char line[] =
        "pattern=dense heads=3 head_dim=32 q_len=70 kv_len=90 tile_rows=16 kv_split=1";
    problem p;
    instance x;
    char error[256];
    if (problem_parse(&p, line, error, sizeof error) != 0) fail_msg("%s", error);
    if (test_other_turn(target, p.dtype, p.head_dim)) {
        problem_free(&p);
        return;
    }
    const tess_status status = instance_create(
        &x, target->device, &p, target->kernel[0] ? target->kernel : NULL, INSTANCE_GUARDS);
    if (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable) {
        problem_free(&p);
        return;
    }
    assert_ok(status);
    assert_int_equal(x.info.n_merge_jobs, 0);
    float *whole = rig_room(x.o_bytes);
    assert_ok(instance_run(&x, NULL));
    assert_ok(instance_fetch(&x));
    memcpy(whole, x.o, x.o_bytes);
    for (uint64_t first = 0; first < x.info.n_jobs; first += 3) {
        memset(x.o, 0xff, x.o_bytes);
        assert_ok(tess_copy(x.device, x.run.o.buffer, tess_host_buffer(x.o, x.o_bytes), x.o_bytes));
        x.run.first_job = first;
        x.run.job_count = 1;
        assert_ok(instance_run(&x, NULL));
        assert_ok(instance_fetch(&x));
        int64_t written = 0;
        for (size_t row = 0; row < 70 * 3; row++) {
            const float *got = (const float *)x.o + row * 32;
            if (isnan(got[0])) continue;
            rig_same_bits("a row of one job", whole + row * 32, got, 32 * sizeof *got);
            written++;
        }
        assert_in_range(written, 1, 16);
    }
    free(whole);
    instance_release(&x);
    problem_free(&p);
}

static void limit_time(tess_plan_desc *desc, void *user) {
    desc->time_limit_us = *(const uint64_t *)user;
}

/* A time limit cuts the same jobs into ranges that cover them once, in order; the result has the
 * same bits. */
void test_time_limit(void **state) {
    uint64_t limit = 1;
    for (int n = 0; n < LINES; n++) {
        rig_pair whole;
        rig r;
        if (!rig_has_instance(*state, lines[n])) continue;
        if (!rig_pair_create(&whole, *state, lines[n])) continue;
        rig_create(&r, *state, lines[n], limit_time, &limit);
        if (!r.refused) {
            assert_ranges(&r);
            rig_run(&r, NULL, whole.got.o, whole.got.lse);
            rig_pair_same("under a time limit", &whole);
            rig_release(&r);
        }
        rig_pair_release(&whole);
    }
}

/* Writes the lengths of one to twelve more sequences, most of which decode, as q_lens and kv_lens
 * that go on behind others: ",1,40|,700,40". */
static void draw_others(uint64_t *seed, char text[256]) {
    static const int64_t most_rows[] = {200, 20, 1, 1, 1};
    char keys[128] = "";
    const int64_t n = test_between(seed, 1, 12);
    text[0] = '\0';
    for (int64_t s = 0; s < n; s++) {
        const int64_t kind = test_between(seed, 0, 4),
                      rows = test_between(seed, 0, most_rows[kind]),
                      tokens = test_between(seed, 0, kind == 1 ? 3000 : 700);
        snprintf(text + strlen(text), 128 - strlen(text), ",%d", (int)rows);
        snprintf(keys + strlen(keys), sizeof keys - strlen(keys), ",%d", (int)tokens);
    }
    strcat(strcat(text, "|"), keys);
}

/* Sequence 0 of each batch below is the same one, with the same inputs. Every two of a pattern, a
 * length and a batch meet; a third of all three do, and all with TESSERA_TEST_FULL=1. Each pattern
 * also has random batches with one of the lengths, 50 where tests repeat 100 times. */
void test_batch_invariance(void **state) {
    static const char *const patterns[] = {
        "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=64",
        "pattern=dense heads=4 kv_heads=1 head_dim=40 dtype=f16",
        "pattern=window left=50 right=0 sinks=4 heads=2 head_dim=128 dtype=bf16",
        "pattern=s2 causal=0 block=16 local=2 stride=4 heads=2 head_dim=16",
        "pattern=s2 block=16 local=2 stride=3 heads=8 kv_heads=2 head_dim=64 dtype=bf16",
    };
    static const char *const firsts[] = {"1|1500", "70|300", "5|1111", "2|9001"};
    static const char *const others[] = {
        "", ",1,1,1,1,1,1,1,1|,9,99,999,1000,12,44,2,1", ",500|,500", ",0,3|,7,0",
        /* chunks beside decode rows, and drafts */
        ",300,4,1,9,130|,900,700,2100,100,130",
        (",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1|,3000,3000,3000,3000,3000,3000,3000,3000,3000,3000,3000,"
         "3000,3000,3000,3000,3000")};
    enum { FIRSTS = sizeof firsts / sizeof firsts[0], OTHERS = sizeof others / sizeof others[0] };
    const size_t drawn = (size_t)rig_repeats(*state, 6, 2) / 2;
    uint64_t seed = 41;
    for (size_t a = 0; a < sizeof patterns / sizeof patterns[0]; a++)
        for (size_t b = 0; b < FIRSTS; b++) {
            void *o = NULL;
            float *lse = NULL;
            for (size_t c = 0; c < OTHERS + (a % FIRSTS == b ? drawn : 0); c++) {
                if (c > 0 && c < OTHERS && (a + b + c) % 3 != 0 && !test_full()) continue;
                char line[1024], drawn_others[256];
                if (c >= OTHERS) draw_others(&seed, drawn_others);
                const char *first_kv = strchr(firsts[b], '|') + 1,
                           *other = c < OTHERS ? others[c] : drawn_others,
                           *cut = strchr(other, '|');
                snprintf(line, sizeof line, "%s batch_invariant=1 q_lens=%.*s%.*s kv_lens=%s%s",
                         patterns[a], (int)(first_kv - 1 - firsts[b]), firsts[b],
                         cut ? (int)(cut - other) : 0, other, first_kv, cut ? cut + 1 : "");
                rig r;
                rig_create(&r, *state, line, NULL, NULL);
                if (r.refused) continue;
                void *all = rig_room(r.bytes[TESS_ROLE_O]);
                float *all_lse = rig_room(r.bytes[TESS_ROLE_LSE]);
                rig_run(&r, NULL, all, all_lse);
                const int64_t q = problem_q_len(&r.p, 0), tokens = r.dims[TESS_ROLE_LSE].tokens;
                const uint64_t bytes =
                    (uint64_t)(q * r.p.heads * r.p.head_dim) * r.size[TESS_ROLE_O];
                for (int32_t h = 0; h < r.p.heads; h++)
                    memmove(all_lse + h * q, all_lse + h * tokens, (size_t)q * sizeof *all_lse);
                if (o) {
                    rig_same_bits(line, o, all, bytes);
                    rig_same_bits(line, lse, all_lse, (uint64_t)(q * r.p.heads) * sizeof *lse);
                    free(all);
                    free(all_lse);
                } else {
                    o = all;
                    lse = all_lse;
                }
                rig_release(&r);
            }
            free(o);
            free(lse);
        }
}

/* Element 0 of every row of Q for the heads from `first` on in steps of `step`. */
static void set_queries(const rig *r, int32_t first, int32_t step, float x) {
    for (int64_t t = 0; t < r->p.q_len; t++)
        for (int32_t h = first; h < r->p.heads; h += step)
            element_store(r->p.dtype, r->data[TESS_ROLE_Q], (t * r->p.heads + h) * r->p.head_dim,
                          x);
}

/* Element 0 of K grows by 1 every 64 keys, and so from one pipeline stage of any kernel to the
 * next. It stays 0 in the last keys: some kernels read the keys that may be masked first, and would
 * see the largest score at once. */
static void set_keys(const rig *r) {
    for (int64_t t = 0; t < r->p.kv_len; t++) {
        const int64_t steps = t < r->p.kv_len - 256 ? t / 64 : 0;
        for (int32_t h = 0; h < r->p.kv_heads; h++)
            element_store(r->p.dtype, r->data[TESS_ROLE_K], (t * r->p.kv_heads + h) * r->p.head_dim,
                          (float)steps);
    }
}

enum { GROUP = 4 }; /* query heads of a KV head */

static void other_heads_stay(const test_target *target, const char *line) {
    /* Exponents of 2 from one stage to the next: more than a kernel tolerates before it rescales a
     * row, and more than a float has. */
    static const float rises[] = {24, 150};
    rig r;
    rig_create(&r, target, line, NULL, NULL);
    if (r.refused) return;
    const int32_t heads = r.p.heads;
    assert_int_equal(heads, GROUP * r.p.kv_heads);
    const size_t row = (size_t)r.p.head_dim * r.size[TESS_ROLE_O];
    rig_outputs out = rig_outputs_of(&r), again = rig_outputs_of(&r);
    char what[256];
    set_keys(&r);
    set_queries(&r, 0, 1, 0);
    rig_run(&r, NULL, out.o, out.lse);
    for (size_t n = 0; n < sizeof rises / sizeof rises[0]; n++) {
        set_queries(&r, 1, GROUP, rises[n] * 0.6931472f * sqrtf((float)r.p.head_dim));
        rig_run(&r, NULL, again.o, again.lse);
        for (int32_t h = 0; h < heads; h++) {
            if (h % GROUP == 1) { /* float32 keeps scores of this size to about 1e-3 */
                rig_check_head(&r, h, again.o, again.lse, 2e-3 + 0x1p-7);
                continue;
            }
            for (int64_t t = 0; t < r.p.q_len; t++) {
                const size_t at = (size_t)(t * heads + h) * row;
                snprintf(what, sizeof what,
                         "%s: o of head %d row %d beside scores that rise by 2^%g", line, (int)h,
                         (int)t, (double)rises[n]);
                rig_same_bits(what, (char *)out.o + at, (char *)again.o + at, row);
            }
            snprintf(what, sizeof what, "%s: lse of head %d beside scores that rise by 2^%g", line,
                     (int)h, (double)rises[n]);
            rig_same_bits(what, out.lse + h * r.p.q_len, again.lse + h * r.p.q_len,
                          (uint64_t)r.p.q_len * sizeof *out.lse);
        }
    }
    rig_outputs_free(&out);
    rig_outputs_free(&again);
    rig_release(&r);
}

/* Query heads of one KV head are packed in a tile. The scores of one head grow again and again, so
 * its rows are rescaled; the bits of its neighbours must not change. Keys are not split, so one job
 * reads them all. */
void test_packed_heads(void **state) {
    static const char *const shapes[] = {
        "pattern=dense causal=0 heads=32 kv_heads=8 q_len=1 kv_len=1500 kv_split=1",
        "pattern=dense heads=8 kv_heads=2 q_len=5 kv_len=1300 kv_split=1",
    };
    static const char *const types[] = {
        "head_dim=64 dtype=f32",  "head_dim=64 dtype=f16",   "head_dim=64 dtype=bf16",
        "head_dim=128 dtype=f16", "head_dim=128 dtype=bf16",
    };
    for (size_t a = 0; a < sizeof shapes / sizeof shapes[0]; a++)
        for (size_t b = 0; b < sizeof types / sizeof types[0]; b++) {
            char line[160];
            snprintf(line, sizeof line, "%s %s", shapes[a], types[b]);
            other_heads_stay(*state, line);
        }
}

/* ------------------------------------------------------------------ heads of a larger model */

/* Copies the heads of each rank out of a contiguous tensor of the whole model. `ids` are those of
 * query heads, and `group` of them make a head of this tensor. */
static void *pick_heads(const rig *whole, const rig *part, tess_role role, const void *from,
                        int32_t group) {
    const int64_t heads = part->dims[role].heads, all = whole->dims[role].heads,
                  tokens = part->dims[role].batch * part->dims[role].tokens;
    const uint64_t bytes = (uint64_t)part->dims[role].elements * part->size[role];
    char *picked = rig_room(part->bytes[role]);
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(picked + (uint64_t)(n * heads + h) * bytes,
                   (const char *)from +
                       (uint64_t)(n * all + part->p.head_ids[h * group] / group) * bytes,
                   bytes);
    return picked;
}

/* Whether each head of the rank has the bits of the whole model's head. */
static void rank_is_of_model(const rig_pair *whole, const test_target *target, const char *line) {
    rig part;
    rig_create(&part, target, line, NULL, NULL);
    /* Of fewer heads another kernel may be the best one. */
    if (!part.refused && strcmp(part.info.kernel, whole->r.info.kernel) == 0 &&
        strcmp(part.info.few_kernel, whole->r.info.few_kernel) == 0) {
        const problem *p = &part.p;
        const int32_t group = p->heads / p->kv_heads;
        rig_outputs got = rig_outputs_of(&part);
        rig_options options = {0};
        void *data[3], *wanted = pick_heads(&whole->r, &part, TESS_ROLE_O, whole->plain.o, 1);
        for (int role = 0; role < 3; role++)
            options.data[role] = data[role] =
                pick_heads(&whole->r, &part, (tess_role)role, whole->r.data[role],
                           role == TESS_ROLE_Q ? 1 : group);
        rig_run(&part, &options, got.o, got.lse);
        rig_same_bits(line, wanted, got.o, part.bytes[TESS_ROLE_O]);
        const int64_t rows = part.dims[TESS_ROLE_LSE].tokens;
        for (int32_t h = 0; h < p->heads; h++)
            rig_same_bits(line, whole->plain.lse + p->head_ids[h] * rows, got.lse + h * rows,
                          (uint64_t)rows * sizeof *got.lse);
        for (int role = 0; role < 3; role++) free(data[role]);
        free(wanted);
        rig_outputs_free(&got);
    }
    rig_release(&part);
}

/* Ranks of a model that have its heads by their numbers, dense ones first and others in any order:
 * together every head, each with the bits of the run of the whole model. Keys are not split, since
 * plans of fewer heads split them otherwise. */
void test_listed_heads(void **state) {
    static const char *const ranks[] = {"14,15,2,3,6,7", "13,12,1,0,8,9", "10,11,4,5"};
    static const char *const shapes[] = {
        "dtype=f32 head_dim=64 tile_rows=64 q_len=90 kv_len=333",
        "dtype=bf16 head_dim=128 tile_rows=64 q_len=90 kv_len=333",
        "dtype=f16 head_dim=128 tile_rows=64 q_len=1 kv_len=700",
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        char words[160], line[256];
        rig_pair whole;
        snprintf(words, sizeof words,
                 "pattern=s2 block=16 local=2 stride=16 dense_heads=2 kv_split=1 %s%s", shapes[s],
                 s == 1 ? " per_kv_head=1" : "");
        snprintf(line, sizeof line, "%s heads=16 kv_heads=8", words);
        if (!rig_pair_create(&whole, *state, line)) continue;
        for (size_t n = 0; n < sizeof ranks / sizeof ranks[0]; n++) {
            const int heads = n < 2 ? 6 : 4;
            snprintf(line, sizeof line, "%s heads=%d kv_heads=%d heads_total=16 head_ids=%s", words,
                     heads, heads / 2, ranks[n]);
            rank_is_of_model(&whole, *state, line);
        }
        rig_pair_release(&whole);
    }
}

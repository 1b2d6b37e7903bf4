/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of gradients: what they refuse, their tables and workspace, and the launches of a run. */
#include <tessera/tessera_column_walk.h>

#include "fixtures/runs.h"

#include "backward.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, BATCH = 3, ROWS = 40, KEYS = 60, REGION = 1 << 17 };

enum {
    TWO_PASSES = TESS_STAGE_DELTA | TESS_STAGE_ROWS | TESS_STAGE_COLUMNS,
    ONE_PASS = TESS_STAGE_DELTA | TESS_STAGE_COLUMNS | TESS_STAGE_FINISH
};

/* never touched: the backend of the test only remembers */
static _Alignas(256) char memory[12 * REGION];

static tess_plan_desc plan_desc(void) {
    tess_plan_desc d = plan_of(DIM, BATCH, ROWS, KEYS);
    d.op = TESS_OP_BACKWARD;
    d.dtype = TESS_BF16;
    return d;
}

static tess_buffer region(int n) { return tess_host_buffer(memory + (size_t)n * REGION, REGION); }

static const struct {
    tess_role role;
    const char *name;
    size_t at;
    bool required;
} tensors[] = {
    {TESS_ROLE_Q, "q", offsetof(tess_run_desc, q), true},
    {TESS_ROLE_K, "k", offsetof(tess_run_desc, k), true},
    {TESS_ROLE_V, "v", offsetof(tess_run_desc, v), true},
    {TESS_ROLE_O, "o", offsetof(tess_run_desc, o), true},
    {TESS_ROLE_LSE, "lse", offsetof(tess_run_desc, lse), true},
    {TESS_ROLE_D_O, "d_o", offsetof(tess_run_desc, d_o), true},
    {TESS_ROLE_D_LSE, "d_lse", offsetof(tess_run_desc, d_lse), false},
    {TESS_ROLE_D_Q, "d_q", offsetof(tess_run_desc, d_q), false},
    {TESS_ROLE_D_K, "d_k", offsetof(tess_run_desc, d_k), false},
    {TESS_ROLE_D_V, "d_v", offsetof(tess_run_desc, d_v), false},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static tess_tensor *tensor(size_t n) {
    return (tess_tensor *)(void *)((char *)&run + tensors[n].at);
}

static void fill(const tess_plan *p) {
    memset(&run, 0, sizeof run);
    run.struct_size = sizeof run;
    for (size_t n = 0; n < TENSORS; n++)
        assert_int_equal(TESS_OK,
                         tess_plan_tensor(p, tensors[n].role, region((int)n), tensor(n), NULL));
    run.workspace = region(TENSORS);
}

static void remake(const tess_plan_desc *d) {
    run_replan(d);
    fill(plan);
}

static int setup(void **state) {
    runtime_setup(state);
    rig.caps.features |= TESS_FEATURE_BACKWARD;
    rig.rows[0].op = TESS_OP_BACKWARD;
    rig.rows[1] = (rig_row){.name = "forward"};
    rig.n_rows = 2;
    rig.kernel.tile_rows = 16;
    rig.kernel.tile_step = rig.kernel.step_rows = 8;
    rig.kernel.pack_rows = 0;
    rig.kernel.stages = TWO_PASSES;
    rig.kernel.tile_keys = 8;
    rig.kernel.strip_rows = 12;
    rig.kernel.strip_bytes = 100;
    rig.kernel.scratch_bytes = 30;
    device = open_device(runtime);
    const tess_pattern p = s2_pattern(4, 2, 3, 0);
    layout = make_layout(runtime, &p, HEADS, KV_HEADS, 100);
    plan = NULL;
    const tess_plan_desc d = plan_desc();
    remake(&d);
    return 0;
}

static void refused(tess_status status, const char *field) {
    const int launches = rig.launches;
    assert_error(tess_run(plan, &run), status, "tess_run", field);
    assert_int_equal(launches, rig.launches);
    fill(plan);
}

/* Runs, and returns the stages that were launched. */
static uint32_t launched(void) {
    uint32_t stages = 0;
    const uint64_t calls = heap.calls;
    rig.launches = 0;
    if (tess_run(plan, &run) != TESS_OK) fail_msg("%s", tess_last_error());
    assert_int_equal(calls, heap.calls);
    for (int n = 0; n < rig.launches; n++) {
        assert_true(rig.ranges[n].stage > (n ? rig.ranges[n - 1].stage : 0)); /* in order */
        assert_int_equal(0, rig.ranges[n].n_merges);
        stages |= rig.ranges[n].stage;
    }
    return stages;
}

/* ------------------------------------------------------------------ plans */

static tess_plan_desc spoilt(uint32_t flags, uint32_t determinism, int32_t kv_split, int32_t page) {
    tess_plan_desc d = plan_desc();
    d.flags = flags;
    d.determinism = determinism;
    d.kv_split = kv_split;
    d.page = page;
    return d;
}

static void test_refusals(void **state) {
    (void)state;
    const struct {
        tess_plan_desc d;
        tess_status status;
        const char *field;
    } list[] = {
        {spoilt(0, 2, 0, 0), TESS_ERROR_INVALID, "determinism"},
        {spoilt(TESS_PLAN_BATCH_INVARIANT, 1, 0, 0), TESS_ERROR_INVALID, "determinism"},
        {spoilt(0, 0, 2, 0), TESS_ERROR_INVALID, "kv_split"},
        {spoilt(0, 0, 0, 64), TESS_ERROR_UNSUPPORTED, "page"},
        {spoilt(TESS_PLAN_COMPACT, 0, 0, 0), TESS_ERROR_UNSUPPORTED, "flags"},
        {spoilt(TESS_PLAN_APPEND, 0, 0, 0), TESS_ERROR_UNSUPPORTED, "flags"},
        {spoilt(TESS_PLAN_DEVICE_LENGTHS, 0, 0, 0), TESS_ERROR_UNSUPPORTED, "flags"},
        {spoilt(TESS_PLAN_DQ_ADD, 0, 0, 0), TESS_ERROR_INVALID, "flags"},
        {spoilt(TESS_PLAN_DQ_ADD | TESS_PLAN_DKV_F32, 0, 0, 0), TESS_ERROR_INVALID, "flags"},
        {spoilt(TESS_PLAN_DKV_ADD | TESS_PLAN_DQ_F32, 0, 0, 0), TESS_ERROR_INVALID, "flags"},
    };
    tess_plan *none = NULL;
    for (size_t n = 0; n < sizeof list / sizeof *list; n++)
        assert_error(tess_plan_create(device, layout, &list[n].d, &none), list[n].status,
                     "tess_plan_create", list[n].field);
    tess_plan_desc d = plan_desc();
    d.kv_dtype = TESS_I8;
    assert_error(tess_plan_create(device, layout, &d, &none), TESS_ERROR_UNSUPPORTED,
                 "tess_plan_create", "kv_dtype");
    /* fields of backward in a forward plan */
    d = spoilt(0, 1, 0, 0);
    d.op = TESS_OP_FORWARD;
    assert_error(tess_plan_create(device, layout, &d, &none), TESS_ERROR_INVALID,
                 "tess_plan_create", "determinism");
    for (uint32_t bit = 4; bit < 8; bit++) {
        d = spoilt(1u << bit, 0, 0, 0);
        d.op = TESS_OP_FORWARD;
        d.dtype = TESS_F32;
        assert_error(tess_plan_create(device, layout, &d, &none), TESS_ERROR_INVALID,
                     "tess_plan_create", "flags");
    }
    assert_null(none);
}

/* Where rows and keys begin is checked as in forward. */
static void test_positions(void **state) {
    (void)state;
    static const struct {
        int64_t q_first, kv_first;
        tess_status status;
        const char *field;
    } cases[] = {{-1, 0, TESS_ERROR_INVALID, "q_first[2]"},
                 {INT64_MAX, 0, TESS_ERROR_UNSUPPORTED, "q_first[2]"},
                 {0, -4, TESS_ERROR_INVALID, "kv_first[2]"},
                 {0, 6, TESS_ERROR_INVALID, "kv_first[2]"},
                 {0, 44, TESS_ERROR_INVALID, "kv_first[2]"},
                 {1000, 40, TESS_OK, NULL}};
    rig.caps.features |= TESS_FEATURE_POSITIONS;
    tess_device_release(device);
    device = open_device(runtime);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const int64_t q_first[BATCH] = {0, 0, cases[n].q_first},
                      kv_first[BATCH] = {0, 0, cases[n].kv_first};
        tess_plan_desc d = plan_desc();
        tess_plan *made = NULL;
        d.q_first = q_first;
        d.kv_first = kv_first;
        if (cases[n].status != TESS_OK)
            assert_error(tess_plan_create(device, layout, &d, &made), cases[n].status,
                         "tess_plan_create", cases[n].field);
        else
            assert_int_equal(TESS_OK, tess_plan_create(device, layout, &d, &made));
        tess_plan_release(made);
    }
}

/* A kernel that refuses says why, also where it is a single pass that finds no turns. */
static void test_refusing_kernels(void **state) {
    (void)state;
    const tess_plan_desc d = plan_desc();
    tess_plan *none = NULL;
    rig.rows[0].status = TESS_ERROR_UNSUPPORTED;
    rig.rows[0].reason = "determinism 0: these patterns have no turns";
    assert_int_equal(TESS_ERROR_UNSUPPORTED, tess_plan_create(device, layout, &d, &none));
    assert_non_null(strstr(tess_last_error(), "these patterns have no turns"));
    assert_null(strchr(tess_last_error(), '\n'));
}

/* What a backend from outside the tree may get wrong. */
static void test_kernels(void **state) {
    (void)state;
    const tess_plan_desc d = plan_desc();
    tess_plan *none = NULL;
    uint32_t *const sizes[] = {&rig.kernel.tile_keys, &rig.kernel.step_rows,
                               &rig.kernel.strip_rows};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        const uint32_t before = *sizes[n];
        for (int k = 0; k < 2; k++) {
            *sizes[n] = k ? 4097 : 0;
            assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, layout, &d, &none));
        }
        *sizes[n] = before;
    }
    for (uint32_t stages = 0; stages < 1u << TESS_STAGES; stages++) {
        rig.kernel.stages = stages;
        if (stages == TWO_PASSES || stages == ONE_PASS) continue;
        assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, layout, &d, &none));
    }
    rig.n_rows = 0;
    assert_int_equal(TESS_ERROR_UNSUPPORTED, tess_plan_create(device, layout, &d, &none));
}

static void test_key(void **state) {
    (void)state;
    tess_plan_desc d = plan_desc();
    d.determinism = 1;
    d.flags = TESS_PLAN_DQ_F32 | TESS_PLAN_DQ_ADD;
    d.max_in_flight = 3;
    remake(&d);
    assert_int_equal(TESS_OP_BACKWARD, rig.key.op);
    assert_int_equal(1, rig.key.determinism);
    assert_int_equal(d.flags, rig.key.gradients);
    assert_int_equal(3 * TESS_STAGES, rig.key.max_in_flight);
}

/* Turns are for a single pass whose steps are strips, and for rows in intervals. */
static void test_turns(void **state) {
    (void)state;
    const tess_plan_desc d = plan_desc();
    tess_plan *none = NULL;
    rig.kernel.stages = ONE_PASS;
    rig.kernel.step_rows = 12;
    rig.kernel.turns = 1;
    remake(&d);
    assert_int_equal(1, rig.key.turns);
    uint32_t waits = 0;
    for (uint64_t n = 0; n < plan->memory.n_segments; n++) {
        const tess_segment *s = &plan->tables.segments[n];
        assert_true(s->row >= 0 && (s->step & TESS_TURN_WAIT) < plan->memory.n_columns);
        waits += (s->step & TESS_TURN_WAIT) != 0;
    }
    assert_true(waits > 0);
    rig.kernel.turns = 2;
    assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, layout, &d, &none));
    rig.kernel.turns = 1;
    rig.kernel.step_rows = 6;
    assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, layout, &d, &none));
    rig.kernel.step_rows = 12;
    rig.kernel.stages = TWO_PASSES;
    assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, layout, &d, &none));
    rig.kernel.stages = ONE_PASS;
    tess_pattern both = s2_pattern(4, 2, 3, 0);
    both.flags = TESS_PATTERN_BIDIRECTIONAL;
    tess_layout *other = make_layout(runtime, &both, HEADS, KV_HEADS, 100);
    assert_int_equal(TESS_ERROR_NATIVE, tess_plan_create(device, other, &d, &none));
    assert_int_equal(0, rig.key.turns);
    rig.kernel.turns = 0;
    assert_int_equal(TESS_OK, tess_plan_create(device, other, &d, &none));
    tess_plan_release(none);
    tess_layout_release(other);
}

/* Where columns are few, the long ones are cut by query heads, if the kernel can add up parts:
 * their sums have workspace behind the strips. */
static void test_parts(void **state) {
    (void)state;
    enum { SUM_BYTES = 2 * DIM * 4 + 8 };
    const tess_pattern dense = {.struct_size = sizeof dense, .block = 4};
    static const struct {
        uint32_t sum_bytes, workers, flags, parts;
        int64_t keys;
    } cases[] = {{SUM_BYTES, 64, 0, 2, KEYS},
                 {0, 64, 0, 1, KEYS},
                 {SUM_BYTES, 1, 0, 1, KEYS},
                 {SUM_BYTES, 64, 0, 1, 200000},
                 {SUM_BYTES, 64, TESS_PLAN_BATCH_INVARIANT, 1, KEYS},
                 {SUM_BYTES, 64, 0, 1, 4 /* steps are too few for two parts */}};
    tess_layout_release(layout);
    layout = make_layout(runtime, &dense, HEADS, KV_HEADS, 200000);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        tess_plan_desc d = plan_desc();
        d.flags = cases[n].flags;
        d.kv_len = cases[n].keys;
        if (cases[n].keys < ROWS) d.q_len = cases[n].keys;
        rig.kernel.step_rows = 1;
        rig.kernel.stages = ONE_PASS;
        rig.kernel.sum_bytes = cases[n].sum_bytes;
        rig.caps.parallel_jobs = cases[n].workers;
        tess_device_release(device);
        device = open_device(runtime);
        run_replan(&d);
        const uint64_t keys = (uint64_t)(BATCH * cases[n].keys * KV_HEADS),
                       sums = plan->memory.n_sums, strips = plan->memory.n_strips;
        uint64_t columns = 0;
        for (uint64_t c = 0; c < plan->memory.n_columns; c++)
            if (c >= plan->n_cut_columns * plan->column_parts || c % plan->column_parts == 0)
                columns += plan->tables.columns[c].keys;
        assert_int_equal(cases[n].parts, plan->column_parts);
        assert_int_equal(keys, columns);
        assert_true(cases[n].parts > 1 ? sums > 0 : sums == 0);
        if (sums == 0) continue;
        /* on the first boundary behind the strips */
        assert_in_range(plan->memory.sums_at - (64 + strips * HEADS * 100), 0, 63);
        assert_int_equal(plan->memory.sums_at + sums * SUM_BYTES, plan->memory.workspace_bytes);
        fill(plan);
        launched();
        assert_int_equal(plan->column_parts, rig.launch.column_parts);
        assert_int_equal(sums, rig.launch.n_sums);
        assert_int_equal(plan->n_cut_columns, rig.launch.n_cut_columns);
        assert_true(sums <= plan->n_cut_columns);
        assert_int_equal(plan->memory.sums_at, rig.launch.sums_at);
    }
}

static uint64_t rows_of_column(uint64_t c) {
    const tess_column *column = &plan->tables.columns[c];
    uint64_t rows = 0;
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *s = &plan->tables.segments[column->segment + n];
        rows += (uint64_t)s->rows * s->heads;
    }
    return rows;
}

/* Layers as ranks have them that share a model's heads are cut on 132 multiprocessors, and so are
 * the strided keys of few kv heads: until no column takes longer than twice a multiprocessor's
 * share of all. Their sums take 7.5 MiB at most. */
static void test_few_columns(void **state) {
    (void)state;
    enum { UNITS = 132, TILE = 128, SUMS = 8 + 2 * TILE * TILE * 4 };
    static const struct {
        int64_t batch, tokens;
        int32_t heads, kv_heads, block, stride, local;
        uint32_t parts;
    } cases[] = {{1, 8192, 8, 1, 0, 0, 0, 4},      {1, 4096, 8, 1, 0, 0, 0, 8},
                 {1, 4096, 16, 2, 0, 0, 0, 4},     {1, 7936, 5, 1, 0, 0, 0, 5},
                 {1, 1024, 32, 8, 0, 0, 0, 4},     {4, 1024, 8, 1, 0, 0, 0, 8},
                 {1, 2048, 32, 8, 0, 0, 0, 4},     {1, 16384, 8, 1, 0, 0, 0, 4},
                 {1, 32768, 8, 1, 0, 0, 0, 1},     {1, 32768, 32, 4, 48, 24, 31, 2},
                 {1, 65536, 8, 1, 64, 16, 8, 8},   {1, 16384, 8, 1, 64, 16, 8, 16},
                 {1, 131072, 1, 1, 64, 64, 8, 16}, {1, 131072, 4, 4, 64, 64, 8, 4},
                 {1, 4096, 2, 2, 0, 0, 0, 4},      {1, 2048, 8, 8, 0, 0, 0, 1},
                 {1, 16384, 1, 1, 0, 0, 0, 4},     {1, 65536, 1, 1, 0, 0, 0, 1}};
    uint64_t more = 0;
    rig.caps.parallel_jobs = UNITS;
    rig.kernel.stages = ONE_PASS;
    rig.kernel.tile_keys = TILE;
    rig.kernel.step_rows = rig.kernel.strip_rows = 64;
    rig.kernel.sum_bytes = SUMS;
    tess_device_release(device);
    device = open_device(runtime);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const tess_pattern dense = {.struct_size = sizeof dense};
        tess_pattern s2 = s2_pattern(cases[n].block, cases[n].local, cases[n].stride, 0);
        s2.flags = TESS_PATTERN_PER_KV_HEAD;
        tess_plan_desc d = plan_desc();
        uint64_t all = 0, longest = 0;
        d.batch = cases[n].batch;
        d.q_len = d.kv_len = cases[n].tokens;
        tess_layout_release(layout);
        layout = make_layout(runtime, cases[n].block ? &s2 : &dense, cases[n].heads,
                             cases[n].kv_heads, d.kv_len);
        run_replan(&d);
        assert_int_equal(cases[n].parts, plan->column_parts);
        if (cases[n].parts == 1) continue;
        assert_in_range(plan->memory.n_sums * SUMS, SUMS, 15 << 19);
        assert_int_equal(plan->memory.n_sums, smaller(plan->n_cut_columns, (15 << 19) / SUMS));
        more += plan->memory.n_sums < plan->n_cut_columns;
        for (uint64_t c = 0; c < plan->memory.n_columns; c++) {
            const uint64_t rows = rows_of_column(c);
            all += rows;
            if (rows > longest) longest = rows;
        }
        assert_true(longest <= all / UNITS * 2);
        /* all of a dense kv head's; of S2 the strided keys' alone */
        if (n == 1 || cases[n].tokens == 65536) assert_int_equal(32, plan->n_cut_columns);
    }
    assert_true(more > 0); /* of some plan, sums' places are used again */
}

/* Sequences without rows or without keys are there, and every row has its strip. */
static void test_tables(void **state) {
    (void)state;
    static const int64_t q[] = {0, 13, 13, 37, 37, 38}, kv[] = {0, 13, 20, 20, 20, 30};
    tess_plan_desc d = plan_desc();
    d.batch = 5; /* 13 and 13, 0 and 7, 24 and 0, 0 and 0, 1 and 10 */
    d.cu_q_lens = q;
    d.cu_kv_lens = kv;
    d.q_len = d.kv_len = 0;
    for (int one = 0; one < 2; one++) {
        rig.kernel.stages = one ? ONE_PASS : TWO_PASSES;
        remake(&d);
        assert_int_equal(4, plan->n_sequences);
        assert_int_equal(0, plan->sequences[1].q_len);
        assert_int_equal(0, plan->sequences[2].kv_len);
        assert_int_equal(2 + 0 + 2 + 1, plan->memory.n_strips);
        const uint32_t first[] = {0, 2, 2, 4};
        const tess_strip strips[] = {{0, 0}, {0, 12}, {2, 0}, {2, 12}, {3, 0}};
        assert_memory_equal(first, plan->tables.first_strips, sizeof first);
        assert_memory_equal(strips, plan->tables.strips, sizeof strips);
        /* the kernel's scratch, then the strips on the next boundary */
        assert_int_equal(64, plan->memory.strips_at);
        assert_int_equal(64 + 5 * HEADS * 100, plan->memory.workspace_bytes);
        uint64_t keys = 0, rows = 0;
        for (uint64_t n = 0; n < plan->memory.n_columns; n++) keys += plan->tables.columns[n].keys;
        for (uint64_t n = 0; n < plan->memory.n_jobs; n++) rows += plan->tables.jobs[n].rows;
        assert_int_equal(30 * KV_HEADS, keys);
        assert_int_equal(one ? 0 : 38 * HEADS, rows);
        tess_plan_info info = {.struct_size = sizeof info};
        assert_int_equal(TESS_OK, tess_plan_query(plan, &info));
        assert_int_equal(5 + plan->memory.n_columns + (one ? 5 : plan->memory.n_jobs), info.n_jobs);
        assert_int_equal(plan->memory.n_columns, info.n_columns);
        assert_int_equal(8, info.tile_keys);
        assert_int_equal(0, info.n_merge_jobs);
        assert_true(info.flops == 10.0 * DIM * (double)info.kept_pairs);
        assert_int_equal(rig.kernel.stages, launched());
    }
}

/* Keys alone, and rows alone: gradients are written. Nothing at all is a success. */
static void test_nothing(void **state) {
    (void)state;
    tess_plan_desc d = plan_desc();
    d.q_len = 0;
    remake(&d);
    assert_int_equal(BATCH, plan->n_sequences);
    run.q.buffer.kind = run.o.buffer.kind = run.d_o.buffer.kind = TESS_BUFFER_NONE;
    assert_int_equal(TESS_STAGE_COLUMNS, launched());
    d = plan_desc();
    d.kv_len = 0;
    remake(&d);
    run.k.buffer.kind = run.v.buffer.kind = TESS_BUFFER_NONE;
    assert_int_equal(TESS_STAGE_DELTA | TESS_STAGE_ROWS, launched());
    d.q_len = 0;
    remake(&d);
    assert_int_equal(0, launched());
    d = plan_desc();
    d.batch = 0;
    remake(&d);
    assert_int_equal(0, launched());
}

/* ------------------------------------------------------------------ runs */

static void test_wanted(void **state) {
    (void)state;
    const tess_plan_desc d = plan_desc();
    for (int one = 0; one < 2; one++) {
        rig.kernel.stages = one ? ONE_PASS : TWO_PASSES;
        remake(&d);
        for (uint32_t wanted = 1; wanted < 8; wanted++) {
            fill(plan);
            tess_tensor *const all[] = {&run.d_q, &run.d_k, &run.d_v};
            for (int n = 0; n < 3; n++)
                if (!(wanted >> n & 1)) all[n]->buffer.kind = TESS_BUFFER_NONE;
            const bool rows = wanted & 1, keys = wanted & 6;
            uint32_t stages = TESS_STAGE_DELTA;
            if (rows) stages |= one ? TESS_STAGE_FINISH : TESS_STAGE_ROWS;
            if (keys || one) stages |= TESS_STAGE_COLUMNS;
            assert_int_equal(stages, launched());
            assert_int_equal(plan->memory.strips_at, rig.launch.strips_at);
            assert_int_equal(plan->memory.n_strips, rig.launch.n_strips);
            assert_int_equal(plan->memory.n_columns, rig.launch.n_columns);
        }
    }
    run.d_q.buffer.kind = run.d_k.buffer.kind = run.d_v.buffer.kind = TESS_BUFFER_NONE;
    refused(TESS_ERROR_INVALID, "d_q");
}

/* Every job of every stage is in one range, in order. */
static void test_ranges(void **state) {
    (void)state;
    uint64_t without = 0;
    for (int one = 0; one < 3; one++) {
        rig.kernel.stages = one ? ONE_PASS : TWO_PASSES;
        rig.kernel.step_rows = rig.kernel.strip_rows;
        rig.kernel.turns = one == 2;
        rig.caps.range_blocks = 7;
        tess_device_release(device);
        device = open_device(runtime);
        const tess_plan_desc d = plan_desc();
        remake(&d);
        uint64_t at[TESS_STAGES] = {0}, end = 0, ranges = 0;
        for (uint64_t first, count; ranges < plan->n_ranges; ranges++) {
            assert_int_equal(TESS_OK, tess_plan_range(plan, ranges, &first, &count));
            assert_int_equal(end, first);
            end += count;
            run.first_job = first;
            run.job_count = count;
            launched();
            for (int n = 0; n < rig.launches; n++)
                for (uint32_t stage = 0; stage < TESS_STAGES; stage++) {
                    if (rig.ranges[n].stage != 1u << stage) continue;
                    assert_int_equal(at[stage], rig.ranges[n].first_job);
                    at[stage] += rig.ranges[n].n_jobs;
                }
        }
        /* a turn is no step */
        assert_true(ranges > 10 && (one < 2 || ranges < 2 * without));
        without = ranges;
        assert_int_equal(tess_plan_jobs(plan), end);
        for (uint32_t n = 0; n < TESS_STAGES; n++)
            assert_int_equal(tess_plan_stage(plan, n), at[n]);
        run.first_job = end;
        refused(TESS_ERROR_INVALID, "first_job");
        run.job_count = end + 1;
        refused(TESS_ERROR_INVALID, "job_count");
    }
}

static void test_missing(void **state) {
    (void)state;
    for (size_t n = 0; n < TENSORS; n++) {
        tensor(n)->buffer.kind = TESS_BUFFER_NONE;
        if (tensors[n].required)
            refused(TESS_ERROR_INVALID, tensors[n].name);
        else
            launched();
        fill(plan);
        tensor(n)->stride_token = -1;
        refused(TESS_ERROR_INVALID, tensors[n].name);
        tensor(n)->buffer.size = 100;
        refused(TESS_ERROR_INVALID, tensors[n].name);
    }
    run.workspace.size = run.workspace.offset + plan->memory.workspace_bytes;
    launched();
    run.workspace.size--;
    refused(TESS_ERROR_INVALID, "workspace");
    run.stream.extra = &run;
    refused(TESS_ERROR_UNSUPPORTED, "stream.extra");
    run.k_scale.buffer = region(0);
    refused(TESS_ERROR_INVALID, "k_scale");
}

/* Strides of inputs may be 0; those of gradients keep elements apart. */
static void test_strides(void **state) {
    (void)state;
    run.d_o.stride_batch = run.d_o.stride_token = run.d_o.stride_head = 0;
    launched();
    run.d_q.stride_token = 0;
    refused(TESS_ERROR_INVALID, "d_q");
    run.d_k.stride_head = DIM - 1;
    refused(TESS_ERROR_INVALID, "d_k");
    run.d_v.stride_batch = KEYS * KV_HEADS * DIM - 1;
    refused(TESS_ERROR_INVALID, "d_v");
    run.d_v.stride_batch = KEYS * KV_HEADS * DIM;
    launched();
}

static void test_overlaps(void **state) {
    (void)state;
    static const size_t outputs[] = {7, 8, 9};
    for (size_t o = 0; o < 3; o++)
        for (size_t n = 0; n < TENSORS; n++) {
            if (n == outputs[o]) continue;
            tensor(outputs[o])->buffer = tensor(n)->buffer;
            const int launches = rig.launches;
            assert_int_equal(TESS_ERROR_INVALID, tess_run(plan, &run));
            assert_int_equal(launches, rig.launches);
            assert_non_null(strstr(tess_last_error(), "overlap"));
            fill(plan);
        }
    /* The workspace lies apart from all of them, or between rows. */
    for (size_t n = 0; n < TENSORS; n++) {
        run.workspace = tensor(n)->buffer;
        refused(TESS_ERROR_INVALID, "workspace");
    }
    run.d_q.stride_batch += 64 * (int64_t)plan->memory.workspace_bytes;
    run.d_q.buffer.size = 0;
    run.workspace = run.d_q.buffer;
    run.workspace.offset += (uint64_t)ROWS * HEADS * DIM * 2 / 64 * 64 + 64;
    launched();
    fill(plan);
    /* all three alternate in one buffer, with as many rows as keys */
    tess_plan_desc d = plan_desc();
    d.kv_len = ROWS;
    remake(&d);
    const int64_t token = (HEADS + 2 * KV_HEADS) * DIM;
    tess_tensor *const parts[] = {&run.d_q, &run.d_k, &run.d_v};
    for (int n = 0; n < 3; n++) {
        parts[n]->buffer = region(7);
        parts[n]->buffer.offset = 2 * DIM * (uint64_t)(n == 0 ? 0 : HEADS + (n - 1) * KV_HEADS);
        parts[n]->stride_token = token;
        parts[n]->stride_batch = token * ROWS;
    }
    launched();
    run.d_v.buffer.offset -= 2;
    refused(TESS_ERROR_INVALID, "d_v");
}

/* Gradients of float32 have twice the bytes. */
static void test_wide(void **state) {
    (void)state;
    uint64_t bytes[2][3];
    for (int wide = 0; wide < 2; wide++) {
        tess_plan_desc d = plan_desc();
        if (wide) d.flags = TESS_PLAN_DQ_F32 | TESS_PLAN_DKV_F32 | TESS_PLAN_DKV_ADD;
        remake(&d);
        for (int n = 0; n < 3; n++) {
            tess_tensor t;
            assert_int_equal(TESS_OK, tess_plan_tensor(plan, (tess_role)(TESS_ROLE_D_Q + n),
                                                       region(0), &t, &bytes[wide][n]));
        }
        launched();
        assert_int_equal(d.flags, rig.launch.gradients);
        assert_int_equal(bytes[wide][0], rig.launch.bytes[TESS_ROLE_D_Q]);
        assert_int_equal(bytes[wide][2], rig.launch.bytes[TESS_ROLE_D_V]);
        run.d_k.buffer.size = run.d_k.buffer.offset + bytes[wide][1] - 1;
        refused(TESS_ERROR_INVALID, "d_k");
    }
    for (int n = 0; n < 3; n++) assert_int_equal(2 * bytes[0][n], bytes[1][n]);
    run.d_q.buffer.offset = 2; /* float32 lies on 4 bytes */
    refused(TESS_ERROR_INVALID, "d_q");
}

/* The other operation's tensors. */
static void test_forward(void **state) {
    (void)state;
    tess_plan_desc d = plan_desc();
    tess_tensor t;
    d.op = TESS_OP_FORWARD;
    tess_plan *forward = make_plan(device, layout, &d);
    assert_int_equal(TESS_OK, tess_run(plan, &run));
    assert_error(tess_run(forward, &run), TESS_ERROR_INVALID, "tess_run", "d_o");
    assert_error(tess_plan_tensor(forward, TESS_ROLE_D_Q, region(0), &t, NULL), TESS_ERROR_INVALID,
                 "tess_plan_tensor", "role");
    tess_plan_release(forward);
}

static void test_failing_memory(void **state) {
    (void)state;
    const tess_plan_desc d = plan_desc();
    uint64_t failed = 0;
    rig.kernel.stages = ONE_PASS;
    rig.kernel.step_rows = rig.kernel.strip_rows;
    rig.kernel.turns = 1;
    for (uint64_t at = 1;; at++) {
        tess_plan *made = NULL;
        const uint64_t live = heap.live;
        heap.calls = 0;
        heap.fail_at = at;
        const tess_status status = tess_plan_create(device, layout, &d, &made);
        heap.fail_at = 0;
        tess_plan_release(made);
        assert_int_equal(live, heap.live);
        if (status == TESS_OK) break;
        assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
        failed++;
    }
    assert_true(failed > 8);
}

/* The tables of 131,072 tokens and 64 heads, columns included: 64 bytes a job, and 24 for each
 * segment of a column after its first. What there is once in a plan, or once a class, is little
 * beside these. */
static void test_bytes(void **state) {
    (void)state;
    enum { TOKENS = 131072, MANY = 64, LITTLE = 65536 };
    const tess_pattern all[] = {s2_pattern(64, 8, MANY, 0),
                                s2_pattern(16, 8, 16, 0),
                                {.struct_size = sizeof *all, .kind = TESS_PATTERN_DENSE}};
    rig.kernel.tile_rows = rig.kernel.tile_keys = rig.kernel.strip_rows = 128;
    rig.kernel.tile_step = rig.kernel.step_rows = 64;
    for (int n = 0; n < 12; n++) {
        rig.kernel.stages = n / 6 ? ONE_PASS : TWO_PASSES;
        tess_layout *large = make_layout(runtime, &all[n / 2 % 3], MANY, n % 2 ? 8 : MANY, TOKENS);
        tess_plan_desc d = plan_desc();
        d.batch = 1;
        d.q_len = d.kv_len = TOKENS;
        tess_plan *made = make_plan(device, large, &d);
        tess_plan_info info = {.struct_size = sizeof info};
        assert_int_equal(TESS_OK, tess_plan_query(made, &info));
        const tess_memory_plan *m = &made->memory;
        assert_true(m->n_columns > 0 && m->n_segments >= m->n_columns);
        assert_true(info.host_bytes + info.device_bytes <=
                    64 * info.n_jobs + 24 * (m->n_segments - m->n_columns) + LITTLE);
        tess_plan_release(made);
        tess_layout_release(large);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        setup, run_teardown, TEST(test_refusals), TEST(test_positions), TEST(test_refusing_kernels),
        TEST(test_kernels), TEST(test_key), TEST(test_turns), TEST(test_parts),
        TEST(test_few_columns), TEST(test_tables), TEST(test_nothing), TEST(test_wanted),
        TEST(test_ranges), TEST(test_missing), TEST(test_strides), TEST(test_overlaps),
        TEST(test_wide), TEST(test_forward), TEST(test_failing_memory), TEST(test_bytes));
}

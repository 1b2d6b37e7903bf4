/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that share memory: the overlap search against marked bytes, and what tess_run refuses. */
#include "fixtures/runs.h"

#include "overlap.h"

/* ------------------------------------------------------------------ boxes */

enum { SPACE = 1 << 16 };
static uint8_t marks[SPACE];

/* Visits every byte: sets it, or tells whether one is set. */
static bool visit(const tess_box *box, bool set) {
    for (uint64_t i = 0; i < box->count[0]; i++)
        for (uint64_t j = 0; j < box->count[1]; j++)
            for (uint64_t k = 0; k < box->count[2]; k++) {
                uint64_t at =
                    box->address + i * box->stride[0] + j * box->stride[1] + k * box->stride[2];
                for (uint64_t n = at; n < at + box->row_bytes; n++) {
                    assert_true(n < SPACE);
                    if (!set && marks[n]) return true;
                    marks[n] = set;
                }
            }
    return false;
}

static bool really_meet(const tess_box *a, const tess_box *b) {
    memset(marks, 0, sizeof marks);
    visit(a, true);
    return visit(b, false);
}

/* Nested strides are those of tensors: each dimension goes beyond all that are below it. */
static tess_box random_box(uint64_t *seed, bool nested) {
    tess_box box = {.address = (uint64_t)test_between(seed, 0, 400),
                    .row_bytes = (uint64_t)test_between(seed, 1, 8)};
    uint64_t extent = box.row_bytes;
    int order[3] = {0, 1, 2};
    for (int n = 2; n > 0; n--) {
        int other = (int)test_between(seed, 0, n), kept = order[n];
        order[n] = order[other];
        order[other] = kept;
    }
    for (int n = 0; n < 3; n++) {
        int d = order[n];
        box.count[d] = (uint64_t)test_between(seed, 1, 5);
        box.stride[d] = nested ? extent * (uint64_t)test_between(seed, 1, 3)
                               : (uint64_t)test_between(seed, 0, 60);
        if (nested && test_between(seed, 0, 3) == 0)
            box.stride[d] += (uint64_t)test_between(seed, 0, 5);
        extent += (box.count[d] - 1) * box.stride[d];
    }
    return box;
}

static void test_boxes(void **state) {
    (void)state;
    uint64_t seed = 11, met = 0, found = 0, apart = 0;
    for (int n = 0; n < 20000; n++) {
        tess_box a = random_box(&seed, n % 3 != 0), b = random_box(&seed, n % 3 == 1);
        bool really = really_meet(&a, &b), says = tess_boxes_meet(&a, &b);
        if (says && !really) fail_msg("pair %d: said to meet", n);
        if (n % 3 == 1 && !says && really) fail_msg("pair %d: nested, and not found", n);
        met += really;
        found += says;
        apart += !really;
    }
    assert_true(apart > 2000 && met > 2000);
    assert_true(met - found < met / 100); /* of strides without any order some need more steps */
}

/* Boxes without gaps meet where their ends say, whatever the order of their dimensions; of any
 * size, those of real tensors among them. */
static void test_boxes_without_gaps(void **state) {
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    uint64_t seed = 23, n_meet = 0;
    enum { PAIRS = 50000 };
    for (int n = 0; n < PAIRS; n++) {
        tess_box box[2];
        uint64_t end[2], heads = (uint64_t)test_between(&seed, 1, 64),
                         tokens = (uint64_t)test_between(&seed, 1, n % 2 ? 100 : 100000);
        const uint64_t batches = (uint64_t)test_between(&seed, 1, 8),
                       row = 16 * (uint64_t)test_between(&seed, 1, 64);
        for (int b = 0; b < 2; b++) {
            const int *order = orders[test_between(&seed, 0, 5)];
            const bool other = b && test_between(&seed, 0, 2) == 0;
            box[b] = (tess_box){
                .address = UINT64_C(1) << 40,
                .row_bytes = b && test_between(&seed, 0, 3) == 0 ? 4 : row,
                .count = {other ? (heads + 3) / 4 : heads, other ? tokens + 7 : tokens, batches}};
            end[b] = box[b].row_bytes;
            for (int d = 0; d < 3; d++) {
                box[b].stride[order[d]] = end[b];
                end[b] *= box[b].count[order[d]];
            }
        }
        const int64_t before = -(int64_t)end[1], after = (int64_t)end[0],
                      kind = test_between(&seed, 0, 2);
        box[1].address += (uint64_t)(kind == 0   ? test_between(&seed, before - 300, after + 300)
                                     : kind == 1 ? test_between(&seed, before - 30, before + 30)
                                                 : test_between(&seed, after - 30, after + 30));
        const bool meet =
            box[0].address < box[1].address + end[1] && box[1].address < box[0].address + end[0];
        if (tess_boxes_meet(&box[0], &box[1]) != meet)
            fail_msg("pair %d: %s", n, meet ? "not found" : "said to meet");
        n_meet += meet;
    }
    assert_true(n_meet > PAIRS / 4 && n_meet < PAIRS - PAIRS / 8);
}

/* Sizes whose sum overflows, and a search that exceeds its limit of steps. */
static void test_limits(void **state) {
    (void)state;
    tess_box a = {4096, 64, {1, 1, 1}, {0, 0, 0}}, b = a;
    assert_true(tess_boxes_meet(&a, &b));
    b.count[2] = 3;
    b.stride[2] = UINT64_C(1) << 62;
    assert_false(tess_boxes_meet(&a, &b));
    b.stride[2] = UINT64_MAX;
    assert_false(tess_boxes_meet(&a, &b));
    b.count[2] = 1; /* the stride of one is not looked at */
    assert_true(tess_boxes_meet(&a, &b));
    a = (tess_box){1 << 20, 1, {1000, 1000, 1000}, {1009 * 2, 1013 * 2, 1019 * 2}};
    b = (tess_box){(1 << 20) + 1, 1, {1000, 1000, 1000}, {1021 * 2, 1031 * 2, 1033 * 2}};
    assert_false(tess_boxes_meet(&a, &b));
}

/* ------------------------------------------------------------------ runs */

enum { HEADS = 4, KV_HEADS = 2, DIM = 8, BATCH = 3, ROWS = 5, KEYS = 7 };

/* never touched: the backend of the test only remembers */
static _Alignas(64) float memory[1 << 16];
static const char *const names[] = {"q", "k", "v", "o", "lse"};

static tess_tensor *tensor(int role) {
    tess_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    return tensors[role];
}

static void fill(void) {
    memset(&run, 0, sizeof run);
    run.struct_size = sizeof run;
    for (int n = 0; n < 5; n++)
        assert_int_equal(TESS_OK,
                         tess_plan_tensor(plan, (tess_role)n,
                                          tess_host_buffer(memory + n * 8192, 0), tensor(n), NULL));
}

static void remake(const tess_plan_desc *d) {
    run_replan(d);
    fill();
}

static tess_plan_desc plan_desc(void) { return plan_of(DIM, BATCH, ROWS, KEYS); }

static int setup(void **state) {
    runtime_setup(state);
    device = open_device(runtime);
    const tess_pattern p = {.struct_size = sizeof p, .kind = TESS_PATTERN_DENSE};
    layout = make_layout(runtime, &p, HEADS, KV_HEADS, 100);
    plan = NULL;
    const tess_plan_desc d = plan_desc();
    remake(&d);
    return 0;
}

static void accepted(void) {
    if (tess_run(plan, &run) != TESS_OK) fail_msg("%s", tess_last_error());
}

/* The message names both tensors. */
static void refused(const char *field, const char *other) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "must not overlap %s,", other);
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", field);
    assert_error_has(wanted);
    fill();
}

/* Each output placed on each tensor before it, from that tensor's first byte to one past its
 * last. */
static void overlay_all(void) {
    for (int out = TESS_ROLE_O; out <= TESS_ROLE_LSE; out++) {
        for (int other = TESS_ROLE_Q; other < out; other++) {
            accepted();
            tensor(out)->buffer.handle = tensor(other)->buffer.handle;
            refused(names[out], names[other]);
            accepted();
            const tess_launch *l = &rig.launch;
            const uint64_t *bytes = l->bytes;
            assert_true(bytes[out] > 0 && bytes[other] > 0);
            tensor(out)->buffer.handle = tensor(other)->buffer.handle + bytes[other];
            accepted();
            tensor(out)->buffer.handle = tensor(other)->buffer.handle - bytes[out];
            accepted();
            fill();
        }
    }
    run.lse.buffer = (tess_buffer){.kind = TESS_BUFFER_NONE, .handle = run.o.buffer.handle};
    accepted();
    fill();
    /* inputs may share what they like */
    run.k.buffer.handle = run.v.buffer.handle = run.q.buffer.handle;
    accepted();
    fill();
}

static void test_plain(void **state) {
    (void)state;
    tess_plan_desc d = plan_desc();
    overlay_all();
    /* one element */
    run.o.buffer.handle = run.q.buffer.handle + (uint64_t)(BATCH * ROWS * HEADS * DIM - 1) * 4;
    refused("o", "q");
    run.o.buffer.offset = (uint64_t)run.v.stride_batch * 4; /* the offset counts like the address */
    run.o.buffer.handle = run.v.buffer.handle;
    refused("o", "v");
    const int64_t q_lens[] = {2, 0, 5}, kv_lens[] = {3, 7, 6}, cu_q[] = {0, 2, 2, 7},
                  cu_kv[] = {0, 3, 3, 9};
    d.q_lens = q_lens;
    d.kv_lens = kv_lens;
    remake(&d);
    overlay_all();
    d = plan_desc();
    d.cu_q_lens = cu_q;
    d.cu_kv_lens = cu_kv;
    remake(&d);
    overlay_all();
    d = plan_desc();
    d.kv_len = 0; /* no key is read, so O may lie where they would be */
    remake(&d);
    run.o.buffer.handle = run.k.buffer.handle;
    accepted();
}

/* Bytes of buffer objects have no address: the offset within one object decides. */
static void test_objects(void **state) {
    (void)state;
    rig.caps.buffer_kind = TESS_BUFFER_OBJECT;
    tess_device_release(device);
    device = open_device(runtime);
    const tess_plan_desc d = plan_desc();
    remake(&d);
    for (int n = 0; n < 5; n++)
        tensor(n)->buffer =
            (tess_buffer){.kind = TESS_BUFFER_OBJECT, .handle = 3, .offset = (uint64_t)n * 8192};
    accepted();
    run.o.buffer.offset = run.k.buffer.offset;
    assert_int_equal(TESS_ERROR_INVALID, tess_run(plan, &run));
    assert_error_has("must not overlap k,");
    run.o.buffer.handle = 4;
    accepted();
}

/* The workspace is written while the block table is read. */
static void test_block_table(void **state) {
    (void)state;
    enum { PAGE = 16, PAGES = 8 };
    tess_plan_desc d = plan_desc();
    d.page = PAGE;
    rig.caps.features |= TESS_FEATURE_PAGES;
    rig.kernel.scratch_bytes = 4096;
    tess_device_release(device);
    device = open_device(runtime);
    run_replan(&d);
    memset(&run, 0, sizeof run);
    run.struct_size = sizeof run;
    for (int n = 0; n < 5; n++) {
        const tess_buffer own = tess_host_buffer(memory + n * 8192, 0);
        if (n == TESS_ROLE_K || n == TESS_ROLE_V)
            *tensor(n) = (tess_tensor){own, PAGE * KV_HEADS * DIM, KV_HEADS * DIM, DIM};
        else
            assert_int_equal(TESS_OK, tess_plan_tensor(plan, (tess_role)n, own, tensor(n), NULL));
    }
    run.pages = PAGES;
    run.table_stride = 1;
    run.block_table = tess_host_buffer(memory + 5 * 8192, 0);
    run.workspace = tess_host_buffer(memory + 6 * 8192, 0);
    accepted();
    run.block_table = run.workspace;
    run.block_table.offset = plan->memory.workspace_bytes - 4;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "workspace");
    assert_error_has("must not overlap block_table,");
    run.block_table.offset += 4;
    accepted();
    run.block_table = run.workspace;
    run.workspace.offset = 64; /* a table of three words is before it */
    accepted();
    /* The last row of O of the sequence in the middle. */
    const int64_t q_lens[] = {2, 3, ROWS};
    d.q_lens = q_lens;
    run_replan(&d);
    run.block_table = run.o.buffer;
    run.block_table.offset = (uint64_t)(run.o.stride_batch + 2 * run.o.stride_token) * 4;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "o");
    assert_error_has("must not overlap block_table");
    run.block_table.offset += (uint64_t)run.o.stride_token * 4;
    accepted();
}

/* Where lengths differ, the workspace and the block table lie apart from every sequence, not only
 * from the first and the longest. Between sequences they may lie. */
static void test_middle_sequences(void **state) {
    (void)state;
    enum { ALL = 5, PAGE = 16 };
    /* One sequence has neither rows nor keys, so that no box holds what all have in common. */
    const int64_t q_lens[ALL] = {2, 3, 0, 4, 5}, kv_lens[ALL] = {3, 4, 0, 6, 7};
    const int64_t cu_q[] = {0, 2, 5, 5, 9, 14}, cu_kv[] = {0, 3, 7, 12, 18, 25};
    rig.kernel.scratch_bytes = 64;
    for (int packed = 0; packed < 2; packed++) {
        tess_plan_desc d = plan_desc();
        d.batch = ALL;
        if (packed) {
            d.cu_q_lens = cu_q;
            d.cu_kv_lens = cu_kv;
        } else {
            d.q_lens = q_lens;
            d.kv_lens = kv_lens;
        }
        remake(&d);
        assert_true(plan->memory.workspace_bytes == 64);
        for (int n = TESS_ROLE_Q; n <= TESS_ROLE_O; n++) {
            const bool keys = n == TESS_ROLE_K || n == TESS_ROLE_V;
            for (int b = 0; b < ALL; b++) {
                const int64_t from = packed ? (keys ? cu_kv : cu_q)[b] : 0,
                              tokens = packed ? (keys ? cu_kv : cu_q)[b + 1] - from
                                              : (keys ? kv_lens : q_lens)[b];
                const int64_t at =
                    packed ? from * tensor(n)->stride_token : b * tensor(n)->stride_batch;
                run.workspace = tensor(n)->buffer;
                run.workspace.offset = (uint64_t)at * 4;
                /* Keys of a sequence without rows are not read. */
                if (tokens > 0 && q_lens[b] > 0) {
                    refused("workspace", names[n]);
                    run.workspace = tensor(n)->buffer;
                    run.workspace.offset =
                        (uint64_t)(at + tokens * tensor(n)->stride_token) * 4 - 64;
                    refused("workspace", names[n]);
                } else if (!packed || tokens > 0) {
                    accepted();
                    fill();
                }
            }
        }
    }
}

/* Q, K, V and O as parts of one array, in every order that is in use. */
static void test_interleaved(void **state) {
    (void)state;
    const int64_t all = 2 * HEADS + 2 * KV_HEADS,
                  first[] = {0, HEADS, HEADS + KV_HEADS, HEADS + 2 * KV_HEADS};
    for (int order = 0; order < 4; order++) {
        tess_plan_desc d = plan_desc();
        if (order == 3) d.batch = 1;
        d.kv_len = ROWS;
        remake(&d);
        for (int n = 0; n < 4; n++) {
            tess_tensor *t = tensor(n);
            int64_t at = first[n] * DIM;
            t->stride_head = DIM;
            t->stride_token = all * DIM;
            t->stride_batch = ROWS * all * DIM;
            if (order == 1) { /* [batch, head, token] */
                t->stride_token = DIM;
                t->stride_head = ROWS * DIM;
                at *= ROWS;
            }
            /* [batch, token, head, part]; K and V leave every second place free */
            if (order == 2) {
                t->stride_head = 4 * DIM;
                t->stride_token = HEADS * 4 * DIM;
                t->stride_batch = ROWS * HEADS * 4 * DIM;
                at = n * DIM;
            }
            t->buffer = tess_host_buffer(memory + at, 0);
        }
        accepted();
        run.o.buffer.handle += 4; /* the last element of a row becomes the first of what follows */
        assert_int_equal(TESS_ERROR_INVALID, tess_run(plan, &run));
        run.o.buffer.handle -= 4;
        run.o.buffer.handle -= DIM * 4; /* upon the tensor before it */
        assert_int_equal(TESS_ERROR_INVALID, tess_run(plan, &run));
        assert_error_has("must not overlap v,");
        fill();
    }
}

/* Bytes of the elements of a tensor that the plan's sequences have. */
static bool visit_tensor(int role, const int64_t *q_lens, const int64_t *kv_lens,
                         const int64_t *cu_q, const int64_t *cu_kv, bool set) {
    const tess_tensor *t = tensor(role);
    const bool keys = role == TESS_ROLE_K || role == TESS_ROLE_V;
    const int64_t heads = keys ? KV_HEADS : HEADS, row = role == TESS_ROLE_LSE ? 1 : DIM;
    bool met = false;
    for (int64_t b = 0; b < BATCH; b++) {
        int64_t start = !cu_q  ? 0
                        : keys ? cu_kv[b]
                               : cu_q[b],
                tokens = keys ? kv_lens[b] : q_lens[b];
        if (q_lens[b] == 0 || tokens == 0) continue;
        tess_box box = {.address = t->buffer.handle - (uint64_t)(uintptr_t)memory,
                        .row_bytes = (uint64_t)row * 4,
                        .count = {(uint64_t)heads, (uint64_t)tokens, 1},
                        .stride = {(uint64_t)t->stride_head * 4, (uint64_t)t->stride_token * 4, 0}};
        box.address += (uint64_t)(start * t->stride_token + (cu_q ? 0 : b * t->stride_batch)) * 4;
        met |= visit(&box, set);
    }
    return met;
}

/* Tensors that are refused share an element. With equal lengths, tensors that share an element are
 * refused. */
static void test_lengths(void **state) {
    (void)state;
    uint64_t seed = 17, n_refused = 0, n_accepted = 0;
    for (int n = 0; n < 3000; n++) {
        int64_t q_lens[BATCH], kv_lens[BATCH], cu_q[BATCH + 1] = {0}, cu_kv[BATCH + 1] = {0};
        const int64_t kind = test_between(&seed, 0, 2); /* equal, padded, packed */
        tess_plan_desc d = plan_desc();
        for (int b = 0; b < BATCH; b++) {
            q_lens[b] = kind ? test_between(&seed, b == 0, ROWS) : ROWS;
            kv_lens[b] = kind ? test_between(&seed, 0, KEYS) : KEYS;
            cu_q[b + 1] = cu_q[b] + q_lens[b];
            cu_kv[b + 1] = cu_kv[b] + kv_lens[b];
        }
        if (kind == 1) d.q_lens = q_lens, d.kv_lens = kv_lens;
        if (kind == 2) d.cu_q_lens = cu_q, d.cu_kv_lens = cu_kv;
        remake(&d);
        const int64_t pad = test_between(&seed, 0, 2) * DIM, parts = test_between(&seed, 1, 4);
        for (int role = 0; role < 5; role++) {
            tess_tensor *t = tensor(role);
            if (role != TESS_ROLE_LSE) {
                int64_t heads = role == TESS_ROLE_K || role == TESS_ROLE_V ? KV_HEADS : HEADS,
                        most = role == TESS_ROLE_Q || role == TESS_ROLE_O ? ROWS : KEYS;
                t->stride_head = parts * DIM;
                t->stride_token = heads * parts * DIM + pad;
                t->stride_batch = most * t->stride_token;
            }
            t->buffer = tess_host_buffer(memory + role * test_between(&seed, 0, 1) * 2000 +
                                             test_between(&seed, 0, 100) *
                                                 (test_between(&seed, 0, 4) ? DIM : 1),
                                         0);
        }
        bool met = false;
        for (int out = TESS_ROLE_O; out <= TESS_ROLE_LSE; out++) {
            memset(marks, 0, sizeof marks);
            visit_tensor(out, q_lens, kv_lens, kind == 2 ? cu_q : NULL, cu_kv, true);
            for (int other = 0; other < out; other++)
                met |= visit_tensor(other, q_lens, kv_lens, kind == 2 ? cu_q : NULL, cu_kv, false);
        }
        tess_status status = tess_run(plan, &run);
        if (status != TESS_OK) {
            assert_error_has("must not overlap");
            assert_true(met);
        } else if (kind == 0) {
            assert_false(met);
        }
        n_refused += status != TESS_OK;
        n_accepted += status == TESS_OK;
    }
    assert_true(n_refused > 200 && n_accepted > 200);
}

int main(void) {
    return RUN_TESTS_BETWEEN(setup, run_teardown, TEST(test_boxes), TEST(test_boxes_without_gaps),
                             TEST(test_limits), TEST(test_plain), TEST(test_block_table),
                             TEST(test_middle_sequences), TEST(test_objects),
                             TEST(test_interleaved), TEST(test_lengths));
}

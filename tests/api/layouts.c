/* SPDX-License-Identifier: Apache-2.0 */
/* Every bad argument of the functions of runtime, device and layout. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "bad.h"

static tess_runtime *runtime;
static tess_device *device;

static int setup(void **state) {
    (void)state;
    runtime = test_runtime(2);
    device = test_cpu(runtime);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tess_device_release(device);
    tess_runtime_release(runtime);
    return 0;
}

/* ------------------------------------------------------------------ runtime */

static void check_runtime_value(const bad_value *row) {
    tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    bad_apply(row, &desc);
    tess_runtime *made = (tess_runtime *)&desc;
    const tess_status status = tess_runtime_create(&desc, &made);
    bad_check(row, status, "tess_runtime_create");
    if (status == TESS_OK)
        tess_runtime_release(made);
    else
        assert_ptr_equal(made, &desc);
}

static void test_runtime_create(void **state) {
    (void)state;
#define R(member, value, statuses, field) BAD(tess_runtime_desc, member, value, statuses, field)
    const bad_value rows[] = {
        R(struct_size, 0, VER, "desc"),           R(struct_size, 3, VER, "desc"),
        R(struct_size, UINT32_MAX, VER, "desc"),  R(flags, 1, INV, "flags"),
        R(flags, 0x80000000u, INV, "flags"),      R(reserved, 1, INV, "reserved"),
        R(cpu_threads, 1025, INV, "cpu_threads"), R(cpu_threads, UINT32_MAX, INV, "cpu_threads"),
        R(cpu_threads, 1024, FINE, NULL),
    };
    for (size_t n = 0; n < COUNT(rows); n++) check_runtime_value(&rows[n]);
    static const struct {
        const char *name;
        size_t at;
        const char *refused[16], *taken[4];
    } texts[] = {
#define TEXT(member, ...) {#member, offsetof(tess_runtime_desc, member), __VA_ARGS__}
        TEXT(backend,
             {"nonsense", "cpu,nonsense", "cpu:", "cpu:x", "cpu:-1", "cpu:0x0",
              "cpu:99999999999999999999", ",", "cpu,", ",cpu", "cpu,,cpu", " cpu", "CPU"},
             {"cpu:0", ""}),
        TEXT(kernel, {"nonsense", "/", "cpu/", "/portable"}, {NULL}),
        TEXT(verbose, {"nonsense", "errors,", "errors plan"}, {"errors,plan"}),
        TEXT(cache_dir, {"relative", "./relative"}, {NULL}),
        TEXT(tune_file, {"relative"}, {NULL}),
        TEXT(backend_path, {"relative.so", "./relative.so", "/a.so:b.so", "/a.so:"},
             {"/nonexistent/library.so"}),
    };
    for (size_t n = 0; n < COUNT(texts); n++)
        for (size_t v = 0; v < COUNT(texts[n].refused) + COUNT(texts[n].taken); v++) {
            const size_t refused = COUNT(texts[n].refused);
            const char *text = v < refused ? texts[n].refused[v] : texts[n].taken[v - refused];
            const bad_value row = {.title = text,
                                   .at = texts[n].at,
                                   .size = sizeof text,
                                   .integer = (intptr_t)text,
                                   .statuses = v < refused ? INV : FINE,
                                   .field = texts[n].name};
            if (text) check_runtime_value(&row);
        }
    tess_runtime_desc desc = {.struct_size = sizeof desc};
    test_heap heap;
    tess_runtime *made = NULL;
    test_heap_init(&heap, 0, 0);
    assert_error(tess_runtime_create(&desc, NULL), TESS_ERROR_INVALID, "tess_runtime_create",
                 "runtime");
    desc.allocator.alloc = heap.allocator.alloc;
    assert_error(tess_runtime_create(&desc, &made), TESS_ERROR_INVALID, "tess_runtime_create",
                 "allocator");
    desc.allocator.alloc = NULL;
    desc.allocator.free = heap.allocator.free;
    assert_error(tess_runtime_create(&desc, &made), TESS_ERROR_INVALID, "tess_runtime_create",
                 "allocator");
    assert_null(made);
    assert_ok(tess_runtime_create(NULL, &made));
    tess_runtime_release(made);
    tess_runtime_release(NULL);
}

/* The environment: each bad value is refused with the variable's name, and a field of the
 * descriptor beats it. */
static void test_environment(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"TESSERA_BACKEND", "nonsense"},
        {"TESSERA_BACKEND", "cpu:"},
        {"TESSERA_KERNEL", "nonsense"},
        {"TESSERA_VERBOSE", "nonsense"},
        {"TESSERA_CACHE_DIR", "relative"},
        {"TESSERA_TUNE_FILE", "relative"},
        {"TESSERA_CPU_THREADS", "0"},
        {"TESSERA_CPU_THREADS", "-1"},
        {"TESSERA_CPU_THREADS", "1025"},
        {"TESSERA_CPU_THREADS", "2x"},
        {"TESSERA_CPU_THREADS", " 2"},
        {"TESSERA_CPU_THREADS", "1e3"},
        {"TESSERA_CPU_THREADS", "99999999999999999999"},
        {"TESSERA_BACKEND_PATH", "x.so"},
        {"TESSERA_BACKEND_PATH", ":/x.so"},
    };
    for (size_t n = 0; n < COUNT(rows); n++) {
        tess_runtime *made = NULL;
        setenv(rows[n].name, rows[n].value, 1);
        tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
        const tess_status status = tess_runtime_create(&desc, &made);
        if (status != TESS_ERROR_INVALID)
            fail_msg("%s=%s: %s", rows[n].name, rows[n].value, tess_status_name(status));
        assert_error(status, TESS_ERROR_INVALID, "tess_runtime_create", rows[n].name);
        desc.backend = desc.kernel = desc.verbose = desc.cache_dir = desc.tune_file =
            desc.backend_path = "";
        desc.cpu_threads = 1;
        assert_ok(tess_runtime_create(&desc, &made));
        tess_runtime_release(made);
        unsetenv(rows[n].name);
    }
    setenv("TESSERA_CPU_THREADS", "1", 1);
    tess_runtime *made = test_runtime(0);
    unsetenv("TESSERA_CPU_THREADS");
    tess_device *cpu = test_cpu(made);
    tess_device_info info = {.struct_size = sizeof info};
    assert_ok(tess_device_query(cpu, &info));
    assert_int_equal(info.compute_units, 1);
    int found = 0;
    for (uint32_t index = 0;; index++) {
        tess_setting_info setting = {.struct_size = sizeof setting};
        const tess_status status = tess_runtime_setting(made, index, &setting);
        if (status != TESS_OK) {
            assert_error(status, TESS_ERROR_INVALID, "tess_runtime_setting", "index");
            assert_int_equal(index, 7);
            break;
        }
        assert_true(strncmp(setting.name, "TESSERA_", 8) == 0 && setting.value &&
                    strlen(setting.meaning) > 10);
        if (strcmp(setting.name, "TESSERA_CPU_THREADS") != 0) continue;
        assert_string_equal(setting.value, "1");
        assert_string_equal(setting.source, "environment");
        found = 1;
    }
    assert_true(found);
    tess_device_release(cpu);
    tess_runtime_release(made);
}

static void test_runtime_queries(void **state) {
    (void)state;
    tess_backend_info backend = {.struct_size = sizeof backend};
    tess_device_info info = {.struct_size = sizeof info};
    tess_setting_info setting = {.struct_size = sizeof setting};
    tess_rule_info rule = {.struct_size = sizeof rule};
    assert_error(tess_runtime_backend(NULL, 0, &backend), TESS_ERROR_INVALID,
                 "tess_runtime_backend", "runtime");
    assert_error(tess_runtime_backend(runtime, 0, NULL), TESS_ERROR_INVALID, "tess_runtime_backend",
                 "info");
    assert_error(tess_runtime_backend(runtime, 1000, &backend), TESS_ERROR_INVALID,
                 "tess_runtime_backend", "index");
    assert_error(tess_runtime_backend(runtime, UINT32_MAX, &backend), TESS_ERROR_INVALID,
                 "tess_runtime_backend", "index");
    assert_error(tess_runtime_device(NULL, 0, &info), TESS_ERROR_INVALID, "tess_runtime_device",
                 "runtime");
    assert_error(tess_runtime_device(runtime, 0, NULL), TESS_ERROR_INVALID, "tess_runtime_device",
                 "info");
    assert_error(tess_runtime_device(runtime, 1000, &info), TESS_ERROR_INVALID,
                 "tess_runtime_device", "index");
    assert_error(tess_runtime_setting(NULL, 0, &setting), TESS_ERROR_INVALID,
                 "tess_runtime_setting", "runtime");
    assert_error(tess_runtime_setting(runtime, 0, NULL), TESS_ERROR_INVALID, "tess_runtime_setting",
                 "info");
    assert_error(tess_runtime_setting(runtime, 1000, &setting), TESS_ERROR_INVALID,
                 "tess_runtime_setting", "index");
    assert_error(tess_runtime_rule(NULL, NULL, 0, &rule), TESS_ERROR_INVALID, "tess_runtime_rule",
                 "runtime");
    assert_error(tess_runtime_rule(runtime, NULL, 0, NULL), TESS_ERROR_INVALID, "tess_runtime_rule",
                 "info");
    assert_error(tess_runtime_rule(runtime, NULL, UINT32_MAX, &rule), TESS_ERROR_INVALID,
                 "tess_runtime_rule", "index");
    int cpu = 0;
    for (uint32_t n = 0; tess_runtime_backend(runtime, n, &backend) == TESS_OK; n++) {
        if (strcmp(backend.name, "cpu") == 0)
            cpu = backend.status == TESS_OK && backend.device_count == 1;
        else if (backend.status != TESS_OK)
            assert_true(backend.reason[0] != 0 && !strchr(backend.reason, '\n'));
    }
    assert_true(cpu);
    assert_string_equal(tess_status_name(TESS_OK), "TESS_OK");
    assert_string_equal(tess_status_name(TESS_ERROR_NATIVE), "TESS_ERROR_NATIVE");
    assert_string_equal(tess_status_name((tess_status)11), "TESS_ERROR_?");
    assert_string_equal(tess_status_name((tess_status)-1), "TESS_ERROR_?");
    assert_int_equal(tess_version(), TESS_VERSION_NUMBER);
}

static void test_device_open(void **state) {
    (void)state;
    static const int foreign = 1;
#define D(member, value, statuses, field)  BAD(tess_device_desc, member, value, statuses, field)
#define DS(member, value, statuses, field) D(member, (intptr_t)(value), statuses, field)
    const bad_value rows[] = {
        D(struct_size, 0, VER, "desc"),
        D(flags, 1, INV, "flags"),
        DS(id, "nonsense", INV, "id"),
        DS(id, "nonsense:0", INV, "id"),
        DS(id, "cpu,nonsense", INV, "id"),
        DS(id, "cpu:x", INV, "id"),
        DS(id, "cpu:", INV, "id"),
        DS(id, ":0", INV, "id"),
        DS(id, ",", INV, "id"),
        DS(id, "cpu:7", UNA, "id"),
        DS(id, "cpu:999999999", UNA | INV, "id"),
        DS(id, "cpu:7,cpu", FINE, NULL),
        DS(id, "cpu", FINE, NULL),
        DS(id, "cpu:0", FINE, NULL),
        DS(native, &foreign, INV | UNS, "cpu: native"),
    };
    for (size_t n = 0; n < COUNT(rows); n++) {
        tess_device_desc desc = {.struct_size = sizeof desc};
        desc.id = "cpu";
        bad_apply(&rows[n], &desc);
        tess_device *made = (tess_device *)&desc;
        const tess_status status = tess_device_open(runtime, &desc, &made);
        bad_check(&rows[n], status, "tess_device_open");
        if (status == TESS_OK)
            tess_device_release(made);
        else
            assert_ptr_equal(made, &desc);
    }
    tess_device_desc desc = {.struct_size = sizeof desc};
    tess_device *made = NULL;
    tess_device_info info = {.struct_size = sizeof info};
    tess_kernel_info kernel = {.struct_size = sizeof kernel};
    assert_error(tess_device_open(NULL, &desc, &made), TESS_ERROR_INVALID, "tess_device_open",
                 "runtime");
    assert_error(tess_device_open(runtime, &desc, NULL), TESS_ERROR_INVALID, "tess_device_open",
                 "device");
    assert_null(made);
    assert_ok(tess_device_open(runtime, NULL, &made));
    tess_device_release(made);
    tess_device_release(NULL);
    assert_error(tess_device_query(NULL, &info), TESS_ERROR_INVALID, "tess_device_query", "device");
    assert_error(tess_device_query(device, NULL), TESS_ERROR_INVALID, "tess_device_query", "info");
    assert_error(tess_device_kernel(NULL, 0, &kernel), TESS_ERROR_INVALID, "tess_device_kernel",
                 "device");
    assert_error(tess_device_kernel(device, 0, NULL), TESS_ERROR_INVALID, "tess_device_kernel",
                 "info");
    assert_error(tess_device_kernel(device, 10000, &kernel), TESS_ERROR_INVALID,
                 "tess_device_kernel", "cpu: index");
    assert_ok(tess_device_query(device, &info));
    assert_string_equal(info.id, "cpu:0");
    assert_string_equal(info.backend, "cpu");
    assert_int_equal(info.kind, TESS_DEVICE_CPU);
    assert_int_equal(info.compute_units, 2);
    assert_true(info.memory_bytes > 1 << 20 && info.name[0] && info.arch[0]);
}

/* ------------------------------------------------------------------ layout */

static const uint8_t some_mask[4 * 3 * 5] = {1, 0, 1};

static void base_pattern(tess_pattern *p, int kind) {
    memset(p, 0, sizeof *p);
    p->struct_size = sizeof *p;
    p->kind = (uint32_t)kind;
    if (kind == TESS_PATTERN_S2) p->block = 16, p->local = 2, p->stride = 3;
    if (kind == TESS_PATTERN_WINDOW) p->left = 10, p->right = 5;
    if (kind == TESS_PATTERN_BLOCKS)
        p->block = 16, p->mask_heads = 4, p->mask = some_mask, p->mask_query_blocks = 3,
        p->mask_key_blocks = 5;
}

static void base_layout(tess_layout_desc *d, const tess_pattern *p) {
    *d = test_layout_desc(p, 4, 2, 1000);
}

enum {
    BOTH = TESS_PATTERN_BIDIRECTIONAL,
    DENSE = TESS_PATTERN_DENSE,
    S2 = TESS_PATTERN_S2,
    WINDOW = TESS_PATTERN_WINDOW,
    BLOCKS = TESS_PATTERN_BLOCKS
};
#define P(member, value, statuses, field) BAD(tess_pattern, member, value, statuses, field)
static const struct {
    int kind;
    uint32_t flags;
    bad_value bad;
} bad_patterns[] = {
    {S2, 0, P(struct_size, 0, VER, NULL)},
    {S2, 0, P(struct_size, UINT32_MAX, VER, NULL)},
    {S2, 0, P(kind, 4, INV, "kind")},
    {S2, 0, P(kind, UINT32_MAX, INV, "kind")},
    {S2, 0, P(flags, 8, INV, "flags")},
    {S2, 0, P(flags, 0x80000000u, INV, "flags")},
    {S2, 0, P(block, 0, INV, "block")},
    {S2, 0, P(block, -1, INV, "block")},
    {S2, 0, P(block, INT32_MIN, INV, "block")},
    {S2, 0, P(block, INT32_MAX, FINE, NULL)},
    {S2, 0, P(local, 0, INV, "local")},
    {S2, 0, P(local, -5, INV, "local")},
    {S2, 0, P(local, INT32_MAX, FINE, NULL)},
    {S2, 0, P(stride, 0, INV, "stride")},
    {S2, 0, P(stride, INT32_MIN, INV, "stride")},
    {S2, 0, P(stride, INT32_MAX, FINE, NULL)},
    {S2, 0, P(offset, -1, INV, "offset")},
    {S2, 0, P(offset, INT32_MAX, FINE, NULL)},
    {S2, 0, P(dense_heads, -1, INV, "dense_heads")},
    {S2, 0, P(dense_heads, 5, INV, "dense_heads")},
    {S2, 0, P(dense_heads, 4, FINE, NULL)},
    {S2, 0, P(local_right, 1, INV, "local_right")},
    {S2, 0, P(local_right, -1, INV, "local_right")},
    {S2, BOTH, P(local_right, -1, INV, "local_right")},
    {S2, BOTH, P(local_right, 7, FINE, NULL)},
    {S2, BOTH, P(offset, 1, INV, "offset")},
    {S2, BOTH, P(flags, BOTH | TESS_PATTERN_PER_KV_HEAD, INV, "flags")},
    {S2, BOTH, P(flags, BOTH | TESS_PATTERN_HOMOGENEOUS, INV, "flags")},
    {DENSE, 0, P(block, -1, INV, "block")},
    {DENSE, 0, P(flags, 8, INV, "flags")},
    {WINDOW, 0, P(left, -2, INV, "left")},
    {WINDOW, 0, P(left, INT64_MIN, INV, "left")},
    {WINDOW, 0, P(left, INT64_MAX, FINE, NULL)},
    {WINDOW, BOTH, P(right, -2, INV, "right")},
    {WINDOW, BOTH, P(right, INT64_MAX, FINE, NULL)},
    {WINDOW, 0, P(sinks, -1, INV, "sinks")},
    {WINDOW, 0, P(sinks, INT64_MAX, FINE, NULL)},
    {WINDOW, 0, P(block, -64, INV, "block")},
    {BLOCKS, 0, P(block, 0, INV, "block")},
    {BLOCKS, 0, P(mask, 0, INV, "mask")},
    {BLOCKS, 0, P(mask_heads, 0, INV, "mask_heads")},
    {BLOCKS, 0, P(mask_heads, 2, INV, "mask_heads")},
    {BLOCKS, 0, P(mask_heads, -1, INV, "mask_heads")},
    {BLOCKS, 0, P(mask_query_blocks, 0, FINE, NULL)},
    {BLOCKS, 0, P(mask_query_blocks, -1, INV, "mask_query_blocks")},
    {BLOCKS, 0, P(mask_query_blocks, INT64_MAX, INV | UNS | OOM, "mask_query_blocks")},
    {BLOCKS, 0, P(mask_key_blocks, 0, FINE, NULL)},
    {BLOCKS, 0, P(mask_key_blocks, INT64_MIN, INV, "mask_key_blocks")},
    {BLOCKS, 0, P(mask_key_blocks, INT64_MAX, INV | UNS | OOM, NULL)},
};

static void test_patterns(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(bad_patterns); n++) {
        tess_pattern pattern;
        tess_layout_desc desc;
        base_pattern(&pattern, bad_patterns[n].kind);
        pattern.flags = bad_patterns[n].flags;
        bad_apply(&bad_patterns[n].bad, &pattern);
        base_layout(&desc, &pattern);
        tess_layout *made = (tess_layout *)&desc;
        const tess_status status = tess_layout_create(runtime, &desc, &made);
        bad_check(&bad_patterns[n].bad, status, "tess_layout_create");
        if (status == TESS_OK)
            tess_layout_release(made);
        else
            assert_ptr_equal(made, &desc);
    }
}

static void test_layout_create(void **state) {
    (void)state;
#define L(member, value, statuses, field) BAD(tess_layout_desc, member, value, statuses, field)
    static const bad_value rows[] = {
        L(struct_size, 0, VER, "desc"),
        L(struct_size, UINT32_MAX, VER, "desc"),
        L(flags, 1, INV, "flags"),
        L(n_heads, 0, INV, "n_heads"),
        L(n_heads, -4, INV, "n_heads"),
        L(n_heads, 65536, INV, "n_heads"),
        L(n_heads, INT32_MAX, INV, "n_heads"),
        L(n_heads, 5, INV, NULL), /* names n_heads or n_kv_heads */
        L(n_kv_heads, 0, INV, "n_kv_heads"),
        L(n_kv_heads, -1, INV, "n_kv_heads"),
        L(n_kv_heads, 3, INV, NULL),
        L(n_kv_heads, 8, INV, NULL),
        L(head_first, -1, INV, "head_first"),
        L(head_first, INT32_MAX, INV | UNS, NULL), /* the sum overflows */
        L(heads_total, -1, INV, "heads_total"),
        L(heads_total, 3, INV, "heads_total"),
        L(kv_heads_total, -1, INV, "kv_heads_total"),
        L(kv_heads_total, 3, INV, "kv_heads_total"),
        L(kv_heads_total, 8, INV, "kv_heads_total"),
        L(reserved, 1, INV, "reserved"),
        L(max_tokens, -1, INV, "max_tokens"),
        L(max_tokens, INT64_MIN, INV, "max_tokens"),
        L(max_tokens, INT64_MAX, UNS, "max_tokens"),
        L(max_tokens, (1LL << 31) * 16 + 1, UNS, "max_tokens"),
        L(max_tokens, 0, FINE, NULL),
        L(max_chunk, -1, INV, "max_chunk"),
        L(max_chunk, INT64_MIN, INV, "max_chunk"),
        L(max_chunk, INT64_MAX, FINE | INV | UNS, NULL),
    };
    tess_pattern pattern;
    base_pattern(&pattern, TESS_PATTERN_S2);
    for (size_t n = 0; n < COUNT(rows); n++) {
        tess_layout_desc desc;
        base_layout(&desc, &pattern);
        bad_apply(&rows[n], &desc);
        tess_layout *made = (tess_layout *)&desc;
        const tess_status status = tess_layout_create(runtime, &desc, &made);
        bad_check(&rows[n], status, "tess_layout_create");
        if (status == TESS_OK) {
            /* Whatever was accepted must also answer its queries. */
            tess_layout_info info = {.struct_size = sizeof info};
            tess_kv_info kv = {.struct_size = sizeof kv};
            assert_ok(tess_layout_query(made, &info));
            assert_ok(tess_layout_kv(made, 0, &kv));
            tess_layout_release(made);
        } else
            assert_ptr_equal(made, &desc);
    }
    tess_layout_desc desc;
    tess_layout *made = NULL;
    base_layout(&desc, &pattern);
    assert_error(tess_layout_create(NULL, &desc, &made), TESS_ERROR_INVALID, "tess_layout_create",
                 "runtime");
    assert_error(tess_layout_create(runtime, NULL, &made), TESS_ERROR_INVALID, "tess_layout_create",
                 "desc");
    assert_error(tess_layout_create(runtime, &desc, NULL), TESS_ERROR_INVALID, "tess_layout_create",
                 "layout");
    desc.pattern = NULL;
    assert_error(tess_layout_create(runtime, &desc, &made), TESS_ERROR_INVALID,
                 "tess_layout_create", "pattern");
    assert_null(made);
    tess_layout_release(NULL);
}

static tess_layout *make_layout(void) {
    tess_pattern pattern;
    tess_layout_desc desc;
    tess_layout *layout = NULL;
    base_pattern(&pattern, TESS_PATTERN_S2);
    base_layout(&desc, &pattern);
    assert_ok(tess_layout_create(runtime, &desc, &layout));
    return layout;
}

static void test_layout_queries(void **state) {
    (void)state;
    tess_layout *layout = make_layout(); /* 63 blocks, 4 heads, 2 kv heads */
    tess_layout_info info = {.struct_size = sizeof info};
    tess_kv_info kv = {.struct_size = sizeof kv};
    int64_t slot = -77;
    uint8_t row[64];
    int kept = 77;
    memset(row, 9, sizeof row);
    assert_error(tess_layout_query(NULL, &info), TESS_ERROR_INVALID, "tess_layout_query", "layout");
    assert_error(tess_layout_query(layout, NULL), TESS_ERROR_INVALID, "tess_layout_query", "info");
    assert_error(tess_layout_kv(NULL, 0, &kv), TESS_ERROR_INVALID, "tess_layout_kv", "layout");
    assert_error(tess_layout_kv(layout, -1, &kv), TESS_ERROR_INVALID, "tess_layout_kv", "kv_head");
    assert_error(tess_layout_kv(layout, 2, &kv), TESS_ERROR_INVALID, "tess_layout_kv", "kv_head");
    assert_error(tess_layout_kv(layout, 0, NULL), TESS_ERROR_INVALID, "tess_layout_kv", "info");
    assert_error(tess_layout_slot(NULL, 0, 0, &slot), TESS_ERROR_INVALID, "tess_layout_slot",
                 "layout");
    assert_error(tess_layout_slot(layout, -1, 0, &slot), TESS_ERROR_INVALID, "tess_layout_slot",
                 "kv_head");
    assert_error(tess_layout_slot(layout, 2, 0, &slot), TESS_ERROR_INVALID, "tess_layout_slot",
                 "kv_head");
    assert_error(tess_layout_slot(layout, 0, -1, &slot), TESS_ERROR_INVALID, "tess_layout_slot",
                 "block");
    assert_error(tess_layout_slot(layout, 0, 63, &slot), TESS_ERROR_INVALID, "tess_layout_slot",
                 "block");
    assert_error(tess_layout_slot(layout, 0, 0, NULL), TESS_ERROR_INVALID, "tess_layout_slot",
                 "slot");
    assert_error(tess_layout_row(NULL, 0, 0, row, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "layout");
    assert_error(tess_layout_row(layout, -1, 0, row, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "head");
    assert_error(tess_layout_row(layout, 4, 0, row, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "head");
    assert_error(tess_layout_row(layout, 0, -1, row, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "query_block");
    assert_error(tess_layout_row(layout, 0, 63, row, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "query_block");
    assert_error(tess_layout_row(layout, 0, 0, NULL, 64), TESS_ERROR_INVALID, "tess_layout_row",
                 "row");
    assert_error(tess_layout_row(layout, 0, 0, row, 62), TESS_ERROR_INVALID, "tess_layout_row",
                 "row_blocks");
    assert_error(tess_layout_row(layout, 0, 0, row, -1), TESS_ERROR_INVALID, "tess_layout_row",
                 "row_blocks");
    assert_error(tess_layout_kept(NULL, 0, 0, 0, &kept), TESS_ERROR_INVALID, "tess_layout_kept",
                 "layout");
    assert_error(tess_layout_kept(layout, -1, 0, 0, &kept), TESS_ERROR_INVALID, "tess_layout_kept",
                 "head");
    assert_error(tess_layout_kept(layout, 4, 0, 0, &kept), TESS_ERROR_INVALID, "tess_layout_kept",
                 "head");
    assert_error(tess_layout_kept(layout, 0, 0, -1, &kept), TESS_ERROR_INVALID, "tess_layout_kept",
                 "key");
    assert_error(tess_layout_kept(layout, 0, 0, 1000, &kept), TESS_ERROR_INVALID,
                 "tess_layout_kept", "key");
    assert_error(tess_layout_kept(layout, 0, 0, 0, NULL), TESS_ERROR_INVALID, "tess_layout_kept",
                 "kept");
    assert_true(slot == -77 && kept == 77 && row[0] == 9 && row[63] == 9);
    assert_ok(tess_layout_row(layout, 3, 62, row, 63));
    assert_int_equal(row[63], 9);
    assert_ok(tess_layout_kept(layout, 0, INT64_MIN, 0, &kept));
    assert_int_equal(kept, 0);
    assert_ok(tess_layout_kept(layout, 0, INT64_MAX, 999, &kept));
    tess_layout_release(layout);
}

static void test_storage_queries(void **state) {
    (void)state;
    static const char *const storage = "tess_layout_storage", *const pages = "tess_layout_pages";
    tess_layout *layout = make_layout(); /* 1000 tokens */
    tess_storage_info info = {.struct_size = sizeof info};
    int32_t heads[2] = {-7, -7};
    int64_t count = -77;
    assert_error(tess_layout_storage(NULL, 0, &info, heads), TESS_ERROR_INVALID, storage, "layout");
    assert_error(tess_layout_storage(layout, 1, &info, heads), TESS_ERROR_INVALID, storage,
                 "storage");
    assert_error(tess_layout_storage(layout, UINT32_MAX, &info, heads), TESS_ERROR_INVALID, storage,
                 "storage");
    assert_error(tess_layout_storage(layout, 0, NULL, heads), TESS_ERROR_INVALID, storage, "info");
    info.struct_size = 9;
    assert_error(tess_layout_storage(layout, 0, &info, heads), TESS_ERROR_VERSION, storage,
                 "info.struct_size");
    info.struct_size = sizeof info;
    assert_error(tess_layout_pages(NULL, 0, 1, 16, &count), TESS_ERROR_INVALID, pages, "layout");
    assert_error(tess_layout_pages(layout, 1, 1, 16, &count), TESS_ERROR_INVALID, pages, "storage");
    assert_error(tess_layout_pages(layout, 0, -1, 16, &count), TESS_ERROR_INVALID, pages, "tokens");
    assert_error(tess_layout_pages(layout, 0, 1001, 16, &count), TESS_ERROR_INVALID, pages,
                 "tokens");
    assert_error(tess_layout_pages(layout, 0, INT64_MAX, 16, &count), TESS_ERROR_INVALID, pages,
                 "tokens");
    assert_error(tess_layout_pages(layout, 0, 1, 16, NULL), TESS_ERROR_INVALID, pages, "pages");
    static const int32_t bad[] = {INT32_MIN, -16, -1, 1, 8, 17, 48, 255, 512, INT32_MAX};
    for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++)
        assert_error(tess_layout_pages(layout, 0, 1, bad[n], &count), TESS_ERROR_INVALID, pages,
                     "page");
    assert_true(count == -77 && heads[0] == -7 && heads[1] == -7);
    assert_ok(tess_layout_storage(layout, 0, &info, NULL));
    assert_int_equal(info.n_kv_heads, 2);
    assert_ok(tess_layout_storage(layout, 0, &info, heads));
    assert_true(heads[0] == 0 && heads[1] == 1);
    assert_ok(tess_layout_pages(layout, 0, 0, 16, &count));
    assert_int_equal(count, 0);
    assert_ok(tess_layout_pages(layout, 0, 1, 256, &count));
    assert_int_equal(count, 1);
    assert_ok(tess_layout_pages(layout, 0, 1000, 0, &count));
    assert_true(count > 0 && count <= 1000);
    tess_layout_release(layout);
}

/* Sets the checksum at the end of serialised bytes, so that the reader looks at the rest. */
static void repair(uint8_t *bytes, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t n = 0; n < size - 8; n++) hash = (hash ^ bytes[n]) * 0x100000001b3u;
    for (size_t n = 0; n < 8; n++) bytes[size - 8 + n] = (uint8_t)(hash >> (8 * n));
}

static void test_serialised_layouts(void **state) {
    (void)state;
    tess_layout *layout = make_layout(), *made = NULL;
    size_t size = 0;
    assert_error(tess_layout_serialize(NULL, NULL, &size), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "layout");
    assert_error(tess_layout_serialize(layout, NULL, NULL), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "size");
    assert_ok(tess_layout_serialize(layout, NULL, &size));
    assert_in_range(size, 16, 4096);
    uint8_t *bytes = malloc(size + 1), *again = malloc(size);
    assert_true(bytes && again);
    size_t room = size - 1;
    assert_error(tess_layout_serialize(layout, bytes, &room), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "size");
    assert_true(room == size);
    room = size + 1;
    bytes[size] = 0;
    assert_ok(tess_layout_serialize(layout, bytes, &room));
    assert_true(room == size);
    assert_error(tess_layout_deserialize(NULL, bytes, size, &made), TESS_ERROR_INVALID,
                 "tess_layout_deserialize", "runtime");
    assert_error(tess_layout_deserialize(runtime, NULL, size, &made), TESS_ERROR_INVALID,
                 "tess_layout_deserialize", "data");
    assert_error(tess_layout_deserialize(runtime, bytes, size, NULL), TESS_ERROR_INVALID,
                 "tess_layout_deserialize", "layout");
    for (size_t n = 0; n < size; n++) {
        const tess_status status = tess_layout_deserialize(runtime, bytes, n, &made);
        assert_true(status == TESS_ERROR_CORRUPT || status == TESS_ERROR_VERSION);
    }
    assert_error(tess_layout_deserialize(runtime, bytes, size + 1, &made), TESS_ERROR_CORRUPT,
                 "tess_layout_deserialize", NULL);
    /* Every changed bit is refused. With the checksum fixed up, the bytes are refused or give a
     * layout that answers every query. */
    int accepted = 0;
    for (size_t n = 0; n < size; n++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[n] ^= (uint8_t)(1 << bit);
            tess_status status = tess_layout_deserialize(runtime, bytes, size, &made);
            if (status != TESS_ERROR_CORRUPT && status != TESS_ERROR_VERSION)
                fail_msg("byte %zu bit %d: %s: %s", n, bit, tess_status_name(status),
                         status == TESS_OK ? "accepted" : tess_last_error());
            memcpy(again, bytes, size);
            repair(again, size);
            status = tess_layout_deserialize(runtime, again, size, &made);
            if (status == TESS_OK) {
                tess_layout_info info = {.struct_size = sizeof info};
                assert_ok(tess_layout_query(made, &info));
                tess_layout_release(made);
                made = NULL;
                accepted++;
            } else if (status != TESS_ERROR_CORRUPT && status != TESS_ERROR_VERSION &&
                       status != TESS_ERROR_OUT_OF_MEMORY)
                fail_msg("byte %zu bit %d: %s: %s", n, bit, tess_status_name(status),
                         tess_last_error());
            bytes[n] ^= (uint8_t)(1 << bit);
        }
    assert_in_range(accepted, 100, 8 * size);
    assert_ok(tess_layout_deserialize(runtime, bytes, size, &made));
    room = size;
    assert_ok(tess_layout_serialize(made, again, &room));
    assert_true(room == size);
    assert_memory_equal(bytes, again, size);
    free(bytes);
    free(again);
    tess_layout_release(made);
    tess_layout_release(layout);
}

int main(void) {
    return RUN_GROUP("bad arguments: runtime, device, layout", setup, teardown,
                     TEST(test_runtime_create), TEST(test_environment), TEST(test_runtime_queries),
                     TEST(test_device_open), TEST(test_patterns), TEST(test_layout_create),
                     TEST(test_layout_queries), TEST(test_storage_queries),
                     TEST(test_serialised_layouts));
}

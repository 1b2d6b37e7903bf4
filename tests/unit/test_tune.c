/* SPDX-License-Identifier: Apache-2.0 */
/* Tune tables: what the text may say, what is refused and with which message, and which kernel a
 * plan takes because of them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define RIG_TUNE own_table
static const char own_table[] = "tessera-tune 1\n"
                                "dtype=f16 kernel=rig/plain basis=reasoned\n"
                                "arch=rig3* kernel=rig/plain\n"
                                "head_dim=40 kernel=rig/other\n";
#include "fixtures/planner.h"

#include <sys/stat.h>
#include <unistd.h>

#include "plan.h"
#include "status.h"
#include "tune.h"

#define HEAD "tessera-tune 1\n"

static int setup(void **state) {
    unsetenv("TESSERA_TUNE_FILE");
    unsetenv("TESSERA_KERNEL");
    return runtime_setup(state);
}

static tess_status parse_bytes(const char *text, size_t size, tess_tune *tune) {
    tess_call_begin("tess_runtime_create", 0);
    return tess_tune_parse(runtime, "tess_runtime_create: table", NULL, text, size, tune);
}

static tess_status parse(const char *text, tess_tune *tune) {
    return parse_bytes(text, strlen(text), tune);
}

/* ------------------------------------------------------------------ what is read */

static void assert_range(tess_range range, int64_t low, int64_t high) {
    assert_int_equal(range.low, low);
    assert_int_equal(range.high, high);
}

static void assert_span(tess_span span, const char *text) {
    assert_int_equal(span.length, strlen(text));
    assert_memory_equal(span.at, text, span.length);
}

static void test_every_word(void **state) {
    (void)state;
    tess_tune tune;
    assert_int_equal(parse(HEAD "\n# a comment with \xc3\xa9 and \xff\n"
                                "\t kernel=a-1/x,a-1/y.z_2   # why\n"
                                "op=fwd,bwd dtype=bf16,f32 pattern=s2,blocks head_dim=64 "
                                "block=16..64 q_len=..16 kv_len=4096.. arch=sm_9? device=H?00* "
                                "kernel=b/k basis=measured\n",
                           &tune),
                     TESS_OK);
    assert_int_equal(tune.n_rules, 2);
    const tess_tune_rule *a = &tune.rules[0], *b = &tune.rules[1];
    assert_string_equal(a->text, "kernel=a-1/x,a-1/y.z_2");
    assert_int_equal(a->line, 4);
    assert_int_equal(a->ops, 1);
    assert_int_equal(a->dtypes & 7, 7);
    assert_int_equal(a->patterns & 15, 15);
    assert_int_equal(a->basis, TESS_BASIS_NONE);
    assert_range(a->head_dim, 0, INT64_MAX);
    assert_span(a->backend, "a-1");
    assert_span(a->kernels, "a-1/x,a-1/y.z_2");
    assert_span(a->arch, "");
    assert_int_equal(b->line, 5);
    assert_int_equal(b->ops, 3);
    assert_int_equal(b->dtypes, 1 << TESS_BF16 | 1 << TESS_F32);
    assert_int_equal(b->patterns, 1 << TESS_PATTERN_S2 | 1 << TESS_PATTERN_BLOCKS);
    assert_int_equal(b->basis, TESS_BASIS_MEASURED);
    assert_range(b->head_dim, 64, 64);
    assert_range(b->block, 16, 64);
    assert_range(b->q_len, 0, 16);
    assert_range(b->kv_len, 4096, INT64_MAX);
    assert_span(b->arch, "sm_9?");
    assert_span(b->device, "H?00*");
    tess_tune_free(runtime, &tune);
    assert_int_equal(parse(HEAD, &tune), TESS_OK);
    assert_int_equal(tune.n_rules, 0);
    tess_tune_free(runtime, &tune);
}

static const struct {
    const char *text, *message;
    tess_status status;
} malformed[] = {
    {"", "line 1: the last line has no end", TESS_ERROR_CORRUPT},
    {"\n", "line 1: must be 'tessera-tune 1'", TESS_ERROR_CORRUPT},
    {"tessera-tune\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"tessera-tune 1 kernel=a/b\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"tessera-tune 1x\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"tessera-tune -1\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"tessera-tune 99999999999\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"# no\ntessera-tune 1\n", "line 1: must be", TESS_ERROR_CORRUPT},
    {"tessera-tune 2\nwhatever\n", "has format 2, and this library reads 1", TESS_ERROR_VERSION},
    {"tessera-tune 0\n", "has format 0", TESS_ERROR_VERSION},
    {HEAD "kernel=a/b", "line 2: the last line has no end", TESS_ERROR_CORRUPT},
    {HEAD "dtype=f32\n", "line 2: kernel: is missing", TESS_ERROR_CORRUPT},
    {HEAD "\n\nkernel\n", "line 4: kernel: has no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=\n", "kernel: '' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a\n", "kernel: 'a' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=/b\n", "kernel: '/b' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/\n", "kernel: 'a/' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b/c\n", "kernel: 'a/b/c' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b*\n", "kernel: 'a/b*' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b,\n", "kernel: '' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b,,a/c\n", "kernel: '' is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/0123456789012345678901234567890123456789012345678901234567890123\n",
     "is not of the form", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b,c/b\n", "kernel: 'c/b' is of another backend", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b,aa/b\n", "kernel: 'aa/b' is of another backend", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b,a/c,a/b\n", "kernel: 'a/b' is given twice", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/1,a/2,a/3,a/4,a/5,a/6,a/7,a/8,a/9\n", "kernel: more than 8",
     TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b kernel=a/c\n", "kernel: is given twice", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b dtype=f32 dtype=f16\n", "dtype: is given twice", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b dtype=f32,f32\n", "dtype: 'f32' is given twice", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b dtype=\n", "dtype: '' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b dtype=f64\n", "dtype: 'f64' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b dtype=F32\n", "dtype: 'F32' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b pattern=dense,\n", "pattern: '' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b op=forward\n", "op: 'forward' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b basis=guessed\n", "basis: 'guessed' is no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b basis=measured,reasoned\n", "basis: only one", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b tile=64\n", "'tile=64' is no word of a rule", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b =64\n", "'=64' is no word of a rule", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b Dtype=f32\n", "'Dtype=f32' is no word of a rule", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim\n", "head_dim: has no value", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim=\n", "head_dim: '' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim=..\n", "head_dim: '..' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim=1...2\n", "head_dim: '1...2' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim=-1\n", "head_dim: '-1' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b head_dim=0x40\n", "head_dim: '0x40' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b q_len=12345678901\n", "q_len: '12345678901' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b kv_len=9..8\n", "kv_len: '9..8' is an empty range", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b block=64,128\n", "block: '64,128' is none of", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b arch=\n", "arch: is empty", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b device=\n", "device: is empty", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b device=caf\xc3\xa9\n", "line 2: byte 22 is not ASCII (0xc3)",
     TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b \xff\n", "line 2: byte 12 is not ASCII (0xff)", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b\r\n", "line 2: byte 11 is the control character 0x0d", TESS_ERROR_CORRUPT},
    {HEAD "# \x1b[31m\n", "line 2: byte 3 is the control character 0x1b", TESS_ERROR_CORRUPT},
    {HEAD "kernel=a/b \x7f\n", "line 2: byte 12 is the control character 0x7f", TESS_ERROR_CORRUPT},
};

static void test_malformed(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof malformed / sizeof *malformed; n++) {
        tess_tune tune;
        tess_status status = parse(malformed[n].text, &tune);
        if (status != malformed[n].status)
            fail_msg("case %zu: %s \"%s\"", n, tess_status_name(status), tess_last_error());
        assert_error_has("tess_runtime_create: table: line ");
        assert_error_has(malformed[n].message);
        assert_null(tune.text);
    }
    tess_tune tune;
    static const char with_zero[] = HEAD "kernel=a/b\0 dtype=f32\n";
    assert_int_equal(parse_bytes(with_zero, sizeof with_zero - 1, &tune), TESS_ERROR_CORRUPT);
    assert_error_has("line 2: byte 11 is the control character 0x00");
}

/* Every prefix of a good table is accepted or refused. AddressSanitizer sees any read past its
 * end. */
static void test_cut_off(void **state) {
    (void)state;
    static const char whole[] =
        HEAD "arch=a* kernel=a/b,a/c basis=measured # x\n\ndtype=f16 q_len=3..4 kernel=a/b\n";
    for (size_t size = 0; size < sizeof whole; size++) {
        tess_tune tune;
        char *copy = malloc(size ? size : 1);
        assert_non_null(copy);
        memcpy(copy, whole, size);
        bool fine = size > 0 && size < sizeof whole && whole[size - 1] == '\n';
        assert_int_equal(parse_bytes(copy, size, &tune), fine ? TESS_OK : TESS_ERROR_CORRUPT);
        if (fine) tess_tune_free(runtime, &tune);
        free(copy);
    }
}

static char *repeated(const char *head, const char *line, size_t times, size_t *size) {
    size_t length = strlen(line), at = strlen(head);
    char *text = malloc(at + times * length + 1);
    assert_non_null(text);
    memcpy(text, head, at);
    for (size_t n = 0; n < times; n++, at += length) memcpy(text + at, line, length);
    text[at] = '\0';
    *size = at;
    return text;
}

static void test_limits(void **state) {
    (void)state;
    size_t size;
    tess_tune tune;
    char *text = repeated(HEAD, "kernel=a/b\n", TESS_TUNE_RULES, &size);
    assert_int_equal(parse_bytes(text, size, &tune), TESS_OK);
    assert_int_equal(tune.n_rules, TESS_TUNE_RULES);
    tess_tune_free(runtime, &tune);
    free(text);
    text = repeated(HEAD, "kernel=a/b\n", TESS_TUNE_RULES + 1, &size);
    assert_int_equal(parse_bytes(text, size, &tune), TESS_ERROR_CORRUPT);
    assert_error_has("line 1026: more than 1024 rules");
    free(text);
    text = repeated(HEAD, "\n", TESS_TUNE_BYTES - sizeof HEAD + 1, &size);
    assert_int_equal(size, TESS_TUNE_BYTES);
    assert_int_equal(parse_bytes(text, size, &tune), TESS_OK);
    tess_tune_free(runtime, &tune);
    assert_int_equal(parse_bytes(text, size + 1, &tune), TESS_ERROR_INVALID);
    assert_error_has("has 262145 bytes, at most 262144 are allowed");
    free(text);
    text = repeated(HEAD "#", "x", TESS_TUNE_LINE, &size);
    text[size - 1] = '\n';
    assert_int_equal(parse_bytes(text, size, &tune), TESS_OK);
    tess_tune_free(runtime, &tune);
    free(text);
    text = repeated(HEAD "#", "x", TESS_TUNE_LINE + 1, &size);
    text[size - 1] = '\n';
    assert_int_equal(parse_bytes(text, size, &tune), TESS_ERROR_CORRUPT);
    assert_error_has("line 2: has 513 bytes, at most 512 are allowed");
    free(text);
}

static void test_own_kernels_only(void **state) {
    (void)state;
    tess_tune tune;
    static const char text[] = HEAD "kernel=rig/a\nkernel=rig2/a\n";
    tess_call_begin("tess_runtime_create", 0);
    assert_int_equal(
        tess_tune_parse(runtime, "the table of rig", "rig", text, sizeof text - 1, &tune),
        TESS_ERROR_CORRUPT);
    assert_error_has("the table of rig: line 3: kernel: 'rig2/a' is not the backend's own");
    assert_int_equal(
        tess_tune_parse(runtime, "the table of rig", "rig", text, sizeof HEAD - 1 + 13, &tune),
        TESS_OK);
    tess_tune_free(runtime, &tune);
}

/* ------------------------------------------------------------------ files */

static char folder[] = "/tmp/tessera-tune-XXXXXX";
static char path[128];

static const char *in_folder(const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *put(const char *text) {
    FILE *file = fopen(in_folder("tune"), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    return path;
}

static tess_status create(const char *file, const char *kernel, tess_runtime **out) {
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .allocator = {heap_alloc, heap_free, NULL},
                              .log = test_log_keep,
                              .backend = "",
                              .kernel = kernel,
                              .verbose = "dispatch,errors",
                              .tune_file = file};
    test_logged[0] = '\0';
    return tess_runtime_create(&desc, out);
}

static void assert_file_refused(const char *file, tess_status wanted, const char *message) {
    tess_runtime *made = NULL;
    uint64_t live = heap.live;
    tess_status status = create(file, "", &made);
    if (status != wanted)
        fail_msg("%s: %s \"%s\"", file, tess_status_name(status), tess_last_error());
    assert_error_has("tess_runtime_create: tune_file: ");
    assert_error_has(message);
    assert_null(made);
    assert_int_equal(heap.live, live);
}

static void test_files(void **state) {
    (void)state;
    assert_file_refused("/nowhere/tune", TESS_ERROR_INVALID,
                        "/nowhere/tune: cannot be opened: No such file or directory");
    assert_file_refused(folder, TESS_ERROR_INVALID, "is not a regular file");
    assert_file_refused("/dev/null", TESS_ERROR_INVALID, "/dev/null: is not a regular file");
    assert_file_refused("/dev/zero", TESS_ERROR_INVALID, "is not a regular file");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    /* and nobody waits for a writer */
    assert_file_refused(path, TESS_ERROR_INVALID, "pipe: is not a regular file");
    unlink(path);
    assert_file_refused(put(""), TESS_ERROR_CORRUPT, "tune: line 1: the last line has no end");
    assert_file_refused(put("tessera-tune 7\n"), TESS_ERROR_VERSION, "line 1: has format 7");
    assert_file_refused(put(HEAD "kernel=rig/plain\nkernel=rig\n"), TESS_ERROR_CORRUPT,
                        "line 3: kernel: 'rig'");
    FILE *file = fopen(in_folder("tune"), "w");
    assert_non_null(file);
    assert_int_equal(fseek(file, TESS_TUNE_BYTES, SEEK_SET), 0);
    fputc('\n', file);
    fclose(file);
    assert_file_refused(path, TESS_ERROR_INVALID, "has 262145 bytes, at most 262144 are allowed");
    if (geteuid() != 0) { /* nothing is forbidden to root */
        put(HEAD);
        chmod(path, 0);
        assert_file_refused(path, TESS_ERROR_INVALID, "cannot be opened: Permission denied");
    }
    setenv("TESSERA_TUNE_FILE", "/nowhere/else", 1);
    tess_runtime *made = NULL;
    assert_int_equal(tess_runtime_create(NULL, &made), TESS_ERROR_INVALID);
    assert_error_has("tess_runtime_create: TESSERA_TUNE_FILE: /nowhere/else: cannot be opened");
    unsetenv("TESSERA_TUNE_FILE");
}

static void test_no_memory(void **state) {
    (void)state;
    const char *file = put(HEAD "kernel=rig/plain\n");
    uint64_t live = heap.live;
    tess_status status = TESS_ERROR_OUT_OF_MEMORY;
    for (int sticky = 0; sticky < 2; sticky++) {
        int failures = 0;
        for (uint64_t k = 1;; k++, failures++) {
            tess_runtime *made = NULL;
            heap.fail_at = heap.calls + k;
            heap.sticky = sticky;
            status = create(file, "", &made);
            heap.fail_at = 0;
            if (status == TESS_OK) {
                tess_runtime_release(made);
                break;
            }
            assert_int_equal(status, TESS_ERROR_OUT_OF_MEMORY);
            assert_int_equal(heap.live, live);
        }
        /* the runtime, a setting, two for each table, the list of backends */
        assert_true(failures >= 6);
    }
    assert_int_equal(heap.live, live);
}

/* ------------------------------------------------------------------ plans */

typedef struct scene {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layouts[4]; /* by tess_pattern_kind; blocks is left out */
} scene;

static void open_scene(scene *s, const char *text, const char *kernel) {
    memset(s, 0, sizeof *s);
    tess_status status = create(text ? put(text) : "", kernel, &s->runtime);
    if (status != TESS_OK) fail_msg("%s", tess_last_error());
    s->device = open_device(s->runtime);
    for (uint32_t kind = 0; kind < 3; kind++) {
        tess_pattern pattern = {.struct_size = sizeof pattern, .kind = kind, .block = 16};
        if (kind == TESS_PATTERN_S2) pattern.local = pattern.stride = 2;
        s->layouts[kind] = make_layout(s->runtime, &pattern, 2, 1, 512);
    }
}

static void close_scene(scene *s) {
    for (int kind = 0; kind < 3; kind++) tess_layout_release(s->layouts[kind]);
    tess_device_release(s->device);
    tess_runtime_release(s->runtime);
    assert_int_equal(rig.live_kernels, 0);
}

static tess_plan_desc shape(uint32_t dtype, int32_t head_dim, int64_t q_len) {
    return (tess_plan_desc){.struct_size = sizeof(tess_plan_desc),
                            .dtype = dtype,
                            .head_dim = head_dim,
                            .batch = 1,
                            .q_len = q_len,
                            .kv_len = 512,
                            .kv_split = 1};
}

static tess_status plan_once(scene *s, uint32_t kind, tess_plan_desc desc) {
    tess_plan *plan = NULL;
    test_logged[0] = '\0';
    rig.calls = 0;
    tess_status status = tess_plan_create(s->device, s->layouts[kind], &desc, &plan);
    tess_plan_release(plan);
    return status;
}

/* Whether the plan took its kernel by a preference. */
static bool preferred(scene *s, uint32_t kind, tess_plan_desc desc) {
    assert_int_equal(plan_once(s, kind, desc), TESS_OK);
    return strstr(test_logged, " is preferred by ") != NULL;
}

static void test_shapes(void **state) {
    (void)state;
    static const struct {
        const char *rule;
        uint32_t kind;
        uint32_t dtype;
        int32_t head_dim;
        int64_t q_len;
        bool taken;
    } cases[] = {
        {"", 0, TESS_F32, 64, 8, true},
        {"dtype=bf16,f32", 0, TESS_F32, 64, 8, true},
        {"dtype=bf16", 0, TESS_F32, 64, 8, false},
        {"op=bwd", 0, TESS_F32, 64, 8, false},
        {"head_dim=64", 0, TESS_F32, 64, 8, true},
        {"head_dim=64..", 0, TESS_F32, 56, 8, false},
        {"head_dim=..64", 0, TESS_F32, 72, 8, false},
        {"head_dim=33..64", 0, TESS_F32, 64, 8, true},
        {"block=16", 0, TESS_F32, 64, 8, true},
        {"block=64", 0, TESS_F32, 64, 8, false},
        {"q_len=..8", 0, TESS_F32, 64, 8, true},
        {"q_len=..7", 0, TESS_F32, 64, 8, false},
        {"kv_len=512", 0, TESS_F32, 64, 8, true},
        {"kv_len=513..", 0, TESS_F32, 64, 8, false},
        {"pattern=dense", TESS_PATTERN_DENSE, TESS_F32, 64, 8, true},
        {"pattern=dense", TESS_PATTERN_S2, TESS_F32, 64, 8, false},
        {"pattern=s2", TESS_PATTERN_S2, TESS_F32, 64, 8, true},
        {"pattern=s2,dense", TESS_PATTERN_WINDOW, TESS_F32, 64, 8, false},
        {"pattern=window", TESS_PATTERN_WINDOW, TESS_F32, 64, 8, true},
        {"arch=rig2?wide", 0, TESS_F32, 64, 8, true},
        {"arch=rig2", 0, TESS_F32, 64, 8, false},
        {"arch=rig*", 0, TESS_F32, 64, 8, true},
        {"arch=*wide", 0, TESS_F32, 64, 8, true},
        {"arch=*i*i*e", 0, TESS_F32, 64, 8, true},
        {"arch=*i*i*x", 0, TESS_F32, 64, 8, false},
        {"arch=????", 0, TESS_F32, 64, 8, false},
        {"device=Rig(R)?Model?7?@?2.50GHz", 0, TESS_F32, 64, 8, true},
        {"device=*Model?7*", 0, TESS_F32, 64, 8, true},
        {"device=*Model?8*", 0, TESS_F32, 64, 8, false},
        {"device=Rig(R)?Model?7?@?2.50GHz?", 0, TESS_F32, 64, 8, false},
        {"device=**", 0, TESS_F32, 64, 8, true},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        char text[256];
        scene s;
        snprintf(text, sizeof text, HEAD "kernel=absent/plain\n%s kernel=rig/plain\n",
                 cases[n].rule);
        open_scene(&s, text, "");
        bool taken =
            preferred(&s, cases[n].kind, shape(cases[n].dtype, cases[n].head_dim, cases[n].q_len));
        if (taken != cases[n].taken)
            fail_msg("%s: %s\n%s", cases[n].rule, taken ? "taken" : "not taken", test_logged);
        close_scene(&s);
    }
}

/* In batch-invariant mode the other sequences of a batch must not decide which kernel serves a
 * sequence. */
static void test_batch_invariant(void **state) {
    (void)state;
    scene s;
    open_scene(&s, HEAD "q_len=..16 kernel=rig/plain\n", "");
    tess_plan_desc desc = shape(TESS_F32, 64, 8);
    assert_true(preferred(&s, 0, desc));
    desc.flags = TESS_PLAN_BATCH_INVARIANT;
    assert_false(preferred(&s, 0, desc));
    close_scene(&s);
    open_scene(&s, HEAD "q_len=17.. kernel=rig/plain\n", "");
    assert_true(preferred(&s, 0, desc));
    close_scene(&s);
}

static void test_order(void **state) {
    (void)state;
    scene s;
    /* Kernels that refuse are skipped, and only the first matching rule counts. */
    open_scene(&s, HEAD "# first\nkernel=rig/none,rig/plain basis=measured\nkernel=rig/never\n",
               "");
    assert_true(preferred(&s, 0, shape(TESS_F32, 64, 8)));
    assert_int_equal(rig.calls, 1);
    assert_logged("dispatch: rig:0: rig/none, preferred by tune file ");
    assert_logged(
        "tune line 3 (measured), is passed over: kernel: rig has no kernel named 'none'\n");
    assert_logged("tune line 3 (measured)\n");
    assert_null(strstr(test_logged, "errors:"));
    assert_null(strstr(test_logged, "never"));
    close_scene(&s);
    /* A file that has decided leaves nothing for the backend's own table. */
    open_scene(&s, HEAD "kernel=rig/plain\n", "");
    assert_true(preferred(&s, 0, shape(TESS_F16, 64, 8)));
    assert_int_equal(rig.calls, 1);
    close_scene(&s);
    /* After the file comes the backend's own table, and after that the backend's order. */
    open_scene(&s, HEAD "kernel=rig/none\n", "");
    assert_true(preferred(&s, 0, shape(TESS_F16, 64, 8)));
    assert_logged(
        "dispatch: rig:0: rig/plain is preferred by the table of rig line 2 (reasoned)\n");
    assert_false(preferred(&s, 0, shape(TESS_F32, 64, 8)));
    assert_false(preferred(&s, 0, shape(TESS_F32, 40, 8)));
    assert_int_equal(rig.calls, 1);
    assert_logged("rig/other, preferred by the table of rig line 4, is passed over");
    close_scene(&s);
    /* Without a file the backend's own table stands. */
    open_scene(&s, NULL, "");
    assert_true(preferred(&s, 0, shape(TESS_F16, 64, 8)));
    assert_false(preferred(&s, 0, shape(TESS_F32, 64, 8)));
    close_scene(&s);
}

/* A kernel that is named beats every table, and its refusal is final. */
static void test_forced(void **state) {
    (void)state;
    scene s;
    open_scene(&s, HEAD "kernel=rig/plain\n", "rig/none");
    assert_int_equal(plan_once(&s, 0, shape(TESS_F16, 64, 8)), TESS_ERROR_UNSUPPORTED);
    assert_int_equal(rig.calls, 0);
    assert_error_has("kernel: rig has no kernel named 'none'");
    tess_plan_desc desc = shape(TESS_F16, 64, 8);
    desc.kernel = "rig/plain";
    assert_false(preferred(&s, 0, desc));
    assert_logged("dispatch: rig: rig/plain accepts: dtype f16, head_dim 64\n");
    close_scene(&s);
}

/* An error that is no refusal ends the call, with the same message as without a table. */
static void test_failures(void **state) {
    (void)state;
    static const tess_status statuses[] = {TESS_ERROR_OUT_OF_MEMORY, TESS_ERROR_NATIVE,
                                           TESS_ERROR_DEVICE_LOST};
    for (size_t n = 0; n < sizeof statuses / sizeof *statuses; n++) {
        scene s;
        open_scene(&s, HEAD "kernel=rig/plain\n", "");
        rig.fail_call = 1;
        rig.fail_status = statuses[n];
        assert_int_equal(plan_once(&s, 0, shape(TESS_F32, 64, 8)), statuses[n]);
        assert_int_equal(rig.calls, 1);
        assert_error(statuses[n], statuses[n], "tess_plan_create", "rig:0");
        assert_logged("errors: tess_plan_create: rig:0: ");
        rig.fail_call = 0;
        tess_status again = plan_once(&s, 0, shape(TESS_F32, 64, 8));
        assert_int_equal(again,
                         statuses[n] == TESS_ERROR_DEVICE_LOST ? TESS_ERROR_DEVICE_LOST : TESS_OK);
        close_scene(&s);
    }
    /* Memory of the host. */
    scene s;
    open_scene(&s, HEAD "kernel=rig/plain\n", "");
    uint64_t live = heap.live;
    for (uint64_t k = 1;; k++) {
        heap.fail_at = heap.calls + k;
        tess_status status = plan_once(&s, 0, shape(TESS_F32, 64, 8));
        heap.fail_at = 0;
        if (status == TESS_OK) break;
        assert_int_equal(status, TESS_ERROR_OUT_OF_MEMORY);
        assert_int_equal(heap.live, live);
        assert_true(k < 100);
    }
    assert_logged("preferred by");
    close_scene(&s);
}

/* ------------------------------------------------------------------ queries */

static tess_rule_info rule_at(const scene *s, const tess_device *device, uint32_t index) {
    tess_rule_info info = {.struct_size = sizeof info};
    assert_int_equal(tess_runtime_rule(s->runtime, device, index, &info), TESS_OK);
    return info;
}

static void test_queries(void **state) {
    (void)state;
    scene s, other;
    open_scene(&other, NULL, "");
    open_scene(&s,
               HEAD "kernel=absent/x # not for this device\n\n  dtype=f16   kernel=rig/plain   "
                    "basis=measured # 1.2 ms\n",
               "");
    tess_rule_info info = rule_at(&s, NULL, 0);
    assert_string_equal(info.text, "kernel=absent/x");
    info = rule_at(&s, NULL, 1);
    assert_string_equal(info.text, "dtype=f16   kernel=rig/plain   basis=measured");
    assert_string_equal(info.table, in_folder("tune"));
    assert_int_equal(info.line, 4);
    assert_int_equal(info.basis, TESS_BASIS_MEASURED);
    assert_int_equal(info.built_in, 0);
    info = rule_at(&s, NULL, 2);
    assert_string_equal(info.table, "rig");
    assert_string_equal(info.text, "dtype=f16 kernel=rig/plain basis=reasoned");
    assert_int_equal(info.basis, TESS_BASIS_REASONED);
    assert_int_equal(info.built_in, 1);
    rule_at(&s, NULL, 4);
    assert_int_equal(tess_runtime_rule(s.runtime, NULL, 5, &info), TESS_ERROR_INVALID);
    /* Only what is for the device. */
    assert_int_equal(rule_at(&s, s.device, 0).line, 4);
    assert_int_equal(rule_at(&s, s.device, 1).line, 2);
    assert_int_equal(rule_at(&s, s.device, 2).line, 4);
    assert_int_equal(tess_runtime_rule(s.runtime, s.device, 3, &info), TESS_ERROR_INVALID);
    assert_error(tess_runtime_rule(NULL, NULL, 0, &info), TESS_ERROR_INVALID, "tess_runtime_rule",
                 "runtime");
    assert_error(tess_runtime_rule(s.runtime, other.device, 0, &info), TESS_ERROR_INVALID,
                 "tess_runtime_rule", "device");
    assert_error(tess_runtime_rule(s.runtime, NULL, 0, NULL), TESS_ERROR_INVALID,
                 "tess_runtime_rule", "info");
    close_scene(&s);
    close_scene(&other);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    int failed = RUN_TESTS_BETWEEN(
        setup, runtime_teardown, TEST(test_every_word), TEST(test_malformed), TEST(test_cut_off),
        TEST(test_limits), TEST(test_own_kernels_only), TEST(test_files), TEST(test_no_memory),
        TEST(test_shapes), TEST(test_order), TEST(test_forced), TEST(test_failures),
        TEST(test_batch_invariant), TEST(test_queries));
    unlink(in_folder("tune"));
    rmdir(folder);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Result files: what is written is read, what follows from it is computed, and damage shows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

#include "checksum.h"
#include "json.h"
#include "matrix.h"

static const char *example, *old_file;

static void read_file(const char *path, bench_report *r) {
    char error[512] = "";
    if (json_read(r, path, error, sizeof error) != 0) fail_msg("%s", error);
}

static char *written(const bench_report *r, size_t *size) {
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    assert_non_null(f);
    assert_int_equal(json_write(r, f), 0);
    assert_int_equal(fclose(f), 0);
    return text;
}

static const bench_result *find(const bench_report *r, int device, const char *peer,
                                const char *start) {
    for (int i = 0; i < r->n_results; i++)
        if (r->results[i].device == device && strcmp(r->results[i].peer, peer) == 0 &&
            strncmp(r->results[i].line, start, strlen(start)) == 0)
            return &r->results[i];
    fail_msg("no result of %s on device %d", start, device);
    return NULL;
}

/* Every record of a file survives being written and read again. */
static void test_round_trip(void **state) {
    (void)state;
    bench_report first, second;
    char error[512], *once, *twice;
    size_t size, again;
    read_file(example, &first);
    assert_int_equal(first.changed, 0);
    assert_int_equal(first.schema_version, 2);
    assert_true(first.devices[0].stages[STAGE_ROUNDS] == 0); /* unknown in older files */
    first.devices[0].stages[STAGE_ROUNDS] = 1.5;
    snprintf(first.devices[0].planning_note, sizeof first.devices[0].planning_note, "a note");
    once = written(&first, &size);
    assert_int_equal(json_parse(&second, once, size, error, sizeof error), 0);
    assert_int_equal(second.changed, 0);
    twice = written(&second, &again);
    assert_int_equal(again, size);
    assert_memory_equal(once, twice, size);
    assert_true(second.devices[0].stages[STAGE_ROUNDS] == 1.5);
    assert_string_equal(second.devices[0].planning_note, "a note");
    assert_int_equal(second.n_lines, 6);
    assert_int_equal(second.n_peers, 2);
    assert_int_equal(second.n_results, first.n_results);
    for (int i = 0; i < first.n_results; i++) {
        const bench_result *x = &first.results[i], *y = &second.results[i];
        assert_int_equal(x->status, y->status);
        assert_string_equal(x->peer, y->peer);
        assert_string_equal(x->line, y->line);
        assert_string_equal(x->note, y->note);
        assert_true(x->status == BENCH_OK ? x->median == y->median && x->runs == y->runs
                                          : x->need_seconds == y->need_seconds);
    }
    const bench_result *x = find(&second, 1, "", "dtype=bf16");
    assert_true(x->before.temperature_celsius == 41 && x->after.temperature_celsius == 44);
    assert_true(x->before.clock_hz == 1.98e9 && isnan(x->joules));
    assert_string_equal(second.devices[3].ceilings[0].via, "cuda:0");
    free(once);
    free(twice);
    report_free(&first);
    report_free(&second);
}

static void test_derived(void **state) {
    (void)state;
    bench_report r;
    read_file(example, &r);
    assert_true(device_same(&r.devices[1], &r.devices[2]));
    assert_false(device_same(&r.devices[0], &r.devices[4]));
    /* without UUID and address nothing is known to be the same */
    assert_false(device_same(&r.devices[0], &r.devices[0]));
    const bench_result *dense = find(&r, 1, "", "dtype=bf16 heads=32 kv_heads=8 head_dim=128 q_le"),
                       *decode = find(&r, 1, "", "op=decode"), *noisy = find(&r, 0, "", "op=dec"),
                       *own = find(&r, 4, "", "op=decode");
    assert_false(dense->noisy);
    assert_true(fabs(dense->spread - 0.02) < 1e-12);
    assert_true(fabs(dense->limit_share - 1.374e11 / 2.4e-4 / 7e14) < 1e-12);
    assert_int_equal(r.devices[1].ceilings[dense->limit_ceiling].unit, BENCH_GEMM);
    assert_int_equal(r.devices[1].ceilings[decode->limit_ceiling].unit, BENCH_READ);
    assert_true(fabs(decode->limit_share - 134234112 / 4.1e-5 / 4.2e12) < 1e-12);
    assert_true(noisy->noisy);
    assert_true(r.devices[4].ceilings[own->limit_ceiling].own_loop);
    int suspects = 0;
    for (int i = 0; i < r.n_results; i++) {
        const bench_result *x = &r.results[i];
        suspects += x->suspect;
        assert_true(!x->suspect || (x->device == 2 && x->speedup > x->ideal_speedup));
        assert_true(x->status == BENCH_OK || (x->note[0] && isnan(x->limit_share)));
    }
    assert_int_equal(suspects, 1);
    report_free(&r);
}

/* Products of f32 stand in for those of a type, until a result is faster than they are. Where those
 * of the type are known, slower ones too, the best of both counts. */
static void test_other_type(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        const int faster = way == 1;
        bench_report r = {.n_devices = 0};
        bench_device *d = report_add_device(&r);
        bench_ceiling *c = device_add_ceiling(d);
        *c = (bench_ceiling){.unit = BENCH_GEMM, .dtype = TESS_F32, .rate = 1e12};
        if (way == 2) {
            c = device_add_ceiling(d);
            *c = (bench_ceiling){.unit = BENCH_GEMM, .dtype = TESS_BF16, .rate = 9e11};
        }
        for (int i = 0; i < 3; i++) {
            bench_result *x = report_add_result(&r);
            x->dtype = i == 2 ? TESS_F32 : TESS_BF16;
            x->median = 1;
            x->flops = i == 0 && way ? 2e12 : 8e11;
        }
        results_derive(&r);
        if (way == 2) {
            assert_int_equal(r.results[0].gemm_ceiling, 0);
            assert_true(r.results[0].gemm_share == 2);
            report_free(&r);
            continue;
        }
        for (int i = 0; i < 3; i++) {
            const int known = i == 2 || !faster;
            assert_int_equal(r.results[i].gemm_ceiling, known ? 0 : -1);
            assert_true(known ? r.results[i].gemm_share == 0.8 : isnan(r.results[i].gemm_share));
        }
        report_free(&r);
    }
}

/* A share above 100 % is marked where it lies above the spreads of the result and of the limit. */
static void test_above_limit(void **state) {
    (void)state;
    static const struct {
        double q3, fastest; /* seconds of the result's third quartile, and of the limit's best */
        int above;
    } cases[] = {{1.0, 1.0, 1}, {1.2, 1.0, 0}, {1.0, 0.85, 0}, {1.05, 0.99, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        bench_report r = {.n_devices = 0};
        bench_device *d = report_add_device(&r);
        snprintf(d->kind, sizeof d->kind, "cpu");
        assert_true(isnan(d->drift));
        for (int unit = BENCH_GEMM; unit <= BENCH_COPY; unit++) {
            bench_ceiling *c = device_add_ceiling(d);
            *c = (bench_ceiling){.unit = unit, .dtype = TESS_F32, .rate = 1e12, .n_samples = 8};
            for (int i = 0; i < 8; i++) c->samples[i] = i < 3 ? cases[k].fastest : 1;
        }
        bench_result *x = report_add_result(&r);
        x->flops = 1.15e12;
        x->bytes_min = 1;
        x->q1 = x->median = 1;
        x->q3 = cases[k].q3;
        results_derive(&r);
        assert_true(fabs(r.results[0].limit_share - 1.15) < 1e-12);
        assert_int_equal(r.results[0].above_limit, cases[k].above);
        assert_true(!r.results[0].suspect && r.results[0].drift == 0);
        r.devices[0].drift = 0.07;
        results_derive(&r);
        assert_true(r.results[0].drift == 0.07);
        report_free(&r);
    }
}

/* What moved less than fixed loops did is no difference, except beside a peer of the same minute.
 */
static void test_drift(void **state) {
    (void)state;
    bench_result x = {.median = 1, .q1 = 0.99, .q3 = 1.01},
                 y = {.median = 1.1, .q1 = 1.09, .q3 = 1.11};
    assert_false(matrix_compare(&x, &y, 0).same);
    y.drift = 0.05;
    assert_false(matrix_compare(&x, &y, 0).same);
    x.drift = 0.12;
    const matrix_ratio r = matrix_compare(&x, &y, 0);
    assert_true(r.same && matrix_compare(&y, &x, 0).same);
    assert_true(fabs(r.value - 1.1) < 1e-12 && fabs(r.low - 1.09 / 1.01 / 1.12) < 1e-12);
    assert_true(fabs(r.high - 1.11 / 0.99 * 1.12) < 1e-12);
    assert_false(matrix_compare(&x, &y, 1).same);
}

/* One byte is damaged at a time; what can still be read is told to be changed. */
static void test_damage(void **state) {
    (void)state;
    bench_report r;
    char error[512];
    size_t size;
    read_file(example, &r);
    char *text = written(&r, &size);
    report_free(&r);
    assert_true(checksum_right(text, size));
    assert_true(checksum_right(text, size - 1)); /* without the last end of line */
    int read = 0;
    for (size_t i = 0; i < size; i += 97) {
        const char was = text[i];
        text[i] = (char)(was ^ 1);
        assert_false(checksum_right(text, size));
        if (i % 970 == 0 && json_parse(&r, text, size, error, sizeof error) == 0) {
            assert_int_equal(r.changed, 1);
            report_free(&r);
            read++;
        }
        text[i] = was;
    }
    assert_true(read > 3);
    char *last = text + size - strlen("0\"\n}\n"); /* digit of the sum */
    *last = *last == '0' ? '1' : '0';
    assert_false(checksum_right(text, size));
    assert_int_equal(json_parse(&r, text, size, error, sizeof error), 0);
    assert_int_equal(r.changed, 1);
    report_free(&r);
    assert_false(checksum_right("", 0));
    assert_false(checksum_right("\"checksum\"", 10));
    assert_false(checksum_right("\"checksum\": \"crc32:", 19));
    free(text);
}

/* The CRC-32 that everybody else computes. */
static void test_known_sum(void **state) {
    (void)state;
    char text[CHECKSUM_TEXT];
    checksum_text("123456789", 9, text);
    assert_string_equal(text, "crc32:cbf43926");
}

/* A file of version 1 has no checksum, and tells in words why something was not run. */
static void test_version_1(void **state) {
    (void)state;
    static const char form[] =
        "{\"schema\":\"tessera-bench\",\"schema_version\":%d,\"machine\":{\"cpu\":\"c\"},"
        "\"devices\":[{\"id\":\"cpu:0\"}],\"results\":["
        "{\"status\":\"skipped\",\"device\":0,\"problem\":\"a\",\"dtype\":\"f32\",%s}]}";
    static const struct {
        const char *words;
        int status;
    } cases[] = {
        {"\"need_seconds\":3,\"note\":\"would take about 3 s\"", BENCH_SLOW},
        {"\"note\":\"needs about 3 GiB of memory, 2 GiB may be used\"", BENCH_MEMORY},
        {"\"note\":\"interrupted\"", BENCH_INTERRUPTED},
        {"\"note\":\"no such type\"", BENCH_REFUSED},
    };
    bench_report r;
    char text[512], error[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = snprintf(text, sizeof text, form, 1, cases[i].words);
        assert_int_equal(json_parse(&r, text, (size_t)n, error, sizeof error), 0);
        assert_int_equal(r.results[0].status, cases[i].status);
        assert_int_equal(r.changed, 0);
        report_free(&r);
        n = snprintf(text, sizeof text, form, 2, cases[i].words);
        assert_int_equal(json_parse(&r, text, (size_t)n, error, sizeof error), -1);
        assert_non_null(strstr(error, "results[0].status: "));
    }
    read_file(old_file, &r);
    assert_int_equal(r.schema_version, 1);
    assert_true(r.n_results > 0);
    report_free(&r);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    example = argv[1];
    old_file = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_derived),
        cmocka_unit_test(test_other_type), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_known_sum),  cmocka_unit_test(test_above_limit),
        cmocka_unit_test(test_drift),      cmocka_unit_test(test_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "checksum.h"
#include "json.h"
#include "json_fields.h"
#include "options.h"

/* A failed allocation anywhere shows as a missing item, so it is counted. */
static int failures;

static void check(const void *item) { failures += item == NULL; }
/* Names may come from drivers in any encoding, and were cut at some length. */
static void text(cJSON *o, const char *key, const char *value) {
    cJSON *item = cJSON_AddStringToObject(o, key, value);
    check(item);
    if (item) cli_one_line(item->valuestring);
}

enum { DIGITS = 32 };

/* The shortest form that reads back as the same number; cJSON's own may be off by a little, and
 * what is computed from the numbers of a file would change each time that it is written. NaN and
 * infinities are null, which the reader takes as "none". */
static const char *exact(double value, char digits[DIGITS]) {
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, DIGITS, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) break;
    }
    return isfinite(value) ? digits : "null";
}

static void number(cJSON *o, const char *key, double value) {
    char digits[DIGITS];
    check(cJSON_AddRawToObject(o, key, exact(value, digits)));
}
static void boolean(cJSON *o, const char *key, int value) {
    check(cJSON_AddBoolToObject(o, key, value != 0));
}

/* Fields of `x` under their own names in `o`. */
#define TEXT(field)   text(o, #field, x->field);
#define NUMBER(field) number(o, #field, (double)x->field);

static void samples(cJSON *o, const double *values, int count) {
    char digits[DIGITS];
    cJSON *array = cJSON_AddArrayToObject(o, "samples_seconds");
    check(array);
    for (int i = 0; array && i < count; i++) {
        cJSON *item = cJSON_CreateRaw(exact(values[i], digits));
        check(item);
        if (item && !cJSON_AddItemToArray(array, item)) {
            failures++;
            cJSON_Delete(item);
        }
    }
}

static cJSON *array_item(cJSON *array) {
    cJSON *item = cJSON_CreateObject();
    check(item);
    if (item && !cJSON_AddItemToArray(array, item)) {
        failures++;
        cJSON_Delete(item);
        return NULL;
    }
    return item;
}

static void write_machine(cJSON *o, const bench_machine *x) {
    check(o);
    TEXT(cpu)
    NUMBER(cpus)
    NUMBER(cpus_allowed)
    MACHINE_COUNTS(NUMBER)
    MACHINE_TEXTS(TEXT)
    NUMBER(other_load)
}

static void write_setting(cJSON *o, const bench_setting *x) {
    TEXT(name)
    SETTING_TEXTS(TEXT)
}

static void write_library(cJSON *root, const bench_report *r) {
    cJSON *o = cJSON_AddObjectToObject(root, "library");
    check(o);
    text(o, "version", r->library_version);
    if (r->commit[0]) text(o, "commit", r->commit);
    text(o, "compiler", r->compiler);
    text(o, "build", r->build);
}

static void write_ceiling(cJSON *o, const bench_ceiling *x) {
    text(o, "what", x->unit == BENCH_GEMM ? "gemm" : x->unit == BENCH_COPY ? "copy" : "read");
    if (x->unit == BENCH_GEMM) text(o, "dtype", dtype_name(x->dtype));
    NUMBER(rate)
    NUMBER(best)
    NUMBER(size)
    NUMBER(threads)
    boolean(o, "own_loop", x->own_loop);
    CEILING_TEXTS(TEXT)
    samples(o, x->samples, x->n_samples);
}

static void write_device(cJSON *o, const bench_device *x) {
    TEXT(id)
    DEVICE_TEXTS(TEXT)
    NUMBER(compute_units)
    NUMBER(memory_bytes)
    if (x->rounds) {
        NUMBER(drift)
        NUMBER(rounds)
    }
    cJSON *stages = cJSON_AddObjectToObject(o, "stages_seconds");
    check(stages);
    for (int i = 0; i < N_STAGES; i++)
        if (x->stages[i] > 0) number(stages, stage_name(i), x->stages[i]);
    cJSON *ceilings = cJSON_AddArrayToObject(o, "ceilings");
    check(ceilings);
    for (int i = 0; i < x->n_ceilings; i++) write_ceiling(array_item(ceilings), &x->ceilings[i]);
}

static void write_planning(cJSON *o, const bench_planning *x) {
    NUMBER(device)
    TEXT(name)
    NUMBER(sequences)
    NUMBER(jobs)
    NUMBER(layout_seconds)
    number(o, "median_seconds", x->seconds);
    number(o, "min_seconds", x->seconds_min);
    number(o, "max_seconds", x->seconds_max);
    NUMBER(runs)
    PLANNING_COUNTS(NUMBER)
    boolean(o, "bar", x->bar);
}

static void write_sensors(cJSON *parent, const char *key, const bench_sensors *x) {
    cJSON *o = cJSON_AddObjectToObject(parent, key);
    check(o);
    SENSOR_NUMBERS(NUMBER)
}

static void write_line(cJSON *o, const bench_line *l) {
    text(o, "family", l->family);
    text(o, "title", l->title);
    text(o, "problem", l->line);
}

static void write_peer(cJSON *o, const bench_peer *x) {
    TEXT(name)
    PEER_TEXTS(TEXT)
}

static void write_shape(cJSON *o, const bench_result *x) {
    text(o, "status", status_word(x->status));
    TEXT(note)
    NUMBER(device)
    TEXT(family)
    text(o, "problem", x->line);
    text(o, "dense_twin", x->twin_line);
    TEXT(kernel)
    TEXT(peer)
    TEXT(pattern)
    text(o, "dtype", dtype_name(x->dtype));
    RESULT_SIZES(NUMBER)
    RESULT_HEADS(NUMBER)
    NUMBER(heads_total)
    text(o, "op", x->decode ? "decode" : x->backward ? "bwd" : "fwd");
    if (x->decode) {
        NUMBER(page)
        boolean(o, "compact", x->compact);
    }
}

static void write_result(cJSON *o, const bench_result *x) {
    write_shape(o, x);
    if (x->need_seconds > 0) {
        NUMBER(need_seconds)
        NUMBER(estimate_seconds)
        NUMBER(ideal_speedup)
    }
    if (x->status != BENCH_OK) return;
    NUMBER(checked_rows)
    RESULT_CHECKS(NUMBER)
    RESULT_SECONDS(NUMBER)
    const double times[] = {x->median, x->q1, x->q3, x->min, x->max};
    static const char *const names[] = {"median", "q1", "q3", "min", "max"};
    for (int i = 0; i < 5; i++) {
        char key[24];
        snprintf(key, sizeof key, "%s_seconds", names[i]);
        number(o, key, times[i]);
    }
    number(o, "rounds", x->n_samples);
    NUMBER(runs)
    samples(o, x->samples, x->n_samples);
    write_sensors(o, "before", &x->before);
    write_sensors(o, "after", &x->after);
    NUMBER(joules)
    NUMBER(flops)
    RESULT_WORK(NUMBER)
    number(o, "jobs", (double)x->n_jobs);
    RESULT_COUNTS(NUMBER)
    if (x->decode) { DECODE_NUMBERS(NUMBER) }
    RESULT_DERIVED(NUMBER)
    boolean(o, "noisy", x->noisy);
    boolean(o, "suspect", x->suspect);
    boolean(o, "above_limit", x->above_limit);
}

/* Closes the object with the checksum of all that stands before. */
static int write_closed(char *out, FILE *f) {
    char sum[CHECKSUM_TEXT], *copy;
    size_t size = strlen(out) - 1; /* without the last bracket */
    while (size > 0 && out[size - 1] == '\n') size--;
    if (!(copy = malloc(size + 4))) return -1;
    memcpy(copy, out, size);
    memcpy(copy + size, ",\n\t", 4);
    checksum_text(copy, size + 3, sum);
    fprintf(f, "%s\"checksum\":\t\"%s\"\n}\n", copy, sum);
    free(copy);
    return 0;
}

int json_write(const bench_report *r, FILE *f) {
    failures = 0;
    cJSON *root = cJSON_CreateObject(), *array;
    check(root);
    text(root, "schema", "tessera-bench");
    number(root, "schema_version", BENCH_SCHEMA_VERSION);
    text(root, "created", r->created);
    text(root, "suite", r->suite);
    text(root, "command", r->command);
    boolean(root, "complete", r->complete);
    number(root, "elapsed_seconds", r->elapsed_seconds);
    number(root, "budget_seconds", r->budget_seconds);
    write_machine(cJSON_AddObjectToObject(root, "machine"), &r->machine);
    write_library(root, r);
#define EACH(name, item)                                \
    check(array = cJSON_AddArrayToObject(root, #name)); \
    for (int i = 0; i < r->n_##name; i++) write_##item(array_item(array), &r->name[i]);
    EACH(settings, setting)
    EACH(devices, device)
    EACH(planning, planning)
    EACH(lines, line)
    EACH(peers, peer)
    EACH(results, result)
    char *out = failures ? NULL : cJSON_Print(root);
    cJSON_Delete(root);
    if (!out) return -1;
    int status = write_closed(out, f);
    cJSON_free(out);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "checksum.h"
#include "json.h"

/* A failed allocation anywhere shows as a missing item, so it is counted. */
static int failures;

static void check(const void *item) { failures += item == NULL; }
static void text(cJSON *o, const char *key, const char *value) {
    check(cJSON_AddStringToObject(o, key, value));
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

static void write_machine(cJSON *root, const bench_report *r) {
    const bench_machine *m = &r->machine;
    cJSON *o = cJSON_AddObjectToObject(root, "machine");
    check(o);
    text(o, "cpu", m->cpu);
    number(o, "cpus", m->cpus);
    number(o, "cpus_allowed", m->cpus_allowed);
    number(o, "memory_bytes", (double)m->memory_bytes);
    number(o, "l2_bytes", (double)m->l2_bytes);
    number(o, "l3_bytes", (double)m->l3_bytes);
    text(o, "os", m->os);
    text(o, "kernel", m->kernel);
    text(o, "arch", m->arch);
    number(o, "other_load", m->other_load);
    o = cJSON_AddObjectToObject(root, "library");
    check(o);
    text(o, "version", r->library_version);
    text(o, "compiler", r->compiler);
    text(o, "build", r->build);
    cJSON *settings = cJSON_AddArrayToObject(root, "settings");
    check(settings);
    for (int i = 0; i < r->n_settings; i++) {
        o = array_item(settings);
        text(o, "name", r->settings[i].name);
        text(o, "value", r->settings[i].value);
        text(o, "source", r->settings[i].source);
    }
}

static void write_device(cJSON *o, const bench_device *d) {
    text(o, "id", d->id);
    text(o, "backend", d->backend);
    text(o, "kind", d->kind);
    text(o, "name", d->name);
    text(o, "arch", d->arch);
    text(o, "driver", d->driver);
    number(o, "compute_units", d->compute_units);
    number(o, "memory_bytes", (double)d->memory_bytes);
    text(o, "uuid", d->uuid);
    text(o, "pci", d->pci);
    text(o, "sensors", d->sensors);
    text(o, "energy", d->energy);
    text(o, "ceiling_note", d->ceiling_note);
    cJSON *ceilings = cJSON_AddArrayToObject(o, "ceilings");
    check(ceilings);
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        cJSON *e = array_item(ceilings);
        text(e, "what", c->unit == BENCH_GEMM ? "gemm" : c->unit == BENCH_COPY ? "copy" : "read");
        if (c->unit == BENCH_GEMM) text(e, "dtype", dtype_name(c->dtype));
        number(e, "rate", c->rate);
        number(e, "best", c->best);
        number(e, "size", (double)c->size);
        number(e, "threads", c->threads);
        boolean(e, "own_loop", c->own_loop);
        text(e, "library", c->library);
        text(e, "method", c->method);
        text(e, "via", c->via);
        samples(e, c->samples, c->n_samples);
    }
}

static void write_planning(cJSON *o, const bench_planning *p) {
    number(o, "device", p->device);
    text(o, "name", p->name);
    number(o, "sequences", (double)p->sequences);
    number(o, "jobs", (double)p->jobs);
    number(o, "layout_seconds", p->layout_seconds);
    number(o, "median_seconds", p->seconds);
    number(o, "min_seconds", p->seconds_min);
    number(o, "max_seconds", p->seconds_max);
    number(o, "runs", p->runs);
    number(o, "host_bytes", (double)p->host_bytes);
    number(o, "device_bytes", (double)p->device_bytes);
    boolean(o, "bar", p->bar);
}

static void write_sensors(cJSON *o, const char *key, const bench_sensors *s) {
    cJSON *e = cJSON_AddObjectToObject(o, key);
    check(e);
    number(e, "clock_hz", s->clock_hz);
    number(e, "memory_clock_hz", s->memory_clock_hz);
    number(e, "power_watts", s->power_watts);
    number(e, "temperature_celsius", s->temperature_celsius);
}

static void write_line(cJSON *o, const bench_line *l) {
    text(o, "family", l->family);
    text(o, "title", l->title);
    text(o, "problem", l->line);
}

static void write_peer(cJSON *o, const bench_peer *p) {
    text(o, "name", p->name);
    text(o, "version", p->version);
    text(o, "note", p->note);
}

static void write_result(cJSON *o, const bench_result *x) {
    text(o, "status", status_word(x->status));
    text(o, "note", x->note);
    number(o, "device", x->device);
    text(o, "family", x->family);
    text(o, "problem", x->line);
    text(o, "dense_twin", x->twin_line);
    text(o, "kernel", x->kernel);
    text(o, "peer", x->peer);
    text(o, "pattern", x->pattern);
    text(o, "dtype", dtype_name(x->dtype));
    number(o, "batch", (double)x->batch);
    number(o, "q_len", (double)x->q_len);
    number(o, "kv_len", (double)x->kv_len);
    number(o, "heads", x->heads);
    number(o, "heads_total", x->heads_total);
    number(o, "kv_heads", x->kv_heads);
    number(o, "head_dim", x->head_dim);
    text(o, "op", x->decode ? "decode" : x->backward ? "bwd" : "fwd");
    if (x->decode) {
        number(o, "page", x->page);
        boolean(o, "compact", x->compact);
    }
    if (x->need_seconds > 0) {
        number(o, "need_seconds", x->need_seconds);
        number(o, "estimate_seconds", x->estimate_seconds);
        number(o, "ideal_speedup", x->ideal_speedup);
    }
    if (x->status != BENCH_OK) return;
    number(o, "checked_rows", (double)x->checked_rows);
    number(o, "check_error", x->check_error);
    number(o, "check_allowed", x->check_allowed);
    number(o, "layout_seconds", x->layout_seconds);
    number(o, "plan_seconds", x->plan_seconds);
    number(o, "compile_seconds", x->compile_seconds);
    number(o, "first_seconds", x->first_seconds);
    number(o, "median_seconds", x->median);
    number(o, "q1_seconds", x->q1);
    number(o, "q3_seconds", x->q3);
    number(o, "min_seconds", x->min);
    number(o, "max_seconds", x->max);
    number(o, "rounds", x->n_samples);
    number(o, "runs", (double)x->runs);
    samples(o, x->samples, x->n_samples);
    write_sensors(o, "before", &x->before);
    write_sensors(o, "after", &x->after);
    number(o, "joules", x->joules);
    number(o, "flops", x->flops);
    number(o, "bytes_min", (double)x->bytes_min);
    number(o, "kept_pairs", (double)x->kept_pairs);
    number(o, "dense_pairs", (double)x->dense_pairs);
    number(o, "jobs", (double)x->n_jobs);
    number(o, "workspace_bytes", (double)x->workspace_bytes);
    number(o, "plan_bytes", (double)x->plan_bytes);
    number(o, "kv_bytes", (double)x->kv_bytes);
    number(o, "kv_bytes_kept", (double)x->kv_bytes_kept);
    number(o, "kv_bytes_allocated", (double)x->kv_bytes_allocated);
    if (x->decode) {
        number(o, "layers", x->layers);
        number(o, "cache_bytes", (double)x->cache_bytes);
        number(o, "parts", x->parts);
        number(o, "host_seconds", x->host_seconds);
    }
    number(o, "spread", x->spread);
    boolean(o, "noisy", x->noisy);
    boolean(o, "suspect", x->suspect);
    number(o, "flop_rate", x->flop_rate);
    number(o, "byte_rate", x->byte_rate);
    number(o, "ideal_speedup", x->ideal_speedup);
    number(o, "speedup", x->speedup);
    number(o, "speedup_low", x->speedup_low);
    number(o, "speedup_high", x->speedup_high);
    number(o, "gemm_share", x->gemm_share);
    number(o, "copy_share", x->copy_share);
    number(o, "read_share", x->read_share);
    number(o, "gemm_ceiling", x->gemm_ceiling);
    number(o, "copy_ceiling", x->copy_ceiling);
    number(o, "read_ceiling", x->read_ceiling);
    number(o, "limit_share", x->limit_share);
    number(o, "limit_ceiling", x->limit_ceiling);
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
    write_machine(root, r);
    check(array = cJSON_AddArrayToObject(root, "devices"));
    for (int i = 0; i < r->n_devices; i++) write_device(array_item(array), &r->devices[i]);
    check(array = cJSON_AddArrayToObject(root, "planning"));
    for (int i = 0; i < r->n_planning; i++) write_planning(array_item(array), &r->planning[i]);
    check(array = cJSON_AddArrayToObject(root, "lines"));
    for (int i = 0; i < r->n_lines; i++) write_line(array_item(array), &r->lines[i]);
    check(array = cJSON_AddArrayToObject(root, "peers"));
    for (int i = 0; i < r->n_peers; i++) write_peer(array_item(array), &r->peers[i]);
    check(array = cJSON_AddArrayToObject(root, "results"));
    for (int i = 0; i < r->n_results; i++) write_result(array_item(array), &r->results[i]);
    char *out = failures ? NULL : cJSON_Print(root);
    cJSON_Delete(root);
    if (!out) return -1;
    int status = write_closed(out, f);
    cJSON_free(out);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "json.h"

/* cJSON writes NaN and infinities as null, which the reader takes as "none". A failed allocation
 * anywhere shows as a missing item, so it is counted. */
static int failures;

static void check(const void *item) { failures += item == NULL; }
static void text(cJSON *o, const char *key, const char *value) {
    check(cJSON_AddStringToObject(o, key, value));
}
static void number(cJSON *o, const char *key, double value) {
    check(cJSON_AddNumberToObject(o, key, value));
}
static void boolean(cJSON *o, const char *key, int value) {
    check(cJSON_AddBoolToObject(o, key, value != 0));
}

static void samples(cJSON *o, const double *values, int count) {
    cJSON *array = cJSON_CreateDoubleArray(values, count);
    check(array);
    if (array && !cJSON_AddItemToObject(o, "samples_seconds", array)) {
        failures++;
        cJSON_Delete(array);
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
    text(o, "ceiling_note", d->ceiling_note);
    cJSON *ceilings = cJSON_AddArrayToObject(o, "ceilings");
    check(ceilings);
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        cJSON *e = array_item(ceilings);
        text(e, "what", c->unit == BENCH_GEMM ? "gemm" : "copy");
        if (c->unit == BENCH_GEMM) text(e, "dtype", dtype_name(c->dtype));
        number(e, "rate", c->rate);
        number(e, "best", c->best);
        number(e, "size", (double)c->size);
        number(e, "threads", c->threads);
        boolean(e, "own_loop", c->own_loop);
        text(e, "library", c->library);
        text(e, "method", c->method);
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

static void write_result(cJSON *o, const bench_result *x) {
    text(o, "status", status_word(x->status));
    text(o, "note", x->note);
    number(o, "device", x->device);
    text(o, "family", x->family);
    text(o, "problem", x->line);
    text(o, "dense_twin", x->twin_line);
    text(o, "kernel", x->kernel);
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
        number(o, "ideal_speedup", x->ideal_speedup);
    }
    if (x->status != BENCH_OK) return;
    number(o, "checked_rows", (double)x->checked_rows);
    number(o, "check_error", x->check_error);
    number(o, "check_allowed", x->check_allowed);
    number(o, "layout_seconds", x->layout_seconds);
    number(o, "plan_seconds", x->plan_seconds);
    number(o, "first_seconds", x->first_seconds);
    number(o, "median_seconds", x->median);
    number(o, "q1_seconds", x->q1);
    number(o, "q3_seconds", x->q3);
    number(o, "min_seconds", x->min);
    number(o, "max_seconds", x->max);
    samples(o, x->samples, x->n_samples);
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
    number(o, "flop_rate", x->flop_rate);
    number(o, "byte_rate", x->byte_rate);
    number(o, "ideal_speedup", x->ideal_speedup);
    number(o, "speedup", x->speedup);
    number(o, "speedup_low", x->speedup_low);
    number(o, "speedup_high", x->speedup_high);
    number(o, "gemm_share", x->gemm_share);
    number(o, "copy_share", x->copy_share);
    number(o, "gemm_ceiling", x->gemm_ceiling);
    number(o, "copy_ceiling", x->copy_ceiling);
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
    check(array = cJSON_AddArrayToObject(root, "results"));
    for (int i = 0; i < r->n_results; i++) write_result(array_item(array), &r->results[i]);
    char *out = failures ? NULL : cJSON_Print(root);
    cJSON_Delete(root);
    if (!out) return -1;
    fputs(out, f);
    fputc('\n', f);
    cJSON_free(out);
    return 0;
}

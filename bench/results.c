/* SPDX-License-Identifier: Apache-2.0 */
#include "results.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "stats.h"

/* Grows an array by one zeroed element. Capacity is the next power of two, found from the count
 * alone, so no array carries a capacity field. */
static void *append(void **array, int *count, size_t size) {
    int n = *count;
    if ((n & (n - 1)) == 0) {
        size_t capacity = n == 0 ? 1 : 2 * (size_t)n;
        void *larger = realloc(*array, capacity * size);
        if (!larger) return NULL;
        *array = larger;
    }
    void *element = (char *)*array + (size_t)n * size;
    memset(element, 0, size);
    *count = n + 1;
    return element;
}

#define DEFINE_ADD(linkage, name, owner, type, array, count)     \
    linkage type *name(owner *o) {                               \
        void *p = o->array;                                      \
        type *element = append(&p, &o->count, sizeof *o->array); \
        o->array = p;                                            \
        return element;                                          \
    }

DEFINE_ADD(, report_add_setting, bench_report, bench_setting, settings, n_settings)
DEFINE_ADD(, device_add_ceiling, bench_device, bench_ceiling, ceilings, n_ceilings)
DEFINE_ADD(, report_add_planning, bench_report, bench_planning, planning, n_planning)
DEFINE_ADD(, report_add_line, bench_report, bench_line, lines, n_lines)
DEFINE_ADD(, report_add_peer, bench_report, bench_peer, peers, n_peers)
DEFINE_ADD(static, add_device, bench_report, bench_device, devices, n_devices)
DEFINE_ADD(static, add_result, bench_report, bench_result, results, n_results)

bench_device *report_add_device(bench_report *r) {
    bench_device *d = add_device(r);
    if (d) d->drift = NAN;
    return d;
}

bench_result *report_add_result(bench_report *r) {
    const bench_sensors unknown = {NAN, NAN, NAN, NAN};
    bench_result *x = add_result(r);
    if (!x) return NULL;
    x->before = x->after = unknown;
    x->joules = x->compile_seconds = x->estimate_seconds = x->ideal_speedup = NAN;
    return x;
}

void report_free(bench_report *r) {
    for (int i = 0; i < r->n_devices; i++) free(r->devices[i].ceilings);
    free(r->settings);
    free(r->devices);
    free(r->planning);
    free(r->lines);
    free(r->peers);
    free(r->results);
    memset(r, 0, sizeof *r);
}

int device_same(const bench_device *a, const bench_device *b) {
    return (a->uuid[0] && strcmp(a->uuid, b->uuid) == 0) ||
           (a->pci[0] && strcmp(a->pci, b->pci) == 0);
}

int device_ceiling(const bench_device *d, int unit, uint32_t dtype) {
    int best = -1;
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        if (c->unit != unit || !(c->rate > 0)) continue;
        if (unit == BENCH_GEMM && c->dtype != dtype && c->dtype != TESS_F32) continue;
        if (best < 0 || c->rate > d->ceilings[best].rate) best = i;
    }
    return best;
}

int result_summarize(bench_result *r) {
    stats_summary s;
    if (stats_summarize(r->samples, (size_t)r->n_samples, &s) != 0) return -1;
    r->median = s.median;
    r->q1 = s.q25;
    r->q3 = s.q75;
    r->min = s.min;
    r->max = s.max;
    return 0;
}

const bench_result *result_twin(const bench_report *r, int index) {
    const bench_result *x = &r->results[index], *other = NULL;
    if (!x->twin_line[0]) return NULL;
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *y = &r->results[i];
        if (y->status != BENCH_OK || y->device != x->device || strcmp(y->kernel, x->kernel) != 0 ||
            strcmp(y->peer, x->peer) != 0 || strcmp(y->line, x->twin_line) != 0)
            continue;
        if (strcmp(y->family, x->family) == 0) return y;
        if (!other) other = y;
    }
    return other;
}

static double share(const bench_device *d, int ceiling, double rate) {
    return ceiling >= 0 ? rate / d->ceilings[ceiling].rate : NAN;
}

/* A kernel may always compute in f32, so that products of f32 stand in where those of a type are
 * unknown; but not on a device that was seen to be faster in that type than in f32. */
static int stands_in(const bench_report *r, int device, int ceiling, uint32_t dtype) {
    const bench_device *d = &r->devices[device];
    const bench_ceiling *c = &d->ceilings[ceiling];
    for (int i = 0; i < d->n_ceilings; i++)
        if (d->ceilings[i].unit == BENCH_GEMM && d->ceilings[i].dtype == dtype) return 1;
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (x->status == BENCH_OK && x->device == device && x->dtype == dtype &&
            x->flops > BENCH_ABOVE_LIMIT * c->rate * x->median)
            return 0;
    }
    return 1;
}

/* Shares of the ceilings. What binds a problem is the slower of its products and its bytes; without
 * a ceiling for products only decode, which memory binds, can be judged. */
static void derive_shares(const bench_report *r, bench_result *x) {
    const bench_device *d = &r->devices[x->device];
    x->gemm_ceiling = device_ceiling(d, BENCH_GEMM, x->dtype);
    if (x->gemm_ceiling >= 0 && !stands_in(r, x->device, x->gemm_ceiling, x->dtype))
        x->gemm_ceiling = -1;
    x->copy_ceiling = device_ceiling(d, BENCH_COPY, x->dtype);
    x->read_ceiling = device_ceiling(d, BENCH_READ, x->dtype);
    x->gemm_share = share(d, x->gemm_ceiling, x->flop_rate);
    x->copy_share = share(d, x->copy_ceiling, x->byte_rate);
    x->read_share = share(d, x->read_ceiling, x->byte_rate);
    int memory = x->read_ceiling;
    double bytes = x->read_share;
    if (x->copy_ceiling >= 0 && !(bytes <= x->copy_share)) {
        memory = x->copy_ceiling;
        bytes = x->copy_share;
    }
    if (memory < 0 || (x->gemm_ceiling < 0 && !x->decode)) return;
    const int products = x->gemm_ceiling >= 0 && x->gemm_share >= bytes;
    x->limit_share = products ? x->gemm_share : bytes;
    x->limit_ceiling = products ? x->gemm_ceiling : memory;
}

/* Whether a result is faster than its limit by more than the spreads of both: by its third quartile
 * against the fastest quarter of the limit's samples. */
static int is_above(const bench_report *r, const bench_result *x) {
    if (x->limit_ceiling < 0) return 0;
    const bench_ceiling *c = &r->devices[x->device].ceilings[x->limit_ceiling];
    stats_summary s;
    double spread = 1;
    if (c->n_samples > 1 && stats_summarize(c->samples, (size_t)c->n_samples, &s) == 0 && s.q25 > 0)
        spread = s.median / s.q25;
    return x->q3 > 0 && x->limit_share * x->median / x->q3 > spread;
}

int result_warming(const bench_report *r, const bench_result *x) {
    return x->device >= 0 && x->device < r->n_devices &&
           strcmp(r->devices[x->device].kind, "gpu") == 0 &&
           x->after.clock_hz > (1 + BENCH_NOISY) * x->before.clock_hz;
}

void results_derive(bench_report *r) {
    for (int i = 0; i < r->n_results; i++) {
        bench_result *x = &r->results[i];
        x->speedup = x->speedup_low = x->speedup_high = x->flop_rate = x->byte_rate =
            x->gemm_share = x->copy_share = x->read_share = x->limit_share = x->spread = NAN;
        x->gemm_ceiling = x->copy_ceiling = x->read_ceiling = x->limit_ceiling = -1;
        x->noisy = x->suspect = x->above_limit = 0;
        x->drift = 0;
        if (x->status != BENCH_OK || !(x->median > 0)) continue;
        x->spread = (x->q3 - x->q1) / x->median;
        x->noisy = x->spread > BENCH_NOISY || result_warming(r, x);
        x->flop_rate = x->flops / x->median;
        x->byte_rate = (double)x->bytes_min / x->median;
        if (x->device >= 0 && x->device < r->n_devices) {
            const double drift = r->devices[x->device].drift;
            derive_shares(r, x);
            x->above_limit = is_above(r, x);
            x->drift = drift > 0 ? drift : 0;
        }
        const bench_result *twin = result_twin(r, i);
        if (!twin) continue;
        x->speedup = twin->median / x->median;
        x->speedup_low = x->q3 > 0 ? twin->q1 / x->q3 : NAN;
        x->speedup_high = x->q1 > 0 ? twin->q3 / x->q1 : NAN;
        x->suspect = x->speedup_low > x->ideal_speedup;
    }
}

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

const char *dtype_name(uint32_t dtype) {
    return dtype < sizeof dtype_names / sizeof *dtype_names ? dtype_names[dtype] : "?";
}

int dtype_from_name(const char *name) {
    for (int i = 0; i < (int)(sizeof dtype_names / sizeof *dtype_names); i++)
        if (strcmp(name, dtype_names[i]) == 0) return i;
    return -1;
}

size_t dtype_size(uint32_t dtype) { return dtype == TESS_F32 ? 4 : 2; }

static const char *const status_words[] = {"ok",     "failed",  "slow",
                                           "memory", "refused", "interrupted"};
enum { N_STATUSES = sizeof status_words / sizeof *status_words };

const char *status_word(int status) {
    return status >= 0 && status < N_STATUSES ? status_words[status] : "?";
}

int status_from_word(const char *word) {
    for (int i = 0; i < N_STATUSES; i++)
        if (strcmp(word, status_words[i]) == 0) return i;
    return -1;
}

int status_skipped(int status) { return status != BENCH_OK && status != BENCH_FAILED; }

const char *device_units(const bench_device *d, char *buffer, size_t size) {
    const char *what = strcmp(d->kind, "gpu") == 0 ? "multiprocessor" : "thread";
    buffer[0] = 0;
    if (d->compute_units)
        snprintf(buffer, size, "%u %s%s", d->compute_units, what, d->compute_units > 1 ? "s" : "");
    return buffer;
}

const char *report_version(const bench_report *r, char *buffer, size_t size) {
    snprintf(buffer, size, r->commit[0] ? "%s (%s)" : "%s", r->library_version, r->commit);
    return buffer;
}

const char *result_heads(const bench_result *r, char *buffer, size_t size) {
    if (r->heads_total > r->heads)
        snprintf(buffer, size, "%d of %d", r->heads, r->heads_total);
    else
        snprintf(buffer, size, "%d", r->heads);
    return buffer;
}

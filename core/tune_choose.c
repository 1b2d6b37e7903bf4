/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule of the tune tables holds for a plan, and which kernels it prefers. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"
#include "status.h"
#include "tune.h"

/* ------------------------------------------------------------------ matching */

/* '*' stands for any bytes, '?' for one; everything else for itself. An absent pattern takes
 * all. */
static bool matches(tess_span pattern, const char *text) {
    size_t p = 0, t = 0, length = strlen(text), star = SIZE_MAX, again = 0;
    if (pattern.length == 0) return true;
    while (t < length) {
        if (p < pattern.length && pattern.at[p] == '*') {
            star = p++;
            again = t;
        } else if (p < pattern.length && (pattern.at[p] == '?' || pattern.at[p] == text[t])) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            /* The last star takes one byte more. */
            p = star + 1;
            t = ++again;
        } else
            return false;
    }
    while (p < pattern.length && pattern.at[p] == '*') p++;
    return p == pattern.length;
}

static bool is_for_device(const tess_tune_rule *rule, const tess_device_info *info) {
    return strlen(info->backend) == rule->backend.length &&
           memcmp(info->backend, rule->backend.at, rule->backend.length) == 0 &&
           matches(rule->arch, info->arch) && matches(rule->device, info->name);
}

static bool holds(tess_range range, int64_t number) {
    return number >= range.low && number <= range.high;
}

static bool is_for_shape(const tess_tune_rule *rule, const tess_kernel_key *key, uint32_t pattern) {
    return (rule->ops >> key->op & 1) != 0 && (rule->dtypes >> key->dtype & 1) != 0 &&
           (rule->patterns >> pattern & 1) != 0 && holds(rule->head_dim, key->head_dim) &&
           holds(rule->block, key->block) && holds(rule->q_len, key->max_q_len) &&
           holds(rule->kv_len, key->max_kv_len);
}

/* Compare numbers first: they rule out nearly all rules, and a server plans at every step. */
static const tess_tune_rule *find(const tess_tune *tune, const tess_device_info *info,
                                  const tess_kernel_key *key, uint32_t pattern) {
    for (uint32_t n = 0; n < tune->n_rules; n++)
        if (is_for_shape(&tune->rules[n], key, pattern) && is_for_device(&tune->rules[n], info))
            return &tune->rules[n];
    return NULL;
}

/* ------------------------------------------------------------------ preferences */

/* The backend's own table. */
static const tess_tune *own_table(const tess_runtime *runtime, const tess_backend *backend) {
    static const tess_tune none = {0};
    for (uint32_t n = 0; n < runtime->n_backends; n++)
        if (runtime->backends[n].backend == backend) return &runtime->backends[n].tune;
    return &none;
}

/* Moves to the matching rule of the next table that has one; false when there is none. */
static bool next_table(const tess_device *device, const tess_kernel_key *key, uint32_t pattern,
                       tess_preference *p) {
    static const char *const bases[] = {"", " (measured)", " (reasoned)"};
    enum { FILE_TABLE, OWN_TABLE, TABLES };
    const tess_runtime *runtime = device->runtime;
    while (p->tables < TABLES) {
        const bool is_file = p->tables++ == FILE_TABLE;
        const tess_tune *tune = is_file ? &runtime->tune : own_table(runtime, device->backend);
        const tess_tune_rule *rule = find(tune, &device->info, key, pattern);
        if (!rule) continue;
        const char *name = is_file ? tess_setting_value(&runtime->settings, TESS_SETTING_TUNE_FILE)
                                   : device->backend->name;
        snprintf(p->why, sizeof p->why, "%s %.160s line %u%s",
                 is_file ? "tune file" : "the table of", name, rule->line, bases[rule->basis]);
        p->rest = rule->kernels;
        return true;
    }
    return false;
}

bool tess_tune_next(const tess_device *device, const tess_kernel_key *key, uint32_t pattern,
                    tess_preference *p) {
    if (p->rest.length == 0 && !next_table(device, key, pattern, p)) return false;
    size_t length = 0, skip = strlen(device->backend->name) + 1; /* "backend/" */
    while (length < p->rest.length && p->rest.at[length] != ',') length++;
    snprintf(p->name, sizeof p->name, "%.*s", (int)(length - skip), p->rest.at + skip);
    size_t step = length < p->rest.length ? length + 1 : length;
    p->rest = (tess_span){p->rest.at + step, p->rest.length - step};
    return true;
}

/* ------------------------------------------------------------------ queries */

bool tess_tune_rule_at(const tess_tune *tune, const tess_device *device, uint32_t *index,
                       tess_rule_info *full) {
    for (uint32_t n = 0; n < tune->n_rules; n++) {
        const tess_tune_rule *rule = &tune->rules[n];
        if ((device != NULL && !is_for_device(rule, &device->info)) || (*index)-- != 0) continue;
        full->line = rule->line;
        full->basis = rule->basis;
        full->text = rule->text;
        return true;
    }
    return false;
}

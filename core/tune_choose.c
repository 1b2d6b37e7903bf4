/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule of the tune tables holds for a plan, and what becomes of its kernels. */
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

/* Numbers first: a server plans every step, and nearly all rules are told apart by them. */
static const tess_tune_rule *find(const tess_tune *tune, const tess_device_info *info,
                                  const tess_kernel_key *key, uint32_t pattern) {
    for (uint32_t n = 0; n < tune->n_rules; n++)
        if (is_for_shape(&tune->rules[n], key, pattern) && is_for_device(&tune->rules[n], info))
            return &tune->rules[n];
    return NULL;
}

/* ------------------------------------------------------------------ choosing */

/* Asks for one kernel by name. A refusal is no failure of the call, and leaves no trace but in the
 * log. */
static tess_status try_kernel(tess_device *device, const tess_kernel_key *key, const char *name,
                              const char *why, tess_kernel *kernel) {
    const char *backend = device->backend->name;
    tess_kernel_key wanted = *key;
    tess_recovery recovery;
    char text[TESS_ERROR_BYTES];
    wanted.name = name;
    wanted.preferred = 1;
    memset(kernel, 0, sizeof *kernel);
    kernel->struct_size = sizeof *kernel;
    tess_recover_begin(&recovery);
    tess_status status = device->backend->kernel(device->native, &wanted, kernel, 0, NULL);
    bool told = tess_call_failed();
    snprintf(text, sizeof text, "%s", told ? tess_last_error() : tess_status_text(status));
    tess_recover_end(&recovery);
    if (status == TESS_OK) {
        tess_log(device->runtime, "dispatch", "%s: %s/%s is preferred by %s", device->info.id,
                 backend, name, why);
        return status;
    }
    memset(kernel, 0, sizeof *kernel); /* nothing to release */
    if (status == TESS_ERROR_UNSUPPORTED || status == TESS_ERROR_UNAVAILABLE) {
        tess_log(device->runtime, "dispatch", "%s: %s/%s, preferred by %s, is passed over: %s",
                 device->info.id, backend, name, why, text);
        return status;
    }
    if (told) tess_fail_in(status, backend, text);
    return tess_device_result(device, status);
}

static tess_status try_rule(tess_device *device, const tess_kernel_key *key,
                            const tess_tune_rule *rule, const char *table, tess_kernel *kernel,
                            bool *chosen) {
    static const char *const bases[] = {"", " (measured)", " (reasoned)"};
    char why[TESS_ERROR_BYTES / 2], name[64];
    snprintf(why, sizeof why, "%.180s line %u%s", table, rule->line, bases[rule->basis]);
    for (tess_span rest = rule->kernels; rest.length > 0;) {
        size_t length = 0, skip = rule->backend.length + 1;
        while (length < rest.length && rest.at[length] != ',') length++;
        snprintf(name, sizeof name, "%.*s", (int)(length - skip), rest.at + skip);
        tess_status status = try_kernel(device, key, name, why, kernel);
        *chosen = status == TESS_OK;
        if (status != TESS_ERROR_UNSUPPORTED && status != TESS_ERROR_UNAVAILABLE) return status;
        size_t step = length < rest.length ? length + 1 : length;
        rest = (tess_span){rest.at + step, rest.length - step};
    }
    return TESS_OK;
}

/* The table that the device's backend brings along. */
static const tess_tune *own_table(const tess_runtime *runtime, const tess_backend *backend) {
    static const tess_tune none = {0};
    for (uint32_t n = 0; n < runtime->n_backends; n++)
        if (runtime->backends[n].backend == backend) return &runtime->backends[n].tune;
    return &none;
}

tess_status tess_tune_choose(tess_device *device, const tess_kernel_key *key, uint32_t pattern,
                             tess_kernel *kernel, bool *chosen) {
    const tess_runtime *runtime = device->runtime;
    char table[256];
    *chosen = false;
    const tess_tune_rule *rule = find(&runtime->tune, &device->info, key, pattern);
    tess_status status = TESS_OK;
    if (rule != NULL) {
        snprintf(table, sizeof table, "tune file %.160s",
                 tess_setting_value(&runtime->settings, TESS_SETTING_TUNE_FILE));
        status = try_rule(device, key, rule, table, kernel, chosen);
    }
    if (status != TESS_OK || *chosen) return status;
    rule = find(own_table(runtime, device->backend), &device->info, key, pattern);
    if (rule == NULL) return TESS_OK;
    snprintf(table, sizeof table, "the table of %s", device->backend->name);
    return try_rule(device, key, rule, table, kernel, chosen);
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

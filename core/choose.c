/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a plan's kernel: the one place that walks a backend's table of kernels, where the
 * setting, the tune tables and the rows' order meet. */
#include "choose.h"

#include <stdio.h>
#include <string.h>

#include "status.h"
#include "tune.h"

static const char *const in_create = "tess_plan_create";

/* More rows than any backend has; one that never says "past the last" must not keep a plan. */
enum { MOST_ROWS = 1024 };

/* ------------------------------------------------------------------ one row */

/* What a row answers, and the message of a call that failed. */
typedef struct answer {
    tess_kernel_info info;
    bool told; /* the backend gave the message */
    char text[TESS_ERROR_BYTES];
} answer;

/* Asks about row `index`; `kernel` may be NULL. A refusal is no failure of the public call, so it
 * leaves no trace but in the answer. */
static tess_status ask(tess_device *device, uint32_t index, const tess_kernel_key *key,
                       tess_kernel *kernel, answer *a) {
    tess_recovery recovery;
    a->info = (tess_kernel_info){.struct_size = sizeof a->info};
    if (kernel) *kernel = (tess_kernel){.struct_size = sizeof *kernel};
    tess_recover_begin(&recovery);
    tess_status status = device->backend->kernel(device->native, index, key, &a->info, kernel);
    a->told = tess_call_failed();
    snprintf(a->text, sizeof a->text, "%s", a->told ? tess_last_error() : tess_status_text(status));
    tess_recover_end(&recovery);
    a->info.name[sizeof a->info.name - 1] = a->info.reason[sizeof a->info.reason - 1] = '\0';
    /* What a failed call leaves behind must not be released. */
    if (kernel && status != TESS_OK) memset(kernel, 0, sizeof *kernel);
    return status;
}

static bool is_refusal(tess_status status) {
    return status == TESS_ERROR_UNSUPPORTED || status == TESS_ERROR_UNAVAILABLE;
}

/* ------------------------------------------------------------------ the walk */

typedef struct walk {
    tess_device *device;
    const tess_kernel_key *key;
    const char *name;    /* the only row that may be taken; NULL: any */
    bool preferred;      /* `name` is the preference of a tune table, not the user's order */
    tess_kernel *kernel; /* of the row that is taken ... */
    char taken[sizeof((tess_kernel_info *)0)->name]; /* ... and its name; "": none is */
    char reasons[768];                               /* of all rows that refused */
    tess_status status;                              /* why none is taken, */
    bool told;                                       /* and `text` is its message */
    char text[TESS_ERROR_BYTES];
} walk;

static void set_error(walk *w, tess_status status, bool told, const char *text) {
    w->status = status;
    w->told = told;
    snprintf(w->text, sizeof w->text, "%s", text);
}

static void note_refusal(walk *w, const char *name, const char *why) {
    const char *backend = w->device->backend->name;
    const size_t used = strlen(w->reasons);
    snprintf(w->reasons + used, sizeof w->reasons - used, "%s%s: %s", used ? "; " : "", name, why);
    tess_log(w->device->runtime, "dispatch", "%s: %s/%s refuses: %s", backend, backend, name, why);
}

static void note_acceptance(walk *w, const char *name) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const char *backend = w->device->backend->name;
    memcpy(w->taken, name, sizeof w->taken);
    tess_log(w->device->runtime, "dispatch", "%s: %s/%s accepts: dtype %s, head_dim %d", backend,
             backend, name, dtypes[w->key->dtype], (int)w->key->head_dim);
}

/* Takes a row of the key's operation, or notes why not. False: the call has failed. */
static bool try_row(walk *w, uint32_t index, const tess_kernel_info *info) {
    const bool by_order = w->name && !w->preferred;
    answer made;
    if (info->status != TESS_OK)
        note_refusal(w, info->name,
                     info->reason[0] ? info->reason : tess_status_text(info->status));
    else if ((info->flags & TESS_KERNEL_ONLY_NAMED) && !by_order)
        note_refusal(w, info->name, "taken only when named");
    else {
        const tess_status status = ask(w->device, index, w->key, w->kernel, &made);
        if (status == TESS_OK) {
            note_acceptance(w, info->name);
            return true;
        }
        if (status != TESS_ERROR_UNSUPPORTED) set_error(w, status, made.told, made.text);
        if (!is_refusal(status)) return false;
        note_refusal(w, info->name, made.text);
    }
    return true;
}

/* Takes the first row that accepts, and else sets the error: UNSUPPORTED with the reasons of all
 * that refused, or UNAVAILABLE where one takes the problem and the device not its code. */
static void walk_rows(walk *w) {
    const char *backend = w->device->backend->name;
    answer a;
    w->reasons[0] = w->taken[0] = '\0';
    w->status = TESS_OK;
    for (uint32_t index = 0; index < MOST_ROWS && !w->taken[0]; index++) {
        const tess_status status = ask(w->device, index, w->key, NULL, &a);
        if (status == TESS_ERROR_INVALID) break; /* past the last */
        if (status != TESS_OK) {
            set_error(w, status, a.told, a.text);
            return;
        }
        if (a.info.op != w->key->op || (w->name && strcmp(w->name, a.info.name) != 0)) continue;
        if (!try_row(w, index, &a.info)) return;
    }
    if (w->taken[0] || w->status != TESS_OK) return;
    set_error(w, TESS_ERROR_UNSUPPORTED, true, "");
    if (w->reasons[0])
        snprintf(w->text, sizeof w->text, "no %s kernel accepts the problem: %.400s", backend,
                 w->reasons);
    else if (w->name)
        snprintf(w->text, sizeof w->text, "kernel: %s has no kernel named '%.64s'", backend,
                 w->name);
    else
        snprintf(w->text, sizeof w->text, "%s has no kernel of operation %u", backend,
                 (unsigned)w->key->op);
}

/* Makes the walk's error that of the public call. */
static tess_status fail(const walk *w) {
    if (w->told) tess_fail_in(w->status, w->device->backend->name, w->text);
    return tess_device_result(w->device, w->status);
}

/* ------------------------------------------------------------------ the order */

/* Asks the kernels that the tune tables prefer. Those that refuse are passed over. */
static tess_status try_preferences(walk *w, uint32_t pattern) {
    tess_device *device = w->device;
    const char *backend = device->backend->name;
    tess_preference p = {0};
    w->preferred = true;
    w->name = p.name;
    while (tess_tune_next(device, w->key, pattern, &p)) {
        walk_rows(w);
        if (w->taken[0]) {
            tess_log(device->runtime, "dispatch", "%s: %s/%s is preferred by %s", device->info.id,
                     backend, p.name, p.why);
            return TESS_OK;
        }
        if (!is_refusal(w->status)) return fail(w);
        tess_log(device->runtime, "dispatch", "%s: %s/%s, preferred by %s, is passed over: %s",
                 device->info.id, backend, p.name, p.why, w->text);
    }
    w->name = NULL;
    return TESS_OK;
}

/* The part of "backend/kernel" after the slash, if the backend is the plan's. `label` says where
 * the name comes from. */
static tess_status own_kernel(const tess_device *device, const char *label, const char *name,
                              const char **own) {
    const char *backend = device->backend->name, *slash = strchr(name, '/');
    if (!slash || slash == name || slash[1] == '\0')
        return tess_invalid("%s: %s: must be backend/kernel, got \"%s\"", in_create, label, name);
    size_t length = (size_t)(slash - name);
    if (strlen(backend) != length || memcmp(backend, name, length) != 0)
        return tess_unsupported("%s: %s: \"%s\" is not a kernel of the device's backend (%s)",
                                in_create, label, name, backend);
    *own = slash + 1;
    return TESS_OK;
}

/* The other sequences of a batch must not decide which kernel a sequence gets when its bits shall
 * not depend on them. */
static tess_kernel_key key_of(const tess_plan *plan, const tess_plan_desc *d) {
    const tess_layout *layout = plan->layout;
    const bool invariant = (plan->flags & TESS_PLAN_BATCH_INVARIANT) != 0;
    tess_kernel_key key;
    memset(&key, 0, sizeof key);
    key.struct_size = sizeof key;
    key.op = d->op;
    key.dtype = d->dtype;
    key.head_dim = key.value_head_dim = d->head_dim;
    key.block = layout->pattern.block;
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        tess_class words;
        tess_class_words(&layout->patterns[c], &words);
        key.class_flags |= words.flags;
        if (layout->patterns[c].kind != TESS_HEAD_DENSE) key.has_entries = 1;
    }
    key.max_q_len = invariant ? TESS_LENGTH_END - 1 : plan->max_q_len;
    key.max_kv_len = invariant ? TESS_LENGTH_END - 1 : plan->max_kv_len;
    key.batch = invariant ? TESS_LENGTH_END - 1 : plan->batch;
    key.n_heads = (uint32_t)layout->n_heads;
    key.packed = plan->packed;
    key.steps = plan->steps;
    key.group = (uint32_t)(layout->n_heads / layout->n_kv_heads);
    /* A run is a launch for each storage group. */
    const uint64_t launches = (uint64_t)(d->max_in_flight ? d->max_in_flight : 4) * plan->pools.n;
    key.max_in_flight = launches > UINT32_MAX ? UINT32_MAX : (uint32_t)launches;
    key.kv_dtype = plan->kv_dtype;
    key.page = plan->pools.page;
    key.compact = plan->pools.compact;
    return key;
}

/* What a backend from outside the tree may have got wrong, and the tiles of the plan. */
static tess_status take(tess_plan *plan, const tess_plan_desc *d, const char *name) {
    const char *backend = plan->device->backend->name;
    if (plan->kernel.tile_rows == 0 || plan->kernel.tile_step == 0)
        return tess_fail(TESS_ERROR_NATIVE, "%s: %s: kernel %s has no tile_rows or tile_step",
                         in_create, backend, name);
    if (snprintf(plan->kernel_name, sizeof plan->kernel_name, "%s/%s", backend, name) >=
        (int)sizeof plan->kernel_name)
        return tess_fail(TESS_ERROR_NATIVE, "%s: %s: kernel %s has too long a name", in_create,
                         backend, name);
    plan->tile_rows = plan->kernel.tile_rows;
    if (d->tile_rows > 0 && (uint32_t)d->tile_rows < plan->tile_rows) {
        /* Below one step the value is taken as it is: the last tile of a sequence may be as short
         * anyway. */
        uint32_t rows = (uint32_t)d->tile_rows, step = plan->kernel.tile_step;
        plan->tile_rows = rows < step ? rows : rows - rows % step;
    }
    return TESS_OK;
}

tess_status tess_choose_kernel(tess_plan *plan, const tess_plan_desc *d) {
    tess_device *device = plan->device;
    const tess_kernel_key key = key_of(plan, d);
    walk w = {.device = device, .key = &key, .kernel = &plan->kernel};
    const char *setting = d->kernel ? "" : tess_setting(device->runtime, "TESSERA_KERNEL");
    if (d->kernel && *d->kernel)
        TESS_RETURN_IF_ERROR(own_kernel(device, "kernel", d->kernel, &w.name));
    if (*setting) TESS_RETURN_IF_ERROR(own_kernel(device, "TESSERA_KERNEL", setting, &w.name));
    if (!w.name)
        TESS_RETURN_IF_ERROR(
            try_preferences(&w, key.has_entries ? plan->layout->pattern.kind : TESS_PATTERN_DENSE));
    if (!w.taken[0]) {
        w.preferred = false;
        walk_rows(&w);
    }
    return w.taken[0] ? take(plan, d, w.taken) : fail(&w);
}

/* ------------------------------------------------------------------ other operations */

tess_status tess_choose_op(tess_device *device, const tess_kernel_key *key, tess_kernel *kernel) {
    walk w = {.device = device, .key = key, .kernel = kernel};
    walk_rows(&w);
    return w.taken[0] ? TESS_OK : fail(&w);
}

tess_status tess_choose_append(tess_plan *plan, const tess_plan_desc *d) {
    tess_device *device = plan->device;
    if (!(d->flags & TESS_PLAN_APPEND)) return TESS_OK;
    if (!(device->caps.features & TESS_FEATURE_APPEND))
        return tess_unsupported("%s: flags: TESS_PLAN_APPEND: backend %s does not write caches",
                                in_create, device->backend->name);
    tess_kernel_key key = key_of(plan, d);
    key.op = TESS_OP_APPEND;
    return tess_choose_op(device, &key, &plan->append);
}

tess_status tess_choose_for_device(tess_device *device, uint32_t op, uint32_t dtype,
                                   int32_t head_dim, const tess_kernel **kernel) {
    const tess_kernel_key key = {.struct_size = sizeof key,
                                 .op = op,
                                 .dtype = dtype,
                                 .kv_dtype = dtype,
                                 .head_dim = head_dim,
                                 .value_head_dim = head_dim,
                                 .block = 1,
                                 .group = 1,
                                 .n_heads = 1,
                                 .batch = 1,
                                 .max_in_flight = TESS_DEVICE_LAUNCHES};
    const bool merges = op == TESS_OP_MERGE;
    tess_kernel *own = merges ? &device->merge[dtype] : &device->copy_pages[dtype];
    if (!(device->caps.features & (merges ? TESS_FEATURE_MERGE : TESS_FEATURE_APPEND)))
        return tess_unsupported(merges ? "tess_merge_parts: device: backend %s does not merge parts"
                                       : "tess_copy_pages: device: backend %s does not copy pages",
                                device->backend->name);
    pthread_mutex_lock(&device->preparing);
    const tess_status status = own->release ? TESS_OK : tess_choose_op(device, &key, own);
    pthread_mutex_unlock(&device->preparing);
    *kernel = own;
    return status;
}

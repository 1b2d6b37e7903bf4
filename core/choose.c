/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a plan's kernel: the one place that walks a backend's table of kernels, where the
 * setting, the tune tables and the rows' order meet. */
#include "choose.h"

#include <stdio.h>
#include <string.h>

#include "backward.h"
#include "status.h"
#include "tune.h"

static const char *const in_create = "tess_plan_create";

/* More rows than any backend has; one that never says "past the last" must not keep a plan. */
enum { MOST_ROWS = 1024 };

/* A share's `most` that takes all that are left. */
#define EVERY_LENGTH (TESS_LENGTH_END - 1)

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
    tess_plan *plan;     /* whose shares get kernels, or NULL: `kernel` gets one */
    tess_kernel *kernel; /* of the row that is taken */
    int64_t above;       /* sequences with at most so many rows have a kernel */
    uint32_t steps;      /* how often it rose; batch-invariant also for kernels without sequences */
    bool done;           /* nothing is left without one */
    bool taken;          /* a row was, in this walk */
    char reasons[768];   /* of all rows that refused */
    tess_status status;  /* why none is taken, */
    bool told;           /* and `text` is its message */
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

static void note_acceptance(walk *w, const char *name, int64_t most) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const char *backend = w->device->backend->name;
    char rows[48] = "";
    if (most != EVERY_LENGTH)
        snprintf(rows, sizeof rows, ", for q_len of at most %lld", (long long)most);
    w->taken = true;
    tess_log(w->device->runtime, "dispatch", "%s: %s/%s accepts: dtype %s, head_dim %d%s", backend,
             backend, name, dtypes[w->key->dtype], (int)w->key->head_dim, rows);
}

/* The other sequences of a batch must not decide which kernel a sequence gets when its bits shall
 * not depend on them. */
static bool is_invariant(const walk *w) {
    return w->plan && (w->plan->flags & TESS_PLAN_BATCH_INVARIANT) != 0;
}

/* The problem of the shortest sequence without a kernel that there can be. */
static tess_kernel_key key_fewest(const walk *w) {
    tess_kernel_key key = *w->key;
    key.max_q_len = w->above + 1;
    return key;
}

/* The problem about which rows are asked: the longest sequence without a kernel or, where others
 * must not matter, the shortest there can be. */
static tess_kernel_key key_left(const walk *w) { return is_invariant(w) ? key_fewest(w) : *w->key; }

/* The user wants this kernel, for better or worse. */
static bool is_ordered(const walk *w) { return w->name && !w->preferred; }

/* The longest q_len that the row is for. Columns of backward plans have one kernel. */
static int64_t most_for(const walk *w, const tess_kernel_info *info) {
    if (!w->plan || is_ordered(w) || info->most_rows == 0) return EVERY_LENGTH;
    if (w->plan->op != TESS_OP_FORWARD) return EVERY_LENGTH;
    const int64_t most = info->most_rows / w->key->group;
    return most < EVERY_LENGTH ? most : EVERY_LENGTH;
}

/* Whether to ask the row once more, about the fewest rows. Most sequences of a step have far fewer
 * rows than its capacity allows, and a kernel for few rows may have a faster shape for the fewest.
 * Where another kernel follows anyway, each shape gets a share. */
static bool has_fewer(const walk *w, const tess_kernel_info *info) {
    return w->plan && w->plan->steps && !is_invariant(w) && info->status == TESS_OK &&
           most_for(w, info) < w->plan->max_q_len;
}

/* Whether the row may have the sequences up to `most` rows; else notes why not. */
static bool may_have(walk *w, const tess_kernel_info *info, int64_t most) {
    char why[64];
    if (!w->plan || most == EVERY_LENGTH) return true;
    const bool last = w->steps + 1 == TESS_SHARES,
               all = !is_invariant(w) && most >= w->plan->max_q_len;
    if (most > w->above && (all || !last)) return true;
    snprintf(why, sizeof why, "is for %u rows or fewer of a kv head", (unsigned)info->most_rows);
    note_refusal(w, info->name, why);
    return false;
}

/* Makes the row ready, or notes why not. False: the call has failed. */
static bool make_ready(walk *w, uint32_t index, const tess_kernel_key *key, const char *name,
                       int64_t most) {
    tess_share *share = w->plan ? &w->plan->shares[w->plan->n_shares] : NULL;
    answer made;
    tess_status status = ask(w->device, index, key, share ? &share->kernel : w->kernel, &made);
    const char *why = made.text;
    if (status == TESS_OK && made.info.status != TESS_OK) {
        /* It had accepted fewer rows. */
        status = TESS_ERROR_UNSUPPORTED;
        why = made.info.reason;
    }
    if (status != TESS_OK) {
        if (status != TESS_ERROR_UNSUPPORTED) set_error(w, status, made.told, made.text);
        if (!is_refusal(status)) return false;
        note_refusal(w, name, why);
        return true;
    }
    note_acceptance(w, name, most);
    w->done = true;
    if (!share) return true;
    memcpy(share->kernel_name, name, sizeof share->kernel_name);
    share->above = w->above;
    share->most = w->above = most;
    w->steps++;
    w->plan->n_shares++;
    w->done = most >= w->plan->max_q_len;
    return true;
}

/* Gives the row the sequences that it is for, if there are any. *again: it may be for more. False:
 * the call has failed. */
static bool take_row(walk *w, uint32_t index, const char *name, int64_t most, bool *again) {
    const int64_t before = w->above,
                  longest = w->plan ? tess_plan_longest(w->plan, before, most) : 0;
    tess_kernel_key key = *w->key;
    if (w->plan) key.max_q_len = is_invariant(w) ? most : longest;
    if (w->plan && longest == 0 && w->plan->max_q_len != 0) {
        w->above = most;
        if (is_invariant(w)) w->steps++;
    } else if (!make_ready(w, index, &key, name, most)) {
        return false;
    }
    *again = w->above > before && !w->done;
    return true;
}

/* Takes a row of the key's operation, or notes why not. False: the call has failed. */
static bool try_row(walk *w, uint32_t index, const tess_kernel_info *info, bool *again) {
    const int64_t most = most_for(w, info);
    if (info->status != TESS_OK)
        note_refusal(w, info->name,
                     info->reason[0] ? info->reason : tess_status_text(info->status));
    else if ((info->flags & TESS_KERNEL_ONLY_NAMED) && !is_ordered(w))
        note_refusal(w, info->name, "taken only when named");
    else if (may_have(w, info, most))
        return take_row(w, index, info->name, most, again);
    return true;
}

/* Takes the rows that accept, in order, until nothing is left without a kernel. Else sets the
 * error: UNSUPPORTED with the reasons of all that refused, or UNAVAILABLE where one takes the
 * problem and the device not its code. */
static void walk_rows(walk *w) {
    const char *backend = w->device->backend->name;
    answer a;
    bool again = false;
    w->reasons[0] = '\0';
    w->taken = false;
    w->status = TESS_OK;
    for (uint32_t index = 0; index < MOST_ROWS && !w->done; index += again ? 0 : 1) {
        const tess_kernel_key key = key_left(w);
        tess_status status = ask(w->device, index, &key, NULL, &a);
        again = false;
        if (status == TESS_ERROR_INVALID) break; /* past the last */
        if (status == TESS_OK && has_fewer(w, &a.info)) {
            const tess_kernel_key fewest = key_fewest(w);
            status = ask(w->device, index, &fewest, NULL, &a);
        }
        if (status != TESS_OK) {
            set_error(w, status, a.told, a.text);
            return;
        }
        if (a.info.op != w->key->op || (w->name && strcmp(w->name, a.info.name) != 0)) continue;
        if (!try_row(w, index, &a.info, &again)) return;
    }
    if (w->done || w->status != TESS_OK) return;
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
        if (w->taken)
            tess_log(device->runtime, "dispatch", "%s: %s/%s is preferred by %s", device->info.id,
                     backend, p.name, p.why);
        if (w->done) return TESS_OK;
        if (!is_refusal(w->status)) return fail(w);
        if (w->taken) continue;
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
    key.kv_keys = invariant ? 0 : plan->all_keys;
    key.batch = invariant ? TESS_LENGTH_END - 1 : plan->batch;
    key.n_heads = (uint32_t)layout->n_heads;
    key.packed = plan->packed;
    key.steps = plan->steps;
    key.group = (uint32_t)(layout->n_heads / layout->n_kv_heads);
    key.head_classes = layout->group_start[layout->n_kv_heads];
    /* A run is a launch for each storage group, or for each stage. */
    const uint64_t launches = (uint64_t)(d->max_in_flight ? d->max_in_flight : 4) * plan->pools.n *
                              (d->op == TESS_OP_BACKWARD ? TESS_STAGES : 1);
    key.max_in_flight = launches > UINT32_MAX ? UINT32_MAX : (uint32_t)launches;
    key.kv_dtype = plan->kv_dtype;
    key.page = plan->pools.page;
    key.compact = plan->pools.compact;
    key.determinism = d->determinism;
    key.gradients = d->flags & TESS_PLAN_GRADIENTS;
    key.turns = d->op == TESS_OP_BACKWARD && tess_columns_turns(layout);
    return key;
}

/* What a backend from outside the tree may have got wrong, and the tiles of a share. */
static tess_status finish(const tess_plan *plan, const tess_plan_desc *d, tess_share *share) {
    const char *backend = plan->device->backend->name;
    char name[sizeof share->kernel_name];
    memcpy(name, share->kernel_name, sizeof name);
    if (share->kernel.tile_rows == 0 || share->kernel.tile_step == 0)
        return tess_fail(TESS_ERROR_NATIVE, "%s: %s: kernel %s has no tile_rows or tile_step",
                         in_create, backend, name);
    if (plan->op == TESS_OP_BACKWARD)
        TESS_RETURN_IF_ERROR(tess_backward_check_kernel(plan, name, &share->kernel));
    if (snprintf(share->kernel_name, sizeof share->kernel_name, "%s/%s", backend, name) >=
        (int)sizeof share->kernel_name)
        return tess_fail(TESS_ERROR_NATIVE, "%s: %s: kernel %s has too long a name", in_create,
                         backend, name);
    share->tile_rows = share->kernel.tile_rows;
    if (d->tile_rows > 0 && (uint32_t)d->tile_rows < share->tile_rows) {
        /* Below one step the value is taken as it is: the last tile of a sequence may be as short
         * anyway. */
        uint32_t rows = (uint32_t)d->tile_rows, step = share->kernel.tile_step;
        share->tile_rows = rows < step ? rows : rows - rows % step;
    }
    return TESS_OK;
}

tess_status tess_choose_kernel(tess_plan *plan, const tess_plan_desc *d) {
    tess_device *device = plan->device;
    const tess_kernel_key key = key_of(plan, d);
    walk w = {.device = device, .key = &key, .plan = plan};
    const char *setting = d->kernel ? "" : tess_setting(device->runtime, "TESSERA_KERNEL");
    if (d->kernel && *d->kernel)
        TESS_RETURN_IF_ERROR(own_kernel(device, "kernel", d->kernel, &w.name));
    if (*setting) TESS_RETURN_IF_ERROR(own_kernel(device, "TESSERA_KERNEL", setting, &w.name));
    if (!w.name)
        TESS_RETURN_IF_ERROR(
            try_preferences(&w, key.has_entries ? plan->layout->pattern.kind : TESS_PATTERN_DENSE));
    if (!w.done) {
        w.preferred = false;
        walk_rows(&w);
    }
    if (!w.done) return fail(&w);
    for (uint32_t n = 0; n < plan->n_shares; n++)
        TESS_RETURN_IF_ERROR(finish(plan, d, &plan->shares[n]));
    return TESS_OK;
}

/* ------------------------------------------------------------------ other operations */

tess_status tess_choose_op(tess_device *device, const tess_kernel_key *key, tess_kernel *kernel) {
    walk w = {.device = device, .key = key, .kernel = kernel};
    walk_rows(&w);
    return w.done ? TESS_OK : fail(&w);
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

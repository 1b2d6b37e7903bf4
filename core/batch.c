/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the lengths of a batch and makes the sequences of a plan from them. */
#include "plan.h"

static const char *const function = "tess_plan_create";

/* ------------------------------------------------------------------ checks */

static tess_status check_length(const char *field, int64_t length) {
    if (length < 0)
        return tess_invalid("%s: %s: must be at least 0, got %lld", function, field,
                            (long long)length);
    if (length >= TESS_LENGTH_END)
        return tess_unsupported("%s: %s: must be less than %lld, got %lld", function, field,
                                (long long)TESS_LENGTH_END, (long long)length);
    return TESS_OK;
}

/* Lengths that a plan with device lengths must not have, and its capacities. */
static tess_status check_capacities(const tess_plan_desc *d) {
    const struct {
        const char *name;
        const int64_t *values;
    } lengths[] = {{"q_lens", d->q_lens},       {"kv_lens", d->kv_lens},
                   {"cu_q_lens", d->cu_q_lens}, {"cu_kv_lens", d->cu_kv_lens},
                   {"q_first", d->q_first},     {"kv_first", d->kv_first}};
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        if (lengths[n].values)
            return tess_invalid("%s: %s: must be NULL with TESS_PLAN_DEVICE_LENGTHS", function,
                                lengths[n].name);
    TESS_RETURN_IF_ERROR(check_length("max_rows", d->max_rows));
    /* below 2^62, since both are below 2^31 */
    if (d->max_rows > d->batch * d->q_len)
        return tess_invalid("%s: max_rows: must be at most batch * q_len (%lld), got %lld",
                            function, (long long)(d->batch * d->q_len), (long long)d->max_rows);
    if (d->max_rows == 0) TESS_RETURN_IF_ERROR(check_length("q_len", d->batch * d->q_len));
    return TESS_OK;
}

tess_status tess_batch_check(const tess_plan_desc *d) {
    TESS_RETURN_IF_ERROR(check_length("batch", d->batch));
    TESS_RETURN_IF_ERROR(check_length("q_len", d->q_len));
    TESS_RETURN_IF_ERROR(check_length("kv_len", d->kv_len));
    if (d->flags & TESS_PLAN_DEVICE_LENGTHS) return check_capacities(d);
    if (d->max_rows != 0)
        return tess_invalid("%s: max_rows: must be 0 without TESS_PLAN_DEVICE_LENGTHS, got %lld",
                            function, (long long)d->max_rows);
    bool packed = d->cu_q_lens || d->cu_kv_lens;
    if (packed && !d->cu_q_lens)
        return tess_invalid("%s: cu_q_lens: must be given together with cu_kv_lens", function);
    if (packed && !d->cu_kv_lens)
        return tess_invalid("%s: cu_kv_lens: must be given together with cu_q_lens", function);
    if (packed && d->q_lens)
        return tess_invalid("%s: q_lens: must be NULL for a packed batch", function);
    if (packed && d->kv_lens)
        return tess_invalid("%s: kv_lens: must be NULL for a packed batch", function);
    return TESS_OK;
}

static tess_status check_item(const char *field, int64_t index, int64_t length, int64_t most) {
    if (length < 0)
        return tess_invalid("%s: %s[%lld]: must be at least 0, got %lld", function, field,
                            (long long)index, (long long)length);
    if (length >= TESS_LENGTH_END)
        return tess_unsupported("%s: %s[%lld]: must be less than %lld, got %lld", function, field,
                                (long long)index, (long long)TESS_LENGTH_END, (long long)length);
    if (most != 0 && length > most)
        return tess_invalid("%s: %s[%lld]: must be at most %lld, got %lld", function, field,
                            (long long)index, (long long)most, (long long)length);
    return TESS_OK;
}

/* ------------------------------------------------------------------ sequences */

/* The length of sequence `b`, from a padded or a cumulative array. *last is the cumulative length
 * so far. */
static tess_status read_length(const char *field, const int64_t *lengths, const int64_t *cumulative,
                               int64_t b, int64_t uniform, int64_t *last, int64_t *length) {
    *length = uniform;
    if (lengths) {
        *length = lengths[b];
        return check_item(field, b, *length, uniform);
    }
    if (!cumulative) return TESS_OK;
    int64_t end = cumulative[b + 1];
    if (end < *last)
        return tess_invalid("%s: %s[%lld]: must not fall, got %lld after %lld", function, field,
                            (long long)b + 1, (long long)end, (long long)*last);
    *length = end - *last;
    *last = end;
    return check_item(field, b + 1, *length, 0);
}

/* The positions of sequence `b` in an array of the descriptor, or `standard` without one. `end` is
 * that of the rows or keys after it. */
static tess_status read_position(const char *field, const int64_t *positions, int64_t b,
                                 int64_t count, int64_t standard, int64_t *first) {
    *first = positions ? positions[b] : standard;
    if (!positions) return TESS_OK;
    if (*first < 0)
        return tess_invalid("%s: %s[%lld]: must be at least 0, got %lld", function, field,
                            (long long)b, (long long)*first);
    if (*first >= TESS_LENGTH_END - count)
        return tess_unsupported("%s: %s[%lld]: must be less than %lld with the %lld tokens after "
                                "it, got %lld",
                                function, field, (long long)b, (long long)TESS_LENGTH_END,
                                (long long)count, (long long)*first);
    return TESS_OK;
}

/* Positions of the first row and the first key of sequence `b`. */
static tess_status read_positions(const tess_plan *plan, const tess_plan_desc *d,
                                  const char *kv_field, int64_t b, int64_t q_len, int64_t keys,
                                  int64_t *q_first, int64_t *kv_first) {
    const int64_t block = plan->layout->pattern.block, max_tokens = plan->layout->max_tokens;
    if (keys > max_tokens)
        return tess_invalid(
            "%s: %s: sequence %lld has %lld keys, more than the layout's max_tokens (%lld)",
            function, kv_field, (long long)b, (long long)keys, (long long)max_tokens);
    TESS_RETURN_IF_ERROR(read_position("kv_first", d->kv_first, b, keys, 0, kv_first));
    if (*kv_first % block != 0)
        return tess_invalid("%s: kv_first[%lld]: must be a multiple of block (%lld), got %lld",
                            function, (long long)b, (long long)block, (long long)*kv_first);
    if (*kv_first > max_tokens - keys)
        return tess_invalid(
            "%s: kv_first[%lld]: must be at most %lld, for %lld keys and the layout's max_tokens "
            "(%lld), got %lld",
            function, (long long)b, (long long)(max_tokens - keys), (long long)keys,
            (long long)max_tokens, (long long)*kv_first);
    return read_position("q_first", d->q_first, b, q_len, *kv_first + keys - q_len, q_first);
}

/* Checks every length and counts the sequences that have rows or, in backward plans, keys. Once
 * there is memory, also writes these. */
static tess_status read_sequences(tess_plan *plan, const tess_plan_desc *d) {
    int64_t q_end = 0, kv_end = 0, max_q = 0, max_kv = 0;
    const char *q_field = plan->packed ? "cu_q_lens" : "q_lens",
               *kv_field = plan->packed ? "cu_kv_lens"
                           : d->kv_lens ? "kv_lens"
                                        : "kv_len";
    if (plan->packed && d->cu_q_lens[0] != 0)
        return tess_invalid("%s: cu_q_lens[0]: must be 0, got %lld", function,
                            (long long)d->cu_q_lens[0]);
    if (plan->packed && d->cu_kv_lens[0] != 0)
        return tess_invalid("%s: cu_kv_lens[0]: must be 0, got %lld", function,
                            (long long)d->cu_kv_lens[0]);
    plan->q_last = plan->kv_last = -1;
    plan->equal_lengths = !plan->packed && !d->q_lens && !d->kv_lens && !d->q_first && !d->kv_first;
    int64_t all_keys = 0;
    /* The keys of all sequences follow each other. */
    const bool joined = plan->packed && !tess_pools_cached(&plan->pools);
    const uint32_t capacity = plan->n_sequences;
    plan->n_sequences = 0;
    /* One of equal sequences stands for all, unless they are to be written. */
    const bool backward = plan->op == TESS_OP_BACKWARD;
    const bool one = plan->equal_lengths && ((d->q_len == 0 && !backward) || !plan->sequences);
    const int64_t batch = one ? smaller(d->batch, 1) : d->batch;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t q_start = q_end, kv_start = kv_end;
        int64_t q_first = 0, kv_first = 0, q_len, keys;
        TESS_RETURN_IF_ERROR(
            read_length(q_field, d->q_lens, d->cu_q_lens, b, d->q_len, &q_end, &q_len));
        TESS_RETURN_IF_ERROR(
            read_length(kv_field, d->kv_lens, d->cu_kv_lens, b, d->kv_len, &kv_end, &keys));
        TESS_RETURN_IF_ERROR(
            read_positions(plan, d, kv_field, b, q_len, keys, &q_first, &kv_first));
        if (keys > max_kv) max_kv = keys;
        /* Backward writes the gradients of keys that no row reads. */
        if (q_len == 0 && !(backward && keys > 0)) continue;
        if (q_len > max_q) max_q = q_len;
        all_keys += keys;
        if (q_len > 0) plan->q_last = b;
        if (keys > 0) plan->kv_last = b;
        uint32_t n = plan->n_sequences++;
        if (!plan->sequences) continue;
        if (n == capacity)
            return tess_invalid("%s: %s: changed while it was read", function, q_field);
        if (plan->first_block)
            plan->first_block[n] = (uint32_t)(kv_first / plan->layout->pattern.block);
        plan->sequences[n] = (tess_sequence){.q_start = q_start,
                                             .kv_start = (joined ? kv_start : 0) - kv_first,
                                             .batch = plan->packed ? 0 : (uint32_t)b,
                                             .q_len = (int32_t)q_len,
                                             .kv_len = (int32_t)(kv_first + keys),
                                             .q_first = (int32_t)q_first,
                                             .kv_batch = joined ? 0 : (uint32_t)b};
    }
    if (one) plan->n_sequences *= (uint32_t)d->batch;
    plan->all_keys = one ? all_keys * d->batch : all_keys;
    plan->max_q_len = max_q;
    plan->max_kv_len = max_kv;
    plan->q_len = plan->packed ? q_end : d->q_len ? d->q_len : max_q;
    plan->kv_len = joined ? kv_end : plan->packed || !d->kv_len ? max_kv : d->kv_len;
    return TESS_OK;
}

/* ------------------------------------------------------------------ what the jobs touch */

tess_touched tess_touched_by(const tess_plan *plan, uint32_t n) {
    const tess_sequence *s = &plan->sequences[n];
    return (tess_touched){s->batch,
                          1,
                          s->q_start,
                          s->q_len,
                          s->kv_batch,
                          1,
                          s->kv_start + tess_plan_kv_first(plan, n),
                          tess_plan_keys(plan, n)};
}

/* Finds boxes that hold only what the jobs read or write. Where lengths differ: the first sequence,
 * the longest, and what all have in common. */
static void find_touched(tess_plan *plan) {
    int64_t least_q = plan->max_q_len, least_kv = plan->max_kv_len, keys = 0;
    int64_t most = 0;
    uint32_t longest = 0;
    for (uint32_t n = 0; n < plan->n_sequences; n++) {
        const int64_t q_len = plan->sequences[n].q_len, own = tess_plan_keys(plan, n);
        least_q = smaller(least_q, q_len);
        least_kv = smaller(least_kv, own);
        keys += own;
        if (q_len + own <= most) continue;
        most = q_len + own;
        longest = n;
    }
    tess_touched *box = plan->touched;
    if (!plan->equal_lengths) {
        *box++ = tess_touched_by(plan, 0);
        *box++ = tess_touched_by(plan, longest);
    }
    /* A sequence without rows leaves a gap; in a packed batch, a gap of its keys. */
    const bool all = plan->n_sequences == plan->batch;
    if (plan->packed && tess_pools_cached(&plan->pools)) {
        if (all) *box++ = (tess_touched){0, 1, 0, plan->q_len, 0, plan->batch, 0, least_kv};
    } else if (plan->packed) {
        if (keys == plan->kv_len)
            *box++ = (tess_touched){0, 1, 0, plan->q_len, 0, 1, 0, plan->kv_len};
    } else if (all) {
        *box++ = (tess_touched){0, plan->batch, 0, least_q, 0, plan->batch, 0, least_kv};
    }
    plan->n_touched = (uint32_t)(box - plan->touched);
}

/* The capacities of a plan whose lengths come from the device. */
static tess_status read_capacities(tess_plan *plan, const tess_plan_desc *d) {
    if (d->kv_len > plan->layout->max_tokens)
        return tess_invalid(
            "%s: kv_len: a capacity of %lld keys is more than the layout's max_tokens (%lld)",
            function, (long long)d->kv_len, (long long)plan->layout->max_tokens);
    if ((d->flags & TESS_PLAN_DEVICE_PARTS) && plan->layout->max_tokens >= TESS_LENGTH_END)
        return tess_unsupported("%s: flags: TESS_PLAN_DEVICE_PARTS: the layout's max_tokens must "
                                "be less than %lld, got %lld",
                                function, (long long)TESS_LENGTH_END,
                                (long long)plan->layout->max_tokens);
    plan->max_q_len = d->q_len;
    plan->max_kv_len = plan->kv_len = d->kv_len;
    plan->q_len = d->max_rows ? d->max_rows : d->batch * d->q_len;
    plan->q_last = plan->q_len > 0 ? 0 : -1;
    plan->kv_last = plan->q_len > 0 && d->kv_len > 0 ? d->batch - 1 : -1;
    plan->touched[0] = (tess_touched){
        .batches = 1, .q_len = plan->q_len, .kv_batches = plan->batch, .kv_len = plan->kv_len};
    plan->n_touched = 1;
    return TESS_OK;
}

tess_status tess_batch_read(tess_plan *plan, const tess_plan_desc *d) {
    if (plan->steps) return read_capacities(plan, d);
    TESS_RETURN_IF_ERROR(read_sequences(plan, d));
    if (plan->n_sequences == 0) return TESS_OK;
    uint64_t bytes = (uint64_t)plan->n_sequences * sizeof *plan->sequences;
    plan->sequences =
        bytes > SIZE_MAX ? NULL : tess_mem_alloc(plan->device->runtime, (size_t)bytes, 64);
    if (!plan->sequences)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: batch: no memory for %u sequences",
                         function, (unsigned)plan->n_sequences);
    plan->sequences_bytes = bytes;
    plan->host_bytes += bytes;
    if (d->kv_first) {
        bytes = (uint64_t)plan->n_sequences * sizeof *plan->first_block;
        plan->first_block = tess_mem_alloc(plan->device->runtime, (size_t)bytes, 64);
        if (!plan->first_block)
            return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: kv_first: no memory for %u positions",
                             function, (unsigned)plan->n_sequences);
        plan->first_block_bytes = bytes;
        plan->host_bytes += bytes;
    }
    const uint32_t counted = plan->n_sequences;
    TESS_RETURN_IF_ERROR(read_sequences(plan, d));
    if (plan->n_sequences != counted)
        return tess_invalid("%s: %s: changed while it was read", function,
                            plan->packed ? "cu_q_lens" : "q_lens");
    find_touched(plan);
    return TESS_OK;
}

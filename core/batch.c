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

tess_status tess_batch_check(const tess_plan_desc *d) {
    TESS_RETURN_IF_ERROR(check_length("batch", d->batch));
    TESS_RETURN_IF_ERROR(check_length("q_len", d->q_len));
    TESS_RETURN_IF_ERROR(check_length("kv_len", d->kv_len));
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

/* Checks every length and counts the sequences that have rows. Once there is memory, also writes
 * these. */
static tess_status read_sequences(tess_plan *plan, const tess_plan_desc *d) {
    int64_t q_start = 0, kv_start = 0, max_tokens = plan->layout->max_tokens, max_q = 0, max_kv = 0;
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
    plan->equal_lengths = !plan->packed && !d->q_lens && !d->kv_lens;
    const uint32_t capacity = plan->n_sequences;
    plan->n_sequences = 0;
    /* One of equal sequences stands for all, unless they are to be written. */
    const bool one = plan->equal_lengths && (d->q_len == 0 || !plan->sequences);
    const int64_t batch = one ? smaller(d->batch, 1) : d->batch;
    for (int64_t b = 0; b < batch; b++) {
        int64_t q_first = q_start, kv_first = kv_start, q_len, kv_len;
        TESS_RETURN_IF_ERROR(
            read_length(q_field, d->q_lens, d->cu_q_lens, b, d->q_len, &q_start, &q_len));
        TESS_RETURN_IF_ERROR(
            read_length(kv_field, d->kv_lens, d->cu_kv_lens, b, d->kv_len, &kv_start, &kv_len));
        if (kv_len > max_tokens)
            return tess_invalid(
                "%s: %s: sequence %lld has %lld keys, more than the layout's max_tokens (%lld)",
                function, kv_field, (long long)b, (long long)kv_len, (long long)max_tokens);
        if (kv_len > max_kv) max_kv = kv_len;
        if (q_len == 0) continue;
        if (q_len > max_q) max_q = q_len;
        plan->q_last = b;
        if (kv_len > 0) plan->kv_last = b;
        uint32_t n = plan->n_sequences++;
        if (!plan->sequences) continue;
        if (n == capacity)
            return tess_invalid("%s: %s: changed while it was read", function, q_field);
        plan->sequences[n] = (tess_sequence){.q_start = q_first,
                                             .kv_start = kv_first,
                                             .batch = plan->packed ? 0 : (uint32_t)b,
                                             .q_len = (int32_t)q_len,
                                             .kv_len = (int32_t)kv_len,
                                             .q_first = (int32_t)(kv_len - q_len),
                                             .kv_batch = plan->packed ? 0 : (uint32_t)b};
    }
    if (one) plan->n_sequences *= (uint32_t)d->batch;
    plan->max_q_len = max_q;
    plan->max_kv_len = max_kv;
    plan->q_len = plan->packed ? q_start : d->q_len ? d->q_len : max_q;
    plan->kv_len = plan->packed ? kv_start : d->kv_len ? d->kv_len : max_kv;
    return TESS_OK;
}

/* ------------------------------------------------------------------ what the jobs touch */

static tess_touched touched_by(const tess_sequence *s) {
    return (tess_touched){s->batch, 1, s->q_start, s->q_len, s->kv_start, s->kv_len};
}

/* Finds boxes that hold only what the jobs read or write. Where lengths differ: the first sequence,
 * the longest, and what all have in common. */
static void find_touched(tess_plan *plan) {
    int64_t least_q = plan->max_q_len, least_kv = plan->max_kv_len, keys = 0;
    const tess_sequence *longest = plan->sequences;
    for (uint32_t n = 0; n < plan->n_sequences; n++) {
        const tess_sequence *s = &plan->sequences[n];
        least_q = smaller(least_q, s->q_len);
        least_kv = smaller(least_kv, s->kv_len);
        keys += s->kv_len;
        if ((int64_t)s->q_len + s->kv_len > (int64_t)longest->q_len + longest->kv_len) longest = s;
    }
    tess_touched *box = plan->touched;
    if (!plan->equal_lengths) {
        *box++ = touched_by(plan->sequences);
        *box++ = touched_by(longest);
    }
    /* A sequence without rows leaves a gap; in a packed batch, a gap of its keys. */
    if (plan->packed && keys == plan->kv_len)
        *box++ = (tess_touched){0, 1, 0, plan->q_len, 0, plan->kv_len};
    if (!plan->packed && plan->n_sequences == plan->batch)
        *box++ = (tess_touched){0, plan->batch, 0, least_q, 0, least_kv};
    plan->n_touched = (uint32_t)(box - plan->touched);
}

tess_status tess_batch_read(tess_plan *plan, const tess_plan_desc *d) {
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
    const uint32_t counted = plan->n_sequences;
    TESS_RETURN_IF_ERROR(read_sequences(plan, d));
    if (plan->n_sequences != counted)
        return tess_invalid("%s: %s: changed while it was read", function,
                            plan->packed ? "cu_q_lens" : "q_lens");
    find_touched(plan);
    return TESS_OK;
}

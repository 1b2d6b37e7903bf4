/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rows meet when their addresses are less than a row apart. The distance is a constant plus a
 * bounded multiple of each stride. So the question is whether a sum of bounded multiples of at most
 * six strides can lie in a given interval. Where all smaller strides together reach less far than
 * the largest one, only one or two of its multiples have to be tried.
 */
#include "overlap.h"

#include "checked.h"

enum { MOST_TERMS = 6, MOST_STEPS = 32 };

/* No memory is larger than this, and below it no sum here overflows. */
static const uint64_t most_bytes = UINT64_C(1) << 60;

/* A stride and the multiples of it that the distance may have. */
typedef struct term {
    int64_t stride, low, high;
} term;

typedef struct search {
    term terms[MOST_TERMS];           /* by falling stride, no two equal */
    int64_t rest_low[MOST_TERMS + 1]; /* least and largest sum of the terms from this one on */
    int64_t rest_high[MOST_TERMS + 1];
    int n_terms, steps;
} search;

/* Bytes from the first to the end of the last row, or more than `most_bytes`. */
static uint64_t extent(const tess_box *box) {
    uint64_t bytes = box->row_bytes, part;
    for (int n = 0; n < 3; n++) {
        if (!checked_mul(box->count[n] - 1, box->stride[n], &part) ||
            !checked_add(bytes, part, &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

/* Inserts the multiples [low, high] of a stride, in falling order of strides. */
static void add_term(search *s, uint64_t stride, int64_t low, int64_t high) {
    int at = 0;
    if (stride == 0 || low == high) return;
    while (at < s->n_terms && s->terms[at].stride > (int64_t)stride) at++;
    if (at < s->n_terms && s->terms[at].stride == (int64_t)stride) {
        s->terms[at].low += low;
        s->terms[at].high += high;
        return;
    }
    for (int n = s->n_terms++; n > at; n--) s->terms[n] = s->terms[n - 1];
    s->terms[at] = (term){(int64_t)stride, low, high};
}

static void bound_rests(search *s) {
    s->rest_low[s->n_terms] = s->rest_high[s->n_terms] = 0;
    for (int n = s->n_terms; n-- > 0;) {
        s->rest_low[n] = s->rest_low[n + 1] + s->terms[n].low * s->terms[n].stride;
        s->rest_high[n] = s->rest_high[n + 1] + s->terms[n].high * s->terms[n].stride;
    }
}

/* Whether the terms from `n` on have a sum in [low, high]. It recurses once for each term. */
static bool reaches(search *s, int n, int64_t low, int64_t high) {
    if (s->rest_high[n] < low || s->rest_low[n] > high) return false;
    if (n == s->n_terms) return true;
    const term *t = &s->terms[n];
    /* Tries only multiples whose distance from [low, high] the smaller strides can bridge. */
    int64_t x = larger(t->low, -floor_div(s->rest_high[n + 1] - low, t->stride));
    for (int64_t sum = x * t->stride; x <= t->high && sum + s->rest_low[n + 1] <= high;
         x++, sum += t->stride) {
        if (s->steps++ >= MOST_STEPS) return false;
        if (reaches(s, n + 1, low - sum, high - sum)) return true;
    }
    return false;
}

bool tess_boxes_meet(const tess_box *a, const tess_box *b) {
    uint64_t a_bytes = extent(a), b_bytes = extent(b);
    if (a_bytes > most_bytes || b_bytes > most_bytes) return false;
    if (a->address >= b->address + b_bytes || b->address >= a->address + a_bytes) return false;
    search s = {.n_terms = 0};
    for (int n = 0; n < 3; n++) {
        add_term(&s, a->stride[n], 0, (int64_t)a->count[n] - 1);
        add_term(&s, b->stride[n], 1 - (int64_t)b->count[n], 0);
    }
    bound_rests(&s);
    int64_t distance = (int64_t)(a->address - b->address);
    return reaches(&s, 0, 1 - (int64_t)a->row_bytes - distance,
                   (int64_t)b->row_bytes - 1 - distance);
}

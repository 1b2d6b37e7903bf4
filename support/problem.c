/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a problem: one table says how each is called, what it may hold and which patterns it
 * belongs to; the rest of the file walks that table. */
#include "problem.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "text.h"

enum {
    FOR_S2 = 1 << TESS_PATTERN_S2,
    FOR_WINDOW = 1 << TESS_PATTERN_WINDOW,
    FOR_BLOCKS = 1 << TESS_PATTERN_BLOCKS,
    FOR_ALL = ~0,
};

typedef enum word_type {
    WORD_I32,
    WORD_I64,
    WORD_U64,
    WORD_NAME,
    WORD_SCALE,
    WORD_LIST,
    WORD_POSITIONS,
    WORD_HEADS,
    WORD_PATH
} word_type;

typedef struct word_rule {
    const char *key;
    word_type type;
    size_t at; /* of the field within problem */
    int64_t min, max;
    int patterns;             /* FOR_... */
    const char *const *names; /* WORD_NAME: values 0, 1, ... */
} word_rule;

static const char *const op_names[] = {"fwd", "bwd", "decode", NULL};
static const char *const dtype_names[] = {"f32", "f16", "bf16", NULL};
static const char *const kv_dtype_names[] = {"f32", "f16", "bf16", "e4m3", "i8", NULL};
static const char *const pattern_names[] = {"dense", "s2", "window", "blocks", NULL};

/* heads stops where the library's 16-bit head index does. */
#define MAX_HEADS 65535
#define AT(field) offsetof(problem, field)
enum { MAX_PAGE = 256 };

static const word_rule rules[] = {
    {"op", WORD_NAME, AT(op), 0, 0, FOR_ALL, op_names},
    {"dtype", WORD_NAME, AT(dtype), 0, 0, FOR_ALL, dtype_names},
    {"kv_dtype", WORD_NAME, AT(kv_dtype), 0, 0, FOR_ALL, kv_dtype_names},
    {"batch", WORD_I64, AT(batch), 0, INT64_MAX, FOR_ALL, NULL},
    {"heads", WORD_I32, AT(heads), 1, MAX_HEADS, FOR_ALL, NULL},
    {"kv_heads", WORD_I32, AT(kv_heads), 1, MAX_HEADS, FOR_ALL, NULL},
    {"q_len", WORD_I64, AT(q_len), 0, INT64_MAX, FOR_ALL, NULL},
    {"kv_len", WORD_I64, AT(kv_len), 0, INT64_MAX, FOR_ALL, NULL},
    {"q_lens", WORD_LIST, AT(q_lens), 0, INT64_MAX, FOR_ALL, NULL},
    {"kv_lens", WORD_LIST, AT(kv_lens), 0, INT64_MAX, FOR_ALL, NULL},
    {"q_first", WORD_POSITIONS, AT(q_first), 0, INT64_MAX, FOR_ALL, NULL},
    {"kv_first", WORD_POSITIONS, AT(kv_first), 0, INT64_MAX, FOR_ALL, NULL},
    {"head_dim", WORD_I32, AT(head_dim), 1, INT32_MAX, FOR_ALL, NULL},
    {"causal", WORD_I32, AT(causal), 0, 1, FOR_ALL, NULL},
    {"scale", WORD_SCALE, AT(scale), 0, 0, FOR_ALL, NULL},
    {"seed", WORD_U64, AT(seed), 0, 0, FOR_ALL, NULL},
    {"pattern", WORD_NAME, AT(pattern), 0, 0, FOR_ALL, pattern_names},
    {"block", WORD_I32, AT(block), 1, INT32_MAX, FOR_ALL, NULL},
    {"local", WORD_I32, AT(local), 1, INT32_MAX, FOR_S2, NULL},
    {"local_right", WORD_I32, AT(local_right), 1, INT32_MAX, FOR_S2, NULL},
    {"stride", WORD_I32, AT(stride), 1, INT32_MAX, FOR_S2, NULL},
    {"offset", WORD_I32, AT(offset), 0, INT32_MAX, FOR_S2, NULL},
    {"dense_heads", WORD_I32, AT(dense_heads), 0, INT32_MAX, FOR_S2, NULL},
    {"per_kv_head", WORD_I32, AT(per_kv_head), 0, 1, FOR_S2, NULL},
    {"homo", WORD_I32, AT(homo), 0, 1, FOR_S2, NULL},
    {"head_first", WORD_I32, AT(head_first), 0, INT32_MAX, FOR_ALL, NULL},
    {"head_ids", WORD_HEADS, AT(head_ids), 0, INT32_MAX, FOR_ALL, NULL},
    {"heads_total", WORD_I32, AT(heads_total), 1, INT32_MAX, FOR_ALL, NULL},
    {"kv_heads_total", WORD_I32, AT(kv_heads_total), 1, INT32_MAX, FOR_ALL, NULL},
    {"left", WORD_I64, AT(left), -1, INT64_MAX, FOR_WINDOW, NULL},
    {"right", WORD_I64, AT(right), -1, INT64_MAX, FOR_WINDOW, NULL},
    {"sinks", WORD_I64, AT(sinks), 0, INT64_MAX, FOR_WINDOW, NULL},
    {"mask", WORD_PATH, AT(mask_path), 0, 0, FOR_BLOCKS, NULL},
    {"kv_split", WORD_I32, AT(kv_split), 0, INT32_MAX, FOR_ALL, NULL},
    {"batch_invariant", WORD_I32, AT(batch_invariant), 0, 1, FOR_ALL, NULL},
    {"tile_rows", WORD_I32, AT(tile_rows), 0, INT32_MAX, FOR_ALL, NULL},
    {"page", WORD_I32, AT(page), 0, MAX_PAGE, FOR_ALL, NULL},
    {"compact", WORD_I32, AT(compact), 0, 1, FOR_ALL, NULL},
    {"determinism", WORD_I32, AT(determinism), 0, 1, FOR_ALL, NULL},
    {"dq_f32", WORD_I32, AT(dq_f32), 0, 1, FOR_ALL, NULL},
    {"dkv_f32", WORD_I32, AT(dkv_f32), 0, 1, FOR_ALL, NULL},
    {"dq_add", WORD_I32, AT(dq_add), 0, 1, FOR_ALL, NULL},
    {"dkv_add", WORD_I32, AT(dkv_add), 0, 1, FOR_ALL, NULL},
};

enum { N_RULES = sizeof rules / sizeof *rules, LONGEST_SHOWN = 60 };
_Static_assert(N_RULES <= 64, "problem.seen has one bit a word");

static void *field(problem *p, const word_rule *rule) { return (char *)p + rule->at; }

static int rule_index(const char *key, size_t length) {
    for (int i = 0; i < N_RULES; i++)
        if (strlen(rules[i].key) == length && memcmp(rules[i].key, key, length) == 0) return i;
    return -1;
}

/* ------------------------------------------------------------------ values */

/* Digits with an optional minus sign and nothing else. Returns 0; 1 for text that is no integer; 2
 * for one that does not fit. */
static int parse_i64(const char *text, size_t length, int64_t *value) {
    size_t i = 0;
    int negative = length > 0 && text[0] == '-', overflow = 0;
    if (negative) i++;
    if (i == length) return 1;
    int64_t result = 0;
    for (; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return 1;
        int digit = text[i] - '0';
        overflow |= __builtin_mul_overflow(result, 10, &result);
        overflow |= __builtin_add_overflow(result, negative ? -digit : digit, &result);
    }
    *value = result;
    return overflow ? 2 : 0;
}

static int parse_u64(const char *text, uint64_t *value) {
    uint64_t result = 0;
    int overflow = 0;
    if (!*text) return 1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return 1;
        overflow |= __builtin_mul_overflow(result, 10, &result);
        overflow |= __builtin_add_overflow(result, (uint64_t)(*text - '0'), &result);
    }
    *value = result;
    return overflow ? 2 : 0;
}

static int out_of_range(const word_rule *rule, const char *text, int length, char *error,
                        size_t error_size) {
    int64_t max = rule->type == WORD_I32 && rule->max == INT64_MAX ? INT32_MAX : rule->max;
    if (max == INT64_MAX || max == INT32_MAX)
        return text_error(
            error, error_size,
            "%s: %.*s is out of range; it must be at least %" PRId64 " and at most %" PRId64,
            rule->key, length < LONGEST_SHOWN ? length : LONGEST_SHOWN, text, rule->min, max);
    return text_error(
        error, error_size, "%s: %.*s is out of range; it must be from %" PRId64 " to %" PRId64,
        rule->key, length < LONGEST_SHOWN ? length : LONGEST_SHOWN, text, rule->min, max);
}

static int set_integer(const word_rule *rule, const char *text, size_t length, int64_t *value,
                       char *error, size_t error_size) {
    int shown = length < LONGEST_SHOWN ? (int)length : LONGEST_SHOWN;
    int bad = parse_i64(text, length, value);
    if (bad == 1)
        return text_error(error, error_size, "%s: '%.*s' is not an integer", rule->key, shown,
                          text);
    if (bad || *value < rule->min || *value > rule->max)
        return out_of_range(rule, text, (int)shown, error, error_size);
    return 0;
}

static int set_name(const word_rule *rule, const char *text, uint32_t *value, char *error,
                    size_t error_size) {
    char list[64];
    size_t length = 0;
    for (uint32_t i = 0; rule->names[i]; i++) {
        if (strcmp(rule->names[i], text) == 0) {
            *value = i;
            return 0;
        }
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i ? ", " : "",
                                   rule->names[i]);
    }
    return text_error(error, error_size, "%s: '%.*s' is none of %s", rule->key, LONGEST_SHOWN, text,
                      list);
}

/* Plain decimal notation only: strtod alone would also take "nan", "inf", hexadecimal and the
 * locale's decimal comma. */
static int set_scale(const char *text, double *value, char *error, size_t error_size) {
    if (!*text || strspn(text, "0123456789.eE+-") != strlen(text) || *text == '+')
        return text_error(error, error_size, "scale: '%.*s' is not a number", LONGEST_SHOWN, text);
    char *end;
    double parsed = strtod(text, &end);
    if (*end || end == text)
        return text_error(error, error_size, "scale: '%.*s' is not a number", LONGEST_SHOWN, text);
    float rounded = (float)parsed;
    if (!isfinite(rounded) || rounded == 0)
        return text_error(error, error_size,
                          "scale: %.*s is out of range; it must be a finite float32 other than 0",
                          LONGEST_SHOWN, text);
    *value =
        rounded; /* exactly what the library gets, so that the reference uses the same number */
    return 0;
}

/* Sets *count and *list. An empty list is an empty batch. */
static int set_list(const word_rule *rule, const char *text, int64_t **list, int64_t *count,
                    char *error, size_t error_size) {
    size_t n = *text ? 1 : 0;
    for (const char *c = text; *c; c++) n += *c == ',';
    int64_t *values = malloc((n ? n : 1) * sizeof *values);
    if (!values) return text_error(error, error_size, "%s: out of memory", rule->key);
    const char *start = text;
    for (size_t i = 0; i < n; i++) {
        size_t length = strcspn(start, ",");
        if (set_integer(rule, start, length, &values[i], error, error_size) != 0) {
            free(values);
            return -1;
        }
        start += length + 1;
    }
    *list = values;
    *count = (int64_t)n;
    return 0;
}

static int set_heads(const word_rule *rule, const char *text, problem *p, char *error,
                     size_t error_size) {
    int64_t *list, count;
    if (set_list(rule, text, &list, &count, error, error_size) != 0) return -1;
    free(p->head_ids); /* of a word that was refused */
    p->head_ids = malloc((size_t)(count ? count : 1) * sizeof *p->head_ids);
    for (int64_t n = 0; p->head_ids && n < count; n++) p->head_ids[n] = (int32_t)list[n];
    p->head_ids_count = count;
    free(list);
    return p->head_ids ? 0 : text_error(error, error_size, "%s: out of memory", rule->key);
}

/* ------------------------------------------------------------------ unknown keys */

static size_t min3(size_t a, size_t b, size_t c) {
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Insertions, deletions and substitutions that turn `a` into `b`. */
static size_t edit_distance(const char *a, size_t a_length, const char *b) {
    size_t row[32], b_length = strlen(b);
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[b_length];
}

static int unknown_key(const char *key, size_t length, char *error, size_t error_size) {
    int shown = length < LONGEST_SHOWN ? (int)length : LONGEST_SHOWN;
    size_t best = 4; /* further away than this a suggestion is a guess */
    const char *nearest = NULL;
    for (int i = 0; i < N_RULES && length <= LONGEST_SHOWN; i++) {
        size_t distance = edit_distance(key, length, rules[i].key);
        if (distance < best && distance < length) {
            best = distance;
            nearest = rules[i].key;
        }
    }
    if (nearest)
        return text_error(error, error_size, "%.*s: unknown key; did you mean '%s'?", shown, key,
                          nearest);
    return text_error(error, error_size, "%.*s: unknown key; tessera plan --help lists them", shown,
                      key);
}

/* ------------------------------------------------------------------ words */

void problem_init(problem *p) {
    memset(p, 0, sizeof *p);
    p->batch = 1;
    p->causal = 1;
    p->pattern = TESS_PATTERN_S2;
    p->block = 64;
}

void problem_free(problem *p) {
    void *const arrays[] = {p->q_lens,   p->kv_lens,   p->q_first, p->kv_first,
                            p->head_ids, p->mask_path, p->mask};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    memset(p, 0, sizeof *p);
}

int problem_has(const problem *p, const char *key) {
    int i = rule_index(key, strlen(key));
    return i >= 0 && (p->seen >> i & 1);
}

int problem_word(problem *p, const char *word, char *error, size_t error_size) {
    const char *equals = strchr(word, '=');
    if (!equals || equals == word)
        return text_error(error, error_size, "'%.*s' is not a key=value word", LONGEST_SHOWN, word);
    size_t length = (size_t)(equals - word);
    int index = rule_index(word, length);
    if (index < 0) return unknown_key(word, length, error, error_size);
    const word_rule *rule = &rules[index];
    const char *text = equals + 1;
    if (p->seen >> index & 1) return text_error(error, error_size, "%s: given twice", rule->key);

    int64_t value = 0;
    int bad;
    switch (rule->type) {
    case WORD_I32:
    case WORD_I64:
        if (set_integer(rule, text, strlen(text), &value, error, error_size) != 0) return -1;
        if (rule->type == WORD_I32)
            *(int32_t *)field(p, rule) = (int32_t)value;
        else
            *(int64_t *)field(p, rule) = value;
        break;
    case WORD_U64:
        bad = parse_u64(text, field(p, rule));
        if (bad == 1)
            return text_error(error, error_size, "%s: '%.*s' is not an unsigned integer", rule->key,
                              LONGEST_SHOWN, text);
        if (bad)
            return text_error(error, error_size, "%s: %.*s is out of range; it must be below 2^64",
                              rule->key, LONGEST_SHOWN, text);
        break;
    case WORD_NAME:
        if (set_name(rule, text, field(p, rule), error, error_size) != 0) return -1;
        break;
    case WORD_SCALE:
        if (set_scale(text, field(p, rule), error, error_size) != 0) return -1;
        break;
    case WORD_LIST: {
        int64_t **list = field(p, rule), count = 0;
        if (problem_has(p, "batch"))
            return text_error(error, error_size,
                              "%s: stands instead of batch, which is given as well", rule->key);
        free(*list); /* of a word that was refused */
        *list = NULL;
        if (set_list(rule, text, list, &count, error, error_size) != 0) return -1;
        const char *other = list == &p->q_lens ? "kv_lens" : "q_lens";
        if (problem_has(p, other) && count != p->batch)
            return text_error(error, error_size, "%s: %" PRId64 " lengths where %s has %" PRId64,
                              rule->key, count, other, p->batch);
        p->batch = count;
        break;
    }
    case WORD_POSITIONS: {
        int64_t **list = field(p, rule),
                *count = list == &p->q_first ? &p->q_first_count : &p->kv_first_count;
        free(*list); /* of a word that was refused */
        *list = NULL;
        if (set_list(rule, text, list, count, error, error_size) != 0) return -1;
        break;
    }
    case WORD_HEADS:
        if (set_heads(rule, text, p, error, error_size) != 0) return -1;
        break;
    case WORD_PATH:
        if (!*text) return text_error(error, error_size, "%s: the file name is empty", rule->key);
        p->mask_path = strdup(text);
        if (!p->mask_path) return text_error(error, error_size, "%s: out of memory", rule->key);
        break;
    }
    p->seen |= (uint64_t)1 << index;
    return 0;
}

/* ------------------------------------------------------------------ defaults and combinations */

static int required(const problem *p, const char *key, char *error, size_t error_size) {
    if (problem_has(p, key)) return 0;
    return text_error(error, error_size, "%s: missing", key);
}

/* What stands where a list of a packed batch is missing: a copy of the other one, or ones. */
static int finish_list(const problem *p, const char *key, int64_t **list, const int64_t *source,
                       char *error, size_t error_size) {
    if (*list) return 0;
    *list = malloc(((size_t)p->batch + 1) * sizeof **list);
    if (!*list) return text_error(error, error_size, "%s: out of memory", key);
    for (int64_t b = 0; b < p->batch; b++) (*list)[b] = source ? source[b] : 1;
    return 0;
}

/* Defaults of lengths, packed or not, and sums that fit. */
static int finish_lengths(problem *p, char *error, size_t error_size) {
    const int decode = p->op == PROBLEM_DECODE;
    if (problem_has(p, "q_lens") || problem_has(p, "kv_lens")) {
        static const char *const replaced[] = {"batch", "q_len", "kv_len"};
        for (int i = 0; i < 3; i++)
            if (problem_has(p, replaced[i]))
                return text_error(error, error_size,
                                  "%s: not allowed together with q_lens or kv_lens", replaced[i]);
        if (!decode && !p->q_lens)
            return text_error(error, error_size, "q_lens: missing; kv_lens needs it");
        if (decode && !p->kv_lens)
            return text_error(error, error_size, "kv_lens: missing; op=decode needs it");
        if (finish_list(p, "q_lens", &p->q_lens, NULL, error, error_size) != 0 ||
            finish_list(p, "kv_lens", &p->kv_lens, p->q_lens, error, error_size) != 0)
            return -1;
        int64_t q_total = 0, kv_total = 0;
        for (int64_t b = 0; b < p->batch; b++) {
            if (__builtin_add_overflow(q_total, p->q_lens[b], &q_total))
                return text_error(error, error_size, "q_lens: the sum exceeds 2^63 - 1");
            if (__builtin_add_overflow(kv_total, p->kv_lens[b], &kv_total))
                return text_error(error, error_size, "kv_lens: the sum exceeds 2^63 - 1");
        }
        return 0;
    }
    if (required(p, decode ? "kv_len" : "q_len", error, error_size) != 0) return -1;
    if (!problem_has(p, "q_len")) p->q_len = 1;
    if (!problem_has(p, "kv_len")) p->kv_len = p->q_len;
    int64_t total;
    if (__builtin_mul_overflow(p->batch, p->q_len, &total))
        return text_error(error, error_size, "q_len: batch * q_len exceeds 2^63 - 1");
    if (__builtin_mul_overflow(p->batch, p->kv_len, &total))
        return text_error(error, error_size, "kv_len: batch * kv_len exceeds 2^63 - 1");
    return 0;
}

/* One position stands for all sequences. */
static int finish_positions(const problem *p, const char *key, int64_t **list, int64_t count,
                            char *error, size_t error_size) {
    if (!*list || count == p->batch) return 0;
    if (count != 1)
        return text_error(error, error_size,
                          "%s: %" PRId64 " positions for %" PRId64 " sequences; give 1 or %" PRId64,
                          key, count, p->batch, p->batch);
    int64_t *all = NULL, bytes;
    if (!__builtin_mul_overflow(p->batch ? p->batch : 1, (int64_t)sizeof *all, &bytes))
        all = malloc((size_t)bytes);
    if (!all) return text_error(error, error_size, "%s: out of memory", key);
    for (int64_t b = 0; b < p->batch; b++) all[b] = **list;
    free(*list);
    *list = all;
    return 0;
}

/* Words that are about gradients alone. */
static int finish_gradients(const problem *p, char *error, size_t error_size) {
    static const char *const keys[] = {"determinism", "dq_f32", "dkv_f32", "dq_add", "dkv_add"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && p->op != PROBLEM_BACKWARD; i++)
        if (problem_has(p, keys[i]))
            return text_error(error, error_size, "%s: belongs to op=bwd only", keys[i]);
    if (p->op == PROBLEM_BACKWARD && p->kv_split > 1)
        return text_error(error, error_size, "kv_split: must be 0 or 1 with op=bwd");
    return 0;
}

/* Where K and V lie, which only decode chooses. */
static int finish_cache(const problem *p, char *error, size_t error_size) {
    static const char *const keys[] = {"page", "compact"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && p->op != PROBLEM_DECODE; i++)
        if (problem_has(p, keys[i]))
            return text_error(error, error_size, "%s: belongs to op=decode only", keys[i]);
    if (p->page && (p->page < 16 || (p->page & (p->page - 1))))
        return text_error(error, error_size,
                          "page: %" PRId32 " is none of 0, 16, 32, 64, 128 and 256", p->page);
    if (p->compact && !p->causal)
        return text_error(error, error_size,
                          "compact: must be 0 with causal=0, where no key block can be dropped");
    return 0;
}

/* As many ids as heads, of heads that the model has. That the ids of a kv head are of one group,
 * and none stands twice, is left to the library. */
static int finish_ids(const problem *p, char *error, size_t error_size) {
    if (!p->head_ids) return 0;
    if (problem_has(p, "head_first"))
        return text_error(error, error_size, "head_first: not allowed together with head_ids");
    if (p->head_ids_count != p->heads)
        return text_error(error, error_size, "head_ids: %" PRId64 " ids for heads=%" PRId32,
                          p->head_ids_count, p->heads);
    for (int32_t h = 0; h < p->heads; h++)
        if (p->head_ids[h] >= p->heads_total)
            return text_error(error, error_size,
                              "head_ids: %" PRId32 " is out of range; heads_total is %" PRId32,
                              p->head_ids[h], p->heads_total);
    return 0;
}

static int finish_heads(problem *p, char *error, size_t error_size) {
    if (required(p, "heads", error, error_size) != 0) return -1;
    if (!problem_has(p, "kv_heads")) p->kv_heads = p->heads;
    if (p->heads % p->kv_heads)
        return text_error(error, error_size, "kv_heads: %" PRId32 " does not divide heads=%" PRId32,
                          p->kv_heads, p->heads);
    if (!problem_has(p, "heads_total")) p->heads_total = p->heads;
    if ((int64_t)p->head_first + p->heads > p->heads_total)
        return text_error(error, error_size,
                          "heads_total: %" PRId32 " is less than head_first + heads = %" PRId64,
                          p->heads_total, (int64_t)p->head_first + p->heads);
    if (finish_ids(p, error, error_size) != 0) return -1;
    if (problem_has(p, "kv_heads_total")) {
        if (p->heads_total % p->kv_heads_total)
            return text_error(error, error_size,
                              "kv_heads_total: %" PRId32 " does not divide heads_total=%" PRId32,
                              p->kv_heads_total, p->heads_total);
    } else {
        /* The whole model groups its heads as the slice does, where that comes out even. Where it
         * does not, the number matters only for per_kv_head and head_ids. */
        int64_t scaled = (int64_t)p->heads_total * p->kv_heads;
        int even = scaled % p->heads == 0 && p->heads_total % (scaled / p->heads) == 0;
        if (!even && (p->per_kv_head || p->head_ids))
            return text_error(error, error_size,
                              "kv_heads_total: missing; heads_total=%" PRId32
                              " is no multiple of the heads per kv head",
                              p->heads_total);
        p->kv_heads_total = even ? (int32_t)(scaled / p->heads) : p->heads_total;
    }
    if (p->dense_heads > p->heads_total)
        return text_error(error, error_size,
                          "dense_heads: %" PRId32 " is more than heads_total=%" PRId32,
                          p->dense_heads, p->heads_total);
    return 0;
}

static int finish_pattern(problem *p, char *error, size_t error_size) {
    for (int i = 0; i < N_RULES; i++)
        if ((p->seen >> i & 1) && !(rules[i].patterns & 1 << p->pattern))
            return text_error(error, error_size, "%s: does not belong to pattern=%s", rules[i].key,
                              pattern_names[p->pattern]);
    switch (p->pattern) {
    case TESS_PATTERN_S2:
        if (required(p, "local", error, error_size) != 0 ||
            required(p, "stride", error, error_size) != 0)
            return -1;
        if (p->causal) {
            if (problem_has(p, "local_right"))
                return text_error(error, error_size, "local_right: belongs to causal=0 only");
            break;
        }
        if (!problem_has(p, "local_right")) p->local_right = p->local;
        if (p->offset)
            return text_error(
                error, error_size,
                "offset: must be 0 with causal=0, where the pattern does not depend on the head");
        if (p->homo)
            return text_error(
                error, error_size,
                "homo: must be 0 with causal=0, where the pattern does not depend on the head");
        if (p->per_kv_head)
            return text_error(error, error_size,
                              "per_kv_head: must be 0 with causal=0, where the pattern does not "
                              "depend on the head");
        break;
    case TESS_PATTERN_WINDOW:
        if (required(p, "left", error, error_size) != 0) return -1;
        /* In causal order the right side is 0 whatever it says. */
        if (!p->causal && required(p, "right", error, error_size) != 0) return -1;
        break;
    case TESS_PATTERN_BLOCKS:
        if (required(p, "mask", error, error_size) != 0 ||
            required(p, "block", error, error_size) != 0)
            return -1;
        break;
    default: break;
    }
    return 0;
}

static int load_mask(problem *p, char *error, size_t error_size) {
    char why[512], shown[TEXT_PATH];
    text_path(shown, p->mask_path);
    npy_array array;
    if (npy_read(&array, p->mask_path, why, sizeof why) != 0) {
        text_error(error, error_size, "mask: %s", why);
        return PROBLEM_BAD_FILE;
    }
    int result = 0;
    if (array.type != NPY_BOOL && array.type != NPY_U8) {
        text_error(error, error_size, "mask: %s holds %s; it must be bool", shown,
                   npy_type_name(array.type));
        result = PROBLEM_BAD_FILE;
    } else if (array.n_dims != 3) {
        text_error(
            error, error_size,
            "mask: %s has %d dimensions; it must have 3: [1 or heads, query blocks, key blocks]",
            shown, array.n_dims);
        result = PROBLEM_BAD_FILE;
    } else if (array.shape[0] != 1 && array.shape[0] != p->heads) {
        result =
            text_error(error, error_size,
                       "mask: %s is for %" PRId64 " heads; heads=%" PRId32 " needs 1 or %" PRId32,
                       shown, array.shape[0], p->heads, p->heads);
    }
    if (result == 0) {
        p->mask = array.data;
        p->mask_heads = (int32_t)array.shape[0];
        p->mask_query_blocks = array.shape[1];
        p->mask_key_blocks = array.shape[2];
        array.data = NULL;
    }
    npy_free(&array);
    return result;
}

int problem_finish(problem *p, char *error, size_t error_size) {
    if (finish_heads(p, error, error_size) != 0 ||
        required(p, "head_dim", error, error_size) != 0 ||
        finish_lengths(p, error, error_size) != 0 ||
        finish_positions(p, "q_first", &p->q_first, p->q_first_count, error, error_size) != 0 ||
        finish_positions(p, "kv_first", &p->kv_first, p->kv_first_count, error, error_size) != 0 ||
        finish_pattern(p, error, error_size) != 0 || finish_cache(p, error, error_size) != 0 ||
        finish_gradients(p, error, error_size) != 0)
        return -1;
    if (!problem_has(p, "kv_dtype")) p->kv_dtype = p->dtype;
    if (p->kv_dtype != p->dtype && !problem_has_scales(p))
        return text_error(error, error_size, "kv_dtype: must be %s, e4m3 or i8, got %s",
                          dtype_names[p->dtype], kv_dtype_names[p->kv_dtype]);
    if (!problem_has(p, "scale")) p->scale = (float)(1 / sqrt(p->head_dim));
    return p->pattern == TESS_PATTERN_BLOCKS ? load_mask(p, error, error_size) : 0;
}

int problem_parse(problem *p, const char *line, char *error, size_t error_size) {
    static const char blanks[] = " \t\r\n";
    problem_init(p);
    while (*(line += strspn(line, blanks)) && *line != '#') {
        size_t length = strcspn(line, blanks);
        char *word = strndup(line, length);
        if (!word)
            return text_error(error, error_size, "'%.*s': out of memory", LONGEST_SHOWN, line);
        int bad = problem_word(p, word, error, error_size);
        free(word);
        if (bad) return -1;
        line += length;
    }
    return problem_finish(p, error, error_size);
}

/* ------------------------------------------------------------------ back to words */

typedef struct line_writer {
    char *buffer;
    size_t size;
    int length; /* as if the buffer had no end */
} line_writer;

static void add(line_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(line_writer *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t used = (size_t)w->length < w->size ? (size_t)w->length : w->size;
    int n = vsnprintf(w->buffer ? w->buffer + used : NULL, w->size - used, format, arguments);
    va_end(arguments);
    if (n > 0) w->length += n;
}

/* Adds " key=value" unless the value is the default. */
static void add_integer(line_writer *w, const char *key, int64_t value, int64_t standard) {
    if (value != standard) add(w, " %s=%" PRId64, key, value);
}

static void add_list(line_writer *w, const char *key, const int64_t *values, int64_t count) {
    add(w, " %s=", key);
    for (int64_t i = 0; i < count; i++) add(w, "%s%" PRId64, i ? "," : "", values[i]);
}

static void add_ids(line_writer *w, const int32_t *ids, int32_t count) {
    for (int32_t h = 0; ids && h < count; h++) add(w, "%s%" PRId32, h ? "," : " head_ids=", ids[h]);
}

/* As it was given: one position for all, or one each. */
static void add_positions(line_writer *w, const char *key, const problem *p, const int64_t *list,
                          int64_t count) {
    if (list && p->batch > 0) add_list(w, key, list, count);
}

static int all_ones(const int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (values[i] != 1) return 0;
    return 1;
}

int problem_format(const problem *p, char *buffer, size_t size) {
    line_writer w = {buffer, buffer ? size : 0, 0};
    const int decode = p->op == PROBLEM_DECODE;
    if (buffer && size) buffer[0] = 0;
    add(&w, "heads=%" PRId32, p->heads);
    add_integer(&w, "kv_heads", p->kv_heads, p->heads);
    add(&w, " head_dim=%" PRId32, p->head_dim);
    if (p->q_lens) {
        if (!decode || !all_ones(p->q_lens, p->batch)) add_list(&w, "q_lens", p->q_lens, p->batch);
        if (decode)
            add_list(&w, "kv_lens", p->kv_lens, p->batch);
        else if (p->batch &&
                 memcmp(p->q_lens, p->kv_lens, (size_t)p->batch * sizeof *p->q_lens) != 0)
            add_list(&w, "kv_lens", p->kv_lens, p->batch);
    } else {
        add_integer(&w, "batch", p->batch, 1);
        if (!decode || p->q_len != 1) add(&w, " q_len=%" PRId64, p->q_len);
        if (decode || p->kv_len != p->q_len) add(&w, " kv_len=%" PRId64, p->kv_len);
    }
    add_positions(&w, "q_first", p, p->q_first, p->q_first_count);
    add_positions(&w, "kv_first", p, p->kv_first, p->kv_first_count);
    if (p->op) add(&w, " op=%s", op_names[p->op]);
    add_integer(&w, "page", p->page, 0);
    add_integer(&w, "compact", p->compact, 0);
    if (p->dtype) add(&w, " dtype=%s", dtype_names[p->dtype]);
    if (p->kv_dtype != p->dtype) add(&w, " kv_dtype=%s", kv_dtype_names[p->kv_dtype]);
    add_integer(&w, "causal", p->causal, 1);
    if (p->scale != (float)(1 / sqrt(p->head_dim))) add(&w, " scale=%.9g", p->scale);
    if (p->seed) add(&w, " seed=%" PRIu64, p->seed);
    if (p->pattern != TESS_PATTERN_S2) add(&w, " pattern=%s", pattern_names[p->pattern]);
    if (p->pattern == TESS_PATTERN_BLOCKS)
        add(&w, " mask=%s block=%" PRId32, p->mask_path, p->block);
    else
        add_integer(&w, "block", p->block, 64);
    if (p->pattern == TESS_PATTERN_S2) {
        add(&w, " local=%" PRId32, p->local);
        if (!p->causal) add_integer(&w, "local_right", p->local_right, p->local);
        add(&w, " stride=%" PRId32, p->stride);
        add_integer(&w, "offset", p->offset, 0);
        add_integer(&w, "dense_heads", p->dense_heads, 0);
        add_integer(&w, "per_kv_head", p->per_kv_head, 0);
        add_integer(&w, "homo", p->homo, 0);
    }
    if (p->pattern == TESS_PATTERN_WINDOW) {
        add(&w, " left=%" PRId64, p->left);
        if (!p->causal || p->right) add(&w, " right=%" PRId64, p->right);
        add_integer(&w, "sinks", p->sinks, 0);
    }
    add_integer(&w, "head_first", p->head_first, 0);
    add_ids(&w, p->head_ids, p->heads);
    add_integer(&w, "heads_total", p->heads_total, p->heads);
    if (problem_has(p, "kv_heads_total")) add(&w, " kv_heads_total=%" PRId32, p->kv_heads_total);
    add_integer(&w, "kv_split", p->kv_split, 0);
    add_integer(&w, "batch_invariant", p->batch_invariant, 0);
    add_integer(&w, "tile_rows", p->tile_rows, 0);
    add_integer(&w, "determinism", p->determinism, 0);
    add_integer(&w, "dq_f32", p->dq_f32, 0);
    add_integer(&w, "dkv_f32", p->dkv_f32, 0);
    add_integer(&w, "dq_add", p->dq_add, 0);
    add_integer(&w, "dkv_add", p->dkv_add, 0);
    return w.length;
}

/* ------------------------------------------------------------------ lengths */

int64_t problem_q_len(const problem *p, int64_t b) { return p->q_lens ? p->q_lens[b] : p->q_len; }
int64_t problem_kv_len(const problem *p, int64_t b) {
    return p->kv_lens ? p->kv_lens[b] : p->kv_len;
}

static int64_t sum(const int64_t *lengths, int64_t count) {
    int64_t total = 0;
    for (int64_t b = 0; lengths && b < count; b++) total += lengths[b];
    return total;
}

int64_t problem_q_start(const problem *p, int64_t b) { return sum(p->q_lens, b); }
int64_t problem_kv_start(const problem *p, int64_t b) { return sum(p->kv_lens, b); }
int64_t problem_q_tokens(const problem *p) {
    return p->q_lens ? sum(p->q_lens, p->batch) : p->batch * p->q_len;
}
int64_t problem_kv_tokens(const problem *p) {
    return p->kv_lens ? sum(p->kv_lens, p->batch) : p->batch * p->kv_len;
}

int64_t problem_kv_first(const problem *p, int64_t b) { return p->kv_first ? p->kv_first[b] : 0; }
int64_t problem_q_first(const problem *p, int64_t b) {
    return p->q_first ? p->q_first[b]
                      : problem_kv_first(p, b) + problem_kv_len(p, b) - problem_q_len(p, b);
}

int64_t problem_longest(const problem *p) {
    int64_t longest = p->kv_lens ? 0 : p->kv_len;
    for (int64_t b = 0; p->kv_lens && b < p->batch; b++)
        if (p->kv_lens[b] > longest) longest = p->kv_lens[b];
    return longest;
}

int problem_cached(const problem *p) { return p->page || p->compact; }

int64_t problem_max_kv(const problem *p) {
    if (!p->kv_lens && !p->kv_first) return p->kv_len;
    int64_t longest = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t end;
        /* Where the library could not take it either. */
        if (__builtin_add_overflow(problem_kv_first(p, b), problem_kv_len(p, b), &end))
            return INT64_MAX;
        if (end > longest) longest = end;
    }
    return longest;
}

/* ------------------------------------------------------------------ the library's descriptors */

tess_status problem_layout(const problem *p, tess_runtime *runtime, tess_layout **layout) {
    tess_pattern pattern = {.struct_size = sizeof pattern, .kind = p->pattern, .block = p->block};
    if (!p->causal) pattern.flags |= TESS_PATTERN_BIDIRECTIONAL;
    switch (p->pattern) {
    case TESS_PATTERN_S2:
        if (p->per_kv_head) pattern.flags |= TESS_PATTERN_PER_KV_HEAD;
        if (p->homo) pattern.flags |= TESS_PATTERN_HOMOGENEOUS;
        pattern.local = p->local;
        pattern.local_right = p->local_right;
        pattern.stride = p->stride;
        pattern.offset = p->offset;
        pattern.dense_heads = p->dense_heads;
        break;
    case TESS_PATTERN_WINDOW:
        pattern.left = p->left;
        pattern.right = p->right;
        pattern.sinks = p->sinks;
        break;
    case TESS_PATTERN_BLOCKS:
        pattern.mask = p->mask;
        pattern.mask_heads = p->mask_heads;
        pattern.mask_query_blocks = p->mask_query_blocks;
        pattern.mask_key_blocks = p->mask_key_blocks;
        break;
    default: break;
    }
    /* A whole prefill is no step, unless it reads its keys from a compact cache. */
    int64_t chunk = 1;
    for (int64_t b = 0; b < (p->q_lens ? p->batch : 1); b++) {
        const int64_t rows = problem_q_len(p, b), keys = problem_kv_len(p, b);
        if (rows < keys && rows > chunk) chunk = rows;
        if (rows >= keys && p->compact && keys > chunk) chunk = keys;
    }
    tess_layout_desc desc = {
        .struct_size = sizeof desc,
        .pattern = &pattern,
        .n_heads = p->heads,
        .n_kv_heads = p->kv_heads,
        .head_first = p->head_first,
        .heads_total = p->heads_total,
        .kv_heads_total = p->kv_heads_total,
        .max_tokens = problem_max_kv(p),
        .max_chunk = chunk,
        .head_ids = p->head_ids,
    };
    return tess_layout_create(runtime, &desc, layout);
}

int problem_plan_desc(const problem *p, tess_plan_desc *desc, int64_t **cu) {
    *cu = NULL;
    *desc = (tess_plan_desc){
        .struct_size = sizeof *desc,
        .flags = (p->batch_invariant ? TESS_PLAN_BATCH_INVARIANT : 0) |
                 (p->compact ? TESS_PLAN_COMPACT : 0) | (p->dq_f32 ? TESS_PLAN_DQ_F32 : 0) |
                 (p->dkv_f32 ? TESS_PLAN_DKV_F32 : 0) | (p->dq_add ? TESS_PLAN_DQ_ADD : 0) |
                 (p->dkv_add ? TESS_PLAN_DKV_ADD : 0),
        .op = p->op == PROBLEM_BACKWARD ? TESS_OP_BACKWARD : TESS_OP_FORWARD,
        .dtype = p->dtype,
        .kv_dtype = problem_has_scales(p) ? p->kv_dtype : 0,
        .head_dim = p->head_dim,
        .scale = (float)p->scale,
        .batch = p->batch,
        .q_len = p->q_len,
        .kv_len = p->kv_len,
        .kv_split = p->kv_split,
        .tile_rows = p->tile_rows,
        .determinism = (uint32_t)p->determinism,
        .page = p->page,
        .q_first = p->q_first,
        .kv_first = p->kv_first,
    };
    if (!p->q_lens) return 0;
    size_t count = (size_t)p->batch + 1;
    int64_t *starts = calloc(2 * count, sizeof *starts);
    if (!starts) return -1;
    for (int64_t b = 0; b < p->batch; b++) {
        starts[b + 1] = starts[b] + p->q_lens[b];
        starts[count + (size_t)b + 1] = starts[count + (size_t)b] + p->kv_lens[b];
    }
    desc->cu_q_lens = starts;
    desc->cu_kv_lens = starts + count;
    *cu = starts;
    return 0;
}

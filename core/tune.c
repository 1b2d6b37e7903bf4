/* SPDX-License-Identifier: Apache-2.0 */
/* The text of tune tables: a line of the format's version, then one rule of key=value words on each
 * line. docs/tune.md describes it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

static const char magic[] = "tessera-tune ";
enum { FORMAT = 1, WORD_IN_MESSAGE = 60 };

/* A place in a table, for messages. */
typedef struct place {
    const char *label;
    uint32_t line;
} place;

#define BAD(where, ...) bad(where, TESS_ERROR_CORRUPT, __VA_ARGS__)
#define SHOWN(span_or_word)                                                                   \
    (int)((span_or_word).length < WORD_IN_MESSAGE ? (span_or_word).length : WORD_IN_MESSAGE), \
        (span_or_word).at

static tess_status bad(const place *where, tess_status status, const char *format, ...)
    TESS_PRINTF(3, 4);
static tess_status bad(const place *where, tess_status status, const char *format, ...) {
    char what[TESS_ERROR_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    tess_format(what, sizeof what, format, arguments);
    va_end(arguments);
    return tess_fail(status, "%s: line %u: %s", where->label, where->line, what);
}

/* ------------------------------------------------------------------ values */

/* The next item of a comma list from *rest, whose length becomes 0 behind the last one. An empty
 * item is one of length 0. */
static tess_span next_item(tess_span *rest, bool *more) {
    const char *comma = memchr(rest->at, ',', rest->length);
    tess_span item = {rest->at, comma != NULL ? (size_t)(comma - rest->at) : rest->length};
    *more = comma != NULL;
    rest->at += item.length + (comma != NULL);
    rest->length -= item.length + (comma != NULL);
    return item;
}

/* A comma list of names into bits in the order of the names. */
static tess_status read_names(const place *where, const char *key, tess_span value,
                              const char *const *names, uint32_t *bits) {
    bool more = true;
    *bits = 0;
    while (more) {
        tess_span item = next_item(&value, &more);
        uint32_t bit = 0;
        for (uint32_t n = 0; names[n] != NULL; n++)
            if (strlen(names[n]) == item.length && memcmp(names[n], item.at, item.length) == 0)
                bit = 1u << n;
        if (bit == 0) return BAD(where, "%s: '%.*s' is no value of it", key, SHOWN(item));
        if (*bits & bit) return BAD(where, "%s: '%.*s' is given twice", key, SHOWN(item));
        *bits |= bit;
    }
    return TESS_OK;
}

static bool read_number(tess_span digits, int64_t *number) {
    *number = 0;
    if (digits.length < 1 || digits.length > 10) return false;
    for (size_t n = 0; n < digits.length; n++) {
        if (digits.at[n] < '0' || digits.at[n] > '9') return false;
        *number = 10 * *number + (digits.at[n] - '0');
    }
    return true;
}

/* a, a..b, a.. or ..b */
static tess_status read_range(const place *where, const char *key, tess_span value,
                              tess_range *range) {
    const char *dots = memmem(value.at, value.length, "..", 2);
    tess_span low = {value.at, dots != NULL ? (size_t)(dots - value.at) : value.length};
    tess_span high = dots != NULL ? (tess_span){dots + 2, value.length - low.length - 2} : low;
    range->low = 0;
    range->high = INT64_MAX;
    bool fine = low.length + high.length > 0;
    if (low.length > 0) fine = fine && read_number(low, &range->low);
    if (high.length > 0) fine = fine && read_number(high, &range->high);
    if (!fine) return BAD(where, "%s: '%.*s' is none of n, a..b, a.. and ..b", key, SHOWN(value));
    if (range->low > range->high)
        return BAD(where, "%s: '%.*s' is an empty range", key, SHOWN(value));
    return TESS_OK;
}

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* backend/kernel, each of the same backend. */
static tess_status read_kernels(const place *where, tess_span value, tess_tune_rule *rule) {
    tess_span seen[TESS_TUNE_KERNELS], rest = value;
    bool more = true;
    for (size_t n = 0; more; n++) {
        tess_span item = next_item(&rest, &more);
        const char *slash = memchr(item.at, '/', item.length);
        size_t backend = slash != NULL ? (size_t)(slash - item.at) : 0;
        bool fine = backend > 0 && backend + 1 < item.length &&
                    item.length < sizeof((tess_kernel_info *)0)->name;
        for (size_t c = 0; c < item.length && fine; c++)
            fine = c == backend || is_name_byte(item.at[c]);
        if (!fine)
            return BAD(where, "kernel: '%.*s' is not of the form backend/kernel", SHOWN(item));
        if (n == 0) rule->backend = (tess_span){item.at, backend};
        if (rule->backend.length != backend || memcmp(rule->backend.at, item.at, backend) != 0)
            return BAD(where, "kernel: '%.*s' is of another backend than the first", SHOWN(item));
        if (n == TESS_TUNE_KERNELS) return BAD(where, "kernel: more than %d", TESS_TUNE_KERNELS);
        seen[n] = item;
        for (size_t k = 0; k < n; k++)
            if (seen[k].length == item.length && memcmp(seen[k].at, item.at, item.length) == 0)
                return BAD(where, "kernel: '%.*s' is given twice", SHOWN(item));
    }
    rule->kernels = value;
    return TESS_OK;
}

/* ------------------------------------------------------------------ words, rules, lines */

static const char *const op_names[] = {"fwd", "bwd", NULL},
                         *const dtype_names[] = {"f32", "f16", "bf16", NULL},
                         *const pattern_names[] = {"dense", "s2", "window", "blocks", NULL},
                         *const basis_names[] = {"measured", "reasoned", NULL};

enum word {
    OP,
    DTYPE,
    PATTERN,
    HEAD_DIM,
    BLOCK,
    Q_LEN,
    KV_LEN,
    ARCH,
    DEVICE,
    KERNEL,
    BASIS,
    WORDS
};
static const char *const word_names[WORDS] = {"op",     "dtype",  "pattern", "head_dim",
                                              "block",  "q_len",  "kv_len",  "arch",
                                              "device", "kernel", "basis"};

static tess_status read_value(const place *where, enum word word, tess_span value,
                              tess_tune_rule *rule) {
    const char *key = word_names[word];
    switch (word) {
    case OP: return read_names(where, key, value, op_names, &rule->ops);
    case DTYPE: return read_names(where, key, value, dtype_names, &rule->dtypes);
    case PATTERN: return read_names(where, key, value, pattern_names, &rule->patterns);
    case HEAD_DIM: return read_range(where, key, value, &rule->head_dim);
    case BLOCK: return read_range(where, key, value, &rule->block);
    case Q_LEN: return read_range(where, key, value, &rule->q_len);
    case KV_LEN: return read_range(where, key, value, &rule->kv_len);
    case KERNEL: return read_kernels(where, value, rule);
    case BASIS: {
        uint32_t bits = 0;
        tess_status status = read_names(where, key, value, basis_names, &bits);
        if (status == TESS_OK && bits == 3)
            return BAD(where, "basis: only one of measured and reasoned");
        rule->basis = bits; /* the bits are the values of tess_rule_basis */
        return status;
    }
    case ARCH: rule->arch = value; break;
    case DEVICE: rule->device = value; break;
    default: break;
    }
    return value.length > 0 ? TESS_OK : BAD(where, "%s: is empty", key);
}

_Static_assert(TESS_BASIS_MEASURED == 1 && TESS_BASIS_REASONED == 2, "bits of the names");

static const tess_range everything = {0, INT64_MAX};

/* One line, which ends in 0 and holds something but blanks and a comment. The rule points into
 * it. */
static tess_status read_rule(const place *where, const char *text, const char *only,
                             tess_tune_rule *rule) {
    uint32_t given = 0;
    *rule = (tess_tune_rule){.text = text,
                             .line = where->line,
                             .ops = 1u << TESS_OP_FORWARD,
                             .dtypes = UINT32_MAX,
                             .patterns = UINT32_MAX,
                             .head_dim = everything,
                             .block = everything,
                             .q_len = everything,
                             .kv_len = everything};
    while (*text != '\0') {
        tess_span word = {text, strcspn(text, " ")};
        const char *equals = memchr(word.at, '=', word.length);
        tess_span key = {word.at, equals != NULL ? (size_t)(equals - word.at) : word.length};
        uint32_t n = 0;
        while (n < WORDS && (strlen(word_names[n]) != key.length ||
                             memcmp(word_names[n], key.at, key.length) != 0))
            n++;
        if (n == WORDS) return BAD(where, "'%.*s' is no word of a rule", SHOWN(word));
        if (equals == NULL) return BAD(where, "%s: has no value", word_names[n]);
        if (given & 1u << n) return BAD(where, "%s: is given twice", word_names[n]);
        given |= 1u << n;
        TESS_RETURN_IF_ERROR(read_value(
            where, (enum word)n, (tess_span){equals + 1, word.length - key.length - 1}, rule));
        text += word.length;
        text += strspn(text, " ");
    }
    if (!(given & 1u << KERNEL)) return BAD(where, "kernel: is missing");
    if (only != NULL && (strlen(only) != rule->backend.length ||
                         memcmp(only, rule->backend.at, rule->backend.length) != 0))
        return BAD(where, "kernel: '%.*s' is not the backend's own", SHOWN(rule->kernels));
    return TESS_OK;
}

/* Cuts a comment and blanks at both ends, in place. What a line may hold: printable ASCII and tabs;
 * in comments any bytes that are no control characters, since people write them. */
static tess_status clean_line(const place *where, char *line, size_t length, char **text) {
    bool comment = false;
    if (length > TESS_TUNE_LINE)
        return BAD(where, "has %zu bytes, at most %d are allowed", length, TESS_TUNE_LINE);
    size_t end = 0, begin = length;
    for (size_t n = 0; n < length; n++) {
        unsigned char c = (unsigned char)line[n];
        if (c == '\t') line[n] = ' ';
        if ((c < ' ' && c != '\t') || c == 127)
            return BAD(where, "byte %zu is the control character 0x%02x", n + 1, c);
        if (c == '#' && (n == 0 || line[n - 1] == ' ')) comment = true;
        if (comment || line[n] == ' ') continue;
        if (c >= 0x80) return BAD(where, "byte %zu is not ASCII (0x%02x)", n + 1, c);
        if (begin == length) begin = n;
        end = n + 1;
    }
    line[end] = '\0';
    *text = line + (begin < end ? begin : end);
    return TESS_OK;
}

static tess_status read_version(const place *where, const char *text) {
    size_t length = sizeof magic - 1;
    int64_t version;
    if (strncmp(text, magic, length) != 0 ||
        !read_number((tess_span){text + length, strlen(text) - length}, &version))
        return BAD(where, "must be '%s%d', the version of the format", magic, FORMAT);
    return version == FORMAT
               ? TESS_OK
               : bad(where, TESS_ERROR_VERSION, "has format %lld, and this library reads %d",
                     (long long)version, FORMAT);
}

/* Walks the lines of tune->text, which ends in a newline. With rules == NULL only counts them. */
static tess_status read_lines(const char *label, const char *only, char *text, size_t size,
                              tess_tune_rule *rules, uint32_t *n_rules) {
    place where = {label, 0};
    *n_rules = 0;
    for (char *line = text, *next; line < text + size; line = next) {
        char *newline = memchr(line, '\n', (size_t)(text + size - line)), *own = line;
        next = newline + 1;
        where.line++;
        TESS_RETURN_IF_ERROR(clean_line(&where, line, (size_t)(newline - line), &own));
        if (where.line == 1) TESS_RETURN_IF_ERROR(read_version(&where, own));
        if (where.line == 1 || *own == '\0') continue;
        if (*n_rules == TESS_TUNE_RULES) return BAD(&where, "more than %d rules", TESS_TUNE_RULES);
        TESS_RETURN_IF_ERROR(read_rule(&where, own, only, &rules[*n_rules]));
        ++*n_rules;
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ tables */

static tess_status no_memory(const char *label, size_t bytes) {
    return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: %zu bytes for the table", label, bytes);
}

/* Parses what stands in tune->text. Every rule takes a line of its own, so lines bound the
 * rules. */
static tess_status parse_own(tess_runtime *runtime, const char *label, const char *only,
                             size_t size, tess_tune *tune) {
    place where = {label, 1};
    size_t lines = 0;
    for (size_t n = 0; n < size; n++) lines += tune->text[n] == '\n';
    if (size == 0 || tune->text[size - 1] != '\n') {
        where.line = (uint32_t)lines + 1;
        return BAD(&where, "the last line has no end, so the table may have been cut off");
    }
    if (lines > TESS_TUNE_RULES) lines = TESS_TUNE_RULES;
    tune->rules_bytes = lines * sizeof *tune->rules;
    tune->rules = tess_mem_alloc(runtime, tune->rules_bytes, _Alignof(tess_tune_rule));
    if (tune->rules == NULL) return no_memory(label, tune->rules_bytes);
    return read_lines(label, only, tune->text, size, tune->rules, &tune->n_rules);
}

/* Takes room for a text of `size` bytes. */
static tess_status take_text(tess_runtime *runtime, const char *label, size_t size,
                             tess_tune *tune) {
    *tune = (tess_tune){.text_bytes = size + 1};
    tune->text = tess_mem_alloc(runtime, tune->text_bytes, 1);
    return tune->text != NULL ? TESS_OK : no_memory(label, tune->text_bytes);
}

tess_status tess_tune_parse(tess_runtime *runtime, const char *label, const char *only,
                            const char *bytes, size_t size, tess_tune *tune) {
    if (size > TESS_TUNE_BYTES) {
        *tune = (tess_tune){0};
        return tess_invalid("%s: has %zu bytes, at most %d are allowed", label, size,
                            TESS_TUNE_BYTES);
    }
    tess_status status = take_text(runtime, label, size, tune);
    if (status == TESS_OK) {
        if (size > 0) memcpy(tune->text, bytes, size);
        status = parse_own(runtime, label, only, size, tune);
    }
    if (status != TESS_OK) tess_tune_free(runtime, tune);
    return status;
}

/* Reads a whole file of `size` bytes. It is an error if the file has shrunk meanwhile. */
static tess_status read_all(int file, const char *label, char *text, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t got = read(file, text + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return tess_fail(TESS_ERROR_NATIVE, "%s: read: %s", label,
                             got < 0 ? strerror(errno) : "the file has become shorter");
        done += (size_t)got;
    }
    return TESS_OK;
}

static tess_status read_open(tess_runtime *runtime, const char *label, int file, tess_tune *tune) {
    struct stat about;
    if (fstat(file, &about) != 0)
        return tess_fail(TESS_ERROR_NATIVE, "%s: fstat: %s", label, strerror(errno));
    if (!S_ISREG(about.st_mode)) return tess_invalid("%s: is not a regular file", label);
    if (about.st_size > TESS_TUNE_BYTES)
        return tess_invalid("%s: has %lld bytes, at most %d are allowed", label,
                            (long long)about.st_size, TESS_TUNE_BYTES);
    tess_status status = take_text(runtime, label, (size_t)about.st_size, tune);
    if (status == TESS_OK) status = read_all(file, label, tune->text, (size_t)about.st_size);
    if (status == TESS_OK) status = parse_own(runtime, label, NULL, (size_t)about.st_size, tune);
    if (status != TESS_OK) tess_tune_free(runtime, tune);
    return status;
}

tess_status tess_tune_read(tess_runtime *runtime, const char *label, const char *path,
                           tess_tune *tune) {
    char where[256];
    *tune = (tess_tune){0};
    snprintf(where, sizeof where, "tess_runtime_create: %s: %.190s", label, path);
    /* Opening must not block, whatever kind of file it is. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return tess_invalid("%s: cannot be opened: %s", where, strerror(errno));
    tess_status status = read_open(runtime, where, file, tune);
    close(file);
    return status;
}

void tess_tune_free(tess_runtime *runtime, tess_tune *tune) {
    tess_mem_free(runtime, tune->rules, tune->rules_bytes);
    tess_mem_free(runtime, tune->text, tune->text_bytes);
    *tune = (tess_tune){0};
}

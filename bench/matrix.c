/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "options.h"
#include "report.h"
#include "text.h"

/* ------------------------------------------------------------------ words */

const char *matrix_kind_name(int kind) {
    static const char *const names[] = {"Prefill", "Chunk", "Gradients", "Decode"};
    return kind >= 0 && kind < MATRIX_KINDS ? names[kind] : "?";
}

const char *matrix_kind_word(int kind) {
    static const char *const words[] = {"prefill", "chunk", "backward", "decode"};
    return kind >= 0 && kind < MATRIX_KINDS ? words[kind] : "?";
}

const char *matrix_kind_unit(int kind) { return kind == MATRIX_DECODE ? "B/s" : "FLOP/s"; }

const char *matrix_why(const matrix_cell *c, char *buffer, size_t size) {
    char need[TEXT_SIZE];
    const bench_result *x = c->of;
    if (!x)
        snprintf(buffer, size, "-");
    else if (x->status == BENCH_SLOW && x->need_seconds > 0)
        snprintf(buffer, size, "needs %s", text_seconds(need, sizeof need, x->need_seconds));
    else
        snprintf(buffer, size, "%s",
                 x->status == BENCH_MEMORY    ? "no memory"
                 : x->status == BENCH_REFUSED ? "not supported"
                                              : status_word(x->status));
    return buffer;
}

const char *matrix_base_name(const matrix *m, int column) {
    int base = m->columns[column].base;
    return base < 0 ? NULL : m->columns[base].name;
}

/* ------------------------------------------------------------------ rows */

static int kind_of(const bench_result *x) {
    if (result_is_decode(x)) return MATRIX_DECODE;
    if (x->backward) return MATRIX_BACKWARD;
    return x->q_len < x->kv_len ? MATRIX_CHUNK : MATRIX_PREFILL;
}

/* The value of a word of a problem line as it stands there; 0 without it. */
static int word_value(const char *line, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *at = line; at; at = strchr(at, ' ')) {
        if (*at == ' ') at++;
        if (strncmp(at, key, length) != 0 || at[length] != '=') continue;
        size_t n = strcspn(at + length + 1, " ");
        snprintf(value, size, "%.*s", (int)(n < size ? n : size - 1), at + length + 1);
        return 1;
    }
    if (size) value[0] = 0;
    return 0;
}

static void append(char *text, size_t size, const char *separator, const char *more) {
    size_t used = strlen(text);
    if (used < size) snprintf(text + used, size - used, "%s%s", used ? separator : "", more);
}

/* What of the shape does not stand in the name. */
static void describe_row(matrix_row *row) {
    static const struct {
        const char *key, *as;
    } words[] = {
        {"block", "B="},     {"local", "L="},     {"stride", "V="},           {"left", "left "},
        {"right", "right "}, {"sinks", "sinks "}, {"kv_dtype", "K and V in "}};
    const bench_result *x = row->shape;
    const char *pattern = strcmp(x->pattern, "s2") == 0 ? "S2" : x->pattern;
    char tokens[24], heads[32], value[64], text[96];
    int letters = 0;
    short_tokens(tokens, sizeof tokens, x->kv_len);
    if (row->kind == MATRIX_CHUNK)
        snprintf(row->name, sizeof row->name, "%s %" PRId64 " on %s", pattern, x->q_len, tokens);
    else
        snprintf(row->name, sizeof row->name, "%s %s", pattern, tokens);
    snprintf(row->detail, sizeof row->detail, "%s", dtype_name(x->dtype));
    if (x->batch > 1) {
        snprintf(text, sizeof text, "batch %" PRId64, x->batch);
        append(row->detail, sizeof row->detail, ", ", text);
    }
    result_heads(x, heads, sizeof heads);
    if (x->kv_heads == x->heads)
        snprintf(text, sizeof text, "%s heads", heads);
    else
        snprintf(text, sizeof text, "%s/%d heads", heads, x->kv_heads);
    append(row->detail, sizeof row->detail, ", ", text);
    snprintf(text, sizeof text, "D %d", x->head_dim);
    append(row->detail, sizeof row->detail, ", ", text);
    if (x->decode && (x->page || x->compact))
        append(row->detail, sizeof row->detail, ", ", result_cache(x, text, sizeof text));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!word_value(x->line, words[i].key, value, sizeof value)) continue;
        snprintf(text, sizeof text, "%s%s", words[i].as, value);
        const int letter = strchr(words[i].as, '=') != NULL;
        append(row->detail, sizeof row->detail, letters && letter ? " " : ", ", text);
        letters |= letter;
    }
}

/* Places of lines in the table of rows, by an open hash: files may hold many thousand results. */
typedef struct line_index {
    int *slots; /* row + 1; 0: free */
    size_t mask;
} line_index;

static size_t hash_line(const char *line) {
    uint64_t h = 1469598103934665603u;
    for (; *line; line++) h = (h ^ (unsigned char)*line) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

/* The row of a line, or -1 with the free slot in *slot. */
static int find_line(const line_index *index, const matrix_row *rows, const char *line,
                     size_t *slot) {
    size_t at = hash_line(line) & index->mask;
    for (; index->slots[at]; at = (at + 1) & index->mask)
        if (strcmp(rows[index->slots[at] - 1].shape->line, line) == 0) return index->slots[at] - 1;
    *slot = at;
    return -1;
}

/* Rows of a group differ in length alone. */
static int same_group(const matrix_row *a, const matrix_row *b) {
    const bench_result *x = a->shape, *y = b->shape;
    return a->kind == b->kind && x->dtype == y->dtype && x->batch == y->batch &&
           (a->kind == MATRIX_CHUNK || a->kind == MATRIX_DECODE ? x->q_len == y->q_len : 1) &&
           strcmp(x->pattern, y->pattern) == 0 && strcmp(a->detail, b->detail) == 0;
}

static int compare_rows(const void *a, const void *b) {
    const matrix_row *x = a, *y = b;
    if (x->kind != y->kind) return x->kind - y->kind;
    if (x->group != y->group) return x->group - y->group;
    if (x->shape->kv_len != y->shape->kv_len) return x->shape->kv_len < y->shape->kv_len ? -1 : 1;
    return strcmp(x->shape->line, y->shape->line);
}

static int compare_places(const void *a, const void *b) {
    const matrix_row *x = a, *y = b;
    return x->place - y->place;
}

/* Rows in the order of their suites, others after them: results come in an order of their own where
 * a device has no time for all. */
static void order_by_suite(matrix *m, const line_index *index) {
    int next = 0;
    for (int i = 0; i < m->n_rows; i++) m->rows[i].place = -1;
    for (int f = 0; f < m->n_files; f++)
        for (int i = 0; i < m->reports[f]->n_lines; i++) {
            size_t slot = 0;
            const int row = find_line(index, m->rows, m->reports[f]->lines[i].line, &slot);
            if (row >= 0 && m->rows[row].place < 0) m->rows[row].place = next++;
        }
    for (int i = 0; i < m->n_rows; i++)
        if (m->rows[i].place < 0) m->rows[i].place = next++;
    qsort(m->rows, (size_t)m->n_rows, sizeof *m->rows, compare_places);
}

/* What could not be understood has no shape, and no row. */
static int has_shape(const bench_result *x) { return x->pattern[0] && x->head_dim > 0; }

static int find_rows(matrix *m, line_index *index) {
    size_t total = 0, size = 16;
    for (int f = 0; f < m->n_files; f++) total += (size_t)m->reports[f]->n_results;
    while (size < 2 * total) size *= 2;
    *index = (line_index){calloc(size, sizeof *index->slots), size - 1};
    m->rows = calloc(total + 1, sizeof *m->rows);
    if (!index->slots || !m->rows) return -1;
    for (int f = 0; f < m->n_files; f++)
        for (int i = 0; i < m->reports[f]->n_results; i++) {
            const bench_result *x = &m->reports[f]->results[i];
            size_t slot = 0;
            if (!has_shape(x) || find_line(index, m->rows, x->line, &slot) >= 0) continue;
            if (m->n_rows == MATRIX_ROWS) return -2;
            matrix_row *row = &m->rows[m->n_rows++];
            *row = (matrix_row){.shape = x, .kind = kind_of(x), .best = -1, .group = -1};
            describe_row(row);
            index->slots[slot] = m->n_rows;
        }
    order_by_suite(m, index); /* which ends the index; sort_rows makes it anew */
    for (int i = 0; i < m->n_rows; i++) {
        for (int j = 0; j < i && m->rows[i].group < 0; j++)
            if (same_group(&m->rows[i], &m->rows[j])) m->rows[i].group = m->rows[j].group;
        if (m->rows[i].group < 0) m->rows[i].group = m->n_groups++;
    }
    return 0;
}

/* Sorts the rows into the order of reading, and the index with them. */
static void sort_rows(matrix *m, line_index *index) {
    qsort(m->rows, (size_t)m->n_rows, sizeof *m->rows, compare_rows);
    memset(index->slots, 0, (index->mask + 1) * sizeof *index->slots);
    for (int i = 0; i < m->n_rows; i++) {
        size_t slot = 0;
        if (find_line(index, m->rows, m->rows[i].shape->line, &slot) < 0)
            index->slots[slot] = i + 1;
    }
}

/* ------------------------------------------------------------------ columns */

static int is_of(const matrix_column *c, int file, const bench_result *x) {
    return c->file == file && c->device == x->device && strcmp(c->peer, x->peer) == 0 &&
           (!c->kernel || !x->kernel[0] || strcmp(c->kernel, x->kernel) == 0);
}

static int find_column(const matrix *m, int file, const bench_result *x) {
    for (int k = 0; k < m->n_columns; k++)
        if (is_of(&m->columns[k], file, x)) return k;
    return -1;
}

/* Whether a device, or a peer on it, was measured with several kernels on one problem: each is a
 * column then. */
static int has_kernels(const matrix *m, const line_index *index, int file, const bench_result *of,
                       const char **seen) {
    const bench_report *r = m->reports[file];
    memset(seen, 0, (size_t)m->n_rows * sizeof *seen);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        size_t slot = 0;
        if (x->status != BENCH_OK || x->device != of->device || strcmp(x->peer, of->peer) != 0)
            continue;
        int row = find_line(index, m->rows, x->line, &slot);
        if (row < 0) continue;
        if (seen[row] && strcmp(seen[row], x->kernel) != 0) return 1;
        seen[row] = x->kernel;
    }
    return 0;
}

/* A device's name without marks of registration and clock rates, which make heads of columns long.
 */
static void plain_name(const bench_device *d, char *name, size_t size) {
    static const char *const noise[] = {"(R)", "(TM)", "(r)", "(tm)", " CPU @", " @ "};
    snprintf(name, size, "%s", d->name[0] ? d->name : d->id);
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
        char *at = strstr(name, noise[i]);
        if (!at || at == name) continue;
        if (noise[i][0] == ' ')
            *at = 0;
        else
            memmove(at, at + strlen(noise[i]), strlen(at + strlen(noise[i])) + 1);
        i--; /* again: it may stand there twice */
    }
}

/* Shortens a name to so many characters, between words where it has some. */
static void cut_name(char *name, size_t most) {
    if (strlen(name) <= most) return;
    size_t n = most;
    while (n > 0 && name[n] != ' ') n--;
    if (n < 4) n = most;
    while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--; /* not inside of a character */
    name[n] = 0;
}

static void name_column(const matrix *m, matrix_column *c) {
    const bench_device *d = c->about;
    const char *through = c->peer[0] ? c->peer : d->backend[0] ? d->backend : d->id;
    const char *kernel = c->kernel ? c->kernel : "";
    char file[8] = "", name[sizeof d->name];
    if (m->n_files > 1) snprintf(file, sizeof file, "%c ", 'A' + c->file);
    plain_name(d, name, sizeof name);
    cut_name(name, 90);
    snprintf(c->id, sizeof c->id, "%s%.36s%s%.20s%s%.20s", file, d->id, c->peer[0] ? " " : "",
             c->peer, kernel[0] ? " " : "", kernel);
    snprintf(c->name, sizeof c->name, "%s%.90s (%.30s%s%.40s)", file, name, through,
             kernel[0] ? ", " : "", kernel);
    cut_name(name, 18);
    snprintf(c->head, sizeof c->head, "%s%.18s %.12s%s%.16s", file, name, through,
             kernel[0] ? " " : "", kernel);
    cli_one_line(c->id); /* where a name was cut inside of a character */
    cli_one_line(c->name);
    cli_one_line(c->head);
}

static int add_columns(matrix *m, const line_index *index) {
    const char **seen = calloc((size_t)m->n_rows + 1, sizeof *seen);
    m->columns = calloc(MATRIX_COLUMNS, sizeof *m->columns);
    if (!seen || !m->columns) {
        free(seen);
        return -1;
    }
    for (int f = 0; f < m->n_files; f++) {
        const bench_report *r = m->reports[f];
        const bench_result *asked = NULL;
        int kernels = 0;
        for (int d = 0; d < r->n_devices; d++)
            for (int i = 0; i < r->n_results; i++) {
                const bench_result *x = &r->results[i];
                if (x->device != d || !has_shape(x) || find_column(m, f, x) >= 0) continue;
                /* Asked once for each tool on a device, not for each of its results. */
                if (!asked || asked->device != d || strcmp(asked->peer, x->peer) != 0)
                    kernels = has_kernels(m, index, f, x, seen);
                asked = x;
                /* What did not run has no kernel to tell its column by. */
                if (kernels && !x->kernel[0]) continue;
                if (m->n_columns == MATRIX_COLUMNS) {
                    free(seen);
                    return -2;
                }
                matrix_column *c = &m->columns[m->n_columns++];
                *c = (matrix_column){.file = f,
                                     .device = d,
                                     .report = r,
                                     .about = &r->devices[d],
                                     .kernel = kernels ? x->kernel : NULL,
                                     .base = -1};
                snprintf(c->peer, sizeof c->peer, "%s", x->peer);
                c->software = strcmp(c->about->kind, "software") == 0;
                name_column(m, c);
            }
    }
    free(seen);
    return 0;
}

/* Two columns of one name are told apart by the ids of their devices. */
static void tell_names_apart(matrix *m) {
    for (int k = 0; k < m->n_columns; k++)
        for (int j = 0; j < k; j++) {
            matrix_column *c = &m->columns[k];
            if (strcmp(c->name, m->columns[j].name) != 0) continue;
            size_t n = strlen(c->name);
            snprintf(c->name + n, sizeof c->name - n, ", %.36s", c->about->id);
        }
}

/* ------------------------------------------------------------------ cells */

static matrix_cell *cell_at(matrix *m, int row, int column) {
    return &m->cells[(size_t)row * (size_t)m->n_columns + (size_t)column];
}
const matrix_cell *matrix_at(const matrix *m, int row, int column) {
    return &m->cells[(size_t)row * (size_t)m->n_columns + (size_t)column];
}

matrix_ratio matrix_compare(const bench_result *x, const bench_result *than, int beside) {
    matrix_ratio r;
    r.value = than->median / x->median;
    const double drift = beside ? 1 : 1 + fmax(x->drift, than->drift);
    r.low = (x->q3 > 0 ? than->q1 / x->q3 : r.value) / drift;
    r.high = (x->q1 > 0 ? than->q3 / x->q1 : r.value) * drift;
    r.same = (r.low <= 1 && r.high >= 1) || fabs(r.value - 1) <= MATRIX_SAME;
    return r;
}

static matrix_ratio compare_columns(const matrix *m, int row, int column, int than) {
    const matrix_column *a = &m->columns[column], *b = &m->columns[than];
    return matrix_compare(matrix_at(m, row, column)->of, matrix_at(m, row, than)->of,
                          a->about == b->about && strcmp(a->peer, b->peer) != 0);
}

/* Notes which kernels ran a column's rows, each once. */
static void add_kernel(matrix_column *c, const char *kernel) {
    size_t n = strlen(kernel);
    for (const char *at = c->kernels; (at = strstr(at, kernel)) != NULL; at++)
        if ((at == c->kernels || at[-1] == ' ') && (!at[n] || at[n] == ',')) return;
    append(c->kernels, sizeof c->kernels, ", ", kernel);
}

static int fill_cells(matrix *m, const line_index *index) {
    const matrix_ratio none = {NAN, NAN, NAN, 0};
    size_t n = (size_t)m->n_rows * (size_t)m->n_columns;
    m->cells = calloc(n + 1, sizeof *m->cells);
    if (!m->cells) return -1;
    for (size_t i = 0; i < n; i++)
        m->cells[i] = (matrix_cell){.behind = NAN, .rate = NAN, .ratio = none};
    for (int f = 0; f < m->n_files; f++)
        for (int i = 0; i < m->reports[f]->n_results; i++) {
            const bench_result *x = &m->reports[f]->results[i];
            size_t slot = 0;
            int row = has_shape(x) ? find_line(index, m->rows, x->line, &slot) : -1,
                column = find_column(m, f, x);
            if (row < 0 || column < 0) continue;
            matrix_cell *c = cell_at(m, row, column);
            /* A problem of two families was measured twice; the first counts. */
            if (c->state == MATRIX_MEASURED || (c->of && x->status != BENCH_OK)) continue;
            c->of = x;
            c->state = x->status == BENCH_OK ? MATRIX_MEASURED : MATRIX_EMPTY;
            if (c->state != MATRIX_MEASURED) continue;
            c->rate = m->rows[row].kind == MATRIX_DECODE ? x->byte_rate : x->flop_rate;
            if (x->limit_ceiling >= 0)
                c->limit = &m->columns[column].about->ceilings[x->limit_ceiling];
            add_kernel(&m->columns[column], x->kernel);
        }
    return 0;
}

/* Problems of one file alone have nothing to be compared with. */
static void drop_lonely_rows(matrix *m) {
    int kept = 0;
    for (int i = 0; i < m->n_rows; i++) {
        int files = 0, last = -1;
        for (int k = 0; k < m->n_columns; k++)
            if (matrix_at(m, i, k)->of && m->columns[k].file != last) {
                last = m->columns[k].file;
                files++;
            }
        if (files == 1) m->alone[last]++;
        if (files < 2) continue;
        m->rows[kept] = m->rows[i];
        memmove(cell_at(m, kept, 0), cell_at(m, i, 0), (size_t)m->n_columns * sizeof *m->cells);
        kept++;
    }
    m->n_rows = kept;
}

/* Whether one that there was no time for was foretold to be faster. */
static int is_doubtful(const matrix *m, int i) {
    const double best = matrix_at(m, i, m->rows[i].best)->of->median;
    for (int k = 0; k < m->n_columns; k++) {
        const matrix_cell *c = matrix_at(m, i, k);
        if (c->of && c->of->status == BENCH_SLOW && c->of->estimate_seconds < best) return 1;
    }
    return 0;
}

static void find_winners(matrix *m) {
    for (int i = 0; i < m->n_rows; i++) {
        matrix_row *row = &m->rows[i];
        row->best = -1;
        for (int k = 0; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            if (c->state != MATRIX_MEASURED) continue;
            row->n_measured++;
            if (row->best < 0 || c->of->median < matrix_at(m, i, row->best)->of->median)
                row->best = k;
        }
        if (row->n_measured < 2 || is_doubtful(m, i)) row->best = -1;
        for (int k = 0; k < m->n_columns && row->best >= 0; k++) {
            matrix_cell *c = cell_at(m, i, k);
            if (c->state != MATRIX_MEASURED) continue;
            const bench_result *best = matrix_at(m, i, row->best)->of;
            c->behind = c->of->median / best->median;
            c->place = k == row->best                             ? MATRIX_BEST
                       : compare_columns(m, i, k, row->best).same ? MATRIX_LEVEL
                                                                  : MATRIX_BEHIND;
        }
    }
}

/* ------------------------------------------------------------------ the base */

static int same_kernel(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* The column of a file that a column is most like: a device of the same name, then of the same id,
 * the same peer and kernel. Unless the file was asked for, a GPU is like no CPU, neither is like an
 * emulation, and a peer is like itself alone: -1. */
static int alike(const matrix *m, int column, int file, int asked) {
    const matrix_column *c = &m->columns[column];
    int best = -1, most = 0;
    for (int b = 0; b < m->n_columns; b++) {
        const matrix_column *o = &m->columns[b];
        if (o->file != file) continue;
        if (!asked &&
            (strcmp(o->about->kind, c->about->kind) != 0 || strcmp(o->peer, c->peer) != 0))
            continue;
        int name = strcmp(o->about->name, c->about->name) == 0,
            device = strcmp(o->about->id, c->about->id) == 0, peer = strcmp(o->peer, c->peer) == 0;
        int score =
            1 + 8 * name + 4 * device + 2 * peer + (peer && same_kernel(o->kernel, c->kernel));
        if (score > most) {
            most = score;
            best = b;
        }
    }
    return best;
}

/* The file that a word names: its path, the path's last part, or its letter. */
static int named_file(const matrix *m, const char *word) {
    for (int f = 0; f < m->n_files; f++) {
        const char *path = m->paths[f], *slash = path ? strrchr(path, '/') : NULL;
        if (path && (strcmp(path, word) == 0 || (slash && strcmp(slash + 1, word) == 0))) return f;
    }
    if (m->n_files > 1 && word[0] >= 'A' && word[0] < 'A' + m->n_files && !word[1])
        return word[0] - 'A';
    return -1;
}

/* The first column that a word names: its id, that of its device, or the device's name. */
static int named_column(const matrix *m, const char *word) {
    for (int k = 0; k < m->n_columns; k++)
        if (strcmp(m->columns[k].id, word) == 0 || strcmp(m->columns[k].name, word) == 0) return k;
    for (int names = 0; names < 2; names++)
        for (int k = 0; k < m->n_columns; k++) {
            const bench_device *d = m->columns[k].about;
            if (!d) continue;
            if (!names && strcmp(d->id, word) == 0) return k;
            if (names && (strcmp(d->name, word) == 0 || strcmp(d->backend, word) == 0)) return k;
        }
    return -1;
}

/* The column that won most rows; of a file alone, this answers how far the others are behind. */
static int most_wins(const matrix *m) {
    int best = m->n_columns > 1 ? 0 : -1, most = 0, *wins = calloc(MATRIX_COLUMNS, sizeof *wins);
    for (int i = 0; wins && i < m->n_rows; i++)
        if (m->rows[i].best >= 0 && ++wins[m->rows[i].best] > most) {
            most = wins[m->rows[i].best];
            best = m->rows[i].best;
        }
    free(wins);
    return best;
}

static int set_base(matrix *m, const char *word, char *error, size_t error_size) {
    int file = -1, column = -1;
    m->by_base = word || m->n_files > 1;
    if (!word && m->n_files > 1)
        file = 0;
    else if (!word)
        column = most_wins(m);
    else if ((column = named_column(m, word)) < 0 && (file = named_file(m, word)) < 0)
        return text_error(error, error_size,
                          "--base: no device and no file is named '%.80s'; devices are named like "
                          "'%.80s'",
                          word, m->n_columns ? m->columns[0].id : "");
    for (int k = 0; k < m->n_columns; k++) {
        m->columns[k].base = file >= 0 ? alike(m, k, file, word != NULL) : column;
        if (m->columns[k].base == k) m->columns[k].base = -1; /* nothing is compared with itself */
    }
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0; k < m->n_columns; k++) {
            matrix_cell *c = cell_at(m, i, k);
            int b = m->columns[k].base;
            if (b < 0 || c->state != MATRIX_MEASURED) continue;
            const matrix_cell *than = matrix_at(m, i, b);
            if (than->state == MATRIX_MEASURED) c->ratio = compare_columns(m, i, k, b);
        }
    return 0;
}

/* ------------------------------------------------------------------ sums */

static matrix_mean mean_of(const matrix *m, int column, int kind) {
    double sum = 0, low = 0, high = 0;
    matrix_mean mean = {0, 0, {NAN, NAN, NAN, 0}};
    for (int i = 0; i < m->n_rows; i++) {
        const matrix_cell *c = matrix_at(m, i, column);
        if ((kind >= 0 && m->rows[i].kind != kind) || !isfinite(c->ratio.value)) continue;
        sum += log(c->ratio.value);
        low += log(fmax(c->ratio.low, 1e-12));
        high += log(c->ratio.high);
        mean.count++;
        mean.clear += !c->ratio.same;
    }
    if (!mean.count) return mean;
    mean.ratio.value = exp(sum / mean.count);
    mean.ratio.low = exp(low / mean.count);
    mean.ratio.high = exp(high / mean.count);
    mean.ratio.same =
        (mean.ratio.low <= 1 && mean.ratio.high >= 1) || fabs(mean.ratio.value - 1) <= MATRIX_SAME;
    return mean;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static matrix_shares shares_of(const matrix *m, int column, int memory, double *values) {
    matrix_shares s = {0, NAN, NAN};
    for (int i = 0; i < m->n_rows; i++) {
        const matrix_cell *c = matrix_at(m, i, column);
        if ((m->rows[i].kind == MATRIX_DECODE) != memory || c->state != MATRIX_MEASURED ||
            !isfinite(c->of->limit_share))
            continue;
        values[s.count++] = c->of->limit_share;
    }
    if (!s.count) return s;
    qsort(values, (size_t)s.count, sizeof *values, compare_doubles);
    s.worst = values[0];
    s.median = (values[(s.count - 1) / 2] + values[s.count / 2]) / 2;
    return s;
}

static int sum_columns(matrix *m) {
    double *values = calloc((size_t)m->n_rows + 1, sizeof *values);
    if (!values) return -1;
    for (int k = 0; k < m->n_columns; k++) {
        matrix_column *c = &m->columns[k];
        for (int i = 0; i < m->n_rows; i++) {
            const matrix_cell *x = matrix_at(m, i, k);
            if (x->state != MATRIX_MEASURED) continue;
            c->measured++;
            c->contested += m->rows[i].best >= 0;
            c->best += x->place == MATRIX_BEST;
            c->level += x->place == MATRIX_LEVEL;
            if (x->of->spread > c->worst_spread) c->worst_spread = x->of->spread;
        }
        c->mean = mean_of(m, k, -1);
        for (int kind = 0; kind < MATRIX_KINDS; kind++) c->means[kind] = mean_of(m, k, kind);
        c->compute = shares_of(m, k, 0, values);
        c->memory = shares_of(m, k, 1, values);
    }
    free(values);
    return 0;
}

/* ------------------------------------------------------------------ all of it */

static int build(matrix *m, line_index *index, const char *base, char *error, size_t error_size) {
    static const char no_memory[] = "out of memory";
    int status = find_rows(m, index);
    if (status == -2)
        return text_error(error, error_size, "more than %d different problems", MATRIX_ROWS);
    if (status != 0) return text_error(error, error_size, no_memory);
    sort_rows(m, index);
    status = add_columns(m, index);
    if (status == -2)
        return text_error(error, error_size, "more than %d devices and kernels", MATRIX_COLUMNS);
    if (status != 0 || fill_cells(m, index) != 0) return text_error(error, error_size, no_memory);
    tell_names_apart(m);
    if (m->n_files > 1) drop_lonely_rows(m);
    find_winners(m);
    if (set_base(m, base, error, error_size) != 0) return -1;
    return sum_columns(m) == 0 ? 0 : text_error(error, error_size, no_memory);
}

int matrix_build(matrix *m, const bench_report *const *reports, const char *const *paths,
                 int n_files, const char *base, char *error, size_t error_size) {
    line_index index = {NULL, 0};
    memset(m, 0, sizeof *m);
    for (int f = 0; f < n_files && f < MATRIX_FILES; f++) {
        m->reports[f] = reports[f];
        m->paths[f] = paths ? paths[f] : NULL;
        m->n_files++;
    }
    int status = build(m, &index, base, error, error_size);
    free(index.slots);
    if (status != 0) matrix_free(m);
    return status;
}

void matrix_free(matrix *m) {
    free(m->columns);
    free(m->rows);
    free(m->cells);
    memset(m, 0, sizeof *m);
}

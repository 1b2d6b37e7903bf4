/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix as JSON: what `compare --json` writes, and what the page carries: only what its script
 * reads, the cells as lists. Nothing in it can end a script element or a string, whatever a result
 * file holds.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json_fields.h"
#include "matrix_forms.h"
#include "text.h"

#define COLUMN_COUNTS(X) X(base) X(measured) X(contested) X(best) X(level)

/* Where the next member needs a comma before it. */
typedef struct writer {
    FILE *f;
    int any;
} writer;

static void quoted(FILE *f, const char *text) {
    fputc('"', f);
    for (int size; *text; text += size) {
        const unsigned char c = (unsigned char)*text;
        size = text_character(text);
        if (!size) { /* in the path of a file */
            fputs("\\ufffd", f);
            size = 1;
        } else if (c < 0x20 || c == 0x7f || strchr("<>&'", c)) {
            fprintf(f, "\\u%04x", c);
        } else if (strncmp(text, "\xe2\x80\xa8", 3) == 0 || strncmp(text, "\xe2\x80\xa9", 3) == 0) {
            /* Separators of lines that older scripts take for the end of a line. */
            fprintf(f, "\\u202%c", (unsigned char)text[2] == 0xa8 ? '8' : '9');
        } else {
            if (c == '"' || c == '\\') fputc('\\', f);
            fwrite(text, 1, (size_t)size, f);
        }
    }
    fputc('"', f);
}

static void key(writer *w, const char *name) {
    fprintf(w->f, "%s\"%s\":", w->any ? "," : "", name);
    w->any = 1;
}

static void text(writer *w, const char *name, const char *value) {
    key(w, name);
    quoted(w->f, value);
}

static void plain_number(FILE *f, double value) {
    if (isfinite(value))
        fprintf(f, "%.7g", value);
    else
        fputs("null", f);
}

static void number(writer *w, const char *name, double value) {
    key(w, name);
    plain_number(w->f, value);
}

static void whole(writer *w, const char *name, int64_t value) {
    key(w, name);
    fprintf(w->f, "%" PRId64, value);
}

static void truth(writer *w, const char *name, int value) {
    key(w, name);
    fputs(value ? "true" : "false", w->f);
}

static writer open_object(writer *w, const char *name) {
    if (name) key(w, name);
    fputc('{', w->f);
    return (writer){w->f, 0};
}

static void ratio_members(writer *w, const matrix_ratio *r) {
    number(w, "ratio", r->value);
    number(w, "low", r->low);
    number(w, "high", r->high);
    truth(w, "same", r->same);
}

static void mean_object(writer *w, const char *name, const matrix_mean *mean) {
    writer o = open_object(w, name);
    whole(&o, "count", mean->count);
    whole(&o, "differ", mean->clear);
    ratio_members(&o, &mean->ratio);
    fputc('}', w->f);
}

static void shares_object(writer *w, const char *name, const matrix_shares *s) {
    writer o = open_object(w, name);
    whole(&o, "count", s->count);
    number(&o, "median", s->median);
    number(&o, "worst", s->worst);
    fputc('}', w->f);
}

static const char *unit_word(int unit) {
    return unit == BENCH_GEMM ? "gemm" : unit == BENCH_COPY ? "copy" : "read";
}

static void limits_array(writer *w, const bench_device *d) {
    key(w, "limits");
    fputc('[', w->f);
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        writer o = {w->f, 0};
        fputs(i ? ",{" : "{", w->f);
        text(&o, "what", unit_word(c->unit));
        if (c->unit == BENCH_GEMM) text(&o, "dtype", dtype_name(c->dtype));
        number(&o, "rate", c->rate);
        text(&o, "library", c->library);
        truth(&o, "own_loop", c->own_loop);
        if (c->via[0]) text(&o, "via", c->via);
        fputc('}', w->f);
    }
    fputc(']', w->f);
}

/* Limits belong to a device; its first column carries them. */
static int carries_limits(const matrix *m, const matrix_column *c) {
    for (const matrix_column *o = m->columns; o < c; o++)
        if (o->about == c->about) return 0;
    return 1;
}

/* Which column it is. The caller closes the object. */
static writer begin_column(const matrix_column *c, FILE *f) {
    writer w = {f, 0};
    fputc('{', f);
    text(&w, "id", c->id);
    text(&w, "name", c->name);
    whole(&w, "file", c->file);
    text(&w, "device", c->about->name);
    return w;
}

static void column_object(const matrix *m, const matrix_column *c, FILE *f) {
    writer w = begin_column(c, f);
    text(&w, "backend", c->about->backend);
    text(&w, "kind", c->about->kind);
    text(&w, "driver", c->about->driver);
    number(&w, "compute_units", c->about->compute_units);
    text(&w, "kernels", c->kernels);
    if (c->peer[0]) text(&w, "peer", c->peer);
#define COUNT(field) whole(&w, #field, c->field);
    COLUMN_COUNTS(COUNT)
    number(&w, "worst_spread", c->worst_spread);
    mean_object(&w, "mean", &c->mean);
    writer means = open_object(&w, "means");
    for (int kind = 0; kind < MATRIX_KINDS; kind++)
        if (c->means[kind].count) mean_object(&means, matrix_kind_word(kind), &c->means[kind]);
    fputc('}', f);
    shares_object(&w, "compute", &c->compute);
    shares_object(&w, "memory", &c->memory);
    if (carries_limits(m, c)) limits_array(&w, c->about);
    fputc('}', f);
}

static void cell_members(writer *w, const matrix_cell *c) {
    static const char *const places[] = {"behind", "best", "level"};
    const bench_result *x = c->of;
    text(w, "kernel", x->kernel);
    number(w, "median", x->median);
    number(w, "q1", x->q1);
    number(w, "q3", x->q3);
    number(w, "spread", x->spread);
    if (x->noisy) truth(w, "noisy", 1);
    if (x->suspect) truth(w, "suspect", 1);
    if (x->above_limit) truth(w, "above_limit", 1);
    number(w, "rate", c->rate);
    number(w, "limit_share", x->limit_share);
    if (isfinite(x->speedup)) {
        number(w, "speedup", x->speedup);
        number(w, "speedup_low", x->speedup_low);
        number(w, "speedup_high", x->speedup_high);
    }
    if (c->limit) text(w, "limit", unit_word(c->limit->unit));
    if (isfinite(c->behind)) {
        text(w, "place", places[c->place]);
        number(w, "behind", c->behind);
    }
    if (isfinite(c->ratio.value)) {
        writer o = open_object(w, "to_base");
        ratio_members(&o, &c->ratio);
        fputc('}', w->f);
    }
    number(w, "plan_seconds", x->plan_seconds);
    number(w, "first_seconds", x->first_seconds);
    if (isfinite(x->compile_seconds)) number(w, "compile_seconds", x->compile_seconds);
    number(w, "workspace_bytes", (double)x->workspace_bytes);
    if (isfinite(x->joules)) number(w, "joules", x->joules);
}

static void cell_object(const matrix_cell *c, FILE *f) {
    writer w = {f, 0};
    if (!c->of) {
        fputs("null", f);
        return;
    }
    fputc('{', f);
    text(&w, "status", status_word(c->of->status));
    if (c->state == MATRIX_MEASURED) {
        cell_members(&w, c);
    } else {
        if (c->of->need_seconds > 0) {
            number(&w, "need_seconds", c->of->need_seconds);
            number(&w, "estimate_seconds", c->of->estimate_seconds);
        }
        text(&w, "note", c->of->note);
    }
    fputc('}', f);
}

/* What the page's script asks about a row. */
static void row_members(writer *w, const matrix_row *row) {
    const bench_result *x = row->shape;
    text(w, "name", row->name);
    text(w, "detail", row->detail);
    text(w, "kind", matrix_kind_word(row->kind));
    whole(w, "group", row->group);
    text(w, "problem", x->line);
    text(w, "pattern", x->pattern);
    text(w, "dtype", dtype_name(x->dtype));
    number(w, "ideal_speedup", x->twin_line[0] ? x->ideal_speedup : NAN);
    number(w, "intensity", x->bytes_min ? x->flops / (double)x->bytes_min : NAN);
    text(w, "unit", matrix_kind_unit(row->kind));
}

static void row_object(const matrix *m, int i, FILE *f) {
    const matrix_row *row = &m->rows[i];
    const bench_result *x = row->shape;
    writer w = {f, 0};
    fputc('{', f);
    row_members(&w, row);
#define SIZE(field) whole(&w, #field, x->field);
    RESULT_SIZES(SIZE)
    RESULT_HEADS(SIZE)
    whole(&w, "best", row->best);
    key(&w, "cells");
    for (int k = 0; k < m->n_columns; k++) {
        fputs(k ? ",\n" : "[\n", f);
        cell_object(matrix_at(m, i, k), f);
    }
    fputs("]}", f);
}

static void file_object(const matrix *m, int i, FILE *f) {
    const bench_report *r = m->reports[i];
    writer w = {f, 0};
    fputc('{', f);
    if (m->paths[i]) text(&w, "path", m->paths[i]);
    text(&w, "created", r->created);
    text(&w, "suite", r->suite);
    text(&w, "version", r->library_version);
    if (r->commit[0]) text(&w, "commit", r->commit);
    text(&w, "cpu", r->machine.cpu);
    text(&w, "os", r->machine.os);
    number(&w, "other_load", r->machine.other_load);
    truth(&w, "complete", r->complete);
    truth(&w, "changed", r->changed);
    whole(&w, "alone", m->alone[i]);
    fputc('}', f);
}

static void begin_matrix(const matrix *m, const char *schema, FILE *f) {
    fprintf(f, "{\"schema\":\"%s\",\"schema_version\":1,\n\"by_base\":%s,\n\"files\":[", schema,
            m->by_base ? "true" : "false");
    for (int i = 0; i < m->n_files; i++) {
        fputs(i ? ",\n" : "\n", f);
        file_object(m, i, f);
    }
    fputs("],\n\"columns\":[", f);
}

void matrix_json(const matrix *m, FILE *f) {
    begin_matrix(m, "tessera-compare", f);
    for (int k = 0; k < m->n_columns; k++) {
        fputs(k ? ",\n" : "\n", f);
        column_object(m, &m->columns[k], f);
    }
    fputs("],\n\"rows\":[", f);
    for (int i = 0; i < m->n_rows; i++) {
        fputs(i ? ",\n" : "\n", f);
        row_object(m, i, f);
    }
    fputs("]}\n", f);
}

/* ------------------------------------------------------------------ of the page */

/* Kernels by their first cell: a list of names, to which cells refer. */
typedef struct kernel_list {
    const char **names;
    int n;
} kernel_list;

static int kernel_index(kernel_list *list, const char *name) {
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->names[i], name) == 0) return i;
    list->names[list->n] = name;
    return list->n++;
}

static void brief_column(const matrix *m, const matrix_column *c, FILE *f) {
    writer w = begin_column(c, f);
    if (c->peer[0]) text(&w, "peer", c->peer);
    whole(&w, "at", c->device);
    if (c->about->drift > 0) number(&w, "drift", c->about->drift);
    if (carries_limits(m, c)) {
        key(&w, "limits");
        for (int i = 0; i < c->about->n_ceilings; i++) {
            const bench_ceiling *limit = &c->about->ceilings[i];
            writer o = {f, 0};
            fputs(i ? ",{" : "[{", f);
            text(&o, "what", unit_word(limit->unit));
            if (limit->unit == BENCH_GEMM) text(&o, "dtype", dtype_name(limit->dtype));
            number(&o, "rate", limit->rate);
            if (limit->via[0]) truth(&o, "via", 1);
            fputc('}', f);
        }
        fputs(c->about->n_ceilings ? "]" : "[]", f);
    }
    fputc('}', f);
}

/* A time with what belongs to it as a list, in the order of BRIEF_FIELDS; what there is no time for
 * as an object; nothing as null. */
#define BRIEF_FIELDS                                                                             \
    "[\"kernel\",\"median\",\"q1\",\"q3\",\"rate\",\"limit_share\",\"speedup\",\"speedup_low\"," \
    "\"speedup_high\"]"

static void brief_cell(const matrix_cell *c, kernel_list *kernels, FILE *f) {
    const bench_result *x = c->of;
    if (!x) {
        fputs("null", f);
    } else if (c->state == MATRIX_MEASURED) {
        const double numbers[] = {x->median,      x->q1,      x->q3,          c->rate,
                                  x->limit_share, x->speedup, x->speedup_low, x->speedup_high};
        /* Times are compared; shares and ratios are only shown. */
        enum { EXACT = 4 };
        const int n = isfinite(x->speedup) ? 8 : 5;
        fprintf(f, "[%d", kernel_index(kernels, x->kernel));
        for (int i = 0; i < n; i++)
            if (isfinite(numbers[i]))
                fprintf(f, i < EXACT ? ",%.6g" : ",%.4g", numbers[i]);
            else
                fputs(",null", f);
        fputc(']', f);
    } else {
        writer w = {f, 0};
        fputc('{', f);
        text(&w, "status", status_word(x->status));
        if (x->need_seconds > 0) number(&w, "estimate_seconds", x->estimate_seconds);
        fputc('}', f);
    }
}

static void brief_row(const matrix *m, int i, kernel_list *kernels, FILE *f) {
    writer w = {f, 0};
    fputc('{', f);
    row_members(&w, &m->rows[i]);
    whole(&w, "kv_len", m->rows[i].shape->kv_len);
    key(&w, "cells");
    for (int k = 0; k < m->n_columns; k++) {
        fputc(k ? ',' : '[', f);
        brief_cell(matrix_at(m, i, k), kernels, f);
    }
    fputs("]}", f);
}

int matrix_brief_json(const matrix *m, FILE *f) {
    kernel_list kernels = {calloc((size_t)m->n_rows * (size_t)m->n_columns + 1, sizeof(char *)), 0};
    if (!kernels.names) return -1;
    begin_matrix(m, "tessera-page", f);
    for (int k = 0; k < m->n_columns; k++) {
        fputs(k ? ",\n" : "\n", f);
        brief_column(m, &m->columns[k], f);
    }
    fputs("],\n\"fields\":" BRIEF_FIELDS ",\n\"rows\":[", f);
    for (int i = 0; i < m->n_rows; i++) {
        fputs(i ? ",\n" : "\n", f);
        brief_row(m, i, &kernels, f);
    }
    fputs("],\n\"kernels\":[", f);
    for (int i = 0; i < kernels.n; i++) {
        fputs(i ? "," : "", f);
        quoted(f, kernels.names[i]);
    }
    fputs("]}\n", f);
    free(kernels.names);
    return 0;
}

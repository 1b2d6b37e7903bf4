/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix_forms.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "report.h"
#include "table.h"
#include "text.h"

static const char legend[] =
    "Median times; the share is of the limit measured on that device: products, or memory for "
    "decode.\n* fastest of its row, = no difference from the fastest (quartile ranges overlap, or "
    "within 2%),\n! the quartiles lie more than 10% apart, or the GPU's clock rose by as much, ? "
    "faster\nthan ideal, or than the limit, by more than the spread.\n";

/* ------------------------------------------------------------------ lines */

void matrix_file_line(const matrix *m, int file, char *text, size_t size) {
    const bench_report *r = m->reports[file];
    char shown[TEXT_PATH], letter[8] = "", version[128];
    if (m->n_files > 1) snprintf(letter, sizeof letter, "%c = ", 'A' + file);
    snprintf(text, size, "%s%s%sTessera %s, suite %.60s, %.100s, %.100s, %s", letter,
             m->paths[file] ? text_path(shown, m->paths[file]) : "", m->paths[file] ? ": " : "",
             report_version(r, version, sizeof version), r->suite, r->machine.cpu, r->machine.os,
             r->created);
    cli_one_line(text);
}

void matrix_file_warning(const matrix *m, int file, char *text, size_t size) {
    const bench_report *r = m->reports[file];
    char other[256], letter[8] = "";
    if (m->n_files > 1) snprintf(letter, sizeof letter, "%c: ", 'A' + file);
    const int disturbed = report_disturbed(r, other, sizeof other);
    if (size) text[0] = 0;
    if (!r->changed && r->complete && !disturbed) return;
    snprintf(text, size, "%s%s%s%s%s%s", letter,
             r->changed ? "The file was changed after it was written: its checksum is wrong." : "",
             r->changed && !r->complete ? " " : "", r->complete ? "" : "The run was interrupted.",
             disturbed && (r->changed || !r->complete) ? " " : "", other);
}

const char *matrix_ratio_text(const matrix_ratio *r, char *buffer, size_t size) {
    if (!isfinite(r->value))
        snprintf(buffer, size, "%s", "");
    else if (r->same)
        snprintf(buffer, size, "no difference");
    else
        short_ratio(buffer, size, r->value);
    return buffer;
}

static void put(char *text, size_t size, const char *more) {
    size_t used = strlen(text);
    if (used < size) snprintf(text + used, size - used, "%s", more);
}

void matrix_column_line(const matrix *m, int column, char *text, size_t size) {
    const matrix_column *c = &m->columns[column];
    char part[480], a[24], b[24], low[24], high[24];
    snprintf(text, size, "%s: %d measured", c->name, c->measured);
    if (c->contested) {
        snprintf(part, sizeof part, ", fastest in %d of %d", c->best, c->contested);
        put(text, size, part);
        if (c->level) {
            snprintf(part, sizeof part, " and level in %d", c->level);
            put(text, size, part);
        }
    }
    if (c->compute.count) {
        snprintf(part, sizeof part, "; %s of products in the median, %s at worst",
                 short_percent(a, sizeof a, c->compute.median),
                 short_percent(b, sizeof b, c->compute.worst));
        put(text, size, part);
    }
    if (c->memory.count) {
        snprintf(part, sizeof part, "; decode %s of memory, %s at worst",
                 short_percent(a, sizeof a, c->memory.median),
                 short_percent(b, sizeof b, c->memory.worst));
        put(text, size, part);
    }
    if (!c->mean.count) return;
    const matrix_ratio *r = &c->mean.ratio;
    snprintf(part, sizeof part,
             "; %s (%s .. %s) against %.120s over %d common problem%s, %d of which differ%s",
             short_ratio(a, sizeof a, r->value), short_ratio(low, sizeof low, r->low),
             short_ratio(high, sizeof high, r->high), matrix_base_name(m, column), c->mean.count,
             c->mean.count == 1 ? "" : "s", c->mean.clear, r->same ? ": no difference" : "");
    put(text, size, part);
}

/* "A alone has 5 problems, which are left out." */
static void lonely_lines(const matrix *m, const char *bullet, FILE *f) {
    for (int i = 0; i < m->n_files; i++)
        if (m->alone[i])
            fprintf(f, "%s%d of the problems are in %c alone and left out.\n", bullet, m->alone[i],
                    'A' + i);
}

/* ------------------------------------------------------------------ text */

static const char *mark_of(const matrix_cell *c) {
    return c->place == MATRIX_BEST ? "* " : c->place == MATRIX_LEVEL ? "= " : "";
}

static void text_cells(table *t, const matrix *m, const matrix_cell *c) {
    char a[TEXT_SIZE], b[24];
    if (c->state != MATRIX_MEASURED) {
        table_cell(t, "%s", matrix_why(c, a, sizeof a));
        table_cell(t, "%s", "");
    } else {
        table_cell(t, "%s%s%s%s", mark_of(c), text_seconds(a, sizeof a, c->of->median),
                   c->of->noisy ? "!" : "", c->of->suspect ? "?" : "");
        table_cell(t, "%s%s", short_percent(b, sizeof b, c->of->limit_share),
                   c->of->above_limit ? "?" : "");
    }
    if (!m->by_base) return;
    if (isfinite(c->ratio.value))
        table_cell(t, "%s%s", c->ratio.same ? "~ " : "", short_ratio(b, sizeof b, c->ratio.value));
    else
        table_cell(t, "%s", "");
}

/* Rows of one kind in so many of the columns from `first` on. */
static void text_block(const matrix *m, int kind, int first, int n, FILE *f) {
    const char *heads[2 + 3 * MATRIX_COLUMNS] = {"<", "<"};
    table t;
    int at = 2;
    for (int k = first; k < first + n; k++) {
        heads[at++] = m->columns[k].head;
        heads[at++] = "limit";
        if (m->by_base) heads[at++] = m->columns[k].base >= 0 ? "ratio" : "";
    }
    table_init(&t, at, heads);
    for (int i = 0; i < m->n_rows; i++) {
        if (m->rows[i].kind != kind) continue;
        table_cell(&t, "%s", m->rows[i].name);
        table_cell(&t, "%s", m->rows[i].detail);
        for (int k = first; k < first + n; k++) text_cells(&t, m, matrix_at(m, i, k));
    }
    if (t.n_cells) {
        fprintf(f, "\n%s\n", matrix_kind_name(kind));
        table_text(&t, f);
    }
    table_free(&t);
}

static int any_of_kind(const matrix *m, int kind) {
    for (int i = 0; i < m->n_rows; i++)
        if (m->rows[i].kind == kind) return 1;
    return 0;
}

void matrix_text_tables(const matrix *m, FILE *f) {
    const int beside = 3;
    char line[1024], units[32];
    for (int k = 0; k < m->n_columns; k++)
        fprintf(f, "%s: %s%s%s%s%s\n", m->columns[k].id, m->columns[k].name,
                device_units(m->columns[k].about, units, sizeof units)[0] ? ", " : "", units,
                m->columns[k].kernels[0] ? ", " : "", m->columns[k].kernels);
    for (int first = 0; first < m->n_columns; first += beside)
        for (int kind = 0; kind < MATRIX_KINDS; kind++)
            if (any_of_kind(m, kind))
                text_block(m, kind, first,
                           m->n_columns - first < beside ? m->n_columns - first : beside, f);
    fprintf(f, "\n%s", legend);
    if (m->by_base)
        fputs("ratio: how many times faster than the base; ~ no difference from it.\n", f);
    fputc('\n', f);
    lonely_lines(m, "", f);
    for (int k = 0; k < m->n_columns; k++) {
        matrix_column_line(m, k, line, sizeof line);
        fprintf(f, "%s\n", line);
    }
}

void matrix_text(const matrix *m, FILE *f) {
    char line[1024];
    for (int i = 0; i < m->n_files; i++) {
        matrix_file_line(m, i, line, sizeof line);
        fprintf(f, "%s\n", line);
        matrix_file_warning(m, i, line, sizeof line);
        if (line[0]) fprintf(f, "%s\n", line);
    }
    matrix_text_tables(m, f);
}

/* ------------------------------------------------------------------ Markdown */

static void markdown_cell(const matrix *m, const matrix_cell *c, int kind, FILE *f) {
    char a[TEXT_SIZE], b[TEXT_SIZE], ratio[32];
    if (c->state != MATRIX_MEASURED) {
        write_markdown_escaped(f, matrix_why(c, a, sizeof a));
        return;
    }
    const char *bold = c->place == MATRIX_BEHIND ? "" : "**";
    fprintf(f, "%s%s%s%s%s, %s", bold, text_seconds(a, sizeof a, c->of->median), bold,
            c->of->noisy ? "!" : "", c->of->suspect ? "?" : "",
            text_rate(b, sizeof b, c->rate, matrix_kind_unit(kind)));
    if (isfinite(c->of->limit_share))
        fprintf(f, ", %s%s", short_percent(a, sizeof a, c->of->limit_share),
                c->of->above_limit ? "?" : "");
    if (m->by_base && isfinite(c->ratio.value))
        fprintf(f, ", %s", matrix_ratio_text(&c->ratio, ratio, sizeof ratio));
}

void matrix_markdown_tables(const matrix *m, FILE *f) {
    char line[1024];
    for (int kind = 0; kind < MATRIX_KINDS; kind++) {
        if (!any_of_kind(m, kind)) continue;
        fprintf(f, "\n## %s\n\n| problem |", matrix_kind_name(kind));
        for (int k = 0; k < m->n_columns; k++) {
            fputc(' ', f);
            write_markdown_escaped(f, m->columns[k].name);
            fputs(" |", f);
        }
        fputs("\n| --- |", f);
        for (int k = 0; k < m->n_columns; k++) fputs(" ---: |", f);
        fputc('\n', f);
        for (int i = 0; i < m->n_rows; i++) {
            if (m->rows[i].kind != kind) continue;
            fputs("| ", f);
            snprintf(line, sizeof line, "%s, %s", m->rows[i].name, m->rows[i].detail);
            write_markdown_escaped(f, line);
            fputs(" |", f);
            for (int k = 0; k < m->n_columns; k++) {
                fputc(' ', f);
                markdown_cell(m, matrix_at(m, i, k), kind, f);
                fputs(" |", f);
            }
            fputc('\n', f);
        }
    }
    fputs("\nMedian time, useful rate, share of the limit measured on that device (products, or "
          "memory for decode)",
          f);
    fputs(m->by_base ? ", times faster than the base. " : ". ", f);
    fputs("Bold: fastest of its row, or no difference from the fastest; !: quartiles more than 10% "
          "apart, or the GPU's clock rose by as much; ?: faster than ideal, or than the limit, by "
          "more than the spread.\n\n",
          f);
    lonely_lines(m, "- ", f);
    for (int k = 0; k < m->n_columns; k++) {
        matrix_column_line(m, k, line, sizeof line);
        fputs("- ", f);
        write_markdown_escaped(f, line);
        fputc('\n', f);
    }
}

void matrix_markdown(const matrix *m, FILE *f) {
    char line[1024];
    fputs("# Tessera compare\n\n", f);
    for (int i = 0; i < m->n_files; i++) {
        matrix_file_line(m, i, line, sizeof line);
        fputs("- ", f);
        write_markdown_escaped(f, line);
        fputc('\n', f);
        matrix_file_warning(m, i, line, sizeof line);
        if (line[0]) fprintf(f, "- **%s**\n", line);
    }
    matrix_markdown_tables(m, f);
}

/* ------------------------------------------------------------------ CSV */

/* Text in quotes; quotes are doubled. What a spreadsheet would compute stays text. */
static void csv_last(FILE *f, const char *text) {
    fputc('"', f);
    if (text[0] && strchr("=+-@", text[0]) && text[1]) fputc('\'', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static void csv_text(FILE *f, const char *text) {
    csv_last(f, text);
    fputc(',', f);
}

static void csv_number(FILE *f, double value) {
    if (isfinite(value)) fprintf(f, "%.9g", value);
    fputc(',', f);
}

void matrix_csv(const matrix *m, FILE *f) {
    static const char *const places[] = {"", "best", "level"};
    fputs("kind,name,detail,file,device,device_name,backend,peer,status,kernel,median_seconds,"
          "q1_seconds,q3_seconds,rate,rate_unit,limit_share,limit,place,behind,base,ratio,"
          "ratio_low,ratio_high,no_difference,noisy,suspect,above_limit,need_seconds,problem\n",
          f);
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            const matrix_column *column = &m->columns[k];
            const bench_result *x = c->of;
            const int ok = c->state == MATRIX_MEASURED;
            if (!x) continue;
            csv_text(f, matrix_kind_word(m->rows[i].kind));
            csv_text(f, m->rows[i].name);
            csv_text(f, m->rows[i].detail);
            csv_text(f, m->paths[column->file] ? m->paths[column->file] : "");
            csv_text(f, column->about->id);
            csv_text(f, column->about->name);
            csv_text(f, column->about->backend);
            csv_text(f, x->peer);
            csv_text(f, status_word(x->status));
            csv_text(f, x->kernel);
            csv_number(f, ok ? x->median : NAN);
            csv_number(f, ok ? x->q1 : NAN);
            csv_number(f, ok ? x->q3 : NAN);
            csv_number(f, c->rate);
            csv_text(f, matrix_kind_unit(m->rows[i].kind));
            csv_number(f, ok ? x->limit_share : NAN);
            csv_text(f, c->limit ? c->limit->library : "");
            csv_text(f, ok ? places[c->place] : "");
            csv_number(f, c->behind);
            csv_text(f, column->base >= 0 ? m->columns[column->base].id : "");
            csv_number(f, c->ratio.value);
            csv_number(f, c->ratio.low);
            csv_number(f, c->ratio.high);
            fprintf(f, "%s,%d,%d,%d,", isfinite(c->ratio.value) ? c->ratio.same ? "1" : "0" : "",
                    ok && x->noisy, ok && x->suspect, ok && x->above_limit);
            csv_number(f, x->need_seconds > 0 ? x->need_seconds : NAN);
            csv_last(f, x->line);
            fputc('\n', f);
        }
}

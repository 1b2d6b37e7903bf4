/* SPDX-License-Identifier: Apache-2.0 */
#include "page_matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "matrix_forms.h"
#include "report.h"
#include "table.h"
#include "text.h"

/* ------------------------------------------------------------------ devices */

void page_shapes(FILE *f) {
    static const char *const shapes[PAGE_SHAPES] = {
        "<circle r=\"5\"/>",
        "<rect x=\"-4.5\" y=\"-4.5\" width=\"9\" height=\"9\"/>",
        "<path d=\"M0-6 5.7 4.5H-5.7z\"/>",
        "<path d=\"M0-6.2 6.2 0 0 6.2-6.2 0z\"/>",
        "<path d=\"M0 6-5.7-4.5H5.7z\"/>",
        "<path d=\"M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z\"/>",
        "<path d=\"M0-6.5 1.7-2 6.2-2 2.6.9 3.9 5.5 0 2.8-3.9 5.5-2.6.9-6.2-2-1.7-2z\"/>",
        "<path d=\"M-3-5.5H3L6 0 3 5.5H-3L-6 0z\"/>",
    };
    fputs("<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs "
          "id=\"shapes\">\n",
          f);
    for (int i = 0; i < PAGE_SHAPES; i++) fprintf(f, "<g id=\"s%d\">%s</g>\n", i, shapes[i]);
    fputs("</defs></svg>\n", f);
}

/* Two columns of one colour differ in shape, and those of one shape in colour. */
int page_shape(int column) { return (column + column / PAGE_COLOURS) % PAGE_SHAPES; }

void page_key(int column, FILE *f) {
    fprintf(f, "<svg class=\"key k%d\" viewBox=\"-6.5 -6.5 13 13\"><use href=\"#s%d\"/></svg> ",
            column % PAGE_COLOURS, page_shape(column));
}

/* The best limit of a device for products, or for memory. */
static void limit_cell(const bench_device *d, int products, FILE *f) {
    char rate[TEXT_SIZE];
    int best = -1;
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        if ((c->unit == BENCH_GEMM) == products && (best < 0 || c->rate > d->ceilings[best].rate))
            best = i;
    }
    fprintf(f, "<td class=\"l\" data-n=\"limit of %s\">", products ? "products" : "memory");
    if (best < 0) {
        fputs("none measured</td>", f);
        return;
    }
    const bench_ceiling *c = &d->ceilings[best];
    fprintf(f, "<span>%s <small>",
            text_rate(rate, sizeof rate, c->rate, products ? "FLOP/s" : "B/s"));
    if (products) fprintf(f, "%s, ", dtype_name(c->dtype));
    write_html_escaped(f, c->library);
    if (!products) fputs(c->unit == BENCH_READ ? ", reading" : ", copying", f);
    if (c->via[0]) {
        fputs(", through ", f);
        write_html_escaped(f, c->via);
    }
    fputs("</small></span></td>", f);
}

static void shares_cell(const matrix_shares *s, const char *what, FILE *f) {
    char a[24], b[24];
    fprintf(f, "<td data-n=\"%s, of its limit\">", what);
    if (s->count)
        fprintf(f, "<span><b>%s</b> <small>worst %s</small></span></td>",
                short_percent(a, sizeof a, s->median), short_percent(b, sizeof b, s->worst));
    else
        fputs("\xe2\x80\x93</td>", f);
}

static int is_base(const matrix *m, const matrix_column *c) {
    for (int k = 0; k < m->n_columns; k++)
        if (m->columns[k].base == c - m->columns) return 1;
    return 0;
}

static void mean_cell(const matrix *m, const matrix_column *c, FILE *f) {
    const matrix_ratio *r = &c->mean.ratio;
    char a[24], low[24], high[24];
    if (c->base < 0) {
        fprintf(f, "<td data-n=\"speed\">%s</td>", is_base(m, c) ? "base" : "\xe2\x80\x93");
    } else if (!c->mean.count) {
        fputs("<td data-n=\"speed\">nothing in common</td>", f);
    } else {
        fprintf(f, "<td data-n=\"speed\"><span><b>%s</b> <small>%s%s to %s, %d common",
                short_ratio(a, sizeof a, r->value), r->same ? "no difference: " : "",
                short_ratio(low, sizeof low, r->low), short_ratio(high, sizeof high, r->high),
                c->mean.count);
        if (m->by_base) {
            fputs(", against ", f);
            write_html_escaped(f, m->columns[c->base].name);
        }
        fputs("</small></span></td>", f);
    }
}

void page_devices(const matrix *m, FILE *f) {
    char units[32];
    int base = -1;
    for (int k = 0; k < m->n_columns; k++)
        if (m->columns[k].base >= 0) base = m->columns[k].base;
    fputs("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Devices\"><table "
          "class=\"devices\"><thead><tr><th class=\"l\" scope=\"col\">device</th><th "
          "scope=\"col\">fastest in</th><th scope=\"col\">speed",
          f);
    if (!m->by_base && base >= 0) {
        fputs(" against ", f);
        write_html_escaped(f, m->columns[base].name);
    }
    fputs("<small> geometric mean</small></th><th scope=\"col\">prefill, of its limit<small> "
          "median</small></th><th scope=\"col\">decode, of its limit<small> median</small></th><th "
          "class=\"l\" scope=\"col\">limit of products</th><th class=\"l\" scope=\"col\">limit of "
          "memory</th><th class=\"l\" scope=\"col\">kernels</th></tr></thead><tbody>\n",
          f);
    for (int k = 0; k < m->n_columns; k++) {
        const matrix_column *c = &m->columns[k];
        fprintf(f, "<tr data-c=\"%d\"><th class=\"l\" scope=\"row\">", k);
        page_key(k, f);
        write_html_escaped(f, c->name);
        device_units(c->about, units, sizeof units);
        fprintf(f, " <small>%s%s%s</small>", units, units[0] && c->software ? ", " : "",
                c->software ? "software" : "");
        fputs("</th><td data-n=\"fastest in\"><span>", f);
        if (c->contested)
            fprintf(f, "<b>%d</b> of %d", c->best, c->contested);
        else
            fputs("\xe2\x80\x93", f);
        if (c->level) fprintf(f, " <small>level in %d</small>", c->level);
        fputs("</span></td>", f);
        mean_cell(m, c, f);
        shares_cell(&c->compute, "prefill", f);
        shares_cell(&c->memory, "decode", f);
        limit_cell(c->about, 1, f);
        limit_cell(c->about, 0, f);
        fputs("<td class=\"l\" data-n=\"kernels\"><small>", f);
        write_html_escaped(f, c->kernels);
        fputs("</small></td></tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}

/* ------------------------------------------------------------------ matrix */

/* What a fastest, level or slower time is called. The script says the same of what is shown. */
static void tag(const matrix_cell *c, FILE *f) {
    fputs("<span class=\"tag\">", f);
    if (c->place == MATRIX_BEST)
        fputs("\xe2\x98\x85 fastest", f);
    else if (c->place == MATRIX_LEVEL)
        fputs("\xe2\x89\x88 level", f);
    else if (isfinite(c->behind))
        fprintf(f, c->behind < 9.95 ? "%.2f\xc3\x97" : "%.0f\xc3\x97", c->behind);
    fputs("</span>", f);
}

/* With spaces at which no line ends. */
static void unbroken(const char *text, FILE *f) {
    for (; *text; text++) fputs(*text == ' ' ? "\xc2\xa0" : (char[2]){*text}, f);
}

/* One more value of a cell. `attributes` NULL: nothing is wrong with it. */
static void flagged(const char *text, const char *attributes, FILE *f) {
    fputs("\xc2\xa0\xc2\xb7 ", f); /* a line of a narrow cell does not begin with the dot */
    if (attributes) fprintf(f, "<span class=\"flag\"%s>", attributes);
    unbroken(text, f);
    if (attributes) fputs("</span>", f);
}

static void measured_cell(const matrix *m, const matrix_row *row, const matrix_cell *c, FILE *f) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    const bench_result *x = c->of;
    tag(c, f);
    fprintf(f, "<b>%s</b><small>", text_seconds(a, sizeof a, x->median));
    unbroken(text_rate(b, sizeof b, c->rate, matrix_kind_unit(row->kind)), f);
    if (isfinite(x->limit_share))
        flagged(short_percent(a, sizeof a, x->limit_share),
                x->above_limit
                    ? " title=\"more than the limit by more than both spreads: one of both "
                      "was disturbed, or a cache helped\""
                    : NULL,
                f);
    snprintf(b, sizeof b, "IQR %s", short_percent(a, sizeof a, x->spread));
    flagged(b, x->spread > BENCH_NOISY ? "" : NULL, f);
    if (x->noisy && !(x->spread > BENCH_NOISY))
        fputs(" <span class=\"flag\" title=\"the GPU's clock rose while this was timed\">"
              "warming</span>",
              f);
    if (x->suspect)
        fputs(" <span class=\"flag\" title=\"faster than ideal by more than the "
              "spread\">suspect</span>",
              f);
    if (x->above_limit) fputs(" <span class=\"flag\">above the limit</span>", f);
    fputs("</small>", f);
    if (m->by_base && isfinite(c->ratio.value))
        fprintf(f, "<small class=\"ratio\">%s%s</small>", matrix_ratio_text(&c->ratio, a, sizeof a),
                c->ratio.same ? "" : " base");
}

static void matrix_row_html(const matrix *m, int i, FILE *f) {
    const matrix_row *row = &m->rows[i];
    char text[TEXT_SIZE];
    fprintf(f, "<tr data-r=\"%d\"><th scope=\"row\"><b>", i);
    write_html_escaped(f, row->name);
    fputs("</b><small>", f);
    write_html_escaped(f, row->detail);
    fputs("</small></th>", f);
    for (int k = 0; k < m->n_columns; k++) {
        static const char *const places[] = {"", "best", "level"};
        const matrix_cell *c = matrix_at(m, i, k);
        const char *place = c->state == MATRIX_MEASURED ? places[c->place] : "none";
        fputs("<td", f);
        if (place[0]) fprintf(f, " class=\"%s\"", place);
        if (c->state == MATRIX_MEASURED && isfinite(c->behind))
            fprintf(f, " style=\"--w:%.1f%%\"", 100 / c->behind);
        if (c->of && c->state != MATRIX_MEASURED && c->of->note[0]) {
            fputs(" title=\"", f);
            write_html_escaped(f, c->of->note);
            fputs("\"", f);
        }
        fputs(">", f);
        if (c->state == MATRIX_MEASURED)
            measured_cell(m, row, c, f);
        else
            write_html_escaped(f, c->of ? matrix_why(c, text, sizeof text) : "\xe2\x80\x93");
        fputs("</td>", f);
    }
    fputs("</tr>\n", f);
}

/* A text as CSS quotes it. Nothing in it can end the string, or the element. */
static void css_string(const char *text, FILE *f) {
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < ' ' || *c == 0x7f || strchr("\"\\<>&", *c))
            fprintf(f, "\\%x ", *c);
        else
            fputc(*c, f);
    fputc('"', f);
}

/* Where a narrow screen shows cells below each other, each begins with its device's name. */
static void cell_names(const matrix *m, FILE *f) {
    fputs("<style>\n@media screen and (max-width: 719px) {\n", f);
    for (int k = 0; k < m->n_columns; k++) {
        fprintf(f, "#matrix td:nth-child(%d)::before { content: ", k + 2);
        css_string(m->columns[k].name, f);
        fputs("; }\n", f);
    }
    fputs("}\n</style>\n", f);
}

static int any_of_kind(const matrix *m, int kind) {
    for (int i = 0; i < m->n_rows; i++)
        if (m->rows[i].kind == kind) return 1;
    return 0;
}

void page_matrix(const matrix *m, FILE *f) {
    static const char *const limits[MATRIX_KINDS] = {
        "useful FLOP/s, share of the limit of matrix products",
        "new tokens after a cache; useful FLOP/s, share of the limit of matrix products",
        "backward pass; useful FLOP/s, share of the limit of matrix products",
        "time a token in one layer; bytes a second, share of the limit of memory"};
    cell_names(m, f);
    fprintf(
        f,
        "<div class=\"wide stack\"><table id=\"matrix\"%s>\n<caption>Median times. "
        "\xe2\x98\x85 the fastest of its row; \xe2\x89\x88 no difference from it (quartile "
        "ranges overlap, or within 2%%); 2.00\xc3\x97 takes twice as long. Below: useful rate, "
        "share of the device's own limit, distance of the quartiles (IQR).</caption>\n<thead><tr>"
        "<th scope=\"col\">Shape</th>",
        m->n_columns > 6 ? " class=\"many\"" : "");
    for (int k = 0; k < m->n_columns; k++) {
        const matrix_column *c = &m->columns[k];
        fprintf(f, "<th scope=\"col\" data-c=\"%d\">", k);
        page_key(k, f);
        write_html_escaped(f, c->name);
        if (c->contested)
            fprintf(f, "<small>fastest in <span>%d of %d</span></small>", c->best, c->contested);
        fputs("</th>", f);
    }
    fputs("</tr></thead>\n", f);
    for (int kind = 0; kind < MATRIX_KINDS; kind++) {
        if (!any_of_kind(m, kind)) continue;
        fprintf(f,
                "<tbody data-kind=\"%s\"><tr class=\"kind\"><th scope=\"rowgroup\" "
                "colspan=\"%d\">%s<small>%s</small></th></tr>\n",
                matrix_kind_word(kind), m->n_columns + 1, matrix_kind_name(kind), limits[kind]);
        for (int i = 0; i < m->n_rows; i++)
            if (m->rows[i].kind == kind) matrix_row_html(m, i, f);
        fputs("</tbody>\n", f);
    }
    fputs("</table></div>\n", f);
    for (int i = 0; i < m->n_files; i++)
        if (m->alone[i])
            fprintf(f,
                    "<p class=\"small muted\">%d problems are in file %c alone and have no "
                    "row.</p>\n",
                    m->alone[i], 'A' + i);
}

/* ------------------------------------------------------------------ bars */

int page_bars(const matrix *m, int decode, FILE *f) {
    double most = 0;
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0; k < m->n_columns; k++)
            if ((m->rows[i].kind == MATRIX_DECODE) == decode && matrix_at(m, i, k)->rate > most)
                most = matrix_at(m, i, k)->rate;
    if (!(most > 0)) return 0;
    fputs("<div class=\"bars\">\n", f);
    for (int i = 0; i < m->n_rows; i++) {
        const matrix_row *row = &m->rows[i];
        int any = 0;
        for (int k = 0; k < m->n_columns; k++) any |= matrix_at(m, i, k)->rate > 0;
        if ((row->kind == MATRIX_DECODE) != decode || !any) continue;
        fprintf(f, "<div class=\"bargroup\" data-r=\"%d\"><span><b>", i);
        write_html_escaped(f, row->name);
        fputs("</b> ", f);
        if (row->kind == MATRIX_BACKWARD) fputs("gradients, ", f);
        write_html_escaped(f, row->detail);
        fputs("</span>\n", f);
        for (int k = 0; k < m->n_columns; k++) {
            char rate[TEXT_SIZE];
            const matrix_cell *c = matrix_at(m, i, k);
            if (!(c->rate > 0)) continue;
            fprintf(
                f,
                "<p class=\"k%d s%d\" data-c=\"%d\"><i style=\"--w:%.1f%%\"></i><em>%s</em></p>\n",
                k % PAGE_COLOURS, page_shape(k), k, 100 * c->rate / most,
                text_rate(rate, sizeof rate, c->rate, decode ? "B/s" : "FLOP/s"));
        }
        fputs("</div>\n", f);
    }
    fputs("</div>\n", f);
    return 1;
}

/* ------------------------------------------------------------------ costs */

/* Which of the optional columns any cell fills. */
static void measured_extras(const matrix *m, int *energy, int *sensors) {
    *energy = *sensors = 0;
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            if (c->state != MATRIX_MEASURED) continue;
            *energy |= isfinite(c->of->joules);
            *sensors |= isfinite(c->of->after.clock_hz) || isfinite(c->of->after.power_watts) ||
                        isfinite(c->of->after.temperature_celsius);
        }
}

static void energy_cells(table *t, const bench_result *x) {
    const double tokens = (double)x->batch * (double)x->q_len;
    if (x->joules > 0) {
        table_cell(t, "%.3g", x->joules);
        table_cell(t, "%.3g", tokens / x->joules);
    } else {
        table_cell(t, "-");
        table_cell(t, "-");
    }
}

/* One quantity before and after the runs: once where both look the same. */
static void sensor_part(char *text, size_t size, double scale, int digits, const char *unit,
                        double before, double after) {
    char first[32] = "?", second[32] = "?";
    const size_t used = strlen(text);
    if (!isfinite(before) && !isfinite(after)) return;
    if (isfinite(before)) snprintf(first, sizeof first, "%.*f", digits, before / scale);
    if (isfinite(after)) snprintf(second, sizeof second, "%.*f", digits, after / scale);
    const int same = strcmp(first, second) == 0;
    snprintf(text + used, size - used, "%s%s%s%s %s", used ? ", " : "", first,
             same ? "" : " \xe2\x86\x92 ", same ? "" : second, unit);
}

/* "1.98 GHz, 350 W, 41 to 44 C": what the device told before and after the runs. */
static void sensor_cell(table *t, const bench_result *x) {
    static const char celsius[] = "\xc2\xb0"
                                  "C";
    const bench_sensors *a = &x->before, *b = &x->after;
    char text[192] = "";
    sensor_part(text, sizeof text, 1e9, 2, "GHz", a->clock_hz, b->clock_hz);
    sensor_part(text, sizeof text, 1, 0, "W", a->power_watts, b->power_watts);
    sensor_part(text, sizeof text, 1, 0, celsius, a->temperature_celsius, b->temperature_celsius);
    table_cell(t, "%s", text[0] ? text : "-");
}

void page_costs(const matrix *m, FILE *f) {
    const char *heads[20] = {"<shape",   "<device", "<kernel",   "first run",
                             "compile",  "plan",    "workspace", "K, V kept",
                             "speed-up", "ideal",   "a token",   "rows checked"};
    int n = 12, energy, sensors;
    table t;
    measured_extras(m, &energy, &sensors);
    if (energy) {
        heads[n++] = "joules a run";
        heads[n++] = "tokens a joule";
    }
    if (sensors) heads[n++] = "before \xe2\x86\x92 after";
    table_init(&t, n, heads);
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0, first = 1; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            const bench_result *x = c->of;
            char b[TEXT_SIZE];
            if (c->state != MATRIX_MEASURED) continue;
            const double tokens = (double)x->batch * (double)x->q_len;
            table_cell(&t, "%s%s%s", first ? m->rows[i].name : "", first ? ", " : "",
                       first ? m->rows[i].detail : "");
            first = 0;
            table_cell(&t, "%s", m->columns[k].id);
            table_cell(&t, "%s", x->kernel);
            table_cell(&t, "%s", text_seconds(b, sizeof b, x->first_seconds));
            table_cell(&t, "%s", text_seconds(b, sizeof b, x->compile_seconds));
            table_cell(&t, "%s", text_seconds(b, sizeof b, x->plan_seconds));
            table_cell(&t, "%s", text_bytes(b, sizeof b, (double)x->workspace_bytes));
            table_cell(&t, "%s", text_bytes(b, sizeof b, (double)x->kv_bytes_kept));
            table_cell(&t, "%s%s", short_ratio(b, sizeof b, x->speedup), x->suspect ? "?" : "");
            table_cell(&t, "%s",
                       x->twin_line[0] ? short_ratio(b, sizeof b, x->ideal_speedup) : "-");
            table_cell(&t, "%s", tokens > 0 ? text_seconds(b, sizeof b, x->median / tokens) : "-");
            table_cell(&t, "%lld", (long long)x->checked_rows);
            if (energy) energy_cells(&t, x);
            if (sensors) sensor_cell(&t, x);
        }
    table_html(&t, f);
    table_free(&t);
}

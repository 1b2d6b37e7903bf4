/* SPDX-License-Identifier: Apache-2.0 */
#include "charts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "page_matrix.h"
#include "report.h"
#include "table.h"
#include "text.h"

/* ------------------------------------------------------------------ primitives */

/* A logarithmic axis from data to pixels. */
typedef struct axis {
    double low, high, from, to; /* data range, pixel range */
} axis;

/* To a tenth of a pixel: more digits would only make the page larger. */
static double at(const axis *a, double v) {
    const double share = (log(v) - log(a->low)) / (log(a->high) - log(a->low));
    return round(10 * (a->from + share * (a->to - a->from))) / 10;
}

static void text_at(FILE *f, double x, double y, const char *anchor, const char *class,
                    const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    write_html_escaped(f, text);
    fputs("</text>\n", f);
}

/* Lines across the plot at the places of one axis are one path, between `begin` and `end` of it. */
static void begin_grid(FILE *f) { fputs("<path class=\"grid\" d=\"", f); }
static void across(FILE *f, const axis *ax, double y) {
    fprintf(f, "M%.4g %.4gH%.4g", ax->from, y, ax->to);
}
static void along(FILE *f, const axis *ay, double x) {
    fprintf(f, "M%.4g %.4gV%.4g", x, ay->from, ay->to);
}
static void end_grid(FILE *f) { fputs("\"/>\n", f); }

/* Labels that are alike in all but place and text. */
static void begin_labels(FILE *f, const char *anchor) {
    fprintf(f, "<g class=\"t\" text-anchor=\"%s\">\n", anchor);
}
static void label_at(FILE *f, double x, double y, const char *text) {
    fprintf(f, "<text x=\"%.4g\" y=\"%.4g\">%s</text>\n", x, y, text);
}
static void end_group(FILE *f) { fputs("</g>\n", f); }

/* What belongs to one device: its colour counts for all of it. */
static void begin_device(FILE *f, int column) {
    fprintf(f, "<g class=\"k%d\">\n", column % PAGE_COLOURS);
}

/* Shape and colour both tell devices apart. The title shows when the pointer rests on the mark. */
static void marker(FILE *f, int column, double x, double y, const char *title) {
    fprintf(f, "<use href=\"#s%d\" x=\"%.4g\" y=\"%.4g\"", page_shape(column), x, y);
    if (title) {
        fputs("><title>", f);
        write_html_escaped(f, title);
        fputs("</title></use>\n", f);
    } else {
        fputs("/>\n", f);
    }
}

/* Result files are not trusted: only values that a logarithmic axis with one line a step can show
 * are drawn. */
static int plausible(double v) { return v >= 1e-12 && v <= 1e24; }

static double next_power(double v, double base) {
    return pow(base, ceil(log(v) / log(base) - 1e-9));
}
static double previous_power(double v, double base) {
    return pow(base, floor(log(v) / log(base) + 1e-9));
}

/* ------------------------------------------------------------------ panels of lengths */

typedef struct quantity {
    const char *title;
    double base; /* powers of it have lines */
    double (*value)(const matrix_cell *c);
    void (*band)(const matrix_cell *c, double *low, double *high);
    double (*ideal)(const matrix_cell *c); /* NULL: none */
    const char *(*text)(char *buffer, size_t size, double v);
} quantity;

static double time_of(const matrix_cell *c) { return c->of->median; }
static void time_band(const matrix_cell *c, double *low, double *high) {
    *low = c->of->q1;
    *high = c->of->q3;
}
static double speedup_of(const matrix_cell *c) { return c->of->speedup; }
static void speedup_band(const matrix_cell *c, double *low, double *high) {
    *low = c->of->speedup_low;
    *high = c->of->speedup_high;
}
static double ideal_of(const matrix_cell *c) { return c->of->ideal_speedup; }
static const char *times_text(char *buffer, size_t size, double v) {
    snprintf(buffer, size, "%gx", v);
    return buffer;
}

static const quantity times = {"Time", 10, time_of, time_band, NULL, text_seconds};
static const quantity speedups = {"Speed-up", 2, speedup_of, speedup_band, ideal_of, times_text};

/* The rows of a group, whose places are one after the other. */
typedef struct group {
    int first, n;
} group;

static group group_at(const matrix *m, int first) {
    group g = {first, 1};
    while (first + g.n < m->n_rows && m->rows[first + g.n].group == m->rows[first].group &&
           m->rows[first + g.n].kind == m->rows[first].kind)
        g.n++;
    return g;
}

static int has_value(const matrix *m, int row, int column, const quantity *q) {
    const matrix_cell *c = matrix_at(m, row, column);
    return c->state == MATRIX_MEASURED && m->rows[row].shape->kv_len > 0 && plausible(q->value(c));
}

/* At how many lengths a column has a value, at most. */
static int most_points(const matrix *m, group g, const quantity *q) {
    int most = 0;
    for (int k = 0; k < m->n_columns; k++) {
        int n = 0;
        for (int i = g.first; i < g.first + g.n; i++) n += has_value(m, i, k, q);
        if (n > most) most = n;
    }
    return most;
}

static void widen(axis *a, double v) {
    if (!plausible(v)) return;
    a->low = fmin(a->low, v);
    a->high = fmax(a->high, v);
}

static void panel_axes(const matrix *m, group g, const quantity *q, axis *ax, axis *ay) {
    ax->low = ay->low = INFINITY;
    ax->high = ay->high = 0;
    for (int i = g.first; i < g.first + g.n; i++)
        for (int k = 0; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            if (!has_value(m, i, k, q)) continue;
            widen(ax, (double)m->rows[i].shape->kv_len);
            widen(ay, q->value(c));
            if (q->ideal) widen(ay, q->ideal(c));
        }
    const double room = ax->low < ax->high ? 1.25 : 2;
    ax->low /= room;
    ax->high *= room;
    ay->low = previous_power(ay->low / 1.05, q->base);
    ay->high = next_power(ay->high * 1.05, q->base);
}

static int is_on(const axis *ax, int64_t tokens) {
    return (double)tokens >= ax->low && (double)tokens <= ax->high;
}

static void panel_frame(const matrix *m, group g, const quantity *q, const axis *ax, const axis *ay,
                        FILE *f) {
    char label[TEXT_SIZE];
    int steps = (int)lround(log(ay->high / ay->low) / log(q->base));
    const int skip = steps > 8 ? steps / 6 + 1 : 1;
    if (steps > 95) steps = 95;
    begin_grid(f);
    for (int k = 0; k <= steps; k++) across(f, ax, at(ay, ay->low * pow(q->base, k)));
    for (int i = g.first; i < g.first + g.n; i++)
        if (is_on(ax, m->rows[i].shape->kv_len))
            along(f, ay, at(ax, (double)m->rows[i].shape->kv_len));
    end_grid(f);
    begin_labels(f, "end");
    for (int k = 0; k <= steps; k += skip) {
        const double v = ay->low * pow(q->base, k);
        label_at(f, ax->from - 5, at(ay, v) + 4, q->text(label, sizeof label, v));
    }
    end_group(f);
    begin_labels(f, "middle");
    for (int i = g.first; i < g.first + g.n; i++)
        if (is_on(ax, m->rows[i].shape->kv_len))
            label_at(f, at(ax, (double)m->rows[i].shape->kv_len), ay->from + 15,
                     short_tokens(label, sizeof label, m->rows[i].shape->kv_len));
    end_group(f);
}

/* Whether the quartiles lie further from the curve than its line is wide. */
static int band_shows(const matrix *m, group g, int column, const quantity *q, const axis *ay) {
    for (int i = g.first; i < g.first + g.n; i++) {
        const matrix_cell *c = matrix_at(m, i, column);
        double low, high;
        if (!has_value(m, i, column, q)) continue;
        q->band(c, &low, &high);
        const double y = at(ay, q->value(c));
        if (plausible(low) && fabs(at(ay, low) - y) > 1) return 1;
        if (plausible(high) && fabs(at(ay, high) - y) > 1) return 1;
    }
    return 0;
}

/* The quartiles as a polygon: there along the lower ones, back along the upper ones. */
static void band(const matrix *m, group g, int column, const quantity *q, const axis *ax,
                 const axis *ay, FILE *f) {
    fputs("<path class=\"band\" d=\"", f);
    const char *letter = "M";
    for (int back = 0; back < 2; back++)
        for (int n = 0; n < g.n; n++) {
            const int i = g.first + (back ? g.n - 1 - n : n);
            double low, high;
            if (!has_value(m, i, column, q)) continue;
            q->band(matrix_at(m, i, column), &low, &high);
            const double v = back ? high : low;
            const double y = at(ay, plausible(v) ? v : q->value(matrix_at(m, i, column)));
            fprintf(f, "%s%.4g %.4g", letter, at(ax, (double)m->rows[i].shape->kv_len),
                    fmin(fmax(y, ay->to), ay->from));
            letter = "L";
        }
    fputs("z\"/>\n", f);
}

static void curve(const matrix *m, group g, int column, const quantity *q, int ideal,
                  const axis *ax, const axis *ay, FILE *f) {
    fprintf(f, "<polyline class=\"%s\" points=\"", ideal ? "ideal" : "line");
    for (int i = g.first; i < g.first + g.n; i++) {
        const matrix_cell *c = matrix_at(m, i, column);
        if (!has_value(m, i, column, q)) continue;
        const double v = ideal ? q->ideal(c) : q->value(c);
        if (plausible(v))
            fprintf(f, "%.4g,%.4g ", at(ax, (double)m->rows[i].shape->kv_len), at(ay, v));
    }
    fputs("\"/>\n", f);
}

/* One point alone makes no line. */
static void ideal_mark(const matrix *m, group g, int column, const quantity *q, const axis *ax,
                       const axis *ay, FILE *f) {
    for (int i = g.first; i < g.first + g.n; i++) {
        if (!has_value(m, i, column, q) || !plausible(q->ideal(matrix_at(m, i, column)))) continue;
        const double x = at(ax, (double)m->rows[i].shape->kv_len),
                     y = at(ay, q->ideal(matrix_at(m, i, column)));
        fprintf(f, "<path class=\"roof\" d=\"M%.4g %.4gh18\"/>\n", x - 9, y);
    }
}

static void panel(const matrix *m, group g, const quantity *q, FILE *f) {
    enum { WIDTH = 340, HEIGHT = 215, LEFT = 52 };
    const matrix_row *row = &m->rows[g.first];
    const char *pattern = strcmp(row->shape->pattern, "s2") == 0 ? "S2" : row->shape->pattern;
    axis ax = {0, 0, LEFT, WIDTH - 8}, ay = {0, 0, HEIGHT - 24, 8};
    char title[640], value[TEXT_SIZE];
    panel_axes(m, g, q, &ax, &ay);
    fprintf(f, "<figure data-g=\"%d\" data-kind=\"%s\"><figcaption>%s, ", row->group,
            matrix_kind_word(row->kind), matrix_kind_name(row->kind));
    write_html_escaped(f, pattern);
    fputs("<small class=\"muted\">", f);
    write_html_escaped(f, row->detail);
    fprintf(f,
            "</small></figcaption>\n<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"%s against length: ",
            WIDTH, HEIGHT, q->title);
    snprintf(title, sizeof title, "%s %s, %s", matrix_kind_name(row->kind), pattern, row->detail);
    write_html_escaped(f, title);
    fputs("\">\n", f);
    panel_frame(m, g, q, &ax, &ay, f);
    for (int k = 0; k < m->n_columns; k++) {
        int points = 0;
        for (int i = g.first; i < g.first + g.n; i++) points += has_value(m, i, k, q);
        if (!points) continue;
        begin_device(f, k);
        if (points > 1 && band_shows(m, g, k, q, &ay)) band(m, g, k, q, &ax, &ay, f);
        if (q->ideal) curve(m, g, k, q, 1, &ax, &ay, f);
        if (q->ideal && points == 1) ideal_mark(m, g, k, q, &ax, &ay, f);
        curve(m, g, k, q, 0, &ax, &ay, f);
        fputs("<g class=\"m\">\n", f);
        for (int i = g.first; i < g.first + g.n; i++) {
            if (!has_value(m, i, k, q)) continue;
            const double v = q->value(matrix_at(m, i, k));
            snprintf(title, sizeof title, "%s: %s", m->columns[k].id,
                     q->text(value, sizeof value, v));
            marker(f, k, at(&ax, (double)m->rows[i].shape->kv_len), at(&ay, v), title);
        }
        end_group(f);
        end_group(f);
    }
    fputs("</svg></figure>\n", f);
}

static int panels(const matrix *m, const quantity *q, int least, const char *name, FILE *f) {
    int any = 0;
    for (int i = 0; i < m->n_rows;) {
        const group g = group_at(m, i);
        i += g.n;
        if (most_points(m, g, q) < least) continue;
        if (!any) fprintf(f, "<div class=\"panels\" data-plot=\"%s\">\n", name);
        any = 1;
        panel(m, g, q, f);
    }
    if (any) fputs("</div>\n", f);
    return any;
}

int chart_lengths(const matrix *m, FILE *f) { return panels(m, &times, 2, "time", f); }

/* Where no shape was measured at two lengths, single ones are better than nothing. */
int chart_speedup(const matrix *m, FILE *f) {
    return panels(m, &speedups, 2, "speedup", f) || panels(m, &speedups, 1, "speedup", f);
}

/* ------------------------------------------------------------------ roofline */

/* What stands beside a roof. Labels that would overlap are moved down, and a thin line leads back.
 */
typedef struct roof_label {
    double x, y, wanted;
    int column;
    char text[224];
} roof_label;

enum { MAX_LABELS = 24 };

/* The roofs of a device: its best memory and its best product of each type. */
static void roofs(const matrix *m, int column, const axis *ax, const axis *ay, roof_label *labels,
                  int *n_labels, FILE *f) {
    const bench_device *d = m->columns[column].about;
    const int read = device_ceiling(d, BENCH_READ, 0), copy = device_ceiling(d, BENCH_COPY, 0);
    const int memory =
        read >= 0 && (copy < 0 || d->ceilings[read].rate >= d->ceilings[copy].rate) ? read : copy;
    const double slope = memory >= 0 ? d->ceilings[memory].rate : 0;
    int done[3], n = 0;
    for (uint32_t type = 0; type < 3; type++) {
        int g = device_ceiling(d, BENCH_GEMM, type), known = g < 0;
        for (int i = 0; i < n; i++) known |= done[i] == g;
        /* What was measured through another device is that one's roof. */
        if (known || d->ceilings[g].via[0] || !plausible(d->ceilings[g].rate)) continue;
        done[n++] = g;
        const double rate = d->ceilings[g].rate;
        if (rate <= ay->low || rate > ay->high) continue;
        double knee = ax->low;
        fprintf(f, "<path class=\"roof k%d\" d=\"M", column % PAGE_COLOURS);
        if (plausible(slope) && slope * ax->low < rate && slope * ax->high > ay->low) {
            const double start = fmax(slope * ax->low, ay->low);
            knee = fmin(rate / slope, ax->high);
            fprintf(f, "%.1f %.1fL", at(ax, start / slope), at(ay, start));
        }
        fprintf(f, "%.1f %.1fH%.1f\"/>\n", at(ax, knee),
                at(ay, fmin(rate, fmax(slope * knee, rate))), ax->to);
        if (*n_labels == MAX_LABELS) continue;
        roof_label *l = &labels[(*n_labels)++];
        char text[TEXT_SIZE];
        l->x = ax->to + 8;
        l->y = l->wanted = at(ay, rate);
        l->column = column;
        snprintf(l->text, sizeof l->text, "%s %s", dtype_name(d->ceilings[g].dtype),
                 text_rate(text, sizeof text, rate, "FLOP/s"));
    }
}

static int compare_labels(const void *a, const void *b) {
    const roof_label *x = a, *y = b;
    return (x->wanted > y->wanted) - (x->wanted < y->wanted);
}

static void write_labels(roof_label *labels, int n, double top, double bottom, FILE *f) {
    enum { ROOM = 13 };
    qsort(labels, (size_t)n, sizeof *labels, compare_labels);
    for (int i = 0; i < n; i++)
        labels[i].y = fmax(labels[i].wanted, i ? labels[i - 1].y + ROOM : top);
    /* What was pushed over the edge pushes the others back. */
    for (int i = n - 1; i >= 0; i--) {
        const double limit = i == n - 1 ? bottom : labels[i + 1].y - ROOM;
        if (labels[i].y > limit) labels[i].y = limit;
    }
    for (int i = 0; i < n; i++) {
        const roof_label *l = &labels[i];
        begin_device(f, l->column);
        fprintf(f,
                "<path class=\"lead\" fill=\"none\" d=\"M%.4g %.4gL%.4g %.4g\"/>\n<g class=\"m\">",
                l->x - 8, l->wanted, l->x + 6, l->y);
        marker(f, l->column, l->x + 12, l->y, NULL);
        end_group(f);
        end_group(f);
        text_at(f, l->x + 22, l->y + 4, "start", "t", l->text);
    }
}

static int has_place(const matrix_cell *c) {
    return c->state == MATRIX_MEASURED && plausible(c->of->flop_rate) && c->of->bytes_min > 0 &&
           plausible(c->of->flops / (double)c->of->bytes_min);
}

/* Two columns that are one GPU have one set of roofs where these were measured once. */
static int same_roofs(const matrix *m, int column) {
    for (int k = 0; k < column; k++)
        if (m->columns[k].about == m->columns[column].about) return 1;
    return 0;
}

int chart_roofline(const matrix *m, FILE *f) {
    enum { WIDTH = 1080, HEIGHT = 440, LEFT = 64, RIGHT = 170, BOTTOM = 42 };
    axis ax = {INFINITY, 0, LEFT, WIDTH - RIGHT}, ay = {INFINITY, 0, HEIGHT - BOTTOM, 12};
    char label[TEXT_SIZE], title[640];
    int n = 0, n_labels = 0;
    for (int i = 0; i < m->n_rows; i++)
        for (int k = 0; k < m->n_columns; k++) {
            const matrix_cell *c = matrix_at(m, i, k);
            if (!has_place(c)) continue;
            n++;
            widen(&ax, c->of->flops / (double)c->of->bytes_min);
            widen(&ay, c->of->flop_rate);
        }
    if (!n) return 0;
    for (int k = 0; k < m->n_columns; k++)
        for (int i = 0; i < m->columns[k].about->n_ceilings; i++)
            if (m->columns[k].about->ceilings[i].unit == BENCH_GEMM)
                widen(&ay, m->columns[k].about->ceilings[i].rate);
    ax.low = previous_power(ax.low / 1.5, 10);
    ax.high = next_power(ax.high * 1.5, 10);
    ay.low = previous_power(ay.low / 1.2, 10);
    ay.high = next_power(ay.high * 1.3, 10);
    roof_label *labels = calloc(MAX_LABELS, sizeof *labels);
    if (!labels) return 0;
    fprintf(f,
            "<div class=\"wide\" data-plot=\"roofline\" tabindex=\"0\" role=\"group\" "
            "aria-label=\"Roofline\">\n<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"Roofline: FLOP/s against FLOP per byte\">\n",
            WIDTH, HEIGHT);
    const int rises = (int)lround(log10(ay.high / ay.low)),
              runs = (int)lround(log10(ax.high / ax.low));
    begin_grid(f);
    for (int k = 0; k <= rises; k++) across(f, &ax, at(&ay, ay.low * pow(10, k)));
    for (int k = 0; k <= runs; k++) along(f, &ay, at(&ax, ax.low * pow(10, k)));
    end_grid(f);
    begin_labels(f, "end");
    for (int k = 0; k <= rises; k++) {
        const double v = ay.low * pow(10, k);
        label_at(f, ax.from - 6, at(&ay, v) + 4, text_rate(label, sizeof label, v, ""));
    }
    end_group(f);
    begin_labels(f, "middle");
    for (int k = 0; k <= runs; k++) {
        const double v = ax.low * pow(10, k);
        snprintf(label, sizeof label, "%.9g", v);
        label_at(f, at(&ax, v), ay.from + 16, label);
    }
    end_group(f);
    text_at(f, (ax.from + ax.to) / 2, ay.from + 34, "middle", "t",
            "useful FLOP per byte of Q, K, V and O");
    text_at(f, ax.from + 4, ay.to + 4, "start", "t halo", "useful FLOP/s");
    for (int k = 0; k < m->n_columns; k++)
        if (!same_roofs(m, k)) roofs(m, k, &ax, &ay, labels, &n_labels, f);
    for (int k = 0; k < m->n_columns; k++) {
        fprintf(f, "<g class=\"m k%d\">\n", k % PAGE_COLOURS);
        for (int i = 0; i < m->n_rows; i++) {
            const matrix_cell *c = matrix_at(m, i, k);
            if (!has_place(c)) continue;
            snprintf(title, sizeof title, "%s: %s %s, %s", m->columns[k].id,
                     matrix_kind_word(m->rows[i].kind), m->rows[i].name,
                     text_rate(label, sizeof label, c->of->flop_rate, "FLOP/s"));
            marker(f, k, at(&ax, c->of->flops / (double)c->of->bytes_min),
                   at(&ay, c->of->flop_rate), title);
        }
        end_group(f);
    }
    write_labels(labels, n_labels, ay.to + 6, ay.from, f);
    free(labels);
    fputs("</svg>\n</div>\n", f);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "charts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "table.h"
#include "text.h"

enum { WIDTH = 1080 };

/* ------------------------------------------------------------------ primitives */

/* A logarithmic or linear axis from data to pixels. */
typedef struct axis {
    double low, high, from, to; /* data range, pixel range */
    int log;
} axis;

static double at(const axis *a, double v) {
    double share = a->log ? (log(v) - log(a->low)) / (log(a->high) - log(a->low))
                          : (v - a->low) / (a->high - a->low);
    return a->from + share * (a->to - a->from);
}

static void open_svg(FILE *f, int height, const char *title) {
    fprintf(f,
            "<div class=\"wide\">\n<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"",
            WIDTH, height);
    write_html_escaped(f, title);
    fputs("\">\n", f);
}

static void close_svg(FILE *f) { fputs("</svg>\n</div>\n", f); }

static void text_at(FILE *f, double x, double y, const char *anchor, const char *class,
                    const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    write_html_escaped(f, text);
    fputs("</text>\n", f);
}

/* Along the vertical axis that `y` is the middle of, reading upwards. */
static void upright_text(FILE *f, double x, double y, const char *text) {
    fprintf(
        f,
        "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\" class=\"t\">",
        x, y);
    write_html_escaped(f, text);
    fputs("</text>\n", f);
}

static void line(FILE *f, double x1, double y1, double x2, double y2, const char *class) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2,
            y2, class);
}

/* Shape and colour both tell series apart, so that nothing hangs on colour alone. The title shows
 * when the pointer rests on the mark. */
static void marker(FILE *f, int kind, double x, double y, const char *title) {
    int c = kind % CHART_COLOURS;
    fprintf(f, "<g class=\"m c%d\">", c);
    switch (c % 4) {
    case 0: fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>", x, y); break;
    case 1:
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\"/>", x - 4, y - 4);
        break;
    case 2: fprintf(f, "<path d=\"M%.1f %.1fl5.2 9h-10.4z\"/>", x, y - 5.5); break;
    default: fprintf(f, "<path d=\"M%.1f %.1fl5.5 5.5l-5.5 5.5l-5.5 -5.5z\"/>", x, y - 5.5);
    }
    fputs("<title>", f);
    write_html_escaped(f, title);
    fputs("</title></g>\n", f);
}

/* Result files are not trusted: only values that a logarithmic axis with one line a step can show
 * are drawn. */
static int plausible(double v) { return v >= 1e-6 && v <= 1e24; }

static double next_power(double v, double base) {
    return pow(base, ceil(log(v) / log(base) - 1e-9));
}
static double previous_power(double v, double base) {
    return pow(base, floor(log(v) / log(base) + 1e-9));
}

/* Steps of a factor `base` from `low` to `high`, both powers of it. */
static int log_steps(double low, double high, double base) {
    return (int)lround(log(high / low) / log(base));
}

/* 1, 2 or 5 times a power of ten: a step that cuts `range` into at most six. */
static double nice_step(double range) {
    double step = pow(10, floor(log10(range / 6)));
    while (range / step > 6) step *= range / step > 12 ? (range / step > 30 ? 5 : 2.5) : 2;
    double power = pow(10, floor(log10(step)));
    double m = step / power;
    return (m <= 1.01 ? 1 : m <= 2.01 ? 2 : m <= 5.01 ? 5 : 10) * power;
}

/* ------------------------------------------------------------------ series */

/* What one colour stands for: a device, a kernel, a type, and whether it computes gradients. */
typedef struct series {
    int device, backward;
    uint32_t dtype;
    const char *kernel;
} series;

enum { MAX_SERIES = 64 };

static int is_of(const bench_result *x, const series *s) {
    return s->device == x->device && s->dtype == x->dtype && !s->backward == !x->backward &&
           strcmp(s->kernel, x->kernel) == 0;
}

static int find_series(const series *list, int n, const bench_result *x) {
    for (int i = 0; i < n; i++)
        if (is_of(x, &list[i])) return i;
    return n - 1; /* more series than a plot can tell apart share the last one */
}

static void add_series(series *list, int *n, const bench_result *x) {
    int i = find_series(list, *n, x);
    if (*n == MAX_SERIES || (i >= 0 && is_of(x, &list[i]))) return;
    list[(*n)++] = (series){x->device, x->backward, x->dtype, x->kernel};
}

/* All series of a report in reading order, so that every plot gives one series the same colour. */
static int all_series(const bench_report *r, const int *order, series *list) {
    int n = 0;
    for (int i = 0; i < r->n_results; i++)
        if (r->results[order[i]].status == BENCH_OK) add_series(list, &n, &r->results[order[i]]);
    return n;
}

static void series_name(const bench_report *r, const series *s, char *buffer, size_t size) {
    snprintf(buffer, size, "%s, %s, %s%s", r->devices[s->device].id, s->kernel,
             dtype_name(s->dtype), s->backward ? ", gradients" : "");
}

static double legend_width(const char *name) { return 28 + 7.0 * (double)strlen(name) + 20; }

/* Names of series in rows above the plot; returns the height that they take. */
static double series_legend(const bench_report *r, const series *list, int n, double y, FILE *f) {
    double x = 10, top = y;
    char name[160];
    for (int i = 0; i < n; i++) {
        series_name(r, &list[i], name, sizeof name);
        if (x + legend_width(name) > WIDTH && x > 10) {
            x = 10;
            y += 20;
        }
        marker(f, i, x + 8, y, name);
        text_at(f, x + 20, y + 4, "start", "t", name);
        x += legend_width(name);
    }
    return y - top + 20;
}

static int legend_height(const bench_report *r, const series *list, int n) {
    double x = 10;
    int rows = 1;
    char name[160];
    for (int i = 0; i < n; i++) {
        series_name(r, &list[i], name, sizeof name);
        if (x + legend_width(name) > WIDTH && x > 10) {
            x = 10;
            rows++;
        }
        x += legend_width(name);
    }
    return rows * 20;
}

static void result_title(const bench_report *r, const bench_result *x, char *buffer, size_t size) {
    char tokens[24], heads[32], rate[TEXT_SIZE], speed[24], ideal[24];
    int n =
        snprintf(buffer, size, "%s %s %s, %s tokens, %s heads, %s %s: %s", x->family, x->pattern,
                 dtype_name(x->dtype), short_tokens(tokens, sizeof tokens, x->kv_len),
                 result_heads(x, heads, sizeof heads), r->devices[x->device].id, x->kernel,
                 text_rate(rate, sizeof rate, x->flop_rate, "FLOP/s"));
    if (n > 0 && (size_t)n < size && isfinite(x->speedup))
        snprintf(buffer + n, size - (size_t)n, ", %s over dense (ideal %s)",
                 short_ratio(speed, sizeof speed, x->speedup),
                 short_ratio(ideal, sizeof ideal, x->ideal_speedup));
}

/* ------------------------------------------------------------------ speed-up */

/* Skipped problems have no time, but their ideal is known. */
static int has_ideal(const bench_result *x) {
    int known = x->status == BENCH_OK ? x->twin_line[0] != 0 : x->need_seconds > 0;
    return known && x->kv_len > 0 && plausible(x->ideal_speedup) && !result_is_decode(x);
}

static int has_speedup(const bench_result *x) {
    return x->status == BENCH_OK && has_ideal(x) && plausible(x->speedup);
}

/* The family that a result is drawn with: gradients stand beside forward. */
static const char *panel_of(const bench_result *x) {
    return x->backward && strncmp(x->family, "bwd-", 4) == 0 ? x->family + 4 : x->family;
}

static int in_series(const bench_result *x, const char *family, const series *s) {
    if (x->status == BENCH_OK) return strcmp(panel_of(x), family) == 0 && is_of(x, s);
    return strcmp(panel_of(x), family) == 0 && x->device == s->device && x->dtype == s->dtype &&
           !x->backward == !s->backward;
}

static double speedup_of(const bench_result *x) { return has_speedup(x) ? x->speedup : NAN; }
static double ideal_of(const bench_result *x) { return has_ideal(x) ? x->ideal_speedup : NAN; }

/* A line through the values of a family's results; NaN is not drawn. */
static void polyline(const bench_report *r, const char *family, const series *s, int colour,
                     const char *class, double (*value)(const bench_result *x), const axis *ax,
                     const axis *ay, FILE *f) {
    int64_t last = 0;
    fprintf(f, "<polyline class=\"%s c%d\" points=\"", class, colour % CHART_COLOURS);
    /* By length, whatever the order of the results: skipped ones stand apart from those of a
     * kernel. */
    for (;;) {
        const bench_result *next = NULL;
        for (int i = 0; i < r->n_results; i++) {
            const bench_result *x = &r->results[i];
            if (x->kv_len <= last || (next && x->kv_len >= next->kv_len) || isnan(value(x)) ||
                !in_series(x, family, s))
                continue;
            next = x;
        }
        if (!next) break;
        last = next->kv_len;
        fprintf(f, "%.1f,%.1f ", at(ax, (double)last), at(ay, value(next)));
    }
    fputs("\"/>\n", f);
}

/* Title, grid and lengths of a panel; a horizontal line is drawn at each of the `ticks`. */
static void panel_frame(const char *title, const char *y_title, const double *ticks, int n_ticks,
                        const char *(*tick_text)(char *buffer, size_t size, double v),
                        const axis *ax, const axis *ay, FILE *f) {
    char label[TEXT_SIZE];
    text_at(f, ax->from, ay->to - 12, "start", "h", title);
    for (int k = 0; k < n_ticks; k++) {
        line(f, ax->from, at(ay, ticks[k]), ax->to, at(ay, ticks[k]), "grid");
        text_at(f, ax->from - 6, at(ay, ticks[k]) + 4, "end", "t",
                tick_text(label, sizeof label, ticks[k]));
    }
    text_at(f, (ax->from + ax->to) / 2, ay->from + 34, "middle", "t", "tokens");
    upright_text(f, ax->from - 46, (ay->from + ay->to) / 2, y_title);
    /* The axis has room beyond the outermost powers of two, so that no mark lies on its edge. */
    double first = next_power(ax->low, 2);
    int steps = log_steps(first, previous_power(ax->high, 2), 2), skip = steps > 6 ? 2 : 1;
    for (int k = 0; k <= steps; k++) {
        double v = ldexp(first, k);
        line(f, at(ax, v), ay->from, at(ax, v), ay->to, "grid");
        if (k % skip == 0)
            text_at(f, at(ax, v), ay->from + 16, "middle", "t",
                    short_tokens(label, sizeof label, (int64_t)v));
    }
}

/* Room beyond the shortest and the longest context. */
static void widen_lengths(double *low, double *high) {
    *low = previous_power(*low, 2);
    *high = next_power(*high, 2);
    double room = *low < *high ? exp2(0.4) : 2; /* one length alone stands in the middle */
    *low /= room;
    *high *= room;
}

enum { MOST_TICKS = 96 };

/* Powers of `base` from low to high, both powers of it. */
static int log_ticks(double low, double high, double base, double ticks[MOST_TICKS]) {
    int n = log_steps(low, high, base) + 1;
    if (n > MOST_TICKS) n = MOST_TICKS;
    for (int k = 0; k < n; k++) ticks[k] = low * pow(base, k);
    return n;
}

static const char *times_text(char *buffer, size_t size, double v) {
    snprintf(buffer, size, "%gx", v);
    return buffer;
}

static void speedup_panel(const bench_report *r, const int *order, const char *family,
                          const series *list, int n, axis ax, axis ay, FILE *f) {
    const bench_result *best = NULL;
    char label[32];
    double ticks[MOST_TICKS];
    panel_frame(family, "speed-up", ticks, log_ticks(ay.low, ay.high, 2, ticks), times_text, &ax,
                &ay, f);
    for (int s = 0; s < n; s++) {
        polyline(r, family, &list[s], s, "ideal", ideal_of, &ax, &ay, f);
        polyline(r, family, &list[s], s, "line", speedup_of, &ax, &ay, f);
    }
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        /* also where one point alone makes no line */
        if (has_ideal(x) && strcmp(panel_of(x), family) == 0) {
            double px = at(&ax, (double)x->kv_len), py = at(&ay, x->ideal_speedup);
            line(f, px - 7, py, px + 7, py, "mean");
        }
        if (!has_speedup(x) || strcmp(panel_of(x), family) != 0) continue;
        char title[256];
        result_title(r, x, title, sizeof title);
        marker(f, find_series(list, n, x), at(&ax, (double)x->kv_len), at(&ay, x->speedup), title);
        if (!best || x->speedup > best->speedup) best = x;
    }
    if (!best) return;
    double px = at(&ax, (double)best->kv_len);
    text_at(f, px, at(&ay, best->speedup) + (best->speedup < best->ideal_speedup ? 19 : -10),
            px > (ax.from + ax.to) / 2 ? "end" : "start", "v",
            short_ratio(label, sizeof label, best->speedup));
}

int chart_speedup(const bench_report *r, FILE *f) {
    enum { PER_ROW = 3, PANEL_HEIGHT = 280, MAX_PANELS = 24, LEFT = 58, GAP = 12 };
    const char *panels[MAX_PANELS];
    series list[MAX_SERIES];
    int n = 0, n_panels = 0;
    double x_low = INFINITY, x_high = 0, y_low = 1, y_high = 2;
    int *order = report_order(r);
    if (!order) return 0;
    n = all_series(r, order, list);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        int known = 0;
        for (int p = 0; p < n_panels; p++) known |= strcmp(panels[p], panel_of(x)) == 0;
        if (has_speedup(x) && !known && n_panels < MAX_PANELS) panels[n_panels++] = panel_of(x);
    }
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        int shown = 0;
        for (int p = 0; p < n_panels && !shown; p++) shown = strcmp(panels[p], panel_of(x)) == 0;
        if (!shown || !has_ideal(x)) continue;
        x_low = fmin(x_low, (double)x->kv_len);
        x_high = fmax(x_high, (double)x->kv_len);
        y_high = fmax(y_high, x->ideal_speedup);
        if (!has_speedup(x)) continue;
        y_low = fmin(y_low, x->speedup);
        y_high = fmax(y_high, x->speedup);
    }
    if (!n_panels) {
        free(order);
        return 0;
    }
    widen_lengths(&x_low, &x_high);
    y_low = previous_power(y_low, 2);
    y_high = next_power(y_high, 2);
    int legend = legend_height(r, list, n), rows = (n_panels + PER_ROW - 1) / PER_ROW;
    double width = (WIDTH - PER_ROW * LEFT - PER_ROW * GAP) / (double)PER_ROW;
    open_svg(f, legend + 24 + rows * PANEL_HEIGHT,
             "Measured speed-up over dense attention against length, with the ideal saving");
    double y = 12 + series_legend(r, list, n, 12, f);
    line(f, 10, y - 2, 40, y - 2, "ideal c0");
    text_at(f, 48, y + 2, "start", "t",
            "dashed: ideal (dense pairs / kept pairs); marks: dense time / sparse time, both "
            "measured; axes are logarithmic");
    for (int p = 0; p < n_panels; p++) {
        int row = p / PER_ROW;
        double left = (p % PER_ROW) * (width + LEFT + GAP) + LEFT,
               top = legend + 20 + row * (double)PANEL_HEIGHT;
        speedup_panel(r, order, panels[p], list, n, (axis){x_low, x_high, left, left + width, 1},
                      (axis){y_low, y_high, top + PANEL_HEIGHT - 50, top + 34, 1}, f);
    }
    close_svg(f);
    free(order);
    return 1;
}

/* ------------------------------------------------------------------ decode by context */

static int is_context(const bench_result *x, int dense) {
    return x->status == BENCH_OK && x->decode && x->kv_len > 0 && plausible(x->byte_rate) &&
           plausible(x->median) && (strcmp(x->pattern, "dense") == 0) == dense;
}
static double sparse_rate(const bench_result *x) { return is_context(x, 0) ? x->byte_rate : NAN; }
static double dense_rate(const bench_result *x) { return is_context(x, 1) ? x->byte_rate : NAN; }
static double sparse_time(const bench_result *x) { return is_context(x, 0) ? x->median : NAN; }
static double dense_time(const bench_result *x) { return is_context(x, 1) ? x->median : NAN; }

static const char *rate_text(char *buffer, size_t size, double v) {
    return v > 0 ? text_rate(buffer, size, v, "B/s") : "0";
}

/* What a panel shows: bytes a second, or the time of a layer. */
typedef struct quantity {
    const char *title;
    double (*sparse)(const bench_result *x), (*dense)(const bench_result *x);
    const char *(*text)(char *buffer, size_t size, double v);
} quantity;

static const quantity quantities[2] = {{"kept bytes / s", sparse_rate, dense_rate, rate_text},
                                       {"time", sparse_time, dense_time, text_seconds}};

static void context_panel(const bench_report *r, const char *family, const quantity *q,
                          const series *list, int n, const double *ticks, int n_ticks, axis ax,
                          axis ay, FILE *f) {
    char title[256];
    panel_frame(family, q->title, ticks, n_ticks, q->text, &ax, &ay, f);
    for (int s = 0; s < n; s++) {
        polyline(r, family, &list[s], s, "ideal", q->dense, &ax, &ay, f);
        polyline(r, family, &list[s], s, "line", q->sparse, &ax, &ay, f);
    }
    for (int d = 0; d < r->n_devices && q->sparse == sparse_rate; d++) {
        const int copy = device_ceiling(&r->devices[d], BENCH_COPY, 0);
        const double rate = copy < 0 ? NAN : r->devices[d].ceilings[copy].rate;
        if (rate <= ay.high) line(f, ax.from, at(&ay, rate), ax.to, at(&ay, rate), "roof");
    }
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        const double v = is_context(x, 0) ? q->sparse(x) : q->dense(x);
        if (isnan(v) || strcmp(x->family, family) != 0) continue;
        result_title(r, x, title, sizeof title);
        marker(f, find_series(list, n, x), at(&ax, (double)x->kv_len), at(&ay, v), title);
    }
}

/* The range of a quantity and where lines are drawn: rates from 0 on, times by powers of ten. */
static axis quantity_axis(const bench_report *r, int which, double ticks[MOST_TICKS],
                          int *n_ticks) {
    double low = INFINITY, high = 0;
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (!is_context(x, 0) && !is_context(x, 1)) continue;
        low = fmin(low, which ? x->median : x->byte_rate);
        high = fmax(high, which ? x->median : x->byte_rate);
        if (!which && x->copy_ceiling >= 0)
            high = fmax(high, r->devices[x->device].ceilings[x->copy_ceiling].rate);
    }
    *n_ticks = 0;
    if (which) {
        low = previous_power(low, 10);
        high = next_power(high * 1.01, 10);
        *n_ticks = log_ticks(low, high, 10, ticks);
        return (axis){.low = low, .high = high, .log = 1};
    }
    high *= 1.05;
    for (double step = nice_step(high); *n_ticks * step <= high && *n_ticks < MOST_TICKS;)
        ticks[*n_ticks] = *n_ticks * step, ++*n_ticks;
    return (axis){.low = 0, .high = high};
}

int chart_context(const bench_report *r, FILE *f) {
    enum { PANEL_HEIGHT = 260, MAX_PANELS = 24, LEFT = 74, GAP = 12, PER_ROW = 2 };
    const char *panels[MAX_PANELS];
    series list[MAX_SERIES];
    int n_panels = 0, n_ticks;
    double low = INFINITY, high = 0, ticks[MOST_TICKS];
    int *order = report_order(r);
    if (!order) return 0;
    const int n = all_series(r, order, list);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        if (!is_context(x, 0) && !is_context(x, 1)) continue;
        int known = 0;
        for (int p = 0; p < n_panels; p++) known |= strcmp(panels[p], x->family) == 0;
        if (!known && n_panels == MAX_PANELS) continue;
        if (!known) panels[n_panels++] = x->family;
        low = fmin(low, (double)x->kv_len);
        high = fmax(high, (double)x->kv_len);
    }
    free(order);
    if (!n_panels) return 0;
    widen_lengths(&low, &high);
    const int legend = legend_height(r, list, n);
    const double width = (WIDTH - PER_ROW * (LEFT + GAP)) / (double)PER_ROW;
    open_svg(f, legend + 24 + n_panels * PANEL_HEIGHT,
             "Bytes a second and time of decode problems against context");
    double y = 12 + series_legend(r, list, n, 12, f);
    line(f, 10, y - 2, 40, y - 2, "ideal c0");
    text_at(f, 48, y + 2, "start", "t",
            "dashed: dense; level line: the copy ceiling; time and tokens are logarithmic");
    for (int p = 0; p < n_panels; p++)
        for (int which = 0; which < PER_ROW; which++) {
            const double left = which * (width + LEFT + GAP) + LEFT,
                         top = legend + 20 + p * (double)PANEL_HEIGHT;
            axis ay = quantity_axis(r, which, ticks, &n_ticks);
            ay.from = top + PANEL_HEIGHT - 50;
            ay.to = top + 34;
            context_panel(r, panels[p], &quantities[which], list, n, ticks, n_ticks,
                          (axis){low, high, left, left + width, 1}, ay, f);
        }
    close_svg(f);
    return 1;
}

/* ------------------------------------------------------------------ bars */

void chart_bars(const chart_bar *bars, int n, const char *unit, const char *title, FILE *f) {
    enum { LEFT = 290, RIGHT = 230, BAR = 15, ROW = 19, GROUP = 9, TOP = 6, BOTTOM = 34 };
    double high = 0, y = TOP;
    int height = TOP + BOTTOM;
    char label[TEXT_SIZE];
    for (int i = 0; i < n; i++) {
        high = fmax(high, bars[i].value);
        if (isfinite(bars[i].mark)) high = fmax(high, bars[i].mark);
        height += ROW + (bars[i].begins_group ? GROUP : 0);
    }
    if (!plausible(high)) return;
    axis ax = {0, high * 1.02, LEFT, WIDTH - RIGHT, 0};
    open_svg(f, height, title);
    double step = nice_step(high);
    for (int k = 0; k * step <= high * 1.02; k++) {
        double v = k * step;
        line(f, at(&ax, v), TOP, at(&ax, v), height - BOTTOM + 4, "grid");
        text_at(f, at(&ax, v), height - BOTTOM + 20, "middle", "t",
                v > 0 ? text_rate(label, sizeof label, v, unit) : "0");
    }
    for (int i = 0; i < n; i++) {
        if (bars[i].begins_group) y += GROUP;
        double end = at(&ax, bars[i].value);
        text_at(f, LEFT - 8, y + 12, "end", "t", bars[i].label);
        fprintf(f,
                "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" class=\"bar "
                "c%d\"><title>",
                LEFT, y, fmax(end - LEFT, 1), BAR, bars[i].colour % CHART_COLOURS);
        write_html_escaped(f, bars[i].text);
        fputs("</title></rect>\n", f);
        if (isfinite(bars[i].mark)) {
            double m = at(&ax, bars[i].mark);
            line(f, m, y - 2, m, y + BAR + 2, "mark");
            if (m > end) end = m;
        }
        text_at(f, end + 8, y + 12, "start", "t", bars[i].text);
        y += ROW;
    }
    close_svg(f);
}

/* Whether a longer problem of the same series exists: bars show the longest one only. */
static int is_longest(const bench_report *r, const bench_result *x) {
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *y = &r->results[i];
        if (y->status == BENCH_OK && y->device == x->device && y->dtype == x->dtype &&
            y->kv_len > x->kv_len && strcmp(y->family, x->family) == 0 &&
            strcmp(y->kernel, x->kernel) == 0 && strcmp(y->pattern, x->pattern) == 0)
            return 0;
    }
    return 1;
}

/* Whether one dtype was run by more than one kernel, so that labels have to tell them apart. */
static int several_kernels(const bench_report *r, int device) {
    for (int i = 0; i < r->n_results; i++)
        for (int j = 0; j < i; j++) {
            const bench_result *x = &r->results[i], *y = &r->results[j];
            if (x->status == BENCH_OK && y->status == BENCH_OK && x->device == device &&
                y->device == device && x->dtype == y->dtype && strcmp(x->kernel, y->kernel) != 0)
                return 1;
        }
    return 0;
}

/* Bars of one device. `decode`: bytes a second of problems with one new token; otherwise FLOP/s of
 * the others. */
static int device_bars(const bench_report *r, const int *order, int device, int decode, FILE *f) {
    chart_bar *bars = calloc((size_t)r->n_results + 1, sizeof *bars);
    int n = 0, kernels = several_kernels(r, device);
    char rate[TEXT_SIZE], share[24], tokens[24], title[192];
    const char *unit = decode ? "B/s" : "FLOP/s";
    const bench_result *previous = NULL;
    for (int i = 0; bars && i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        if (x->status != BENCH_OK || x->device != device || result_is_decode(x) != decode ||
            (!decode && !is_longest(r, x)))
            continue;
        chart_bar *b = &bars[n++];
        int dense = strcmp(x->pattern, "dense") == 0,
            ceiling = decode ? x->copy_ceiling : x->gemm_ceiling;
        snprintf(b->label, sizeof b->label, "%s %s %s%s%s, %s%s", x->family, x->pattern,
                 dtype_name(x->dtype), kernels ? " " : "", kernels ? x->kernel : "",
                 short_tokens(tokens, sizeof tokens, x->kv_len),
                 x->heads_total > x->heads ? "*" : "");
        b->value = decode ? x->byte_rate : x->flop_rate;
        b->mark = ceiling >= 0 ? r->devices[device].ceilings[ceiling].rate : NAN;
        snprintf(b->text, sizeof b->text, "%s, %s of %s",
                 text_rate(rate, sizeof rate, b->value, unit),
                 short_percent(share, sizeof share, decode ? x->copy_share : x->gemm_share),
                 decode ? "copy" : "GEMM");
        b->colour = dense ? 1 : 0;
        b->begins_group =
            previous && (strcmp(previous->family, x->family) != 0 || previous->dtype != x->dtype ||
                         strcmp(previous->kernel, x->kernel) != 0);
        previous = x;
    }
    if (n) {
        fputs("<h3>", f);
        snprintf(title, sizeof title, "%s: %s", r->devices[device].id, r->devices[device].name);
        write_html_escaped(f, title);
        fputs("</h3>\n", f);
        chart_bars(bars, n, unit,
                   decode ? "Bytes a second of decode problems, with the copy ceiling"
                          : "FLOP/s of the longest problem of each family, with the GEMM ceiling",
                   f);
    }
    free(bars);
    return n > 0;
}

static int all_bars(const bench_report *r, int decode, FILE *f) {
    int any = 0, *order = report_order(r);
    for (int d = 0; order && d < r->n_devices; d++) any |= device_bars(r, order, d, decode, f);
    free(order);
    return any;
}

int chart_throughput(const bench_report *r, FILE *f) { return all_bars(r, 0, f); }
int chart_decode(const bench_report *r, FILE *f) { return all_bars(r, 1, f); }

/* ------------------------------------------------------------------ roofline */

/* One roof of a device for each type that has a GEMM ceiling of its own: the ceilings' indices into
 * list[3]; returns how many. */
static int list_roofs(const bench_device *d, int list[3]) {
    int n = 0;
    for (uint32_t t = 0; t < 3; t++) {
        int g = device_ceiling(d, BENCH_GEMM, t), known = g < 0;
        for (int i = 0; i < n; i++) known |= list[i] == g;
        if (!known && plausible(d->ceilings[g].rate)) list[n++] = g;
    }
    return n;
}

static void roof(const bench_device *d, const axis *ax, const axis *ay, FILE *f) {
    int copy = device_ceiling(d, BENCH_COPY, 0), list[3], n = list_roofs(d, list);
    double slope = copy >= 0 ? d->ceilings[copy].rate : 0;
    for (int i = 0; i < n; i++) {
        double rate = d->ceilings[list[i]].rate, knee = ax->low;
        /* Where the roofs are level over the whole plot, the slope lies outside of it. */
        if (slope * ax->low < rate && rate > ay->low && slope * ax->high > ay->low) {
            double start = fmax(slope * ax->low, ay->low);
            knee = fmin(rate / slope, ax->high);
            line(f, at(ax, start / slope), at(ay, start), at(ax, knee), at(ay, knee * slope),
                 "roof");
        }
        if (rate > ay->low && (slope <= 0 || rate / slope < ax->high))
            line(f, at(ax, knee), at(ay, rate), ax->to, at(ay, rate), "roof");
    }
}

static void roof_labels(const bench_device *d, const axis *ax, const axis *ay, FILE *f) {
    int copy = device_ceiling(d, BENCH_COPY, 0), list[3], n = list_roofs(d, list);
    double highest = 0;
    char label[192], text[TEXT_SIZE];
    for (int i = 0; i < n; i++) highest = fmax(highest, d->ceilings[list[i]].rate);
    for (int i = 0; i < n; i++) {
        const bench_ceiling *c = &d->ceilings[list[i]];
        if (c->rate <= ay->low) continue;
        snprintf(label, sizeof label, "%s: %s GEMM, %s, %s", d->id, dtype_name(c->dtype),
                 text_rate(text, sizeof text, c->rate, "FLOP/s"), c->library);
        /* Above the highest roof, below the others, so that close roofs keep their labels apart; at
         * the knee, since marks lie rather to the right. */
        double knee = copy >= 0 ? fmax(c->rate / d->ceilings[copy].rate, ax->low) : ax->low;
        if (knee < ax->high)
            text_at(f, at(ax, knee) + 8, at(ay, c->rate) + (c->rate < highest ? 15 : -6), "start",
                    "t halo", label);
    }
    if (copy < 0) return;
    double x = fmax(ax->low, ay->low / d->ceilings[copy].rate) * 2.2,
           y = d->ceilings[copy].rate * x;
    snprintf(label, sizeof label, "%s: copy, %s", d->id,
             text_rate(text, sizeof text, d->ceilings[copy].rate, "B/s"));
    if (y < highest && x < ax->high)
        text_at(f, at(ax, x) + 10, at(ay, y) + 4, "start", "t halo", label);
}

static int has_place(const bench_result *x) {
    return x->status == BENCH_OK && plausible(x->flop_rate) && x->bytes_min > 0 &&
           plausible(x->flops / (double)x->bytes_min);
}

int chart_roofline(const bench_report *r, FILE *f) {
    enum { HEIGHT = 420, LEFT = 70, BOTTOM = 46 };
    series list[MAX_SERIES];
    double x_low = INFINITY, x_high = 0, y_low = INFINITY, y_high = 0;
    int n = 0;
    char label[TEXT_SIZE];
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (!has_place(x)) continue;
        double intensity = x->flops / (double)x->bytes_min;
        n++;
        x_low = fmin(x_low, intensity);
        x_high = fmax(x_high, intensity);
        y_low = fmin(y_low, x->flop_rate);
        y_high = fmax(y_high, x->flop_rate);
    }
    int *order = n ? report_order(r) : NULL;
    if (!order) return 0;
    n = all_series(r, order, list);
    free(order);
    for (int d = 0; d < r->n_devices; d++)
        for (int c = 0; c < r->devices[d].n_ceilings; c++)
            if (r->devices[d].ceilings[c].unit == BENCH_GEMM &&
                plausible(r->devices[d].ceilings[c].rate))
                y_high = fmax(y_high, r->devices[d].ceilings[c].rate);
    x_low = previous_power(x_low / 1.5, 10);
    x_high = next_power(x_high * 1.5, 10);
    y_low = previous_power(y_low / 1.2, 10);
    y_high = next_power(y_high * 1.3, 10);
    int legend = legend_height(r, list, n);
    axis ax = {x_low, x_high, LEFT, WIDTH - 12, 1},
         ay = {y_low, y_high, legend + HEIGHT - BOTTOM, legend + 14, 1};
    open_svg(f, legend + HEIGHT, "Roofline: FLOP/s against FLOP per byte");
    series_legend(r, list, n, 12, f);
    for (int k = 0; k <= log_steps(y_low, y_high, 10); k++) {
        double v = y_low * pow(10, k);
        line(f, ax.from, at(&ay, v), ax.to, at(&ay, v), "grid");
        text_at(f, ax.from - 6, at(&ay, v) + 4, "end", "t", text_rate(label, sizeof label, v, ""));
    }
    for (int k = 0; k <= log_steps(x_low, x_high, 10); k++) {
        double v = x_low * pow(10, k);
        line(f, at(&ax, v), ay.from, at(&ax, v), ay.to, "grid");
        snprintf(label, sizeof label, "%.9g", v);
        text_at(f, at(&ax, v), ay.from + 16, v < x_high * 0.99 ? "middle" : "end", "t", label);
    }
    text_at(f, (ax.from + ax.to) / 2, ay.from + 36, "middle", "t",
            "useful FLOP per byte of Q, K, V and O");
    upright_text(f, 14, (ay.from + ay.to) / 2, "useful FLOP/s");
    for (int d = 0; d < r->n_devices; d++) roof(&r->devices[d], &ax, &ay, f);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        char title[256];
        if (!has_place(x)) continue;
        result_title(r, x, title, sizeof title);
        marker(f, find_series(list, n, x), at(&ax, x->flops / (double)x->bytes_min),
               at(&ay, x->flop_rate), title);
    }
    /* over the marks */
    for (int d = 0; d < r->n_devices; d++) roof_labels(&r->devices[d], &ax, &ay, f);
    close_svg(f);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `tessera compare`: result files side by side. A column is one device of one file, or
 * one of its kernels where the file holds several for one problem; a row is one problem line.
 * Ratios are to the column of the first file that is most alike: same device and kernel, else same
 * device, else the first.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "charts.h"
#include "html.h"
#include "json.h"
#include "options.h"
#include "report.h"
#include "table.h"
#include "text.h"

enum { MAX_FILES = 16, MAX_COLUMNS = 64 };

static const char help[] =
    "usage: tessera compare A.json B.json ... [--md F] [--html F]\n\n"
    "Sets result files of `tessera bench --json` side by side: median times of the problems that "
    "at least two columns share, and the ratio to the "
    "first\n"
    "file (above 1: faster than it). '~' marks a ratio within the spread, that is, the quartile "
    "ranges of both times overlap.\n\n"
    "Exit status: 0; 1 when a file cannot be read or nothing is in common; 2 for unknown words.\n";

typedef struct column {
    int file, device;
    const char *kernel; /* NULL: whichever ran the problem */
    char name[192];
    int base; /* the column of file 0 that ratios refer to; -1: none */
} column;

typedef struct row {
    const bench_result *any; /* that file's result which was seen first: shape and line */
} row;

typedef struct comparison {
    bench_report reports[MAX_FILES];
    const char *paths[MAX_FILES];
    int n_files;
    column columns[MAX_COLUMNS];
    int n_columns;
    row *rows; /* one per distinct problem line that two files share */
    int n_rows;
} comparison;

/* ------------------------------------------------------------------ alignment */

static const bench_result *cell(const comparison *c, const char *line, int k) {
    const column *col = &c->columns[k];
    const bench_report *r = &c->reports[col->file];
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (x->status == BENCH_OK && x->device == col->device &&
            (!col->kernel || strcmp(x->kernel, col->kernel) == 0) && strcmp(x->line, line) == 0)
            return x;
    }
    return NULL;
}

/* Whether a device was measured with several kernels on one problem. */
static int has_kernels(const bench_report *r, int device) {
    for (int i = 0; i < r->n_results; i++)
        for (int j = 0; j < i; j++) {
            const bench_result *x = &r->results[i], *y = &r->results[j];
            if (x->status == BENCH_OK && y->status == BENCH_OK && x->device == device &&
                y->device == device && strcmp(x->kernel, y->kernel) != 0 &&
                strcmp(x->line, y->line) == 0)
                return 1;
        }
    return 0;
}

static int same_kernel(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

static int add_column(comparison *c, int file, int device, const char *kernel) {
    for (int k = 0; k < c->n_columns; k++)
        if (c->columns[k].file == file && c->columns[k].device == device &&
            same_kernel(c->columns[k].kernel, kernel))
            return 0;
    if (c->n_columns == MAX_COLUMNS) return -1;
    column *col = &c->columns[c->n_columns++];
    *col = (column){.file = file, .device = device, .kernel = kernel, .base = -1};
    snprintf(col->name, sizeof col->name, "%c: %.60s%s%.90s", 'A' + file,
             c->reports[file].devices[device].id, kernel ? " " : "", kernel ? kernel : "");
    return 0;
}

static int find_columns(comparison *c) {
    for (int f = 0; f < c->n_files; f++) {
        const bench_report *r = &c->reports[f];
        for (int d = 0; d < r->n_devices; d++) {
            int kernels = has_kernels(r, d);
            for (int i = 0; i < r->n_results; i++) {
                const bench_result *x = &r->results[i];
                if (x->status == BENCH_OK && x->device == d &&
                    add_column(c, f, d, kernels ? x->kernel : NULL) != 0)
                    return -1;
            }
        }
    }
    for (int k = 0; k < c->n_columns; k++) {
        int best = 0;
        column *col = &c->columns[k];
        for (int b = 0; b < c->n_columns && c->columns[b].file == 0 && col->file != 0; b++) {
            int device = strcmp(c->reports[0].devices[c->columns[b].device].id,
                                c->reports[col->file].devices[col->device].id) == 0;
            int score = 1 + device + 2 * (device && same_kernel(c->columns[b].kernel, col->kernel));
            if (score > best) {
                best = score;
                col->base = b;
            }
        }
    }
    return 0;
}

static int find_rows(comparison *c) {
    size_t total = 1;
    for (int f = 0; f < c->n_files; f++) total += (size_t)c->reports[f].n_results;
    c->rows = calloc(total, sizeof *c->rows);
    if (!c->rows) return -1;
    for (int f = 0; f < c->n_files; f++) {
        int *order = report_order(&c->reports[f]);
        if (!order) return -1;
        for (int i = 0; i < c->reports[f].n_results; i++) {
            const bench_result *x = &c->reports[f].results[order[i]];
            int known = x->status != BENCH_OK, files = 0;
            for (int k = 0; k < c->n_rows && !known; k++)
                known = strcmp(c->rows[k].any->line, x->line) == 0;
            if (known) continue;
            for (int g = 0, last = -1; g < c->n_columns; g++)
                if (c->columns[g].file != last && cell(c, x->line, g)) {
                    files++;
                    last = c->columns[g].file;
                }
            if (files > 1) c->rows[c->n_rows++].any = x;
        }
        free(order);
    }
    return 0;
}

/* How many times faster than its base a column is, or NaN; *within: the quartile ranges overlap. */
static double ratio(const comparison *c, const char *line, int k, int *within) {
    const bench_result *x = cell(c, line, k),
                       *base = c->columns[k].base >= 0 ? cell(c, line, c->columns[k].base) : NULL;
    *within = 0;
    if (!x || !base) return NAN;
    *within = x->q1 <= base->q3 && base->q1 <= x->q3;
    return base->median / x->median;
}

/* ------------------------------------------------------------------ output */

static void problem_cells(table *t, const bench_result *x) {
    char tokens[24], heads[32];
    table_cell(t, "%s %s", x->family, x->pattern);
    table_cell(t, "%s", dtype_name(x->dtype));
    table_cell(t, "%s", short_tokens(tokens, sizeof tokens, x->kv_len));
    table_cell(t, "%s", result_heads(x, heads, sizeof heads));
}

static void fill_table(const comparison *c, table *t, const char **heads) {
    heads[0] = "<problem";
    heads[1] = "<type";
    heads[2] = "tokens";
    heads[3] = "heads";
    int n = 4;
    for (int k = 0; k < c->n_columns; k++) {
        heads[n++] = c->columns[k].name;
        if (c->columns[k].file > 0) heads[n++] = "to A";
    }
    table_init(t, n, heads);
    for (int i = 0; i < c->n_rows && c->rows[i].any; i++) {
        problem_cells(t, c->rows[i].any);
        for (int k = 0; k < c->n_columns; k++) {
            char text[TEXT_SIZE];
            int within;
            const bench_result *x = cell(c, c->rows[i].any->line, k);
            table_cell(t, "%s", x ? text_seconds(text, sizeof text, x->median) : "-");
            if (c->columns[k].file == 0) continue;
            double v = ratio(c, c->rows[i].any->line, k, &within);
            short_ratio(text, sizeof text, v);
            table_cell(t, "%s%s", within ? "~ " : "", text);
        }
    }
}

/* Geometric mean of a column's ratios, with how many there are. */
static double mean_ratio(const comparison *c, int k, int *count, int *clear) {
    double sum = 0;
    *count = *clear = 0;
    for (int i = 0; i < c->n_rows; i++) {
        int within;
        double v = ratio(c, c->rows[i].any->line, k, &within);
        if (!isfinite(v) || !(v > 0)) continue;
        sum += log(v);
        ++*count;
        *clear += !within;
    }
    return *count ? exp(sum / *count) : NAN;
}

static void file_line(const comparison *c, int f, char *text, size_t size) {
    const bench_report *r = &c->reports[f];
    char load[24], other[48] = "";
    if (r->machine.other_load > 0.05)
        snprintf(other, sizeof other, ", disturbed by %s other work",
                 short_percent(load, sizeof load, r->machine.other_load));
    char shown[TEXT_PATH];
    snprintf(text, size, "%c = %s: Tessera %s, %.100s, %.100s, %s%s%s", 'A' + f,
             text_path(shown, c->paths[f]), r->library_version, r->machine.cpu, r->machine.os,
             r->created, other, r->complete ? "" : ", interrupted");
    cli_one_line(text);
}

static void summary_line(const comparison *c, int k, char *text, size_t size) {
    char mean[24];
    int count, clear;
    double v = mean_ratio(c, k, &count, &clear);
    snprintf(
        text, size,
        "%.150s: %s to %.150s over %d problems (geometric mean); %d differ by more than the spread",
        c->columns[k].name, short_ratio(mean, sizeof mean, v), c->columns[c->columns[k].base].name,
        count, clear);
}

static int has_ratios(const comparison *c, int k) {
    int count, clear;
    if (c->columns[k].file > 0 && c->columns[k].base >= 0)
        mean_ratio(c, k, &count, &clear);
    else
        count = 0;
    return count > 0;
}

static void write_ratio_chart(const comparison *c, FILE *f) {
    chart_bar *bars = calloc((size_t)c->n_rows * (size_t)c->n_columns + 1, sizeof *bars);
    int n = 0;
    for (int i = 0; bars && i < c->n_rows; i++) {
        int begins = i > 0;
        for (int k = 0; k < c->n_columns; k++) {
            const bench_result *x = cell(c, c->rows[i].any->line, k);
            char tokens[24], rate[TEXT_SIZE];
            if (!x) continue;
            chart_bar *b = &bars[n++];
            snprintf(b->label, sizeof b->label, "%s %s %s, %s  %c", x->family, x->pattern,
                     dtype_name(x->dtype), short_tokens(tokens, sizeof tokens, x->kv_len),
                     'A' + c->columns[k].file);
            snprintf(b->text, sizeof b->text, "%s",
                     text_rate(rate, sizeof rate, x->flop_rate, "FLOP/s"));
            b->value = x->flop_rate;
            b->mark = x->gemm_ceiling >= 0 ? c->reports[c->columns[k].file]
                                                 .devices[x->device]
                                                 .ceilings[x->gemm_ceiling]
                                                 .rate
                                           : NAN;
            b->colour = k % CHART_COLOURS;
            b->begins_group = begins;
            begins = 0;
        }
    }
    if (n)
        chart_bars(bars, n, "FLOP/s",
                   "FLOP/s of each problem in each column, with the ceiling of its machine", f);
    free(bars);
}

static void write_html(const comparison *c, const table *t, FILE *f) {
    char text[768];
    html_begin(f, "Tessera compare");
    fputs("<h1>Tessera compare</h1>\n<ul class=\"muted\">\n", f);
    for (int i = 0; i < c->n_files; i++) {
        file_line(c, i, text, sizeof text);
        fputs("<li>", f);
        write_html_escaped(f, text);
        fputs("</li>\n", f);
    }
    fputs("</ul>\n<ul>\n", f);
    for (int k = 0; k < c->n_columns; k++) {
        if (!has_ratios(c, k)) continue;
        summary_line(c, k, text, sizeof text);
        fputs("<li>", f);
        write_html_escaped(f, text);
        fputs("</li>\n", f);
    }
    fputs("</ul>\n<h2>Times</h2>\n<p>Medians; ratios above 1 are faster than A; ~ marks a "
          "difference within the spread.</p>\n",
          f);
    table_html(t, f);
    fputs("<h2>Throughput</h2>\n<p>", f);
    for (int k = 0; k < c->n_columns; k++) {
        fprintf(f, "<span class=\"key c%d\"></span>", k % CHART_COLOURS);
        write_html_escaped(f, c->columns[k].name);
    }
    fputs("<span class=\"keymark\"></span>ceiling of the machine</p>\n", f);
    write_ratio_chart(c, f);
    html_end(f);
}

static void write_text(const comparison *c, const table *t, FILE *f, int markdown) {
    char text[768];
    const char *bullet = markdown ? "- " : "";
    if (markdown) fputs("# Tessera compare\n\n", f);
    for (int i = 0; i < c->n_files; i++) {
        file_line(c, i, text, sizeof text);
        fputs(bullet, f);
        if (markdown)
            write_markdown_escaped(f, text);
        else
            fputs(text, f);
        fputc('\n', f);
    }
    fputc('\n', f);
    if (markdown)
        table_markdown(t, f);
    else
        table_text(t, f);
    fputs("\nMedian times; ratios above 1 are faster than A; ~ marks a difference within the "
          "spread.\n\n",
          f);
    for (int k = 0; k < c->n_columns; k++) {
        if (!has_ratios(c, k)) continue;
        summary_line(c, k, text, sizeof text);
        fprintf(f, "%s%s\n", bullet, text);
    }
}

/* ------------------------------------------------------------------ command */

enum { MD, HTML, N_OUTPUTS };

static int write_files(const comparison *c, const table *t, const cli_option *outputs) {
    text_file files[N_OUTPUTS] = {{0}};
    char error[512];
    int status = 0, at = 0;
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        if (!outputs[i].given) continue;
        at = i;
        status = text_file_open(&files[i], outputs[i].value, error, sizeof error);
        if (status != 0) break;
        if (i == MD)
            write_text(c, t, files[i].stream, 1);
        else
            write_html(c, t, files[i].stream);
        status = text_file_close(&files[i], error, sizeof error);
    }
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        at = i;
        if (outputs[i].given) status = text_file_publish(&files[i], error, sizeof error);
    }
    if (status != 0) cli_error(CLI_FAILED, "compare", "--%s: %s", outputs[at].name, error);
    for (int i = 0; i < N_OUTPUTS; i++) text_file_discard(&files[i]);
    return status == 0 ? CLI_OK : CLI_FAILED;
}

static int run(comparison *c, const cli_option *outputs) {
    char error[512];
    const char *heads[4 + 2 * MAX_COLUMNS];
    for (int f = 0; f < c->n_files; f++)
        if (json_read(&c->reports[f], c->paths[f], error, sizeof error) != 0)
            return cli_error(CLI_FAILED, "compare", "%s", error);
    if (find_columns(c) != 0)
        return cli_error(CLI_FAILED, "compare", "the files hold more than %d devices and kernels",
                         MAX_COLUMNS);
    if (find_rows(c) != 0) return cli_error(CLI_FAILED, "compare", "out of memory");
    if (!c->n_rows)
        return cli_error(CLI_FAILED, "compare", "the files have no measured problem in common");
    /* Nothing is printed before the files are known to be writable. */
    for (int i = 0; i < N_OUTPUTS; i++)
        if (outputs[i].given && text_file_probe(outputs[i].value, error, sizeof error) != 0)
            return cli_error(CLI_FAILED, "compare", "--%s: %s", outputs[i].name, error);
    table t;
    fill_table(c, &t, heads);
    int status = t.failed ? CLI_FAILED : CLI_OK;
    if (status == CLI_OK) {
        write_text(c, &t, stdout, 0);
        status = write_files(c, &t, outputs);
    }
    return table_free(&t) == 0 ? status : cli_error(CLI_FAILED, "compare", "out of memory");
}

int compare_main(int argc, char **argv) {
    cli_option outputs[N_OUTPUTS] = {{.name = "md", .takes_value = 1},
                                     {.name = "html", .takes_value = 1}};
    size_t n;
    int status = cli_options(argc, argv, help, outputs, N_OUTPUTS, &n);
    if (status != CLI_GO_ON) return status;
    if (n < 2)
        return cli_error(CLI_USAGE, "compare",
                         "give at least two result files; see tessera compare --help");
    if (n > MAX_FILES) return cli_error(CLI_USAGE, "compare", "more than %d files", MAX_FILES);
    if (outputs[MD].given && outputs[HTML].given &&
        text_same_file(outputs[MD].value, outputs[HTML].value))
        return cli_error(CLI_USAGE, "compare", "--md and --html: the same file");
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < N_OUTPUTS; k++)
            if (outputs[k].given && text_same_file(outputs[k].value, argv[1 + i]))
                return cli_error(CLI_USAGE, "compare", "--%s: is one of the files to compare",
                                 outputs[k].name);
    comparison *c = calloc(1, sizeof *c);
    if (!c) return cli_error(CLI_FAILED, "compare", "out of memory");
    for (size_t i = 0; i < n; i++) c->paths[c->n_files++] = argv[1 + i];
    status = run(c, outputs);
    for (int f = 0; f < c->n_files; f++) report_free(&c->reports[f]);
    free(c->rows);
    free(c);
    return status;
}

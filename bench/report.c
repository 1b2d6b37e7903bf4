/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planning.h"
#include "table.h"
#include "text.h"

/* ------------------------------------------------------------------ small forms */

const char *short_tokens(char *buffer, size_t size, int64_t tokens) {
    if (tokens >= 1024 && tokens < 10240 * (int64_t)1024 && tokens % 1024 == 0)
        snprintf(buffer, size, "%" PRId64 "k", tokens / 1024);
    else
        snprintf(buffer, size, "%" PRId64, tokens);
    return buffer;
}

/* Two digits of a small ratio without an exponent, as the page's script shows it. */
static int ratio_decimals(double ratio) {
    char scientific[32];
    if (ratio >= 0.0995) return ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
    snprintf(scientific, sizeof scientific, "%.1e", ratio);
    const int decimals = 1 - atoi(strchr(scientific, 'e') + 1);
    return decimals < 10 ? decimals : 10;
}

const char *short_ratio(char *buffer, size_t size, double ratio) {
    if (!isfinite(ratio))
        snprintf(buffer, size, "-");
    else
        snprintf(buffer, size, "%.*fx", ratio_decimals(ratio), ratio);
    return buffer;
}

const char *short_percent(char *buffer, size_t size, double share) {
    if (!isfinite(share))
        snprintf(buffer, size, "-");
    else
        snprintf(buffer, size, share < 0.0995 ? "%.1f%%" : "%.0f%%", share * 100);
    return buffer;
}

int result_is_decode(const bench_result *r) {
    return r->decode || (r->q_len == 1 && r->kv_len > 1);
}

const char *result_cache(const bench_result *r, char *buffer, size_t size) {
    const char *how = r->compact ? "slots" : r->page ? "pages" : "in place";
    if (r->page)
        snprintf(buffer, size, "%s %d", how, r->page);
    else
        snprintf(buffer, size, "%s", how);
    return buffer;
}

int report_disturbed(const bench_report *r, char *buffer, size_t size) {
    static const double quiet = 0.05;
    char share[24];
    if (size) buffer[0] = 0;
    if (!(r->machine.other_load > quiet)) return 0;
    snprintf(buffer, size,
             "Other work took %s of the CPUs during the run: CPU times are longer, and shares less "
             "certain, than on a quiet machine.",
             short_percent(share, sizeof share, r->machine.other_load));
    return 1;
}

int report_count(const bench_report *r, int status) {
    int n = 0;
    for (int i = 0; i < r->n_results; i++) n += r->results[i].status == status;
    return n;
}

int report_count_skipped(const bench_report *r) {
    return r->n_results - report_count(r, BENCH_OK) - report_count(r, BENCH_FAILED);
}

/* ------------------------------------------------------------------ order */

typedef struct order_key {
    int index, family;
    const bench_result *x;
} order_key;

static int compare_keys(const void *a, const void *b) {
    const order_key *k = a, *l = b;
    const bench_result *x = k->x, *y = l->x;
    if (k->family != l->family) return k->family - l->family;
    if (x->device != y->device) return x->device - y->device;
    int kernels = strcmp(x->kernel, y->kernel);
    if (kernels) return kernels;
    if (x->dtype != y->dtype) return x->dtype < y->dtype ? -1 : 1;
    if (x->kv_len != y->kv_len) return x->kv_len < y->kv_len ? -1 : 1;
    int dense = (strcmp(x->pattern, "dense") == 0) - (strcmp(y->pattern, "dense") == 0);
    return dense ? dense : k->index - l->index;
}

int *report_order(const bench_report *r) {
    size_t n = (size_t)r->n_results;
    int *order = malloc((n + 1) * sizeof *order);
    order_key *keys = malloc((n + 1) * sizeof *keys);
    if (!order || !keys) {
        free(order);
        free(keys);
        return NULL;
    }
    for (int i = 0; i < r->n_results; i++) {
        keys[i] = (order_key){i, i, &r->results[i]};
        for (int j = 0; j < i; j++) {
            if (strcmp(r->results[j].family, r->results[i].family) != 0) continue;
            keys[i].family = keys[j].family;
            break;
        }
    }
    if (n) qsort(keys, n, sizeof *keys, compare_keys);
    for (int i = 0; i < r->n_results; i++) order[i] = keys[i].index;
    free(keys);
    return order;
}

/* ------------------------------------------------------------------ results */

/* Rates of a CPU are read in GFLOP/s, those of a GPU in TFLOP/s. */
static double rate_unit(const bench_device *d) { return strcmp(d->kind, "gpu") == 0 ? 1e12 : 1e9; }
static const char *rate_name(const bench_device *d) {
    return strcmp(d->kind, "gpu") == 0 ? "TFLOP/s" : "GFLOP/s";
}

/* A share of a ceiling. `limit`: whether that ceiling is the result's limit. */
static void share_cell(table *t, const bench_result *x, double share, int limit) {
    char b[24];
    table_cell(t, "%s%s", short_percent(b, sizeof b, share), limit && x->above_limit ? "?" : "");
}

/* The cells that every form of the table has. Rates are divided by `unit`, or written with a prefix
 * of their own when it is 0. */
static void cells(table *t, const bench_result *x, double unit) {
    char b[TEXT_SIZE];
    char heads[32];
    double rate = unit > 0 ? x->flop_rate / unit : 0;
    table_cell(t, "%s%s", x->pattern, x->backward ? ", bwd" : "");
    table_cell(t, "%s", dtype_name(x->dtype));
    table_cell(t, "%s", short_tokens(b, sizeof b, x->kv_len));
    if (x->heads_total > x->heads)
        snprintf(heads, sizeof heads, "%d/%d", x->heads, x->heads_total);
    else
        snprintf(heads, sizeof heads, "%d", x->heads);
    table_cell(t, "%s", heads);
    table_cell(t, "%s", text_seconds(b, sizeof b, x->plan_seconds));
    table_cell(t, "%s", text_seconds(b, sizeof b, x->first_seconds));
    table_cell(t, "%s", text_seconds(b, sizeof b, x->median));
    table_cell(t, "%s%s", short_percent(b, sizeof b, x->spread), x->noisy ? "!" : "");
    if (unit > 0)
        table_cell(t, rate < 9.995 ? "%.2f" : rate < 99.95 ? "%.1f" : "%.0f", rate);
    else
        table_cell(t, "%s", text_rate(b, sizeof b, x->flop_rate, ""));
    table_cell(t,
               x->byte_rate < 9.995e9   ? "%.2f"
               : x->byte_rate < 99.95e9 ? "%.1f"
                                        : "%.0f",
               x->byte_rate / 1e9);
    table_cell(t, "%s%s", short_ratio(b, sizeof b, x->speedup), x->suspect ? "?" : "");
    table_cell(t, "%s", x->twin_line[0] ? short_ratio(b, sizeof b, x->ideal_speedup) : "-");
    share_cell(t, x, x->gemm_share, x->limit_ceiling == x->gemm_ceiling);
    share_cell(t, x, x->copy_share, x->limit_ceiling != x->gemm_ceiling);
    table_cell(t, "%s", text_bytes(b, sizeof b, (double)x->workspace_bytes));
    table_cell(t, "%s", text_bytes(b, sizeof b, (double)x->kv_bytes_kept));
}

/* The same for decode, which memory bounds. */
static void decode_cells(table *t, const bench_result *x) {
    char a[TEXT_SIZE], b[32];
    table_cell(t, "%s", x->pattern);
    table_cell(t, "%s", dtype_name(x->dtype));
    table_cell(t, "%s", short_tokens(a, sizeof a, x->kv_len));
    table_cell(t, "%" PRId64 " x %" PRId64, x->batch, x->q_len);
    table_cell(t, "%s/%d", result_heads(x, b, sizeof b), x->kv_heads);
    table_cell(t, "%d", x->head_dim);
    table_cell(t, "%s", result_cache(x, a, sizeof a));
    table_cell(t, "%d", x->layers);
    table_cell(t, "%.3g", x->parts);
    table_cell(t, "%s", text_seconds(a, sizeof a, x->plan_seconds));
    table_cell(t, "%s", text_seconds(a, sizeof a, x->host_seconds));
    table_cell(t, "%s", text_seconds(a, sizeof a, x->median));
    table_cell(t, "%s%s", short_percent(a, sizeof a, x->spread), x->noisy ? "!" : "");
    table_cell(t, x->byte_rate < 99.95e9 ? "%.1f" : "%.0f", x->byte_rate / 1e9);
    share_cell(t, x, x->copy_share, 1);
    table_cell(t, "%s%s", short_ratio(a, sizeof a, x->speedup), x->suspect ? "?" : "");
    table_cell(t, "%s", x->twin_line[0] ? short_ratio(a, sizeof a, x->ideal_speedup) : "-");
    table_cell(t, "%s", text_bytes(a, sizeof a, (double)x->cache_bytes));
}

#define DECODE_HEADS                                                                              \
    "tokens", "rows", "heads", "D", "<cache", "layers", "parts", "plan", "host", "median", "IQR", \
        "GB/s", "copy", "speed-up", "ideal", "K and V"

#define CELL_HEADS "tokens", "heads", "plan", "first", "median", "IQR"
#define CELL_TAIL  "GB/s", "speed-up", "ideal", "GEMM", "copy", "workspace", "KV kept"

/* Results from place i of the order on that stand in one table, of one family and device and, where
 * it is known, of one kernel. *x becomes the last of them that has numbers. Returns the place
 * behind. */
static int text_table(const bench_report *r, const int *order, int i, table *t,
                      const bench_result **last) {
    const bench_result *x = *last;
    for (; i < r->n_results; i++) {
        const bench_result *y = &r->results[order[i]];
        if (strcmp(x->family, y->family) != 0 || x->device != y->device) break;
        if (y->status == BENCH_OK && strcmp(x->kernel, y->kernel) != 0 && x->kernel[0] &&
            x->status == BENCH_OK)
            break;
        if (y->status != BENCH_OK) continue;
        x = y;
        if (y->decode)
            decode_cells(t, y);
        else
            cells(t, y, rate_unit(&r->devices[y->device]));
    }
    *last = x;
    return i;
}

static void text_results(const bench_report *r, FILE *f, const int *order) {
    static const char *const decode_heads[] = {"<", "<", DECODE_HEADS};
    const char *heads[] = {"<", "<", CELL_HEADS, "", CELL_TAIL};
    for (int i = 0; i < r->n_results;) {
        const bench_result *x = &r->results[order[i]];
        table t;
        const bench_device *d = &r->devices[x->device];
        heads[8] = rate_name(d);
        if (x->decode)
            table_init(&t, (int)(sizeof decode_heads / sizeof *decode_heads), decode_heads);
        else
            table_init(&t, (int)(sizeof heads / sizeof *heads), heads);
        i = text_table(r, order, i, &t, &x);
        if (t.n_cells) {
            fprintf(f, "\n%s on %s, %s\n", x->family, d->id, x->kernel);
            table_text(&t, f);
        }
        table_free(&t);
    }
}

static void skipped_table(table *t, const bench_report *r, const int *order) {
    static const char *const heads[] = {"<status", "<family", "<device", "<why", "<problem"};
    table_init(t, 5, heads);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        if (x->status == BENCH_OK) continue;
        table_cell(t, "%s", status_word(x->status));
        table_cell(t, "%s", x->family);
        table_cell(t, "%s", r->devices[x->device].id);
        table_cell(t, "%s", x->note);
        table_cell(t, "%s", x->line);
    }
}

/* All results of decode problems, or all others. */
static void full_table(table *t, const bench_report *r, const int *order, int decode) {
    static const char *const heads[] = {"<family",      "<device",  "<kernel", "<pattern",
                                        "<type",        CELL_HEADS, "FLOP/s",  CELL_TAIL,
                                        "rows checked", "<problem"};
    static const char *const decode_heads[] = {"<family", "<device",    "<kernel",      "<pattern",
                                               "<type",   DECODE_HEADS, "rows checked", "<problem"};
    if (decode)
        table_init(t, (int)(sizeof decode_heads / sizeof *decode_heads), decode_heads);
    else
        table_init(t, (int)(sizeof heads / sizeof *heads), heads);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        if (x->status != BENCH_OK || x->decode != decode) continue;
        table_cell(t, "%s", x->family);
        table_cell(t, "%s", r->devices[x->device].id);
        table_cell(t, "%s", x->kernel);
        if (decode)
            decode_cells(t, x);
        else
            cells(t, x, 0);
        table_cell(t, "%" PRId64, x->checked_rows);
        table_cell(t, "%s", x->line);
    }
}

/* ------------------------------------------------------------------ planning and ceilings */

static void planning_table(table *t, const bench_report *r) {
    static const char *const heads[] = {"<plan",  "<device",   "jobs", "median", "range",
                                        "ns/job", "bytes/job", "size", "layout"};
    table_init(t, 9, heads);
    for (int i = 0; i < r->n_planning; i++) {
        const bench_planning *p = &r->planning[i];
        char a[TEXT_SIZE], b[TEXT_SIZE];
        double jobs = p->jobs ? (double)p->jobs : 1,
               bytes = (double)p->host_bytes + (double)p->device_bytes;
        table_cell(t, "%s", p->name);
        table_cell(t, "%s", r->devices[p->device].id);
        table_cell(t, "%s", text_count(a, sizeof a, p->jobs));
        table_cell(t, "%s", text_seconds(a, sizeof a, p->seconds));
        table_cell(t, "%s .. %s", text_seconds(a, sizeof a, p->seconds_min),
                   text_seconds(b, sizeof b, p->seconds_max));
        table_cell(t, "%.1f", p->seconds / jobs * 1e9);
        table_cell(t, "%.1f", bytes / jobs);
        table_cell(t, "%s", text_bytes(a, sizeof a, bytes));
        table_cell(t, "%s", text_seconds(a, sizeof a, p->layout_seconds));
    }
}

static void ceilings_table(table *t, const bench_report *r) {
    static const char *const heads[] = {"<device", "<what",   "rate",     "best",
                                        "size",    "threads", "<library", "<how"};
    table_init(t, 8, heads);
    for (int i = 0; i < r->n_devices; i++) {
        const bench_device *d = &r->devices[i];
        for (int j = 0; j < d->n_ceilings; j++) {
            const bench_ceiling *c = &d->ceilings[j];
            char a[TEXT_SIZE];
            const char *unit = c->unit == BENCH_GEMM ? "FLOP/s" : "B/s";
            int used = device_ceiling(d, c->unit, c->dtype) == j;
            table_cell(t, "%s", d->id);
            table_cell(t, "%s%s%s", c->unit == BENCH_GEMM ? dtype_name(c->dtype) : "",
                       c->unit == BENCH_GEMM   ? " GEMM"
                       : c->unit == BENCH_COPY ? "copy"
                                               : "read",
                       used ? " *" : "");
            table_cell(t, "%s", text_rate(a, sizeof a, c->rate, unit));
            table_cell(t, "%s", text_rate(a, sizeof a, c->best, unit));
            if (c->own_loop && c->unit == BENCH_GEMM)
                table_cell(t, "-");
            else if (c->unit == BENCH_GEMM)
                table_cell(t, "%" PRId64 "^3", c->size);
            else
                table_cell(t, "%s", text_bytes(a, sizeof a, (double)c->size));
            table_cell(t, "%d", c->threads);
            table_cell(t, "%s%s%s", c->library, c->via[0] ? " via " : "", c->via);
            table_cell(t, "%s", c->method);
        }
    }
}

static void planning_bars(char *text, size_t size) {
    snprintf(
        text, size,
        "Bars: 65,536 jobs (the two plans of 64 heads) in %.0f ms and %.0f MiB, with columns for "
        "gradients in %.0f ms; otherwise %.0f ns and %.0f bytes a job.",
        PLANNING_BAR_SECONDS * 1e3, PLANNING_BAR_BYTES / 1048576, PLANNING_BAR_COLUMNS * 1e3,
        PLANNING_BAR_JOB_SECONDS * 1e9, PLANNING_BAR_JOB_BYTES);
}

/* ------------------------------------------------------------------ text and Markdown */

static const char legend[] = "plan: median of tess_plan_create; first: first run; median: of the "
                             "runs after it, device time; IQR: distance of the\n"
                             "quartiles / median. FLOP/s count kept pairs only. GB/s: Q, K, V, O "
                             "once / time. speed-up: measured time of the dense\n"
                             "problem / time; ideal: dense / kept pairs. GEMM, copy: shares of the "
                             "ceilings. heads n/m: n heads of a model with m,\n"
                             "as on one rank of a tensor-parallel group. Every result was checked "
                             "against the fp64 reference on sampled rows first.\n"
                             "Decode: rows: sequences x new tokens; layers take turns, so that no "
                             "cache holds K and V; parts of a row's keys; host: the\n"
                             "time of tess_run on the host; K and V: of one layer, over the "
                             "batch. ! marks an IQR above 10 %, or a GPU whose clock rose by as "
                             "much meanwhile,\n? a speed-up above the ideal, or a share "
                             "above 100 %, by more than both spreads.\n";

static void summary_line(const bench_report *r, FILE *f) {
    int failed = report_count(r, BENCH_FAILED), skipped = report_count_skipped(r);
    fprintf(f, "%d results checked and measured, %d failed, %d skipped, %.0f s%s\n",
            report_count(r, BENCH_OK), failed, skipped, r->elapsed_seconds,
            r->complete ? "" : " (INTERRUPTED: incomplete)");
}

static void machine_line(const bench_report *r, FILE *f, const char *separator) {
    char memory[TEXT_SIZE];
    char warning[192];
    char version[128];
    fprintf(f, "Tessera %s, suite %s%s%s, %d of %d CPUs, %s, %s, %s, %s\n",
            report_version(r, version, sizeof version), r->suite, separator, r->machine.cpu,
            r->machine.cpus_allowed, r->machine.cpus,
            text_bytes(memory, sizeof memory, (double)r->machine.memory_bytes), r->machine.os,
            r->machine.kernel, r->compiler);
    if (report_disturbed(r, warning, sizeof warning)) fprintf(f, "%s\n", warning);
}

static void device_lines(const bench_report *r, FILE *f, const char *bullet) {
    char units[32];
    for (int i = 0; i < r->n_devices; i++) {
        const bench_device *d = &r->devices[i];
        fprintf(f, "%s%s: %s, %s%s%s; %s\n", bullet, d->id, d->name, d->arch,
                d->driver[0] ? ", " : "", d->driver, device_units(d, units, sizeof units));
        if (d->ceiling_note[0]) fprintf(f, "%s%s ceilings: %s\n", bullet, d->id, d->ceiling_note);
        if (d->planning_note[0]) fprintf(f, "%s%s plans: %s\n", bullet, d->id, d->planning_note);
    }
    for (int i = 0; i < r->n_peers; i++)
        if (r->peers[i].note[0])
            fprintf(f, "%speer %s: %s\n", bullet, r->peers[i].name, r->peers[i].note);
}

static int same_series(const bench_result *x, const bench_result *y) {
    return x->device == y->device && x->dtype == y->dtype && strcmp(x->family, y->family) == 0 &&
           strcmp(x->kernel, y->kernel) == 0;
}

/* What was not measured: lengths that did not fit the time in one line a series, everything else
 * with its reason and its problem. */
static void text_skipped(const bench_report *r, FILE *f, const int *order) {
    char tokens[24], need[TEXT_SIZE];
    int shown = 0;
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        if (x->status == BENCH_OK) continue;
        if (!shown++) fputc('\n', f);
        fprintf(f, "%s: %s %s on %s", status_word(x->status), x->family, dtype_name(x->dtype),
                r->devices[x->device].id);
        if (x->kernel[0]) fprintf(f, ", %s", x->kernel);
        if (x->status != BENCH_SLOW || !(x->need_seconds > 0)) {
            fprintf(f, ": %s\n  %s\n", x->note, x->line);
            continue;
        }
        fputs(", no time for:", f);
        for (const char *separator = ""; i < r->n_results; i++, separator = ",") {
            const bench_result *y = &r->results[order[i]];
            if (!same_series(x, y) || y->status != BENCH_SLOW || !(y->need_seconds > 0)) break;
            fprintf(f, "%s %s %s (%s)", separator, y->pattern,
                    short_tokens(tokens, sizeof tokens, y->kv_len),
                    text_seconds(need, sizeof need, y->need_seconds));
        }
        i--;
        fputs("; --budget gives more\n", f);
    }
}

void report_text(const bench_report *r, FILE *f) {
    int *order = report_order(r);
    table t;
    char bars[256];
    if (!order) return;
    machine_line(r, f, "\n");
    device_lines(r, f, "");
    ceilings_table(&t, r);
    if (t.n_cells) {
        fputs("\nCeilings measured on this machine (* is what shares refer to)\n", f);
        table_text(&t, f);
    }
    table_free(&t);
    planning_table(&t, r);
    if (t.n_cells) {
        planning_bars(bars, sizeof bars);
        fprintf(f, "\nPlanning. %s\n", bars);
        table_text(&t, f);
    }
    table_free(&t);
    text_results(r, f, order);
    text_skipped(r, f, order);
    fprintf(f, "\n%s\n", legend);
    summary_line(r, f);
    free(order);
}

/* Nothing where everything was measured. */
static void skipped_section(const bench_report *r, const int *order, const char *heading,
                            void (*print)(const table *t, FILE *f), FILE *f) {
    table t;
    skipped_table(&t, r, order);
    if (t.n_cells) {
        fputs(heading, f);
        print(&t, f);
    }
    table_free(&t);
}

/* Tables of problems and of decode problems, if there are any. */
static void result_tables(const bench_report *r, const int *order, const char *before,
                          void (*print)(const table *t, FILE *f), FILE *f) {
    for (int decode = 0; decode < 2; decode++) {
        table t;
        full_table(&t, r, order, decode);
        if (t.n_cells) {
            if (decode) fputs(before, f);
            print(&t, f);
        }
        table_free(&t);
    }
}

void report_markdown(const bench_report *r, FILE *f) {
    int *order = report_order(r);
    table t;
    char bars[256];
    if (!order) return;
    fputs("# Tessera bench\n\n", f);
    machine_line(r, f, ". ");
    fprintf(f, "Run at %s. ", r->created);
    summary_line(r, f);
    fputc('\n', f);
    device_lines(r, f, "- ");
    fputs("\n## Ceilings\n\nAn asterisk marks those that shares refer to.\n\n", f);
    ceilings_table(&t, r);
    table_markdown(&t, f);
    table_free(&t);
    planning_bars(bars, sizeof bars);
    fprintf(f, "\n## Planning\n\n%s\n\n", bars);
    planning_table(&t, r);
    table_markdown(&t, f);
    table_free(&t);
    fprintf(f, "\n## Results\n\n%s\n", legend);
    result_tables(r, order, "\n", table_markdown, f);
    skipped_section(r, order, "\n## Not measured\n\n", table_markdown, f);
    free(order);
}

/* ------------------------------------------------------------------ HTML parts */

void report_html_results(const bench_report *r, FILE *f) {
    int *order = report_order(r);
    if (!order) return;
    result_tables(r, order, "", table_html, f);
    fprintf(f, "<p class=\"small\">%s</p>\n", legend);
    free(order);
}

void report_html_planning(const bench_report *r, FILE *f) {
    table t;
    char bars[256];
    planning_table(&t, r);
    table_html(&t, f);
    table_free(&t);
    planning_bars(bars, sizeof bars);
    fprintf(f, "<p class=\"small\">%s</p>\n", bars);
    for (int i = 0; i < r->n_devices; i++) {
        if (!r->devices[i].planning_note[0]) continue;
        fputs("<p class=\"small\">", f);
        write_html_escaped(f, r->devices[i].id);
        fputs(": ", f);
        write_html_escaped(f, r->devices[i].planning_note);
        fputs("</p>\n", f);
    }
}

void report_html_ceilings(const bench_report *r, FILE *f) {
    table t;
    ceilings_table(&t, r);
    table_html(&t, f);
    table_free(&t);
}

void report_html_skipped(const bench_report *r, FILE *f) {
    int *order = report_order(r);
    if (!order) return;
    skipped_section(r, order, "<h2>Not measured</h2>\n", table_html, f);
    free(order);
}

/* ------------------------------------------------------------------ CSV */

/* Text in quotes; quotes are doubled. */
static void csv_text(FILE *f, const char *text, const char *end) {
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fprintf(f, "\"%s", end);
}

static void csv_number(FILE *f, double value) {
    if (isfinite(value)) fprintf(f, "%.9g", value);
    fputc(',', f);
}

static void csv_sensors(FILE *f, const bench_sensors *s) {
    csv_number(f, s->clock_hz);
    csv_number(f, s->power_watts);
    csv_number(f, s->temperature_celsius);
}

/* How a result was measured; commas alone for what was not. */
static void csv_measuring(FILE *f, const bench_result *x) {
    static const bench_sensors none = {NAN, NAN, NAN, NAN};
    const int ok = x->status == BENCH_OK;
    csv_text(f, x->peer, ",");
    csv_number(f, ok ? x->compile_seconds : NAN);
    csv_number(f, ok ? x->spread : NAN);
    if (ok)
        fprintf(f, "%d,%d,%" PRId64 ",", x->noisy, x->suspect, x->runs);
    else
        fputs(",,,", f);
    csv_sensors(f, ok ? &x->before : &none);
    csv_sensors(f, ok ? &x->after : &none);
    csv_number(f, ok ? x->joules : NAN);
    csv_number(f, ok ? x->read_share : NAN);
    csv_number(f, ok ? x->limit_share : NAN);
    csv_number(f, x->status == BENCH_SLOW ? x->need_seconds : NAN);
    csv_number(f, x->status == BENCH_SLOW ? x->estimate_seconds : NAN);
    fputs(!ok ? "," : x->above_limit ? "1," : "0,", f);
}

/* What only decode problems have; commas alone for others. */
static void csv_decode(FILE *f, const bench_result *x) {
    const int ok = x->status == BENCH_OK && x->decode;
    csv_text(f, x->decode ? "decode" : x->backward ? "bwd" : "fwd", ",");
    if (x->decode)
        fprintf(f, "%d,%d,", x->page, x->compact);
    else
        fputs(",,", f);
    if (ok)
        fprintf(f, "%d,%" PRIu64 ",", x->layers, x->cache_bytes);
    else
        fputs(",,", f);
    csv_number(f, ok ? x->parts : NAN);
    csv_number(f, ok ? x->host_seconds : NAN);
}

void report_csv(const bench_report *r, FILE *f) {
    int *order = report_order(r);
    if (!order) return;
    fputs("status,family,device,device_name,kernel,pattern,dtype,batch,q_len,kv_len,heads,heads_"
          "total,kv_heads,head_dim,layout_seconds,plan_seconds,"
          "first_seconds,"
          "median_seconds,q1_seconds,q3_seconds,min_seconds,max_seconds,samples,flops,flop_rate,"
          "bytes_min,byte_rate,speedup,speedup_low,speedup_high,"
          "ideal_speedup,gemm_share,copy_share,jobs,workspace_bytes,plan_bytes,kv_bytes,kv_bytes_"
          "kept,kv_bytes_allocated,checked_rows,op,page,compact,layers,cache_bytes,parts,host_"
          "seconds,peer,compile_seconds,spread,noisy,suspect,runs,clock_before_hz,power_before_"
          "watts,temperature_before_celsius,clock_after_hz,power_after_watts,temperature_after_"
          "celsius,joules,read_share,limit_share,need_seconds,estimate_seconds,above_limit,"
          "problem,dense_"
          "twin,note\n",
          f);
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[order[i]];
        const bench_device *d = &r->devices[x->device];
        csv_text(f, status_word(x->status), ",");
        csv_text(f, x->family, ",");
        csv_text(f, d->id, ",");
        csv_text(f, d->name, ",");
        csv_text(f, x->kernel, ",");
        csv_text(f, x->pattern, ",");
        csv_text(f, dtype_name(x->dtype), ",");
        fprintf(f, "%" PRId64 ",%" PRId64 ",%" PRId64 ",%d,%d,%d,%d,", x->batch, x->q_len,
                x->kv_len, x->heads, x->heads_total, x->kv_heads, x->head_dim);
        if (x->status == BENCH_OK) {
            const double seconds[] = {x->layout_seconds,
                                      x->plan_seconds,
                                      x->first_seconds,
                                      x->median,
                                      x->q1,
                                      x->q3,
                                      x->min,
                                      x->max};
            for (size_t k = 0; k < sizeof seconds / sizeof *seconds; k++) csv_number(f, seconds[k]);
            fprintf(f, "%d,", x->n_samples);
            const double rates[] = {x->flops,        x->flop_rate,     (double)x->bytes_min,
                                    x->byte_rate,    x->speedup,       x->speedup_low,
                                    x->speedup_high, x->ideal_speedup, x->gemm_share,
                                    x->copy_share};
            for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) csv_number(f, rates[k]);
            fprintf(f,
                    "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                    ",%" PRId64 ",",
                    x->n_jobs, x->workspace_bytes, x->plan_bytes, x->kv_bytes, x->kv_bytes_kept,
                    x->kv_bytes_allocated, x->checked_rows);
        } else {
            for (int k = 0; k < 26; k++) fputc(',', f);
        }
        csv_decode(f, x);
        csv_measuring(f, x);
        csv_text(f, x->line, ",");
        csv_text(f, x->twin_line, ",");
        csv_text(f, x->note, "\n");
    }
    free(order);
}

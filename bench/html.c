/* SPDX-License-Identifier: Apache-2.0 */
#include "html.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "charts.h"
#include "planning.h"
#include "report.h"
#include "table.h"
#include "text.h"

/* Series colours have at least 4.5 : 1 contrast to the background of their scheme and differ in
 * lightness for readers who do not tell hues apart. */
static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#fdfdfc;--card:#f3f4f2;--fg:#1b1f24;--muted:#5a636d;--grid:#dfe2e0;--edge:#cfd4d1;"
    "--c0:#0b5fb3;--c1:#b4530a;--c2:#1a7048;--c3:#7a35b0;--c4:#8a6a00;--c5:#b3245c;--mark:#1b1f24}"
    "\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1d2125;--fg:#e8eaed;--muted:#"
    "9aa4ae;--grid:#2c3238;--edge:#3a4149;"
    "--c0:#6db3ff;--c1:#ffa45c;--c2:#62d29b;--c3:#cba0ff;--c4:#e3c04f;--c5:#ff8fb8;--mark:#fff}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 "
    "system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu "
    "Sans\",sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}h1{font-size:28px;margin:0 0 "
    "2px;letter-spacing:-.01em}h2{font-size:20px;margin:42px "
    "0 6px}h3{font-size:15px;"
    "margin:18px 0 4px;font-weight:600}p{margin:4px 0 "
    "12px;max-width:82ch}.muted,.small{color:var(--muted)}.small{font-size:13px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:12px;margin:"
    "20px 0 8px}.tile{background:var(--card);border:1px "
    "solid var(--edge);"
    "border-radius:8px;padding:14px 16px}.tile "
    "b{display:block;font-size:26px;line-height:1.2;font-weight:650}.tile "
    "span{color:var(--muted);font-size:13px}\n"
    ".chart{width:100%;min-width:760px;height:auto;display:block}.halo{paint-order:stroke;stroke:"
    "var(--bg);stroke-width:4px;stroke-linejoin:round}.t{"
    "fill:var(--muted);font-size:12px}.h{fill:var(--fg);font-size:14px;font-weight:600}.v{fill:var("
    "--"
    "fg);font-size:12px;font-weight:600}\n"
    ".grid{stroke:var(--grid);stroke-width:1}.line{fill:none;stroke-width:2.2}.ideal{fill:none;"
    "stroke-width:1.4;stroke-dasharray:5 "
    "4}.mean{stroke:var(--muted);stroke-width:1.4}.mark{stroke:var(--mark);stroke-width:2.5}"
    ".roof{stroke:var(--muted);stroke-width:1.8}.m{stroke:var(--bg);stroke-width:1}\n"
    ".line.c0,.ideal.c0{stroke:var(--c0)}.line.c1,.ideal.c1{stroke:var(--c1)}.line.c2,.ideal.c2{"
    "stroke:var(--c2)}.line.c3,.ideal.c3{stroke:var(--c3)}"
    ".line.c4,.ideal.c4{stroke:var(--c4)}.line.c5,.ideal.c5{stroke:var(--c5)}\n"
    ".m.c0,.bar.c0,.key.c0{fill:var(--c0);background:var(--c0)}.m.c1,.bar.c1,.key.c1{fill:var(--c1)"
    ";background:var(--c1)}.m.c2,.bar.c2,.key.c2{fill:"
    "var(--c2);background:var(--c2)}"
    ".m.c3,.bar.c3,.key.c3{fill:var(--c3);background:var(--c3)}.m.c4,.bar.c4,.key.c4{fill:var(--c4)"
    ";background:var(--c4)}.m.c5,.bar.c5,.key.c5{fill:"
    "var(--c5);background:var(--c5)}\n"
    ".key{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 "
    "14px;vertical-align:-1px}.key:first-child{margin-left:0}.keymark{display:inline-block;width:"
    "3px;"
    "height:15px;background:var(--mark);margin:0 6px 0 14px;vertical-align:-3px}\n"
    ".wide{overflow-x:auto;margin:8px 0 "
    "10px}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}th,td{"
    "padding:5px "
    "10px;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--grid)}th{color:var(--muted);font-weight:600;border-bottom:1px "
    "solid var(--edge)}th.l,td.l{text-align:left}tbody "
    "tr:hover{background:var(--card)}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:4px "
    "18px;font-size:14px}dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}"
    ".warn{border-left:4px solid var(--c1);padding:8px 14px;background:var(--card)}\n";

void html_begin(FILE *f, const char *title) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
          "name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\">\n<title>",
          f);
    write_html_escaped(f, title);
    fprintf(f, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
}

void html_end(FILE *f) { fputs("</main>\n</body>\n</html>\n", f); }

/* ------------------------------------------------------------------ headline */

static void tile(FILE *f, const char *big, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

static void tile(FILE *f, const char *big, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fputs("<div class=\"tile\"><b>", f);
    write_html_escaped(f, big);
    fputs("</b><span>", f);
    write_html_escaped(f, text);
    fputs("</span></div>\n", f);
}

static void headline(const bench_report *r, FILE *f) {
    const bench_result *speed = NULL, *share = NULL;
    const bench_planning *plan = NULL;
    char big[TEXT_SIZE], a[TEXT_SIZE], b[TEXT_SIZE];
    int64_t rows = 0;
    for (int i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (x->status != BENCH_OK) continue;
        rows += x->checked_rows;
        /* What lies above its own limit tells of a disturbed measurement; it stands in the table
         * but makes no headline. */
        if (!result_is_decode(x) && x->speedup <= 1.02 * x->ideal_speedup &&
            (!speed || x->speedup > speed->speedup))
            speed = x;
        if (x->gemm_share <= 1 && (!share || x->gemm_share > share->gemm_share)) share = x;
    }
    for (int i = 0; i < r->n_planning; i++)
        if (r->planning[i].bar && (!plan || r->planning[i].jobs > plan->jobs))
            plan = &r->planning[i];
    fputs("<div class=\"tiles\">\n", f);
    if (speed)
        tile(f, short_ratio(big, sizeof big, speed->speedup),
             "over its own dense attention: %s, %s tokens, %s; the ideal is %s", speed->family,
             short_tokens(a, sizeof a, speed->kv_len), dtype_name(speed->dtype),
             short_ratio(b, sizeof b, speed->ideal_speedup));
    if (share)
        tile(f, short_percent(big, sizeof big, share->gemm_share),
             "of the matrix-product ceiling: %s %s %s, %s", share->family, share->pattern,
             dtype_name(share->dtype), text_rate(a, sizeof a, share->flop_rate, "FLOP/s"));
    if (plan)
        tile(f, text_seconds(big, sizeof big, plan->seconds), "to plan %s jobs: %s",
             text_count(a, sizeof a, plan->jobs), plan->name);
    tile(
        f, text_count(big, sizeof big, (uint64_t)report_count(r, BENCH_OK)),
        "results, each checked against the fp64 reference before it was timed (%s rows); %d failed",
        text_count(a, sizeof a, (uint64_t)rows), report_count(r, BENCH_FAILED));
    fputs("</div>\n", f);
}

/* ------------------------------------------------------------------ machine */

static void term(FILE *f, const char *name, const char *value) {
    if (!value[0]) return;
    fputs("<dt>", f);
    write_html_escaped(f, name);
    fputs("</dt><dd>", f);
    write_html_escaped(f, value);
    fputs("</dd>\n", f);
}

static void machine(const bench_report *r, FILE *f) {
    char text[640], a[TEXT_SIZE], b[TEXT_SIZE];
    fputs("<h2>Machine</h2>\n<dl>\n", f);
    term(f, "CPU", r->machine.cpu);
    snprintf(text, sizeof text, "%d usable of %d", r->machine.cpus_allowed, r->machine.cpus);
    term(f, "CPUs", text);
    term(f, "Memory", text_bytes(text, sizeof text, (double)r->machine.memory_bytes));
    snprintf(text, sizeof text, "L2 %s, L3 %s",
             text_bytes(a, sizeof a, (double)r->machine.l2_bytes),
             text_bytes(b, sizeof b, (double)r->machine.l3_bytes));
    term(f, "Caches", text);
    snprintf(text, sizeof text, "%s, %s, %s", r->machine.os, r->machine.kernel, r->machine.arch);
    term(f, "System", text);
    snprintf(text, sizeof text, "%s, %s, %s", r->library_version, r->compiler, r->build);
    term(f, "Tessera", text);
    for (int i = 0; i < r->n_devices; i++) {
        const bench_device *d = &r->devices[i];
        snprintf(text, sizeof text, "%s; %s; %s; %u units; %s", d->name, d->arch, d->driver,
                 d->compute_units, text_bytes(a, sizeof a, (double)d->memory_bytes));
        term(f, d->id, text);
        term(f, "", d->ceiling_note);
    }
    for (int i = 0; i < r->n_settings; i++)
        if (strcmp(r->settings[i].source, "default") != 0) {
            snprintf(text, sizeof text, "%s (%s)", r->settings[i].value, r->settings[i].source);
            term(f, r->settings[i].name, text);
        }
    term(f, "Command", r->command);
    fputs("</dl>\n", f);
}

static void context_section(const bench_report *r, FILE *f) {
    int any = 0;
    for (int i = 0; i < r->n_results; i++)
        any |= r->results[i].status == BENCH_OK && r->results[i].decode;
    if (!any) return;
    fputs("<h2>Decode by context</h2>\n<p>A layer of a model with layers of their own, which take "
          "turns, so that no cache holds their keys. Bytes are those of Q, O and the keys that the "
          "layout keeps.</p>\n",
          f);
    chart_context(r, f);
}

void html_report(const bench_report *r, FILE *f) {
    html_begin(f, "Tessera bench");
    fputs("<h1>Tessera bench</h1>\n<p class=\"muted\">", f);
    char text[640];
    snprintf(text, sizeof text, "Tessera %s, suite %s, %s. %s, %d CPUs, %s.", r->library_version,
             r->suite, r->created, r->machine.cpu, r->machine.cpus_allowed, r->machine.os);
    write_html_escaped(f, text);
    fputs("</p>\n", f);
    if (!r->complete)
        fputs("<p class=\"warn\">This run was interrupted and is incomplete.</p>\n", f);
    if (report_disturbed(r, text, sizeof text)) {
        fputs("<p class=\"warn\">", f);
        write_html_escaped(f, text);
        fputs("</p>\n", f);
    }
    headline(r, f);
    fputs("<h2>Speed-up against length</h2>\n<p>How much faster sparse attention is than dense "
          "attention of the same shape on the same device and "
          "kernel.</p>\n",
          f);
    if (!chart_speedup(r, f))
        fputs("<p class=\"muted\">No sparse problem was measured beside its dense twin.</p>\n", f);
    fputs("<h2>Throughput</h2>\n<p><span class=\"key c0\"></span>sparse<span class=\"key "
          "c1\"></span>dense<span class=\"keymark\"></span>ceiling: "
          "the best matrix product measured on "
          "the device. FLOP/s count only the pairs that the mask keeps. An asterisk marks a slice "
          "of the model's heads.</p>\n",
          f);
    if (!chart_throughput(r, f)) fputs("<p class=\"muted\">Nothing was measured.</p>\n", f);
    int decode = 0;
    for (int i = 0; i < r->n_results; i++)
        decode |= r->results[i].status == BENCH_OK && result_is_decode(&r->results[i]);
    if (decode) {
        fputs("<h2>One new token</h2>\n<p>Decode reads the cache and computes little: bytes of Q, "
              "K, V and O a second, against a copy of memory. A "
              "cache that fits a processor cache can "
              "be read faster than memory.</p>\n",
              f);
        chart_decode(r, f);
    }
    context_section(r, f);
    fputs("<h2>Roofline</h2>\n<p>Each mark is one problem; rest the pointer on it for its "
          "name.</p>\n",
          f);
    chart_roofline(r, f);
    if (r->n_planning) {
        fputs("<h2>Planning</h2>\n", f);
        report_html_planning(r, f);
    }
    fputs("<h2>Ceilings</h2>\n<p>Measured in the same run; an asterisk marks those that shares "
          "refer to.</p>\n",
          f);
    report_html_ceilings(r, f);
    fputs("<h2>All results</h2>\n", f);
    report_html_results(r, f);
    report_html_skipped(r, f);
    machine(r, f);
    html_end(f);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "charts.h"
#include "matrix_forms.h"
#include "page_assets.h"
#include "page_compact.h"
#include "page_matrix.h"
#include "report.h"
#include "table.h"
#include "text.h"

/* ------------------------------------------------------------------ frame */

static void asset(const char *before, const char *folder, const char *after, FILE *f) {
    fputs(before, f);
    write_html_escaped(f, folder);
    fputs(after, f);
}

static void begin(const page_options *o, FILE *f) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
          "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
          f);
    write_html_escaped(f, o->title);
    fputs("</title>\n", f);
    if (o->assets)
        asset("<link rel=\"stylesheet\" href=\"", o->assets, "/page.css\">\n", f);
    else
        fprintf(f, "<style>\n%s</style>\n", page_style);
    fputs("</head>\n<body>\n<a class=\"skip\" href=\"#matrix\">To the table</a>\n<main>\n", f);
}

static size_t library_size(void) {
    return (size_t)((uintptr_t)page_library_end - (uintptr_t)page_library);
}

/* The library, four bytes in five characters: '#' to 'w', with 'x' for '<', which might end the
 * element. The time in gzip's header is left out, so that builds do not differ. */
static void library(FILE *f) {
    enum { DIGITS = 5, BASE = 85, FIRST = '#' };
    const size_t size = library_size();
    for (size_t i = 0; i < size; i += 4) {
        char digits[DIGITS];
        uint32_t bits = 0;
        for (size_t k = i; k < i + 4; k++) {
            const int in_time = k >= 4 && k < 8;
            bits = bits << 8 | (k < size && !in_time ? (unsigned char)page_library[k] : 0);
        }
        for (int k = DIGITS - 1; k >= 0; k--) {
            digits[k] = (char)(FIRST + bits % BASE);
            if (digits[k] == '<') digits[k] = 'x';
            bits /= BASE;
        }
        fwrite(digits, 1, DIGITS, f);
    }
}

/* The licence of the library stands in the page, as it asks for. */
static int scripts(const matrix *m, const page_options *o, FILE *f) {
    fputs("<script type=\"application/json\" id=\"data\">\n", f);
    const int status = matrix_brief_json(m, f);
    fputs("</script>\n", f);
    if (o->assets) {
        asset("<script src=\"", o->assets, "/page.js\"></script>\n", f);
        asset("<script src=\"", o->assets, "/charts.js\"></script>\n", f);
        return status;
    }
    if (library_size() && !o->plain) {
        fputs(
            "<script type=\"text/plain\" id=\"licence\">\nThe next element is Chart.js, compressed:"
            "\n",
            f);
        write_html_escaped(f, page_library_licence);
        fprintf(f, "</script>\n<script type=\"text/plain\" id=\"library\" data-size=\"%zu\">",
                library_size());
        library(f);
        fputs("</script>\n", f);
    }
    fprintf(f, "<script>\n%s</script>\n<script>\n%s</script>\n", page_script, page_charts_script);
    return status;
}

static void end(FILE *f) { fputs("</main>\n</body>\n</html>\n", f); }

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
    char text[640], a[TEXT_SIZE], b[TEXT_SIZE], version[128];
    fputs("<h3>Machine</h3>\n<dl>\n", f);
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
    snprintf(text, sizeof text, "%s, %s, %s", report_version(r, version, sizeof version),
             r->compiler, r->build);
    term(f, "Tessera", text);
    for (int i = 0; i < r->n_devices; i++) {
        const bench_device *d = &r->devices[i];
        snprintf(text, sizeof text, "%s; %s; %s; %s; %s", d->name, d->arch, d->driver,
                 device_units(d, b, sizeof b), text_bytes(a, sizeof a, (double)d->memory_bytes));
        term(f, d->id, text);
        term(f, "", d->ceiling_note);
    }
    for (int i = 0; i < r->n_peers; i++) {
        snprintf(text, sizeof text, "%s%s%s", r->peers[i].version, r->peers[i].note[0] ? " " : "",
                 r->peers[i].note);
        term(f, r->peers[i].name, text);
    }
    for (int i = 0; i < r->n_settings; i++)
        if (strcmp(r->settings[i].source, "default") != 0) {
            snprintf(text, sizeof text, "%s (%s)", r->settings[i].value, r->settings[i].source);
            term(f, r->settings[i].name, text);
        }
    term(f, "Command", r->command);
    fputs("</dl>\n", f);
}

/* ------------------------------------------------------------------ sections */

static void heading(const matrix *m, const page_options *o, FILE *f) {
    char text[1024];
    fputs("<header>\n<h1>", f);
    write_html_escaped(f, o->title);
    fputs("</h1>\n", f);
    fputs(m->n_files > 1 ? "<ul class=\"files muted small\">\n" : "<p class=\"muted small\">", f);
    for (int i = 0; i < m->n_files; i++) {
        matrix_file_line(m, i, text, sizeof text);
        fputs(m->n_files > 1 ? "<li>" : "", f);
        write_html_escaped(f, text);
        fputs(m->n_files > 1 ? "</li>\n" : "</p>\n", f);
    }
    if (m->n_files > 1) fputs("</ul>\n", f);
    for (int i = 0; i < m->n_files; i++) {
        matrix_file_warning(m, i, text, sizeof text);
        if (!text[0]) continue;
        fputs("<p class=\"warn\">", f);
        write_html_escaped(f, text);
        fputs("</p>\n", f);
    }
    fputs("</header>\n", f);
}

/* How many results the numbers rest on. */
static void evidence(const matrix *m, FILE *f) {
    uint64_t results = 0, rows = 0, failed = 0;
    char a[TEXT_SIZE], b[TEXT_SIZE];
    for (int i = 0; i < m->n_files; i++)
        for (int k = 0; k < m->reports[i]->n_results; k++) {
            const bench_result *x = &m->reports[i]->results[k];
            results += x->status == BENCH_OK;
            failed += x->status == BENCH_FAILED;
            if (x->status == BENCH_OK) rows += (uint64_t)x->checked_rows;
        }
    fprintf(
        f,
        "<p class=\"small muted\">dense: every key before the query; S2: each head keeps its last "
        "L blocks of B tokens (64) and every V-th block before them, shifted from head to head; "
        "window: the last tokens. 32/8 heads: of queries and of keys. D: size of a head. needs "
        "2 s: left out, since so long would have been too long. %s results, each checked "
        "against the fp64 reference before it was timed (%s rows); %" PRIu64 " failed.</p>\n",
        text_count(a, sizeof a, results), text_count(b, sizeof b, rows), failed);
}

/* A switch that only the script can make work is made by it, at this place. */
static void slot(const char *name, FILE *f) {
    fprintf(f, "<div class=\"chart-controls\" data-for=\"%s\"></div>\n", name);
}

/* Which mark is which device, where plots are far from the table. */
static void legend(const matrix *m, FILE *f) {
    fputs("<p class=\"legend small\">", f);
    for (int k = 0; k < m->n_columns; k++) {
        fprintf(f, "<span data-c=\"%d\">", k);
        page_key(k, f);
        write_html_escaped(f, m->columns[k].name);
        fputs("</span> ", f);
    }
    fputs("</p>\n", f);
}

static void plots(const matrix *m, FILE *f) {
    fputs("<section id=\"rates\"><h2>Rates on one axis</h2>\n<p class=\"small\">Equal lengths are "
          "equal rates, on every device. Only (query, key) pairs that the mask keeps count as "
          "work.</p>\n",
          f);
    slot("bars", f);
    legend(m, f);
    fputs("<h3>Prefill, chunks and gradients: useful FLOP/s</h3>\n", f);
    if (!page_bars(m, 0, f)) fputs("<p class=\"muted\">Nothing was measured.</p>\n", f);
    fputs("<h3>Decode: bytes of Q, K, V and O a second</h3>\n", f);
    if (!page_bars(m, 1, f)) fputs("<p class=\"muted\">Nothing was measured.</p>\n", f);
    fputs("</section>\n<section id=\"lengths\"><h2>Against length</h2>\n<p class=\"small\">Both "
          "axes are logarithmic; the band is between the quartiles. Decode is the time of one "
          "token in one layer.</p>\n",
          f);
    slot("lengths", f);
    legend(m, f);
    if (!chart_lengths(m, f))
        fputs("<p class=\"muted\">No shape was measured at two lengths.</p>\n", f);
    fputs(
        "</section>\n<section id=\"speedups\"><h2>Speed-up over dense</h2>\n<p class=\"small\">"
        "Dense time over sparse time of the same shape, device and kernel, both measured; dashed: "
        "the ideal, dense pairs over kept pairs.</p>\n",
        f);
    legend(m, f);
    if (!chart_speedup(m, f))
        fputs("<p class=\"muted\">No sparse problem was measured beside its dense twin.</p>\n", f);
    fputs("</section>\n<section id=\"roofline\"><h2>Roofline</h2>\n<p class=\"small\">Each mark is "
          "one shape on one device, under that device's own limits.</p>\n",
          f);
    legend(m, f);
    if (!chart_roofline(m, f)) fputs("<p class=\"muted\">Nothing was measured.</p>\n", f);
    fputs("</section>\n", f);
}

static int has_planning(const bench_report *r) {
    int any = r->n_planning > 0;
    for (int i = 0; i < r->n_devices; i++) any |= r->devices[i].planning_note[0] != 0;
    return any;
}

static void details(const matrix *m, FILE *f) {
    char text[1024];
    fputs("<section id=\"more\"><h2>Details</h2>\n<details><summary>First run, planning, memory, "
          "energy</summary>\n",
          f);
    page_costs(m, f);
    fputs("</details>\n", f);
    for (int i = 0; i < m->n_files; i++) {
        const bench_report *r = m->reports[i];
        if (m->n_files > 1) {
            matrix_file_line(m, i, text, sizeof text);
            fputs("<h3>", f);
            write_html_escaped(f, text);
            fputs("</h3>\n", f);
        }
        fputs(
            "<details><summary>Limits measured</summary>\n<p class=\"small\">Measured in the same "
            "run; an asterisk marks those that shares refer to.</p>\n",
            f);
        report_html_ceilings(r, f);
        fputs("</details>\n", f);
        if (has_planning(r)) {
            fputs("<details><summary>Planning</summary>\n", f);
            report_html_planning(r, f);
            fputs("</details>\n", f);
        }
        fputs("<details><summary>Not measured, and why</summary>\n", f);
        report_html_skipped(r, f);
        fputs("</details>\n<details><summary>Machine</summary>\n", f);
        machine(r, f);
        fputs("</details>\n", f);
    }
    fputs("<details><summary>The lines that repeat each problem</summary>\n<ul class=\"small\">\n",
          f);
    for (int i = 0; i < m->n_rows; i++) {
        fputs("<li><code>tessera bench ", f);
        write_html_escaped(f, m->rows[i].shape->line);
        fputs("</code></li>\n", f);
    }
    fputs("</ul></details>\n</section>\n", f);
}

static int write_page(const matrix *m, const page_options *o, FILE *f) {
    begin(o, f);
    page_shapes(f);
    heading(m, o, f);
    fputs("<div id=\"controls\"></div>\n", f);
    if (m->n_rows)
        page_matrix(m, f);
    else
        fputs("<p class=\"muted\">Nothing was measured.</p>\n", f);
    evidence(m, f);
    fputs("<section id=\"devices\"><h2>Devices</h2>\n", f);
    page_devices(m, f);
    fputs("</section>\n", f);
    plots(m, f);
    details(m, f);
    const int status = scripts(m, o, f);
    end(f);
    return status;
}

int page_write(const matrix *m, const page_options *options, FILE *f) {
    char *page = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&page, &size);
    if (!memory) return -1;
    const int status = write_page(m, options, memory);
    const int failed = (status != 0) | ferror(memory) | (fclose(memory) != 0);
    if (!failed) page_compact(page, size, f);
    free(page);
    return failed ? -1 : 0;
}

int page_of_report(const bench_report *r, FILE *f, char *error, size_t error_size) {
    const page_options options = {.title = "Tessera bench"};
    matrix m;
    if (matrix_build(&m, &r, NULL, 1, NULL, error, error_size) != 0) return -1;
    const int status = page_write(&m, &options, f);
    if (status != 0) snprintf(error, error_size, "out of memory");
    matrix_free(&m);
    return status;
}

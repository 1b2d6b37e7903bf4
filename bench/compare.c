/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tessera compare`: result files and their devices as one matrix. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "matrix.h"
#include "matrix_forms.h"
#include "options.h"
#include "page.h"
#include "text.h"

static const char help[] =
    "usage: tessera compare A.json [B.json ...] [options]\n\n"
    "Sets the devices of result files of `tessera bench --json` side by side: a row for each "
    "problem, a column for each device, with\n"
    "the median time and its share of the limit measured on that device. '*' marks the fastest of "
    "a row, '=' what does not differ\n"
    "from it: the quartile ranges of both times overlap, or the medians are within 2%.\n\n"
    "  --base WHICH      what ratios refer to: a device (cuda:0, its backend or its name) or a "
    "file (its path or letter);\n"
    "                    without it the first file, device by device\n"
    "  --fail-below R    exit status 1 when the geometric mean of a column's ratios is below R by "
    "more than the spread\n"
    "  --md F  --csv F  --json F  --html F    write the matrix to files, which appear whole or not "
    "at all\n"
    "  --title TEXT      of the page\n"
    "  --plain           the page without the chart library: its charts are pictures\n"
    "  --assets FOLDER   the page takes its style and scripts from there, as seen from where it "
    "lies\n"
    "  --help  --version\n\n"
    "Exit status: 0; 1 when a file cannot be read, nothing is in common or --fail-below failed; 2 "
    "for unknown words.\n";

enum {
    MD,
    CSV,
    JSON,
    HTML,
    N_OUTPUTS,
    BASE = N_OUTPUTS,
    FAIL_BELOW,
    TITLE,
    PLAIN,
    ASSETS,
    N_OPTIONS
};

typedef struct comparison {
    bench_report reports[MATRIX_FILES];
    const bench_report *list[MATRIX_FILES];
    const char *paths[MATRIX_FILES];
    int n_files;
    matrix m;
    double least; /* --fail-below; 0 without */
    page_options page;
} comparison;

static int write_files(const comparison *c, const cli_option *outputs) {
    text_file files[N_OUTPUTS] = {{0}};
    char error[512];
    int status = 0, at = 0;
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        if (!outputs[i].given) continue;
        at = i;
        status = text_file_open(&files[i], outputs[i].value, error, sizeof error);
        if (status != 0) break;
        if (i == MD)
            matrix_markdown(&c->m, files[i].stream);
        else if (i == CSV)
            matrix_csv(&c->m, files[i].stream);
        else if (i == JSON)
            matrix_json(&c->m, files[i].stream);
        else if (page_write(&c->m, &c->page, files[i].stream) != 0)
            status = text_error(error, sizeof error, "out of memory");
        if (status == 0) status = text_file_close(&files[i], error, sizeof error);
    }
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        at = i;
        if (outputs[i].given) status = text_file_publish(&files[i], error, sizeof error);
    }
    if (status != 0) cli_error(CLI_FAILED, "compare", "--%s: %s", outputs[at].name, error);
    for (int i = 0; i < N_OUTPUTS; i++) text_file_discard(&files[i]);
    return status == 0 ? CLI_OK : CLI_FAILED;
}

/* What each file has where no problem is in two of them. */
static int nothing_in_common(const comparison *c) {
    char text[CLI_LINE] = "", part[160];
    for (int f = 0; f < c->n_files && f < 4; f++) {
        char shown[TEXT_PATH];
        snprintf(part, sizeof part, "%s%.60s has %d of suite '%.40s'", f ? ", " : "",
                 text_path(shown, c->paths[f]), c->m.alone[f], c->reports[f].suite);
        strncat(text, part, sizeof text - strlen(text) - 1);
    }
    return cli_error(CLI_FAILED, "compare", "the files have no problem in common: %s", text);
}

/* A column is below the bound when its mean is by more than the spread. What is no difference is no
 * loss either. */
static int is_below(const matrix_ratio *mean, double least) {
    return mean->high < least && !(mean->same && least <= 1);
}

static int check_means(const comparison *c) {
    int failed = 0, compared = 0;
    for (int k = 0; k < c->m.n_columns && c->least > 0; k++) {
        const matrix_mean *mean = &c->m.columns[k].mean;
        compared += mean->count;
        if (!mean->count || !is_below(&mean->ratio, c->least)) continue;
        cli_error(CLI_FAILED, "compare",
                  "--fail-below %g: %.150s reaches %.3f of %.150s over %d problems", c->least,
                  c->m.columns[k].name, mean->ratio.value, matrix_base_name(&c->m, k), mean->count);
        failed = 1;
    }
    if (c->least > 0 && !compared)
        return cli_error(CLI_FAILED, "compare", "--fail-below: nothing has a base to compare with");
    return failed ? CLI_FAILED : CLI_OK;
}

static int run(comparison *c, const cli_option *options) {
    char error[512];
    for (int f = 0; f < c->n_files; f++) {
        if (json_read(&c->reports[f], c->paths[f], error, sizeof error) != 0)
            return cli_error(CLI_FAILED, "compare", "%s", error);
        c->list[f] = &c->reports[f];
    }
    if (matrix_build(&c->m, c->list, c->paths, c->n_files, options[BASE].value, error,
                     sizeof error) != 0)
        return cli_error(strncmp(error, "--base", 6) == 0 ? CLI_USAGE : CLI_FAILED, "compare", "%s",
                         error);
    if (!c->m.n_rows)
        return c->n_files > 1 ? nothing_in_common(c)
                              : cli_error(CLI_FAILED, "compare", "the file holds no problem");
    /* Nothing is printed before the files are known to be writable. */
    for (int i = 0; i < N_OUTPUTS; i++)
        if (options[i].given && text_file_probe(options[i].value, error, sizeof error) != 0)
            return cli_error(CLI_FAILED, "compare", "--%s: %s", options[i].name, error);
    matrix_text(&c->m, stdout);
    int status = write_files(c, options);
    return status == CLI_OK ? check_means(c) : status;
}

static int parse(int argc, char **argv, cli_option *o, comparison *c) {
    size_t n;
    int status = cli_options(argc, argv, help, o, N_OPTIONS, &n);
    if (status != CLI_GO_ON) return status;
    if (n < 1)
        return cli_error(CLI_USAGE, "compare", "give a result file; see tessera compare --help");
    if (n > MATRIX_FILES)
        return cli_error(CLI_USAGE, "compare", "more than %d files", MATRIX_FILES);
    for (int i = 0; i < N_OUTPUTS; i++) {
        if (!o[i].given) continue;
        for (int j = 0; j < i; j++)
            if (o[j].given && text_same_file(o[i].value, o[j].value))
                return cli_error(CLI_USAGE, "compare", "--%s and --%s: the same file", o[j].name,
                                 o[i].name);
        for (size_t k = 0; k < n; k++)
            if (text_same_file(o[i].value, argv[1 + k]))
                return cli_error(CLI_USAGE, "compare", "--%s: is one of the files to compare",
                                 o[i].name);
    }
    if (o[FAIL_BELOW].given) {
        char *end;
        c->least = strtod(o[FAIL_BELOW].value, &end);
        if (end == o[FAIL_BELOW].value || *end || !(c->least > 0) || !(c->least <= 1000))
            return cli_error(CLI_USAGE, "compare", "--fail-below: not a ratio above 0: %.60s",
                             o[FAIL_BELOW].value);
    }
    c->page.title = o[TITLE].given ? o[TITLE].value : "Tessera compare";
    c->page.plain = o[PLAIN].given;
    c->page.assets = o[ASSETS].given ? o[ASSETS].value : NULL;
    for (size_t i = 0; i < n; i++) c->paths[c->n_files++] = argv[1 + i];
    return CLI_GO_ON;
}

int compare_main(int argc, char **argv) {
    cli_option options[N_OPTIONS] = {[MD] = {.name = "md", .takes_value = 1},
                                     [CSV] = {.name = "csv", .takes_value = 1},
                                     [JSON] = {.name = "json", .takes_value = 1},
                                     [HTML] = {.name = "html", .takes_value = 1},
                                     [BASE] = {.name = "base", .takes_value = 1},
                                     [FAIL_BELOW] = {.name = "fail-below", .takes_value = 1},
                                     [TITLE] = {.name = "title", .takes_value = 1},
                                     [PLAIN] = {.name = "plain"},
                                     [ASSETS] = {.name = "assets", .takes_value = 1}};
    comparison *c = calloc(1, sizeof *c);
    if (!c) return cli_error(CLI_FAILED, "compare", "out of memory");
    int status = parse(argc, argv, options, c);
    if (status == CLI_GO_ON) status = run(c, options);
    matrix_free(&c->m);
    for (int f = 0; f < c->n_files; f++) report_free(&c->reports[f]);
    free(c);
    return status;
}

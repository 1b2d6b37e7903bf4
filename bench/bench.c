/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tessera bench`: words and options, and where results go. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera/tessera.h>

#include "clock.h"
#include "json.h"
#include "line.h"
#include "machine.h"
#include "matrix.h"
#include "matrix_forms.h"
#include "options.h"
#include "page.h"
#include "problem.h"
#include "report.h"
#include "runner.h"
#include "submit.h"
#include "text.h"
#include "vendors.h"

static const char help[] =
    "usage: tessera bench [SUITE ... | k=v ...] [options]\n\n"
    "Measures attention on every device found. Each number is printed only after its result was "
    "checked against the fp64 reference.\n\n"
    "  SUITE            vendors (the default, 2 minutes): the same problems on every device; "
    "models (3 minutes), quick (30 s), full (an hour), or families by name: --list shows them\n"
    "  k=v ...          one problem instead, beside its dense twin: heads=8 q_len=4096 "
    "head_dim=128 local=8 stride=16 ...\n\n"
    "  --backends LIST  'hardware' (default), 'all' with software emulations, or a comma list of "
    "backends and devices (cpu, cpu:0)\n"
    "  --kernels WHICH  'pick' (the one that the device would take, default) or 'all'\n"
    "  --dtype LIST     f32, f16, bf16: replaces the types of a suite\n"
    "  --budget S       seconds that the suite may take; what would not fit is skipped with a "
    "note\n"
    "  --peers LIST     programs that compute the same with other tools, a comma list of "
    "paths\n"
    "  --energy         measure joules a run as well, half a second for each result\n"
    "  --no-ceilings    do not measure what matrix products and copies reach\n"
    "  --no-planning    do not measure planning times\n"
    "  --json F  --csv F  --md F  --html F    write the results to files, which appear whole or "
    "not at all\n"
    "  --submit         write the results of the suite vendors to a file of this folder, named "
    "after the device, without paths and settings: one for the public table; nothing is sent\n"
    "  --list           print the families and their problems\n"
    "  --help  --version\n\n"
    "Exit status: 0; 1 when something failed or was interrupted; 2 for unknown words.\n";

enum { N_OUTPUTS = 4 };
static const char *const output_names[N_OUTPUTS] = {"json", "csv", "md", "html"};

typedef struct bench_arguments {
    const char *outputs[N_OUTPUTS]; /* paths, or NULL */
    const char *dtypes;
    double budget; /* 0: the suite's own */
    int list, submit;
    run_options run;
    char suite[128];
    char line[BENCH_LINE];
} bench_arguments;

static int usage_error(const char *what, const char *detail) {
    return cli_error(CLI_USAGE, "bench", "%s%.100s", what, detail ? detail : "");
}

/* ------------------------------------------------------------------ words */

static int append_word(char *text, size_t size, const char *word) {
    size_t used = strlen(text);
    int n = snprintf(text + used, size - used, "%s%s", used ? " " : "", word);
    return n >= 0 && (size_t)n < size - used ? 0 : -1;
}

static int parse_budget(const char *text, double *budget) {
    char *end = NULL;
    const double value = strtod(text, &end);
    /* Digits alone: neither hexadecimal nor exponents, nor two points. */
    if (*end || strspn(text, "0123456789.") != strlen(text) || !(value >= 1) || !(value <= 1e6))
        return usage_error("--budget: not a number of seconds from 1 to 1000000: ", text);
    *budget = value;
    return CLI_GO_ON;
}

static int parse_suites(char **names, size_t n, bench_arguments *a) {
    static char *standard[] = {"vendors"};
    if (n == 0) {
        names = standard;
        n = 1;
    }
    double budget = 0;
    for (size_t i = 0; i < n; i++) {
        if (strchr(names[i], '='))
            return usage_error("give either suites or the words of one problem, not both: ",
                               names[i]);
        for (size_t k = 0; k < i; k++)
            if (strcmp(names[i], names[k]) == 0) return usage_error("given twice: ", names[i]);
        int status = strcmp(names[i], "vendors") == 0
                         ? vendors_lines(a->dtypes, &a->run.lines, &a->run.n_lines)
                         : suite_expand(names[i], a->dtypes, &a->run.series, &a->run.n_series);
        if (status == -1) return cli_error(CLI_FAILED, "bench", "out of memory");
        if (status == -2) return usage_error("no such suite or family (see --list): ", names[i]);
        if (status == -3)
            return usage_error("--dtype: not a list of f32, f16 and bf16, each once: ", a->dtypes);
        if (append_word(a->suite, sizeof a->suite, names[i]) != 0)
            return usage_error("too many suites", NULL);
        budget = fmax(budget, suite_budget(names[i]));
    }
    a->run.budget = a->budget > 0 ? a->budget : budget;
    return CLI_GO_ON;
}

static int finish_problem(problem *p, bench_arguments *a) {
    char error[CLI_LINE];
    int bad = problem_finish(p, error, sizeof error);
    if (bad)
        return cli_error(bad == PROBLEM_BAD_FILE ? CLI_FAILED : CLI_USAGE, "bench", "%s", error);
    for (const char *c = p->mask_path; c && *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return usage_error("mask: a name with control characters cannot stand in results",
                               NULL);
    if (line_format(p, a->line, sizeof a->line) != 0)
        return usage_error("the problem is longer than 2,000 characters", NULL);
    return CLI_GO_ON;
}

/* The words of one problem, brought into their shortest form, so that result files of different
 * people agree about the line. */
static int parse_problem(char **words, size_t n, bench_arguments *a) {
    char error[CLI_LINE];
    int status = CLI_GO_ON;
    problem p;
    problem_init(&p);
    for (size_t i = 0; i < n && status == CLI_GO_ON; i++) {
        if (!strchr(words[i], '='))
            status =
                usage_error("give either suites or the words of one problem, not both: ", words[i]);
        else if (problem_word(&p, words[i], error, sizeof error) != 0)
            status = cli_error(CLI_USAGE, "bench", "%s", error);
    }
    if (status == CLI_GO_ON && a->dtypes)
        status = usage_error("--dtype: belongs to suites; a problem has the word dtype=", NULL);
    if (status == CLI_GO_ON) status = finish_problem(&p, a);
    problem_free(&p);
    snprintf(a->suite, sizeof a->suite, "one problem");
    a->run.line = a->line;
    a->run.budget = a->budget > 0 ? a->budget : 60;
    return status;
}

static int parse(int argc, char **argv, bench_arguments *a) {
    enum {
        BACKENDS,
        KERNELS,
        DTYPE,
        BUDGET,
        PEERS,
        ENERGY,
        NO_CEILINGS,
        NO_PLANNING,
        SUBMIT,
        LIST,
        OUTPUT,
        N_OPTIONS = OUTPUT + N_OUTPUTS
    };
    cli_option o[N_OPTIONS] = {{.name = "backends", .takes_value = 1},
                               {.name = "kernels", .takes_value = 1},
                               {.name = "dtype", .takes_value = 1},
                               {.name = "budget", .takes_value = 1},
                               {.name = "peers", .takes_value = 1},
                               {.name = "energy"},
                               {.name = "no-ceilings"},
                               {.name = "no-planning"},
                               {.name = "submit"},
                               {.name = "list"}};
    size_t n_words;
    for (int i = 0; i < N_OUTPUTS; i++)
        o[OUTPUT + i] = (cli_option){.name = output_names[i], .takes_value = 1};
    int status = cli_options(argc, argv, help, o, N_OPTIONS, &n_words);
    if (status != CLI_GO_ON) return status;
    if (o[LIST].given) {
        a->list = 1;
        return n_words ? usage_error("--list takes no words: ", argv[1]) : CLI_GO_ON;
    }
    a->run.backends = o[BACKENDS].value;
    a->run.peers = o[PEERS].value;
    a->run.energy = o[ENERGY].given ? 0.5 : 0;
    a->run.ceilings = !o[NO_CEILINGS].given;
    a->run.planning = !o[NO_PLANNING].given;
    a->run.all_kernels = o[KERNELS].given && strcmp(o[KERNELS].value, "all") == 0;
    if (o[KERNELS].given && !a->run.all_kernels && strcmp(o[KERNELS].value, "pick") != 0)
        return usage_error("--kernels: neither 'pick' nor 'all': ", o[KERNELS].value);
    a->dtypes = o[DTYPE].value;
    a->submit = o[SUBMIT].given;
    if (o[BUDGET].given && (status = parse_budget(o[BUDGET].value, &a->budget)) != CLI_GO_ON)
        return status;
    status = n_words && strchr(argv[1], '=') ? parse_problem(argv + 1, n_words, a)
                                             : parse_suites(argv + 1, n_words, a);
    if (status == CLI_GO_ON && a->submit && (strcmp(a->suite, "vendors") != 0 || a->dtypes))
        return usage_error("--submit: takes the whole suite vendors, and no other", NULL);
    for (int i = 0; i < N_OUTPUTS && status == CLI_GO_ON; i++) {
        a->outputs[i] = o[OUTPUT + i].value;
        for (int j = 0; j < i; j++)
            if (a->outputs[i] && a->outputs[j] && text_same_file(a->outputs[i], a->outputs[j]))
                return cli_error(CLI_USAGE, "bench", "--%s and --%s: the same file",
                                 output_names[j], output_names[i]);
    }
    return status;
}

static void list_families(void) {
    const suite_family *f;
    for (int i = 0; (f = suite_family_at(i)) != NULL; i++) {
        char line[BENCH_LINE], tokens[24];
        suite_series s = {.family = f, .dtype = TESS_BF16};
        printf("%s: %s\n  tokens:", f->name, f->title);
        for (int k = 0; k < SUITE_MAX_LENGTHS && f->full[k]; k++)
            printf(" %s", short_tokens(tokens, sizeof tokens, f->full[k]));
        if (suite_line(&s, f->full[0], f->heads, line, sizeof line) == 0) printf("\n  %s\n", line);
    }
    puts("\nSuites made of them: quick, models, full.\n\nvendors:");
    bench_line *lines = NULL;
    int n = 0;
    if (vendors_lines(NULL, &lines, &n) != 0) n = 0;
    for (int i = 0; i < n; i++) printf("  %s\n    %s\n", lines[i].title, lines[i].line);
    free(lines);
}

/* ------------------------------------------------------------------ results */

/* As it was typed, up to what a shell would need to read it again. */
static void describe_command(bench_report *r, int argc, char **argv) {
    char word[512];
    snprintf(r->command, sizeof r->command, "tessera");
    for (int i = 0; i < argc; i++)
        if (line_escape(argv[i], word, sizeof word) != 0 ||
            append_word(r->command, sizeof r->command, word) != 0)
            break;
    cli_one_line(r->command);
}

static void describe_run(bench_report *r, const bench_arguments *a) {
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(r->created, sizeof r->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(r->suite, sizeof r->suite, "%s", a->suite);
    uint32_t v = tess_version();
    snprintf(r->library_version, sizeof r->library_version, "%u.%u.%u", v / 1000000,
             v / 1000 % 1000, v % 1000);
#if defined(__clang__)
    snprintf(r->compiler, sizeof r->compiler, "%s", __VERSION__);
#else
    snprintf(r->compiler, sizeof r->compiler, "gcc %s", __VERSION__);
#endif
    snprintf(r->build, sizeof r->build, "%s", TESSERA_BUILD_TYPE);
    snprintf(r->commit, sizeof r->commit, "%s", TESSERA_COMMIT);
    r->budget_seconds = a->run.budget;
}

/* Devices beside each other, where there are several. */
static void devices_beside(const bench_report *r, const char *before,
                           void (*write)(const matrix *m, FILE *f), FILE *f) {
    char error[256];
    matrix m;
    if (matrix_build(&m, &r, NULL, 1, NULL, error, sizeof error) != 0) return;
    if (m.n_columns > 1) {
        fputs(before, f);
        write(&m, f);
    }
    matrix_free(&m);
}

static void markdown(const bench_report *r, FILE *f) {
    report_markdown(r, f);
    devices_beside(r, "\n# Devices beside each other\n", matrix_markdown_tables, f);
}

/* Writes every file under a temporary name first and renames all of them only when all are
 * complete. */
static int write_outputs(const bench_report *r, const bench_arguments *a) {
    text_file files[N_OUTPUTS] = {{0}};
    char error[512];
    int status = 0, at = 0;
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        if (!a->outputs[i]) continue;
        at = i;
        status = text_file_open(&files[i], a->outputs[i], error, sizeof error);
        if (status != 0) break;
        FILE *f = files[i].stream;
        if (i == 0)
            status = json_write(r, f) == 0 ? 0 : text_error(error, sizeof error, "out of memory");
        else if (i == 1)
            report_csv(r, f);
        else if (i == 2)
            markdown(r, f);
        else
            status = page_of_report(r, f, error, sizeof error);
        if (status == 0) status = text_file_close(&files[i], error, sizeof error);
    }
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        at = i;
        if (a->outputs[i]) status = text_file_publish(&files[i], error, sizeof error);
    }
    if (status != 0) cli_error(CLI_FAILED, "bench", "--%s: %s", output_names[at], error);
    for (int i = 0; i < N_OUTPUTS; i++) text_file_discard(&files[i]);
    return status == 0 ? CLI_OK : CLI_FAILED;
}

/* The file for the public table; the report is cleaned for it. */
static int write_submission(bench_report *r) {
    char name[128], error[512] = "out of memory";
    text_file file = {0};
    submit_name(r, name, sizeof name);
    submit_clean(r);
    int status = text_file_open(&file, name, error, sizeof error);
    if (status == 0) status = json_write(r, file.stream);
    if (status == 0) status = text_file_close(&file, error, sizeof error);
    if (status == 0) status = text_file_publish(&file, error, sizeof error);
    text_file_discard(&file);
    if (status != 0) return cli_error(CLI_FAILED, "bench", "--submit: %s", error);
    printf("\nwritten: %s. Nothing was sent. To be in the public table, add it to bench/results of "
           "the repository.\n",
           name);
    return CLI_OK;
}

static int has_ceilings(const bench_report *r) {
    int n = 0;
    for (int i = 0; i < r->n_devices; i++) n += r->devices[i].n_ceilings;
    return n > 0;
}

/* Measures and writes; the arguments are known to be good. */
static int measure_and_report(const bench_arguments *a, bench_report *report) {
    char error[512];
    /* Minutes of work must not end in "permission denied". */
    for (int i = 0; i < N_OUTPUTS; i++)
        if (a->outputs[i] && text_file_probe(a->outputs[i], error, sizeof error) != 0)
            return cli_error(CLI_FAILED, "bench", "--%s: %s", output_names[i], error);
    if (a->submit && text_file_probe("tessera.json", error, sizeof error) != 0)
        return cli_error(CLI_FAILED, "bench", "--submit: %s", error);
    double start = clock_now(), others = machine_other_seconds();
    describe_run(report, a);
    int status = run_suite(&a->run, report);
    report->elapsed_seconds = clock_now() - start;
    if (report->machine.cpus > 0)
        report->machine.other_load = fmax(machine_other_seconds() - others, 0) /
                                     (report->elapsed_seconds * report->machine.cpus);
    if (report->n_results || report->n_planning) {
        report_text(report, stdout);
        devices_beside(report, "\nDevices beside each other\n", matrix_text_tables, stdout);
    }
    if (status == CLI_USAGE) return status;
    const int interrupted = report->n_devices && !report->complete;
    /* Minutes of measuring are kept, however the run ended. */
    const int worth_writing =
        report->n_results || (interrupted && (report->n_planning || has_ceilings(report)));
    if (worth_writing && write_outputs(report, a) != CLI_OK) status = CLI_FAILED;
    if (a->submit && !interrupted && report_count(report, BENCH_OK) &&
        write_submission(report) != CLI_OK)
        status = CLI_FAILED;
    if (interrupted)
        return cli_error(CLI_FAILED, "bench",
                         worth_writing ? "interrupted; what was complete by then is reported"
                                       : "interrupted before anything was measured");
    return status;
}

int bench_main(int argc, char **argv) {
    bench_arguments a;
    bench_report report;
    memset(&a, 0, sizeof a);
    memset(&report, 0, sizeof report);
    describe_command(&report, argc, argv); /* before the words are put in order */
    int status = parse(argc, argv, &a);
    if (status == CLI_GO_ON && a.list) {
        list_families();
        status = CLI_OK;
    }
    if (status == CLI_GO_ON) status = measure_and_report(&a, &report);
    report_free(&report);
    free(a.run.series);
    free(a.run.lines);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tessera bench`: words and options, and where results go. */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera/tessera.h>

#include "clock.h"
#include "html.h"
#include "json.h"
#include "machine.h"
#include "problem.h"
#include "report.h"
#include "runner.h"
#include "text.h"

static const char help[] =
    "usage: tessera bench [SUITE ... | k=v ...] [options]\n\n"
    "Measures attention on every device found. Each number is printed only after its result was checked against the fp64 reference.\n\n"
    "  SUITE            default (about 2.5 minutes), quick (about 30 s), full (an hour), or families by name: --list shows them\n"
    "  k=v ...          one problem instead, beside its dense twin: heads=8 q_len=4096 head_dim=128 local=8 stride=16 ...\n\n"
    "  --backends LIST  'all' devices that are no software emulation, or a comma list of backends and devices (cpu, cuda:0)\n"
    "  --kernels WHICH  'pick' (the one that the device would take, default) or 'all'\n"
    "  --dtype LIST     f32, f16, bf16: replaces the types of a suite\n"
    "  --budget S       seconds that the suite may take; what would not fit is skipped with a note\n"
    "  --no-ceilings    do not measure what matrix products and copies reach\n"
    "  --no-planning    do not measure planning times\n"
    "  --json F  --csv F  --md F  --html F    write the results to files, which appear whole or not at all\n"
    "  --list           print the families and their problems\n"
    "  --help  --version\n\n"
    "docs/bench.md explains how to read the results. Exit status: 0; 1 when something failed or was interrupted; 2 for unknown words.\n";

enum { N_OUTPUTS = 4 };
static const char *const output_names[N_OUTPUTS] = {"json", "csv", "md", "html"};

typedef struct bench_arguments {
    const char *outputs[N_OUTPUTS]; /* paths, or NULL */
    const char *dtypes;
    double budget; /* 0: the suite's own */
    int list;
    run_options run;
    char suite[128];
    char line[BENCH_LINE];
} bench_arguments;

static int usage_error(const char *what, const char *detail) {
    fprintf(stderr, "tessera bench: %s%.100s\n", what, detail ? detail : "");
    return 2;
}

/* ------------------------------------------------------------------ words */

static int append_word(char *text, size_t size, const char *separator, const char *word) {
    size_t used = strlen(text);
    int n = snprintf(text + used, size - used, "%s%s", used ? separator : "", word);
    return n >= 0 && (size_t)n < size - used ? 0 : -1;
}

static int parse_budget(const char *text, double *budget) {
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= 1) || !(value <= 1e6))
        return usage_error("--budget: not a number of seconds from 1 to 1000000: ", text);
    *budget = value;
    return 0;
}

static int parse_options(int argc, char **argv, bench_arguments *a) {
    enum { BACKENDS = 256, KERNELS, DTYPE, BUDGET, NO_CEILINGS, NO_PLANNING, LIST, HELP, VERSION, OUTPUT };
    static const struct option options[] = {{"backends", required_argument, NULL, BACKENDS},
                                            {"kernels", required_argument, NULL, KERNELS},
                                            {"dtype", required_argument, NULL, DTYPE},
                                            {"budget", required_argument, NULL, BUDGET},
                                            {"no-ceilings", no_argument, NULL, NO_CEILINGS},
                                            {"no-planning", no_argument, NULL, NO_PLANNING},
                                            {"list", no_argument, NULL, LIST},
                                            {"help", no_argument, NULL, HELP},
                                            {"version", no_argument, NULL, VERSION},
                                            {"json", required_argument, NULL, OUTPUT},
                                            {"csv", required_argument, NULL, OUTPUT + 1},
                                            {"md", required_argument, NULL, OUTPUT + 2},
                                            {"html", required_argument, NULL, OUTPUT + 3},
                                            {NULL, 0, NULL, 0}};
    optind = 0; /* start anew: the caller has read options of its own */
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        switch (c) {
        case BACKENDS: a->run.backends = optarg; break;
        case KERNELS:
            if (strcmp(optarg, "all") != 0 && strcmp(optarg, "pick") != 0) return usage_error("--kernels: neither 'pick' nor 'all': ", optarg);
            a->run.all_kernels = strcmp(optarg, "all") == 0;
            break;
        case DTYPE: a->dtypes = optarg; break;
        case BUDGET:
            if (parse_budget(optarg, &a->budget) != 0) return 2;
            break;
        case NO_CEILINGS: a->run.ceilings = 0; break;
        case NO_PLANNING: a->run.planning = 0; break;
        case LIST: a->list = 1; break;
        case 'h':
        case HELP: fputs(help, stdout); return -1;
        case VERSION: printf("tessera %d.%d.%d\n", TESS_VERSION_MAJOR, TESS_VERSION_MINOR, TESS_VERSION_PATCH); return -1;
        case ':': return usage_error("missing value after ", argv[optind - 1]);
        case '?': return usage_error("unknown option, or a value where none is taken: ", argv[optind - 1]);
        default: a->outputs[c - OUTPUT] = optarg;
        }
    }
    return 0;
}

static int parse_suites(int argc, char **argv, bench_arguments *a) {
    char *standard[] = {"default"};
    int n = argc - optind;
    char **names = n ? argv + optind : standard;
    double budget = 0;
    for (int i = 0; i < (n ? n : 1); i++) {
        if (strchr(names[i], '=')) return usage_error("give either suites or the words of one problem, not both: ", names[i]);
        int status = suite_expand(names[i], a->dtypes, &a->run.series, &a->run.n_series);
        if (status == -1) return usage_error("out of memory", NULL), 1;
        if (status == -2) return usage_error("no such suite or family (see --list): ", names[i]);
        if (status == -3) return usage_error("--dtype: not a list of f32, f16 and bf16: ", a->dtypes);
        if (append_word(a->suite, sizeof a->suite, " ", names[i]) != 0) return usage_error("too many suites", NULL);
        budget = fmax(budget, suite_budget(names[i]));
    }
    a->run.budget = a->budget > 0 ? a->budget : budget;
    return 0;
}

/* The words of one problem, brought into their shortest form, so that result files of different people agree about the line. */
static int parse_problem(int argc, char **argv, bench_arguments *a) {
    char error[256], line[BENCH_LINE] = "";
    problem p;
    for (int i = optind; i < argc; i++) {
        if (!strchr(argv[i], '=')) return usage_error("give either suites or the words of one problem, not both: ", argv[i]);
        if (append_word(line, sizeof line, " ", argv[i]) != 0) return usage_error("the problem is longer than 2,000 characters", NULL);
    }
    if (a->dtypes) return usage_error("--dtype: belongs to suites; a problem has the word dtype=", NULL);
    int bad = problem_parse(&p, line, error, sizeof error);
    int length = bad ? 0 : problem_format(&p, a->line, sizeof a->line);
    problem_free(&p);
    if (bad) {
        fprintf(stderr, "tessera bench: %s\n", error);
        return bad == PROBLEM_BAD_FILE ? 1 : 2;
    }
    if (length < 0 || (size_t)length >= sizeof a->line) return usage_error("the problem is longer than 2,000 characters", NULL);
    snprintf(a->suite, sizeof a->suite, "one problem");
    a->run.line = a->line;
    a->run.budget = a->budget > 0 ? a->budget : 60;
    return 0;
}

static int parse(int argc, char **argv, bench_arguments *a) {
    a->run.ceilings = a->run.planning = 1;
    int status = parse_options(argc, argv, a);
    if (status != 0 || a->list) return status;
    int words = optind < argc && strchr(argv[optind], '=');
    status = words ? parse_problem(argc, argv, a) : parse_suites(argc, argv, a);
    for (int i = 0; i < N_OUTPUTS && status == 0; i++)
        for (int j = 0; j < i; j++)
            if (a->outputs[i] && a->outputs[j] && strcmp(a->outputs[i], a->outputs[j]) == 0)
                return usage_error("two outputs have the same name: ", a->outputs[i]);
    return status;
}

static void list_families(void) {
    const suite_family *f;
    for (int i = 0; (f = suite_family_at(i)) != NULL; i++) {
        char line[BENCH_LINE], tokens[24];
        suite_series s = {.family = f, .dtype = TESS_BF16};
        printf("%s: %s\n  tokens:", f->name, f->title);
        for (int k = 0; k < SUITE_MAX_LENGTHS && f->full[k]; k++) printf(" %s", short_tokens(tokens, sizeof tokens, f->full[k]));
        if (suite_line(&s, f->full[0], f->heads, line, sizeof line) == 0) printf("\n  %s\n", line);
    }
    puts("\nSuites made of them: quick, default, full.");
}

/* ------------------------------------------------------------------ results */

static void describe_run(bench_report *r, const bench_arguments *a, int argc, char **argv) {
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(r->created, sizeof r->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(r->suite, sizeof r->suite, "%s", a->suite);
    snprintf(r->command, sizeof r->command, "tessera");
    for (int i = 0; i < argc; i++)
        if (append_word(r->command, sizeof r->command, " ", argv[i]) != 0) break;
    uint32_t v = tess_version();
    snprintf(r->library_version, sizeof r->library_version, "%u.%u.%u", v / 1000000, v / 1000 % 1000, v % 1000);
#if defined(__clang__)
    snprintf(r->compiler, sizeof r->compiler, "%s", __VERSION__);
#else
    snprintf(r->compiler, sizeof r->compiler, "gcc %s", __VERSION__);
#endif
    snprintf(r->build, sizeof r->build, "%s", TESSERA_BUILD_TYPE);
    r->budget_seconds = a->run.budget;
}

/* Writes every file under a temporary name first and renames all of them only when all are complete. */
static int write_outputs(const bench_report *r, const bench_arguments *a) {
    text_file files[N_OUTPUTS] = {{0}};
    char error[512];
    int status = 0;
    for (int i = 0; i < N_OUTPUTS && status == 0; i++) {
        if (!a->outputs[i]) continue;
        status = text_file_open(&files[i], a->outputs[i], error, sizeof error);
        if (status != 0) break;
        FILE *f = files[i].stream;
        if (i == 0)
            status = json_write(r, f) == 0 ? 0 : text_error(error, sizeof error, "out of memory");
        else if (i == 1)
            report_csv(r, f);
        else if (i == 2)
            report_markdown(r, f);
        else
            html_report(r, f);
        if (status == 0) status = text_file_close(&files[i], error, sizeof error);
    }
    for (int i = 0; i < N_OUTPUTS && status == 0; i++)
        if (a->outputs[i]) status = text_file_publish(&files[i], error, sizeof error);
    if (status != 0) fprintf(stderr, "tessera bench: %s\n", error);
    for (int i = 0; i < N_OUTPUTS; i++) text_file_discard(&files[i]);
    return status == 0 ? 0 : 1;
}

int bench_main(int argc, char **argv) {
    bench_arguments a;
    bench_report report;
    char error[512];
    memset(&a, 0, sizeof a);
    memset(&report, 0, sizeof report);
    int status = parse(argc, argv, &a);
    if (status != 0 || a.list) {
        if (a.list && status == 0) list_families();
        free(a.run.series);
        return status > 0 ? status : 0;
    }
    /* Minutes of work must not end in "permission denied". */
    for (int i = 0; i < N_OUTPUTS; i++)
        if (a.outputs[i] && text_file_probe(a.outputs[i], error, sizeof error) != 0) {
            fprintf(stderr, "tessera bench: --%s: %s\n", output_names[i], error);
            free(a.run.series);
            return 1;
        }
    double start = clock_now(), others = machine_other_seconds();
    describe_run(&report, &a, argc, argv);
    status = run_suite(&a.run, &report);
    report.elapsed_seconds = clock_now() - start;
    if (report.machine.cpus > 0)
        report.machine.other_load = fmax(machine_other_seconds() - others, 0) / (report.elapsed_seconds * report.machine.cpus);
    if (report.n_results || report.n_planning) report_text(&report, stdout);
    if (report.n_devices && !report.complete) {
        fputs("tessera bench: interrupted; no files were written\n", stderr);
    } else if (report.n_results && status < 2 && write_outputs(&report, &a) != 0) {
        status = 1;
    }
    report_free(&report);
    free(a.run.series);
    return status;
}

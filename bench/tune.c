/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tessera tune`: measures which kernel serves which shape on the devices of this
 * machine, and writes the file that TESSERA_TUNE_FILE names. */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "clock.h"
#include "devices.h"
#include "line.h"
#include "machine.h"
#include "options.h"
#include "text.h"

static const char help[] =
    "usage: tessera tune [--out F] [options]\n\n"
    "Measures which kernel is fastest for which class of shapes on every device found, each kernel "
    "checked against the fp64 reference first, and "
    "writes\n"
    "rules for the library: TESSERA_TUNE_FILE=/absolute/path/F makes plans follow them.\n\n"
    "  --out F          the tune file, which appears whole or not at all; without it the file goes "
    "to standard output\n"
    "  --backends LIST  'hardware' (default), 'all' with software emulations, or a comma list of "
    "backends and devices (cpu, cpu:0)\n"
    "  --kernels WHICH  'usual' (default) or 'all', with those that are taken only when named; "
    "these are shown and never preferred\n"
    "  --quick          fewer head sizes, in about ten seconds instead of less than a minute\n"
    "  --help  --version\n\n"
    "A kernel takes the place of the one that plans use without a tune file only where it wins by "
    "more than the spread of both. TESSERA_KERNEL and\n"
    "TESSERA_TUNE_FILE do not count while measuring.\n"
    "Exit status: 0; 1 when something failed or was interrupted; 2 when the command line cannot be "
    "understood.\n";

typedef struct tune_arguments {
    const char *out, *backends;
    unsigned which;
    int quick;
} tune_arguments;

typedef struct session {
    const tune_arguments *arguments;
    bench_report report; /* for its devices, and what it says of the run */
    tess_runtime *runtime;
    tune_result *results;
    int n_results, failures;
    progress bar;
    double end;
} session;

static int out_of_memory(void) { return cli_error(CLI_FAILED, "tune", "out of memory"); }

static int parse(int argc, char **argv, tune_arguments *a) {
    enum { OUT, BACKENDS, KERNELS, QUICK, N_OPTIONS };
    cli_option o[N_OPTIONS] = {{.name = "out", .takes_value = 1},
                               {.name = "backends", .takes_value = 1},
                               {.name = "kernels", .takes_value = 1},
                               {.name = "quick"}};
    size_t n_words;
    const int status = cli_options(argc, argv, help, o, N_OPTIONS, &n_words);
    if (status != CLI_GO_ON) return status;
    if (n_words)
        return cli_error(CLI_USAGE, "tune", "'%.60s': this command takes no words", argv[1]);
    const int all = o[KERNELS].given && strcmp(o[KERNELS].value, "all") == 0;
    if (o[KERNELS].given && !all && strcmp(o[KERNELS].value, "usual") != 0)
        return cli_error(CLI_USAGE, "tune", "--kernels: neither 'usual' nor 'all': %.100s",
                         o[KERNELS].value);
    if (o[OUT].given && !*o[OUT].value)
        return cli_error(CLI_USAGE, "tune", "--out: must not be empty");
    *a = (tune_arguments){o[OUT].value, o[BACKENDS].value,
                          all ? DEVICES_ALL_KERNELS : DEVICES_USUAL_KERNELS, o[QUICK].given};
    return CLI_GO_ON;
}

static void describe_run(bench_report *r, int argc, char **argv) {
    const time_t now = time(NULL);
    struct tm utc;
    size_t used = (size_t)snprintf(r->command, sizeof r->command, "tessera");
    for (int i = 0; i < argc && used < sizeof r->command; i++) {
        char word[512];
        if (line_escape(argv[i], word, sizeof word) != 0) break;
        used += (size_t)snprintf(r->command + used, sizeof r->command - used, " %s", word);
    }
    cli_one_line(r->command);
    if (gmtime_r(&now, &utc)) strftime(r->created, sizeof r->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(r->library_version, sizeof r->library_version, "%d.%d.%d", TESS_VERSION_MAJOR,
             TESS_VERSION_MINOR, TESS_VERSION_PATCH);
}

/* ------------------------------------------------------------------ measuring */

/* All shapes of one device. Returns 0, or -1 when out of memory. */
static int run_device(session *s, int index, int *steps_left) {
    const bench_device *d = &s->report.devices[index];
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = d->id};
    tune_shape shapes[TUNE_SHAPES];
    tess_device *device = NULL;
    char text[512];
    const int n = tune_shapes(d->kind, s->arguments->quick, shapes);
    if (tess_device_open(s->runtime, &desc, &device) != TESS_OK) {
        snprintf(text, sizeof text, "tessera tune: %s: %s", d->id, cli_why());
        progress_say(&s->bar, text);
        s->failures++;
        *steps_left -= n;
        return 0;
    }
    tune_result *larger = realloc(s->results, (size_t)(s->n_results + n) * sizeof *larger);
    if (larger) s->results = larger;
    for (int i = 0; i < n && larger && !clock_interrupted(); i++) {
        tune_result *r = &s->results[s->n_results++];
        *r = (tune_result){.device = index, .shape = shapes[i]};
        const tune_limits limits = {fmax(s->end - clock_now(), 0) /
                                        (*steps_left > 0 ? *steps_left : 1),
                                    s->arguments->which, machine_memory_available() / 10 * 6};
        snprintf(text, sizeof text, "%s %.90s", d->id, shapes[i].line);
        progress_now(&s->bar, text);
        if (tune_measure(s->runtime, device, d->id, &limits, &s->bar, r, &s->failures) != 0) break;
        snprintf(text, sizeof text, "%s, %.100s: %s%s", d->id, shapes[i].line,
                 r->n_kernels ? r->kernels[0].name : r->note,
                 r->displaced ? " instead of the usual one" : "");
        progress_step(&s->bar, text);
        --*steps_left;
    }
    tess_device_release(device);
    return larger ? 0 : -1;
}

static int measure_all(session *s) {
    const double seconds = s->arguments->quick ? 10 : 40;
    tune_shape shapes[TUNE_SHAPES];
    int steps = 0, status = 0;
    for (int i = 0; i < s->report.n_devices; i++)
        steps += tune_shapes(s->report.devices[i].kind, s->arguments->quick, shapes);
    clock_catch_interrupt();
    progress_begin(&s->bar, steps, seconds);
    s->end = clock_now() + seconds;
    for (int i = 0; i < s->report.n_devices && status == 0 && !clock_interrupted(); i++)
        status = run_device(s, i, &steps);
    progress_end(&s->bar);
    const int interrupted = clock_interrupted();
    clock_release_interrupt();
    if (status != 0) return out_of_memory();
    return interrupted ? cli_error(CLI_FAILED, "tune", "interrupted; no file was written") : CLI_OK;
}

/* ------------------------------------------------------------------ results */

static int write_file(const session *s, const char *path) {
    char error[512];
    text_file file = {0};
    int status = text_file_open(&file, path, error, sizeof error);
    if (status == 0) {
        status = tune_write(&s->report, s->results, s->n_results, file.stream);
        if (status != 0) text_error(error, sizeof error, "out of memory");
    }
    if (status == 0) status = text_file_close(&file, error, sizeof error);
    if (status == 0) status = text_file_publish(&file, error, sizeof error);
    text_file_discard(&file);
    return status == 0 ? CLI_OK : cli_error(CLI_FAILED, "tune", "--out: %s", error);
}

/* The file is the result. Where it has a name, the table takes its place on standard output. */
static int show(const session *s) {
    if (tune_table(&s->report, s->results, s->n_results, s->arguments->out ? stdout : stderr) != 0)
        return out_of_memory();
    if (s->arguments->out) return write_file(s, s->arguments->out);
    return tune_write(&s->report, s->results, s->n_results, stdout) == 0 ? CLI_OK : out_of_memory();
}

static int tune(session *s) {
    char error[512];
    /* A minute of work must not end in "permission denied". */
    if (s->arguments->out && text_file_probe(s->arguments->out, error, sizeof error) != 0)
        return cli_error(CLI_FAILED, "tune", "--out: %s", error);
    /* What is measured is what the library does without a tune file, and the one that is set may be
     * the one to be written. */
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .kernel = "", .tune_file = ""};
    if (tess_runtime_create(&desc, &s->runtime) != TESS_OK)
        return cli_error(CLI_FAILED, "tune", "%s", cli_why());
    int status = devices_choose(s->runtime, "tune", s->arguments->backends, &s->report);
    if (status == CLI_OK) status = measure_all(s);
    if (status == CLI_OK) status = show(s);
    return status == CLI_OK && s->failures ? CLI_FAILED : status;
}

int tune_main(int argc, char **argv) {
    tune_arguments a;
    session s = {.arguments = &a};
    describe_run(&s.report, argc, argv); /* before the words are put in order */
    int status = parse(argc, argv, &a);
    if (status == CLI_GO_ON) status = tune(&s);
    tess_runtime_release(s.runtime);
    report_free(&s.report);
    free(s.results);
    return status;
}

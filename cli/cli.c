/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char cli_help_words[] =
    "Words of a problem, in any order (docs/problems.md explains each):\n"
    "  heads= kv_heads=heads batch=1 q_len= kv_len=q_len head_dim= dtype=f32|f16|bf16 causal=1 scale=1/sqrt(head_dim) seed=0\n"
    "  q_lens=a,b,... kv_lens=a,b,...     a packed batch, instead of batch, q_len and kv_len\n"
    "  pattern=s2 local= stride= block=64 offset=0 dense_heads=0 per_kv_head=0 homo=0 local_right=local\n"
    "  pattern=dense\n"
    "  pattern=window left= right= sinks=0     tokens; -1 is unbounded; causal=1 needs no right\n"
    "  pattern=blocks mask=F.npy block=     bool [1 or heads, query blocks, key blocks]\n"
    "  head_first=0 heads_total=heads kv_heads_total=     a slice of a larger model's heads\n"
    "  kv_split=0 batch_invariant=0 tile_rows=0     0 lets the plan decide\n";

/* ------------------------------------------------------------------ messages */

/* Control characters of a user's word must neither break the line nor reach the terminal. */
static void one_line(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

int cli_error(int status, const char *command, const char *format, ...) {
    char line[CLI_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    one_line(line);
    if (command)
        fprintf(stderr, "tessera %s: %s\n", command, line);
    else
        fprintf(stderr, "tessera: %s\n", line);
    return status;
}

/* ------------------------------------------------------------------ options */

int cli_options(int argc, char **argv, const char *help, cli_option *options, size_t n_options, size_t *n_words) {
    const char *command = argv[0];
    struct option table[CLI_MAX_OPTIONS + 3] = {{"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'v'}};
    for (size_t i = 0; i < n_options; i++)
        table[2 + i] = (struct option){options[i].name, options[i].takes_value ? required_argument : no_argument, NULL, 256 + (int)i};
    *n_words = 0;
    opterr = 0; /* messages are ours, one line each */
    optind = 0; /* start anew, also in getopt's own state */
    for (;;) {
        int at = optind ? optind : 1;
        /* '-': words come in their places whatever POSIXLY_CORRECT says. ':': a missing value is told apart from an unknown option. */
        int c = getopt_long(argc, argv, "-:h", table, NULL);
        if (c == -1) break;
        switch (c) {
        case 1: argv[1 + (*n_words)++] = optarg; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        case 'v': printf("tessera %d.%d.%d\n", TESS_VERSION_MAJOR, TESS_VERSION_MINOR, TESS_VERSION_PATCH); return CLI_OK;
        case ':': return cli_error(CLI_USAGE, command, "%s: needs a value", argv[optind - 1]);
        case '?':
            return cli_error(CLI_USAGE, command, "%s: unknown option, or a value where none is taken; see tessera %s --help", argv[at], command);
        default: {
            cli_option *option = &options[c - 256];
            if (option->given) return cli_error(CLI_USAGE, command, "--%s: given twice", option->name);
            option->given = 1;
            option->value = optarg;
            break;
        }
        }
    }
    while (optind < argc) argv[1 + (*n_words)++] = argv[optind++]; /* what follows "--" */
    return CLI_GO_ON;
}

/* ------------------------------------------------------------------ problems */

int cli_words(const char *command, char **words, size_t n_words, problem *p) {
    char error[CLI_LINE];
    for (size_t i = 0; i < n_words; i++)
        if (problem_word(p, words[i], error, sizeof error) != 0) return cli_error(CLI_USAGE, command, "%s", error);
    return CLI_GO_ON;
}

int cli_finish(const char *command, problem *p) {
    char error[CLI_LINE];
    int bad = problem_finish(p, error, sizeof error);
    if (bad) return cli_error(bad == PROBLEM_BAD_FILE ? CLI_FAILED : CLI_USAGE, command, "%s", error);
    if (p->op != TESS_OP_FORWARD) return cli_error(CLI_FAILED, command, "op: only fwd is supported by this version");
    return CLI_GO_ON;
}

int cli_open(const char *command, const char *backend, tess_runtime **runtime, tess_device **device) {
    if (tess_runtime_create(NULL, runtime) != TESS_OK) return cli_error(CLI_FAILED, command, "%s", tess_last_error());
    if (!device) return CLI_GO_ON;
    tess_device_desc desc = {.struct_size = sizeof desc, .id = backend};
    if (tess_device_open(*runtime, &desc, device) != TESS_OK) return cli_error(CLI_FAILED, command, "%s", tess_last_error());
    return CLI_GO_ON;
}

/* ------------------------------------------------------------------ progress */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void cli_progress_begin(cli_progress *progress, const char *what) {
    *progress = (cli_progress){what, now(), 0, isatty(STDERR_FILENO)};
    progress->drawn = progress->started + 0.3; /* the first time after half a second: quick work shows nothing */
}

void cli_progress_show(cli_progress *progress, double share) {
    enum { WIDTH = 30 };
    if (!progress->active) return;
    double time = now();
    if (time - progress->drawn < 0.2) return;
    progress->drawn = time;
    int filled = (int)(share * WIDTH);
    fprintf(stderr, "\r%s [", progress->what);
    for (int i = 0; i < WIDTH; i++) fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f %%", share * 100);
    if (share > 0.02) fprintf(stderr, ", %.0f s left", (time - progress->started) * (1 - share) / share);
    fputs("\033[K", stderr);
    progress->active = 2;
}

void cli_progress_end(cli_progress *progress) {
    if (progress->active == 2) fputs("\r\033[K", stderr);
    progress->active = 0;
}

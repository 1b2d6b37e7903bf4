/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help_words[] =
    "Words of a problem, in any order:\n"
    "  heads= kv_heads=heads batch=1 q_len= kv_len=q_len head_dim= dtype=f32|f16|bf16 causal=1 "
    "scale=1/sqrt(head_dim) seed=0\n"
    "  kv_dtype=dtype|e4m3|i8     codes of 8 bits with a scale for each token and kv head\n"
    "  q_lens=a,b,... kv_lens=a,b,...     a packed batch, instead of batch, q_len and kv_len\n"
    "  op=decode kv_len= q_len=1 page=0|16|32|64|128|256 compact=0     attention over a KV cache\n"
    "  pattern=s2 local= stride= block=64 offset=0 dense_heads=0 per_kv_head=0 homo=0 "
    "local_right=local\n"
    "  pattern=dense\n"
    "  pattern=window left= right= sinks=0     tokens; -1 is unbounded; causal=1 needs no right\n"
    "  pattern=blocks mask=F.npy block=     bool [1 or heads, query blocks, key blocks]\n"
    "  head_first=0 heads_total=heads kv_heads_total=     a slice of a larger model's heads\n"
    "  head_ids=a,b,...     these heads of it, instead of those from head_first on\n"
    "  kv_split=0 batch_invariant=0 tile_rows=0     0 lets the plan decide\n";

/* ------------------------------------------------------------------ problems */

int cli_problem_options(int argc, char **argv, const char *help, cli_option *options,
                        size_t n_options, size_t *n_words) {
    char text[4096];
    snprintf(text, sizeof text, "%s%s", help, help_words);
    return cli_options(argc, argv, text, options, n_options, n_words);
}

int cli_words(const char *command, char **words, size_t n_words, problem *p) {
    char error[CLI_LINE];
    for (size_t i = 0; i < n_words; i++)
        if (problem_word(p, words[i], error, sizeof error) != 0)
            return cli_error(CLI_USAGE, command, "%s", error);
    return CLI_GO_ON;
}

int cli_finish(const char *command, problem *p) {
    char error[CLI_LINE];
    int bad = problem_finish(p, error, sizeof error);
    if (bad)
        return cli_error(bad == PROBLEM_BAD_FILE ? CLI_FAILED : CLI_USAGE, command, "%s", error);
    return CLI_GO_ON;
}

int cli_refused(const char *command, const problem *p) {
    static const struct {
        const char *field, *words[4]; /* the first of the words that was given, else the last */
    } names[] = {{"max_tokens", {"kv_len", "kv_lens", "q_lens", "q_len"}},
                 {"mask_query_blocks", {"mask"}},
                 {"mask_key_blocks", {"mask"}},
                 {"flags", {"compact"}}};
    const char *why = cli_why();
    size_t length = strcspn(why, ":");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].field) != length || strncmp(names[i].field, why, length) != 0) continue;
        int n = 0;
        while (n < 3 && names[i].words[n + 1] && !problem_has(p, names[i].words[n])) n++;
        return cli_error(CLI_FAILED, command, "%s%s", names[i].words[n], why + length);
    }
    return cli_error(CLI_FAILED, command, "%s", why);
}

int cli_open(const char *command, const char *backend, tess_runtime **runtime,
             tess_device **device) {
    if (tess_runtime_create(NULL, runtime) != TESS_OK)
        return cli_error(CLI_FAILED, command, "%s", cli_why());
    return device ? cli_open_device(command, "--backend", *runtime, backend, device) : CLI_GO_ON;
}

/* ------------------------------------------------------------------ progress */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void cli_progress_begin(cli_progress *progress, const char *what) {
    *progress = (cli_progress){what, now(), 0, isatty(STDERR_FILENO)};
    /* the first time after half a second: quick work shows nothing */
    progress->drawn = progress->started + 0.3;
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
    if (share > 0.02)
        fprintf(stderr, ", %.0f s left", (time - progress->started) * (1 - share) / share);
    fputs("\033[K", stderr);
    progress->active = 2;
}

void cli_progress_end(cli_progress *progress) {
    if (progress->active == 2) fputs("\r\033[K", stderr);
    progress->active = 0;
}

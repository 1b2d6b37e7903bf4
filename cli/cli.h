/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of this folder share: problems, devices, progress. */
#ifndef TESSERA_CLI_CLI_H
#define TESSERA_CLI_CLI_H

#include <stddef.h>

#include "options.h"
#include "problem.h"

/* Each takes argv with the command's own name first and returns the exit status. */
int info_main(int argc, char **argv);
int pattern_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int run_main(int argc, char **argv);

/* The words into a problem that problem_init was called on. CLI_GO_ON or CLI_USAGE. */
int cli_words(const char *command, char **words, size_t n_words, problem *p);
/* problem_finish, and a refusal of operations that this version has none of. */
int cli_finish(const char *command, problem *p);

/* Tells why the library refused the problem, by the words of the command line instead of the
 * library's fields. Returns CLI_FAILED. */
int cli_refused(const char *command, const problem *p);

/* A runtime with the settings of the environment; `device` may be NULL when none is needed;
 * `backend` may be NULL. CLI_GO_ON or an exit status. */
int cli_open(const char *command, const char *backend, tess_runtime **runtime,
             tess_device **device);

/* Draws how much of long work is done, on a terminal only and not before half a second has
 * passed. */
typedef struct cli_progress {
    const char *what;
    double started, drawn;
    int active;
} cli_progress;
void cli_progress_begin(cli_progress *progress, const char *what);
void cli_progress_show(cli_progress *progress, double share);
void cli_progress_end(cli_progress *progress);

/* cli_options for a command that takes the words of a problem, which its help then explains. */
int cli_problem_options(int argc, char **argv, const char *help, cli_option *options,
                        size_t n_options, size_t *n_words);

#endif

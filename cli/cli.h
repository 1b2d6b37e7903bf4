/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: options, messages, exit statuses, progress. */
#ifndef TESSERA_CLI_CLI_H
#define TESSERA_CLI_CLI_H

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

/* Exit statuses. CLI_GO_ON is none of them: a step that returns it succeeded and the command continues. */
enum { CLI_GO_ON = -1, CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

enum { CLI_LINE = 1024 }; /* room for one message */

/* Each takes argv with the command's own name first and returns the exit status. */
int info_main(int argc, char **argv);
int pattern_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int run_main(int argc, char **argv);

/* Prints "tessera COMMAND: message" as one line on standard error and returns `status`. */
int cli_error(int status, const char *command, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* One option of a command: `--name` or, with takes_value, `--name VALUE` and `--name=VALUE`. */
typedef struct cli_option {
    const char *name;
    int takes_value;
    int given;
    const char *value;
} cli_option;

enum { CLI_MAX_OPTIONS = 8 };

/* Reads options in any place of the line and moves the words that are none to the front of argv + 1, *n_words of them. --help prints `help` and --version
 * the version; then, and on a mistake, the exit status is returned instead of CLI_GO_ON. */
int cli_options(int argc, char **argv, const char *help, cli_option *options, size_t n_options, size_t *n_words);

/* The words into a problem that problem_init was called on. CLI_GO_ON or CLI_USAGE. */
int cli_words(const char *command, char **words, size_t n_words, problem *p);
/* problem_finish, and a refusal of operations that this version has none of. */
int cli_finish(const char *command, problem *p);

/* A runtime with the settings of the environment; `device` may be NULL when none is needed; `backend` may be NULL. CLI_GO_ON or CLI_FAILED. */
int cli_open(const char *command, const char *backend, tess_runtime **runtime, tess_device **device);

/* Draws how much of long work is done, on a terminal only and not before half a second has passed. */
typedef struct cli_progress {
    const char *what;
    double started, drawn;
    int active;
} cli_progress;
void cli_progress_begin(cli_progress *progress, const char *what);
void cli_progress_show(cli_progress *progress, double share);
void cli_progress_end(cli_progress *progress);

/* The words of problems, as every command's help explains them. */
extern const char cli_help_words[];

#endif

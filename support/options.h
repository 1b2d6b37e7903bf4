/* SPDX-License-Identifier: Apache-2.0 */
/* What every command of `tessera` does alike: exit statuses, messages of one line, options, the
 * choice of a device. */
#ifndef TESSERA_SUPPORT_OPTIONS_H
#define TESSERA_SUPPORT_OPTIONS_H

#include <stddef.h>

#include <tessera/tessera.h>

/* Exit statuses. CLI_GO_ON is none of them: a step that returns it succeeded and the command
 * continues. */
enum { CLI_GO_ON = -1, CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

enum { CLI_LINE = 1024 }; /* room for one message */

/* Replaces control characters, and bytes that are no UTF-8: a user's word must neither break a line
 * nor reach the terminal as a command, nor make a file unreadable. */
void cli_one_line(char *text);

/* Prints "tessera COMMAND: message" as one line on standard error and returns `status`. */
int cli_error(int status, const char *command, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* tess_last_error() without the name of the function, which users have not called. */
const char *cli_why(void);

/* One option of a command: `--name` or, with takes_value, `--name VALUE` and `--name=VALUE`. */
typedef struct cli_option {
    const char *name;
    int takes_value;
    int given;
    const char *value;
} cli_option;

enum { CLI_MAX_OPTIONS = 16 };

/* Reads options, by their full names and once each, in any place of the line and moves the words
 * that are none to the front of argv + 1, *n_words of them. --help prints `help` and --version the
 * version; then, and on a mistake, the exit status is returned instead of CLI_GO_ON. */
int cli_options(int argc, char **argv, const char *help, cli_option *options, size_t n_options,
                size_t *n_words);

/* Opens the device that `id`, the value of `option`, names: a name, name:index or a list of them;
 * NULL takes the setting, or else the best device. A malformed list and a name that no backend has
 * are mistakes of the command line (CLI_USAGE); a device that is not there or does not open is
 * CLI_FAILED. */
int cli_open_device(const char *command, const char *option, tess_runtime *runtime, const char *id,
                    tess_device **device);

#endif

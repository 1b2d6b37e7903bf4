/* SPDX-License-Identifier: Apache-2.0 */
/* The `tessera` command: finds the sub-command and makes sure that what it printed has arrived. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *does;
} commands[] = {
    {"info", info_main, "backends, devices, kernels, and the settings in force"},
    {"pattern", pattern_main,
     "which key blocks every query block of a head attends, as text and as a picture"},
    {"plan", plan_main, "what a problem costs: jobs, FLOPs, bytes, workspace, KV blocks kept"},
    {"run", run_main, "attention on NumPy arrays"},
    {"bench", bench_main, "measure every device, each number checked against the reference first"},
    {"compare", compare_main, "set result files of the bench side by side"},
    {"tune", tune_main, "measure which kernel serves which shape, and write a tune file"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *stream) {
    fputs("usage: tessera COMMAND [words and options]\n\n", stream);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stream, "  %-8s %s\n", commands[i].name, commands[i].does);
    fputs("\ntessera COMMAND --help explains a command, tessera --version tells the version.\n"
          "Exit status: 0 success, 2 the command line cannot be understood, 1 anything else that "
          "failed.\n",
          stream);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("tessera %d.%d.%d\n", TESS_VERSION_MAJOR, TESS_VERSION_MINOR, TESS_VERSION_PATCH);
        return CLI_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].main(argc - 1, argv + 1);
    return cli_error(CLI_USAGE, NULL, "%.60s: unknown command; tessera --help lists them", name);
}

int main(int argc, char **argv) {
    /* a limit on file sizes is an error of the write, whose temporary file is then removed */
    signal(SIGXFSZ, SIG_IGN);
    int status = dispatch(argc, argv);
    /* A full disk or a closed pipe shows only here; a result that did not arrive is a failure. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == CLI_OK)
        status = cli_error(CLI_FAILED, NULL, "standard output: %s",
                           errno ? strerror(errno) : "write error");
    return status;
}

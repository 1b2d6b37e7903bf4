/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

/* ------------------------------------------------------------------ messages */

void cli_one_line(char *text) {
    while (*text) {
        const int size = text_character(text);
        const unsigned char *c = (const unsigned char *)text;
        /* U+0080 to U+009F are controls as well. */
        const int control = *c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0);
        if (!size || control) memset(text, '?', size > 1 ? 2 : 1);
        text += size ? size : 1;
    }
}

int cli_error(int status, const char *command, const char *format, ...) {
    char line[CLI_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    cli_one_line(line);
    if (command)
        fprintf(stderr, "tessera %s: %s\n", command, line);
    else
        fprintf(stderr, "tessera: %s\n", line);
    return status;
}

const char *cli_why(void) {
    const char *why = tess_last_error(), *end = strstr(why, ": ");
    return strncmp(why, "tess_", 5) == 0 && end ? end + 2 : why;
}

/* ------------------------------------------------------------------ options */

int cli_options(int argc, char **argv, const char *help, cli_option *options, size_t n_options,
                size_t *n_words) {
    const char *command = argv[0];
    struct option table[CLI_MAX_OPTIONS + 3] = {{"help", no_argument, NULL, 'h'},
                                                {"version", no_argument, NULL, 'v'}};
    for (size_t i = 0; i < n_options; i++)
        table[2 + i] = (struct option){options[i].name,
                                       options[i].takes_value ? required_argument : no_argument,
                                       NULL, 256 + (int)i};
    *n_words = 0;
    opterr = 0; /* messages are ours, one line each */
    optind = 0; /* start anew, also in getopt's own state */
    for (;;) {
        int at = optind ? optind : 1;
        /* '-': words come in their places whatever POSIXLY_CORRECT says. ':': a missing value is
         * told apart from an unknown option. */
        int index = -1, c = getopt_long(argc, argv, "-:h", table, &index);
        if (c == -1) break;
        /* getopt_long takes a beginning for the whole name, which would make every new option a
         * change of the old ones. */
        if (index >= 0 && table[index].name &&
            strcspn(argv[at] + 2, "=") != strlen(table[index].name))
            c = '?';
        switch (c) {
        case 1: argv[1 + (*n_words)++] = optarg; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        case 'v':
            printf("tessera %d.%d.%d\n", TESS_VERSION_MAJOR, TESS_VERSION_MINOR,
                   TESS_VERSION_PATCH);
            return CLI_OK;
        case ':': return cli_error(CLI_USAGE, command, "%s: needs a value", argv[optind - 1]);
        case '?':
            return cli_error(
                CLI_USAGE, command,
                "%s: unknown option, or a value where none is taken; see tessera %s --help",
                argv[at], command);
        default: {
            cli_option *option = &options[c - 256];
            if (option->given)
                return cli_error(CLI_USAGE, command, "--%s: given twice", option->name);
            option->given = 1;
            option->value = optarg;
            break;
        }
        }
    }
    while (optind < argc) argv[1 + (*n_words)++] = argv[optind++]; /* what follows "--" */
    return CLI_GO_ON;
}

int cli_open_device(const char *command, const char *option, tess_runtime *runtime, const char *id,
                    tess_device **device) {
    static const char field[] = "id: ";
    if (id && !*id) return cli_error(CLI_USAGE, command, "%s: must not be empty", option);
    tess_device_desc desc = {.struct_size = sizeof desc, .id = id};
    tess_status status = tess_device_open(runtime, &desc, device);
    if (status == TESS_OK) return CLI_GO_ON;
    const char *why = cli_why();
    if (strncmp(why, field, sizeof field - 1) == 0) why += sizeof field - 1;
    if (!id) return cli_error(CLI_FAILED, command, "%s", why);
    return cli_error(status == TESS_ERROR_INVALID ? CLI_USAGE : CLI_FAILED, command, "%s: %s",
                     option, why);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Checks in the child of a fork(), where cmocka cannot report. */
#ifndef TESSERA_TESTS_CHILD_H
#define TESSERA_TESTS_CHILD_H

#include <stdio.h>
#include <unistd.h>

#include <tessera/tessera.h>

/* The parent finds an exit status of 1. */
#define CHILD(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "in the child: %s (%s)\n", #condition, tess_last_error()); \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_TESTS_FUZZ_FUZZ_H
#define TESSERA_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Drops a line of log. */
static inline void fuzz_log_nothing(void *user, const char *line) {
    (void)user;
    (void)line;
}

/* Ends the program, which is how a target says that it found something. */
#define FUZZ_REQUIRE(condition)                                             \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

#endif

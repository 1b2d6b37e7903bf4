/* SPDX-License-Identifier: Apache-2.0 */
/* The problem line: what is accepted must be written and read back as the same line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "problem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[256] = "", *line = malloc(size + 1), *again;
    problem p, q;
    if (!line) return 0;
    memcpy(line, data, size);
    line[size] = 0;
    /* A mask names a file, and the fuzzer must not read arbitrary files of the machine. */
    if (strstr(line, "mask")) {
        free(line);
        return 0;
    }
    if (problem_parse(&p, line, error, sizeof error) != 0) {
        FUZZ_REQUIRE(error[0] && !strchr(error, '\n') && strlen(error) < sizeof error);
    } else {
        const int length = problem_format(&p, NULL, 0);
        FUZZ_REQUIRE(length > 0);
        again = malloc((size_t)length + 1);
        FUZZ_REQUIRE(again && problem_format(&p, again, (size_t)length + 1) == length &&
                     (int)strlen(again) == length);
        FUZZ_REQUIRE(problem_parse(&q, again, error, sizeof error) == 0);
        char *third = malloc((size_t)length + 1);
        FUZZ_REQUIRE(third && problem_format(&q, third, (size_t)length + 1) == length &&
                     strcmp(again, third) == 0);
        int64_t q_tokens = 0, kv_tokens = 0;
        if (p.q_lens)
            for (int64_t b = 0; b < p.batch; b++) {
                FUZZ_REQUIRE(problem_q_start(&p, b) == q_tokens &&
                             problem_kv_start(&p, b) == kv_tokens);
                q_tokens += problem_q_len(&p, b);
                kv_tokens += problem_kv_len(&p, b);
                if (b > 200) break; /* problem_q_start adds up; long lists would be slow */
            }
        free(again);
        free(third);
        problem_free(&q);
    }
    problem_free(&p);
    free(line);
    return 0;
}

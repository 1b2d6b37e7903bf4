/* SPDX-License-Identifier: Apache-2.0 */
/* Result files of the bench suite, as `tessera compare` reads them: what is read is written, and
 * written alike ever after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bench_report report;
    char error[512] = "", *text = malloc(size + 1);
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    if (json_parse(&report, text, size, error, sizeof error) != 0) {
        FUZZ_REQUIRE(error[0] && !strchr(error, '\n') && strlen(error) < sizeof error);
    } else {
        /* What was read can be written, and read again. */
        char *again = NULL, *third = NULL;
        size_t length = 0, third_length = 0;
        bench_report copy;
        FILE *file = open_memstream(&again, &length);
        FUZZ_REQUIRE(file && json_write(&report, file) == 0 && fclose(file) == 0);
        FUZZ_REQUIRE(json_parse(&copy, again, length, error, sizeof error) == 0);
        FUZZ_REQUIRE(copy.n_results == report.n_results);
        file = open_memstream(&third, &third_length);
        FUZZ_REQUIRE(file && json_write(&copy, file) == 0 && fclose(file) == 0);
        FUZZ_REQUIRE(third_length == length && memcmp(again, third, length) == 0);
        free(again);
        free(third);
        report_free(&copy);
        report_free(&report);
    }
    free(text);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Result files of the bench suite, as `tessera compare` reads them: what is read is written, and
 * written alike ever after; a page shows it, and nothing in it becomes a part of the page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "json.h"
#include "matrix_forms.h"
#include "page.h"

static int count(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)) != NULL; text++) n++;
    return n;
}

/* Every form of the matrix of two files. */
static void show(const bench_report *a, const bench_report *b) {
    const bench_report *list[] = {a, b};
    const char *paths[] = {"a.json", "b.json"};
    const page_options options = {.title = "<script>", .plain = 1};
    char error[512] = "", *page = NULL, *rest = NULL;
    size_t size = 0;
    matrix m;
    if (matrix_build(&m, list, paths, 2, NULL, error, sizeof error) != 0) {
        FUZZ_REQUIRE(error[0] && !strchr(error, '\n'));
        return;
    }
    FILE *file = open_memstream(&page, &size);
    FUZZ_REQUIRE(file != NULL);
    page_write(&m, &options, file);
    FUZZ_REQUIRE(fclose(file) == 0 && strlen(page) == size);
    FUZZ_REQUIRE(count(page, "<script") == 3 && count(page, "</script") == 3);
    FUZZ_REQUIRE((file = open_memstream(&rest, &size)) != NULL);
    matrix_text(&m, file);
    matrix_markdown(&m, file);
    matrix_csv(&m, file);
    FUZZ_REQUIRE(fclose(file) == 0);
    free(page);
    free(rest);
    FUZZ_REQUIRE((file = open_memstream(&rest, &size)) != NULL);
    matrix_json(&m, file);
    FUZZ_REQUIRE(fclose(file) == 0 && !strchr(rest, '<'));
    free(rest);
    matrix_free(&m);
}

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
        show(&report, &copy);
        free(again);
        free(third);
        report_free(&copy);
        report_free(&report);
    }
    free(text);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "properties.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

typedef struct property {
    const char *group, *name;
    void (*test)(void **state);
    int once;
} property;

#define PROPERTY_ROW(group, test, once, name) {#group, name, test, once},
static const property properties[] = {PROPERTIES(PROPERTY_ROW)};
enum { N_PROPERTIES = sizeof properties / sizeof *properties };

/* Runs the group that begins at `first` on every target that takes it, and returns how many tests
 * failed. Adds those whose titles match `filter` to *matched. */
static int run_group(test_targets *targets, int first, int end, const char *filter, int *matched) {
    const size_t most = (size_t)(end - first) * (size_t)targets->count + 1;
    size_t n_tests = 0;
    struct CMUnitTest *tests = calloc(most, sizeof *tests);
    char(*titles)[160] = calloc(most, sizeof *titles);
    if (!tests || !titles) exit(1);
    for (int n = first; n < end; n++)
        for (int t = 0; t < targets->count; t++) {
            const property *p = &properties[n];
            test_target *target = &targets->items[t];
            if (p->once ? target->kernel[0] != '\0' : test_is_repetition(target)) continue;
            snprintf(titles[n_tests], sizeof titles[0], "%s [%s %s]", p->name, target->id,
                     target->kernel);
            if (fnmatch(filter, titles[n_tests], FNM_NOESCAPE) == 0) ++*matched;
            tests[n_tests] = (struct CMUnitTest){titles[n_tests], p->test, NULL, NULL, target};
            n_tests++;
        }
    const int failed = _cmocka_run_group_tests(properties[first].group, tests, n_tests, NULL, NULL);
    free(tests);
    free(titles);
    return failed;
}

int main(int argc, char **argv) {
    const char *backend = NULL, *only = NULL, *filter = "*";
    for (int n = 1; n < argc; n++) {
        if (strcmp(argv[n], "--device") == 0 && n + 1 < argc)
            backend = argv[++n];
        else if (strcmp(argv[n], "--only") == 0 && n + 1 < argc)
            only = argv[++n];
        else if (strcmp(argv[n], "--test") == 0 && n + 1 < argc)
            cmocka_set_test_filter(filter = argv[++n]);
        else {
            fprintf(stderr, "usage: %s [--device BACKEND[/KERNEL]] [--only GROUP] [--test TITLE]\n",
                    argv[0]);
            return 2;
        }
    }
    test_targets targets;
    int failed = 0, matched = 0;
    for (int first = 0, end; first < N_PROPERTIES; first = end) {
        const char *group = properties[first].group;
        const int backward = strcmp(group, "gradients") == 0;
        for (end = first; end < N_PROPERTIES && strcmp(properties[end].group, group) == 0;) end++;
        if (only && strcmp(only, group) != 0) continue;
        const int absent =
            test_targets_open(&targets, backend, TEST_EACH_KERNEL | (backward ? TEST_BACKWARD : 0));
        /* A kernel that was named may be of one operation alone. */
        if (absent == TEST_SKIPPED && !only && strchr(backend, '/')) continue;
        if (absent != 0) return absent;
        failed |= run_group(&targets, first, end, filter, &matched);
        test_targets_close(&targets);
    }
    if (matched == 0) fprintf(stderr, "no property is called that\n");
    return failed != 0 || matched == 0;
}

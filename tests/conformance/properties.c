/* SPDX-License-Identifier: Apache-2.0 */
#include "properties.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

int main(int argc, char **argv) {
    const char *backend = NULL, *only = NULL;
    for (int n = 1; n < argc; n++) {
        if (strcmp(argv[n], "--device") == 0 && n + 1 < argc)
            backend = argv[++n];
        else if (strcmp(argv[n], "--only") == 0 && n + 1 < argc)
            only = argv[++n];
        else if (strcmp(argv[n], "--test") == 0 && n + 1 < argc)
            cmocka_set_test_filter(argv[++n]);
        else {
            fprintf(stderr, "usage: %s [--device BACKEND] [--only GROUP] [--test TITLE]\n",
                    argv[0]);
            return 2;
        }
    }
    static const char *const names[] = {"memory", "bits", "values", "sizes", "cache"};
    static const property *const groups[] = {memory_properties, bits_properties, value_properties,
                                             size_properties, cache_properties};
    test_targets targets;
    const int absent = test_targets_open(&targets, backend, TEST_EACH_KERNEL);
    if (absent != 0) return absent;
    int failed = 0, groups_run = 0;
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        if (only && strcmp(only, names[g]) != 0) continue;
        size_t n_properties = 0, n_tests = 0;
        while (groups[g][n_properties].name) n_properties++;
        struct CMUnitTest *tests = calloc(n_properties * (size_t)targets.count + 1, sizeof *tests);
        char(*titles)[160] = calloc(n_properties * (size_t)targets.count + 1, sizeof *titles);
        if (!tests || !titles) exit(1);
        for (size_t n = 0; n < n_properties; n++)
            for (int t = 0; t < targets.count; t++) {
                test_target *target = &targets.items[t];
                if (groups[g][n].once ? target->kernel[0] != '\0' : test_is_repetition(target))
                    continue;
                snprintf(titles[n_tests], sizeof titles[0], "%s [%s %s]", groups[g][n].name,
                         target->id, target->kernel);
                tests[n_tests] =
                    (struct CMUnitTest){titles[n_tests], groups[g][n].test, NULL, NULL, target};
                n_tests++;
            }
        failed |= _cmocka_run_group_tests(names[g], tests, n_tests, NULL, NULL);
        groups_run++;
        free(tests);
        free(titles);
    }
    test_targets_close(&targets);
    return failed != 0 || groups_run == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of cmocka's interface that the unit tests use, for builds whose processor the
 * distribution has no cmocka for (the preset m32). The first assertion that fails ends the program.
 */
#ifndef TESSERA_TESTS_M32_CMOCKA_H
#define TESSERA_TESTS_M32_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    int (*setup_func)(void **state), (*teardown_func)(void **state);
    void *initial_state;
};

#define cmocka_unit_test(f) \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_setup(f, setup) \
    { #f, f, setup, NULL, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown) \
    { #f, f, setup, teardown, NULL }

static jmp_buf cmocka_skipped __attribute__((unused));

__attribute__((noreturn, format(printf, 3, 4), unused)) static void
cmocka_fail(const char *file, int line, const char *format, ...) {
    va_list list;
    fflush(stdout);
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    _Exit(1);
}

__attribute__((unused)) static int cmocka_run(const struct CMUnitTest *tests, size_t count,
                                              int (*setup)(void **), int (*teardown)(void **)) {
    void *group = NULL;
    if (setup && setup(&group) != 0) return 1;
    for (size_t n = 0; n < count; n++) {
        void *state = tests[n].initial_state ? tests[n].initial_state : group;
        printf("%s\n", tests[n].name);
        if (tests[n].setup_func && tests[n].setup_func(&state) != 0)
            cmocka_fail(tests[n].name, 0, "its setup fails");
        if (setjmp(cmocka_skipped) == 0) tests[n].test_func(&state);
        if (tests[n].teardown_func && tests[n].teardown_func(&state) != 0)
            cmocka_fail(tests[n].name, 0, "its teardown fails");
    }
    return teardown ? teardown(&group) : 0;
}
#define cmocka_run_group_tests(tests, setup, teardown) \
    cmocka_run(tests, sizeof(tests) / sizeof *(tests), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    cmocka_run_group_tests(tests, setup, teardown)

#define _fail(file, line) cmocka_fail(file, line, "failed") /* what cmocka's own macros call */
#define skip()            longjmp(cmocka_skipped, 1)
#define print_message     printf
#define print_error(...)  fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)     cmocka_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()            fail_msg("failed")

#define assert_true(c)         ((c) ? (void)0 : fail_msg("%s", #c))
#define assert_false(c)        ((c) ? fail_msg("not: %s", #c) : (void)0)
#define assert_null(p)         assert_true((p) == NULL)
#define assert_non_null(p)     assert_true((p) != NULL)
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))

/* Operands once each, and as wide as any integer. */
__attribute__((unused)) static void cmocka_int(uintmax_t a, uintmax_t b, int equal,
                                               const char *text, const char *file, int line) {
    if ((a == b) != equal) cmocka_fail(file, line, "%s: %ju and %ju", text, a, b);
}
#define assert_int_equal(a, b) \
    cmocka_int((uintmax_t)(a), (uintmax_t)(b), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) \
    cmocka_int((uintmax_t)(a), (uintmax_t)(b), 0, #a " != " #b, __FILE__, __LINE__)
__attribute__((unused)) static void cmocka_range(uintmax_t a, uintmax_t low, uintmax_t high,
                                                 const char *text, const char *file, int line) {
    if (a < low || a > high)
        cmocka_fail(file, line, "%s: %ju is not in %ju .. %ju", text, a, low, high);
}
#define assert_in_range(a, low, high) \
    cmocka_range((uintmax_t)(a), (uintmax_t)(low), (uintmax_t)(high), #a, __FILE__, __LINE__)
__attribute__((unused)) static void cmocka_text(const char *a, const char *b, int equal,
                                                const char *file, int line) {
    if ((strcmp(a, b) == 0) != equal) cmocka_fail(file, line, "\"%s\" and \"%s\"", a, b);
}
#define assert_string_equal(a, b)     cmocka_text(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) cmocka_text(a, b, 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)  assert_true(memcmp(a, b, n) == 0)

#endif

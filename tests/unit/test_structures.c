/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of fields cover every byte of every structure, so a field that was added to the
 * header and not to its table is found here. */
#include "common/testlib.h"
#include "structures.h"

static void test_fields_cover_the_structures(void **state) {
    (void)state;
    for (int id = 0; id < TESS_STRUCTURE_COUNT; id++) {
        const tess_structure *s = &tess_structures[id];
        size_t end = 0;
        assert_non_null(s->name);
        assert_true(s->n_fields >= 2);
        for (uint32_t n = 0; n < s->n_fields; n++) {
            if (s->fields[n].at != end)
                fail_msg("%s: bytes %zu to %u belong to no field of its table", s->name, end,
                         (unsigned)s->fields[n].at);
            end = s->fields[n].at + (size_t)s->fields[n].size;
        }
        if (end != s->size)
            fail_msg("%s: bytes %zu to %u belong to no field of its table", s->name, end,
                     (unsigned)s->size);
        assert_int_equal(s->size % s->align, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_fields_cover_the_structures)};
    return cmocka_run_group_tests_name("structures", tests, NULL, NULL);
}

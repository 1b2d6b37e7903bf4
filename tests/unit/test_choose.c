/* SPDX-License-Identifier: Apache-2.0 */
/* Which row of a backend's table of kernels a plan gets: by name, by the order of the rows, and
 * what becomes of rows that refuse or fail. Tune tables have a program of their own. */
#include "fixtures/plans.h"

LAYOUT_FIXTURE(s2_pattern(16, 2, 3, 0), 4, 2, 1000)

static void set_rows(uint32_t count, const rig_row *rows) {
    memcpy(rig.rows, rows, count * sizeof *rows);
    rig.n_rows = count;
}

static tess_status create(const char *kernel, tess_plan **plan) {
    tess_plan_desc d = plan_desc(1, 10, 10);
    d.kernel = kernel;
    *plan = NULL;
    rig.calls = 0;
    rig.asked = 0;
    return tess_plan_create(device, layout, &d, plan);
}

static void takes(const char *kernel, const char *taken) {
    tess_plan *plan;
    if (create(kernel, &plan) != TESS_OK) fail_msg("%s", tess_last_error());
    assert_string_equal(taken, plan->shares[0].kernel_name);
    assert_int_equal(1, rig.live_kernels);
    tess_plan_release(plan);
    assert_int_equal(0, rig.live_kernels);
}

static void refused(const char *kernel, tess_status status, const char *message) {
    tess_plan *plan;
    assert_int_equal(status, create(kernel, &plan));
    assert_error_has(message);
    assert_null(plan);
    assert_int_equal(0, rig.live_kernels);
}

/* ------------------------------------------------------------------ names */

static void test_names(void **state) {
    (void)state;
    set_rows(2, (const rig_row[]){{.name = "first"}, {.name = "second"}});
    static const char *const malformed[] = {"second", "/second", "rig/"};
    for (size_t n = 0; n < 3; n++)
        refused(malformed[n], TESS_ERROR_INVALID, "tess_plan_create: kernel: must be");
    static const char *const others[] = {"cpu/second", "ri/second", "rigs/second"};
    for (size_t n = 0; n < 3; n++)
        refused(others[n], TESS_ERROR_UNSUPPORTED, "tess_plan_create: kernel: \"");
    refused("rig/other", TESS_ERROR_UNSUPPORTED,
            "tess_plan_create: rig: kernel: rig has no kernel named 'other'");
    assert_int_equal(0, rig.calls);
    takes("rig/second", "rig/second");
    assert_int_equal(1, rig.calls); /* no other row was made ready */
    takes("", "rig/first");
    takes(NULL, "rig/first");
}

/* A kernel that no plan can name, or that takes no rows. */
static void test_careless(void **state) {
    (void)state;
    rig.rows[0].name = "0123456789012345678901234567890123456789012345678901234567890123456789";
    refused(NULL, TESS_ERROR_NATIVE, "too long a name");
    rig.rows[0].name = "plain";
    rig.kernel.tile_rows = 0;
    refused(NULL, TESS_ERROR_NATIVE, "kernel plain has no tile_rows or tile_step");
    rig.kernel.tile_rows = 16;
    rig.kernel.tile_step = 0;
    refused(NULL, TESS_ERROR_NATIVE, "kernel plain has no tile_rows or tile_step");
    rig.kernel.tile_step = 1;
    takes(NULL, "rig/plain");
}

/* The setting names a kernel for every plan that names none. */
static void test_setting(void **state) {
    (void)state;
    static const char *const settings[] = {"rig/second", "absent/plain"};
    tess_device *const before = device;
    set_rows(2, (const rig_row[]){{.name = "first"}, {.name = "second"}});
    for (int n = 0; n < 2; n++) {
        const tess_runtime_desc desc = {
            .struct_size = sizeof desc, .backend = "", .kernel = settings[n], .verbose = ""};
        tess_runtime *own = NULL;
        assert_int_equal(TESS_OK, tess_runtime_create(&desc, &own));
        device = open_device(own);
        if (n == 0)
            takes(NULL, "rig/second");
        else
            refused(NULL, TESS_ERROR_UNSUPPORTED, "tess_plan_create: TESSERA_KERNEL: ");
        takes("", "rig/first");
        takes("rig/first", "rig/first");
        tess_device_release(device);
        tess_runtime_release(own);
    }
    device = before;
}

/* ------------------------------------------------------------------ the order of the rows */

static void test_order(void **state) {
    (void)state;
    set_rows(4, (const rig_row[]){
                    {.name = "a", .status = TESS_ERROR_UNSUPPORTED, .reason = "not today"},
                    {.name = "b", .prepared = TESS_ERROR_UNSUPPORTED, .reason = "not compiled"},
                    {.name = "c"},
                    {.name = "d"}});
    takes(NULL, "rig/c");
    assert_int_equal(2, rig.calls); /* b and c were to be made ready */
    takes("rig/d", "rig/d");
    refused("rig/a", TESS_ERROR_UNSUPPORTED, "no rig kernel accepts the problem: a: not today");
    rig.n_rows = 2;
    refused(
        NULL, TESS_ERROR_UNSUPPORTED,
        "tess_plan_create: rig: no rig kernel accepts the problem: a: not today; b: not compiled");
    rig.rows[0].reason = NULL;
    refused("rig/a", TESS_ERROR_UNSUPPORTED, "a: not supported");
    rig.n_rows = 0;
    refused(NULL, TESS_ERROR_UNSUPPORTED, "rig has no kernel");
}

/* Rows of other operations are not asked to make anything ready. */
static void test_operations(void **state) {
    (void)state;
    set_rows(3, (const rig_row[]){{.name = "both", .op = TESS_OP_BACKWARD},
                                  {.name = "both", .op = TESS_OP_FORWARD},
                                  {.name = "back", .op = TESS_OP_BACKWARD}});
    takes(NULL, "rig/both");
    assert_int_equal(1, rig.calls);
    assert_int_equal(2, rig.asked - (int)rig.calls);
    takes("rig/both", "rig/both");
    refused("rig/back", TESS_ERROR_UNSUPPORTED, "rig has no kernel named 'back'");
}

static void test_only_named(void **state) {
    (void)state;
    set_rows(
        2, (const rig_row[]){{.name = "test", .flags = TESS_KERNEL_ONLY_NAMED}, {.name = "plain"}});
    takes(NULL, "rig/plain");
    takes("rig/test", "rig/test");
    rig.n_rows = 1;
    refused(NULL, TESS_ERROR_UNSUPPORTED, "test: taken only when named");
}

/* ------------------------------------------------------------------ failures */

/* A driver that does not take a row's code is no reason to do without the rows behind it. */
static void test_unavailable(void **state) {
    (void)state;
    set_rows(2, (const rig_row[]){
                    {.name = "a", .prepared = TESS_ERROR_UNAVAILABLE, .reason = "rigLoad: too new"},
                    {.name = "b"}});
    takes(NULL, "rig/b");
    rig.rows[1].status = TESS_ERROR_UNSUPPORTED;
    refused(NULL, TESS_ERROR_UNAVAILABLE, "tess_plan_create: rig: rigLoad: too new");
    rig.rows[1] = rig.rows[0];
    rig.rows[1].prepared = TESS_ERROR_UNSUPPORTED;
    refused(NULL, TESS_ERROR_UNAVAILABLE, "tess_plan_create: rig: rigLoad: too new");
}

/* What is no refusal ends the call, whichever of the two questions it answers. */
static void test_failures(void **state) {
    (void)state;
    static const tess_status statuses[] = {TESS_ERROR_OUT_OF_MEMORY, TESS_ERROR_NATIVE,
                                           TESS_ERROR_BUSY};
    for (size_t n = 0; n < sizeof statuses / sizeof *statuses; n++) {
        set_rows(2, (const rig_row[]){
                        {.name = "a", .prepared = statuses[n], .reason = "rigBuild: broken"},
                        {.name = "b"}});
        refused(NULL, statuses[n], "tess_plan_create: rig: rigBuild: broken");
        rig.rows[0].prepared = TESS_OK;
        rig.rows[0].asked = statuses[n];
        refused("rig/b", statuses[n], "tess_plan_create: rig: rigBuild: broken");
        assert_int_equal(0, rig.calls);
        rig.rows[0].reason = NULL;
        refused(NULL, statuses[n], "tess_plan_create: rig:0: ");
        rig.rows[0].asked = TESS_OK;
        takes(NULL, "rig/a");
    }
    /* INVALID ends the table where a row is described, and is a failure where it is made ready. */
    rig.rows[0] = (rig_row){.name = "a", .prepared = TESS_ERROR_INVALID, .reason = "rigBuild: bad"};
    refused(NULL, TESS_ERROR_INVALID, "tess_plan_create: rig: rigBuild: bad");
}

int main(void) {
    return RUN_TESTS_BETWEEN(setup, teardown, TEST(test_names), TEST(test_careless),
                             TEST(test_setting), TEST(test_order), TEST(test_operations),
                             TEST(test_only_named), TEST(test_unavailable), TEST(test_failures));
}

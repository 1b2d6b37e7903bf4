/* SPDX-License-Identifier: Apache-2.0 */
/* The work and traffic that plans report, against sums over every pair. */
#include "fixtures/plans.h"

static void test_work(void **state) {
    (void)state;
    uint64_t seed = 51;
    for (int n = 0; n < 1500; n++) {
        spec x;
        lengths b;
        spec_random(&x, &seed, 60);
        lengths_random(&b, &seed, &x);
        b.desc.kv_split = (int32_t)test_between(&seed, 0, 3);
        positions_random(&b, &seed, &x);
        tess_layout *layout = spec_layout(&x, runtime);
        uint64_t before = heap.bytes;
        tess_plan *plan = make(layout, &b.desc);
        tess_plan_info info = query(plan);
        assert_int_equal(heap.bytes - before - 100, info.host_bytes); /* 100 of the kernel */
        bool both = x.pattern.flags & TESS_PATTERN_BIDIRECTIONAL;
        uint64_t kept = 0, dense = 0, bytes = 0,
                 element = (uint64_t)b.desc.head_dim * (b.desc.dtype == TESS_F32 ? 4 : 2);
        int64_t group = x.layout.n_heads / x.layout.n_kv_heads;
        for (int64_t s = 0; s < b.n; s++) {
            bytes += 2 * (uint64_t)b.q_lens[s] * (uint64_t)x.layout.n_heads * element;
            for (int64_t g = 0; g < x.layout.n_kv_heads; g++) {
                for (int64_t t = 0; t < b.kv_lens[s]; t++) {
                    bool read = false;
                    for (int64_t h = g * group; h < (g + 1) * group; h++) {
                        for (int64_t r = 0; r < b.q_lens[s]; r++) {
                            const int64_t p = b.q_first[s] + r, key = b.kv_first[s] + t;
                            const bool k = formula_kept(&x, (int32_t)h, p, key);
                            kept += k;
                            dense += both || key <= p;
                            read = read || k;
                        }
                    }
                    if (read) bytes += 2 * element;
                }
            }
        }
        if (info.kept_pairs != kept || info.dense_pairs != dense || info.bytes_min != bytes)
            fail_msg("%s: kept %llu of %llu, wanted %llu of %llu; bytes %llu, wanted %llu",
                     spec_text(&x), (unsigned long long)info.kept_pairs,
                     (unsigned long long)info.dense_pairs, (unsigned long long)kept,
                     (unsigned long long)dense, (unsigned long long)info.bytes_min,
                     (unsigned long long)bytes);
        assert_true(info.flops == 4.0 * b.desc.head_dim * (double)kept);
        assert_true(info.create_seconds > 0 && info.create_seconds < 60);
        assert_string_equal("rig/plain", info.kernel);
        assert_int_equal(0, info.device_bytes);
        tess_plan_release(plan);
        tess_layout_release(layout);
        spec_free(&x);
    }
}

/* Sums past 64 bits stop at the largest value. */
static void test_saturation(void **state) {
    (void)state;
    tess_pattern p = {.struct_size = sizeof p, .block = INT32_MAX};
    tess_layout *layout = make_layout(runtime, &p, 65535, 1, INT32_MAX);
    rig.kernel.tile_rows = 1 << 30;
    tess_plan_desc d = plan_desc(1, 1 << 18, 2147418111);
    d.kv_split = 1;
    tess_plan *plan = make(layout, &d);
    tess_plan_info info = query(plan);
    assert_true(info.kept_pairs == UINT64_MAX && info.dense_pairs == UINT64_MAX);
    uint32_t most = 0;
    for (uint64_t n = 0; n < plan->memory.n_jobs; n++)
        most = plan->tables.jobs[n].rows > most ? plan->tables.jobs[n].rows : most;
    assert_int_equal(32768, most);
    tess_plan_release(plan);
    tess_layout_release(layout);
}

int main(void) {
    return RUN_TESTS_BETWEEN(device_setup, device_teardown, TEST(test_work), TEST(test_saturation));
}

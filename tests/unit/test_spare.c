/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that a runtime keeps from one plan to the next. */
#include <string.h>

#include "common/testlib.h"
#include "runtime.h"
#include "spare.h"

enum { MIB = 1 << 20 };

static tess_runtime *new_runtime(test_heap *heap) {
    tess_runtime *runtime = NULL;
    test_heap_init(heap, 0, 0);
    const tess_runtime_desc desc = {
        .struct_size = sizeof desc, .allocator = heap->allocator, .log = test_log_nothing};
    assert_ok(tess_runtime_create(&desc, &runtime));
    return runtime;
}

static void end_runtime(tess_runtime *runtime, const test_heap *heap) {
    tess_runtime_release(runtime);
    assert_int_equal(heap->live, 0);
    assert_int_equal(heap->damaged, 0);
}

/* The smallest block that is large enough serves again; a larger wish takes the place of the
 * smallest one where there is no other. */
static void test_again(void **state) {
    (void)state;
    test_heap heap;
    tess_runtime *runtime = new_runtime(&heap);
    void *a = tess_spare_take(runtime, 3 * MIB), *b = tess_spare_take(runtime, 5 * MIB);
    assert_non_null(a);
    assert_non_null(b);
    memset(a, 1, 3 * MIB);
    memset(b, 2, 5 * MIB);
    tess_spare_give(runtime, a, 3 * MIB);
    tess_spare_give(runtime, b, 5 * MIB);
    const int64_t calls = heap.calls;
    assert_ptr_equal(tess_spare_take(runtime, MIB), a);
    assert_ptr_equal(tess_spare_take(runtime, MIB), b);
    assert_int_equal(heap.calls, calls);
    tess_spare_give(runtime, a, MIB);
    tess_spare_give(runtime, b, MIB);
    end_runtime(runtime, &heap);
}

/* More blocks than there are places are served, and as many stay. */
static void test_many(void **state) {
    (void)state;
    enum { MANY = TESS_SPARE_BLOCKS + 3 };
    test_heap heap;
    tess_runtime *runtime = new_runtime(&heap);
    const int64_t live = heap.live;
    void *blocks[MANY];
    for (int n = 0; n < MANY; n++) {
        blocks[n] = tess_spare_take(runtime, MIB);
        assert_non_null(blocks[n]);
        memset(blocks[n], n, MIB);
    }
    for (int n = 0; n < MANY; n++) {
        const unsigned char *bytes = blocks[n];
        assert_int_equal(bytes[0], n);
        assert_int_equal(bytes[MIB - 1], n);
        tess_spare_give(runtime, blocks[n], MIB);
    }
    assert_int_equal(heap.live - live, TESS_SPARE_BLOCKS);
    /* One for which none of them is large enough. */
    void *large = tess_spare_take(runtime, 9 * MIB);
    assert_int_equal(heap.live - live, TESS_SPARE_BLOCKS);
    tess_spare_give(runtime, large, 9 * MIB);
    end_runtime(runtime, &heap);
}

/* Small blocks and what is past the bound go at once. */
static void test_bounds(void **state) {
    (void)state;
    test_heap heap;
    tess_runtime *runtime = new_runtime(&heap);
    const int64_t live = heap.live;
    void *small = tess_spare_take(runtime, TESS_SPARE_LEAST - 1);
    tess_spare_give(runtime, small, TESS_SPARE_LEAST - 1);
    assert_int_equal(heap.live, live);
    void *most = tess_spare_take(runtime, TESS_SPARE_MOST),
         *more = tess_spare_take(runtime, TESS_SPARE_LEAST);
    tess_spare_give(runtime, most, TESS_SPARE_MOST);
    assert_int_equal(heap.live, live + 2);
    tess_spare_give(runtime, more, TESS_SPARE_LEAST);
    assert_int_equal(heap.live, live + 1);
    tess_spare_give(runtime, NULL, MIB);
    assert_null(tess_spare_take(runtime, SIZE_MAX));
    assert_null(tess_spare_take(runtime, PTRDIFF_MAX));
    end_runtime(runtime, &heap);
}

/* Without memory there is no block, and the next wish is as if nothing had been. */
static void test_no_memory(void **state) {
    (void)state;
    test_heap heap;
    tess_runtime *runtime = new_runtime(&heap);
    for (int n = 0; n < TESS_SPARE_BLOCKS; n++) {
        heap.fail_at = heap.calls + 1;
        assert_null(tess_spare_take(runtime, MIB));
    }
    const int64_t live = heap.live;
    void *block = tess_spare_take(runtime, MIB);
    assert_non_null(block);
    tess_spare_give(runtime, block, MIB);
    assert_int_equal(heap.live, live + 1);
    end_runtime(runtime, &heap);
}

int main(void) {
    return RUN_TESTS(TEST(test_again), TEST(test_many), TEST(test_bounds), TEST(test_no_memory));
}

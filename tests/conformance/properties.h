/* SPDX-License-Identifier: Apache-2.0 */
/* Properties, each tested on every device and every kernel found; the state of each is a
 * test_target. A group is the file that has its tests; accumulators.c is of the gradients. */
#ifndef TESSERA_TESTS_CONFORMANCE_PROPERTIES_H
#define TESSERA_TESTS_CONFORMANCE_PROPERTIES_H

/* X(group, test, once, name); `once`: on the plan's own choice of kernel only. */
#define PROPERTIES(X)                                                                          \
    X(memory, test_strides_and_offsets, 0, "strides and element offsets 0..15")                \
    X(memory, test_broadcast_inputs, 0, "inputs with stride 0")                                \
    X(memory, test_overlapping_inputs, 0, "keys whose rows overlap")                           \
    X(memory, test_workspace_contents, 0, "contents of the workspace do not matter")           \
    X(memory, test_poisoned_blocks, 0, "NaN in blocks that nobody keeps")                      \
    X(memory, test_poison_of_another_head, 0, "NaN in blocks of another head")                 \
    X(memory, test_padded_equals_packed, 0, "padded lengths equal the packed batch")           \
    X(memory, test_without_lse, 0, "o without lse")                                            \
    X(bits, test_repeats, 0, "repeats")                                                        \
    X(bits, test_rounding_mode, 0, "the floating-point mode of the caller")                    \
    X(bits, test_threads, 0, "1, 2, 3 and 5 threads")                                          \
    X(bits, test_range_alone, 0, "a range of jobs alone")                                      \
    X(bits, test_ranges, 0, "ranges of jobs")                                                  \
    X(bits, test_time_limit, 1, "ranges under a time limit")                                   \
    X(bits, test_batch_invariance, 0, "batch composition")                                     \
    X(bits, test_packed_heads, 0, "large scores of another packed head")                       \
    X(bits, test_listed_heads, 0, "heads of a model by their numbers")                         \
    X(values, test_values_not_finite, 0, "elements of V that are not finite")                  \
    X(values, test_scales_apart, 0, "scales of V far apart")                                   \
    X(values, test_context_parallel_dense, 0, "context-parallel ranks of dense attention")     \
    X(values, test_context_parallel_s2, 0, "context-parallel ranks of S2 attention")           \
    X(values, test_rows_without_keys, 0, "rows without keys")                                  \
    X(values, test_nothing_to_do, 0, "empty batches and sequences")                            \
    X(values, test_scores_of_any_size, 0, "scores of any size")                                \
    X(values, test_large_scores_split, 0, "large scores, split")                               \
    X(values, test_rising_scales, 0, "rising scales of V")                                     \
    X(values, test_scale_beyond_floats, 0, "a scale whose products no float holds")            \
    X(values, test_negative_scale, 0, "negative scale")                                        \
    X(values, test_wrong_pattern_is_seen, 1, "a wrong pattern is seen")                        \
    X(values, test_wrong_offset_shows_everywhere, 1, "a wrong offset shows in most elements")  \
    X(values, test_damaged_output_is_seen, 1, "a damaged output is seen")                      \
    X(sizes, test_stretched, 0, "2^31 elements and 2^32 bytes")                                \
    X(sizes, test_many_heads_and_sequences, 0, "more than 65,535 heads and sequences")         \
    X(cache, test_mask_slots, 0, "slots of a mask")                                            \
    X(cache, test_absent, 0, "absent pages")                                                   \
    X(cache, test_far_pages, 0, "pages past 2^31 elements")                                    \
    X(cache, test_refusals, 1, "refusals of pools and tables")                                 \
    X(cache, test_compact_refused, 1, "refusal of slots")                                      \
    X(cache, test_pages, 0, "pages")                                                           \
    X(cache, test_slots, 0, "slots")                                                           \
    X(gradients, test_gradient_subsets, 0, "some of the gradients")                            \
    X(gradients, test_gradient_repeats, 0, "gradients: repeats")                               \
    X(gradients, test_gradient_threads, 0, "gradients: 1, 2 and 5 threads")                    \
    X(gradients, test_gradient_ranges, 0, "gradients: ranges of jobs")                         \
    X(gradients, test_gradient_batches, 0, "gradients: batch composition")                     \
    X(gradients, test_gradients_in_another_order, 0, "gradients: order of a batch")            \
    X(gradients, test_gradients_padded, 0, "gradients of a padded batch")                      \
    X(gradients, test_gradients_strided, 0, "gradients: strides and offsets")                  \
    X(gradients, test_gradients_interleaved, 0, "gradients of a packed QKV")                   \
    X(gradients, test_gradients_large, 0, "gradients of tensors that fit no cache")            \
    X(gradients, test_gradients_far, 0, "gradients past 2^31 elements and 2^32 bytes")         \
    X(gradients, test_gradient_accumulators_far, 0, "gradients: accumulators past 2^31")       \
    X(gradients, test_gradient_of_broadcast, 0, "dO with strides of 0")                        \
    X(gradients, test_gradients_in_float32, 0, "gradients in float32, and adding")             \
    X(gradients, test_gradients_of_parts, 0, "gradients of parts, added")                      \
    X(gradients, test_gradients_of_unread_keys, 0, "gradients: NaN in keys that nobody keeps") \
    X(gradients, test_gradients_of_nan, 0, "gradients: NaN stays in its kv head")              \
    X(gradients, test_gradients_of_distant_nan, 0, "gradients: NaN stays in its tile")         \
    X(gradients, test_gradients_of_large_scores, 0, "gradients of large scores")               \
    X(gradients, test_gradients_of_infinite_rows, 0, "gradients of rows with an LSE of inf")   \
    X(gradients, test_gradients_of_nothing, 0, "gradients: no rows, no keys")                  \
    X(gradients, test_gradient_workspace, 0, "gradients: bytes of a workspace")

#define PROPERTY_TEST(group, test, once, name) void test(void **state);
PROPERTIES(PROPERTY_TEST)

#endif

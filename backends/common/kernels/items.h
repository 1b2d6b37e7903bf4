/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs or merges of a launch, for device code in every language. */
#ifndef TESS_ITEMS_H
#define TESS_ITEMS_H

/* Vulkan binds a part of each tensor where one is larger than a binding may be: dialect_glsl.h. A
 * workgroup leaves whose sequence, first row or kv head is not bound. */
#ifndef TESS_LEAVE_UNLESS_BOUND
#define TESS_LEAVE_UNLESS_BOUND(sequence, row, kv_head)
#define TESS_FIRST_BOUND_HEAD     0u
#define TESS_BOUND_HEADS(n_heads) (n_heads)
#endif

/* How many items of this launch there are; in a step, perhaps fewer than it has room for. */
TESS_FUNCTION uint tess_present_items(uint items TESS_TABLES) {
    if ((args.flags & TESS_ARGS_STEP) == 0u) return items;
    const uint count = TESS_WORD(args.count_at);
    return count > args.first_item ? tess_min(items, count - args.first_item) : 0u;
}

/* Where the words of item `n` of this launch begin, if it is there; else those of the first item of
 * the table, which always is. */
TESS_FUNCTION uint tess_find_item(uint n, bool present, uint words TESS_TABLES) {
    return present ? args.items_at + n * words : args.items_at - args.first_item * words;
}

#endif /* TESS_ITEMS_H */

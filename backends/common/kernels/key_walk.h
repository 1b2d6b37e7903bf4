/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key blocks of a job in their order, for device code: left entries, interval, right entries.
 * tessera_key_walk.h is the same for C. One text for CUDA, HIP, OpenCL C and GLSL; the including
 * file has defined TESS_FUNCTION, TESS_STRUCT and `uint` (a dialect, or language_cuda.h).
 */
#ifndef TESS_KEY_WALK_H
#define TESS_KEY_WALK_H

TESS_STRUCT(tess_key_walk) {
    uint left_offset, left_count; /* of entries */
    uint right_offset, right_count;
    uint interval_start, interval_blocks;
    uint mask_head, mask_tail; /* blocks at the ends of the interval */
    bool mask_entries;
};

/* A key block of the job. */
TESS_STRUCT(tess_key_block) {
    uint at;     /* listed: index of the entry; otherwise the key block itself */
    bool listed; /* in entries */
    bool masked; /* a row sees the keys that tess_kept says, and otherwise every key */
};

TESS_FUNCTION uint tess_key_blocks(tess_key_walk walk) {
    return walk.left_count + walk.interval_blocks + walk.right_count;
}

/* Block n of the job, n < tess_key_blocks(). */
TESS_FUNCTION tess_key_block tess_key_block_at(tess_key_walk walk, uint n) {
    tess_key_block b;
    const uint inside = n - walk.left_count; /* of the interval, if not before it */
    b.listed = n < walk.left_count || inside >= walk.interval_blocks;
    if (b.listed) {
        b.at = n < walk.left_count ? walk.left_offset + n
                                   : walk.right_offset + (inside - walk.interval_blocks);
        b.masked = walk.mask_entries;
    } else {
        b.at = walk.interval_start + inside;
        b.masked = inside < walk.mask_head || inside >= walk.interval_blocks - walk.mask_tail;
    }
    return b;
}

/* Whether any block of the keys [first, end) is masked; `block` is the tokens of a block. */
TESS_FUNCTION bool tess_key_walk_masked(tess_key_walk walk, uint first, uint end, uint block) {
    const uint start = walk.left_count * block, stop = start + walk.interval_blocks * block;
    const uint head = start + walk.mask_head * block, tail = stop - walk.mask_tail * block;
    return (walk.mask_entries && (first < start || end > stop)) ||
           (start < head && first < head && end > start) ||
           (tail < stop && first < stop && end > tail);
}

#endif /* TESS_KEY_WALK_H */

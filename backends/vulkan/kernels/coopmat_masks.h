/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks of coopmat_forward.comp. They are found for whole matrices first: whether all of their rows
 * keep all of their keys, or none keeps any. Elsewhere each element is asked, at places that are
 * known, and a matrix is loaded from there.
 */
#ifndef TESS_VULKAN_KERNELS_COOPMAT_MASKS_H
#define TESS_VULKAN_KERNELS_COOPMAT_MASKS_H

/* Of a fragment's rows: the least and the most of what masks compare. */
shared ivec4 least_of[SUBGROUPS * ROW_FRAGMENTS], most_of[SUBGROUPS * ROW_FRAGMENTS];

/* What the rows of a fragment have at the ends of their ranges. */
void find_bounds() {
    for (uint f = TESS_THREAD; f < SUBGROUPS * ROW_FRAGMENTS; f += TESS_THREADS) {
        ivec4 least = ivec4(TESS_INT_MAX), most = ivec4(TESS_INT_MIN);
        [[unroll]] for (uint own = 0u; own < M; own++) {
            const uint r = f * M + own;
            const ivec4 row =
                ivec4(row_causal[r], row_window_low[r], row_window_high[r], row_block[r]);
            least = min(least, row);
            most = max(most, row);
        }
        least_of[f] = least;
        most_of[f] = most;
    }
}

/* Whether all rows of a fragment keep the key, and whether any might. Neither false nor true: each
 * row has to be asked. */
bvec2 kept_by(tess_key key, uint fragment, int sinks, int i_first) {
    const ivec4 least = least_of[fragment], most = most_of[fragment];
    const uint blocks = min(uint(most.w - least.w), 31u), seen = ((2u << blocks) - 1u)
                                                                 << (uint(least.w - i_first) & 31u);
    const bool sink = key.position < sinks;
    return bvec2(
        key.position <= least.x && (sink || (key.position >= most.y && key.position <= least.z)) &&
            most.w <= key.last_block && (key.bits & seen) == seen,
        key.position <= most.x && (sink || (key.position >= least.y && key.position <= most.z)) &&
            least.w <= key.last_block && (key.bits & seen) != 0u);
}

/* Which elements of a fragment's S are kept, those of its first matrix in the lowest bits. Every
 * invocation looks at some keys of the chunk, so that all of its matrices are judged at once. */
uint find_kept(uint own, uint fragment, uint list, int sinks, int i_first) {
    const uint lane = gl_SubgroupInvocationID, all = (2u << (M * N / SUBGROUP - 1u)) - 1u;
    uint by_some = 0u, not_by_all = 0u; /* a bit for each matrix */
    [[unroll]] for (uint turn = 0u; turn < (KEYS - 1u) / SUBGROUP + 1u; turn++) {
        const uint e = (turn * SUBGROUP + lane) % KEYS;
        TESS_READ_KEY(key, list + e);
        const bvec2 by = kept_by(key, fragment, sinks, i_first);
        by_some |= uint(by.y) << (e / N);
        not_by_all |= uint(!by.x) << (e / N);
    }
    uint kept = 0u, open = 0u;
    [[unroll]] for (uint n = 0u; n < KEY_FRAGMENTS; n++) {
        const bool some = subgroupAny((by_some >> n & 1u) != 0u);
        if (subgroupAny((not_by_all >> n & 1u) != 0u)) {
            open |= uint(some) << n;
        } else if (some) {
            kept |= all << (n * (M * N / SUBGROUP));
        }
    }
    [[dont_unroll]] for (; open != 0u; open &= open - 1u) {
        const uint n = findLSB(open);
        MATRIX_C looked_at;
        [[unroll]] for (uint turn = 0u; turn < (M * N - 1u) / SUBGROUP + 1u; turn++) {
            const uint e = min(turn * SUBGROUP + lane, M * N - 1u);
            TESS_READ_ROW(row, fragment * M + e / N);
            /* The same for all elements of an invocation, where that is so. */
            TESS_READ_KEY(key, list + n * N + (SUBGROUP % N == 0u ? lane : e) % N);
            places[own + e / N * PLACE + e % N] = float(tess_is_kept(key, row, sinks, i_first));
        }
        OWN_BARRIER
        coopMatLoad(looked_at, places, own, PLACE, ROW_MAJOR);
        OWN_BARRIER
        uint bits = 0u;
        [[unroll]] for (uint i = 0u; i < looked_at.length(); i++) bits |= uint(looked_at[i] != 0.0)
                                                                          << i;
        kept |= bits << (n * (M * N / SUBGROUP));
    }
    return kept;
}

#endif /* TESS_VULKAN_KERNELS_COOPMAT_MASKS_H */

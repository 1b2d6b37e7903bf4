/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the keys of a chunk come to coopmat_forward.comp: a list of where they lie, and FETCH and
 * PUT, which take K or V from memory to registers and from there to shared memory.
 */
#ifndef TESS_VULKAN_KERNELS_COOPMAT_KEYS_H
#define TESS_VULKAN_KERNELS_COOPMAT_KEYS_H

/* Lists the keys from number `first` on, two chunks, at entry `list`. Numbers past the end stand
 * for the last key and count as masked. */
void list_keys(uint list, uint first, uint keys, uint job, tess_tile tile, tess_key_walk walk,
               uint k_base, uint v_base) {
    for (uint e = TESS_THREAD; e < LISTED; e += TESS_THREADS) {
        const tess_key key = tess_find_key(min(first + e, keys - 1u), walk, tile);
        tess_place place;
        place.page = 0u;
        place.token = key.token;
        if (TESS_IS_CACHED) place = tess_find_place(key.token, job);
        const bool absent = place.page == TESS_ABSENT;
        const uint at = list + e;
        key_k_at[at] = k_base + place.page * args.k_batch + place.token * args.k_token;
        key_v_at[at] = v_base + place.page * args.v_batch + place.token * args.v_token;
        if (absent) key_k_at[at] = key_v_at[at] = 0u;
        key_position[at] = key.position;
        key_last_block[at] = first + e < keys && !absent ? key.last_block : TESS_INT_MIN;
        key_bits[at] = key.bits;
    }
}

/* FETCH loads the thread's part of a chunk into `ahead`, PUT stores it in shared memory. Where rows
 * are not aligned, FETCH does nothing and PUT does both. Columns past head_dim keep the zeros that
 * came with Q. */
#define FETCH(buffer, wide, key_at, of)                           \
    if (wide) {                                                   \
        uint from[TURNS];                                         \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {   \
            from[turn] = key_at[(of) + own_key + turn] + own_dim; \
        }                                                         \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {   \
            ahead[turn] = TESS_LOAD8_ALIGNED(buffer, from[turn]); \
        }                                                         \
    }
#define PUT(buffer, wide, key_at, of, to)                                    \
    if (has_dim && wide) {                                                   \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {              \
            kv[(to) + own_place + turn * ROW] = ahead[turn];                 \
        }                                                                    \
    } else if (has_dim) {                                                    \
        [[dont_unroll]] for (uint turn = 0u; turn < ROLLED(TURNS); turn++) { \
            kv[(to) + own_place + turn * ROW] =                              \
                TESS_LOAD8(buffer, key_at[(of) + own_key + turn] + own_dim); \
        }                                                                    \
    }

#endif /* TESS_VULKAN_KERNELS_COOPMAT_KEYS_H */

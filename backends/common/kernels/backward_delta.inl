/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first stage of the portable backward kernel, in the dialect that the including file has
 * chosen: a workgroup takes a strip, and each of its threads one row of one head after the other.
 * Of rows whose LSE is infinite nothing else is looked at, and their Delta is 0. O comes as Q, dO
 * as O and dLSE as K_SCALE: tess_portable_stage.
 */
#include "backward_strips.h"
#include "items.h"

TESS_BACKWARD_DELTA_KERNEL {
    const bool present = TESS_GROUP < args.items;
    TESS_LEAVE_UNLESS(present);
    const uint strip = args.items_at + (present ? TESS_GROUP : 0u) * TESS_STRIP_WORDS,
               number = TESS_WORD(strip + TESS_WORD_STRIP_SEQUENCE),
               first = TESS_WORD(strip + TESS_WORD_STRIP_ROW),
               sequence = args.sequences_at + number * TESS_SEQUENCE_WORDS,
               batch = TESS_WORD(sequence + TESS_WORD_SEQUENCE_BATCH),
               rows = tess_min(TESS_WORD(sequence + TESS_WORD_SEQUENCE_Q_LEN) - first,
                               TESS_UINT(TESS_STRIP_ROWS)),
               first_head = TESS_FIRST_BOUND_HEAD, heads = TESS_BOUND_HEADS(TESS_ARGS_HEADS);
    TESS_LEAVE_UNLESS_BOUND(sequence, first, first_head / args.group)
    const tess_offset start =
        TESS_WORD64(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(first);
    for (uint e = TESS_THREAD; present && e < rows * heads; e += TESS_STRIP_THREADS) {
        const uint n = e / rows, row = e - n * rows, head = first_head + n;
        const tess_offset own = start + TESS_OFFSET(row),
                          to = tess_strip_at(number, head, first + row TESS_TABLES_OF_KERNEL);
        const float lse = TESS_LOAD_FLOAT(LSE, TESS_FIRST_OF(lse, batch, own, head));
        const bool dead = (tess_to_bits(lse) & 0x7fffffffu) == 0x7f800000u;
        float delta = 0.0f;
        if (!dead) {
            const tess_offset o_at = TESS_FIRST_OF(q, batch, own, head),
                              d_o_at = TESS_FIRST_OF(o, batch, own, head);
            const bool aligned = TESS_IS_ALIGNED(Q, o_at, 0) && TESS_IS_ALIGNED(O, d_o_at, 0);
            vec4 sum = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
            for (uint dim = 0u; dim < args.head_dim; dim += 4u) {
                const vec4 a = TESS_LOAD_GROUP(Q, aligned, o_at + TESS_OFFSET(dim)),
                           b = TESS_LOAD_GROUP(O, aligned, d_o_at + TESS_OFFSET(dim));
                sum += VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
            }
            delta = (sum.x + sum.y) + (sum.z + sum.w);
            if ((TESS_FLAGS & TESS_ARGS_D_LSE) != 0u)
                delta -= TESS_LOAD_FLOAT(K_SCALE, TESS_FIRST_OF(k_scale, batch, own, head));
        }
        TESS_STORE_PARTIAL(to, dead ? TESS_DEAD_LSE : lse * TESS_LOG2E);
        TESS_STORE_PARTIAL(to + TESS_TO_DELTA, delta);
    }
}

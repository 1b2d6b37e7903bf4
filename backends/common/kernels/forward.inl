/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable forward kernel: one body for every language, in the dialect that the including file
 * has chosen (dialect_*.h). One workgroup takes one job.
 *
 * Given: TESS_DTYPE, and the shape TESS_DIMS (largest head_dim), TESS_ROWS, TESS_KEYS,
 * TESS_THREADS, constants when the kernel is compiled or specialised. Threads form a grid of
 * TESS_COLUMNS columns, each for 4 keys of a chunk, and lines of TESS_LINE_ROWS rows, 4 or 8. A
 * thread keeps the scores of its rows and keys, and the outputs of its rows and of every
 * TESS_COLUMNS-th group of 4 dims, in registers; no array in registers is indexed by anything that
 * unrolling does not turn into a constant.
 *
 * The keys of a job are numbered through: left entries, interval, right entries. A chunk is
 * TESS_KEYS such numbers, whatever blocks they come from, so that small blocks are glued and large
 * ones cut. Threads look up one key each. Numbers past the end stand for the last key, and rows
 * past the tile's for its last row: nothing else needs a test when it is loaded, and nothing
 * outside of the listed blocks is ever read. Such keys count as masked; such rows are not stored.
 *
 * Softmax runs in base 2, on scores that are not scaled yet: differences of two scores are exact
 * where it matters, however large both are, and only a difference is multiplied by the scale.
 * TESS_LOWEST stands for minus infinity, so that no test depends on how a compiler treats
 * infinities; a score at or below it counts 0.
 */

/* ----------------------------------------- sizes; shared_bytes in portable.c follows from them */

#define TESS_COLUMNS   (TESS_KEYS / 4u)
#define TESS_LINE_ROWS (TESS_ROWS * TESS_COLUMNS / TESS_THREADS)
#define TESS_OUTPUTS   (TESS_DIMS / 4u / TESS_COLUMNS)   /* groups of 4 dims of a thread */
#define TESS_SLICE     (TESS_ROWS >= 32u ? 32u : 16u)    /* dims of Q and K staged at a time */
#define TESS_VALUES    (TESS_COLUMNS * 128u / TESS_DIMS) /* keys of V staged at a time */
#define TESS_Q_STAGE   (TESS_ROWS * TESS_SLICE / 4u)
#define TESS_K_STAGE   (TESS_KEYS * TESS_SLICE / 4u)
#define TESS_P_STAGE   (TESS_ROWS * TESS_COLUMNS)
#define TESS_STAGE \
    (TESS_Q_STAGE + TESS_K_STAGE > TESS_P_STAGE ? TESS_Q_STAGE + TESS_K_STAGE : TESS_P_STAGE)
#define TESS_V_STAGE (TESS_VALUES * TESS_DIMS / 4u)

#ifndef TESS_FORWARD_ONCE
#define TESS_FORWARD_ONCE

/*
 * Workgroup memory.
 *   stage   Q as [row][dim] and K as [dim][key] of one slice; later the probabilities as
 * [row][key]. Groups of 4 keys of a dim are swizzled (exclusive or with the group of 4 dims), which
 * spreads the transposing stores over the banks. values  V as [key][dim] lines   what columns tell
 * each other about rows, as [column][row] key_*: of each key of the chunk, its token, and what the
 * mask compares: token, last query block that keeps it, query blocks of the tile that keep it.
 * row_*: of each row of the tile, head * 65536 + row within the job, and what the mask compares:
 * causal bound, window, query block.
 */
#define TESS_FORWARD_SHARED                                \
    TESS_SHARED(vec4, stage, TESS_STAGE)                   \
    TESS_SHARED(vec4, values, TESS_V_STAGE)                \
    TESS_SHARED(vec4, lines, TESS_ROWS *TESS_COLUMNS / 4u) \
    TESS_SHARED(uint, key_token, TESS_KEYS)                \
    TESS_SHARED(int, key_test, TESS_KEYS)                  \
    TESS_SHARED(int, key_limit, TESS_KEYS)                 \
    TESS_SHARED(uint, key_bits, TESS_KEYS)                 \
    TESS_SHARED(uint, row_place, TESS_ROWS)                \
    TESS_SHARED(int, row_last, TESS_ROWS)                  \
    TESS_SHARED(int, row_low, TESS_ROWS)                   \
    TESS_SHARED(int, row_high, TESS_ROWS)                  \
    TESS_SHARED(int, row_block, TESS_ROWS)

/* The score, or TESS_LOWEST if the row does not keep the key: tess_kept() of the jobs' contract,
 * its sides prepared for each row and each key. */
TESS_FUNCTION float tess_masked(float score, int test, int limit, uint bits, int last, int low,
                                int high, int sinks, int i, int i_first) {
    const bool near = TESS_OR(test < sinks, TESS_AND(test >= low, test <= high)),
               listed = ((bits >> (TESS_UINT(i - i_first) & 31u)) & 1u) != 0u;
    const bool kept = TESS_AND(TESS_AND(test <= last, near), TESS_AND(i <= limit, listed));
    return kept ? score : TESS_LOWEST;
}

TESS_FUNCTION int tess_floor_div(int a, int b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }

/* Tokens of `count` blocks that end with block `last`; only the last block of a sequence may be
 * short. */
TESS_FUNCTION uint tess_tokens(uint count, uint last, uint block, uint kv_len) {
    const uint left = kv_len - last * block;
    return (count - 1u) * block + (left < block ? left : block);
}

#endif

#ifdef TESS_SHARED_OUTSIDE
TESS_FORWARD_SHARED
#endif

/* Work that the threads share: `count` things, of which a thread takes the thing number n *
 * TESS_THREADS + thread in its n-th turn. */
#define TESS_TURNS(count)     (((count) + TESS_THREADS - 1u) / TESS_THREADS)
#define TESS_INSIDE(e, count) ((count) % TESS_THREADS == 0u || (e) < (count))

/* Stages of memory, loaded by TESS_LOAD4 (any alignment) or TESS_LOAD4_ALIGNED. Dims past the last
 * stand for the last ones; nobody uses them. */
#define TESS_STAGE_Q(load)                                                                    \
    TESS_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_Q_STAGE); n++) {                        \
        const uint e = n * TESS_THREADS + thread;                                             \
        if (TESS_INSIDE(e, TESS_Q_STAGE)) {                                                   \
            const uint place = row_place[e / (TESS_SLICE / 4u)];                              \
            const uint dim = slice + tess_least(e % (TESS_SLICE / 4u), depth / 4u - 1u) * 4u; \
            stage[e] =                                                                        \
                load(Q, q_base + TESS_OFFSET(place >> 16) * args.q_head +                     \
                            TESS_OFFSET(place & 0xffffu) * args.q_token + TESS_OFFSET(dim));  \
        }                                                                                     \
    }

/* A thread turns 4 keys x 4 dims around. */
#define TESS_STAGE_K(load)                                                                     \
    TESS_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_K_STAGE / 4u); n++) {                    \
        const uint e = n * TESS_THREADS + thread;                                              \
        if (TESS_INSIDE(e, TESS_K_STAGE / 4u)) {                                               \
            const uint four = e % (TESS_SLICE / 4u), key = e / (TESS_SLICE / 4u);              \
            const tess_offset at =                                                             \
                k_base + TESS_OFFSET(slice + tess_least(four, depth / 4u - 1u) * 4u);          \
            const vec4 a = load(K, at + TESS_OFFSET(key_token[key * 4u]) * args.k_token);      \
            const vec4 b = load(K, at + TESS_OFFSET(key_token[key * 4u + 1u]) * args.k_token); \
            const vec4 c = load(K, at + TESS_OFFSET(key_token[key * 4u + 2u]) * args.k_token); \
            const vec4 d = load(K, at + TESS_OFFSET(key_token[key * 4u + 3u]) * args.k_token); \
            const uint to = TESS_Q_STAGE + four * 4u * TESS_COLUMNS + (key ^ (four & 7u));     \
            stage[to] = VEC4(a.x, b.x, c.x, d.x);                                              \
            stage[to + TESS_COLUMNS] = VEC4(a.y, b.y, c.y, d.y);                               \
            stage[to + 2u * TESS_COLUMNS] = VEC4(a.z, b.z, c.z, d.z);                          \
            stage[to + 3u * TESS_COLUMNS] = VEC4(a.w, b.w, c.w, d.w);                          \
        }                                                                                      \
    }

#define TESS_STAGE_V(load)                                                                      \
    TESS_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_V_STAGE); n++) {                          \
        const uint e = n * TESS_THREADS + thread;                                               \
        if (TESS_INSIDE(e, TESS_V_STAGE)) {                                                     \
            const uint token = key_token[value + e / (TESS_DIMS / 4u)];                         \
            const uint dim = tess_least(e % (TESS_DIMS / 4u) * 4u, head_dim - 4u);              \
            values[e] = load(V, v_base + TESS_OFFSET(token) * args.v_token + TESS_OFFSET(dim)); \
        }                                                                                       \
    }

/* Row n of a group of 4, whose values in vectors of rows are the component c. */
#define TESS_EACH_ROW(action) action(0u, x) action(1u, y) action(2u, z) action(3u, w)

#define TESS_MASK_ROW(n, c)                                                                   \
    {                                                                                         \
        const uint r = first_row + 4u * g + n;                                                \
        const int last = row_last[r], low = row_low[r], high = row_high[r], i = row_block[r]; \
        const vec4 a = s[4u * g + n];                                                         \
        s[4u * g + n] =                                                                       \
            VEC4(tess_masked(a.x, test0, limit0, bits0, last, low, high, sinks, i, i_first),  \
                 tess_masked(a.y, test1, limit1, bits1, last, low, high, sinks, i, i_first),  \
                 tess_masked(a.z, test2, limit2, bits2, last, low, high, sinks, i, i_first),  \
                 tess_masked(a.w, test3, limit3, bits3, last, low, high, sinks, i, i_first)); \
    }

#define TESS_SOFTMAX_ROW(n, c)                                                                     \
    {                                                                                              \
        const vec4 a = s[4u * g + n];                                                              \
        const vec4 p = tess_power4(a, now.c, scale_log2);                                          \
        const float shrink = tess_exp2((most[g].c - now.c) * scale_log2);                          \
        sum[g].c = sum[g].c * shrink + ((p.x + p.y) + (p.z + p.w));                                \
        TESS_UNROLL for (uint d = 0u; d < TESS_OUTPUTS; d++) o[(4u * g + n) * TESS_OUTPUTS + d] *= \
            shrink;                                                                                \
        stage[(first_row + 4u * g + n) * TESS_COLUMNS + column] = p;                               \
    }

#define TESS_STORE_ROW(n, c)                                                                    \
    {                                                                                           \
        const uint r = first_row + 4u * g + n;                                                  \
        if (r < used) {                                                                         \
            const float norm = total.c > 0.0f ? 1.0f / total.c : 0.0f;                          \
            const float lse = total.c > 0.0f                                                    \
                                  ? (most[g].c * scale_log2 + tess_log2(total.c)) * TESS_LN2    \
                                  : TESS_MINUS_INFINITY;                                        \
            const uint place = row_place[r];                                                    \
            if (column == 0u) {                                                                 \
                if (part != TESS_NO_PARTIAL) {                                                  \
                    TESS_STORE_PARTIAL(                                                         \
                        partial_base + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim) + \
                            TESS_OFFSET(r),                                                     \
                        most[g].c);                                                             \
                    TESS_STORE_PARTIAL(partial_base +                                           \
                                           TESS_OFFSET(args.partial_rows) *                     \
                                               TESS_OFFSET(head_dim + 1u) +                     \
                                           TESS_OFFSET(r),                                      \
                                       total.c);                                                \
                } else if ((TESS_FLAGS & TESS_ARGS_LSE) != 0u)                                  \
                    TESS_STORE_LSE(lse_base + TESS_OFFSET(place >> 16) * args.lse_head +        \
                                       TESS_OFFSET(place & 0xffffu) * args.lse_token,           \
                                   lse);                                                        \
            }                                                                                   \
            const tess_offset to = part != TESS_NO_PARTIAL                                      \
                                       ? partial_base + TESS_OFFSET(r) * TESS_OFFSET(head_dim)  \
                                       : o_base + TESS_OFFSET(place >> 16) * args.o_head +      \
                                             TESS_OFFSET(place & 0xffffu) * args.o_token;       \
            TESS_UNROLL for (uint d = 0u; d < TESS_OUTPUTS; d++) {                              \
                const uint dim = (d * TESS_COLUMNS + column) * 4u;                              \
                const vec4 out4 = o[(4u * g + n) * TESS_OUTPUTS + d] * norm;                    \
                if (dim < head_dim) {                                                           \
                    if (part != TESS_NO_PARTIAL) {                                              \
                        TESS_STORE4_PARTIAL(to + TESS_OFFSET(dim), out4);                       \
                    } else {                                                                    \
                        TESS_STORE4_O(to + TESS_OFFSET(dim), out4);                             \
                    }                                                                           \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }

TESS_FORWARD_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_FORWARD_SHARED
#endif
    const uint thread = TESS_THREAD;
    /* Workgroups past the last item read that one's words and then find neither rows nor keys: some
     * compilers do badly with a return before a barrier. */
    const bool present = TESS_GROUP < args.items;

    /* The job, its sequence and its class. */
    const uint job = args.items_at + (present ? TESS_GROUP : args.items - 1u) * TESS_JOB_WORDS;
    const uint sequence =
        args.sequences_at + TESS_WORD(job + TESS_WORD_JOB_SEQUENCE) * TESS_SEQUENCE_WORDS;
    const uint head = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_HEAD)),
               heads = TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_HEADS));
    const uint row = TESS_WORD(job + TESS_WORD_JOB_ROW),
               rows = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_ROWS));
    const uint cls =
        args.classes_at + TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_CLS)) * TESS_CLASS_WORDS;
    const uint left_at = args.entries_at + TESS_WORD(job + TESS_WORD_JOB_LEFT_OFFSET),
               left_count = TESS_WORD(job + TESS_WORD_JOB_LEFT_COUNT);
    const uint right_at = args.entries_at + TESS_WORD(job + TESS_WORD_JOB_RIGHT_OFFSET),
               right_count = TESS_WORD(job + TESS_WORD_JOB_RIGHT_COUNT);
    const uint interval_start = TESS_WORD(job + TESS_WORD_JOB_INTERVAL_START),
               interval_blocks = TESS_WORD(job + TESS_WORD_JOB_INTERVAL_BLOCKS);
    const uint mask_head = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_MASK_HEAD)),
               mask_tail = TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_MASK_TAIL));
    const uint batch = TESS_WORD(sequence + TESS_WORD_SEQUENCE_BATCH);
    const int q_len = TESS_INT(TESS_WORD(sequence + TESS_WORD_SEQUENCE_Q_LEN)),
              kv_len = TESS_INT(TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_LEN));
    const uint flags = TESS_WORD(cls + TESS_WORD_CLASS_FLAGS);
    const int sinks = (flags & TESS_CLASS_WINDOW) != 0u
                          ? TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_SINKS))
                          : TESS_INT_MAX;
    const uint head_dim = TESS_HEAD_DIM, block = args.block, used = present ? heads * rows : 0u;
    const int position = kv_len - q_len + TESS_INT(row),
              i_first = tess_floor_div(position, TESS_INT(block));
    const bool mask_entries = (flags & TESS_CLASS_MASK_ENTRIES) != 0u;

    /* Where the runs of keys end, and what part of the interval is masked at its head and tail. */
    const uint left_end = left_count == 0u
                              ? 0u
                              : tess_tokens(left_count, TESS_WORD(left_at + left_count - 1u), block,
                                            TESS_UINT(kv_len));
    const uint interval_keys =
        interval_blocks == 0u ? 0u
                              : tess_tokens(interval_blocks, interval_start + interval_blocks - 1u,
                                            block, TESS_UINT(kv_len));
    const uint interval_end = left_end + interval_keys;
    const uint head_end = left_end + tess_least(mask_head * block, interval_keys);
    const uint tail_begin =
        left_end + tess_least((interval_blocks - mask_tail) * block, interval_keys);
    const uint right_keys = right_count == 0u
                                ? 0u
                                : tess_tokens(right_count, TESS_WORD(right_at + right_count - 1u),
                                              block, TESS_UINT(kv_len));
    const uint keys = (interval_end + right_keys) * TESS_UINT(present);

    const tess_offset q_base =
        args.q_at + TESS_OFFSET(batch) * args.q_batch +
        (TESS_WIDE(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(row)) * args.q_token +
        TESS_OFFSET(head) * args.q_head;
    const tess_offset k_base = args.k_at + TESS_OFFSET(batch) * args.k_batch +
                               TESS_WIDE(sequence + TESS_WORD_SEQUENCE_KV_START) * args.k_token +
                               TESS_OFFSET(head / args.group) * args.k_head;
    const tess_offset v_base = args.v_at + TESS_OFFSET(batch) * args.v_batch +
                               TESS_WIDE(sequence + TESS_WORD_SEQUENCE_KV_START) * args.v_token +
                               TESS_OFFSET(head / args.group) * args.v_head;
    const bool q_aligned = TESS_IS_ALIGNED(Q, q_base, args.q_token | args.q_head);
    const bool k_aligned = TESS_IS_ALIGNED(K, k_base, args.k_token);
    const bool v_aligned = TESS_IS_ALIGNED(V, v_base, args.v_token);

    for (uint r = thread; r < TESS_ROWS; r += TESS_THREADS) {
        const uint inside = tess_least(r, heads * rows - 1u), packed = inside / rows,
                   own = inside - packed * rows;
        const int p = position + TESS_INT(own),
                  left = TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_LEFT)),
                  right = TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_RIGHT));
        const bool window = (flags & TESS_CLASS_WINDOW) != 0u;
        row_place[r] = packed << 16 | own;
        row_last[r] = (flags & TESS_CLASS_CAUSAL) != 0u ? p : TESS_INT_MAX;
        row_low[r] =
            !window || left == TESS_INT_MAX || p < TESS_INT_MIN + left ? TESS_INT_MIN : p - left;
        row_high[r] =
            !window || right == TESS_INT_MAX || p > TESS_INT_MAX - right ? TESS_INT_MAX : p + right;
        row_block[r] = tess_floor_div(p, TESS_INT(block));
    }

    const uint column = thread % TESS_COLUMNS, first_row = thread / TESS_COLUMNS * TESS_LINE_ROWS;
    const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;
    vec4 s[TESS_LINE_ROWS], o[TESS_LINE_ROWS * TESS_OUTPUTS];
    /* of each row; `sum` only of this thread's keys */
    vec4 most[TESS_LINE_ROWS / 4u], sum[TESS_LINE_ROWS / 4u];
    TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS * TESS_OUTPUTS; n++) o[n] =
        VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++) {
        most[g] = VEC4(TESS_LOWEST, TESS_LOWEST, TESS_LOWEST, TESS_LOWEST);
        sum[g] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    for (uint first = 0u; first < keys; first += TESS_KEYS) {
        const uint chunk = tess_least(keys - first, TESS_UINT(TESS_KEYS)), end = first + TESS_KEYS;
        const bool masked = end > keys ||
                            (mask_entries && (first < left_end || end > interval_end)) ||
                            (left_end < head_end && first < head_end && end > left_end) ||
                            (tail_begin < interval_end && first < interval_end && end > tail_begin);

        /* What each key of the chunk is. The last use of these tables was before the latest
         * barrier. */
        for (uint e = thread; e < TESS_KEYS; e += TESS_THREADS) {
            const uint u = tess_least(first + e, keys - 1u);
            const bool interval = u >= left_end && u < interval_end;
            uint j, token, bits = 0xffffffffu;
            if (interval) {
                token = interval_start * block + (u - left_end);
                j = token / block;
            } else {
                const uint inside = u < left_end ? u : u - interval_end,
                           entry = (u < left_end ? left_at : right_at) + inside / block;
                j = TESS_WORD(entry);
                token = j * block + inside % block;
                if ((flags & TESS_CLASS_BITS) != 0u)
                    bits = TESS_WORD(entry - args.entries_at + args.bits_at);
            }
            int test = TESS_INT_MIN, limit = TESS_INT_MAX;
            if (interval ? u < head_end || u >= tail_begin : mask_entries) {
                test = TESS_INT(token);
                if ((flags & TESS_CLASS_LOCAL) != 0u) {
                    const uint near = TESS_WORD(cls + TESS_WORD_CLASS_LOCAL),
                               stride = TESS_WORD(cls + TESS_WORD_CLASS_STRIDE),
                               shift = TESS_WORD(cls + TESS_WORD_CLASS_SHIFT);
                    /* (j + shift) mod stride == 0 without a sum that could overflow */
                    const bool on_stride = j % stride == (shift == 0u ? 0u : stride - shift);
                    if (!on_stride && near <= TESS_UINT(TESS_INT_MAX) - j)
                        limit = TESS_INT(j + near) - 1;
                }
            } else
                bits = 0xffffffffu;
            key_token[e] = token;
            key_test[e] = test;
            key_limit[e] = first + e < keys ? limit : TESS_INT_MIN;
            key_bits[e] = bits;
        }

        /* Scores. */
        TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS; n++) s[n] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint slice = 0u; slice < head_dim; slice += TESS_SLICE) {
            const uint depth = tess_least(head_dim - slice, TESS_UINT(TESS_SLICE));
            TESS_BARRIER;
            if (q_aligned) {
                TESS_STAGE_Q(TESS_LOAD4_ALIGNED)
            } else {
                TESS_STAGE_Q(TESS_LOAD4)
            }
            if (k_aligned) {
                TESS_STAGE_K(TESS_LOAD4_ALIGNED)
            } else {
                TESS_STAGE_K(TESS_LOAD4)
            }
            TESS_BARRIER;
            if (first_row < used && column * 4u < chunk) {
                TESS_NO_UNROLL for (uint k = 0u; k < depth; k += 4u) {
                    const uint at = TESS_Q_STAGE + k * TESS_COLUMNS + (column ^ (k / 4u & 7u));
                    const vec4 b0 = stage[at], b1 = stage[at + TESS_COLUMNS],
                               b2 = stage[at + 2u * TESS_COLUMNS],
                               b3 = stage[at + 3u * TESS_COLUMNS];
                    TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS; n++) {
                        const vec4 a = stage[(first_row + n) * (TESS_SLICE / 4u) + k / 4u];
                        s[n] += b0 * a.x;
                        s[n] += b1 * a.y;
                        s[n] += b2 * a.z;
                        s[n] += b3 * a.w;
                    }
                }
            }
        }

        /* Mask them; tell the other columns the largest. */
        if (args.scale < 0.0f) {
            TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS; n++) s[n] *= -1.0f;
        }
        if (masked) {
            const uint e = column * 4u;
            const int test0 = key_test[e], test1 = key_test[e + 1u], test2 = key_test[e + 2u],
                      test3 = key_test[e + 3u];
            const int limit0 = key_limit[e], limit1 = key_limit[e + 1u], limit2 = key_limit[e + 2u],
                      limit3 = key_limit[e + 3u];
            const uint bits0 = key_bits[e], bits1 = key_bits[e + 1u], bits2 = key_bits[e + 2u],
                       bits3 = key_bits[e + 3u];
            TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++) {
                TESS_EACH_ROW(TESS_MASK_ROW)
            }
        }
        TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++)
            lines[(column * TESS_ROWS + first_row) / 4u + g] =
                VEC4(tess_highest(s[4u * g]), tess_highest(s[4u * g + 1u]),
                     tess_highest(s[4u * g + 2u]), tess_highest(s[4u * g + 3u]));
        TESS_BARRIER;

        /* Probabilities; everyone has done with Q and K. */
        TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++) {
            vec4 now = most[g];
            TESS_UNROLL_SOME for (uint c = 0u; c < TESS_COLUMNS; c++) now =
                tess_max4(now, lines[(c * TESS_ROWS + first_row) / 4u + g]);
            TESS_EACH_ROW(TESS_SOFTMAX_ROW)
            most[g] = now;
        }

        /* Their product with V. */
        for (uint value = 0u; value < chunk; value += TESS_VALUES) {
            const uint depth = tess_least(chunk - value, TESS_UINT(TESS_VALUES));
            if (v_aligned) {
                TESS_STAGE_V(TESS_LOAD4_ALIGNED)
            } else {
                TESS_STAGE_V(TESS_LOAD4)
            }
            TESS_BARRIER;
            if (first_row < used && column * 4u < head_dim) {
                TESS_NO_UNROLL for (uint k = 0u; k < depth; k += 4u) {
                    vec4 p[TESS_LINE_ROWS];
                    TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS; n++) p[n] =
                        stage[(first_row + n) * TESS_COLUMNS + (value + k) / 4u];
                    TESS_UNROLL for (uint d = 0u; d < TESS_OUTPUTS; d++) {
                        const uint at = k * (TESS_DIMS / 4u) + d * TESS_COLUMNS + column;
                        const vec4 b0 = values[at], b1 = values[at + TESS_DIMS / 4u],
                                   b2 = values[at + TESS_DIMS / 2u],
                                   b3 = values[at + TESS_DIMS / 4u * 3u];
                        TESS_UNROLL for (uint n = 0u; n < TESS_LINE_ROWS; n++) {
                            o[n * TESS_OUTPUTS + d] += b0 * p[n].x;
                            o[n * TESS_OUTPUTS + d] += b1 * p[n].y;
                            o[n * TESS_OUTPUTS + d] += b2 * p[n].z;
                            o[n * TESS_OUTPUTS + d] += b3 * p[n].w;
                        }
                    }
                }
            }
            TESS_BARRIER;
        }
    }

    /* Where the results go: found only now, to hold fewer values throughout. */
    const uint part = TESS_WORD(job + TESS_WORD_JOB_PARTIAL);
    const tess_offset o_base =
        args.o_at + TESS_OFFSET(batch) * args.o_batch +
        (TESS_WIDE(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(row)) * args.o_token +
        TESS_OFFSET(head) * args.o_head;
    const tess_offset lse_base =
        args.lse_at + TESS_OFFSET(batch) * args.lse_batch +
        (TESS_WIDE(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(row)) * args.lse_token +
        TESS_OFFSET(head) * args.lse_head;
    const tess_offset partial_base = args.partials_at + TESS_OFFSET(part) *
                                                            TESS_OFFSET(args.partial_rows) *
                                                            TESS_OFFSET(head_dim + 2u);

    /* The sums of all columns. */
    TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++)
        lines[(column * TESS_ROWS + first_row) / 4u + g] = sum[g];
    TESS_BARRIER;
    TESS_UNROLL for (uint g = 0u; g < TESS_LINE_ROWS / 4u; g++) {
        vec4 total = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        TESS_UNROLL_SOME for (uint c = 0u; c < TESS_COLUMNS; c++) total +=
            lines[(c * TESS_ROWS + first_row) / 4u + g];
        TESS_EACH_ROW(TESS_STORE_ROW)
    }
}

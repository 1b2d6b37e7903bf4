/* SPDX-License-Identifier: Apache-2.0 */
/* What nv_mma.cl keeps in local memory, the lists of keys among it, and which rows keep them. */
#ifndef TESS_OPENCL_NV_KEYS_H
#define TESS_OPENCL_NV_KEYS_H

#define TESS_THREADS 128u
#define TESS_ROWS    (TESS_TILES * 64u)
#define TESS_UNITS   (TESS_DIMS / 8u)  /* of 16 bytes in a row */
#define TESS_STEPS   (TESS_DIMS / 16u) /* of 16 elements, each a product with Q */
#define TESS_SPARE   (TESS_STEPS - TESS_HELD)
/* This stage is masked by one list while the next one waits and the third is written. */
#define TESS_LISTS 3u
/* Where a key is that is not there: behind all others. */
#define TESS_NOT_THERE TESS_INT_MAX

TESS_STRUCT(nv_row) {
    int low, high; /* the keys that it keeps, as far as their positions tell, ... */
    int last;      /* ... but among the sinks all up to this */
    uint block;    /* a bit for its query block, counted from that of the tile's first row */
};
TESS_STRUCT(nv_key) {
    int position; /* the token */
    uint kept;    /* query blocks of the tile that keep it */
};
TESS_STRUCT(nv_place) { tess_offset k, v; }; /* elements of K and V; negative: zeros */
TESS_STRUCT(nv_list) {
    nv_key keys[TESS_KEYS];
    uint masked; /* the stage, if any key needs the mask */
};

TESS_STRUCT(nv_memory) {
    uint4 stages[2][2][TESS_KEYS * TESS_UNITS]; /* K and V of each */
    uint4 q[TESS_SPARE ? TESS_TILES * TESS_SPARE * TESS_THREADS : 1];
    nv_row rows[TESS_ROWS];
    nv_place places[2][TESS_KEYS];
    nv_list lists[TESS_LISTS];
    int low[4], last[4];    /* the least and the most of the rows of each warp */
    uint count, job;        /* keys of the job, and where its words begin */
    int first_block, sinks; /* the query block of the tile's first row; of a window */
    tess_offset k, v;       /* where keys are found from */
    tess_tile tile;
    tess_key_walk walk;
};

/* Leaves in local memory what finding keys needs, and the bounds of rows. */
NV_FUNCTION void nv_begin(__local nv_memory *m, uint job, tess_tile tile TESS_TABLES) {
    const int first_block = tess_floor_div(tile.position, TESS_INT(args.block));
    if (TESS_THREAD == 0u) {
        const tess_origin origin = tess_find_origin(job TESS_TABLES_OF_KERNEL);
        const tess_key_walk walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
        m->walk = walk;
        m->tile = tile;
        m->job = job;
        m->first_block = first_block;
        m->count = tess_count_keys(walk, tile TESS_TABLES_OF_KERNEL);
        m->k = TESS_FIRST_OF(k, origin.batch, origin.start, origin.head);
        m->v = TESS_FIRST_OF(v, origin.batch, origin.start, origin.head);
        m->sinks = (tile.flags & TESS_CLASS_WINDOW) != 0u
                       ? TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_SINKS))
                       : 0;
        for (uint n = 0u; n < TESS_LISTS; n++) m->lists[n].masked = ~0u;
    }
    if (TESS_THREAD < TESS_ROWS) {
        const tess_row row =
            tess_find_row(tess_min(TESS_THREAD, tile.packed_rows - 1u), tile TESS_TABLES_OF_KERNEL);
        nv_row own;
        own.low = row.window_low;
        own.last = row.causal < TESS_NOT_THERE ? row.causal : TESS_NOT_THERE - 1;
        own.high = row.window_high < own.last ? row.window_high : own.last;
        own.block = 1u << (row.block - first_block);
        m->rows[TESS_THREAD] = own;
    }
}

/* Writes an entry of a stage's list. */
NV_FUNCTION void nv_list_key(__local nv_memory *m, uint stage, uint nth TESS_PAGES) {
    const tess_key_walk walk = m->walk;
    const tess_tile tile = m->tile;
    const uint u = stage * TESS_KEYS + nth, count = m->count;
    const tess_key key = tess_find_key(tess_min(u, count - 1u), walk, tile TESS_TABLES_OF_KERNEL);
    /* query blocks of the tile up to the last that keeps the key */
    const tess_offset blocks = TESS_OFFSET(key.last_block) - m->first_block + 1;
    tess_place place;
    place.page = 0u;
    place.token = key.token;
    if (TESS_IS_CACHED) place = tess_find_place(key.token, m->job TESS_PAGES_OF_KERNEL);
    const bool there = u < count && place.page != TESS_ABSENT;
    nv_place at;
    at.k = m->k + TESS_OFFSET(place.page) * args.k_batch + TESS_OFFSET(place.token) * args.k_token;
    at.v = m->v + TESS_OFFSET(place.page) * args.v_batch + TESS_OFFSET(place.token) * args.v_token;
    if (!there) at.k = at.v = TESS_OFFSET(-1);
    nv_key own;
    own.position = there ? TESS_INT(key.token) : TESS_NOT_THERE;
    own.kept = blocks <= 0 ? 0u : blocks >= 32 ? key.bits : key.bits & ((1u << blocks) - 1u);
    __local nv_list *list = &m->lists[stage % TESS_LISTS];
    m->places[stage % 2u][nth] = at;
    list->keys[nth] = own;
    /* Others may write the same here. */
    if (!there || key.position != TESS_INT_MIN) list->masked = stage;
}

/* Leaves the bounds of this warp's rows. */
NV_FUNCTION void nv_bound_rows(__local nv_memory *m) {
    const uint warp = TESS_THREAD / 32u, lane = TESS_THREAD % 32u, rows = TESS_TILES * 16u;
    const nv_row row = m->rows[warp * rows + lane % rows];
    const int low = nv_least(row.low), last = nv_most(row.last);
    if (lane == 0u) {
        m->low[warp] = low;
        m->last[warp] = last;
    }
}

/* Whether no row of this warp keeps any key of a masked stage, as far as positions tell. */
NV_FUNCTION bool nv_is_blank(const __local nv_memory *m, uint list) {
    const uint warp = TESS_THREAD / 32u, lane = TESS_THREAD % 32u;
    const __local nv_key *keys = m->lists[list].keys;
    const int a = keys[lane % TESS_KEYS].position, b = keys[(lane + 32u) % TESS_KEYS].position,
              least = nv_least(min(a, b)),
              most = nv_most(max(a == TESS_NOT_THERE ? TESS_INT_MIN : a,
                                 b == TESS_NOT_THERE ? TESS_INT_MIN : b));
    return least > m->last[warp] || (least >= m->sinks && most < m->low[warp]);
}

/* Whether the row keeps a key. */
NV_FUNCTION bool nv_is_kept(nv_row row, int position, uint kept, int sinks) {
    return ((kept & row.block) != 0u) & (position <= row.last) &
           ((position < sinks) | ((position >= row.low) & (position <= row.high)));
}

#endif /* TESS_OPENCL_NV_KEYS_H */

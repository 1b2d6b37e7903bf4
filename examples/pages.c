/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <stdlib.h>

int pages_create(pages *p, int32_t count, int32_t sequences, int32_t columns) {
    p->count = count;
    p->sequences = sequences;
    p->columns = columns;
    p->n_free = count;
    p->free_ids = calloc((size_t)count, sizeof *p->free_ids);
    p->users = calloc((size_t)count, sizeof *p->users);
    p->used = calloc((size_t)sequences, sizeof *p->used);
    p->table = calloc((size_t)sequences * (size_t)columns, sizeof *p->table);
    if (!p->free_ids || !p->users || !p->used || !p->table) {
        pages_release(p);
        return 0;
    }
    for (int32_t n = 0; n < count; n++) p->free_ids[n] = count - 1 - n;
    for (int32_t n = 0; n < sequences * columns; n++) p->table[n] = -1;
    return 1;
}

void pages_release(pages *p) {
    free(p->free_ids);
    free(p->users);
    free(p->used);
    free(p->table);
    *p = (pages){0};
}

static int32_t take(pages *p) {
    const int32_t id = p->free_ids[--p->n_free];
    p->users[id] = 1;
    return id;
}

/* What the page holds need not be cleared: its next user overwrites what it reads. */
static void give_back(pages *p, int32_t id) {
    if (--p->users[id] == 0) p->free_ids[p->n_free++] = id;
}

int pages_resize(pages *p, int32_t sequence, int32_t wanted) {
    int32_t *row = p->table + sequence * p->columns, *used = &p->used[sequence];
    if (wanted > p->columns || wanted - *used > p->n_free) return 0;
    while (*used < wanted) row[(*used)++] = take(p);
    while (*used > wanted) {
        give_back(p, row[--*used]);
        row[*used] = -1;
    }
    return 1;
}

void pages_share(pages *p, int32_t from, int32_t to) {
    const int32_t *source = p->table + from * p->columns;
    int32_t *row = p->table + to * p->columns;
    for (int32_t n = 0; n < p->used[from]; n++) {
        row[n] = source[n];
        p->users[row[n]]++;
    }
    p->used[to] = p->used[from];
}

int pages_own(pages *p, int32_t sequence, int32_t column, int32_t pair[2]) {
    int32_t *entry = p->table + sequence * p->columns + column;
    if (p->users[*entry] == 1) return 0;
    if (p->n_free == 0) return -1;
    pair[0] = *entry;
    give_back(p, *entry);
    pair[1] = *entry = take(p);
    return 1;
}

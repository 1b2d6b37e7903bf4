/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors share a binding. A stage may be limited to fewer storage buffers than the kernels
 * have: Vulkan promises four. There some tensors give up a binding of their own and lie in the
 * VkBuffer of another one. Kernels count elements from the start of what is bound, so all that
 * changes is the number of a binding: in descriptors, and in a module's decorations.
 *
 * Which ones share depends on the device alone: pipelines are made with the plan, which does not
 * know the buffers yet.
 */
#include <string.h>

#include "kernels/bindings.h"
#include "vk.h"

/* Tensor `from` moves to the binding of tensor `to`. What most launches lack moves first, and what
 * applications keep together before what they keep apart. */
typedef struct move {
    uint8_t from, to;
} move;

enum { MOST_MOVES = TESS_STORAGE_BUFFERS - VK_LEAST_BUFFERS };

typedef struct family {
    uint32_t tensors;
    move moves[MOST_MOVES];
} family;

/* The last two bindings of attention are: rows that come and go with a step, and keys. */
static const family families[VK_FAMILIES] = {
    [VK_ATTENTION] = {TESS_PORTABLE_TENSORS,
                      {{TESS_BIND_V_SCALE, TESS_BIND_K_SCALE},
                       {TESS_BIND_K_SCALE, TESS_BIND_TABLE},
                       {TESS_BIND_LSE, TESS_BIND_O},
                       {TESS_BIND_V, TESS_BIND_K},
                       {TESS_BIND_TABLE, TESS_BIND_K},
                       {TESS_BIND_O, TESS_BIND_Q}}},
    [VK_PAGING] = {TESS_PAGING_TENSORS,
                   {{TESS_BIND_POOL_V_SCALE, TESS_BIND_POOL_K_SCALE},
                    {TESS_BIND_POOL_K_SCALE, TESS_BIND_PAGES},
                    {TESS_BIND_NEW_V, TESS_BIND_NEW_K},
                    {TESS_BIND_POOL_V, TESS_BIND_POOL_K},
                    {TESS_BIND_PAGES, TESS_BIND_POOL_K}}},
    [VK_PREPARE] = {TESS_PREPARE_TENSORS,
                    {{TESS_BIND_KV_FIRST, TESS_BIND_Q_FIRST},
                     {TESS_BIND_Q_FIRST, TESS_BIND_CU_ROWS},
                     {TESS_BIND_KV_LENS, TESS_BIND_CU_ROWS}}}};

uint32_t tess_vk_family(uint32_t op) {
    return tess_is_paging(op) ? VK_PAGING : op == TESS_OP_PREPARE ? VK_PREPARE : VK_ATTENTION;
}

static void find(const family *f, uint32_t most, uint8_t slots[TESS_BINDINGS]) {
    const uint32_t wanted = TESS_BIND_TENSORS - 1 + f->tensors;
    uint8_t to[TESS_BINDINGS], next = TESS_BIND_TENSORS;
    for (uint8_t n = 0; n < TESS_BINDINGS; n++) slots[n] = to[n] = n;
    for (uint32_t n = 0; n + most < wanted; n++) to[f->moves[n].from] = f->moves[n].to;
    for (uint32_t n = TESS_BIND_TENSORS; n < TESS_BIND_TENSORS + f->tensors; n++)
        if (to[n] == n) slots[n] = next++;
    for (uint32_t n = TESS_BIND_TENSORS; n < TESS_BIND_TENSORS + f->tensors; n++) {
        uint32_t end = n;
        while (to[end] != end) end = to[end];
        slots[n] = slots[end];
    }
}

void tess_vk_slots_find(tess_vk_device *d) {
    const uint32_t most = d->found.properties.limits.max_stage_storage_buffers;
    d->storage_buffers = most < TESS_STORAGE_BUFFERS ? most : TESS_STORAGE_BUFFERS;
    for (int n = 0; n < VK_FAMILIES; n++) find(&families[n], d->storage_buffers, d->slots[n]);
}

void tess_vk_slots_place(const uint8_t slots[TESS_BINDINGS], uint32_t *code, size_t words) {
    enum { HEADER = 5, OP_DECORATE = 71, DECORATION_BINDING = 33 };
    for (size_t n = HEADER; n < words; n += code[n] >> 16)
        if ((code[n] & 0xffff) == OP_DECORATE && code[n + 2] == DECORATION_BINDING)
            code[n + 3] = slots[code[n + 3]];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Serialised layouts: hostile bytes are refused, or give a layout that answers every query and
 * serialises to the same bytes again. */
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "bounded.h"
#include "fuzz.h"

enum { CHECKSUM = 8, HEADER = 124, MOST_BLOCKS = 1 << 16 };

static uint64_t random_bits(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 20;
}

static void ask(const tess_layout *layout, uint64_t seed) {
    tess_layout_info info = {.struct_size = sizeof info};
    FUZZ_REQUIRE(tess_layout_query(layout, &info) == TESS_OK);
    FUZZ_REQUIRE(info.n_heads >= 1 && info.n_heads <= 65535 && info.n_kv_heads >= 1 &&
                 info.n_heads % info.n_kv_heads == 0 && info.n_classes >= 1);
    FUZZ_REQUIRE(info.block >= 1 && info.max_tokens >= 0 &&
                 info.n_blocks ==
                     info.max_tokens / info.block + (info.max_tokens % info.block != 0));
    FUZZ_REQUIRE(info.coverage >= 0 && info.coverage <= 1 && info.kept_share >= 0 &&
                 info.kept_share <= 1);
    tess_kv_info kv = {.struct_size = sizeof kv};
    const int32_t kv_head = (int32_t)(random_bits(&seed) % info.n_kv_heads),
                  head = (int32_t)(random_bits(&seed) % info.n_heads);
    FUZZ_REQUIRE(tess_layout_kv(layout, kv_head, &kv) == TESS_OK);
    FUZZ_REQUIRE(kv.blocks == info.n_blocks && kv.blocks_kept >= 0 && kv.blocks_kept <= kv.blocks &&
                 kv.blocks_allocated <= kv.blocks);
    tess_storage_info storage = {.struct_size = sizeof storage};
    const uint32_t s = (uint32_t)(random_bits(&seed) % info.n_storage);
    int64_t places = -1, fewer = -1;
    FUZZ_REQUIRE(tess_layout_storage(layout, s, &storage, NULL) == TESS_OK);
    FUZZ_REQUIRE(storage.n_kv_heads >= 1 && storage.n_kv_heads <= info.n_kv_heads &&
                 storage.ring_slots >= 0 && storage.slots_per_stride >= 0);
    FUZZ_REQUIRE(tess_layout_pages(layout, s, info.max_tokens, 0, &places) == TESS_OK &&
                 tess_layout_pages(layout, s, info.max_tokens / 2, 0, &fewer) == TESS_OK);
    FUZZ_REQUIRE(fewer >= 0 && fewer <= places && places <= info.max_tokens);
    if (info.n_blocks == 0 || info.n_blocks > MOST_BLOCKS) return;
    uint8_t *row = malloc((size_t)info.n_blocks);
    FUZZ_REQUIRE(row != NULL);
    for (int n = 0; n < 4; n++) {
        const int64_t query = (int64_t)(random_bits(&seed) % (uint64_t)info.max_tokens),
                      key = (int64_t)(random_bits(&seed) % (uint64_t)info.max_tokens);
        int64_t slot = -1;
        int kept = -1;
        FUZZ_REQUIRE(tess_layout_row(layout, head, query / info.block, row, info.n_blocks) ==
                     TESS_OK);
        FUZZ_REQUIRE(tess_layout_kept(layout, head, query, key, &kept) == TESS_OK &&
                     (kept == 0 || kept == 1));
        FUZZ_REQUIRE(!kept || row[key / info.block] == 1);
        FUZZ_REQUIRE(tess_layout_slot(layout, kv_head, key / info.block, &slot) == TESS_OK &&
                     slot >= 0 && slot < kv.blocks_allocated);
    }
    free(row);
}

static void one_layout(tess_runtime *runtime, const uint8_t *data, size_t size) {
    tess_layout *layout = NULL;
    const tess_status status = tess_layout_deserialize(runtime, data, size, &layout);
    FUZZ_REQUIRE(status == TESS_OK || status == TESS_ERROR_CORRUPT ||
                 status == TESS_ERROR_VERSION || status == TESS_ERROR_OUT_OF_MEMORY);
    if (status != TESS_OK) return;
    ask(layout, size);
    size_t length = 0;
    FUZZ_REQUIRE(tess_layout_serialize(layout, NULL, &length) == TESS_OK);
    uint8_t *again = malloc(length);
    FUZZ_REQUIRE(again && tess_layout_serialize(layout, again, &length) == TESS_OK);
    tess_layout_release(layout);
    /* What is read serialises to the same bytes. This build ignores a wrong checksum. */
    FUZZ_REQUIRE(length == size && memcmp(again, data, length - CHECKSUM) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tess_runtime *runtime;
    if (!runtime) runtime = bounded_runtime();
    const size_t before = taken;
    one_layout(runtime, data, size);
    /* Mutations break the checksum, which would hide all that comes after it: once more with the
     * right one. */
    if (size >= HEADER + CHECKSUM) {
        uint8_t *repaired = malloc(size);
        FUZZ_REQUIRE(repaired != NULL);
        memcpy(repaired, data, size);
        uint64_t hash = 0xcbf29ce484222325u;
        for (size_t n = 0; n < size - CHECKSUM; n++) hash = (hash ^ repaired[n]) * 0x100000001b3u;
        for (int n = 0; n < CHECKSUM; n++)
            repaired[size - CHECKSUM + (size_t)n] = (uint8_t)(hash >> (8 * n));
        one_layout(runtime, repaired, size);
        free(repaired);
    }
    FUZZ_REQUIRE(taken == before);
    return 0;
}

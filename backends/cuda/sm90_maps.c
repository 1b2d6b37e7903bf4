/* SPDX-License-Identifier: Apache-2.0 */
#include "sm90_maps.h"

typedef int (*encode_fn)(tess_tensor_map *map, int type, unsigned rank, uint64_t address,
                         const uint64_t *sizes, const uint64_t *strides, const unsigned *box,
                         const unsigned *element_strides, int interleave, int swizzle,
                         int promotion, int fill);

/* The coordinate of an empty piece, which reads zeros, lies behind them. */
enum { MOST_TOKENS = 0x7fff0000 };

int tess_cuda_make_map(const tess_driver_device *d, const tess_launch *l, const tess_tensor *t,
                       int64_t tokens, uint32_t heads, uint64_t batches, unsigned box_tokens,
                       unsigned boxes, uint64_t step, tess_tensor_map *map) {
    const encode_fn encode = (encode_fn)d->driver->extra[CUDA_ENCODE_TENSOR_MAP];
    if (!encode || tokens <= 0 || tokens > MOST_TOKENS) return 0;
    const uint64_t sizes[5] = {(uint64_t)l->head_dim, (uint64_t)tokens, boxes, heads, batches};
    const uint64_t token = 2 * (uint64_t)t->stride_token;
    const uint64_t strides[4] = {token, boxes > 1 ? step * token : 16, 2 * (uint64_t)t->stride_head,
                                 batches > 1 ? 2 * (uint64_t)t->stride_batch : 16};
    const unsigned box[5] = {64, box_tokens, boxes, 1, 1}, ones[5] = {1, 1, 1, 1, 1};
    return encode(map, l->dtype == TESS_BF16 ? 9 : 6, 5, t->buffer.handle + t->buffer.offset, sizes,
                  strides, box, ones, 0, 3, 3, 0) == DRIVER_OK;
}

# SPDX-License-Identifier: Apache-2.0
"""`get_sparse_attn_mask`: the local-stride pattern as masks."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.dkernel._checks import invalid, local_pair, whole
from tessera.dkernel._layout import dense_to_crow_col

_Mask = tuple[tuple[Tensor, Tensor], Tensor, "Tensor | None"]


def _first_block(name: str, position: int | None, block: int) -> int:
    """The block that starts at `position`."""
    position = whole(name, 0 if position is None else position, 0)
    if position % block:
        raise invalid(f"{name}: a multiple of block_size ({block}), got {position}")
    return position // block


def get_sparse_attn_mask(
    num_heads: int,
    seqlen: int,
    block_size: int = 64,
    local_blocks: int | tuple[int, int] = 4,
    vert_stride: int = 4,
    homo_head: bool = False,
    num_kv_heads: int | None = None,
    past_len: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int | None = None,
    return_dense: bool = False,
    head_sliding_step: int | None = None,
    head_sliding_offset: int = 0,
    num_dense_heads: int = 0,
    kv_seqlen: int | None = None,
    q_start_position: int | None = None,
    kv_start_position: int | None = None,
    vert_position_type: str | None = None,
    causal: bool = True,
) -> _Mask:
    """The local-stride pattern of each head: ((crow, col), block_mask, dense or None).

    crow        int32 [planes, rows + 1], col int32 [planes, most] filled up with -1: the compressed
                rows of block_mask
    block_mask  `dtype` [planes, rows, key blocks]: 1 where a block is kept
    dense       `dtype` [planes, queries, keys], exact to the token; with return_dense

    There is one plane a query head, or one in all if every head has the same: homo_head, or
    both directions without (or with only) dense heads.

    local_blocks         the query's own included; (left, right) is possible with causal=False
    num_kv_heads         query heads that share a kv head share its pattern
    num_dense_heads      the last heads, dense; kv heads are counted where num_kv_heads is given
    past_len             the first so many of `seqlen` queries are cut off: block rows that begin
                         before it, and token rows (in causal order)
    device               None: the current CUDA device if there is one, else the CPU
    head_sliding_step    None: max(1, vert_stride // num_heads)
    kv_seqlen            None or 0: seqlen
    q_start_position, kv_start_position
                         of the first query and key of a part, at a block's start
    vert_position_type   "absolute" (the default of causal order): stripes stand still;
                         "relative": every vert_stride-th block beyond the local ones, seen from
                         the query, the same for all heads
    """
    heads = whole("num_heads", num_heads, 1)
    block = whole("block_size", block_size, 1)
    stride = whole("vert_stride", vert_stride, 1)
    tokens = whole("seqlen", seqlen, 0)
    past = whole("past_len", past_len or 0, 0)
    keys = whole("kv_seqlen", kv_seqlen or tokens, 0)
    left, right = local_pair(local_blocks, causal)
    if vert_position_type not in (None, "absolute", "relative"):
        raise invalid(
            f'vert_position_type: "absolute" or "relative", got {vert_position_type!r}'
        )
    if homo_head and num_dense_heads:
        raise invalid(f"num_dense_heads: must be 0 with homo_head, got {num_dense_heads}")
    if past and q_start_position is not None:
        raise invalid("q_start_position: not together with past_len")
    kv_heads = heads if homo_head or not num_kv_heads else whole("num_kv_heads", num_kv_heads, 1)
    if heads % kv_heads:
        raise invalid(f"num_kv_heads: must divide num_heads ({heads}), got {kv_heads}")
    dense_heads = whole("num_dense_heads", num_dense_heads, 0)
    if dense_heads > kv_heads:
        raise invalid(f"num_dense_heads: at most {kv_heads} heads here, got {dense_heads}")

    if head_sliding_step is not None:
        head_sliding_step = whole("head_sliding_step", head_sliding_step, -(2**31))
    head_sliding_offset = whole("head_sliding_offset", head_sliding_offset, -(2**31))
    first_query = _first_block("q_start_position", q_start_position, block)
    first_key = _first_block("kv_start_position", kv_start_position, block)
    i = first_query + torch.arange(-(-tokens // block))[:, None]
    j = first_key + torch.arange(-(-keys // block))[None]
    # [planes, 1, 1]: the heads that differ in more than being dense, as kv heads.
    relative = vert_position_type == "relative" or (vert_position_type is None and not causal)
    alike = homo_head or (relative and dense_heads in (0, kv_heads))
    head = torch.arange(1 if alike else kv_heads)[:, None, None]
    is_dense = head >= (0 if alike and dense_heads else kv_heads - dense_heads)
    if relative:
        beyond = (i - j - left + 1).clamp(min=0) + (j - i - right + 1).clamp(min=0)
        mask = is_dense | (beyond % stride == 0)
    else:
        step = max(1, stride // heads) if head_sliding_step is None else head_sliding_step
        step = 0 if homo_head else step
        stripe = (j + head * step + head_sliding_offset) % stride == 0
        mask = is_dense | stripe | ((i - j < left) & (j - i < right))
    if causal:
        mask = mask & (j <= i)
    if not alike:
        mask = mask.repeat_interleave(heads // kv_heads, 0)

    if device is None:
        device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    dense = None
    if return_dense:
        dense = mask.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :tokens, :keys]
        if causal:
            p = first_query * block + torch.arange(tokens)[:, None]
            dense = (dense & (first_key * block + torch.arange(keys) <= p))[:, past:]
        dense = dense.to(dtype).to(device)
    rows = mask[:, -(-past // block) :].to(dtype).to(device)
    return dense_to_crow_col(rows), rows, dense

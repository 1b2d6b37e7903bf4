# SPDX-License-Identifier: Apache-2.0
"""What the mask function tells the attention functions of a forward pass.

It travels where transformers passes masks, so it is a tensor of four dimensions: `generate` and the
models take such a one as ready. Its type and shape say what it holds, so that what traces a
model needs no values:

    None                  no padding; the last query meets the last key
    int32 [batch, 1, 1, 2]    (queries, keys) of each sequence, whose tokens come first
    int32 [batch, 1, 1, 4]    (queries, keys, queries before the first, keys before the first)
    int32 [1, 1, 3, n + 1]    cumulative lengths of the sequences of packed rows, three times
    int32 [1, 1, 1, 1]        1 if rows hold one sequence each, which a compiled model cannot branch
                              on; else 0
"""

from __future__ import annotations

import torch
from torch import Tensor

import tessera

PACKED_ROWS = 3
NO_PACKED_ROWS = "position_ids: packed rows need cu_seq_lens_q in a compiled model"


def lengths(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.stack([queries, keys], -1).to(torch.int32)[:, None, None]


def shifted(queries: Tensor, keys: Tensor, queries_before: Tensor, keys_before: Tensor) -> Tensor:
    columns = [queries, keys, queries_before, keys_before]
    return torch.stack(columns, -1).to(torch.int32)[:, None, None]


def packed(cumulative: list[int]) -> Tensor:
    table = torch.tensor(cumulative, dtype=torch.int32)
    return table.expand(PACKED_ROWS, -1)[None, None].contiguous()


def one_sequence(flag: Tensor) -> Tensor:
    return flag.to(torch.int32).reshape(1, 1, 1, 1)


def known(given: Tensor, batch: int) -> bool:
    """Whether this is one of the tensors above."""
    if given.dtype != torch.int32 or given.dim() != 4 or given.shape[1] != 1:
        return False
    if given.shape[2] == PACKED_ROWS:
        return given.shape[0] == 1
    return given.shape[2] == 1 and (
        given.shape[3] == 1 or (given.shape[0] == batch and given.shape[3] in (2, 4))
    )


def refuse_others(mask: Tensor | None, batch: int) -> None:
    """Raises for a mask that is none of the tensors above."""
    if mask is not None and not known(mask, batch):
        raise tessera.Unsupported(
            f"attention_mask: a mask of your own, {mask.dtype} {list(mask.shape)}, is not "
            "supported; give a padding mask [batch, tokens], or make it part of the pattern"
        )

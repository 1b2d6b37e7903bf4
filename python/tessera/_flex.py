# SPDX-License-Identifier: Apache-2.0
"""Block masks of FlexAttention."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from . import _errors


def _wrong(message: str) -> _errors.InvalidArgument:
    return _errors.InvalidArgument(f"Blocks.from_block_mask: block_mask: {message}")


def _listed(counts: torch.Tensor | None, indices: torch.Tensor | None, like: Any) -> Any:
    """Which blocks a pair of lists names, as booleans [batch, heads, query and key blocks]."""
    found = np.zeros(like, dtype=np.bool_)
    if counts is None or indices is None:
        return found
    number, columns = counts.cpu().numpy(), indices.cpu().numpy()
    for place in np.ndindex(*number.shape):
        found[place][columns[place][: number[place]]] = True
    return found


def convert(block_mask: Any) -> tuple[npt.NDArray[np.bool_], int, bool]:
    """The mask, the block size and the order that Blocks takes."""
    for name in ("kv_num_blocks", "kv_indices", "BLOCK_SIZE", "mask_mod", "seq_lengths"):
        if not hasattr(block_mask, name):
            raise TypeError(
                "Blocks.from_block_mask: block_mask: a BlockMask of FlexAttention is needed, got "
                f"{type(block_mask).__name__}"
            )
    rows, columns = block_mask.BLOCK_SIZE
    if rows != columns:
        raise _wrong(f"blocks with as many queries as keys are needed, got {rows} x {columns}")
    shape = (*block_mask.kv_num_blocks.shape, block_mask.kv_indices.shape[-1])
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, shape)
    full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, shape)
    if shape[0] != 1 and not all(
        (partial[0] == one).all() for one in partial
    ):
        raise _wrong("one mask for all sequences is needed; they differ")
    q_len, kv_len = (int(length) for length in block_mask.seq_lengths)
    device = block_mask.kv_num_blocks.device
    i, j = np.meshgrid(np.arange(shape[2]), np.arange(shape[3]), indexing="ij")
    above = j > i
    causal: bool | None = None
    if ((partial | full)[..., above]).any():
        causal = False
    elif (full[..., i == j] & (rows > 1)).any():
        # A diagonal block that is kept as a whole holds keys after its queries.
        causal = False
    for batch, head, row, column in np.argwhere(partial):
        q = torch.arange(row * rows, min((row + 1) * rows, q_len), device=device)[:, None]
        k = torch.arange(column * rows, min((column + 1) * rows, kv_len), device=device)[None]
        if not q.numel() or not k.numel():
            continue
        kept = block_mask.mask_mod(
            torch.tensor(int(batch), device=device), torch.tensor(int(head), device=device), q, k
        ).expand(q.shape[0], k.shape[1])
        if bool(kept.all()) and (column != row or min(q.shape[0], k.shape[1]) == 1):
            continue
        whole, order = bool(kept.all()), bool((kept == (k <= q)).all())
        fits = whole if causal is False else (order if causal else whole or order)
        if not fits:
            raise _wrong(
                f"block [{int(row)}, {int(column)}] of head {int(head)} is partly masked by "
                "something else than causal order"
            )
        if causal is None:
            causal = not whole
    if q_len != kv_len:
        warnings.warn(
            f"Blocks.from_block_mask: block_mask: its {q_len} queries begin at position 0 and end "
            f"before or after its {kv_len} keys: give tessera.attention q_first=[0] for each "
            "sequence, or the last query meets the last key",
            stacklevel=3,
        )
    return (partial | full)[0], int(rows), bool(causal if causal is not None else False)

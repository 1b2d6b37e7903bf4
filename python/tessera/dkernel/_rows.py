# SPDX-License-Identifier: Apache-2.0
"""From masks whose rows count the given queries to Tessera's, whose rows count positions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import tessera

# Bytes of a mask in finer blocks; beyond it the call is refused instead of filling the memory.
_MOST = 1 << 28


def from_first_query(
    mask: NDArray[np.bool_], block: int, q_len: int, kv_len: int
) -> tessera.Blocks:
    """The causal pattern of q_len queries that end with the last of kv_len keys, where row i of
    `mask` [heads, rows, columns] is for the queries i * block and on of those given.

    The first query is at position kv_len - q_len. Where that is no multiple of `block`, rows of the
    mask straddle blocks of positions, and finer blocks, which divide both, say the same.
    """
    past = kv_len - q_len
    fine = math.gcd(past, block)
    parts = block // fine
    query = np.arange(-(-kv_len // fine)) * fine - past  # that of a row of positions
    if mask.shape[0] * query.size * mask.shape[2] * parts > _MOST:
        raise tessera.Unsupported(
            f"sparse_pattern: its rows begin {past % block} tokens after a block's start, and the "
            f"same pattern in blocks of {fine} is too large; let the number of earlier keys be a "
            f"multiple of block_size ({block})"
        )
    row = query // block
    rows = mask[:, np.clip(row, 0, mask.shape[1] - 1)] & (row < mask.shape[1])[:, None]
    return tessera.Blocks(rows.repeat(parts, 2), block=fine, causal=True)

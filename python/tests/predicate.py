# SPDX-License-Identifier: Apache-2.0
"""The pairs that a pattern keeps, by the formulas of docs/patterns.md."""

from __future__ import annotations

from typing import Any

import tessera


def kept(pattern: Any, head: int, heads: int, kv_heads: int, p: int, t: int) -> bool:
    """Whether a head keeps a pair, written from the formulas and from nothing in the package."""
    if pattern.causal and t > p:
        return False
    if isinstance(pattern, tessera.Dense):
        return True
    if isinstance(pattern, tessera.Window):
        right = 0 if pattern.causal else pattern.right
        near = (pattern.left < 0 or t >= p - pattern.left) and (right < 0 or t <= p + right)
        return near or t < pattern.sinks
    i, j = p // pattern.block, t // pattern.block
    if isinstance(pattern, tessera.Blocks):
        rows = pattern.mask_array[head if len(pattern.mask_array) > 1 else 0]
        return 0 <= i < rows.shape[0] and 0 <= j < rows.shape[1] and bool(rows[i][j])
    total = pattern.heads_total or pattern.head_first + heads
    h = pattern.head_ids[head] if pattern.head_ids else pattern.head_first + head
    if h >= total - pattern.dense_heads:
        return True
    if not pattern.causal:
        a = max(0, i - j - pattern.local + 1)
        b = max(0, j - i - (pattern.local_right or pattern.local) + 1)
        return (a + b) % pattern.stride == 0
    step = 0 if pattern.homogeneous else max(1, pattern.stride // total)
    if pattern.per_kv_head:
        h //= total // (pattern.kv_heads_total or total * kv_heads // heads)
    return i - j < pattern.local or (j + h * step + pattern.offset) % pattern.stride == 0

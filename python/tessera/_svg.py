# SPDX-License-Identifier: Apache-2.0
"""Pictures of patterns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .patterns import Pattern

_CELL, _GAP, _TITLE = 4, 16, 14


def draw(pattern: Pattern, tokens: int, heads: int, kv_heads: int) -> str:
    """All heads side by side: a cell for each pair of blocks, dark where any pair is kept."""
    block = getattr(pattern, "block", 64)
    count = math.ceil(tokens / block)
    kept = pattern.mask(tokens, tokens, heads=heads, kv_heads=kv_heads)
    columns = min(heads, 4)
    side = count * _CELL
    width = columns * (side + _GAP) + _GAP
    height = math.ceil(heads / columns) * (side + _GAP + _TITLE) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for head in range(heads):
        x = _GAP + head % columns * (side + _GAP)
        y = _GAP + _TITLE + head // columns * (side + _GAP + _TITLE)
        parts.append(
            f'<text x="{x}" y="{y - 4}" font-family="sans-serif" font-size="10">head {head}</text>'
        )
        parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="#eee"/>')
        for i in range(count):
            rows = kept[head, i * block : (i + 1) * block]
            for j in range(count):
                if rows[:, j * block : (j + 1) * block].any():
                    parts.append(
                        f'<rect x="{x + j * _CELL}" y="{y + i * _CELL}" width="{_CELL}" '
                        f'height="{_CELL}" fill="#1f5fa8"/>'
                    )
    parts.append("</svg>\n")
    return "\n".join(parts)

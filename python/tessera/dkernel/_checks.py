# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that name the argument."""

from __future__ import annotations

from typing import Any

import tessera


def invalid(text: str) -> tessera.InvalidArgument:
    """The exception of an argument that cannot be right; `text` begins with its name."""
    return tessera.InvalidArgument(text)


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int; refuses anything but a whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise invalid(f"{name}: a whole number is needed, got {value!r}")
    number = int(value.__index__())
    if number < least:
        raise invalid(f"{name}: must be at least {least}, got {number}")
    return number


def local_pair(local_blocks: Any, causal: bool) -> tuple[int, int]:
    """The local blocks to the left and to the right, each with the query's own."""
    if isinstance(local_blocks, tuple):
        if causal or len(local_blocks) != 2:
            raise invalid(
                f"local_blocks: a number, or (left, right) with causal=False; got {local_blocks!r}"
            )
        return whole("local_blocks[0]", local_blocks[0], 1), whole(
            "local_blocks[1]", local_blocks[1], 1
        )
    number = whole("local_blocks", local_blocks, 1 if causal else 0)
    return number, 1 if causal else number

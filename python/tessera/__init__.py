# SPDX-License-Identifier: Apache-2.0
"""Tessera: attention in which every head reads its own shard of the context.

    import tessera

    o = tessera.attention(q, k, v, tessera.S2(block=64, local=8, stride=16))

`attention` and `merge` are PyTorch's, `tessera.numpy` serves NumPy and whatever speaks DLPack.
docs/python.md is the page about all of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._errors import (
    Busy,
    CorruptData,
    DeviceLost,
    Error,
    InvalidArgument,
    NativeError,
    OutOfMemory,
    TimedOut,
    Unavailable,
    Unsupported,
    VersionMismatch,
)
from ._native import load
from ._plans import CacheInfo, cache_clear, cache_info, cache_limits
from ._runtime import info
from .patterns import S2, Blocks, Dense, Info, Pattern, Window

if TYPE_CHECKING or "torch" in sys.modules:
    from ._attention import attention, merge

__version__ = "0.1.0"

__all__ = [
    "S2",
    "Blocks",
    "Busy",
    "CacheInfo",
    "CorruptData",
    "Dense",
    "DeviceLost",
    "Error",
    "Info",
    "InvalidArgument",
    "NativeError",
    "OutOfMemory",
    "Pattern",
    "TimedOut",
    "Unavailable",
    "Unsupported",
    "VersionMismatch",
    "Window",
    "attention",
    "cache_clear",
    "cache_info",
    "cache_limits",
    "info",
    "load",
    "merge",
]


def __getattr__(name: str) -> Any:
    # PyTorch is imported when it is first needed: who uses NumPy alone need not have it.
    if name in ("attention", "merge"):
        from . import _attention

        globals()["attention"], globals()["merge"] = _attention.attention, _attention.merge
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

# SPDX-License-Identifier: Apache-2.0
"""Tessera: attention in which every head reads its own shard of the context.

    import tessera

    o = tessera.attention(q, k, v, tessera.S2(block=64, local=8, stride=16))

`attention`, `merge` and `KVCache` are PyTorch's, `tessera.numpy` serves NumPy and whatever speaks
DLPack. docs/python.md is the page about all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from ._ranks import Assignment, assign_heads
from ._runtime import info
from .patterns import S2, Blocks, Dense, Info, Pattern, Window

if TYPE_CHECKING:
    from ._attention import attention, merge
    from ._cache import KVCache
else:
    # PyTorch's operators are registered here, so that saved programs find them. Without PyTorch
    # everything else works.
    try:
        import torch as _torch  # noqa: F401
    except ImportError as _error:
        _missing = str(_error)

        def attention(*_arguments, **_options):
            raise Unavailable(f"tessera.attention: PyTorch is needed: {_missing}")

        def merge(*_arguments, **_options):
            raise Unavailable(f"tessera.merge: PyTorch is needed: {_missing}")

        class KVCache:
            def __init__(self, *_arguments, **_options):
                raise Unavailable(f"tessera.KVCache: PyTorch is needed: {_missing}")

    else:
        from ._attention import attention, merge
        from ._cache import KVCache

__version__ = "0.1.0"

__all__ = [
    "S2",
    "Assignment",
    "Blocks",
    "Busy",
    "CacheInfo",
    "CorruptData",
    "Dense",
    "DeviceLost",
    "Error",
    "Info",
    "InvalidArgument",
    "KVCache",
    "NativeError",
    "OutOfMemory",
    "Pattern",
    "TimedOut",
    "Unavailable",
    "Unsupported",
    "VersionMismatch",
    "Window",
    "assign_heads",
    "attention",
    "cache_clear",
    "cache_info",
    "cache_limits",
    "info",
    "load",
    "merge",
]

# SPDX-License-Identifier: Apache-2.0
"""Layouts: a pattern bound to heads and a context size. They are small, and the last ones stay."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections import OrderedDict

from . import _native, _runtime, patterns

_KEPT = 64  # layouts; a mask of the user's is the only large one
_lock = threading.Lock()
_layouts: OrderedDict[tuple[str, int, int, int], Layout] = OrderedDict()


class Layout:
    """A tess_layout, released with this object."""

    def __init__(
        self,
        pattern: patterns.Pattern,
        heads: int,
        kv_heads: int,
        max_tokens: int,
        max_chunk: int = 0,
    ) -> None:
        self.handle = ctypes.c_void_p()
        self._release = _native.library().tess_layout_release  # modules are gone at exit
        c_pattern = _native.new(_native.Pattern)
        keep = pattern.fill(c_pattern)
        numbers = pattern.heads(heads, kv_heads)
        desc = _native.new(
            _native.LayoutDesc,
            pattern=ctypes.addressof(c_pattern),
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_first=numbers.first,
            heads_total=numbers.total,
            kv_heads_total=numbers.kv_total,
            max_tokens=max_tokens,
            max_chunk=max_chunk,
        )
        if numbers.ids is not None:
            ids = (ctypes.c_int32 * heads)(*numbers.ids)
            desc.head_ids = ctypes.addressof(ids)
        _native.call(
            "tess_layout_create",
            _runtime.runtime(),
            ctypes.byref(desc),
            ctypes.byref(self.handle),
        )
        del keep

    def __del__(self) -> None:
        if self.handle:
            self._release(self.handle)


def layout(spec: str, heads: int, kv_heads: int, tokens: int) -> Layout:
    """A layout for contexts of up to `tokens`, from the last ones or a new one."""
    # Powers of two, so that growing contexts share layouts: a layout holds formulas and no lists.
    max_tokens = max(1024, 1 << max(0, tokens - 1).bit_length())
    key = (spec, heads, kv_heads, min(max_tokens, max(tokens, 2**31 - 2**17)))
    with _lock:
        found = _layouts.get(key)
        if found is not None:
            _layouts.move_to_end(key)
            return found
    made = Layout(patterns.parse(spec), heads, kv_heads, key[3])
    with _lock:
        made = _layouts.setdefault(key, made)
        while len(_layouts) > _KEPT:
            _layouts.popitem(last=False)
    return made


def info(pattern: patterns.Pattern, heads: int, kv_heads: int, tokens: int) -> patterns.Info:
    """What Pattern.info tells."""
    made = Layout(pattern, heads, kv_heads, tokens)
    found = _native.new(_native.LayoutInfo)
    _native.call("tess_layout_query", made.handle, ctypes.byref(found))
    blocks = kept = 0
    for kv_head in range(kv_heads):
        kv = _native.new(_native.KvInfo)
        _native.call("tess_layout_kv", made.handle, kv_head, ctypes.byref(kv))
        blocks, kept = blocks + kv.blocks, kept + kv.blocks_kept
    if found.coverage < 1:
        warnings.warn(
            f"{pattern!r}: no head sees {1 - found.coverage:.1%} of the blocks of {tokens} tokens",
            stacklevel=3,
        )
    return patterns.Info(
        coverage=found.coverage,
        kept_share=found.kept_share,
        kv_efficient=bool(found.kv_efficient),
        classes=found.n_classes,
        kv_blocks=blocks,
        kv_blocks_kept=kept,
    )


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _layouts.clear()


_runtime.after_fork(_forget)

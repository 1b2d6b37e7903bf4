# SPDX-License-Identifier: Apache-2.0
"""New keys on their way from a cache's layer to the attention function.

A layer of S2Cache has no tensor of all keys to hand out. `update` hands out the new ones, marked
with the layer, and the attention function asks the layer. Whatever else is done with marked keys
would be wrong without a word, so it is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tessera

_ATTRIBUTES = ("shape", "dtype", "device", "requires_grad", "is_cuda", "ndim")
_READ = {getattr(Tensor, name).__get__ for name in _ATTRIBUTES} | {Tensor.size, Tensor.dim}


class Held(Tensor):
    """New keys of a layer. Only the attention function of tessera.hf can use them."""

    layer: Any

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _READ:
            raise tessera.Unsupported(
                "past_key_values: S2Cache serves attention of tessera.hf alone: give the model an "
                "attn_implementation that tessera.hf.register has made known "
                f"(something else called {getattr(func, '__name__', func)})"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def mark(keys: Tensor, layer: Any) -> Held:
    held = keys.as_subclass(Held)
    held.layer = layer
    return held


def plain(keys: Held) -> Tensor:
    """The new keys as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return keys.as_subclass(Tensor)

# SPDX-License-Identifier: Apache-2.0
"""The operators that PyTorch knows: tessera::forward and tessera::backward, and with a KV cache
tessera::cached and tessera::append.

They take the pattern as a string, so that what traces them sees a constant. Eager code on ordinary
tensors goes past them, to _runs.py: PyTorch's dispatcher costs more than everything else of a small
call. Whatever looks at operators (a tracer, a mode, a tensor subclass, the profiler) gets them.
"""

from __future__ import annotations

import secrets
import weakref
from typing import TYPE_CHECKING, Any

import torch

from . import _cache_steps, _errors, _runs

if TYPE_CHECKING:
    from ._cache import KVCache

Tensor = torch.Tensor
Scale = float | None
Given = Tensor | None

_library: Any = getattr(torch.library, "Library")("tessera", "DEF")  # untyped in PyTorch
_LENGTHS = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? q_lens=None, "
    "Tensor? kv_lens=None, Tensor? q_first=None, Tensor? kv_first=None"
)
_library.define(
    f"forward(Tensor q, Tensor k, Tensor v, str pattern, str layout, float? scale, int flags, "
    f"{_LENGTHS}) -> (Tensor, Tensor)"
)
_library.define(
    f"backward(Tensor? d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    f"bool d_q, bool d_k, bool d_v, str pattern, str layout, float? scale, int flags, "
    f"{_LENGTHS}) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "cached(Tensor q, Tensor k, Tensor v, Tensor(a!) token, str layout, float? scale, "
    "Tensor? q_lens, Tensor? cu_seqlens_q, bool return_lse, int layer) -> (Tensor, Tensor)"
)
_library.define(
    "append(Tensor k, Tensor v, Tensor(a!) token, str layout, Tensor? q_lens, "
    "Tensor? cu_seqlens_q, int layer) -> ()"
)
# A copy: what calls change is not among their arguments. The token keeps it between them.
_library.define("lengths(Tensor(a!) token, int sequences, Device device) -> Tensor")


def _forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: str, layout: str, scale: Scale, flags: int,
    *given: Given,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    o, lse = _runs.forward(q, k, v, (pattern, layout, scale, flags), _runs.lengths(q, given))
    return o, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: str, layout: str, scale: Scale, flags: int, *_: Any
) -> tuple[Tensor, Tensor]:
    sizes = _runs.check(q, k, v, layout)
    shape = _runs.lse_shape(sizes, layout) if flags & _runs.WANT_LSE else (0,)
    return _runs.result(q, layout), q.new_empty(shape, dtype=torch.float32)


def _backward(
    d_o: Given, d_lse: Given, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    d_q: bool, d_k: bool, d_v: bool, pattern: str, layout: str, scale: Scale, flags: int,
    *given: Given,
) -> tuple[Tensor, ...]:  # fmt: skip
    words, wanted = (pattern, layout, scale, flags), (d_q, d_k, d_v)
    lengths = _runs.lengths(q, given)
    made = _runs.backward(d_o, d_lse, (q, k, v, o, lse), wanted, words, lengths)
    return tuple(
        x.new_empty(0) if grad is None else grad for x, grad in zip((q, k, v), made, strict=True)
    )


def _fake_backward(
    d_o: Given, d_lse: Given, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    d_q: bool, d_k: bool, d_v: bool, pattern: str, layout: str, *_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    _runs.check(q, k, v, layout)
    return tuple(
        _runs.result(x, layout) if wanted else x.new_empty(0)
        for x, wanted in ((q, d_q), (k, d_k), (v, d_v))
    )


# A traced program holds a KV cache by its token, integers of the CPU: the number by which the cache
# is found here, and how many calls it has served. The operator changes the second one, so that
# calls of one cache stay in order, and none is left out.
_caches: weakref.WeakValueDictionary[int, KVCache] = weakref.WeakValueDictionary()


def token(cache: KVCache) -> Tensor:
    """A new token of a cache."""
    number = secrets.randbits(62)  # a token of another process finds no cache
    _caches[number] = cache
    return torch.tensor([number, 0], device="cpu")


def _of(token: Tensor) -> KVCache:
    if token.shape != (2,) or token.dtype != torch.int64:
        raise _errors.InvalidArgument(
            "attention: token: that of a cache is needed, torch.int64 [2], got "
            f"{token.dtype} {list(token.shape)}"
        )
    cache = _caches.get(int(token[0]))
    if cache is None:
        raise _errors.InvalidArgument("attention: cache: it is gone, or of another process")
    return cache


def _lengths(token: Tensor, sequences: int, device: torch.device) -> Tensor:
    found = _of(token).lengths.clone()
    token[1] += 1
    return found


def _fake_lengths(token: Tensor, sequences: int, device: torch.device) -> Tensor:
    return torch.empty(sequences, dtype=torch.int32, device=device)


def _append(
    k: Tensor, v: Tensor, token: Tensor, layout: str, q_lens: Given, cu_seqlens_q: Given, layer: int
) -> None:
    _cache_steps.append(_of(token), k, v, layout, q_lens, cu_seqlens_q, layer)
    token[1] += 1


def _cached(
    q: Tensor, k: Tensor, v: Tensor, token: Tensor, layout: str, scale: Scale, q_lens: Given,
    cu_seqlens_q: Given, return_lse: bool, layer: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    o, lse = _cache_steps.attention(
        _of(token), q, k, v, layout, scale, q_lens, cu_seqlens_q, return_lse, layer
    )
    token[1] += 1
    return o, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake_cached(
    q: Tensor, k: Tensor, v: Tensor, token: Tensor, layout: str, scale: Scale, q_lens: Given,
    cu_seqlens_q: Given, return_lse: bool, layer: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _runs.check(q, k, v, layout)
    rows = q.transpose(0, 1) if layout == "thd" else q if layout == "bhsd" else q.transpose(1, 2)
    shape = rows.shape[:-1] if return_lse else (0,)
    return _runs.result(q, layout), q.new_empty(shape, dtype=torch.float32)


torch.library.register_fake("tessera::cached", _fake_cached, lib=_library)
torch.library.register_fake("tessera::lengths", _fake_lengths, lib=_library)
torch.library.register_fake("tessera::append", lambda *_: None, lib=_library)
torch.library.register_fake("tessera::forward", _fake_forward, lib=_library)
torch.library.register_fake("tessera::backward", _fake_backward, lib=_library)
for _backend in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _backend)
    _library.impl("backward", _backward, _backend)
    _library.impl("cached", _cached, _backend)
    _library.impl("append", _append, _backend)
_library.impl("lengths", _lengths, "CPU")  # the token's, whatever the device of the lengths is

forward = torch.ops.tessera.forward.default
backward = torch.ops.tessera.backward.default
cached = torch.ops.tessera.cached.default
append = torch.ops.tessera.append.default
lengths = torch.ops.tessera.lengths.default

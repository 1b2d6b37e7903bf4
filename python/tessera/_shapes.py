# SPDX-License-Identifier: Apache-2.0
"""What the shapes and lengths of a call mean, and whether they fit. Errors name the argument.

Shapes may be those of fake tensors: nothing here asks for more than comparisons. Lengths are the
bytes of int64 arrays, since that is what keys of a cache are made of and what C takes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _errors

LAYOUTS = ("bshd", "bhsd", "thd")
Array = npt.NDArray[np.int64]


class Shape(NamedTuple):
    """Sizes of a call. In packed ones `batch` is 1 and lengths are tokens of all sequences."""

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int


def wrong(argument: str, needed: str, got: object) -> _errors.InvalidArgument:
    """The error of an argument that does not fit."""
    return _errors.InvalidArgument(f"attention: {argument}: {needed}, got {got}")


def integer(what: str, value: object) -> int:
    """`value` as an int; `what` names the function and the argument."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # what tensors raise
        raise TypeError(f"{what}: an integer is needed, got {value!r}") from None


def flag(what: str, value: object) -> bool:
    """`value` as a bool; `what` names the function and the argument."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{what}: True or False is needed, got {value!r}")


def number(what: str, value: Any) -> float:
    """`value` as a float; `what` names the function and the argument."""
    try:
        if not hasattr(value, "__float__") or getattr(value, "requires_grad", False):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{what}: a number is needed, got {str(value)[:80]}") from None


def wrong_layout(layout: object) -> _errors.InvalidArgument:
    return wrong("layout", f"one of {', '.join(map(repr, LAYOUTS))} is needed", repr(layout))


def shape(layout: str, q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Shape:
    """Sizes of a call from the shapes of its tensors."""
    if layout not in LAYOUTS:
        raise wrong_layout(layout)
    dims = "[tokens, heads, head_dim]" if layout == "thd" else {
        "bshd": "[batch, tokens, heads, head_dim]",
        "bhsd": "[batch, heads, tokens, head_dim]",
    }[layout]
    for name, given in (("q", q), ("k", k), ("v", v)):
        if len(given) != (3 if layout == "thd" else 4):
            raise wrong(name, f"{dims} is needed for layout={layout!r}", f"the shape {list(given)}")
    if layout == "thd":
        found = Shape(1, q[0], k[0], q[1], k[1], q[2])
    elif layout == "bshd":
        found = Shape(q[0], q[1], k[1], q[2], k[2], q[3])
    else:
        found = Shape(q[0], q[2], k[2], q[1], k[1], q[3])
    if layout != "thd" and k[0] != q[0]:
        raise wrong("k", f"the batch of q, {q[0]}, is needed", f"the shape {list(k)}")
    if k[-1] != q[-1]:
        raise wrong("k", f"the head_dim of q, {q[-1]}, is needed", f"the shape {list(k)}")
    if list(v) != list(k):
        raise wrong("v", f"the shape of k, {list(k)}, is needed", f"the shape {list(v)}")
    if found.head_dim < 8 or found.head_dim > 256 or found.head_dim % 8 != 0:
        raise _errors.Unsupported(
            f"attention: q: head_dim is a multiple of 8 from 8 to 256, got {found.head_dim}"
        )
    if found.kv_heads < 1 or found.heads < 1 or found.heads % found.kv_heads != 0:
        raise wrong(
            "k", f"a number of heads that divides the {found.heads} of q is needed", found.kv_heads
        )
    return found


def array(values: bytes) -> Array:
    """The numbers of lengths."""
    return np.frombuffer(values, dtype=np.int64)


class Lengths(NamedTuple):
    """The lengths of a call, each None or the bytes of int64 values."""

    cu_q: bytes | None = None
    cu_k: bytes | None = None
    q_lens: bytes | None = None
    kv_lens: bytes | None = None
    q_first: bytes | None = None
    kv_first: bytes | None = None


# Their names as arguments, in the same order.
NAMES = ("cu_seqlens_q", "cu_seqlens_k", "q_lens", "kv_lens", "q_first", "kv_first")
NO_LENGTHS = Lengths()


class Batch(NamedTuple):
    """What the lengths of a call come to."""

    batch: int
    max_tokens: int  # one past the largest position of a key
    q_whole: bool  # whether every row belongs to a sequence
    kv_whole: bool  # whether every key does
    lengths: Lengths  # with cu_k filled in


_LAST = 2**31 - 65537  # the last position that C takes


def _each(name: str, values: bytes | None, batch: int, most: int) -> Array | None:
    if values is None:
        return None
    found = array(values)
    if found.size != batch:
        raise wrong(name, f"a value for each of {batch} sequences is needed", f"{found.size}")
    if batch and (found.min() < 0 or found.max() > most):
        n = int(np.argmax((found < 0) | (found > most)))
        raise wrong(f"{name}[{n}]", f"0 to {most} is needed", int(found[n]))
    return found


def _cumulative(name: str, values: bytes, tokens: int) -> Array:
    found = array(values)
    if found.size < 1 or found[0] != 0:
        raise wrong(name, "cumulative lengths that begin with 0 are needed", found[:4].tolist())
    falls = np.flatnonzero(found[1:] < found[:-1])
    if falls.size:
        n = int(falls[0]) + 1
        raise wrong(f"{name}[{n}]", f"at least {int(found[n - 1])} is needed", int(found[n]))
    if found[-1] > tokens:
        raise wrong(f"{name}[-1]", f"at most the {tokens} tokens there are", int(found[-1]))
    return found


def batch(layout: str, sizes: Shape, lengths: Lengths) -> Batch:
    """Checks the lengths of a call against its shape."""
    packed = layout == "thd"
    for name, values in zip(NAMES, lengths, strict=True):
        if values is None:
            continue
        if packed and name in ("q_lens", "kv_lens"):
            raise wrong(name, "layout='thd' takes cu_seqlens_q and cu_seqlens_k", "lengths")
        if not packed and name in ("cu_seqlens_q", "cu_seqlens_k"):
            raise wrong(name, "cumulative lengths need layout='thd'", f"layout={layout!r}")
    if packed:
        if lengths.cu_q is None:
            raise wrong("cu_seqlens_q", "cumulative lengths are needed for layout='thd'", None)
        keys_too = lengths.cu_q if lengths.cu_k is None else lengths.cu_k
        cu_q = _cumulative("cu_seqlens_q", lengths.cu_q, sizes.q_len)
        cu_k = _cumulative("cu_seqlens_k", keys_too, sizes.kv_len)
        lengths = lengths._replace(cu_k=keys_too)
        if cu_q.size != cu_k.size:
            raise wrong("cu_seqlens_k", f"as many values as cu_seqlens_q, {cu_q.size}", cu_k.size)
        count, keys = cu_q.size - 1, cu_k[1:] - cu_k[:-1]
        q_whole, kv_whole = bool(cu_q[-1] == sizes.q_len), bool(cu_k[-1] == sizes.kv_len)
    else:
        count = sizes.batch
        rows = _each("q_lens", lengths.q_lens, count, sizes.q_len)
        some = _each("kv_lens", lengths.kv_lens, count, sizes.kv_len)
        keys = np.full(count, sizes.kv_len, dtype=np.int64) if some is None else some
        q_whole = rows is None or bool((rows == sizes.q_len).all())
        kv_whole = some is None or bool((some == sizes.kv_len).all())
    _each("q_first", lengths.q_first, count, _LAST)
    first = _each("kv_first", lengths.kv_first, count, _LAST)
    ends = keys if first is None else keys + first
    most = int(ends.max()) if count else 0
    return Batch(count, most, q_whole, kv_whole, lengths)

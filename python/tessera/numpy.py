# SPDX-License-Identifier: Apache-2.0
"""Attention and its gradients on NumPy arrays, and on CPU arrays of whatever speaks DLPack.

Needs no PyTorch. bfloat16 arrays are those of ml_dtypes (JAX), or uint16 that hold the bits, as
the `tessera` command takes them; results have the type of q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _calls, _native, _plans, _shapes, patterns

Array = npt.NDArray[Any]
Lengths = Sequence[int] | npt.NDArray[np.integer[Any]] | None

_DENSE = patterns.Dense()


_HOST = 1  # of DLPack's devices


def _on_host(given: Any) -> bool:
    """Whether an array lies in this host's memory; some have a device that DLPack does not know."""
    try:
        return bool(given.__dlpack_device__()[0] == _HOST)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False


def _shared(given: Any) -> Array:
    """Another library's array as one of NumPy, without a copy."""
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError):
        # NumPy reads no bfloat16 from DLPack, but such arrays of JAX say what they are to it.
        if hasattr(given, "__array__") and _on_host(given):
            return np.asarray(given)
        raise


def _array(name: str, given: Any) -> Array:
    if not isinstance(given, np.ndarray):
        if not hasattr(given, "__dlpack__"):
            raise TypeError(f"attention: {name}: an array is needed, got {type(given).__name__}")
        try:
            given = _shared(given)
        except (BufferError, RuntimeError, TypeError) as error:
            raise _shapes.wrong(name, "an array on the CPU is needed", str(error)) from None
    array: Array = given
    element = array.itemsize
    unit = array.ndim == 0 or array.shape[-1] == 1 or array.strides[-1] == element
    if not unit or any(step < 0 or step % element for step in array.strides):
        array = np.ascontiguousarray(array)
    if not array.dtype.isnative or not array.flags.aligned:
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    return array


def _dtype(q: Array) -> int:
    if q.dtype == np.float32:
        return _native.F32
    if q.dtype == np.float16:
        return _native.F16
    if q.dtype == np.uint16 or q.dtype.name == "bfloat16":
        return _native.BF16
    raise _shapes.wrong(
        "q", "float32, float16, bfloat16, or uint16 with its bits is needed", q.dtype
    )


def _same(q: Array, **others: Array) -> None:
    for name, given in others.items():
        if given.dtype != q.dtype:
            raise _shapes.wrong(name, f"the dtype of q, {q.dtype}, is needed", given.dtype)


def _lengths(*given: Lengths) -> _shapes.Lengths:
    found: list[bytes | None] = []
    for name, values in zip(_shapes.NAMES, given, strict=True):
        if values is None:
            found.append(None)
            continue
        try:
            array = np.asarray(values)
        except (TypeError, ValueError, OverflowError):
            array = np.asarray(None)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise _shapes.wrong(
                name, "integers [sequences] are needed", f"{array.dtype} {list(array.shape)}"
            )
        found.append(array.astype(np.int64).tobytes())
    return _shapes.Lengths(*found)


def _strides(layout: str, x: Array, rows: bool = False) -> _calls.Strides:
    steps = tuple(step // x.itemsize for step in x.strides)
    return _calls.strides(layout, x.shape, steps, x.itemsize, rows)


def _like(x: Array, layout: str, whole: bool) -> Array:
    """A result of the shape and type of x, that lies by token."""
    make = np.empty if whole else np.zeros
    if layout != "bhsd":
        plain: Array = make(x.shape, dtype=x.dtype)
        return plain
    shape = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
    turned: Array = make(shape, dtype=x.dtype).transpose(0, 2, 1, 3)
    return turned


def _prepare(
    op: int,
    q: Array,
    pattern: patterns.Pattern,
    layout: str,
    scale: float | None,
    sizes: _shapes.Shape,
    lengths: _shapes.Lengths,
    tensors: dict[str, _calls.Strides],
    determinism: int = 0,
) -> _calls.Call:
    if not isinstance(pattern, patterns.Pattern) or not hasattr(pattern, "_spec"):
        raise TypeError(
            "attention: pattern: tessera.S2, Dense, Window or Blocks is needed, got "
            f"{type(pattern).__name__}"
        )
    if scale is not None:
        scale = _shapes.number("attention: scale", scale)
    key: tuple[Any, ...] = (
        "numpy", op, pattern.spec, layout, scale, str(q.dtype), sizes, lengths, determinism,
        *tensors.items(),
    )  # fmt: skip
    found = _calls.find(key)
    if found is not None:
        return found
    setting = _calls.Setting(pattern.spec, layout, scale, "cpu", _dtype(q), determinism)
    call = _calls.prepare(setting, sizes, lengths, op, tensors)
    _plans.remember(call.plan, key, call)
    return call


def attention(
    q: Any, k: Any, v: Any, pattern: patterns.Pattern = _DENSE, *,
    layout: str = "bshd", scale: float | None = None,
    cu_seqlens_q: Lengths = None, cu_seqlens_k: Lengths = None,
    q_lens: Lengths = None, kv_lens: Lengths = None,
    q_first: Lengths = None, kv_first: Lengths = None,
) -> tuple[Array, Array]:  # fmt: skip
    """(O, LSE) of attention. Arguments, shapes and errors are those of tessera.attention; LSE is
    always computed, since gradients need it."""
    q, k, v = _array("q", q), _array("k", k), _array("v", v)
    sizes = _shapes.shape(layout, q.shape, k.shape, v.shape)
    _dtype(q)
    _same(q, k=k, v=v)
    lengths = _lengths(cu_seqlens_q, cu_seqlens_k, q_lens, kv_lens, q_first, kv_first)
    whole = _shapes.batch(layout, sizes, lengths).q_whole
    o = _like(q, layout, whole)
    rows = (sizes.heads, sizes.q_len)
    lse = np.full(rows if layout == "thd" else (sizes.batch, *rows), -np.inf, dtype=np.float32)
    tensors = {
        name: _strides(layout, x) for name, x in (("q", q), ("k", k), ("v", v), ("o", o))
    }
    tensors["lse"] = _strides(layout, lse, rows=True)
    call = _prepare(
        _native.FORWARD, q, pattern, layout, scale, sizes, lengths, tensors
    )
    if o.size:
        _calls.run_on_host(call, call.fill(x.ctypes.data for x in (q, k, v, o, lse)))
    return o, lse


def gradients(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    pattern: patterns.Pattern = _DENSE,
    *,
    d_lse: Any = None,
    layout: str = "bshd", scale: float | None = None,
    cu_seqlens_q: Lengths = None, cu_seqlens_k: Lengths = None,
    q_lens: Lengths = None, kv_lens: Lengths = None,
    q_first: Lengths = None, kv_first: Lengths = None,
    deterministic: bool = True,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(dQ, dK, dV), of the shapes and types of q, k and v.

    o, lse: what `attention` returned for the same arguments.
    d_o: the gradient of O, of its shape and type; d_lse: that of LSE, or None for 0.
    """
    free = not _shapes.flag("attention: deterministic", deterministic)
    q, k, v, o = _array("q", q), _array("k", k), _array("v", v), _array("o", o)
    d_o = _array("d_o", d_o)
    sizes = _shapes.shape(layout, q.shape, k.shape, v.shape)
    _same(q, k=k, v=v, o=o, d_o=d_o)
    lengths = _lengths(cu_seqlens_q, cu_seqlens_k, q_lens, kv_lens, q_first, kv_first)
    batch = _shapes.batch(layout, sizes, lengths)
    rows = (sizes.heads, sizes.q_len)
    shape = rows if layout == "thd" else (sizes.batch, *rows)
    tensors = {name: _strides(layout, x) for name, x in (("q", q), ("k", k), ("v", v), ("o", o))}
    arrays: list[Array] = [q, k, v, o]
    for name, given, expected in (("lse", lse, shape), ("d_lse", d_lse, shape)):
        if given is None and name == "d_lse":
            continue
        array = _array(name, given)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise _shapes.wrong(name, "an array of floats is needed", array.dtype)
        array = array.astype(np.float32, copy=False)
        if array.shape != expected:
            raise _shapes.wrong(name, f"the shape {list(expected)} is needed", list(array.shape))
        tensors[name] = _strides(layout, array, rows=True)
        arrays.append(array)
    for name, array in (("o", o), ("d_o", d_o)):
        if array.shape != q.shape:
            raise _shapes.wrong(name, f"the shape {list(q.shape)} is needed", list(array.shape))
    tensors["d_o"] = _strides(layout, d_o)
    made = (
        _like(q, layout, batch.q_whole),
        _like(k, layout, batch.kv_whole),
        _like(v, layout, batch.kv_whole),
    )
    for name, array in zip(("d_q", "d_k", "d_v"), made, strict=True):
        tensors[name] = _strides(layout, array)
    call = _prepare(
        _native.BACKWARD, q, pattern, layout, scale, sizes, lengths, tensors, int(free)
    )
    if q.size or k.size:
        _calls.run_on_host(call, call.fill(x.ctypes.data for x in (*arrays, d_o, *made)))
    return made


__all__ = ["attention", "gradients"]


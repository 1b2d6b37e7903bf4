# SPDX-License-Identifier: Apache-2.0
"""Forward and backward on real tensors: the signature of a call, its results, and its run.

Everything that shapes, strides and types decide is decided once a signature and kept with its
prepared call; see _calls.py. Results are new and lie by token in memory, [batch, tokens, heads,
head_dim], whatever the layout is and however the inputs lie.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import _calls, _cuda, _errors, _native, _plans, _runtime, _shapes

Tensor = torch.Tensor
Given = Tensor | Sequence[int] | None
# Pattern, layout, scale and flags of a call.
Words = tuple[str, str, float | None, int]

WANT_LSE, ANY_ORDER = 1, 2  # flags of forward and of backward
DTYPES = {torch.float32: _native.F32, torch.float16: _native.F16, torch.bfloat16: _native.BF16}

_find = _plans.calls.get
_next_tick = _plans.ticks.__next__
# Looked up once: a module's attribute costs as much as a small call of C.
_Q, _K, _V, _O, _LSE = _calls.Q, _calls.K, _calls.V, _calls.O, _calls.LSE
_D_O, _D_LSE, _D_Q, _D_K, _D_V = _calls.D_O, _calls.D_LSE, _calls.D_Q, _calls.D_K, _calls.D_V
_empty_like = torch.empty_like


# ------------------------------------------------------------------------------------- shapes


def ordinary(names: Sequence[str], *tensors: Tensor) -> None:
    """Raises for tensors that have no strides: sparse, nested, of another library."""
    for name, x in zip(names, tensors, strict=True):
        if x.layout is not torch.strided or x.is_nested:
            kind = "a nested one" if x.layout is torch.strided else x.layout
            raise _errors.InvalidArgument(
                f"{name}: an ordinary (strided) tensor is needed, got {kind}"
            )


def check(q: Tensor, k: Tensor, v: Tensor, layout: str) -> _shapes.Shape:
    """Sizes of a call. Everything that needs no lengths is checked here, also for fake tensors."""
    sizes = _shapes.shape(layout, q.shape, k.shape, v.shape)
    if q.dtype not in DTYPES:
        raise _shapes.wrong("q", "float32, float16 or bfloat16 is needed", q.dtype)
    for name, given in (("k", k), ("v", v)):
        if given.dtype != q.dtype:
            raise _shapes.wrong(name, f"the dtype of q, {q.dtype}, is needed", given.dtype)
        if given.device != q.device:
            raise _shapes.wrong(name, f"the device of q, {q.device}, is needed", given.device)
    return sizes


def result_strides(layout: str, shape: Any) -> tuple[Any, ...]:
    """Strides of a result, which lies by token."""
    if layout == "thd":
        return (shape[1] * shape[2], shape[2], 1)
    if layout == "bshd":
        row = shape[2] * shape[3]
        return (shape[1] * row, row, shape[3], 1)
    row = shape[1] * shape[3]
    return (shape[2] * row, shape[3], row, 1)


def result(x: Tensor, layout: str) -> Tensor:
    """A new tensor of the shape and type of x."""
    if layout == "bhsd":
        return x.new_empty_strided(x.shape, result_strides(layout, x.shape))
    return x.new_empty(x.shape)


def lse_shape(sizes: _shapes.Shape, layout: str) -> tuple[int, ...]:
    rows = (sizes.heads, sizes.q_len)
    return rows if layout == "thd" else (sizes.batch, *rows)


def _contiguous(shape: Any) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


def _mould(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A float32 tensor without memory, of which empty_like makes others: faster than by a shape."""
    with torch.inference_mode(False):
        made = torch.empty(shape, dtype=torch.float32, device=device)
        made.untyped_storage().resize_(0)
    return made


def _is_like(x: Tensor, layout: str) -> bool:
    """Whether empty_like makes a result of x, which is the fastest way to make one."""
    strides = result_strides(layout, x.shape)
    return strides == x.stride() == torch.empty_like(x, device="meta").stride()


# ------------------------------------------------------------------------------------ lengths

# Lengths that were copied from a device: by the tensor's id, which a weak reference guards.
_copied: dict[int, tuple[Any, int, bytes]] = {}
_runtime.after_fork(_copied.clear)


def tells_changes(given: Tensor) -> bool:
    """Whether the version of a tensor tells that its values have changed, so that a copy of them
    can be kept. Memory of the host may be NumPy's or another process's, which write to it without a
    new version, and tensors of inference mode have none."""
    return not (given.is_cpu or given.is_inference())


def as_tensor(name: str, given: Given) -> Tensor | None:
    """Lengths as a tensor."""
    if given is None or isinstance(given, torch.Tensor):
        return given
    try:
        made = torch.tensor(given, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        made = None
    if made is None or made.dim() != 1 or (made.dtype != torch.int64 and made.numel()):
        raise TypeError(
            f"attention: {name}: a list of integers or a tensor is needed, got {given!r}"
        )
    return made.to(torch.int64)


def _values(name: str, given: Tensor, q: Tensor) -> bytes:
    """The bytes of lengths as int64. Those of another device than the CPU's are copied once for
    each version of the tensor."""
    ordinary([f"attention: {name}"], given)
    if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
        got = f"{given.dtype} {list(given.shape)}"
        raise _shapes.wrong(name, "integers [sequences] are needed", got)
    if given.device.type == "cpu":
        return bytes(given.detach().to(torch.int64).contiguous().numpy().data)
    if given.device != q.device:
        raise _shapes.wrong(
            name, f"the CPU or the device of q, {q.device}, is needed", given.device
        )
    if not tells_changes(given):
        return bytes(given.cpu().to(torch.int64).numpy().data)
    ident, version = id(given), given._version
    found = _copied.get(ident)
    if found is not None and found[0]() is given and found[1] == version:
        return found[2]
    if _capturing(q):
        raise _errors.InvalidArgument(
            f"attention: {name}: lengths on the device are copied to the host, which a capture "
            "does not allow: run once with this tensor before, or give the lengths on the CPU"
        )
    copied = bytes(given.cpu().to(torch.int64).numpy().data)
    guard = weakref.ref(given, lambda _: _copied.pop(ident, None))
    _copied[ident] = (guard, version, copied)
    return copied


def lengths(q: Tensor, given: Sequence[Given]) -> _shapes.Lengths | None:
    """The lengths of a call; None without any."""
    found = []
    for name, one in zip(_shapes.NAMES, given, strict=False):  # defaults may be left out
        tensor = as_tensor(name, one)
        found.append(None if tensor is None else _values(name, tensor, q))
    return None if found.count(None) == len(found) else _shapes.Lengths(*found)


def as_tensors(values: _shapes.Lengths | None) -> tuple[Tensor | None, ...]:
    """What `lengths` found, as tensors again."""
    return tuple(
        None if one is None else torch.tensor(_shapes.array(one), device="cpu")
        for one in values or ()
    )


# --------------------------------------------------------------------------------------- runs


def _capturing(q: Tensor) -> bool:
    """Whether the current stream of q's device is being captured into a graph."""
    return q.is_cuda and _cuda.captured(q.get_device())


def _device(q: Tensor) -> str:
    return f"cuda:{q.device.index}" if q.is_cuda else q.device.type


def _runner(q: Tensor) -> Any:
    """What runs a call on q's device."""
    return _cuda.launch if q.is_cuda else _calls.run_on_host


def _rows(x: Tensor) -> Tensor:
    """The tensor with unit stride over its elements, which the library asks for."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    words: Words,
    given: _shapes.Lengths | None,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """O, and LSE where the flags ask for it. `keep`: the workspace may be kept for later calls."""
    return run_forward(find_forward(q, k, v, words, given), q, k, v, keep)


def find_forward(
    q: Tensor, k: Tensor, v: Tensor, words: Words, given: _shapes.Lengths | None
) -> _calls.Call:
    """The prepared call of these tensors and words."""
    key = (
        words, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype,
        v.dtype, q.device, k.device, v.device, given,
    )  # fmt: skip
    call: _calls.Call | None = _find(key)
    return _prepare_forward(key, q, k, v, words, given) if call is None else call


def run_forward(
    call: _calls.Call, q: Tensor, k: Tensor, v: Tensor, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """What a prepared call makes of tensors of its signature."""
    call.plan.used = _next_tick()
    plain, like, shape, strides, lse_like, fill, run = call.notes
    if not plain:
        q, k, v = _rows(q), _rows(k), _rows(v)
    o = _empty_like(q) if like else q.new_empty_strided(shape, strides)
    lse = None
    if lse_like is not None:
        lse = _empty_like(lse_like)
    if fill:
        o.zero_()
        if lse is not None:
            lse.fill_(-torch.inf)
    if run is not None:
        slot = call.take()
        at = slot[0]
        at[_Q], at[_K], at[_V], at[_O] = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        if lse is not None:
            at[_LSE] = lse.data_ptr()
        run(call, slot, q, keep)
    return o, lse


def _prepare_forward(
    key: Any, q: Tensor, k: Tensor, v: Tensor, words: Words, given: _shapes.Lengths | None
) -> _calls.Call:
    pattern, layout, scale, flags = words
    sizes = check(q, k, v, layout)
    item = q.element_size()
    plain = all(x.stride(-1) == 1 for x in (q, k, v))
    q, k, v = _rows(q), _rows(k), _rows(v)
    tensors = {
        name: _calls.strides(layout, x.shape, x.stride(), item)
        for name, x in (("q", q), ("k", k), ("v", v))
    }
    strides = result_strides(layout, q.shape)
    tensors["o"] = _calls.strides(layout, q.shape, strides, item)
    lse = lse_shape(sizes, layout) if flags & WANT_LSE else None
    if lse is not None:
        tensors["lse"] = _calls.strides(layout, lse, _contiguous(lse), 4, rows=True)
    setting = _calls.Setting(pattern, layout, scale, _device(q), DTYPES[q.dtype])
    call = _calls.prepare(setting, sizes, given, _native.FORWARD, tensors, not _capturing(q))
    call.notes = (
        plain,  # every input has unit stride over its elements
        _is_like(q, layout),
        q.shape,
        strides,
        None if lse is None else _mould(lse, q.device),
        not call.batch.q_whole,  # some rows are in no sequence
        _runner(q) if q.numel() else None,
    )
    _plans.remember(call.plan, key, call)
    return call


# What forward took and made, as backward needs it: q, k, v, O and LSE.
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Wanted = tuple[bool, bool, bool]  # which of q, k and v need a gradient
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def backward(
    d_o: Tensor | None,
    d_lse: Tensor | None,
    saved: Saved,
    wanted: Wanted,
    words: Words,
    given: _shapes.Lengths | None,
    keep: bool = False,
) -> Gradients:
    """Gradients of q, k and v; None where none is wanted. `keep` as in forward."""
    d_o, d_lse = real_gradients(d_o, d_lse, saved[0])
    call = find_backward(d_o, d_lse, saved, wanted, words, given)
    return run_backward(call, d_o, d_lse, saved, wanted, words[1], keep)


def real_gradients(
    d_o: Tensor | None, d_lse: Tensor | None, q: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of O and LSE whose memory holds their values."""
    if d_o is None:  # only LSE was used
        d_o = q.new_zeros(q.shape[-1:]).expand(q.shape)
    if d_o.is_neg():  # a view that PyTorch negates when it is read
        d_o = d_o.resolve_neg()
    if d_lse is not None and d_lse.is_neg():
        d_lse = d_lse.resolve_neg()
    return d_o, d_lse


def find_backward(
    d_o: Tensor,
    d_lse: Tensor | None,
    saved: Saved,
    wanted: Wanted,
    words: Words,
    given: _shapes.Lengths | None,
) -> _calls.Call:
    """The prepared call of these tensors and words."""
    q, k, v, o, lse = saved
    key = (
        words, wanted, q.shape, k.shape, v.shape, o.shape, lse.shape, d_o.shape, q.stride(),
        k.stride(), v.stride(), o.stride(), lse.stride(), d_o.stride(), q.dtype, k.dtype, v.dtype,
        o.dtype, d_o.dtype, lse.dtype, q.device, k.device, v.device, o.device, d_o.device,
        lse.device, None if d_lse is None else
        (d_lse.shape, d_lse.stride(), d_lse.dtype, d_lse.device), given,
    )  # fmt: skip
    call: _calls.Call | None = _find(key)
    if call is None:
        return _prepare_backward(key, d_o, d_lse, saved, wanted, words, given)
    return call


def run_backward(
    call: _calls.Call,
    d_o: Tensor,
    d_lse: Tensor | None,
    saved: Saved,
    wanted: Wanted,
    layout: str,
    keep: bool,
) -> Gradients:
    """What a prepared call makes of tensors of its signature."""
    call.plan.used = _next_tick()
    q, k, v, o, lse = saved
    plain, simple, like_q, like_k, run = call.notes
    if not plain:
        q, k, v, o, d_o = _rows(q), _rows(k), _rows(v), _rows(o), _rows(d_o)
    made_q: Tensor | None
    made_k: Tensor | None
    made_v: Tensor | None
    if simple:
        made_q, made_k, made_v = _empty_like(q), _empty_like(k), _empty_like(v)
    else:
        batch = call.batch
        made_q = _gradient(q, layout, like_q, batch.q_whole) if wanted[0] else None
        made_k = _gradient(k, layout, like_k, batch.kv_whole) if wanted[1] else None
        made_v = _gradient(v, layout, like_k, batch.kv_whole) if wanted[2] else None
    if run is None:
        return made_q, made_k, made_v
    slot = call.take()
    at = slot[0]
    at[_Q], at[_K], at[_V], at[_O] = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
    at[_LSE], at[_D_O] = lse.data_ptr(), d_o.data_ptr()
    if d_lse is not None:
        at[_D_LSE] = d_lse.data_ptr()
    if made_q is not None:
        at[_D_Q] = made_q.data_ptr()
    if made_k is not None:
        at[_D_K] = made_k.data_ptr()
    if made_v is not None:
        at[_D_V] = made_v.data_ptr()
    run(call, slot, q, keep)
    return made_q, made_k, made_v


def _gradient(x: Tensor, layout: str, like: bool, whole: bool) -> Tensor:
    """A new gradient of x."""
    made = torch.empty_like(x) if like else result(x, layout)
    if not whole:
        made.zero_()
    return made


def _prepare_backward(
    key: Any,
    d_o: Tensor,
    d_lse: Tensor | None,
    saved: Saved,
    wanted: Wanted,
    words: Words,
    given: _shapes.Lengths | None,
) -> _calls.Call:
    q, k, v, o, lse = saved
    pattern, layout, scale, flags = words
    sizes = check(q, k, v, layout)
    for name, x in (("o", o), ("d_o", d_o)):
        if x.shape != q.shape or x.dtype != q.dtype or x.device != q.device:
            raise _shapes.wrong(
                name,
                f"{q.dtype} {list(q.shape)} on {q.device} is needed",
                f"{x.dtype} {list(x.shape)} on {x.device}",
            )
    expected = lse_shape(sizes, layout)
    for name, rows in (("lse", lse), ("d_lse", d_lse)):
        if rows is None:
            continue
        fits = rows.shape == expected and rows.device == q.device
        if not fits or rows.dtype != torch.float32:
            raise _shapes.wrong(
                name,
                f"float32 {list(expected)} on {q.device} is needed",
                f"{rows.dtype} {list(rows.shape)} on {rows.device}",
            )
    item = q.element_size()
    plain = all(x.stride(-1) == 1 for x in (q, k, v, o, d_o))
    q, k, v, o, d_o = _rows(q), _rows(k), _rows(v), _rows(o), _rows(d_o)
    tensors = {
        name: _calls.strides(layout, x.shape, x.stride(), item)
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o))
    }
    tensors["lse"] = _calls.strides(layout, lse.shape, lse.stride(), 4, rows=True)
    tensors["d_o"] = _calls.strides(layout, d_o.shape, d_o.stride(), item)
    if d_lse is not None:
        tensors["d_lse"] = _calls.strides(layout, d_lse.shape, d_lse.stride(), 4, rows=True)
    for name, x, want in zip(("d_q", "d_k", "d_v"), (q, k, v), wanted, strict=True):
        if want:
            tensors[name] = _calls.strides(layout, x.shape, result_strides(layout, x.shape), item)
    setting = _calls.Setting(
        pattern, layout, scale, _device(q), DTYPES[q.dtype], int(bool(flags & ANY_ORDER))
    )
    call = _calls.prepare(setting, sizes, given, _native.BACKWARD, tensors, not _capturing(q))
    like_q, like_k = _is_like(q, layout), _is_like(k, layout) and _is_like(v, layout)
    whole = call.batch.q_whole and call.batch.kv_whole
    call.notes = (
        plain,
        all(wanted) and like_q and like_k and whole,  # empty_like makes all gradients
        like_q,
        like_k,
        _runner(q) if q.numel() or k.numel() else None,
    )
    _plans.remember(call.plan, key, call)
    return call

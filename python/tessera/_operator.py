# SPDX-License-Identifier: Apache-2.0
"""tessera::forward and tessera::backward, the operators that PyTorch knows.

They take the pattern as a string, so that what traces them sees a constant. Results are new,
contiguous by token: [batch, tokens, heads, head_dim] in memory, whatever the layout is and however
the inputs lie.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from . import _calls, _cuda, _errors, _native, _plans, _runtime, _shapes

Tensor = torch.Tensor
Scale = float | None
Given = Tensor | None

WANT_LSE, ANY_ORDER = 1, 2  # flags of forward and of backward
DTYPES = {torch.float32: _native.F32, torch.float16: _native.F16, torch.bfloat16: _native.BF16}

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


# ------------------------------------------------------------------------------------- shapes


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


def _strides(layout: str, shape: Any) -> tuple[Any, ...]:
    """Strides of a result, which lies by token."""
    if layout == "thd":
        return (shape[1] * shape[2], shape[2], 1)
    if layout == "bshd":
        row = shape[2] * shape[3]
        return (shape[1] * row, row, shape[3], 1)
    row = shape[1] * shape[3]
    return (shape[2] * row, shape[3], row, 1)


def _result(x: Tensor, layout: str) -> Tensor:
    """A new tensor of the shape and type of x."""
    if layout == "bhsd":
        return x.new_empty_strided(x.shape, _strides(layout, x.shape))
    return x.new_empty(x.shape)


def _lse_shape(sizes: _shapes.Shape, layout: str) -> tuple[int, ...]:
    rows = (sizes.heads, sizes.q_len)
    return rows if layout == "thd" else (sizes.batch, *rows)


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: str, layout: str, scale: Scale, flags: int, *_: Any
) -> tuple[Tensor, Tensor]:
    sizes = check(q, k, v, layout)
    shape = _lse_shape(sizes, layout) if flags & WANT_LSE else (0,)
    return _result(q, layout), q.new_empty(shape, dtype=torch.float32)


def _fake_backward(
    d_o: Given,
    d_lse: Given,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    d_q: bool,
    d_k: bool,
    d_v: bool,
    pattern: str,
    layout: str,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    check(q, k, v, layout)
    made = [
        _result(x, layout) if wanted else x.new_empty(0)
        for x, wanted in ((q, d_q), (k, d_k), (v, d_v))
    ]
    return made[0], made[1], made[2]


torch.library.register_fake("tessera::forward", _fake_forward, lib=_library)
torch.library.register_fake("tessera::backward", _fake_backward, lib=_library)


# ------------------------------------------------------------------------------------ lengths

# Lengths that were copied from a device: by the tensor's id, which a weak reference guards.
_copied: dict[int, tuple[Any, int, bytes]] = {}


def _values(name: str, given: Tensor, q: Tensor) -> bytes:
    """The bytes of lengths as int64. Those of another device than the CPU's are copied once for
    each version of the tensor."""
    if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
        raise _shapes.wrong(
            name, "integers [sequences] are needed", f"{given.dtype} {list(given.shape)}"
        )
    if given.device.type == "cpu":
        return bytes(given.detach().to(torch.int64).contiguous().numpy().data)
    if given.device != q.device:
        raise _shapes.wrong(
            name, f"the CPU or the device of q, {q.device}, is needed", given.device
        )
    if given.is_inference():  # these have no versions
        return bytes(given.cpu().to(torch.int64).numpy().data)
    ident, version = id(given), given._version
    found = _copied.get(ident)
    if found is not None and found[0]() is given and found[1] == version:
        return found[2]
    if capturing(q):
        raise _errors.InvalidArgument(
            f"attention: {name}: lengths on the device are copied to the host, which a capture "
            "does not allow: run once with this tensor before, or give the lengths on the CPU"
        )
    copied = bytes(given.cpu().to(torch.int64).numpy().data)
    guard = weakref.ref(given, lambda _: _copied.pop(ident, None))
    _copied[ident] = (guard, version, copied)
    return copied


def _lengths(q: Tensor, given: tuple[Given, ...]) -> _shapes.Lengths:
    return _shapes.Lengths(
        *(
            None if tensor is None else _values(name, tensor, q)
            for name, tensor in zip(_shapes.NAMES, given, strict=False)  # defaults are left out
        )
    )


def capturing(q: Tensor) -> bool:
    """Whether the current stream of q's device is being captured into a graph."""
    return q.is_cuda and torch.cuda.is_current_stream_capturing()


# --------------------------------------------------------------------------------------- runs


class _Notes(NamedTuple):
    """What a call of one signature does beside the run."""

    plain: bool  # every input has unit stride over its elements
    like: bool  # O has the strides of q
    shape: Any  # of O
    strides: Any
    lse: Any  # the shape of LSE, or None
    fill: bool  # some rows are in no sequence
    empty: bool  # there are no rows


def _device(q: Tensor) -> str:
    return f"cuda:{q.device.index}" if q.is_cuda else q.device.type


def _launch(call: _calls.Call, q: Tensor, handles: list[int]) -> None:
    """Runs a call, on CUDA on the current stream of q's device."""
    if q.is_cuda:
        _cuda.launch(call, q, handles)
    else:
        call.run_on_host(handles)


def _rows(x: Tensor) -> Tensor:
    """The tensor with unit stride over its elements, which the library asks for."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: str,
    layout: str,
    scale: Scale,
    flags: int,
    *given: Given,
) -> tuple[Tensor, Tensor]:
    lengths = _lengths(q, given) if given and given != _NONE else None
    key = (
        pattern, layout, scale, flags, q.shape, k.shape, v.shape, q.stride(), k.stride(),
        v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, lengths,
    )  # fmt: skip
    call = _calls.find(key)
    if call is None:
        call = _prepare_forward(key, q, k, v, lengths)
    notes: _Notes = call.notes
    if not notes.plain:
        q, k, v = _rows(q), _rows(k), _rows(v)
    o = torch.empty_like(q) if notes.like else q.new_empty_strided(notes.shape, notes.strides)
    if notes.lse is None:
        lse = q.new_empty(0, dtype=torch.float32)
        handles = [q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()]
    else:
        lse = q.new_empty(notes.lse, dtype=torch.float32)
        handles = [q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr()]
    if notes.fill:
        o.zero_()
        lse.fill_(-torch.inf)
    if not notes.empty:
        _launch(call, q, handles)
    return o, lse


_NONE = (None,) * 6


def _prepare_forward(
    key: Any, q: Tensor, k: Tensor, v: Tensor, lengths: _shapes.Lengths | None
) -> _calls.Call:
    pattern, layout, scale, flags = key[:4]
    sizes = check(q, k, v, layout)
    item = q.element_size()
    plain = all(x.stride(-1) == 1 for x in (q, k, v))
    q, k, v = _rows(q), _rows(k), _rows(v)
    tensors = {
        name: _calls.strides(layout, x.shape, x.stride(), item)
        for name, x in (("q", q), ("k", k), ("v", v))
    }
    strides = _strides(layout, q.shape)
    tensors["o"] = _calls.strides(layout, q.shape, strides, item)
    lse = _lse_shape(sizes, layout) if flags & WANT_LSE else None
    if lse is not None:
        tensors["lse"] = _calls.strides(layout, lse, _contiguous(lse), 4, rows=True)
    setting = _calls.Setting(pattern, layout, scale, _device(q), DTYPES[q.dtype])
    call = _calls.prepare(setting, sizes, lengths, _native.FORWARD, tensors, not capturing(q))
    like = strides == q.stride() == torch.empty_like(q, device="meta").stride()
    call.notes = _Notes(
        plain, like, q.shape, strides, lse, not call.batch.q_whole, q.numel() == 0
    )
    _plans.remember(call.plan, key, call)
    return call


def _contiguous(shape: Any) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


def _backward(
    d_o: Given,
    d_lse: Given,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    d_q: bool,
    d_k: bool,
    d_v: bool,
    pattern: str,
    layout: str,
    scale: Scale,
    flags: int,
    *given: Given,
) -> tuple[Tensor, Tensor, Tensor]:
    if d_o is None:  # only LSE was used
        d_o = q.new_zeros(q.shape[-1]).expand(q.shape)
    lengths = _lengths(q, given) if given and given != _NONE else None
    key = (
        pattern, layout, scale, flags, d_q, d_k, d_v, q.shape, k.shape, v.shape, o.shape,
        lse.shape, d_o.shape, q.stride(), k.stride(), v.stride(), o.stride(), lse.stride(),
        d_o.stride(), q.dtype, k.dtype, v.dtype, o.dtype, d_o.dtype, lse.dtype, q.device, k.device,
        v.device, o.device, d_o.device, lse.device, None if d_lse is None else
        (d_lse.shape, d_lse.stride(), d_lse.dtype, d_lse.device), lengths,
    )  # fmt: skip
    call = _calls.find(key)
    if call is None:
        call = _prepare_backward(key, d_o, d_lse, q, k, v, o, lse, lengths)
    plain, like_q, like_k, empty = call.notes
    if not plain:
        q, k, v, o, d_o = _rows(q), _rows(k), _rows(v), _rows(o), _rows(d_o)
    handles = [
        q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), d_o.data_ptr()
    ]  # fmt: skip
    if d_lse is not None:
        handles.append(d_lse.data_ptr())
    if d_q and d_k and d_v and like_q and like_k and call.batch.q_whole and call.batch.kv_whole:
        made_q, made_k, made_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        handles += (made_q.data_ptr(), made_k.data_ptr(), made_v.data_ptr())
    else:
        made_q = _gradient(q, d_q, like_q, layout, call.batch.q_whole, handles)
        made_k = _gradient(k, d_k, like_k, layout, call.batch.kv_whole, handles)
        made_v = _gradient(v, d_v, like_k, layout, call.batch.kv_whole, handles)
    if not empty:
        _launch(call, q, handles)
    return made_q, made_k, made_v


def _gradient(
    x: Tensor, wanted: bool, like: bool, layout: str, whole: bool, handles: list[int]
) -> Tensor:
    """A new gradient of x, whose address joins the handles; an empty one where none is wanted."""
    if not wanted:
        return x.new_empty(0)
    made = torch.empty_like(x) if like else _result(x, layout)
    if not whole:
        made.zero_()
    handles.append(made.data_ptr())
    return made


def _prepare_backward(
    key: Any,
    d_o: Tensor,
    d_lse: Given,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    lengths: _shapes.Lengths | None,
) -> _calls.Call:
    pattern, layout, scale, flags, *wanted = key[:7]
    sizes = check(q, k, v, layout)
    for name, x in (("o", o), ("d_o", d_o)):
        if x.shape != q.shape or x.dtype != q.dtype or x.device != q.device:
            raise _shapes.wrong(
                name,
                f"{q.dtype} {list(q.shape)} on {q.device} is needed",
                f"{x.dtype} {list(x.shape)} on {x.device}",
            )
    expected = _lse_shape(sizes, layout)
    for name, given in (("lse", lse), ("d_lse", d_lse)):
        if given is None:
            continue
        fits = given.shape == expected and given.device == q.device
        if not fits or given.dtype != torch.float32:
            raise _shapes.wrong(
                name,
                f"float32 {list(expected)} on {q.device} is needed",
                f"{given.dtype} {list(given.shape)} on {given.device}",
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
            tensors[name] = _calls.strides(layout, x.shape, _strides(layout, x.shape), item)
    setting = _calls.Setting(
        pattern, layout, scale, _device(q), DTYPES[q.dtype], int(bool(flags & ANY_ORDER))
    )
    call = _calls.prepare(setting, sizes, lengths, _native.BACKWARD, tensors, not capturing(q))
    like = [
        _strides(layout, x.shape) == x.stride() == torch.empty_like(x, device="meta").stride()
        for x in (q, k, v)
    ]
    call.notes = (plain, like[0], like[1] and like[2], q.numel() == 0 and k.numel() == 0)
    _plans.remember(call.plan, key, call)
    return call


for _backend in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _backend)
    _library.impl("backward", _backward, _backend)

forward = torch.ops.tessera.forward.default
backward = torch.ops.tessera.backward.default
_runtime.after_fork(_copied.clear)

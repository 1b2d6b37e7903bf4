# SPDX-License-Identifier: Apache-2.0
"""tessera::forward and tessera::backward, the operators that PyTorch knows.

They take the pattern as a string, so that what traces them sees a constant. Results are new,
contiguous by token: [batch, tokens, heads, head_dim] in memory, whatever the layout is and however
the inputs lie.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from . import _calls, _errors, _native, _runtime, _shapes

Tensor = torch.Tensor
Scale = float | None
Given = Tensor | None

WANT_LSE, ANY_ORDER = 1, 2  # flags of forward and of backward
DTYPES = {torch.float32: _native.F32, torch.float16: _native.F16, torch.bfloat16: _native.BF16}

_library: Any = getattr(torch.library, "Library")("tessera", "DEF")  # untyped in PyTorch
_LENGTHS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? q_lens, Tensor? kv_lens, "
    "Tensor? q_first, Tensor? kv_first"
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


def _lse(q: Tensor, sizes: _shapes.Shape, layout: str) -> Tensor:
    shape = (sizes.heads, sizes.q_len) if layout == "thd" else (
        sizes.batch,
        sizes.heads,
        sizes.q_len,
    )
    return q.new_empty(shape, dtype=torch.float32)


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: str, layout: str, scale: Scale, flags: int, *_: Any
) -> tuple[Tensor, Tensor]:
    sizes = check(q, k, v, layout)
    lse = _lse(q, sizes, layout) if flags & WANT_LSE else q.new_empty(0, dtype=torch.float32)
    return _result(q, layout), lse


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
        raise _shapes.wrong(name, f"the CPU or the device of q, {q.device}, is needed", given.device)
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
            for name, tensor in zip(_shapes.NAMES, given, strict=True)
        )
    )


def capturing(q: Tensor) -> bool:
    """Whether the current stream of q's device is being captured into a graph."""
    return q.is_cuda and torch.cuda.is_current_stream_capturing()


# --------------------------------------------------------------------------------------- runs


def _device(q: Tensor) -> str:
    if q.device.type == "cpu":
        return "cpu"
    return f"cuda:{q.device.index}"


def _launch(call: _calls.Call, q: Tensor, tensors: tuple[Tensor, ...]) -> None:
    """Runs a call on its tensors, on the current stream of q's device."""
    handles = tuple([x.data_ptr() for x in tensors])
    if q.is_cuda:
        from . import _cuda

        _cuda.launch(call, q, handles)
    elif call.workspace:
        work = torch.empty(call.workspace, dtype=torch.uint8)
        call.run(handles, work.data_ptr())
    else:
        call.run(handles, 0)


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
    q, k, v = _rows(q), _rows(k), _rows(v)
    lengths = _shapes.NO_LENGTHS if given == _NONE else _lengths(q, given)
    key = (
        pattern, layout, scale, flags, q.shape, k.shape, v.shape, q.stride(), k.stride(),
        v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, lengths,
    )  # fmt: skip
    call = _calls.find(key)
    if call is None:
        call = _prepare_forward(key, q, k, v, lengths)
    o = _result(q, layout)
    if not flags & WANT_LSE:
        if not call.batch.q_whole:
            o.zero_()
        if o.numel():
            _launch(call, q, (q, k, v, o))
        return o, q.new_empty(0, dtype=torch.float32)
    sizes = q.shape
    if layout == "thd":
        lse = q.new_empty((sizes[1], sizes[0]), dtype=torch.float32)
    elif layout == "bshd":
        lse = q.new_empty((sizes[0], sizes[2], sizes[1]), dtype=torch.float32)
    else:
        lse = q.new_empty(sizes[:3], dtype=torch.float32)
    if not call.batch.q_whole:
        o.zero_()
        lse.fill_(float("-inf"))
    if o.numel():
        _launch(call, q, (q, k, v, o, lse))
    return o, lse


_NONE = (None,) * 6


def _prepare_forward(
    key: Any, q: Tensor, k: Tensor, v: Tensor, lengths: _shapes.Lengths
) -> _calls.Call:
    pattern, layout, scale, flags = key[:4]
    sizes = check(q, k, v, layout)
    item = q.element_size()
    tensors = {
        name: _calls.strides(layout, x.shape, x.stride(), item)
        for name, x in (("q", q), ("k", k), ("v", v))
    }
    tensors["o"] = _calls.strides(layout, q.shape, _strides(layout, q.shape), item)
    if flags & WANT_LSE:
        lse = _lse(torch.empty(0), sizes, layout)
        tensors["lse"] = _calls.strides(layout, lse.shape, lse.stride(), 4, rows=True)
    setting = _calls.Setting(pattern, layout, scale, _device(q), DTYPES[q.dtype])
    return _calls.prepare(key, setting, sizes, lengths, _native.FORWARD, tensors)


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
    q, k, v, o = _rows(q), _rows(k), _rows(v), _rows(o)
    if d_o is None:  # only LSE was used
        d_o = q.new_zeros(q.shape[-1]).expand(q.shape)
    d_o = _rows(d_o)
    lengths = _shapes.NO_LENGTHS if given == _NONE else _lengths(q, given)
    key = (
        pattern, layout, scale, flags, d_q, d_k, d_v, q.shape, k.shape, v.shape, o.shape,
        lse.shape, d_o.shape, q.stride(), k.stride(), v.stride(), o.stride(), lse.stride(),
        d_o.stride(), q.dtype, d_o.dtype, q.device, d_o.device,
        None if d_lse is None else (d_lse.shape, d_lse.stride(), d_lse.dtype), lengths,
    )  # fmt: skip
    call = _calls.find(key)
    if call is None:
        call = _prepare_backward(key, d_o, d_lse, q, k, v, o, lse, lengths)
    tensors = [q, k, v, o, lse, d_o]
    if d_lse is not None:
        tensors.append(d_lse)
    made = []
    for x, wanted, whole in (
        (q, d_q, call.batch.q_whole),
        (k, d_k, call.batch.kv_whole),
        (v, d_v, call.batch.kv_whole),
    ):
        if wanted:
            result = _result(x, layout)
            if not whole:
                result.zero_()
            tensors.append(result)
        else:
            result = x.new_empty(0)
        made.append(result)
    if q.numel() or k.numel():
        _launch(call, q, tuple(tensors))
    return made[0], made[1], made[2]


def _prepare_backward(
    key: Any,
    d_o: Tensor,
    d_lse: Given,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    lengths: _shapes.Lengths,
) -> _calls.Call:
    pattern, layout, scale, flags, *wanted = key[:7]
    sizes = check(q, k, v, layout)
    for name, x, like in (("o", o, q), ("d_o", d_o, q)):
        if x.shape != like.shape or x.dtype != like.dtype or x.device != like.device:
            raise _shapes.wrong(
                name,
                f"{like.dtype} {list(like.shape)} on {like.device} is needed",
                f"{x.dtype} {list(x.shape)} on {x.device}",
            )
    item = q.element_size()
    expected = _lse(torch.empty(0), sizes, layout).shape
    tensors = {
        name: _calls.strides(layout, x.shape, x.stride(), item)
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o))
    }
    tensors["lse"] = _calls.strides(layout, lse.shape, lse.stride(), 4, rows=True)
    tensors["d_o"] = _calls.strides(layout, d_o.shape, d_o.stride(), item)
    for name, given in (("lse", lse), ("d_lse", d_lse)):
        if given is None:
            continue
        if given.shape != expected or given.dtype != torch.float32:
            raise _shapes.wrong(
                name,
                f"float32 {list(expected)} is needed",
                f"{given.dtype} {list(given.shape)}",
            )
        if name == "d_lse":
            tensors[name] = _calls.strides(layout, given.shape, given.stride(), 4, rows=True)
    for name, x, want in zip(("d_q", "d_k", "d_v"), (q, k, v), wanted, strict=True):
        if want:
            tensors[name] = _calls.strides(layout, x.shape, _strides(layout, x.shape), item)
    setting = _calls.Setting(
        pattern, layout, scale, _device(q), DTYPES[q.dtype], int(bool(flags & ANY_ORDER))
    )
    return _calls.prepare(key, setting, sizes, lengths, _native.BACKWARD, tensors)


for _backend in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _backend)
    _library.impl("backward", _backward, _backend)

forward = torch.ops.tessera.forward.default
backward = torch.ops.tessera.backward.default
_runtime.after_fork(_copied.clear)

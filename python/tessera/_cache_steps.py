# SPDX-License-Identifier: Apache-2.0
"""Steps of a KV cache: new tokens of its sequences, in all layers.

The call of layer 0 begins a step. It takes pages, makes the sequences longer, and prepares the
lengths on the device; each layer then appends, and attends to what its own pools hold. Within a
captured graph lengths are made on the device, and pages are those that `reserve` took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import forward_ad

from . import _cache_plans, _errors, _runs, _shapes

if TYPE_CHECKING:
    from ._cache import KVCache

Tensor = torch.Tensor
Given = Sequence[int] | Tensor | None
Array = npt.NDArray[np.int64]

# Modes that trace: those of fake tensors, of make_fx, and of functionalization.
_TRACERS = tuple(torch._C._TorchDispatchModeKey.__members__.values())
_dispatch_mode = torch._C._get_dispatch_mode


class Part(NamedTuple):
    """Rows that are taken at once. A step with more than max_chunk rows of a sequence has several,
    since the ring of a sequence holds no more."""

    plans: list[_cache_plans.Plan]  # one for each storage group
    steps: list[Tensor]  # their step buffers
    first: int  # of padded rows: columns first to end - 1 of the call's tensors
    end: int
    which: Tensor | None  # of packed rows: which of the call's; None: the first `end` ones


class Heads(NamedTuple):
    """Where the heads of a storage group are among those of a call."""

    q: slice | Tensor
    kv: slice | Tensor


def heads(cache: KVCache) -> list[Heads]:
    """The heads of each storage group."""
    share, found = cache.heads // cache.kv_heads, []
    for group in cache._groups:
        kv = group.kv_heads
        if kv[-1] - kv[0] == len(kv) - 1:
            q = slice(kv[0] * share, (kv[-1] + 1) * share)
            found.append(Heads(q, slice(kv[0], kv[-1] + 1)))
        else:
            own = [g * share + n for g in kv for n in range(share)]
            places = (torch.tensor(some, device=cache.device) for some in (own, list(kv)))
            found.append(Heads(*places))
    return found


class Step(NamedTuple):
    """A step that has begun."""

    shape: tuple[int, ...]  # of its rows: [sequences, tokens], or packed [tokens]
    scale: float | None
    parts: list[Part]
    unused: Tensor | None  # rows that are in no sequence, as booleans of `shape`; None: none are
    before: dict[int, int]  # the length of each sequence that has new tokens
    done: set[int]  # layers that had their call
    keep: list[Any]  # what kernels under way read


def _values(name: str, given: Given) -> Array:
    """Lengths of the caller as numbers; those on a device are copied, which waits for it."""
    if isinstance(given, torch.Tensor):
        _runs.ordinary([f"attention: {name}"], given)
        if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
            raise _shapes.wrong(
                name, "integers [sequences] are needed", f"{given.dtype} {list(given.shape)}"
            )
        return given.detach().cpu().to(torch.int64).numpy()
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):
        found = np.asarray(None)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise TypeError(
            f"attention: {name}: a list of integers or a tensor is needed, got {given!r}"
        )
    return found.astype(np.int64)


def bucket(number: int, most: int) -> int:
    """A power of two that is not below a number, or the most there is."""
    return min(1 << max(0, number - 1).bit_length(), most)


# ---------------------------------------------------------------------------------- beginning


def begin(
    cache: KVCache, shape: tuple[int, ...], scale: float | None, q_lens: Given, cu: Given
) -> Step:
    """Begins a step with rows of that shape."""
    last = cache._step
    if last is not None and len(last.done) < cache.layers:
        missing = sorted(set(range(cache.layers)) - last.done)
        raise _errors.InvalidArgument(
            f"attention: layer: the last step is not complete: layers {missing} had no call "
            "(rollback, free or clear of the cache give the step up)"
        )
    cache._whole("attention: layer")
    if cache._capturing():
        step = _begin_on_device(cache, shape, scale, q_lens, cu)
    else:
        step = _begin_on_host(cache, shape, scale, q_lens, cu)
    cache._step = step
    return step


def _row_counts(cache: KVCache, shape: tuple[int, ...], q_lens: Given, cu: Given) -> Array:
    """The new tokens of each sequence."""
    count = cache.sequences
    if len(shape) == 1:
        if q_lens is not None:
            raise _shapes.wrong("q_lens", "layout='thd' takes cu_seqlens_q", "lengths")
        if cu is None:
            raise _shapes.wrong(
                "cu_seqlens_q", "cumulative lengths are needed for layout='thd'", None
            )
        ends = _shapes._cumulative(
            "cu_seqlens_q", _values("cu_seqlens_q", cu).tobytes(), shape[0]
        )
        if ends.size != count + 1:
            raise _shapes.wrong(
                "cu_seqlens_q", f"{count + 1} values for {count} sequences are needed", ends.size
            )
        return np.asarray(ends[1:] - ends[:-1])
    if cu is not None:
        raise _shapes.wrong("cu_seqlens_q", "cumulative lengths need layout='thd'", "lengths")
    if q_lens is None:
        return np.full(count, shape[1], dtype=np.int64)
    rows = _shapes._each("q_lens", _values("q_lens", q_lens).tobytes(), count, shape[1])
    assert rows is not None
    return rows


def _begin_on_host(
    cache: KVCache, shape: tuple[int, ...], scale: float | None, q_lens: Given, cu: Given
) -> Step:
    rows = _row_counts(cache, shape, q_lens, cu)
    before = list(cache._lengths())
    wanted = {s: before[s] + n for s, n in enumerate(rows.tolist()) if n}
    longest = int(rows.max())
    packed, chunk = len(shape) == 1, cache.max_chunk
    used: dict[int, int] = {}  # step buffers that this step has of each list of plans
    made: list[tuple[list[_cache_plans.Plan], int, int, int, Array | None]] = []
    lengths: list[Array] = []
    base = np.asarray(before, dtype=np.int64)
    parts_of = [cache._kv_first] if cache.part_tokens is not None else []
    cu_rows = np.concatenate([[0], np.cumsum(rows)])
    for first in range(0, longest, chunk):
        here = np.clip(rows - first, 0, chunk)
        index = None
        if packed:
            total = int(here.sum())
            q_len = bucket(int(here.max()), chunk)
            plans = cache._plan(q_len, bucket(total, cache.sequences * q_len), scale)
            end, starts = total, np.concatenate([[0], np.cumsum(here)])
            if longest > chunk:
                index = np.concatenate(
                    [np.arange(n) + cu_rows[s] + first for s, n in enumerate(here)]
                )
        else:
            end = min(first + chunk, longest)
            q_len = bucket(end - first, chunk)
            plans = cache._plan(q_len, cache.sequences * q_len, scale)
            starts = np.arange(cache.sequences + 1) * q_len
        # A sequence without new rows here has none of its keys read.
        some = here > 0
        held = np.clip(np.minimum(base + first + here, cache._kv_end) - cache._kv_first, 0, None)
        keys, position = np.where(some, held, 0), np.where(some, base + first, 0)
        number = used[id(plans)] = used.get(id(plans), -1) + 1
        made.append((plans, number, first, end, index))
        lengths += [starts, keys, position, *parts_of]

    unused = None
    if not packed and int(rows.min()) < shape[1]:
        columns = torch.arange(shape[1], device=cache.device)
        unused = columns >= cache._to_device(rows)[:, None]
    elif packed and int(cu_rows[-1]) < shape[0]:
        unused = torch.arange(shape[0], device=cache.device) >= int(cu_rows[-1])
    longest_of = list(cache._longest)
    cache._extend(wanted, "attention")
    parts, keep = [], []
    try:
        given = cache._lengthen(wanted, lengths)
        if made:
            keep.append(given)
            count, address = cache.sequences, given.data_ptr()
            each = (3 + len(parts_of)) * count + 1
            for n, (plans, number, first, end, index) in enumerate(made):
                chosen = None if index is None else cache._to_device(index).long()
                part = Part(plans, [plan.step(number) for plan in plans], first, end, chosen)
                start = address + 4 * n * each
                kv_lens = start + 4 * (count + 1)
                more = [kv_lens + 4 * count * (1 + i) for i in range(1 + len(parts_of))]
                _prepare(part, _cache_plans.Lengths(start, kv_lens, *more))
                parts.append(part)
    except BaseException:
        cache._longest = longest_of
        cache._set({s: before[s] for s in wanted})  # nothing was appended
        raise
    return Step(shape, scale, parts, unused, {s: before[s] for s in wanted}, set(), keep)


def _prepare(part: Part, lengths: _cache_plans.Lengths) -> None:
    for plan, step in zip(part.plans, part.steps, strict=True):
        plan.prepare(lengths, step)


def _begin_on_device(
    cache: KVCache, shape: tuple[int, ...], scale: float | None, q_lens: Given, cu: Given
) -> Step:
    """Within a capture: nothing of the host is asked, at this time or in a replay."""
    if len(shape) == 1:
        plans, rows, unused = _packed_on_device(cache, shape[0], scale, q_lens, cu)
    else:
        plans, rows, unused = _padded_on_device(cache, shape[1], scale, q_lens, cu)
    cache._moved = True
    count, state, given = cache.sequences, cache._state, list(cache._captured)
    before, room, left_out = state[:count], state[count : 2 * count], state[2 * count :]
    after = before + rows
    fits = (after <= room) & (rows > 0) & (rows <= plans[0].q_len)
    left_out += (~fits & (rows > 0) & (room > 0)).sum(dtype=torch.int32)
    keys = after * fits
    if cache._bounds is not None:
        kv_first, kv_end = cache._bounds
        keys = (torch.minimum(keys, kv_end) - kv_first).clamp_(min=0)
        given.append(kv_first)
    given[1].copy_(keys)
    given[2].copy_(before * fits)
    before.copy_(torch.where(fits, after, before))
    part = Part(plans, [plan.step(0) for plan in plans], 0, shape[-1], None)
    _prepare(part, _cache_plans.Lengths(*(x.data_ptr() for x in given)))
    return Step(shape, scale, [part] if shape[-1] else [], unused, {}, set(), [])


Rows = tuple[list[_cache_plans.Plan], Tensor, Tensor | None]


def _padded_on_device(
    cache: KVCache, tokens: int, scale: float | None, q_lens: Given, cu: Given
) -> Rows:
    """Plans, new rows of each sequence and unused rows of a captured step of padded rows."""
    if cu is not None:
        raise _shapes.wrong("cu_seqlens_q", "cumulative lengths need layout='thd'", "lengths")
    if tokens > cache.max_chunk:
        raise _shapes.wrong(
            "q", f"at most max_chunk={cache.max_chunk} tokens are needed in a capture", tokens
        )
    count = cache.sequences
    q_len = bucket(tokens, cache.max_chunk)
    plans = cache._plan(q_len, count * q_len, scale)
    end = count * q_len + 1
    starts = cache._captured[0]
    torch.arange(0, end, q_len, dtype=torch.int32, device=cache.device, out=starts)
    if q_lens is None:
        return plans, torch.full((count,), tokens, dtype=torch.int32, device=cache.device), None
    rows = _on_device(cache, "q_lens", q_lens, count).clamp(0, tokens).to(torch.int32)
    return plans, rows, torch.arange(tokens, device=cache.device) >= rows[:, None]


def _packed_on_device(
    cache: KVCache, total: int, scale: float | None, q_lens: Given, cu: Given
) -> Rows:
    """The same of packed rows. How many a sequence may have in a replay is what the plan says that
    a call before the capture made."""
    if q_lens is not None:
        raise _shapes.wrong("q_lens", "layout='thd' takes cu_seqlens_q", "lengths")
    ends = _on_device(cache, "cu_seqlens_q", cu, cache.sequences + 1)
    # Whatever a replay finds there: from 0, not falling, not beyond the rows.
    ends = ends.clamp(0, total).cummax(0).values.to(torch.int32)
    ends[:1].zero_()  # a number would be copied from the host, which no capture takes
    cache._captured[0].copy_(ends)
    plans, rows = cache._packed_plan(total, scale), ends.diff()
    # Rows behind the last sequence, and those of sequences that have too many.
    place = torch.arange(total, dtype=torch.int32, device=cache.device)
    owner = torch.searchsorted(ends[1:], place, right=True)
    unused = torch.cat([rows > plans[0].q_len, rows.new_ones(1, dtype=torch.bool)])[owner]
    return plans, rows, unused


def _on_device(cache: KVCache, name: str, given: Given, count: int) -> Tensor:
    """Lengths that a replay reads."""
    if not isinstance(given, torch.Tensor):
        got = "none" if given is None else "a list"
        raise _shapes.wrong(name, "a tensor on the device is needed in a capture", got)
    if (
        given.shape != (count,)
        or given.dtype not in (torch.int32, torch.int64)
        or given.device != cache.device
    ):
        raise _shapes.wrong(
            name,
            f"integers [{count}] on {cache.device} are needed in a capture",
            f"{given.dtype} {list(given.shape)} on {given.device}",
        )
    return given.detach()


# ---------------------------------------------------------------------------------- layers


def _no_tracing(*tensors: Any) -> None:
    """Raises where someone would look at operators: eager calls have none, and a trace would keep
    nothing of them. torch.compile gets tessera::cached instead."""
    found = None
    if torch.compiler.is_compiling():
        found = "torch.compile"
    elif torch._C._are_functorch_transforms_active():
        found = "torch.func transforms (vmap, grad, jvp, ...)"
    elif torch._C._is_tracing():
        found = "torch.jit.trace"
    elif torch._C._len_torch_dispatch_stack() and any(map(_dispatch_mode, _TRACERS)):
        found = "tracing with fake tensors"
    elif forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
        for x in tensors
        if isinstance(x, torch.Tensor)
    ):
        found = "forward-mode differentiation"
    if found is not None:
        raise _errors.Unsupported(f"attention: cache: {found} is not supported")


def _by_token(x: Tensor, layout: str) -> Tensor:
    x = x.resolve_neg()  # a view that PyTorch negates when it is read
    return x.transpose(1, 2) if layout == "bhsd" else x


def _take(x: Tensor, part: Part, packed: bool) -> Tensor:
    """The rows of a part, [rows of its plan, heads, head_dim] with unit stride over elements."""
    if packed:
        x = x[: part.end] if part.which is None else x[part.which]
        size = part.plans[0].rows
    else:
        x = x[:, part.first : part.end]
        size = part.plans[0].q_len
    token = x.dim() - 3
    if x.shape[token] != size:
        wide = x.new_zeros((*x.shape[:token], size, *x.shape[token + 1 :]))
        wide.narrow(token, 0, x.shape[token]).copy_(x)
        x = wide
    x = x.reshape(-1, *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def no_gradient_of(**tensors: Tensor) -> None:
    """Raises where a gradient would be asked for."""
    for name, x in tensors.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise _errors.Unsupported(
                f"attention: {name}: gradients through a cache are not supported: call it within "
                "torch.no_grad(), or detach the tensor"
            )


def _check(cache: KVCache, name: str, x: Any, layout: str, heads: int) -> tuple[int, ...]:
    """The shape of a tensor's rows: [sequences, tokens], or of packed ones [tokens]."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"attention: {name}: a tensor is needed, got {type(x).__name__}")
    _runs.ordinary([f"attention: {name}"], x)
    if layout not in _shapes.LAYOUTS:
        raise _shapes.wrong(
            "layout", f"one of {', '.join(map(repr, _shapes.LAYOUTS))} is needed", repr(layout)
        )
    no_gradient_of(**{name: x})
    packed = layout == "thd"
    dims = x.shape if packed else _by_token(x, layout).shape if x.dim() == 4 else ()
    wanted = (heads, cache.head_dim)
    batch = () if packed else (cache.sequences,)
    fits = len(dims) == (3 if packed else 4) and dims[-2:] == wanted
    if not fits or dims[: len(batch)] != batch:
        order = {
            "bshd": f"[{cache.sequences}, tokens, {heads}, {cache.head_dim}]",
            "bhsd": f"[{cache.sequences}, {heads}, tokens, {cache.head_dim}]",
            "thd": f"[tokens, {heads}, {cache.head_dim}]",
        }[layout]
        raise _shapes.wrong(
            name, f"{order} is needed for this cache and layout={layout!r}", list(x.shape)
        )
    if x.dtype != cache.dtype:
        raise _shapes.wrong(name, f"the dtype of the cache, {cache.dtype}, is needed", x.dtype)
    if x.device != cache.device:
        raise _shapes.wrong(name, f"the device of the cache, {cache.device}, is needed", x.device)
    if x.numel() and not x.data_ptr():
        raise _shapes.wrong(name, "a tensor with memory is needed", "one without storage")
    return tuple(dims[:-2])


def _step_of(
    cache: KVCache,
    layer: int,
    shape: tuple[int, ...],
    scale: float | None,
    q_lens: Given,
    cu: Given,
) -> Step:
    """The step that a layer's call belongs to: a new one with layer 0."""
    layer = _shapes.integer("attention: layer", layer)
    if not 0 <= layer < cache.layers:
        raise _shapes.wrong("layer", f"0 to {cache.layers - 1} is needed", layer)
    if layer == 0:
        return begin(cache, shape, scale, q_lens, cu)
    step = cache._step
    if step is None or layer in step.done or 0 not in step.done:
        raise _shapes.wrong("layer", "each once in a step that layer 0 begins", f"layer {layer}")
    if step.shape != shape or step.scale != scale:
        raise _shapes.wrong(
            "layer",
            f"rows of {list(step.shape)} with scale={step.scale} are needed, as in layer 0",
            f"{list(shape)} with scale={scale}",
        )
    return step


def append(
    cache: KVCache, k: Tensor, v: Tensor, layout: str, q_lens: Given, cu: Given, layer: int
) -> None:
    """KVCache.append."""
    _no_tracing(k, v)
    shape = _check(cache, "k", k, layout, cache.kv_heads)
    _same(cache, "v", v, layout, cache.kv_heads, "k", shape)
    scale = cache._step.scale if layer and cache._step is not None else None
    step = _step_of(cache, layer, shape, scale, q_lens, cu)
    k, v = _by_token(k, layout), _by_token(v, layout)
    for part in step.parts:
        new_k, new_v = (_take(x, part, len(shape) == 1) for x in (k, v))
        for n in range(len(cache._groups)):
            _append(cache, part, layer, n, new_k, new_v)
    step.done.add(layer)


def _append(cache: KVCache, part: Part, layer: int, n: int, k: Tensor, v: Tensor) -> None:
    """Appends to the pools of a storage group."""
    heads = cache._heads[n].kv
    part.plans[n].append(
        layer, k[:, heads], v[:, heads], cache._pools[layer][n], cache._tables[n], part.steps[n]
    )


def _same(
    cache: KVCache, name: str, x: Any, layout: str, heads: int, other: str, shape: Any
) -> None:
    found = _check(cache, name, x, layout, heads)
    if found != shape:
        raise _shapes.wrong(name, f"the rows of {other}, {list(shape)}, are needed", list(found))


def attention(
    cache: KVCache,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    scale: float | None,
    q_lens: Given,
    cu: Given,
    return_lse: bool,
    layer: int,
) -> tuple[Tensor, Tensor | None]:
    """tessera.attention with a cache: (O, LSE or None)."""
    _no_tracing(q, k, v)
    shape = _check(cache, "q", q, layout, cache.heads)
    for name, x in (("k", k), ("v", v)):
        _same(cache, name, x, layout, cache.kv_heads, "q", shape)
    if scale is not None and not 2.0**-120 <= abs(scale) <= 2.0**120:
        raise _shapes.wrong("scale", "a magnitude of 2^-120 to 2^120 is needed", scale)
    if cache.part_tokens is not None and not return_lse:
        raise _shapes.wrong(
            "return_lse",
            "True is needed with a cache of parts, whose (O, LSE) tessera.merge takes",
            return_lse,
        )
    step = _step_of(cache, layer, shape, scale, q_lens, cu)
    packed = len(shape) == 1
    q, k, v = _by_token(q, layout), _by_token(k, layout), _by_token(v, layout)
    o = q.new_empty(q.shape)
    lse = None
    if return_lse:
        lse = q.new_empty((*shape[:-1], cache.heads, shape[-1]), dtype=torch.float32)
    for part in step.parts:
        rows, new_k, new_v = (_take(x, part, packed) for x in (q, k, v))
        whole = part.which is None and rows.shape[0] == o.shape[:-2].numel()
        part_o = o.view(rows.shape) if whole else torch.empty_like(rows)
        part_lse = None if lse is None else lse.new_empty((cache.heads, rows.shape[0]))
        for n in range(len(cache._groups)):
            _append(cache, part, layer, n, new_k, new_v)
            _run(cache, part, layer, n, rows, part_o, part_lse)
        _put(part, packed, part_o, None if whole else o, part_lse, lse)
    if step.unused is not None:
        o.masked_fill_(step.unused[..., None, None], 0)
        if lse is not None:
            lse.masked_fill_(step.unused.unsqueeze(-2), -torch.inf)
    step.done.add(layer)
    return _by_token(o, layout), lse


def _run(
    cache: KVCache, part: Part, layer: int, n: int, q: Tensor, o: Tensor, lse: Tensor | None
) -> None:
    """Attention of the heads of a storage group."""
    heads = cache._heads[n].q
    pools, table = cache._pools[layer][n], cache._tables[n]
    if isinstance(heads, slice):
        some = None if lse is None else lse[heads]
        part.plans[n].run(layer, q[:, heads], o[:, heads], some, pools, table, part.steps[n])
        return
    q = q[:, heads]
    own, some = torch.empty_like(q), None if lse is None else lse[heads]
    part.plans[n].run(layer, q, own, some, pools, table, part.steps[n])
    o[:, heads] = own
    if lse is not None and some is not None:
        lse[heads] = some


def _put(
    part: Part,
    packed: bool,
    part_o: Tensor,
    o: Tensor | None,
    part_lse: Tensor | None,
    lse: Tensor | None,
) -> None:
    """Puts the results of a part where they belong in those of the call."""
    if packed:
        index = slice(part.end) if part.which is None else part.which
        if o is not None:
            o[index] = part_o[: part.end]
        if lse is not None and part_lse is not None:
            lse[:, index] = part_lse[:, : part.end]
        return
    count, size = part.end - part.first, part.plans[0].q_len
    if o is not None:
        o[:, part.first : part.end] = part_o.view(-1, size, *part_o.shape[1:])[:, :count]
    if lse is not None and part_lse is not None:
        by_sequence = part_lse.view(part_lse.shape[0], -1, size).transpose(0, 1)
        lse[..., part.first : part.end] = by_sequence[..., :count]

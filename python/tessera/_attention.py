# SPDX-License-Identifier: Apache-2.0
"""tessera.attention and tessera.merge: the functions that a PyTorch user calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch.autograd import forward_ad

from . import (
    _cache_steps,
    _calls,
    _errors,
    _operator,
    _plans,
    _recent,
    _runs,
    _shapes,
    patterns,
)
from ._cache import KVCache

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor
Lengths = Sequence[int] | torch.Tensor | None
Layout = Literal["bshd", "bhsd", "thd"]

_DENSE = patterns.Dense()
_QKV = ("attention: q", "attention: k", "attention: v")
# Whether code runs within a transform of torch.func; PyTorch's own autograd.Function asks it.
_transformed = torch._C._are_functorch_transforms_active
# Whether a mode looks at functions or operators, or torch.jit.trace or the profiler does.
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_jit_traced = torch._C._is_tracing
_profiled = torch._C._autograd._profiler_enabled
# A gradient of autograd.grad(is_grads_batched=True): its type is Tensor, and it has no memory.
_batched: Any = getattr(torch._C, "_functorch").is_legacy_batchedtensor
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_strided = torch.strided
_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_known = _plans.recent.get


def _is_plain(gradient: Tensor | None) -> bool:
    return gradient is None or (type(gradient) in _PLAIN and not _batched(gradient))


def _observed() -> bool:
    """Whether someone looks at operators, and gets ours; everyone else is faster without."""
    return (
        torch.compiler.is_compiling()
        or _dispatch_modes() != 0
        or _function_modes() != 0
        or _jit_traced()
        or _profiled()
    )


class _Direct(torch.autograd.Function):
    """Forward and backward past the operators. Lengths are bytes; they, the words, whether LSE is
    returned, the prepared call and the pattern are one argument, because every argument of a
    Function costs time. So does every result: LSE is one only where the caller asked for it."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        call: tuple[_runs.Words, _shapes.Lengths | None, bool, _calls.Call, patterns.Pattern],
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        words, lengths, both, prepared, pattern = call
        o, lse = _runs.run_forward(prepared, q, k, v, True)
        ctx.save_for_backward(q, k, v, o, lse)
        # Not the call, whose plan the cache may drop before. The pattern, since the words name a
        # large mask by its digest alone.
        ctx.call = words, lengths, prepared.number, pattern
        ctx.set_materialize_grads(False)
        return (o, lse) if both else o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None = None) -> Any:
        if d_o is None and d_lse is None:
            return None, None, None, None
        made: _runs.Gradients
        wanted, saved = ctx.needs_input_grad[:3], ctx.saved_tensors
        words, lengths, number, _ = ctx.call
        key = (number, wanted)
        found = _known(key)
        if found is not None and not _compiling():
            # Where it holds, LSE has no gradient. It also holds beside FakeTensorMode.
            check, call = found
            q, k, v, o, lse = saved
            if (
                d_o is not None
                and d_lse is None
                and d_o.layout is q.layout is k.layout is v.layout is o.layout is _strided
                and lse.layout is _strided
                and not (d_o.is_nested or q.is_nested or k.is_nested or v.is_nested)
                and not (o.is_nested or lse.is_nested)
                and check(*saved, d_o)
                and not (_grad_enabled() or _dispatch_modes() or _function_modes())
                and not (_jit_traced() or _profiled())
            ):
                made = _runs.run_backward(call, d_o, None, saved, wanted, words[1], True)
                return *made, None
        try:
            if _grad_enabled() or _observed() or not (_is_plain(d_o) and _is_plain(d_lse)):
                tensors = _runs.as_tensors(lengths)
                made = _operator_gradients(d_o, d_lse, saved, wanted, words, tensors)
            else:
                d_o, d_lse = _runs.real_gradients(d_o, d_lse, saved[0])
                call = _runs.find_backward(d_o, d_lse, saved, wanted, words, lengths)
                made = _runs.run_backward(call, d_o, d_lse, saved, wanted, words[1], True)
                q, k, v = saved[:3]
                if (
                    lengths is None
                    and d_lse is None
                    and q is not k and k is not v and v is not q
                    and all(type(x) in _PLAIN for x in saved)
                ):  # fmt: skip
                    _recent.keep(key, call, (*saved, d_o))
        except (RuntimeError, NotImplementedError) as error:
            if not isinstance(error, _errors.Error):
                for name, x in (("O", d_o), ("LSE", d_lse)):
                    if x is not None:
                        _runs.ordinary([f"attention: the gradient of {name}"], x)
            raise
        return *made, None


# Past the part of apply that is for transforms of torch.func, which are refused before.
_direct = super(torch.autograd.Function, _Direct).apply
# Autograd calls a method that finds out which of two functions is ours; that takes a microsecond.
_node: Any = getattr(_Direct, "_backward_cls", None)
if _node is not None:
    _node.apply = _Direct.backward


class _Observed(torch.autograd.Function):
    """Forward and backward as two operators."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor,
        spec: str, layout: str, scale: float | None, flags: int, *lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        o, lse = _operator.forward(q, k, v, spec, layout, scale, _runs.WANT_LSE, *lengths)
        ctx.save_for_backward(q, k, v, o, lse, *lengths)
        ctx.words = (spec, layout, scale, flags)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        wanted = ctx.needs_input_grad
        if d_o is None and d_lse is None:
            return (None,) * len(wanted)
        q, k, v, o, lse, *lengths = ctx.saved_tensors
        made = _operator_gradients(
            d_o, d_lse, (q, k, v, o, lse), wanted[:3], ctx.words, lengths
        )
        return *made, *(None,) * (len(wanted) - 3)


def _operator_gradients(
    d_o: Tensor | None,
    d_lse: Tensor | None,
    saved: _runs.Saved,
    wanted: _runs.Wanted,
    words: _runs.Words,
    lengths: Sequence[Tensor | None],
) -> _runs.Gradients:
    """Gradients by the operator; None where none is wanted."""
    arguments = (d_o, d_lse, *saved, *wanted, *words, *lengths)
    compute = _Gradient.apply if torch.is_grad_enabled() else _operator.backward
    d_q, d_k, d_v = compute(*arguments)
    return d_q if wanted[0] else None, d_k if wanted[1] else None, d_v if wanted[2] else None


class _Gradient(torch.autograd.Function):
    """Backward where PyTorch asks for a graph of it: gradients of gradients are refused."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        return _operator.backward(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise _errors.Unsupported(
            "attention: gradients of gradients (double backward) are not supported"
        )


class _Options(TypedDict, total=False):
    layout: Layout
    scale: float | None
    cu_seqlens_q: Lengths
    cu_seqlens_k: Lengths
    q_lens: Lengths
    kv_lens: Lengths
    q_first: Lengths
    kv_first: Lengths
    deterministic: bool
    cache: KVCache | None
    layer: int


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: patterns.Pattern = ..., *,
    return_lse: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: patterns.Pattern = ..., *,
    return_lse: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: patterns.Pattern = _DENSE,
    *,
    layout: Layout = "bshd", scale: float | None = None,
    cu_seqlens_q: Lengths = None, cu_seqlens_k: Lengths = None,
    q_lens: Lengths = None, kv_lens: Lengths = None,
    q_first: Lengths = None, kv_first: Lengths = None,
    return_lse: bool = False, deterministic: bool = True,
    cache: KVCache | None = None, layer: int = 0,
    **refused: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax attention in which every head keeps the keys that its pattern keeps.

    q: [batch, tokens, heads, head_dim] with layout "bshd", [batch, heads, tokens, head_dim] with
        "bhsd", [tokens of all sequences, heads, head_dim] with "thd". float32, float16 or bfloat16,
        on the CPU or a CUDA device, with any strides.
    k, v: the same with kv heads, whose number divides that of q's heads. Query heads that follow
        each other share a kv head.
    pattern: a value of S2, Dense, Window or Blocks. Positions count from each sequence's first
        token; the last query meets the last key.
    scale: of the scores, 1 / sqrt(head_dim) by default.
    cu_seqlens_q, cu_seqlens_k: cumulative lengths [sequences + 1] of layout "thd"; keys have those
        of queries by default. Tokens past the last are in no sequence.
    q_lens, kv_lens: lengths [batch] of padded sequences, whose tokens come first.
    q_first, kv_first: positions [sequences] of each sequence's first row and first key.
        kv_first is a multiple of the pattern's block.
    return_lse: the logarithm of the sum of exponentials of scores as well.
    deterministic: gradients have the same bits every time. Without it they may be faster.
    cache: k and v are new tokens of its sequences: they are appended, and q attends to all tokens
        there are. q_lens (or cu_seqlens_q of "thd") says how many are new in each; other lengths
        are the cache's own. No gradients. See KVCache.
    layer: of the cache. The call of layer 0 begins a step, and the other layers follow.

    Lengths are lists or tensors of integers. Those on a CUDA device are copied to the host, once
    for each version of the tensor; that waits for the device. Each set of lengths has a plan of its
    own, and the last ones are kept (tessera.cache_limits).

    Returns O, of q's shape and type; with return_lse (O, LSE), where LSE is float32
    [batch, heads, tokens], with "thd" [heads, tokens]. Rows that keep no key, and those past a
    length, are 0 with an LSE of -inf. Both can be differentiated, once.

    Raises InvalidArgument (a ValueError), which names the argument; Unsupported (a
    NotImplementedError) for what nothing here does; TypeError for what is no tensor or pattern.
    """
    if refused:
        _refuse(refused)
    if cache is not None:
        others = (cu_seqlens_k, kv_lens, q_first, kv_first)
        o, rows = _cached(
            q, k, v, pattern, layout, scale, q_lens, cu_seqlens_q, others, return_lse, cache, layer
        )
        return o if rows is None else (o, rows)
    lse: Tensor | None
    key: Any = None  # by which a call like this one is found again
    if (
        cu_seqlens_q is None
        and q_lens is None
        and kv_lens is None
        and q_first is None
        and cu_seqlens_k is None
        and kv_first is None
    ):
        given: tuple[Lengths, ...] = ()
        if (
            not _compiling()
            and (scale is None or type(scale) is float)
            and type(return_lse) is type(deterministic) is bool  # 1.0 would find what True has kept
        ):
            try:
                grad = _grad_enabled()
                key = (pattern._spec, layout, scale, return_lse, deterministic, grad, q.shape)
                recent = _known(key)
                if recent is not None and (
                    not (q.layout is k.layout is v.layout is _strided)
                    or q.is_nested or k.is_nested or v.is_nested
                ):  # fmt: skip
                    recent = None
            except (AttributeError, RuntimeError, TypeError):  # said below, by the argument's name
                key = recent = None
            if recent is not None:
                # Where it holds, autocast, inference mode and transforms are as they were. Modes
                # of PyTorch's own, such as FakeTensorMode, it does not see.
                check, call, graph, words = recent
                if (
                    check(q, k, v)
                    and not (_dispatch_modes() or _function_modes() or _jit_traced() or _profiled())
                    and forward_ad._current_level < 0
                    and (deterministic or not torch.are_deterministic_algorithms_enabled())
                ):
                    if graph:
                        found: Any = _direct(q, k, v, (words, None, return_lse, call, pattern))
                        return found  # type: ignore[no-any-return]
                    o, lse = _runs.run_forward(call, q, k, v, True)
                    return (o, lse) if return_lse else o  # type: ignore[return-value]
    else:
        given = (cu_seqlens_q, cu_seqlens_k, q_lens, kv_lens, q_first, kv_first)
    try:
        spec = pattern._spec
        kind = q.device.type
        here = kind == "cpu" or kind == "cuda"
        if not here:
            kind = "cpu"
        if torch.is_autocast_enabled(kind):
            q, k, v = _autocast(kind, q, k, v)
            key = None
        graph = (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
    except AttributeError:
        _types(q, k, v, pattern)
        raise
    if torch.compiler.is_compiling():
        observed = True
    else:
        if type(scale) is not float and scale is not None:
            scale = _shapes.number("attention: scale", scale)
        if type(return_lse) is not bool or type(deterministic) is not bool:
            return_lse = _shapes.flag("attention: return_lse", return_lse)
            deterministic = _shapes.flag("attention: deterministic", deterministic)
        if layout not in _shapes.LAYOUTS:
            raise _shapes.wrong_layout(layout)
        plain = type(q) is type(k) is type(v) is Tensor
        if not plain:
            _types(q, k, v, pattern)
            _runs.ordinary(_QKV, q, k, v)
            plain = type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN
        observed = not (
            here and plain and _dispatch_modes() == 0 and _function_modes() == 0
        ) or _jit_traced() or _profiled()
        if _transformed() or forward_ad._current_level >= 0:
            _no_transforms(q, k, v)
    flags = 0 if deterministic else _runs.ANY_ORDER
    if flags and torch.are_deterministic_algorithms_enabled():
        _alert()
    if graph:
        flags |= _runs.WANT_LSE
    else:  # the order of gradients means nothing
        flags = _runs.WANT_LSE if return_lse else 0
    words = (spec, layout, scale, flags)
    if observed:
        tensors = map(_runs.as_tensor, _shapes.NAMES, given)
        run = _Observed.apply if graph else _operator.forward
        o, lse = run(q, k, v, *words, *tensors)
    else:
        try:
            if q.is_neg() or k.is_neg() or v.is_neg():
                # Views that PyTorch negates when it reads them. To operators it gives the values.
                q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
            lengths = _runs.lengths(q, given) if given else None
            call = _runs.find_forward(q, k, v, words, lengths)
            if key is not None and q is not k and k is not v and v is not q:
                _recent.keep(key, call, (q, k, v), graph, words)
            if graph:  # O, or the pair
                made: Any = _direct(q, k, v, (words, lengths, return_lse, call, pattern))
                return made  # type: ignore[no-any-return]
            o, lse = _runs.run_forward(call, q, k, v, True)
        except RuntimeError as error:
            if not isinstance(error, _errors.Error):
                _runs.ordinary(_QKV, q, k, v)
            raise
    return (o, lse) if return_lse else o  # type: ignore[return-value]


def _cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: patterns.Pattern,
    layout: str,
    scale: float | None,
    q_lens: Lengths,
    cu_seqlens_q: Lengths,
    others: tuple[Lengths, ...],
    return_lse: bool,
    cache: KVCache,
    layer: int,
) -> tuple[Tensor, Tensor | None]:
    """Attention with a cache."""
    if not isinstance(cache, KVCache):
        raise TypeError(
            f"attention: cache: a tessera.KVCache is needed, got {type(cache).__name__}"
        )
    if not isinstance(pattern, patterns.Pattern) or not hasattr(pattern, "_spec"):
        _types(q, k, v, pattern)
    if pattern is not _DENSE and pattern._spec != cache.pattern._spec:
        raise _errors.InvalidArgument(
            f"attention: pattern: that of the cache, {cache.pattern!r}, is needed, got {pattern!r}"
        )
    for name, given in zip(
        ("cu_seqlens_k", "kv_lens", "q_first", "kv_first"), others, strict=True
    ):
        if given is not None:
            raise _errors.InvalidArgument(
                f"attention: {name}: not together with cache, which has its own lengths"
            )
    if type(scale) is not float and scale is not None:
        scale = _shapes.number("attention: scale", scale)
    kind = cache.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = _autocast(kind, q, k, v)
    if torch.compiler.is_compiling():
        return _cached_traced(
            q, k, v, layout, scale, q_lens, cu_seqlens_q, return_lse, cache, layer
        )
    return _cache_steps.attention(
        cache, q, k, v, layout, scale, q_lens, cu_seqlens_q, return_lse, layer
    )


def _cached_traced(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    scale: float | None,
    q_lens: Lengths,
    cu_seqlens_q: Lengths,
    return_lse: bool,
    cache: KVCache,
    layer: int,
) -> tuple[Tensor, Tensor | None]:
    """Attention with a cache as an operator, which has no gradient."""
    _cache_steps.no_gradient_of(q=q, k=k, v=v)
    o, lse = _operator.cached(
        q, k, v, cache._token, layout, scale, _runs.as_tensor("q_lens", q_lens),
        _runs.as_tensor("cu_seqlens_q", cu_seqlens_q), return_lse, layer,
    )  # fmt: skip
    return o, lse if return_lse else None


def _no_transforms(*tensors: Tensor) -> None:
    """Raises where torch.func is at work, or a tensor carries a tangent of forward mode."""
    if _transformed():
        raise _errors.Unsupported(
            "attention: torch.func transforms (vmap, grad, jvp, ...) are not supported; "
            "torch.autograd is"
        )
    for name, x in zip("qkv", tensors, strict=True):
        if forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise _errors.Unsupported(
                f"attention: {name}: forward-mode differentiation is not supported"
            )


def _autocast(kind: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts as PyTorch's own attention does: everything but float64 to autocast's type."""
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    )


def _alert() -> None:
    message = (
        "attention: deterministic: False is not allowed by torch.use_deterministic_algorithms(True)"
    )
    if torch.is_deterministic_algorithms_warn_only_enabled():
        import warnings

        warnings.warn(message, stacklevel=3)
    else:
        raise _errors.InvalidArgument(message)


def _refuse(names: dict[str, Any]) -> None:
    """Raises for what other attention functions take and this one does not."""
    known = {
        "dropout": "dropout",
        "dropout_p": "dropout",
        "attention_dropout": "dropout",
        "attn_mask": "an additive or boolean mask (tessera.Blocks takes one of blocks)",
        "attn_bias": "an additive bias",
        "bias": "an additive bias",
        "alibi_slopes": "an additive bias",
        "softcap": "soft-capping of scores",
        "logit_cap": "soft-capping of scores",
        "s_aux": "a sink logit of each head",
        "sinks": "a sink logit of each head (tessera.Window has sinks that are keys)",
    }
    for name, value in names.items():
        if name not in known:
            raise TypeError(f"attention: got an unexpected keyword argument {name!r}")
        if value is None or (isinstance(value, (int, float)) and value == 0):
            continue  # off is what this function does
        raise _errors.Unsupported(f"attention: {name}: {known[name]} is not supported")


def _types(q: Any, k: Any, v: Any, pattern: Any) -> None:
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"attention: {name}: a tensor is needed, got {type(given).__name__}")
    if not isinstance(pattern, patterns.Pattern) or not hasattr(pattern, "_spec"):
        raise TypeError(
            "attention: pattern: tessera.S2, Dense, Window or Blocks is needed, got "
            f"{type(pattern).__name__}"
        )


def merge(*o_and_lse: tuple[Tensor, Tensor], layout: Layout = "bshd") -> tuple[Tensor, Tensor]:
    """The result over all keys from results over parts of them.

    o_and_lse: pairs as `attention` returns them with return_lse, each over other keys: O in
        `layout` and LSE [batch, heads, tokens], with "thd" [heads, tokens].
    Returns (O, LSE) of the same shapes and types. A part whose LSE is -inf contributes nothing; a
    row where all are is 0 with an LSE of -inf. Differentiable, in O and LSE.
    """
    if layout not in _shapes.LAYOUTS:
        some = ", ".join(map(repr, _shapes.LAYOUTS))
        raise _errors.InvalidArgument(f"merge: layout: one of {some} is needed, got {layout!r}")
    if not o_and_lse:
        raise _errors.InvalidArgument("merge: at least one pair of (O, LSE) is needed, got none")
    for n, pair in enumerate(o_and_lse):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"merge: pair {n}: (O, LSE) is needed, got {type(pair).__name__}")
        o, lse = pair
        for name, x in (("O", o), ("LSE", lse)):
            if not isinstance(x, torch.Tensor):
                raise TypeError(
                    f"merge: pair {n}: {name}: a tensor is needed, got {type(x).__name__}"
                )
            _runs.ordinary([f"merge: pair {n}: {name}"], x)
            if x.dim() < 2 or x.device != o_and_lse[0][0].device:
                raise _errors.InvalidArgument(
                    f"merge: pair {n}: {name}: rows on {o_and_lse[0][0].device} are needed, got "
                    f"{list(x.shape)} on {x.device}"
                )
            if not x.is_floating_point() or (name == "O" and x.dtype != o_and_lse[0][0].dtype):
                needed = "real numbers" if n == 0 or name == "LSE" else "those of pair 0"
                raise _errors.InvalidArgument(
                    f"merge: pair {n}: {name}: {needed} are needed, got {x.dtype}"
                )
        if o.shape != o_and_lse[0][0].shape or _by_row(lse, layout).shape[:-1] != o.shape[:-1]:
            raise _errors.InvalidArgument(
                f"merge: pair {n}: an LSE of O's rows, and the O of pair 0, "
                f"{list(o_and_lse[0][0].shape)}, are needed, got O {list(o.shape)} and LSE "
                f"{list(lse.shape)} with layout={layout!r}"
            )
    stacked = torch.stack([lse for _, lse in o_and_lse])
    largest = stacked.detach().amax(0)
    largest = torch.where(largest.isinf() & (largest < 0), torch.zeros_like(largest), largest)
    weights = (stacked - largest).exp()
    total = weights.sum(0)
    none = total == 0
    safe = torch.where(none, torch.ones_like(total), total)
    merged = torch.where(none, torch.full_like(total, float("-inf")), safe.log() + largest)
    summed = None
    for (o, _), weight in zip(o_and_lse, weights, strict=True):
        w = _by_row(weight / safe, layout)
        # Taken out before it is weighed: 0 times what is no number has a gradient that is none.
        part = w * torch.where(w == 0, 0.0, o.to(w.dtype))
        summed = part if summed is None else summed + part
    assert summed is not None
    return summed.to(o_and_lse[0][0].dtype), merged


def _by_row(lse: Tensor, layout: str) -> Tensor:
    """LSE [batch, heads, tokens] as a column for each row of O."""
    return (lse if layout == "bhsd" else lse.transpose(-1, -2)).unsqueeze(-1)

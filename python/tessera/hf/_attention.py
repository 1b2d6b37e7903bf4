# SPDX-License-Identifier: Apache-2.0
"""The attention function, with the arguments that transformers gives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tessera
from tessera import _runs
from tessera.hf import _held, _lengths

PatternOf = Callable[[Any, int], tessera.Pattern]

# What models pass for functions that this one does not have; None and False are no use of them.
_REFUSED = {
    "softcap": "soft-capping of scores",
    "s_aux": "a sink logit of each head",
    "sinks": "a sink logit of each head",
    "position_bias": "a bias of positions",
    "attention_bias": "an additive bias",
    "alibi": "an additive bias",
    "head_mask": "a mask of heads",
    "indices": "attention to keys that the model selects",
    "block_indices": "attention to blocks that the model selects",
    "output_attentions": "returning attention weights",
    "cache": "a paged cache of continuous batching",
}


class Attention:
    """An attention function for AttentionInterface."""

    def __init__(self, pattern: tessera.Pattern | PatternOf) -> None:
        self._fixed = pattern if isinstance(pattern, tessera.Pattern) else None
        self._of = None if self._fixed is not None else pattern

    def pattern(self, module: torch.nn.Module) -> tessera.Pattern:
        """The pattern of a model's attention layer."""
        if self._fixed is not None:
            return self._fixed
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise tessera.Unsupported(
                f"pattern: a function of layers cannot tell those of {type(module).__name__} "
                "apart, which has no layer_idx: register one pattern for such models"
            )
        return self.of_layer(module.config, layer)

    def of_layer(self, config: Any, layer: int) -> tessera.Pattern:
        """The pattern of a layer by its index."""
        if self._fixed is not None:
            return self._fixed
        assert callable(self._of)
        found = self._of(config, layer)
        if not isinstance(found, tessera.Pattern):
            raise TypeError(
                f"pattern: must return a tessera pattern for layer {layer}, got {found!r}"
            )
        return found

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        position_ids: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Attention on [batch, heads, tokens, dim]: ([batch, tokens, heads, dim], None)."""
        for name, meaning in _REFUSED.items():
            if kwargs.get(name) is not None and kwargs[name] is not False:
                raise tessera.Unsupported(f"{name}: {meaning} is not supported")
        if dropout:
            raise tessera.Unsupported(
                f"dropout: {dropout} is not supported; set attention_dropout to 0 in the config"
            )
        pattern = self.pattern(module)
        layer, keys = None, key.shape[2]
        if isinstance(key, _held.Held):
            layer, key = key.layer, _held.plain(key)
            keys = layer.get_seq_length()
        _check(module, pattern, query, keys, is_causal, sliding_window)
        query, key, value = _same_type(module, query, key, value)
        width = value.shape[-1]
        if width < query.shape[-1]:
            value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
        if layer is not None:
            o = layer.attend(
                pattern, query, key, value, scaling, attention_mask, position_ids, cu_seq_lens_q
            )
            return o[..., :width], None
        o = _attend(
            pattern,
            query,
            key,
            value,
            scaling,
            attention_mask,
            position_ids,
            cu_seq_lens_q,
            cu_seq_lens_k,
        )
        return o[..., :width], None


def _check(
    module: torch.nn.Module,
    pattern: tessera.Pattern,
    query: Tensor,
    keys: int,
    is_causal: bool | None,
    sliding_window: int | None,
) -> None:
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if bool(causal) != pattern.causal and query.shape[2] > 1:
        raise tessera.InvalidArgument(
            f"is_causal: {bool(causal)} in the model, but the pattern has causal={pattern.causal}"
        )
    if sliding_window is not None and keys > sliding_window:
        window = isinstance(pattern, tessera.Window) and pattern.sinks == 0
        if not window or not 0 <= pattern.left < sliding_window:  # type: ignore[attr-defined]
            raise tessera.Unsupported(
                f"sliding_window: {sliding_window} tokens in the model, which the pattern does not "
                "keep to; set it to None in the config, or give these layers "
                f"tessera.Window(left={sliding_window - 1})"
            )
    if isinstance(pattern, tessera.S2) and pattern.heads_total is None:
        total = getattr(module.config, "num_attention_heads", None)
        if isinstance(total, int) and query.shape[1] < total and not pattern.homogeneous:
            raise tessera.InvalidArgument(
                f"query: {query.shape[1]} of the model's {total} heads: the pattern needs "
                "heads_total, and head_first or head_ids"
            )


def _same_type(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One type for all three: that of the weights where norms made float32 of it (PEFT)."""
    dtype = query.dtype
    if dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type):
        for layer in module.modules():
            if isinstance(layer, torch.nn.Linear):
                if layer.weight.dtype in (torch.float16, torch.bfloat16):
                    dtype = layer.weight.dtype
                break
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _attend(
    pattern: tessera.Pattern, query: Tensor, key: Tensor, value: Tensor, scale: float | None,
    mask: Tensor | None, position_ids: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attention as the mask function's tensor says; [batch, tokens, heads, dim]."""
    batch, _, q_len, _ = query.shape
    _lengths.refuse_others(mask, batch)
    if cu_q is not None:
        if cu_k is None and key.shape[2] != q_len:
            raise tessera.InvalidArgument(
                f"cu_seq_lens_k: needed with {key.shape[2]} keys in a row and {q_len} queries"
            )
        return _packed(pattern, query, key, value, scale, cu_q, cu_q if cu_k is None else cu_k)
    if mask is not None and mask.shape[2] == _lengths.PACKED_ROWS:
        cumulative = mask[0, 0, 0]
        return _packed(pattern, query, key, value, scale, cumulative, cumulative)
    if mask is not None and mask.shape[3] == 1:
        torch._assert_async(mask.flatten()[0] != 0, _lengths.NO_PACKED_ROWS)
        mask = None
    if mask is None:
        if q_len == key.shape[2] and position_ids is not None:
            found = _cumulative(position_ids, batch, q_len)
            if found is not None:
                return _packed(pattern, query, key, value, scale, found, found)
        o = tessera.attention(query, key, value, pattern, layout="bhsd", scale=scale)
        return o.transpose(1, 2)
    words = mask[:, 0, 0]
    queries, keys = words[:, 0], words[:, 1]
    if isinstance(pattern, tessera.Dense) and not pattern.causal:
        # All queries, whose places mean nothing: those of padding have a result as well, and in
        # cross-attention none of them is padding.
        if words.shape[1] == 4:
            before = words[:, 3].to(query.device)
            key, value = (_roll(x.transpose(1, 2), before).transpose(1, 2) for x in (key, value))
        o = tessera.attention(
            query, key, value, pattern, layout="bhsd", scale=scale, kv_lens=keys
        )
        return o.transpose(1, 2)
    if words.shape[1] == 2:
        o = tessera.attention(
            query, key, value, pattern, layout="bhsd", scale=scale, q_lens=queries, kv_lens=keys
        )
        return o.transpose(1, 2)
    if not torch.compiler.is_compiling() and not torch.is_grad_enabled() and words.is_cpu:
        if not bool(words[:, 2].any()) and bool((queries == q_len).all()):
            return _by_sequence(pattern, query, key, value, scale, words)
    q_before, k_before = words[:, 2].to(query.device), words[:, 3].to(query.device)
    o = tessera.attention(
        _roll(query.transpose(1, 2), q_before),
        _roll(key.transpose(1, 2), k_before),
        _roll(value.transpose(1, 2), k_before),
        pattern,
        scale=scale,
        q_lens=queries,
        kv_lens=keys,
    )
    return _roll(o, -q_before)


def _by_sequence(
    pattern: tessera.Pattern,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    words: Tensor,
) -> Tensor:
    """New queries after keys of a cache with padding before them: views, instead of copies of the
    whole cache for each token."""
    found = []
    for n, (_, count, _, before) in enumerate(words.tolist()):
        row, keys = slice(n, n + 1), slice(before, before + count)
        one = key[row, :, keys], value[row, :, keys]
        found.append(tessera.attention(query[row], *one, pattern, layout="bhsd", scale=scale))
    return torch.cat(found).transpose(1, 2)


def _roll(x: Tensor, by: Tensor) -> Tensor:
    """Moves the tokens of each sequence of x [batch, tokens, ...] to the front by its number."""
    tokens = x.shape[1]
    index = (torch.arange(tokens, device=x.device) + by[:, None]) % tokens
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]


def _packed(
    pattern: tessera.Pattern,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    cu_q: Tensor,
    cu_k: Tensor,
) -> Tensor:
    batch, heads, q_len, dim = query.shape
    q, k, v = (
        x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in (query, key, value)
    )
    o = tessera.attention(
        q, k, v, pattern, layout="thd", scale=scale, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k
    )
    return o.reshape(batch, q_len, heads, dim)


# Whether each position but the first of a row follows the one before it, by the id of the tensor of
# positions, which a weak reference guards: layers of one forward pass have the same.
_known: dict[int, tuple[Any, int, Tensor]] = {}


def _cumulative(position_ids: Tensor, batch: int, tokens: int) -> Tensor | None:
    """Cumulative lengths of sequences packed into rows; None where each row is one sequence."""
    if torch.compiler.is_compiling() or position_ids.dim() != 2 or position_ids.shape[1] != tokens:
        return None
    near = _near(position_ids).expand(batch, -1)
    if bool(near.all()):
        return None
    starts = torch.cat([torch.ones(batch, 1, dtype=torch.bool), ~near], 1).flatten()
    end = torch.tensor([batch * tokens])
    return torch.cat([starts.nonzero().flatten(), end]).to(torch.int32)


def _near(position_ids: Tensor) -> Tensor:
    ident, kept = id(position_ids), _runs.tells_changes(position_ids)
    known = _known.get(ident) if kept else None
    if known is not None and known[0]() is position_ids and known[1] == position_ids._version:
        return known[2]
    near = (position_ids.diff(dim=1) == 1).cpu()
    if kept:
        guard = weakref.ref(position_ids, lambda _: _known.pop(ident, None))
        _known[ident] = (guard, position_ids._version, near)
    return near

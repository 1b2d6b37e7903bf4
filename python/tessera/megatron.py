# SPDX-License-Identifier: Apache-2.0
"""Megatron-core: attention by a pattern as `core_attention` of a layer spec.

    import functools
    import tessera
    from tessera.megatron import S2Attention

    attention = S2Attention.by(tessera.S2(block=64, local=16, stride=8))
    submodules = SelfAttentionSubmodules(..., core_attention=attention, ...)

It stands where DotProductAttention and TEDotProductAttention do. Heads of the pattern are those of
the whole model: the module's own come from its tensor-parallel rank. With `assign_heads(pattern,
ranks).pattern` every rank has as much to compute.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.process_groups_config import (  # type: ignore
    ProcessGroupCollection,
)
from megatron.core.transformer.enums import AttnMaskType  # type: ignore
from megatron.core.transformer.module import MegatronModule  # type: ignore
from megatron.core.transformer.utils import is_layer_window_attention  # type: ignore
from torch import Tensor

import tessera
from tessera import _runs

__all__ = ["S2Attention"]

PatternOf = Callable[[Any, int], tessera.Pattern]


class S2Attention(MegatronModule):  # type: ignore
    """Core attention by a pattern.

    config, layer_number, attn_mask_type, attention_type, attention_dropout, softmax_scale,
    cp_comm_type, pg_collection: as DotProductAttention takes them. Layers count from 1 over the
        whole pipeline.
    pattern: a tessera pattern, or a function of (config, layer number) that returns one. None: what
        `by` was given, or else `config.tessera_pattern`.

    Refused by name: dropout, context parallelism, sink logits (softmax_type), qk_clip, biases,
    masks of padding that are no packed sequences, windows that the pattern does not keep to.
    """

    pattern: tessera.Pattern | PatternOf | None = None

    @classmethod
    def by(cls, pattern: tessera.Pattern | PatternOf) -> functools.partial[S2Attention]:
        """The class with its pattern, to name in a layer spec."""
        return functools.partial(cls, pattern=pattern)

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        pattern: tessera.Pattern | PatternOf | None = None,
    ) -> None:
        super().__init__(config=config)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        _refuse("attention_dropout", dropout, "dropout", 0)
        _refuse("context_parallel_size", config.context_parallel_size, "context parallelism", 1)
        _refuse("softmax_type", getattr(config, "softmax_type", "vanilla"), "it", "vanilla")
        _refuse("qk_clip", getattr(config, "qk_clip", False), "it", False)
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        self.attention_type = attention_type
        if pg_collection is None:
            pg_collection = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp"])
        elif not hasattr(pg_collection, "tp"):
            raise tessera.InvalidArgument("pg_collection: has no group tp")
        ranks, rank = pg_collection.tp.size(), pg_collection.tp.rank()
        heads, groups = config.num_attention_heads, config.num_query_groups
        if heads % ranks:
            raise tessera.InvalidArgument(
                f"num_attention_heads: {heads} cannot be shared by {ranks} tensor-parallel ranks"
            )
        self.num_attention_heads_per_partition = heads // ranks
        self.hidden_size_per_partition = config.kv_channels * heads // ranks
        # A model with fewer kv heads than ranks comes with num_query_groups = ranks: each rank then
        # has one kv head, that of its query heads.
        self.num_query_groups_per_partition = max(1, groups // ranks)
        # Megatron divides by the layer's number here and multiplies in the softmax, for half
        # precision's sake: together nothing.
        self.softmax_scale = (
            1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale
        )
        self.tessera_pattern = _of_rank(
            self._pattern(config, pattern), heads, groups, ranks, rank
        )
        self._check_window(config)

    def _pattern(
        self, config: Any, given: tessera.Pattern | PatternOf | None
    ) -> tessera.Pattern:
        found: Any = given if given is not None else type(self).pattern
        if found is None:
            found = getattr(config, "tessera_pattern", None)
        if callable(found) and not isinstance(found, tessera.Pattern):
            found = found(config, self.layer_number)
        if not isinstance(found, tessera.Pattern):
            raise tessera.InvalidArgument(
                f"pattern: layer {self.layer_number} needs a tessera pattern: name "
                "S2Attention.by(pattern) in the layer spec, or set config.tessera_pattern; got "
                f"{found!r}"
            )
        return found

    def _check_window(self, config: Any) -> None:
        size = getattr(config, "window_size", None)
        skip = getattr(config, "window_attn_skip_freq", None)
        if size is None or not is_layer_window_attention(size, skip, self.layer_number):
            return
        pattern = self.tessera_pattern
        if isinstance(pattern, tessera.Window) and pattern.sinks == 0:
            if 0 <= pattern.left <= size[0]:
                return
        raise tessera.Unsupported(
            f"window_size: {size} in layer {self.layer_number}, which the pattern does not keep to"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """[tokens, batch, heads, dim] in, [tokens, batch, heads * dim] out; with packed sequences
        [tokens, heads, dim] in and [tokens, heads * dim] out.

        attention_mask: not looked at, as in Transformer Engine, where attn_mask_type is causal.
        packed_seq_params: cumulative lengths, and padded ones that say where each sequence begins.
            Padding between sequences gives 0 and is not read.
        """
        if attention_bias is not None:
            raise tessera.Unsupported("attention_bias: an additive bias is not supported")
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        packed = packed_seq_params is not None and packed_seq_params.qkv_format == "thd"
        if packed_seq_params is not None and packed_seq_params.qkv_format not in ("thd", "sbhd"):
            raise tessera.Unsupported(
                f"packed_seq_params: qkv_format={packed_seq_params.qkv_format!r}, 'thd' or 'sbhd' "
                "is needed"
            )
        _check_order(kind, self.tessera_pattern.causal, packed, query.shape[0])
        if packed:
            if query.dim() != 3:
                raise tessera.InvalidArgument(
                    f"query: [tokens, heads, dim] is needed with packed_seq_params, got shape "
                    f"{list(query.shape)}"
                )
            cu_q, cu_k = _cumulative(packed_seq_params)
            o = tessera.attention(
                query,
                key,
                value,
                self.tessera_pattern,
                layout="thd",
                scale=self.softmax_scale,
                cu_seqlens_q=cu_q,
                cu_seqlens_k=cu_k,
            )
            return o.reshape(o.shape[0], -1)
        if query.dim() != 4:
            raise tessera.InvalidArgument(
                f"query: [tokens, batch, heads, dim] is needed, got shape {list(query.shape)}"
            )
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        o = tessera.attention(q, k, v, self.tessera_pattern, scale=self.softmax_scale)
        return o.transpose(0, 1).reshape(o.shape[1], o.shape[0], -1)


def _refuse(name: str, value: Any, what: str, off: Any) -> None:
    if value != off:
        raise tessera.Unsupported(f"{name}: {value!r}: {what} is not supported, set it to {off!r}")


def _of_rank(
    pattern: tessera.Pattern, heads: int, groups: int, ranks: int, rank: int
) -> tessera.Pattern:
    """The pattern of a rank's query heads."""
    kv_total = None
    if isinstance(pattern, tessera.S2):
        if pattern.heads_total not in (None, heads):
            raise tessera.InvalidArgument(
                f"pattern: heads_total={pattern.heads_total}, the model has {heads} heads"
            )
        ids = pattern.head_ids
        if pattern.head_first or (ids is not None and sorted(ids) != list(range(heads))):
            raise tessera.InvalidArgument(
                "pattern: head_first, head_ids: the heads of a rank are its own; give the whole "
                "model's pattern, whose head_ids say the order of all heads"
            )
        kv_total = pattern.kv_heads_total
        if pattern.per_kv_head and kv_total is None:
            if 1 < ranks == groups:
                # So it is too if the model has fewer kv heads than ranks.
                raise tessera.InvalidArgument(
                    f"pattern: per_kv_head with {ranks} ranks and as many kv heads a rank as one: "
                    "kv_heads_total, the model's number of kv heads, is needed"
                )
            kv_total = groups
    if ranks == 1 and kv_total is None and not isinstance(pattern, tessera.S2):
        return pattern
    count = heads // ranks
    here = range(rank * count, (rank + 1) * count)
    order = pattern.head_ids if isinstance(pattern, tessera.S2) else None
    return pattern.on_heads([order[n] for n in here] if order else here, heads, kv_total)


def _check_order(kind: Any, causal: bool, packed: bool, q_len: int) -> None:
    """Whether Megatron's kind of mask is the pattern's."""
    if kind in (AttnMaskType.padding, AttnMaskType.arbitrary):
        if not (packed and kind == AttnMaskType.padding and not causal):
            raise tessera.Unsupported(
                f"attn_mask_type: {kind.name}: a mask beside the pattern is not supported; pack "
                "the sequences (packed_seq_params)"
            )
    elif kind == AttnMaskType.padding_causal and not packed:
        raise tessera.Unsupported(
            "attn_mask_type: padding_causal is supported with packed_seq_params only"
        )
    wanted = kind not in (AttnMaskType.no_mask, AttnMaskType.padding)
    # One new token reads what is there, in either order.
    if wanted != causal and not (q_len == 1 and not packed):
        raise tessera.InvalidArgument(
            f"attn_mask_type: {kind.name}, but the pattern has causal={causal}"
        )


# Lengths of the layers of one step, by their tensors' ids, which weak references guard.
_known: dict[tuple[int, ...], tuple[Any, tuple[int, ...], tuple[Tensor, Tensor]]] = {}


def _cumulative(params: Any) -> tuple[Tensor, Tensor]:
    """Cumulative lengths of q and k on the CPU, where padding is sequences of its own: padded
    queries without keys and padded keys without queries."""
    cu_q, cu_k = params.cu_seqlens_q, params.cu_seqlens_kv
    if cu_q is None:
        raise tessera.InvalidArgument("packed_seq_params: cu_seqlens_q is needed")
    cu_k = cu_q if cu_k is None else cu_k
    at_q = getattr(params, "cu_seqlens_q_padded", None)
    at_k = getattr(params, "cu_seqlens_kv_padded", None)
    at_q = cu_q if at_q is None else at_q
    at_k = cu_k if at_k is None else at_k
    given = (cu_q, cu_k, at_q, at_k)
    for x in given:
        if not isinstance(x, Tensor) or x.dim() != 1 or x.dtype not in (torch.int32, torch.int64):
            got = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else repr(x)
            raise tessera.InvalidArgument(
                f"packed_seq_params: cumulative lengths are 1-D tensors of integers, got {got}"
            )
    if not all(map(_runs.tells_changes, given)):
        return _made(given)
    key, versions = tuple(map(id, given)), tuple(x._version for x in given)
    known = _known.get(key)
    if known is not None:
        references, of_versions, result = known
        if of_versions == versions and all(r() is x for r, x in zip(references, given)):
            return result
    result = _made(given)
    if len(_known) >= 64:
        _known.clear()
    _known[key] = (tuple(weakref.ref(x) for x in given), versions, result)
    return result


def _made(given: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    lists = [x.tolist() for x in given]
    if len({len(x) for x in lists}) != 1:
        raise tessera.InvalidArgument(
            f"packed_seq_params: cumulative lengths of {[len(x) for x in lists]} values"
        )
    return _with_gaps(lists[0], lists[2], 1), _with_gaps(lists[1], lists[3], 2)


def _with_gaps(lengths: list[int], places: list[int], part: int) -> Tensor:
    """Cumulative lengths of three sequences for each: its tokens, then padding as part `part`."""
    found = [0]
    for n in range(len(lengths) - 1):
        real, room = lengths[n + 1] - lengths[n], places[n + 1] - places[n]
        if not 0 <= real <= room:
            raise tessera.InvalidArgument(
                f"packed_seq_params: sequence {n} has {real} tokens in a place for {room}"
            )
        gap = (room - real, 0) if part == 1 else (0, room - real)
        for count in (real, *gap):
            found.append(found[-1] + count)
    return torch.tensor(found, dtype=torch.int64)

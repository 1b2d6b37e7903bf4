# SPDX-License-Identifier: Apache-2.0
"""The mask function: lengths and positions instead of a mask of tokens by tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tessera
from tessera.hf import _lengths

MaskFunction = Callable[..., Any]


def _padding(attention_mask: Tensor, seen: int) -> Tensor:
    """The padding mask of the tokens seen so far, filled up with 0."""
    if attention_mask.dim() != 2:
        raise tessera.Unsupported(
            f"attention_mask: [batch, tokens] is needed, got shape {list(attention_mask.shape)}"
        )
    mask = attention_mask[:, :seen].to(torch.bool)
    missing = seen - mask.shape[1]
    return torch.nn.functional.pad(mask, (0, missing)) if missing > 0 else mask


def _run(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and end of the one run of ones in each row, and whether each row has no other."""
    tokens = torch.arange(mask.shape[1], device=mask.device)
    count = mask.sum(1)
    first = torch.where(count > 0, mask.to(torch.int32).argmax(1), 0)
    end = first + count
    whole = (mask == ((tokens >= first[:, None]) & (tokens < end[:, None]))).all(1)
    return first, end, whole


def _neighbours(function: MaskFunction, batch: int, tokens: int, device: Any) -> Tensor:
    """Whether each token but the first sees the one before it: [batch, tokens - 1]."""
    rows = torch.arange(batch, device=device)[:, None]
    later = torch.arange(1, tokens, device=device)[None]
    found: Tensor = function(rows, torch.zeros_like(rows), later, later - 1)
    return found.expand(batch, tokens - 1)


def _ahead(
    function: MaskFunction, batch: int, first: int | Tensor, rows: int, device: Any
) -> Tensor:
    """Whether any row but the last sees the token after it."""
    which = torch.arange(batch, device=device)[:, None]
    here = first + torch.arange(rows - 1, device=device)[None]
    found: Tensor = function(which, torch.zeros_like(which), here, here + 1)
    return found.any()


_BLOCKS = (
    "block_sequence_ids: tokens that see later ones of their block (of an image, say) are not "
    "supported"
)


def _sees(function: MaskFunction, q: int, k: int, device: Any) -> bool:
    def index(n: int) -> Tensor:
        return torch.full((1, 1), n, dtype=torch.int64, device=device)

    return bool(function(index(0), index(0), index(q), index(k)))


def _look(config: type) -> bool:
    """Whether attention of a config's models is a function that can be another one. A model that
    has only its own takes None for no mask at all, its causal order included."""
    name = config.__module__.replace(".configuration_", ".modeling_")
    module = sys.modules.get(name)
    if module is None or name == config.__module__ or hasattr(module, "ALL_ATTENTION_FUNCTIONS"):
        return True
    return not any(
        isinstance(x, type) and x.__module__ == name and "Attention" in x.__name__
        for x in vars(module).values()
    )


# Not traced; untyped in PyTorch.
_takes_functions: Callable[[type], bool] = getattr(torch.compiler, "assume_constant_result")(_look)


class Masks:
    """A mask function for AttentionMaskInterface."""

    def __init__(self, causal: MaskFunction, bidirectional: MaskFunction | None) -> None:
        self._plain = (causal, bidirectional)

    def __call__(
        self,
        batch_size: int,
        q_length: int | None = None,
        kv_length: int = 0,
        q_offset: int | Tensor = 0,
        kv_offset: int | Tensor = 0,
        mask_function: MaskFunction | None = None,
        attention_mask: Tensor | None = None,
        local_size: int | None = None,
        use_vmap: bool = False,
        device: Any = "cpu",
        cache_position: Tensor | None = None,
        allow_is_bidirectional_skip: bool | None = None,
        config: Any = None,
        **_: Any,
    ) -> Tensor | None:
        """What `_lengths` says, from what transformers knows of a forward pass."""
        if config is not None and not _takes_functions(type(config)):
            raise tessera.Unsupported(
                f"attn_implementation: models of {type(config).__name__} compute attention by "
                "themselves, and no registered function does it for them"
            )
        if q_length is None:  # transformers before 5.3
            assert cache_position is not None
            q_length, q_offset = cache_position.shape[0], cache_position[0]
        function = self._plain[0] if mask_function is None else mask_function
        if use_vmap:
            raise tessera.Unsupported(
                "and_mask_function, or_mask_function: a mask beside the pattern is not supported; "
                "make it part of the pattern"
            )
        tracing = torch.compiler.is_compiling()
        if not isinstance(kv_offset, int):
            kv_offset = 0 if tracing else int(kv_offset)
        if kv_offset != 0:
            raise tessera.Unsupported(
                f"past_key_values: the cache has dropped {kv_offset} tokens, which the pattern may "
                "still read; use a DynamicCache() made without a config, or a StaticCache without "
                "sliding layers"
            )
        # Only masks without order come with this word.
        ordered = allow_is_bidirectional_skip is None and function not in self._plain
        if tracing:
            if ordered and q_length > 1:
                ahead = _ahead(function, batch_size, q_offset, q_length, device)
                torch._assert_async(~ahead, _BLOCKS)
            return self._traced(
                batch_size, q_length, kv_length, q_offset, function, attention_mask, device
            )
        if attention_mask is not None and attention_mask.shape[:1] != (batch_size,):
            raise tessera.InvalidArgument(
                f"attention_mask: a row for each of {batch_size} sequences is needed, got shape "
                f"{list(attention_mask.shape)}"
            )
        q_first = int(q_offset)
        seen = q_first + q_length
        if ordered and q_length > 1:
            if bool(_ahead(function, batch_size, q_first, q_length, device)):
                raise tessera.Unsupported(_BLOCKS)
        if function not in self._plain and local_size is None:
            found = self._packed(batch_size, q_length, function, device)
            if found is not None:
                return found
        elif function not in self._plain:
            self._window(seen, function, local_size, device)
        if attention_mask is None or function is self._plain[1]:
            return self._unpadded(batch_size, q_length, kv_length, seen, attention_mask, function)
        first, end, whole = _run(_padding(attention_mask, seen).cpu())
        if not bool(whole.all()):
            row = int(whole.int().argmin())
            raise tessera.Unsupported(
                f"attention_mask: row {row} has gaps between real tokens; padding on the left or "
                "on the right, or both, is supported"
            )
        if seen == kv_length and int(first.max()) == 0 and int(end.min()) == seen:
            return None
        return self._words(q_length, q_first, first, end)

    def _unpadded(
        self,
        batch: int,
        q_length: int,
        kv_length: int,
        seen: int,
        attention_mask: Tensor | None,
        function: MaskFunction,
    ) -> Tensor | None:
        if function is self._plain[1]:
            if attention_mask is None or bool(attention_mask.all()):
                return None
            first, end, whole = _run(_padding(attention_mask, kv_length).cpu())
            if not bool(whole.all()):
                raise tessera.Unsupported("attention_mask: gaps between real tokens")
            return self._without_order(q_length, kv_length, first, end)
        if seen == kv_length:
            return None
        # A cache whose keys outnumber what it has seen.
        return _lengths.lengths(torch.full((batch,), q_length), torch.full((batch,), seen))

    def _without_order(
        self, q_length: int, kv_length: int, first: Tensor, end: Tensor
    ) -> Tensor:
        """Every key is read; as many queries as keys are padded as those."""
        if q_length == kv_length:
            return self._words(q_length, 0, first, end)
        queries = torch.full_like(first, q_length)
        return _lengths.shifted(queries, end - first, torch.zeros_like(first), first)

    @staticmethod
    def _words(q_length: int, q_first: int | Tensor, first: Tensor, end: Tensor) -> Tensor:
        before = (first - q_first).clamp(min=0)
        queries = (end - q_first - before).clamp(0, q_length)
        if not torch.compiler.is_compiling() and not bool(first.any()):
            return _lengths.lengths(queries, end)
        return _lengths.shifted(queries, end - first, before, first)

    @staticmethod
    def _packed(
        batch: int, q_length: int, function: MaskFunction, device: Any
    ) -> Tensor | None:
        """Sequences that share a row, which transformers found by their positions."""
        near = _neighbours(function, batch, q_length, device).cpu()
        starts = torch.cat([torch.ones(batch, 1, dtype=torch.bool), ~near], 1).flatten()
        places: list[int] = starts.nonzero().flatten().tolist()
        if len(places) == batch:
            return None
        return _lengths.packed([*places, batch * q_length])

    @staticmethod
    def _window(seen: int, function: MaskFunction, size: int | None, device: Any) -> None:
        """Refuses chunks of attention; that a window is the pattern's, the attention checks."""
        if size is not None and 1 < size < seen and not _sees(function, size, 1, device):
            raise tessera.Unsupported(
                f"attention_chunk_size: chunks of {size} tokens are not supported"
            )

    def _traced(
        self,
        batch: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor,
        function: MaskFunction,
        attention_mask: Tensor | None,
        device: Any,
    ) -> Tensor | None:
        """The same as tensor operations without branches on values."""
        if function is self._plain[1]:
            if attention_mask is None:
                return None
            first, end, whole = _run(_padding(attention_mask, kv_length))
            torch._assert_async(whole.all(), "attention_mask: gaps between real tokens")
            return self._without_order(q_length, kv_length, first, end)
        if attention_mask is not None:
            if isinstance(q_offset, Tensor):
                # What lies past the tokens seen is 0 in the mask.
                mask = _padding(attention_mask, kv_length)
                tokens = torch.arange(kv_length, device=mask.device)
                mask = mask & (tokens < q_offset + q_length)
            else:
                mask = _padding(attention_mask, q_offset + q_length)
            first, end, whole = _run(mask)
            torch._assert_async(whole.all(), "attention_mask: gaps between real tokens")
            return self._words(q_length, q_offset, first, end)
        one_each = None  # sequence in each row
        if function not in self._plain:
            one_each = _neighbours(function, batch, q_length, device).all()
        if isinstance(q_offset, Tensor):
            seen = (q_offset + q_length).expand(batch)
        elif kv_length == q_offset + q_length:
            return None if one_each is None else _lengths.one_sequence(one_each)
        else:  # of a new StaticCache, which has seen nothing
            seen = torch.full((batch,), q_offset + q_length, device=device)
        if one_each is not None:
            torch._assert_async(one_each, _lengths.NO_PACKED_ROWS)
        return _lengths.lengths(torch.full_like(seen, q_length), seen)

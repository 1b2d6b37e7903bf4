# SPDX-License-Identifier: Apache-2.0
"""tessera.hf.S2Cache: a transformers Cache whose layers keep what their pattern can still see."""

from __future__ import annotations

from typing import Any, Literal

import torch
import transformers
import transformers.cache_utils
from torch import Tensor

import tessera
from tessera import _shapes
from tessera._cache_words import check_words
from tessera.hf import _attention, _held, _lengths

_library: Any = transformers  # whose types differ from version to version

_DENSE = ("full_attention", "sliding_attention", "chunked_attention")


class S2Layer(_library.cache_utils.CacheLayerMixin):  # type: ignore[misc]
    """A layer of S2Cache: a tessera.KVCache that is made when its first tokens come."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, pattern: tessera.Pattern, number: int, **words: Any) -> None:
        super().__init__()
        self.pattern, self.number, self._words = pattern, number, words
        self.cache: tessera.KVCache | None = None
        self._seen = 0  # tokens, padding included
        self._coming = 0  # tokens among them that are on their way to the attention function
        # Before the last step: tokens, and the length of each sequence of the cache.
        self._last: tuple[int, list[int]] = (0, [])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the attention function knows what is needed."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Takes new tokens [batch, kv heads, tokens, dim]; they are kept when the layer's attention
        has asked for them."""
        if torch.compiler.is_compiling():
            raise tessera.Unsupported("past_key_values: S2Cache: torch.compile is not supported")
        self._no_pending()
        self._coming = key_states.shape[-2]
        self._seen += self._coming
        self.batch_size = key_states.shape[0]
        return _held.mark(key_states, self), value_states

    def _no_pending(self) -> None:
        if self._coming:
            raise tessera.InvalidArgument(
                f"past_key_values: layer {self.number} of S2Cache got tokens that no attention of "
                "tessera.hf has asked for; reset() begins anew"
            )

    def attend(
        self,
        pattern: tessera.Pattern,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        mask: Tensor | None,
        position_ids: Tensor | None,
        cu_q: Tensor | None,
    ) -> Tensor:
        """Keeps the new tokens, and attends to all there are: [batch, tokens, heads, dim]."""
        if not self._coming:
            raise tessera.InvalidArgument(
                f"past_key_values: layer {self.number} of S2Cache: the same tokens came twice"
            )
        if pattern != self.pattern:
            raise tessera.InvalidArgument(
                f"past_key_values: layer {self.number} of S2Cache is for {self.pattern!r}, and the "
                f"attention is {pattern!r}"
            )
        kind = query.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        self._no_packed_rows(query, mask, position_ids, cu_q)
        cache = self._kept(query, key)
        lengths = [cache.length(s) for s in range(cache.sequences)]
        self._last = self._seen - self._coming, lengths
        new, before = self._new(query, lengths, mask)
        if before is not None:
            at = torch.tensor(before, device=query.device)
            query, key, value = (
                _attention._roll(x.transpose(1, 2), at) for x in (query, key, value)
            )
        else:
            query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        o = self._run(cache, query, key, value, scale, new, not any(lengths))
        self._coming = 0
        return o if before is None else _attention._roll(o, -at)

    def _run(
        self,
        cache: tessera.KVCache,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        new: list[int] | None,
        first: bool,
    ) -> Tensor:
        if not first:
            return tessera.attention(
                query, key, value, self.pattern, scale=scale, q_lens=new, cache=cache
            )
        # The first tokens need nothing of the cache: one call, whatever their number is.
        cache.append(key, value, q_lens=new)
        return tessera.attention(
            query, key, value, self.pattern, scale=scale, q_lens=new, kv_lens=new
        )

    def _no_packed_rows(
        self,
        query: Tensor,
        mask: Tensor | None,
        position_ids: Tensor | None,
        cu_q: Tensor | None,
    ) -> None:
        batch, _, tokens, _ = query.shape
        _lengths.refuse_others(mask, batch)
        packed = cu_q is not None or (mask is not None and mask.shape[2] == _lengths.PACKED_ROWS)
        if not packed and mask is None and position_ids is not None and self._seen == tokens:
            packed = _attention._cumulative(position_ids, batch, tokens) is not None
        if packed:
            raise tessera.Unsupported(
                "position_ids, cu_seq_lens_q: packed rows with S2Cache are not supported; give "
                "each sequence a row of its own"
            )

    def _kept(self, query: Tensor, key: Tensor) -> tessera.KVCache:
        """The cache of this layer, made for what comes first."""
        if self._seen == self._coming and self.cache is not None and not self._fits(query, key):
            self.cache = None
        if self.cache is None:
            self.cache = tessera.KVCache(
                self.pattern,
                query.shape[1],
                key.shape[1],
                key.shape[3],
                dtype=query.dtype,
                device=query.device,
                sequences=query.shape[0],
                pages="grow",
                **self._words,
            )
            self.is_initialized = True
        if query.shape[0] != self.cache.sequences:
            raise tessera.InvalidArgument(
                f"past_key_values: S2Cache has {self.cache.sequences} sequences, and the input has "
                f"{query.shape[0]}"
            )
        return self.cache

    def _fits(self, query: Tensor, key: Tensor) -> bool:
        """Whether an empty cache is what these tokens need."""
        cache = self.cache
        return cache is not None and (
            cache.sequences, cache.heads, cache.kv_heads, cache.head_dim, cache.dtype, cache.device
        ) == (*query.shape[:2], *key.shape[1::2], query.dtype, query.device)  # fmt: skip

    def _new(
        self, query: Tensor, lengths: list[int], mask: Tensor | None
    ) -> tuple[list[int] | None, list[int] | None]:
        """How many of the new tokens of each sequence are real, and how many padding tokens are
        before them; None: all, and none."""
        tokens = query.shape[2]
        new: list[int] | None = None
        before: list[int] | None = None
        keys = [self._seen] * len(lengths)
        if mask is not None:
            words: list[list[int]] = mask[:, 0, 0].tolist()
            new, keys = [row[0] for row in words], [row[1] for row in words]
            if len(words[0]) == 4 and any(row[2] for row in words):
                before = [row[2] for row in words]
        for s, length in enumerate(lengths):
            count = tokens if new is None else new[s]
            if length + count != keys[s]:
                raise tessera.InvalidArgument(
                    f"attention_mask: row {s} has {keys[s]} real tokens so far, and S2Cache has "
                    f"kept {length} and gets {count}: give the mask of all tokens at every step"
                )
        return new, before

    # ------------------------------------------------------------------------------- sizes

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._seen + query_length, 0

    def get_seq_length(self) -> int:
        return self._seen

    def get_max_length(self) -> int:
        return -1

    @property
    def bytes(self) -> int:
        """Bytes of the layer's pools."""
        return 0 if self.cache is None else self.cache.pool_bytes

    # ------------------------------------------------------------------------------- changes

    @property
    def kept(self) -> int:
        """Tokens that attention has asked for, padding included."""
        return self._seen - self._coming

    def check_undo(self, seen: int) -> None:
        """Raises where the last step, which began at so many tokens, cannot be taken back."""
        if self.cache is not None:
            self.cache._rolled_back(self._since(seen))

    def undo(self, seen: int) -> None:
        """Takes the last step back, if it is there."""
        if self.cache is not None and any(self._since(seen)):
            self.cache.rollback(self._since(seen))
        self._seen, self._coming = seen, 0

    def _since(self, seen: int) -> list[int]:
        """Tokens of each sequence that the step which began at so many tokens has added."""
        assert self.cache is not None
        cache, (begin, lengths) = self.cache, self._last
        if self._seen == seen or begin != seen or len(lengths) != cache.sequences:
            return [0] * cache.sequences
        return [cache.length(s) - before for s, before in enumerate(lengths)]

    def reset(self) -> None:
        self._seen = self._coming = 0
        if self.cache is not None:
            self.cache.clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last tokens: -n of them, or, as in earlier versions of transformers, all
        but the first n. At most max_chunk."""
        self._no_pending()
        count = _removed(tokens_to_remove, self._seen)
        if count and self.cache is not None:
            self.cache.rollback(self._each(count))
            self._seen -= min(count, self._seen)

    def check_crop(self, count: int) -> None:
        """Raises where that many tokens cannot be taken back."""
        self._no_pending()
        if self.cache is not None:
            self.cache._rolled_back(self._each(count))

    def _each(self, count: int) -> list[int]:
        assert self.cache is not None
        cache = self.cache
        return [min(count, cache.length(s)) for s in range(cache.sequences)]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._no_pending()
        if self.cache is not None:
            self.cache.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._no_pending()
        if self.cache is not None:
            self.cache.select(torch.arange(self.cache.sequences)[indices.cpu()])
            self.batch_size = self.cache.sequences

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._no_pending()
        if self.cache is not None:
            self.cache.select(torch.arange(self.cache.sequences).repeat_interleave(repeats))
            self.batch_size = self.cache.sequences

    def offload(self) -> None:
        raise tessera.Unsupported("past_key_values: S2Cache: offloading is not supported")

    prefetch = offload


class S2Cache(_library.cache_utils.Cache):  # type: ignore[misc]
    """A cache for `generate` and for models whose attention is tessera.hf's.

        cache = tessera.hf.S2Cache(model.config)
        model.generate(**inputs, past_key_values=cache)

    Layers with a sparse pattern or a window keep what some head can still see, in pages that are
    overwritten when nothing reads them any more; dense layers are as in DynamicCache.

    config: the model's, whose attn_implementation is one that tessera.hf.register has made known.
    pattern: of the layers, as in tessera.hf.register; by default what was registered.
    max_tokens: the most tokens of a sequence; by default the config's max_position_embeddings.
    max_chunk: the most tokens that can be taken back (drafts of assisted generation), and that a
        prompt is divided into after the first one.
    page: tokens of a page: 16, 32, 64, 128 or 256.
    kv_dtype: "int8" or "e4m3": K and V of 8 bits in those layers.

    Padding on the left or the right, beam search, `crop`, `reset` and copy.deepcopy work. After an
    exception between two layers of a forward pass, the next one begins where that one began, if it
    had at most max_chunk tokens or was the first; else only `reset` helps. Packed rows,
    torch.compile, offloading and gradients are refused by name.
    """

    def __init__(
        self,
        config: Any,
        pattern: tessera.Pattern | _attention.PatternOf | None = None,
        *,
        max_tokens: int | None = None,
        max_chunk: int = 512,
        page: int = 64,
        kv_dtype: Literal["int8", "e4m3"] | None = None,
    ) -> None:
        if not hasattr(config, "get_text_config"):
            raise TypeError(
                f"config: the config of a model is needed, got {type(config).__name__}"
            )
        text = config.get_text_config(decoder=True)
        if max_tokens is None:
            max_tokens = getattr(text, "max_position_embeddings", None) or 32768
        check_words(max_tokens, page, max_chunk, kv_dtype)
        words = dict(max_tokens=max_tokens, max_chunk=max_chunk, page=page, kv_dtype=kv_dtype)
        of_layer = _patterns(text, pattern)
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        if shared := getattr(text, "num_kv_shared_layers", 0):
            kinds = kinds[:-shared]  # the last layers read keys of others
        layers: list[Any] = []
        for n, kind in enumerate(kinds):
            if kind not in _DENSE:
                raise tessera.Unsupported(f"config: layer_types[{n}]: {kind!r} is not supported")
            found = of_layer(text, n)
            sparse = isinstance(found, (tessera.S2, tessera.Window)) and found.causal
            dense = _library.cache_utils.DynamicLayer
            layers.append(S2Layer(found, n, **words) if sparse else dense())
        super().__init__(layers=layers)

    # A forward pass that an exception ends leaves new tokens in some layers alone. They do not
    # count, and are taken back before the next ones come.

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx == 0:
            self._settle()
        found: tuple[Tensor, Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return found

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that a layer has; of layer 0, as models ask, those that all layers have."""
        return self._complete() if layer_idx == 0 else _tokens(self.layers[layer_idx])

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._complete() + query_length, 0

    def _complete(self) -> int:
        """Tokens that all layers have."""
        return min(map(_tokens, self.layers))

    def _settle(self) -> None:
        """Takes back what a forward pass that was cut off has left, in all layers or in none."""
        seen = self._complete()
        sparse = [layer for layer in self.layers if isinstance(layer, S2Layer)]
        try:
            for layer in sparse:
                layer.check_undo(seen)
        except tessera.InvalidArgument as error:
            raise tessera.InvalidArgument(
                f"past_key_values: the last forward pass was cut off after {seen} tokens, and what "
                f"it has left cannot be taken back; reset() begins anew ({error})"
            ) from None
        for n, layer in enumerate(self.layers):
            if isinstance(layer, S2Layer):
                layer.undo(seen)
            elif not seen and _tokens(layer):
                self.layers[n] = type(layer)()  # the next batch may be another one
            elif _tokens(layer) > seen:
                layer.crop(seen - _tokens(layer))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._settle()
        super().reorder_cache(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._settle()
        super().batch_select_indices(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._settle()
        super().batch_repeat_interleave(repeats)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last tokens of all layers, or of none: -n of them, or all but the first
        n. At most max_chunk."""
        self._settle()
        count = _removed(tokens_to_remove, self.get_seq_length())
        if not count:
            return
        for layer in self.layers:
            if isinstance(layer, S2Layer):
                layer.check_crop(count)
        for layer in self.layers:
            layer.crop(-count)

    @property
    def bytes(self) -> int:
        """Bytes that all layers hold."""
        return sum(self.layer_bytes())

    def layer_bytes(self) -> list[int]:
        """Bytes that each layer holds: its pools, or, of a dense layer, its K and V."""
        return [
            layer.bytes
            if isinstance(layer, S2Layer)
            else sum(x.nbytes for x in (layer.keys, layer.values) if x is not None)
            for layer in self.layers
        ]


def _tokens(layer: Any) -> int:
    """Tokens that a layer has."""
    return layer.kept if isinstance(layer, S2Layer) else int(layer.get_seq_length())


def _removed(wanted: int, seen: int) -> int:
    """How many tokens `crop` takes back: -n, or, as in earlier versions of transformers, all but
    the first n."""
    wanted = _shapes.integer("S2Cache: crop: tokens_to_remove", wanted)
    return -wanted if wanted <= 0 else max(0, seen - wanted)


def _patterns(
    config: Any, pattern: tessera.Pattern | _attention.PatternOf | None
) -> _attention.PatternOf:
    """The pattern of each layer."""
    if pattern is None:
        name = config._attn_implementation
        found = _library.AttentionInterface().get(name) if isinstance(name, str) else None
        if not isinstance(found, _attention.Attention):
            raise tessera.InvalidArgument(
                f"config: its attn_implementation is {name!r}, which tessera.hf.register has not "
                "made known; register it, or give a pattern"
            )
        return found.of_layer
    if isinstance(pattern, tessera.Pattern):
        return lambda _config, _layer: pattern
    if not callable(pattern):
        raise TypeError(
            "pattern: a tessera pattern, or a function of (config, layer index) that returns one, "
            f"is needed, got {pattern!r}"
        )
    return _attention.Attention(pattern).of_layer

# SPDX-License-Identifier: Apache-2.0
"""tessera.KVCache: K and V of running sequences, of which each head keeps what it can still see."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from . import (
    _cache_pages,
    _cache_plans,
    _cache_steps,
    _cuda,
    _errors,
    _native,
    _operator,
    _runs,
    _runtime,
    patterns,
)
from ._cache_words import KV, check_words, memory_for, number_of, place_of, wrong

Tensor = torch.Tensor
Bounds = npt.NDArray[np.int64]

_DTYPES = {torch.float32: _native.F32, torch.float16: _native.F16, torch.bfloat16: _native.BF16}
_MOST_SEQUENCES = 65536


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _eager(function: _Function) -> _Function:
    """Keeps a method out of what torch.compile traces: lengths and pages of the host, which calls
    in a graph change when it runs, are not yet what they will be."""
    # Imports nothing before it is called; untyped in PyTorch.
    apart = getattr(torch, "_disable_dynamo")(function)

    @functools.wraps(function)
    def call(*args: Any, **words: Any) -> Any:
        run = apart if torch.compiler.is_compiling() else function
        return run(*args, **words)

    return cast(_Function, call)


def _apart(device: torch.device) -> bool:
    """Whether a device has memory of its own, so that lengths and tables are copied to it."""
    return device.type != "cpu"


class KVCache:
    """A paged KV cache of some layers that have one pattern.

        cache = tessera.KVCache(pattern, heads=32, kv_heads=8, head_dim=128, sequences=4,
                                max_tokens=32768, device="cuda")
        o = tessera.attention(q, k, v, pattern, cache=cache)    # appends k and v, then attends

    Row b of q, k and v is sequence b of the cache: there are `sequences` places for sequences, each
    of a length of its own, at first 0. What no head can see any more is overwritten, so an S2 layer
    takes a fraction of what a dense one does.

    pattern: tessera.S2, Dense or Window, in causal order.
    heads, kv_heads, head_dim: of q, and of k and v.
    dtype: of q, k, v and O: float32, float16 or bfloat16.
    device: "cpu" or a CUDA device.
    sequences: places for sequences; the batch of every step.
    max_tokens: the most tokens of a sequence.
    layers: layers that share lengths and tables, each with pools of its own.
    page: tokens of a page: 16, 32, 64, 128 or 256.
    pages: pages of the pools, one number, or one for each storage group; None: what all sequences
        need at max_tokens; "grow": the pools grow as pages are needed, by an eighth at least.
    max_chunk: the most tokens a sequence may take at once, and be rolled back by. Longer inputs are
        taken in chunks of it. More of them make the ring of every sequence longer.
    kv_dtype: "int8" or "e4m3": K and V of 8 bits, with a float32 scale for each token and kv head.
    part_tokens: the cache keeps a part of the keys, at most so many of a sequence, as a rank does
        that shares long sequences with others: see `part`. None: all keys.

    A cache is used by one thread at a time, and on CUDA in the order of the current stream. It is
    no part of autograd. copy.deepcopy makes a cache of the same content with pools of its own;
    pickling is refused.

    Raises InvalidArgument, Unsupported or TypeError, which name the argument; OutOfMemory where the
    pools have too few pages, and then nothing has changed.
    """

    def __init__(
        self,
        pattern: patterns.Pattern,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
        sequences: int = 1,
        max_tokens: int,
        layers: int = 1,
        page: int = 64,
        pages: int | Sequence[int] | Literal["grow"] | None = None,
        max_chunk: int = 512,
        kv_dtype: Literal["int8", "e4m3"] | None = None,
        part_tokens: int | None = None,
    ) -> None:
        if not isinstance(pattern, patterns.Pattern) or not hasattr(pattern, "_spec"):
            raise TypeError(
                "KVCache: pattern: tessera.S2, Dense or Window is needed, got "
                f"{type(pattern).__name__}"
            )
        if isinstance(pattern, patterns.Blocks):
            raise _errors.Unsupported("KVCache: pattern: Blocks is not supported")
        if not pattern.causal:
            raise _errors.Unsupported("KVCache: pattern: causal=False is not supported")
        self.pattern = pattern
        self.heads = number_of("heads", heads, 1, 65535)
        self.kv_heads = number_of("kv_heads", kv_heads, 1, 65535)
        if self.heads % self.kv_heads:
            raise wrong("kv_heads", f"a divisor of heads={heads} is needed", kv_heads)
        self.head_dim = number_of("head_dim", head_dim, 8, 256)
        if self.head_dim % 8:
            raise _errors.Unsupported(
                f"KVCache: head_dim: a multiple of 8 from 8 to 256 is needed, got {head_dim}"
            )
        if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
            raise wrong("dtype", "float32, float16 or bfloat16 is needed", dtype)
        self.dtype, self.kv_dtype = dtype, kv_dtype
        self.device = place_of(device)
        self.sequences = number_of("sequences", sequences, 1, _MOST_SEQUENCES)
        self.max_tokens = number_of("max_tokens", max_tokens, 1)
        self.layers = number_of("layers", layers, 1, 65536)
        check_words(max_tokens, page, max_chunk, kv_dtype)
        self.page, self.max_chunk = int(page), min(int(max_chunk), self.max_tokens)
        if part_tokens is not None:
            part_tokens = number_of("part_tokens", part_tokens, 1, self.max_tokens)
        self.part_tokens = part_tokens

        self._groups = _cache_pages.groups(
            pattern, self.heads, self.kv_heads, self.max_tokens, self.max_chunk, page
        )
        self._native = _runtime.device(
            f"cuda:{self.device.index}" if self.device.type == "cuda" else "cpu"
        )
        self._heads = _cache_steps.heads(self)
        self._grows = isinstance(pages, str) and pages == "grow"
        counts = self._counts(pages)
        with torch.inference_mode(False):  # tensors that can be written to anywhere
            self._token = _operator.token(self)
            with memory_for(
                f"pages: no memory for pools of {counts} pages in {self.layers} layers and tables "
                f"of {self.sequences} sequences"
            ):
                self._allocate(counts)
                self._seat()
        # Refuses what no kernel takes, before the first step does.
        self._plan(1, self.sequences, None)

    def _counts(self, pages: Any) -> list[int]:
        """The pages of each storage group."""
        groups = self._groups
        if pages is None:
            return [self.sequences * self._most_pages(group) for group in groups]
        if isinstance(pages, str):
            if pages != "grow":
                raise wrong("pages", "a number, 'grow' or None is needed", repr(pages))
            return [1] * len(groups)
        each = list(pages) if isinstance(pages, (list, tuple)) else [pages] * len(groups)
        if len(each) != len(groups):
            raise wrong("pages", f"a number for each of {len(groups)} storage groups", len(each))
        return [number_of("pages", count, 1, 2**31 - 1) for count in each]

    def _most_pages(self, group: _cache_pages.Group) -> int:
        """The pages of a storage group that a sequence takes at most."""
        if self.part_tokens is None:
            return group.pages(self.max_tokens, 0)
        return group.pages(self.part_tokens, _native.ANY_FIRST)

    def append(
        self,
        k: Tensor,
        v: Tensor,
        *,
        layout: Literal["bshd", "bhsd", "thd"] = "bshd",
        q_lens: _cache_steps.Given = None,
        cu_seqlens_q: _cache_steps.Given = None,
        layer: int = 0,
    ) -> None:
        """Writes new keys and values without attention, such as those of a prompt whose attention
        was computed in one go.

        k, v: [sequences, tokens, kv_heads, head_dim] with layout "bshd",
            [sequences, kv_heads, tokens, head_dim] with "bhsd", [tokens of all sequences, kv_heads,
            head_dim] with "thd"; of the cache's dtype and device, with any strides.
        q_lens: new tokens of each sequence, which come first in its row; all by default.
        cu_seqlens_q: cumulative numbers of new tokens [sequences + 1], of "thd".
        layer: the layer. That of layer 0 begins a step: it takes the pages and makes the sequences
            longer. The other layers follow with tensors of the same shape, each once.

        Any number of tokens, also above max_chunk. Errors are those of tessera.attention.
        """
        if torch.compiler.is_compiling():
            _cache_steps.no_gradient_of(k=k, v=v)
            given = (
                _runs.as_tensor("q_lens", q_lens),
                _runs.as_tensor("cu_seqlens_q", cu_seqlens_q),
            )
            _operator.append(k, v, self._token, layout, *given, layer)
        else:
            _cache_steps.append(self, k, v, layout, q_lens, cu_seqlens_q, layer)

    @_eager
    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        self._lengths()
        self._whole("KVCache: copy.deepcopy")
        pages = [len(pages) for pages in self._pages]
        made = KVCache(
            self.pattern,
            self.heads,
            self.kv_heads,
            self.head_dim,
            dtype=self.dtype,
            device=self.device,
            sequences=self.sequences,
            max_tokens=self.max_tokens,
            layers=self.layers,
            page=self.page,
            pages=pages,
            max_chunk=self.max_chunk,
            kv_dtype=self.kv_dtype,
            part_tokens=self.part_tokens,
        )
        memo[id(self)] = made
        made._grows = self._grows
        for ours, theirs in zip(self._pools, made._pools, strict=True):
            for some, others in zip(ours, theirs, strict=True):
                for x, y in zip(some, others, strict=True):
                    if x is not None and y is not None:
                        y.copy_(x[: len(y)])  # that of a layer which grew alone may be larger
        for n, one in enumerate(self._pages):
            made._table_host[n] = one.table
            made._pages[n] = one.copy(made._table_host[n])
        made._host, made._longest = list(self._host), list(self._longest)
        made._room, made._same = list(self._room), list(self._same)
        made._bound(self._kv_first, self._kv_end)
        made._upload()
        return made

    def __reduce__(self) -> Any:
        raise TypeError(
            "KVCache: a cache cannot be pickled: make one where it is needed, or copy.deepcopy it"
        )

    # ------------------------------------------------------------------------------- memory

    def _pool(self, group: _cache_pages.Group, count: int, scales: bool) -> Tensor:
        shape = (count, self.page, len(group.kv_heads))
        if scales:
            return torch.empty(shape, dtype=torch.float32, device=self.device)
        kind = KV[self.kv_dtype][0] if self.kv_dtype else self.dtype
        return torch.empty((*shape, self.head_dim), dtype=kind, device=self.device)

    def _allocate(self, counts: list[int]) -> None:
        scaled = self.kv_dtype is not None
        self._pools = [
            [
                _cache_plans.Pools(
                    self._pool(group, count, False),
                    self._pool(group, count, False),
                    self._pool(group, count, True) if scaled else None,
                    self._pool(group, count, True) if scaled else None,
                )
                for group, count in zip(self._groups, counts, strict=True)
            ]
            for _ in range(self.layers)
        ]

    def _grow(self, n: int, count: int) -> None:
        """Pools of so many pages for a storage group, with the content of those there are."""
        if self._moved:
            raise _errors.OutOfMemory(
                "KVCache: pages: a captured graph holds the pools, so that they cannot grow: give "
                "a number of pages instead of 'grow'"
            )
        with memory_for(f"pages: no memory for {count} pages a layer"):
            self._grow_pools(n, count)  # layers that are larger already stay so if others fail
        self._pages[n].add(count - len(self._pages[n]))

    def _grow_pools(self, n: int, count: int) -> None:
        for pools in self._pools:
            k, v, k_scale, v_scale = pools[n]
            pools[n] = _cache_plans.Pools(
                self._larger(n, count, k),
                self._larger(n, count, v),
                None if k_scale is None else self._larger(n, count, k_scale),
                None if v_scale is None else self._larger(n, count, v_scale),
            )

    def _larger(self, n: int, count: int, pool: Tensor) -> Tensor:
        if len(pool) >= count:
            return pool
        with torch.inference_mode(False):
            made = self._pool(self._groups[n], count, pool.dim() == 3)
        made[: pool.shape[0]] = pool
        return made

    def _seat(self) -> None:
        """Tables, lengths and plans for `self.sequences` empty sequences."""
        count = self.sequences
        self._plans: dict[Any, list[_cache_plans.Plan]] = {}
        self._step: _cache_steps.Step | None = None
        # Of a step that was given up: sequences that still have its tokens, which some layers
        # lack, and the length that each had before.
        self._cut: dict[int, int] = {}
        self._host = [0] * count  # lengths, unless a graph has moved on
        self._longest = [0] * count  # that each sequence had: what the ring was written up to
        self._room = [0] * count  # tokens that a graph may let each sequence grow to
        self._same = [0] * count  # tokens that take the pages that each sequence has
        # Positions of the keys that the cache keeps of each sequence: the first, and one past the
        # last, which is -1 until `part` says it. Steps on the device read them from `_bounds`.
        self._kv_first = np.zeros(count, dtype=np.int64)
        end = self.max_tokens if self.part_tokens is None else -1
        self._kv_end = np.full(count, end, dtype=np.int64)
        self._bounds: Tensor | None = None
        if self.part_tokens is not None:
            self._bounds = torch.empty(2, count, dtype=torch.int32, device=self.device)
            self._bound(self._kv_first, self._kv_end)
        self._moved = False  # a graph that advances lengths was captured
        columns = max(map(self._most_pages, self._groups))
        self._table_host = np.empty((len(self._groups), count, max(columns, 1)), dtype=np.int32)
        self._pages = [
            _cache_pages.Pages(table, len(pools.k))
            for table, pools in zip(self._table_host, self._pools[0], strict=True)
        ]
        kind = KV[self.kv_dtype][1] if self.kv_dtype else 0
        self._settings = [
            _cache_plans.Setting(
                layout=group.layout,
                device=self._native,
                torch_device=self.device,
                dtype=_DTYPES[self.dtype],
                kv_dtype=kind,
                head_dim=self.head_dim,
                sequences=count,
                max_tokens=self.part_tokens or self.max_tokens,
                page=self.page,
                compact=group.ring > 0,
                parts=self.part_tokens is not None,
            )
            for group in self._groups
        ]
        # Lengths, room, and rows that found no room: what graphs read and write.
        self._state_host = np.zeros(2 * count + 1, dtype=np.int32)
        if _apart(self.device):
            self._table = torch.tensor(self._table_host, device=self.device)
            self._state = torch.tensor(self._state_host, device=self.device)
        else:
            self._table = torch.from_numpy(self._table_host)
            self._state = torch.from_numpy(self._state_host)
        self._tables = list(self._table)  # of each storage group
        # What a captured step makes its lengths in: their addresses stay.
        self._captured = (
            torch.zeros(count + 1, dtype=torch.int32, device=self.device),
            torch.zeros(count, dtype=torch.int32, device=self.device),
            torch.zeros(count, dtype=torch.int32, device=self.device),
        )

    def _plan(self, q_len: int, rows: int, scale: float | None) -> list[_cache_plans.Plan]:
        """A plan for each storage group."""
        key = (q_len, rows, scale)
        found = self._plans.get(key)
        if found is None:
            if self._capturing():
                raise _errors.InvalidArgument(
                    "attention: cache: there is no plan for these rows, and none can be made while "
                    "a graph is captured: run once with them before"
                )
            found = [_cache_plans.Plan(one, q_len, rows, scale) for one in self._settings]
            self._plans[key] = found
        return found

    def _packed_plan(self, rows: int, scale: float | None) -> list[_cache_plans.Plan]:
        """A plan for each storage group that is there already, for so many packed rows: of those
        that a call with as many takes, the one for the longest sequences."""
        fits = [key for key in self._plans if key[1] >= rows and key[2] == scale]
        if not fits:
            raise _errors.InvalidArgument(
                f"attention: cache: there is no plan for {rows} packed rows, and none can be made "
                "while a graph is captured: run once before with as many rows in sequences, and "
                "with the most that a sequence will have"
            )
        # Plans for short sequences may have fewer rows: all their sequences have no more.
        taken = [
            key
            for key in fits
            if key[1] <= _cache_steps.bucket(rows, self.sequences * key[0])
        ]
        if taken:
            return self._plans[max(taken)]
        return self._plans[min(fits, key=lambda key: (key[1], -key[0]))]

    def _capturing(self) -> bool:
        """Whether the current stream of the cache's device is being captured into a graph."""
        return self.device.type == "cuda" and _cuda.captured(self.device.index)

    def _to_device(self, values: Any) -> Tensor:
        """Integers of the host as int32 on the device, without waiting for it."""
        array = np.ascontiguousarray(values, dtype=np.int32)
        given = torch.from_numpy(array)
        if self.device.type == "cpu":
            return given
        return given.pin_memory().to(self.device, non_blocking=True)

    # ------------------------------------------------------------------------------- what it is

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence: int32 [sequences] on the device, always up to date. It is the
        cache's own: read it, and copy what you keep."""
        if torch.compiler.is_compiling():
            found: Tensor = _operator.lengths(self._token, self.sequences, self.device)
            return found
        return self._state[: self.sequences]

    @_eager
    def length(self, sequence: int) -> int:
        """Tokens of a sequence, as a number. Waits for the device where a graph may have moved
        on."""
        return self._lengths()[number_of("sequence", sequence, 0, self.sequences - 1)]

    @property
    @_eager
    def table(self) -> Tensor:
        """The block table: int32 [storage groups, sequences, columns] on the device; -1: no
        page."""
        return self._table

    @property
    def storage(self) -> list[tuple[int, ...]]:
        """The kv heads of each storage group, in their order in its pools."""
        return [group.kv_heads for group in self._groups]

    @_eager
    def pools(self, layer: int = 0) -> list[_cache_plans.Pools]:
        """What a layer keeps, for each storage group: the tensors k and v
        [pages, page, kv heads of the group, head_dim], and k_scale and v_scale, float32
        [pages, page, kv heads of the group], which are None without kv_dtype."""
        return list(self._pools[number_of("layer", layer, 0, self.layers - 1)])

    def _page_bytes(self, n: int) -> int:
        tensors = (x for x in self._pools[0][n] if x is not None)
        return self.layers * sum(x[0].numel() * x.element_size() for x in tensors)

    @property
    @_eager
    def bytes(self) -> int:
        """Bytes of the pages that sequences have, K and V of all layers, scales included. A page
        that several share counts once."""
        return sum(pages.in_use() * self._page_bytes(n) for n, pages in enumerate(self._pages))

    @property
    @_eager
    def dense_bytes(self) -> int:
        """Bytes of K and V of the same sequences, or of their parts, where every token is kept in
        `dtype`, each sequence by itself. Waits for the device where a graph may have moved on."""
        token = 2 * self.kv_heads * self.head_dim * self.layers
        held = sum(self._held(s, tokens) for s, tokens in enumerate(self._lengths()))
        return held * token * self.dtype.itemsize

    @property
    @_eager
    def pool_bytes(self) -> int:
        """Bytes of the pools, pages that nobody has included. Where they found no memory to grow
        in, some layers may have grown."""
        tensors = (x for layer in self._pools for pools in layer for x in pools if x is not None)
        return sum(x.numel() * x.element_size() for x in tensors)

    def __repr__(self) -> str:
        return (
            f"KVCache({self.pattern!r}, heads={self.heads}, kv_heads={self.kv_heads}, "
            f"head_dim={self.head_dim}, dtype={self.dtype}, device={str(self.device)!r}, "
            f"sequences={self.sequences}, max_tokens={self.max_tokens}, layers={self.layers})"
        )

    # --------------------------------------------------------------------------------- parts

    @property
    def block(self) -> int:
        """Tokens of a block of the pattern; `first` of `part` is a multiple of it."""
        return self._groups[0].block

    @_eager
    def part(self, sequence: int, first: int, tokens: int | None = None) -> None:
        """Says which keys of a sequence the cache keeps: those at positions first to
        first + tokens - 1, and no others.

        sequence: a place without tokens. It takes none before this call. What is said here stays
            when its sequence ends.
        first: a multiple of `block`.
        tokens: at most part_tokens of the cache, the default.

        The cache is given all new tokens of the sequence, and every query. `lengths`, `rollback`
        and max_tokens count all tokens, whether their keys are kept or not. tessera.attention
        returns (O, LSE) over the part, and tessera.merge makes the whole of those of all parts.

        Raises InvalidArgument where the cache has no part_tokens, or the place has tokens.
        """
        lengths = self._lengths()
        s = number_of("part: sequence", sequence, 0, self.sequences - 1)
        if self.part_tokens is None:
            raise wrong("part", "a cache with part_tokens is needed", "one of all keys")
        if lengths[s]:
            raise wrong("part: sequence", "an empty place is needed", f"{lengths[s]} tokens")
        begin = number_of("part: first", first, 0, self.max_tokens)
        if begin % self.block:
            raise wrong("part: first", f"a multiple of block={self.block} is needed", begin)
        most = self.part_tokens
        count = most if tokens is None else number_of("part: tokens", tokens, 0, most)
        self._set({s: 0})  # gives back what was reserved
        kv_first, kv_end = self._kv_first.copy(), self._kv_end.copy()
        kv_first[s], kv_end[s] = begin, min(begin + count, self.max_tokens)
        self._bound(kv_first, kv_end)
        self._same[s] = self._same_pages(s, 0)

    def _bound(self, kv_first: Bounds, kv_end: Bounds) -> None:
        """Takes other bounds of the parts."""
        self._kv_first, self._kv_end = kv_first.copy(), kv_end.copy()
        if self._bounds is not None:
            self._bounds.copy_(self._to_device(np.stack([kv_first, kv_end])))

    def _held(self, s: int, tokens: int) -> int:
        """The keys that the cache keeps of a sequence of so many tokens."""
        return max(0, min(tokens, int(self._kv_end[s])) - int(self._kv_first[s]))

    def _pages_of(self, group: _cache_pages.Group, s: int, tokens: int) -> int:
        """The pages that a sequence of so many tokens takes."""
        return group.pages(self._held(s, tokens), int(self._kv_first[s]))

    def _same_pages(self, s: int, tokens: int) -> int:
        """The most tokens of a sequence that surely take the pages of `tokens`."""
        if tokens >= self._kv_end[s]:
            return self.max_tokens
        held = self._held(s, tokens)
        return int(self._kv_first[s]) + min(group.same(held) for group in self._groups)

    # ------------------------------------------------------------------------------- lengths

    def _lengths(self) -> list[int]:
        """Lengths on the host. Where a graph may have moved on, they are read back."""
        if self._capturing():
            raise _errors.InvalidArgument(
                "KVCache: only attention and append can be captured into a graph"
            )
        if self._moved:
            values: list[int] = self._state.tolist()
            self._host = values[: self.sequences]
            self._longest = [
                max(pair) for pair in zip(self._longest, self._host, strict=True)
            ]
            if values[-1]:
                self._state[-1] = 0
                raise _errors.InvalidArgument(
                    f"KVCache: reserve: {values[-1]} rows of replayed graphs found no room and "
                    "were left out: reserve as many tokens as the replays append, before them"
                )
        return self._host

    def _upload(self, more: Sequence[Any] = ()) -> Tensor:
        """Gives the device the lengths, the room and the changed rows of the table, in one copy
        with more arrays of integers, which are returned as int32 on the device."""
        count = self.sequences
        state = self._state_host
        state[:count], state[count : 2 * count] = self._host, self._room
        if not _apart(self.device):  # these are the tensors themselves
            result = self._to_device(np.concatenate(more) if more else ())
            for pages in self._pages:
                pages.changed.clear()
            return result
        rows = [sorted(pages.changed) for pages in self._pages]
        arrays = [*more, state]
        for pages, some in zip(self._pages, rows, strict=True):
            if some:
                arrays += [some, pages.table[some].ravel()]
        given = self._to_device(np.concatenate(arrays))
        at = sum(len(one) for one in more)
        result = given[:at]
        self._state.copy_(given[at : at + len(state)])
        at += len(state)
        for table, some in zip(self._tables, rows, strict=True):
            if some:
                end = at + len(some) * (1 + table.shape[1])
                where, values = given[at : at + len(some)], given[at + len(some) : end]
                table.index_copy_(0, where.long(), values.view(len(some), -1))
                at = end
        for pages in self._pages:  # not before all of them have arrived
            pages.changed.clear()
        return result

    def _extend(self, wanted: dict[int, int], function: str) -> None:
        """Gives sequences the pages of as many tokens as they are to have, and pages of their own
        where the new ones are written. All of it, or OutOfMemory and nothing."""
        for sequence, tokens in wanted.items():
            if self._kv_end[sequence] < 0:
                raise _errors.InvalidArgument(
                    f"{function}: sequence {sequence}: KVCache.part has to say first which keys of "
                    "it this cache keeps"
                )
            if tokens > self.max_tokens:
                raise _errors.InvalidArgument(
                    f"{function}: sequence {sequence} has {self._host[sequence]} tokens and would "
                    f"have {tokens}: max_tokens of the cache is {self.max_tokens}"
                )
        grow = {s: tokens for s, tokens in wanted.items() if tokens > self._same[s]}
        pages_of = [
            {s: self._pages_of(group, s, t) for s, t in grow.items()} for group in self._groups
        ]
        copies: list[dict[int, list[int]]] = []
        counts = []
        for n, (group, pages) in enumerate(zip(self._groups, self._pages, strict=True)):
            need = sum(max(0, count - pages.used[s]) for s, count in pages_of[n].items())
            shared: dict[int, list[int]] = {}
            if pages.shared:
                writers: collections.Counter[int] = collections.Counter()
                for s, tokens in wanted.items():
                    kv_first = int(self._kv_first[s])
                    begin = max(self._host[s], kv_first)
                    end = min(tokens, int(self._kv_end[s]))
                    if end > begin:
                        columns = group.columns(begin, end, kv_first)
                        shared[s] = pages.not_own(s, columns)
                        writers.update(int(pages.table[s, c]) for c in shared[s])
                # The last one that writes to a page keeps it.
                need += sum(min(w, int(pages.users[p]) - 1) for p, w in writers.items())
            copies.append(shared)
            counts.append(len(pages))
            if need > len(pages.free):
                if not self._grows:
                    raise _errors.OutOfMemory(
                        f"{function}: cache: {need} pages are needed, and {len(pages.free)} of "
                        f"{len(pages)} are free (storage group {n}): free a sequence, or make a "
                        "cache with more pages"
                    )
                counts[n] += max(need - len(pages.free), len(pages) // 8)
        for n, count in enumerate(counts):
            if count > len(self._pages[n]):
                self._grow(n, count)
        kept = None
        if any(columns for shared in copies for columns in shared.values()):
            kept = [pages.copy(pages.table.copy()) for pages in self._pages]
        try:
            for n, pages in enumerate(self._pages):
                for s, count in pages_of[n].items():
                    if count > pages.used[s]:
                        pages.resize(s, count)
                pairs = [p for s, columns in copies[n].items() for p in pages.own(s, columns)]
                if pairs:
                    self._copy(n, pairs)
        except BaseException:
            for pages, before in zip(self._pages, kept or (), strict=False):
                pages.restore(before)
            raise
        for s, tokens in grow.items():
            self._same[s] = self._same_pages(s, tokens)

    def _copy(self, n: int, pairs: list[tuple[int, int]]) -> None:
        """Copies pages of a storage group, in all layers."""
        given, setting = self._to_device(pairs), self._settings[n]
        pools = [layer[n] for layer in self._pools]
        kind = setting.kv_dtype or setting.dtype
        _cache_plans.copy_pages(setting, [x for p in pools for x in (p.k, p.v)], kind, given)
        scales = [x for p in pools for x in (p.k_scale, p.v_scale) if x is not None]
        _cache_plans.copy_pages(setting, scales, _native.F32, given)

    @_eager
    def reserve(self, tokens: int, sequences: Sequence[int] | None = None) -> None:
        """Makes room for so many more tokens in sequences, before graphs are replayed.

        tokens: that each of the sequences may grow by until the next reserve.
        sequences: which ones; all that have tokens already, by default.

        A captured graph appends to sequences on the device and cannot take pages. A sequence whose
        room is used up, or that has none, is left out of a replay: it does not grow, and its O is
        0. The next call of reserve tells if that was so. Calls outside of graphs make their own
        room. After a capture this waits for the device, so reserve for many steps at a time.

        Raises OutOfMemory where the pools have too few pages; InvalidArgument for a sequence that
        would pass max_tokens, or where replays before this call found no room.
        """
        amount = number_of("reserve: tokens", tokens, 0)
        lengths = self._lengths()
        if sequences is None:
            chosen = [s for s in range(self.sequences) if lengths[s]]
        else:
            try:
                given = list(sequences)
            except TypeError:
                raise TypeError(
                    f"KVCache: reserve: sequences: a list of integers is needed, got {sequences!r}"
                ) from None
            chosen = [number_of("reserve: sequences", s, 0, self.sequences - 1) for s in given]
        self._extend({s: lengths[s] + amount for s in chosen}, "KVCache: reserve")
        for s in chosen:
            self._room[s] = lengths[s] + amount
        self._upload()

    @_eager
    def rollback(self, tokens: int | Sequence[int]) -> None:
        """Takes back the last tokens of sequences, such as rejected drafts.

        tokens: how many, of each sequence, or one number for all that have tokens.

        The ring of a sequence keeps what max_chunk tokens may overwrite: from the longest that the
        sequence was, it can go back by max_chunk tokens, or to 0. A sequence that nothing was
        overwritten in, such as that of a dense layer, can go back to any length. Raises
        InvalidArgument for more, and nothing has changed.
        """
        self._set(self._rolled_back(tokens))

    def _rolled_back(self, tokens: int | Sequence[int]) -> dict[int, int]:
        """The lengths after a rollback, of sequences that get shorter."""
        lengths = self._lengths()
        if isinstance(tokens, Sequence):
            each = [number_of("rollback: tokens", n, 0) for n in tokens]
            if len(each) != self.sequences:
                raise wrong("rollback: tokens", f"{self.sequences} numbers are needed", len(each))
        else:
            number = number_of("rollback: tokens", tokens, 0)
            each = [number if lengths[s] else 0 for s in range(self.sequences)]
        for s, count in enumerate(each):
            if count > lengths[s]:
                raise wrong(f"rollback: tokens of sequence {s}", f"0 to {lengths[s]}", count)
            left = lengths[s] - count
            if count and left and left < self._longest[s] - self.max_chunk:
                if self._overwritten(s):
                    raise _errors.InvalidArgument(
                        f"KVCache: rollback: sequence {s} would go back to {left} tokens, more "
                        f"than max_chunk={self.max_chunk} below the {self._longest[s]} that it "
                        "had: what it would read is overwritten"
                    )
        return {s: lengths[s] - count for s, count in enumerate(each) if count}

    def _overwritten(self, s: int) -> bool:
        """Whether a sequence has overwritten any of its keys."""
        held, kv_first = self._held(s, self._longest[s]), int(self._kv_first[s])
        return any(group.places(held, kv_first) < held for group in self._groups)

    def _lengthen(self, lengths: dict[int, int], more: Sequence[Any]) -> Tensor:
        """Longer lengths, whose pages are there; otherwise as _upload."""
        for s, tokens in lengths.items():
            self._host[s] = tokens
            self._longest[s] = max(self._longest[s], tokens)
            self._room[s] = max(self._room[s], tokens)
        return self._upload(more)

    def _set(self, lengths: dict[int, int]) -> None:
        """Shorter lengths, and the pages that those take."""
        cut, self._step = self._incomplete(), None
        for s, tokens in lengths.items():
            self._host[s] = tokens
            self._room[s] = min(self._room[s], tokens)
            if not tokens:
                self._longest[s] = 0
            for group, pages in zip(self._groups, self._pages, strict=True):
                pages.resize(s, min(pages.used[s], self._pages_of(group, s, tokens)))
            self._same[s] = self._same_pages(s, tokens)
        self._cut = {s: n for s, n in cut.items() if self._host[s] > n}
        self._upload()

    def _incomplete(self) -> dict[int, int]:
        """Sequences with tokens that some layers lack, and the length that each had before."""
        step = self._step
        return self._cut if step is None or len(step.done) == self.layers else step.before

    def _whole(self, function: str) -> None:
        """Raises where some layers lack tokens of a step."""
        cut = self._incomplete()
        if cut:
            raise _errors.InvalidArgument(
                f"{function}: the last step is not complete: some layers lack tokens of sequences "
                f"{list(cut)}: roll them back to {list(cut.values())} tokens, or free them"
            )

    @_eager
    def free(self, sequence: int) -> None:
        """Ends a sequence and gives its pages back; its place is free for another one."""
        self._lengths()
        self._set({number_of("free: sequence", sequence, 0, self.sequences - 1): 0})

    @_eager
    def clear(self) -> None:
        """Ends all sequences."""
        self._lengths()
        self._set(dict.fromkeys(range(self.sequences), 0))

    @_eager
    def fork(self, sequence: int, to: int | None = None) -> int:
        """Makes a copy of a sequence in the place `to`, by default the first one that is empty,
        and returns that place.

        The two share all pages. A page is copied when one of them writes to it. Raises
        InvalidArgument where the place is not empty, or none is.
        """
        lengths = self._lengths()
        self._whole("KVCache: fork")
        source = number_of("fork: sequence", sequence, 0, self.sequences - 1)
        if to is None:
            empty = [s for s in range(self.sequences) if not lengths[s] and s != source]
            if not empty:
                raise wrong("fork: to", "an empty place is needed", f"{self.sequences} in use")
            to = empty[0]
        target = number_of("fork: to", to, 0, self.sequences - 1)
        if target == source or lengths[target]:
            raise wrong("fork: to", "an empty place is needed", target)
        self._step = None
        for pages in self._pages:
            pages.resize(target, 0)  # what was reserved there
            pages.share(source, target)
        self._host[target], self._longest[target] = lengths[source], self._longest[source]
        self._same[target] = self._same[source]
        self._kv_first[target], self._kv_end[target] = self._kv_first[source], self._kv_end[source]
        self._bound(self._kv_first, self._kv_end)
        # What was reserved is shared now, and a graph copies no pages.
        self._room[source], self._room[target] = lengths[source], lengths[source]
        self._upload()
        return target

    @_eager
    def select(self, sequences: Sequence[int] | Tensor) -> None:
        """Puts copies of sequences in the places of all: place n gets what sequences[n] was, as
        beam search does. Pages are shared, and copied when they are written to.

        With another number of sequences than before, `sequences` of the cache changes, and so do
        the batch of its steps and `lengths`; graphs that were captured are of no use then.
        """
        try:
            given = sequences.tolist() if isinstance(sequences, Tensor) else list(sequences)
            given = [] if isinstance(given, int) else given
        except (TypeError, RuntimeError):
            raise TypeError(
                f"KVCache: select: sequences: integers are needed, got {sequences!r}"
            ) from None
        chosen = [number_of("select: sequences", s, 0, self.sequences - 1) for s in given]
        if not 1 <= len(chosen) <= _MOST_SEQUENCES:
            raise wrong("select: sequences", f"1 to {_MOST_SEQUENCES} are needed", len(chosen))
        self._whole("KVCache: select")
        lengths, longest, same, pages = self._lengths(), self._longest, self._same, self._pages
        kv_first, kv_end = self._kv_first[chosen], self._kv_end[chosen]
        if len(chosen) != self.sequences:
            before = dict(vars(self))
            self.sequences = count = len(chosen)
            try:
                with torch.inference_mode(False):
                    with memory_for(f"select: no memory for tables of {count} sequences"):
                        self._seat()
            except BaseException:
                vars(self).update(before)
                raise
        for n, one in enumerate(pages):
            one.reseat(self._table_host[n], chosen)
        self._step, self._pages = None, pages
        self._host = [lengths[s] for s in chosen]
        self._longest = [longest[s] for s in chosen]
        self._same = [same[s] for s in chosen]
        self._room = list(self._host)
        self._bound(kv_first, kv_end)
        self._upload()

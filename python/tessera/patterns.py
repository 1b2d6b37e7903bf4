# SPDX-License-Identifier: Apache-2.0
"""Patterns: which (query, key) pairs take part in attention.

They are small frozen values: equal where they keep the same pairs by the same words, hashable,
picklable, and of no device. docs/patterns.md has the formulas. p is the absolute position of a
query and t that of a key; i = p // block and j = t // block are their blocks.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import math
import threading
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from . import _errors, _native, _runtime, _shapes

BoolArray = npt.NDArray[np.bool_]

# A mask whose compressed text is longer travels as a digest, and is found again in this process.
_INLINE = 1024
_masks: weakref.WeakValueDictionary[str, Blocks] = weakref.WeakValueDictionary()
_recent: collections.deque[Blocks] = collections.deque(maxlen=64)
_masks_lock = threading.Lock()


def _forget() -> None:
    global _masks_lock
    _masks_lock = threading.Lock()


_runtime.after_fork(_forget)


def integer(what: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`; `what` names the function and the argument."""
    number = _shapes.integer(what, value)
    if number < least or number >= 2**31:
        needed = f"{least} or more" if number < least else "less than 2^31"
        raise _errors.InvalidArgument(f"{what}: {needed} is needed, got {number}")
    return number


def _positions(what: str, given: Any) -> npt.NDArray[np.int64]:
    """Positions from a list of them, or from their number."""
    if hasattr(given, "__index__") and np.ndim(given) == 0:
        return np.arange(integer(what, given, 0), dtype=np.int64)
    try:
        found = [_shapes.integer(what, one) for one in given]
    except TypeError:
        raise TypeError(f"{what}: positions or their number are needed, got {given!r}") from None
    if max(map(abs, found), default=0) >= 2**62:
        raise _errors.InvalidArgument(f"{what}: a magnitude below 2^62 is needed, got {found}")
    return np.asarray(found, dtype=np.int64)


def _head_ids(what: str, given: Any, total: int | None = None) -> tuple[int, ...]:
    """Numbers of heads, below `total`."""
    try:
        ids = tuple(integer(what, head, 0) for head in given)
    except TypeError:
        raise TypeError(f"{what}: a list of integers is needed, got {given!r}") from None
    if not ids:
        raise _errors.InvalidArgument(f"{what}: at least one is needed, got ()")
    if total is not None and max(ids) >= total:
        raise _errors.InvalidArgument(f"{what}: below heads_total={total}, got {max(ids)}")
    return ids


@dataclasses.dataclass(frozen=True)
class Heads:
    """Which heads of a model the heads of a call are, in numbers that C takes."""

    first: int
    total: int
    kv_total: int
    ids: tuple[int, ...] | None = None


class Pattern:
    """What all patterns have in common. Make one with S2, Dense, Window or Blocks."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        if cls is Pattern:
            raise TypeError("Pattern: make one with S2, Dense, Window or Blocks")
        return super().__new__(cls)

    causal: bool
    _spec: ClassVar[str]  # of each value; a class variable is no field of a dataclass

    @property
    def spec(self) -> str:
        """The pattern as one line of words, from which `parse` makes an equal one."""
        return self._spec

    def fill(self, desc: Any) -> object:
        """Fills a tess_pattern. What it returns has to live as long as `desc`."""
        raise NotImplementedError

    def heads(self, n_heads: int, n_kv_heads: int) -> Heads:
        """The numbers of a layout with so many heads; raises where they do not fit."""
        return Heads(0, 0, 0)

    def on_heads(
        self, head_ids: Sequence[int], heads_total: int, kv_heads_total: int | None = None
    ) -> Pattern:
        """This pattern for some heads of a model: `head_ids` of `heads_total` query heads."""
        _head_ids("on_heads: head_ids", head_ids, integer("on_heads: heads_total", heads_total, 1))
        return self

    def mask(
        self,
        q: int | Iterable[int],
        k: int | Iterable[int],
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> BoolArray:
        """Which pairs are kept, as booleans [heads, queries, keys]; made for tests and pictures.

        q, k: the positions of queries and keys, or how many there are from position 0 on.
        heads, kv_heads: of the call; `heads` is what the pattern says, or 1.
        """
        p, t = _positions("mask: q", q), _positions("mask: k", k)
        n_heads = self._heads_here() if heads is None else integer("mask: heads", heads, 1)
        n_kv_heads = n_heads if kv_heads is None else integer("mask: kv_heads", kv_heads, 1)
        if n_heads % n_kv_heads:
            raise _errors.InvalidArgument(
                f"mask: kv_heads: a divisor of heads={n_heads} is needed, got {n_kv_heads}"
            )
        self.heads(n_heads, n_kv_heads)  # raises where they do not fit
        p, t = p[:, None], t[None, :]
        rows = [self._kept(head, n_heads, n_kv_heads, p, t) for head in range(n_heads)]
        kept = np.stack([np.broadcast_to(row, (p.shape[0], t.shape[1])) for row in rows])
        return kept & (t <= p) if self.causal else kept

    def info(self, tokens: int, *, heads: int | None = None, kv_heads: int | None = None) -> Info:
        """What the pattern costs and covers over a context of `tokens`; warns below full
        coverage."""
        from . import _layouts

        n_heads = self._heads_here() if heads is None else integer("info: heads", heads, 1)
        n_kv = n_heads if kv_heads is None else integer("info: kv_heads", kv_heads, 1)
        return _layouts.info(self, n_heads, n_kv, integer("info: tokens", tokens, 0))

    def svg(self, tokens: int, *, heads: int | None = None, kv_heads: int | None = None) -> str:
        """A picture of all heads: rows are query blocks, columns key blocks."""
        from . import _svg

        n_heads = self._heads_here() if heads is None else integer("svg: heads", heads, 1)
        return _svg.draw(self, integer("svg: tokens", tokens, 1), n_heads, kv_heads or n_heads)

    def __str__(self) -> str:
        return self.spec

    def _heads_here(self) -> int:
        return 1

    def _kept(
        self, head: int, heads: int, kv_heads: int, p: npt.NDArray[Any], t: npt.NDArray[Any]
    ) -> BoolArray:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Info:
    """What Pattern.info tells.

    coverage: of the blocks that a query could see, the share that at least one head does see.
    kept_share: kept (query, key) pairs over those of the dense pattern of the same order.
    kv_efficient: whether key blocks can be dropped for good once no query reads them.
    classes: groups of heads with equal patterns.
    kv_blocks: key blocks of the context, times kv heads; kv_blocks_kept: of these, what heads can
        still see at the end.
    """

    coverage: float
    kept_share: float
    kv_efficient: bool
    classes: int
    kv_blocks: int
    kv_blocks_kept: int


@dataclasses.dataclass(frozen=True)
class Dense(Pattern):
    """Every key; in causal order, every key up to the query.

    causal: keys after the query are not kept.
    """

    causal: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "causal", _shapes.flag("Dense: causal", self.causal))
        object.__setattr__(self, "_spec", f"dense causal={int(self.causal)}")

    def fill(self, desc: Any) -> object:
        desc.kind, desc.flags = _native.DENSE, 0 if self.causal else _native.BIDIRECTIONAL
        return None

    def _kept(
        self, head: int, heads: int, kv_heads: int, p: npt.NDArray[Any], t: npt.NDArray[Any]
    ) -> BoolArray:
        return np.ones(np.broadcast_shapes(p.shape, t.shape), dtype=np.bool_)


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """p - left <= t <= p + right, and the first `sinks` keys; exact to the token.

    left, right: tokens; -1 is unbounded. In causal order `right` counts as 0.
    sinks: keys at the start that stay visible to everyone.
    """

    left: int
    right: int = 0
    sinks: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        for name, least in (("left", -1), ("right", -1), ("sinks", 0)):
            value = integer(f"Window: {name}", getattr(self, name), least)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "causal", _shapes.flag("Window: causal", self.causal))
        words = f"left={self.left} right={self.right} sinks={self.sinks}"
        object.__setattr__(self, "_spec", f"window causal={int(self.causal)} {words}")

    def fill(self, desc: Any) -> object:
        desc.kind, desc.flags = _native.WINDOW, 0 if self.causal else _native.BIDIRECTIONAL
        desc.left, desc.right, desc.sinks = self.left, self.right, self.sinks
        return None

    def _kept(
        self, head: int, heads: int, kv_heads: int, p: npt.NDArray[Any], t: npt.NDArray[Any]
    ) -> BoolArray:
        right = 0 if self.causal else self.right
        near = (t >= p - self.left) if self.left >= 0 else np.ones_like(t <= p)
        if right >= 0:
            near = near & (t <= p + right)
        return np.asarray(near | (t < self.sinks), dtype=np.bool_)


@dataclasses.dataclass(frozen=True, repr=False)
class S2(Pattern):
    """Sparsely-sharded attention: the last `local` blocks and every `stride`-th block before them,
    shifted from head to head (arXiv 2407.17678).

    block: tokens a block, 64 typically.
    local: local blocks, the query's own included.
    stride: blocks from one strided block to the next; 1 is dense.
    offset: 0, or 1 as in Phi-3-small, vLLM and TensorRT-LLM.
    dense_heads: the last heads of the model that are dense.
    per_kv_head: the query heads of one kv head share a pattern.
    homogeneous: all heads share one.
    causal: keys after the query are not kept. Otherwise the pattern is relative to the query, and
        local_right counts local blocks on the right, as many as `local` by default.
    heads_total, kv_heads_total: query heads and kv heads of the whole model; those of the call by
        default.
    head_first: the number of the call's first query head within the model; or
    head_ids: that of each of the call's query heads.
    """

    block: int
    local: int
    stride: int
    offset: int = 0
    dense_heads: int = 0
    per_kv_head: bool = False
    homogeneous: bool = False
    causal: bool = True
    local_right: int | None = None
    heads_total: int | None = None
    kv_heads_total: int | None = None
    head_first: int = 0
    head_ids: tuple[int, ...] | None = None

    _words: ClassVar[tuple[str, ...]] = (
        "block",
        "local",
        "stride",
        "offset",
        "dense_heads",
        "per_kv_head",
        "homogeneous",
        "causal",
        "local_right",
        "heads_total",
        "kv_heads_total",
        "head_first",
    )

    def __post_init__(self) -> None:
        least = {"block": 1, "local": 1, "stride": 1, "offset": 0, "dense_heads": 0}
        least |= {"local_right": 1, "heads_total": 1, "kv_heads_total": 1, "head_first": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, integer(f"S2: {name}", value, bound))
        for name in ("per_kv_head", "homogeneous", "causal"):
            object.__setattr__(self, name, _shapes.flag(f"S2: {name}", getattr(self, name)))
        if self.head_ids is not None:
            if self.head_first:
                raise _errors.InvalidArgument("S2: head_first: not together with head_ids")
            ids = _head_ids("S2: head_ids", self.head_ids, self.heads_total)
            object.__setattr__(self, "head_ids", ids)
        words = ["s2"]
        for name in self._words:
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={int(value)}")
        if self.head_ids is not None:
            words.append("head_ids=" + ",".join(map(str, self.head_ids)))
        object.__setattr__(self, "_spec", " ".join(words))

    def __repr__(self) -> str:
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"S2({', '.join(told)})"

    def on_heads(
        self, head_ids: Sequence[int], heads_total: int, kv_heads_total: int | None = None
    ) -> S2:
        return dataclasses.replace(
            self,
            head_ids=_head_ids("on_heads: head_ids", head_ids),
            head_first=0,
            heads_total=heads_total,
            kv_heads_total=kv_heads_total,
        )

    def fill(self, desc: Any) -> object:
        desc.kind = _native.S2
        desc.flags = (0 if self.causal else _native.BIDIRECTIONAL) | (
            (_native.PER_KV_HEAD if self.per_kv_head else 0)
            | (_native.HOMOGENEOUS if self.homogeneous else 0)
        )
        desc.block, desc.local, desc.stride = self.block, self.local, self.stride
        desc.offset, desc.dense_heads = self.offset, self.dense_heads
        desc.local_right = self.local_right or 0
        return None

    def heads(self, n_heads: int, n_kv_heads: int) -> Heads:
        kv_total = self.kv_heads_total or 0
        ids = self.head_ids
        if ids is None:
            return Heads(self.head_first, self.heads_total or 0, kv_total)
        if len(ids) != n_heads:
            raise _errors.InvalidArgument(
                f"pattern: head_ids: {len(ids)} ids do not fit {n_heads} query heads"
            )
        total = self.heads_total or max(ids) + 1
        if ids == tuple(range(ids[0], ids[0] + n_heads)):
            return Heads(ids[0], total, kv_total)
        return Heads(0, total, kv_total, ids)

    def _heads_here(self) -> int:
        if self.head_ids is not None:
            return len(self.head_ids)
        return max(1, (self.heads_total or 1) - self.head_first)

    def _kept(
        self, head: int, heads: int, kv_heads: int, p: npt.NDArray[Any], t: npt.NDArray[Any]
    ) -> BoolArray:
        ident = self.head_first + head if self.head_ids is None else self.head_ids[head]
        total = self.heads_total or self.head_first + heads
        if self.head_ids is not None and self.heads_total is None:
            total = max(self.head_ids) + 1
        kv_total = self.kv_heads_total or max(1, total * kv_heads // heads)
        if total % kv_total:
            raise _errors.InvalidArgument(
                f"mask: kv_heads_total: a divisor of heads_total={total} is needed, got {kv_total}"
            )
        if ident >= total - self.dense_heads:
            return np.ones(np.broadcast_shapes(p.shape, t.shape), dtype=np.bool_)
        i, j = p // self.block, t // self.block
        if not self.causal:
            right = self.local_right or self.local
            left_of = np.maximum(0, i - j - self.local + 1)
            return np.asarray(
                (left_of + np.maximum(0, j - i - right + 1)) % self.stride == 0, dtype=np.bool_
            )
        step = 0 if self.homogeneous else max(1, self.stride // total)
        group = ident // (total // kv_total) if self.per_kv_head else ident
        strided = (j + group * step + self.offset) % self.stride == 0
        return np.asarray((i - j < self.local) | strided, dtype=np.bool_)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Blocks(Pattern):
    """A boolean block mask of your own: the pair (p, t) is kept where mask[head][i][j] is true.

    mask: anything that NumPy makes an array of: [query blocks, key blocks] for all heads alike, or
        [heads, query blocks, key blocks]. Blocks outside of it are not kept. It is copied.
    block: tokens a block, in both directions.
    causal: keys after the query are not kept.
    """

    mask_array: BoolArray
    block: int
    causal: bool

    def __init__(self, mask: Any, block: int = 64, causal: bool = True) -> None:
        given = mask
        try:
            if hasattr(given, "detach"):  # a tensor, on whatever device
                given = (given.detach() != 0).cpu().numpy()
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"Blocks: mask: an array of booleans is needed ({error})") from None
        if array.dtype.kind not in "biuf":
            raise TypeError(f"Blocks: mask: an array of booleans is needed, got {array.dtype}")
        if array.ndim == 2:
            array = array[None]
        if array.ndim != 3 or array.shape[0] < 1:
            raise _errors.InvalidArgument(
                "Blocks: mask: [query blocks, key blocks] or [heads, query blocks, key blocks] is "
                f"needed, got the shape {np.shape(given)}"
            )
        array = np.ascontiguousarray(array != 0)
        array.flags.writeable = False
        object.__setattr__(self, "mask_array", array)
        object.__setattr__(self, "block", integer("Blocks: block", block, 1))
        object.__setattr__(self, "causal", _shapes.flag("Blocks: causal", causal))
        self._name()

    def _name(self) -> None:
        array = self.mask_array
        head = f"blocks causal={int(self.causal)} block={self.block} "
        head += "shape=" + ",".join(map(str, array.shape))
        packed = zlib.compress(np.packbits(array).tobytes(), 1)
        if len(packed) <= _INLINE:
            spec = f"{head} bits={base64.b64encode(packed).decode()}"
        else:
            spec = f"{head} sha256={hashlib.sha256(packed).hexdigest()}"
            with _masks_lock:
                found = _masks.setdefault(spec, self)
                _recent.append(found)
            if found is not self:  # the one that is found has to live as long as any equal one
                object.__setattr__(self, "_found", found)
                object.__setattr__(self, "mask_array", found.mask_array)
        object.__setattr__(self, "_spec", spec)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mask_array", "block", "causal")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.mask_array.flags.writeable = False
        self._name()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        shape = list(self.mask_array.shape)
        return f"Blocks(mask of {shape}, block={self.block}, causal={self.causal})"

    def on_heads(
        self, head_ids: Sequence[int], heads_total: int, kv_heads_total: int | None = None
    ) -> Blocks:
        if self.mask_array.shape[0] == 1:
            super().on_heads(head_ids, heads_total)
            return self
        if self.mask_array.shape[0] != heads_total:
            raise _errors.InvalidArgument(
                f"on_heads: heads_total: the mask has {self.mask_array.shape[0]} heads, "
                f"not {heads_total}"
            )
        ids = _head_ids("on_heads: head_ids", head_ids, heads_total)
        return Blocks(self.mask_array[list(ids)], self.block, self.causal)

    def fill(self, desc: Any) -> object:
        array = self.mask_array
        desc.kind, desc.flags = _native.BLOCKS, 0 if self.causal else _native.BIDIRECTIONAL
        desc.block, desc.mask_heads = self.block, array.shape[0]
        desc.mask_query_blocks, desc.mask_key_blocks = array.shape[1:]
        desc.mask = array.ctypes.data
        return array

    def heads(self, n_heads: int, n_kv_heads: int) -> Heads:
        if self.mask_array.shape[0] not in (1, n_heads):
            raise _errors.InvalidArgument(
                f"pattern: mask: of {self.mask_array.shape[0]} heads, which does not fit "
                f"{n_heads} query heads"
            )
        return Heads(0, 0, 0)

    def _heads_here(self) -> int:
        return int(self.mask_array.shape[0])

    def _kept(
        self, head: int, heads: int, kv_heads: int, p: npt.NDArray[Any], t: npt.NDArray[Any]
    ) -> BoolArray:
        mask = self.mask_array[head if self.mask_array.shape[0] > 1 else 0]
        i, j = np.broadcast_arrays(p // self.block, t // self.block)
        inside = (i >= 0) & (i < mask.shape[0]) & (j >= 0) & (j < mask.shape[1])
        kept = np.zeros(i.shape, dtype=np.bool_)
        kept[inside] = mask[i[inside], j[inside]]
        return kept

    @classmethod
    def from_block_mask(cls, block_mask: Any) -> Blocks:
        """The pattern of a FlexAttention BlockMask.

        Its partial blocks have to be what causal order makes of whole ones, which is checked by
        evaluating `mask_mod`; another one raises InvalidArgument, which names the block.

        FlexAttention counts queries from position 0. With as many queries as keys tessera.attention
        does so as well; else it needs q_first=[0] for each sequence, and this function warns.
        """
        from ._flex import convert

        mask, block, causal = convert(block_mask)
        return cls(mask, block, causal)


def parse(spec: str) -> Pattern:
    """The pattern of a line of words, as Pattern.spec tells it."""
    try:
        return _parse(spec)
    except _errors.Error:
        raise
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise _errors.InvalidArgument(
            f"pattern: {spec[:200]!r} describes no pattern: {error!r}"
        ) from None


def _parse(spec: str) -> Pattern:
    kind, *rest = spec.split()
    words = dict(word.split("=", 1) for word in rest)
    if kind == "dense":
        return Dense(bool(int(words["causal"])))
    if kind == "window":
        numbers = [int(words[name]) for name in ("left", "right", "sinks", "causal")]
        return Window(numbers[0], numbers[1], numbers[2], bool(numbers[3]))
    if kind == "s2":
        fields: dict[str, Any] = {
            name: int(value) for name, value in words.items() if name != "head_ids"
        }
        for name in ("per_kv_head", "homogeneous", "causal"):
            fields[name] = bool(fields[name])
        if "head_ids" in words:
            fields["head_ids"] = tuple(map(int, words["head_ids"].split(",")))
        return S2(**fields)
    if kind == "blocks":
        if "sha256" in words:
            with _masks_lock:
                found = _masks.get(spec)
            if found is None:
                raise _errors.InvalidArgument(
                    "pattern: mask: this large mask was made in another process, or dropped: make "
                    "the same Blocks here first"
                )
            return found
        shape = tuple(map(int, words["shape"].split(",")))
        bits = np.frombuffer(zlib.decompress(base64.b64decode(words["bits"])), dtype=np.uint8)
        count = math.prod(shape)
        if len(shape) != 3 or min(shape) < 0 or not 0 <= len(bits) * 8 - count < 8:
            raise ValueError(f"shape={words['shape']} of {len(bits) * 8} bits")
        array = np.unpackbits(bits, count=count).reshape(shape).astype(np.bool_)
        return Blocks(array, int(words["block"]), bool(int(words["causal"])))
    raise _errors.InvalidArgument(f"pattern: no pattern is called {kind!r}")

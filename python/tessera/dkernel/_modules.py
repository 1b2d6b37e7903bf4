# SPDX-License-Identifier: Apache-2.0
"""`SparseAttention` and `LocalStrideSparseAttention`."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import tessera
from tessera.dkernel import _batches, _rows
from tessera.dkernel._checks import invalid, local_pair, whole
from tessera.dkernel._layout import is_kv_cache_efficient, multiple_of, verify_sparse_pattern
from tessera.dkernel._masks import get_sparse_attn_mask

_Lengths = Tensor | Sequence[int]
_Split = Callable[[Tensor], Sequence[Tensor]]

# Of the original's kernels. `out` is honoured; the others change nothing.
_KERNEL_WORDS = ("out", "d_splits", "inference")


class SparseAttention(torch.nn.Module):
    """Attention where a block mask of your own says which keys a query sees.

    block_size      tokens a block, in both directions
    sparse_pattern  [query blocks, key blocks] for all heads, or [heads, query blocks, key blocks]
                    with one plane for each query head, or for each kv head; not 0 is kept. A square
                    mask is of positions: row i is for the queries at i * block_size and on. Of any
                    other one the rows count from the first query of a call that has more than one
                    query and another number of keys, as a part of a sequence has.
    causal          keys after the query are not kept, exact to the token. The last query meets the
                    last key.
    seq_dim         None or 1: [batch, tokens, heads, dim]; 2: [batch, heads, tokens, dim]
    block_m, block_n, d_splits, inference
                    accepted, and change nothing
    out             a tensor like the output that takes it; what a call with gradients returns
                    shares its memory

    The module has no parameters and no state: it may be moved, copied, pickled and subclassed.
    """

    def __init__(
        self,
        block_size: int,
        sparse_pattern: Tensor,
        *,
        causal: bool = True,
        seq_dim: int | None = None,
        block_m: int | None = None,
        block_n: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        try:
            mask = torch.as_tensor(sparse_pattern).detach().cpu() != 0
        except (TypeError, ValueError, RuntimeError) as error:
            raise invalid(f"sparse_pattern: a mask is needed ({str(error)[:80]})") from None
        verify_sparse_pattern(mask)
        mask = mask[None] if mask.dim() == 2 else mask
        self._set_up(block_size, causal, seq_dim, block_m, block_n, kwargs)
        self.max_seqlen = max(mask.shape[1:]) * self.block_size
        if causal and not bool(is_kv_cache_efficient(mask, self.block_size, self.block_size)):
            warnings.warn(
                "sparse_pattern: later queries read key blocks that earlier ones skipped, so a KV "
                "cache has to keep every block",
                stacklevel=2,
            )
        self._mask: Tensor | None = mask

    def _set_up(
        self,
        block_size: int,
        causal: bool,
        seq_dim: int | None,
        block_m: int | None,
        block_n: int | None,
        kwargs: dict[str, Any],
    ) -> None:
        self.block_size = whole("block_size", block_size, 1)
        self.block_m = self.block_size if block_m is None else whole("block_m", block_m, 1)
        self.block_n = self.block_size if block_n is None else whole("block_n", block_n, 1)
        if seq_dim not in (None, 1, 2):
            raise invalid(f"seq_dim: None, 1 or 2, got {seq_dim!r}")
        for name in kwargs:
            if name not in _KERNEL_WORDS:
                raise TypeError(f"{type(self).__name__}: unexpected argument {name!r}")
        self.causal = bool(causal)
        self.seq_dim = seq_dim
        self.kwargs = dict(kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_pattern_of", None)  # a cache
        return state

    def pattern(self, heads: int, kv_heads: int) -> tessera.Pattern:
        """The pattern of a call with so many heads, its rows counted in positions."""
        key = (heads, kv_heads)
        known: dict[tuple[int, ...], tessera.Pattern] = self.__dict__.setdefault("_pattern_of", {})
        found = known.get(key)
        if found is None:
            found = known[key] = self._make_pattern(heads, kv_heads)
        return found

    def _planes(self, mask: Tensor, heads: int, kv_heads: int) -> Tensor:
        if mask.size(0) in (1, heads):
            return mask
        if mask.size(0) == kv_heads:
            return mask.repeat_interleave(heads // kv_heads, 0)
        raise invalid(
            f"q, k: {heads} and {kv_heads} heads, but the pattern has {mask.size(0)} of them"
        )

    def _make_pattern(self, heads: int, kv_heads: int) -> tessera.Pattern:
        assert self._mask is not None
        planes = self._planes(self._mask, heads, kv_heads)
        return tessera.Blocks(planes.numpy(), block=self.block_size, causal=self.causal)

    def _counts_from_first_query(self, q_len: int, kv_len: int) -> bool:
        """Whether the mask's rows in one unpadded call count from the first query given."""
        mask = self._mask
        if mask is None or mask.size(1) == mask.size(2) or q_len == kv_len:
            return False
        return q_len > 1 or mask.size(1) <= (kv_len - 1) // self.block_size

    def _pattern_from_first_query(
        self, heads: int, kv_heads: int, q_len: int, kv_len: int
    ) -> tessera.Pattern:
        """The causal pattern of such a call."""
        known: dict[tuple[int, ...], tessera.Pattern] = self.__dict__.setdefault("_pattern_of", {})
        key = (heads, kv_heads, q_len, kv_len)
        found = known.get(key)
        if found is None:
            if len(known) >= 64:
                known.clear()
            assert self._mask is not None
            planes = self._planes(self._mask, heads, kv_heads).numpy()
            found = _rows.from_first_query(planes, self.block_size, q_len, kv_len)
            known[key] = found
        return found

    def forward(
        self,
        q: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        sm_scale: float | None = None, *,
        cu_seqlen_k: _Lengths | None = None, cu_seqlen_q: _Lengths | None = None,
        left_paddings: _Lengths | None = None, seqlens: _Lengths | None = None,
        return_lse: bool = False, split_qkv: _Split | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Attention; everything has gradients.

        q, k, v        4-D as seq_dim says, or packed [tokens, heads, dim]. Without v, `split_qkv`
                       makes k and v of k; without both, q, k and v of q.
        sm_scale       None or 0: 1 / sqrt(dim)
        cu_seqlen_k    packed: cumulative lengths of keys, batch + 1 values, on any device
        cu_seqlen_q    packed: those of queries. None: one query a sequence if there are as many
                       queries as sequences, else cu_seqlen_k
        left_paddings  4-D: tokens before each sequence's first real one
        seqlens        4-D: real tokens of each sequence
        return_lse     returns (output, lse)

        The output is like q; padding gives 0. lse is float32, the natural logarithm, [batch, heads,
        tokens] for either seq_dim, packed [heads, tokens]; -inf where a query sees no key.
        """
        q, k, v = _unpack(q, k, v, split_qkv)
        scale = _number("sm_scale", sm_scale) or 1.0 / math.sqrt(q.size(-1))
        if q.dim() == 3:
            for name, given in (("left_paddings", left_paddings), ("seqlens", seqlens)):
                if given is not None:
                    raise invalid(f"{name}: only with 4-D tensors; q has 3 dimensions")
            o, lse = self._packed(q, k, v, scale, cu_seqlen_q, cu_seqlen_k)
        else:
            for name, given in (("cu_seqlen_k", cu_seqlen_k), ("cu_seqlen_q", cu_seqlen_q)):
                if given is not None:
                    raise invalid(f"{name}: only with 3-D tensors; q has {q.dim()} dimensions")
            o, lse = self._batch(q, k, v, scale, left_paddings, seqlens)
        o = self._into_out(o)
        return (o, lse) if return_lse else o

    def _check_longest(self, name: str, tokens: int) -> None:
        if tokens > self.max_seqlen:
            raise invalid(f"{name}: {tokens} tokens, at most {self.max_seqlen} by the pattern")

    def _packed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        cu_seqlen_q: _Lengths | None,
        cu_seqlen_k: _Lengths | None,
    ) -> tuple[Tensor, Tensor]:
        if cu_seqlen_k is None:
            raise invalid("cu_seqlen_k: needed for 3-D tensors")
        cu_k = _batches.cumulative("cu_seqlen_k", cu_seqlen_k, k.size(0))
        if cu_seqlen_q is not None:
            cu_q = _batches.cumulative("cu_seqlen_q", cu_seqlen_q, q.size(0))
            if len(cu_q) != len(cu_k):
                raise invalid(f"cu_seqlen_q: {len(cu_k)} values as cu_seqlen_k, got {len(cu_q)}")
        elif q.size(0) == len(cu_k) - 1:
            cu_q = list(range(len(cu_k)))
        elif q.size(0) == k.size(0):
            cu_q = cu_k
        else:
            raise invalid(
                f"cu_seqlen_q: needed for {q.size(0)} queries, {len(cu_k) - 1} sequences and "
                f"{k.size(0)} keys"
            )
        self._check_longest("cu_seqlen_k", max((b - a for a, b in zip(cu_k, cu_k[1:])), default=0))
        pattern = self.pattern(q.size(1), k.size(1))
        return _batches.packed(q, k, v, pattern, scale, cu_q, cu_k)

    def _batch(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        left_paddings: _Lengths | None,
        seqlens: _Lengths | None,
    ) -> tuple[Tensor, Tensor]:
        seq_dim = self.seq_dim or 1
        batch, q_len, kv_len = q.size(0), q.size(seq_dim), k.size(seq_dim)
        heads, kv_heads = q.size(3 - seq_dim), k.size(3 - seq_dim)
        self._check_longest("k", kv_len)
        starts, ends = [0] * batch, [kv_len] * batch
        if left_paddings is not None:
            starts = _batches.numbers("left_paddings", left_paddings, batch)
        if seqlens is not None:
            lengths = _batches.numbers("seqlens", seqlens, batch)
            ends = [start + length for start, length in zip(starts, lengths)]
        for n, (start, end) in enumerate(zip(starts, ends)):
            if not 0 <= start <= end <= kv_len:
                raise invalid(
                    f"left_paddings, seqlens: sequence {n} is [{start}, {end}) of {kv_len} keys"
                )
        pattern = self.pattern(heads, kv_heads)
        if any(starts):
            if seq_dim == 2:
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            o, lse = _batches.padded(q, k, v, pattern, scale, starts, ends)
            return (o.transpose(1, 2) if seq_dim == 2 else o), lse

        q_lens = kv_lens = q_first = None
        if any(end != kv_len for end in ends):
            kv_lens = ends
            q_lens = ends if q_len == kv_len else None
        elif self._counts_from_first_query(q_len, kv_len):
            if self.causal:
                pattern = self._pattern_from_first_query(heads, kv_heads, q_len, kv_len)
            else:  # nothing but the mask looks at positions
                q_first = [0] * batch
        layout: Literal["bshd", "bhsd"] = "bshd" if seq_dim == 1 else "bhsd"
        return tessera.attention(
            q, k, v, pattern, layout=layout, scale=scale, return_lse=True,
            q_lens=q_lens, kv_lens=kv_lens, q_first=q_first,
        )  # fmt: skip

    def _into_out(self, o: Tensor) -> Tensor:
        out = self.kwargs.get("out")
        if out is None:
            return o
        if not isinstance(out, Tensor):
            raise invalid(f"out: a tensor is needed, got {out!r}")
        if out.shape != o.shape or out.dtype != o.dtype or out.device != o.device:
            raise invalid(
                f"out: {o.dtype} {list(o.shape)} on {o.device} is needed, got {out.dtype} "
                f"{list(out.shape)} on {out.device}"
            )
        if out.requires_grad and out.is_leaf:
            raise invalid("out: requires a gradient of its own, which writing to it would lose")
        # A tensor of its own on the same memory: the graph of an earlier call stays that call's.
        target: Tensor = out.detach()
        target.copy_(o)
        return target if o.requires_grad else out

    def extra_repr(self) -> str:
        return f"block_size={self.block_size}, causal={self.causal}, seq_dim={self.seq_dim}"


def _number(name: str, value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    return tessera._shapes.number(name, value)


def _tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: a tensor is needed, got {type(value).__name__}")


def _unpack(
    q: Tensor, k: Tensor | None, v: Tensor | None, split_qkv: _Split | None
) -> tuple[Tensor, Tensor, Tensor]:
    if v is None:
        if split_qkv is None:
            raise invalid("split_qkv: needed where v is None, to take q or k apart")
        if not callable(split_qkv):
            raise invalid(f"split_qkv: a function is needed, got {split_qkv!r}")
        parts = list(split_qkv(q if k is None else k))
        count = 3 if k is None else 2
        if len(parts) != count:
            raise invalid(f"split_qkv: must return {count} tensors here, got {len(parts)}")
        if k is None:
            q, k, v = parts
        else:
            k, v = parts
    elif k is None:
        raise invalid("k: missing, but v is given")
    for name, given in (("q", q), ("k", k), ("v", v)):
        _tensor(name, given)
    if q.dim() not in (3, 4):
        raise invalid(f"q: 3 or 4 dimensions, got shape {list(q.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dim() != q.dim():
            raise invalid(f"{name}: {q.dim()} dimensions as q, got shape {list(tensor.shape)}")
    return q, k, v


class LocalStrideSparseAttention(SparseAttention):
    """Attention with the local-stride (S2) pattern: each head sees its last blocks and every
    `vert_stride`-th block before them, shifted from head to head.

    num_heads            query heads of the whole model
    max_seq_len          most keys; rounded up to whole blocks, and to 64
    block_size           tokens a block
    local_blocks         blocks that every query sees, its own included; with causal=False on both
                         sides, or (left, right)
    vert_stride          1 is dense
    homo_head            all heads share one pattern
    num_dense_heads      the last heads that are dense; kv heads are counted where num_kv_heads is
                         given
    num_kv_heads         query heads of one kv head share its pattern; None: each has its own,
                         whatever the kv heads of a call
    active_head_range    (start, end): the heads of this part of the model
    head_sliding_offset  shifts all heads: block 0 is kept by the head whose step makes up for it

    The others are SparseAttention's. No mask is made, however long the sequence.
    """

    def __init__(
        self,
        num_heads: int,
        max_seq_len: int,
        block_size: int,
        local_blocks: int | tuple[int, int],
        vert_stride: int,
        *,
        homo_head: bool = False,
        num_dense_heads: int = 0,
        num_kv_heads: int | None = None,
        active_head_range: tuple[int, int] | None = None,
        head_sliding_offset: int = 0,
        block_m: int | None = None,
        block_n: int | None = None,
        causal: bool = True,
        seq_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        torch.nn.Module.__init__(self)
        self._set_up(block_size, causal, seq_dim, block_m, block_n, kwargs)
        self._mask = None
        self.num_heads = whole("num_heads", num_heads, 1)
        self.num_kv_heads = num_kv_heads
        self.local_blocks = local_blocks
        self.vert_stride = whole("vert_stride", vert_stride, 1)
        self.homo_head = bool(homo_head)
        self.num_dense_heads = num_dense_heads
        self.head_sliding_offset = head_sliding_offset
        unit = max(self.block_size, self.block_m, self.block_n, 64)
        self.max_seq_len = multiple_of(whole("max_seq_len", max_seq_len, 0), unit)
        self.max_seqlen = self.max_seq_len
        local = local_pair(local_blocks, self.causal)
        if self.vert_stride > 1 and local[0] < 1:
            raise invalid("local_blocks: at least 1, or some queries see nothing; got 0")
        # Checks the rest; of no tokens, it costs nothing.
        self._block_mask(0)
        self.active_head_range = active_head_range
        if active_head_range is not None:
            if not isinstance(active_head_range, tuple) or len(active_head_range) != 2:
                raise invalid(f"active_head_range: (start, end), got {active_head_range!r}")
            start, end = (whole("active_head_range", n, 0) for n in active_head_range)
            if not 0 <= start < end <= self.num_heads:
                raise invalid(
                    f"active_head_range: within {self.num_heads} heads, got {active_head_range}"
                )

    def _block_mask(self, tokens: int) -> Tensor:
        return get_sparse_attn_mask(
            self.num_heads,
            tokens,
            self.block_size,
            self.local_blocks,
            self.vert_stride,
            self.homo_head,
            self.num_kv_heads,
            dtype=torch.bool,
            device="cpu",
            head_sliding_offset=self.head_sliding_offset,
            num_dense_heads=self.num_dense_heads,
            causal=self.causal,
        )[1]

    def _make_pattern(self, heads: int, kv_heads: int) -> tessera.Pattern:
        start, end = self.active_head_range or (0, self.num_heads)
        groups = self.num_kv_heads or self.num_heads  # heads that differ, unless homogeneous
        left, right = local_pair(self.local_blocks, self.causal)
        s2 = functools.partial(
            tessera.S2, self.block_size, max(1, left), self.vert_stride, causal=self.causal
        )
        if not self.causal:
            s2 = functools.partial(s2, local_right=max(1, right))
        if self.num_dense_heads == groups:
            return tessera.Dense(causal=self.causal)
        offset = self.head_sliding_offset % self.vert_stride if self.causal else 0
        if self.homo_head or (not self.causal and self.num_dense_heads == 0):
            return s2(homogeneous=self.causal, offset=offset)
        if heads == end - start:
            return s2(
                offset=offset,
                dense_heads=self.num_dense_heads * (self.num_heads // groups),
                per_kv_head=self.causal and groups < self.num_heads,
                heads_total=self.num_heads,
                kv_heads_total=groups,
                head_first=start,
            )
        # Heads of the pattern are the kv heads of the call, with a step of their own.
        planes = self._planes(self._block_mask(self.max_seq_len)[start:end], heads, kv_heads)
        return tessera.Blocks(planes.numpy(), block=self.block_size, causal=self.causal)

    def extra_repr(self) -> str:
        words = f"num_heads={self.num_heads}, local_blocks={self.local_blocks}"
        return f"{words}, vert_stride={self.vert_stride}, {super().extra_repr()}"

# SPDX-License-Identifier: Apache-2.0
"""Packed and padded batches as calls of tessera.attention."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

import tessera
from tessera.dkernel._checks import invalid

_Result = tuple[Tensor, Tensor]


def numbers(name: str, value: Tensor | Sequence[int], count: int | None) -> list[int]:
    """A tensor of lengths, on any device, as a list; waits for a GPU."""
    if isinstance(value, Tensor):
        if value.dim() != 1 or value.is_floating_point() or value.dtype == torch.bool:
            raise invalid(
                f"{name}: a 1-D tensor of integers, got {value.dtype} {list(value.shape)}"
            )
        value = value.tolist()
    try:
        found = [operator.index(n) for n in value]
    except TypeError:
        raise invalid(f"{name}: a list or tensor of integers is needed, got {value!r}") from None
    if count is not None and len(found) != count:
        raise invalid(f"{name}: {count} values, one for each sequence, got {len(found)}")
    return found


def cumulative(name: str, value: Tensor | Sequence[int], tokens: int) -> list[int]:
    """Cumulative lengths: from 0, never falling, not beyond `tokens`."""
    found = numbers(name, value, None)
    if not found or found[0] != 0:
        raise invalid(f"{name}: must begin with 0, got {found[:1]}")
    for n, (before, after) in enumerate(zip(found, found[1:])):
        if after < before:
            raise invalid(f"{name}: falls from {before} to {after} at {n + 1}")
    if found[-1] > tokens:
        raise invalid(f"{name}: ends with {found[-1]}, beyond {tokens} tokens")
    return found


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: tessera.Pattern,
    scale: float,
    cu_q: list[int],
    cu_k: list[int],
) -> _Result:
    """Attention on [tokens, heads, dim]: O, and LSE [heads, tokens]. Queries past the last sequence
    get 0 and -inf."""
    rows = cu_q[-1]
    o, lse = tessera.attention(
        q[:rows],
        k[: cu_k[-1]],
        v[: cu_k[-1]],
        pattern,
        layout="thd",
        scale=scale,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        return_lse=True,
    )
    if rows < q.size(0):
        o = torch.cat([o, o.new_zeros(q.size(0) - rows, *o.shape[1:])])
        lse = torch.cat([lse, lse.new_full((lse.size(0), q.size(0) - rows), -torch.inf)], 1)
    return o, lse


def _places(starts: list[int], ends: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sequence and place of each token in [start, end) of each sequence."""
    first, last = torch.tensor(starts, dtype=torch.int64), torch.tensor(ends, dtype=torch.int64)
    lengths = last - first
    sequence = torch.repeat_interleave(torch.arange(len(starts)), lengths)
    before = torch.cumsum(lengths, 0) - lengths
    place = torch.arange(len(sequence)) - before[sequence] + first[sequence]
    return sequence.to(device), place.to(device)


def _sums(starts: list[int], ends: list[int]) -> list[int]:
    found = [0]
    for start, end in zip(starts, ends):
        found.append(found[-1] + end - start)
    return found


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: tessera.Pattern,
    scale: float,
    starts: list[int],
    ends: list[int],
) -> _Result:
    """Attention on [batch, tokens, heads, dim] where the keys [start, end) of a sequence are real:
    O like q, and LSE [batch, heads, tokens].

    As many queries as keys are padded as those are; 0 and -inf are their results. Otherwise all
    queries are the last ones of their sequence, as after a past; those that would come before its
    first key see none.
    """
    batch, q_len = q.shape[:2]
    keys = _places(starts, ends, k.device)
    cu_k = _sums(starts, ends)
    if q_len == k.size(1):
        rows, cu_q = keys, cu_k
    else:
        rows = _places([0] * batch, [q_len] * batch, q.device)
        cu_q = _sums([0] * batch, [q_len] * batch)
    o, lse = packed(q[rows], k[keys], v[keys], pattern, scale, cu_q, cu_k)
    whole_o = o.new_zeros(q.shape).index_put(rows, o)
    whole_lse = lse.new_full((batch, q_len, lse.size(0)), -torch.inf).index_put(rows, lse.t())
    return whole_o, whole_lse.transpose(1, 2)

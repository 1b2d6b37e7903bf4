# SPDX-License-Identifier: Apache-2.0
"""Heads of a model over tensor-parallel ranks, so that all have as much to compute."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from . import _errors, _native, _plans, patterns

_MOST_HEADS = 1024  # every pair of heads may be looked at
_HEAD_DIM = 64  # of the plans that count; kept pairs do not depend on it


class Assignment(NamedTuple):
    """Which heads of a model each tensor-parallel rank has.

    head_ids: for each rank the global ids of its query heads, those of one kv head together.
    pairs: for each rank the (query, key) pairs that its heads keep.
    pattern: the model's pattern with its heads in this order. A slice of as many heads as a rank
        has is that rank's, so that code which slices heads evenly needs nothing else.
    """

    head_ids: tuple[tuple[int, ...], ...]
    pairs: tuple[int, ...]
    pattern: patterns.Pattern

    @property
    def imbalance(self) -> float:
        """Pairs of the most loaded rank over the mean; 1 is best."""
        total = sum(self.pairs)
        return max(self.pairs) * len(self.pairs) / total if total else 1.0


def assign_heads(
    pattern: patterns.Pattern,
    ranks: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    tokens: int = 131072,
) -> Assignment:
    """Balances the pairs that heads keep over tensor-parallel ranks.

    pattern: of the whole model. Dense heads are the last ones of S2, and would all be on one rank.
    ranks: every rank gets as many query heads; their number has to divide that of the heads.
    heads: query heads of the model, by default what the pattern says (heads_total of S2).
    kv_heads: of the model; by default what the pattern says, or one for each query head. The query
        heads of a kv head stay together; with no more kv heads than ranks, those of a rank have
        one, and only ranks that share a kv head are balanced: `imbalance` tells what is left.
    tokens: the length of the sequences that are balanced.

    Pairs are counted by the planner, on the CPU. A model that is trained with an assignment keeps
    it for life: save the order of heads (`pattern`) with the weights. For weights that exist
    already, rows of the projections have to be moved into this order.
    """
    if not isinstance(pattern, patterns.Pattern):
        raise TypeError(
            "assign_heads: pattern: tessera.S2, Dense, Window or Blocks is needed, got "
            f"{type(pattern).__name__}"
        )
    n_ranks = patterns.integer("assign_heads: ranks", ranks, 1)
    length = patterns.integer("assign_heads: tokens", tokens, 1)
    total, kv_total = _model(pattern, heads, kv_heads)
    if total % n_ranks:
        raise _errors.InvalidArgument(
            f"assign_heads: ranks: {total} heads cannot be shared evenly by {n_ranks}"
        )
    if max(kv_total, n_ranks) % min(kv_total, n_ranks):
        raise _errors.InvalidArgument(
            f"assign_heads: ranks: {kv_total} kv heads and {n_ranks} ranks: one number has to "
            "divide the other"
        )
    group = total // kv_total
    members = [range(n * group, (n + 1) * group) for n in range(kv_total)]
    parts: list[list[int]] = []
    if kv_total >= n_ranks:
        loads = [_pairs(pattern, total, kv_total, ids, length) for ids in members]
        for chosen in _spread(loads, n_ranks):
            parts.append(list(itertools.chain.from_iterable(members[n] for n in chosen)))
    else:  # several ranks share the query heads of one kv head
        for ids in members:
            loads = [_pairs(pattern, total, kv_total, (one,), length) for one in ids]
            for chosen in _spread(loads, n_ranks // kv_total):
                parts.append([ids[n] for n in chosen])
    order = tuple(itertools.chain.from_iterable(parts))
    return Assignment(
        head_ids=tuple(map(tuple, parts)),
        pairs=tuple(_pairs(pattern, total, kv_total, ids, length) for ids in parts),
        pattern=pattern.on_heads(order, total, kv_total),
    )


def _model(
    pattern: patterns.Pattern, heads: int | None, kv_heads: int | None
) -> tuple[int, int]:
    """Query heads and kv heads of the model."""
    told = kv_told = None
    if isinstance(pattern, patterns.S2):
        if pattern.head_first or pattern.head_ids is not None:
            raise _errors.InvalidArgument(
                "assign_heads: pattern: head_first, head_ids: the pattern of the whole model is "
                f"needed, got {pattern}"
            )
        told, kv_told = pattern.heads_total, pattern.kv_heads_total
    elif isinstance(pattern, patterns.Blocks) and pattern.mask_array.shape[0] > 1:
        told = int(pattern.mask_array.shape[0])
    if heads is None:
        heads = told
    if heads is None:
        raise _errors.InvalidArgument(
            f"assign_heads: heads: {pattern} does not say how many heads the model has"
        )
    total = patterns.integer("assign_heads: heads", heads, 1)
    if total > _MOST_HEADS:
        raise _errors.InvalidArgument(
            f"assign_heads: heads: at most {_MOST_HEADS} is needed, got {total}"
        )
    if told is not None and told != total:
        raise _errors.InvalidArgument(
            f"assign_heads: heads: {told} by the pattern is needed, got {total}"
        )
    if kv_heads is None:
        kv_heads = kv_told or total
    kv_total = patterns.integer("assign_heads: kv_heads", kv_heads, 1)
    if total % kv_total:
        raise _errors.InvalidArgument(
            f"assign_heads: kv_heads: a number that divides {total} heads is needed, got {kv_total}"
        )
    if kv_told is not None and kv_told != kv_total:
        raise _errors.InvalidArgument(
            f"assign_heads: kv_heads: {kv_told} by the pattern is needed, got {kv_total}"
        )
    return total, kv_total


def _pairs(
    pattern: patterns.Pattern,
    total: int,
    kv_total: int,
    ids: tuple[int, ...] | range | list[int],
    tokens: int,
) -> int:
    """Pairs that some heads of a model keep, by the planner."""
    group = total // kv_total
    here = len({head // group for head in ids})
    plan = _plans.Plan(
        _plans.Problem(
            spec=pattern.on_heads(ids, total, kv_total).spec,
            device="cpu",
            op=_native.FORWARD,
            dtype=_native.F32,
            heads=len(ids),
            kv_heads=here,
            head_dim=_HEAD_DIM,
            scale=None,
            determinism=0,
            batch=1,
            q_len=tokens,
            kv_len=tokens,
            max_tokens=tokens,
        )
    )
    return plan.kept_pairs


def _spread(loads: list[int], ranks: int) -> list[list[int]]:
    """Items in `ranks` parts of equal number and about equal load: the heaviest first, each to the
    part with the least load that has room; then exchanges of two items while they help."""
    room = len(loads) // ranks
    parts: list[list[int]] = [[] for _ in range(ranks)]
    sums = [0] * ranks
    for item in sorted(range(len(loads)), key=lambda n: (-loads[n], n)):
        part = min((n for n in range(ranks) if len(parts[n]) < room), key=lambda n: sums[n])
        parts[part].append(item)
        sums[part] += loads[item]
    for _ in range(len(loads)):
        most = max(range(ranks), key=lambda n: sums[n])
        best, found = sums[most], None
        for other in [n for n in range(ranks) if n != most]:
            for a, b in itertools.product(range(room), range(room)):
                moved = loads[parts[most][a]] - loads[parts[other][b]]
                worst = max(sums[most] - moved, sums[other] + moved)
                if moved > 0 and worst < best:
                    best, found = worst, (other, a, b, moved)
        if found is None:
            break
        other, a, b, moved = found
        parts[most][a], parts[other][b] = parts[other][b], parts[most][a]
        sums[most], sums[other] = sums[most] - moved, sums[other] + moved
    return [sorted(part) for part in parts]

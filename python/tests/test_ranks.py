# SPDX-License-Identifier: Apache-2.0
"""Heads over tensor-parallel ranks; needs NumPy alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.numpy

S2 = tessera.S2


def kept(pattern: Any, heads: list[int], total: int, kv_total: int, tokens: int) -> int:
    mask = pattern.mask(tokens, tokens, heads=total, kv_heads=kv_total)
    return int(mask[heads].sum())


def test_dense_heads_do_not_land_on_one_rank() -> None:
    """32 heads at 128k tokens, of them 4 dense, over 4 ranks."""
    pattern = S2(64, 8, 32, dense_heads=4, heads_total=32)
    found = tessera.assign_heads(pattern, 4, tokens=131072)
    assert found.imbalance <= 1.05
    assert sorted(itertools.chain(*found.head_ids)) == list(range(32))
    assert all(len(ids) == 8 for ids in found.head_ids)


@pytest.mark.parametrize(
    ("pattern", "heads", "kv_heads", "ranks"),
    [
        (S2(8, 1, 4, dense_heads=2), 8, 8, 2),
        (S2(8, 1, 4, dense_heads=3), 8, 4, 2),
        (S2(8, 1, 4, dense_heads=3), 12, 2, 4),
        (S2(8, 2, 3, per_kv_head=True, dense_heads=2, kv_heads_total=4), 8, 4, 4),
        (S2(8, 2, 5, offset=1), 6, 1, 3),
        (tessera.Blocks(np.tri(12, dtype=bool)[None].repeat(4, 0) & (
            np.random.default_rng(0).random((4, 12, 12)) < [[[0.9]], [[0.2]], [[0.8]], [[0.1]]]
        ), 8), 4, 4, 2),
        (tessera.Dense(), 8, 2, 2),
    ],
    ids=str,
)  # fmt: skip
def test_counts_are_the_masks_and_no_split_is_better(
    pattern: Any, heads: int, kv_heads: int, ranks: int
) -> None:
    tokens, group = 90, heads // kv_heads
    found = tessera.assign_heads(pattern, ranks, heads=heads, kv_heads=kv_heads, tokens=tokens)
    assert sorted(itertools.chain(*found.head_ids)) == list(range(heads))
    for ids, pairs in zip(found.head_ids, found.pairs, strict=True):
        assert pairs == kept(pattern, list(ids), heads, kv_heads, tokens)
        groups = [head // group for head in ids]
        assert groups == sorted(groups)  # those of a kv head follow each other
        if kv_heads >= ranks:
            assert all(groups.count(n) == group for n in set(groups))
        else:
            assert len(set(groups)) == 1
    if kv_heads >= ranks:
        loads = [
            kept(pattern, list(range(n * group, (n + 1) * group)), heads, kv_heads, tokens)
            for n in range(kv_heads)
        ]
        best = min(
            max(sum(loads[n] for n in part) for part in split)
            for split in _splits(list(range(kv_heads)), kv_heads // ranks)
        )
        assert max(found.pairs) <= 1.05 * best


def _splits(items: list[int], size: int) -> Any:
    """All ways to cut items into parts of a size."""
    if not items:
        yield []
        return
    for rest in itertools.combinations(items[1:], size - 1):
        part = [items[0], *rest]
        for others in _splits([n for n in items if n not in part], size):
            yield [part, *others]


def test_contiguous_slices_are_worse() -> None:
    pattern = S2(64, 8, 32, dense_heads=4, heads_total=32)
    balanced = tessera.assign_heads(pattern, 4)
    whole = tessera.assign_heads(pattern, 32)
    by_head = dict(zip((ids[0] for ids in whole.head_ids), whole.pairs, strict=True))
    slices = [sum(by_head[n] for n in range(first, first + 8)) for first in range(0, 32, 8)]
    assert sum(slices) == sum(balanced.pairs)
    assert max(slices) * 4 / sum(slices) > 3.2 > 1.05 >= balanced.imbalance


@pytest.mark.parametrize(("kv_heads", "ranks"), [(8, 4), (4, 2), (2, 4)])
def test_ranks_compute_the_whole_model(kv_heads: int, ranks: int) -> None:
    heads, tokens, group = 8, 40, 8 // kv_heads
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, tokens, heads, 16), dtype=np.float32)
    k, v = (rng.standard_normal((1, tokens, kv_heads, 16), dtype=np.float32) for _ in "kv")
    pattern = S2(8, 1, 3, dense_heads=2, heads_total=heads)
    whole, _ = tessera.numpy.attention(q, k, v, pattern)
    found = tessera.assign_heads(pattern, ranks, kv_heads=kv_heads)
    for ids in found.head_ids:
        own = sorted({head // group for head in ids})
        part = pattern.on_heads(ids, heads, kv_heads)
        o, _ = tessera.numpy.attention(q[:, :, list(ids)], k[:, :, own], v[:, :, own], part)
        np.testing.assert_allclose(o, whole[:, :, list(ids)], rtol=1e-5, atol=1e-6)
    order = found.pattern.head_ids  # type: ignore[attr-defined]
    assert order == tuple(itertools.chain(*found.head_ids))


def test_wrong_arguments_are_named() -> None:
    pattern = S2(8, 1, 4, heads_total=8)
    for text, call in (
        ("ranks: 8 heads cannot be shared evenly by 3", lambda: tessera.assign_heads(pattern, 3)),
        ("ranks: 1 or more", lambda: tessera.assign_heads(pattern, 0)),
        ("heads: dense", lambda: tessera.assign_heads(tessera.Dense(), 2)),
        ("heads: 8 by the pattern", lambda: tessera.assign_heads(pattern, 2, heads=4)),
        ("kv_heads: a number", lambda: tessera.assign_heads(pattern, 2, kv_heads=3)),
        (
            "kv_heads: 4 by the pattern",
            lambda: tessera.assign_heads(
                S2(8, 1, 4, per_kv_head=True, heads_total=8, kv_heads_total=4), 2, kv_heads=8
            ),
        ),
        ("tokens: less than", lambda: tessera.assign_heads(pattern, 2, tokens=2**40)),
        ("tokens: 1 or more", lambda: tessera.assign_heads(pattern, 2, tokens=0)),
        ("head_ids", lambda: tessera.assign_heads(pattern.on_heads([1, 2], 8), 2)),
        ("one number has", lambda: tessera.assign_heads(S2(8, 1, 4), 4, heads=12, kv_heads=6)),
    ):
        with pytest.raises(tessera.InvalidArgument, match=f"assign_heads: .*{text}"):
            call()
    with pytest.raises(TypeError, match="pattern"):
        tessera.assign_heads("s2", 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ranks"):
        tessera.assign_heads(pattern, 2.0)  # type: ignore[arg-type]

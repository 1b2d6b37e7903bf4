# SPDX-License-Identifier: Apache-2.0
"""Patterns as values, and the pairs that they keep: the formulas, `.mask` and the C library."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import random
import warnings

import numpy as np
import pytest
import predicate

import tessera
from tessera import _layouts, _native, patterns

S2, Dense, Window, Blocks = tessera.S2, tessera.Dense, tessera.Window, tessera.Blocks
MASK = np.random.default_rng(0).random((4, 7, 8)) < 0.5
VALUES = [
    Dense(),
    Dense(causal=False),
    Window(5),
    Window(-1, sinks=2),
    Window(3, 4, sinks=2, causal=False),
    Window(0, -1, causal=False),
    S2(4, 2, 3),
    S2(4, 1, 8, offset=1, dense_heads=1),
    S2(3, 2, 4, per_kv_head=True),
    S2(4, 2, 5, homogeneous=True, offset=2),
    S2(4, 2, 3, causal=False, local_right=1),
    S2(4, 1, 8, heads_total=8, kv_heads_total=4, head_first=2, dense_heads=3),
    S2(4, 1, 8, heads_total=16, kv_heads_total=8, per_kv_head=True, head_ids=(4, 5, 6, 7)),
    S2(4, 1, 8, heads_total=16, kv_heads_total=8, head_ids=(15, 14, 2, 3), dense_heads=1),
    Blocks(MASK, 4),
    Blocks(MASK[:1, :3], 5, causal=False),
    Blocks(np.zeros((0, 0), bool), 4),
]


@pytest.mark.parametrize("pattern", VALUES, ids=str)
def test_mask_and_library_keep_the_pairs_of_the_formulas(pattern: patterns.Pattern) -> None:
    heads, kv_heads, rows, keys = 4, 2, range(-3, 37), 34
    mask = pattern.mask(rows, keys, heads=heads, kv_heads=kv_heads)
    assert mask.shape == (heads, len(rows), keys)
    layout = _layouts.Layout(pattern, heads, kv_heads, keys)
    found = ctypes.c_int()
    for head in range(heads):
        for n, p in enumerate(rows):
            for t in range(keys):
                expected = predicate.kept(pattern, head, heads, kv_heads, p, t)
                assert mask[head, n, t] == expected, (head, p, t)
                if (p + t) % 3 == 0:
                    _native.call(
                        "tess_layout_kept", layout.handle, head, p, t, ctypes.byref(found)
                    )
                    assert found.value == expected, (head, p, t)


def test_golden_rows() -> None:
    def rows(pattern: S2, head: int) -> str:
        kept = pattern.mask(range(0, 8), range(0, 8), heads=4)[head]
        return " ".join("".join(str(int(x)) for x in row) for row in kept)

    first = "10000000 11000000 01100000 00110000 00011000 00011100 00010110 00010011"
    last = "10000000 11000000 11100000 10110000 10011000 10001100 10001110 10001011"
    assert rows(S2(1, 2, 4), 1) == first
    assert rows(S2(1, 2, 4, offset=1), 3) == last


@pytest.mark.parametrize("pattern", VALUES, ids=str)
def test_patterns_are_values(pattern: patterns.Pattern) -> None:
    for other in (
        patterns.parse(pattern.spec),
        pickle.loads(pickle.dumps(pattern)),
        copy.deepcopy(pattern),
    ):
        assert other == pattern and hash(other) == hash(pattern) and other.spec == pattern.spec
    assert sum(other == pattern for other in VALUES) == 1
    with pytest.raises(AttributeError):
        pattern.causal = False  # frozen


def test_words_tell_what_is_not_the_default() -> None:
    assert repr(S2(64, 2, 8, offset=1)) == "S2(block=64, local=2, stride=8, offset=1)"
    assert eval(repr(VALUES[9])) == VALUES[9]
    assert str(Window(5)) == Window(5).spec


def test_a_large_mask_travels_as_a_digest() -> None:
    mask = np.random.default_rng(1).random((2, 200, 200)) < 0.5
    pattern = Blocks(mask, 16)
    assert len(pattern.spec) < 200
    assert patterns.parse(pattern.spec) == pattern
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern and (again.mask_array == mask).all()
    assert Blocks(mask ^ True, 16) != pattern


def test_blocks_copy_their_mask() -> None:
    mask = np.ones((2, 2), bool)
    pattern = Blocks(mask, 4)
    mask[:] = False
    assert pattern.mask_array.all()
    with pytest.raises(ValueError):
        pattern.mask_array[:] = False


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: S2(0, 1, 1), "block"),
        (lambda: S2(64, 0, 1), "local"),
        (lambda: S2(64, 1, -3), "stride"),
        (lambda: S2(64, 1, 2**31), "stride"),
        (lambda: S2(64, 1, 1, offset=-1), "offset"),
        (lambda: S2(64, 1, 1, dense_heads=-1), "dense_heads"),
        (lambda: S2(64, 1, 1, head_ids=()), "head_ids"),
        (lambda: S2(64, 1, 1, head_ids=(1,), head_first=1), "head_first"),
        (lambda: S2(64, 1, 1, head_ids=(4,), heads_total=4), "head_ids"),
        (lambda: Window(-2), "left"),
        (lambda: Window(1, sinks=-1), "sinks"),
        (lambda: Blocks(np.ones(3, bool), 4), "mask"),
        (lambda: Blocks(np.ones((2, 2), bool), 0), "block"),
        (lambda: S2(64, 1, 1).info(1024, heads=0), "heads"),
        (lambda: Blocks(MASK, 4).on_heads([0], 8), "heads_total"),
    ],
)
def test_wrong_values_are_named(make: object, named: str) -> None:
    with pytest.raises(tessera.InvalidArgument, match=named):
        make()  # type: ignore[operator]


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"block.*'64'"):
        S2("64", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stride"):
        S2(64, 1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="local"):
        S2(64, True, 1)


def test_heads_that_do_not_fit_are_named() -> None:
    with pytest.raises(tessera.InvalidArgument, match="head_ids: 2 ids do not fit 4"):
        S2(4, 1, 1, head_ids=(0, 1)).heads(4, 4)
    with pytest.raises(tessera.InvalidArgument, match="mask: of 4 heads"):
        Blocks(MASK, 4).heads(8, 8)


def test_info_tells_what_a_pattern_covers() -> None:
    info = S2(64, 2, 8).info(4096, heads=8)
    assert info.coverage == 1 and info.kv_efficient and info.classes == 8
    assert 0 < info.kept_share < 0.5 and info.kv_blocks == 8 * 64
    assert 0 < info.kv_blocks_kept < info.kv_blocks
    pattern = S2(4, 2, 3)
    share = pattern.mask(64, 64, heads=3).sum() / (3 * 64 * 65 / 2)
    assert pattern.info(64, heads=3).kept_share == pytest.approx(share)
    with pytest.warns(UserWarning, match="no head sees"):
        assert S2(64, 2, 8).info(4096, heads=2).coverage < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dense().info(100)


def test_on_heads_selects_heads() -> None:
    whole = S2(2, 1, 8, dense_heads=2)
    ids = [0, 3, 6]
    part = whole.on_heads(ids, 8)
    expected = whole.mask(40, 40, heads=8)[ids]
    assert (part.mask(40, 40, heads=3) == expected).all()
    blocks = Blocks(MASK, 4)
    assert (blocks.on_heads([2, 1], 4).mask_array == MASK[[2, 1]]).all()
    assert Dense().on_heads(ids, 8) == Dense()


def test_svg_draws_every_head() -> None:
    text = S2(16, 1, 2).svg(64, heads=3)
    assert text.startswith("<svg") and text.count("<text") == 3
    kept = S2(16, 1, 2).mask(range(15, 64, 16), range(0, 64, 16), heads=3)
    assert text.count('fill="#1f5fa8"') == kept.sum()


def test_random_patterns_survive_their_words() -> None:
    random.seed(0)
    for _ in range(200):
        pattern = S2(
            random.randint(1, 99),
            random.randint(1, 9),
            random.randint(1, 9),
            random.randint(0, 3),
            random.randint(0, 3),
            random.random() < 0.5,
            random.random() < 0.5,
            random.random() < 0.5,
            random.choice([None, 2]),
            random.choice([None, 8]),
        )
        assert patterns.parse(pattern.spec) == pattern


def test_a_large_mask_is_found_as_long_as_an_equal_one_lives() -> None:
    """The operators know it by a digest; the last ones made are kept anyway."""
    mask = np.random.default_rng(0).random((200, 200)) < 0.5
    first, copied, other = Blocks(mask, 16), Blocks(mask, 16), Blocks(mask, 16)
    other = copy.deepcopy(other)
    spec = first.spec
    assert "sha256" in spec and copied.mask_array is first.mask_array
    patterns._recent.clear()
    del first, other
    assert pickle.loads(pickle.dumps(copied)) == copied
    patterns._recent.clear()
    gc.collect()
    assert patterns.parse(spec) == copied
    del copied
    gc.collect()
    with pytest.raises(tessera.InvalidArgument, match="mask: this large mask"):
        patterns.parse(spec)

# SPDX-License-Identifier: Apache-2.0
"""Arguments of wrong kinds, wherever one can be given: the error names the argument and what was
given. What is wrong with tensors and lengths is in test_errors.py."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tessera
import tessera.dkernel as dkernel
import tessera.numpy
from tessera import _native, patterns

S2, Blocks = tessera.S2, tessera.Blocks
PATTERN = S2(16, 1, 2)
Q, K = torch.randn(1, 9, 4, 16), torch.randn(1, 9, 2, 16)
ARRAYS = Q.numpy(), K.numpy(), K.numpy()
HEADS = Blocks(np.ones((4, 2, 2)))
Wrong = tessera.InvalidArgument


def attend(**words: Any) -> Any:
    return tessera.attention(Q, K, K, **{"pattern": PATTERN, **words})


def of_arrays(**words: Any) -> Any:
    return tessera.numpy.attention(*ARRAYS, **{"pattern": PATTERN, **words})


def gradients(lse: Any, **words: Any) -> Any:
    q, k, v = ARRAYS
    return tessera.numpy.gradients(q, q, k, v, q, lse, PATTERN, **words)


def cache(**words: Any) -> tessera.KVCache:
    given: Any = {"dtype": torch.float32, "sequences": 2, "max_tokens": 64, **words}
    return tessera.KVCache(PATTERN, 4, 2, 16, **given)


def module(*arguments: Any, **words: Any) -> Any:
    of_class = {
        name: words.pop(name)
        for name in ("out", "active_head_range", "head_sliding_offset")
        if name in words
    }
    made = dkernel.LocalStrideSparseAttention(4, 64, 16, 1, 2, **of_class)
    return made(*(arguments or (Q, K, K)), **words)


CASES: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, "tessera.load: path: .* got 3", lambda: tessera.load(3)),
    (TypeError, "tessera.load: path: .* got b'x'", lambda: tessera.load(b"x")),
    (Wrong, r"tessera.load: path: 'a\\x00b'", lambda: tessera.load("a\0b")),
    (TypeError, "info: file: .* got 3", lambda: tessera.info(3)),
    (TypeError, "cache_limits: plans: .* 'x'", lambda: tessera.cache_limits(plans="x")),
    (Wrong, "assign_heads: heads: at most", lambda: tessera.assign_heads(PATTERN, 2, heads=10**6)),
    (TypeError, "Pattern: make one with", lambda: tessera.Pattern()),
    (TypeError, "pattern: tessera.S2, .* got Mine", lambda: attend(pattern=Mine())),
    (TypeError, "pattern: tessera.S2, .* got Mine", lambda: of_arrays(pattern=Mine())),
    (TypeError, "scale: a number is needed, got 100", lambda: attend(scale=10**400)),
    (TypeError, "scale: a number is needed, got 100", lambda: attend(scale=10**400, cache=cache())),
    (TypeError, "return_lse: True or False .* tensor", lambda: attend(return_lse=torch.ones(2))),
    (TypeError, "deterministic: True or False", lambda: attend(deterministic=np.ones(2))),
    (TypeError, "deterministic: True or False .* 'no'", lambda: attend(deterministic="no")),
    (Wrong, r"kv_first\[0\]: 0 to 2147418111 .* got 4611", lambda: attend(kv_first=[2**62])),
    (
        Wrong,
        r"q_first\[0\]: 0 to 2147418111 .* got 2147418112",
        lambda: attend(q_first=[2147418112]),
    ),
    (TypeError, "scale: a number is needed, got x", lambda: of_arrays(scale="x")),
    (TypeError, r"scale: a number is needed, got \[1\]", lambda: of_arrays(scale=[1])),
    (TypeError, "scale: a number is needed, got 1j", lambda: of_arrays(scale=1j)),
    (Wrong, "q_lens: integers", lambda: of_arrays(q_lens=[[1], [1, 2]])),
    (Wrong, "lse: an array of floats .* <U1", lambda: gradients(np.full((1, 4, 9), "z"))),
    (
        TypeError,
        "deterministic: True or False",
        lambda: gradients(np.ones((1, 4, 9)), deterministic=np.ones(2)),
    ),
    (TypeError, "S2: head_ids: a list .* got 5", lambda: S2(16, 1, 2, head_ids=5)),
    (TypeError, "S2: causal: .* got 'no'", lambda: S2(16, 1, 2, causal="no")),
    (TypeError, "S2: homogeneous: .* got 2", lambda: S2(16, 1, 2, homogeneous=2)),
    (TypeError, "Dense: causal: .* got 'x'", lambda: tessera.Dense("x")),
    (TypeError, "Window: causal: .* got None", lambda: tessera.Window(3, causal=None)),
    (TypeError, "Blocks: causal: .* got None", lambda: Blocks([[1]], causal=None)),
    (TypeError, "Blocks: mask: .* got object", lambda: Blocks(np.array([[object()]]))),
    (TypeError, "Blocks: mask: .* got <U3", lambda: Blocks("abc")),
    (Wrong, "mask: q: 0 or more .* got -5", lambda: PATTERN.mask(-5, 5)),
    (TypeError, "mask: k: positions .* got 2.5", lambda: PATTERN.mask(5, 2.5)),
    (TypeError, "mask: q: positions .* got None", lambda: PATTERN.mask(None, 5)),
    (Wrong, "mask: kv_heads: .* heads=4 .* got 3", lambda: PATTERN.mask(5, 5, heads=4, kv_heads=3)),
    (Wrong, "mask: of 4 heads, .* 8 query heads", lambda: HEADS.mask(5, 5, heads=8)),
    (Wrong, "head_ids: 2 ids .* 4 ", lambda: S2(16, 1, 2, head_ids=(0, 1)).mask(5, 5, heads=4)),
    (
        Wrong,
        "mask: kv_heads_total: .* heads_total=4 .* got 8",
        lambda: S2(16, 1, 2, per_kv_head=True, heads_total=4, kv_heads_total=8).mask(5, 5),
    ),
    (TypeError, "on_heads: head_ids: .* got None", lambda: PATTERN.on_heads(None, 4)),
    (TypeError, "on_heads: heads_total", lambda: tessera.Dense().on_heads([0], "y")),
    (Wrong, "on_heads: head_ids: 0 or more .* got -1", lambda: HEADS.on_heads([-1], 4)),
    (Wrong, "on_heads: head_ids: below heads_total=4, got 9", lambda: HEADS.on_heads([9], 4)),
    (Wrong, "on_heads: head_ids: below", lambda: Blocks([[1]]).on_heads([9], 4)),
    (Wrong, "shape=1,1000000,1000000", lambda: patterns.parse(LARGE)),
    (Wrong, r"token: .* got torch.float32 \[0\]", lambda: cached(torch.zeros(0))),
    (Wrong, r"dtype: .* got \[\]", lambda: cache(dtype=[])),
    (Wrong, r"kv_dtype: .* got \[\]", lambda: cache(kv_dtype=[])),
    (
        tessera.OutOfMemory,
        r"KVCache: pages: no memory for .*\[2147483647\]",
        lambda: cache(pages=2**31 - 1),
    ),
    (Wrong, r"left_paddings: .* got \[1.5\]", lambda: module(Q, K, K, left_paddings=[1.5])),
    (Wrong, "left_paddings: .* got 3", lambda: module(Q, K, K, left_paddings=3)),
    (Wrong, "cu_seqlen_k: .* got 'xyz'", lambda: module(Q[0], K[0], K[0], cu_seqlen_k="xyz")),
    (TypeError, "sm_scale: a number", lambda: module(Q, K, K, torch.ones(2))),
    (TypeError, "k: a tensor is needed, got int", lambda: module(Q, 3, K)),
    (Wrong, "split_qkv: a function .* got 3", lambda: module(Q, split_qkv=3)),
    (Wrong, "out: a tensor .* got 'x'", lambda: module(out="x")),
    (Wrong, "active_head_range: .* got 0.5", lambda: module(active_head_range=(0.5, 2))),
    (Wrong, "head_sliding_offset: .* got 'x'", lambda: module(head_sliding_offset="x")),
    (Wrong, "sparse_pattern: a mask", lambda: dkernel.SparseAttention(16, None)),
    (
        Wrong,
        "head_sliding_step",
        lambda: dkernel.get_sparse_attn_mask(4, 64, head_sliding_step="q"),
    ),
    (TypeError, r"x\[0\]: lse: .* got int", lambda: dkernel.combine_attn_partitions((Q, 2))),
    (Wrong, "hdim: .* got 'x'", lambda: dkernel.combine_attn_partitions((Q, Q), hdim="x")),
]
LARGE = "blocks causal=1 block=16 shape=1,1000000,1000000 bits=eNpjAAAAAQAB"


class Mine(tessera.Pattern):
    """A class that says nothing of what it keeps."""


def cached(token: torch.Tensor) -> Any:
    words = (token, "bshd", None, None, None, False, 0)
    return torch.ops.tessera.cached(Q, K, K, *words)


@pytest.mark.parametrize(("kind", "text", "call"), CASES)
def test_wrong_words_are_named(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_what_is_as_good_as_the_right_word() -> None:
    expected = attend(return_lse=True)
    found = attend(return_lse=np.bool_(True), deterministic=1, scale=np.float32(0.25))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert tessera.Dense(np.bool_(False)) == tessera.Dense(0) == tessera.Dense(False)
    assert S2(16, 1, 2, head_ids=range(1, 3)) == S2(16, 1, 2, head_ids=(1, 2))
    limits = tessera.cache_info()
    tessera.cache_limits(plans=np.int64(limits.max_plans))
    assert tessera.cache_info().max_plans == limits.max_plans
    assert (PATTERN.mask(np.int64(3), range(3)) == PATTERN.mask(3, 3)).all()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA is full\nand more"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory\nand more"),
        RuntimeError("Storage size calculation overflowed with sizes=[1]"),
        MemoryError("Unable to allocate 8 EiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered\nand more"),
    ],
)
def test_pools_that_found_no_memory_can_grow_later(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cache(pages="grow", layers=2, max_tokens=640)
    before = made.pool_bytes
    real, calls = made._pool, iter(range(100))

    def some(*arguments: Any) -> torch.Tensor:
        if next(calls) == 3:  # V of the second layer
            raise error
        return real(*arguments)

    x = torch.randn(2, 200, 2, 16)
    monkeypatch.setattr(made, "_pool", some)
    with pytest.raises(type(error) if "illegal" in str(error) else tessera.OutOfMemory) as raised:
        made.append(x, x)
    if raised.value is not error:
        line = str(error).partition("\n")[0]
        assert re.match(r"KVCache: pages: no memory for \d+ pages a layer: ", str(raised.value))
        assert str(raised.value).endswith(f": {line}")
    assert made.lengths.tolist() == [0, 0]
    # The first layer has grown. Of the second one neither K nor V has.
    sizes = [[x.numel() * 4 for x in made.pools(layer)[0][:2]] for layer in range(2)]
    assert sum(sizes[0]) > sum(sizes[1]) == before / 2
    assert made.pool_bytes == sum(sum(pair) for pair in sizes) > before
    monkeypatch.undo()
    small = x[:, :70]
    copied, other = copy.deepcopy(made), cache(layers=2, max_tokens=640)
    q = torch.randn(2, 70, 4, 16)
    for layer in range(2):
        o, of_copy, expected = (
            tessera.attention(q, small, small, PATTERN, cache=one, layer=layer)
            for one in (made, copied, other)
        )
        assert torch.equal(o, expected) and torch.equal(of_copy, expected)


def test_a_library_of_another_version_is_told_before_its_functions_are_missed(
    tmp_path: Any,
) -> None:
    """One that has tess_version, and nothing else."""
    source, library = tmp_path / "old.c", tmp_path / "libold.so"
    source.write_text("unsigned tess_version(void) { return 7; }\n")
    built = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source])
    if built.returncode:
        pytest.skip("needs a C compiler")
    code = f"import tessera; tessera.load({str(library)!r})"
    package = os.path.dirname(os.path.dirname(_native.__file__))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package, capture_output=True, text=True
    )
    assert "VersionMismatch" in done.stderr and "has version 0.0," in done.stderr, done.stderr

# SPDX-License-Identifier: Apache-2.0
"""A minute of calls that nobody would write: each is right, or a Python exception. None ends the
interpreter. Every round has a seed of its own, which a failure tells."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as some

import tessera
import tessera.numpy

REFUSED = (tessera.InvalidArgument, tessera.Unsupported, TypeError)
NAMES = ("cu_seqlens_q", "cu_seqlens_k", "q_lens", "kv_lens", "q_first", "kv_first")


def fuzz(seconds: float, body: Callable[[Any], None]) -> None:
    until = time.monotonic() + seconds
    for n in itertools.count():
        test = given(some.data())(body)
        test = settings(
            max_examples=50, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        )(test)  # fmt: skip
        try:
            seed(n)(test)()
        except BaseException:
            print(f"seed {n}")
            raise
        if time.monotonic() > until:
            return


class Draw:
    """What a call is made of: mostly good, now and then hostile."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.odd = False  # whether something was drawn that need not work

    def one(self, *values: Any) -> Any:
        return self.data.draw(some.sampled_from(values))

    def number(self, least: int, most: int) -> int:
        found: int = self.data.draw(some.integers(least, most))
        return found

    def rarely(self, good: Callable[[], Any], *bad: Any) -> Any:
        if self.number(0, 24):
            return good()
        self.odd = True
        return self.one(*bad)

    def pattern(self, heads: int, kv_heads: int) -> Any:
        block = self.one(1, 3, 8, 16)
        kind = self.number(0, 5)
        if kind == 0:
            return tessera.Dense(self.one(True, False))
        if kind == 1:
            causal, left = self.one(True, False), self.number(-1, 20)
            return tessera.Window(left, self.number(-1, 9), self.number(0, 4), causal)
        if kind == 2:
            planes = self.rarely(lambda: self.one(1, heads), 2, 7)
            mask = torch.rand(planes, self.number(1, 9), self.number(1, 9)) < 0.6
            return tessera.Blocks(mask, block, self.one(True, False))
        words: dict[str, Any] = {"dense_heads": self.rarely(lambda: self.one(0, 0, 1), 9, 2**31)}
        if self.number(0, 1):
            words["causal"] = self.one(True, False)
        elif self.number(0, 1):
            words["per_kv_head"] = True
        words["offset"] = self.number(0, 3) if words.get("causal", True) else 0
        if self.number(0, 3) == 0:
            words["heads_total"] = self.rarely(lambda: heads * 2, 1, 2**30)
            words["kv_heads_total"] = kv_heads * 2
            words["head_first"] = self.rarely(lambda: self.one(0, heads), 1, 100)
        return tessera.S2(block, self.number(1, 3), self.number(1, 5), **words)

    def lengths(self, layout: str, batch: int, rows: int, keys: int) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if layout == "thd":
            cuts = [
                [0, *sorted(self.number(0, most) for _ in range(batch))] for most in (rows, keys)
            ]
            given["cu_seqlens_q"] = cuts[0]
            if rows != keys or self.number(0, 1):
                given["cu_seqlens_k"] = cuts[1]
        else:
            for name, most in (("q_lens", rows), ("kv_lens", keys)):
                if self.number(0, 2) == 0:
                    given[name] = [self.number(0, most) for _ in range(batch)]
        if self.number(0, 4) == 0:
            given["q_first"] = [self.number(0, 60) for _ in range(batch)]
        for name in given:
            good = given[name]
            given[name] = self.rarely(lambda good=good: good, *self.hostile())
        if self.number(0, 49) == 0:
            self.odd = True
            given[self.one(*NAMES)] = self.one(*self.hostile())
        return given

    def hostile(self) -> tuple[Any, ...]:
        return (
            [], [0], [5, 3], [-1], [2**62, 2**63 - 1], [2**70], [0.5], ["a"], "ab", 7, {}, [[0, 1]],
            torch.tensor([0.0, 3.0]), torch.tensor([[0, 3]]), torch.tensor(3), torch.zeros(0).int(),
            torch.tensor([0, 3], device="meta"), torch.tensor([0, 3]).bool(),
            torch.tensor([0, 9, 9, 3])[::3], torch.tensor([0, 3]).to_sparse(), [None],
            [float("nan")], torch.tensor([0, 2**40]), np.array([0, 3]), object(),
        )  # fmt: skip

    def tensor(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any strides."""
        kind = self.number(0, 6)
        if kind == 0 and len(shape) > 1:  # turned
            order = self.data.draw(some.permutations(range(len(shape))))
            made = torch.randn([shape[n] for n in order]).to(dtype)
            return made.permute([order.index(n) for n in range(len(shape))])
        if kind == 1:  # every second element
            return torch.randn([*shape[:-1], shape[-1] * 2]).to(dtype)[..., ::2]
        if kind == 2:  # the same row again and again
            return torch.randn(shape[-1]).to(dtype).expand(shape)
        if kind == 3:  # part of something larger, not at its start
            return torch.randn([n + 3 for n in shape]).to(dtype)[tuple(slice(2, -1) for _ in shape)]
        if kind == 4:  # a view that PyTorch negates when it is read
            return torch.randn([*shape], dtype=torch.cfloat).conj().imag.to(dtype)
        if kind == 5 and dtype == torch.float32:
            return torch.randn([*shape], dtype=torch.cfloat).conj().imag
        return torch.randn(shape).to(dtype)

    def call(self) -> tuple[list[Any], Any, dict[str, Any]]:
        layout = self.one("bshd", "bhsd", "thd")
        batch, rows = self.number(0, 3), self.number(0, 40)
        keys = self.one(rows, self.number(0, 40))
        kv_heads = self.number(1, 3)
        heads = kv_heads * self.number(1, 3)
        dim = self.rarely(lambda: self.one(8, 16, 24), 0, 4, 12, 264)
        dtype = self.rarely(
            lambda: self.one(torch.float32, torch.float32, torch.bfloat16, torch.float16),
            torch.float64, torch.int32, torch.cfloat,
        )  # fmt: skip
        shapes = [[batch, rows, heads, dim], *[[batch, keys, kv_heads, dim]] * 2]
        if layout == "bhsd":
            shapes = [[a, c, b, d] for a, b, c, d in shapes]
        if layout == "thd":
            shapes = [shape[1:] for shape in shapes]
        inputs: list[Any] = []
        for shape in shapes:
            others = (shape[1:], shape[::-1], [1, *shape], [3] * 4)
            shape = self.rarely(lambda shape=shape: shape, *others)
            kind = self.rarely(lambda: dtype, torch.float16, torch.float32, torch.int64)
            made = self.tensor(shape, kind)
            bad = (None, 3.0, made.to("meta"), np.zeros(3), made[None], [made])
            inputs.append(self.rarely(lambda made=made: made, *bad))
        pattern = self.rarely(lambda: self.pattern(heads, kv_heads), None, "dense", S2, 3)
        options = self.lengths(layout, batch, rows, keys)
        options["layout"] = self.rarely(lambda: layout, "sbhd", None, [], "thd")
        scale = self.rarely(lambda: self.one(None, 0.3), 0, float("nan"), 1e300, "1", [], -0.5)
        return inputs, pattern, {**options, "scale": scale}


S2 = tessera.S2


def right(draw: Draw, inputs: list[torch.Tensor], pattern: Any, options: dict[str, Any]) -> None:
    """Results and gradients are those of plain PyTorch in float64."""
    dtype = inputs[0].dtype
    leaves = [x.detach().resolve_neg().clone().double().requires_grad_() for x in inputs]
    words = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
        if name in NAMES
    }
    wanted, wanted_lse = reference.attention(
        *leaves, pattern, options["layout"], options["scale"], **words
    )
    given = [x.detach().requires_grad_(draw.number(0, 3) > 0) for x in inputs]
    o, lse = tessera.attention(*given, pattern, return_lse=True, **options)
    reference.near(o, wanted, dtype)
    reference.near(lse, wanted_lse, dtype)
    some_grad = [x for x in given if x.requires_grad]
    if not some_grad:
        return
    d_o = draw.tensor(list(o.shape), dtype) if o.numel() else torch.zeros_like(o)
    d_lse = draw.tensor(list(lse.shape), torch.float32) if lse.numel() else torch.zeros_like(lse)
    d_lse = d_lse if bool(lse.isfinite().all()) else None
    outputs, grads = ([o], [d_o]) if d_lse is None else ([o, lse], [d_o, d_lse])
    found = torch.autograd.grad(outputs, some_grad, grads)
    exact = [wanted] if d_lse is None else [wanted, wanted_lse]
    # Without keys the reference is constant.
    pairs = [(x, y.resolve_neg().double()) for x, y in zip(exact, grads, strict=True)]
    pairs = [(x, y) for x, y in pairs if x.requires_grad]
    chosen = [y for x, y in zip(given, leaves, strict=True) if x.requires_grad]
    expected = [torch.zeros_like(x) for x in chosen] if not pairs else torch.autograd.grad(
        [x for x, _ in pairs], chosen, [y for _, y in pairs], materialize_grads=True
    )
    for got, want in zip(found, expected, strict=True):
        reference.near(got, want, dtype)


def test_calls() -> None:
    counts = {"computed": 0, "refused": 0}

    def body(data: Any) -> None:
        draw = Draw(data)
        try:
            inputs, pattern, options = draw.call()
            o = tessera.attention(*inputs, pattern, **options)
        except REFUSED as error:
            assert str(error)
            counts["refused"] += 1
            return
        except NotImplementedError:
            assert draw.odd  # of PyTorch: an operator on a device that has none
            return
        counts["computed"] += 1
        if o.device.type == "cpu" and (o.dim() == 3 or o.shape[0]):
            right(draw, inputs, pattern, options)

    fuzz(35, body)
    assert counts["computed"] > counts["refused"] / 3 > 0, counts


def test_operators() -> None:
    """backward as torch.ops has it, with tensors that no forward has made."""

    def body(data: Any) -> None:
        draw = Draw(data)
        rows, keys, heads = draw.number(0, 20), draw.number(0, 20), draw.number(1, 3)
        shapes = [[2, rows, heads, 8], [2, keys, heads, 8]]
        names = {"d_o": 0, "d_lse": 2, "q": 0, "k": 1, "v": 1, "o": 0, "lse": 2}
        shapes.append([2, heads, rows])
        arguments: list[Any] = []
        for name, n in names.items():
            shape = shapes[n]
            bad = ([2, 3], [], shape[::-1], [1, 1, 1, 8])
            shape = draw.rarely(lambda shape=shape: shape, *bad)
            kind = draw.rarely(lambda: torch.float32, torch.float16, torch.int64)
            made = draw.tensor(shape, kind) if shape else torch.zeros(())
            arguments.append(made if name not in ("d_o", "d_lse") else draw.one(made, None))
            if draw.number(0, 49) == 0:
                arguments[-1] = made.to("meta")
        wanted = [draw.one(True, False) for _ in "qkv"]
        wrong = ("", "s2", "blocks shape=9,9,9 bits=", "s3 a=b")
        words = draw.rarely(lambda: S2(4, 1, 2).spec, *wrong)
        layout = draw.rarely(lambda: "bshd", "bhsd", "thd", "x")
        extra = draw.rarely(lambda: (), *[(x,) for x in draw.hostile()])
        try:
            made = torch.ops.tessera.backward(
                *arguments, *wanted, words, layout, None, draw.number(0, 3), *extra
            )
        except (*REFUSED, RuntimeError, ValueError) as error:
            assert str(error)
            return
        for got, want, x in zip(made, wanted, arguments[2:5], strict=True):
            assert got.shape == (x.shape if want else (0,))

    fuzz(12, body)


def test_arrays() -> None:
    def body(data: Any) -> None:
        draw = Draw(data)
        try:
            inputs, pattern, options = draw.call()
        except REFUSED:
            return
        arrays: list[Any] = []
        for x in inputs:
            array = x
            if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dtype != torch.bfloat16:
                array = x.resolve_neg().resolve_conj().numpy()
                kind = draw.number(0, 5)
                if kind == 0:
                    array = array.astype(array.dtype.newbyteorder(">"))
                elif kind == 1 and array.ndim:
                    array = array[::-1]
                elif kind == 2:
                    raw = bytearray(array.nbytes + 1)
                    moved = np.frombuffer(raw, np.uint8, array.nbytes, 1).view(array.dtype)
                    array = moved.reshape(array.shape)
            bad = ([1.0], b"", np.zeros(4, "O"), "q")
            arrays.append(draw.rarely(lambda array=array: array, *bad))
        try:
            o, lse = tessera.numpy.attention(*arrays, pattern, **options)
            made = tessera.numpy.gradients(o, *arrays, o, lse, pattern, **options)
        except REFUSED as error:
            assert str(error)
            return
        assert o.shape == arrays[0].shape
        assert all(x.shape == y.shape for x, y in zip(made, arrays, strict=True))

    fuzz(13, body)


@pytest.mark.parametrize("make", [lambda x: x.conj().imag, torch._neg_view])
@pytest.mark.parametrize("name", ["q", "k", "v", "d_o", "d_lse"])
def test_views_that_are_negated_when_they_are_read(name: str, make: Any) -> None:
    torch.manual_seed(0)
    sizes = {"q": (1, 9, 2, 8), "k": (1, 9, 2, 8), "v": (1, 9, 2, 8), "d_o": (1, 9, 2, 8)}
    tensors = {n: torch.randn(s) for n, s in sizes.items()} | {"d_lse": torch.randn(1, 2, 9)}
    results = []
    for read in (False, True):
        given = dict(tensors)
        wide = -given[name]
        if make is not torch._neg_view:
            wide = torch.complex(torch.zeros_like(wide), wide)
        given[name] = make(wide).clone() if read else make(wide)
        assert given[name].is_neg() != read
        inputs = [given[n].requires_grad_() for n in "qkv"]
        o, lse = tessera.attention(*inputs, S2(4, 1, 2), return_lse=True)
        grads = torch.autograd.grad([o, lse], inputs, [given["d_o"], given["d_lse"]])
        results.append((o, lse, *grads))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

# SPDX-License-Identifier: Apache-2.0
"""tessera.attention and its gradients against plain PyTorch in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import reference
import torch

import tessera

S2, Dense, Window, Blocks = tessera.S2, tessera.Dense, tessera.Window, tessera.Blocks
PATTERN = S2(16, 2, 3)
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "q_lens", "kv_lens", "q_first", "kv_first")


def tensors(
    layout: str,
    batch: int,
    rows: int,
    keys: int,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:
    found = []
    for tokens, number in ((rows, heads), (keys, kv_heads), (keys, kv_heads)):
        shape = (batch, tokens, number, dim)
        x = torch.randn(shape[1:] if layout == "thd" else shape).to(dtype)
        found.append((x.transpose(1, 2) if layout == "bhsd" else x).requires_grad_())
    return found


def compare(
    inputs: list[torch.Tensor], pattern: Any, layout: str = "bshd", **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results and gradients of one call, with LSE used too, against the reference."""
    q, k, v = inputs
    o, lse = tessera.attention(q, k, v, pattern, layout=layout, return_lse=True, **options)
    given = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
        if name in LENGTHS
    }
    scale = options.get("scale")
    ro, rlse = reference.attention(q, k, v, pattern, layout, scale, **given)
    assert o.dtype == q.dtype and lse.dtype == torch.float32
    reference.near(o, ro, q.dtype)
    reference.near(lse, rlse, q.dtype)
    d_o, d_lse = torch.randn(o.shape).to(o.dtype), torch.randn(lse.shape)
    d_lse = torch.where(lse.isinf(), torch.zeros(()), d_lse)
    found = torch.autograd.grad([o, lse], inputs, [d_o, d_lse])
    used = rlse.masked_fill(rlse.isinf(), 0)
    expected = torch.autograd.grad([ro, used], inputs, [d_o.double(), d_lse.double()])
    for x, got, wanted in zip(inputs, found, expected, strict=True):
        assert got.dtype == x.dtype and got.shape == x.shape
        reference.near(got, wanted, q.dtype)
    # O alone, without a graph, has the same bits.
    with torch.no_grad():
        alone = tessera.attention(q, k, v, pattern, layout=layout, **options)
        assert torch.equal(alone, o)
    return o, lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("layout", "heads", "kv_heads"),
    [("bshd", 4, 4), ("bhsd", 4, 2), ("thd", 6, 1), ("bhsd", 1, 1), ("bshd", 6, 3)],
)
def test_layouts_types_and_groups(
    layout: str, heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    options = {"cu_seqlens_q": [0, 17, 70]} if layout == "thd" else {}
    compare(tensors(layout, 2, 70, 70, heads, kv_heads, 24, dtype), PATTERN, layout, **options)


@pytest.mark.parametrize(
    "pattern",
    [
        Dense(),
        Dense(causal=False),
        Window(9),
        Window(5, 7, 3, causal=False),
        S2(8, 1, 5, offset=1, dense_heads=1),
        S2(8, 2, 3, per_kv_head=True),
        S2(8, 2, 3, homogeneous=True),
        S2(8, 1, 3, causal=False),
        S2(8, 1, 8, heads_total=8, head_first=4),
        Blocks(np.random.default_rng(0).random((4, 6, 6)) < 0.6, 8),
        Blocks(np.zeros((1, 1), bool), 8),
    ],
    ids=str,
)
def test_patterns(pattern: Any) -> None:
    torch.manual_seed(0)
    compare(tensors("bshd", 1, 41, 45, 4, 2, 16), pattern)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 50), (50, 1), (7, 33), (33, 7), (0, 5)])
def test_lengths_of_queries_and_keys(rows: int, keys: int) -> None:
    torch.manual_seed(0)
    compare(tensors("bhsd", 2, rows, keys, 4, 2, 8), PATTERN, "bhsd", scale=0.3)


def test_no_keys_at_all() -> None:
    q, k, v = tensors("bshd", 2, 5, 0, 2, 1, 8)
    o, lse = tessera.attention(q, k, v, PATTERN, return_lse=True)
    assert not o.any() and bool((lse == -torch.inf).all())
    o.sum().backward()
    assert q.grad is not None and not q.grad.any() and k.grad is not None and k.grad.numel() == 0


def test_empty_batch() -> None:
    q, k, v = tensors("bshd", 0, 5, 5, 2, 1, 8)
    o, lse = tessera.attention(q, k, v, PATTERN, return_lse=True)
    assert o.shape == q.shape and lse.shape == (0, 2, 5)
    o.sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape
    empty = [x.detach() for x in tensors("thd", 1, 0, 0, 2, 1, 8)]
    for cu in ([0], [0, 0], [0, 0, 0]):
        assert tessera.attention(*empty, PATTERN, layout="thd", cu_seqlens_q=cu).shape == (0, 2, 8)


@pytest.mark.parametrize("kind", ["list", "int32", "int64", "tuple"])
def test_packed(kind: str) -> None:
    torch.manual_seed(0)
    make: Any = {"list": list, "tuple": tuple}.get(
        kind, lambda x: torch.tensor(x, dtype=getattr(torch, kind))
    )
    cu_q, cu_k = make([0, 0, 20, 21, 60]), make([0, 5, 30, 30, 70])
    compare(
        tensors("thd", 1, 60, 70, 4, 2, 16),
        PATTERN,
        "thd",
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
    )


def test_tokens_past_the_last_sequence_are_zero() -> None:
    torch.manual_seed(0)
    q, k, v = tensors("thd", 1, 30, 40, 2, 2, 8)
    with torch.no_grad():
        q[20:], k[25:], v[25:] = torch.nan, torch.nan, torch.nan
    o, lse = tessera.attention(
        q, k, v, PATTERN, layout="thd", cu_seqlens_q=[0, 8, 20], cu_seqlens_k=[0, 10, 25],
        return_lse=True,
    )  # fmt: skip
    assert not o[20:].any() and bool((lse[:, 20:] == -torch.inf).all())
    o.sum().backward()
    for x, end in ((q, 20), (k, 25), (v, 25)):
        assert x.grad is not None and not x.grad[end:].any() and not x.grad.isnan().any()


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_padded(layout: str) -> None:
    torch.manual_seed(0)
    inputs = tensors(layout, 4, 30, 40, 4, 2, 16)
    compare(inputs, PATTERN, layout, q_lens=[30, 0, 7, 1], kv_lens=[40, 9, 0, 33])
    compare(inputs, PATTERN, layout, kv_lens=torch.tensor([40, 31, 30, 35]))


def test_padding_is_neither_read_nor_left_unwritten() -> None:
    torch.manual_seed(0)
    q, k, v = tensors("bshd", 2, 20, 20, 2, 2, 8)
    with torch.no_grad():
        for x in (q, k, v):
            x[1, 12:] = torch.nan
    o = tessera.attention(q, k, v, PATTERN, q_lens=[20, 12], kv_lens=[20, 12])
    assert not o[1, 12:].any() and not o.isnan().any()
    o.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None and not x.grad.isnan().any() and not x.grad[1, 12:].any()


def test_positions() -> None:
    torch.manual_seed(0)
    inputs = tensors("bshd", 2, 20, 40, 2, 2, 8)
    compare(inputs, PATTERN, q_first=[0, 33])
    compare(inputs, PATTERN, q_first=torch.tensor([60, 16]), kv_first=[16, 48])
    packed = tensors("thd", 1, 20, 40, 2, 2, 8)
    cu = {"cu_seqlens_q": [0, 5, 20], "cu_seqlens_k": [0, 25, 40]}
    compare(packed, PATTERN, "thd", q_first=[3, 90], kv_first=[0, 64], **cu)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_merged_parts_are_the_whole(layout: Any, parts: int) -> None:
    torch.manual_seed(0)
    q, k, v = tensors(layout, 1, 96, 96, 4, 2, 16)
    axis = {"bshd": 1, "bhsd": 2, "thd": 0}[layout]
    whole: dict[str, Any] = {"cu_seqlens_q": [0, 96]} if layout == "thd" else {}
    o, lse = tessera.attention(q, k, v, PATTERN, layout=layout, return_lse=True, **whole)
    pairs = []
    for first in range(0, 96, 96 // parts):
        size = 96 // parts
        some = {"cu_seqlens_q": [0, 96], "cu_seqlens_k": [0, size]} if layout == "thd" else {}
        ks, vs = k.narrow(axis, first, size), v.narrow(axis, first, size)
        options: Any = {"q_first": [0], "kv_first": [first], "return_lse": True, **some}
        pairs.append(tessera.attention(q, ks, vs, PATTERN, layout=layout, **options))
    mo, mlse = tessera.merge(*pairs, layout=layout)
    torch.testing.assert_close(mo, o, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mlse, lse, atol=1e-5, rtol=1e-5)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    expected = torch.autograd.grad([o, lse], [q, k, v], [d_o, d_lse])
    found = torch.autograd.grad([mo, mlse], [q, k, v], [d_o, d_lse])
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=3e-5, rtol=1e-4)


def test_merge_of_nothing_is_zero() -> None:
    o, lse = torch.full((1, 3, 2, 8), torch.nan), torch.full((1, 2, 3), -torch.inf)
    o.requires_grad_(), lse.requires_grad_()
    mo, mlse = tessera.merge((o, lse), (o, lse))
    assert not mo.any() and bool((mlse == -torch.inf).all())
    mo.sum().backward()
    assert o.grad is not None and not o.grad.any()
    assert lse.grad is not None and not lse.grad.any()


def test_merge_does_not_read_parts_without_keys() -> None:
    """Other code than ours may leave anything in such rows."""
    o, lse = torch.randn(1, 3, 2, 8), torch.randn(1, 2, 3)
    parts = [[o.requires_grad_(), lse.requires_grad_()]]
    parts.append([torch.full_like(o, torch.nan), torch.full_like(lse, -torch.inf)])
    parts[1][0].requires_grad_(), parts[1][1].requires_grad_()
    merged = tessera.merge((parts[0][0], parts[0][1]), (parts[1][0], parts[1][1]))
    assert torch.equal(merged[0], o) and torch.equal(merged[1], lse)
    (merged[0].sum() + merged[1].sum()).backward()
    for x, value in zip(itertools.chain(*parts), (1.0, 1.0, 0.0, 0.0), strict=True):
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.full_like(x.grad, value))


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3))[1:])
def test_every_subset_of_gradients(wanted: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    inputs = tensors("bshd", 1, 33, 33, 4, 2, 16)
    d_o = torch.randn(inputs[0].shape)
    whole = torch.autograd.grad(tessera.attention(*inputs, PATTERN), inputs, d_o)
    some = [x.detach().requires_grad_(want) for x, want in zip(inputs, wanted, strict=True)]
    tessera.attention(*some, PATTERN).backward(d_o)
    for x, want, expected in zip(some, wanted, whole, strict=True):
        assert (x.grad is not None) == want
        assert x.grad is None or torch.equal(x.grad, expected)


def test_no_graph_where_none_is_wanted() -> None:
    inputs = tensors("bshd", 1, 9, 9, 2, 2, 8)
    plain = [x.detach() for x in inputs]
    assert not tessera.attention(*plain, PATTERN).requires_grad
    with torch.no_grad():
        assert not tessera.attention(*inputs, PATTERN).requires_grad
    with torch.inference_mode():
        o = tessera.attention(*inputs, PATTERN)
        lens = torch.tensor([9])
        assert o.is_inference()
        assert torch.equal(o, tessera.attention(*inputs, PATTERN, q_lens=lens, kv_lens=lens))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradients_of_any_strides(layout: Any) -> None:
    torch.manual_seed(0)
    inputs = tensors(layout, 2, 20, 20, 4, 2, 8)
    o = tessera.attention(*inputs, PATTERN, layout=layout)
    wide = torch.randn(*o.shape[:-1], o.shape[-1] * 2)
    turned = torch.randn(o.shape[::-1]).permute(3, 2, 1, 0)
    for d_o in (
        torch.ones(()).expand(o.shape),
        torch.randn(8).expand(o.shape),
        turned,
        wide[..., ::2],
        wide[..., 8:],
        torch.randn(o.transpose(0, 1).shape).transpose(0, 1),
    ):
        found = torch.autograd.grad(o, inputs, d_o, retain_graph=True)
        expected = torch.autograd.grad(o, inputs, d_o.contiguous(), retain_graph=True)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_sum_backward_and_lse_alone() -> None:
    torch.manual_seed(0)
    inputs = tensors("bshd", 1, 33, 33, 2, 2, 8)
    for index in (0, 1):
        found = torch.autograd.grad(
            tessera.attention(*inputs, PATTERN, return_lse=True)[index].sum(), inputs
        )
        wanted = reference.attention(*inputs, PATTERN)[index].sum()
        expected = torch.autograd.grad(wanted, inputs, materialize_grads=True)
        for got, exact in zip(found, expected, strict=True):
            reference.near(got, exact, torch.float32)


def test_views_of_one_packed_tensor() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(2, 30, 3, 4, 16, requires_grad=True)
    o = tessera.attention(*qkv.unbind(2), PATTERN)
    apart = [x.detach().contiguous().requires_grad_() for x in qkv.unbind(2)]
    expected = tessera.attention(*apart, PATTERN)
    assert torch.equal(o, expected)
    o.sum().backward()
    expected.sum().backward()
    assert qkv.grad is not None
    for n, x in enumerate(apart):
        assert torch.equal(qkv.grad[:, :, n], x.grad)  # type: ignore[arg-type]


def test_inputs_of_any_strides() -> None:
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in tensors("bshd", 2, 20, 20, 4, 4, 8))
    expected = tessera.attention(q, k, v, PATTERN)
    wide = torch.randn(2, 20, 4, 16)
    wide[..., ::2] = q
    turned = k.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    offset = torch.empty(v.numel() + 1)[1:].view(v.shape).copy_(v)
    assert torch.equal(tessera.attention(wide[..., ::2], turned, offset, PATTERN), expected)
    one = k[:, :, :1].expand(-1, -1, 4, -1)
    grouped = tessera.attention(q, k[:, :, :1], v[:, :, :1], PATTERN)
    assert torch.equal(
        tessera.attention(q, one, v[:, :, :1].expand(-1, -1, 4, -1), PATTERN), grouped
    )
    flat = torch.randn(8).expand(2, 20, 4, 8)
    assert tessera.attention(q, k, flat, Dense()).allclose(flat, atol=1e-5)


def test_finite_differences() -> None:
    torch.manual_seed(0)
    q, k, v = tensors("bshd", 1, 9, 9, 2, 1, 8)
    w, u = torch.randn(1, 9, 2, 8), torch.randn(1, 2, 9)

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        o, lse = tessera.attention(*inputs, S2(2, 2, 2), return_lse=True)
        return (o * w).double().sum() + (lse * u).double().sum()

    found = torch.autograd.grad(loss(q, k, v), (q, k, v))
    step = 1e-2
    for n, x in enumerate((q, k, v)):
        for place in range(0, x.numel(), 7):
            values = []
            for sign in (-1, 1):
                moved = [y.detach().clone() for y in (q, k, v)]
                moved[n].view(-1)[place] += sign * step
                values.append(loss(*moved).item())
            slope = (values[1] - values[0]) / (2 * step)
            assert found[n].reshape(-1)[place].item() == pytest.approx(slope, abs=2e-3)


def test_the_same_call_has_the_same_bits() -> None:
    torch.manual_seed(0)
    inputs = tensors("bshd", 2, 80, 80, 4, 2, 32)
    o = tessera.attention(*inputs, PATTERN)
    d_o = torch.randn(o.shape)
    first = torch.autograd.grad(o, inputs, d_o, retain_graph=True)
    again = torch.autograd.grad(o, inputs, d_o, retain_graph=True)
    fresh = torch.autograd.grad(tessera.attention(*inputs, PATTERN), inputs, d_o)
    loose = torch.autograd.grad(
        tessera.attention(*inputs, PATTERN, deterministic=False), inputs, d_o
    )
    for a, b, c, d in zip(first, again, fresh, loose, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
        torch.testing.assert_close(a, d, atol=1e-5, rtol=1e-5)


def test_results_do_not_alias_inputs_or_each_other() -> None:
    inputs = [x.detach() for x in tensors("bhsd", 1, 9, 9, 2, 2, 8)]
    first = tessera.attention(*inputs, PATTERN, layout="bhsd")
    second = tessera.attention(*inputs, PATTERN, layout="bhsd")
    assert first.data_ptr() != second.data_ptr() and first.data_ptr() != inputs[0].data_ptr()
    # By token in memory, so that what follows attention in a model is a view.
    assert first.transpose(1, 2).is_contiguous()

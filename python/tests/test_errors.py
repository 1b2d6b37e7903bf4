# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with a call is a Python exception that names the argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tessera

S2 = tessera.S2
PATTERN = S2(16, 1, 2)
Wrong, Unsupported = tessera.InvalidArgument, tessera.Unsupported


def shapes(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.randn(*sizes, **options)


Q, K = shapes(2, 9, 4, 16), shapes(2, 9, 2, 16)
PACKED = shapes(9, 4, 16)
CASES: list[tuple[type[Exception], str, Any]] = [
    (TypeError, "q: a tensor", lambda a: a(None, K, K, PATTERN)),
    (TypeError, "v: a tensor", lambda a: a(Q, K, [1.0], PATTERN)),
    (TypeError, "pattern: tessera.S2", lambda a: a(Q, K, K, "s2")),
    (TypeError, "pattern", lambda a: a(Q, K, K, None)),
    (Wrong, r"q: \[batch, tokens", lambda a: a(PACKED, K, K, PATTERN)),
    (Wrong, r"q: \[tokens, heads", lambda a: a(Q, K, K, PATTERN, layout="thd")),
    (Wrong, r"k: \[batch", lambda a: a(Q, PACKED, K, PATTERN)),
    (Wrong, "layout: one of 'bshd'", lambda a: a(Q, K, K, PATTERN, layout="sbhd")),
    (Wrong, "k: the batch of q, 2", lambda a: a(Q, K[:1], K[:1], PATTERN)),
    (Wrong, "k: the head_dim of q, 16", lambda a: a(Q, K[..., :8], K[..., :8], PATTERN)),
    (Wrong, "v: the shape of k", lambda a: a(Q, K, K[:, :5], PATTERN)),
    (Wrong, "v: the shape of k", lambda a: a(Q, K, K[..., :8], PATTERN)),
    (Wrong, "k: a number of heads that divides", lambda a: a(Q[:, :, :3], K, K, PATTERN)),
    (Wrong, "k: a number of heads", lambda a: a(Q, K[:, :, :0], K[:, :, :0], PATTERN)),
    (Unsupported, "q: head_dim", lambda a: a(*[shapes(1, 2, 1, 12)] * 3, PATTERN)),
    (Unsupported, "q: head_dim", lambda a: a(*[shapes(1, 2, 1, 264)] * 3, PATTERN)),
    (Unsupported, "q: head_dim", lambda a: a(*[shapes(1, 2, 1, 0)] * 3, PATTERN)),
    (Wrong, "q: float32", lambda a: a(Q.double(), K.double(), K.double(), PATTERN)),
    (Wrong, "q: float32", lambda a: a(Q.int(), K.int(), K.int(), PATTERN)),
    (Wrong, "q: float32", lambda a: a(Q.cfloat(), K.cfloat(), K.cfloat(), PATTERN)),
    (Wrong, "v: the dtype of q", lambda a: a(Q, K, K.half(), PATTERN)),
    (Wrong, "k: the device of q", lambda a: a(Q, K.to("meta"), K, PATTERN)),
    (Wrong, "scale: a magnitude", lambda a: a(Q, K, K, PATTERN, scale=0.0)),
    (Wrong, "scale: a magnitude", lambda a: a(Q, K, K, PATTERN, scale=float("nan"))),
    (Wrong, "scale: a magnitude", lambda a: a(Q, K, K, PATTERN, scale=float("inf"))),
    (Exception, "scale", lambda a: a(Q, K, K, PATTERN, scale="1")),
    (Wrong, "q_lens: a value for each of 2", lambda a: a(Q, K, K, PATTERN, q_lens=[9])),
    (Wrong, r"q_lens\[1\]: 0 to 9", lambda a: a(Q, K, K, PATTERN, q_lens=[1, 10])),
    (Wrong, r"kv_lens\[0\]: 0 to 9", lambda a: a(Q, K, K, PATTERN, kv_lens=[-1, 2])),
    (Wrong, r"q_first\[1\]: 0 to", lambda a: a(Q, K, K, PATTERN, q_first=[0, -1])),
    (Wrong, "kv_first", lambda a: a(Q, K, K, PATTERN, kv_first=[0, 5])),
    (Wrong, "q_lens: integers", lambda a: a(Q, K, K, PATTERN, q_lens=torch.ones(2))),
    (Wrong, "q_lens: integers", lambda a: a(Q, K, K, PATTERN, q_lens=torch.ones(2, 1).int())),
    (
        Wrong,
        "q_lens: the CPU or the device of q, cpu",
        lambda a: a(Q, K, K, PATTERN, q_lens=torch.tensor([1, 2], device="meta")),
    ),
    (TypeError, "q_lens: a list", lambda a: a(Q, K, K, PATTERN, q_lens="ab")),
    (TypeError, "kv_lens: a list", lambda a: a(Q, K, K, PATTERN, kv_lens=[None, 1])),
    (TypeError, "q_lens: a list", lambda a: a(Q, K, K, PATTERN, q_lens=[1.5, 2.0])),
    (TypeError, "kv_lens: a list", lambda a: a(Q, K, K, PATTERN, kv_lens=[2**70, 1])),
    (Wrong, "cu_seqlens_q: cumulative", lambda a: a(Q, K, K, PATTERN, cu_seqlens_q=[0, 9])),
    (Unsupported, "dropout_p: dropout", lambda a: a(Q, K, K, PATTERN, dropout_p=0.1)),
    (Unsupported, "softcap: soft-capping", lambda a: a(Q, K, K, PATTERN, softcap=30.0)),
    (Unsupported, "attn_bias: an additive bias", lambda a: a(Q, K, K, PATTERN, attn_bias=Q)),
    (TypeError, "window", lambda a: a(Q, K, K, PATTERN, window=3)),
    (Wrong, "head_ids", lambda a: a(Q, K, K, S2(16, 1, 2, head_ids=(1, 2)))),
    (Wrong, "mask: of 3 heads", lambda a: a(Q, K, K, tessera.Blocks(torch.ones(3, 2, 2), 16))),
    (Wrong, "dense_heads", lambda a: a(Q, K, K, S2(16, 1, 2, dense_heads=5))),
    (Wrong, "heads_total", lambda a: a(Q, K, K, S2(16, 1, 2, heads_total=3))),
]
THD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (Wrong, "cu_seqlens_q: cumulative lengths are needed", {}),
    (Wrong, "cu_seqlens_q: cumulative lengths that begin", {"cu_seqlens_q": []}),
    (Wrong, "cu_seqlens_q: cumulative lengths that begin", {"cu_seqlens_q": [1, 9]}),
    (Wrong, r"cu_seqlens_q\[2\]: at least 5", {"cu_seqlens_q": [0, 5, 4]}),
    (Wrong, r"cu_seqlens_q\[-1\]: at most the 9", {"cu_seqlens_q": [0, 10]}),
    (Wrong, r"cu_seqlens_k\[-1\]: at most the 9", {"cu_seqlens_q": [0], "cu_seqlens_k": [0, 10]}),
    (Wrong, "cu_seqlens_k: as many", {"cu_seqlens_q": [0, 9], "cu_seqlens_k": [0, 1, 9]}),
    (Wrong, "q_lens: layout='thd'", {"cu_seqlens_q": [0, 9], "q_lens": [3]}),
    (Wrong, "kv_first: a value", {"cu_seqlens_q": [0, 9], "kv_first": [0, 0]}),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("kind", "text", "call"), CASES)
def test_wrong_calls(kind: type[Exception], text: str, call: Any, grad: bool) -> None:
    Q.requires_grad_(grad)
    try:
        with pytest.raises(kind, match=text) as raised:
            call(tessera.attention)
    finally:
        Q.requires_grad_(False)
    if isinstance(raised.value, tessera.Error):
        assert isinstance(raised.value, (ValueError, NotImplementedError))
        assert str(raised.value).count("\n") == 0
    assert tessera.attention(Q, K, K, PATTERN).shape == Q.shape


@pytest.mark.parametrize(("kind", "text", "options"), THD)
def test_wrong_packed_calls(kind: type[Exception], text: str, options: Any) -> None:
    with pytest.raises(kind, match=text):
        tessera.attention(PACKED, PACKED, PACKED, PATTERN, layout="thd", **options)


X = shapes(2, 9, 2, 16)
ODD: dict[str, Any] = {
    "sparse_coo": X.to_sparse(),
    "sparse_csr": shapes(9, 16).to_sparse_csr(),
    "_mkldnn": X.to_mkldnn(),
    "nested": torch.nested.nested_tensor([X[0], X[1, :3]]),
    "jagged": torch.nested.nested_tensor([X[0], X[1, :3]], layout=torch.jagged),
}


@pytest.mark.parametrize("name", ODD)
def test_tensors_without_strides_are_named(name: str) -> None:
    odd, kind = ODD[name], "an ordinary .* got .*" + name
    cache = tessera.KVCache(PATTERN, 2, 2, 16, dtype=torch.float32, sequences=2, max_tokens=64)
    for place in range(3):
        inputs = [X, X, X]
        inputs[place] = odd
        for options in ({}, {"cache": cache}):
            with pytest.raises(Wrong, match=f"attention: {'qkv'[place]}: {kind}"):
                tessera.attention(*inputs, PATTERN, **options)
    inputs = [x.clone().requires_grad_() for x in (X, X, X)]
    o, lse = tessera.attention(*inputs, PATTERN, return_lse=True)
    with pytest.raises(Wrong, match=f"merge: pair 1: O: {kind}"):
        tessera.merge((o, lse), (odd, lse))
    with pytest.raises(Wrong, match=f"merge: pair 0: LSE: {kind}"):
        tessera.merge((o, odd), (o, lse))
    with pytest.raises(Wrong, match=f"q_lens: {kind}"):
        tessera.attention(X, X, X, PATTERN, q_lens=odd)
    with pytest.raises(Wrong, match=f"q_lens: {kind}"):
        tessera.attention(X, X, X, cache=cache, q_lens=odd)
    assert cache.lengths.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("scale: a number", lambda x: tessera.attention(X, X, X, PATTERN, scale=x)),
        ("page: an integer", lambda x: tessera.KVCache(PATTERN, 2, 2, 16, max_tokens=9, page=x)),
        ("KVCache: heads: an integer", lambda x: tessera.KVCache(PATTERN, x, 2, 16, max_tokens=9)),
        ("S2: block: an integer", lambda x: S2(x, 1, 2)),
        ("merge: pair 0: O: a tensor", lambda _: tessera.merge((None, X))),
        ("merge: pair 0: LSE: a tensor", lambda _: tessera.merge((X, None))),
    ],
)
def test_tensors_that_are_no_numbers_are_named(text: str, call: Any) -> None:
    for x in (X, torch.empty(0), X.to("meta"), ODD["nested"]):
        with pytest.raises(TypeError, match=text):
            call(x)


def test_what_is_off_is_not_refused() -> None:
    o = tessera.attention(Q, K, K, PATTERN, dropout_p=0.0, attn_mask=None, softcap=0)
    assert torch.equal(o, tessera.attention(Q, K, K, PATTERN))


def test_gradients_of_a_wrong_shape_or_type() -> None:
    q = Q.clone().requires_grad_()
    o, lse = tessera.attention(q, K, K, PATTERN, return_lse=True)
    with pytest.raises(RuntimeError):
        o.backward(torch.ones(1, 9, 4, 16))
    backward = torch.ops.tessera.backward
    rest = (True, True, True, PATTERN.spec, "bshd", None, 0)
    o, lse = o.detach(), lse.detach()
    for name, arguments in (
        ("d_o", (o[:1], None, Q, K, K, o, lse)),
        ("d_o", (o.half(), None, Q, K, K, o, lse)),
        ("o", (o, None, Q, K, K, o[..., :8], lse)),
        ("lse", (o, None, Q, K, K, o, lse.double())),
        ("d_lse", (o, lse[:, :1], Q, K, K, o, lse)),
    ):
        with pytest.raises(Wrong, match=f": {name}: "):
            backward(*arguments, *rest)


def test_a_tensor_that_lost_its_storage_is_refused() -> None:
    for n, name in enumerate("qkv"):
        inputs = [Q.clone(), K.clone(), K.clone()]
        tessera.attention(*inputs, PATTERN)
        inputs[n].untyped_storage().resize_(0)
        with pytest.raises(Wrong, match=name):
            tessera.attention(*inputs, PATTERN)


def test_operators_refuse_words_that_are_no_pattern() -> None:
    forward = torch.ops.tessera.forward
    for spec in ("", "s3", "s2", "s2 block=x", "window left=1", "blocks shape=1,1,1 bits=@@"):
        with pytest.raises(Wrong, match="pattern"):
            forward(Q, K, K, spec, "bshd", None, 0)


def test_merge_names_what_does_not_fit() -> None:
    o, lse = tessera.attention(Q, K, K, PATTERN, return_lse=True)
    with pytest.raises(Wrong, match="at least one pair"):
        tessera.merge()
    with pytest.raises(TypeError, match="pair 0"):
        tessera.merge(o, lse)  # type: ignore[arg-type]
    with pytest.raises(Wrong, match="pair 1"):
        tessera.merge((o, lse), (o[:, :3], lse))
    with pytest.raises(Wrong, match="pair 0"):
        tessera.merge((o, lse), layout="bhsd")
    half = (o.half(), lse)
    for text, pairs, layout in (
        ("layout: one of .* got 'sbhd'", [(o, lse)], "sbhd"),
        ("pair 1: O: those of pair 0 are needed, got torch.float16", [(o, lse), half], "bshd"),
        ("pair 0: O: real numbers are needed, got torch.complex64", [(o + 0j, lse)], "bshd"),
        ("pair 0: LSE: real numbers are needed, got torch.int32", [(o, lse.int())], "bshd"),
    ):
        with pytest.raises(Wrong, match=f"merge: {text}"):
            tessera.merge(*pairs, layout=layout)  # type: ignore[arg-type]


def test_gradients_without_strides_are_named() -> None:
    q = Q.detach().requires_grad_()
    o = tessera.attention(q, K, K, PATTERN)
    d_o = torch.randn_like(o)
    with pytest.raises(Wrong, match="the gradient of O: an ordinary .* got .*sparse_coo"):
        torch.autograd.grad(o, q, d_o.to_sparse(), retain_graph=True)
    assert torch.autograd.grad(o, q, d_o)[0].shape == q.shape


ints = st.integers(-3, 40)
arrays = st.one_of(st.none(), st.lists(ints, max_size=4), st.just(torch.tensor([0, 3])), ints)


@settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    data=st.data(),
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 8, 16]), min_size=3, max_size=4),
    layout=st.sampled_from(["bshd", "bhsd", "thd", "x"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    same=st.booleans(),
    grad=st.booleans(),
)
def test_nothing_that_can_be_passed_ends_the_interpreter(
    data: Any, sizes: list[int], layout: Any, dtype: torch.dtype, same: bool, grad: bool
) -> None:
    names = ("cu_seqlens_q", "cu_seqlens_k", "q_lens", "kv_lens", "q_first", "kv_first")
    options = {name: data.draw(arrays, name) for name in names if data.draw(st.booleans(), name)}
    other = sizes if same else data.draw(st.permutations(sizes), "k")
    try:
        pattern = data.draw(
            st.one_of(
                st.builds(S2, ints, ints, ints, ints, ints),
                st.builds(tessera.Window, ints, ints, ints, st.booleans()),
                st.builds(tessera.Dense, st.booleans()),
            ),
            "pattern",
        )
        q = torch.ones(sizes).to(dtype).requires_grad_(grad and dtype.is_floating_point)
        k = torch.ones(other).to(dtype)
        o = tessera.attention(q, k, k, pattern, layout=layout, **options)
        assert o.shape == q.shape and not o.isnan().any()
        if q.requires_grad:
            o.sum().backward()
            assert q.grad is not None and not q.grad.isnan().any()
    except (tessera.InvalidArgument, tessera.Unsupported, TypeError) as error:
        assert str(error)

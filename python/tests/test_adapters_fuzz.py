# SPDX-License-Identifier: Apache-2.0
"""Anything that a user can pass to the adapters: a result without NaN, or a Python exception."""

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

import tessera  # noqa: E402
from tessera.dkernel import (  # noqa: E402
    LocalStrideSparseAttention,
    SparseAttention,
    combine_attn_partitions,
    get_sparse_attn_mask,
)
from tessera.hf import _attention, _masks  # noqa: E402

few = some.integers(-1, 5)
length = some.integers(-1, 40)
either = some.booleans()
# Errors that name what is wrong; anything else is a fault of the adapters.
EXPECTED = (tessera.Error, TypeError)


def mostly(draw, good, bad):
    """From `good`, one time in twenty from `bad`: most calls have nothing wrong, or one thing."""
    return draw(bad if draw(some.integers(0, 19)) == 7 else good)


def cumulative(draw, rows):
    cuts = sorted(draw(some.lists(some.integers(0, rows), min_size=1, max_size=1)))
    return mostly(draw, some.just(torch.tensor([0, *cuts, rows])), some.lists(length))


def make_module(draw, heads, groups):
    words = dict(
        causal=draw(either),
        seq_dim=mostly(draw, some.sampled_from([None, 1, 2]), some.just(3)),
        block_m=mostly(draw, some.none(), few),
    )
    block = mostly(draw, some.sampled_from([1, 4, 16]), few)
    if draw(either):
        planes = mostly(draw, some.sampled_from([1, heads, groups]), few)
        shape = [planes, draw(some.integers(1, 45)), draw(some.integers(1, 45))]
        shape = shape[mostly(draw, some.sampled_from([0, 1]), some.just(2)) :]
        return SparseAttention(block, torch.rand([max(0, n) for n in shape]) < 0.6, **words)
    total = mostly(draw, some.sampled_from([heads, groups, 2 * heads]), few)
    part = some.sampled_from([None, (0, heads)])
    return LocalStrideSparseAttention(
        total,
        mostly(draw, some.just(40), length),
        block,
        mostly(draw, some.integers(1, 3), few | some.tuples(few, few)),
        mostly(draw, some.integers(1, 5), few),
        homo_head=draw(either),
        num_dense_heads=mostly(draw, some.just(0), few),
        num_kv_heads=mostly(draw, some.sampled_from([None, groups]), few),
        active_head_range=mostly(draw, part, some.tuples(few, few)),
        head_sliding_offset=draw(few),
        **words,
    )


@settings(max_examples=300, deadline=None)
@given(some.data())
def test_modules(data):
    draw = data.draw
    batch, kv_len = draw(some.integers(0, 3)), draw(some.integers(0, 40))
    groups = draw(some.integers(1, 2))
    heads = mostly(draw, some.just(2 * groups), some.integers(1, 5))
    q_len = draw(some.sampled_from([kv_len, kv_len, 1, 0, 7]))
    dim, packed = mostly(draw, some.sampled_from([8, 16]), some.sampled_from([4, 12])), draw(either)
    torch.manual_seed(0)
    try:
        layer = make_module(draw, heads, groups)
        q, k = [batch, q_len, heads, dim], [batch, kv_len, groups, dim]
        words = {}
        if packed:
            q, k = q[1:], k[1:]
            words = dict(cu_seqlen_q=cumulative(draw, q_len), cu_seqlen_k=cumulative(draw, kv_len))
        else:
            if layer.seq_dim == 2:
                q[1], q[2], k[1], k[2] = q[2], q[1], k[2], k[1]
            each = some.lists(some.integers(0, kv_len // 2), min_size=batch, max_size=batch)
            for name in ("left_paddings", "seqlens"):
                if draw(either):
                    words[name] = mostly(draw, each.map(torch.LongTensor), some.lists(length))
        if draw(some.integers(0, 19)) == 0:
            words["seqlens"] = [1]
        q, k = torch.randn(q, requires_grad=True), torch.randn(k, requires_grad=True)
        o, lse = layer(q, k, k, draw(some.none() | some.just(0.5)), return_lse=True, **words)
        o.sum().backward()
    except EXPECTED as error:
        hypothesis.event(f"refused: {str(error)[:24]}")
        return
    hypothesis.event("computed")
    assert o.shape == q.shape and torch.isfinite(o).all() and not torch.isnan(lse).any()
    assert torch.isfinite(q.grad).all() and torch.isfinite(k.grad).all()
    hdim = 1 if packed or layer.seq_dim == 2 else 2
    torch.testing.assert_close(combine_attn_partitions((o, lse), (o, lse), hdim=hdim), o)


@settings(max_examples=300, deadline=None)
@given(some.data())
def test_masks(data):
    draw = data.draw
    heads, block = mostly(draw, some.integers(1, 4), few), mostly(draw, some.integers(1, 5), few)
    starts = some.none() | some.integers(0, 4).map(lambda n: n * block)
    try:
        (crow, col), mask, dense = get_sparse_attn_mask(
            heads,
            mostly(draw, some.integers(0, 40), length),
            block,
            mostly(draw, some.integers(1, 4), few | some.tuples(few, few)),
            mostly(draw, some.integers(1, 5), few),
            mostly(draw, some.just(False), either),
            mostly(draw, some.sampled_from([None, 1, heads]), few),
            mostly(draw, some.none(), length),
            return_dense=draw(either),
            head_sliding_step=draw(some.none() | few),
            head_sliding_offset=draw(few),
            num_dense_heads=mostly(draw, some.integers(0, 1), few),
            kv_seqlen=mostly(draw, some.none() | some.integers(1, 40), length),
            q_start_position=mostly(draw, starts, length),
            kv_start_position=mostly(draw, starts, length),
            vert_position_type=mostly(
                draw, some.sampled_from([None, "absolute", "relative"]), some.just("")
            ),
            causal=draw(either),
        )
    except EXPECTED as error:
        hypothesis.event(f"refused: {str(error)[:24]}")
        return
    hypothesis.event("computed")
    assert crow.shape == (mask.shape[0], mask.shape[1] + 1)
    assert int((col >= 0).sum()) == int((mask != 0).sum())
    assert dense is None or dense.shape[0] == mask.shape[0]


class Layer(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.is_causal, self.config, self.layer_idx = causal, object(), 0


def causal(b, h, q, k):
    return k <= q


@settings(max_examples=300, deadline=None)
@given(some.data())
def test_models(data):
    draw = data.draw
    batch, q_len = draw(some.integers(1, 3)), draw(some.integers(1, 20))
    before, spare = draw(some.integers(0, 20)), draw(some.sampled_from([0, 0, 9]))
    seen = before + q_len
    ordered = mostly(draw, some.just(True), some.just(False))
    attention = _attention.Attention(tessera.S2(4, 1, 3, causal=ordered))
    run = some.tuples(length, some.sampled_from([seen, seen - 1, seen // 2]) | length)
    real = draw(some.none() | some.lists(run, min_size=batch, max_size=batch))
    padding = None
    if real is not None:
        place = torch.arange(draw(some.sampled_from([seen, seen + spare, seen + 3])))
        padding = torch.stack([(place >= a) & (place < b) for a, b in real])
        padding = mostly(draw, some.just(padding), some.just(padding.float()[:, None, None]))
    torch.manual_seed(0)
    q = torch.randn(batch, 4, q_len, 8, requires_grad=True)
    k = torch.randn(batch, 2, seen + spare, 8, requires_grad=True)
    try:
        mask = _masks.Masks(causal, lambda *_: True)(
            batch_size=batch,
            q_length=q_len,
            kv_length=seen + spare,
            q_offset=before,
            mask_function=causal,
            attention_mask=padding,
        )
        o, _ = attention(
            Layer(mostly(draw, some.just(True), some.just(False))),
            q,
            k,
            k,
            mask,
            sliding_window=mostly(draw, some.none(), length),
            position_ids=draw(some.none() | some.just(torch.zeros(1, q_len, dtype=torch.int64))),
        )
        o.sum().backward()
    except EXPECTED as error:
        hypothesis.event(f"refused: {str(error)[:24]}")
        return
    hypothesis.event("computed")
    assert o.shape == (batch, q_len, 4, 8) and torch.isfinite(o).all()
    assert torch.isfinite(q.grad).all() and torch.isfinite(k.grad).all()

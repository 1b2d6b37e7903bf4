# SPDX-License-Identifier: Apache-2.0
"""tessera.dkernel's modules against a plain loop in PyTorch, on CPU tensors."""

import copy
import io
import math
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import tessera  # noqa: E402
from tessera.dkernel import (  # noqa: E402
    LocalStrideSparseAttention,
    SparseAttention,
    combine_attn_partitions,
    get_sparse_attn_mask,
)

B = 16


def plain(q, k, v, kept, scale=None):
    """O and LSE of [tokens, heads, dim] with a mask [heads or 1, queries, keys], in float64."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    scores = scores.masked_fill(~kept, -math.inf)
    seen = kept.expand_as(scores).any(-1)
    weights = torch.softmax(torch.where(seen[..., None], scores, 0.0), -1) * kept
    lse = torch.logsumexp(torch.where(seen[..., None], scores, 0.0), -1)
    o = torch.einsum("hqk,khd->qhd", weights, v)
    return o.to(q.dtype), torch.where(seen, lse, -math.inf).to(torch.float32)


def token_mask(heads, tokens, local, stride, **words):
    return get_sparse_attn_mask(
        heads,
        tokens,
        words.pop("block", B),
        local,
        stride,
        return_dense=True,
        dtype=torch.float32,
        device="cpu",
        **words,
    )[2].bool()


def tensors(batch, q_len, kv_len, heads, kv_heads, dim=16, seed=0):
    torch.manual_seed(seed)
    shapes = [(q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads)]
    return [torch.randn(batch, *shape, dim).requires_grad_() for shape in shapes]


def check(got, want, leaves):
    """O, LSE and the gradients of both, against the same of a reference."""
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-5)
    torch.manual_seed(5)
    d_o, d_lse = torch.randn_like(want[0]), torch.randn_like(want[1])
    grads = []
    for o, lse in (got, want):
        finite = torch.where(torch.isneginf(lse), 0.0, lse)
        loss = (o * d_o).sum() + (finite * d_lse).sum()
        grads.append(torch.autograd.grad(loss, leaves, retain_graph=True))
    for mine, theirs in zip(*grads):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def reference(q, k, v, kept, scale=None):
    """`plain` over a batch: O [batch, tokens, heads, dim], LSE [batch, heads, tokens]."""
    each = [plain(q[b], k[b], v[b], kept, scale) for b in range(q.shape[0])]
    return torch.stack([o for o, _ in each]), torch.stack([lse for _, lse in each])


@pytest.mark.parametrize(
    "heads, kv_heads, words",
    [
        (4, 4, {}),
        (4, 4, {"homo_head": True}),
        (4, 4, {"num_dense_heads": 1, "head_sliding_offset": 1}),
        (4, 2, {}),
        (4, 1, {"head_sliding_offset": -1}),
        (4, 2, {"num_kv_heads": 2}),
        (4, 2, {"num_kv_heads": 2, "num_dense_heads": 1}),
        (4, 4, {"num_kv_heads": 2}),
        (2, 2, {"causal": False}),
        (2, 1, {"causal": False, "num_dense_heads": 1}),
        (2, 2, {"causal": False, "num_dense_heads": 2}),
    ],
)
def test_local_stride(heads, kv_heads, words):
    q, k, v = tensors(2, 83, 83, heads, kv_heads)
    layer = LocalStrideSparseAttention(heads, 96, B, 2, 3, **words)
    got = layer(q, k, v, return_lse=True)
    check(got, reference(q, k, v, token_mask(heads, 83, 2, 3, **words)), (q, k, v))
    assert torch.equal(layer(q, k, v), got[0])


def test_heads_dimension_first_and_a_scale():
    q, k, v = tensors(2, 50, 50, 4, 2)
    want = reference(q, k, v, token_mask(4, 50, 1, 4), 0.25)
    layer = LocalStrideSparseAttention(4, 64, B, 1, 4, seq_dim=2)
    o, lse = layer(*(x.transpose(1, 2) for x in (q, k, v)), 0.25, return_lse=True)
    assert o.shape == (2, 4, 50, 16) and lse.shape == (2, 4, 50)
    check((o.transpose(1, 2), lse), want, (q, k, v))


def test_sides_of_their_own():
    q, k, v = tensors(1, 64, 64, 2, 2)
    layer = LocalStrideSparseAttention(2, 64, B, (2, 1), 3, causal=False)
    kept = token_mask(2, 64, (2, 1), 3, causal=False)
    check(layer(q, k, v, return_lse=True), reference(q, k, v, kept), (q, k, v))


@pytest.mark.parametrize("q_len", [1, 2, 16, 17, 40, 66])
def test_queries_after_a_past(q_len):
    q, k, v = tensors(2, q_len, 66, 4, 2)
    want = reference(q, k, v, token_mask(4, 66, 1, 3)[:, 66 - q_len :])
    layer = LocalStrideSparseAttention(4, 96, B, 1, 3)
    check(layer(q, k, v, return_lse=True), want, (q, k, v))
    # The same as a mask of one's own, which is square.
    mask = get_sparse_attn_mask(4, 96, B, 1, 3)[1]
    check(SparseAttention(B, mask)(q, k, v, return_lse=True), want, (q, k, v))


@pytest.mark.parametrize("start, end", [(0, 2), (2, 4), (3, 4)])
def test_heads_of_a_part_of_the_model(start, end):
    q, k, v = tensors(1, 70, 70, end - start, 1)
    words = {"num_dense_heads": 1}
    layer = LocalStrideSparseAttention(4, 96, B, 1, 4, active_head_range=(start, end), **words)
    kept = token_mask(4, 70, 1, 4, **words)[start:end]
    check(layer(q, k, v, return_lse=True), reference(q, k, v, kept), (q, k, v))


def test_heads_of_the_pattern_may_be_kv_heads():
    q, k, v = tensors(1, 70, 70, 4, 2)
    kept = token_mask(2, 70, 1, 4).repeat_interleave(2, 0)
    layer = LocalStrideSparseAttention(2, 96, B, 1, 4)
    check(layer(q, k, v, return_lse=True), reference(q, k, v, kept), (q, k, v))


@pytest.mark.parametrize("planes", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_of_ones_own(planes, causal):
    torch.manual_seed(3)
    mask = torch.rand(planes, 5, 5) < 0.5
    mask |= torch.eye(5, dtype=torch.bool)
    q, k, v = tensors(2, 75, 75, 4, 2)
    kept = mask.repeat_interleave(4 // planes, 0)
    kept = kept.repeat_interleave(B, 1).repeat_interleave(B, 2)[:, :75, :75]
    if causal:
        kept = kept & torch.ones(75, 75, dtype=torch.bool).tril()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer = SparseAttention(B, mask[0] if planes == 1 else mask.to(torch.uint8), causal=causal)
    assert bool(caught) == causal and layer.max_seqlen == 80
    check(layer(q, k, v, return_lse=True), reference(q, k, v, kept), (q, k, v))


@pytest.mark.parametrize("q_len, kv_len", [(32, 80), (32, 75), (25, 57), (48, 40), (40, 31)])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_other_masks_count_from_the_first_query(q_len, kv_len, causal):
    torch.manual_seed(4)
    mask = torch.rand(2, -(-q_len // B), 6) < 0.6
    q, k, v = tensors(1, q_len, kv_len, 2, 2)
    kept = mask.repeat_interleave(B, 1).repeat_interleave(B, 2)[:, :q_len, :kv_len]
    if causal:
        p = kv_len - q_len + torch.arange(q_len)[:, None]
        kept = kept & (torch.arange(kv_len) <= p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = SparseAttention(B, mask, causal=causal)
    want = reference(q, k, v, kept)
    check(layer(q, k, v, return_lse=True), want, (q, k, v))


def test_parts_of_keys_merge_to_the_whole():
    heads, tokens, chunk, words = 3, 128, 32, {"block_size": B, "local_blocks": 2, "vert_stride": 3}
    q, k, v = tensors(2, tokens, tokens, heads, heads)
    results, lses = [], []
    for first in range(0, tokens, chunk):
        parts = []
        for start in range(0, first + chunk, chunk):
            mask = get_sparse_attn_mask(
                heads, chunk, q_start_position=first, kv_start_position=start, **words
            )[1]
            layer = SparseAttention(B, mask, causal=first == start)
            here, there = slice(first, first + chunk), slice(start, start + chunk)
            parts.append(layer(q[:, here], k[:, there], v[:, there], return_lse=True))
        results.append(combine_attn_partitions(*parts, hdim=2))
        lses.append(torch.logsumexp(torch.stack([lse for _, lse in parts]), 0))
    got = torch.cat(results, 1), torch.cat(lses, 2)
    check(got, reference(q, k, v, token_mask(heads, tokens, 2, 3)), (q, k, v))


@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("q_len", [70, 1, 20])
def test_padded_batches(seq_dim, left, q_len):
    lens = [70, 13, 0, 34]
    q, k, v = tensors(4, q_len, 70, 4, 2)
    kept = token_mask(4, 70, 1, 3)
    o, lse = torch.zeros_like(q), torch.full((4, 4, q_len), -math.inf)
    for b, n in enumerate(lens):
        keys = slice(70 - n, 70) if left else slice(0, n)
        rows = min(n, q_len)
        # As many queries as keys are padded as those; otherwise they are the last ones.
        place = keys if q_len == 70 else slice(q_len - rows, q_len)
        found = plain(q[b, place], k[b, keys], v[b, keys], kept[:, n - rows : n, :n])
        o[b, place], lse[b, :, place] = found
    layer = LocalStrideSparseAttention(4, 96, B, 1, 3, seq_dim=seq_dim)
    swap = (lambda x: x) if seq_dim == 1 else (lambda x: x.transpose(1, 2))
    lens = torch.tensor(lens)
    padding = {"left_paddings": 70 - lens} if left else {"seqlens": lens}
    got = layer(swap(q), swap(k), swap(v), return_lse=True, **padding)
    check((swap(got[0]), got[1]), (o, lse), (q, k, v))


def test_padding_on_both_sides():
    q, k, v = tensors(2, 40, 40, 2, 2)
    kept = token_mask(2, 40, 1, 2)
    o, lse = torch.zeros_like(q), torch.full((2, 2, 40), -math.inf)
    for b, (start, n) in enumerate(((3, 20), (10, 30))):
        at = slice(start, start + n)
        o[b, at], lse[b, :, at] = plain(q[b, at], k[b, at], v[b, at], kept[:, :n, :n])
    layer = LocalStrideSparseAttention(2, 64, B, 1, 2)
    words = {"left_paddings": torch.tensor([3, 10]), "seqlens": torch.tensor([20, 30])}
    check(layer(q, k, v, return_lse=True, **words), (o, lse), (q, k, v))


@pytest.mark.parametrize("q_lens", [None, "decode", [40, 1, 0, 7]])
def test_packed_batches(q_lens):
    kv_lens = [40, 17, 5, 33]
    rows = kv_lens if q_lens is None else [1] * 4 if q_lens == "decode" else q_lens
    torch.manual_seed(1)
    q = torch.randn(sum(rows), 4, 16, requires_grad=True)
    k, v = (torch.randn(sum(kv_lens), 2, 16, requires_grad=True) for _ in range(2))
    cu_k = torch.tensor([0, *torch.tensor(kv_lens).cumsum(0)], dtype=torch.int32)
    cu_q = torch.tensor([0, *torch.tensor(rows).cumsum(0)], dtype=torch.int32)
    kept, found = token_mask(4, 40, 1, 3), []
    for b, (n, m) in enumerate(zip(rows, kv_lens)):
        one_q, keys = q[cu_q[b] : cu_q[b + 1]], slice(int(cu_k[b]), int(cu_k[b + 1]))
        found.append(plain(one_q, k[keys], v[keys], kept[:, m - n : m, :m]))
    want = torch.cat([o for o, _ in found]), torch.cat([lse for _, lse in found], 1)
    layer = LocalStrideSparseAttention(4, 64, B, 1, 3)
    words = {"cu_seqlen_q": cu_q} if isinstance(q_lens, list) else {}
    got = layer(q, k, v, cu_seqlen_k=cu_k, return_lse=True, **words)
    check(got, want, (q, k, v))


def test_one_tensor_of_q_k_and_v():
    q, k, v = tensors(2, 40, 40, 4, 4)
    layer = LocalStrideSparseAttention(4, 64, B, 1, 3)
    want = torch.autograd.grad(layer(q, k, v).square().sum(), (q, k, v))
    qkv = torch.cat([q, k, v], 2).detach().requires_grad_()
    layer(qkv, split_qkv=lambda x: x.chunk(3, 2)).square().sum().backward()
    torch.testing.assert_close(qkv.grad, torch.cat(want, 2))
    kv = torch.stack([k, v], 2).detach().requires_grad_()
    layer(q, kv, split_qkv=lambda x: x.unbind(2)).square().sum().backward()
    torch.testing.assert_close(kv.grad, torch.stack(want[1:], 2))
    torch.testing.assert_close(q.grad, want[0])


def test_out_is_honoured():
    q, k, v = tensors(1, 40, 40, 2, 2)
    want = LocalStrideSparseAttention(2, 64, B, 1, 3)(q, k, v)
    out = torch.full_like(q, math.nan).requires_grad_(False)
    layer = LocalStrideSparseAttention(2, 64, B, 1, 3, out=out)
    with torch.no_grad():
        assert layer(q, k, v) is out
    assert torch.equal(out, want)
    for _ in range(2):  # a second step has a graph of its own
        out.fill_(math.nan)
        o = layer(q, k, v)
        assert o.data_ptr() == out.data_ptr() and torch.equal(out, want)
        o.sum().backward()
    with pytest.raises(ValueError, match="^out: "):
        layer(q[:, :9], k[:, :9], v[:, :9])


class Own(LocalStrideSparseAttention):
    def __init__(self):
        super().__init__(2, 64, B, 1, 3, block_m=128, block_n=32, d_splits=1, inference=None)


@pytest.mark.parametrize("make", [Own, lambda: SparseAttention(B, torch.ones(4, 4).tril())])
def test_modules_move_and_copy(make):
    layer = make()
    q, k, v = tensors(1, 40, 40, 2, 2)
    want = layer(q, k, v)
    assert layer.state_dict() == {} and list(layer.parameters()) == []
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = [
        layer.to("cpu").to(torch.bfloat16),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(saved, weights_only=False),
        torch.nn.Sequential(layer)[0],
    ]
    for other in copies:
        assert type(other) is type(layer)
        assert torch.equal(other(q, k, v), want)
    assert "block_size=16" in repr(layer)


def test_no_mask_is_made_of_a_long_context():
    layer = LocalStrideSparseAttention(64, 1 << 30, 16, 8, 64)
    q, k, v = tensors(1, 40, 40, 64, 8)
    assert layer(q, k, v).shape == q.shape and layer.max_seqlen == 1 << 30
    assert len(pickle.dumps(layer)) < 4096


WRONG = [
    ("k", dict(k=torch.zeros(1, 129, 4, 16), v=torch.zeros(1, 129, 4, 16))),
    ("q, k", dict(q=torch.zeros(1, 40, 3, 16), k=torch.zeros(1, 40, 3, 16), heads=True)),
    ("q", dict(q=torch.zeros(40, 16))),
    ("k", dict(k=torch.zeros(40, 4, 16))),
    ("k", dict(k=None)),
    ("split_qkv", dict(v=None)),
    ("split_qkv", dict(v=None, split_qkv=lambda x: x.chunk(4, 1))),
    ("cu_seqlen_k", dict(cu_seqlen_k=[0, 40])),
    ("seqlens", dict(seqlens=torch.tensor([40, 40]))),
    ("seqlens", dict(seqlens=torch.tensor([40.0]))),
    ("left_paddings, seqlens", dict(seqlens=torch.tensor([41]))),
    ("left_paddings, seqlens", dict(left_paddings=torch.tensor([-1]))),
    ("left_paddings, seqlens", dict(left_paddings=torch.tensor([41]))),
]


@pytest.mark.parametrize("name, words", WRONG)
def test_wrong_calls_are_named(name, words):
    words = dict(words)
    words.pop("heads", None)
    layer = LocalStrideSparseAttention(4, 96, B, 1, 3)
    given = {n: torch.zeros(1, 40, 4, 16) for n in "qkv"}
    given.update(words)
    if given["q"].dim() == 4 and given["q"].size(2) == 3:
        given["v"] = given["k"]
    with pytest.raises(tessera.InvalidArgument, match=f"^{name}: "):
        layer(**given)


PACKED = [
    ("cu_seqlen_k", {}),
    ("cu_seqlen_k", {"cu_seqlen_k": [1, 40]}),
    ("cu_seqlen_k", {"cu_seqlen_k": [0, 30, 20, 40]}),
    ("cu_seqlen_k", {"cu_seqlen_k": [0, 41]}),
    ("cu_seqlen_q", {"cu_seqlen_k": [0, 40], "cu_seqlen_q": [0, 20, 40]}),
    ("seqlens", {"cu_seqlen_k": [0, 40], "seqlens": [40]}),
    ("left_paddings", {"cu_seqlen_k": [0, 40], "left_paddings": [0]}),
]


@pytest.mark.parametrize("name, words", PACKED)
def test_wrong_packed_calls_are_named(name, words):
    x = torch.zeros(40, 4, 16)
    with pytest.raises(tessera.InvalidArgument, match=f"^{name}: "):
        LocalStrideSparseAttention(4, 96, B, 1, 3)(x, x, x, **words)


@pytest.mark.parametrize(
    "name, words",
    [
        ("block_size", {"block_size": 0}),
        ("seq_dim", {"seq_dim": 3}),
        ("local_blocks", {"local_blocks": 0}),
        ("local_blocks", {"local_blocks": 0, "causal": False}),
        ("vert_stride", {"vert_stride": 0}),
        ("num_dense_heads", {"num_dense_heads": 5}),
        ("active_head_range", {"active_head_range": (2, 5)}),
        ("active_head_range", {"active_head_range": [0, 2]}),
        ("block_m", {"block_m": -1}),
    ],
)
def test_wrong_modules_are_named(name, words):
    given = dict(num_heads=4, max_seq_len=96, block_size=B, local_blocks=1, vert_stride=3)
    given.update(words)
    with pytest.raises(tessera.InvalidArgument, match=f"^{name}: "):
        LocalStrideSparseAttention(**given)


def test_a_pattern_that_another_thread_drops_meanwhile():
    class Dropped(dict):
        def __setitem__(self, key, value):
            self.clear()

    module = SparseAttention(B, torch.ones(3, 4))
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 20, 4, 8)
    want = module(q, k, k)
    module.__dict__["_pattern_of"] = Dropped()
    assert torch.equal(module(q, k, k), want)


def test_words_that_mean_nothing_are_refused():
    with pytest.raises(TypeError, match="'blocks'"):
        LocalStrideSparseAttention(4, 96, B, 1, 3, blocks=1)
    with pytest.raises(tessera.InvalidArgument, match="^sparse_pattern: "):
        SparseAttention(B, torch.ones(4))

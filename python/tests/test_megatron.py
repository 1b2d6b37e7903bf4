# SPDX-License-Identifier: Apache-2.0
"""tessera.megatron against Megatron-core's own DotProductAttention, on CPU tensors."""

import types
import warnings

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core")
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

import tessera  # noqa: E402
from tessera.megatron import S2Attention  # noqa: E402

HEADS, DIM = 8, 16
S2 = tessera.S2(block=4, local=2, stride=4)


class Group:
    """A process group of which this process is one rank, without the others."""

    def __init__(self, size=1, rank=0):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


def settings(groups=HEADS, **words):
    given = dict(
        num_layers=4,
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_query_groups=groups,
        attention_dropout=0.0,
        use_cpu_initialization=True,
    )
    config = TransformerConfig(**{**given, **words})
    config.sequence_parallel = True  # DotProductAttention then asks for no CUDA generator
    return config


def build(kind, config, size=1, rank=0, layer=1, mask=AttnMaskType.causal, **words):
    groups = types.SimpleNamespace(tp=Group(size, rank))
    return kind(config, layer, mask, "self", pg_collection=groups, **words)


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()


def tensors(q_len, kv_len, batch, heads, groups):
    torch.manual_seed(2)
    shapes = [(q_len, heads), (kv_len, groups), (kv_len, groups)]
    return [torch.randn(n, batch, h, DIM, requires_grad=True) for n, h in shapes]


def own(config, pattern, q, k, v, **words):
    """DotProductAttention with the pattern's mask, where True is hidden."""
    kept = pattern.mask(
        range(k.shape[0] - q.shape[0], k.shape[0]),
        k.shape[0],
        heads=q.shape[2],
        kv_heads=k.shape[2],
    )
    layer = build(DotProductAttention, config, mask=AttnMaskType.arbitrary, **words)
    return layer(q, k, v, ~torch.from_numpy(kept)[None])


def check(got, want, leaves):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.manual_seed(3)
    d_o = torch.randn_like(want)
    mine = torch.autograd.grad(got, leaves, d_o, retain_graph=True)
    theirs = torch.autograd.grad(want, leaves, d_o, retain_graph=True)
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "groups, pattern",
    [
        (8, S2),
        (2, S2),
        (1, tessera.S2(block=4, local=1, stride=3, offset=1, dense_heads=2)),
        (2, tessera.S2(block=4, local=1, stride=4, per_kv_head=True)),
        (2, tessera.Dense()),
        (4, tessera.Window(left=9)),
    ],
)
def test_a_layer(groups, pattern):
    config = settings(groups)
    q, k, v = tensors(37, 37, 2, HEADS, groups)
    layer = build(S2Attention.by(pattern), config)
    got = layer(q, k, v, None, attn_mask_type=AttnMaskType.causal, packed_seq_params=None)
    assert got.shape == (37, 2, HEADS * DIM) and layer.state_dict() == {}
    check(got, own(config, pattern, q, k, v), (q, k, v))


def test_scales():
    config = settings(apply_query_key_layer_scaling=True, attention_softmax_in_fp32=True)
    q, k, v = tensors(20, 20, 1, HEADS, HEADS)
    got = build(S2Attention.by(S2), config, layer=3, softmax_scale=0.5)(q, k, v, None)
    check(got, own(config, S2, q, k, v, layer=3, softmax_scale=0.5), (q, k, v))


def test_new_tokens_after_a_past():
    config = settings(2)
    layer = build(S2Attention.by(S2), config)
    for q_len, kind in ((1, AttnMaskType.no_mask), (7, AttnMaskType.causal)):
        q, k, v = tensors(q_len, 37, 2, HEADS, 2)
        check(layer(q, k, v, None, attn_mask_type=kind), own(config, S2, q, k, v), (q, k, v))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_heads_of_a_rank(ranks, groups):
    pattern = tessera.S2(block=4, local=1, stride=5, dense_heads=1)
    q, k, v = tensors(37, 37, 2, HEADS, groups)
    whole = build(S2Attention.by(pattern), settings(groups))(q, k, v, None)
    parts, count = [], HEADS // ranks
    for rank in range(ranks):
        # As Megatron does it: the config of a model with fewer kv heads than ranks says as many.
        config = settings(max(groups, ranks))
        heads = slice(rank * count, (rank + 1) * count)
        each = HEADS // groups
        own_groups = slice(heads.start // each, (heads.stop - 1) // each + 1)
        layer = build(S2Attention.by(pattern), config, ranks, rank)
        parts.append(layer(q[:, :, heads], k[:, :, own_groups], v[:, :, own_groups], None))
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [2, 8])
def test_ranks_with_balanced_heads(groups):
    """Heads in the order of assign_heads: each rank slices evenly, and has a dense head."""
    pattern = tessera.S2(block=4, local=1, stride=5, dense_heads=4 if groups == 2 else 2)
    found = tessera.assign_heads(pattern, 2, heads=HEADS, kv_heads=groups, tokens=37)
    q, k, v = tensors(37, 37, 2, HEADS, groups)
    whole = build(S2Attention.by(pattern), settings(groups))(q, k, v, None).unflatten(-1, (8, DIM))
    for rank, ids in enumerate(found.head_ids):
        layer = build(S2Attention.by(found.pattern), settings(groups), 2, rank)
        assert layer.tessera_pattern.head_ids == ids
        own = sorted({head // (HEADS // groups) for head in ids})
        got = layer(q[:, :, list(ids)], k[:, :, own], v[:, :, own], None).unflatten(-1, (4, DIM))
        torch.testing.assert_close(got, whole[:, :, list(ids)], rtol=1e-5, atol=1e-6)


def test_patterns_by_kv_head_need_the_model_s_number():
    pattern = tessera.S2(block=4, local=1, stride=4, per_kv_head=True)
    q, k, v = tensors(37, 37, 1, HEADS, 2)
    whole = build(S2Attention.by(pattern), settings(2))(q, k, v, None)
    with pytest.raises(tessera.InvalidArgument, match="kv_heads_total"):
        build(S2Attention.by(pattern), settings(4), 4, 1)
    pattern = tessera.S2(block=4, local=1, stride=4, per_kv_head=True, kv_heads_total=2)
    part = build(S2Attention.by(pattern), settings(4), 4, 1)
    got = part(q[:, :, 2:4], k[:, :, :1], v[:, :, :1], None)
    torch.testing.assert_close(got, whole[..., 2 * DIM : 4 * DIM], rtol=1e-5, atol=1e-6)


def test_layers_differ():
    def hybrid(config, layer):
        return S2 if layer % 2 else tessera.Dense()

    config = settings()
    assert build(S2Attention.by(hybrid), config, layer=4).tessera_pattern == tessera.Dense()
    assert build(S2Attention.by(hybrid), config, layer=3).tessera_pattern.stride == 4
    config.tessera_pattern = hybrid
    assert build(S2Attention, config, layer=2).tessera_pattern == tessera.Dense()


@pytest.mark.parametrize("padded", [False, True])
def test_packed_sequences(padded):
    lengths = [13, 0, 20, 5]
    room = [16, 4, 20, 8] if padded else lengths
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    at = torch.tensor([0, *torch.tensor(room).cumsum(0)], dtype=torch.int32)
    total = int(at[-1])
    torch.manual_seed(4)
    q = torch.randn(total, HEADS, DIM)
    k, v = (torch.randn(total, 2, DIM) for _ in range(2))
    real = torch.zeros(total, dtype=torch.bool)
    for n, count in enumerate(lengths):
        real[at[n] : at[n] + count] = True
    for x in (q, k, v):
        x[~real] = torch.nan
        x.requires_grad_()
    words = dict(cu_seqlens_q_padded=at, cu_seqlens_kv_padded=at) if padded else {}
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, **words)
    config = settings(2)
    layer = build(S2Attention.by(S2), config)
    for _ in range(2):  # the second time from what is known of these lengths
        got = layer(
            q, k, v, None, attn_mask_type=AttnMaskType.padding_causal, packed_seq_params=params
        )
        assert got.shape == (total, HEADS * DIM)
        assert (got[~real] == 0).all()
        grads = torch.autograd.grad(got.square().sum(), (q, k, v))
        for grad in grads:
            assert (grad[~real] == 0).all()
        for n, count in enumerate(lengths):
            here = slice(int(at[n]), int(at[n]) + count)
            if count:
                alone = own(config, S2, *(x[here][:, None] for x in (q, k, v)))
                torch.testing.assert_close(got[here], alone[:, 0], rtol=1e-4, atol=1e-5)
                want = torch.autograd.grad(alone.square().sum(), (q, k, v))
                for grad, other in zip(grads, want):
                    torch.testing.assert_close(grad[here], other[here], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kept", [False, True])
def test_lengths_that_change_in_place(kept, monkeypatch):
    """`kept`: as on a GPU, where a new version tells it. Memory of the host may change without."""
    if kept:
        monkeypatch.setattr("tessera._runs.tells_changes", lambda x: True)
    layer = build(S2Attention.by(S2), settings(2))
    q, k, v = (x[:, 0].detach() for x in tensors(37, 37, 1, HEADS, 2))
    cu = torch.tensor([0, 20, 37], dtype=torch.int32)
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu)
    before = layer(q, k, v, None, packed_seq_params=params)
    (cu if kept else cu.numpy())[1] = 9
    after = layer(q, k, v, None, packed_seq_params=params)
    fresh = cu.clone()
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=fresh, cu_seqlens_kv=fresh)
    assert torch.equal(layer(q, k, v, None, packed_seq_params=params), after)
    assert not torch.equal(before, after)


def test_recomputation_gives_equal_bits():
    layer = build(S2Attention.by(S2), settings(2))
    q, k, v = tensors(37, 37, 2, HEADS, 2)
    want = layer(q, k, v, None)
    d_o = torch.randn_like(want)
    grads = torch.autograd.grad(want, (q, k, v), d_o)
    got = torch.utils.checkpoint.checkpoint(
        lambda *x: layer(*x, None, attn_mask_type=AttnMaskType.causal), q, k, v, use_reentrant=False
    )
    assert torch.equal(got, want)
    for one, other in zip(torch.autograd.grad(got, (q, k, v), d_o), grads):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name, words, change",
    [
        ("attention_dropout", {"attention_dropout": 0.1}, {}),
        ("attention_dropout", {}, {"attention_dropout": 0.1}),
        ("context_parallel_size", {}, {"context_parallel_size": 2}),
        ("softmax_type", {}, {"softmax_type": "off-by-one"}),
        ("qk_clip", {}, {"qk_clip": True}),
        ("window_size", {}, {"window_size": (16, 0)}),
        ("num_attention_heads", {"size": 3}, {}),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(name, words, change):
    config = settings()
    for word, value in change.items():
        setattr(config, word, value)
    with pytest.raises(tessera.Error, match=f"^{name}: "):
        build(S2Attention.by(S2), config, **words)


def test_wrong_patterns_are_named():
    for pattern, text in (
        (None, "S2Attention.by"),
        (7, "S2Attention.by"),
        (tessera.S2(4, 1, 2, heads_total=4), "heads_total=4"),
        (tessera.S2(4, 1, 2, heads_total=8, head_first=2), "head_first"),
        (tessera.S2(4, 1, 2, heads_total=8, head_ids=(0, 1, 2, 3)), "head_ids"),
    ):
        with pytest.raises(tessera.InvalidArgument, match=text):
            build(S2Attention, settings(), pattern=pattern)


def test_wrong_calls_are_named():
    layer = build(S2Attention.by(S2), settings())
    q, k, v = tensors(8, 8, 1, HEADS, HEADS)
    for name, words in (
        ("attention_bias", {"attention_bias": torch.zeros(1)}),
        ("attn_mask_type", {"attn_mask_type": AttnMaskType.padding}),
        ("attn_mask_type", {"attn_mask_type": AttnMaskType.arbitrary}),
        ("attn_mask_type", {"attn_mask_type": AttnMaskType.padding_causal}),
        ("attn_mask_type", {"attn_mask_type": AttnMaskType.no_mask}),
        ("packed_seq_params", {"packed_seq_params": PackedSeqParams(qkv_format="bshd")}),
    ):
        with pytest.raises(tessera.Error, match=f"^{name}: "):
            layer(q, k, v, None, **words)
    with pytest.raises(tessera.InvalidArgument, match="^query: "):
        layer(q[:, 0], k[:, 0], v[:, 0], None)
    short = torch.tensor([0, 9], dtype=torch.int32)
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=short,
        cu_seqlens_kv=short,
        cu_seqlens_q_padded=torch.tensor([0, 8], dtype=torch.int32),
    )
    with pytest.raises(tessera.InvalidArgument, match="sequence 0 has 9 tokens in a place for 8"):
        layer(q[:, 0], k[:, 0], v[:, 0], None, packed_seq_params=params)
    for wrong in ([0, 8], short.float(), short[None]):
        params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=short, cu_seqlens_kv=wrong)
        with pytest.raises(tessera.InvalidArgument, match="^packed_seq_params: .* got "):
            layer(q[:, 0], k[:, 0], v[:, 0], None, packed_seq_params=params)

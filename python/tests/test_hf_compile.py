# SPDX-License-Identifier: Apache-2.0
"""tessera.hf in compiled models: one graph, compiled once for all lengths."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from test_hf import DIM, HEADS, KV_HEADS, models, tokens  # noqa: E402

OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
pytestmark = pytest.mark.skipif(OLD, reason="PyTorch 2.6 cannot trace models of transformers 5")


def close(got, want, real):
    torch.testing.assert_close(got[real], want[real], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind, name", [("llama", "tessera_hybrid"), ("phi3", "tessera_s2")])
@pytest.mark.parametrize("padded", [False, True])
def test_twenty_lengths_are_one_graph(kind, name, padded):
    torch._dynamo.reset()
    model, _ = models(kind, name)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, dynamic=True, fullgraph=True)
    first = None
    for count in range(20, 60, 2):
        ids, real = tokens(2, count), torch.ones(2, count, dtype=torch.int64)
        words = {}
        if padded:
            real[0, : count // 3] = 0
            real[1, count - 3 :] = 0
            words["attention_mask"] = real
        got = compiled(ids, use_cache=False, **words).logits
        close(got, model(ids, use_cache=False, **words).logits, real.bool())
        got.sum().backward()
        first = first or counter.frame_count
    assert counter.frame_count == first


def test_packed_rows_are_not_missed():
    torch._dynamo.reset()
    model, _ = models("llama", "tessera_s2")
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    ids = tokens(1, 37)
    positions = torch.cat([torch.arange(20), torch.arange(17)])[None]
    with torch.no_grad():
        want = model(ids, position_ids=positions, use_cache=False).logits
        with pytest.raises(RuntimeError, match="packed rows need cu_seq_lens_q"):
            compiled(ids, position_ids=positions, use_cache=False)
        cumulative = torch.tensor([0, 20, 37], dtype=torch.int32)
        words = dict(cu_seq_lens_q=cumulative, cu_seq_lens_k=cumulative)
        got = compiled(ids, position_ids=positions, use_cache=False, **words).logits
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_the_first_tokens_of_a_static_cache():
    """Nothing was seen before them, and yet there are more keys than queries."""
    torch._dynamo.reset()
    layer = models("llama", "tessera_s2")[0].model.layers[0].self_attn
    masks = transformers.AttentionMaskInterface()["tessera_s2"]
    function = transformers.AttentionInterface()["tessera_s2"]

    def attend(q, k):
        return function(layer, q, k, k, masks(2, q.shape[2], k.shape[2]))[0]

    q, k = torch.randn(2, HEADS, 20, DIM), torch.randn(2, KV_HEADS, 48, DIM)
    got = torch.compile(attend, backend="eager", fullgraph=True)(q, k)
    torch.testing.assert_close(got, attend(q, k[:, :, :20]), rtol=1e-4, atol=1e-5)
    utils = transformers.masking_utils
    mask = torch.compile(masks, backend="eager", fullgraph=True)
    window = utils.sliding_window_causal_mask_function(64)
    packed = utils.packed_sequence_mask_function(torch.tensor([[0] * 4 + [1] * 5]))
    assert mask(1, 9, 48, mask_function=window, local_size=64).tolist() == [[[[9, 9]]]]
    packed = utils.and_masks(utils.causal_mask_function, packed)
    for place in ((9, 48), (9, 48, torch.tensor(0)), (9, 9, torch.tensor(0))):
        with pytest.raises(RuntimeError, match="packed rows need cu_seq_lens_q"):
            mask(1, *place, mask_function=packed)


@pytest.mark.parametrize("padded", [False, True])
def test_steps_of_a_static_cache_are_one_graph(padded):
    torch._dynamo.reset()
    model, _ = models("llama", "tessera_hybrid")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    ids, real = tokens(2, 37), torch.ones(2, 37, dtype=torch.int64)
    if padded:
        real[1, :9] = 0
    with torch.no_grad():
        positions = (real.cumsum(1) - 1).clamp(min=0)
        words = dict(attention_mask=real, position_ids=positions)
        want = model(ids, use_cache=False, **words).logits
        cache = transformers.StaticCache(model.config, max_cache_len=48)
        model(
            ids[:, :20],
            attention_mask=real[:, :20],
            position_ids=positions[:, :20],
            past_key_values=cache,
        )
        first = None
        for at in range(20, 37):
            # Of one size, as a cache's keys; later tokens are no padding, only not seen yet.
            mask = torch.ones(2, 48, dtype=torch.int64)
            mask[:, :37] = real
            here = slice(at, at + 1)
            got = compiled(
                ids[:, here],
                attention_mask=mask,
                position_ids=positions[:, here],
                past_key_values=cache,
            ).logits
            torch.testing.assert_close(got[:, 0], want[:, at], rtol=1e-3, atol=1e-3)
            first = first or counter.frame_count
        assert counter.frame_count == first

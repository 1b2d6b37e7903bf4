# SPDX-License-Identifier: Apache-2.0
"""tessera.hf.S2Cache in tiny random models, against DynamicCache."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tessera  # noqa: E402
import tessera.hf  # noqa: E402
from test_hf import HEADS, config, models, tokens  # noqa: E402

WORDS = dict(max_new_tokens=64, do_sample=False)


def compact(model, **words):
    return tessera.hf.S2Cache(model.config, **(dict(max_chunk=16, page=16) | words))


def both(model, ids, **words):
    """What generate returns with DynamicCache and with S2Cache, and the latter."""
    cache = compact(model)
    plain = model.generate(ids, past_key_values=transformers.DynamicCache(), **WORDS | words)
    return plain, model.generate(ids, past_key_values=cache, **WORDS | words), cache


@pytest.mark.parametrize("kind", ["llama", "phi3"])
@pytest.mark.parametrize("name", ["tessera_s2", "tessera_hybrid", "tessera_kv"])
def test_sixty_four_tokens(kind, name):
    model, _ = models(kind, name)
    wanted, got, cache = both(model, tokens(2, 90))
    assert got.shape == (2, 154) and torch.equal(got, wanted)
    # As many tokens from a cache that lives on.
    more = model.generate(got, past_key_values=cache, **WORDS | dict(max_new_tokens=8))
    again = model.generate(got, **WORDS | dict(max_new_tokens=8))
    assert torch.equal(more, again)


def test_layers_keep_what_their_pattern_says():
    model, _ = models("llama", "tessera_hybrid")
    _, _, cache = both(model, tokens(1, 200))
    kinds = [type(layer).__name__ for layer in cache.layers]
    assert kinds == ["S2Layer", "DynamicLayer"]
    sparse, dense = cache.layer_bytes()
    kept = cache.layers[0].cache
    # The last token has not been through the model.
    assert cache.get_seq_length() == kept.length(0) == 263 and dense == kept.dense_bytes
    assert kept.bytes <= sparse <= 1.2 * kept.bytes and cache.bytes == sparse + dense
    assert sparse < dense


def test_bytes_at_a_long_length_are_those_of_the_layout():
    # An S2 layer alone: eight kv heads, of which each keeps every eighth block.
    pattern = tessera.S2(64, 4, 16, per_kv_head=True)
    settings = config("llama", hidden_size=128, num_attention_heads=16, num_key_value_heads=16)
    settings.max_position_embeddings = 131072
    cache = tessera.hf.S2Cache(settings, pattern)
    layer, held = cache.layers[0], []
    for count in (16384, 49152, 65536):
        key = torch.zeros(1, 16, count, 8)
        layer.update(key, key)
        layer._coming = 0
        layer._kept(key, key).append(key.transpose(1, 2), key.transpose(1, 2))
        length, kept = layer.get_seq_length(), layer.cache
        info = pattern.info(length, heads=16, kv_heads=16)
        # What can be seen, and a ring for chunks of 512 tokens that may be overwritten.
        ring = 4 + 512 // 64
        most = (info.kv_blocks_kept + 16 * ring) * 64 * 8 * 4 * 2
        assert info.kv_blocks_kept * 64 * 8 * 4 * 2 <= kept.bytes <= most
        held.append(kept.dense_bytes / kept.bytes)
    assert 8 < held[0] < held[1] < held[2] < 16 and held[2] > 14


@pytest.mark.parametrize("kind", ["llama", "phi3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(kind, side):
    model, _ = models(kind, "tessera_hybrid")
    ids, real = tokens(3, 60), torch.ones(3, 60, dtype=torch.int64)
    for row, count in ((1, 13), (2, 41)):
        real[row, :count] = 0
    if side == "right":
        real = real.flip(1)
        logits = []
        for cache in (transformers.DynamicCache(), compact(model)):
            with torch.no_grad():
                out = model(ids, attention_mask=real, past_key_values=cache)
            logits.append(out.logits[real.bool()])
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
        return
    wanted, got, cache = both(model, ids * real, attention_mask=real)
    assert torch.equal(got, wanted)
    assert [cache.layers[0].cache.length(s) for s in range(3)] == [123, 110, 82]


def test_chunks_of_a_prompt():
    model, _ = models("llama", "tessera_hybrid")
    ids, cache, found = tokens(2, 100), compact(model), []
    real = torch.ones(2, 100, dtype=torch.int64)
    real[1, :30] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=real, use_cache=False).logits
        for a, b in ((0, 7), (7, 8), (8, 60), (60, 61), (61, 100)):
            found.append(
                model(ids[:, a:b], attention_mask=real[:, :b], past_key_values=cache).logits
            )
    got = torch.cat(found, 1)
    torch.testing.assert_close(got[real.bool()], whole[real.bool()], rtol=1e-3, atol=1e-3)


def test_beam_search():
    model, _ = models("llama", "tessera_hybrid")
    wanted, got, cache = both(model, tokens(2, 70), num_beams=3, max_new_tokens=20)
    assert torch.equal(got, wanted) and cache.layers[0].cache.sequences == 6


def test_drafts_are_rolled_back():
    model, _ = models("llama", "tessera_hybrid")
    ids = tokens(1, 20).repeat(1, 4)  # what prompt lookup finds drafts in
    words = WORDS | dict(prompt_lookup_num_tokens=6)
    cache = compact(model)
    got = model.generate(ids, past_key_values=cache, **words)
    assert torch.equal(got, model.generate(ids, past_key_values=None, **WORDS))
    # All the tokens again but the last 9.
    cache.crop(-9)
    length = cache.get_seq_length()
    more = model.generate(got[:, : length + 1], past_key_values=cache, **WORDS)
    assert torch.equal(more[:, : got.shape[1]], got)
    with pytest.raises(tessera.InvalidArgument, match="rollback: sequence 0"):
        cache.crop(-60)


def test_crop_takes_back_tokens_of_all_layers_or_of_none():
    model, _ = models("llama", "tessera_hybrid")

    def pattern(_, layer):  # the dense layer comes first
        return tessera.S2(16, 2, 4) if layer else tessera.Dense()

    cache = compact(model, pattern=pattern)
    for n, layer in enumerate(cache.layers):
        x = torch.randn(2, HEADS, 100, 16)
        cache.update(x, x, n)
        if n:
            layer._coming = 0
            layer._kept(x, x).append(x.transpose(1, 2), x.transpose(1, 2))

    def lengths():
        return [layer.get_seq_length() for layer in cache.layers]

    with pytest.raises(tessera.InvalidArgument, match="rollback: sequence 0"):
        cache.crop(-60)
    assert lengths() == [100, 100]
    cache.crop(90)  # as in earlier versions of transformers
    assert lengths() == [90, 90]
    cache.crop(-3)
    cache.crop(0)
    assert lengths() == [87, 87]


def test_a_prompt_cache_is_copied_and_its_sequences_are_selected():
    model, _ = models("llama", "tessera_hybrid")
    prompt, cache = tokens(1, 70), compact(model)
    with torch.no_grad():
        model(prompt, past_key_values=cache)
    for seed in (2, 3):
        ids = torch.cat([prompt, tokens(1, 9, seed)], 1)
        got = model.generate(ids, past_key_values=copy.deepcopy(cache), **WORDS)
        assert torch.equal(got, model.generate(ids, **WORDS))
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([2, 0]))
    ids = torch.cat([prompt.expand(2, -1), tokens(2, 9)], 1)
    got = model.generate(ids, past_key_values=cache, **WORDS)
    assert cache.batch_size == 2 and torch.equal(got, model.generate(ids, **WORDS))
    cache.reset()
    assert cache.get_seq_length() == 0
    ids = tokens(2, 30, 5)
    got = model.generate(ids, past_key_values=cache, **WORDS)
    assert torch.equal(got, model.generate(ids, **WORDS))


class Stop(Exception):
    pass


def interrupted(model, inputs, cache, **words):
    """A forward pass that ends between the first layer and the second."""

    def stop(*_):
        raise Stop

    hook = model.model.layers[0].mlp.register_forward_pre_hook(stop)
    with torch.no_grad(), pytest.raises(Stop):
        model(inputs, past_key_values=cache, **words)
    hook.remove()


@pytest.mark.parametrize("name", ["tessera_s2", "tessera_hybrid"])
def test_a_forward_pass_that_is_cut_off_leaves_nothing(name):
    model, _ = models("llama", name)
    ids = tokens(2, 120)
    real = torch.ones_like(ids)
    real[0, :25] = 0
    cache, other = compact(model), compact(model)
    for first, end in ((0, 20), (20, 30), (30, 31), (31, 47)):
        given, mask = ids[:, first:end], real[:, :end]
        interrupted(model, given, cache, attention_mask=mask)
        assert cache.get_seq_length() == first
        if first:
            wrong = mask.clone()
            wrong[1, :2] = 0
            with torch.no_grad(), pytest.raises(tessera.InvalidArgument, match="attention_mask"):
                model(given, attention_mask=wrong, past_key_values=cache)
        with torch.no_grad():
            got, wanted = (
                model(given, attention_mask=mask, past_key_values=one).logits
                for one in (cache, other)
            )
        assert torch.equal(got, wanted), first
    interrupted(model, ids[:, 47:49], cache, attention_mask=real[:, :49])
    cache.crop(-3)
    other.crop(-3)
    assert cache.get_seq_length() == other.get_seq_length() == 44
    # More than can be taken back.
    interrupted(model, ids[:, 44:], cache, attention_mask=real)
    with torch.no_grad():
        with pytest.raises(tessera.InvalidArgument, match="cut off after 44 tokens"):
            model(ids[:, 44:45], attention_mask=real[:, :45], past_key_values=cache)
        cache.reset()
        got = model(ids[:1, :9], past_key_values=cache).logits
        assert torch.equal(got, model(ids[:1, :9]).logits)


def test_a_first_forward_pass_that_is_cut_off_may_begin_anew_with_another_batch():
    model, _ = models("llama", "tessera_hybrid")

    def pattern(_, layer):  # the dense layer has its tokens already
        return tessera.S2(16, 2, 4) if layer else tessera.Dense()

    tessera.hf.register("tessera_dense_first", pattern)
    model.set_attn_implementation("tessera_dense_first")
    cache, ids = compact(model), tokens(2, 20)
    interrupted(model, ids, cache)
    with torch.no_grad():
        got = model(ids[:1], past_key_values=cache).logits
        assert torch.equal(got, model(ids[:1], past_key_values=compact(model)).logits)
    assert cache.get_seq_length() == 20


def test_a_cache_begins_anew_with_heads_of_another_size():
    cache = compact(models("llama", "tessera_hybrid")[0])
    for dim in (8, 16):
        model, _ = models("llama", "tessera_hybrid", head_dim=dim)
        with torch.no_grad():
            got = model(tokens(1, 9), past_key_values=cache).logits
            assert torch.equal(got, model(tokens(1, 9)).logits)
        cache.reset()


def test_autocast():
    model, _ = models("llama", "tessera_hybrid")
    ids, found = tokens(1, 40), []
    for cache in (transformers.DynamicCache(), compact(model)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for piece in (ids[:, :30], ids[:, 30:]):
                logits = model(piece, past_key_values=cache).logits
        found.append(logits.float())
    assert cache.layers[0].cache.dtype == torch.bfloat16
    torch.testing.assert_close(*found, rtol=0.1, atol=0.5)


def test_windows_are_compact_too():
    tessera.hf.register("tessera_window", tessera.Window(20))
    model, _ = models("llama", "tessera_hybrid")
    model.set_attn_implementation("tessera_window")
    wanted, got, cache = both(model, tokens(2, 300))
    assert torch.equal(got, wanted)
    assert cache.layers[0].cache.bytes < 0.8 * cache.layers[0].cache.dense_bytes


def test_eight_bits():
    model, _ = models("llama", "tessera_s2")
    cache = compact(model, kv_dtype="int8")
    got = model.generate(tokens(2, 50), past_key_values=cache, **WORDS)
    assert got.shape == (2, 114)
    full = compact(model)
    model.generate(tokens(2, 50), past_key_values=full, **WORDS)
    assert cache.bytes < 0.5 * full.bytes  # 8 codes and a scale for 8 numbers of 4 bytes


def test_what_cannot_be_done_is_refused_by_name():
    model, eager = models("llama", "tessera_hybrid")
    ids = tokens(2, 20)
    with pytest.raises(tessera.Unsupported, match="S2Cache serves attention of tessera.hf alone"):
        eager(ids, past_key_values=compact(model))
    with pytest.raises(tessera.InvalidArgument, match="attn_implementation is 'eager'"):
        tessera.hf.S2Cache(eager.config)
    with pytest.raises(TypeError, match="config: the config of a model"):
        tessera.hf.S2Cache("llama")
    with pytest.raises(TypeError, match="pattern: a tessera pattern"):
        tessera.hf.S2Cache(eager.config, 3)
    for name, word in (("max_tokens", 0), ("max_chunk", "x"), ("page", 17), ("kv_dtype", "int4")):
        with pytest.raises((tessera.InvalidArgument, TypeError), match=f"{name}: .* got"):
            tessera.hf.S2Cache(model.config, **{name: word})
    with pytest.raises(TypeError, match="crop: tokens_to_remove: .* got 'x'"):
        compact(model).crop("x")
    with torch.no_grad():
        with pytest.raises(tessera.InvalidArgument, match="layer 0 of S2Cache is for"):
            model(ids, past_key_values=tessera.hf.S2Cache(model.config, tessera.S2(4, 2, 2)))
        positions = torch.cat([torch.arange(10)] * 2).expand(2, -1)
        with pytest.raises(tessera.Unsupported, match="packed rows with S2Cache"):
            model(ids, position_ids=positions, past_key_values=compact(model))
        cache = compact(model)
        real = torch.ones_like(ids)
        real[0, :5] = 0
        model(ids, attention_mask=real, past_key_values=cache)
        with pytest.raises(tessera.InvalidArgument, match="attention_mask: row 0 has 21 real"):
            model(ids[:, :1], past_key_values=cache)
        with pytest.raises(tessera.InvalidArgument, match="S2Cache has 2 sequences"):
            model(ids[:1], past_key_values=cache)
        short = compact(model, max_tokens=30)
        model(ids, past_key_values=short)
        with pytest.raises(tessera.InvalidArgument, match="max_tokens of the cache is 30"):
            model(ids, past_key_values=short)
    with pytest.raises(tessera.Unsupported, match="gradients through a cache"):
        model(ids, past_key_values=compact(model))
    with pytest.raises(tessera.Unsupported, match="offloading"):
        cache.layers[0].offload()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(tessera.Unsupported, match=r"layer_types\[1\]: 'linear_attention'"):
        compact(model)
    assert HEADS == 4

# SPDX-License-Identifier: Apache-2.0
"""tessera.hf in tiny random models, against eager attention with a mask per head."""

import ast
import inspect
import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tessera  # noqa: E402
import tessera.hf  # noqa: E402
from tessera.hf import _attention  # noqa: E402

HEADS, KV_HEADS, DIM, LAYERS, WORDS = 4, 2, 8, 2, 61
S2 = tessera.S2(block=4, local=2, stride=3, offset=1)
PER_KV = tessera.S2(block=4, local=1, stride=4, per_kv_head=True, dense_heads=1)


def hybrid(config, layer):
    return tessera.Dense() if layer % 2 else S2


tessera.hf.register("tessera_s2", S2)
tessera.hf.register("tessera_kv", PER_KV)
tessera.hf.register("tessera_hybrid", hybrid)
OF_LAYER = {
    "tessera_s2": lambda layer: S2,
    "tessera_kv": lambda layer: PER_KV,
    "tessera_hybrid": lambda layer: hybrid(None, layer),
}


def config(kind, **words):
    given = dict(
        vocab_size=WORDS,
        hidden_size=HEADS * DIM,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        attention_dropout=0.0,
    )
    made = {"llama": transformers.LlamaConfig, "phi3": transformers.Phi3Config}[kind]
    return made(**{**given, **words})


def models(kind, name, **words):
    """A model with tessera's attention and one with eager attention, of equal weights."""
    made = {"llama": transformers.LlamaForCausalLM, "phi3": transformers.Phi3ForCausalLM}[kind]
    pair = []
    for implementation in (name, "eager"):
        torch.manual_seed(0)
        settings = config(kind, **words)
        settings._attn_implementation = implementation
        pair.append(made(settings).eval())
    for model in pair:
        for layer in model.model.layers:
            layer.self_attn.scaling = 0.3  # not what it would be by itself
    # Random weights hide a wrong pattern: larger ones let scores differ.
    for parameter in pair[0].parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(12)
    pair[1].load_state_dict(pair[0].state_dict())
    return pair


def masked(model, name, kept_of, call):
    """Calls an eager model whose layers get [batch, heads, queries, keys] by their own pattern."""

    def hook(layer):
        def before(module, positional, words):
            kept = kept_of(OF_LAYER[name](layer))
            words["attention_mask"] = torch.zeros(kept.shape).masked_fill(~kept, -1e30)
            return positional, words

        return before

    hooks = [
        decoder.self_attn.register_forward_pre_hook(hook(n), with_kwargs=True)
        for n, decoder in enumerate(model.model.layers)
    ]
    try:
        return call(model)
    finally:
        for one in hooks:
            one.remove()


def rows_of(real):
    """For a padding mask [batch, tokens]: the patterns of rows of real tokens only."""

    def kept_of(pattern):
        batch, tokens = real.shape
        kept = torch.zeros(batch, HEADS, tokens, tokens, dtype=torch.bool)
        kept |= torch.eye(tokens, dtype=torch.bool)  # what padding sees matters to nobody
        for b in range(batch):
            places = real[b].nonzero().flatten()
            n = len(places)
            one = torch.from_numpy(pattern.mask(n, n, heads=HEADS, kv_heads=KV_HEADS))
            kept[b][:, places[:, None], places] = one
        return kept

    return kept_of


def tokens(batch, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, WORDS, (batch, count), generator=generator)


def step(model, **words):
    """Logits and the gradients of all weights, of a loss over real tokens."""
    real = words.pop("real")
    model.zero_grad()
    logits = model(use_cache=False, **words).logits
    weights = torch.linspace(-1, 1, WORDS)
    ((logits * weights).sum(-1).tanh() * real).sum().backward()
    return logits.detach()[real.bool()], [p.grad.clone() for p in model.parameters()]


def compare(kind, name, kept_of, real, **words):
    mine, eager = models(kind, name)
    got = step(mine, real=real, **words)
    plain = {n: x for n, x in words.items() if n in ("input_ids", "position_ids")}
    want = masked(eager, name, kept_of, lambda model: step(model, real=real, **plain))
    torch.testing.assert_close(got[0], want[0], rtol=1e-3, atol=1e-3)
    for one, other in zip(got[1], want[1]):
        torch.testing.assert_close(one, other, rtol=5e-3, atol=2e-3)
    return mine


@pytest.mark.parametrize("kind", ["llama", "phi3"])
@pytest.mark.parametrize("name", list(OF_LAYER))
def test_logits_and_gradients(kind, name):
    real = torch.ones(2, 37, dtype=torch.int64)
    mine = compare(kind, name, rows_of(real), real, input_ids=tokens(2, 37))
    # The pattern matters: dense attention has other logits.
    ids = tokens(2, 37)
    with torch.no_grad():
        sparse = mine(ids, use_cache=False).logits
        mine.set_attn_implementation("eager")
        assert (mine(ids, use_cache=False).logits - sparse).abs().max() > 0.1


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_padding(kind, side):
    first = [0, 9, 20] if side != "right" else [0, 0, 0]
    end = [37, 37, 37] if side == "left" else [37, 30, 25]
    place = torch.arange(37)
    real = torch.stack([(place >= a) & (place < b) for a, b in zip(first, end)]).long()
    positions = (real.cumsum(1) - 1).clamp(min=0)
    words = dict(input_ids=tokens(3, 37), attention_mask=real, position_ids=positions)
    compare(kind, "tessera_hybrid", rows_of(real), real, **words)


def packed_rows(lengths):
    """The patterns of sequences that follow each other in one row."""

    def kept_of(pattern):
        total = sum(lengths)
        kept = torch.zeros(1, HEADS, total, total, dtype=torch.bool)
        at = 0
        for n in lengths:
            here = slice(at, at + n)
            one = torch.from_numpy(pattern.mask(n, n, heads=HEADS, kv_heads=KV_HEADS))
            kept[0, :, here, here] = one
            at += n
        return kept

    return kept_of


@pytest.mark.parametrize("by", ["position_ids", "cu_seq_lens_q"])
@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_packed_rows(kind, by):
    lengths = [13, 1, 22, 7]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    real = torch.ones(1, 43, dtype=torch.int64)
    words = dict(input_ids=tokens(1, 43), position_ids=positions)
    if by == "cu_seq_lens_q":
        cumulative = torch.tensor([0, 13, 14, 36, 43], dtype=torch.int32)
        words |= dict(cu_seq_lens_q=cumulative, cu_seq_lens_k=cumulative)
        words |= dict(max_length_q=22, max_length_k=22)
    compare(kind, "tessera_s2", packed_rows(lengths), real, **words)


def test_packed_rows_with_a_cache_in_the_way():
    # Models make a cache by default, and transformers then looks for no packed rows.
    mine, _ = models("llama", "tessera_s2")
    positions = torch.cat([torch.arange(n) for n in (20, 17)])[None]
    ids = tokens(1, 37)
    with torch.no_grad():
        apart = mine(ids, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(mine(ids, position_ids=positions).logits, apart)
        alone = mine(ids[:, 20:], use_cache=False).logits
        torch.testing.assert_close(apart[:, 20:], alone, rtol=1e-3, atol=1e-4)
        # The same tensor with other numbers in it.
        whole = mine(ids, use_cache=False).logits
        positions.copy_(torch.arange(37))
        torch.testing.assert_close(mine(ids, position_ids=positions).logits, whole)


@pytest.mark.parametrize("kept", [False, True])
def test_positions_of_one_row_serve_every_batch(kept, monkeypatch):
    """And are read anew where they may have changed. `kept`: as on a GPU."""
    if kept:
        monkeypatch.setattr("tessera._runs.tells_changes", lambda x: True)
    memory = np.concatenate([np.arange(20), np.arange(17)])[None]
    positions = torch.from_numpy(memory)
    mine, _ = models("llama", "tessera_s2")
    layer = mine.model.layers[0].self_attn
    function = transformers.AttentionInterface()["tessera_s2"]
    for batch in (2, 3, 1):
        q, k = torch.randn(batch, HEADS, 37, DIM), torch.randn(batch, KV_HEADS, 37, DIM)
        ends = (0, 20, 37)
        for _ in range(2):
            got = function(layer, q, k, k, None, position_ids=positions)[0]
            for a, b in zip(ends, ends[1:]):
                here = (x[:, :, a:b] for x in (q, k, k))
                assert torch.equal(got[:, a:b], function(layer, *here, None)[0])
            if kept:
                break
            memory[0] = np.concatenate([np.arange(9), np.arange(28)])
            ends = (0, 9, 37)
        memory[0] = np.concatenate([np.arange(20), np.arange(17)])


@pytest.mark.parametrize("q_len, kv_len", [(5, 12), (12, 5), (12, 12)])
def test_padded_keys_of_other_queries(q_len, kv_len):
    """Without order, as in cross-attention, where no query is padding; eager and compiled."""
    dense = tessera.Dense(causal=False)
    tessera.hf.register("tessera_both", dense)
    layer = models("llama", "tessera_s2")[0].model.layers[0].self_attn
    real = torch.ones(3, kv_len, dtype=torch.int64)
    real[0, kv_len - 2 :] = real[1, :3] = 0
    q, k = torch.randn(3, HEADS, q_len, DIM), torch.randn(3, KV_HEADS, kv_len, DIM)

    def attend(q, k, real):
        mask = transformers.AttentionMaskInterface()["tessera_both"](
            batch_size=3, q_length=q_len, kv_length=kv_len, attention_mask=real,
            mask_function=transformers.masking_utils.bidirectional_mask_function,
            allow_is_bidirectional_skip=True,
        )  # fmt: skip
        function = transformers.AttentionInterface()["tessera_both"]
        return function(layer, q, k, k, mask, is_causal=False)[0]

    wide = k.repeat_interleave(HEADS // KV_HEADS, 1)
    kept = real[:, None, None].bool()
    want = torch.nn.functional.scaled_dot_product_attention(q, wide, wide, kept).transpose(1, 2)
    torch._dynamo.reset()
    for call in (attend, torch.compile(attend, backend="eager", fullgraph=True)):
        torch.testing.assert_close(call(q, k, real), want, rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_gives_equal_bits():
    mine, _ = models("llama", "tessera_hybrid")
    real = torch.ones(2, 37, dtype=torch.int64)
    real[1, :9] = 0
    words = dict(input_ids=tokens(2, 37), attention_mask=real, real=real)
    want = step(mine.train(), **dict(words))
    mine.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got = step(mine, **dict(words))
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(one, other) for one, other in zip(got[1], want[1]))


def greedy(model, name, prompts, count):
    """`count` tokens after each prompt, one sequence at a time, without a cache."""
    found = []
    for prompt in prompts:
        ids = prompt[None]
        for _ in range(count):
            kept_of = rows_of(torch.ones_like(ids))
            with torch.no_grad():
                logits = masked(
                    model, name, kept_of, lambda m: m(input_ids=ids, use_cache=False).logits
                )
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        found.append(ids[0, -count:])
    return torch.stack(found)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_sixty_four_tokens(kind, cache):
    name = "tessera_hybrid" if kind == "llama" else "tessera_kv"
    mine, eager = models(kind, name)
    prompts = list(tokens(2, 19, seed=3))
    prompts[1] = prompts[1][6:]
    want = greedy(eager, name, prompts, 64)
    ids = torch.zeros(2, 19, dtype=torch.int64)
    for n, prompt in enumerate(prompts):
        ids[n, -len(prompt) :] = prompt
    words = dict(max_new_tokens=64, do_sample=False, disable_compile=True)
    if cache == "static":
        words["cache_implementation"] = "static"
    got = mine.generate(ids, attention_mask=(ids != 0).long(), **words)
    assert torch.equal(got[:, 19:], want)
    alone = mine.generate(ids[:1], **words)
    assert torch.equal(alone[:, 19:], want[:1])


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_chunks_of_a_prompt(cache, padded):
    mine, _ = models("llama", "tessera_s2")
    ids, real = tokens(2, 37), torch.ones(2, 37, dtype=torch.int64)
    if padded:
        real[1, :15] = 0  # the first chunk of this row is padding and more
        real[0, 34:] = 0  # and the last one ends with padding
    settings = mine.config
    with torch.no_grad():
        made = (
            transformers.StaticCache(settings, max_cache_len=64)
            if cache == "static"
            else transformers.DynamicCache()
        )
        positions = (real.cumsum(1) - 1).clamp(min=0)
        want = mine(ids, attention_mask=real, position_ids=positions, use_cache=False).logits
        parts = []
        for first, end in ((0, 10), (10, 30), (30, 31), (31, 37)):
            part = mine(
                ids[:, first:end],
                attention_mask=real[:, :end],
                position_ids=positions[:, first:end],
                past_key_values=made,
            )
            parts.append(part.logits)
    got = torch.cat(parts, 1)
    torch.testing.assert_close(got[real.bool()], want[real.bool()], rtol=1e-3, atol=1e-3)


def test_float32_inputs_of_bfloat16_layers():
    mine, _ = models("llama", "tessera_s2")
    layer = mine.model.layers[0].self_attn.to(torch.bfloat16)
    function = transformers.AttentionInterface()["tessera_s2"]
    q, k = torch.randn(1, HEADS, 20, DIM), torch.randn(1, KV_HEADS, 20, DIM)
    o, weights = function(layer, q, k, k.bfloat16(), None, dropout=0.0, scaling=0.5)
    assert o.dtype == torch.bfloat16 and o.shape == (1, 20, HEADS, DIM) and weights is None
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = function(mine.model.layers[1].self_attn, q, k, k, None, scaling=0.5)
    assert o.dtype == torch.bfloat16


def forward(name="tessera_s2", kind="llama", settings=None, **words):
    mine, _ = models(kind, name, **(settings or {}))
    with torch.no_grad():
        return mine(tokens(2, 37), **words)


def test_what_cannot_be_done_is_refused_by_name():
    refused = (tessera.Error, ValueError, NotImplementedError)
    gaps = torch.ones(2, 37, dtype=torch.int64)
    gaps[0, 5] = 0
    with pytest.raises(tessera.Unsupported, match="^attention_mask: row 0 has gaps"):
        forward(attention_mask=gaps)
    with pytest.raises(tessera.Unsupported, match="^attention_mask: a mask of your own"):
        forward(attention_mask=torch.zeros(2, 1, 37, 37))
    with pytest.raises(tessera.InvalidArgument, match="^attention_mask: a row .* 2 .* got shape"):
        forward(attention_mask=torch.ones(3, 37, dtype=torch.long))
    with pytest.raises(tessera.Unsupported, match="^sliding_window: 16 tokens"):
        forward(kind="phi3", settings={"sliding_window": 16}, use_cache=False)
    with pytest.raises(refused, match="output_attentions"):
        forward(output_attentions=True)
    mine, _ = models("llama", "tessera_s2", attention_dropout=0.5)
    with pytest.raises(tessera.Unsupported, match="^dropout: 0.5"):
        mine.train()(tokens(2, 37))
    with pytest.raises(tessera.InvalidArgument, match="^is_causal: False"):
        forward(is_causal=False)
    layer = mine.model.layers[0].self_attn
    function = transformers.AttentionInterface()["tessera_s2"]
    q, k = torch.randn(1, HEADS, 20, DIM), torch.randn(1, KV_HEADS, 20, DIM)
    words = ("softcap", "s_aux", "position_bias", "alibi", "cache", "indices", "block_indices")
    for word in words:
        for value in (1.0, torch.ones(1, 20, 4)):
            with pytest.raises(tessera.Unsupported, match=f"^{word}: "):
                function(layer, q, k, k, None, **{word: value})
    assert function(layer, q, k, k, None, softcap=None, output_attentions=False)[0].shape[1] == 20
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)  # the last queries' keys are not the first
    with pytest.raises(tessera.InvalidArgument, match="^cu_seq_lens_k: needed with 20 keys"):
        function(layer, q[:, :, 8:], k, k, None, cu_seq_lens_q=ends)
    with pytest.raises(tessera.InvalidArgument, match="^query: 2 of the model's 4 heads"):
        function(layer, q[:, :2], k[:, :1], k[:, :1], None)
    mask = transformers.AttentionMaskInterface()["tessera_s2"]
    with pytest.raises(tessera.Unsupported, match="^past_key_values: the cache has dropped 5"):
        mask(batch_size=1, q_length=1, kv_length=16, q_offset=20, kv_offset=5)
    with pytest.raises(tessera.Unsupported, match="^and_mask_function, or_mask_function"):
        mask(batch_size=1, q_length=4, kv_length=4, use_vmap=True)


@pytest.mark.parametrize("name", ["Bloom", "XGLM"])
def test_models_with_attention_of_their_own_are_refused(name):
    """Without a padding mask they would lose their causal order: None is no mask to them."""
    words = dict(vocab_size=WORDS, hidden_size=32, num_attention_heads=HEADS, num_hidden_layers=1)
    words |= dict(d_model=32, ffn_dim=32, attention_heads=HEADS, num_layers=1, n_layer=1, n_head=4)
    settings = getattr(transformers, f"{name}Config")(**words)
    model = transformers.AutoModelForCausalLM.from_config(
        settings, attn_implementation="tessera_s2"
    )
    with pytest.raises(tessera.Unsupported, match=f"^attn_implementation: models of {name}Config"):
        model(tokens(1, 9))


def test_every_word_that_a_model_gives_is_known():
    """What a model passes and nobody looks at is lost without a word. Here is all that models of
    the installed transformers pass; a new word fails, until it is served, refused or harmless."""
    harmless = {"max_length_q", "max_length_k", "deterministic"}  # of flash attention's kernels
    served = set(inspect.signature(_attention.Attention.__call__).parameters)
    known = served | set(_attention._REFUSED) | harmless
    found = set()
    for file in pathlib.Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attention_interface":
                found |= {word.arg for word in node.keywords if word.arg}
    assert {"scaling", "dropout", "sliding_window"} <= found
    assert found <= known, found - known


def test_blocks_of_images_are_refused_by_name():
    """Their tokens see each other in both directions, in a mask that looks causal otherwise."""
    utils = transformers.masking_utils
    if not hasattr(utils, "blockwise_overlay"):
        pytest.skip("these transformers have no such blocks")
    mask = transformers.AttentionMaskInterface()["tessera_s2"]
    compiled = torch.compile(mask, backend="eager", fullgraph=True)
    both = utils.sliding_window_bidirectional_mask_function(4)
    assert mask(1, 9, 9, mask_function=both, local_size=4, allow_is_bidirectional_skip=True) is None
    for window in (None, 4):
        plain = utils.causal_mask_function
        if window is not None:
            plain = utils.sliding_window_causal_mask_function(window)
        for place in range(7):
            blocks = torch.full((2, 9), -1)
            blocks[1, place : place + 2] = 0
            function = utils.or_masks(plain, utils.blockwise_overlay(blocks))
            for first in (0, 3):
                words = dict(mask_function=function, local_size=window, q_offset=first)
                shape = (2, 9 - first, 9)
                if place < first:  # what the cache has
                    assert mask(*shape, **words) is None
                    continue
                for call, error in ((mask, tessera.Unsupported), (compiled, RuntimeError)):
                    with pytest.raises(error, match="^block_sequence_ids: "):
                        call(*shape, **words)
        blocks.fill_(-1)
        assert mask(*shape, **words) is None


def test_registration_is_checked():
    with pytest.raises(tessera.InvalidArgument, match="^pattern: "):
        tessera.hf.register("other")
    with pytest.raises(tessera.InvalidArgument, match="^name: "):
        tessera.hf.register("", S2)
    tessera.hf.register("tessera_none", lambda config, layer: None)
    OF_LAYER["tessera_none"] = None
    with pytest.raises(TypeError, match="^pattern: must return a tessera pattern for layer 0"):
        forward("tessera_none")


def test_layers_without_a_number_have_one_pattern():
    """A function of layers would take each of them for the first."""
    mine, _ = models("llama", "tessera_s2")
    layer = mine.model.layers[1].self_attn
    del layer.layer_idx
    q, k = torch.randn(1, HEADS, 20, DIM), torch.randn(1, KV_HEADS, 20, DIM)
    functions = transformers.AttentionInterface()
    assert functions["tessera_s2"](layer, q, k, k, None)[0].shape == (1, 20, HEADS, DIM)
    with pytest.raises(tessera.Unsupported, match="^pattern: a function of layers .* LlamaAtt"):
        functions["tessera_hybrid"](layer, q, k, k, None)


def test_a_window_of_the_model_may_be_the_pattern_s():
    window = tessera.Window(left=15)
    tessera.hf.register("tessera_window", window)
    OF_LAYER["tessera_window"] = lambda layer: window
    mine, eager = models("phi3", "tessera_window", sliding_window=16)
    with torch.no_grad():
        got = mine(tokens(2, 37), use_cache=False).logits
        torch.testing.assert_close(
            got, eager(tokens(2, 37), use_cache=False).logits, rtol=1e-3, atol=1e-3
        )

# SPDX-License-Identifier: Apache-2.0
"""tessera.megatron in a GPTModel of Megatron-core, one process with gloo, without a GPU."""

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core")
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel import random as random_states
    from megatron.core.transformer import dot_product_attention
    from megatron.core.transformer.transformer_config import TransformerConfig

import tessera  # noqa: E402
from tessera.megatron import S2Attention  # noqa: E402

HEADS, GROUPS, WORDS, TOKENS = 4, 2, 64, 37
S2 = tessera.S2(block=4, local=2, stride=4)


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch, tmp_path):
    class Tracker:
        @contextlib.contextmanager
        def fork(self):
            yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    parts = dot_product_attention.tensor_parallel
    monkeypatch.setattr(parts, "get_cuda_rng_tracker", Tracker)
    monkeypatch.setattr(random_states, "_get_cuda_rng_state", lambda **_: torch.zeros(1))
    monkeypatch.setattr(random_states, "_set_cuda_rng_state", lambda *_, **__: None)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    kept = parallel_state._GLOBAL_MEMORY_BUFFER
    parallel_state._GLOBAL_MEMORY_BUFFER = None
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    parallel_state._GLOBAL_MEMORY_BUFFER = kept


def model(core, pattern=None, **words):
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        **words,
    )
    config.tessera_pattern = pattern
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    if core is not None:
        spec.submodules.self_attention.submodules.core_attention = core
    return GPTModel(
        config, spec, vocab_size=WORDS, max_sequence_length=128, position_embedding_type="rope"
    )


def step(made, mask):
    made.zero_grad()
    ids = torch.randint(0, WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(TOKENS).expand(2, -1)
    logits = made(ids, positions, mask)
    (logits * torch.linspace(-1, 1, WORDS)).tanh().sum().backward()
    return logits.detach(), [p.grad.clone() for p in made.parameters()]


def hybrid(config, layer):
    return tessera.Dense() if layer == 2 else S2


@pytest.mark.parametrize("named", ["by", "config"])
def test_a_model(named):
    core = S2Attention.by(hybrid) if named == "by" else S2Attention
    made = model(core, None if named == "by" else hybrid)
    own = model(None)
    own.load_state_dict(made.state_dict())
    causal = ~torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    for n, layer in enumerate(own.decoder.layers):
        kept = hybrid(None, n + 1).mask(TOKENS, TOKENS, heads=HEADS, kv_heads=GROUPS)
        hidden = ~torch.from_numpy(kept)[None]
        attention = layer.self_attention.core_attention
        attention.scale_mask_softmax.attn_mask_type = dot_product_attention.AttnMaskType.arbitrary
        attention.register_forward_pre_hook(
            lambda _, given, hidden=hidden: (*given[:3], hidden)
        )
    got, want = step(made, causal), step(own, causal)
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    for one, other in zip(got[1], want[1]):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    dense = step(model(S2Attention.by(tessera.Dense())), causal)
    assert (got[0] - dense[0]).abs().max() > 0.01  # the pattern matters


def test_recomputation_of_core_attention():
    want = step(model(S2Attention.by(S2)), None)
    words = dict(recompute_granularity="selective", recompute_modules=["core_attn"])
    made = model(S2Attention.by(S2), **words).train()
    assert made.decoder.layers[0].self_attention.checkpoint_core_attention
    got = step(made, None)
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(one, other) for one, other in zip(got[1], want[1]))

# SPDX-License-Identifier: Apache-2.0
"""The adapters on a GPU against themselves on the CPU, where CI compares them with the originals.

An adapter whose package is missing is skipped, and said to be.
"""

from __future__ import annotations

import importlib.util
import types
import warnings
from typing import Any

import torch

import tessera
from gpu_checks import DEVICE, check
from tessera.dkernel import LocalStrideSparseAttention


def near(found: Any, expected: Any, what: str, most: float = 2e-4) -> None:
    got, wanted = found.detach().cpu().double(), expected.detach().double()
    assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
    error = (got - wanted).norm() / wanted.norm().clamp(min=1e-9)
    assert error < most, (what, float(error))


def both(call: Any, inputs: list[torch.Tensor], what: str) -> None:
    """A call and its gradients on the GPU and on the CPU, in float32."""
    results = []
    for device in (DEVICE, torch.device("cpu")):
        given = [x.detach().to(device).requires_grad_() for x in inputs]
        o = call(device, *given)
        d_o = torch.linspace(-1, 1, o.shape[-1], device=device).expand(o.shape)
        results.append((o, *torch.autograd.grad(o, given, d_o)))
    for n, (found, expected) in enumerate(zip(*results, strict=True)):
        near(found, expected, f"{what}, result {n}")


@check
def dkernel_modules() -> None:
    layers = {
        seq_dim: LocalStrideSparseAttention(
            8, 512, 32, 2, 4, num_kv_heads=2, num_dense_heads=1, seq_dim=seq_dim
        )
        for seq_dim in (1, 2)
    }
    q, k, v = (torch.randn(2, 300, n, 64) for n in (8, 2, 2))

    def tensor(values: list[int], device: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    both(lambda _, *x: layers[1](*x, 0.2), [q, k, v], "dense batch")
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    both(lambda _, *x: layers[2](*x), turned, "heads before tokens")
    both(
        lambda device, *x: layers[1](*x, left_paddings=tensor([0, 70], device)),
        [q, k, v],
        "padding before",
    )
    both(
        lambda device, *x: layers[1](*x, seqlens=tensor([300, 55], device)),
        [q, k, v],
        "padding behind",
    )
    both(
        lambda device, *x: layers[1](
            *(y.flatten(0, 1) for y in x),
            cu_seqlen_k=tensor([0, 33, 400, 600], device),
            cu_seqlen_q=tensor([0, 33, 400, 600], device),
        ),
        [q, k, v],
        "packed",
    )
    both(lambda _, *x: layers[1](*x), [q[:, -1:], k, v], "one token after a past")


@check
def transformers_models() -> str | None:
    if importlib.util.find_spec("transformers") is None:
        return "skipped: no transformers"
    from test_hf import models, tokens

    for kind, name in (("llama", "tessera_hybrid"), ("phi3", "tessera_s2")):
        model, _ = models(kind, name)
        ids, real = tokens(2, 37), torch.ones(2, 37, dtype=torch.int64)
        real[0, :9] = 0
        found = []
        for device in ("cpu", "cuda"):
            model = model.to(device)
            model.zero_grad()
            words = dict(attention_mask=real.to(device), use_cache=False)
            logits = model(ids.to(device), **words).logits
            (logits.tanh() * real.to(device)[..., None]).sum().backward()
            grads = [p.grad.detach().cpu() for p in model.parameters()]
            with torch.no_grad():
                said = model.generate(
                    ids.to(device), attention_mask=real.to(device), max_new_tokens=64,
                    do_sample=False,
                )  # fmt: skip
                fixed = model.generate(
                    ids.to(device), attention_mask=real.to(device), max_new_tokens=8,
                    do_sample=False, cache_implementation="static", disable_compile=True,
                )  # fmt: skip
            found.append((logits.detach().cpu()[real.bool()], grads, said.cpu(), fixed.cpu()))
        (logits, grads, said, fixed), (g_logits, g_grads, g_said, g_fixed) = found
        near(g_logits, logits, f"{kind}: logits", 1e-3)
        for n, (one, other) in enumerate(zip(g_grads, grads, strict=True)):
            near(one, other, f"{kind}: gradient {n}", 1e-2)
        assert torch.equal(g_said, said), f"{kind}: 64 tokens"
        assert torch.equal(g_fixed, fixed), f"{kind}: static cache"
    return None


@check
def megatron_layers() -> str | None:
    if importlib.util.find_spec("megatron") is None:
        return "skipped: no megatron-core"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core
        from megatron.core.packed_seq_params import PackedSeqParams
        from megatron.core.transformer.enums import AttnMaskType
        from megatron.core.transformer.transformer_config import TransformerConfig
        from tessera.megatron import S2Attention

        config = TransformerConfig(
            num_layers=2, hidden_size=512, num_attention_heads=8, num_query_groups=2,
            attention_dropout=0.0, use_cpu_initialization=True,
        )  # fmt: skip
    group = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    attention = S2Attention.by(tessera.S2(32, 2, 4, dense_heads=2))
    layer = attention(
        config, 1, AttnMaskType.causal, "self", pg_collection=types.SimpleNamespace(tp=group)
    )
    q, k, v = (torch.randn(300, 2, n, 64) for n in (8, 2, 2))
    both(lambda _, *x: layer(*x, None), [q, k, v], "layer")

    def packed(device: Any, *x: torch.Tensor) -> torch.Tensor:
        cu, at = (
            torch.tensor(values, dtype=torch.int32, device=device)
            for values in ([0, 33, 250, 280], [0, 40, 260, 300])
        )
        words = dict(cu_seqlens_q_padded=at, cu_seqlens_kv_padded=at)
        params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, **words)
        kind = AttnMaskType.padding_causal
        return layer(*x, None, attn_mask_type=kind, packed_seq_params=params)

    both(packed, [x[:, 0] for x in (q, k, v)], "packed")
    return f"megatron-core {megatron.core.__version__}"

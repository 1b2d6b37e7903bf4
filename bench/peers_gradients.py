# SPDX-License-Identifier: Apache-2.0
"""What the scripts that time gradients share: the tensors of a layer, and the check in float64."""

import math

import torch

from peers_torch import kept_keys
from tessera_ctypes import BACKWARD, DENSE, PER_KV_HEAD, WINDOW

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# The largest difference of a gradient's row over the row's largest element.
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 3e-2}
GRADIENTS = ("d_q", "d_k", "d_v")


def kept_rows(wanted, heads, kv_heads, head, key, rows, device):
    """Which of the rows at positions 0 .. rows - 1 keep a key, by tessera.h's formulas."""
    p = torch.arange(key, rows, device=device)
    if wanted.kind == DENSE:
        return p
    if wanted.kind == WINDOW:
        return p[p - key <= wanted.left]
    block, step = wanted.block, max(1, wanted.stride // heads)
    shard = head // (heads // kv_heads) if wanted.flags & PER_KV_HEAD else head
    if (key // block + shard * step + wanted.offset) % wanted.stride == 0:
        return p
    return p[p // block - key // block < wanted.local]


class Layer:
    """Unit-normal Q, K, V and dO of a layer, O and LSE of its pattern, and room for gradients.

    Tensors are [batch, tokens, heads, head_dim], as many keys as rows; O and LSE come from the
    library's own forward pass, of which some rows are checked with the gradients.
    """

    def __init__(self, tessera, shape, wanted, dtype="bf16", device="cuda", stream=0):
        batch, heads, kv_heads, head_dim, tokens = shape
        self.tessera, self.wanted, self.dtype, self.stream = tessera, wanted, dtype, stream
        torch.manual_seed(1)

        def normal(count):
            shape = (batch, tokens, count, head_dim)
            return torch.randn(shape, device=device, dtype=TYPES[dtype])

        q, k, v, d_o = normal(heads), normal(kv_heads), normal(kv_heads), normal(heads)
        self.x = {"q": q, "k": k, "v": v, "o": torch.empty_like(q)}
        self.x["lse"] = torch.empty(batch, heads, tokens, device=device)
        self.forward = tessera.attention(torch, dtype, self.x, wanted, stream, kernel="")
        self.forward()
        self.x.update(d_o=d_o, d_q=torch.empty_like(q))
        self.x.update(d_k=torch.empty_like(k), d_v=torch.empty_like(v))

    def backward(self, determinism=0, kernel=None):
        """A Plan of the gradients, after a first run whose result was right."""
        for name in GRADIENTS:
            self.x[name].fill_(math.nan)
        plan = self.tessera.attention(
            torch,
            self.dtype,
            self.x,
            self.wanted,
            self.stream,
            kernel,
            op=BACKWARD,
            determinism=determinism,
        )
        plan()
        errors = self.errors()
        if not max(errors.values()) < TOLERANCE[self.dtype]:
            told = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
            raise RuntimeError(f"{plan.info.kernel.decode()}: wrong result: {told}")
        return plan

    def errors(self, samples=6):
        """Compares sampled rows of what the tensors hold with float64: by name, the largest
        difference over the row's largest element."""
        tokens, kv_heads = self.x["k"].shape[1:3]
        heads = self.x["q"].shape[2]
        at = [tokens - 1, 2, tokens // 3, 63, tokens // 2 + 5, 64]
        at = [min(row, tokens - 1) for row in at]
        worst = {}
        for n in range(samples):
            item, row = n % self.x["q"].shape[0], at[n % len(at)]
            found = self.row_errors(item, n * 5 % heads, row)
            found.update(self.key_errors(item, n * 5 % kv_heads, tokens - 1 - row))
            for name, (value, expected, *of) in found.items():
                size = (of[0] if of else expected).abs().max()
                error = float((value.double() - expected).abs().max() / size)
                error = math.inf if math.isnan(error) else error
                worst[name] = max(worst.get(name, 0.0), error)
        return worst

    def row_errors(self, item, head, row):
        """(value, expected) of O, LSE and dQ of a row. A softmax of one key has no slope: what is
        left of dQ then is rounding, which is a share of the two terms whose difference it is."""
        x, (heads, head_dim) = self.x, self.x["q"].shape[2:]
        tokens, kv_heads = x["k"].shape[1:3]
        keys = kept_keys(self.wanted, heads, kv_heads, head, row, tokens, x["q"].device)
        k, v = (x[name][item, keys, head // (heads // kv_heads)].double() for name in "kv")
        q, o, d_o = (x[name][item, row, head].double() for name in ("q", "o", "d_o"))
        s = (k @ q) / math.sqrt(head_dim)
        p = torch.softmax(s, 0)
        d_s = p * (v @ d_o - d_o @ o)
        lse = torch.logsumexp(s, 0)
        terms = [(v.abs() @ d_o.abs()) @ k.abs() / math.sqrt(head_dim)] if len(k) == 1 else []
        return {
            "o": (o, p @ v),
            # exp(LSE) is what counts: an absolute error, as a share of 1
            "lse": (1 + x["lse"][item, head, row].double() - lse, torch.ones_like(lse)),
            "d_q": (x["d_q"][item, row, head], d_s @ k / math.sqrt(head_dim), *terms),
        }

    def key_errors(self, item, kv_head, key):
        """(value, expected) of dK and dV of a key; and the terms of dK where they cancel, since
        no row that reads the key keeps more than a trace of another one."""
        x, (heads, head_dim) = self.x, self.x["q"].shape[2:]
        tokens, kv_heads = x["k"].shape[1:3]
        k, v = (x[name][item, key, kv_head].double() for name in "kv")
        d_k, d_v, terms, least = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(k), 1.0
        group = heads // kv_heads
        for head in range(kv_head * group, (kv_head + 1) * group):
            rows = kept_rows(self.wanted, heads, kv_heads, head, key, tokens, k.device)
            q, o, d_o = (x[name][item, rows, head].double() for name in ("q", "o", "d_o"))
            p = torch.exp((q @ k) / math.sqrt(head_dim) - x["lse"][item, head, rows].double())
            least = min(least, float(p.min())) if len(p) else least
            terms += (p * (d_o.abs() @ v.abs())) @ q.abs() / math.sqrt(head_dim)
            d_v += p @ d_o
            d_k += (p * (d_o @ v - (d_o * o).sum(1))) @ q / math.sqrt(head_dim)
        return {
            "d_k": (x["d_k"][item, key, kv_head], d_k, *([terms] if least > 1 - 1e-3 else [])),
            "d_v": (x["d_v"][item, key, kv_head], d_v),
        }

    def of_autograd(self, o, q, k, v):
        """A function that computes gradients through PyTorch, of o = f(q, k, v), which are
        [batch, heads, tokens, head_dim]. It returns them."""
        d_o = self.x["d_o"].transpose(1, 2).contiguous()
        return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)

    def leaves(self):
        """Q, K and V as PyTorch's attention takes them."""
        q, k, v = (self.x[name].transpose(1, 2).contiguous() for name in "qkv")
        return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()

    def check_peer(self, name, gradients):
        """Whether a peer's gradients of the layer's own pattern are right."""
        for field, x in zip(GRADIENTS, gradients):
            self.x[field].copy_(x.transpose(1, 2))
        errors = self.errors(samples=3)
        if not max(errors[field] for field in GRADIENTS) < TOLERANCE[self.dtype]:
            print(f"    {name}: wrong gradients, {errors}", flush=True)

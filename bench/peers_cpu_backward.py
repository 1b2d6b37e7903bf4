# SPDX-License-Identifier: Apache-2.0
"""Gradients on the CPU beside PyTorch's scaled_dot_product_attention: peers_cpu.py --backward."""

import statistics

import torch

from peers_cpu import show, take_turns
from peers_gradients import Layer
from peers_turns import Bars, cpu_facts, on_host, turns, write_json
from tessera_ctypes import DENSE, S2, Tessera, pattern

BARS = {"fp32": 1.15, "bf16": 1.3}  # over PyTorch; bf16 where there is AMX
SAVING = 0.85  # of the ideal one


def has_amx():
    return "amx_bf16" in cpu_facts()[1]


def run(options, cores):
    torch.set_num_threads(len(cores))
    print(f"AMX: {'yes' if has_amx() else 'no'}; PyTorch {torch.__version__}")
    tessera, bars = Tessera(options.library, "cpu:0", len(cores), options.kernel), Bars()
    if options.few:
        few_rows(tessera, options)
        return 0
    for dtype in options.dtypes.split(","):
        beside_torch(bars, tessera, dtype, options, len(cores))
        if options.s2_tokens:
            saving(bars, tessera, dtype, options)
    write_json(options.json, bars.rows)
    return 1 if bars.missed else 0


def beside_torch(bars, tessera, dtype, options, threads):
    heads, head_dim, tokens = 8, 128, options.tokens
    layer = Layer(tessera, (1, heads, heads, head_dim, tokens), pattern(DENSE), dtype, "cpu")
    plan = layer.backward()
    flops, name = plan.info.flops, f"Tessera ({plan.info.kernel.decode()})"
    q, k, v = layer.leaves()
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    peer = layer.of_autograd(o, q, k, v)
    layer.check_peer("PyTorch", peer())
    a, b = torch.randn(2048, 2048).to(q.dtype), torch.randn(2048, 2048).to(q.dtype)
    forward = f"Tessera's forward ({layer.forward.info.kernel.decode()})"
    contestants = [
        (f"PyTorch GEMM 2048^3 {dtype}", 2.0 * 2048**3, lambda: torch.mm(a, b)),
        ("PyTorch SDPA", flops, peer),
        (forward, layer.forward.info.flops, layer.forward),
        (name, flops, plan),
    ]
    print(
        f"\ngradients, {dtype}, {heads} heads, head_dim {head_dim}, {tokens} tokens; workspace"
        f" {plan.info.workspace_bytes / threads / 2**20:.2f} MiB per thread"
    )
    rates = show(contestants, take_turns(contestants, options.rounds))
    without = "" if dtype == "fp32" or has_amx() else ", without AMX"
    title = f"gradients, {dtype}: Tessera / SDPA{without}"
    bars.report(title, rates[name] / rates["PyTorch SDPA"], BARS[dtype])
    print(f"    Tessera / its own forward, FLOP/s: {rates[name] / rates[forward]:.3f}")
    # dQ's accumulators and two floats of each row and head, and what a thread may take beside them
    bound = tokens * heads * (4 * head_dim + 8) + threads * (8 << 20)
    title = f"gradients, {dtype}: workspace, {threads} threads"
    bars.report(title, plan.info.workspace_bytes, bound, "B", at_most=True)


def few_rows(tessera, options):
    """Short sequences, of which a call takes tens of microseconds: how often SDPA takes as long,
    through autograd, which takes such a time itself, and as its operator alone."""
    rows_of_json = []
    for dtype in options.dtypes.split(","):
        for head_dim in (32, 64, 128):
            found = []
            for rows in (1, 8, 16, 24, 32, 40, 48, 60, 90):
                layer = Layer(tessera, (1, 8, 8, head_dim, rows), pattern(DENSE), dtype, "cpu")
                q, k, v = layer.leaves()
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                work = {
                    "SDPA": layer.of_autograd(o, q, k, v),
                    "operator": operator(layer, q, k, v),
                    "own": layer.backward(),
                }
                t = turns(work, options.rounds, lambda f: on_host(f, 0.01, lambda first: 8), False)
                found.append(statistics.median(t["SDPA"]) / statistics.median(t["own"]))
                print(
                    f"    {dtype}, 8 heads, head_dim {head_dim}, {rows} rows:"
                    f" SDPA {statistics.median(t['SDPA']) * 1e6:.1f} us,"
                    f" Tessera {statistics.median(t['own']) * 1e6:.1f}, ratio {found[-1]:.2f};"
                    f" SDPA's operator {statistics.median(t['operator']) * 1e6:.1f}, ratio"
                    f" {statistics.median(t['operator']) / statistics.median(t['own']):.2f}",
                    flush=True,
                )
                work = f"{dtype}, 8 heads, head_dim {head_dim}, {rows} rows"
                rows_of_json.append({"work": work, "seconds": t})
            print(f"  {dtype}, head_dim {head_dim}: {min(found):.2f} to {max(found):.2f}")
    write_json(options.json, rows_of_json)


def operator(layer, q, k, v):
    """A function that computes PyTorch's gradients without autograd."""
    aten, x = torch.ops.aten, [x.detach() for x in (q, k, v)]
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(*x, 0.0, True)
    d_o = layer.x["d_o"].transpose(1, 2).contiguous()
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return lambda: backward(d_o, *x, o, lse, 0.0, True)


def saving(bars, tessera, dtype, options):
    shape = (1, 16, 16, 128, options.s2_tokens)
    plans = [
        Layer(tessera, shape, wanted, dtype, "cpu").backward()
        for wanted in (pattern(DENSE), pattern(S2, block=64, local=8, stride=16))
    ]
    names = ("Tessera, dense", "Tessera, S2 B=64 L=8 V=16")
    contestants = [(name, plan.info.flops, plan) for name, plan in zip(names, plans)]
    print(f"\ngradients, {dtype}, 16 heads, head_dim 128, {options.s2_tokens} tokens")
    seconds = take_turns(contestants, max(1, options.rounds // 3))
    show(contestants, seconds)
    dense, sparse = (statistics.median(seconds[name]) for name in names)
    ideal = plans[0].info.flops / plans[1].info.flops
    print(f"    saving {dense / sparse:.2f} of ideally {ideal:.2f}")
    bars.report(f"gradients, {dtype}: saving / ideal saving", dense / sparse / ideal, SAVING)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tessera's CPU backend beside PyTorch in one process, against the speed to reach.

    python3 bench/peers_cpu.py --library build/libtessera.so [--cores 2] [--rounds 9]
        [--dtypes fp32,bf16] [--s2-tokens 32768] [--kernel cpu/avx512] [--beside OLD.so]
        [--decode | --backward [--few]] [--json F]

The process is pinned to the first cores that it may use. Contestants take turns, so that all see
the same state of the machine. Before each turn the process rests until the thread pool of the one
before has gone to sleep. Each turn runs once untimed and then, if it is short, a few times timed.
Every result is checked before its time counts. Rates and ratios come from medians; the minimum
stands beside them to tell the machine's noise. FLOPs count the two products of the kept (query,
key) pairs, 4 * head_dim each. Needs PyTorch.

--beside names an older library, whose plans take their turns as well: every time is then also
compared with its, and may be 1 % longer.

--decode times one new token instead (peers_cpu_decode.py), for which NumPy is enough;
--backward gradients (peers_cpu_backward.py), with the five products' 10 * head_dim FLOPs a pair,
and with --few those of few rows.
The exit status is 1 if a bar is missed.
"""
import argparse
import math
import os
import statistics
import sys

from peers_turns import Bars, cpu_facts, on_host, spread, turns, write_json
from tessera_ctypes import DENSE, S2, Tessera, pattern


def cpu_plan(tessera, torch, dtype, tokens, heads, head_dim, wanted):
    """Returns a function that runs the plan on fresh tensors, the tensors, and the plan's info.

    The tensors are [1, tokens, heads, head_dim]."""
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, tokens, heads, head_dim).to(kind) for _ in range(3))
    o = torch.empty_like(q)
    run, info = tessera.plan(torch, dtype, q, k, v, o, wanted)
    return run, (q, k, v, o), info


def check_rows(torch, q, k, v, o, kept, name):
    """Compares some rows of some heads with a plain computation in double.

    `kept(head, row)` gives the keys of a row."""
    tokens, heads, head_dim = q.shape[1:]
    worst = 0.0
    for n, row in enumerate((0, 1, tokens // 3, tokens // 2 + 5, tokens - 1)):
        head = n * 3 % heads
        keys = kept(head, row)
        s = (k[0, keys, head].double() @ q[0, row, head].double()) / math.sqrt(head_dim)
        wanted = torch.softmax(s, 0) @ v[0, keys, head].double()
        worst = max(worst,
                    float((o[0, row, head].double() - wanted).abs().max() / wanted.abs().max()))
    if not worst < (1e-5 if q.dtype == torch.float32 else 2e-2):
        sys.exit(f"{name}: wrong result, largest relative difference {worst:.2e}")


def take_turns(contestants, rounds):
    """Seconds per contestant and timed run. A contestant is (name, flops, function)."""
    work = {name: function for name, _, function in contestants}

    def sample(function):
        return on_host(function, 0.1, lambda first: 3 if first < 0.2 else 1)

    return turns(work, rounds, sample, shuffled=False)


def show(contestants, seconds):
    rates = {}
    print(f"    {'work':44} {'median':>10} {'minimum':>10} {'spread':>8} {'GFLOP/s':>9} "
          f"{'best':>9}")
    for name, flops, _ in contestants:
        t = seconds[name]
        median = statistics.median(t)
        rates[name] = flops / median * 1e-9
        print(f"    {name:44} {median * 1e3:8.2f}ms {min(t) * 1e3:8.2f}ms {spread(t) * 100:7.1f}% "
              f"{rates[name]:9.1f} {flops / min(t) * 1e-9:9.1f}")
    return rates


def beside_older(bars, contestants, seconds):
    """Own times over those of the older library, whose contestants end in ", older"."""
    for name, _, _ in contestants:
        older = seconds.get(f"{name}, older")
        if older:
            bars.within(f"{name}: time over the older one", seconds[name], older, 1.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default="build/libtessera.so")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--decode-tokens", type=int, default=32768, help="keys of --decode")
    parser.add_argument("--s2-tokens", type=int, default=32768, help="0 leaves S2 out")
    parser.add_argument("--kernel", help="force one, such as cpu/avx512")
    parser.add_argument("--beside", metavar="OLD.so", help="an older library to compare with")
    parser.add_argument("--decode", action="store_true", help="one new token instead")
    parser.add_argument("--backward", action="store_true", help="gradients instead")
    parser.add_argument("--few", action="store_true", help="with --backward: of few rows instead")
    parser.add_argument("--json", help="write the bars to this file")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:options.cores]
    os.sched_setaffinity(0, cores)  # before PyTorch starts its threads
    if options.decode:
        import peers_cpu_decode
        sys.exit(peers_cpu_decode.run(options, cores))
    if options.backward:
        import peers_cpu_backward
        sys.exit(peers_cpu_backward.run(options, cores))
    import torch
    torch.set_num_threads(len(cores))
    torch.set_grad_enabled(False)
    print(f"{cpu_facts()[0]}, cores {cores}; PyTorch {torch.__version__}, "
          f"{torch.get_num_threads()} threads")
    tessera, bars = Tessera(options.library, "cpu:0", len(cores), options.kernel), Bars()
    older = None
    if options.beside:
        older = Tessera(options.beside, "cpu:0", len(cores), options.kernel)

    for dtype in options.dtypes.split(","):
        heads, head_dim, tokens = 8, 128, options.tokens
        run, (q, k, v, o), info = cpu_plan(tessera, torch, dtype, tokens, heads, head_dim,
                                           pattern(DENSE))
        run()
        check_rows(torch, q, k, v, o, lambda head, row: torch.arange(row + 1), f"dense {dtype}")
        a, b, c = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        m, n = torch.randn(2048, 2048).to(q.dtype), torch.randn(2048, 2048).to(q.dtype)
        names = (f"PyTorch GEMM 2048^3 {dtype}",
                 f"PyTorch SDPA causal {dtype} {heads}x{head_dim}x{tokens}",
                 f"Tessera dense causal ({info.kernel.decode()})")
        sdpa = torch.nn.functional.scaled_dot_product_attention
        contestants = [(names[0], 2.0 * 2048**3, lambda: torch.mm(m, n)),
                       (names[1], info.flops, lambda: sdpa(a, b, c, is_causal=True)),
                       (names[2], info.flops, run)]
        if older:
            contestants += [(f"{names[2]}, older", info.flops,
                             cpu_plan(older, torch, dtype, tokens, heads, head_dim,
                                      pattern(DENSE))[0])]
        print(f"\n{dtype}, {heads} heads, head_dim {head_dim}, {tokens} tokens; workspace "
              f"{info.workspace_bytes / len(cores) / 2**20:.2f} MiB per thread")
        seconds = take_turns(contestants, options.rounds)
        rates = show(contestants, seconds)
        beside_older(bars, contestants, seconds)
        bars.report(f"{dtype}: Tessera / SDPA", rates[names[2]] / rates[names[1]],
                    1.15 if dtype == "fp32" else 1.5)
        bars.report(f"{dtype}: Tessera / GEMM", rates[names[2]] / rates[names[0]],
                    0.70 if dtype == "fp32" else 0.65)

        if options.s2_tokens == 0:
            continue
        heads, tokens, block, local, stride = 16, options.s2_tokens, 64, 8, 16
        strided = pattern(S2, block=block, local=local, stride=stride)
        run, (q, k, v, o), info = cpu_plan(tessera, torch, dtype, tokens, heads, head_dim, strided)
        run()

        def kept(head, row):
            t = torch.arange(row + 1)
            j = t // block
            return t[(row // block - j < local) |
                     ((j + head * max(1, stride // heads)) % stride == 0)]

        check_rows(torch, q, k, v, o, kept, f"S2 {dtype}")
        dense, _, dense_info = cpu_plan(tessera, torch, dtype, tokens, heads, head_dim,
                                        pattern(DENSE))
        contestants = [("Tessera dense causal", dense_info.flops, dense),
                       (f"Tessera S2 B={block} L={local} V={stride}", info.flops, run)]
        if older:
            contestants += [(f"{contestants[1][0]}, older", info.flops,
                             cpu_plan(older, torch, dtype, tokens, heads, head_dim, strided)[0])]
        print(f"\n{dtype}, {heads} heads, head_dim {head_dim}, {tokens} tokens")
        seconds = take_turns(contestants, max(1, options.rounds // 3))
        show(contestants, seconds)
        beside_older(bars, contestants, seconds)
        medians = [statistics.median(seconds[name]) for name, _, _ in contestants[:2]]
        saving = medians[0] / medians[1]
        ideal = dense_info.flops / info.flops
        print(f"    saving {saving:.2f} of ideally {ideal:.2f}")
        bars.report(f"{dtype}: saving / ideal saving", saving / ideal, 0.9)
    write_json(options.json, bars.rows)
    sys.exit(1 if bars.missed else 0)


if __name__ == "__main__":
    main()

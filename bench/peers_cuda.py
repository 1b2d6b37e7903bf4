#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tessera's CUDA backend beside PyTorch's attention (cuDNN, FlashAttention-2) on one NVIDIA GPU, and prints both against the speed to reach.

    python3 bench/peers_cuda.py --library build/release/libtessera.so [--rounds 5] [--only dense,s2,phi3,blocks,window,short,host] [--kernel cuda/sm90] [--json F]

Contestants take turns in one process. A turn is one untimed call and then as many as fill about 20 ms between two events of the stream; times and ratios are medians over the
rounds, with the spread (largest less smallest, over the median) beside them. Some rows of every result are compared with a computation in float64 before its time counts. FLOPs
count the two products of the kept (query, key) pairs, 4 * head_dim each. Needs PyTorch with CUDA; nothing else of the project uses it.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera_ctypes import DENSE, S2, WINDOW, Tessera, pattern


def timed(function, milliseconds=20.0):
    """Seconds of a call on the device, the mean of a turn."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    function()
    last.record()
    last.synchronize()
    calls = max(1, min(200, int(milliseconds / max(first.elapsed_time(last), 1e-3))))
    first.record()
    for _ in range(calls):
        function()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls * 1e-3


def kept_keys(wanted, heads, head, row):
    t = torch.arange(row + 1, device="cuda")
    if wanted.kind == DENSE:
        return t
    if wanted.kind == WINDOW:
        return t[t >= row - wanted.left]
    block, step = wanted.block, max(1, wanted.stride // heads)
    j = t // block
    return t[(row // block - j < wanted.local) | ((j + head * step + wanted.offset) % wanted.stride == 0)]


class Bench:
    def __init__(self, options):
        self.options = options
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.tessera = Tessera(options.library, "cuda:0", kernel=options.kernel)
        self.rows, self.missed = [], 0

    def tensors(self, batch, heads, kv_heads, head_dim, tokens):
        torch.manual_seed(1)
        return [torch.randn(batch, tokens, h, head_dim, device="cuda").to(torch.bfloat16) for h in (heads, kv_heads, kv_heads)]

    def own(self, q, k, v, wanted):
        o = torch.full_like(q, math.nan)
        run, info = self.tessera.plan(torch, "bf16", q, k, v, o, wanted, self.stream.cuda_stream)
        run()
        tokens, heads = q.shape[1:3]
        worst = 0.0
        for n, row in enumerate((0, 1, 63, 64, tokens // 3, tokens // 2 + 5, tokens - 1)):
            head, item = n * 3 % heads, n % q.shape[0]
            keys, kv_head = kept_keys(wanted, heads, head, row), head // (heads // k.shape[2])
            s = (k[item, keys, kv_head].double() @ q[item, row, head].double()) / math.sqrt(q.shape[3])
            expected = torch.softmax(s, 0) @ v[item, keys, kv_head].double()
            worst = max(worst, float((o[item, row, head].double() - expected).abs().max() / expected.abs().max()))
        if not worst < 2e-2:
            sys.exit(f"wrong result, largest relative difference {worst:.2e}")
        return run, info

    @staticmethod
    def peer(backend, q, k, v):
        a, b, c = (x.transpose(1, 2).contiguous() for x in (q, k, v))

        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=a.shape[1] != b.shape[1])
        return call

    def turns(self, contestants):
        seconds = {name: [] for name, _, _ in contestants}
        for _, _, function in contestants:
            function()
        for _ in range(self.options.rounds):
            for name, _, function in contestants:
                seconds[name].append(timed(function))
        medians = {}
        for name, flops, _ in contestants:
            t = seconds[name]
            medians[name] = statistics.median(t)
            print(f"    {name:34} {medians[name] * 1e3:10.4f} ms   best {min(t) * 1e3:10.4f}   spread {(max(t) - min(t)) / medians[name] * 100:5.1f} %"
                  f"   {flops / medians[name] * 1e-12:7.1f} TFLOP/s", flush=True)
        return medians, seconds

    def report(self, title, value, bar, unit="x"):
        good = value >= bar if unit != "us" else value <= bar
        self.missed += not good
        self.rows.append({"work": title, "value": value, "bar": bar, "unit": unit, "reached": bool(good)})
        print(f"    {title:74} {value:8.3f} {unit}   to reach {bar:.2f}   {'yes' if good else 'NO'}", flush=True)

    def dense(self):
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        ratios = []
        for batch, heads, head_dim, tokens, bar in ((4, 16, 128, 4096, 1.10), (2, 16, 128, 16384, 1.10), (1, 16, 128, 32768, 1.10),
                                                    (1, 16, 128, 131072, 1.10), (2, 32, 64, 16384, 1.15)):
            print(f"dense causal, {batch} x {heads} heads, head_dim {head_dim}, {tokens} tokens")
            q, k, v = self.tensors(batch, heads, heads, head_dim, tokens)
            run, info = self.own(q, k, v, pattern(DENSE))
            m, _ = self.turns([("cuDNN", info.flops, self.peer(SDPBackend.CUDNN_ATTENTION, q, k, v)), (info.kernel.decode(), info.flops, run),
                               ("GEMM 8192^3", 2.0 * 8192**3, lambda: torch.mm(x, y))])
            name = info.kernel.decode()
            self.report(f"over cuDNN, D={head_dim}, {batch}x{heads}x{tokens}", m["cuDNN"] / m[name], bar)
            if head_dim == 128:
                ratios.append(m["cuDNN"] / m[name])
                if tokens >= 16384:
                    self.report(f"share of the GEMM's rate, {tokens} tokens", info.flops / m[name] / (2.0 * 8192**3 / m["GEMM 8192^3"]), 0.85)
        self.report("over cuDNN, geometric mean of D=128", math.exp(statistics.fmean(map(math.log, ratios))), 1.13)

    def s2(self):
        for batch, heads, tokens, stride, bar in ((2, 16, 16384, 16, 13), (1, 16, 131072, 16, 28), (1, 32, 131072, 32, 48), (1, 64, 131072, 64, 77)):
            print(f"S2 B=64 L=8 V={stride}, {batch} x {heads} heads, head_dim 128, {tokens} tokens")
            q, k, v = self.tensors(batch, heads, heads, 128, tokens)
            run, info = self.own(q, k, v, pattern(S2, block=64, local=8, stride=stride))
            name = info.kernel.decode()
            m, _ = self.turns([("FlashAttention-2, dense", 4.0 * 128 * batch * heads * tokens * (tokens + 1) / 2,
                                self.peer(SDPBackend.FLASH_ATTENTION, q, k, v)), (name, info.flops, run)])
            self.report(f"over FlashAttention-2, H=V={stride}, {tokens} tokens", m["FlashAttention-2, dense"] / m[name], bar)

    def same_rate(self, title, shape, wanted, other, bar):
        """Rate on kept pairs, as a share of that of another pattern."""
        print(title)
        q, k, v = self.tensors(*shape)
        (run, info), (run_other, info_other) = self.own(q, k, v, wanted), self.own(q, k, v, other)
        m, _ = self.turns([("the pattern", info.flops, run), ("the other", info_other.flops, run_other)])
        self.report(title, info.flops / m["the pattern"] / (info_other.flops / m["the other"]), bar)

    def phi3(self):
        for tokens, bar in ((8192, 0.90), (131072, 0.95)):
            self.same_rate(f"Phi-3-small layer at {tokens} tokens, rate on kept pairs over own dense", (1, 32, 8, 128, tokens),
                           pattern(S2, block=64, local=16, stride=8, offset=1), pattern(DENSE), bar)

    def blocks(self):
        for block, local in ((32, 16), (16, 32)):
            self.same_rate(f"B={block} L={local} V=16 at 128k, rate over that of B=64 L=8", (1, 16, 16, 128, 131072),
                           pattern(S2, block=block, local=local, stride=16), pattern(S2, block=64, local=8, stride=16), 0.90)

    def window(self):
        print("sliding window 1024, 1 x 16 heads, 32768 tokens")
        q, k, v = self.tensors(1, 16, 16, 128, 32768)
        run, info = self.own(q, k, v, pattern(WINDOW, left=1023, right=0))
        m, _ = self.turns([("window", info.flops, run)])
        self.report("window 1024 at 32k, TFLOP/s on kept pairs", info.flops / m["window"] * 1e-12, 524, "TFLOP/s")

    def short(self):
        for batch, tokens in ((8, 1024), (1, 2048)):
            print(f"short, {batch} x 16 heads, head_dim 128, {tokens} tokens")
            q, k, v = self.tensors(batch, 16, 16, 128, tokens)
            run, info = self.own(q, k, v, pattern(DENSE))
            m, _ = self.turns([("cuDNN", info.flops, self.peer(SDPBackend.CUDNN_ATTENTION, q, k, v)), ("Tessera", info.flops, run)])
            self.report(f"over cuDNN, {batch} x {tokens} tokens", m["cuDNN"] / m["Tessera"], 1.0)

    def host(self):
        print("host side of a call, and a captured graph")
        q, k, v = self.tensors(1, 16, 16, 128, 2048)
        run, _ = self.own(q, k, v, pattern(DENSE))
        torch.cuda.synchronize()
        calls, took = 200, []
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(calls):
                run()
            took.append((time.perf_counter() - start) / calls)
            torch.cuda.synchronize()
        self.report("host time of a call, ctypes included", statistics.median(took) * 1e6, 20, "us")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            run()
        graph.replay()
        torch.cuda.synchronize()
        print("    captured into a graph and replayed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default="build/release/libtessera.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="dense,s2,phi3,blocks,window,short,host")
    parser.add_argument("--kernel", help="force one, such as cuda/portable")
    parser.add_argument("--json", help="write the ratios to this file")
    options = parser.parse_args()
    bench = Bench(options)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    with torch.no_grad():
        for part in options.only.split(","):
            getattr(bench, part)()
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(bench.rows, file, indent=1)
    print(f"{len(bench.rows) - bench.missed} of {len(bench.rows)} reached")


if __name__ == "__main__":
    main()

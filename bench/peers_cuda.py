#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tessera's CUDA backend beside PyTorch's attention on one NVIDIA GPU, and prints the bars.

    python3 bench/peers_cuda.py --library build/release/libtessera.so [--rounds 5]
        [--only PART,...] [--kernel cuda/sm90] [--beside OLD.so] [--json F]
    python3 bench/peers_cuda.py --library build/release/libtessera.so --sweep 200 [--seed 1]
        [--only NUMBER,...] [--seconds 200] [--json F]
    python3 bench/peers_cuda.py --library build/release/libtessera.so --op bwd [--rounds 5]
        [--only PART,...] [--kernel cuda/sm90] [--program build/release/cli/tessera] [--most 10]
        [--json F] [--dry]

Contestants take turns in one process. A turn is one untimed call and then as many as fill about
20 ms between two events of the stream. Work under 0.3 ms is captured into a graph of several calls,
for all contestants alike. Times and ratios are medians over the rounds, with the spread (largest
less smallest, over the median) beside them. Some rows of every result are compared with float64
before its time counts. FLOPs count the two products of the kept pairs, 4 * head_dim each.

--beside names an older library, whose plans take their turns as well: every time is then also
compared with its, and may be 1 % longer. More of them may follow after commas; a copy of the
library itself shows how far equal code differs.

--sweep times random shapes beside the best of PyTorch's kernels on the same dense shape
(peers_sweep.py draws them) and prints the worst ratio last. With --op bwd it times gradients.

--op bwd times gradients (peers_backward.py); --program names the tessera program, for the portable
bodies, and --most the seconds that one run may take. Needs PyTorch with CUDA; --op bwd --dry runs
every part in small on the CPU without.
"""

import argparse
import math
import statistics
import sys
import time

import torch

from peers_torch import captured, largest_error, peer, take_turns
from peers_sweep import sweep
from peers_turns import Bars, ratios, spread, write_json
from tessera_ctypes import DENSE, S2, WINDOW, Plan, Tessera, pattern


class Bench(Bars):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.tessera = Tessera(options.library, "cuda:0", kernel=options.kernel)
        self.older = {
            path: Tessera(path, "cuda:0", kernel=options.kernel)
            for path in (options.beside or "").split(",")
            if path
        }

    def tensors(self, batch, heads, kv_heads, head_dim, tokens):
        torch.manual_seed(1)
        return [
            torch.randn(batch, tokens, h, head_dim, device="cuda").to(torch.bfloat16)
            for h in (heads, kv_heads, kv_heads)
        ]

    def own(self, q, k, v, wanted, kv_split=0):
        """A plan whose result was checked, and its description."""
        run, info = self.checked(self.tessera, q, k, v, wanted, kv_split)
        run.older = {
            path: self.checked(library, q, k, v, wanted, kv_split)[0]
            for path, library in self.older.items()
        }
        return run, info

    def checked(self, library, q, k, v, wanted, kv_split):
        o = torch.full_like(q, math.nan)
        run, info = library.plan(
            torch, "bf16", q, k, v, o, wanted, self.stream.cuda_stream, kv_split
        )
        run()
        error = largest_error(q, k, v, o, wanted)
        if not error < 2e-2:
            sys.exit(f"wrong result, largest relative difference {error:.2e}")
        return run, info

    def turns(self, contestants):
        """Medians and all times; prints a line for each contestant, (name, FLOPs, function)."""
        own = [c for c in contestants if isinstance(c[2], Plan)]
        contestants = contestants + [
            (f"{name}, {path}", flops, older)
            for name, flops, function in own
            for path, older in function.older.items()
        ]
        taken = take_turns(
            [function for _, _, function in contestants],
            self.options.rounds,
            graphs=not self.options.calls,
        )
        seconds = {name: t for (name, _, _), t in zip(contestants, taken)}
        medians = {name: statistics.median(t) for name, t in seconds.items()}
        for name, flops, _ in contestants:
            t, median = seconds[name], medians[name]
            print(
                f"    {name:34} {median * 1e3:10.4f} ms   best {min(t) * 1e3:10.4f}"
                f"   spread {spread(t) * 100:5.1f} %"
                f"   {flops / median * 1e-12:7.1f} TFLOP/s",
                flush=True,
            )
        for name, _, function in own:
            for path in function.older:
                older = seconds[f"{name}, {path}"]
                self.within(f"{name}: time over that of {path}", seconds[name], older, 1.01)
        return medians, seconds

    def not_slower(self, title, seconds, other):
        """The median of the rounds' ratios of time is at most 1 and their spread."""
        all_of_them = ratios(seconds, other)
        median = statistics.median(all_of_them)
        self.report(title, median, 1 + spread(all_of_them), at_most=True)

    def dense(self):
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for batch, heads, head_dim, tokens, bar in (
            (4, 16, 128, 4096, 1.33),
            (2, 16, 128, 16384, 1.28),
            (1, 16, 128, 32768, 1.28),
            (1, 16, 128, 131072, 1.22),
            (2, 32, 64, 16384, 1.15),
        ):
            print(f"dense causal, {batch} x {heads} heads, head_dim {head_dim}, {tokens} tokens")
            q, k, v = self.tensors(batch, heads, heads, head_dim, tokens)
            run, info = self.own(q, k, v, pattern(DENSE))
            m, _ = self.turns(
                [
                    ("cuDNN", info.flops, peer("cuDNN", q, k, v)[0]),
                    (info.kernel.decode(), info.flops, run),
                    ("GEMM 8192^3", 2.0 * 8192**3, lambda: torch.mm(x, y)),
                ]
            )
            name = info.kernel.decode()
            self.report(
                f"over cuDNN, D={head_dim}, {batch}x{heads}x{tokens}", m["cuDNN"] / m[name], bar
            )
            if head_dim == 128 and tokens >= 16384:
                self.report(
                    f"share of the GEMM's rate, {tokens} tokens",
                    info.flops / m[name] / (2.0 * 8192**3 / m["GEMM 8192^3"]),
                    0.85,
                )

    def s2(self):
        for batch, heads, tokens, stride, bar in (
            (2, 16, 16384, 16, 13),
            (1, 16, 131072, 16, 28),
            (1, 32, 131072, 32, 48),
            (1, 64, 131072, 64, 77),
        ):
            print(f"S2 B=64 L=8 V={stride}, {batch} x {heads} heads, head_dim 128, {tokens} tokens")
            q, k, v = self.tensors(batch, heads, heads, 128, tokens)
            run, info = self.own(q, k, v, pattern(S2, block=64, local=8, stride=stride))
            name = info.kernel.decode()
            m, _ = self.turns(
                [
                    (
                        "FlashAttention-2, dense",
                        4.0 * 128 * batch * heads * tokens * (tokens + 1) / 2,
                        peer("FlashAttention-2", q, k, v)[0],
                    ),
                    (name, info.flops, run),
                ]
            )
            self.report(
                f"over FlashAttention-2, H=V={stride}, {tokens} tokens",
                m["FlashAttention-2, dense"] / m[name],
                bar,
            )

    def same_rate(self, title, shape, wanted, other, bar):
        """Rate on kept pairs, as a share of that of another pattern."""
        print(title)
        q, k, v = self.tensors(*shape)
        (run, info), (run_other, info_other) = self.own(q, k, v, wanted), self.own(q, k, v, other)
        m, _ = self.turns(
            [("the pattern", info.flops, run), ("the other", info_other.flops, run_other)]
        )
        self.report(title, info.flops / m["the pattern"] / (info_other.flops / m["the other"]), bar)

    def phi3(self):
        for tokens, bar in ((8192, 0.90), (131072, 0.95)):
            self.same_rate(
                f"Phi-3-small layer at {tokens} tokens, rate on kept pairs over own dense",
                (1, 32, 8, 128, tokens),
                pattern(S2, block=64, local=16, stride=8, offset=1),
                pattern(DENSE),
                bar,
            )

    def blocks(self):
        for block, local in ((32, 16), (16, 32)):
            self.same_rate(
                f"B={block} L={local} V=16 at 128k, rate over that of B=64 L=8",
                (1, 16, 16, 128, 131072),
                pattern(S2, block=block, local=local, stride=16),
                pattern(S2, block=64, local=8, stride=16),
                0.90,
            )

        print("S2 B=48 L=8 V=16, 1 x 16 heads, 32768 tokens")
        self.kept_rate("S2 B=48 at 32k", pattern(S2, block=48, local=8, stride=16), 550)

    def kept_rate(self, title, wanted, bar):
        q, k, v = self.tensors(1, 16, 16, 128, 32768)
        run, info = self.own(q, k, v, wanted)
        m, _ = self.turns([(info.kernel.decode(), info.flops, run)])
        self.report(
            f"{title}, TFLOP/s on kept pairs",
            info.flops / m[info.kernel.decode()] * 1e-12,
            bar,
            "TFLOP/s",
        )

    def window(self):
        for tokens, bar in ((256, 290), (1024, 524)):
            print(f"sliding window {tokens}, 1 x 16 heads, 32768 tokens")
            self.kept_rate(
                f"window {tokens} at 32k", pattern(WINDOW, left=tokens - 1, right=0), bar
            )

    def short(self):
        for batch, heads, head_dim, tokens in (
            (8, 16, 128, 1024),
            (1, 16, 128, 2048),
            (32, 12, 64, 1000),
            (1, 32, 128, 4096),
        ):
            print(f"short, {batch} x {heads} heads, head_dim {head_dim}, {tokens} tokens")
            q, k, v = self.tensors(batch, heads, heads, head_dim, tokens)
            run, info = self.own(q, k, v, pattern(DENSE))
            m, _ = self.turns(
                [("cuDNN", info.flops, peer("cuDNN", q, k, v)[0]), ("Tessera", info.flops, run)]
            )
            self.report(
                f"over cuDNN, D={head_dim}, {batch}x{heads}x{tokens}",
                m["cuDNN"] / m["Tessera"],
                1.0,
            )

    def merges(self, title, run, info):
        """The merges alone, on the partials that the whole run left in the workspace."""
        if info.n_merge_jobs:
            alone = run.jobs(info.n_jobs - info.n_merge_jobs, info.n_merge_jobs)
            (seconds,) = take_turns([alone], self.options.rounds)
            self.report(
                f"{title}: {info.n_merge_jobs} merges alone",
                statistics.median(seconds) * 1e6,
                20,
                "us",
                at_most=True,
            )

    def split(self):
        for heads, tokens in ((16, 1024), (8, 512)):
            q, k, v = self.tensors(1, heads, heads, 128, tokens)
            for name, wanted in (
                ("dense", pattern(DENSE)),
                ("S2", pattern(S2, block=64, local=8, stride=16)),
            ):
                print(f"{name}, 1 x {heads} heads, head_dim 128, {tokens} tokens")
                run, info = self.own(q, k, v, wanted)
                whole, _ = self.own(q, k, v, wanted, kv_split=1)
                _, t = self.turns(
                    [
                        (
                            "cuDNN, dense",
                            4.0 * 128 * heads * tokens * (tokens + 1) / 2,
                            peer("cuDNN", q, k, v)[0],
                        ),
                        ("Tessera", info.flops, run),
                        ("Tessera, kv_split=1", info.flops, whole),
                    ]
                )
                title = f"{name} 1x{heads}x{tokens}"
                self.not_slower(
                    f"{title}: time over cuDNN's, dense", t["Tessera"], t["cuDNN, dense"]
                )
                self.merges(title, run, info)
        for keys in (4096, 32768, 131072):
            _, k, v = self.tensors(1, 8, 8, 128, keys)
            for rows in (16, 64, 128, 256, 512, 1024):
                self.chunk(torch.randn(1, rows, 32, 128, device="cuda").to(torch.bfloat16), k, v)
        self.decode(k, v)

    def chunk(self, q, k, v):
        """Tessera's own number of parts against all others."""
        title = f"{q.shape[1]} rows on {k.shape[1]} keys, 32/8"
        plans = [self.own(q, k, v, pattern(DENSE), kv_split=n) for n in range(9)]
        taken = take_turns([run for run, _ in plans], self.options.rounds)
        medians = [statistics.median(t) for t in taken]
        run, info = plans[0]
        print(
            f"{title}: own choice {info.n_jobs - info.n_merge_jobs} jobs and"
            f" {info.n_merge_jobs} merges, {medians[0] * 1e3:.4f} ms;   kv_split=1.."
            f"{len(medians) - 1}: {' '.join(f'{t * 1e3:.4f}' for t in medians[1:])}",
            flush=True,
        )
        best = min(range(1, len(medians)), key=medians.__getitem__)
        self.report(
            f"{title}: time over the best split ({best})",
            medians[0] / medians[best],
            1.05,
            at_most=True,
        )
        self.not_slower(f"{title}: time over kv_split=1", taken[0], taken[1])
        self.merges(title, run, info)

    def decode(self, k, v):
        tokens = k.shape[1]
        print(f"decode, 1 row on {tokens} keys, 32/8 heads, head_dim 128")
        q = torch.randn(1, 1, 32, 128, device="cuda").to(torch.bfloat16)
        run, info = self.own(q, k, v, pattern(DENSE))
        m, _ = self.turns(
            [("cuDNN", info.flops, peer("cuDNN", q, k, v)[0]), ("Tessera", info.flops, run)]
        )
        for name in m:
            print(f"    {name:34} {(k.nbytes + v.nbytes) / m[name] * 1e-12:10.3f} TB/s")
        self.report(
            f"decode 1x{tokens}, K and V", (k.nbytes + v.nbytes) / m["Tessera"] * 1e-12, 3.6, "TB/s"
        )
        self.merges(f"decode 1x{tokens}", run, info)

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
        self.report(
            "host time of a call, ctypes included",
            statistics.median(took) * 1e6,
            20,
            "us",
            at_most=True,
        )
        captured(run, 1).replay()
        torch.cuda.synchronize()
        print("    captured into a graph and replayed")


PARTS = "dense,s2,phi3,blocks,window,short,split,host"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default="build/release/libtessera.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help=f"parts out of {PARTS}; with --sweep, numbers of shapes")
    parser.add_argument(
        "--calls",
        action="store_true",
        help="never capture: short work then counts the host's time too",
    )
    parser.add_argument("--kernel", help="force one, such as cuda/portable")
    parser.add_argument("--beside", metavar="OLD", help="older libraries to compare times with")
    parser.add_argument(
        "--sweep", type=int, metavar="N", help="time N random shapes instead of the parts"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random shapes")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="start no further shape of the sweep after so long",
    )
    parser.add_argument("--json", help="write the ratios to this file")
    parser.add_argument("--op", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--program", help="with --op bwd: the tessera program")
    parser.add_argument(
        "--most", type=float, default=10.0, help="with --op bwd: seconds of the longest run"
    )
    parser.add_argument("--dry", action="store_true", help="with --op bwd: in small on the CPU")
    options = parser.parse_args()
    if options.op == "bwd":
        import peers_backward

        return peers_backward.run(options)
    bench = Bench(options)
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__},"
        f" cuDNN {torch.backends.cudnn.version()}"
    )
    with torch.no_grad():
        if options.sweep:
            bench.rows = sweep(bench, options)
        else:
            for part in (options.only or PARTS).split(","):
                getattr(bench, part)()
                torch.cuda.empty_cache()
            bench.count()
    write_json(options.json, bench.rows)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Gradients beside PyTorch's on one NVIDIA GPU: peers_cuda.py --op bwd.

Contestants take turns in one process, in an order that each round shuffles. PyTorch's are the
backward passes of scaled_dot_product_attention alone, by cuDNN and by FlashAttention-2, dense.
Before its time counts, sampled rows of every gradient of a plan are compared with float64, and so
are O and LSE that it starts from. FLOPs count the five products of the kept pairs,
10 * head_dim each. The workspace of every plan that is timed is a bar of its own.
"""

import json
import math
import os
import statistics
import subprocess
import tempfile
import time

import torch

from peers_device import Dry, Gpu
from peers_gradients import Layer
from peers_sweep import sweep
from peers_torch import BACKENDS
from peers_turns import Bars, spread, turns, write_json
from tessera_ctypes import BACKWARD, DENSE, PER_KV_HEAD, S2, WINDOW, Refused, Tessera, pattern

TURN_MS = 20.0
MIB = 1 << 20
SEGMENT = 24  # bytes of a tess_segment
S2_16 = pattern(S2, block=64, local=8, stride=16)
PHI3 = pattern(S2, block=64, local=16, stride=8, offset=1)
FREE, DEFAULT = 1, 0  # determinism
TURNS = (("not guaranteed", FREE), ("default", DEFAULT))


class Bench(Bars):
    def __init__(self, options, device):
        super().__init__()
        self.options, self.device = options, device
        self.tessera = Tessera(options.library, device.tessera_name, kernel=options.kernel)
        self.rate = {}

    # ------------------------------------------------------------------ measuring

    def layer(self, shape, wanted, dtype="bf16"):
        """A Layer of (batch, heads, kv_heads, head_dim, tokens), smaller when dry."""
        batch, heads, kv_heads, head_dim, tokens = shape
        if self.device.dry:
            batch, tokens = 1, max(256, tokens // 256)
        return Layer(
            self.tessera,
            (batch, heads, kv_heads, head_dim, tokens),
            wanted,
            dtype,
            self.device.torch_name,
            self.device.handle,
        )

    def probed(self, kernel):
        """FLOP/s of a small dense layer by kernel, to tell what a large one would take."""
        if kernel not in self.rate:
            layer = self.layer((1, 16, 16, 128, 4096), pattern(DENSE))
            plan = layer.backward(FREE, kernel)
            t = min(self.device.timed(plan, 1.0) for _ in range(2))
            self.rate[kernel] = plan.info.flops / t
            name = plan.info.kernel.decode()
            print(f"    {name}: {self.rate[kernel] * 1e-12:.1f} TFLOP/s on 16 heads x 4096 tokens")
        return self.rate[kernel]

    def own(self, layer, determinism=DEFAULT, kernel=None):
        """A plan of a layer's gradients whose result was checked, and whose workspace counts."""
        flops = layer.forward.info.flops * 2.5
        seconds = flops / self.probed(kernel)
        if seconds > self.options.most:
            raise RuntimeError(f"would take about {seconds:.0f} s a run; see --most")
        plan = layer.backward(determinism, kernel)
        self.workspace_of(layer, plan.info, determinism)
        return plan

    def workspace_of(self, layer, info, determinism):
        batch, rows, heads, head_dim = layer.x["q"].shape
        bucket = (head_dim + 63) // 64 * 64
        bound = batch * rows * heads * (4 * bucket + 8) + 8 * MIB * (
            os.cpu_count() if self.device.dry else 1
        )
        print(
            f"    {info.kernel.decode()}: {info.n_jobs} jobs, {info.n_columns} of them columns;"
            f" workspace {info.workspace_bytes / MIB:.1f} MiB, may be {bound / MIB:.1f}",
            flush=True,
        )
        shape = f"{batch} x {heads}/{layer.x['k'].shape[2]} x {rows}, D={head_dim}"
        title = f"workspace, {words_of(layer.wanted)}, {shape}, {info.kernel.decode()}"
        title += f", {'default' if determinism == DEFAULT else 'not guaranteed'}"
        self.report(title, info.workspace_bytes, bound, "B", at_most=True)

    def peer(self, name, layer):
        """A function that computes the dense gradients by one of PyTorch's kernels."""
        q, k, v = layer.leaves()
        if self.device.dry:
            return layer.of_autograd(plain(q, k, v), q, k, v)
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(BACKENDS[name]):
            o = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
            )
        return layer.of_autograd(o, q, k, v)

    def turns(self, contestants):
        """Seconds by name and round, of (name, FLOPs, function)."""
        for _, _, function in contestants:
            function()
        self.device.synchronize()
        work = {name: function for name, _, function in contestants}
        seconds = turns(work, self.options.rounds, lambda f: [self.device.timed(f, TURN_MS)])
        for name, flops, _ in contestants:
            t, median = seconds[name], statistics.median(seconds[name])
            print(
                f"    {name:40} {median * 1e3:10.3f} ms   best {min(t) * 1e3:10.3f}"
                f"   spread {spread(t) * 100:5.1f} %   {flops / median * 1e-12:8.1f} TFLOP/s",
                flush=True,
            )
            self.rows.append({"work": name, "flops": flops, "seconds": t})
        return seconds

    # ------------------------------------------------------------------ parts

    def dense(self):
        for batch, heads, head_dim, tokens, bar in (
            (2, 16, 128, 16384, 1.10),
            (1, 16, 128, 131072, 1.10),
            (2, 32, 64, 16384, 1.08),
        ):
            title = f"dense D={head_dim}, {batch}x{heads}x{tokens}"
            with Row(self, title):
                layer = self.layer((batch, heads, heads, head_dim, tokens), pattern(DENSE))
                plans = {name: self.own(layer, how) for name, how in TURNS}
                flops = plans["not guaranteed"].info.flops
                peers = {name: self.peer(name, layer) for name in ("cuDNN", "FlashAttention-2")}
                for name, function in peers.items():
                    layer.check_peer(name, function())
                t = self.turns([(n, flops, f) for n, f in (peers | plans).items()])
                self.over(f"{title}: over cuDNN", t["cuDNN"], t["not guaranteed"], bar)
                if tokens == 16384:
                    self.determinism(title, t, 1.20)

    def determinism(self, title, t, bar):
        title = f"{title}: default's time over not guaranteed"
        self.within(title, t["default"], t["not guaranteed"], bar)

    def s2(self):
        for batch, heads, tokens, bar in (
            (2, 16, 16384, 12), (1, 16, 131072, 25), (1, 32, 131072, 43), (1, 64, 131072, 68)
        ):
            title = f"S2 B=64 L=8 H=V={heads}, {batch}x{tokens}"
            with Row(self, title):
                wanted = pattern(S2, block=64, local=8, stride=heads)
                layer = self.layer((batch, heads, heads, 128, tokens), wanted)
                plans = {name: self.own(layer, how) for name, how in TURNS}
                info = plans["not guaranteed"].info
                pairs = info.dense_pairs / info.kept_pairs
                rival = "FlashAttention-2, dense"
                work = [(rival, info.flops * pairs, self.peer("FlashAttention-2", layer))]
                t = self.turns(work + [(n, info.flops, f) for n, f in plans.items()])
                print(f"    ideal saving {pairs:.1f}")
                self.over(f"{title}: over {rival}", t[rival], t["not guaranteed"], bar)
                if tokens == 131072:
                    self.determinism(title, t, 1.15)

    def same_rate(self, title, work, other, bar):
        """Rate on kept pairs, as a share of other work's. Each is (shape, pattern)."""
        with Row(self, title):
            plans = [self.own(self.layer(*x), FREE) for x in (work, other)]
            names = "the work", "the other"
            flops = [plan.info.flops for plan in plans]
            t = self.turns(list(zip(names, flops, plans)))
            rates = [[f / x for x in t[name]] for name, f in zip(names, flops)]
            self.over(title, *rates, bar)

    def blocks(self):
        shape = (1, 16, 16, 128, 131072)
        for block, local in ((32, 16), (16, 32)):
            wanted = pattern(S2, block=block, local=local, stride=16)
            title = f"B={block} L={local} V=16 at 128k: rate over that of B=64 L=8"
            self.same_rate(title, (shape, wanted), (shape, S2_16), 0.90)

    def phi3(self):
        for tokens, bar in ((8192, 0.75), (131072, 0.88)):
            shape, alone = (1, 32, 8, 128, tokens), (1, 32, 32, 128, tokens)
            title = f"Phi-3-small at {tokens}: rate on kept pairs over own dense"
            self.same_rate(title, (shape, PHI3), (shape, pattern(DENSE)), bar)
            if tokens == 8192:
                title = f"dense 32/8 at {tokens}: rate over 32/32"
                self.same_rate(title, (shape, pattern(DENSE)), (alone, pattern(DENSE)), 0.95)

    def window(self):
        title = "window 1024 at 32k, 16 heads: TFLOP/s on kept pairs"
        with Row(self, title):
            wanted = pattern(WINDOW, left=1023, right=0)
            plan = self.own(self.layer((1, 16, 16, 128, 32768), wanted), FREE)
            t = self.turns([(title, plan.info.flops, plan)])[title]
            rate = plan.info.flops / statistics.median(t) * 1e-12
            self.report(title, rate, 340, "TFLOP/s", spread_of=[t])

    def few(self):
        """Layers of few kv heads and keys, as ranks have them that share a model's heads; also with
        S2, whose strided keys make few columns. Their bar is a share of the peer's dense rate."""
        strided = {"offset": 1, "flags": PER_KV_HEAD}
        thin = pattern(S2, block=48, local=31, stride=24, **strided)
        alone = pattern(S2, block=64, local=8, stride=16, **strided)
        for batch, heads, kv_heads, head_dim, tokens, wanted, bar in (
            (1, 8, 1, 128, 8192, pattern(DENSE), 1.0),
            (1, 8, 1, 128, 4096, pattern(DENSE), 1.0),
            (1, 16, 2, 128, 4096, pattern(DENSE), 1.0),
            (1, 5, 1, 64, 7936, pattern(DENSE), 1.0),
            (1, 32, 8, 128, 1024, pattern(DENSE), 1.0),
            (4, 8, 1, 128, 1024, pattern(DENSE), 1.0),
            (1, 32, 4, 80, 32768, thin, 0.4),
            (1, 8, 1, 128, 65536, alone, 0.7),
            (1, 8, 1, 128, 16384, alone, 0.4),
        ):
            title = f"few columns, {batch} x {heads}/{kv_heads} D={head_dim}, {tokens} tokens"
            if wanted.kind == S2:
                title += f", {words_of(wanted)}"
            with Row(self, title):
                layer = self.layer((batch, heads, kv_heads, head_dim, tokens), wanted)
                plans = {name: self.own(layer, how) for name, how in TURNS}
                info, peers = plans["not guaranteed"].info, {}
                kept = info.kept_pairs / info.dense_pairs
                for name in ("cuDNN", "FlashAttention-2"):
                    peers[name] = self.peer(name, layer)
                    if kept == 1:
                        layer.check_peer(name, peers[name]())
                work = [(n, info.flops / kept, f) for n, f in peers.items()]
                t = self.turns(work + [(n, info.flops, f) for n, f in plans.items()])
                rival = min(peers, key=lambda name: statistics.median(t[name]))
                dense = [x * kept for x in t[rival]]
                self.over(f"{title}: over {rival}", dense, t["not guaranteed"], bar)
                self.over(f"{title}, default: over {rival}", dense, t["default"], bar)

    def sm80(self):
        """The kernel of older GPUs, on this one."""
        kernel = None if self.device.dry else "cuda/sm80"
        title = "cuda/sm80, dense D=128, 2x16x16384: over FlashAttention-2"
        with Row(self, title):
            layer = self.layer((2, 16, 16, 128, 16384), pattern(DENSE))
            plans = {name: self.own(layer, how, kernel) for name, how in TURNS}
            flops, rival = plans["not guaranteed"].info.flops, self.peer("FlashAttention-2", layer)
            work = [("FlashAttention-2", flops, rival)]
            t = self.turns(work + [(n, flops, f) for n, f in plans.items()])
            self.over(title, t["FlashAttention-2"], t["not guaranteed"], 0.85)

    def planning(self):
        """tess_plan_create on the host, and what its tables take."""
        wanted = pattern(S2, block=64, local=8, stride=64)
        fields = {"head_dim": 128, "dtype": 2, "op": BACKWARD, "batch": 1}
        tokens = 131072

        lengths = {"q_len": tokens, "kv_len": tokens}

        def plan_of(order):
            return self.tessera.create(
                wanted, 64, 64, tokens, kernel=None, determinism=order, **lengths, **fields
            )

        with Row(self, "planning 131,072 tokens x 64 heads"):
            seconds = []
            for _ in range(9):
                plan = plan_of(DEFAULT)
                seconds.append(plan.info.create_seconds)
            info = plan.info
            size = info.device_bytes or info.host_bytes
            print(
                f"    {info.kernel.decode()}: {info.n_jobs} jobs, {info.n_columns} of them columns;"
                f" {size / MIB:.2f} MiB, {size / info.n_jobs:.1f} bytes a job"
            )
            title = "planning 131,072 tokens x 64 heads, S2 V=64"
            most = statistics.median(seconds) * 1e3
            self.report(title, most, 3.0, "ms", at_most=True, spread_of=[seconds])
            # Without turns each of these columns has one segment. With turns it has as many as
            # columns before it came last to its rows, each of which takes SEGMENT bytes more.
            single = plan_of(FREE).info
            alone = single.device_bytes or single.host_bytes
            print(
                f"    without turns {alone / single.n_jobs:.1f} bytes a job; with them"
                f" {(size - alone) / SEGMENT / info.n_columns:.2f} further segments a column,"
                f" {SEGMENT} bytes each"
            )
            title += ": bytes a job of one segment"
            self.report(title, alone / single.n_jobs, 64, "B", at_most=True)

    def portable(self):
        """The portable bodies in float32: the rate of backward over that of forward."""
        if not self.options.program:
            self.refused("portable bodies: 0.45 of forward", "--program names what times them")
            return
        for backend in ("cpu",) if self.device.dry else ("cuda", "opencl", "vulkan"):
            title = f"{backend}/portable, f32: TFLOP/s over those of its own forward"
            with Row(self, title):
                tokens = 512 if self.device.dry else 4096
                words = f"pattern=dense dtype=f32 heads=16 head_dim=128 q_len={tokens}"
                forward, backward = (
                    self.programmed(f"op={op} {words}", backend) for op in ("fwd", "bwd")
                )
                for x in forward, backward:
                    rate = x["flop_rate"] * 1e-12
                    print(
                        f"    {x['kernel']} op={x['op']} {x['median_seconds'] * 1e3:10.3f} ms"
                        f" {rate:8.2f} TFLOP/s"
                    )
                times = [x["samples_seconds"] for x in (forward, backward)]
                share = backward["flop_rate"] / forward["flop_rate"]
                self.report(title, share, 0.45, spread_of=times)

    def programmed(self, words, backend):
        """The result of `tessera bench`, which checks it, on the first device of a backend."""
        environment = dict(os.environ, TESSERA_KERNEL=f"{backend}/portable")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            command = [self.options.program, "bench", *words.split(), "--backends", f"{backend}:0"]
            command += ["--json", path, "--no-ceilings", "--no-planning", "--budget", "20"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode != 0:
                raise RuntimeError((done.stderr or done.stdout)[-300:])
            with open(path) as file:
                result = json.load(file)["results"][0]
        if result["status"] != "ok":
            raise RuntimeError(f"{result['problem']}: {result['note']}")
        return result


def words_of(wanted):
    """A pattern as titles name it."""
    if wanted.kind == S2:
        return f"S2 B={wanted.block} L={wanted.local} V={wanted.stride}"
    return "dense" if wanted.kind == DENSE else f"window {wanted.left + 1}"


class Row:
    """What one row of a part may fail with is told, and the next row runs."""

    def __init__(self, bench, title):
        self.bench, self.title = bench, title

    def __enter__(self):
        print(self.title, flush=True)

    def __exit__(self, kind, error, trace):
        self.bench.device.release()
        if kind and issubclass(kind, (RuntimeError, Refused)):
            self.bench.refused(self.title, error)
            return True


def plain(q, k, v):
    """Dense causal attention by single steps, for dry runs: [batch, heads, tokens, head_dim]."""
    group, tokens = q.shape[1] // k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q.float() @ k.float().transpose(2, 3) / math.sqrt(q.shape[3])
    late = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    return (torch.softmax(s.masked_fill(late, -math.inf), -1) @ v.float()).to(q.dtype)


PARTS = "dense,s2,blocks,phi3,window,few,sm80,planning,portable"


def run(options):
    device = Dry() if options.dry else Gpu()
    bench = Bench(options, device)
    print(f"{device}, PyTorch {torch.__version__}, {options.kernel or 'the kernel chosen'}")
    if options.sweep:
        rows = sweep(bench, options, gradients=True)
        write_json(options.json, rows)
        return
    for part in (options.only or PARTS).split(","):
        start = time.perf_counter()
        with Row(bench, part):
            getattr(bench, part)()
        print(f"    {part} took {time.perf_counter() - start:.1f} s", flush=True)
        write_json(options.json, bench.rows)
    bench.count()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tessera's decoding beside PyTorch's attention and the memory's own speed on one NVIDIA GPU.

    python3 bench/peers_decode.py --library build/release/libtessera.so [--rounds 5]
        [--only PART,...] [--kernel cuda/decode] [--beside NAME=OTHER.so ...] [--json F]
        [--program build/release/cli/tessera] [--dry]

A time is that of a layer: a captured graph runs layers with K and V of their own, 512 MiB or more
in all, since less stays in the L2 cache. Contestants take turns in one process, in an order that
each round shuffles: Tessera, PyTorch's attention by cuDNN and by FlashAttention-2 (dense, with
enable_gqa), a sum over 8 GiB of float32, and a copy on the device. Some rows of every result are
compared with float64 before its time counts.

R is the best of the sum, the copy (both ways counted) and PyTorch's dense decode of 16 x 32k keys.
The first is measured again in each part's turns. Every bar is printed as reached or not, with the
spread of its rounds; a bar whose work the library refuses is missed, with the reason beside it.
Parts of serving are in peers_serving.py, those of memory, replays and the CPU's row (on two cores,
by peers_cpu.py) in peers_memory.py, and those that the tessera program times in peers_portable.py:
the host, and the portable kernels of CUDA, OpenCL and Vulkan.

--beside times further libraries in the same turns, such as builds with other constants. --program
names the tessera program. --dry runs every part in small on the CPU, where PyTorch without CUDA
will do.
"""

import argparse
import math
import random
import statistics
import sys
import time

import torch

from peers_cache import Cache
from peers_device import Dry, Gpu
from peers_memory import MAX_CHUNK, PHI3, S2_WIDE, Memory
from peers_portable import Portable
from peers_serving import Serving
from peers_torch import largest_error, peer
from peers_turns import Bars, all_of, ratio, spread, turns, write_json
from tessera_ctypes import BATCH_INVARIANT, DENSE, Refused, Tessera, pattern

L2_SAFE = 512 << 20  # bytes of K and V that one graph reads at least
TURN_MS = 15.0
PEERS = ("cuDNN", "FlashAttention-2")
TIGHT = 1.05


class Bench(Bars, Serving, Memory, Portable):
    def __init__(self, options, device):
        super().__init__()
        self.options, self.device = options, device
        named = [("Tessera", options.library)]
        named += [tuple(x.split("=", 1)) for x in options.beside or []]
        self.libraries = [
            (name, Tessera(path, device.tessera_name, kernel=options.kernel))
            for name, path in named
        ]
        self.best_dense = 0.0
        count = (1 << 20 if device.dry else options.sum_bytes) // 4
        self.many = torch.full((count,), 0.5, device=device.torch_name)
        self.many.uniform_(-1, 1)
        self.copied = torch.empty_like(self.many[: len(self.many) // 2])

    # ------------------------------------------------------------------ measuring

    def memory(self):
        """(name, bytes, function of a turn's call) of the two uses of memory alone."""
        source, target = self.many[: len(self.copied)], self.copied
        return [
            ("sum", self.many.nbytes, lambda: torch.sum(self.many)),
            ("copy", 2 * source.nbytes, lambda: target.copy_(source)),
        ]

    def turns(self, contestants):
        """Seconds of a layer by name and round, of (name, layers, function)."""
        graphs = {}
        for name, layers, function in contestants:
            function()
            self.device.synchronize()
            graphs[name] = layers, self.device.captured(function, 1)

        def sample(one):
            layers, graph = one
            return [self.device.timed(graph.replay, TURN_MS, layers)]

        return turns(graphs, self.options.rounds, sample)

    def speed(self, title, own, bytes_read, peers=()):
        """Prints the time of each contestant. Returns the seconds of a layer by round, and R.

        `own`: (name, layers, function); `peers`: likewise.
        """
        memory = self.memory()
        seconds = self.turns(own + list(peers) + [(name, 1, f) for name, _, f in memory])
        moved = {name: size for name, size, _ in memory}
        rates = []
        print(title)
        for name, t in seconds.items():
            median = statistics.median(t)
            size = moved.get(name, bytes_read)
            if name in moved:
                rates.append(size / median)
            print(
                f"    {name:34} {median * 1e6:11.2f} us   spread {spread(t) * 100:5.1f} %"
                f"   {size / median * 1e-12:7.3f} TB/s",
                flush=True,
            )
        self.rows.append(
            {
                "work": title,
                "bytes": bytes_read,
                "seconds": seconds,
            }
        )
        return seconds, max(rates + [self.best_dense])

    # ------------------------------------------------------------------ problems

    def tensors(self, batch, q_len, heads, kv_heads, head_dim, tokens):
        """Q, and K and V of each layer. Layers differ; the peers' tensors are copies of them."""
        size = 2 * batch * tokens * kv_heads * head_dim * 2
        layers = 2 if self.device.dry else max(1, min(64, math.ceil(L2_SAFE / size)))
        torch.manual_seed(1)
        keys = [self.normal(batch, tokens, kv_heads, head_dim) for _ in range(2 * layers)]
        return self.normal(batch, q_len, heads, head_dim), list(zip(keys[::2], keys[1::2]))

    def normal(self, *shape):
        x = torch.empty(*shape, device=self.device.torch_name, dtype=torch.bfloat16)
        return x.normal_()

    def own(self, q, layers, wanted, check=None, fields=None, **more):
        """(name, layers, function) of each library, after a check, and the first one's plan."""
        contestants, first = [], None
        for name, library in self.libraries:
            outputs = [torch.full_like(q, math.nan) for _ in layers]
            k, v = layers[0]
            plan, info = library.plan(
                torch, "bf16", q, k, v, outputs[0], wanted, self.device.handle, **more
            )
            runs = [
                plan.on(q, k, v, o, **(fields or {})) for (k, v), o in zip(layers, outputs)
            ]
            for n in {0, len(layers) - 1}:
                runs[n]()
                error = (check or largest_error)(q, *layers[n], outputs[n], wanted)
                if not error < 2e-2:
                    sys.exit(f"{name}: wrong result, largest relative difference {error:.2e}")
            first = first or (plan, info)
            contestants.append((name, len(layers), all_of(runs)))
        return contestants, *first

    def peers(self, q, layers):
        """(name, layers, function) of PyTorch's kernels that take the dense shape."""
        for name in PEERS:
            try:
                calls = [peer(name, q, k, v)[0] for k, v in layers]
                o = calls[0]().transpose(1, 2)
            except torch.OutOfMemoryError:
                print(f"    {name}: no memory", flush=True)
                continue
            except RuntimeError as error:
                print(f"    {name}: {str(error).splitlines()[0]}", flush=True)
                continue
            if not largest_error(q, *layers[0], o, pattern(DENSE), samples=3) < 2e-2:
                print(f"    {name}: wrong result; left out", flush=True)
                continue
            yield name, len(layers), all_of(calls)

    def dense_row(self, title, shape, **more):
        """Times the dense shape (batch, q_len, heads, kv_heads, head_dim, tokens)."""
        q, layers = self.tensors(*shape)
        own, plan, info = self.own(q, layers, pattern(DENSE), **more)
        size = layers[0][0].nbytes + layers[0][1].nbytes
        jobs = f"{info.n_jobs - info.n_merge_jobs} jobs, {info.n_merge_jobs} merges"
        seconds, best = self.speed(
            f"{title} [{info.kernel.decode()}, {jobs}, {len(layers)} layers]",
            own,
            size,
            self.peers(q, layers),
        )
        return seconds, best, size

    # ------------------------------------------------------------------ parts

    def dense(self):
        for batch, tokens, share in (
            (16, 32768, 0.96),  # first, since R needs it
            (1, 131072, 0.90),
            (64, 8192, 0.96),
            (256, 2048, 0.96),
        ):
            first = (batch, tokens) == (16, 32768)
            batch, tokens = self.device.size(batch, tokens)
            title = f"dense decode {batch} x {tokens}"
            t, best, size = self.dense_row(title, (batch, 1, 32, 8, 128, tokens))
            rivals = [statistics.median(t[name]) for name in PEERS if name in t]
            if first and rivals:
                self.best_dense = size / min(rivals)
                best = max(best, self.best_dense)
            own = t["Tessera"]
            if rivals:
                self.report(
                    f"{title}: over the better of PyTorch's",
                    min(rivals) / statistics.median(own),
                    1.0,
                    spread_of=[own],
                )
            self.share_of_r(title, own, size, best, share)

    def share_of_r(self, title, seconds, size, best, bar):
        self.report(
            f"{title}: share of R ({best * 1e-12:.3f} TB/s)",
            size / statistics.median(seconds) / best,
            bar,
            "R",
            spread_of=[seconds],
        )

    def latency(self):
        for tokens in (4096, 32768, 131072):
            _, tokens = self.device.size(1, tokens)
            title = f"latency, batch 1, {tokens} keys"
            t, best, size = self.dense_row(title, (1, 1, 32, 8, 128, tokens))
            self.report(
                f"{title}: us of a layer",
                statistics.median(t["Tessera"]) * 1e6,
                (size / (0.97 * best) + 6e-6) * 1e6,
                "us",
                at_most=True,
                spread_of=[t["Tessera"]],
            )

    def mixed(self):
        """64 sequences of 1k to 128k keys, 1M keys in all, packed."""
        draw = random.Random(12)
        lengths = [round(2 ** draw.uniform(10, 17)) for _ in range(64)]
        scale = ((1 << 20) - 131072 - 1024) / sum(lengths[2:])
        lengths = [131072, 1024] + [max(1024, round(n * scale)) for n in lengths[2:]]
        lengths = [self.device.size(1, n)[1] for n in lengths]
        total = sum(lengths)
        q, layers = self.tensors(1, 64, 32, 8, 128, total)
        starts = [sum(lengths[:n]) for n in range(65)]

        def check(q, k, v, o, wanted):
            worst = 0.0
            for n in (0, 1, 17, 40, 63):
                one = slice(n, n + 1)
                keys = slice(starts[n], starts[n + 1])
                error = largest_error(q[:, one], k[:, keys], v[:, keys], o[:, one], wanted, 3)
                worst = max(worst, error)
            return worst

        own, _, info = self.own(
            q,
            layers,
            pattern(DENSE),
            check,
            batch=64,
            q_len=0,
            kv_len=max(lengths),
            cu_q_lens=list(range(65)),
            cu_kv_lens=starts,
        )
        size = layers[0][0].nbytes * 2
        title = f"64 sequences of {min(lengths)} to {max(lengths)} keys, {total} in all"
        # PyTorch's has as many keys in sequences of one length, which is the least work for it.
        even = total // 64
        dense = [tuple(x[:, : 64 * even].reshape(64, even, 8, 128) for x in y) for y in layers]
        rivals = self.peers(q.reshape(64, 1, 32, 128), dense)
        rivals = [(f"{name}, 64 x {even}", n, function) for name, n, function in rivals]
        seconds, best = self.speed(f"{title} [{info.kernel.decode()}]", own, size, rivals)
        self.share_of_r(title, seconds["Tessera"], size, best, 0.92)

    def drafts(self):
        """Rows of one sequence, in turns with a single row on the same keys."""
        batch, tokens = self.device.size(16, 32768)
        _, layers = self.tensors(batch, 8, 32, 8, 128, tokens)
        size, own = layers[0][0].nbytes * 2, []
        counts = (1, 2, 4, 8, 16)
        for rows in counts:
            q = self.normal(batch, rows, 32, 128)
            contestants, _, info = self.own(q, layers, pattern(DENSE))
            contestants += self.peers(q, layers)
            own += [(f"{name}, {rows} rows", n, f) for name, n, f in contestants]
            print(f"    {rows} rows: {info.kernel.decode()}, {info.n_jobs} jobs")
        t, _ = self.speed("q_len at 16 x 32768", own, size)
        for rows in counts[1:]:
            self.within(
                f"q_len {rows} at 16 x 32768: time over q_len 1",
                t[f"Tessera, {rows} rows"], t["Tessera, 1 rows"],
                TIGHT if rows in (4, 8) else 4 * TIGHT,
            )

    def shapes(self):
        for heads, kv_heads, head_dim in ((8, 8, 128), (64, 8, 128), (128, 8, 128)) + (
            (32, 8, 64),
            (32, 8, 256),
        ):
            batch, tokens = self.device.size(16, 32768)
            title = f"group {heads // kv_heads}, D={head_dim}, {batch} x {tokens}"
            t, best, size = self.dense_row(
                title, (batch, 1, heads, kv_heads, head_dim, tokens)
            )
            self.share_of_r(title, t["Tessera"], size, best, 0.93)

    def paged(self):
        batch, tokens = self.device.size(16, 32768)
        q, layers = self.tensors(batch, 1, 32, 8, 128, tokens)
        contiguous, _, _ = self.own(q, layers, pattern(DENSE))
        for page in (16, 64, 256):
            title = f"pages of {page}, random ids, {batch} x {tokens}"
            shape = (batch, 32, 8, 128, tokens)
            cache = Cache(self, pattern(DENSE), shape, page, layers=layers)
            try:
                own = self.cached("paged", q, cache, pattern(DENSE))
            except Refused as error:
                self.refused(title, error)
                continue
            # Beside PyTorch's on the same bytes, contiguous: it has no kernel for pages.
            size = layers[0][0].nbytes * 2
            t, best = self.speed(title, own + contiguous, size, self.peers(q, layers))
            self.within(
                f"{title}: time over contiguous",
                t["Tessera, paged"], t["Tessera"],
                1.08 if page == 16 else TIGHT,
            )
            self.share_of_r(title, t["Tessera, paged"], size, best, 0.93)

    def cached(self, name, q, cache, wanted, **more):
        """(name, layers, function) of each library on a cache."""
        own, _, _ = self.own(q, cache.layers, wanted, cache.error, cache.run, **cache.plan, **more)
        return [(f"{library}, {name}", n, function) for library, n, function in own]

    def sparse(self, title, shape, wanted, share, over_dense=None):
        q, layers = self.tensors(*shape)
        own, _, info = self.own(q, layers, wanted)
        names = ["Tessera"]
        try:
            cache = Cache(self, wanted, (shape[0], *shape[2:]), 64, MAX_CHUNK)
            own = own + self.cached("compact", q, cache, wanted)
            names = names + ["Tessera, compact"]
        except Refused as error:
            self.refused(f"{title}, compact and paged", error)
        t, best = self.speed(
            f"{title} [{info.kernel.decode()}]",
            own,
            info.bytes_min,
            self.peers(q, layers),
        )
        rivals = [statistics.median(t[name]) for name in PEERS if name in t]
        for name in names:
            if over_dense and rivals:
                self.report(
                    f"{title}, {name}: over PyTorch's dense",
                    min(rivals) / statistics.median(t[name]),
                    over_dense,
                    spread_of=[t[name]],
                )
            self.share_of_r(f"{title}, {name}, kept bytes", t[name], info.bytes_min, best, share)

    def s2(self):
        for batch, tokens, bar in ((16, 131072, 14.0), (64, 32768, 12.0)):
            batch, tokens = self.device.size(batch, tokens)
            title = f"S2 decode, V=16 L=8, 64/16 heads, {batch} x {tokens}"
            self.sparse(title, (batch, 1, 64, 16, 128, tokens), S2_WIDE, 0.93, bar)
            self.device.release()

    def phi3(self):
        batch, tokens = self.device.size(16, 131072)
        title = f"Phi-3-small layer, {batch} x {tokens}"
        self.sparse(title, (batch, 1, 32, 8, 128, tokens), PHI3, 0.95)

    def invariant(self):
        for batch, tokens in (1, 131072), (16, 32768), (64, 8192), (1, 4096):
            most = 1.50 if tokens == 4096 else 1.10
            batch, tokens = self.device.size(batch, tokens)
            title = f"batch-invariant, {batch} x {tokens}"
            q, layers = self.tensors(batch, 1, 32, 8, 128, tokens)
            free, _, _ = self.own(q, layers, pattern(DENSE))
            fixed, _, info = self.own(q, layers, pattern(DENSE), flags=BATCH_INVARIANT)
            fixed = [(f"{name}, invariant", n, f) for name, n, f in fixed]
            t, _ = self.speed(
                f"{title} [{info.kernel.decode()}, {info.n_jobs} jobs]",
                free + fixed,
                layers[0][0].nbytes * 2,
                self.peers(q, layers),
            )
            self.within(
                f"{title}: time over the free split",
                t["Tessera, invariant"], t["Tessera"],
                most,
            )

    def codes(self):
        """K and V of 8 bits, with a scale for each row of a kv head, in turns with bf16."""
        batch, tokens = self.device.size(16, 32768)
        q, layers = self.tensors(batch, 1, 32, 8, 128, tokens)
        contestants, _, _ = self.own(q, layers, pattern(DENSE))
        size, library = layers[0][0].nbytes * 2, self.libraries[0][1]
        bars = {"e4m3": 1.8, "int8": 1.7}
        for name in bars:
            coded = [tuple(coded_like(name, x) for x in layer) for layer in layers]
            runs = []
            for layer in coded:
                (k, k_scales), (v, v_scales) = layer
                o = torch.full_like(q, math.nan)
                plan, _ = library.plan(
                    torch, "bf16", q, k, v, o, pattern(DENSE), self.device.handle,
                    kv_dtype=CODES[name],
                )
                rows = (tokens * 8, 8, 1)
                scales = [library.tensor(x, *rows) for x in (k_scales, v_scales)]
                runs.append(plan.on(q, k, v, o, k_scale=scales[0], v_scale=scales[1]))
                runs[-1]()
                error = largest_error(q, *(decoded(name, *x) for x in layer), o, pattern(DENSE))
                if not error < 2e-2:
                    sys.exit(f"{name}: wrong result, largest relative difference {error:.2e}")
            contestants.append((name, len(layers), all_of(runs)))
        rivals = self.peers(q, layers)  # in bfloat16: PyTorch has none of 8 bits
        t, _ = self.speed(f"K and V of 8 bits, {batch} x {tokens}", contestants, size, rivals)
        for name, bar in bars.items():
            title = f"{name}, {batch} x {tokens}: speed over bf16, scales counted"
            self.report(title, ratio(t["Tessera"], t[name]), bar, spread_of=[t[name]])


CODES = {"e4m3": 3, "int8": 4}  # tess_dtype


def coded_like(name, x):
    """Random codes of the shape of x, none of which is a NaN, and their scales."""
    codes = torch.randint(0, 256, x.shape, device=x.device, dtype=torch.uint8)
    if name == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0x38
    scales = torch.empty(x.shape[:3], device=x.device, dtype=torch.float32)
    return codes, scales.uniform_(0.5, 1.5) / (112 if name == "e4m3" else 64)


def decoded(name, codes, scales):
    """What codes stand for."""
    values = torch.arange(256, dtype=torch.float32)
    if name == "e4m3":
        low = values % 128
        exponent, fraction = (low // 8).clamp(min=1), low % 8 / 8
        size = (fraction + (low >= 8)) * 2 ** (exponent - 7)
        values = torch.where(values < 128, size, -size)
    else:
        values = torch.where(values < 128, values, values - 256)
    return values.to(codes.device)[codes.long()] * scales[..., None]


PARTS = (
    "dense,latency,mixed,drafts,shapes,paged,bytes,s2,phi3,chunks,invariant,prefill,together,"
    "shared,capacity,nodes,replay,prepare,append,trusted,workspace,host,portable,codes,cpu"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help=f"parts out of {PARTS}; R is best with `dense` among them")
    parser.add_argument("--kernel", help="name one, such as cuda/decode")
    parser.add_argument("--library", default="build/release/libtessera.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-kernel", help="the same for chunks alone")
    parser.add_argument(
        "--beside", action="append", metavar="NAME=LIBRARY", help="another library in the turns"
    )
    parser.add_argument("--sum-bytes", type=int, default=8 << 30, help="that the sum reads")
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument(
        "--program",
        default="build/release/cli/tessera",
        help="the tessera program, for the parts host and portable",
    )
    parser.add_argument("--dry", action="store_true", help="every part in small, on the CPU")
    options = parser.parse_args()
    if unknown := set((options.only or PARTS).split(",")) - set(PARTS.split(",")):
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}")
    device = Dry() if options.dry else Gpu()
    bench = Bench(options, device)
    print(f"{device}, PyTorch {torch.__version__}, {options.kernel or 'the kernel chosen'}")
    with torch.no_grad():
        for part in (options.only or PARTS).split(","):
            start = time.perf_counter()
            try:
                getattr(bench, part)()
            except (SystemExit, RuntimeError) as error:
                bench.refused(part, f"the part ended early: {error}")
            print(f"    {part} took {time.perf_counter() - start:.1f} s", flush=True)
            device.release()
            write_json(options.json, bench.rows)
    bench.count()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Random shapes for peers_cuda.py --sweep, beside the best of PyTorch's kernels on the dense shape.

A shape depends on the seed and its number alone. A ratio is the peer's time over Tessera's, both in
causal order with the last query at the last key. For S2 and windows the peer computes the dense
shape, so only ratios of dense shapes, and of patterns that keep nearly all, compare equal work.

Gradients (--op bwd) have as many rows as keys, and the peer's time counts by the share of pairs
that the pattern keeps: a ratio of 1 is the peer's rate, whatever is left out.
"""

import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from peers_turns import turns
from tessera_ctypes import DENSE, PER_KV_HEAD, S2, WINDOW, pattern

# Head dimensions that models have are drawn for 3 shapes of 5, any multiple of 8 for the others.
COMMON_HEAD_DIMS = (64, 64, 80, 96, 128, 128, 128, 192, 256)
# Seconds of the dense shape on a peer. Heads are dropped while it takes longer than LONG, and with
# one head left, tokens while it takes longer than LONGEST.
LONG, LONGEST = 0.06, 0.45
MEMORY = 3 << 30  # bytes of Q, K, V and O


@dataclass
class Shape:
    batch: int
    kv_heads: int
    group: int
    head_dim: int
    q_len: int
    kv_len: int
    kind: int
    block: int = 0
    local: int = 0
    stride: int = 0
    offset: int = 0
    per_kv_head: bool = False
    left: int = 0

    def seconds(self):
        """About what the dense shape takes on an H200, at 350 TFLOP/s.

        Heads narrower than 64 are no faster: exponentials limit their rate.
        """
        pairs = self.q_len * (self.kv_len - (self.q_len - 1) / 2)
        pairs *= self.batch * self.kv_heads * self.group
        return pairs * 4 * max(self.head_dim, 64) / 350e12

    def bytes(self):
        rows = 2 * self.kv_heads * (self.q_len * self.group + self.kv_len)
        return 2 * self.batch * rows * self.head_dim

    def pattern(self):
        if self.kind == DENSE:
            return pattern(DENSE)
        if self.kind == WINDOW:
            return pattern(WINDOW, left=self.left, right=0)
        return pattern(
            S2,
            flags=PER_KV_HEAD if self.per_kv_head else 0,
            block=self.block,
            local=self.local,
            stride=self.stride,
            offset=self.offset,
        )

    def __str__(self):
        heads = self.kv_heads * self.group
        text = f"{self.batch} x {heads}/{self.kv_heads} D={self.head_dim}"
        text += f" {self.q_len} on {self.kv_len}"
        if self.kind == WINDOW:
            return f"{text} window {self.left + 1}"
        if self.kind == S2:
            text += f" S2 B={self.block} L={self.local} V={self.stride} off={self.offset}"
            return text + (" per kv head" if self.per_kv_head else "")
        return f"{text} dense"


def draw(seed, number):
    """Shape `number` of the seed, cut down until its dense time and its memory fit."""
    source = random.Random(f"{seed}/{number}")

    def between(low, high):
        """Integers by their logarithm: as many from 1 to 2 as from 512 to 1,024."""
        return max(low, min(high, int(low * (high / low) ** source.random() + 0.5)))

    tokens = between(1024, 1 << 20)
    if source.random() < 0.5:
        tokens = tokens // 128 * 128
    group = source.choice((1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8))
    whole = source.random() < 0.4
    rows = tokens if whole else 1 if source.random() < 0.15 else min(tokens, between(1, 4096))
    common = source.random() < 0.6
    head_dim = source.choice(COMMON_HEAD_DIMS) if common else 8 * source.randint(1, 32)
    shape = Shape(
        source.choice((1, 1, 1, 1, 2, 3, 4, 8, 16)),
        between(1, 64 // group),
        group,
        head_dim,
        rows,
        tokens,
        source.choices((DENSE, S2, WINDOW), (5, 3, 2))[0],
    )
    if shape.kind == S2:
        shape.block, shape.local = source.choice((16, 32, 48, 64, 64, 64, 100, 128)), between(1, 32)
        shape.stride, shape.offset = between(2, 64), source.randint(0, 3)
        shape.per_kv_head = source.random() < 0.5
    if shape.kind == WINDOW:
        shape.left = between(16, 16384) - 1

    def too_much():
        return shape.seconds() > LONG or shape.bytes() > MEMORY

    for field in ("batch", "kv_heads", "group"):
        while too_much() and getattr(shape, field) > 1:
            setattr(shape, field, getattr(shape, field) // 2)
    while shape.seconds() > LONGEST or shape.bytes() > MEMORY:
        shape.kv_len = shape.kv_len * 3 // 4
        shape.q_len = shape.kv_len if whole else min(shape.q_len, shape.kv_len)
    return shape


def measure(bench, shape, rounds):
    """The results of one shape."""
    import torch
    from peers_torch import accepting_peers, take_turns, timed

    torch.manual_seed(1)
    q, k, v = (
        torch.randn(shape.batch, tokens, heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
        for tokens, heads in (
            (shape.q_len, shape.kv_heads * shape.group),
            (shape.kv_len, shape.kv_heads),
            (shape.kv_len, shape.kv_heads),
        )
    )
    run, info = bench.own(q, k, v, shape.pattern())
    row = {
        "shape": str(shape),
        **asdict(shape),
        "kernel": info.kernel.decode(),
        "jobs": info.n_jobs - info.n_merge_jobs,
        "merges": info.n_merge_jobs,
        "kept": info.kept_pairs / max(1, info.dense_pairs),
    }
    peers = [(timed(call, 2.0), name, how, call) for name, how, call in accepting_peers(q, k, v)]
    if peers:
        _, row["peer"], row["peer_order"], call = min(peers, key=lambda each: each[0])
        theirs, ours = take_turns([call, run], rounds, milliseconds=5.0)
        row["peer_seconds"], row["seconds"] = statistics.median(theirs), statistics.median(ours)
        row["ratio"] = row["peer_seconds"] / row["seconds"]
    return row


def squared(shape):
    """The shape with as many rows as keys, cut down until its dense time and its memory fit."""
    shape.q_len = shape.kv_len
    for field in ("batch", "kv_heads", "group"):
        while shape.seconds() > LONG and getattr(shape, field) > 1:
            setattr(shape, field, getattr(shape, field) // 2)
    while shape.seconds() > LONGEST or shape.bytes() > MEMORY:
        shape.q_len = shape.kv_len = shape.kv_len * 3 // 4
    return shape


def measure_gradients(bench, shape, rounds):
    """The same of gradients, whose default order is timed beside any order."""
    heads = shape.kv_heads * shape.group
    layer = bench.layer(
        (shape.batch, heads, shape.kv_heads, shape.head_dim, shape.kv_len), shape.pattern()
    )
    plans = {"free": layer.backward(1), "default": layer.backward(0)}
    info, pairs = plans["free"].info, layer.forward.info
    row = {
        "shape": str(shape),
        **asdict(shape),
        "kernel": info.kernel.decode(),
        "jobs": info.n_jobs,
        "merges": 0,
        "kept": pairs.kept_pairs / max(1, pairs.dense_pairs),
    }
    contestants = dict(plans)
    for name in ("cuDNN", "FlashAttention-2"):
        try:
            contestants[name] = bench.peer(name, layer)
            contestants[name]()
        except RuntimeError:  # it does not take the shape
            contestants.pop(name, None)
    seconds = turns(contestants, rounds, lambda call: [bench.device.timed(call, 5.0)])
    median = {name: statistics.median(times) for name, times in seconds.items()}
    row["seconds"], default = median.pop("free"), median.pop("default")
    row["default"] = default / row["seconds"]
    if median:
        row["peer"] = min(median, key=median.get)
        row["peer_order"] = f"default takes {row['default']:.2f}"
        row["peer_seconds"] = median[row["peer"]]
        row["ratio"] = row["peer_seconds"] * row["kept"] / row["seconds"]
    return row


def sweep(bench, options, gradients=False):
    """Results of shapes 0 .. N-1 of the seed, or of those named, with the worst ratio last.

    Progress goes to standard error.
    """
    import torch

    start, rows = time.monotonic(), []
    numbers = [int(n) for n in options.only.split(",")] if options.only else range(options.sweep)
    try:
        for done, number in enumerate(numbers):
            if time.monotonic() - start > options.seconds:
                print(
                    f"stopped after {options.seconds:.0f} s: {len(rows)} of {len(numbers)} shapes"
                )
                break
            shape = draw(options.seed, number)
            if gradients:
                shape = squared(shape)
            print(
                f"\r{done + 1}/{len(numbers)}  {time.monotonic() - start:5.0f} s  {str(shape):100}",
                end="",
                file=sys.stderr,
                flush=True,
            )
            try:
                timing = measure_gradients if gradients else measure
                rows.append({"number": number, **timing(bench, shape, options.rounds)})
            except (SystemExit, RuntimeError) as failure:
                rows.append(
                    {"number": number, "shape": str(shape), **asdict(shape), "failed": str(failure)}
                )
            if torch.cuda.memory_reserved() > 30 << 30:
                torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print(f"interrupted: {len(rows)} of {len(numbers)} shapes")
    print(file=sys.stderr)
    rows.sort(key=lambda row: ("failed" in row, -row.get("ratio", float("inf"))))
    print(
        f"{'no.':>4} {'ratio':>8} {'Tessera ms':>11} {'peer ms':>11} {'kept':>6}"
        f"  {'kernel':13} {'jobs':10} {'peer':39} shape"
    )
    for row in rows:
        if "failed" in row:
            print(f"{row['number']:4} {row['shape']}: {row['failed']}")
            continue
        times = f"{'-':>8} {'-':>11} {'-':>11}"
        if "ratio" in row:
            times = f"{row['ratio']:8.3f} {row['seconds'] * 1e3:11.4f}"
            times += f" {row['peer_seconds'] * 1e3:11.4f}"
        peer = f"{row['peer']} ({row['peer_order']})" if "peer" in row else "none accepts"
        jobs = f"{row['jobs']}+{row['merges']}"
        print(
            f"{row['number']:4} {times} {row['kept']:6.3f}"
            f"  {row['kernel']:13} {jobs:10} {peer:39} {row['shape']}"
        )
    for kind, name in ((DENSE, "dense"), (S2, "S2"), (WINDOW, "windows")):
        ratios = [row["ratio"] for row in rows if "ratio" in row and row["kind"] == kind]
        if ratios and (gradients or kind == DENSE):
            print(
                f"{len(rows)} shapes, {len(ratios)} of them {name}: median ratio"
                f" {statistics.median(ratios):.3f}, {sum(r < 1 for r in ratios)} under 1"
            )
    return rows

# SPDX-License-Identifier: Apache-2.0
"""The parts of peers_decode.py about memory, and about what a replay leaves to the host: bytes of a
cache, workspaces and their exact sizes, the CPU's row."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

import torch

from peers_torch import error_in_cache, largest_error
from peers_turns import all_of
from tessera_ctypes import (
    BATCH_INVARIANT,
    DENSE,
    DEVICE_LENGTHS,
    DTYPES,
    PER_KV_HEAD,
    S2,
    Buffer,
    Refused,
    pattern,
)

MAX_CHUNK = 512  # of compact caches
S2_WIDE = pattern(S2, block=64, local=8, stride=16, flags=PER_KV_HEAD)
PHI3 = pattern(S2, block=64, local=16, stride=8, offset=1)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
WORKSPACE_MIB = 24
GUARD, GUARD_BYTE = 4096, 0xA5
CPU_CORES = 2
HOST_NODE = 3  # CU_GRAPH_NODE_TYPE_HOST


class Memory:
    """What Bench has beside plain decode. Bench measures and reports."""

    # ------------------------------------------------------------------ bytes of a cache

    def bytes(self):
        """What a compact cache of 128k tokens takes, as blocks of a kv head, and whether pools use
        what tess_layout_pages says at every length."""
        for name, heads, kv_heads, wanted, most in (
            ("S2, V=16 L=8", 64, 16, S2_WIDE, 143),
            ("Phi-3-small", 32, 8, PHI3, 1036),
        ):
            library = self.libraries[0][1]
            try:
                layout = library.layout(wanted, heads, kv_heads, 131072, MAX_CHUNK)
                blocks = library.pages(layout, 131072, 64)
            except Refused as error:
                self.refused(f"KV bytes at 128k, {name}", error)
                continue
            title = f"KV blocks of a head at 128k, {name}"
            self.report(title, blocks, most, "blocks", at_most=True)
            share = 100 * blocks * 64 / 131072
            print(f"    {2048 / blocks:.1f} times fewer than all, {share:.1f} %", flush=True)
            tokens = 131072 // (64 if self.device.dry else 1)
            self.report(
                f"lengths to {tokens} at which pools use other bytes, {name}",
                self.other_lengths(layout, tokens, wanted.block),
                0,
                "lengths",
                at_most=True,
            )
            library.lib.tess_layout_release(layout)

    def other_lengths(self, layout, tokens, block):
        """How many lengths there are whose keys end elsewhere than tess_layout_pages says, by the
        slots of their blocks, in token places and in pages of 16 and 256."""
        library, wrong = self.libraries[0][1], 0
        blocks = range(-(-tokens // block))
        for storage, heads in enumerate(library.storages(layout)):
            # The head that takes most decides, since all have one table.
            slots = [library.slots(layout, head, blocks) for head in heads]
            before = 0  # places that earlier blocks take
            for number, last in enumerate(map(max, zip(*slots))):
                for rest in range(1, min(block, tokens - number * block) + 1):
                    used = max(before, last * block + rest)
                    told = (
                        library.pages(layout, number * block + rest, page, storage)
                        for page in (0, 16, 256)
                    )
                    wrong += tuple(told) != (used, -(-used // 16), -(-used // 256))
                before = max(before, (last + 1) * block)
        return wrong

    # ------------------------------------------------------------------ workspaces

    def workspace(self):
        """The most workspace that plans which split freely ask for."""
        worst = (-1.0, "none")
        shapes = [
            (batch, rows, tokens, heads, kv_heads, head_dim)
            for batch in (1, 2, 16, 64, 256, 1024)
            for rows in (1, 4, 16, 128, 2048)
            for tokens in (1024, 8192, 32768, 131072, 1 << 20)
            for heads, kv_heads, head_dim in (
                (32, 8, 128), (8, 8, 128), (128, 8, 128), (16, 1, 128), (32, 8, 64), (32, 8, 256)
            )
            if batch * rows <= 8192 and batch * tokens <= 1 << 23
        ]
        for batch, rows, tokens, heads, kv_heads, head_dim in shapes:
            for flags in 0, DEVICE_LENGTHS:
                name = f"{batch} x {tokens}, {rows} rows, {heads}/{kv_heads} x {head_dim}"
                name += ", a step" if flags else ""

                def plan(shape=(batch, rows, tokens, heads, kv_heads, head_dim), **more):
                    return self.workspace_of(*shape, flags=flags, **more)

                try:
                    # A CPU's threads have scratch memory, as a plan without parts has.
                    scratch = plan(kv_split=1) if self.device.dry else 0
                    worst = max(worst, ((plan() - scratch) / (1 << 20), name))
                except Refused as error:
                    print(f"    {name}: {error}", flush=True)
        title = f"workspace of a free split, worst of {len(shapes)} shapes ({worst[1]})"
        if worst[0] < 0:
            self.refused(title, "no plan was made")
            return
        self.report(title, worst[0], WORKSPACE_MIB, "MiB", at_most=True)
        for batch, tokens in (1, 131072), (16, 32768), (64, 8192):
            batch, tokens = self.device.size(batch, tokens)
            for name, flags in ("free split", 0), ("batch-invariant", BATCH_INVARIANT):
                self.exact(f"{name}, {batch} x {tokens}", batch, tokens, flags)

    def workspace_of(self, batch, rows, tokens, heads, kv_heads, head_dim, **more):
        plan = self.library().create(
            pattern(DENSE),
            heads,
            kv_heads,
            tokens,
            dtype=DTYPES["bf16"],
            head_dim=head_dim,
            batch=batch,
            q_len=rows,
            kv_len=tokens,
            **more,
        )
        return plan.info.workspace_bytes

    def exact(self, title, batch, tokens, flags):
        """Runs with a workspace of the bytes that the plan asks for, between guard bytes."""
        q, layers = self.tensors(batch, 1, HEADS, KV_HEADS, HEAD_DIM, tokens)
        o = torch.full_like(q, float("nan"))
        plan, info = self.plan(q, *layers[0], o, flags=flags)
        size = info.workspace_bytes
        memory = torch.full((size + 3 * GUARD,), GUARD_BYTE, dtype=torch.uint8, device=q.device)
        start = GUARD + -memory.data_ptr() % GUARD
        plan.run.workspace = Buffer(
            kind=self.library().memory,
            handle=memory.data_ptr(),
            offset=start,
            size=start + size,
        )
        plan()
        self.device.synchronize()
        around = torch.cat([memory[:start], memory[start + size :]])
        written = int((around != GUARD_BYTE).sum())
        title = f"{title}: bytes written around a workspace of {size / (1 << 20):.2f} MiB"
        if self.right(title, largest_error(q, *layers[0], o, pattern(DENSE))):
            self.report(title, written, 0, "bytes", at_most=True)

    # ------------------------------------------------------------------ a replay

    def replay(self):
        """A captured step and its layers, replayed for other lengths: no node that the host has a
        part in."""
        batch, most = self.device.size(64, 131072)
        length, later = max(128, self.device.size(1, 2048)[1]), 77
        title = f"replay of {batch} x {most}"
        try:
            plan, info, cache, prepare, fields, q, o, keep = self.step_plan(
                batch, most, [length] * batch
            )
            k, v = (self.normal(1, batch, KV_HEADS, HEAD_DIM) for _ in range(2))
            calls = [prepare]
            for layer in cache.layers[:2]:
                calls += [plan.append(k, v, *layer, **fields), plan.on(q, *layer, o, **fields)]
        except Refused as error:
            self.refused(title, error)
            return

        step = all_of(calls)
        step()
        self.device.synchronize()
        kinds = self.device.kinds(step)
        graph = self.device.captured(step, 1)
        self.device.synchronize()
        prepare.kv_lens.fill_(later)
        graph.replay()
        self.device.synchronize()
        layer = cache.layers[:2][-1]

        def keys_of(item, kv_head, keys):
            at, place = cache.places(pattern(DENSE), item, kv_head, keys)
            return layer[0][at, place, kv_head], layer[1][at, place, kv_head]

        rows = q[:, :batch].reshape(batch, 1, HEADS, HEAD_DIM)
        results = o[:, :batch].reshape(batch, 1, HEADS, HEAD_DIM)
        error = error_in_cache(rows, results, pattern(DENSE), later, KV_HEADS, keys_of)
        if not self.right(title, error):
            return
        if self.device.dry:
            self.not_yet(f"{title}: host nodes", "a dry run has no graph")
            return
        self.report(f"{title}: host nodes", kinds.count(HOST_NODE), 0, "nodes", True)

    # ------------------------------------------------------------------ the CPU

    def cpu(self):
        """One new token on two cores of the CPU, beside a read-only sum and PyTorch's SDPA, in a
        process of its own."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers_cpu.py")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bars.json")
            command = [sys.executable, script, "--decode", "--cores", str(CPU_CORES)]
            command += ["--library", self.options.library, "--json", path]
            command += ["--dtypes", "fp32,bf16,int8"]
            if self.device.dry:
                command += ["--decode-tokens", "1024", "--rounds", "1"]
            done = subprocess.run(command, capture_output=True, text=True)
            print(done.stdout, end="", flush=True)
            if not os.path.exists(path):
                raise RuntimeError((done.stderr or done.stdout)[-300:])
            with open(path) as file:
                rows = json.load(file)
        for row in rows:
            self.missed += not row["reached"]
            self.rows.append(row | {"bar": f"CPU, {CPU_CORES} cores, {row['bar']}"})

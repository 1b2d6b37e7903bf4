# SPDX-License-Identifier: Apache-2.0
"""The parts of peers_decode.py about serving: chunks, mixed batches, shared prefixes, steps."""

import random
import statistics

import torch

from peers_cache import Cache
from peers_torch import largest_error
from peers_turns import all_of
from tessera_ctypes import (
    APPEND,
    DENSE,
    DEVICE_LENGTHS,
    PER_KV_HEAD,
    S2,
    TRUST_DEVICE,
    Refused,
    pattern,
)

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
TIGHT = 1.05
GRAPH_CALLS = 64  # of a kernel so short that a graph of it needs many


class Serving:
    """What Bench has beside plain decode. Bench measures and reports."""

    def library(self):
        return self.libraries[0][1]

    def plan(self, q, k, v, o, wanted=None, **more):
        wanted = wanted or pattern(DENSE)
        return self.library().plan(
            torch, "bf16", q, k, v, o, wanted, self.device.handle, **more
        )

    def words(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.device.torch_name)

    def right(self, title, error):
        """Whether a result is right, whose time counts only then."""
        if not error < 2e-2:
            self.refused(title, f"wrong result, largest relative difference {error:.2e}")
        return error < 2e-2

    # ------------------------------------------------------------------ chunks

    def chunks(self):
        """Rows against a long context, by the kernel that the library chooses, and by the same
        kernel in pages and by slot."""
        wide = pattern(S2, block=64, local=8, stride=16, flags=PER_KV_HEAD)
        for rows, tokens, milliseconds in (
            (16, 32768, 0.05),
            (128, 32768, 0.17),
            (512, 32768, 0.37),
            (2048, 131072, 6.3),
        ):
            _, tokens = self.device.size(1, tokens)
            title = f"chunk of {rows} rows on {tokens} keys"
            shape = (1, HEADS, KV_HEADS, HEAD_DIM, tokens)
            took = self.chunk(title, rows, shape, pattern(DENSE), ("paged", "compact"))
            median = statistics.median(took) * 1e3
            self.report(title, median, milliseconds, "ms", at_most=True, spread_of=[took])
            if rows <= 512:
                shape = (1, 64, 16, HEAD_DIM, tokens)
                self.chunk(f"S2 {title}", rows, shape, wide, ("compact",))

    def chunk(self, title, rows, shape, wanted, ways):
        batch, heads, kv_heads, head_dim, tokens = shape
        q, layers = self.tensors(batch, rows, heads, kv_heads, head_dim, tokens)
        choice = self.options.chunk_kernel or ""
        own, _, info = self.own(q, layers, wanted, kernel=choice)
        kernel, contestants, titles, keep = info.kernel.decode(), list(own), {}, []
        for way in ways:
            chunk = rows if way == "compact" else None
            pools = layers if wanted.kind == DENSE else None
            keep.append(Cache(self, wanted, shape, 64, chunk, layers=pools))
            titles[way] = f"{title}, {way}: time over plain"
            try:
                contestants += self.cached(way, q, keep[-1], wanted, kernel=kernel)
            except Refused as error:
                print(f"    {way}: {error}", flush=True)
                titles[way] += f", {kernel} refuses it"
                contestants += self.cached(way, q, keep[-1], wanted, kernel=choice)
        if wanted.kind == DENSE:
            contestants += self.peers(q, layers)
        t, _ = self.speed(f"{title} [{kernel}]", contestants, info.bytes_min)
        for way, words in titles.items():
            self.within(words, t[f"Tessera, {way}"], t["Tessera"], TIGHT)
        return t["Tessera"]

    def prefill(self):
        """A prompt in chunks, each appended to the cache and then attended to, over one call."""
        _, tokens = self.device.size(1, 131072)
        q, layers = self.tensors(1, tokens, HEADS, KV_HEADS, HEAD_DIM, tokens)
        (k, v), name = layers[0], self.options.chunk_kernel or ""
        contestants, _, info = self.own(q, layers[:1], pattern(DENSE), kernel=name)
        titles = {}
        for rows, most in (2048, 1.10), (8192, 1.04):
            rows = min(rows, tokens // (131072 // rows))  # in a dry run as many chunks
            title = f"{tokens} tokens in chunks of {rows}: time over one call"
            try:
                call, error = self.in_chunks(q, k, v, rows, info.kernel.decode())
            except Refused as error:
                self.refused(title, error)
                continue
            if self.right(title, error):
                contestants.append((f"in chunks of {rows}", 1, call))
                titles[f"in chunks of {rows}"] = title, most
        t, _ = self.speed(
            f"{tokens} tokens at once and in chunks [{info.kernel.decode()}]",
            contestants + list(self.peers(q, layers[:1])),
            info.bytes_min,
        )
        for name, (title, most) in titles.items():
            self.within(title, t[name], t["Tessera"], most)

    def in_chunks(self, q, k, v, rows, kernel):
        """A function of all chunks, and the error of its result."""
        cache = [torch.full_like(x, float("nan")) for x in (k, v)]
        o, calls = torch.full_like(q, float("nan")), []
        for start in range(0, q.shape[1], rows):
            new = slice(start, start + rows)
            plan, _ = self.plan(
                q[:, new], *cache, o[:, new], kv_len=start + rows, kernel=kernel, flags=APPEND
            )
            calls += [plan.append(k[:, new], v[:, new], *cache), plan]

        run = all_of(calls)
        run()
        self.device.synchronize()
        if not (torch.equal(cache[0], k) and torch.equal(cache[1], v)):
            return run, float("nan")
        return run, largest_error(q, k, v, o, pattern(DENSE))

    def together(self):
        """A prompt's rows and other sequences' single rows in one batch, over the two apart."""
        batch, tokens = self.device.size(64, 8192)
        q, layers = self.tensors(1, tokens + batch, HEADS, KV_HEADS, HEAD_DIM, tokens * (1 + batch))
        (k, v), dense = layers[0], pattern(DENSE)
        o = torch.full_like(q, float("nan"))
        title = f"{tokens} rows and {batch} decodes in one batch: time over the two apart"

        def parts_of(q, o):
            single = (batch, 1, HEADS, HEAD_DIM)
            keys = (batch, tokens, KV_HEADS, HEAD_DIM)
            yield q[:, :tokens], k[:, :tokens], v[:, :tokens], o[:, :tokens]
            yield (
                q[:, tokens:].reshape(single),
                *(x[:, tokens:].reshape(keys) for x in (k, v)),
                o[:, tokens:].view(single),
            )

        lengths = [0] + [tokens + n for n in range(batch + 1)]
        try:
            one, info = self.plan(
                q,
                k,
                v,
                o,
                kernel="",
                batch=batch + 1,
                q_len=0,
                kv_len=tokens,
                cu_q_lens=lengths,
                cu_kv_lens=[n * tokens for n in range(batch + 2)],
            )
        except Refused as error:
            self.refused(title, error)
            return
        other = torch.full_like(q, float("nan"))
        first, second = (self.plan(*part, kernel="") for part in parts_of(q, other))

        def apart():
            first[0]()
            second[0]()

        one()
        apart()
        self.device.synchronize()
        error = max(
            largest_error(*part, dense) for out in (o, other) for part in parts_of(q, out)
        )
        if not self.right(title, error):
            return
        names = [x.kernel.decode() for x in (info, first[1], second[1])]
        t, _ = self.speed(
            f"{tokens} rows and {batch} decodes [{names[0]}; apart {names[1]}, {names[2]}]",
            [("together", 1, one), ("apart", 1, apart)]
            + [("rows alone", 1, first[0]), ("decodes alone", 1, second[0])]
            + [
                (f"{name}, {part} alone", count, function)
                for part, (q, k, v, _) in zip(("rows", "decodes"), parts_of(q, o))
                for name, count, function in self.peers(q, [(k, v)])
            ],
            info.bytes_min,
        )
        self.within(title, t["together"], t["apart"], TIGHT)

    # ------------------------------------------------------------------ parts of the keys

    def shared(self):
        """A prefix that all sequences share, read once with their rows as one sequence, and merged
        with what each has of its own; over reading it for each."""
        batch, prefix = self.device.size(64, 32768)
        own = max(64, self.device.size(1, 1024)[1])
        title = f"{batch} sequences that share {prefix} keys and have {own}: speed over not sharing"
        q, heads = self.normal(batch, 1, HEADS, HEAD_DIM), pattern(DENSE)
        rows = q.reshape(1, batch, HEADS, HEAD_DIM)
        parts = torch.full((2, batch, HEADS, HEAD_DIM), float("nan")).to(q)
        lse = torch.zeros(2, batch, HEADS, dtype=torch.float32, device=q.device)
        o, library = torch.full_like(rows, float("nan")), self.library()
        _, common = self.tensors(1, 1, HEADS, KV_HEADS, HEAD_DIM, prefix)
        _, each = self.tensors(batch, 1, HEADS, KV_HEADS, HEAD_DIM, own)
        count, calls = max(len(common), len(each)), []  # a layer has some of both
        layers = [common[n % len(common)] + each[n % len(each)] for n in range(count)]
        k, v, k_own, v_own = layers[0]
        limits = {"max_tokens": prefix + own, "kernel": ""}
        try:
            # Rows of all sequences are past all keys of the prefix, so each sees all of them.
            first, info = self.plan(rows, k, v, parts[:1], q_first=[prefix], kv_first=[0], **limits)
            second, other = self.plan(
                q,
                k_own,
                v_own,
                parts[1].reshape(q.shape),
                q_first=[prefix + own - 1] * batch,
                kv_first=[prefix] * batch,
                **limits,
            )
            merge = library.merge_parts(
                "bf16", parts, lse, o[0], self.device.handle
            )
            for k, v, k_own, v_own in layers:
                stride = batch * HEADS, HEADS, 1
                calls += [
                    first.on(rows, k, v, parts[0], lse=library.tensor(lse[0], *stride)),
                    second.on(
                        q, k_own, v_own, parts[1], lse=library.tensor(lse[1], HEADS, HEADS, 1)
                    ),
                    merge,
                ]
            all_of(calls[-3:] + calls[:3])()
        except Refused as error:
            self.refused(title, error)
            return

        run = all_of(calls)
        # Without sharing, each sequence has the prefix as a part of its own keys.
        k, v, k_own, v_own = layers[0]
        whole = [
            torch.cat([a.expand(batch, -1, -1, -1), b], 1) for a, b in ((k, k_own), (v, v_own))
        ]
        contestants, _, apart = self.own(q, [tuple(whole)], heads)
        if not self.right(title, largest_error(q, *whole, o.reshape(q.shape), heads)):
            return
        names = [x.kernel.decode() for x in (info, other, apart)]
        t, _ = self.speed(
            f"{batch} sequences with a prefix [{names[0]}, {names[1]}; not sharing {names[2]}]",
            contestants + [("shared", count, run)] + list(self.peers(q, [tuple(whole)])),
            2 * (k.nbytes + k_own.nbytes),
        )
        self.over(title, t["Tessera"], t["shared"], 8.0)

    # ------------------------------------------------------------------ steps

    def step_plan(self, batch, capacity, lengths, layers=None, rows=1, flags=0, chunk=0):
        """A plan with device lengths on pages, its cache, a prepared step, and its functions.

        Returns (plan, info, cache, prepare, fields of a run, q, o). Sequences have `rows` rows, and
        the plan also takes one of `chunk` rows beside them.
        """
        shape = (batch, HEADS, KV_HEADS, HEAD_DIM, max(lengths))
        cache = Cache(self, pattern(DENSE), shape, 64, capacity=capacity, layers=layers)
        most_rows = batch * rows + chunk
        q = self.normal(1, most_rows, HEADS, HEAD_DIM)
        o = torch.full_like(q, float("nan"))
        plan, info = self.plan(
            q,
            *cache.layers[0],
            o,
            batch=batch,
            q_len=max(rows, chunk),
            max_rows=most_rows,
            kv_len=capacity,
            page=64,
            flags=DEVICE_LENGTHS | APPEND | flags,
        )
        memory = torch.zeros(info.step_bytes // 4 + 64, dtype=torch.int32, device=q.device)
        step = memory[-memory.data_ptr() % 256 // 4 :]
        cu_rows = self.words([rows * n for n in range(batch + 1)])
        prepare = plan.prepare(cu_rows, self.words(lengths), step)
        prepare()
        self.device.synchronize()
        head = step[:11].tolist()
        if head[10] != rows * batch or head[3] != 0:
            raise Refused(f"a step has {head[10]} rows, and {head[3]} lengths were clamped")
        return plan, info, cache, prepare, cache.run | {"step": plan.buffer(step)}, q, o, memory

    def capacity(self):
        """A captured step far below its capacity, over a plan of the lengths that it has."""
        self.far_below("", 64, 1024, 0, 3.0)
        self.far_below("", 1, 4096, 0, 3.0)
        # Chunks have a kernel of their own, which is launched and finds nothing to do.
        self.far_below(" and chunks of 512 rows", 64, 1024, 512, 8.0)

    def far_below(self, chunks, batch, length, chunk, most_us):
        batch, most = self.device.size(batch, 131072)
        length = max(64, self.device.size(1, length)[1])
        title = (
            f"capacity of {batch} x {most}{chunks} at {length} keys: us of a layer over a plan's"
        )
        try:
            plan, info, cache, _, fields, q, o, keep = self.step_plan(
                batch, most, [length] * batch, chunk=chunk
            )
            runs = [plan.on(q, *layer, o, **fields) for layer in cache.layers]
            known = Cache(
                self, pattern(DENSE), (batch, HEADS, KV_HEADS, HEAD_DIM, length), 64,
                layers=cache.layers,
            )
            single, results = (x[:, :batch].reshape(batch, 1, HEADS, HEAD_DIM) for x in (q, o))
            own = self.cached("lengths known", single, known, pattern(DENSE))
        except Refused as error:
            self.refused(title, error)
            return
        for n in {0, len(runs) - 1}:
            runs[n]()
            error = cache.error(single, *cache.layers[n], results, pattern(DENSE))
            if not self.right(title, error):
                return

        def run():
            for call in runs:
                call()

        t, _ = self.speed(
            f"{batch} x {length} in a step of {most}{chunks} "
            f"[{info.few_kernel.decode() or info.kernel.decode()}]",
            own + [("step", len(runs), run)] + list(
                self.peers(*self.tensors(batch, 1, HEADS, KV_HEADS, HEAD_DIM, length))
            ),
            2 * cache.layers[0][0].nbytes,
        )
        extra = [(a - b) * 1e6 for a, b in zip(t["step"], t["Tessera, lengths known"])]
        self.report(
            title, statistics.median(extra), most_us, "us", at_most=True, spread_of=[t["step"]]
        )

    def nodes(self):
        """Nodes of a captured graph: those of a layer, and those of a step for all layers."""
        if self.device.dry:
            print("    counts of nodes need a GPU; a dry run makes the calls only", flush=True)
        for name, batch, length, chunk in (
            ("64 x 8k", 64, 8192, 0),
            ("1 x 128k", 1, 131072, 0),
            ("256 x 2k", 256, 2048, 0),
            # Each kernel of such a plan is launched in every step.
            ("64 x 8k and chunks of 512 rows", 64, 8192, 512),
        ):
            batch, length = self.device.size(batch, length)
            length = max(64, length)
            try:
                plan, info, cache, prepare, fields, q, o, keep = self.step_plan(
                    batch, length, [length] * batch, chunk=min(chunk, length)
                )
                k, v = (
                    self.normal(1, batch + min(chunk, length), KV_HEADS, HEAD_DIM)
                    for _ in range(2)
                )
                append = plan.append(k, v, *cache.layers[0], **fields)
                run = plan.on(q, *cache.layers[0], o, **fields)
                append()
                run()
                counts = [self.device.nodes(call) for call in (prepare, append, run)]
            except Refused as error:
                self.refused(f"graph nodes, {name}", error)
                continue
            kernel = info.kernel.decode()
            print(f"    {name}: prepare, append and run are {counts} nodes [{kernel}]", flush=True)
            self.report(f"graph nodes of a step, {name}", counts[0], 1, "nodes", at_most=True)
            own = sum(counts[1:])
            self.report(f"graph nodes of a layer, {name}", own, 3, "nodes", at_most=True)

    def prepare(self):
        """tess_prepare of 256 sequences of mixed lengths, in a graph of many."""
        batch, most = self.device.size(256, 131072)
        draw = random.Random(3)
        for name, lengths in (
            ("equal", [most // 64] * batch),
            ("mixed", [draw.randint(1, most // 16) for _ in range(batch)]),
        ):
            title = f"tess_prepare of {batch} sequences of {name} lengths"
            try:
                plan, info, cache, prepare, fields, q, o, keep = self.step_plan(
                    batch, most, lengths
                )
            except Refused as error:
                self.refused(title, error)
                continue
            t = self.turns([("prepare", GRAPH_CALLS, self.times(prepare))])["prepare"]
            took = statistics.median(t) * 1e6
            self.report(f"{title} [{info.kernel.decode()}]", took, 15.0, "us", True, [t])

    def times(self, *calls):
        """A function that makes so many calls, of each in turn."""

        def run():
            for n in range(len(calls) if self.device.dry else GRAPH_CALLS):
                calls[n % len(calls)]()

        return run

    def append(self):
        """tess_append of 256 tokens into pages, in a graph of layers with pools of their own."""
        most, length, count = self.device.size(1, 131072)[1], 256, 2 if self.device.dry else 8
        for sequences, rows in (256, 1), (1, 256):
            title = f"tess_append of {rows} tokens to each of {sequences}"
            pool = (sequences * length // 64, 64, KV_HEADS, HEAD_DIM)
            like = self.normal(1)
            layers = [tuple(like.new_zeros(pool) for _ in range(2)) for _ in range(count)]
            try:
                plan, info, cache, _, fields, q, o, keep = self.step_plan(
                    sequences, most, [length] * sequences, layers, rows
                )
                k, v = (self.normal(1, 256, KV_HEADS, HEAD_DIM) for _ in range(2))
                calls = [plan.append(k, v, *layer, **fields) for layer in cache.layers]
                all_of(calls)()
            except Refused as error:
                self.refused(title, error)
                continue
            self.device.synchronize()
            last = torch.arange(length - rows, length, device=q.device)
            at, place = cache.places(pattern(DENSE), sequences - 1, 0, last)
            pairs = list(zip(cache.layers[-1], (k, v)))
            if not all(torch.equal(pool[at, place], new[0, -rows:]) for pool, new in pairs):
                self.refused(title, "the cache does not hold what was appended")
                continue
            t = self.turns(
                [
                    ("append", GRAPH_CALLS, self.times(*calls)),
                    ("PyTorch", GRAPH_CALLS, self.times(*self.index_puts(cache, rows, k, v))),
                ]
            )
            other, t = statistics.median(t["PyTorch"]) * 1e6, t["append"]
            print(f"    PyTorch's index_put_ of K and V: {other:.2f} us", flush=True)
            self.report(title, statistics.median(t) * 1e6, 4.0, "us", True, [t])

    def index_puts(self, cache, rows, k, v):
        """Functions that write the last rows of each sequence with PyTorch, one for each layer."""
        batch, length = cache.shape[0], cache.shape[4]
        last = torch.arange(length - rows, length, device=k.device)
        places = [cache.places(pattern(DENSE), item, 0, last) for item in range(batch)]
        at = tuple(torch.cat(x) for x in zip(*places))

        def put(layer):
            for pool, new in zip(layer, (k, v)):
                pool.index_put_(at, new[0, : batch * rows])

        return [lambda layer=layer: put(layer) for layer in cache.layers]

    def trusted(self):
        """What the checks of device values cost: over plans that trust these, in turns."""
        ways = ("checked", 0), ("trusted", TRUST_DEVICE)
        for batch, tokens in (16, 32768), (64, 8192):
            batch, tokens = self.device.size(batch, tokens)
            title = f"checks of page ids, {batch} x {tokens} in pages of 64"
            shape, dense = (batch, HEADS, KV_HEADS, HEAD_DIM, tokens), pattern(DENSE)
            cache, q = Cache(self, dense, shape, 64), self.normal(batch, 1, HEADS, HEAD_DIM)
            own = [x for way, flags in ways for x in self.cached(way, q, cache, dense, flags=flags)]
            t, _ = self.speed(title, own, 2 * cache.layers[0][0].nbytes)
            self.within(title, t["Tessera, checked"], t["Tessera, trusted"], 1.01)
        batch, length = self.device.size(256, 8192)
        plans = [(way, self.step_plan(batch, length, [length] * batch, flags=f)) for way, f in ways]
        k, v = (self.normal(1, batch, KV_HEADS, HEAD_DIM) for _ in range(2))
        appends, prepares = [], []
        for way, (plan, _, cache, prepare, fields, *_) in plans:
            append = plan.append(k, v, *cache.layers[0], **fields)
            appends.append((way, GRAPH_CALLS, self.times(append)))
            prepares.append((way, GRAPH_CALLS, self.times(prepare)))
        for name, calls in ("tess_prepare", prepares), ("tess_append", appends):
            t = self.turns(calls)
            title = f"checks of {name}, {batch} sequences"
            for way, seconds in t.items():
                print(f"    {name}, {way:24} {statistics.median(seconds) * 1e6:11.2f} us")
            self.within(title, t["checked"], t["trusted"], 1.01)

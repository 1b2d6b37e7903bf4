# SPDX-License-Identifier: Apache-2.0
"""`peers_cpu.py --decode`: one new token on the CPU beside a read-only sum over the same bytes.

8 query heads share 2 kv heads of 128 elements, 32k keys, one sequence and four. The sum reads K and
V on as many threads; it is the fastest of a few that NumPy and, where it is installed, PyTorch
have. PyTorch's SDPA takes turns with them. A ratio compares times of one round, in which the state
of the machine is about one; the median over the rounds counts, and the quarters beside it tell its
spread. Ratios of the fastest turns stand there too. --beside OLD times an older library as well.
With --cores 1 processor time counts instead of time: what others take of the core is left out.
--dtypes fp32,bf16,int8,e4m3 times K and V of 8 bits too, with Q of bf16 and equal scales; PyTorch's
SDPA does not take them.
"""
import concurrent.futures
import ctypes
import math
import statistics
import sys
import time

import numpy as np

import tessera_ctypes as t
from peers_turns import Bars, on_host, ratios, turns, write_json

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
BAR = 0.85
CODES = {"e4m3": 3, "int8": 4}  # of K and V; Q is bfloat16
K_SCALE, V_SCALE = 14, 15  # roles


def aligned(shape, kind):
    """An array whose first byte is aligned to a page of 2 MiB, as for an application that asks."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    raw = np.empty(size + (2 << 20), np.uint8)
    start = -raw.ctypes.data % (2 << 20)
    return raw[start:start + size].view(kind).reshape(shape)


def normal(generator, dtype, shape):
    """Unit-normal numbers; bfloat16 as bits, rounded toward zero. As codes: all but NaN."""
    if dtype in CODES:
        x = aligned(shape, np.uint8)
        for item in x:
            item[...] = generator.integers(0, 256, item.shape, np.uint8)
        if dtype == "e4m3":
            x[x % 128 > 80] = 0  # numbers of 4 or less
        return x
    x = aligned(shape, np.float32 if dtype == "fp32" else np.uint16)
    for item in x:
        values = generator.standard_normal(item.shape, dtype=np.float32)
        item[...] = values if dtype == "fp32" else (values.view(np.uint32) >> 16).astype(np.uint16)
    return x


def widen(x, dtype=None):
    if dtype == "int8":
        return x.view(np.int8).astype(np.float64) / 64
    if dtype == "e4m3":
        exponent, mantissa = x // 8 % 16, (x % 8).astype(np.float64)
        size = np.where(exponent == 0, mantissa * 2.0**-9,
                        (8 + mantissa) * 2.0**(exponent.astype(np.float64) - 10))
        return np.where(x < 128, size, -size)
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def tessera_call(tessera, dtype, q, k, v, o):
    """A function that runs the plan, what it needs, and the kernel's name."""
    batch, tokens = k.shape[:2]
    layout = tessera.layout(t.pattern(t.DENSE), HEADS, KV_HEADS, tokens)
    desc = t.new(t.PlanDesc, head_dim=HEAD_DIM, batch=batch,
                      dtype=t.DTYPES["bf16" if dtype in CODES else dtype], q_len=1, kv_len=tokens,
                      kernel=tessera.kernel, kv_dtype=CODES.get(dtype, 0))
    plan = t.ptr()
    tessera.call("tess_plan_create", tessera.device, layout, ctypes.byref(desc), ctypes.byref(plan))
    info = t.new(t.PlanInfo)
    tessera.call("tess_plan_query", plan, ctypes.byref(info))
    run = t.new(t.RunDesc)
    tensors = [(0, "q", q), (1, "k", k), (2, "v", v), (3, "o", o)]
    scales = np.full(k.shape[:3], 1 / 64 if dtype == "int8" else 1, np.float32)
    if dtype in CODES:
        tensors += [(K_SCALE, "k_scale", scales), (V_SCALE, "v_scale", scales)]
    for role, field, x in tensors:
        tensor = t.Tensor()
        tessera.call("tess_plan_tensor", plan, role,
                     t.Buffer(kind=t.HOST, handle=x.ctypes.data, size=x.nbytes),
                     ctypes.byref(tensor), None)
        setattr(run, field, tensor)
    work = np.empty(info.workspace_bytes + 4096, np.uint8)
    run.workspace = t.Buffer(kind=t.HOST, handle=work.ctypes.data,
                             offset=-work.ctypes.data % 4096, size=work.nbytes)
    keep = (work, layout, scales)
    return lambda: tessera.call("tess_run", plan, ctypes.byref(run)), keep, info


def check(dtype, q, k, v, o):
    for n in range(3):
        item, head = n % q.shape[0], n * 3 % HEADS
        group = head // (HEADS // KV_HEADS)
        s = widen(k[item, :, group], dtype) @ widen(q[item, 0, head]) / math.sqrt(HEAD_DIM)
        p = np.exp(s - s.max())
        wanted = p / p.sum() @ widen(v[item, :, group], dtype)
        error = np.abs(widen(o[item, 0, head]) - wanted).max() / np.abs(wanted).max()
        if not error < (1e-5 if q.dtype == np.float32 else 2e-2):
            sys.exit(f"wrong result, largest relative difference {error:.2e}")


def sums(arrays, threads):
    """(name, function) of calls that read all bytes of the arrays on so many threads."""
    pool = concurrent.futures.ThreadPoolExecutor(max(1, threads - 1))
    for name, kind, reduce in (("float32 sum", np.float32, np.add.reduce),
                               ("uint64 xor", np.uint64, np.bitwise_xor.reduce),
                               ("uint8 maximum", np.uint8, np.maximum.reduce)):
        flat = [x.reshape(-1).view(kind) for x in arrays]
        parts = list(zip(*(np.array_split(x, threads) for x in flat)))

        def one(part, reduce=reduce):
            return [reduce(x) for x in part]

        def call(parts=parts, one=one):
            others = [pool.submit(one, part) for part in parts[1:]]
            one(parts[0])
            for other in others:
                other.result()
        yield name, call


def torch_calls(torch, q, k, v, dtype):
    """The sum and SDPA of PyTorch, on the same memory."""
    def tensor(x):
        x = torch.from_numpy(x.view(np.int16) if dtype == "bf16" else x)
        return x.view(torch.bfloat16) if dtype == "bf16" else x
    a, b, c = (tensor(x).transpose(1, 2) for x in (q, k, v))
    yield "PyTorch sum", lambda: (torch.sum(b), torch.sum(c))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    yield "PyTorch SDPA", lambda: sdpa(a, b, c, enable_gqa=True)


def judge(bars, title, peer, own, bar):
    """The speed of `own` over that of `peer`, round by round."""
    found = sorted(ratios(peer, own))
    low, middle, high = (found[len(found) * n // 4] for n in (1, 2, 3))
    bars.report(title, middle, bar)
    print(f"           quarters {low:.2f} to {high:.2f}, fastest turns {min(peer) / min(own):.2f}")


def run(options, cores):
    try:
        import torch
        torch.set_num_threads(len(cores))
    except ImportError:
        torch = None
        print("PyTorch is not installed: no SDPA beside it")
    tessera = t.Tessera(options.library, "cpu:0", len(cores), options.kernel)
    older = None
    if options.beside:
        older = t.Tessera(options.beside, "cpu:0", len(cores), options.kernel)
    bars = Bars()
    for dtype in options.dtypes.split(","):
        for batch in (1, 4):
            generator = np.random.default_rng(1)
            q = normal(generator, "bf16" if dtype in CODES else dtype, (batch, 1, HEADS, HEAD_DIM))
            k, v = (normal(generator, dtype, (batch, options.decode_tokens, KV_HEADS, HEAD_DIM))
                    for _ in range(2))
            o = np.zeros_like(q)
            call, keep, info = tessera_call(tessera, dtype, q, k, v, o)
            call()
            check(dtype, q, k, v, o)
            np.seterr(all="ignore")  # codes are summed as if they were floats
            contestants = [("Tessera", call), *sums((k, v), len(cores))]
            if older:
                old_o = np.zeros_like(q)
                old_call, old_keep, _ = tessera_call(older, dtype, q, k, v, old_o)
                contestants.insert(1, ("Tessera, older", old_call))
            sdpa = torch and dtype not in CODES
            if sdpa:
                contestants += torch_calls(torch, q, k, v, dtype)
            clock = time.process_time if len(cores) == 1 else time.perf_counter
            seconds = turns(  # the fastest of three runs in each round
                dict(contestants), options.rounds,
                lambda call: [min(on_host(call, 0.02, lambda first: 3, clock))], shuffled=False)
            size = k.nbytes + v.nbytes
            print(f"\n{dtype}, {HEADS}/{KV_HEADS} heads, {batch} x {options.decode_tokens} keys, "
                  f"{size >> 20} MiB, {info.kernel.decode()}")
            for name, times in seconds.items():
                least, middle = min(times), statistics.median(times)
                print(f"    {name:20} best {least * 1e3:8.2f} ms {size / least * 1e-9:6.1f} GB/s   "
                      f"median {middle * 1e3:8.2f} ms")
            readers = [times for name, times in seconds.items()
                       if name not in ("Tessera", "Tessera, older", "PyTorch SDPA")]
            sum_times = min(readers, key=statistics.median)
            title = f"{dtype}, batch {batch}: speed over"
            judge(bars, f"{title} the read-only sum", sum_times, seconds["Tessera"], BAR)
            if sdpa:
                judge(bars, f"{title} PyTorch SDPA", seconds["PyTorch SDPA"], seconds["Tessera"],
                      1.0)
            if older:
                judge(bars, f"{title} the older library", seconds["Tessera, older"],
                      seconds["Tessera"], 0.99)
    write_json(options.json, bars.rows)
    return 1 if bars.missed else 0

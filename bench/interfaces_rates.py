# SPDX-License-Identifier: Apache-2.0
"""Rates of forward kernels on one NVIDIA GPU through CUDA, Vulkan and OpenCL: interfaces.py.

All kernels of a problem read the same numbers and take turns. Before they are timed, rows of their
results are compared. A rate is that of kept pairs, from the device's own times.
"""

import ctypes
import random
import statistics
import struct
import time

from peers_turns import turns
from tessera_ctypes import (
    DENSE,
    DTYPES,
    HOST,
    S2,
    WINDOW,
    Buffer,
    RunDesc,
    Tensor,
    new,
    pattern,
    u64,
)

UNITS = "cuda/sm80", "vulkan/coopmat", "opencl/nv_mma"  # the first is what others are compared with
PORTABLE = "cuda/portable", "vulkan/portable", "opencl/portable"
# Bytes of the problem's largest tensor at least; one image serves all of them.
LARGEST = 131072 * 16 * 128 * 2
WARM_UP, SAMPLE = 0.3, 0.03  # seconds
PART = 2 << 20  # bytes of O that are compared, three times
TOLERANCE = 0.02  # in the square mean


def s2(block, local):
    return pattern(S2, block=block, local=local, stride=16)


# By title: batch, heads, tokens, head_dim, element type, pattern, kernels.
WORK = {
    "dense 2x16x16k": (2, 16, 16384, 128, "bf16", pattern(DENSE, block=64), UNITS),
    "dense 2x16x16k, f16": (2, 16, 16384, 128, "fp16", pattern(DENSE, block=64), UNITS),
    "dense 2x32x16k, head_dim 64": (2, 32, 16384, 64, "bf16", pattern(DENSE, block=64), UNITS),
    "dense 8x16x1k": (8, 16, 1024, 128, "bf16", pattern(DENSE, block=64), UNITS),
    "window 1024, 16x32k": (1, 16, 32768, 128, "bf16",
                            pattern(WINDOW, block=64, left=1023, right=0), UNITS),
    "S2 blocks of 64, 16x128k": (1, 16, 131072, 128, "bf16", s2(64, 8), UNITS),
    "S2 blocks of 32, 16x128k": (1, 16, 131072, 128, "bf16", s2(32, 16), UNITS),
    "portable 16x8k": (1, 16, 8192, 128, "bf16", pattern(DENSE, block=64), PORTABLE),
    "portable 16x8k, f32": (1, 16, 8192, 128, "fp32", pattern(DENSE, block=64), PORTABLE),
    "portable 16x8k, head_dim 64": (1, 16, 8192, 64, "bf16", pattern(DENSE, block=64), PORTABLE),
}
DRY = {"dense": (1, 2, 128, 64, "fp32", pattern(DENSE, block=64), ("cpu/portable",))}
OWN_DENSE = "dense 2x16x16k"  # what shares of the dense rate are of
# Bars by title and kernel: in TFLOP/s; as a share of the first kernel's; of the own dense rate.
RATES = {
    ("dense 2x16x16k", "vulkan/coopmat"): 180,
    ("dense 2x16x16k, f16", "vulkan/coopmat"): 180,
    ("dense 2x16x16k", "opencl/nv_mma"): 180,
}
SHARES = {
    ("dense 2x16x16k", "vulkan/coopmat"): 0.65,
    ("dense 2x16x16k, f16", "vulkan/coopmat"): 0.65,
    ("dense 2x32x16k, head_dim 64", "vulkan/coopmat"): 0.55,
    ("dense 8x16x1k", "vulkan/coopmat"): 0.5,
    ("portable 16x8k", "vulkan/portable"): 0.8,
    ("portable 16x8k", "opencl/portable"): 0.9,
    ("portable 16x8k, f32", "vulkan/portable"): 0.8,
    ("portable 16x8k, f32", "opencl/portable"): 0.9,
    ("portable 16x8k, head_dim 64", "vulkan/portable"): 0.8,
    ("portable 16x8k, head_dim 64", "opencl/portable"): 0.9,
}
DENSE_SHARES = {
    ("window 1024, 16x32k", "vulkan/coopmat"): 0.8,
    ("S2 blocks of 64, 16x128k", "vulkan/coopmat"): 0.85,
    ("S2 blocks of 32, 16x128k", "vulkan/coopmat"): 0.75,
    ("window 1024, 16x32k", "opencl/nv_mma"): 0.8,
    ("S2 blocks of 64, 16x128k", "opencl/nv_mma"): 0.85,
    ("S2 blocks of 32, 16x128k", "opencl/nv_mma"): 0.75,
}


def make_image(count):
    """Bytes that are numbers of 0.03 to 2 as any of the types, of both signs."""
    draw = random.Random(1)
    part = bytearray((4 << 20) + 512)
    part[0::2] = draw.randbytes(len(part) // 2)
    high = bytes([61, 62, 63, 62, 189, 190, 191, 190] * 32)
    part[1::2] = draw.randbytes(len(part) // 2).translate(high)
    return bytearray(part * (count // len(part) + 2))


class Memory:
    """Q, K, V and O of a device, as large as its largest problem needs."""

    def __init__(self, tessera, image, count):
        self.tessera, self.count = tessera, count
        self.buffers = [Buffer() for _ in range(4)]
        for n, buffer in enumerate(self.buffers):
            tessera.call("tess_alloc", tessera.device, u64(count), ctypes.byref(buffer))
            if n < 3:
                view = ctypes.c_char.from_buffer(image, 4098 * 64 * n)
                host = Buffer(kind=HOST, handle=ctypes.addressof(view), size=count)
                tessera.call("tess_copy", tessera.device, buffer, host, u64(count))

    def close(self):
        for buffer in self.buffers:
            self.tessera.call("tess_free", self.tessera.device, ctypes.byref(buffer))


class Work:
    """A plan of one kernel on such memory. A call gives the device's seconds."""

    def __init__(self, tessera, memory, kernel, problem):
        batch, heads, tokens, head_dim, dtype, which, _ = problem
        self.tessera, self.memory = tessera, memory
        self.plan = tessera.create(
            which,
            heads,
            heads,
            tokens,
            dtype=DTYPES[dtype],
            head_dim=head_dim,
            batch=batch,
            q_len=tokens,
            kv_len=tokens,
            kernel=kernel.encode(),
        )
        self.seconds = ctypes.c_double()
        self.run = new(RunDesc, device_seconds=ctypes.addressof(self.seconds))
        self.workspace, self.bytes = Buffer(), 0
        for role, (name, buffer) in enumerate(zip("qkvo", memory.buffers)):
            tensor, count = Tensor(), u64()
            words = role, buffer, ctypes.byref(tensor), ctypes.byref(count)
            tessera.call("tess_plan_tensor", self.plan.plan, *words)
            setattr(self.run, name, tensor)
            self.bytes = count.value
        if self.plan.info.workspace_bytes:
            size = u64(self.plan.info.workspace_bytes)
            tessera.call("tess_alloc", tessera.device, size, ctypes.byref(self.workspace))
            self.run.workspace = self.workspace
        self.size = 4 if dtype == "fp32" else 2
        self.form = {"fp32": "f", "fp16": "e", "bf16": "H"}[dtype]

    def __call__(self):
        self.tessera.call("tess_run", self.plan.plan, ctypes.byref(self.run))
        return self.seconds.value

    def sample(self):
        """Seconds of some runs after one that does not count."""
        count = int(min(20, max(2, SAMPLE / max(self(), 1e-9))))
        return [self() for _ in range(count)]

    def result(self):
        """Elements of O from its begin, its middle and its end, as floats."""
        count, found = min(PART, self.bytes), []
        image = bytearray(count)
        view = (ctypes.c_char * count).from_buffer(image)
        host = Buffer(kind=HOST, handle=ctypes.addressof(view), size=count)
        for at in 0, (self.bytes - count) // 8192 * 4096, self.bytes - count:
            part = Buffer.from_buffer_copy(self.run.o.buffer)
            part.offset += at
            self.tessera.call("tess_copy", self.tessera.device, host, part, u64(count))
            places = range(0, count // self.size, 997)
            found += [struct.unpack_from(self.form, image, n * self.size)[0] for n in places]
        if self.form == "H":
            found = [struct.unpack("f", struct.pack("I", word << 16))[0] for word in found]
        return found

    def close(self):
        if self.workspace.size:
            words = self.tessera.device, ctypes.byref(self.workspace)
            self.tessera.call("tess_free", *words)


def differs(found, wanted):
    """Whether two results are not the same, up to rounding. NaN differs."""
    error = sum((a - b) ** 2 for a, b in zip(found, wanted))
    return not error <= TOLERANCE**2 * sum(b * b for b in wanted)


def measure(bench, title, problem, memories):
    """TFLOP/s by kernel."""
    work = {}
    for kernel in problem[-1]:
        name = kernel.split("/")[0]
        try:
            work[kernel] = Work(bench.device(name), memories[name], kernel, problem)
        except SystemExit as error:
            bench.refused(f"{title}: {kernel}", error)
    first = None
    for kernel, one in work.items():
        end = time.perf_counter() + (0 if bench.options.dry else WARM_UP / len(work))
        one()
        while time.perf_counter() < end:
            one()
        found = one.result()
        first = first or found
        if differs(found, first):
            raise SystemExit(f"{title}: {kernel} has another result")
    seconds = turns(work, bench.options.rounds, Work.sample)
    rates = {}
    for kernel, one in work.items():
        rates[kernel] = 1e-12 * one.plan.info.flops / statistics.median(seconds[kernel])
        bench.show(f"{title}: {kernel}", rates[kernel], "TFLOP/s")
        one.close()
    return rates


def bars(bench, found):
    for (title, kernel), bar in RATES.items():
        if kernel in found.get(title, ()):
            bench.report(f"{title}: {kernel}", found[title][kernel], bar, "TFLOP/s")
    for (title, kernel), bar in SHARES.items():
        other = WORK[title][-1][0]
        if kernel in found.get(title, ()) and other in found[title]:
            share = found[title][kernel] / found[title][other]
            bench.report(f"{title}: {kernel} over {other}", share, bar)
    for (title, kernel), bar in DENSE_SHARES.items():
        if kernel in found.get(title, ()) and kernel in found.get(OWN_DENSE, ()):
            share = found[title][kernel] / found[OWN_DENSE][kernel]
            bench.report(f"{title}: {kernel}, of its dense rate", share, bar)


def rates(bench):
    work = DRY if bench.options.dry else WORK
    count = 1 << 20 if bench.options.dry else LARGEST
    image = make_image(count)
    memories = {name: Memory(bench.device(name), image, count) for name in bench.backends}
    found = {title: measure(bench, title, work[title], memories) for title in work}
    bars(bench, found)
    for memory in memories.values():
        memory.close()

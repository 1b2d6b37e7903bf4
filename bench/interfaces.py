#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Vulkan and OpenCL cost beside CUDA on one NVIDIA GPU, and their kernels' rates.

    python3 bench/interfaces.py --library build/release/libtessera.so [--only PART,...]
        [--rounds 15] [--runs 5] [--kernels NAME,...] [--problems DIM:TYPE,...] [--shim FOLDER]
        [--json F] [--dry]

rates   The kernels for matrix units, and the portable ones, on dense, S2 and windowed problems, in
        turns (interfaces_rates.py).
copies  tess_copy within a device, of 16, 256 and 1,500 MiB, read back and compared. The backends
        take turns in one process.
plans   tess_plan_create for 131,072 jobs of the portable kernel, in turns as well.
first   The first plan of a process: with empty caches, with Tessera's and the driver's (the median
        and the largest of --runs processes), and with Tessera's alone. One process at a time.
check   What a self-check adds to that. The kernels for NVIDIA's tensor cores do not check
        themselves there, so --shim names the folder of the library that stands in for Vulkan's
        loader in the tests (build/release/tests/vulkan/shim), which tells another vendor.

--kernels is for `first`: vulkan/coopmat,opencl/nv_mma. --problems is for `first` and `check`:
128:bf16,64:fp16. --dry runs all parts in small on the CPU; its figures mean nothing.
"""

import argparse
import ctypes
import glob
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import interfaces_rates
from peers_turns import Bars, on_host, ratio, turns, write_json
from tessera_ctypes import DENSE, HOST, Buffer, Tessera, pattern, u64

PARTS = "rates", "copies", "plans", "first", "check"
BACKENDS = "cuda", "vulkan", "opencl"  # the first one is what the others are compared with
SIZES = 16, 256, 1500  # MiB
WARM_UP = 0.5  # seconds; a GPU's clocks rise for so long
# A kernel and the problems whose plan is a process's first one, and bars in ms: cold, cached.
FIRST = {
    "vulkan/coopmat": (((64, "fp16"), (64, "bf16"), (128, "fp16"), (128, "bf16")), 1500, 50),
    "vulkan/portable": (((64, "bf16"), (128, "bf16"), (128, "fp32"), (256, "bf16")), 1500, 50),
    "opencl/nv_mma": (((64, "bf16"), (128, "bf16"), (256, "bf16")), 3000, 50),
    "opencl/portable": (((128, "bf16"), (128, "fp32")), 3000, 50),
}
DRY_FIRST = {"cpu/portable": (((64, "fp32"),), 1500, 50)}
OTHER_VENDOR = "vendor=4098"


def first_plan(path, kernel, head_dim, dtype):
    """Seconds of the first plan of this process."""
    tessera = Tessera(path, kernel.split("/")[0] + ":0")
    start = time.perf_counter()
    make_plan(tessera, kernel, 2, 512, int(head_dim), dtype)
    return time.perf_counter() - start


def make_plan(tessera, kernel, heads, tokens, head_dim, dtype):
    return tessera.create(
        pattern(DENSE, block=64),
        heads,
        heads,
        tokens,
        dtype={"fp32": 0, "fp16": 1, "bf16": 2}[dtype],
        head_dim=head_dim,
        batch=1,
        q_len=tokens,
        kv_len=tokens,
        kernel=kernel.encode(),
    )


def vulkan_loader():
    """The path of the loader, which the linker's cache knows."""
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    return re.search(r"libvulkan\.so\.1 .*=> (.*)", known)[1]


class Copy:
    """Two buffers of a device, the first with random bytes. A call copies it to the second."""

    def __init__(self, tessera, image):
        self.tessera, self.bytes = tessera, len(image)
        self.buffers = [Buffer(), Buffer()]
        for buffer in self.buffers:
            tessera.call("tess_alloc", tessera.device, u64(self.bytes), ctypes.byref(buffer))
        self.move(self.buffers[0], self.host(image))

    def host(self, image):
        view = (ctypes.c_char * len(image)).from_buffer(image)
        return Buffer(kind=HOST, handle=ctypes.addressof(view), size=len(image))

    def move(self, to, source):
        self.tessera.call("tess_copy", self.tessera.device, to, source, u64(self.bytes))

    def __call__(self):
        self.move(self.buffers[1], self.buffers[0])

    def close(self, image):
        """Frees both, and raises if the copy is another one."""
        got = bytearray(self.bytes)
        self.move(self.host(got), self.buffers[1])
        for buffer in self.buffers:
            self.tessera.call("tess_free", self.tessera.device, ctypes.byref(buffer))
        if got != image:
            raise SystemExit("a copy differs from its source")


class Bench(Bars):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.backends = ("cpu",) if options.dry else BACKENDS
        self.devices = {}

    def device(self, name):
        if name not in self.devices:
            self.devices[name] = Tessera(self.options.library, f"{name}:0")
        return self.devices[name]

    def show(self, title, value, unit):
        self.rows.append({"figure": title, "value": value, "unit": unit})
        print(f"           {title:66} {value:9.3f} {unit}", flush=True)

    def sample(self, runs):
        """Seconds of some calls after as many as warm a device up."""

        def measured(function):
            start = time.perf_counter()
            while time.perf_counter() - start < (0 if self.options.dry else WARM_UP / 5):
                function()
            return on_host(function, 0, lambda first: runs)

        return measured

    def rates(self):
        interfaces_rates.rates(self)

    def copies(self):
        for size in (1,) if self.options.dry else SIZES:
            part = random.Random(1).randbytes(1 << 20)
            image = bytearray(part * size)
            work = {name: Copy(self.device(name), image) for name in self.backends}
            seconds = turns(work, self.options.rounds, self.sample(3))
            for name, copy in work.items():
                copy.close(image)
                rate = 2e-12 * len(image) / statistics.median(seconds[name])
                self.show(f"{name}: copy of {size} MiB, read and written", rate, "TB/s")
                if name == "vulkan":
                    other = ratio(seconds[self.backends[0]], seconds[name])
                    title = f"{name}: copy of {size} MiB, over {self.backends[0]}"
                    # The bar is of the rate, and what a call takes bounds small copies.
                    if size >= 256:
                        self.report(title, other, 0.9)
                    else:
                        self.show(title, other, "x")

    def plans(self):
        tokens, heads = (512, 2) if self.options.dry else (131072, 64)
        work, jobs = {}, {}
        for name in self.backends:

            def make(device=self.device(name), kernel=f"{name}/portable"):
                return make_plan(device, kernel, heads, tokens, 128, "bf16")

            work[name], jobs[name] = make, make().info.n_jobs
        seconds = turns(work, self.options.rounds, self.sample(1))
        for name in self.backends:
            title = f"{name}: plan of {jobs[name]} jobs of {name}/portable"
            self.show(title, 1e3 * statistics.median(seconds[name]), "ms")

    def child(self, folder, kernel, problem, environment):
        """Milliseconds of the first plan of a new process, and what the library logged."""
        own = {
            "TESSERA_CACHE_DIR": os.path.join(folder, "t"),
            "__GL_SHADER_DISK_CACHE_PATH": os.path.join(folder, "gl"),
            "CUDA_CACHE_PATH": os.path.join(folder, "cu"),
        }
        for place in own.values():
            os.makedirs(place, 0o700, exist_ok=True)
        command = [sys.executable, __file__, "--library", self.options.library, "--child", kernel]
        done = subprocess.run(
            command + [str(word) for word in problem],
            capture_output=True,
            text=True,
            env=dict(os.environ, **own, **environment),
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-300:])
        return 1e3 * json.loads(done.stdout), done.stderr

    def first_of(self, kernel, problem, cold, cached):
        alone = {"__GL_SHADER_DISK_CACHE": "0", "CUDA_CACHE_DISABLE": "1"}
        with tempfile.TemporaryDirectory() as folder:
            nothing = self.child(folder, kernel, problem, {})[0]
            runs = range(self.options.runs)
            both = [self.child(folder, kernel, problem, {})[0] for _ in runs]
            own = [self.child(folder, kernel, problem, alone)[0] for _ in runs[:2]]
        title = f"{kernel}, head_dim {problem[0]}, {problem[1]}: first plan"
        self.report(f"{title}, nothing cached", nothing, cold, "ms", at_most=True)
        self.report(f"{title}, cached, median", statistics.median(both), cached, "ms", at_most=True)
        self.show(f"{title}, cached, largest", max(both), "ms")
        self.show(f"{title}, without the driver's cache", max(own), "ms")

    def wanted(self, problems):
        """Those that --problems names."""
        names = self.options.problems
        return [each for each in problems if not names or "%d:%s" % each in names.split(",")]

    def first(self):
        for kernel, (problems, cold, cached) in (DRY_FIRST if self.options.dry else FIRST).items():
            if self.options.kernels and kernel not in self.options.kernels.split(","):
                continue
            for problem in self.wanted(problems):
                try:
                    self.first_of(kernel, problem, cold, cached)
                except RuntimeError as error:
                    self.refused(f"{kernel}, head_dim {problem[0]}, {problem[1]}", error)

    def check(self):
        if not self.options.shim:
            self.not_yet("self-check: 20 ms", "--shim names the folder of a stand-in for Vulkan")
            return
        environment = {
            "LD_LIBRARY_PATH": self.options.shim + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
            "TESSERA_TEST_VULKAN": vulkan_loader(),
            "TESSERA_TEST_VULKAN_LIMITS": OTHER_VENDOR,
            "TESSERA_VERBOSE": "dispatch",
        }
        for problem in self.wanted(FIRST["vulkan/coopmat"][0]):
            with tempfile.TemporaryDirectory() as folder:
                words = folder, "vulkan/coopmat", problem, environment
                self.child(*words)
                added, logged = [], []
                for _ in range(self.options.runs):
                    known = self.child(*words)[0]
                    for path in glob.glob(os.path.join(folder, "t", "*")):
                        if os.path.getsize(path) < 1024:  # verdicts; code is larger
                            os.remove(path)
                    took, log = self.child(*words)
                    added.append(took - known)
                    logged += map(float, re.findall(r"checked itself in ([\d.]+) ms", log))
            title = f"vulkan/coopmat, head_dim {problem[0]}, {problem[1]}: self-check"
            self.report(f"{title} adds, median", statistics.median(added), 20, "ms", at_most=True)
            self.show(f"{title} without the portable kernel's code, median",
                      statistics.median(logged), "ms")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kernels")
    parser.add_argument("--problems")
    parser.add_argument("--shim")
    parser.add_argument("--json")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    if options.child:
        print(first_plan(options.library, *options.child))
        return 0
    for part in options.only.split(","):
        if part not in PARTS:
            parser.error(f"--only: {part} is none of {', '.join(PARTS)}")
    bench = Bench(options)
    for part in options.only.split(","):
        getattr(bench, part)()
    bench.count()
    write_json(options.json, bench.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The parts of peers_decode.py that the tessera program times: OpenCL and Vulkan cannot share
PyTorch's memory, and a call through ctypes takes longer than tess_run does."""

import json
import os
import statistics
import subprocess
import tempfile

PORTABLE = (("opencl", 0.5), ("vulkan", 0.5), ("cuda", 0.6))  # backends, and their shares of R
SAMPLED = 15  # seconds: the --budget of a problem that may take seconds to set up


class Portable:
    """What Bench has beside plain decode. Bench measures and reports."""

    def programmed(self, words, device, *more, kernel=None):
        """The results of the program on a device, in the format of docs/bench.md, or raises
        RuntimeError. Without a kernel the plan chooses."""
        environment = dict(os.environ, **({"TESSERA_KERNEL": kernel} if kernel else {}))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            command = [self.options.program, "bench", "op=decode", *words.split()]
            command += ["--backends", device, "--json", path, "--no-ceilings", "--no-planning"]
            done = subprocess.run(
                command + list(more), capture_output=True, text=True, env=environment
            )
            if done.returncode != 0:
                raise RuntimeError((done.stderr or done.stdout)[-300:])
            with open(path) as file:
                results = json.load(file)["results"]
        for result in results:
            if result["status"] != "ok":
                raise RuntimeError(f"{result['problem']}: {result['note']}")
        return results

    def has_program(self, title):
        there = bool(self.options.program) and os.path.isfile(self.options.program)
        if not there:
            self.not_yet(title, f"--program: {self.options.program or 'none'} is no program")
        return there

    def host(self):
        """The time of tess_run on the host."""
        if not self.has_program("tess_run on the host: 5 us"):
            return
        for tokens in 4096, 32768:
            words = f"pattern=dense dtype=bf16 kv_len={tokens} heads=32 kv_heads=8 head_dim=128"
            took = self.programmed(words, self.device.tessera_name)[0].get("host_seconds")
            if took is None:
                self.not_yet("tess_run on the host", "a CPU's call returns when it is done")
                return
            title = f"tess_run on the host, 1 x {tokens}"
            self.report(title, took * 1e6, 5.0, "us", at_most=True)

    def portable(self):
        """The portable kernels on dense decode, and on an S2 layer beside its own dense twin."""
        if not self.has_program("OpenCL, Vulkan and cuda/portable: 0.5, 0.5 and 0.6 R; S2 8x"):
            return
        seconds = self.turns([(name, 1, run) for name, _, run in self.memory()])
        rates = [size / statistics.median(seconds[name]) for name, size, _ in self.memory()]
        best = max(rates + [self.best_dense])
        batch, tokens = self.device.size(16, 32768)
        shape = f"dtype=f16 head_dim=128 batch={batch} kv_len={tokens}"
        sparse = "pattern=s2 block=64 local=8 stride=16 per_kv_head=1 heads=64 kv_heads=16"
        for backend, bar in PORTABLE:
            # The first device alone: a machine may have one in software beside its GPU.
            on = self.device.tessera_name if self.device.dry else f"{backend}:0"
            kernel = None if self.device.dry else f"{backend}/portable"
            title = f"{backend}/portable, f16, {batch} x {tokens}"
            try:
                words = f"pattern=dense heads=32 kv_heads=8 {shape}"
                dense = self.programmed(words, on, "--budget", str(SAMPLED), kernel=kernel)[0]
                pair = self.programmed(
                    f"{sparse} {shape}", on, "--budget", str(SAMPLED), kernel=kernel
                )
            except RuntimeError as error:
                self.refused(title, error)
                continue
            self.share_of_r(title, dense["samples_seconds"], dense["bytes_min"], best, bar)
            for result in [dense] + pair:
                took, rate = result["median_seconds"], result["byte_rate"]
                print(
                    f"    {result['pattern']} {result['heads']}/{result['kv_heads']}"
                    f" [{result['kernel']}, {result['jobs']:.0f} jobs]"
                    f" {took * 1e6:11.2f} us   {rate * 1e-12:7.3f} TB/s",
                    flush=True,
                )
            self.report(
                f"{title}, S2 of 64/16 heads: over its own dense",
                pair[0]["speedup"],
                8.0,
                spread_of=[result["samples_seconds"] for result in pair],
            )

# SPDX-License-Identifier: Apache-2.0
"""Training steps whose packed lengths are new every time: memory, and what planning costs."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import tessera
from gpu_checks import DEVICE, PATTERN, bar, check
from tessera import _native, _plans

MIB = 1 << 20


def cuts(generator: torch.Generator, tokens: int, sequences: int) -> list[int]:
    inner = torch.randint(1, tokens, (sequences - 1,), generator=generator).sort().values
    return [0, *inner.tolist(), tokens]


def resident() -> int:
    """Bytes of this process in host memory."""
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used() -> int:
    """Bytes of the device that are in use, whoever asked for them."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def train(x: torch.Tensor, cu: Any, pattern: tessera.Pattern) -> None:
    o = tessera.attention(x, x, x, pattern, layout="thd", cu_seqlens_q=cu)
    torch.autograd.grad(o, x, o.detach())


@check
def ten_thousand_steps_of_new_lengths() -> str:
    steps, tokens = 10_000, 4096
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 4, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    memory = {}
    begin = time.perf_counter()
    for n in range(steps):
        train(x, cuts(generator, tokens, 16), PATTERN)
        if n + 1 in (100, 1000, steps // 2, steps):
            torch.cuda.synchronize()
            memory[n + 1] = (resident() / MIB, used() / MIB)
    seconds = time.perf_counter() - begin
    host, device = ([at[n] - memory[100][n] for at in memory.values()] for n in (0, 1))
    assert max(host) < 48 and max(device) < 16, memory
    return (
        f"{seconds / steps * 1e3:.3f} ms a step; MiB more than after step 100: host "
        f"{[round(n, 1) for n in host]}, device {[round(n, 1) for n in device]}"
    )


class Planning:
    """While it is entered, adds up the seconds that plans take: forward ones, backward ones, and
    what of both tess_plan_create says that it took."""

    def __enter__(self) -> Planning:
        self.seconds, self.within = [0.0, 0.0], 0.0
        self.init, self.create = _plans.Plan.__init__, _native.create_plan

        def init(plan: _plans.Plan, problem: _plans.Problem) -> None:
            begin = time.perf_counter()
            self.init(plan, problem)
            self.seconds[problem.op] += time.perf_counter() - begin

        def create(*arguments: Any) -> tuple[Any, Any]:
            plan, info = self.create(*arguments)
            self.within += info.create_seconds
            return plan, info

        _plans.Plan.__init__ = init  # type: ignore[method-assign]
        _native.create_plan = create
        return self

    def __exit__(self, *_: Any) -> None:
        _plans.Plan.__init__ = self.init  # type: ignore[method-assign]
        _native.create_plan = self.create


@check
def planning_of_64k_tokens() -> str:
    """The share of a step that new lengths cost: S2 (B=64, L=8, V=16), 16 heads, D=128. Each list
    of lengths is first new and then known."""
    tokens, pattern, many = 65536, tessera.S2(64, 8, 16), 40
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, 16, 128, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    limits = tessera.cache_info()
    # Room for the plans of the steps below, which drop as many others, and of captured graphs.
    tessera.cache_limits(plans=limits.plans + 2 * many, bytes=limits.bytes + 256 * MIB)
    words = []
    for sequences in (1, 8, 32):
        lists = [cuts(generator, tokens, sequences) for _ in range(100)]
        if sequences == 1:  # one sequence, of a new length each
            lists = [[0, tokens - 64 * n - 1] for n in range(100)]
        # Until the cache drops plans, their tables are new memory of the device.
        given, steps = lists[-many:], many - 1
        for cu in lists[:-many]:
            train(x, cu, pattern)
        times, issued, spent = [], [], []
        for _ in ("new", "known"):
            train(x, given[0], pattern)
            torch.cuda.synchronize()
            with Planning() as planning:
                begin = time.perf_counter()
                for cu in given[1:]:
                    train(x, cu, pattern)
                issued.append((time.perf_counter() - begin) / steps * 1e3)
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) / steps * 1e3)
            spent.append([s / steps * 1e3 for s in (*planning.seconds, planning.within)])
        assert spent[1] == [0, 0, 0], "a plan of known lengths was made again"
        (forward, backward, within), (new, known) = spent[0], times
        plans, growth = forward + backward, new / known - 1
        words.append(
            f"{sequences} sequences: {known:.2f} ms a step with known lengths, {new:.2f} "
            f"with new ones ({growth:+.1%}); on the host "
            f"{issued[0]:.2f} ms, of them planning {plans:.3f} ms, "
            f"{plans / new:.1%} of the step {bar('10 %', max(growth, plans / new) < 0.1)} "
            f"(forward {forward:.3f} ms, backward {backward:.3f}; tess_plan_create {within:.3f})"
        )
    tessera.cache_limits(plans=limits.max_plans, bytes=limits.max_bytes)
    return "; ".join(words)

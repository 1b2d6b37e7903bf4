# SPDX-License-Identifier: Apache-2.0
"""Training steps whose packed lengths are new every time: memory, and what planning costs."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import tessera
from gpu_checks import DEVICE, PATTERN, bar, check
from tessera import _plans

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


@check
def planning_of_64k_tokens() -> str:
    """The share of a step that new lengths cost: S2 (B=64, L=8, V=16), 16 heads, D=128."""
    tokens, pattern = 65536, tessera.S2(64, 8, 16)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, 16, 128, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    spent = [0.0]
    real = _plans.Plan.__init__

    def timed(*arguments: Any) -> None:
        begin = time.perf_counter()
        real(*arguments)
        spent[0] += time.perf_counter() - begin

    words = []
    for sequences in (1, 8, 32):
        lists = [cuts(generator, tokens, sequences) for _ in range(100)]
        if sequences == 1:  # one sequence, of a new length each
            lists = [[0, tokens - 64 * n - 1] for n in range(100)]
        # Until the cache drops plans, their tables are new memory of the device.
        known, new = [lists[0]] * 40, lists[60:]
        for cu in lists[:60]:
            train(x, cu, pattern)
        times = []
        for given in (known, new):
            train(x, given[0], pattern)
            torch.cuda.synchronize()
            spent[0], _plans.Plan.__init__ = 0.0, timed  # type: ignore[method-assign]
            begin = time.perf_counter()
            for cu in given[1:]:
                train(x, cu, pattern)
            issued = time.perf_counter() - begin
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / (len(given) - 1) * 1e3)
            _plans.Plan.__init__ = real  # type: ignore[method-assign]
        plans, steps = spent[0] * 1e3 / (len(new) - 1), len(new) - 1
        share = max(times[1] / times[0] - 1, plans / times[1])
        words.append(
            f"{sequences} sequences: {times[0]:.2f} ms a step with known lengths, {times[1]:.2f} "
            f"with new ones ({times[1] / times[0] - 1:+.1%}); on the host "
            f"{issued / steps * 1e3:.2f} ms, of them planning {plans:.3f} ms, "
            f"{plans / times[1]:.1%} of the step {bar('10 %', share < 0.1)}"
        )
    return "; ".join(words)

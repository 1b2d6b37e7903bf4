# SPDX-License-Identifier: Apache-2.0
"""What the checks of gpu.py share."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tessera

DEVICE = torch.device("cuda")
PATTERN = tessera.S2(64, 2, 4)
CHECKS: list[Callable[[], str | None]] = []


def check(function: Callable[[], str | None]) -> Callable[[], str | None]:
    CHECKS.append(function)
    return function


def tensors(
    rows: int = 300, heads: int = 8, kv_heads: int = 4, dim: int = 64, dtype: Any = torch.bfloat16
) -> list[torch.Tensor]:
    return [
        torch.randn(2, rows, n, dim, device=DEVICE, dtype=dtype, requires_grad=True)
        for n in (heads, kv_heads, kv_heads)
    ]


def step(inputs: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    o = tessera.attention(*inputs, PATTERN, **options)
    return [o.detach(), *torch.autograd.grad(o.float().square().sum(), inputs)]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def microseconds(steps: dict[str, Callable[[], Any]], number: int = 200) -> dict[str, float]:
    """Wall time of calls on the host, in turns, device work not waited for; medians of rounds."""
    for function in steps.values():
        for _ in range(50):
            function()
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(9):
        for name, function in steps.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(number):
                function()
            rounds[name].append((time.perf_counter() - begin) / number * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(found) for name, found in rounds.items()}


def bar(what: str, met: bool) -> str:
    """Words on a bar. One that is missed fails no check: times vary from machine to machine."""
    return f"(bar {what}: {'met' if met else 'MISSED'})"


def main(checks: Sequence[Callable[[], str | None]]) -> int:
    """Runs checks, prints a line for each, and returns 1 if any failed or all were skipped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    parser.add_argument("--only", default="", help="names of checks, a regular expression")
    options = parser.parse_args()
    tessera.load(options.library)
    tessera.info()
    torch.manual_seed(0)
    failed = skipped = 0
    chosen = [one for one in checks if re.search(options.only, one.__name__)]
    for function in chosen:
        begin = time.perf_counter()
        try:
            said = function() or ""
            torch.cuda.synchronize()
            missing = said.startswith("skipped")
            skipped += missing
            state = "skip" if missing else "ok"
            print(f"{state:6} {function.__name__} ({time.perf_counter() - begin:.1f} s) {said}")
        except Exception:
            failed += 1
            print(f"FAILED {function.__name__}\n{traceback.format_exc()}")
        sys.stdout.flush()
    print(f"{len(chosen) - failed - skipped} of {len(chosen)} passed, {skipped} skipped")
    return int(failed > 0 or skipped == len(chosen))

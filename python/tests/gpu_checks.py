# SPDX-License-Identifier: Apache-2.0
"""What the checks of gpu.py share."""

from __future__ import annotations

import time
from collections.abc import Callable
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


def microseconds(function: Callable[[], Any], number: int = 200) -> float:
    """Wall time of a call on the host, device work not waited for; the median of seven rounds."""
    for _ in range(50):
        function()
    rounds = []
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            function()
        rounds.append((time.perf_counter() - begin) / number)
    torch.cuda.synchronize()
    return sorted(rounds)[3] * 1e6

# SPDX-License-Identifier: Apache-2.0
"""Host time of a small call beside PyTorch's own attention: `python3 python/tests/host_time.py`.

CPU time of this thread, the least of many rounds, in turns: what the call costs beside the work
itself. The library's own part, tess_run with its kernel, is told too, and so is an
autograd.Function that saves and makes as many tensors and computes nothing. TESSERA_CPU_THREADS=1
keeps other threads out of it.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tessera
from tessera import _plans

Step = Callable[[], Any]


class Empty(torch.autograd.Function):
    """Attention that computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, o, q.new_empty(q.shape[0], q.shape[2], q.shape[1]))
        return o

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor) -> Any:
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@contextlib.contextmanager
def nothing_run() -> Iterator[None]:
    """Prepared calls end before tess_run."""
    calls = list(_plans.calls.values())
    real = [call.run_c for call in calls]
    for call in calls:
        call.run_c = lambda *_: 0
    try:
        yield
    finally:
        for call, function in zip(calls, real, strict=True):
            call.run_c = function


def microseconds(steps: dict[str, Step], number: int = 500, rounds: int = 31) -> dict[str, float]:
    """Of each, in turns, so that a slower clock meets all of them."""
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            with nothing_run() if name == "nothing run" else contextlib.nullcontext():
                taken = timeit.timeit(step, number=number, timer=time.thread_time)
            least[name] = min(least[name], taken / number * 1e6)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library")
    tessera.load(parser.parse_args().library)
    torch.set_num_threads(1)
    pattern = tessera.S2(16, 1, 2)
    ours = [torch.randn(1, 16, 2, 16) for _ in range(3)]
    theirs = [x.transpose(1, 2) for x in ours]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for grad in (False, True):
        ours = [x.detach().requires_grad_(grad) for x in ours]
        theirs = [x.detach().requires_grad_(grad) for x in theirs]
        d_o = torch.randn(1, 16, 2, 16)
        d_t = d_o.transpose(1, 2)

        def mine() -> Any:
            o = tessera.attention(*ours, pattern)  # noqa: B023
            return torch.autograd.grad(o, ours, d_o) if grad else o  # noqa: B023

        def peer() -> Any:
            o = sdpa(*theirs, is_causal=True)  # noqa: B023
            return torch.autograd.grad(o, theirs, d_t) if grad else o  # noqa: B023

        def empty() -> Any:
            o = Empty.apply(*ours)  # noqa: B023
            return torch.autograd.grad(o, ours, d_o) if grad else o  # noqa: B023

        tessera.cache_clear()
        steps = {"ours": mine, "SDPA": peer, "empty": empty, "nothing run": mine}
        found = microseconds(steps)
        of_c, ratio = found["ours"] - found["nothing run"], found["ours"] / found["SDPA"]
        name = "forward and backward" if grad else "forward"
        print(
            f"{name}: {found['ours']:.1f} us, of it tess_run {of_c:.1f}; "
            f"SDPA {found['SDPA']:.1f} us, {ratio:.2f} x (bar 1.40: "
            f"{'met' if ratio <= 1.4 else 'MISSED'}); "
            f"an empty autograd.Function {found['empty']:.1f} us"
        )


if __name__ == "__main__":
    main()

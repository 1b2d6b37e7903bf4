# SPDX-License-Identifier: Apache-2.0
"""Host time of a small call beside PyTorch's own attention: `python3 python/tests/host_time.py`.

CPU time of this thread, the least of many rounds: what the call costs beside the work itself. The
library's own part, tess_run with its kernel, is told too. TESSERA_CPU_THREADS=1 keeps other threads
out of it.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

import tessera
from tessera import _plans


def microseconds(function: Callable[[], Any], number: int = 1000) -> float:
    function()
    rounds = timeit.repeat(function, number=number, repeat=21, timer=time.thread_time)
    return min(rounds) / number * 1e6


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

        tessera.cache_clear()
        a, b = microseconds(mine), microseconds(peer)
        calls, spent = list(_plans.calls.values()), 0.0
        for call in calls:
            real = call.run_c
            call.run_c = lambda *_: 0
            without = microseconds(mine)
            call.run_c = real
            spent += a - without
        name = "forward and backward" if grad else "forward"
        print(f"{name}: {a:.1f} us, of it tess_run {spent:.1f}; SDPA {b:.1f} us")


if __name__ == "__main__":
    main()

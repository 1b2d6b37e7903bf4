# SPDX-License-Identifier: Apache-2.0
"""What one CUDA GPU has to prove: `python3 python/tests/gpu.py [--library FILE]`.

Results and gradients against PyTorch on the GPU; streams, the allocator, captured graphs,
torch.compile, lengths on the device and ever new ones; host time beside PyTorch's own attention.
Prints a line for each and ends with 1 if any failed. Under ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import gpu_cache
import reference
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


@check
def results_and_gradients() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for heads, kv_heads, dim in ((4, 4, 64), (8, 2, 128), (6, 3, 40)):
            inputs = tensors(200, heads, kv_heads, dim, dtype)
            o, lse = tessera.attention(*inputs, PATTERN, return_lse=True)
            d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
            found = torch.autograd.grad([o, lse], inputs, [d_o, d_lse])
            copies = [x.detach().cpu().requires_grad_() for x in inputs]
            ro, rlse = reference.attention(*copies, PATTERN)
            expected = torch.autograd.grad(
                [ro, rlse], copies, [d_o.cpu().double(), d_lse.cpu().double()]
            )
            for got, wanted in zip((o, lse, *found), (ro, rlse, *expected), strict=True):
                reference.near(got.cpu(), wanted, dtype)


@check
def streams_and_the_allocator() -> None:
    inputs = tensors(2000)
    expected = step(inputs)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results: list[list[torch.Tensor]] = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                # Fill what the allocator hands out next, so that early use of it shows.
                torch.full((1 << 24,), float("nan"), device=DEVICE)
                results.append(step(inputs))
    torch.cuda.synchronize()
    for found in results:
        same(found, expected)


@check
def backward_in_another_thread_and_side_stream() -> None:
    inputs = tensors()
    expected, found = step(inputs), []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(step(inputs))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        same(one, expected)


@check
def captured_and_replayed() -> None:
    inputs = tensors()
    step(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(inputs)
    for _ in range(3):
        with torch.no_grad():
            for x in inputs:
                x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        same(captured, step(inputs))
    tessera.cache_limits(plans=1)
    for rows in range(1, 20):
        step(tensors(rows))
    graph.replay()
    torch.cuda.synchronize()
    same(captured, step(inputs))
    tessera.cache_limits(plans=64)


@check
def a_capture_without_a_plan_is_an_error() -> None:
    tessera.cache_clear()
    inputs = [x.detach() for x in tensors(777)]
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tessera.attention(*inputs, PATTERN)
    except tessera.InvalidArgument as error:
        assert "run once" in str(error)
    else:
        raise AssertionError("no error")
    torch.cuda.synchronize()
    tessera.attention(*inputs, PATTERN)


@check
def compiled_with_graphs() -> None:
    inputs = [x.detach() for x in tensors()]
    compiled = torch.compile(
        lambda q, k, v: tessera.attention(q, k, v, PATTERN) * 2,
        fullgraph=True,
        mode="reduce-overhead",
    )
    expected = tessera.attention(*inputs, PATTERN) * 2
    for _ in range(5):
        assert torch.equal(compiled(*inputs).clone(), expected)


@check
def lengths_on_the_device() -> None:
    x = torch.randn(1000, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    for end in (100, 700, 1000):
        cu = torch.tensor([0, 33, end], device=DEVICE, dtype=torch.int32)
        found = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        listed = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu.tolist())
        assert torch.equal(found, listed)
        cu[1] = 40
        changed = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        assert not torch.equal(changed, found)


@check
def another_device_than_the_current_one() -> str | None:
    if torch.cuda.device_count() < 2:
        return "skipped: one GPU"
    inputs = tensors()
    with torch.cuda.device(1):
        other = [x.detach().to("cuda:1").requires_grad_() for x in inputs]
    assert torch.cuda.current_device() == 0
    found = step(other)
    assert all(x.device.index == 1 for x in found)
    same([x.to("cuda:0") for x in found], step(inputs))
    return None


@check
def ever_new_lengths() -> str:
    tokens, generator = 8192, torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 8, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    memory, begin = [], time.perf_counter()
    for n in range(2000):
        cuts = torch.randint(1, tokens, (15,), generator=generator).sort().values
        cu = [0, *cuts.tolist(), tokens]
        o = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        torch.autograd.grad(o.sum(), x)
        if n in (200, 1999):
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            memory.append(total - free)
    seconds = time.perf_counter() - begin
    assert memory[1] - memory[0] < 64 << 20, memory
    return f"{seconds / 2000 * 1e3:.2f} ms a step, {(memory[1] - memory[0]) >> 20} MiB more"


def _microseconds(function: Callable[[], Any]) -> float:
    for _ in range(50):
        function()
    best = []
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            function()
        best.append((time.perf_counter() - begin) / 200)
    torch.cuda.synchronize()
    return sorted(best)[3] * 1e6


@check
def host_time() -> str:
    inputs = [torch.randn(1, 64, 2, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    words = []
    for grad in (False, True):
        ours = [x.clone().requires_grad_(grad) for x in inputs]
        theirs = [x.transpose(1, 2).clone().requires_grad_(grad) for x in inputs]
        d_o = torch.ones_like(ours[0])
        d_t = torch.ones_like(theirs[0])

        def run(function: Any, q: Any, d: Any) -> Any:
            o = function(*q)
            return torch.autograd.grad(o, q, d) if q[0].requires_grad else o

        def sdpa(q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def attention(q: Any, k: Any, v: Any) -> Any:
            return tessera.attention(q, k, v, PATTERN)

        mine = _microseconds(lambda: run(attention, ours, d_o))  # noqa: B023
        peer = _microseconds(lambda: run(sdpa, theirs, d_t))  # noqa: B023
        name = "forward and backward" if grad else "forward"
        words.append(f"{name}: {mine:.1f} us, SDPA {peer:.1f} us, {mine / peer:.2f} x")
    return "; ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    tessera.load(parser.parse_args().library)
    tessera.info()
    torch.manual_seed(0)
    failed = 0
    CHECKS.extend(gpu_cache.CHECKS)
    for function in CHECKS:
        begin = time.perf_counter()
        try:
            said = function() or ""
            torch.cuda.synchronize()
            print(f"ok     {function.__name__} ({time.perf_counter() - begin:.1f} s) {said}")
        except Exception:
            failed += 1
            print(f"FAILED {function.__name__}\n{traceback.format_exc()}")
        sys.stdout.flush()
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

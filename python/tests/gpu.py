# SPDX-License-Identifier: Apache-2.0
"""What one CUDA GPU has to prove: `python3 python/tests/gpu.py [--library FILE] [--only REGEX]`.

Results and gradients against PyTorch; streams, the allocator, captured graphs, torch.compile,
lengths on the device; the adapters (gpu_adapters.py); ten thousand steps of new lengths
(gpu_steps.py); host time beside PyTorch's own attention; KV caches (gpu_cache.py); with two GPUs
what only they can show (gpu_two.py). Prints a line for each and ends with 1 if any failed. Under
two minutes on an H200.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

import gpu_cache
import gpu_two
import reference
import torch

import tessera
from gpu_checks import (
    CHECKS,
    DEVICE,
    PATTERN,
    bar,
    check,
    main,
    microseconds,
    same,
    step,
    tensors,
)


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
def graphed_callables() -> None:
    """PyTorch captures forward and backward of a module by itself."""

    class Layer(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return tessera.attention(q, k, v, PATTERN)

    graphed = torch.cuda.make_graphed_callables(Layer(), tuple(tensors()))
    for _ in range(3):
        inputs = tensors()
        o = graphed(*inputs)
        grads = torch.autograd.grad(o.float().square().sum(), inputs)
        same([o.detach(), *grads], step(inputs))


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
    """mode="reduce-overhead" captures graphs by itself, of forward and of backward."""

    def model(q: Any, k: Any, v: Any) -> Any:
        return tessera.attention(q * 2, k, v, PATTERN) * 2

    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        inputs = tensors()
        with torch.no_grad():
            assert torch.equal(compiled(*inputs), model(*inputs))
    for _ in range(5):
        inputs = tensors()
        torch.compiler.cudagraph_mark_step_begin()
        results = []
        for function in (compiled, model):
            o = function(*inputs)
            grads = torch.autograd.grad(o.float().square().sum(), inputs)
            results.append([o.detach().clone(), *(x.clone() for x in grads)])
        same(*results)


@check
def a_stream_of_someone_else() -> None:
    """Its owner may destroy it before the plan is dropped."""
    inputs = [x.detach() for x in tensors(123)]
    expected = tessera.attention(*inputs, PATTERN)
    tessera.cache_clear()
    driver = ctypes.CDLL("libcuda.so.1")
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 0) == 0
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
        found = tessera.attention(*inputs, PATTERN)
    torch.cuda.synchronize()
    assert torch.equal(found, expected)
    assert driver.cuStreamDestroy_v2(stream) == 0
    tessera.cache_clear()


@check
def lengths_on_the_device() -> None:
    x = torch.randn(1000, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    for end in (100, 700, 1000):
        cu = torch.tensor([0, 33, end], device=DEVICE, dtype=torch.int32)
        found = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        listed = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu.tolist())
        assert torch.equal(found, listed)
        # They were copied once, so that this does not wait for the device again.
        torch.cuda.set_sync_debug_mode("error")
        try:
            again = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(found, again)
        cu[1] = 40
        changed = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        assert not torch.equal(changed, found)


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

        found = microseconds({
            "ours": lambda: run(attention, ours, d_o),  # noqa: B023
            "SDPA": lambda: run(sdpa, theirs, d_t),  # noqa: B023
        })  # fmt: skip
        mine, peer = found["ours"], found["SDPA"]
        name, most = ("forward and backward", 80) if grad else ("forward", 25)
        words.append(
            f"{name}: {mine:.1f} us, SDPA {peer:.1f} us, {mine / peer:.2f} x "
            + bar(f"1.4 x, {most} us", mine <= 1.4 * peer and mine <= most)
        )
    return "; ".join(words)


if __name__ == "__main__":
    import gpu_adapters  # noqa: F401
    import gpu_steps  # noqa: F401

    sys.exit(main(CHECKS + gpu_cache.CHECKS + gpu_two.CHECKS))

# SPDX-License-Identifier: Apache-2.0
"""A training step of S2 attention on one NVIDIA GPU beside DKernel and beside the C library alone:
`python3 python/tests/bars.py [--library FILE] [--dkernel FOLDER] [--quick]`.

Forward and backward, bf16, S2 with blocks of 64, 8 local ones, a stride of as many as heads. The
contestants take turns in one process: tessera.attention with deterministic gradients and without
the guarantee; the same plans run by tess_run on tensors that are there already; DKernel, where a
folder with its package is given. Each is checked against the first before its time counts. Prints
a line for each shape, and ends with 1 where a bar is missed.

At 2,048 tokens the device may wait for the host, mostly for PyTorch's own threads. So there the
step is also taken without threads of autograd, captured into a graph and replayed, and eight times
in one backward, as layers of a model are. What PyTorch itself takes stands beside: the same plans
run by an autograd.Function that does nothing else, and one that runs nothing at all.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import host_time
import torch

import tessera
from tessera import _cuda, _plans

DIM, BLOCK, LOCAL = 128, 64, 8
Step = Callable[[], Any]


def tensors(tokens: int, heads: int) -> list[torch.Tensor]:
    return [
        torch.randn(1, tokens, heads, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]


def trained(call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> Step:
    """Forward and backward by autograd."""

    def step() -> Any:
        o = call(*inputs)
        return (o.detach(), *torch.autograd.grad(o, inputs, d_o))

    return step


def prepared(
    call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor
) -> tuple[Step, Step, tuple[torch.Tensor, ...]]:
    """The plans of such a step, run on tensors that are there already: forward and backward, and
    what they write: O and the gradients."""
    tessera.cache_clear()
    o, d_q, d_k, d_v = trained(call, inputs, d_o)()
    *_, forward, backward = _plans.calls.values()  # behind those of other captured steps
    q, k, v = inputs
    lse = torch.empty(1, q.shape[2], q.shape[1], device="cuda")
    read = (q, k, v, o, lse)
    written = (d_o, d_q, d_k, d_v)
    first = [x.data_ptr() for x in read]
    second = [x.data_ptr() for x in (*read, *written)]
    size = max(1, forward.workspace, backward.workspace)
    work = torch.empty(size, device="cuda", dtype=torch.uint8)
    stream = _cuda.current_stream(0)
    for x in (o, d_q, d_k, d_v):  # what is compared later is what these runs write
        x.fill_(torch.nan)
    keep = read, written  # the memory behind the addresses

    def run_forward() -> None:
        forward.run(forward.fill(first), work.data_ptr(), stream)

    def run_backward() -> Any:
        backward.run(backward.fill(second), work.data_ptr(), stream)
        return keep

    return run_forward, run_backward, (o, d_q, d_k, d_v)


def bare(call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> Step:
    """The plans of such a step alone."""
    forward, backward, results = prepared(call, inputs, d_o)

    def step() -> Any:
        forward()
        backward()
        return results

    return step


def by_autograd(call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> Step:
    """The plans of such a step, run by an autograd.Function that does nothing else."""
    forward, backward, (o, *gradients) = prepared(call, inputs, d_o)

    class Alone(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
            forward()
            return o.detach()

        @staticmethod
        def backward(ctx: Any, _: torch.Tensor) -> Any:
            backward()
            return tuple(gradients)

    return trained(Alone.apply, inputs, d_o)


def layers(call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> Step:
    """Eight such steps in one backward, on tensors of their own."""
    each = [inputs, *([x.detach().clone().requires_grad_() for x in inputs] for _ in range(7))]
    together = [x for some in each for x in some]

    def step() -> Any:
        outputs = [call(*some) for some in each]
        made = torch.autograd.grad(outputs, together, [d_o] * 8)
        return outputs[0].detach(), *made[:3]

    return step


def bare_layers(call: Callable[..., Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> Step:
    """The plans of eight steps alone."""
    each = [inputs, *([x.detach().clone().requires_grad_() for x in inputs] for _ in range(7))]
    runs = [prepared(call, some, d_o) for some in each]

    def step() -> Any:
        for forward, _, _ in runs:
            forward()
        for _, backward, _ in reversed(runs):
            backward()
        return runs[0][2]

    return step


def captured(step: Step) -> Step:
    """A step as a CUDA graph: the same kernels without the host."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()

    def replay() -> Any:
        graph.replay()
        return results

    return replay


def in_one_thread(step: Step) -> Step:
    """A step whose backward runs in the thread that asks for it."""

    def run() -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return step()

    return run


def host_microseconds(step: Step, number: int = 50) -> float:
    """What the host takes for a step, where it does not wait for the device."""
    found = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            step()
        found.append((time.perf_counter() - begin) / number * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found)


def milliseconds(step: Step, number: int) -> float:
    marks = [torch.cuda.Event(enable_timing=True) for _ in "ab"]
    for mark, count in zip(marks, (0, number), strict=True):
        for _ in range(count):
            step()
        mark.record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / number


def contest(steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Times in turns; each turn is about 20 ms long, or one step."""
    numbers, times = {}, {name: [] for name in steps}
    for name, step in steps.items():
        step()
        numbers[name] = max(1, round(20 / milliseconds(step, 3)))
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times[name]) < 5:
        for name in random.sample(list(steps), len(steps)):
            times[name].append(milliseconds(steps[name], numbers[name]))
    return times


def check(steps: dict[str, Step]) -> None:
    """Results of all contestants against those of the first."""
    expected = None
    for name, step in steps.items():
        found = step()
        if expected is None:
            expected = found
            continue
        for what, x, y in zip(("o", "d_q", "d_k", "d_v"), found, expected, strict=True):
            error = ((x - y).float().norm() / y.float().norm()).item()
            if not error < 2e-2:
                raise SystemExit(f"{name}: {what} differs by {error:.4f}")


def peer(folder: str, heads: int, tokens: int) -> Callable[..., Any]:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    version = importlib.metadata.version  # a checkout is not installed, and asks for its own
    importlib.metadata.version = lambda name: "0" if name == "dkernel" else version(name)
    try:
        from dkernel import LocalStrideSparseAttention  # type: ignore[import-not-found]
    finally:
        importlib.metadata.version = version

    layer = LocalStrideSparseAttention(heads, tokens, BLOCK, LOCAL, heads, seq_dim=1).cuda()
    return lambda q, k, v: layer(q, k, v, DIM**-0.5)


def measure(heads: int, tokens: int, seconds: float, dkernel: str | None) -> list[str]:
    """Prints a line, and returns which bars were missed."""
    pattern = tessera.S2(BLOCK, LOCAL, heads)
    inputs = tensors(tokens, heads)
    d_o = torch.randn_like(inputs[0])

    def ours(deterministic: bool) -> Callable[..., Any]:
        return lambda q, k, v: tessera.attention(q, k, v, pattern, deterministic=deterministic)

    steps = {
        "deterministic": trained(ours(True), inputs, d_o),
        "free": trained(ours(False), inputs, d_o),
    }
    for name in list(steps):
        steps[f"{name}, C alone"] = bare(ours(name == "deterministic"), inputs, d_o)
    if tokens <= 2048:
        for name in ("deterministic", "free"):
            call = ours(name == "deterministic")
            steps[f"{name}, a Function alone"] = by_autograd(call, inputs, d_o)
            steps[f"{name}, eight layers"] = layers(call, inputs, d_o)
            steps[f"{name}, eight layers, C alone"] = bare_layers(call, inputs, d_o)
        for name in ("deterministic", "free"):
            steps[f"{name}, one thread"] = in_one_thread(steps[name])
            steps[f"{name}, captured"] = captured(steps[name])
    if dkernel is not None and tokens >= 8192:
        steps["dkernel"] = trained(peer(dkernel, heads, tokens), inputs, d_o)
    check(steps)
    if tokens <= 2048:  # behind the check, since they compute nothing
        steps["an empty autograd.Function"] = trained(host_time.Empty.apply, inputs, d_o)
        steps["one of them in one thread"] = in_one_thread(steps["an empty autograd.Function"])
    times = contest(steps, seconds)
    middle = {name: statistics.median(found) for name, found in times.items()}
    spread = {
        name: (max(found) - min(found)) / middle[name] for name, found in times.items()
    }
    missed = []
    words = [
        f"{name} {middle[name]:.4f} ms (n={len(times[name])}, spread {spread[name]:.1%})"
        for name in steps
    ]
    for name, least in (("deterministic", 1.75), ("free", 2.0)):
        if "dkernel" in steps:
            ratio = middle["dkernel"] / middle[name]
            words.append(f"{name}: {ratio:.2f}x DKernel")
            if ratio < least:
                missed.append(f"H={heads}, {tokens} tokens: {name} {ratio:.2f}x of {least}x")
        alone = middle[f"{name}, C alone"]
        kinds = ("", ", one thread", ", captured", ", a Function alone", ", eight layers")
        for one in (name + kind for kind in kinds):
            if one not in middle:
                continue
            # Of eight layers, the mean of each.
            base = middle.get(f"{one}, C alone", alone)
            more = (middle[one] - base) * 1e3 / (8 if one.endswith("layers") else 1)
            words.append(f"{one}: {middle[one] / base - 1:+.2%} = {more:+.1f} us over C alone")
            bar = 0.02 * alone * 1e3 if tokens > 2048 else 30
            if more > bar and not one.endswith("Function alone"):
                missed.append(f"H={heads}, {tokens} tokens: {one} {more:+.1f} us over C alone")
        for one in ("an empty autograd.Function", "one of them in one thread"):
            if one in middle:
                more = (middle[one] - alone) * 1e3
                words.append(f"{one}: {more:+.1f} us over {name}, C alone")
    if tokens <= 2048:
        words += [f"host of {name} {host_microseconds(steps[name]):.0f} us" for name in steps]
    print(f"H=V={heads}, {tokens} tokens: " + "; ".join(words), flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library")
    parser.add_argument("--dkernel", help="the folder that holds DKernel's package")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time")
    options = parser.parse_args()
    tessera.load(options.library)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    torch.manual_seed(0)
    missed = []
    for tokens, heads in itertools.product((2048, 131072), (16, 32, 64)):
        # Long steps spread by 12 to 18 % as the clock moves: 50 rounds tell medians to about 1 %.
        seconds = (12 if tokens > 2048 else 4) / (4 if options.quick else 1)
        missed += measure(heads, tokens, seconds, options.dkernel)
        torch.cuda.empty_cache()
    print("missed: " + "; ".join(missed) if missed else "every bar is met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

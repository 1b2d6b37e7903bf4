# SPDX-License-Identifier: Apache-2.0
"""What two CUDA GPUs of one host have to prove: checks of gpu.py, or alone
`python3 python/tests/gpu_two.py [--library FILE] [--only REGEX]`, under a minute.

Tensors are on cuda:1 while cuda:0 is current. Results there have the bits of cuda:0, which gpu.py
compares with PyTorch's. The last check starts two processes, a rank of NCCL each (two_ranks.py).
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import reference
import torch
import two_ranks
from cache_model import PATTERNS, Model
from gpu_checks import PATTERN, main, same, step, tensors

import tessera
from tessera import _cuda, _plans
from tessera.dkernel import LocalStrideSparseAttention

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
CHECKS: list[Callable[[], str | None]] = []


def check(function: Callable[[], str | None]) -> Callable[[], str | None]:
    """A check that is skipped with one GPU, and must leave cuda:0 current."""

    def run() -> str | None:
        if torch.cuda.device_count() < 2:
            return "skipped: one GPU"
        assert torch.cuda.current_device() == 0
        said = function()
        torch.cuda.synchronize(SECOND)
        assert torch.cuda.current_device() == 0
        return said

    run.__name__ = function.__name__
    CHECKS.append(run)
    return run


def there(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same on cuda:1."""
    return [x.detach().to(SECOND).requires_grad_(x.requires_grad) for x in inputs]


def here(found: list[torch.Tensor]) -> list[torch.Tensor]:
    assert all(x.device == SECOND for x in found)
    return [x.to(FIRST) for x in found]


def refused(text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except tessera.InvalidArgument as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


@check
def another_device_than_the_current_one() -> None:
    """Layouts, types, lengths of all kinds, and gradients of every subset of q, k and v."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        inputs = tensors(dtype=dtype)
        other = there(inputs)
        for options in ({}, {"deterministic": False}, {"q_lens": [300, 7], "kv_lens": [300, 90]}):
            found = step(other, **options)
            if "deterministic" not in options:
                same(here(found), step(inputs, **options))
        lens = {name: torch.tensor([300, 9], device=SECOND) for name in ("q_lens", "kv_lens")}
        on_host = {name: x.tolist() for name, x in lens.items()}
        same(step(other, **lens), step(other, **on_host))
        turned = [x.transpose(1, 2) for x in other]
        o, lse = tessera.attention(*turned, PATTERN, layout="bhsd", return_lse=True)
        copies = [x.detach().cpu().requires_grad_() for x in inputs]
        ro, rlse = reference.attention(*copies, PATTERN)
        d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
        grads = torch.autograd.grad([o, lse], other, [d_o, d_lse])
        wanted = torch.autograd.grad(
            [ro, rlse], copies, [d_o.cpu().double().transpose(1, 2), d_lse.cpu().double()]
        )
        results = zip((o.transpose(1, 2), lse, *grads), (ro, rlse, *wanted), strict=True)
        for got, expected in results:
            assert got.device == SECOND
            reference.near(got.cpu(), expected, dtype)
    rows = [x.detach().flatten(0, 1).requires_grad_() for x in other]
    cu = torch.tensor([0, 33, 580], device=SECOND, dtype=torch.int32)
    same(
        step(rows, layout="thd", cu_seqlens_q=cu),
        step(rows, layout="thd", cu_seqlens_q=[0, 33, 580]),
    )
    for wanted_of in itertools.product((False, True), repeat=3):
        given = [x.detach().requires_grad_(w) for x, w in zip(other, wanted_of, strict=True)]
        o = tessera.attention(*given, PATTERN)
        if any(wanted_of):
            o.float().square().sum().backward()
        for x, full in zip(given, step(other)[1:], strict=True):
            assert x.grad is None if not x.requires_grad else torch.equal(x.grad, full)


@check
def devices_that_are_mixed_are_refused_by_name() -> None:
    q, k, v = (x.detach() for x in tensors())
    a, b, c = there([q, k, v])
    refused("k: the device of q, cuda:0, is needed, got cuda:1", lambda: tessera.attention(q, b, v))
    refused("v: the device of q, cuda:1, is needed, got cuda:0", lambda: tessera.attention(a, b, v))
    for _ in range(2):  # known calls too
        tessera.attention(a, b, c, PATTERN)
        refused("k: the device of q", lambda: tessera.attention(a, k, c, PATTERN))
    lens = torch.tensor([300, 9])
    refused(
        "q_lens: the CPU or the device of q, cuda:1, is needed, got cuda:0",
        lambda: tessera.attention(a, b, c, q_lens=lens.to(FIRST)),
    )
    rows = [x.flatten(0, 1) for x in (a, b, c)]
    refused(
        "cu_seqlens_q: the CPU or the device of q, cuda:1, is needed, got cuda:0",
        lambda: tessera.attention(
            *rows, layout="thd", cu_seqlens_q=torch.tensor([0, 33, 600], device=FIRST)
        ),
    )
    parts = [tessera.attention(*some, PATTERN, return_lse=True) for some in ((q, k, v), (a, b, c))]
    refused("merge: pair 1: O: rows on cuda:0 are needed", lambda: tessera.merge(*parts))
    cache = tessera.KVCache(PATTERN, 8, 4, 64, sequences=2, max_tokens=512, device=SECOND)
    refused("the device of the cache, cuda:1, is needed", lambda: cache.append(k, v))
    refused(
        "the device of the cache, cuda:1, is needed",
        lambda: tessera.attention(q, b, c, cache=cache),
    )
    assert cache.lengths.tolist() == [0, 0]
    o = tessera.attention(*(x.requires_grad_() for x in (a, b, c)), PATTERN)
    try:
        o.backward(torch.ones_like(q))
    except RuntimeError as error:
        assert "cuda:0" in str(error), error
    else:
        raise AssertionError("a gradient of another device was taken")
    same(step([a, b, c]), step([a, b, c]))


@check
def side_streams_of_both_devices() -> None:
    """Two streams of each device at once, with cuda:0 current for all of them."""
    given = {FIRST: tensors(2000)}
    given[SECOND] = there(given[FIRST])
    expected = {device: step(inputs) for device, inputs in given.items()}
    same(here(expected[SECOND]), expected[FIRST])
    streams = [torch.cuda.Stream(device) for device in (FIRST, SECOND) for _ in "ab"]
    results: list[tuple[torch.device, list[torch.Tensor]]] = []
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)
    for _ in range(10):
        for stream in streams:
            # The stream stays that of its device.
            with torch.cuda.stream(stream), torch.cuda.device(0):
                # Fill what the allocator hands out next, so that early use of it shows.
                torch.full((1 << 24,), float("nan"), device=stream.device)
                results.append((stream.device, step(given[stream.device])))
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)
    for device, found in results:
        same(found, expected[device])


@check
def threads_of_both_devices() -> None:
    """Forward and backward, and plans that others drop meanwhile."""
    given = [[x.detach()[:, : 50 + 10 * n].requires_grad_() for x in tensors()] for n in range(6)]
    given += [there(inputs) for inputs in given]
    expected = [step(inputs) for inputs in given]
    wrong: list[int] = []
    tessera.cache_limits(plans=3)

    def work(n: int) -> None:
        for turn in range(10):
            which = (n * 5 + turn) % len(given)
            stream = torch.cuda.Stream(given[which][0].device)
            with torch.cuda.stream(stream), torch.cuda.device(n % 2):
                found = step(given[which])
            stream.synchronize()
            if not all(torch.equal(a, b) for a, b in zip(found, expected[which], strict=True)):
                wrong.append(which)

    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tessera.cache_limits(plans=64)
    assert not wrong, wrong


@check
def plans_and_workspaces_are_of_a_device() -> None:
    tessera.cache_clear()
    inputs = tensors(1024)
    other = there(inputs)
    expected = step(inputs)
    alone = tessera.cache_info()
    same(here(step(other)), expected)
    both = tessera.cache_info()
    assert both.plans == 2 * alone.plans and both.misses == alone.misses + alone.plans
    assert {plan.problem.device for plan in _plans._plans.values()} == {"cuda:0", "cuda:1"}
    for _ in range(3):  # one right after the other, on the default stream of each
        same(here(step(other)), step(inputs))
    assert tessera.cache_info().misses == both.misses
    assert all(work.device.index == device for (device, _), (work, *_) in _cuda._kept.items())
    assert len({device for device, _ in _cuda._kept}) in (0, 2)
    tessera.cache_clear()
    assert not _cuda._kept
    same(here(step(other)), expected)


@check
def captured_on_the_other_device() -> None:
    """One graph of each device, replayed at the same time with inputs changed in place."""
    given = [tensors()]
    given.append(there(given[0]))
    graphs, results = [torch.cuda.CUDAGraph() for _ in "ab"], []
    plain = [x.detach() for x in given[1]]
    cache = tessera.KVCache(PATTERN, 8, 4, 64, sequences=2, max_tokens=512, device=SECOND)
    for inputs in given:
        step(inputs)
    tessera.attention(*plain, PATTERN)
    for n, inputs in enumerate(given):
        torch.cuda.synchronize(n)
        with torch.cuda.device(n), torch.cuda.graph(graphs[n], stream=torch.cuda.Stream(n)):
            with torch.cuda.device(0):  # what is captured is still q's device
                results.append(step(inputs))
                if n == 1:
                    again = tessera.attention(*plain, PATTERN)
                    short = [x[:, :17] for x in plain]
                    refused("captured", lambda: tessera.attention(*short, PATTERN))
                    refused("captured", lambda: tessera.attention(*short, cache=cache))
                    refused("captured", lambda: cache.length(0))
    for _ in range(3):
        with torch.no_grad():
            for mine, others, x in zip(*given, plain, strict=True):
                mine.normal_()
                others.copy_(mine)
                assert x.data_ptr() == others.data_ptr()
        for device in (FIRST, SECOND):
            torch.cuda.synchronize(device)
        for graph in reversed(graphs):
            graph.replay()
        for device in (FIRST, SECOND):
            torch.cuda.synchronize(device)
        same(here(results[1]), results[0])
        same(results[1], step(given[1]))
        same([again], [tessera.attention(*plain, PATTERN)])


@check
def caches_on_the_other_device() -> None:
    for name, pattern in PATTERNS.items():
        model = Model(pattern, 3, 8, 4, 64, layers=2, device=SECOND)
        for tokens in (5, 1, 70):
            model.step(tokens, [tokens, max(0, tokens - 2), tokens // 2])
        model.packed([40, 0, 1], after=5)
        model.rollback([20, 0, 3])
        model.free(1)
        model.poison()
        model.fork(0)
        model.step(3, [3, 1, 2])
        cache = model.cache
        assert cache.lengths.device == SECOND, name
        assert cache.lengths.tolist() == model.lengths(), name
        assert all(pool.k.device == SECOND for pool in cache.pools())


@check
def captured_steps_of_a_cache_on_the_other_device() -> None:
    cache = tessera.KVCache(
        tessera.S2(64, 2, 4, dense_heads=2), 8, 4, 64, sequences=3, max_tokens=4096, device=SECOND
    )

    def rows(tokens: int) -> list[torch.Tensor]:
        words: Any = dict(device=SECOND, dtype=torch.bfloat16)
        return [torch.randn(3, tokens, n, 64, **words) for n in (8, 4, 4)]

    tessera.attention(*rows(700), cache=cache, q_lens=[700, 61, 0])
    inputs, lens = rows(1), torch.tensor([1, 1, 0], dtype=torch.int32, device=SECOND)
    tessera.attention(*inputs, cache=cache, q_lens=[1, 1, 0])
    other = copy.deepcopy(cache)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(SECOND)
    stream = torch.cuda.Stream(SECOND)  # PyTorch's own is of the device of its first capture
    with torch.cuda.device(1), torch.cuda.graph(graph, stream=stream), torch.cuda.device(0):
        found = tessera.attention(*inputs, cache=cache, q_lens=lens)
    for n in range(100):
        if n % 50 == 0:
            cache.reserve(50)
        new = [1, n % 2, 0]
        lens.copy_(torch.tensor(new))
        for x in inputs:
            x.normal_()
        graph.replay()
        assert torch.equal(found, tessera.attention(*inputs, cache=other, q_lens=new)), n
    assert cache.lengths.tolist() == other.lengths.tolist() == [801, 112, 0]


@check
def traced_and_moved_to_the_other_device() -> None:
    other = there(tensors())
    traced = torch.compile(
        lambda q, k, v: tessera.attention(q * 2, k, v, PATTERN) * 2,
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    results = []
    for function in (traced, lambda q, k, v: tessera.attention(q * 2, k, v, PATTERN) * 2):
        o = function(*other)
        results.append([o, *torch.autograd.grad(o.float().square().sum(), other)])
    same(*results)
    layer = LocalStrideSparseAttention(8, 512, 64, 2, 4, num_kv_heads=4, seq_dim=1)
    moved = copy.deepcopy(layer).to(SECOND).to(torch.bfloat16)
    q, k, v = (x.detach() for x in tensors())
    o = moved(*there([q, k, v]), 64**-0.5)
    same(here([o]), [layer.to(FIRST)(q, k, v, 64**-0.5)])


@check
def ranks_of_nccl() -> str:
    """Tensor parallelism, DDP, FSDP2 and a cache in parts: a process for each GPU."""
    return two_ranks.both("nccl")[0]


if __name__ == "__main__":
    sys.exit(main(CHECKS))

# SPDX-License-Identifier: Apache-2.0
"""Threads, processes, and the cache of plans under load."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import Any

import pytest
import torch
import two_ranks

import tessera
from tessera import _calls, _plans

PATTERN = tessera.S2(16, 1, 2)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(autouse=True)
def _defaults() -> Any:
    tessera.cache_clear()
    yield
    tessera.cache_limits(plans=64, bytes=64 << 20)
    tessera.cache_clear()


def packed(lengths: list[int]) -> tuple[torch.Tensor, list[int]]:
    cu = [0]
    for length in lengths:
        cu.append(cu[-1] + length)
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.randn(cu[-1], 2, 8, generator=generator), cu


def run(lengths: list[int]) -> torch.Tensor:
    x, cu = packed(lengths)
    x.requires_grad_()
    tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu).square().sum().backward()
    assert x.grad is not None
    return x.grad


def test_the_cache_is_bounded_by_number_and_by_bytes() -> None:
    for n in range(1, 100):
        run([n])
    info = tessera.cache_info()
    assert info.plans == 64 and 0 < info.bytes < 64 << 20
    assert len(_plans.calls) <= 64
    tessera.cache_limits(plans=3)
    assert tessera.cache_info().plans == 3 and len(_plans.calls) == 3
    tessera.cache_limits(bytes=1)
    run([50])
    info = tessera.cache_info()
    assert info.plans == 1 and info.max_plans == 3  # the last one stays whatever its size
    for wrong in (-1, 1.5, "3"):
        with pytest.raises((tessera.InvalidArgument, TypeError), match="plans"):
            tessera.cache_limits(plans=wrong)  # type: ignore[arg-type]


def test_equal_calls_share_a_plan_and_other_lengths_do_not() -> None:
    run([3, 4])
    before = tessera.cache_info()
    run([3, 4])
    assert tessera.cache_info().misses == before.misses
    run([4, 3])
    assert tessera.cache_info().misses == before.misses + 2  # forward and backward


def test_lengths_changed_in_place_are_read_again() -> None:
    x, cu = packed([5, 20])
    lengths = torch.tensor(cu)
    first = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=lengths)
    lengths[1] = 15
    second = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=lengths)
    third = tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=[0, 15, 25])
    assert not torch.equal(first, second) and torch.equal(second, third)


def test_a_plan_that_is_dropped_during_a_run_lives_until_its_end() -> None:
    x, cu = packed([30])
    inside, go, found = threading.Event(), threading.Event(), []
    tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
    plan = weakref.ref(next(iter(_plans._plans.values())))
    call = next(iter(_plans.calls.values()))
    real = call.run_c

    def slow(*arguments: Any) -> int:
        inside.set()
        go.wait(20)
        found.append(plan() is not None)
        return int(real(*arguments))

    call.run_c = slow
    thread = threading.Thread(
        target=lambda: found.append(
            tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
        )
    )
    thread.start()
    assert inside.wait(20)
    del call
    tessera.cache_clear()
    gc.collect()
    assert tessera.cache_info().plans == 0
    go.set()
    thread.join()
    alive, o = found
    assert alive
    assert torch.equal(o, tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu))
    tessera.cache_clear()
    gc.collect()
    assert plan() is None


@pytest.mark.parametrize(
    ("streams", "in_order"), [({7}, 1), ({7, _plans.FOREIGN}, 0), ({7, 8}, 0), (set(), 0)]
)
def test_plans_are_released_behind_the_one_stream_they_ran_on(
    streams: set[int], in_order: int
) -> None:
    """But not behind one that may be gone by then."""
    x, cu = packed([30])
    tessera.attention(x, x, x, PATTERN, layout="thd", cu_seqlens_q=cu)
    (plan,) = _plans._plans.values()
    calls: list[Any] = []
    plan._release_after = lambda *_: calls.append(_) or 1  # the CPU has no order of streams
    plan.streams = streams
    alive = weakref.ref(plan)
    del plan
    tessera.cache_clear()
    gc.collect()
    assert alive() is None and len(calls) == in_order


def test_200_threads_make_plans_while_others_drop_them() -> None:
    shapes = [[n % 7, n % 5 + 1, n % 11] for n in range(40)]
    expected = [run(lengths) for lengths in shapes]
    tessera.cache_limits(plans=5)
    barrier, wrong = threading.Barrier(200), []

    def work(n: int) -> None:
        barrier.wait()
        for step in range(3):
            m = (n + step * 13) % len(shapes)
            if not torch.equal(run(shapes[m]), expected[m]):
                wrong.append(m)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert tessera.cache_info().plans <= 5


def test_one_call_from_many_threads() -> None:
    inputs = [torch.randn(1, 64, 4, 16) for _ in range(8)]
    expected = [tessera.attention(x, x, x, PATTERN) for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = pool.map(lambda x: tessera.attention(x, x, x, PATTERN), inputs)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_memory_stays_flat_over_ever_new_lengths() -> None:
    resource = pytest.importorskip("resource")
    sizes = []
    for n in range(250):
        run([n % 61, n % 37, 1 + n % 97])
        if n in (100, 249):
            gc.collect()
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert tessera.cache_info().plans == 64
    assert len(_calls._workspaces) <= 4
    assert sizes[1] - sizes[0] < 20 << 10  # KiB


class Lengths(torch.utils.data.Dataset[torch.Tensor]):
    """Runs attention in the workers of a DataLoader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> torch.Tensor:
        return run([n + 3, 9])


def test_spawned_workers_of_a_data_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    if not _own_library():
        pytest.skip("a new process would open the package's own library")
    expected = [run([n + 3, 9]) for n in range(4)]
    loader = torch.utils.data.DataLoader(
        Lengths(), batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    assert all(torch.equal(a, b) for a, b in zip(loader, expected, strict=True))


def test_forked_workers_of_a_data_loader() -> None:
    """In a process of its own: PyTorch refuses gradients in children of one whose autograd has
    threads, as tests before this one may have left it."""
    done = child("""
        p = tessera.S2(16, 1, 2)
        class Steps(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, n):
                x = torch.ones(1, n + 3, 2, 8).cumsum(1).requires_grad_()
                tessera.attention(x, x, x, p).square().sum().backward()
                return x.grad
        steps = Steps()
        expected = [steps[n] for n in range(4)]
        loader = torch.utils.data.DataLoader(
            steps, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        assert all(torch.equal(a, b) for a, b in zip(loader, expected))
    """)
    assert done.returncode == 0, done.stderr


def _own_library() -> bool:
    code = "import tessera; tessera.load()"
    return subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new interpreter, on the same library."""
    head = f"import tessera; tessera.load({tessera.load()!r}); import torch\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_fork_during_runs_of_other_threads() -> None:
    done = child("""
        import os, threading
        p = tessera.S2(16, 1, 2)
        x = torch.randn(1, 300, 4, 16)
        expected = tessera.attention(x, x, x, p)
        stop = threading.Event()
        def work(n):
            while not stop.is_set():
                y = torch.randn(1, 50 + n, 2, 8)
                tessera.attention(y, y, y, p)
                tessera.cache_clear()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        [t.start() for t in threads]
        for _ in range(4):
            pid = os.fork()
            if not pid:
                ok = torch.equal(tessera.attention(x, x, x, p), expected)
                ok = ok and tessera.cache_info().plans == 1
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        [t.join() for t in threads]
        # Locks of threads that the child does not have: one looks a large mask up, one loads.
        import numpy, signal
        from tessera import _native, patterns
        mask = numpy.random.default_rng(0).random((200, 200)) < 0.5
        with patterns._masks_lock, _native._lock:
            pid = os.fork()
            if not pid:
                signal.alarm(20)
                tessera.load()
                tessera.attention(x, x, x, tessera.Blocks(mask, 16))
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """)
    assert done.returncode == 0, done.stderr


def test_exit_with_runs_under_way() -> None:
    """On arrays of NumPy: PyTorch aborts a process whose daemon threads are within any operator of
    its own, torch.empty_like included."""
    done = child("""
        import threading, time
        import numpy, tessera.numpy
        x = numpy.random.default_rng(1).standard_normal((1, 2000, 8, 64), dtype=numpy.float32)
        def work():
            while True:
                tessera.numpy.attention(x, x, x, tessera.Dense())
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_keyboard_interrupt_leaves_everything_usable() -> None:
    done = child("""
        import signal
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        x = torch.randn(1, 200, 4, 16, requires_grad=True)
        p = tessera.S2(16, 1, 2)
        expected = torch.autograd.grad(tessera.attention(x, x, x, p).sum(), x)[0]
        interrupted = 0
        for n in range(8):
            try:
                # Python drops an interrupt that meets a finaliser, so more of them follow.
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.003 * n, 0.5)
                for m in range(100000):
                    y = x[:, : 1 + m % 150]
                    torch.autograd.grad(tessera.attention(y, y, y, p).sum(), x)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupted += 1
        assert interrupted == 8, interrupted
        found = torch.autograd.grad(tessera.attention(x, x, x, p).sum(), x)[0]
        assert torch.equal(found, expected)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="FSDP2 of PyTorch 2.6 needs a GPU"
)
def test_two_processes_with_gloo() -> None:
    """Tensor-parallel heads, DDP, FSDP2, and a KV cache whose keys both share."""
    for said in two_ranks.both("gloo"):
        assert float(re.match(r"most loaded rank ([\d.]+)x the mean", said)[1]) < 1.05

# SPDX-License-Identifier: Apache-2.0
"""Whose workspace a run on CUDA gets: the launch of _cuda.py with the driver replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tessera
from tessera import _cuda, _plans, _runs


class Plan:
    """What a launch looks at in a plan."""

    def __init__(self) -> None:
        self.streams: set[int] = {7, 8}
        self.pinned = False


class Call:
    """A call that notes where its workspace was."""

    def __init__(self, workspace: int) -> None:
        self.plan, self.workspace, self.used = Plan(), workspace, list[int]()
        self.meanwhile: Any = lambda: None

    def run(self, slot: Any, workspace: int, stream: int) -> None:
        self.used.append(workspace)
        self.meanwhile()


class Driver:
    """A current device and stream, and which device's is captured."""

    stream, device, captured = 7, -1, None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = Driver()
    monkeypatch.setattr(_cuda, "current_stream", lambda _: found.stream)

    @contextlib.contextmanager
    def device(wanted: int) -> Iterator[None]:
        before, found.device = found.device, wanted
        yield
        found.device = before

    monkeypatch.setattr(_cuda, "_capturing", lambda: found.device == found.captured)
    monkeypatch.setattr(_cuda, "_current_device", lambda: found.device)
    monkeypatch.setattr(torch.cuda, "device", device)
    yield found
    _cuda._kept.clear()


def launch(call: Call, keep: bool = True) -> int:
    _cuda.launch(call, None, torch.empty(1), keep)  # type: ignore[arg-type]
    return call.used[-1]


def test_a_stream_keeps_one_workspace_for_runs_of_all_sizes(driver: Driver) -> None:
    small, large = Call(100), Call(5 << 20)
    assert launch(small) == launch(small)
    first = launch(large)
    assert launch(small) == launch(large) == first
    driver.stream = 8
    assert launch(large) != first
    ((_, _, size), (_, _, other)) = _cuda._kept.values()
    assert size == other == 6 << 20
    tessera.cache_clear()
    assert not _cuda._kept


def test_a_run_that_is_being_queued_shares_its_workspace_with_nobody(driver: Driver) -> None:
    call, other = Call(100), Call(100)
    launch(call)
    call.meanwhile = lambda: launch(other)
    assert launch(call) != other.used[0]
    assert len(_cuda._kept) == 1


def test_a_capture_and_its_replays_have_a_workspace_of_their_own(driver: Driver) -> None:
    call = Call(100)
    kept = launch(call)
    driver.captured = -1
    try:
        assert launch(call) != kept and call.plan.pinned
    finally:
        _plans._pinned.discard(call.plan)  # type: ignore[arg-type]
    assert _cuda._kept[-1, 7][1] == kept


def test_what_is_not_kept(driver: Driver) -> None:
    launch(Call(_cuda._KEPT_BYTES + 1))
    launch(Call(100), keep=False)
    launch(Call(0))
    foreign = Call(100)
    foreign.plan.streams.add(_plans.FOREIGN)
    launch(foreign)
    assert not _cuda._kept

    def fail() -> None:
        raise RuntimeError

    broken = Call(100)
    launch(broken)
    broken.meanwhile = fail
    with pytest.raises(RuntimeError):
        launch(broken)
    assert not _cuda._kept
    for driver.stream in range(20):
        call = Call(100)
        call.plan.streams.add(driver.stream)
        launch(call)
    assert len(_cuda._kept) == _cuda._KEPT


def test_the_device_of_a_call_is_asked_whether_it_is_captured(driver: Driver) -> None:
    class Q:
        is_cuda = True

        def get_device(self) -> int:
            return 1

    cache = tessera.KVCache(tessera.Dense(), 1, 1, 8, max_tokens=16)
    cache.device = torch.device("cuda", 1)
    for driver.device in (0, 1):
        for driver.captured in (0, 1, None):
            found = _runs._capturing(Q()), cache._capturing()  # type: ignore[arg-type]
            assert found == (driver.captured == 1,) * 2
    assert driver.device == 1
    assert not _runs._capturing(torch.empty(1))

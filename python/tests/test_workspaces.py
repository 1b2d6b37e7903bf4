# SPDX-License-Identifier: Apache-2.0
"""Whose workspace a run on CUDA gets: the launch of _cuda.py with the driver replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tessera
from tessera import _cuda, _plans


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
    """A current stream, and whether it is captured."""

    stream, captured = 7, False


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = Driver()
    monkeypatch.setattr(_cuda, "current_stream", lambda _: found.stream)
    monkeypatch.setattr(_cuda, "_capturing", lambda: found.captured)
    monkeypatch.setattr(_cuda, "_current_device", lambda: -1)
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
    driver.captured = True
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

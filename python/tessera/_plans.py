# SPDX-License-Identifier: Apache-2.0
"""Plans and their cache.

A plan is made once for a pattern, device, type, shape and set of lengths. The cache holds the last
ones, bounded by number and by bytes. A plan that the cache drops lives on while a run uses it: a
run holds a reference, and the plan is released with the last one.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _errors, _layouts, _native, _runtime, _shapes

FOREIGN = -1  # among the streams of a plan: one that may be gone when the plan is released
Lengths = bytes | None  # int64 values, as the C library takes them


class Problem(NamedTuple):
    """All that a plan depends on."""

    spec: str
    device: str
    op: int
    dtype: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float | None
    determinism: int
    batch: int
    q_len: int
    kv_len: int
    max_tokens: int
    q_lens: Lengths = None
    kv_lens: Lengths = None
    cu_q: Lengths = None
    cu_k: Lengths = None
    q_first: Lengths = None
    kv_first: Lengths = None


def _address(values: Lengths) -> tuple[int | None, Any]:
    if values is None:
        return None, None
    array = (ctypes.c_int64 * (len(values) // 8)).from_buffer_copy(values)
    return ctypes.addressof(array), array


class Plan:
    """A tess_plan, released with this object."""

    def __init__(self, problem: Problem) -> None:
        self.plan: Any = None
        self._release = _native.library().tess_plan_release
        self._release_after = _native.library().tess_plan_release_after
        self.problem = problem
        self.used = 0  # when, in ticks of the cache
        self.dropped = False  # by the cache
        self.pinned = False  # a captured graph refers to it
        self.streams: set[int] = set()  # native streams that it ran on
        self.calls: set[Any] = set()  # keys of prepared calls that hold this plan
        self.device = _runtime.device(problem.device)
        self.layout = _layouts.layout(
            problem.spec, problem.heads, problem.kv_heads, problem.max_tokens
        )
        lengths = [
            _address(values)
            for values in (
                problem.q_lens,
                problem.kv_lens,
                problem.cu_q,
                problem.cu_k,
                problem.q_first,
                problem.kv_first,
            )
        ]
        desc = _native.new(
            _native.PlanDesc,
            op=problem.op,
            dtype=problem.dtype,
            head_dim=problem.head_dim,
            scale=problem.scale or 0.0,
            batch=problem.batch,
            q_len=problem.q_len,
            kv_len=problem.kv_len,
            q_lens=lengths[0][0],
            kv_lens=lengths[1][0],
            cu_q_lens=lengths[2][0],
            cu_kv_lens=lengths[3][0],
            determinism=problem.determinism,
            q_first=lengths[4][0],
            kv_first=lengths[5][0],
        )
        self.plan, info = _native.create_plan(self.device.handle, self.layout.handle, desc)
        self.handle = self.plan.value
        self.workspace = int(info.workspace_bytes)
        self.align = max(1, int(info.workspace_align))
        self.bytes = int(info.host_bytes) + int(info.device_bytes)
        self.kernel = info.kernel.decode()
        self.kept_pairs = int(info.kept_pairs)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self.plan or _ending():
            return
        if len(self.streams) != 1 or not self._release_in_order():
            self._release(self.plan)

    def _release_in_order(self) -> bool:
        """Releases a plan behind the runs of the one stream that it ran on, so that nothing waits
        for the device; whether that could be done."""
        stream = _native.Stream(kind=_native.SUBMIT, handle=next(iter(self.streams)))
        return int(self._release_after(self.plan, ctypes.byref(stream))) == 0


class CacheInfo(NamedTuple):
    """What the cache of plans holds: plans now and at most, their bytes now and at most, and how
    many plans were found in it, made, and dropped since the process began."""

    plans: int
    max_plans: int
    bytes: int
    max_bytes: int
    hits: int
    misses: int
    dropped: int


ticks = itertools.count(1)
_lock = threading.Lock()
_plans: dict[Problem, Plan] = {}
_pinned: set[Plan] = set()  # of captured graphs
calls: dict[Any, Any] = {}  # prepared calls by signature; see `Call` of _calls.py
# The last one of each set of words, and how to tell that it fits; see _recent.py.
recent: dict[Any, tuple[Any, ...]] = {}
on_clear: list[Callable[[], None]] = []  # what else cache_clear drops
_bytes = 0
_max_plans, _max_bytes = 64, 64 << 20
_hits = _misses = _dropped = 0


def tick(plan: Plan) -> None:
    """Notes that a plan is used."""
    plan.used = next(ticks)


def pin(plan_: Plan) -> None:
    """Keeps a plan for good, also if the cache has just dropped it in another thread."""
    with _lock:
        plan_.pinned = True
        _pinned.add(plan_)


def plan(problem: Problem, may_make: bool = True) -> Plan:
    """The plan of a problem, from the cache or new. Without may_make, a missing one is an error."""
    global _bytes, _hits, _misses
    with _lock:
        found = _plans.get(problem)
        if found is not None:
            _hits += 1
            tick(found)
            return found
    if not may_make:
        raise _errors.InvalidArgument(
            "attention: there is no plan for these shapes and lengths, and none can be made while "
            "a graph is captured: run once with them before"
        )
    made = Plan(problem)  # without the lock: planning takes a while, and other threads plan too
    with _lock:
        _misses += 1
        found = _plans.setdefault(problem, made)
        if found is made:
            _bytes += made.bytes
        tick(found)
        dropped = _shrink(found)
    del dropped  # released outside of the lock
    return found


def remember(plan_: Plan, key: Any, call: Any) -> None:
    """Keeps a prepared call as long as the cache keeps its plan."""
    with _lock:
        if _plans.get(plan_.problem) is plan_:
            if len(plan_.calls) >= 64:
                for old in plan_.calls:
                    calls.pop(old, None)
                plan_.calls.clear()
            plan_.calls.add(key)
            calls[key] = call


def remember_recent(key: Any, entry: tuple[Any, ...], plan_: Plan) -> None:
    """Keeps a recent call, unless the cache has dropped its plan. Without the lock, which a call
    that finds its plan does not take otherwise."""
    if len(recent) >= 256:
        recent.clear()
    recent[key] = entry
    if plan_.dropped:  # before that, so that nothing else takes it out
        recent.pop(key, None)


def _shrink(keep: Plan | None) -> list[Any]:
    """Drops the plans that were not used for longest until the bounds hold. With the lock held."""
    global _bytes, _dropped
    dropped: list[Any] = []
    while len(_plans) > _max_plans or _bytes > _max_bytes:
        free = [found for found in _plans.values() if found is not keep and not found.pinned]
        if not free:
            break
        oldest = min(free, key=lambda found: found.used)
        del _plans[oldest.problem]
        _bytes -= oldest.bytes
        _dropped += 1
        dropped.append(oldest)
        dropped += [calls.pop(key, None) for key in oldest.calls]
        oldest.dropped = True
    if dropped:  # whichever plans they are of
        dropped += recent.values()
        recent.clear()
    return dropped


def cache_limits(plans: int | None = None, bytes: int | None = None) -> None:
    """Sets how many plans the cache keeps, and how many bytes they may have on host and device
    together. What is not given stays as it is; the defaults are 64 plans and 64 MiB. The plan of
    the last call and those of captured graphs stay whatever the bounds are."""
    global _max_plans, _max_bytes
    for name, value in (("plans", plans), ("bytes", bytes)):
        if value is not None and _shapes.integer(f"cache_limits: {name}", value) < 0:
            raise _errors.InvalidArgument(f"cache_limits: {name}: 0 or more, got {value!r}")
    with _lock:
        _max_plans = _max_plans if plans is None else int(plans)
        _max_bytes = _max_bytes if bytes is None else int(bytes)
        dropped = _shrink(None)
    del dropped


def cache_info() -> CacheInfo:
    """What the cache of plans holds now."""
    with _lock:
        return CacheInfo(len(_plans), _max_plans, _bytes, _max_bytes, _hits, _misses, _dropped)


def cache_clear() -> None:
    """Drops all plans but those of captured graphs, and the workspaces that are kept."""
    global _max_plans
    with _lock:
        before, _max_plans = _max_plans, 0
        dropped = _shrink(None)
        _max_plans = before
    del dropped
    for drop in on_clear:
        drop()


def _forget() -> None:
    global _lock, _bytes
    _lock = threading.Lock()
    _plans.clear()
    _pinned.clear()
    calls.clear()
    recent.clear()
    _bytes = 0


_runtime.after_fork(_forget)

# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: a plan and a tess_run_desc with all but its addresses filled in.

Filling in a descriptor takes longer than everything else of a small call, and of one signature
(shapes, strides, types, lengths) only the addresses change. So a call keeps descriptors that are
ready, one for each thread that runs it at a time, and writes addresses into them as 64-bit words.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _native, _plans, _runtime, _shapes

INPUTS = ("q", "k", "v")
FORWARD = ("q", "k", "v", "o", "lse")
BACKWARD = ("q", "k", "v", "o", "lse", "d_o", "d_lse", "d_q", "d_k", "d_v")

_SIZE = ctypes.sizeof(_native.RunDesc)
_WORDS = ctypes.c_uint64 * (_SIZE // 8)
_HANDLE = int(_native.Buffer.handle.offset) // 8


def _word(field: str) -> int:
    return int(getattr(_native.RunDesc, field).offset) // 8 + _HANDLE


_PLACES = {field: _word(field) for field in BACKWARD}
Q, K, V, O, LSE, D_O, D_LSE, D_Q, D_K, D_V = _PLACES.values()
_WORKSPACE = _word("workspace")
_STREAM = (_native.RunDesc.stream.offset + _native.Stream.handle.offset) // 8

# A descriptor as 64-bit words, and its address.
Slot = tuple[memoryview, int]


class Strides(NamedTuple):
    """Of a tensor, in elements, with the bytes that it reaches over."""

    batch: int
    token: int
    head: int
    bytes: int


def strides(layout: str, shape: Any, given: Any, itemsize: int, rows: bool = False) -> Strides:
    """Strides of a tensor of a layout; `rows`: of LSE, which is [batch, heads, tokens] or
    [heads, tokens]."""
    reach = 1
    for size, stride in zip(shape, given, strict=True):
        if size == 0:
            reach = 0
            break
        reach += (size - 1) * stride
    if rows:
        if layout == "thd":
            found = (0, given[1], given[0])
        else:
            found = (given[0], given[2], given[1])
    elif layout == "thd":
        found = (0, given[0], given[1])
    elif layout == "bshd":
        found = (given[0], given[1], given[2])
    else:
        found = (given[0], given[2], given[1])
    return Strides(*found, reach * itemsize)


_numbers = itertools.count()


class Call:
    """A plan, and descriptors of runs on tensors of one signature."""

    __slots__ = (
        "batch", "guard", "hollow", "notes", "number", "places", "plan", "pool", "run_c",
        "template", "workspace",
    )  # fmt: skip

    def __init__(
        self, plan: _plans.Plan, batch: _shapes.Batch, tensors: dict[str, Strides]
    ) -> None:
        self.plan, self.batch = plan, batch
        desc = _native.new(_native.RunDesc)
        for name, stride in tensors.items():
            tensor = getattr(desc, name)
            tensor.buffer.kind = plan.device.memory
            tensor.buffer.size = stride.bytes
            tensor.stride_batch = stride.batch
            tensor.stride_token = stride.token
            tensor.stride_head = stride.head
        self.workspace = plan.workspace + plan.align if plan.workspace else 0
        if self.workspace:
            desc.workspace.kind = plan.device.memory
            desc.workspace.size = plan.workspace
        if plan.device.memory != _native.HOST:
            desc.stream.kind = _native.SUBMIT
        self.template = bytes(desc)
        self.places = tuple(_PLACES[name] for name in tensors)
        # An empty tensor has no address, and any will do. One that has lost its storage has none
        # either, and the library refuses that.
        self.hollow = tuple(_PLACES[name] for name, stride in tensors.items() if not stride.bytes)
        self.pool: list[Slot] = []
        self.run_c = _native.library().tess_run
        self.number = next(_numbers)
        self.notes: Any = None  # of who prepared it
        self.guard: Any = None  # of _recent.py: what it is for, and its check

    def take(self) -> Slot:
        """A descriptor that no other thread has, in which the addresses are missing: words[Q] and
        so on of each tensor that was described. `run` takes it back."""
        try:
            return self.pool.pop()
        except IndexError:
            memory = _WORDS.from_buffer_copy(self.template)
            return memoryview(memory).cast("B").cast("Q"), ctypes.addressof(memory)

    def fill(self, handles: Iterable[int]) -> Slot:
        """A descriptor with these addresses, in the order in which the tensors were described."""
        slot = self.take()
        for place, handle in zip(self.places, handles, strict=True):
            slot[0][place] = handle
        return slot

    def run(self, slot: Slot, workspace: int = 0, stream: int = 0) -> None:
        """Runs the plan on the tensors whose addresses a descriptor has.

        workspace: the address of `self.workspace` bytes.
        stream: a native stream; not looked at on the CPU.
        """
        words, address = slot
        plan = self.plan
        if self.hollow:
            for place in self.hollow:
                words[place] = 4096
        if workspace:
            words[_WORKSPACE] = workspace + -workspace % plan.align
        words[_STREAM] = stream
        _under_way.append(None)
        try:
            if _closed:
                _stop_daemons()
            status = self.run_c(plan.handle, address)
        finally:
            _under_way.pop()
        self.pool.append(slot)
        if status:
            _native.fail(status)


def run_on_host(call: Call, slot: Slot, *_: object) -> None:
    """Runs the plan of a CPU device, in a workspace that is kept for the next run."""
    size = call.workspace
    if not size:
        call.run(slot)
        return
    try:
        work = _workspaces.pop()
        if work.bytes < size:
            work = _Workspace(size)
    except IndexError:
        work = _Workspace(size)
    call.run(slot, work.address)
    if work.bytes <= _KEPT_BYTES and len(_workspaces) < _KEPT:
        _workspaces.append(work)


class _Workspace:
    """Memory of the host, and where it is: NumPy takes a microsecond to tell."""

    __slots__ = ("address", "bytes", "memory")

    def __init__(self, size: int) -> None:
        self.memory: npt.NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.address, self.bytes = int(self.memory.ctypes.data), size


# Workspaces of CPU runs that have ended; whoever runs next takes the last one.
_KEPT, _KEPT_BYTES = 4, 64 << 20
_workspaces: list[_Workspace] = []


# Runs that have begun and not ended; only the length of the list counts.
_under_way: list[None] = []
_closed = False


def _close() -> None:
    """Lets runs of daemon threads end before the interpreter goes away, and none begin: a thread
    that comes back from C later would be ended in the middle of PyTorch's C++, which aborts."""
    global _closed
    _closed = True
    limit = time.monotonic() + 10
    time.sleep(0.005)
    while _under_way and time.monotonic() < limit:
        time.sleep(0.005)


def _stop_daemons() -> None:
    if threading.current_thread() is threading.main_thread():
        return  # a function that runs at exit
    _under_way.pop()
    gate = threading.Lock()
    gate.acquire()
    gate.acquire()  # never comes back


def _forget() -> None:
    _under_way.clear()


atexit.register(_close)
_runtime.after_fork(_forget)


def find(key: Any) -> Call | None:
    """The prepared call of a signature."""
    found: Call | None = _plans.calls.get(key)
    if found is not None:
        _plans.tick(found.plan)
    return found


class Setting(NamedTuple):
    """What a call is, beside its tensors."""

    spec: str
    layout: str
    scale: float | None
    device: str
    dtype: int
    determinism: int = 0


def prepare(
    setting: Setting,
    sizes: _shapes.Shape,
    lengths: _shapes.Lengths | None,
    op: int,
    tensors: dict[str, Strides],
    may_plan: bool = True,
) -> Call:
    """Checks lengths, finds or makes the plan, and describes the tensors of a run."""
    scale = setting.scale
    if scale is not None and not 2.0**-120 <= abs(scale) <= 2.0**120:
        raise _shapes.wrong("scale", "a magnitude of 2^-120 to 2^120 is needed", scale)
    batch = _shapes.batch(setting.layout, sizes, lengths or _shapes.NO_LENGTHS)
    given = batch.lengths
    packed = setting.layout == "thd"
    problem = _plans.Problem(
        spec=setting.spec,
        device=setting.device,
        op=op,
        dtype=setting.dtype,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=scale,
        determinism=setting.determinism,
        batch=batch.batch,
        q_len=0 if packed else sizes.q_len,
        kv_len=0 if packed else sizes.kv_len,
        max_tokens=batch.max_tokens,
        q_lens=given.q_lens,
        kv_lens=given.kv_lens,
        cu_q=given.cu_q,
        cu_k=given.cu_k,
        q_first=given.q_first,
        kv_first=given.kv_first,
    )
    return Call(_plans.plan(problem, may_plan), batch, tensors)

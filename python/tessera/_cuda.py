# SPDX-License-Identifier: Apache-2.0
"""Runs on CUDA: the current stream of q's device, PyTorch's allocator, and captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _calls, _plans

_bytes = torch.uint8
_capturing = torch.cuda.is_current_stream_capturing


def _current_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# The native handle of a device's current stream, without a Stream object around it.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _current_stream
)


def _first_on(stream: int, plan: _plans.Plan, device: torch.device) -> None:
    """Notes that a plan runs on a stream for the first time."""
    if stream and torch.cuda.current_stream(device).stream_id == stream:
        # An ExternalStream, which its owner may destroy before the plan is dropped. With a second
        # "stream" beside it the plan is released without touching either.
        plan.streams.add(_plans.FOREIGN)
    plan.streams.add(stream)


def launch(call: _calls.Call, slot: _calls.Slot, q: torch.Tensor) -> None:
    """Runs a call on the current stream of q's device, whichever device is current.

    The workspace is of PyTorch's allocator and of that stream, so that whoever gets its memory next
    comes behind this run. A plan that a capture uses stays in the cache for good: nothing tells
    when the graph is gone.
    """
    stream = current_stream(q.get_device())
    plan = call.plan
    if stream not in plan.streams:
        _first_on(stream, plan, q.device)
    if not plan.pinned and _capturing():
        _plans.pin(plan)
    if not call.workspace:
        call.run(slot, 0, stream)
        return
    work = q.new_empty(call.workspace, dtype=_bytes)
    call.run(slot, work.data_ptr(), stream)

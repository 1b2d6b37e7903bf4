# SPDX-License-Identifier: Apache-2.0
"""Runs on CUDA: the current stream of q's device, PyTorch's allocator, and captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _calls, _plans

_bytes = torch.uint8
_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
_current_device: Callable[[], int] = getattr(
    torch._C, "_cuda_getDevice", torch.cuda.current_device
)


def _current_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# The native handle of a device's current stream, without a Stream object around it.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _current_stream
)


def captured(device: int) -> bool:
    """Whether a device's current stream is being captured; PyTorch asks the current device's."""
    if device == _current_device():
        return _capturing()
    with torch.cuda.device(device):
        return _capturing()


def _first_on(stream: int, plan: _plans.Plan, device: torch.device) -> None:
    """Notes that a plan runs on a stream for the first time."""
    if stream and torch.cuda.current_stream(device).stream_id == stream:
        # An ExternalStream, which its owner may destroy before the plan is dropped. With a second
        # "stream" beside it the plan is released without touching either.
        plan.streams.add(_plans.FOREIGN)
    plan.streams.add(stream)


def launch(call: _calls.Call, slot: _calls.Slot, q: torch.Tensor, keep: bool) -> None:
    """Runs a call on the current stream of q's device, whichever device is current.

    A plan that a capture uses stays in the cache for good: nothing tells when the graph is gone.

    The workspace is of PyTorch's allocator and of that stream, so that whoever gets its memory next
    comes behind this run. With `keep` a small one stays for the next run on that stream: asking
    the allocator costs several microseconds, more where backward has a thread of its own. While
    this run is being queued nobody else has it, and later runs of the stream come behind this one.
    A capture gets its own, since a replay may run beside the stream. So do calls by operators,
    without `keep`: torch.compile may give their memory back to a pool of its graphs, however long
    a tensor lives.
    """
    device = q.get_device()
    stream = current_stream(device)
    plan = call.plan
    if stream not in plan.streams:
        _first_on(stream, plan, q.device)
    in_graph = captured(device)
    if in_graph and not plan.pinned:
        _plans.pin(plan)
    size = call.workspace
    if not size:
        call.run(slot, 0, stream)
        return
    if not keep or in_graph or size > _KEPT_BYTES or _plans.FOREIGN in plan.streams:
        work = q.new_empty(size, dtype=_bytes)
        call.run(slot, work.data_ptr(), stream)
        return
    key = (device, stream)
    kept = _kept.pop(key, None)
    if kept is None or kept[2] < size:
        most = -(-size // _STEP) * _STEP
        work = q.new_empty(most, dtype=_bytes)
        kept = (work, work.data_ptr(), most)
    call.run(slot, kept[1], stream)
    if len(_kept) < _KEPT:
        _kept[key] = kept


# Workspaces of streams, by device and stream: the tensor, its address and its bytes. A run that is
# being queued has taken its own out.
_kept: dict[tuple[int, int], tuple[torch.Tensor, int, int]] = {}
_KEPT, _KEPT_BYTES, _STEP = 8, 32 << 20, 2 << 20
_plans.on_clear.append(_kept.clear)

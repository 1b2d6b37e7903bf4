# SPDX-License-Identifier: Apache-2.0
"""Runs on CUDA: the current stream of q's device, PyTorch's allocator, and captured graphs."""

from __future__ import annotations

import torch

from . import _calls


def launch(call: _calls.Call, q: torch.Tensor, handles: list[int]) -> None:
    """Runs a call on the current stream of q's device, whichever device is current.

    The workspace is of PyTorch's allocator and of that stream, so that whoever gets its memory next
    comes behind this run. A plan that a capture uses stays in the cache for good: nothing tells
    when the graph is gone.
    """
    stream = torch.cuda.current_stream(q.device).cuda_stream
    call.plan.streams.add(stream)
    if torch.cuda.is_current_stream_capturing():
        call.plan.pinned = True
    if not call.workspace:
        call.run(handles, 0, stream)
        return
    work = torch.empty(call.workspace, dtype=torch.uint8, device=q.device)
    call.run(handles, work.data_ptr(), stream)

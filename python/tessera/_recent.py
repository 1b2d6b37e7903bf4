# SPDX-License-Identifier: Apache-2.0
"""The short way of a call whose tensors are like those of an earlier one.

To find a prepared call takes its signature: shapes, strides, types and devices of all tensors.
These are two dozen questions to PyTorch. A guard of torch.compile asks them all at once, and with
them what else stands between a call and its kernel: autocast, inference mode, dispatch modes,
transforms, views that are negated when read. It holds where PyTorch's dispatcher would do what it
did when the guard was made, and never for a call with one tensor twice.

Guards are no public interface. So each kind of difference is tried once before the first guard is
believed; without guards every call takes the long way. A guard must not be asked about a tensor
without strides: what PyTorch raises within it ends the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _calls, _plans

Check = Callable[..., bool]


def _make(*tensors: torch.Tensor) -> Check:
    kind: Any = getattr(getattr(torch._C, "_dynamo"), "guards").TensorGuards
    # Without the two words versions of PyTorch differ in what is dynamic.
    check: Check = kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@functools.cache
def _trusted() -> bool:
    """Whether guards of this PyTorch hold for equal tensors and for no others."""
    try:
        # As if nothing were set: the answer is for good.
        plain = torch.autocast("cpu", enabled=False)
        with torch.inference_mode(False), torch.no_grad(), plain:
            x, same = torch.empty(2, 2, 3, 4, device="cpu", dtype=torch.float32).unbind()
            others = [
                torch.empty(2, 3, 5, device="cpu", dtype=torch.float32),
                torch.empty(2, 3, device="cpu", dtype=torch.float32),
                x.transpose(0, 1).contiguous().transpose(0, 1),
                x.half(),
                x.detach().requires_grad_(),
                torch.empty(2, 3, 4, device="meta", dtype=torch.float32),
                torch.nn.Parameter(x, requires_grad=False),
                torch.complex(x, x).conj().imag,
                None,
            ]
            check = _make(x, same)  # which never holds for one tensor twice
            if any(check(x, y) or check(y, same) for y in others):
                return False
            for mode in (torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)):
                with mode:
                    if check(x, same):
                        return False
            return check(x, same) and check(same, x)
    except (AttributeError, RuntimeError, TypeError):
        return False


def keep(key: Any, call: _calls.Call, tensors: Sequence[torch.Tensor], *more: Any) -> None:
    """Keeps a prepared call of such tensors by what is told before they are looked at closely, as
    the entry (check, call, *more): `check` says whether it takes others. No entry outlives the
    cache's plan."""
    if not _trusted():
        return
    # A guard takes a microsecond to make, so a call keeps its own. It is for tensors of one entry
    # alone: one made where a gradient is wanted holds for no others. A guard that is in place and
    # did not hold is of no use either.
    known, own, guard = _plans.recent.get(key), (key, more), call.guard
    if guard is None or guard[0] != own or (known and known[0] is guard[1]):
        call.guard = guard = own, _make(*tensors)  # other threads may have another one meanwhile
    _plans.remember_recent(key, (guard[1], call, *more), call.plan)

# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 by plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch


def one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Any,
    scale: float | None,
    q_first: int | None,
    kv_first: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence: q [rows, heads, dim], k and v [keys, kv heads, dim]."""
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    first_key = kv_first or 0
    first_row = first_key + keys - rows if q_first is None else q_first
    mask = torch.from_numpy(
        pattern.mask(
            range(first_row, first_row + rows),
            range(first_key, first_key + keys),
            heads=heads,
            kv_heads=kv_heads,
        )
    )
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // kv_heads, 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2)) * (scale or dim**-0.5)
    some = mask.any(-1)
    scores = scores.masked_fill(~mask, float("-inf"))
    if keys == 0:
        return torch.zeros(rows, heads, dim).double(), torch.full((heads, rows), -torch.inf)
    # Rows without keys are taken out before the softmax, so that no gradient becomes NaN.
    safe = torch.where(some[..., None], scores, torch.zeros_like(scores))
    lse = torch.where(some, safe.logsumexp(-1), torch.full_like(safe[..., 0], float("-inf")))
    o = torch.where(some[..., None], safe.softmax(-1) @ v, torch.zeros_like(q))
    return o.transpose(0, 1), lse


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Any,
    layout: str = "bshd",
    scale: float | None = None,
    **lengths: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What tessera.attention with return_lse computes, in float64; lengths are lists."""
    get = {name: values for name, values in lengths.items() if values is not None}
    first_q, first_k = get.get("q_first"), get.get("kv_first")
    if layout == "thd":
        cu_q = get["cu_seqlens_q"]
        cu_k = get.get("cu_seqlens_k", cu_q)
        parts, places = [], list(zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False))
        for n, (a, b, c, d) in enumerate(places):
            firsts = (first_q and first_q[n], first_k and first_k[n])
            parts.append(one(q[a:b], k[c:d], v[c:d], pattern, scale, *firsts))
        rest = q.shape[0] - cu_q[-1]
        o = [part[0] for part in parts] + [torch.zeros(rest, *q.shape[1:]).double()]
        lse = [part[1] for part in parts] + [torch.full((q.shape[1], rest), -torch.inf).double()]
        return torch.cat(o), torch.cat(lse, 1)
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    os, lses = [], []
    for n in range(q.shape[0]):
        rows = get["q_lens"][n] if "q_lens" in get else q.shape[1]
        keys = get["kv_lens"][n] if "kv_lens" in get else k.shape[1]
        firsts = (
            None if first_q is None else first_q[n],
            None if first_k is None else first_k[n],
        )
        o, lse = one(q[n, :rows], k[n, :keys], v[n, :keys], pattern, scale, *firsts)
        pad = q.shape[1] - rows
        os.append(torch.cat([o, torch.zeros(pad, *o.shape[1:]).double()]))
        lses.append(torch.cat([lse, torch.full((lse.shape[0], pad), -torch.inf).double()], 1))
    o = torch.stack(os)
    return (o.transpose(1, 2) if layout == "bhsd" else o), torch.stack(lses)


TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Asserts that a result is the expected one within what its type can hold."""
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected.double(), atol=bound * 2, rtol=bound)

# SPDX-License-Identifier: Apache-2.0
"""Merging of partial results over disjoint keys by their LSE."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.dkernel._checks import invalid, whole


def combine_attn_partitions(*x: tuple[Tensor, Tensor], hdim: int = 1) -> Tensor:
    """The attention over all keys from that over disjoint parts of them; differentiable.

    x     (output, lse) of each part. output: [batch, heads, tokens, dim] with hdim=1, [batch,
          tokens, heads, dim] with hdim=2, or packed [tokens, heads, dim] with hdim=1. lse: float32
          [batch, heads, tokens] in both layouts, packed [heads, tokens]; the natural logarithm.
    hdim  the dimension of `output` that counts heads

    Returns a tensor like the first output. A row that sees no key in any part (-inf everywhere) is
    0, and so is the gradient there, whatever its partial outputs hold.
    """
    if not x:
        raise invalid("x: at least one pair (output, lse) is needed")
    for n, pair in enumerate(x):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise invalid(f"x[{n}]: a pair (output, lse) is needed")
        for name, one in zip(("output", "lse"), pair):
            if not isinstance(one, Tensor):
                raise TypeError(f"x[{n}]: {name}: a tensor is needed, got {type(one).__name__}")
    like = x[0][0]
    if like.dim() not in (3, 4):
        raise invalid(f"x[0]: 3 or 4 dimensions of output, got shape {list(like.shape)}")
    hdim = whole("hdim", hdim, -4)
    heads = hdim + like.dim() if hdim < 0 else hdim
    first = like.dim() - 3  # of the two dimensions that are heads and tokens
    if heads not in (first, first + 1):
        raise invalid(f"hdim: {first} or {first + 1} for {like.dim()} dimensions, got {hdim}")
    shape = list(like.shape[:-1])
    if heads == first + 1:
        shape[first], shape[first + 1] = shape[first + 1], shape[first]
    for n, (output, lse) in enumerate(x):
        if output.shape != like.shape:
            raise invalid(
                f"x[{n}]: output of shape {list(output.shape)}, that of x[0] has {list(like.shape)}"
            )
        if list(lse.shape) != shape:
            raise invalid(f"x[{n}]: lse of shape {list(lse.shape)}, {shape} is needed")

    scores = torch.stack([lse.float() for _, lse in x])
    largest = scores.detach().amax(0)
    # Of -inf alone nothing is subtracted: exp(-inf) is 0, -inf - -inf would be NaN.
    weights = torch.exp(scores - torch.where(torch.isneginf(largest), 0.0, largest))
    total = weights.sum(0)
    weights = weights / torch.where(total == 0, 1.0, total)
    if heads == first + 1:
        weights = weights.transpose(-2, -1)
    merged = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for (output, _), weight in zip(x, weights):
        weight = weight[..., None]
        merged = merged + torch.where(weight > 0, output.float(), 0.0) * weight
    return merged.to(like.dtype)

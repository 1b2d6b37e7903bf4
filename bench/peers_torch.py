# SPDX-License-Identifier: Apache-2.0
"""What peers_cuda.py and its sweep share: timing, the check in float64, and PyTorch's kernels."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from peers_turns import turns
from tessera_ctypes import DENSE, PER_KV_HEAD, WINDOW, pattern

# Calls under this many seconds are captured into graphs: through ctypes or PyTorch a call costs the
# host 10 to 30 us.
SHORT = 300e-6


def timed(function, milliseconds, calls=1):
    """Seconds of a call on the device, the mean of a turn. `function` makes `calls` calls."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    function()
    last.record()
    last.synchronize()
    once = max(first.elapsed_time(last), 1e-3)
    if once > 5 * milliseconds:  # so long that being the first of the turn does not show
        return once / calls * 1e-3
    repeats = max(1, min(200, int(milliseconds / once)))
    first.record()
    for _ in range(repeats):
        function()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / (repeats * calls) * 1e-3


def captured(function, calls):
    """A graph of so many calls. The current stream must not be the default one."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    for _ in range(calls):
        function()
    graph.capture_end()
    return graph


def take_turns(functions, rounds, milliseconds=20.0, graphs=True):
    """Seconds by function and round. If one function is short, all are timed as graphs."""
    for function in functions:
        function()
    guesses = [timed(function, 1.0) for function in functions]
    work = [(function, 1) for function in functions]
    if graphs and min(guesses) < SHORT:
        counts = [max(1, min(32, int(1e-3 / guess))) for guess in guesses]
        work = [
            (captured(function, calls).replay, calls) for function, calls in zip(functions, counts)
        ]

    def sample(one):
        function, calls = one
        return [timed(function, milliseconds, calls)]

    return list(turns(dict(enumerate(work)), rounds, sample).values())


def kept_keys(wanted, heads, kv_heads, head, position, keys, device="cuda"):
    """Which of the first `keys` keys a query at `position` keeps, by tessera.h's formulas."""
    t = torch.arange(min(position + 1, keys), device=device)
    if wanted.kind == DENSE:
        return t
    if wanted.kind == WINDOW:
        return t[t >= position - wanted.left]
    block, step = wanted.block, max(1, wanted.stride // heads)
    shard = head // (heads // kv_heads) if wanted.flags & PER_KV_HEAD else head
    j = t // block
    return t[
        (position // block - j < wanted.local)
        | ((j + shard * step + wanted.offset) % wanted.stride == 0)
    ]


def largest_error(q, k, v, o, wanted, samples=7):
    """Compares rows of o with float64: the largest difference over the row's largest element.

    Tensors are [batch, tokens, heads, head_dim].
    """

    def keys_of(item, kv_head, keys):
        return k[item, keys, kv_head], v[item, keys, kv_head]

    return error_in_cache(q, o, wanted, *k.shape[1:3], keys_of, samples)


def error_in_cache(q, o, wanted, kv_len, kv_heads, keys_of, samples=7):
    """The same where K and V lie elsewhere: keys_of(item, kv_head, keys) gives them by position."""
    batch, q_len, heads, head_dim = q.shape
    rows = sorted(
        {row for row in (0, 1, 63, 64, q_len // 3, q_len // 2 + 5, q_len - 1) if row < q_len}
    )
    worst = 0.0
    for n in range(samples):
        row, head, item = rows[(samples - 1 - n) % len(rows)], n * 13 % heads, n % batch
        position = kv_len - q_len + row
        keys = kept_keys(wanted, heads, kv_heads, head, position, kv_len, q.device)
        k, v = (x.double() for x in keys_of(item, head // (heads // kv_heads), keys))
        s = (k @ q[item, row, head].double()) / math.sqrt(head_dim)
        expected = torch.softmax(s, 0) @ v
        error = float((o[item, row, head].double() - expected).abs().max() / expected.abs().max())
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def peer(name, q, k, v):
    """A function that runs one of PyTorch's kernels on the dense shape, and how the order is set.

    The last query meets the last key.
    """
    a, b, c = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    backend, grouped = BACKENDS[name], a.shape[1] != b.shape[1]
    options, how = {"is_causal": True}, "is_causal"
    if q.shape[1] == 1:
        options, how = {}, "no mask"
    elif q.shape[1] != k.shape[1]:
        # PyTorch's is_causal puts the first query at the first key. For a kernel that cannot do the
        # other, causal_lower_right would make a mask of rows x keys.
        params = SDPAParams(a, b, c, None, 0.0, False, grouped)
        able = {
            "FlashAttention-2": can_use_flash_attention,
            "memory-efficient": can_use_efficient_attention,
        }.get(name)
        if able is None or not able(params) or (grouped and name == "memory-efficient"):
            raise RuntimeError("no causal order from the bottom right")
        options = {"attn_mask": causal_lower_right(q.shape[1], k.shape[1])}
        how = "causal_lower_right"

    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(a, b, c, enable_gqa=grouped, **options)

    return call, how


def accepting_peers(q, k, v):
    """(name, how, function) of each of PyTorch's kernels that gets the dense shape right."""
    dense = pattern(DENSE)
    for name in BACKENDS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call, how = peer(name, q, k, v)
                o = call().transpose(1, 2)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            continue
        error = largest_error(q, k, v, o, dense, samples=3)
        if error < 2e-2:
            yield name, how, call
        else:
            print(f"    {name}, {how}: wrong result, {error:.1e}; left out", flush=True)

# SPDX-License-Identifier: Apache-2.0
"""Attention and its masks in NumPy, written from docs/patterns.md alone.

The command's results are compared with these. A test that imports this is skipped without NumPy."""
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no NumPy (Debian: python3-numpy)")
    sys.exit(77)

BF16 = "bf16"


def round_to(dtype, values):
    """float64 values as an array of the type that .npy files hold; bfloat16 as uint16 bits."""
    single = np.asarray(values, dtype=np.float32)
    if dtype == "f32":
        return single
    if dtype == "f16":
        return single.astype(np.float16)
    bits = single.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(array):
    """The float64 values of such an array."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def kept(w, heads, kv_heads, q_len, kv_len):
    """Boolean [heads, q_len, kv_len] of one sequence; w holds the words of the problem."""
    causal = int(w.get("causal", 1))
    p = (kv_len - q_len + np.arange(q_len))[:, None]
    t = np.arange(kv_len)[None, :]
    order = (t <= p) if causal else np.ones((q_len, kv_len), bool)
    pattern = w.get("pattern", "s2")
    if pattern == "dense":
        return np.broadcast_to(order, (heads, q_len, kv_len))
    if pattern == "window":
        left, right = int(w["left"]), int(w.get("right", 0))
        near = np.ones_like(order)
        if left >= 0:
            near &= t >= p - left
        if right >= 0:
            near &= t <= p + right
        return np.broadcast_to((near | (t < int(w.get("sinks", 0)))) & order,
                               (heads, q_len, kv_len))
    block = int(w.get("block", 64))
    i, j = p // block, t // block  # floor divisions, also for queries before the first key
    if pattern == "blocks":
        mask = w["_mask"].astype(bool)
        inside = (i >= 0) & (i < mask.shape[1]) & (j < mask.shape[2])
        rows, columns = np.clip(i, 0, mask.shape[1] - 1), np.clip(j, 0, mask.shape[2] - 1)
        return np.stack([mask[h if len(mask) > 1 else 0][rows, columns] & inside & order
                         for h in range(heads)])
    local, stride = int(w["local"]), int(w["stride"])
    total = int(w.get("heads_total", heads))
    kv_total = int(w.get("kv_heads_total", total * kv_heads // heads))
    dense_from = total - int(w.get("dense_heads", 0))
    result = []
    ids = [int(n) for n in str(w["head_ids"]).split(",")] if "head_ids" in w else \
        [int(w.get("head_first", 0)) + h for h in range(heads)]
    for h in ids:
        if h >= dense_from:
            result.append(order)
        elif causal:
            g = h // (total // kv_total) if int(w.get("per_kv_head", 0)) else h
            step = 0 if int(w.get("homo", 0)) else max(1, stride // total)
            strided = (j + g * step + int(w.get("offset", 0))) % stride == 0
            result.append(order & ((i - j < local) | strided))
        else:
            a = np.maximum(0, i - j - local + 1)
            b = np.maximum(0, j - i - int(w.get("local_right", local)) + 1)
            result.append((a + b) % stride == 0)
    return np.stack(result)


def attention(w, q, k, v):
    """O and LSE of one sequence in float64.

    q is [q_len, heads, head_dim], k and v are [kv_len, kv_heads, head_dim]."""
    q, k, v = widen(q), widen(k), widen(v)
    q_len, heads, head_dim = q.shape
    kv_len, kv_heads = k.shape[:2]
    scale = float(np.float32(w["scale"])) if "scale" in w else 1 / np.sqrt(head_dim)
    keep = kept(w, heads, kv_heads, q_len, kv_len)
    o = np.zeros((q_len, heads, head_dim))
    lse = np.full((heads, q_len), -np.inf)
    for h in range(heads):
        g = h // (heads // kv_heads)
        score = np.where(keep[h], scale * (q[:, h] @ k[:, g].T), -np.inf)
        some = keep[h].any(axis=1)
        if not some.any():
            continue
        score = score[some]
        most = score.max(axis=1, keepdims=True)
        weight = np.exp(score - most)
        total = weight.sum(axis=1, keepdims=True)
        o[some, h] = (weight / total) @ v[:, g]
        lse[h, some] = (most + np.log(total))[:, 0]
    return o, lse


def gradients(w, q, k, v, d_o, d_lse):
    """dQ, dK and dV of one sequence in float64, for gradients d_o of O and d_lse of LSE."""
    o, lse = attention(w, q, k, v)
    q, k, v, d_o = widen(q), widen(k), widen(v), widen(d_o)
    q_len, heads, head_dim = q.shape
    kv_len, kv_heads = k.shape[:2]
    scale = float(np.float32(w["scale"])) if "scale" in w else 1 / np.sqrt(head_dim)
    keep = kept(w, heads, kv_heads, q_len, kv_len)
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for h in range(heads):
        g = h // (heads // kv_heads)
        some = np.isfinite(lse[h])
        if not some.any():
            continue
        score = np.where(keep[h], scale * (q[:, h] @ k[:, g].T), -np.inf)[some]
        p = np.exp(score - lse[h, some][:, None])
        delta = (d_o[some, h] * o[some, h]).sum(axis=1) - d_lse[h, some]
        d_s = p * (d_o[some, h] @ v[:, g].T - delta[:, None])
        d_v[:, g] += p.T @ d_o[some, h]
        d_k[:, g] += scale * (d_s.T @ q[some, h])
        d_q[some, h] = scale * (d_s @ k[:, g])
    return d_q, d_k, d_v

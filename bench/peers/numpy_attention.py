# SPDX-License-Identifier: Apache-2.0
"""The example of a peer: attention and its gradients as a NumPy user writes them, head by head, in
f32."""

import sys

from peer import Refused, path, plain, serve, tell

try:
    import numpy
except ImportError:
    tell(name="NumPy", note="NumPy is not installed")
    sys.exit()


def ways(request):
    plain(request)
    if request["dtype"] == "bf16":
        raise Refused("NumPy has no bf16")
    dtype = {"f32": numpy.float32, "f16": numpy.float16}[request["dtype"]]
    batch, dim = request["batch"], request["head_dim"]
    rows, keys = request["q_len"], request["kv_len"]
    heads, kv_heads = request["heads"], request["kv_heads"]

    def load(name, tokens, count):
        return numpy.fromfile(path(request, name), dtype).reshape(batch, tokens, count, dim)

    q, k, v = (load("q", rows, heads), load("k", keys, kv_heads), load("v", keys, kv_heads))
    out = numpy.empty_like(q)
    hidden = numpy.arange(keys)[None, :] > numpy.arange(rows)[:, None] + (keys - rows)

    def wide(x, b, h):
        return x[b, :, h].astype(numpy.float32)

    def weights(b, h, group):
        scores = wide(q, b, h) @ wide(k, b, group).T * request["scale"]
        if request["causal"]:
            scores[hidden] = -numpy.inf
        found = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        return found / found.sum(axis=1, keepdims=True)

    def attend():
        for b in range(batch):
            for h in range(heads):
                group = h * kv_heads // heads
                out[b, :, h] = weights(b, h, group) @ wide(v, b, group)

    if request["op"] != "bwd":
        yield "numpy/matmul", attend, None, lambda: out.tofile(path(request, "o"))
        return
    d_o = load("d_o", rows, heads)
    gradients = [numpy.zeros(x.shape, numpy.float32) for x in (q, k, v)]

    def differentiate():
        for x in gradients:
            x[...] = 0
        d_q, d_k, d_v = gradients
        for b in range(batch):
            for h in range(heads):
                group = h * kv_heads // heads
                p, g = weights(b, h, group), wide(d_o, b, h)
                d_p = g @ wide(v, b, group).T
                d_s = p * (d_p - (p * d_p).sum(axis=1, keepdims=True)) * request["scale"]
                d_q[b, :, h] = d_s @ wide(k, b, group)
                d_k[b, :, group] += d_s.T @ wide(q, b, h)
                d_v[b, :, group] += p.T @ g

    def store():
        for name, x in zip(("d_q", "d_k", "d_v"), gradients):
            x.astype(dtype).tofile(path(request, name))

    yield "numpy/matmul", differentiate, None, store


serve("NumPy", numpy.__version__, ["cpu"], ways)

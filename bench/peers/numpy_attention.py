# SPDX-License-Identifier: Apache-2.0
"""The example of a peer: attention as a NumPy user writes it, head by head, in f32."""

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

    def run():
        for b in range(batch):
            for h in range(heads):
                group = h * kv_heads // heads
                scores = q[b, :, h].astype(numpy.float32) @ k[b, :, group].astype(numpy.float32).T
                scores *= request["scale"]
                if request["causal"]:
                    scores[hidden] = -numpy.inf
                weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                out[b, :, h] = weights @ v[b, :, group].astype(numpy.float32)

    yield "numpy/matmul", run, None, lambda: out.tofile(path(request, "o"))


serve("NumPy", numpy.__version__, ["cpu"], ways)

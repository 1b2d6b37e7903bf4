# SPDX-License-Identifier: Apache-2.0
"""A KV cache beside plain tensors of all that it should hold."""

from __future__ import annotations

import reference
import torch

import tessera

F32 = torch.float32
PATTERNS = {
    "dense": tessera.Dense(),
    "s2": tessera.S2(16, 2, 4),
    "per_kv_head": tessera.S2(16, 1, 8, offset=1, per_kv_head=True),
    "dense_heads": tessera.S2(16, 2, 4, dense_heads=2),
    "window": tessera.Window(20, sinks=3),
    "long_window": tessera.Window(90),
}


class Model:
    """What a cache should hold: K and V of each sequence as plain tensors."""

    def __init__(self, pattern, sequences=3, heads=4, kv_heads=2, dim=16, layers=1, **words):
        words = dict(max_tokens=400, page=16, max_chunk=32, dtype=F32) | words
        self.pattern, self.layers = pattern, layers
        self.shape = (heads, kv_heads, dim)
        self.cache = tessera.KVCache(
            pattern, heads, kv_heads, dim, sequences=sequences, layers=layers, **words
        )
        empty = torch.zeros(0, kv_heads, dim, device=self.cache.device)
        self.kept = [[(empty, empty) for _ in range(sequences)] for _ in range(layers)]
        self.poison()

    def poison(self):
        """NaN in every page that nobody has."""
        for pages, *pools in zip(
            self.cache._pages, *(self.cache.pools(n) for n in range(self.layers)), strict=True
        ):
            for pool in pools:
                for x in pool:
                    if x is None:
                        continue
                    if x.dtype == torch.int8:
                        x[pages.free] = 127
                    else:
                        x.view(torch.uint8 if x.element_size() == 1 else x.dtype)[pages.free] = (
                            255 if x.element_size() == 1 else torch.nan
                        )

    def lengths(self):
        return [len(k) for k, _ in self.kept[0]]

    def new(self, rows):
        heads, kv_heads, dim = self.shape
        cache = self.cache
        return [
            torch.randn(*rows, n, dim, dtype=cache.dtype, device=cache.device)
            for n in (heads, kv_heads, kv_heads)
        ]

    def step(self, tokens, lens=None, layout="bshd", bound=None):
        """A step of padded rows; `lens` of `tokens` are new in each sequence."""
        count = self.cache.sequences
        each = [tokens] * count if lens is None else lens
        for layer in range(self.layers):
            q, k, v = self.new((count, tokens))
            given = [x.transpose(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
            o, lse = tessera.attention(
                *given, self.pattern, cache=self.cache, q_lens=lens, layout=layout,
                layer=layer, return_lse=True,
            )  # fmt: skip
            o = o.transpose(1, 2) if layout == "bhsd" else o
            for s, n in enumerate(each):
                self.check(layer, s, q[s, :n], k[s, :n], v[s, :n], o[s, :n], lse[s, :, :n], bound)
                assert (o[s, n:] == 0).all() and (lse[s, :, n:] == -torch.inf).all()

    def packed(self, lens, after=0):
        """A step of packed rows, with some behind them that are in no sequence."""
        ends = [sum(lens[:n]) for n in range(len(lens) + 1)]
        for layer in range(self.layers):
            q, k, v = self.new((ends[-1] + after,))
            o, lse = tessera.attention(
                q, k, v, cache=self.cache, layout="thd", cu_seqlens_q=ends, layer=layer,
                return_lse=True,
            )  # fmt: skip
            for s, (a, b) in enumerate(zip(ends, ends[1:], strict=False)):
                self.check(layer, s, q[a:b], k[a:b], v[a:b], o[a:b], lse[:, a:b])
            assert (o[ends[-1] :] == 0).all()

    def check(self, layer, s, q, k, v, o, lse, bound=None):
        before = self.kept[layer][s]
        self.kept[layer][s] = (torch.cat([before[0], k]), torch.cat([before[1], v]))
        given = (x.cpu() for x in (q, *self.kept[layer][s]))
        wanted, wanted_lse = reference.one(*given, self.pattern, None, None, None)
        if bound is None:
            reference.near(o.cpu(), wanted, self.cache.dtype)
            if lse is not None:
                reference.near(lse.cpu(), wanted_lse, self.cache.dtype)
        else:
            torch.testing.assert_close(o.cpu().double(), wanted, atol=bound, rtol=0)

    def rollback(self, counts):
        self.cache.rollback(counts)
        for layer in self.kept:
            for s, n in enumerate(counts):
                k, v = layer[s]
                layer[s] = (k[: len(k) - n], v[: len(v) - n])

    def fork(self, source, to=None):
        target = self.cache.fork(source, to)
        for layer in self.kept:
            layer[target] = layer[source]
        return target

    def free(self, s):
        self.cache.free(s)
        for layer in self.kept:
            layer[s] = tuple(x[:0] for x in layer[s])

# SPDX-License-Identifier: Apache-2.0
"""A KV cache in pages with random ids, as peers_decode.py times it."""

import math

import torch

from peers_torch import error_in_cache
from tessera_ctypes import COMPACT, Buffer


class Cache:
    """K and V of some layers: `layers` has pools [page, token, kv head, element] of each.

    `shape`: (batch, heads, kv_heads, head_dim, tokens). `capacity`: tokens that the table has
    columns for. `plan` and `run` are fields of a plan's and of a run's descriptor.
    """

    def __init__(self, bench, wanted, shape, page, max_chunk=None, capacity=0, layers=None):
        batch, heads, kv_heads, head_dim, tokens = shape
        capacity = capacity or tokens
        self.lib, self.shape, self.page = bench.libraries[0][1], shape, page
        self.compact = max_chunk is not None
        self.layout = self.lib.layout(wanted, heads, kv_heads, capacity, max_chunk or 0)
        self.pages, columns = (
            self.lib.pages(self.layout, n, page) if self.compact else math.ceil(n / page)
            for n in (tokens, capacity)
        )
        device = bench.device.torch_name
        self.ids = torch.randperm(batch * self.pages, device=device)
        self.ids = self.ids.to(torch.int32).reshape(batch, self.pages)
        self.table = torch.full((batch, columns), -1, device=device, dtype=torch.int32)
        self.table[:, : self.pages] = self.ids
        count = batch * self.pages
        self.layers = layers or bench.tensors(count, 1, heads, kv_heads, head_dim, page)[1]
        self.layers = [
            tuple(x.reshape(count, page, kv_heads, head_dim) for x in layer)
            for layer in self.layers
        ]
        self.plan = {"page": page, "kv_len": capacity}
        if self.compact:
            self.plan |= {"flags": COMPACT, "max_chunk": max_chunk}
        memory, size = self.lib.memory, self.table.nbytes
        table = Buffer(kind=memory, handle=self.table.data_ptr(), size=size)
        self.run = {"block_table": table, "table_stride": columns, "pages": count}

    def places(self, wanted, item, kv_head, keys):
        """Page and place in the page of each key of a sequence."""
        u = keys
        if self.compact:
            block = wanted.block or 64
            blocks = (keys // block).unique().tolist()
            slots = torch.zeros(blocks[-1] + 1, device=keys.device, dtype=torch.long)
            found = self.lib.slots(self.layout, kv_head, blocks)
            slots[blocks] = torch.tensor(found, device=keys.device)
            u = slots[keys // block] * block + keys % block
        return self.ids.long()[item][u // self.page], u % self.page

    def error(self, q, k, v, o, wanted):
        """As peers_torch.largest_error, of a layer's pools."""

        def keys_of(item, kv_head, keys):
            at, place = self.places(wanted, item, kv_head, keys)
            return k[at, place, kv_head], v[at, place, kv_head]

        return error_in_cache(q, o, wanted, self.shape[4], self.shape[2], keys_of)

    def __del__(self):
        self.lib.lib.tess_layout_release(self.layout)

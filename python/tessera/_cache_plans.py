# SPDX-License-Identifier: Apache-2.0
"""What a KV cache calls C with: pools as tensors of C, plans of steps, and their descriptors.

A plan tells only the most that a step may have; lengths come with each step (tess_prepare). So a
cache has a few plans, one for each power of two of rows.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import _layouts, _native, _runtime

Tensor = torch.Tensor

_ALIGN = 256  # of a step buffer


class Setting(NamedTuple):
    """What all plans of a storage group of a cache have in common."""

    layout: _layouts.Layout
    device: _runtime.Device
    torch_device: torch.device
    dtype: int
    kv_dtype: int  # 0: dtype
    head_dim: int
    sequences: int
    max_tokens: int
    page: int
    compact: bool


def _fill(tensor: Any, kind: int, x: Tensor, strides: tuple[int, int, int]) -> None:
    tensor.buffer.kind = kind
    tensor.buffer.handle = x.data_ptr() or 4096  # an empty tensor has no address: any will do
    tensor.stride_batch, tensor.stride_token, tensor.stride_head = strides


class Pools(NamedTuple):
    """What a layer keeps of a storage group: K and V, [pages, page, kv heads of the group,
    head_dim], and their scales, [pages, page, kv heads of the group], where they have 8 bits."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None


class Lengths(NamedTuple):
    """The lengths of a step as int32 on the device: rows up to each sequence, keys of each with the
    new ones, the position of each one's first row."""

    cu_rows: Tensor
    kv_lens: Tensor
    q_first: Tensor


class Plan:
    """A tess_plan of a cache, released with this object, and descriptors to run it with."""

    def __init__(self, setting: Setting, q_len: int, rows: int, scale: float | None) -> None:
        self.plan = ctypes.c_void_p()
        self._release = _native.library().tess_plan_release
        self.setting, self.q_len, self.rows = setting, q_len, rows
        self._steps: list[Tensor] = []
        desc = _native.new(
            _native.PlanDesc,
            flags=_native.DEVICE_LENGTHS
            | _native.APPEND
            | (_native.COMPACT if setting.compact else 0),
            op=_native.FORWARD,
            dtype=setting.dtype,
            kv_dtype=setting.kv_dtype,
            head_dim=setting.head_dim,
            scale=scale or 0.0,
            batch=setting.sequences,
            q_len=q_len,
            kv_len=setting.max_tokens,
            page=setting.page,
            max_rows=rows,
        )
        _native.call(
            "tess_plan_create",
            setting.device.handle,
            setting.layout.handle,
            ctypes.byref(desc),
            ctypes.byref(self.plan),
        )
        info = _native.new(_native.PlanInfo)
        _native.call("tess_plan_query", self.plan, ctypes.byref(info))
        self.workspace = int(info.workspace_bytes)
        self._align = max(1, int(info.workspace_align))
        self._step_bytes = int(info.step_bytes)
        self.kernel = info.kernel.decode()
        self._run, self._append = _native.new(_native.RunDesc), _native.new(_native.AppendDesc)
        self._prepare = _native.new(_native.PrepareDesc, batch=setting.sequences)
        self._pools = (_native.Tensor * 4)()  # K, V and their scales
        size = ctypes.sizeof(_native.Tensor)
        places = [ctypes.addressof(self._pools) + n * size for n in range(4)]
        self._append.k_pools, self._append.v_pools = places[:2]
        if setting.kv_dtype:
            self._append.k_scale_pools, self._append.v_scale_pools = places[2:]

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.plan and not _ending():
            self._release(self.plan)

    def step(self, n: int) -> Tensor:
        """Step buffer number n: a step that is taken in parts has one for each."""
        while len(self._steps) <= n:
            self._steps.append(
                torch.empty(
                    self._step_bytes + _ALIGN,
                    dtype=torch.uint8,
                    device=self.setting.torch_device,
                )
            )
        return self._steps[n]

    def _buffer(self, buffer: Any, x: Tensor, align: int = 1) -> None:
        buffer.kind = self.setting.device.memory
        address = x.data_ptr()
        buffer.handle = address + -address % align

    def _stream(self, stream: Any) -> None:
        if self.setting.torch_device.type == "cuda":
            stream.kind = _native.SUBMIT
            stream.handle = torch.cuda.current_stream(self.setting.torch_device).cuda_stream

    def prepare(self, lengths: Lengths, step: Tensor) -> None:
        """Turns lengths into the jobs of a step."""
        desc = self._prepare
        self._buffer(desc.cu_rows, lengths.cu_rows)
        self._buffer(desc.kv_lens, lengths.kv_lens)
        self._buffer(desc.q_first, lengths.q_first)
        self._buffer(desc.step, step, _ALIGN)
        self._stream(desc.stream)
        _native.call("tess_prepare", self.plan, ctypes.byref(desc))

    def append(self, k: Tensor, v: Tensor, pools: Pools, table: Tensor, step: Tensor) -> None:
        """Writes new rows, [rows, kv heads, head_dim] with unit stride over elements."""
        desc, kind = self._append, self.setting.device.memory
        _fill(desc.k, kind, k, (0, k.stride(0), k.stride(1)))
        _fill(desc.v, kind, v, (0, v.stride(0), v.stride(1)))
        for one, pool in zip(self._pools, pools, strict=True):
            if pool is not None:
                _fill(one, kind, pool, (pool.stride(0), pool.stride(1), pool.stride(2)))
                one.buffer.size = pool.numel() * pool.element_size()
        self._buffer(desc.step, step, _ALIGN)
        self._cache(desc, pools, table)
        _native.call("tess_append", self.plan, ctypes.byref(desc))

    def run(
        self, q: Tensor, o: Tensor, lse: Tensor | None, pools: Pools, table: Tensor, step: Tensor
    ) -> None:
        """Attention of q to the cache: q and o [rows, heads, head_dim], lse [heads, rows]."""
        desc, kind = self._run, self.setting.device.memory
        _fill(desc.q, kind, q, (0, q.stride(0), q.stride(1)))
        _fill(desc.o, kind, o, (0, o.stride(0), o.stride(1)))
        desc.lse.buffer.kind = _native.NONE
        if lse is not None:
            _fill(desc.lse, kind, lse, (0, lse.stride(1), lse.stride(0)))
        for name, pool in zip(("k", "v", "k_scale", "v_scale"), pools, strict=True):
            if pool is not None:
                one = getattr(desc, name)
                _fill(one, kind, pool, (pool.stride(0), pool.stride(1), pool.stride(2)))
                one.buffer.size = pool.numel() * pool.element_size()
        self._buffer(desc.step, step, _ALIGN)
        self._cache(desc, pools, table)
        work = None
        if self.workspace:
            # Of the allocator and the current stream: whoever gets its memory comes behind this.
            work = torch.empty(
                self.workspace + self._align,
                dtype=torch.uint8,
                device=self.setting.torch_device,
            )
            self._buffer(desc.workspace, work, self._align)
            desc.workspace.size = self.workspace
        _native.call("tess_run", self.plan, ctypes.byref(desc))
        del work

    def _cache(self, desc: Any, pools: Pools, table: Tensor) -> None:
        self._buffer(desc.block_table, table)
        desc.table_stride = table.shape[1]
        desc.pages = pools.k.shape[0]
        self._stream(desc.stream)


def copy_pages(setting: Setting, pools: Sequence[Tensor], dtype: int, pairs: Tensor) -> None:
    """Copies pages within each of these pools, which have one shape: pairs int32 [n, 2], the page
    to copy from and the page to copy to."""
    for begin in range(0, len(pools), 32):
        some = pools[begin : begin + 32]
        array = (_native.Tensor * len(some))()
        for n, pool in enumerate(some):
            strides = (pool.stride(0), pool.stride(1), pool.stride(2))
            _fill(array[n], setting.device.memory, pool, strides)
        desc = _native.new(
            _native.CopyDesc,
            dtype=dtype,
            n_pools=len(some),
            n_heads=some[0].shape[2],
            head_dim=some[0].shape[3] if some[0].dim() == 4 else 1,
            page=some[0].shape[1],
            pages=some[0].shape[0],
            n_pairs=pairs.shape[0],
            pools=ctypes.addressof(array),
        )
        desc.pairs.kind, desc.pairs.handle = setting.device.memory, pairs.data_ptr()
        if setting.torch_device.type == "cuda":
            desc.stream.kind = _native.SUBMIT
            desc.stream.handle = torch.cuda.current_stream(setting.torch_device).cuda_stream
        _native.call("tess_copy_pages", setting.device.handle, ctypes.byref(desc))

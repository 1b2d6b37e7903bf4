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
    max_tokens: int  # keys of a sequence, or of its part
    page: int
    compact: bool
    parts: bool  # whether keys begin elsewhere than at position 0


def _aligned(memory: Tensor, align: int) -> int:
    """The first address of a tensor that is a multiple of `align`."""
    address = memory.data_ptr()
    return address + -address % align


def _fill(tensor: Any, kind: int, x: Tensor, strides: tuple[int, int, int]) -> None:
    tensor.buffer.kind = kind
    # An empty tensor has no address, and any will do.
    tensor.buffer.handle = x.data_ptr() if x.numel() else 4096
    tensor.stride_batch, tensor.stride_token, tensor.stride_head = strides


class Pools(NamedTuple):
    """What a layer keeps of a storage group: K and V, [pages, page, kv heads of the group,
    head_dim], and their scales, [pages, page, kv heads of the group], where they have 8 bits."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None


class Lengths(NamedTuple):
    """The addresses of a step's lengths, int32 on the device: rows up to each sequence, keys of
    each with the new ones, the positions of each one's first row and, with parts, first key."""

    cu_rows: int
    kv_lens: int
    q_first: int
    kv_first: int | None = None


class _Ready:
    """Descriptors of a layer's calls with all but the tensors of a call filled in."""

    def __init__(self, setting: Setting, pools: Pools, table: Tensor) -> None:
        self.pools, self.table = pools, table  # which have to live as long as the descriptors
        self.run, self.append = _native.new(_native.RunDesc), _native.new(_native.AppendDesc)
        self._arrays = (_native.Tensor * 4)()  # K, V and their scales
        size, start = ctypes.sizeof(_native.Tensor), ctypes.addressof(self._arrays)
        self.append.k_pools, self.append.v_pools = start, start + size
        if setting.kv_dtype:
            self.append.k_scale_pools = start + 2 * size
            self.append.v_scale_pools = start + 3 * size
        kind = setting.device.memory
        for n, (name, pool) in enumerate(zip(Pools._fields, pools, strict=True)):
            if pool is not None:
                one = self._arrays[n]
                _fill(one, kind, pool, (pool.stride(0), pool.stride(1), pool.stride(2)))
                one.buffer.size = pool.numel() * pool.element_size()
                setattr(self.run, name, one)
        for desc in (self.run, self.append):
            desc.block_table.kind, desc.block_table.handle = kind, table.data_ptr()
            desc.table_stride, desc.pages = table.shape[1], pools.k.shape[0]
            desc.step.kind = kind
        self.run.workspace.kind = kind


class Plan:
    """A tess_plan of a cache, released with this object, and descriptors to run it with."""

    def __init__(self, setting: Setting, q_len: int, rows: int, scale: float | None) -> None:
        self.plan: Any = None
        self._release = _native.library().tess_plan_release
        self.setting, self.q_len, self.rows = setting, q_len, rows
        self._steps: list[Tensor] = []
        desc = _native.new(
            _native.PlanDesc,
            flags=_native.DEVICE_LENGTHS
            | _native.APPEND
            | (_native.COMPACT if setting.compact else 0)
            | (_native.DEVICE_PARTS if setting.parts else 0),
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
        self.plan, info = _native.create_plan(setting.device.handle, setting.layout.handle, desc)
        self.workspace = int(info.workspace_bytes)
        self._align = max(1, int(info.workspace_align))
        self._step_bytes = int(info.step_bytes)
        self.kernel = info.kernel.decode()
        self._prepare = _native.new(_native.PrepareDesc, batch=setting.sequences)
        self._ready: dict[int, _Ready] = {}  # by layer
        self._on_cuda = setting.torch_device.type == "cuda"

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # What torch.compile makes while it traces has not been through __init__.
        if getattr(self, "plan", None) and not _ending():
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

    def _stream(self, stream: Any) -> None:
        if self._on_cuda:
            stream.kind = _native.SUBMIT
            stream.handle = torch.cuda.current_stream(self.setting.torch_device).cuda_stream

    def _of(self, layer: int, pools: Pools, table: Tensor) -> _Ready:
        found = self._ready.get(layer)
        if found is None or found.pools is not pools or found.table is not table:
            found = self._ready[layer] = _Ready(self.setting, pools, table)
        return found

    def prepare(self, lengths: Lengths, step: Tensor) -> None:
        """Turns lengths into the jobs of a step."""
        desc, kind = self._prepare, self.setting.device.memory
        for name, address in zip(Lengths._fields, lengths, strict=True):
            if address is not None:
                buffer = getattr(desc, name)
                buffer.kind, buffer.handle = kind, address
        desc.step.kind, desc.step.handle = kind, _aligned(step, _ALIGN)
        self._stream(desc.stream)
        _native.call("tess_prepare", self.plan, ctypes.byref(desc))

    def append(
        self, layer: int, k: Tensor, v: Tensor, pools: Pools, table: Tensor, step: Tensor
    ) -> None:
        """Writes new rows, [rows, kv heads, head_dim] with unit stride over elements."""
        desc, kind = self._of(layer, pools, table).append, self.setting.device.memory
        _fill(desc.k, kind, k, (0, k.stride(0), k.stride(1)))
        _fill(desc.v, kind, v, (0, v.stride(0), v.stride(1)))
        desc.step.handle = _aligned(step, _ALIGN)
        self._stream(desc.stream)
        _native.call("tess_append", self.plan, ctypes.byref(desc))

    def run(
        self,
        layer: int,
        q: Tensor,
        o: Tensor,
        lse: Tensor | None,
        pools: Pools,
        table: Tensor,
        step: Tensor,
    ) -> None:
        """Attention of q to the cache: q and o [rows, heads, head_dim], lse [heads, rows]."""
        desc, kind = self._of(layer, pools, table).run, self.setting.device.memory
        _fill(desc.q, kind, q, (0, q.stride(0), q.stride(1)))
        _fill(desc.o, kind, o, (0, o.stride(0), o.stride(1)))
        desc.lse.buffer.kind = _native.NONE
        if lse is not None:
            _fill(desc.lse, kind, lse, (0, lse.stride(1), lse.stride(0)))
        desc.step.handle = _aligned(step, _ALIGN)
        self._stream(desc.stream)
        work = None
        if self.workspace:
            # Of the allocator and the current stream: whoever gets its memory comes behind this.
            work = torch.empty(
                self.workspace + self._align,
                dtype=torch.uint8,
                device=self.setting.torch_device,
            )
            desc.workspace.handle = _aligned(work, self._align)
            desc.workspace.size = self.workspace
        else:
            desc.workspace.kind = _native.NONE
        _native.call("tess_run", self.plan, ctypes.byref(desc))
        del work


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

# SPDX-License-Identifier: Apache-2.0
"""One open device, and plans on it, for the scripts that time Tessera beside PyTorch.

The structures are those of the Python package of this checkout, which need not be installed: one of
its modules is enough, and the package as a whole wants NumPy. Calls do not go through the package,
since a script may open several builds of the library.
"""

import ctypes
import pathlib
import sys
import types

package = types.ModuleType("tessera_table")
package.__path__ = [str(pathlib.Path(__file__).resolve().parents[1] / "python" / "tessera")]
sys.modules[package.__name__] = package

from tessera_table._native import (  # noqa: E402, F401
    BACKWARD,
    DENSE,
    FORWARD,
    HOST,
    PER_KV_HEAD,
    POINTER,
    S2,
    SUBMIT,
    WINDOW,
    AppendDesc,
    Buffer,
    DeviceDesc,
    LayoutDesc,
    PartsDesc,
    Pattern,
    PlanDesc,
    PlanInfo,
    PrepareDesc,
    RunDesc,
    RuntimeDesc,
    Stream,
    Tensor,
    i32,
    i64,
    new,
    ptr,
    u64,
)

BATCH_INVARIANT, DEVICE_LENGTHS, COMPACT, APPEND = 1, 2, 4, 8  # flags of a plan
TRUST_DEVICE = 256
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}
NEW_K, NEW_V = 6, 7  # roles
ROLES = {"q": 0, "k": 1, "v": 2, "o": 3, "lse": 4, "d_o": 16, "d_q": 17, "d_k": 18, "d_v": 19}


def pattern(kind, **fields):
    return new(Pattern, kind=kind, **fields)


class StorageInfo(ctypes.Structure):
    """tess_storage_info."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("n_kv_heads", ctypes.c_uint32),
        ("ring_slots", i64),
        ("stride", i64),
        ("slots_per_stride", i64),
    ]


class Refused(SystemExit):
    """A call that failed. It ends a script that does not catch it."""


class Plan:
    """A plan, and the tensors it runs on, which live as long as it. A call runs all its jobs."""

    def __init__(self, tessera, layout, plan):
        self.tessera, self.layout, self.plan = tessera, layout, plan
        self.info = new(PlanInfo)
        self.run = self.keep = None
        tessera.call("tess_plan_query", plan, ctypes.byref(self.info))

    def __call__(self):
        self.tessera.call("tess_run", self.plan, ctypes.byref(self.run))

    def bind(self, torch, tensors, stream=0, pools=""):
        """The tensors of a run, by name, and a workspace. `pools`: those that are pools of pages,
        [page, token, head, element]. `stream`: of CUDA."""
        device = tensors["q"].device
        work = torch.empty(self.info.workspace_bytes + 4096, dtype=torch.uint8, device=device)
        run = new(RunDesc)
        for name, x in tensors.items():
            tensor = Tensor()
            if name in pools:
                heads, size = x.shape[2:]
                tensor = Tensor(self.buffer(x), x.shape[1] * heads * size, heads * size, size)
            else:
                self.tessera.call(
                    "tess_plan_tensor",
                    self.plan,
                    ROLES[name],
                    self.buffer(x),
                    ctypes.byref(tensor),
                    None,
                )
            setattr(run, name, tensor)
        run.workspace = self.buffer(work)
        run.workspace.offset = -work.data_ptr() % 4096
        if stream:
            run.stream = Stream(kind=SUBMIT, handle=stream)
        self.run, self.keep = run, (work, tensors)

    def jobs(self, first, count):
        """A function that runs `count` jobs from `first` on. Merges are the last of all."""
        run = RunDesc.from_buffer_copy(self.run)
        run.first_job, run.job_count = first, count
        return lambda: self.tessera.call("tess_run", self.plan, ctypes.byref(run))

    def on(self, q, k, v, o, **fields):
        """A function that runs the plan on other tensors of the same shapes, in its workspace."""
        run = RunDesc.from_buffer_copy(self.run)
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o)):
            buffer = getattr(run, name).buffer
            buffer.handle, buffer.size = x.data_ptr(), x.nbytes
        for name, value in fields.items():
            setattr(run, name, value)
        keep = (self, q, k, v, o, fields)
        return lambda: keep[0].tessera.call("tess_run", self.plan, ctypes.byref(run))

    def buffer(self, x):
        return Buffer(kind=self.tessera.memory, handle=x.data_ptr(), size=x.nbytes)

    def prepare(self, cu_rows, kv_lens, step):
        """A function that makes a step of int32 lengths: see tess_prepare."""
        desc = new(
            PrepareDesc,
            batch=len(kv_lens),
            cu_rows=self.buffer(cu_rows),
            kv_lens=self.buffer(kv_lens),
            step=self.buffer(step),
            stream=self.run.stream,
        )
        keep = (self, cu_rows, kv_lens, step)

        def run():
            keep[0].tessera.call("tess_prepare", self.plan, ctypes.byref(desc))

        run.kv_lens = kv_lens  # of later calls, if they change
        return run

    def append(self, k, v, k_cache, v_cache, **fields):
        """A function that appends new rows to a cache, which is laid out as the plan's K and V."""
        desc = new(AppendDesc, stream=self.run.stream, **fields)
        pools = []
        for role, rows, cache, name in ((NEW_K, k, k_cache, "k"), (NEW_V, v, v_cache, "v")):
            tensor = getattr(desc, name)
            self.tessera.call(
                "tess_plan_tensor", self.plan, role, self.buffer(rows), ctypes.byref(tensor), None
            )
            pools.append(Tensor.from_buffer_copy(getattr(self.run, name)))
            pools[-1].buffer = self.buffer(cache)
        desc.k_pools, desc.v_pools = (ctypes.cast(ctypes.pointer(x), ptr) for x in pools)
        keep = (self, k, v, k_cache, v_cache, pools, fields)
        return lambda: keep[0].tessera.call("tess_append", self.plan, ctypes.byref(desc))

    def __del__(self):
        self.tessera.lib.tess_plan_release(self.plan)
        self.tessera.lib.tess_layout_release(self.layout)


class Tessera:
    """One open device. `threads`: of the CPU backend."""

    def __init__(self, path, device, threads=0, kernel=None):
        self.lib = ctypes.CDLL(path)
        self.lib.tess_last_error.restype = ctypes.c_char_p
        self.kernel = kernel.encode() if kernel else None
        self.memory = HOST if device.startswith("cpu") else POINTER
        desc = new(RuntimeDesc, cpu_threads=threads)
        self.runtime, self.device = ptr(), ptr()
        self.call("tess_runtime_create", ctypes.byref(desc), ctypes.byref(self.runtime))
        wanted = new(DeviceDesc, id=device.encode())
        self.call("tess_device_open", self.runtime, ctypes.byref(wanted), ctypes.byref(self.device))

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments) != 0:
            raise Refused(self.lib.tess_last_error().decode() or name)

    def layout(self, pattern, heads, kv_heads, max_tokens, max_chunk=0):
        layout = ptr()
        desc = new(
            LayoutDesc,
            pattern=ctypes.cast(ctypes.pointer(pattern), ptr),
            n_heads=heads,
            n_kv_heads=kv_heads,
            max_tokens=max_tokens,
            max_chunk=max_chunk,
        )
        self.call("tess_layout_create", self.runtime, ctypes.byref(desc), ctypes.byref(layout))
        return layout

    def pages(self, layout, tokens, page, storage=0):
        """The pages that a sequence takes from the pool of a storage group."""
        pages = i64()
        self.call("tess_layout_pages", layout, storage, i64(tokens), i32(page), ctypes.byref(pages))
        return pages.value

    def storages(self, layout):
        """The kv heads of each storage group."""
        groups, info, heads = [], new(StorageInfo), (i32 * 65536)()
        while True:
            try:
                self.call(
                    "tess_layout_storage", layout, len(groups), ctypes.byref(info), heads
                )
            except Refused:
                if not groups:
                    raise
                return groups
            groups.append(heads[: info.n_kv_heads])

    def slots(self, layout, kv_head, blocks):
        """The slot of each of some key blocks."""
        slot, found = i64(), []
        for block in blocks:
            self.call("tess_layout_slot", layout, kv_head, i64(block), ctypes.byref(slot))
            found.append(slot.value)
        return found

    def merge_parts(self, dtype, o_parts, lse_parts, o, stream=0):
        """A function that merges [part, row, head, element] and [part, row, head] into o."""
        n_parts, rows, heads, head_dim = o_parts.shape
        desc = new(
            PartsDesc,
            n_parts=n_parts,
            n_heads=heads,
            head_dim=head_dim,
            dtype=DTYPES[dtype],
            rows=rows,
        )
        for name, x in (("o_parts", o_parts), ("lse_parts", lse_parts), ("o", o)):
            row = 1 if name == "lse_parts" else head_dim
            setattr(desc, name, self.tensor(x, rows * heads * row, heads * row, row))
        if stream:
            desc.stream = Stream(kind=SUBMIT, handle=stream)
        keep = (self, o_parts, lse_parts, o)
        return lambda: keep[0].call("tess_merge_parts", self.device, ctypes.byref(desc))

    def tensor(self, x, stride_batch, stride_token, stride_head):
        buffer = Buffer(kind=self.memory, handle=x.data_ptr(), size=x.nbytes)
        return Tensor(buffer, stride_batch, stride_token, stride_head)

    def create(self, pattern, heads, kv_heads, max_tokens, max_chunk=0, **fields):
        """A Plan without tensors. `fields`: of tess_plan_desc, of which lists become arrays."""
        plan = ptr()
        layout = self.layout(pattern, heads, kv_heads, max_tokens, max_chunk)
        for name, value in list(fields.items()):
            if type(value) is list:
                fields[name] = ctypes.cast((i64 * len(value))(*value), ptr)
        wanted = new(PlanDesc, **fields)
        try:
            self.call(
                "tess_plan_create", self.device, layout, ctypes.byref(wanted), ctypes.byref(plan)
            )
        except Refused:
            self.lib.tess_layout_release(layout)
            raise
        return Plan(self, layout, plan)

    def plan(
        self,
        torch,
        dtype,
        q,
        k,
        v,
        o,
        pattern,
        stream=0,
        kv_split=0,
        kernel=None,
        kv_len=0,
        max_chunk=0,
        max_tokens=0,
        **more,
    ):
        """A Plan on tensors [batch, tokens, heads, head_dim], and its description.

        The last query meets the last key. `stream`: of CUDA. `kernel`: "" for the one chosen.
        `kv_len`: where K and V are longer, or pools of pages. `more`: fields as of create.
        """
        batch, tokens, heads, head_dim = q.shape
        kv_len = kv_len or k.shape[1]
        plan = self.create(
            pattern,
            heads,
            k.shape[2],
            max_tokens or kv_len,
            max_chunk,
            dtype=DTYPES[dtype],
            head_dim=head_dim,
            kv_split=kv_split,
            kernel=self.kernel if kernel is None else kernel.encode() or None,
            **{"batch": batch, "q_len": tokens, "kv_len": kv_len} | more,
        )
        pools = "kv" if more.get("page") else ""
        plan.bind(torch, {"q": q, "k": k, "v": v, "o": o}, stream, pools)
        return plan, plan.info

    def attention(self, torch, dtype, tensors, pattern, stream=0, kernel=None, **fields):
        """A Plan on tensors by their names in ROLES: [batch, tokens, heads, head_dim], and LSE as
        [batch, heads, tokens]. With op=BACKWARD it computes the gradients that are among them."""
        batch, tokens, heads, head_dim = tensors["q"].shape
        kv_len, kv_heads = tensors["k"].shape[1:3]
        plan = self.create(
            pattern,
            heads,
            kv_heads,
            kv_len,
            dtype=DTYPES[dtype],
            head_dim=head_dim,
            kernel=self.kernel if kernel is None else kernel.encode() or None,
            **{"batch": batch, "q_len": tokens, "kv_len": kv_len} | fields,
        )
        plan.bind(torch, tensors, stream)
        return plan

# SPDX-License-Identifier: Apache-2.0
"""What the scripts that time Tessera beside PyTorch need of tessera.h, and one open device."""

import ctypes
import sys

u32, i32, u64, i64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
f32, f64, ptr = ctypes.c_float, ctypes.c_double, ctypes.c_void_p


def structure(name, *fields):
    flat = [(word, kind) for kind, words in fields for word in words.split()]
    return type(name, (ctypes.Structure,), {"_fields_": flat})


# The structures of tessera.h that are used here, field for field.
RuntimeDesc = structure(
    "RuntimeDesc",
    (u32, "struct_size flags"),
    (ptr, "alloc free user log log_user backend kernel verbose cache_dir tune_file backend_path"),
    (u32, "cpu_threads reserved"),
)
DeviceDesc = structure(
    "DeviceDesc", (u32, "struct_size flags"), (ctypes.c_char_p, "id"), (ptr, "native")
)
Pattern = structure(
    "Pattern",
    (u32, "struct_size kind flags"),
    (i32, "block local local_right stride offset dense_heads mask_heads"),
    (i64, "left right sinks"),
    (ptr, "mask"),
    (i64, "mask_query_blocks mask_key_blocks"),
)
LayoutDesc = structure(
    "LayoutDesc",
    (u32, "struct_size flags"),
    (ptr, "pattern"),
    (i32, "n_heads n_kv_heads head_first heads_total kv_heads_total reserved"),
    (i64, "max_tokens max_chunk"),
)
PlanDesc = structure(
    "PlanDesc",
    (u32, "struct_size flags op dtype"),
    (i32, "head_dim value_head_dim"),
    (f32, "scale softcap"),
    (i64, "batch q_len kv_len"),
    (ptr, "q_lens kv_lens cu_q_lens cu_kv_lens"),
    (i32, "kv_split tile_rows"),
    (u32, "determinism max_in_flight"),
    (u64, "time_limit_us"),
    (ctypes.c_char_p, "kernel"),
    (u32, "kv_dtype"),
    (i32, "page"),
    (i64, "max_rows"),
    (ptr, "q_first kv_first"),
)
PlanInfo = structure(
    "PlanInfo",
    (u32, "struct_size tile_rows"),
    (u64, "n_jobs n_merge_jobs n_ranges kept_pairs dense_pairs"),
    (f64, "flops"),
    (u64, "bytes_min workspace_bytes workspace_align host_bytes device_bytes"),
    (f64, "create_seconds"),
    (ctypes.c_char * 64, "kernel"),
    (u64, "step_bytes"),
    (u32, "n_storage reserved"),
)
Buffer = structure("Buffer", (u32, "kind reserved"), (u64, "handle offset size"))
Tensor = structure("Tensor", (Buffer, "buffer"), (i64, "stride_batch stride_token stride_head"))
Stream = structure("Stream", (u32, "kind reserved"), (u64, "handle"), (ptr, "extra"))
RunDesc = structure(
    "RunDesc",
    (u32, "struct_size flags"),
    (Tensor, "q k v o lse"),
    (Buffer, "workspace"),
    (Stream, "stream"),
    (u64, "first_job job_count"),
    (ptr, "device_seconds"),
    (Tensor, "sink_logits k_scale v_scale"),
    (Buffer, "q_lens kv_lens block_table"),
    (Tensor, "d_o d_q d_k d_v d_lse"),
    (Buffer, "step"),
    (i64, "table_stride pages"),
    (ptr, "k_pools v_pools"),
)
DENSE, S2, WINDOW = 0, 1, 2
BATCH_INVARIANT, COMPACT = 1, 4
PER_KV_HEAD = 2
HOST, POINTER = 1, 2
DEFAULT, SUBMIT = 0, 1
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}


def pattern(kind, **fields):
    return Pattern(struct_size=ctypes.sizeof(Pattern), kind=kind, **fields)


class Plan:
    """A plan, and the tensors it runs on, which live as long as it. A call runs all its jobs."""

    def __init__(self, tessera, layout, plan, info, run, keep):
        self.tessera, self.layout, self.plan = tessera, layout, plan
        self.info, self.run, self.keep = info, run, keep

    def __call__(self):
        self.tessera.call("tess_run", self.plan, ctypes.byref(self.run))

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
        desc = RuntimeDesc(struct_size=ctypes.sizeof(RuntimeDesc), cpu_threads=threads)
        self.runtime, self.device = ptr(), ptr()
        self.call("tess_runtime_create", ctypes.byref(desc), ctypes.byref(self.runtime))
        wanted = DeviceDesc(struct_size=ctypes.sizeof(DeviceDesc), id=device.encode())
        self.call("tess_device_open", self.runtime, ctypes.byref(wanted), ctypes.byref(self.device))

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments) != 0:
            sys.exit(f"{name}: {self.lib.tess_last_error().decode()}")

    def layout(self, pattern, heads, kv_heads, max_tokens, max_chunk=0):
        layout = ptr()
        desc = LayoutDesc(
            struct_size=ctypes.sizeof(LayoutDesc),
            pattern=ctypes.cast(ctypes.pointer(pattern), ptr),
            n_heads=heads,
            n_kv_heads=kv_heads,
            max_tokens=max_tokens,
            max_chunk=max_chunk,
        )
        self.call("tess_layout_create", self.runtime, ctypes.byref(desc), ctypes.byref(layout))
        return layout

    def pages(self, layout, tokens, page):
        """The pages that a sequence takes from the pool of the first storage group."""
        pages = i64()
        self.call("tess_layout_pages", layout, 0, i64(tokens), i32(page), ctypes.byref(pages))
        return pages.value

    def slots(self, layout, kv_head, blocks):
        """The slot of each of some key blocks."""
        slot, found = i64(), []
        for block in blocks:
            self.call("tess_layout_slot", layout, kv_head, i64(block), ctypes.byref(slot))
            found.append(slot.value)
        return found

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
        **more,
    ):
        """A Plan on tensors [batch, tokens, heads, head_dim], and its description.

        The last query meets the last key. `stream`: of CUDA. `kernel`: "" for the one chosen.
        `kv_len`: where K and V are pools of pages. `more`: fields of the plan, of which lists
        become arrays.
        """
        plan = ptr()
        batch, tokens, heads, head_dim = q.shape
        kv_len = kv_len or k.shape[1]
        lists = {
            name: (i64 * len(value))(*value) for name, value in more.items() if type(value) is list
        }
        more |= {name: ctypes.cast(value, ptr) for name, value in lists.items()}
        layout = self.layout(pattern, heads, k.shape[2], kv_len, max_chunk)
        wanted = PlanDesc(
            struct_size=ctypes.sizeof(PlanDesc),
            dtype=DTYPES[dtype],
            head_dim=head_dim,
            kv_split=kv_split,
            kernel=self.kernel if kernel is None else kernel.encode() or None,
            **{"batch": batch, "q_len": tokens, "kv_len": kv_len} | more,
        )
        try:
            self.call(
                "tess_plan_create", self.device, layout, ctypes.byref(wanted), ctypes.byref(plan)
            )
        except SystemExit:
            self.lib.tess_layout_release(layout)
            raise
        info = PlanInfo(struct_size=ctypes.sizeof(PlanInfo))
        self.call("tess_plan_query", plan, ctypes.byref(info))
        work = torch.empty(info.workspace_bytes + 4096, dtype=torch.uint8, device=q.device)
        start = -work.data_ptr() % 4096
        run = RunDesc(struct_size=ctypes.sizeof(RunDesc))
        for role, field, x in ((0, "q", q), (1, "k", k), (2, "v", v), (3, "o", o)):
            tensor = Tensor()
            if field in "kv" and more.get("page"):  # pools: [page, token, head, element]
                heads, size = x.shape[2:]
                tensor.buffer = Buffer(kind=self.memory, handle=x.data_ptr(), size=x.nbytes)
                tensor.stride_batch = x.shape[1] * heads * size
                tensor.stride_token, tensor.stride_head = heads * size, size
                setattr(run, field, tensor)
                continue
            self.call(
                "tess_plan_tensor",
                plan,
                role,
                Buffer(kind=self.memory, handle=x.data_ptr(), size=x.nbytes),
                ctypes.byref(tensor),
                None,
            )
            setattr(run, field, tensor)
        run.workspace = Buffer(
            kind=self.memory, handle=work.data_ptr(), offset=start, size=work.nbytes
        )
        if stream:
            run.stream = Stream(kind=SUBMIT, handle=stream)
        return Plan(self, layout, plan, info, run, (work, q, k, v, o)), info

# SPDX-License-Identifier: Apache-2.0
"""What the scripts that time Tessera beside PyTorch need of tessera.h, and one open device."""

import ctypes

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
    (ptr, "head_ids"),
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
    (u32, "n_storage few_tile_rows"),
    (ctypes.c_char * 64, "few_kernel"),
    (u64, "n_columns"),
    (u32, "tile_keys reserved"),
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
AppendDesc = structure(
    "AppendDesc",
    (u32, "struct_size flags"),
    (Tensor, "k v k_scale v_scale"),
    (ptr, "k_pools v_pools"),
    (Buffer, "step block_table"),
    (i64, "table_stride pages"),
    (Stream, "stream"),
)
PartsDesc = structure(
    "PartsDesc",
    (u32, "struct_size flags n_parts n_heads head_dim dtype"),
    (i64, "rows"),
    (Tensor, "o_parts lse_parts o lse"),
    (Stream, "stream"),
)
PrepareDesc = structure(
    "PrepareDesc",
    (u32, "struct_size batch"),
    (Buffer, "cu_rows kv_lens q_first kv_first step"),
    (Stream, "stream"),
)
DENSE, S2, WINDOW = 0, 1, 2
BATCH_INVARIANT, DEVICE_LENGTHS, COMPACT, APPEND = 1, 2, 4, 8
PER_KV_HEAD = 2
HOST, POINTER = 1, 2
DEFAULT, SUBMIT = 0, 1
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}
NEW_K, NEW_V = 6, 7  # roles
FORWARD, BACKWARD = 0, 1
ROLES = {"q": 0, "k": 1, "v": 2, "o": 3, "lse": 4, "d_o": 16, "d_q": 17, "d_k": 18, "d_v": 19}


def pattern(kind, **fields):
    return Pattern(struct_size=ctypes.sizeof(Pattern), kind=kind, **fields)


class Refused(SystemExit):
    """A call that failed. It ends a script that does not catch it."""


class Plan:
    """A plan, and the tensors it runs on, which live as long as it. A call runs all its jobs."""

    def __init__(self, tessera, layout, plan):
        self.tessera, self.layout, self.plan = tessera, layout, plan
        self.info = PlanInfo(struct_size=ctypes.sizeof(PlanInfo))
        self.run = self.keep = None
        tessera.call("tess_plan_query", plan, ctypes.byref(self.info))

    def __call__(self):
        self.tessera.call("tess_run", self.plan, ctypes.byref(self.run))

    def bind(self, torch, tensors, stream=0, pools=""):
        """The tensors of a run, by name, and a workspace. `pools`: those that are pools of pages,
        [page, token, head, element]. `stream`: of CUDA."""
        device = tensors["q"].device
        work = torch.empty(self.info.workspace_bytes + 4096, dtype=torch.uint8, device=device)
        run = RunDesc(struct_size=ctypes.sizeof(RunDesc))
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
        desc = PrepareDesc(
            struct_size=ctypes.sizeof(PrepareDesc),
            batch=len(kv_lens),
            cu_rows=self.buffer(cu_rows),
            kv_lens=self.buffer(kv_lens),
            step=self.buffer(step),
            stream=self.run.stream,
        )
        keep = (self, cu_rows, kv_lens, step)
        return lambda: keep[0].tessera.call("tess_prepare", self.plan, ctypes.byref(desc))

    def append(self, k, v, k_cache, v_cache, **fields):
        """A function that appends new rows to a cache, which is laid out as the plan's K and V."""
        desc = AppendDesc(struct_size=ctypes.sizeof(AppendDesc), stream=self.run.stream, **fields)
        pools = []
        for role, new, cache, name in ((NEW_K, k, k_cache, "k"), (NEW_V, v, v_cache, "v")):
            tensor = getattr(desc, name)
            self.tessera.call(
                "tess_plan_tensor", self.plan, role, self.buffer(new), ctypes.byref(tensor), None
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
        desc = RuntimeDesc(struct_size=ctypes.sizeof(RuntimeDesc), cpu_threads=threads)
        self.runtime, self.device = ptr(), ptr()
        self.call("tess_runtime_create", ctypes.byref(desc), ctypes.byref(self.runtime))
        wanted = DeviceDesc(struct_size=ctypes.sizeof(DeviceDesc), id=device.encode())
        self.call("tess_device_open", self.runtime, ctypes.byref(wanted), ctypes.byref(self.device))

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments) != 0:
            raise Refused(self.lib.tess_last_error().decode() or name)

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

    def merge_parts(self, dtype, o_parts, lse_parts, o, stream=0):
        """A function that merges [part, row, head, element] and [part, row, head] into o."""
        n_parts, rows, heads, head_dim = o_parts.shape
        desc = PartsDesc(
            struct_size=ctypes.sizeof(PartsDesc),
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
        wanted = PlanDesc(struct_size=ctypes.sizeof(PlanDesc), **fields)
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

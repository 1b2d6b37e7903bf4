# SPDX-License-Identifier: Apache-2.0
"""The C library: its structures, field for field, and calls that raise.

`STRUCTURES` is the one table of tessera.h and tessera_serving.h in Python. A test compares its
sizes and offsets with the header's.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

from . import _errors

u8, u32, i32 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32
u64, i64 = ctypes.c_uint64, ctypes.c_int64
f32, f64, ptr, text = ctypes.c_float, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p

VERSION = (0, 1)  # of the header that this table follows
SONAME = "libtessera.so.0.1"

STRUCTURES: dict[str, type[ctypes.Structure]] = {}


def _structure(c_name: str, *fields: tuple[Any, str]) -> Any:
    """A structure; each field is a type and the names that have it, in order."""
    flat = [(word, kind) for kind, words in fields for word in words.split()]
    made = type(c_name, (ctypes.Structure,), {"_fields_": flat})
    STRUCTURES[c_name] = made
    return made


RuntimeDesc = _structure(
    "tess_runtime_desc",
    (u32, "struct_size flags"),
    (_structure("tess_allocator", (ptr, "alloc free user")), "allocator"),
    (ptr, "log log_user"),
    (text, "backend kernel verbose cache_dir tune_file backend_path"),
    (u32, "cpu_threads reserved"),
)
BackendInfo = _structure(
    "tess_backend_info",
    (u32, "struct_size device_count status reserved"),
    (ctypes.c_char * 32, "name"),
    (ctypes.c_char * 512, "reason"),
)
DeviceInfo = _structure(
    "tess_device_info",
    (u32, "struct_size kind compute_units reserved"),
    (u64, "memory_bytes"),
    (ctypes.c_char * 40, "id"),
    (ctypes.c_char * 32, "backend"),
    (ctypes.c_char * 128, "name"),
    (ctypes.c_char * 96, "arch driver"),
)
SettingInfo = _structure(
    "tess_setting_info", (u32, "struct_size reserved"), (text, "name value source meaning")
)
DeviceDesc = _structure(
    "tess_device_desc", (u32, "struct_size flags"), (text, "id"), (ptr, "native")
)
KernelInfo = _structure(
    "tess_kernel_info",
    (u32, "struct_size op status flags"),
    (ctypes.c_char * 64, "name"),
    (ctypes.c_char * 128, "reason"),
    (u32, "most_rows"),
)
RuleInfo = _structure(
    "tess_rule_info", (u32, "struct_size line built_in basis"), (text, "table text")
)
Pattern = _structure(
    "tess_pattern",
    (u32, "struct_size kind flags"),
    (i32, "block local local_right stride offset dense_heads mask_heads"),
    (i64, "left right sinks"),
    (ptr, "mask"),
    (i64, "mask_query_blocks mask_key_blocks"),
)
LayoutDesc = _structure(
    "tess_layout_desc",
    (u32, "struct_size flags"),
    (ptr, "pattern"),
    (i32, "n_heads n_kv_heads head_first heads_total kv_heads_total reserved"),
    (i64, "max_tokens max_chunk"),
    (ptr, "head_ids"),
)
LayoutInfo = _structure(
    "tess_layout_info",
    (u32, "struct_size n_classes n_heads n_kv_heads"),
    (i64, "max_tokens n_blocks"),
    (i32, "block"),
    (u32, "kv_efficient residues residues_total"),
    (f64, "coverage kept_share"),
    (u64, "host_bytes"),
    (u32, "n_storage reserved"),
)
KvInfo = _structure(
    "tess_kv_info",
    (u32, "struct_size reserved"),
    (i64, "blocks blocks_kept blocks_allocated slots_fixed slots_ring"),
)
StorageInfo = _structure(
    "tess_storage_info",
    (u32, "struct_size n_kv_heads"),
    (i64, "ring_slots stride slots_per_stride"),
)
Buffer = _structure("tess_buffer", (u32, "kind reserved"), (u64, "handle offset size"))
Tensor = _structure(
    "tess_tensor", (Buffer, "buffer"), (i64, "stride_batch stride_token stride_head")
)
Stream = _structure("tess_stream", (u32, "kind reserved"), (u64, "handle"), (ptr, "extra"))
PlanDesc = _structure(
    "tess_plan_desc",
    (u32, "struct_size flags op dtype"),
    (i32, "head_dim value_head_dim"),
    (f32, "scale softcap"),
    (i64, "batch q_len kv_len"),
    (ptr, "q_lens kv_lens cu_q_lens cu_kv_lens"),
    (i32, "kv_split tile_rows"),
    (u32, "determinism max_in_flight"),
    (u64, "time_limit_us"),
    (text, "kernel"),
    (u32, "kv_dtype"),
    (i32, "page"),
    (i64, "max_rows"),
    (ptr, "q_first kv_first"),
)
PlanInfo = _structure(
    "tess_plan_info",
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
RunDesc = _structure(
    "tess_run_desc",
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
    (ptr, "k_pools v_pools k_scale_pools v_scale_pools"),
)
AppendDesc = _structure(
    "tess_append_desc",
    (u32, "struct_size flags"),
    (Tensor, "k v k_scale v_scale"),
    (ptr, "k_pools v_pools"),
    (Buffer, "step block_table"),
    (i64, "table_stride pages"),
    (Stream, "stream"),
    (ptr, "k_scale_pools v_scale_pools"),
)
CopyDesc = _structure(
    "tess_copy_desc",
    (u32, "struct_size flags dtype n_pools"),
    (i32, "n_heads head_dim"),
    (i64, "page pages n_pairs"),
    (ptr, "pools"),
    (Buffer, "pairs"),
    (Stream, "stream"),
)
PartsDesc = _structure(
    "tess_parts_desc",
    (u32, "struct_size flags n_parts n_heads head_dim dtype"),
    (i64, "rows"),
    (Tensor, "o_parts lse_parts o lse"),
    (Stream, "stream"),
)
PrepareDesc = _structure(
    "tess_prepare_desc",
    (u32, "struct_size batch"),
    (Buffer, "cu_rows kv_lens q_first kv_first step"),
    (Stream, "stream"),
)

# Values of the header's enumerations.
DENSE, S2, WINDOW, BLOCKS = 0, 1, 2, 3
BIDIRECTIONAL, PER_KV_HEAD, HOMOGENEOUS = 1, 2, 4
FORWARD, BACKWARD = 0, 1
F32, F16, BF16, F8E4M3, I8 = 0, 1, 2, 3, 4
DEVICE_LENGTHS, COMPACT, APPEND, DEVICE_PARTS = 2, 4, 8, 512
ANY_FIRST = -1
NONE, HOST, POINTER = 0, 1, 2
SUBMIT = 1

# What the library is, once it is open.
_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_path: str | None = None


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # the other may be held by a thread that a child of fork() lacks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def load(path: str | os.PathLike[str] | None = None) -> str:
    """Opens the C library and returns its path.

    path: another library than the package's own, such as build/release/libtessera.so. It has to be
        named before anything else of the package is used. Without it: the library inside of the
        package, or else the one that the system's loader finds.
    Raises RuntimeError if another library is open already, Unavailable if there is none, and
    VersionMismatch if it is of another minor version.
    """
    global _library, _path
    with _lock:
        wanted = None if path is None else _resolved(path)
        if _library is not None and _path is not None:
            if wanted is not None and wanted != _path:
                raise RuntimeError(f"tessera.load: path: {_path} is open already, not {wanted}")
            return _path
        own = pathlib.Path(__file__).resolve().parent / "libtessera.so"
        chosen = wanted or (str(own) if own.exists() else SONAME)
        try:
            opened = ctypes.CDLL(chosen)
        except OSError as error:
            raise _errors.Unavailable(f"tessera.load: path: {error}") from None
        if not hasattr(opened, "tess_version"):
            raise _errors.Unavailable(f"tessera.load: path: {chosen} is no Tessera library")
        opened.tess_version.restype = u32
        number = int(opened.tess_version())
        if (number // 1000000, number // 1000 % 1000) != VERSION:
            raise _errors.VersionMismatch(
                f"tessera.load: path: {chosen} has version {number // 1000000}."
                f"{number // 1000 % 1000}, and this package is for {VERSION[0]}.{VERSION[1]}"
            )
        _declare(opened)  # which a library of another version need not have
        _library, _path = opened, chosen
        return chosen


def _resolved(path: Any) -> str:
    try:
        return str(pathlib.Path(path).resolve())
    except TypeError:
        raise TypeError(
            f"tessera.load: path: the path of a library is needed, got {path!r}"
        ) from None
    except (ValueError, OSError, RuntimeError) as error:
        raise _errors.InvalidArgument(f"tessera.load: path: {path!r}: {error}") from None


def _declare(library: ctypes.CDLL) -> None:
    """Types of the functions that take or return something else than int and pointers."""
    byref = ptr
    table: dict[str, tuple[Any, list[Any]]] = {
        "tess_version": (u32, []),
        "tess_last_error": (text, []),
        "tess_status_name": (text, [ctypes.c_int]),
        "tess_runtime_create": (ctypes.c_int, [byref, byref]),
        "tess_runtime_release": (None, [ptr]),
        "tess_runtime_backend": (ctypes.c_int, [ptr, u32, byref]),
        "tess_runtime_device": (ctypes.c_int, [ptr, u32, byref]),
        "tess_runtime_setting": (ctypes.c_int, [ptr, u32, byref]),
        "tess_device_open": (ctypes.c_int, [ptr, byref, byref]),
        "tess_device_release": (None, [ptr]),
        "tess_device_query": (ctypes.c_int, [ptr, byref]),
        "tess_device_kernel": (ctypes.c_int, [ptr, u32, byref]),
        "tess_layout_create": (ctypes.c_int, [ptr, byref, byref]),
        "tess_layout_release": (None, [ptr]),
        "tess_layout_query": (ctypes.c_int, [ptr, byref]),
        "tess_layout_kv": (ctypes.c_int, [ptr, i32, byref]),
        "tess_layout_slot": (ctypes.c_int, [ptr, i32, i64, byref]),
        "tess_layout_part_slot": (ctypes.c_int, [ptr, i32, i64, i64, byref]),
        "tess_layout_part_pages": (ctypes.c_int, [ptr, u32, i64, i64, i32, byref]),
        "tess_layout_kept": (ctypes.c_int, [ptr, i32, i64, i64, byref]),
        "tess_layout_row": (ctypes.c_int, [ptr, i32, i64, byref, i64]),
        "tess_layout_storage": (ctypes.c_int, [ptr, u32, byref, byref]),
        "tess_layout_pages": (ctypes.c_int, [ptr, u32, i64, i32, byref]),
        "tess_plan_create": (ctypes.c_int, [ptr, ptr, byref, byref]),
        "tess_plan_release": (None, [ptr]),
        "tess_plan_release_after": (ctypes.c_int, [ptr, byref]),
        "tess_plan_query": (ctypes.c_int, [ptr, byref]),
        "tess_run": (ctypes.c_int, [ptr, byref]),
        "tess_append": (ctypes.c_int, [ptr, byref]),
        "tess_prepare": (ctypes.c_int, [ptr, byref]),
        "tess_copy_pages": (ctypes.c_int, [ptr, byref]),
        "tess_merge_parts": (ctypes.c_int, [ptr, byref]),
        "tess_wait": (ctypes.c_int, [ptr, u64]),
    }
    for name, (result, arguments) in table.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def library() -> ctypes.CDLL:
    """The open library; opens the package's own on first use."""
    if _library is None:
        load()
    assert _library is not None
    return _library


def path() -> str:
    """Where the open library came from."""
    library()
    assert _path is not None
    return _path


def fail(status: int) -> None:
    """Raises what the last failing call on this thread said."""
    message = library().tess_last_error().decode(errors="replace")
    kind = _errors.BY_STATUS[status] if 0 < status < len(_errors.BY_STATUS) else _errors.Error
    raise kind(message or library().tess_status_name(status).decode())


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status, and raises if that is a failure."""
    status = getattr(library(), name)(*arguments)
    if status:
        fail(status)


def new(structure: Any, **fields: Any) -> Any:
    """A descriptor or info with its size set and everything else 0."""
    return structure(struct_size=ctypes.sizeof(structure), **fields)


def create_plan(device: Any, layout: Any, desc: Any) -> tuple[Any, Any]:
    """A tess_plan of a tess_plan_desc, which the caller releases, and its tess_plan_info."""
    plan, info = ptr(), new(PlanInfo)
    call("tess_plan_create", device, layout, ctypes.byref(desc), ctypes.byref(plan))
    call("tess_plan_query", plan, ctypes.byref(info))
    return plan, info

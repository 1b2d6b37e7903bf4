# SPDX-License-Identifier: Apache-2.0
"""Made-up result files of the bench suite (schema 2), for tests of what reads them. No number here
was measured. `python3 made_results.py FILE` writes the example in results/."""

import json
import sys
import zlib

GPU = "6a2f0c3e-91d4-4b57-8e20-5c7d1f9ab346"
LAYER = "heads=32 kv_heads=8 head_dim=128"

# family, title, problem, FLOP, bytes, (query, key) pairs kept and of the dense mask
LINES = [
    ("prefill", "Prefill, dense, 4k", f"dtype=bf16 {LAYER} q_len=4096 pattern=dense",
     1.374e11, 83886080, 268468224, 268468224),
    ("prefill", "Prefill, S2, 4k",
     f"dtype=bf16 {LAYER} q_len=4096 block=64 local=8 stride=16",
     3.9e10, 83886080, 76171875, 268468224),
    ("decode", "Decode, dense, 32k", f"op=decode dtype=bf16 {LAYER} kv_len=32768 pattern=dense",
     5.369e8, 134234112, 1048576, 1048576),
    ("decode", "Decode, pages, 32k",
     f"op=decode dtype=bf16 {LAYER} kv_len=32768 page=64 pattern=dense",
     5.369e8, 134234112, 1048576, 1048576),
    ("prefill", "Prefill, dense, 16k, f32",
     "dtype=f32 heads=16 head_dim=64 q_len=16384 pattern=dense",
     5.498e11, 268435456, 2147614720, 2147614720),
    ("gradients", "Forward and backward, dense, 4k",
     f"op=bwd dtype=bf16 {LAYER} q_len=4096 pattern=dense",
     3.436e11, 251658240, 268468224, 268468224),
]


def device(id_, kind, name, gemm, copy, read, uuid="", pci="", via="", own_loop=False):
    """A device with ceilings; `gemm` by type."""
    library = "own loop" if own_loop else "cuBLAS 12.4.5" if kind == "gpu" else "oneDNN 3.4.1"
    ceilings = [{"what": "gemm", "dtype": dtype, "rate": rate, "best": rate * 1.01,
                 "size": 4096, "threads": 0, "own_loop": own_loop, "library": library,
                 "method": "row-major", "via": via, "samples_seconds": []}
                for dtype, rate in gemm.items()]
    ceilings += [{"what": what, "rate": rate, "best": rate * 1.01, "size": 1 << 28, "threads": 0,
                  "own_loop": True, "library": "own loop", "method": what + " kernel", "via": "",
                  "samples_seconds": []}
                 for what, rate in (("copy", copy), ("read", read)) if rate]
    return {"id": id_, "backend": id_.split(":")[0], "kind": kind, "name": name, "arch": "",
            "driver": "1.0", "compute_units": 8, "memory_bytes": 1 << 36, "uuid": uuid, "pci": pci,
            "sensors": "NVML 550.54" if kind == "gpu" else "", "energy": "",
            "ceiling_note": "" if gemm else "no library for matrix products was found",
            "ceilings": ceilings}


def words(line):
    return dict(word.split("=", 1) for word in line.split())


def shape(line):
    """The fields that follow from the problem line alone."""
    w = words(line)
    op = w.get("op", "fwd")
    tokens = int(w.get("kv_len", w.get("q_len", 0)))
    fields = {"problem": line, "dense_twin": "", "dtype": w["dtype"], "op": op, "batch": 1,
              "pattern": w.get("pattern", "s2"), "heads": int(w["heads"]),
              "q_len": 1 if op == "decode" else int(w["q_len"]), "kv_len": tokens,
              "heads_total": int(w["heads"]), "head_dim": int(w["head_dim"]),
              "kv_heads": int(w.get("kv_heads", w["heads"]))}
    if "stride" in w:
        fields["dense_twin"] = " ".join(x for x in line.split() if x.split("=")[0] not in
                                        ("block", "local", "stride")) + " pattern=dense"
    if op == "decode":
        fields.update(page=int(w.get("page", 0)), compact=False)
    return fields


def measured(index, line, kernel, median, spread=0.02, peer="", lines=None):
    """A result that is `ok`: quartiles lie `spread` of the median apart."""
    family, _, problem, flops, size, kept, dense = next(
        entry for entry in lines or LINES if entry[2] == line)
    half = spread * median / 2
    samples = [median - 2 * half, median - half, median, median + half, median + 2 * half]
    sensors = {"clock_hz": 1.98e9, "memory_clock_hz": 2.6e9, "power_watts": 350.0,
               "temperature_celsius": 41.0}
    result = {"status": "ok", "note": "", "device": index, "family": family, "kernel": kernel,
              "peer": peer, **shape(problem), "checked_rows": 64, "check_error": 1e-3,
              "check_allowed": 1e-2, "layout_seconds": 1e-5, "plan_seconds": 2e-4,
              "compile_seconds": 0.5, "first_seconds": 3 * median, "median_seconds": median,
              "q1_seconds": samples[1], "q3_seconds": samples[3], "min_seconds": samples[0],
              "max_seconds": samples[4], "rounds": 5, "runs": 5, "samples_seconds": samples,
              "before": sensors, "after": dict(sensors, temperature_celsius=44.0),
              "joules": None, "flops": flops, "bytes_min": size, "kept_pairs": kept,
              "dense_pairs": dense, "jobs": 1024, "workspace_bytes": 1 << 20,
              "plan_bytes": 1 << 16, "kv_bytes": 1 << 24, "kv_bytes_kept": 1 << 22,
              "kv_bytes_allocated": 1 << 23}
    if peer:  # tells its times alone
        result.update(layout_seconds=None, plan_seconds=None, compile_seconds=None,
                      workspace_bytes=0, plan_bytes=0, jobs=0)
    if result["op"] == "decode":
        result.update(layers=4, cache_bytes=size, parts=8.0, host_seconds=3e-6)
    return result


def missing(index, line, kernel, status, note, need=None, peer="", lines=None):
    """A result without numbers."""
    family = next(entry[0] for entry in lines or LINES if entry[2] == line)
    result = {"status": status, "note": note, "device": index, "family": family, "kernel": kernel,
              "peer": peer, **shape(line)}
    if need is not None:
        result.update(need_seconds=need, estimate_seconds=need / 4, ideal_speedup=None)
    return result


def report(devices, results, lines=None, peers=(), **changes):
    root = {"schema": "tessera-bench", "schema_version": 2, "created": "2026-01-02T03:04:05Z",
            "suite": "vendors", "command": "tessera bench", "complete": True,
            "elapsed_seconds": 148.2, "budget_seconds": 150.0,
            "machine": {"cpu": "Made-up CPU 9000", "cpus": 16, "cpus_allowed": 16,
                        "memory_bytes": 1 << 37, "l2_bytes": 1 << 21, "l3_bytes": 1 << 25,
                        "os": "Made-up Linux 1", "kernel": "Linux 6.1", "arch": "x86_64",
                        "other_load": 0.01},
            "library": {"version": "0.1.0", "compiler": "gcc 12.2.0", "build": "Release"},
            "settings": [], "devices": list(devices), "planning": [],
            "lines": [{"family": f, "title": t, "problem": p}
                      for f, t, p, *_ in lines or LINES],
            "peers": list(peers), "results": list(results)}
    root.update(changes)
    return root


def text(root):
    """The bytes of a file, closed with the checksum of what stands before it."""
    body = json.dumps({k: v for k, v in root.items() if k != "checksum"}, indent=1)
    body = body[:-2] + ",\n "
    return body + f'"checksum": "crc32:{zlib.crc32(body.encode()):08x}"\n}}\n'


def example():
    """Five devices of one machine: a CPU, one GPU through three interfaces, and one in software."""
    devices = [
        device("cpu:0", "cpu", "Made-up CPU 9000", {"f32": 8e11, "bf16": 2.4e12}, 4e10, 5e10),
        device("cuda:0", "gpu", "Made-up GPU", {"f32": 5e13, "f16": 6.8e14, "bf16": 7e14}, 3.9e12,
               4.2e12, GPU, "0000:19:00.0"),
        device("vulkan:0", "gpu", "Made-up GPU", {"f32": 5e13, "f16": 6.8e14, "bf16": 7e14},
               3.8e12, 4.1e12, GPU, "0000:19:00.0", "cuda:0"),
        device("opencl:0", "gpu", "Made-up GPU", {"f32": 5e13, "f16": 6.8e14, "bf16": 7e14},
               3.9e12, 4.1e12, GPU, "0000:19:00.0", "cuda:0"),
        device("opencl:1", "software", "PoCL on a made-up CPU", {"f32": 1e11}, 2e10, 2.5e10,
               own_loop=True),
    ]
    dense, sparse, decode, pages, single, gradients = [entry[2] for entry in LINES]
    torch, other = "PyTorch SDPA", "other"
    results = [
        measured(0, dense, "cpu/amx", 0.11), measured(0, sparse, "cpu/amx", 0.04),
        measured(0, decode, "cpu/amx", 3.4e-3, 0.14), measured(0, pages, "cpu/amx", 3.5e-3),
        missing(0, single, "cpu/avx512", "slow", "would take about 41 s, 9.7 s are left for it",
                41.2),
        measured(0, gradients, "cpu/amx", 0.5),
        measured(0, dense, "sdpa", 0.14, peer=torch),
        measured(1, dense, "cuda/sm90", 2.4e-4), measured(1, sparse, "cuda/sm90", 8.4e-5),
        measured(1, decode, "cuda/few_rows", 4.1e-5), measured(1, pages, "cuda/few_rows", 4.3e-5),
        measured(1, single, "cuda/portable", 0.021), measured(1, gradients, "cuda/sm90", 9.1e-4),
        measured(1, dense, "sdpa/flash", 2.6e-4, peer=torch),
        measured(1, decode, "sdpa/flash", 4.0e-5, 0.04, peer=torch),
        missing(1, pages, "sdpa/flash", "refused", "no page tables", peer=torch),
        # a speed-up of 3.7 over an ideal of 3.5: suspect
        measured(2, dense, "vulkan/coopmat", 1.2e-3), measured(2, sparse, "vulkan/coopmat", 3.2e-4),
        measured(2, decode, "vulkan/few_rows", 6.0e-5),
        missing(2, pages, "vulkan/few_rows", "failed",
                "wrong result: sequence 0, head 3, row 0: 0.12 instead of 0.5"),
        measured(2, single, "vulkan/portable", 0.034),
        missing(2, gradients, "", "refused", "no kernel of vulkan:0 computes gradients of bf16"),
        measured(3, dense, "opencl/nv_mma", 4.1e-4), measured(3, sparse, "opencl/nv_mma", 1.4e-4),
        measured(3, decode, "opencl/few_rows", 5.1e-5),
        measured(3, pages, "opencl/few_rows", 5.1e-5, 0.03),
        missing(3, single, "opencl/portable", "interrupted", "interrupted"),
        measured(4, decode, "opencl/few_rows", 0.02), measured(4, pages, "opencl/few_rows", 0.021),
        missing(4, dense, "opencl/portable", "slow",
                "would take about 30 s, 3.1 s are left for it", 30.5),
        missing(4, sparse, "opencl/portable", "slow",
                "would take about 9 s, 3.1 s are left for it", 9.1),
        missing(4, single, "opencl/portable", "memory",
                "needs about 12 GiB of memory, 8 GiB may be used"),
        missing(4, gradients, "opencl/portable", "slow",
                "would take about 80 s, 3.1 s are left for it", 80.0),
    ]
    peers = [{"name": torch, "version": "2.5.1", "note": ""},
             {"name": other, "version": "", "note": "not installed"}]
    return report(devices, results, peers=peers)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(text(example()))

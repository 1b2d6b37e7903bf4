# SPDX-License-Identifier: Apache-2.0
"""A made-up result file as large as that of the suite `vendors` on a machine with a GPU: 37 shapes
on four devices. No number here was measured. `python3 made_table.py FILE` writes it."""
import sys

import made_results as made

LAYER = "heads=32 kv_heads=8 head_dim=128"
S2 = "block=64 local=8 stride=16"


def entry(line, keep=1.0):
    """A line with its FLOP, bytes and pairs, of which the mask keeps a share."""
    words = made.words(line)
    heads, size = int(words["heads"]), int(words["head_dim"])
    keys = int(words.get("kv_len", words.get("q_len", 0)))
    rows = 1 if words.get("op") == "decode" else int(words["q_len"])
    dense = (rows * (keys - rows) + rows * (rows + 1) // 2) * heads
    kept, width = int(dense * keep), 4 if words["dtype"] == "f32" else 2
    stored = width * size * (2 * rows * heads + 2 * keys * int(words.get("kv_heads", heads)) * keep)
    flops = (10 if words.get("op") == "bwd" else 4) * size * kept
    family = {"decode": "decode", "bwd": "gradients"}.get(words.get("op"), "prefill")
    return family, line, line, flops, int(stored), kept, dense


def both(line, keys):
    """The dense problem, and its sparse one."""
    return [entry(f"{line} pattern=dense"), entry(f"{line} {S2}", min(1, 1 / 16 + 900 / keys))]


def lines():
    found = []
    for n in (1024, 2048, 4096, 8192, 16384):
        found += both(f"dtype=bf16 {LAYER} q_len={n}", n)
    found.append(entry(f"dtype=bf16 {LAYER} q_len=16384 pattern=window window=1024", 0.12))
    for dtype in ("f16", "f32"):
        found += both(f"dtype={dtype} {LAYER} q_len=4096", 4096)
    for n in (4096, 16384):
        found.append(entry(f"dtype=f16 heads=16 head_dim=64 q_len={n} pattern=dense"))
    found += both(f"dtype=bf16 {LAYER} q_len=512 kv_len=32768", 32768)
    for n in (4096, 8192, 16384, 32768, 65536, 131072):
        found += both(f"op=decode dtype=bf16 {LAYER} kv_len={n} page=64", n)
    for n in (32768, 131072):
        found.append(entry(f"op=decode dtype=bf16 {LAYER} kv_len={n} pattern=dense"))
        found.append(entry(f"op=decode dtype=f16 heads=32 head_dim=128 kv_len={n} pattern=dense"))
    return found + both(f"op=bwd dtype=bf16 {LAYER} q_len=4096", 4096)


def table(factor=1.0, **changes):
    products = {"f32": 5.1e13, "f16": 7.2e14, "bf16": 7.45e14}
    gpu = ("gpu", "Made-up GPU 200", products)
    devices = [
        made.device("cuda:0", *gpu, 3.97e12, 4.31e12, made.GPU, "0000:19:00.0"),
        made.device("vulkan:0", *gpu, 3.6e12, 4.1e12, made.GPU, "0000:19:00.0", "cuda:0"),
        made.device("opencl:0", *gpu, 3.9e12, 4.2e12, made.GPU, "0000:19:00.0", "cuda:0"),
        made.device("cpu:0", "cpu", "Made-up(R) Processor 8000 CPU @ 2.70GHz",
                    {"f32": 2.1e12, "bf16": 2.4e13}, 2.1e11, 2.6e11)]
    # of products, of memory, both kernels, seconds that every run takes besides
    reach = [(0.78, 0.83, "cuda/sm90", "cuda/few_rows", 6e-6),
             (0.42, 0.55, "vulkan/coopmat", "vulkan/few_rows", 7e-6),
             (0.50, 0.66, "opencl/nv_mma", "opencl/few_rows", 9e-6),
             (0.45, 0.80, "cpu/amx", "cpu/avx512", 4e-5)]
    every, results = lines(), []
    for index, device in enumerate(devices):
        limits = {c.get("dtype", c["what"]): c["rate"] for c in device["ceilings"]}
        for n, (_, line, _, flops, size, *_) in enumerate(every):
            products, memory, prefill, decode, besides = reach[index]
            wobble = 1 + ((n * 7 + index * 13) % 11 - 5) / 200
            dtype, is_decode = made.words(line)["dtype"], "op=decode" in line
            kernel = decode if is_decode else prefill
            seconds = size / limits["read"] / memory if is_decode else \
                flops / limits.get(dtype, limits["f32"]) / products
            seconds = (seconds + besides) * wobble * factor
            if seconds > 0.2:
                results.append(made.missing(index, line, kernel, "slow", "would take too long",
                                            40 * seconds, lines=every))
            elif index == 1 and "op=bwd" in line:
                results.append(made.missing(index, line, "", "refused", "no kernel", lines=every))
            else:
                spread = 0.13 if index == 3 and n % 9 == 4 else 0.002 * (1 + n % 5)
                results.append(made.measured(index, line, kernel, seconds, spread, lines=every))
    return made.report(devices, results, every, **changes)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(made.text(table()))

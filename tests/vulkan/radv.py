#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What RADV makes of the kernel on matrix units for RDNA3, without a GPU. Run by hand:

    python3 tests/vulkan/radv.py BUILD/cli/tessera ROOT

ROOT is a folder with Mesa 25.0 and all libraries of its own, unpacked (Debian 13's
mesa-vulkan-drivers and libvulkan1; later versions lack RADV_FORCE_FAMILY). For each head_dim it
prints registers, spills, and the share of the products in the issue clocks of an ordinary stage: no
mask, no new list of keys, no reference that rises, aligned tensors. That is the shortest way
through the inner loop that passes all blocks that multiply, exponentiate or copy K and V.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

FREE = ("s_delay_alu", "s_waitcnt", "s_nop")
SLOW = ("v_exp_", "v_log_", "v_rcp_")  # a quarter of the rate


def clocks(instruction):
    if instruction.startswith("v_wmma"):
        return 32
    if instruction.startswith(FREE):
        return 0
    return 4 if instruction.startswith(SLOW) else 1


def blocks_of(text):
    blocks = []
    for line in text.splitlines():
        name = re.match(r"(BB\d+):?", line.strip())
        if name:
            blocks.append((name.group(1), []))
        elif blocks and re.match(r"\s+[a-z]\w+", line):
            blocks[-1][1].append(line.split(";")[0].strip())
    return blocks


def edges(blocks, names, n):
    code = blocks[n][1]
    targets = [names[m.group(1)] for x in code if (m := re.match(r"s_c?branch\S*\s+(BB\d+)", x))]
    return targets + ([n + 1] if not code or not code[-1].startswith("s_branch") else [])


def needed(code):
    return (
        any(x.startswith("v_wmma") for x in code)
        or sum(x.startswith("v_exp_") for x in code) > 1
        or any(x.startswith("buffer_load_b128") for x in code)
    )


def stage(blocks):
    """Clocks of the products, and of all instructions, of an ordinary stage."""
    names = {name: n for n, (name, _) in enumerate(blocks)}
    loops = [
        (n - t, t, n)
        for n in range(len(blocks))
        for t in edges(blocks, names, n)
        if t <= n and any("v_wmma" in x for b in blocks[t : n + 1] for x in b[1])
    ]
    _, first, last = min(loops)
    cost = [sum(map(clocks, code)) for _, code in blocks]
    must = [n for n in range(first, last + 1) if n in (first, last) or needed(blocks[n][1])]
    total = cost[first]
    for start, end in zip(must, must[1:]):
        best = {start: 0}
        for n in range(start, end):
            for t in edges(blocks, names, n) if n in best else []:
                if n < t <= end:
                    best[t] = min(best.get(t, 1 << 30), best[n] + cost[t])
        if end in best:  # else a way that does not meet it
            total += best[end]
    products = 32 * sum(
        x.startswith("v_wmma") for n in range(first, last + 1) for x in blocks[n][1]
    )
    return products, total


def main():
    program, root = sys.argv[1:]
    loader = glob.glob(f"{root}/usr/lib/*/ld-linux-*.so.*")[0]
    libraries = os.path.dirname(loader)
    with tempfile.TemporaryDirectory() as scratch:
        with open(glob.glob(f"{root}/usr/share/vulkan/icd.d/radeon_icd*.json")[0]) as f:
            driver = re.sub(r'"[^"]*(libvulkan_radeon.so)"', rf'"{libraries}/\1"', f.read())
        with open(f"{scratch}/driver.json", "w") as f:
            f.write(driver)
        environment = {
            "RADV_FORCE_FAMILY": "navi31",
            "RADV_DEBUG": "shaders,shaderstats,nocache",
            "VK_DRIVER_FILES": f"{scratch}/driver.json",
            "TESSERA_KERNEL": "vulkan/coopmat",
            "TESSERA_CACHE_DIR": "/dev/null",
        }
        for head_dim in (64, 128):
            line = f"heads=16 q_len=8192 head_dim={head_dim} dtype=f16 pattern=dense"
            # The plan itself fails: there is no memory on a device that does not exist.
            output = subprocess.run(
                [loader, "--library-path", f"{libraries}:/lib/x86_64-linux-gnu", program, "plan"]
                + line.split()
                + ["--backend", "vulkan"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            text = output.stdout + output.stderr
            code, statistics = text.split("\ndisasm:\n")[1].split("*** SHADER STATS", 1)
            registers, spilled = (
                re.search(rf"^{name}: (\d+)", statistics, re.M).group(1)
                for name in ("VGPRs", "Spilled VGPRs")
            )
            products, total = stage(blocks_of(code))
            print(
                f"head_dim {head_dim}: {registers} registers, {spilled} spilled; "
                f"products {products} of {total} clocks, {products / total:.2f}"
            )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backward beside forward over the length, on one NVIDIA GPU: measured first, drawn anywhere.

    python3 bench/gradient_curves.py measure --library build/release/libtessera.so CURVES.json
    python3 bench/gradient_curves.py draw CURVES.json PREFIX

`measure` needs PyTorch with CUDA. Sampled rows of O, LSE and every gradient are compared with
float64 before a time counts; times are medians over the rounds, in which the work of a length takes
turns. The limits are a large matrix product and a large copy of the same run. `draw` writes
PREFIX-speed-up.svg and PREFIX-roofline.svg, for light and for dark screens.
"""

import argparse
import json
import math
import os
import random
import statistics

HEAD_DIM, BLOCK, LOCAL = 128, 64, 8
LENGTHS = [1 << n for n in range(12, 18)]
WORK = {  # by name: heads, and the stride of S2 (0: dense)
    "dense, 16 heads": (16, 0),
    "S2, H=V=16": (16, 16),
    "dense, 64 heads": (64, 0),
    "S2, H=V=64": (64, 64),
}
OPS = {"forward": 4, "backward": 8}  # tensors that are read or written, each once


# ------------------------------------------------------------------ measuring


def limits(torch, timed):
    """FLOP/s of a product in bfloat16 and bytes/s of a copy, read and written."""
    n, size = 8192, 1 << 31
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randint(0, 255, (size,), device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    product, copy = (lambda: a @ b), (lambda: y.copy_(x))
    found = [statistics.median(timed(f, 20.0) for _ in range(5)) for f in (product, copy)]
    return {"product": 2 * n**3 / found[0], "copy": 2 * size / found[1]}


def measure_length(tessera, gpu, tokens, rounds):
    """A row for each work and op at a length."""
    from peers_gradients import Layer
    from tessera_ctypes import DENSE, S2, pattern

    rows, plans = [], []
    for name, (heads, stride) in WORK.items():
        wanted = pattern(S2, block=BLOCK, local=LOCAL, stride=stride) if stride else pattern(DENSE)
        layer = Layer(tessera, (1, heads, heads, HEAD_DIM, tokens), wanted, "bf16", "cuda",
                      gpu.handle)
        for op, plan in (("forward", layer.forward), ("backward", layer.backward(1))):
            tensors = OPS[op] * tokens * heads * HEAD_DIM * 2
            lse = tokens * heads * 4
            rows.append({"work": name, "op": op, "tokens": tokens, "flops": plan.info.flops,
                         "bytes": tensors + lse, "kernel": plan.info.kernel.decode(),
                         "kept": layer.forward.info.kept_pairs / layer.forward.info.dense_pairs})
            plans.append((rows[-1], plan, []))
    order, shuffler = list(plans), random.Random(1)
    for _ in range(rounds):
        shuffler.shuffle(order)
        for _, plan, seconds in order:
            seconds.append(gpu.timed(plan, 20.0))
    for row, _, seconds in plans:
        row["seconds"] = statistics.median(seconds)
        row["spread"] = (max(seconds) - min(seconds)) / row["seconds"]
    return rows


def measure(options):
    import torch
    from peers_device import Gpu
    from peers_torch import timed
    from tessera_ctypes import Tessera

    gpu = Gpu()
    tessera = Tessera(options.library, "cuda:0")
    found = {"device": torch.cuda.get_device_name(), "library": os.path.basename(options.library),
             "rounds": options.rounds, **limits(torch, timed), "rows": []}
    for tokens in LENGTHS:
        gpu.release()
        rows = measure_length(tessera, gpu, tokens, options.rounds)
        for row in rows:
            print(f"{row['work']:16} {row['op']:8} {tokens:7} {row['seconds'] * 1e3:10.3f} ms"
                  f" {row['flops'] / row['seconds'] * 1e-12:7.1f} TFLOP/s"
                  f"  spread {row['spread'] * 100:4.1f} %", flush=True)
        found["rows"] += rows
        with open(options.curves, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


# ------------------------------------------------------------------ drawing

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 330, 56, 16, 44, 44
STYLE = """:root { --bg: #fff; --ink: #222; --faint: #ddd; --a: #1b6ca8; --b: #c4501b; --c: #777; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #161616; --ink: #ddd; --faint: #383838; --a: #6db5e8; --b: #f08c55; --c: #999; }
}
text { fill: var(--ink); font: 11px system-ui, sans-serif }
.title { font-weight: 600; font-size: 12px }
.grid { stroke: var(--faint) } .roof { stroke: var(--c); fill: none }
.ideal { stroke: var(--c); fill: none; stroke-dasharray: 5 4 }
.forward { stroke: var(--a); fill: none } .backward { stroke: var(--b); fill: none }
circle.forward, rect.forward { fill: var(--a) } circle.backward, rect.backward { fill: var(--b) }
circle.dense { fill: var(--bg) }"""


class Axes:
    """A panel with logarithmic axes."""

    def __init__(self, left, title, x, y):
        self.left, self.x, self.y, self.parts = left, x, y, []
        self.text(left + LEFT, 20, title, "start", "title")

    def at(self, x, y):
        share = [math.log(v / low) / math.log(high / low)
                 for v, (low, high) in ((x, self.x), (y, self.y))]
        return (self.left + LEFT + share[0] * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - share[1] * (HEIGHT - TOP - BOTTOM))

    def text(self, x, y, text, anchor="middle", kind=""):
        kind = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{text}'
                          "</text>")

    def line(self, points, kind, width=1.0):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*p) for p in points))
        self.parts.append(f'<polyline class="{kind}" stroke-width="{width}" points="{path}"/>')

    def dot(self, x, y, kind):
        x, y = self.at(x, y)
        self.parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>')

    def ticks(self, xs, ys, x_name, y_name):
        for value, name in xs:
            self.line([(value, self.y[0]), (value, self.y[1])], "grid")
            self.text(self.at(value, self.y[0])[0], HEIGHT - BOTTOM + 16, name)
        for value, name in ys:
            self.line([(self.x[0], value), (self.x[1], value)], "grid")
            self.text(self.left + LEFT - 6, self.at(self.x[0], value)[1] + 4, name, "end")
        self.text(self.left + (WIDTH + LEFT - RIGHT) / 2, HEIGHT - 8, x_name)
        self.text(self.left + LEFT, TOP - 8, y_name, "start")


def write(path, panels, label):
    width = WIDTH * len(panels)
    body = "\n".join(part for panel in panels for part in panel.parts)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
                   f'viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{label}">\n'
                   f"<style>\n{STYLE}\n</style>\n"
                   f'<rect width="100%" height="100%" style="fill:var(--bg)"/>\n{body}\n</svg>\n')
    print(path)


def chosen(curves, work, op):
    """The rows of a work and op, by rising length."""
    return sorted((r for r in curves["rows"] if (r["work"], r["op"]) == (work, op)),
                  key=lambda r: r["tokens"])


def powers(low, high):
    return [1 << n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]


def speed_up(curves, heads, left):
    """Dense time over the time of S2, forward and backward, and the dense pairs over the kept."""
    dense, work = f"dense, {heads} heads", f"S2, H=V={heads}"
    lines = {}
    for op in OPS:
        times = {r["tokens"]: r["seconds"] for r in chosen(curves, dense, op)}
        lines[op] = [(r["tokens"], times[r["tokens"]] / r["seconds"])
                     for r in chosen(curves, work, op)]
    lines["ideal"] = [(r["tokens"], 1 / r["kept"]) for r in chosen(curves, work, "forward")]
    tokens = [x for x, _ in lines["ideal"]]
    values = [y for line in lines.values() for _, y in line]
    panel = Axes(left, f"S2, B={BLOCK} L={LOCAL} H=V={heads}, over dense",
                 (tokens[0], tokens[-1]), (1, max(values) * 1.15))
    panel.ticks([(t, f"{t // 1024}k") for t in tokens],
                [(v, f"{v}x") for v in powers(1, panel.y[1])], "tokens", "speed-up")
    for kind, line in lines.items():
        panel.line(line, kind, 2)
        for x, y in line if kind != "ideal" else ():
            panel.dot(x, y, kind)
    keys = [("ideal", "ideal: dense over kept pairs")] + [(op, op) for op in OPS]
    for n, (kind, name) in enumerate(keys):
        x, y = left + LEFT + 14, TOP + 16 + 16 * n
        panel.parts.append(f'<line class="{kind}" stroke-width="2" x1="{x}" x2="{x + 22}" '
                           f'y1="{y - 4}" y2="{y - 4}"/>')
        panel.text(x + 28, y, name, "start")
    return panel


def roofline(curves):
    """FLOP/s of kept pairs against FLOPs for each byte that has to move."""
    points = [(r["flops"] / r["bytes"], r["flops"] / r["seconds"], r) for r in curves["rows"]]
    product, copy = curves["product"], curves["copy"]
    least = min(min(x for x, _, _ in points), product / copy) / 1.6
    panel = Axes(0, f"{curves['device']}, bf16, head_dim {HEAD_DIM}, "
                 f"{min(r['tokens'] for _, _, r in points) // 1024}k to "
                 f"{max(r['tokens'] for _, _, r in points) // 1024}k tokens",
                 (least, max(x for x, _, _ in points) * 1.4),
                 (min(y for _, y, _ in points) / 1.5, product * 1.6))
    ys = [v * 1e12 for v in (25, 50, 100, 200, 400, 800) if panel.y[0] <= v * 1e12 <= panel.y[1]]
    panel.ticks([(v, str(v)) for v in powers(*panel.x)[::2]],
                [(v, f"{v * 1e-12:.0f}") for v in ys],
                "FLOP for each byte read or written once", "TFLOP/s of kept pairs")
    start = max(panel.x[0], panel.y[0] / copy)
    panel.line([(start, start * copy), (product / copy, product), (panel.x[1], product)], "roof", 2)
    x, y = panel.at(panel.x[1], product)
    panel.text(x - 4, y - 6, f"matrix product, {product * 1e-12:.0f} TFLOP/s", "end")
    for x, y, row in points:
        panel.dot(x, y, row["op"] + (" dense" if row["work"].startswith("dense") else ""))
    x, y = LEFT + 190, HEIGHT - BOTTOM - 14 - 16 * 3
    for n, (kind, name) in enumerate([(op + dense, f"{op}, {name}") for op in OPS for dense, name
                                      in ((" dense", "dense"), ("", "S2"))]):
        panel.parts.append(f'<circle class="{kind}" cx="{x}" cy="{y + 16 * n - 4}" r="3.2"/>')
        panel.text(x + 10, y + 16 * n, name, "start")
    return panel


def draw(options):
    with open(options.curves, encoding="utf-8") as file:
        curves = json.load(file)
    write(f"{options.prefix}-speed-up.svg",
          [speed_up(curves, heads, WIDTH * n) for n, heads in enumerate((16, 64))],
          "Speed-up of S2 over dense attention, forward and backward, against the length")
    write(f"{options.prefix}-roofline.svg", [roofline(curves)],
          "Roofline of attention and its gradients")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("--library", default="build/release/libtessera.so")
    verb.add_argument("--rounds", type=int, default=3)
    verb.add_argument("curves")
    verb = verbs.add_parser("draw")
    verb.add_argument("curves")
    verb.add_argument("prefix")
    options = parser.parse_args()
    (measure if options.verb == "measure" else draw)(options)


if __name__ == "__main__":
    main()

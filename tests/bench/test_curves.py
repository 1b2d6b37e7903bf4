# SPDX-License-Identifier: Apache-2.0
"""Pictures of docs/backward.md: they are what bench/gradient_curves.py draws of the measured file,
and show the numbers in it."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DOCS = os.path.join(ROOT, "docs")
MEASURED = os.path.join(DOCS, "backward-curves.json")


def draw(measured, prefix):
    subprocess.run([sys.executable, "-B", os.path.join(ROOT, "bench", "gradient_curves.py"), "draw",
                    measured, prefix], check=True, stdout=subprocess.DEVNULL)
    drawn = {}
    for name in ("speed-up", "roofline"):
        with open(f"{prefix}-{name}.svg", encoding="utf-8") as file:
            drawn[name] = file.read()
    return drawn


class Curves(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tessera-curves-")
        self.addCleanup(scratch.cleanup)
        self.prefix = os.path.join(scratch.name, "drawn")
        with open(MEASURED, encoding="utf-8") as file:
            self.curves = json.load(file)

    def test_pictures_are_of_the_measured_file(self):
        for name, picture in draw(MEASURED, self.prefix).items():
            with open(os.path.join(DOCS, f"backward-{name}.svg"), encoding="utf-8") as file:
                self.assertEqual(picture, file.read(), name)

    def heights(self, picture, op):
        """The vertical places of an op's points on the first panel."""
        dots = re.findall(r'<circle class="%s" cx="([\d.]+)" cy="([\d.]+)"' % op, picture)
        return [float(y) for x, y in dots if float(x) < 460]

    def test_a_time_moves_its_point(self):
        before = draw(MEASURED, self.prefix)
        row, = [r for r in self.curves["rows"] if r["work"] == "S2, H=V=16"
                and r["op"] == "backward" and r["tokens"] == 16384]
        row["seconds"] *= 2
        changed = self.prefix + ".json"
        with open(changed, "w", encoding="utf-8") as file:
            json.dump(self.curves, file)
        after = draw(changed, self.prefix)
        moved = [b - a for a, b in zip(self.heights(before["speed-up"], "backward"),
                                       self.heights(after["speed-up"], "backward"))]
        self.assertEqual([0, 0, 0, 0], [m for m in moved if m == 0][:4])
        grid = re.findall(r'text-anchor="end">(\d+)x</text>', before["speed-up"])
        lines = [float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="end">\d+x<',
                                              before["speed-up"])[:2]]
        self.assertEqual(["1", "2"], grid[:2])
        # Twice the time is one line of the grid lower.
        self.assertAlmostEqual(lines[0] - lines[1], max(moved), delta=0.2)
        self.assertNotEqual(before["roofline"], after["roofline"])

    def test_numbers_are_possible(self):
        for r in self.curves["rows"]:
            self.assertTrue(0 < r["kept"] <= 1 and r["seconds"] > 0 and r["spread"] < 0.25, r)
            if r["work"].startswith("dense"):
                self.assertEqual(1, r["kept"], r)
        flops = {(r["work"], r["tokens"], r["op"]): r["flops"] for r in self.curves["rows"]}
        for (work, tokens, op), n in flops.items():
            if op == "backward":
                self.assertTrue(math.isclose(n, 2.5 * flops[work, tokens, "forward"]), work)


if __name__ == "__main__":
    unittest.main()

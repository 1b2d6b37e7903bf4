# SPDX-License-Identifier: Apache-2.0
"""What the scripts that time Tessera beside others share, without PyTorch and without times."""

import contextlib
import ctypes
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.path.insert(0, BENCH)
import library_size  # noqa: E402
import peers_turns  # noqa: E402
import tessera_ctypes  # noqa: E402

LIBRARY = sys.argv.pop(1)


class Turns(unittest.TestCase):
    def test_each_contestant_has_each_round(self):
        order = []

        def sample(what):
            order.append(what)
            return [what, what]

        seconds = peers_turns.turns({"a": 1, "b": 2, "c": 3}, 20, sample)
        self.assertEqual(seconds, {"a": [1] * 40, "b": [2] * 40, "c": [3] * 40})
        rounds = [tuple(order[n : n + 3]) for n in range(0, 60, 3)]
        self.assertTrue(all(sorted(turn) == [1, 2, 3] for turn in rounds))
        self.assertGreater(len(set(rounds)), 3)  # orders differ
        order.clear()
        peers_turns.turns({"a": 1, "b": 2}, 2, sample, shuffled=False)
        self.assertEqual(order, [1, 2, 1, 2])

    def test_runs_on_the_host(self):
        ticks, calls = iter((0, 5, 10, 12, 20, 23)), []
        seconds = peers_turns.on_host(
            lambda: calls.append(1), 0, lambda first: 2 if first == 5 else 9, lambda: next(ticks)
        )
        self.assertEqual((seconds, len(calls)), ([2, 3], 3))

    def test_a_ratio_is_that_of_rounds(self):
        self.assertEqual(peers_turns.ratio([2, 8, 9], [1, 2, 3]), 3)  # and not 8 / 2
        self.assertEqual(peers_turns.spread([1, 2, 4]), 1.5)


class Size(unittest.TestCase):
    def test_growth(self):
        self.assertTrue(library_size.growth(1000, 1800)[1])
        self.assertFalse(library_size.growth(1000, 1801)[1])

    def test_symbols_of_gradients(self):
        listing = "0010 0100 t tess_cpu_backward_job\n0020 0007 T tess_run\n         U free\n"
        self.assertEqual(library_size.of_gradients(listing), 256)

    def test_a_library(self):
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(BENCH, "library_size.py")]
            + ["--library", "all=" + LIBRARY],
            capture_output=True, text=True, check=False,
        )
        wanted = r"all device code: [0-9,]+ bytes\n.*\n  over 0\.1\.0 .*reached"
        self.assertRegex(done.stdout, wanted)
        self.assertEqual(done.returncode, 0, done.stderr)


class Bars(unittest.TestCase):
    def setUp(self):
        self.bars, self.text = peers_turns.Bars(), io.StringIO()
        with contextlib.redirect_stdout(self.text):
            self.bars.report("more is better", 1.0, 1.0)
            self.bars.report("less is better", 3.0, 2.0, "us", at_most=True)
            self.bars.within("within", [2, 4], [1, 2], 1.9)
            self.bars.over("over", [2, 4], [1, 2], 1.9)
            self.bars.refused("refused", "no such kernel")
            self.bars.not_yet("not yet", "no GPU")
            self.bars.count()

    def test_bars_are_counted(self):
        reached = [row.get("reached") for row in self.bars.rows]
        self.assertEqual(reached, [True, False, False, True, False, None])
        self.assertEqual(self.bars.missed, 3)
        self.assertIn("2 of 5 reached", self.text.getvalue())

    def test_rows_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bars.json")
            peers_turns.write_json(path, self.bars.rows)
            with open(path) as file:
                self.assertEqual(json.load(file), self.bars.rows)
        peers_turns.write_json(None, self.bars.rows)  # was not asked for


class Library(unittest.TestCase):
    def test_the_package_s_structures_plan(self):
        tessera = tessera_ctypes.Tessera(LIBRARY, "cpu:0", 1)
        wanted = tessera_ctypes.pattern(tessera_ctypes.S2, block=64, local=2, stride=4)
        plan = tessera.create(wanted, 4, 2, 256, head_dim=64, batch=1, q_len=256, kv_len=256)
        self.assertEqual(plan.info.struct_size, ctypes.sizeof(tessera_ctypes.PlanInfo))
        self.assertTrue(0 < plan.info.kept_pairs < plan.info.dense_pairs)
        with self.assertRaisesRegex(tessera_ctypes.Refused, "head_dim"):
            tessera.create(wanted, 4, 2, 256, head_dim=0, batch=1, q_len=256, kv_len=256)
        self.assertNotIn("numpy", sys.modules)
        self.assertNotIn("torch", sys.modules)

    def test_interfaces_dry(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            done = subprocess.run(
                [sys.executable, os.path.join(BENCH, "interfaces.py"), "--library", LIBRARY,
                 "--dry", "--rounds", "2", "--runs", "1", "--json", path],
                capture_output=True, text=True,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path) as file:
                rows = json.load(file)
        titles = [row.get("figure", row.get("bar")) for row in rows]
        parts = ("dense: cpu/portable", "copy of 1 MiB", "jobs of cpu/portable",
                 "first plan, cached", "self-check")
        for part in parts:
            self.assertTrue(any(part in title for title in titles), f"{part}: {titles}")
        self.assertTrue(all(row["value"] > 0 for row in rows if "value" in row))


if __name__ == "__main__":
    unittest.main()

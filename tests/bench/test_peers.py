# SPDX-License-Identifier: Apache-2.0
"""Peers of the bench suite: what they compute is checked, and none of them can harm a run."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "..", "..", "bench", "peers")
COMMAND = os.path.abspath(sys.argv.pop(1))
PROBLEM = ("heads=2", "q_len=32", "head_dim=8", "pattern=dense")

# Says what the test wants to hear about a problem; `{}` is a line of Python.
FALSE_PEER = """
import json, os, sys, time
def tell(**fields):
    print(json.dumps(fields), flush=True)
tell(name="False", version="1", backends="cpu")
for line in sys.stdin:
    request = json.loads(line)
    if "problem" not in request:
        continue
    out = os.path.join(request["folder"], "o")
    {}
    sys.stdin.readline()
    tell(done=True)
"""
ZEROS = "open(out, 'wb').write(bytes(2 * 32 * 8 * 4)); "


class Peers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tessera-peers-test-")
        self.addCleanup(self.folder.cleanup)

    def measure(self, peers, *problem, limits=("--no-ceilings",)):
        path = os.path.join(self.folder.name, "a.json")
        done = subprocess.run([COMMAND, "bench", *(problem or PROBLEM), *limits, "--no-planning",
                               "--backends", "cpu", "--peers", peers, "--json", path],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=100,
                              env=dict(os.environ, PATH=os.path.dirname(sys.executable) + ":" +
                                       os.environ["PATH"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.done = done
        with open(path) as file:
            report = json.load(file)
        own = [result for result in report["results"] if not result["peer"]]
        self.assertEqual({result["status"] for result in own}, {"ok"})
        return report, [result for result in report["results"] if result["peer"]]

    def false_peer(self, line, *problem):
        path = os.path.join(self.folder.name, "false.py")
        with open(path, "w") as file:
            file.write(FALSE_PEER.format(line))
        return self.measure(path, *problem)

    def test_example(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("this Python has no NumPy (Debian: python3-numpy)")
        example = os.path.join(PEERS, "numpy_attention.py")
        for words in (PROBLEM, ("heads=4", "kv_heads=2", "q_len=16", "kv_len=48", "head_dim=16",
                                "dtype=f16", "pattern=dense"),
                      ("heads=4", "kv_len=64", "op=decode", "head_dim=16", "batch=2",
                       "pattern=dense"),
                      ("heads=4", "kv_heads=2", "q_len=40", "op=bwd", "head_dim=16",
                       "pattern=dense")):
            report, (result,) = self.measure(example, *words)
            self.assertEqual(report["peers"],
                             [{"name": "NumPy", "version": numpy.__version__, "note": ""}])
            self.assertEqual((result["status"], result["kernel"], result["peer"]),
                             ("ok", "numpy/matmul", "NumPy"), result["note"])
            self.assertGreater(result["checked_rows"], 0)
            self.assertGreaterEqual(result["rounds"], 3)
            self.assertNotIn("nan", self.done.stdout)
        report, (result,) = self.measure(example, *PROBLEM, "dtype=bf16")
        self.assertEqual((result["status"], result["note"]), ("refused", "NumPy has no bf16"))
        report, results = self.measure(example, "heads=2", "q_len=64", "head_dim=8", "block=16",
                                       "local=1", "stride=2")
        self.assertEqual([result["status"] for result in results], ["refused", "ok"])

    def test_beside_limits(self):
        """The process that measures limits ends although a peer was started after it."""
        path = os.path.join(self.folder.name, "false.py")
        with open(path, "w") as file:
            file.write(FALSE_PEER.format(ZEROS + "tell(kernel='k', samples_seconds=[1])"))
        report, (result,) = self.measure(path, limits=("--budget", "4"))
        self.assertTrue(report["devices"][0]["ceilings"])
        self.assertEqual(result["status"], "failed")

    def test_wrong_result(self):
        _, (result,) = self.false_peer(ZEROS + "tell(kernel='k', samples_seconds=[1, 2, 3])")
        self.assertEqual(result["status"], "failed")
        self.assertIn("wrong result: ", result["note"])
        self.assertNotIn("median_seconds", result)

    def test_too_slow(self):
        """What would take too long is told as that, by the time of a run."""
        _, (result,) = self.false_peer("tell(kernel='k', note='a run takes 9 s', run_seconds=9)")
        self.assertEqual((result["status"], result["note"], result["estimate_seconds"],
                          result["need_seconds"]), ("slow", "a run takes 9 s", 9, 36))
        _, (result,) = self.false_peer("tell(kernel='k', note='no', run_seconds=-9)")
        self.assertEqual((result["status"], result["note"]), ("refused", "no"))
        _, (result,) = self.false_peer("tell(kernel='k', note=str(request['most_seconds'] < 20))")
        self.assertEqual(result["note"], "True")

    def test_samples(self):
        """The first run alone is the first time, and no round is made that there is no time for.
        Time passes only in runs."""
        program = f"""
import sys, types
sys.path.insert(0, {PEERS!r})
import peer
now = [0.0]
peer.time = types.SimpleNamespace(perf_counter=lambda: now[0])
def of(*seconds):
    left = list(seconds)
    def run():
        now[0] += left.pop(0) if len(left) > 1 else left[0]
    return run
assert peer.samples(of(0.25, 0.125), 0.5, most=1) == (0.25, [0.125] * 4)
assert peer.samples(of(8, 0.125), 0.25, most=9) == (8, [0.125] * 3)  # loaded something
for run, most, last in (of(2), 1, 2), (of(8, 4), 9, 12):
    begin = now[0]
    try:
        peer.samples(run, 1, most=most)
        sys.exit("not slow")
    except peer.TooSlow:
        assert now[0] - begin == last, now[0] - begin
"""
        subprocess.run([sys.executable, "-B", "-c", program], check=True)

    def test_wrong_gradients(self):
        """Each of the three counts, and none of them may be missing."""
        line = ("[open(out[:-1] + name, 'wb').write(bytes(2 * 32 * 8 * 4)) for name in {}]; "
                "tell(kernel='k', samples_seconds=[1, 2, 3])")
        for names, note in ((("d_q", "d_k", "d_v"), "wrong result: d"),
                            (("d_q", "d_v"), "no output of the right size")):
            _, (result,) = self.false_peer(line.format(names), *PROBLEM, "op=bwd")
            self.assertEqual(result["status"], "failed")
            self.assertIn(note, result["note"])

    def test_no_result(self):
        for line, note in (
                ("tell(kernel='k', samples_seconds=[1, 2, 3])", "no output of the right size"),
                ("open(out, 'wb').write(b'x'); tell(kernel='k', samples_seconds=[1])",
                 "no output of the right size"),
                (ZEROS + "tell(kernel='k', samples_seconds=[-1])", "no time"),
                (ZEROS + "tell(kernel='k', samples_seconds=[])", "no times"),
                (ZEROS + "tell(kernel='k')", "no times"),
                ("tell(kernel='k\\n', note='has none\\x1b[31m')", "has none?[31m")):
            _, (result,) = self.false_peer(line)
            self.assertIn(note, result["note"])
            self.assertNotIn("\x1b", result["note"])

    def test_bad_ends(self):
        for line, note in (("sys.exit(3)", "ended"), ("print('hello', flush=True)", "no JSON"),
                           ("print('[1]', flush=True)", "no JSON"),
                           ("os.kill(os.getpid(), 9)", "ended")):
            report, results = self.false_peer(line)
            self.assertEqual(results, [], line)
            self.assertIn(note, report["peers"][0]["note"])

    def test_reasons_are_told(self):
        """A peer without results stands in the table with its reason, not in the file alone, and
        energy that nothing counts is told as well."""
        markdown = os.path.join(self.folder.name, "a.md")
        report, _ = self.measure("/nowhere/peer", *PROBLEM, "--energy", "--md", markdown)
        with open(markdown, encoding="utf-8") as file:
            for text in self.done.stdout, file.read():
                self.assertRegex(text, "peer peer: .+")
        self.assertEqual("--energy: cpu:0 has no counter" in self.done.stderr,
                         not report["devices"][0]["energy"])

    def test_too_much(self):
        """More answers than there are ways, of which the next problem would get the last ones, and
        a first time that no result file may hold."""
        line = ("[(" + ZEROS.rstrip("; ") + ", tell(kernel=str(n), note='no'), "
                "sys.stdin.readline()) for n in range(18)]")
        report, results = self.false_peer(line, "heads=2", "q_len=64", "head_dim=8", "block=16",
                                          "local=1", "stride=2")
        self.assertEqual(report["peers"][0]["note"], "gave too many answers")
        self.assertEqual([result["kernel"] for result in results], [str(n) for n in range(16)])
        # One query sees one key: its value.
        line = ("import shutil; shutil.copy(out[:-1] + 'v', out); "
                "tell(kernel='k', samples_seconds=[1], first_seconds=1e30)")
        _, (result,) = self.false_peer(line, "heads=2", "q_len=1", "head_dim=8", "pattern=dense")
        self.assertEqual((result["status"], result["first_seconds"]), ("ok", None))

    def test_not_there(self):
        report, results = self.measure("/nowhere/peer,/nowhere/other.py")
        self.assertEqual(results, [])
        self.assertEqual([(peer["name"], bool(peer["note"])) for peer in report["peers"]],
                         [("peer", True), ("other.py", True)])


if __name__ == "__main__":
    unittest.main()

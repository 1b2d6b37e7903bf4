# SPDX-License-Identifier: Apache-2.0
"""Runs the command under test. Every check that holds for any call is made here."""
import os
import subprocess
import sys
import tempfile
import unittest

COMMAND = None


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


class CommandTest(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tessera-cli-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def files(self):
        return sorted(os.listdir(self.folder.name))

    def call(self, *words, env=None, stdout=subprocess.PIPE, prepare=None, folder=None):
        environment = {n: v for n, v in os.environ.items() if not n.startswith("TESSERA_")}
        environment.update(env or {})
        done = subprocess.run([COMMAND, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE,
                              env=environment, timeout=300, preexec_fn=prepare, cwd=folder)
        ended = f"{words}: ended by signal {-done.returncode}: {done.stderr[-3000:]}"
        self.assertGreaterEqual(done.returncode, 0, ended)
        return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())

    def succeed(self, *words, **options):
        done = self.call(*words, **options)
        self.assertEqual(done.code, 0, f"{words}: {done.err}")
        return done

    def refuse(self, code, names, *words, **options):
        """The call fails with one line on standard error that contains each of `names`.

        It prints no result and leaves no file."""
        before = self.files()
        done = self.call(*words, **options)
        self.assertEqual(done.code, code, f"{words}: {done.err or 'accepted'}")
        self.assertEqual(done.out, "", words)
        lines = done.err.splitlines()
        self.assertEqual(len(lines), 1, f"{words}: {done.err}")
        self.assertTrue(lines[0].startswith("tessera"), f"{words}: {lines[0]}")
        for name in [names] if isinstance(names, str) else names:
            self.assertIn(name, lines[0], words)
        self.assertEqual(self.files(), before, f"{words} leaves files")
        return done


def write_array(path, dtype, shape, data):
    """What numpy.save writes, for tests that do without NumPy."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data)


def main():
    global COMMAND
    if len(sys.argv) < 2:
        sys.exit("usage: test_*.py COMMAND [unittest arguments]")
    sys.modules["command"].COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__", verbosity=1)

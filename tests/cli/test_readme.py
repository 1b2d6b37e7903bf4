# SPDX-License-Identifier: Apache-2.0
"""What README.md says to type."""
import os
import re
import shlex
import subprocess
import sys

from command import CommandTest, main, write_array


class Readme(CommandTest):
    def test_readme(self):
        """README's examples of the command run as printed, one after the other.

        What they measure is made short. Without NumPy the arrays are written here."""
        with open(os.path.join(os.path.dirname(__file__), "../../README.md")) as file:
            block = file.read().split("\nexport PATH=$PWD/build/release/cli", 1)[1]
        block = block.split("\n", 1)[1].split("```", 1)[0]
        self.assertEqual(re.findall(r"^(?:.*do )?tessera (\w+)", block, re.MULTILINE),
                         ["info", "pattern", "plan", "run", "bench", "compare"])
        block = block.replace("tessera bench ", "tessera bench --backends cpu --no-ceilings "
                                                "--no-planning --budget 1 ")
        lines = block.splitlines()
        arrays = next(line for line in lines if line.startswith("python3 "))
        try:
            import numpy  # noqa: F401
            block = block.replace("python3 ", shlex.quote(sys.executable) + " ", 1)
        except ImportError:
            block = block.replace(arrays, "")
            for name in "qkv":
                write_array(self.path(name + ".npy"), "<f4", (1, 2048, 8, 64),
                            b"\0" * (2048 * 8 * 64 * 4))
        os.mkdir(self.path("bin"))
        os.symlink(sys.modules["command"].COMMAND, self.path("bin/tessera"))
        environment = {n: v for n, v in os.environ.items() if not n.startswith("TESSERA_")}
        environment["PATH"] = self.path("bin") + os.pathsep + environment["PATH"]
        done = subprocess.run(["sh", "-eu", "-c", block], cwd=self.folder.name, env=environment,
                              capture_output=True, timeout=300, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue({"q.npy", "o.npy", "a.json", "b.json"} <= set(self.files()))


if __name__ == "__main__":
    main()

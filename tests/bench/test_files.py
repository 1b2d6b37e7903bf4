# SPDX-License-Identifier: Apache-2.0
"""The example file, what the command writes, and the JSON Schema say the same."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import made_results

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, "..", "..", "bench")
COMMAND = os.path.abspath(sys.argv.pop(1))


def schema(version):
    with open(os.path.join(BENCH, "schema", f"tessera-bench-{version}.json")) as file:
        return json.load(file)


def described(node, value, path=""):
    """Members of a value that no `properties` of the schema names."""
    if isinstance(value, dict):
        known = node.get("properties", {})
        for key, member in value.items():
            if key not in known:
                yield f"{path}.{key}"
            else:
                yield from described(known[key], member, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for member in value:
            yield from described(node.get("items", {}), member, path + "[]")


class Files(unittest.TestCase):
    def measured(self):
        with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
            path = os.path.join(folder, "a.json")
            subprocess.run([COMMAND, "bench", "heads=2", "q_len=128", "head_dim=32", "block=16",
                            "local=2", "stride=4", "--no-ceilings", "--no-planning", "--backends",
                            "cpu", "--json", path], check=True, capture_output=True)
            with open(path) as file:
                return json.load(file)

    def test_example(self):
        with open(os.path.join(HERE, "results", "vendors.json")) as file:
            self.assertEqual(file.read(), made_results.text(made_results.example()))

    def test_every_member_is_described(self):
        for root in (made_results.example(), self.measured()):
            self.assertEqual(sorted(set(described(schema(2), root))), [])

    def test_schema(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("no jsonschema (Debian: python3-jsonschema)")
        check = jsonschema.Draft202012Validator(schema(2))
        for root in (json.loads(made_results.text(made_results.example())), self.measured()):
            check.validate(root)
        bad = json.loads(made_results.text(made_results.example()))
        bad["results"][0]["median_seconds"] = -1
        self.assertFalse(check.is_valid(bad))
        bad = made_results.example()  # has no checksum
        self.assertFalse(check.is_valid(bad))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""bench/peers_decode.py in small on the CPU: every part works and prints its bars."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers_decode.py"

# Parts, and what the titles of their bars begin with, each of them so often.
BARS = {
    "dense": {"dense decode": 8},
    "latency": {"latency, batch 1": 3},
    "mixed": {"64 sequences of": 1},
    "drafts": {"q_len 4 at": 1, "q_len 8 at": 1},
    "shapes": {"group 1,": 1, "group 8,": 1, "group 16,": 1, "group 4, D=": 2},
    "paged": {"pages of 16,": 2, "pages of 64,": 2, "pages of 256,": 2},
    "bytes": {"KV blocks of a head at 128k": 2, "lengths to": 2},
    "s2": {"S2 decode, V=16 L=8, 64/16 heads": 8},
    "phi3": {"Phi-3-small layer": 2},
    "chunks": {"chunk of": 12, "S2 chunk of": 3},
    "invariant": {"batch-invariant,": 4},
    "prefill": {"2048 tokens in chunks of": 2},
    "together": {"128 rows and 4 decodes": 1},
    "shared": {"4 sequences that share": 1},
    "capacity": {"capacity of": 3},
    "nodes": {"graph nodes of a step": 3, "graph nodes of a layer": 3},
    "replay": {"replay of": 1},
    "prepare": {"tess_prepare of": 2},
    "append": {"tess_append of": 2},
    "trusted": {"checks of": 4},
    "workspace": {"workspace of a free split": 1, "free split,": 3, "batch-invariant,": 3},
    "host": {"tess_run on the host": 1},
    "portable": {"OpenCL, Vulkan and cuda/portable": 1},
    "codes": {"e4m3,": 1, "int8,": 1},
    "cpu": {"fp32, batch": 4, "bf16, batch": 4, "int8, batch": 2},
}
BAR = re.compile(r"  (?:reached|MISSED |not yet)  (.*)")
# Bars whose figures are no times, and so mean something here.
TRUE = ("KV blocks of a head", "lengths to", "workspace of", "free split,")


@pytest.mark.skipif(not BENCH.exists(), reason="the bench is not here")
def test_decode_beside_pytorch_prints_every_bar(pytestconfig, tmp_path):
    library = pytestconfig.getoption("--library")
    if not library:
        pytest.skip("--library names the library that is measured")
    written = tmp_path / "bars.json"
    command = [sys.executable, str(BENCH), "--dry", "--rounds", "1", "--program", ""]
    command += ["--library", os.path.abspath(library), "--json", str(written)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait take longer than work
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    parts, bars = {}, []
    for line in done.stdout.splitlines():
        assert "ended early" not in line and "wrong result" not in line, line
        if found := BAR.match(line):
            bars.append(found[1])
        elif found := re.match(r"    (\w+) took [\d.]+ s$", line):
            parts[found[1]], bars = bars, []
    assert list(parts) == list(BARS)
    for part, titles in BARS.items():
        for title, count in titles.items():
            found = [bar for bar in parts[part] if bar.startswith(title)]
            assert len(found) >= count, f"{part}: {title}: {parts[part]}"
    rows = json.loads(written.read_text())
    for row in (row for row in rows if str(row.get("bar")).startswith(TRUE)):
        assert row["reached"], row
    # Where PyTorch can do the work, it is timed beside it.
    for work in ("pages of", "K and V of 8 bits", "64 sequences of", "Phi-3-small", "q_len at"):
        found = [row for row in rows if row.get("work", "").startswith(work)]
        assert found and all(any("Flash" in x for x in row["seconds"]) for row in found), work

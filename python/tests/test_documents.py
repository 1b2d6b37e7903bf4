# SPDX-License-Identifier: Apache-2.0
"""What the documents show of Python runs as printed, but on the CPU and on shorter sequences."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documents are not here")


def blocks(page: str) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [block.replace('"cuda"', '"cpu"').replace("8192", "192") for block in found]


@pytest.mark.parametrize(
    "page, count",
    [("README.md", 1), ("docs/python.md", 1), ("docs/python_dkernel.md", 2)],
)
def test_programs_of_a_page_run(page: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dkernel", None)  # which a page sets
    names: dict[str, Any] = {}
    found = blocks(page)
    assert len(found) >= count
    for block in found[:count]:
        exec(compile(block, page, "exec"), names)
    if "q" in names:
        for tensor in (names["q"], names["k"], names["v"]):
            assert torch.isfinite(tensor.grad).all()
        assert names["o"].shape == (1, 192, 32, 128)


def test_balanced_heads_are_those_of_the_page() -> None:
    import tessera

    names: dict[str, Any] = {"tessera": tessera}
    exec(next(block for block in blocks("docs/python.md") if "assign_heads" in block), names)
    assert round(names["found"].imbalance, 5) == 1.00001
    assert names["found"].head_ids[0][:4] == (0, 1, 5, 12)


def test_numpy_of_the_page_runs() -> None:
    import numpy

    import tessera

    rng = numpy.random.default_rng(7)
    names: dict[str, Any] = {"pattern": tessera.S2(block=16, local=2, stride=2)}
    for name in ("q", "k", "v", "do"):
        names[name] = rng.standard_normal((1, 70, 2, 32), dtype="f4")
    exec(next(block for block in blocks("docs/python.md") if "tessera.numpy" in block), names)
    assert names["dq"].shape == (1, 70, 2, 32)


def test_a_cache_of_the_page_serves() -> None:
    names: dict[str, Any] = {}
    for name, heads in (("q", 32), ("k", 8), ("v", 8)):
        names[name] = torch.randn(4, 5, heads, 128)
    program = blocks("docs/python_serving.md")[0]
    exec(program.replace('device="cpu"', 'device="cpu", dtype=torch.float32, pages=64'), names)
    assert names["cache"].length(3) == 5

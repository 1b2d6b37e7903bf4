# SPDX-License-Identifier: Apache-2.0
"""The example of generation with transformers, in a short form."""

import importlib.util
import pathlib
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "generate_hf.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not here")
def test_generation_with_transformers(tmp_path, capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("generate_hf", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    picture = tmp_path / "cache.svg"
    words = ["--tokens", "1500", "--new", "16", "--svg", str(picture)]
    monkeypatch.setattr(sys, "argv", ["generate_hf.py", *words])
    assert example.main() == 0
    told = capsys.readouterr().out
    assert "16 new tokens are the same" in told
    assert "the S2 layer holds 1.7 times fewer bytes" in told
    drawn = picture.read_text()
    assert drawn.startswith("<svg ") and "S2Cache, an S2 layer" in drawn

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


def test_layers_of_the_page_serve() -> None:
    """A cache of many layers, and one whose keys are shared by ranks."""
    import tessera

    class Layer:
        def project(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.new_ones(1, 3, n, 128).cumsum(1) for n in (32, 8, 8)]

        def rest(self, x: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
            return x + o.sum()

    found = blocks("docs/python_serving.md")
    program = next(block for block in found if "layers=24" in block)
    words = 'device="cpu", dtype=torch.float32, pages=64'
    pattern = tessera.S2(block=64, local=16, stride=8)
    names: dict[str, Any] = dict(tessera=tessera, torch=torch, pattern=pattern, new=[2])
    names["model"], names["x"] = [Layer()] * 24, torch.ones(1)
    exec(program.replace('device="cpu"', words), names)
    assert names["cache"].lengths.tolist() == [2]
    program = next(block for block in found if "part_tokens=" in block)
    names["rank"], names["layer"] = 0, Layer()
    names["q"], names["k"], names["v"] = Layer().project(torch.ones(1))
    # What the ranks before this one have found; here there are none.
    program = program.replace("*gathered", "(o, lse)").replace('device="cpu"', words)
    exec(program, names)
    whole = tessera.attention(names["q"], names["k"], names["v"], pattern)
    torch.testing.assert_close(names["o"], whole)


def test_models_of_the_page(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(settings).save_pretrained(tmp_path)
    names: dict[str, Any] = {"path": str(tmp_path)}
    load, hybrid, cache = blocks("docs/python_models.md")[:3]
    exec(load, names)
    names["inputs"] = {
        "input_ids": torch.randint(1, 61, (1, 20)), "max_new_tokens": 5, "do_sample": False,
    }  # fmt: skip
    wanted = names["model"].generate(**names["inputs"])
    assert wanted.shape == (1, 25)
    exec(cache, names)
    assert torch.equal(names["model"].generate(**names["inputs"]), wanted)
    assert 0 < names["cache"].get_seq_length() < 25 and names["cache"].bytes > 0
    exec(hybrid, names)
    exec(load.replace('implementation="tessera"', 'implementation="phi3_small"'), names)
    assert names["model"].generate(**names["inputs"]).shape == (1, 25)


def test_a_layer_of_the_page() -> None:
    import warnings

    import tessera

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core")
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.attention import SelfAttentionSubmodules

    names: dict[str, Any] = dict(
        tessera=tessera, ColumnParallelLinear=ColumnParallelLinear,
        RowParallelLinear=RowParallelLinear, SelfAttentionSubmodules=SelfAttentionSubmodules,
    )  # fmt: skip
    exec(next(block for block in blocks("docs/python_models.md") if "S2Attention" in block), names)
    made = names["submodules"].core_attention
    assert made.func is names["S2Attention"]
    assert made.keywords["pattern"] == tessera.S2(block=64, local=16, stride=8)

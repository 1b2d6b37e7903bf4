# SPDX-License-Identifier: Apache-2.0
"""What one CUDA GPU has to prove of KV caches: checks of gpu.py, or alone
`python3 python/tests/gpu_cache.py [--library FILE]`."""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from cache_model import PATTERNS, Model
from gpu_checks import main

import tessera

CHECKS: list[Callable[[], str | None]] = []


def check(function: Callable[[], str | None]) -> Callable[[], str | None]:
    CHECKS.append(function)
    return function


@check
def caches_against_whole_contexts() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, pattern in PATTERNS.items():
            if dtype != torch.float32 and name not in ("dense", "dense_heads", "window"):
                continue
            model = Model(pattern, 3, 8, 4, 64, layers=2, dtype=dtype, device="cuda")
            for tokens in (5, 1, 32, 70, 1):
                model.step(tokens, [tokens, max(0, tokens - 2), tokens // 2])
            model.packed([40, 0, 1], after=5)
            model.rollback([20, 0, 3])
            model.free(1)
            model.poison()
            model.fork(0)
            model.step(3, [3, 1, 2])
            model.packed([1, 1, 1])
            assert model.cache.lengths.tolist() == model.lengths(), name


@check
def caches_of_eight_bits() -> None:
    for kv_dtype, bound in (("int8", 0.06), ("e4m3", 0.25)):
        model = Model(PATTERNS["dense_heads"], dtype=torch.bfloat16, kv_dtype=kv_dtype,
                      device="cuda")  # fmt: skip
        for tokens in (40, 1, 20):
            model.step(tokens, [tokens, tokens // 2, 0], bound=bound)
        model.fork(0, 2)
        model.step(5, bound=bound)


@check
def random_operations_on_caches() -> None:
    rng = random.Random(0)
    model = Model(PATTERNS["dense_heads"], 4, 8, 2, 32, layers=2, pages="grow", device="cuda")
    for _ in range(60):
        lens = [rng.choice([0, 1, rng.randrange(40)]) for _ in range(4)]
        try:
            action = rng.choice(["step", "packed", "rollback", "fork", "free"])
            if action == "step":
                model.step(max(lens), lens, rng.choice(["bshd", "bhsd"]))
            elif action == "packed":
                model.packed(lens, 3)
            elif action == "rollback":
                model.rollback([rng.randrange(min(n, 32) + 1) for n in model.lengths()])
            elif action == "fork":
                model.fork(rng.randrange(4))
            else:
                model.free(rng.randrange(4))
        except tessera.InvalidArgument as error:
            assert any(text in str(error) for text in ("max_tokens", "fork: ", "below the"))
        model.poison()
        assert model.cache.lengths.tolist() == model.lengths()


def _model(layers: int, **words: Any) -> tuple[tessera.KVCache, list[list[torch.Tensor]]]:
    """A cache with something in it, and inputs of a step for each layer."""
    pattern = tessera.S2(64, 2, 4, dense_heads=words.pop("dense_heads", 0))
    cache = tessera.KVCache(
        pattern, 8, 4, 64, layers=layers, sequences=3, max_tokens=4096, device="cuda", **words
    )

    def rows(tokens: int) -> list[torch.Tensor]:
        return [
            torch.randn(3, tokens, n, 64, device="cuda", dtype=torch.bfloat16) for n in (8, 4, 4)
        ]

    for n in range(layers):
        tessera.attention(*rows(700), cache=cache, layer=n, q_lens=[700, 61, 0])
    return cache, [rows(1) for _ in range(layers)]


def _replays(side_stream: bool, **words: Any) -> None:
    layers = 3
    cache, inputs = _model(layers, **words)
    lens = torch.tensor([1, 1, 0], dtype=torch.int32, device="cuda")
    results: list[torch.Tensor] = []

    def step(given: tessera.KVCache, new: Any) -> list[torch.Tensor]:
        return [
            tessera.attention(*rows, cache=given, layer=n, q_lens=new)
            for n, rows in enumerate(inputs)
        ]

    step(cache, [1, 1, 0])
    other = copy.deepcopy(cache)
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = step(cache, lens)
    assert cache.lengths.tolist() == [701, 62, 0], "a capture moves nothing"
    with torch.cuda.stream(stream):
        for n in range(130):
            if n % 50 == 0:
                cache.reserve(50)
            if n == 70:
                cache.free(1)
                other.free(1)
            new = [1, int(n % 3 > 0 and n < 70), 0]
            lens.copy_(torch.tensor(new), non_blocking=False)
            for rows in inputs:
                for x in rows:
                    x.normal_()
            graph.replay()
            for got, wanted in zip(results, step(other, new), strict=True):
                assert torch.equal(got, wanted), n
    torch.cuda.synchronize()
    assert cache.lengths.tolist() == other.lengths.tolist()
    # Beyond what was reserved nothing grows, and the next call says so.
    before = cache.lengths.tolist()
    for _ in range(30):
        graph.replay()
    assert cache.lengths.tolist()[0] == before[0] + 20
    assert not results[0][0].any()
    try:
        cache.reserve(1)
    except tessera.InvalidArgument as error:
        assert "10 rows of replayed graphs" in str(error)
    else:
        raise AssertionError("nobody told of rows without room")


@check
def captured_steps_of_a_cache() -> None:
    _replays(False)


@check
def captured_steps_with_groups_of_heads_on_another_stream() -> None:
    _replays(True, dense_heads=2, max_chunk=64, page=32)


@check
def captured_packed_steps_of_a_cache() -> None:
    for dense_heads in (0, 2):
        cache, _ = _model(2, dense_heads=dense_heads)
        ends = torch.tensor([0, 5, 6, 6], dtype=torch.int32, device="cuda")
        inputs = [
            [torch.randn(6, n, 64, device="cuda", dtype=torch.bfloat16) for n in (8, 4, 4)]
            for _ in range(2)
        ]

        def step(given: tessera.KVCache, new: Any) -> list[torch.Tensor]:
            return [
                tessera.attention(*rows, cache=given, layer=n, layout="thd", cu_seqlens_q=new)
                for n, rows in enumerate(inputs)  # noqa: B023
            ]

        step(cache, ends)
        other = copy.deepcopy(cache)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            results = step(cache, ends)
        for n in range(60):
            if n % 20 == 0:
                cache.reserve(100)
            new = [0, n % 5, n % 5 + n % 2, n % 5 + n % 2]
            ends.copy_(torch.tensor(new))
            for rows in inputs:
                for x in rows:
                    x.normal_()
            graph.replay()
            for got, wanted in zip(results, step(other, new), strict=True):
                torch.testing.assert_close(got, wanted)
        assert cache.lengths.tolist() == other.lengths.tolist()


@check
def captured_steps_of_parts() -> None:
    """Two ranks' caches in one graph, across the cut between their keys."""
    words: Any = dict(sequences=2, max_tokens=1024, device="cuda")
    make = (tessera.S2(64, 1, 4), 8, 4, 64)
    whole = tessera.KVCache(*make, **words)
    ranks = [tessera.KVCache(*make, **words, part_tokens=1024) for _ in "ab"]
    for cache, (first, tokens) in zip(ranks, ((0, 128), (128, 896)), strict=True):
        for s in range(2):
            cache.part(s, first, tokens)
    rows = [torch.empty(2, 5, n, 64, device="cuda", dtype=torch.bfloat16) for n in (8, 4, 4)]

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        return tessera.merge(
            *(tessera.attention(*rows, cache=cache, return_lse=True) for cache in ranks)
        )

    for x in rows:
        x.normal_()
    step()
    tessera.attention(*rows, cache=whole)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for cache in ranks:
        cache.reserve(600)
    for _ in range(100):
        for x in rows:
            x.normal_()
        graph.replay()
        o, lse = tessera.attention(*rows, cache=whole, return_lse=True)
        torch.testing.assert_close(found[0].float(), o.float(), atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(found[1], lse, atol=1e-3, rtol=1e-3)
    assert ranks[0].lengths.tolist() == whole.lengths.tolist() == [505, 505]


@check
def compiled_steps_of_a_cache() -> None:
    def step(q: Any, k: Any, v: Any, cache: tessera.KVCache) -> Any:
        return tessera.attention(q * 2, k, v, cache=cache) + 1

    cache, (inputs,) = _model(1)
    other = copy.deepcopy(cache)
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(step, fullgraph=True, mode=mode)
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(compiled(*inputs, cache), step(*inputs, other))
    assert cache.lengths.tolist() == other.lengths.tolist() == [706, 67, 6]


@check
def generate_with_s2_cache() -> str:
    try:
        import transformers
    except ImportError:
        return "skipped: transformers is not here"
    import tessera.hf

    def hybrid(config: Any, layer: int) -> tessera.Pattern:
        return tessera.Dense() if layer % 2 else tessera.S2(16, 2, 4)

    tessera.hf.register("gpu_hybrid", hybrid)
    settings = transformers.LlamaConfig(
        vocab_size=97, hidden_size=128, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        eos_token_id=None, pad_token_id=0, attn_implementation="gpu_hybrid",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(settings).eval().cuda()
    for weights in model.parameters():
        if weights.dim() == 2:
            weights.data.mul_(8)
    ids = torch.randint(1, 97, (2, 300), device="cuda")
    real = torch.ones_like(ids)
    real[1, :70] = 0
    for words in ({}, {"attention_mask": real}, {"num_beams": 2}):
        cache = tessera.hf.S2Cache(settings, max_chunk=32, page=16)
        got = model.generate(
            ids, past_key_values=cache, max_new_tokens=64, do_sample=False, **words
        )
        wanted = model.generate(
            ids, past_key_values=transformers.DynamicCache(), max_new_tokens=64, do_sample=False,
            **words,
        )  # fmt: skip
        assert torch.equal(got, wanted), words
    return f"transformers {transformers.__version__}, {cache.layer_bytes()} bytes"


def _time(function: Callable[[], Any], repeats: int = 30) -> float:
    for _ in range(3):
        function()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats * 1e3


@check
def time_of_a_decoding_step() -> str:
    """16 sequences of 32k tokens, 64 heads on 16 kv heads, 128: a step of one layer."""
    told = []
    for pattern in (tessera.Dense(), tessera.S2(64, 8, 16, per_kv_head=True)):
        cache = tessera.KVCache(pattern, 64, 16, 128, sequences=16, max_tokens=33024,
                                device="cuda")  # fmt: skip
        rows = [
            torch.randn(16, 1, n, 128, device="cuda", dtype=torch.bfloat16) for n in (64, 16, 16)
        ]
        chunk = rows[1].expand(-1, 512, -1, -1)
        for _ in range(64):
            cache.append(chunk, chunk)
        for pools in cache.pools():
            pools.k.normal_()
            pools.v.normal_()
        tessera.attention(*rows, cache=cache)
        begin = time.perf_counter()
        for _ in range(50):
            tessera.attention(*rows, cache=cache)
        host = (time.perf_counter() - begin) / 50 * 1e6
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tessera.attention(*rows, cache=cache)
        cache.reserve(100)
        took = _time(graph.replay)
        rate = cache.bytes / took / 1e6
        told.append(f"{took:.0f} us in a graph ({rate:.2f} TB/s), {host:.0f} us of the host")
        del cache, graph
        torch.cuda.empty_cache()
    return "dense " + "; S2 ".join(told)


if __name__ == "__main__":
    sys.exit(main(CHECKS))

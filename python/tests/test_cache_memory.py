# SPDX-License-Identifier: Apache-2.0
"""tessera.KVCache where memory is missing: what fails changes nothing."""

import pytest

torch = pytest.importorskip("torch")

from cache_model import PATTERNS, Model  # noqa: E402

import tessera  # noqa: E402
from tessera import _cache_plans  # noqa: E402


@pytest.mark.parametrize("kind", ["padded", "chunks", "packed", "append"])
def test_a_step_without_memory_at_any_place_changes_nothing(memory, kind, monkeypatch):
    """Where numbers go to the device: of rows, of pages to copy, of lengths and tables."""
    for place in range(100):
        model = Model(PATTERNS["dense_heads"], 3, max_chunk=4 if kind == "chunks" else 32)
        model.step(20, [20, 7, 0])
        model.fork(0, 2)  # whose pages are copied by the next step
        cache, rows = model.cache, [5, 3, 4]
        before = cache.lengths.tolist(), list(cache._longest), list(cache._room)
        real, calls = cache._to_device, iter(range(100))

        def some(values, real=real, calls=calls, place=place):
            if next(calls) == place:
                raise torch.OutOfMemoryError("the device is full")
            return real(values)

        def call(cache=cache, model=model, rows=rows):
            if kind == "packed":
                q, k, v = model.new((13,))
                words = dict(cu_seqlens_q=[0, 5, 8, 12], layout="thd")
            else:
                (q, k, v), words = model.new((3, 6)), dict(q_lens=rows)
            if kind == "append":
                cache.append(k, v, **words)
            else:
                tessera.attention(q, k, v, cache=cache, **words)

        with monkeypatch.context() as patch:
            patch.setattr(cache, "_to_device", some)
            try:
                call()
                break
            except torch.OutOfMemoryError:
                pass
        now = cache.lengths.tolist(), list(cache._longest), list(cache._room)
        assert now == before, place
        model.poison()
        model.step(6, rows)
        model.step(1)
    assert place > 1


@pytest.mark.parametrize(
    "error", [MemoryError("none"), RuntimeError("an illegal address"), KeyboardInterrupt()]
)
def test_a_select_that_fails_changes_nothing(memory, error, monkeypatch):
    model = Model(PATTERNS["dense_heads"], 2, layers=2)
    model.step(20, [20, 7])

    def fail(**_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_cache_plans, "Setting", fail)
        with pytest.raises(BaseException) as raised:
            model.cache.select([0, 1, 1])
    if isinstance(error, MemoryError):
        assert isinstance(raised.value, tessera.OutOfMemory)
        assert str(raised.value) == "KVCache: select: no memory for tables of 3 sequences: none"
    else:
        assert raised.value is error
    assert model.cache.sequences == 2 and model.cache.lengths.tolist() == [20, 7]
    model.step(3)
    model.rollback([2, 1])
    model.step(1)

# SPDX-License-Identifier: Apache-2.0
"""Caches that keep parts of the keys, as ranks do that share long sequences."""

import copy

import pytest

torch = pytest.importorskip("torch")

from cache_model import F32, PATTERNS  # noqa: E402

import tessera  # noqa: E402

HEADS, KV_HEADS, DIM, MOST = 4, 2, 16, 400


class Ranks:
    """The caches of some ranks beside one that keeps all keys."""

    def __init__(self, pattern, ways, sequences=2, layers=1, **words):
        words = dict(max_tokens=MOST, page=16, max_chunk=32, dtype=F32) | words
        make = [pattern, HEADS, KV_HEADS, DIM]
        words |= dict(sequences=sequences, layers=layers)
        self.whole = tessera.KVCache(*make, **words)
        self.ranks = [tessera.KVCache(*make, **words, part_tokens=MOST) for _ in range(ways)]
        self.layers = layers
        for s in range(sequences):
            self.cut(s, *range(1, ways))

    def cut(self, sequence, *cuts):
        """Gives each rank the keys between two cuts, which count blocks."""
        block = self.whole.block
        ends = [0, *(n * block for n in cuts), MOST]
        for rank, first, end in zip(self.ranks, ends, ends[1:], strict=False):
            rank.part(sequence, first, end - first)

    def step(self, *shape, **words):
        for layer in range(self.layers):
            q, k, v = (torch.randn(*shape, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
            if words.get("layout") == "bhsd":
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            found = [
                tessera.attention(q, k, v, cache=cache, layer=layer, return_lse=True, **words)
                for cache in (self.whole, *self.ranks)
            ]
            merged = tessera.merge(*found[1:], layout=words.get("layout", "bshd"))
            for x, y in zip(merged, found[0], strict=True):
                torch.testing.assert_close(x, y, atol=2e-5, rtol=2e-5)

    def each(self, function):
        for cache in (self.whole, *self.ranks):
            function(cache)


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("name", PATTERNS)
def test_merged_parts_are_the_whole(memory, name, ways):
    ranks = Ranks(PATTERNS[name], ways, layers=2)
    ranks.cut(0, *range(2, 2 * ways, 2))
    ranks.cut(1, *[1] * (ways - 2), 3)  # some ranks have nothing of it
    for tokens in (33, 1, 70, 1, 90):  # past every cut, some of them within a call
        ranks.step(2, tokens, q_lens=[tokens, tokens // 2])
    ranks.step(9, layout="thd", cu_seqlens_q=[0, 8, 9])
    ranks.step(2, 3, layout="bhsd")
    assert [cache.lengths.tolist() for cache in ranks.ranks] == [[206, 100]] * ways


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads", "window"])
def test_forks_rollbacks_and_copies_of_parts(memory, name):
    ranks = Ranks(PATTERNS[name], 2, sequences=3)
    ranks.cut(0, 4)
    ranks.step(3, 61, q_lens=[61, 0, 0])
    ranks.each(lambda cache: cache.fork(0))
    ranks.step(3, 30, q_lens=[30, 29, 0])
    ranks.each(lambda cache: cache.rollback([20, 28, 0]))
    ranks.step(3, 7, q_lens=[7, 2, 0])
    ranks.each(lambda cache: cache.free(0))
    ranks.cut(0, 1)
    ranks.step(3, 70, q_lens=[70, 1, 5])
    ranks.each(lambda cache: cache.select([1, 0]))
    ranks.ranks = [copy.deepcopy(cache) for cache in ranks.ranks]
    ranks.step(2, 20)


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads"])
def test_a_rank_has_room_for_its_part_alone(name):
    words = dict(max_tokens=4 * MOST, page=16, max_chunk=32, dtype=F32)
    whole = tessera.KVCache(PATTERNS[name], 4, 2, 16, **words)
    cut = 4 * whole.block
    parts = [tessera.KVCache(PATTERNS[name], 4, 2, 16, part_tokens=cut, **words) for _ in "ab"]
    for n, cache in enumerate(parts):
        cache.part(0, n * cut)
        assert cache.pool_bytes < whole.pool_bytes
    for cache in (whole, *parts):
        cache.append(*(torch.randn(1, 2 * cut, 2, 16) for _ in "kv"))
        assert cache.length(0) == 2 * cut
    assert all(0 < cache.bytes <= cache.pool_bytes for cache in parts)
    # What the part before the last rows has lost is no more than what the whole has lost.
    assert sum(cache.bytes for cache in parts) >= whole.bytes
    assert parts[0].dense_bytes == whole.dense_bytes // 2
    before = parts[0].bytes
    parts[0].append(*(torch.randn(1, 50, 2, 16) for _ in "kv"))  # past its part: nothing is kept
    assert parts[0].bytes == before


def test_parts_of_eight_bits():
    ranks = Ranks(PATTERNS["s2"], 2, kv_dtype="int8")
    ranks.cut(0, 3)
    for tokens in (60, 1, 30):
        ranks.step(2, tokens)


def test_wrong_parts():
    cache = tessera.KVCache(PATTERNS["s2"], 4, 2, 16, max_tokens=64, dtype=F32, sequences=2)
    with pytest.raises(tessera.InvalidArgument, match="part: a cache with part_tokens is needed"):
        cache.part(0, 0)
    words = dict(max_tokens=64, dtype=F32, sequences=2)
    for wrong, text in ((0, "part_tokens: 1 to 64"), (65, "part_tokens: 1 to 64, got|is needed")):
        with pytest.raises(tessera.InvalidArgument, match=text):
            tessera.KVCache(PATTERNS["s2"], 4, 2, 16, part_tokens=wrong, **words)
    with pytest.raises(TypeError, match="part_tokens: an integer"):
        tessera.KVCache(PATTERNS["s2"], 4, 2, 16, part_tokens="all", **words)
    cache = tessera.KVCache(PATTERNS["s2"], 4, 2, 16, part_tokens=48, **words)
    x = [torch.randn(2, 5, n, 16) for n in (4, 2, 2)]
    with pytest.raises(tessera.InvalidArgument, match="return_lse: True is needed"):
        tessera.attention(*x, cache=cache)
    with pytest.raises(tessera.InvalidArgument, match="sequence 0: KVCache.part has to say first"):
        tessera.attention(*x, cache=cache, return_lse=True)
    assert cache.lengths.tolist() == [0, 0]
    for arguments, text in (
        ((2, 0), "part: sequence: 0 to 1"),
        ((0, 8), "part: first: a multiple of block=16 is needed, got 8"),
        ((0, -16), "part: first: 0 to 64"),
        ((0, 80), "part: first: 0 to 64"),
        ((0, 0, 49), "part: tokens: 0 to 48"),
    ):
        with pytest.raises(tessera.InvalidArgument, match=text):
            cache.part(*arguments)
    with pytest.raises(TypeError, match="part: first: an integer"):
        cache.part(0, 16.0)
    cache.part(1, 0)
    cache.part(0, 64)  # past all tokens: nothing is kept
    o, lse = tessera.attention(*x, cache=cache, return_lse=True)
    assert (lse[0] == -torch.inf).all() and (o[0] == 0).all() and not lse[1].isinf().any()
    with pytest.raises(tessera.InvalidArgument, match="part: sequence: an empty place .* 5 tokens"):
        cache.part(1, 0)

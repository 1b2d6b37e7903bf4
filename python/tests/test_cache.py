# SPDX-License-Identifier: Apache-2.0
"""tessera.KVCache against recomputation of the whole context."""

import copy
import pickle
import random

import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402
from cache_model import F32, PATTERNS, Model  # noqa: E402

import tessera  # noqa: E402


@pytest.mark.parametrize("name", PATTERNS)
def test_chunks_of_every_size(name):
    model = Model(PATTERNS[name])
    for tokens in (5, 1, 1, 32, 70, 1, 3, 100):
        model.step(tokens, [tokens, max(0, tokens - 2), tokens // 2])
    assert model.cache.lengths.tolist() == model.lengths()
    model.packed([40, 0, 1], after=5)
    model.packed([1, 1, 1])
    model.packed([0, 17, 33])
    model.step(2, layout="bhsd")


def test_packed_chunks_that_look_like_the_whole():
    model = Model(PATTERNS["s2"], 2, max_chunk=4)
    model.packed([6, 2])  # 4 + 2 rows, in a plan for 8, and then 2
    model.packed([1, 7])


@pytest.mark.parametrize("heads, kv_heads, dim", [(6, 6, 8), (8, 1, 24), (6, 3, 64)])
@pytest.mark.parametrize("page", [32, 256])
def test_heads_and_pages(heads, kv_heads, dim, page):
    pattern = tessera.S2(24, 2, 3, dense_heads=heads // 3)
    model = Model(pattern, 2, heads, kv_heads, dim, page=page, layers=2)
    for tokens in (31, 1, 60, 1):
        model.step(tokens, [tokens, tokens // 2])


def test_groups_of_heads_that_do_not_follow_each_other():
    # The first and the last kv head are of the same kind, since ids say which heads these are.
    pattern = tessera.S2(16, 1, 4, dense_heads=2, head_ids=(0, 1, 6, 7, 2, 3), heads_total=8)
    model = Model(pattern, heads=6, kv_heads=3)
    assert model.cache.storage == [(0, 2), (1,)]
    for tokens in (50, 1, 1, 40):
        model.step(tokens)


def test_layouts_of_the_same_step_have_equal_bits():
    pattern = PATTERNS["s2"]
    x = [torch.randn(2, 20, n, 16) for n in (4, 2, 2)]
    found = []
    for layout in ("bshd", "bhsd", "thd"):
        cache = tessera.KVCache(pattern, 4, 2, 16, dtype=F32, sequences=2, max_tokens=64)
        given = {
            "bshd": x,
            "bhsd": [y.transpose(1, 2) for y in x],
            "thd": [y.flatten(0, 1) for y in x],
        }[layout]
        words = {"cu_seqlens_q": torch.tensor([0, 20, 40])} if layout == "thd" else {}
        o = tessera.attention(*given, cache=cache, layout=layout, **words)
        found.append((o.transpose(1, 2) if layout == "bhsd" else o).reshape(2, 20, 4, 16))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads", "window"])
def test_a_fork_and_its_origin_both_go_on(memory, name):
    model = Model(PATTERNS[name], layers=2)
    model.step(50, [50, 0, 0])
    before = model.cache.bytes
    assert model.fork(0) == 1 and model.fork(1, 2) == 2
    assert model.cache.bytes == before  # all pages are shared
    model.step(3, [3, 1, 2])
    assert model.cache.bytes > before
    for tokens in (1, 40, 1):
        model.step(tokens, [tokens, 0, tokens])
    model.step(33, [0, 33, 0])
    model.free(0)
    model.step(30)


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads", "long_window"])
def test_rollback_and_other_tokens(memory, name):
    model = Model(PATTERNS[name], 2)
    model.step(150)
    model.rollback([32, 1])
    model.step(20)
    model.rollback([14, 20])  # 32 below the 150 that the first one once had
    model.step(80)
    model.step(1)


def test_rollback_is_refused_where_keys_are_overwritten():
    model = Model(PATTERNS["s2"], 2)
    model.step(150, [150, 30])
    with pytest.raises(tessera.InvalidArgument, match="rollback: sequence 0 .* 117 tokens"):
        model.cache.rollback([33, 0])
    assert model.cache.lengths.tolist() == [150, 30]
    model.rollback([0, 30])
    model.fork(0)  # which has overwritten what its origin has
    with pytest.raises(tessera.InvalidArgument, match="rollback: sequence 1 .* 117 tokens"):
        model.cache.rollback([0, 33])
    model.free(1)
    model.rollback([150, 0])  # to nothing: what comes next is another sequence
    model.step(70)
    dense = Model(PATTERNS["dense"], 1)
    dense.step(150)
    dense.rollback([149])
    dense.step(20)
    with pytest.raises(tessera.InvalidArgument, match="rollback: tokens of sequence 0: 0 to 21"):
        dense.cache.rollback(22)
    with pytest.raises(tessera.InvalidArgument, match="rollback: tokens: 1 numbers"):
        dense.cache.rollback([1, 2])


def test_out_of_pages_changes_nothing(memory):
    model = Model(PATTERNS["s2"], 2, pages=10)
    model.step(60, [60, 40])
    with pytest.raises(tessera.OutOfMemory, match="attention: cache: .* pages are needed"):
        model.step(100, [20, 100])
    assert model.cache.lengths.tolist() == [60, 40] == model.lengths()
    model.step(7)
    with pytest.raises(tessera.InvalidArgument, match="sequence 1 has 47 .* max_tokens"):
        model.step(354, [0, 354])
    model.free(0)
    model.step(80, [0, 80])
    model.poison()
    model.step(16, [16, 1])
    with pytest.raises(MemoryError, match="reserve: cache: "):
        model.cache.reserve(200)


def test_a_step_that_fails_changes_nothing(monkeypatch):
    from tessera import _cache_plans

    model = Model(PATTERNS["s2"], 2)
    model.step(20, [20, 0])
    used = model.cache.bytes

    def broken(*_):
        raise tessera.NativeError("no")

    with monkeypatch.context() as change:
        change.setattr(_cache_plans.Plan, "prepare", broken)
        with pytest.raises(tessera.NativeError):
            tessera.attention(*model.new((2, 33)), cache=model.cache)
    assert model.cache.lengths.tolist() == [20, 0] and model.cache.bytes == used
    model.step(33)


def test_a_step_that_was_cut_off_is_not_read():
    model = Model(PATTERNS["s2"], 2, layers=2)
    cache = model.cache
    model.step(4)

    def refused(call):
        with pytest.raises(tessera.InvalidArgument, match=r"the last step .* not complete"):
            call()

    tessera.attention(*model.new((2, 3)), cache=cache)  # and nothing of layer 1
    refused(lambda: cache.fork(0, 1))
    refused(lambda: cache.select([1, 0]))
    refused(lambda: copy.deepcopy(cache))
    model.free(1)  # sequence 0 has three tokens that layer 1 lacks
    cache.rollback(0)
    assert cache.lengths.tolist() == [7, 0]
    refused(lambda: model.step(1))
    refused(lambda: cache.fork(0))
    with pytest.raises(tessera.InvalidArgument, match="layer: each once in a step"):
        tessera.attention(*model.new((2, 3)), cache=cache, layer=1)
    cache.rollback([3, 0])
    model.step(5)
    model.step(1, [0, 1])


def test_a_fork_without_pages_for_copies():
    model = Model(PATTERNS["dense"], 3, pages=4)
    model.step(50, [50, 0, 0])
    model.fork(0)
    with pytest.raises(tessera.OutOfMemory):
        model.step(1, [1, 1, 0])
    model.free(1)
    model.step(1, [1, 0, 0])


def test_the_last_one_to_write_keeps_a_shared_page():
    model = Model(PATTERNS["dense"], 3, pages=5)
    model.step(50, [50, 0, 0])
    model.fork(0)
    model.step(1, [1, 1, 0])  # one copy, and no more pages
    assert not model.cache._pages[0].free and not model.cache._pages[0].used[2]


def test_pools_grow_as_pages_are_needed(memory):
    model = Model(PATTERNS["dense_heads"], 2, pages="grow", layers=2)
    small = model.cache.pool_bytes
    for tokens in (1, 20, 100, 1):
        model.step(tokens, [tokens, tokens // 3])
        model.poison()
    model.fork(0) if model.cache.length(1) == 0 else model.free(1)
    model.fork(0, 1)
    model.step(9)
    assert model.cache.pool_bytes > small
    assert model.cache.pool_bytes < 1.5 * model.cache.bytes


@pytest.mark.parametrize("kv_dtype, bound", [("int8", 0.06), ("e4m3", 0.25)])
def test_eight_bits(kv_dtype, bound):
    model = Model(PATTERNS["dense_heads"], kv_dtype=kv_dtype)
    for tokens in (40, 1, 20):
        model.step(tokens, [tokens, tokens // 2, 0], bound=bound)
    model.fork(0, 2)
    model.step(5, bound=bound)
    whole = Model(PATTERNS["dense_heads"])
    whole.step(66)
    model.step(0)
    assert model.cache.dense_bytes == sum(model.lengths()) * 2 * 2 * 16 * 4


def test_two_caches_and_thousand_sequences():
    count = 1000
    pair = [
        Model(PATTERNS[name], count, 2, 1, 8, page=16, max_tokens=64, pages=count * 2)
        for name in ("s2", "window")
    ]
    for lens in ([n % 2 for n in range(count)], [n % 3 == 0 for n in range(count)]):
        for model in pair:
            each = [int(n) for n in lens]
            x = model.new((sum(each),))
            ends = [sum(each[:n]) for n in range(count + 1)]
            o = tessera.attention(*x, cache=model.cache, layout="thd", cu_seqlens_q=ends)
            for s, n in enumerate(each):
                if n:
                    old = model.kept[0][s]
                    row = ends[s]
                    new = (torch.cat([old[0], x[1][row : row + 1]]),
                           torch.cat([old[1], x[2][row : row + 1]]))  # fmt: skip
                    model.kept[0][s] = new
                    if len(new[0]) == 1:  # one key: O is its value
                        reference.near(o[row], new[1][0].expand(2, 8), F32)
    for model in pair:
        assert model.cache.lengths.tolist() == model.lengths()
        assert max(model.lengths()) == 2


def test_append_without_attention():
    pattern = PATTERNS["s2"]
    whole = [torch.randn(1, 200, n, 16) for n in (4, 2, 2)]
    wanted = tessera.attention(*whole, pattern)
    cache = tessera.KVCache(pattern, 4, 2, 16, dtype=F32, max_tokens=300, layers=2, max_chunk=16)
    for layer in range(2):
        cache.append(whole[1][:, :150], whole[2][:, :150], layer=layer)
    assert cache.length(0) == 150
    for layer in range(2):
        rest = [x[:, 150:] for x in whole]
        o = tessera.attention(*rest, cache=cache, layer=layer)
        reference.near(o, wanted[:, 150:], F32)
    cache.clear()
    assert cache.bytes == 0 == cache.dense_bytes and cache.length(0) == 0
    cache.append(*(x.flatten(0, 1) for x in whole[1:]), layout="thd", cu_seqlens_q=[0, 199])
    assert cache.length(0) == 199


def test_inference_mode_and_what_comes_after_it(memory):
    with torch.inference_mode():
        model = Model(PATTERNS["s2"], pages="grow")
        model.step(40)
    model.step(30)
    with torch.inference_mode():
        model.step(20)
        model.free(1)
        model.fork(0, 1)
        model.cache.select([0, 1])
        model.kept = [layer[:2] for layer in model.kept]
    model.step(2)


def test_select_reorders_and_resizes(memory):
    model = Model(PATTERNS["dense_heads"])
    model.step(60, [60, 45, 10])
    for chosen in ([2, 0, 0], [1, 1, 2], [2, 0, 1, 1, 0], [3, 0]):
        model.cache.select(torch.tensor(chosen))
        model.kept = [[layer[s] for s in chosen] for layer in model.kept]
        model.poison()
        model.step(5)
        model.step(1)
    with pytest.raises(tessera.InvalidArgument, match="select: sequences: 0 to 1"):
        model.cache.select([2])


def test_a_deep_copy_is_another_cache(memory):
    model = Model(PATTERNS["dense_heads"], layers=2)
    model.step(60, [60, 45, 0])
    model.fork(0)
    other = copy.copy(model)
    other.cache = copy.deepcopy(model.cache)
    other.kept = copy.deepcopy(model.kept)
    assert other.cache.bytes == model.cache.bytes
    for one in (model, other, model):
        one.step(7)
        one.poison()
    other.step(20)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model.cache)


def test_bytes_are_those_of_the_layout():
    tokens, dim = 131072, 8
    pattern = tessera.S2(64, 8, 16, per_kv_head=True)
    info = pattern.info(tokens, heads=64, kv_heads=16)
    cache = tessera.KVCache(pattern, 64, 16, dim, dtype=torch.bfloat16, max_tokens=tokens)
    row = torch.zeros(1, 1, 16, dim, dtype=torch.bfloat16).expand(1, tokens, -1, -1)
    cache.append(row, row)
    page = 64 * 16 * dim * 2 * 2
    assert cache.bytes == 143 * page and cache.dense_bytes == 2048 * page
    assert 14 < cache.dense_bytes / cache.bytes < info.kv_blocks / info.kv_blocks_kept
    assert cache.pool_bytes == cache.bytes


class Replay:
    """What a captured graph does in a replay, on a device where nothing is captured."""

    def __init__(self, cache):
        self.cache = cache

    def __enter__(self):
        self.cache._capturing = lambda: True

    def __exit__(self, *_):
        del self.cache._capturing


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads"])
def test_lengths_on_the_device(memory, name):
    model = Model(PATTERNS[name], layers=2)
    model.step(40, [40, 11, 0])
    model.cache.reserve(9)
    lens = torch.tensor([1, 1, 0], dtype=torch.int32)
    for values in ([1, 1, 0], [1, 0, 0], [1, 1, 0]):
        lens.copy_(torch.tensor(values))
        for layer in range(2):
            x = model.new((3, 1))
            with Replay(model.cache):
                o = tessera.attention(*x, cache=model.cache, q_lens=lens, layer=layer)
            for s, n in enumerate(values):
                lse = torch.zeros(4, n)
                rows = [y[s, :n] for y in x]
                k, v = model.kept[layer][s]
                model.kept[layer][s] = (torch.cat([k, rows[1]]), torch.cat([v, rows[2]]))
                wanted, lse = reference.one(
                    rows[0], *model.kept[layer][s], model.pattern, None, None, None
                )
                reference.near(o[s, :n], wanted, F32)
                assert (o[s, n:] == 0).all() and lse.shape == (4, n)
    assert model.cache.lengths.tolist() == [43, 13, 0] == model.lengths()
    model.step(2)  # outside of the graph the host knows where the device is
    model.fork(2) if name == "none" else model.free(2)
    model.fork(1)
    model.step(3)


@pytest.mark.parametrize("name", ["dense", "s2", "dense_heads"])
def test_packed_lengths_on_the_device(memory, name):
    model = Model(PATTERNS[name], layers=2)
    cache = model.cache
    model.step(40, [40, 11, 0])
    model.packed([5, 1, 0])  # at most eight rows in all, and in a sequence
    cache.reserve(12)
    ends = torch.zeros(4, dtype=torch.int64)
    before, told = model.lengths(), []
    for values in ([1, 1, 0], [4, 3, 0], [0, 2, 0], [7, 0, 0], [0, 7, 0], [0, 0, 3], [3, 0, 0]):
        ends[1:] = torch.tensor(values).cumsum(0)
        told.append(values)
        fits = [n if s < 2 and sum(t[s] for t in told) <= 12 else 0 for s, n in enumerate(values)]
        told[-1] = fits
        for layer in range(2):
            q, k, v = model.new((7,))
            with Replay(cache):
                o, lse = tessera.attention(
                    q, k, v, cache=cache, layout="thd", cu_seqlens_q=ends, layer=layer,
                    return_lse=True,
                )  # fmt: skip
            for s, n in enumerate(values):
                some = slice(int(ends[s]), int(ends[s + 1]))
                if fits[s]:
                    model.check(layer, s, *(x[some] for x in (q, k, v, o)), lse[:, some])
                else:
                    assert (o[some] == 0).all()
            assert (o[int(ends[-1]) :] == 0).all()
            assert (lse[:, int(ends[-1]) :] == -torch.inf).all()
    assert cache.lengths.tolist() == model.lengths() == [before[0] + 12, before[1] + 6, 0]
    with pytest.raises(tessera.InvalidArgument, match="reserve: 2 rows of replayed graphs"):
        cache.reserve(12)
    # Lengths that are none.
    cache.reserve(12)
    with Replay(cache):
        for values in ([0, -3, 99, 2], [5, 1, -7, 3], [0, 7, 7, 7]):
            ends.copy_(torch.tensor(values))
            for layer in range(2):
                tessera.attention(
                    *model.new((7,)), cache=cache, layout="thd", cu_seqlens_q=ends, layer=layer
                )
    cache.clear()


def test_sequences_with_more_packed_rows_than_planned_are_left_out(memory):
    model = Model(PATTERNS["s2"], 4)
    model.packed([1, 1, 1, 1])
    model.cache.reserve(9)
    ends = torch.tensor([0, 0, 3, 4, 4])
    q, k, v = model.new((4,))
    with Replay(model.cache):
        o = tessera.attention(q, k, v, cache=model.cache, layout="thd", cu_seqlens_q=ends)
    assert (o[:3] == 0).all()
    model.check(0, 2, q[3:], k[3:], v[3:], o[3:], None)
    assert model.cache.lengths.tolist() == [1, 1, 2, 1]
    with pytest.raises(tessera.InvalidArgument, match="reserve: 1 rows"):
        model.cache.reserve(1)


def test_packed_rows_take_the_plan_of_the_call_before(memory):
    """Also where plans for shorter sequences have fewer rows: bounds are powers of two, but for the
    most that all sequences can have."""
    model = Model(PATTERNS["s2"], 6)  # with a plan for six rows, of one in each sequence
    for chunk in (4, 2):
        model.packed([chunk, 6 - chunk, 0, 0, 0, 0])
        model.cache.reserve(6)
        q, k, v = model.new((6,))
        ends = torch.tensor([0, chunk, 6, 6, 6, 6, 6])
        with Replay(model.cache):
            o = tessera.attention(q, k, v, cache=model.cache, layout="thd", cu_seqlens_q=ends)
        model.check(0, 0, q[:chunk], k[:chunk], v[:chunk], o[:chunk], None)
        model.check(0, 1, q[chunk:], k[chunk:], v[chunk:], o[chunk:], None)
        model.cache.reserve(0)


def test_room_that_was_not_reserved(memory):
    model = Model(PATTERNS["s2"], 2)
    model.step(1)
    model.step(20, [20, 0])
    model.cache.reserve(1, [0])
    x = model.new((2, 1))
    with Replay(model.cache):
        for _ in range(3):
            o = tessera.attention(*x, cache=model.cache)
    assert model.cache.lengths.tolist() == [22, 1]
    assert (o == 0).all()
    with pytest.raises(tessera.InvalidArgument, match="reserve: 5 rows of replayed graphs"):
        model.cache.reserve(1)
    model.cache.reserve(1)
    with Replay(model.cache):
        tessera.attention(*x, cache=model.cache)
        with pytest.raises(tessera.InvalidArgument, match="only attention and append"):
            model.cache.reserve(1)
        with pytest.raises(tessera.InvalidArgument, match="run once with them before"):
            tessera.attention(*model.new((2, 4)), cache=model.cache)
        with pytest.raises(tessera.InvalidArgument, match="q: at most max_chunk=32"):
            tessera.attention(*model.new((2, 40)), cache=model.cache)
        with pytest.raises(tessera.InvalidArgument, match="cu_seqlens_q: a tensor on the device"):
            tessera.attention(
                *model.new((2,)), cache=model.cache, layout="thd", cu_seqlens_q=[0, 1, 2]
            )
        with pytest.raises(tessera.InvalidArgument, match="cache: there is no plan for 99 packed"):
            tessera.attention(
                *model.new((99,)), cache=model.cache, layout="thd",
                cu_seqlens_q=torch.tensor([0, 1, 2]),
            )  # fmt: skip
        with pytest.raises(tessera.InvalidArgument, match="q_lens: a tensor on the device"):
            tessera.attention(*x, cache=model.cache, q_lens=[1, 1])
        with pytest.raises(tessera.InvalidArgument, match="q_lens: integers"):
            tessera.attention(*x, cache=model.cache, q_lens=torch.ones(3, dtype=torch.int32))
    assert model.cache.lengths.tolist() == [23, 2]


def test_a_fork_shares_what_was_reserved(memory):
    model = Model(PATTERNS["s2"], 2)
    model.step(1)
    model.rollback([1, 1])
    model.step(40, [40, 0])
    model.cache.reserve(5)
    model.fork(0)
    x = model.new((2, 1))
    with Replay(model.cache):
        assert (tessera.attention(*x, cache=model.cache) == 0).all()
    with pytest.raises(tessera.InvalidArgument, match="reserve: 2 rows"):
        model.cache.reserve(5)
    assert model.cache.lengths.tolist() == [40, 40]
    model.cache.reserve(5)
    with Replay(model.cache):
        o = tessera.attention(*x, cache=model.cache)
    for s in range(2):
        model.check(0, s, *(y[s] for y in x), o[s], None)
    model.step(3)


@pytest.mark.parametrize("seed", range(5))
def test_random_operations(memory, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    name = rng.choice([*PATTERNS])
    model = Model(
        PATTERNS[name], rng.choice([1, 3, 4]), layers=rng.choice([1, 2]),
        page=rng.choice([16, 32, 64]), max_chunk=rng.choice([1, 16, 32, 50]),
        pages=rng.choice([None, 40, "grow"]), max_tokens=250,
    )  # fmt: skip
    cache = model.cache
    for _ in range(20):
        lengths = model.lengths()
        sequence = rng.randrange(cache.sequences)
        action = rng.choice(["step", "step", "step", "packed", "rollback", "fork", "free", "copy"])
        lens = [rng.choice([0, 0, 1, 1, 2, rng.randrange(40)]) for _ in lengths]
        try:
            if action == "step":
                model.step(max(lens), lens, rng.choice(["bshd", "bhsd"]))
            elif action == "packed":
                model.packed(lens, rng.choice([0, 3]))
            elif action == "rollback":
                model.rollback([rng.randrange(min(n, cache.max_chunk) + 1) for n in lengths])
            elif action == "fork":
                model.fork(sequence)
            elif action == "free":
                model.free(sequence)
            else:
                chosen = [rng.randrange(cache.sequences) for _ in lengths]
                cache.select(chosen)
                model.kept = [[layer[s] for s in chosen] for layer in model.kept]
        except tessera.OutOfMemory:
            model.free(sequence)
        except tessera.InvalidArgument as error:
            assert any(text in str(error) for text in ("max_tokens", "fork: ", "below the"))
        model.poison()
        assert cache.lengths.tolist() == model.lengths()
        assert all(
            pages.in_use() == len({int(n) for n in pages.table.flat} - {-1})
            and pages.shared == sum(int(n) > 1 for n in pages.users)
            for pages in cache._pages
        )


CONSTRUCTION = [
    (dict(pattern="s2"), TypeError, "pattern: "),
    (dict(pattern=tessera.Dense(causal=False)), tessera.Unsupported, "pattern: causal=False"),
    (dict(pattern=tessera.Blocks([[True]])), tessera.Unsupported, "pattern: Blocks"),
    (dict(heads=0), tessera.InvalidArgument, "heads: 1 to 65535"),
    (dict(heads=4.0), TypeError, "heads: an integer"),
    (dict(kv_heads=3), tessera.InvalidArgument, "kv_heads: a divisor of heads=4"),
    (dict(head_dim=12), tessera.Unsupported, "head_dim: a multiple of 8"),
    (dict(dtype=torch.float64), tessera.InvalidArgument, "dtype: "),
    (dict(device="meta"), tessera.InvalidArgument, "device: "),
    (dict(device="junk"), tessera.InvalidArgument, "device: .* got 'junk'"),
    (dict(device=3.5), TypeError, "device: a device is needed, got 3.5"),
    (dict(device="cuda:99"), tessera.Error, "device: "),
    (dict(sequences=0), tessera.InvalidArgument, "sequences: 1"),
    (dict(max_tokens=0), tessera.InvalidArgument, "max_tokens: 1"),
    (dict(max_tokens=2**31), tessera.InvalidArgument, "max_tokens: 1"),
    (dict(layers=0), tessera.InvalidArgument, "layers: 1"),
    (dict(page=48), tessera.InvalidArgument, "page: one of"),
    (dict(pages="many"), tessera.InvalidArgument, "pages: a number, 'grow' or None"),
    (dict(pages=0), tessera.InvalidArgument, "pages: 1 to"),
    (dict(pages=[1, 2]), tessera.InvalidArgument, "pages: a number for each of 1"),
    (dict(max_chunk=0), tessera.InvalidArgument, "max_chunk: 1"),
    (dict(kv_dtype="fp4"), tessera.InvalidArgument, "kv_dtype: 'int8', 'e4m3' or None"),
]


@pytest.mark.parametrize("words, kind, text", CONSTRUCTION)
def test_bad_constructions(words, kind, text):
    good = dict(pattern=tessera.S2(16, 2, 4), heads=4, kv_heads=2, head_dim=16, max_tokens=64)
    with pytest.raises(kind, match=f"KVCache: {text}"):
        tessera.KVCache(**(good | words))


def test_bad_calls():
    model = Model(PATTERNS["s2"], 2, layers=2)
    cache, (q, k, v) = model.cache, model.new((2, 3))

    def refused(text, kind=tessera.InvalidArgument, q=q, k=k, v=v, **words):
        with pytest.raises(kind, match=f"attention: {text}"):
            tessera.attention(q, k, v, **({"cache": cache} | words))
        assert cache.lengths.tolist() == [0, 0]

    with pytest.raises(TypeError, match="reserve: sequences: a list of integers .* got 0"):
        cache.reserve(1, 0)
    refused("cache: a tessera.KVCache is needed, got dict", TypeError, cache={})
    refused("pattern: that of the cache", pattern=tessera.S2(16, 2, 8))
    refused("pattern: ", TypeError, pattern="s2")
    refused("q: a tensor", TypeError, q=[1])
    refused(r"q: \[2, tokens, 4, 16\] is needed", q=q[:1])
    refused(r"q: \[2, tokens, 4, 16\] is needed", q=q[0])
    refused(r"k: \[2, tokens, 2, 16\] is needed", k=k[:, :, :1])
    refused(r"v: the rows of q, \[2, 3\]", v=v[:, :2])
    refused("k: the dtype of the cache", k=k.double())
    refused("v: the device of the cache", v=v.to("meta"))
    refused("layout: one of", layout="sbhd")
    refused("q: gradients through a cache", tessera.Unsupported, q=q.clone().requires_grad_())
    refused(r"q_lens\[1\]: 0 to 3 is needed, got 4", q_lens=[1, 4])
    refused("q_lens: a value for each of 2 sequences", q_lens=[1])
    refused("q_lens: a list of integers", TypeError, q_lens=[0.5, 1])
    refused("q_lens: integers", q_lens=torch.ones(2))
    refused("cu_seqlens_q: cumulative lengths need", cu_seqlens_q=[0, 1, 2])
    refused("kv_lens: not together with cache", kv_lens=[3, 3])
    refused("kv_first: not together with cache", kv_first=[0, 0])
    refused("scale: a magnitude", scale=0.0)
    refused("layer: 0 to 1 is needed, got 2", layer=2)
    refused("layer: an integer", TypeError, layer="0")
    refused("layer: each once in a step", layer=1)
    flat = dict(q=q.flatten(0, 1), k=k.flatten(0, 1), v=v.flatten(0, 1), layout="thd")
    refused("cu_seqlens_q: cumulative lengths are needed", **flat)
    refused("cu_seqlens_q: 3 values", cu_seqlens_q=[0, 6], **flat)
    refused(r"cu_seqlens_q\[-1\]: at most the 6", cu_seqlens_q=[0, 6, 7], **flat)
    refused("q_lens: layout='thd'", q_lens=[1, 1], **flat)
    with torch.no_grad():
        tessera.attention(q.clone().requires_grad_(), k, v, cache=cache)
    with pytest.raises(tessera.InvalidArgument, match=r"layer: the last step .* layers \[1\]"):
        tessera.attention(q, k, v, cache=cache)
    with pytest.raises(tessera.InvalidArgument, match="layer: rows of"):
        tessera.attention(*model.new((2, 2)), cache=cache, layer=1)
    cache.rollback(3)
    with pytest.raises(tessera.InvalidArgument, match="fork: to: an empty place"):
        cache.fork(0, 0)
    with pytest.raises(tessera.InvalidArgument, match="free: sequence: 0 to 1"):
        cache.free(2)
    assert "sequences=2" in repr(cache) and cache.table.shape[:2] == (1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        refused("q: the dtype of the cache")


def test_tensors_without_memory():
    model = Model(PATTERNS["s2"], 2)
    model.step(5)
    for n, name in enumerate("qkv"):
        given = model.new((2, 3))
        given[n].untyped_storage().resize_(0)
        with pytest.raises(tessera.InvalidArgument, match=f"{name}: a tensor with memory"):
            tessera.attention(*given, cache=model.cache)
    model.step(5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_looks_at_operators_is_refused_and_changes_nothing():
    from torch._subclasses import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.fx.experimental.proxy_tensor import make_fx

    model = Model(PATTERNS["s2"], 1)
    cache, (q, k, v) = model.cache, model.new((1, 3))

    def run(q, k, v):
        return tessera.attention(q, k, v, cache=cache)

    def of_one(q, k, v):
        return run(q[None], k[None], v[None])

    def append(k):
        cache.append(k, k)
        return k

    def refused(what, call):
        with pytest.raises(tessera.Unsupported, match=f"cache: {what}"):
            call()
        assert cache._host == [0]

    refused("torch.func", lambda: torch.vmap(of_one)(q, k, v))
    refused("torch.func", lambda: torch.vmap(append)(k[None]))
    refused("torch.func", lambda: torch.func.grad(lambda q: run(q, k, v).sum())(q))
    refused("torch.func", lambda: torch.func.jvp(lambda q: run(q, k, v), (q,), (q,)))
    refused("tracing", lambda: make_fx(run)(q, k, v))
    refused("torch.jit.trace", lambda: torch.jit.trace(run, (q, k, v)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        refused("tracing", lambda: run(q, k, v))
    with forward_ad.dual_level():
        refused("forward-mode", lambda: run(forward_ad.make_dual(q, q), k, v))
        run(q, k, v)
    assert cache.lengths.tolist() == [3]


def test_compiled_code_holds_a_cache():
    """One graph of all layers, for every length and every cache of the kind."""
    from torch._dynamo.testing import CompileCounterWithBackend

    first = Model(PATTERNS["dense_heads"], 3, layers=2)
    caches = [first.cache, copy.deepcopy(first.cache)]
    graphs = CompileCounterWithBackend("eager")

    def run(q, k, v, cache, lens, layout):
        words = dict(layout=layout, scale=0.5)
        words["q_lens" if layout == "bshd" else "cu_seqlens_q"] = lens
        x = tessera.attention(q.sin(), k, v, first.pattern, cache=cache, **words)
        o, lse = tessera.attention(
            x.cos(), v, k, cache=cache, layer=1, return_lse=True, **words
        )
        return o * 2, lse + 1

    torch._dynamo.reset()
    compiled = torch.compile(run, backend=graphs, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for cache in caches:
            other = copy.deepcopy(cache)
            for rows, lens in ((40, [40, 3, 0]), (7, [1, 7, 5]), (50, [50, 0, 2]), (2, None)):
                inputs = first.new((3, rows))
                lens = None if lens is None else torch.tensor(lens)
                found = compiled(*inputs, cache, lens, "bshd")
                wanted = run(*inputs, other, lens, "bshd")
                for x, y in zip(found, wanted, strict=True):
                    torch.testing.assert_close(x, y)
                assert cache.lengths.tolist() == other.lengths.tolist()
            inputs, ends = first.new((9,)), torch.tensor([0, 3, 4, 9])
            found = compiled(*inputs, cache, ends, "thd")
            for x, y in zip(found, run(*inputs, other, ends, "thd"), strict=True):
                torch.testing.assert_close(x, y)
    assert graphs.frame_count <= 3  # with lengths, without, and packed
    torch._dynamo.reset()


def test_compiled_calls_of_a_cache_are_neither_lost_nor_doubled():
    model = Model(PATTERNS["s2"], 1)

    def run(q, k, v, cache):
        cache.append(k, v)
        tessera.attention(q, k, v, cache=cache)  # nothing looks at what it returns
        a = tessera.attention(q, k, v, cache=cache)
        return a, tessera.attention(q, k, v, cache=cache)

    compiled = torch.compile(run, fullgraph=True)
    inputs = model.new((1, 2))
    for n in range(3):
        with torch.no_grad():
            a, b = compiled(*inputs, model.cache)
        assert not torch.equal(a, b) and model.cache.lengths.tolist() == [8 * (n + 1)]
    inputs[1].requires_grad_()
    with pytest.raises(Exception, match="gradients through a cache"):
        compiled(*inputs, model.cache)
    with pytest.raises(Exception, match="gradients through a cache"):
        torch.compile(lambda k, v, cache: cache.append(k, v))(*inputs[1:], model.cache)
    assert model.cache.lengths.tolist() == [24]
    del model
    torch._dynamo.reset()


def test_tokens_of_another_process_find_no_cache():
    """A program that was saved there holds its number, which counts from 1 would repeat here."""
    caches = [Model(PATTERNS["s2"], 1).cache for _ in range(2)]
    numbers = [int(cache._token[0]) for cache in caches]
    assert abs(numbers[0] - numbers[1]) > 1 << 20 and min(numbers) > 1 << 20
    x = torch.zeros(1, 1, 2, 16)
    with pytest.raises(tessera.InvalidArgument, match="of another process"):
        torch.ops.tessera.append(x, x, torch.tensor([1, 0]), "bshd", None, None, 0)


def test_compiled_code_sees_a_cache_as_its_calls_leave_it():
    """Lengths are read in their order; what asks the host is no part of a graph."""
    pattern = PATTERNS["dense_heads"]
    model = Model(pattern, 2)
    eager, other, new = model.cache, Model(pattern, 2).cache, model.new

    def lengths(cache, q, k, v):
        before = cache.lengths + 0
        tessera.attention(q, k, v, cache=cache)
        return before, cache.lengths + 0

    def taken_back(cache, q, k, v):
        o = tessera.attention(q, k, v, cache=cache)
        cache.rollback(1)
        return o, torch.tensor(cache.length(0))

    for function in (lengths, taken_back):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=function is lengths)
        for _ in range(3):
            inputs = new((2, 3))
            with torch.no_grad():
                wanted = [x.clone() for x in function(eager, *inputs)]
                for x, y in zip(compiled(other, *inputs), wanted, strict=True):
                    torch.testing.assert_close(x, y)
            assert other.lengths.tolist() == eager.lengths.tolist() == [other.length(0)] * 2
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="rollback"):
        torch.compile(taken_back, fullgraph=True)(other, *inputs)
    torch._dynamo.reset()


def test_the_operator_of_a_cache():
    cache = Model(PATTERNS["s2"], 2).cache
    for layout, shape in (("bshd", (2, 5)), ("bhsd", (2, 5)), ("thd", (5,))):
        given = [torch.randn(*shape, n, 16) for n in (4, 2, 2)]
        if layout == "bhsd":
            given = [x.transpose(1, 2) for x in given]
        ends = torch.tensor([0, 2, 5]) if layout == "thd" else None
        torch.library.opcheck(
            torch.ops.tessera.cached.default,
            (*given, cache._token, layout, None, None, ends, True, 0),
            test_utils=("test_schema", "test_faketensor"),
        )
    token = torch.tensor([0, 0])
    with pytest.raises(tessera.InvalidArgument, match="cache: it is gone"):
        torch.ops.tessera.cached(*given, token, "thd", None, None, ends, True, 0)


def test_scales_of_any_type_have_one_plan():
    model = Model(PATTERNS["s2"], 2)
    q, k, v = model.new((2, 1))
    tessera.attention(q, k, v, cache=model.cache, scale=0.25)
    plans = len(model.cache._plans)
    for _ in range(3):
        tessera.attention(q, k, v, cache=model.cache, scale=torch.tensor(0.25))
    assert len(model.cache._plans) == plans
    with pytest.raises(TypeError, match="scale: a number"):
        tessera.attention(q, k, v, cache=model.cache, scale="x")


def test_select_takes_no_more_than_a_cache_may_have():
    model = Model(PATTERNS["s2"], 2)
    model.step(3)
    with pytest.raises(tessera.InvalidArgument, match="select: sequences: 1 to 65536"):
        model.cache.select([0] * 65537)
    model.step(3)

# SPDX-License-Identifier: Apache-2.0
"""tessera.dkernel: names, masks, compressed rows and merging of parts."""

import importlib
import inspect
import random
import sys

import pytest

torch = pytest.importorskip("torch")

import tessera  # noqa: E402
import tessera.dkernel as dkernel  # noqa: E402
from tessera.dkernel.utils import (  # noqa: E402
    ccol_row_to_dense,
    crow_col_to_dense,
    dense_to_ccol_row,
    get_sparse_attn_mask,
    is_kv_cache_efficient,
    merge_split_fwd_kernel_blocks,
)


def rows(block_mask, head):
    return " ".join("".join(str(int(x)) for x in row) for row in block_mask[head])


def expected(h, i, j, heads, groups, local, stride, dense, offset, homo):
    """The formula of docs/patterns.md, spelled out once more; `dense` counts groups."""
    g = h // (heads // groups)
    if g >= groups - dense:
        return j <= i
    step = 0 if homo else max(1, stride // heads)
    return j <= i and (i - j < local or (j + g * step + offset) % stride == 0)


def test_an_import_is_all_that_changes(monkeypatch):
    for name in list(sys.modules):
        if name == "dkernel" or name.startswith("dkernel."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dkernel", dkernel)
    interface = importlib.import_module("dkernel.interface")
    utils = importlib.import_module("dkernel.utils")
    assert interface.SparseAttention is dkernel.SparseAttention
    assert interface.LocalStrideSparseAttention is dkernel.LocalStrideSparseAttention
    assert interface.combine_attn_partitions is dkernel.combine_attn_partitions
    assert utils.get_sparse_attn_mask is dkernel.get_sparse_attn_mask
    for name in ("dkernel.interface", "dkernel.utils"):
        sys.modules.pop(name, None)


def names_and_defaults(function):
    empty = inspect.Parameter.empty
    return [
        (name, None if p.default is empty else p.default, p.kind.name[:3])
        for name, p in inspect.signature(function).parameters.items()
    ]


def test_arguments_are_those_of_programs_that_exist():
    mask = [(n, d) for n, d, _ in names_and_defaults(get_sparse_attn_mask)]
    assert mask == [
        ("num_heads", None),
        ("seqlen", None),
        ("block_size", 64),
        ("local_blocks", 4),
        ("vert_stride", 4),
        ("homo_head", False),
        ("num_kv_heads", None),
        ("past_len", None),
        ("dtype", torch.bfloat16),
        ("device", None),
        ("return_dense", False),
        ("head_sliding_step", None),
        ("head_sliding_offset", 0),
        ("num_dense_heads", 0),
        ("kv_seqlen", None),
        ("q_start_position", None),
        ("kv_start_position", None),
        ("vert_position_type", None),
        ("causal", True),
    ]
    forward = names_and_defaults(dkernel.SparseAttention.forward)
    assert [n for n, _, kind in forward if kind == "POS"] == ["self", "q", "k", "v", "sm_scale"]
    assert [n for n, _, kind in forward if kind == "KEY"] == [
        "cu_seqlen_k",
        "cu_seqlen_q",
        "left_paddings",
        "seqlens",
        "return_lse",
        "split_qkv",
    ]
    sparse = names_and_defaults(dkernel.SparseAttention.__init__)
    assert [n for n, _, kind in sparse if kind == "POS"] == ["self", "block_size", "sparse_pattern"]
    assert ("causal", True, "KEY") in sparse and ("seq_dim", None, "KEY") in sparse
    local = names_and_defaults(dkernel.LocalStrideSparseAttention.__init__)
    assert [n for n, _, kind in local if kind == "POS"] == [
        "self",
        "num_heads",
        "max_seq_len",
        "block_size",
        "local_blocks",
        "vert_stride",
    ]
    assert [(n, d) for n, d, kind in local if kind == "KEY"][:8] == [
        ("homo_head", False),
        ("num_dense_heads", 0),
        ("num_kv_heads", None),
        ("active_head_range", None),
        ("head_sliding_offset", 0),
        ("block_m", None),
        ("block_n", None),
        ("causal", True),
    ]


def test_golden_rows():
    first = "10000000 11000000 01100000 00110000 00011000 00011100 00010110 00010011"
    third = "10000000 11000000 11100000 10110000 10011000 10001100 10001110 10001011"
    for block in (2, 16, 64):
        mask = get_sparse_attn_mask(4, 8 * block, block, 2, 4)[1]
        assert rows(mask, 1) == first
        mask = get_sparse_attn_mask(4, 8 * block, block, 2, 4, head_sliding_offset=1)[1]
        assert rows(mask, 0) == first
        assert rows(mask, 3) == third
    mask = get_sparse_attn_mask(4, 512, 64, 2, 4, num_kv_heads=2)[1]
    assert rows(mask, 0) == rows(mask, 1) != rows(mask, 2)
    assert rows(mask, 2) == rows(mask, 3) == first


def test_both_directions():
    mask = get_sparse_attn_mask(2, 16, 2, 2, 3, causal=False)[1]
    assert mask.shape == (1, 8, 8)
    assert rows(mask, 0).split()[:3] == ["11001001", "11100100", "01110010"]
    some_dense = get_sparse_attn_mask(2, 16, 2, 2, 3, causal=False, num_dense_heads=1)[1]
    assert some_dense.shape == (2, 8, 8)
    assert rows(some_dense, 0) == rows(mask, 0) and bool(some_dense[1].all())
    assert get_sparse_attn_mask(2, 16, 2, (2, 1), 99, causal=False)[1][0, 4].tolist() == [
        float(x) for x in (0, 0, 0, 1, 1, 0, 0, 0)
    ]


def test_every_block_of_many_masks():
    pick = random.Random(7)
    for _ in range(60):
        heads = pick.choice([1, 2, 4, 6, 8])
        groups = pick.choice([g for g in range(1, heads + 1) if heads % g == 0])
        local, stride = pick.randint(1, 4), pick.randint(1, 9)
        offset, homo = pick.randint(-2, 3), pick.random() < 0.2
        dense = 0 if homo else pick.randint(0, groups)
        block, blocks = pick.choice([1, 3, 16]), pick.randint(1, 12)
        tokens = blocks * block - pick.randrange(block)
        (crow, col), mask, _ = get_sparse_attn_mask(
            heads,
            tokens,
            block,
            local,
            stride,
            homo,
            groups,
            dtype=torch.uint8,
            head_sliding_offset=offset,
            num_dense_heads=dense,
        )
        assert mask.dtype == torch.uint8 and mask.shape == (1 if homo else heads, blocks, blocks)
        assert crow.dtype == col.dtype == torch.int32
        for h in range(mask.shape[0]):
            for i in range(blocks):
                kept = [
                    j
                    for j in range(blocks)
                    if expected(h, i, j, heads, groups, local, stride, dense, offset, homo)
                ]
                assert mask[h, i].nonzero().flatten().tolist() == kept
                assert col[h, crow[h, i] : crow[h, i + 1]].tolist() == kept
            assert (col[h, crow[h, -1] :] == -1).all()
        assert is_kv_cache_efficient(mask, block, block)


def test_parts_of_a_sequence_are_parts_of_its_mask():
    whole = get_sparse_attn_mask(3, 128, 8, 2, 5, return_dense=True)
    part = get_sparse_attn_mask(
        3, 32, 8, 2, 5, q_start_position=64, kv_start_position=16, kv_seqlen=80, return_dense=True
    )
    assert torch.equal(part[1], whole[1][:, 8:12, 2:12])
    assert torch.equal(part[2], whole[2][:, 64:96, 16:96])
    past = get_sparse_attn_mask(3, 128, 8, 2, 5, past_len=65, return_dense=True)
    assert torch.equal(past[1], whole[1][:, 9:])
    assert torch.equal(past[2], whole[2][:, 65:])
    assert past[0][0].shape == (3, 8)


def test_dense_mask_is_exact_to_the_token():
    _, mask, dense = get_sparse_attn_mask(2, 21, 4, 1, 3, return_dense=True, dtype=torch.float32)
    assert dense.shape == (2, 21, 21)
    for p in range(21):
        for t in range(21):
            assert bool(dense[1, p, t]) == (t <= p and bool(mask[1, p // 4, t // 4]))


def test_tables_and_masks_are_each_other():
    mask = (torch.rand(3, 6, 7, generator=torch.Generator().manual_seed(1)) < 0.4).to(torch.uint8)
    mask[0, 0, 6] = 1
    (crow, col) = dkernel.utils.dense_to_crow_col(mask)
    assert torch.equal(crow_col_to_dense(crow, col, torch.uint8), mask)
    mask[0, 5, 0] = 1
    assert torch.equal(ccol_row_to_dense(*dense_to_ccol_row(mask), torch.uint8), mask)
    pairs = merge_split_fwd_kernel_blocks(16, mask, 32, 16)[1]
    assert pairs.shape[-1] == 2 and set(pairs[..., 1].unique().tolist()) <= {0, 16, 32}


def test_parts_merge_to_the_whole():
    torch.manual_seed(0)
    scores, values = torch.randn(2, 3, 5, 12), torch.randn(2, 3, 12, 8)
    scores[:, :, 1] = -torch.inf  # no key at all
    scores[:, :, 2, :4] = -torch.inf  # none in the first part
    outputs = []
    for part in (slice(0, 4), slice(4, 7), slice(7, 12)):
        s = scores[..., part]
        outputs.append((torch.softmax(s, -1) @ values[:, :, part], torch.logsumexp(s, -1)))
    whole = torch.softmax(scores, -1) @ values
    whole[:, :, 1] = 0
    got = dkernel.combine_attn_partitions(*outputs)
    torch.testing.assert_close(got, whole)
    other = [(o.transpose(1, 2), lse) for o, lse in outputs]
    torch.testing.assert_close(
        dkernel.combine_attn_partitions(*other, hdim=2), whole.transpose(1, 2)
    )
    packed = [(o[0].transpose(0, 1), lse[0]) for o, lse in outputs]
    torch.testing.assert_close(
        dkernel.combine_attn_partitions(*packed), whole[0].transpose(0, 1)
    )
    assert dkernel.combine_attn_partitions(*[(o.half(), w) for o, w in outputs]).dtype == torch.half


def test_merging_has_gradients_without_nan():
    o = [torch.randn(1, 2, 3, 8, requires_grad=True) for _ in range(2)]
    lse = [torch.tensor([[[0.0, -torch.inf, 1.0]] * 2], requires_grad=True) for _ in range(2)]
    dkernel.combine_attn_partitions((o[0], lse[0]), (o[1], lse[1])).square().sum().backward()
    for leaf in o + lse:
        assert torch.isfinite(leaf.grad).all()
        assert (leaf.grad[:, :, 1] == 0).all()


@pytest.mark.parametrize(
    "words, name",
    [
        ({"num_heads": 0}, "num_heads"),
        ({"seqlen": -1}, "seqlen"),
        ({"block_size": 0}, "block_size"),
        ({"local_blocks": 0}, "local_blocks"),
        ({"local_blocks": (1, 2)}, "local_blocks"),
        ({"vert_stride": 0}, "vert_stride"),
        ({"vert_stride": 2.5}, "vert_stride"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"num_dense_heads": 5}, "num_dense_heads"),
        ({"homo_head": True, "num_dense_heads": 1}, "num_dense_heads"),
        ({"q_start_position": 3}, "q_start_position"),
        ({"kv_start_position": 5}, "kv_start_position"),
        ({"q_start_position": 64, "past_len": 64}, "q_start_position"),
        ({"vert_position_type": "both"}, "vert_position_type"),
    ],
)
def test_wrong_arguments_are_named(words, name):
    with pytest.raises(tessera.InvalidArgument, match=f"^{name}"):
        get_sparse_attn_mask(**{"num_heads": 4, "seqlen": 128, **words})


def test_parts_that_do_not_fit_are_named():
    o, lse = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"x\[1\]: lse"):
        dkernel.combine_attn_partitions((o, lse), (o, lse[:, :1]))
    with pytest.raises(ValueError, match=r"x\[1\]: output"):
        dkernel.combine_attn_partitions((o, lse), (o[..., :4], lse))
    with pytest.raises(ValueError, match="hdim"):
        dkernel.combine_attn_partitions((o, lse), (o, lse), hdim=3)
    with pytest.raises(ValueError, match="x: "):
        dkernel.combine_attn_partitions()

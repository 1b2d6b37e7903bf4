# SPDX-License-Identifier: Apache-2.0
"""Compressed rows and columns of block masks, as DKernel has them. Tessera itself needs none."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tessera.dkernel._checks import invalid, whole

_Csr = namedtuple("_Csr", ("indptr", "indices", "data"))


def to_csr(mat: NDArray[np.generic]) -> _Csr:
    """(indptr, indices, data) of a 2-D array: int32, int32 and the array's type."""
    rows, columns = np.nonzero(mat)
    starts = np.zeros(mat.shape[0] + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=mat.shape[0]), out=starts[1:])
    return _Csr(starts, columns.astype(np.int32), mat[rows, columns])


def dense_to_crow_col(x: Tensor, include_values: bool = False) -> tuple[Tensor, Tensor]:
    """Row starts [heads, rows + 1] and columns [heads, most], int32, of a mask [heads, rows,
    columns]; without the first dimension for a 2-D mask. Columns are filled up with -1. With
    `include_values` the columns are pairs [..., 2] of a column and the mask's value there."""
    verify_sparse_pattern(x)
    planes = x[None] if x.dim() == 2 else x
    tables = [to_csr(plane.to(torch.int32).cpu().numpy()) for plane in planes]
    most = max((len(table.indices) for table in tables), default=0)
    crow = np.stack([table.indptr for table in tables])
    col = np.full((len(tables), most, 2), (-1, 0), np.int32)
    for plane, table in zip(col, tables):
        plane[: len(table.indices), 0] = table.indices
        plane[: len(table.data), 1] = table.data
    found = torch.from_numpy(crow), torch.from_numpy(col if include_values else col[..., 0].copy())
    crow_col = found if x.dim() == 3 else (found[0][0], found[1][0])
    return crow_col[0].to(x.device), crow_col[1].to(x.device)


def crow_col_to_dense(crows: Tensor, cols: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """The mask of `dense_to_crow_col`'s tables, as wide as its last column needs."""
    if crows.dim() == 1:
        return crow_col_to_dense(crows[None], cols[None], dtype)[0]
    starts, found = crows.cpu(), cols.cpu()
    indices = found[..., 0] if found.dim() == 3 else found
    width = int(indices.max()) + 1 if indices.numel() else 0
    dense = torch.zeros((starts.shape[0], starts.shape[1] - 1, width), dtype=dtype)
    for head in range(dense.shape[0]):
        n = int(starts[head, -1])
        rows = torch.repeat_interleave(torch.arange(dense.shape[1]), starts[head].diff().long())
        values = found[head, :n, 1].to(dtype) if found.dim() == 3 else torch.ones(n, dtype=dtype)
        dense[head, rows, indices[head, :n].long()] = values
    return dense.to(crows.device)


def dense_to_ccol_row(x: Tensor, include_values: bool = False) -> tuple[Tensor, Tensor]:
    """`dense_to_crow_col` by columns."""
    return dense_to_crow_col(x.transpose(-2, -1), include_values)


def ccol_row_to_dense(ccol: Tensor, rows: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """`crow_col_to_dense` by columns, of tables [heads, ...]."""
    return crow_col_to_dense(ccol, rows, dtype).transpose(-2, -1).contiguous()


def is_kv_cache_efficient(sparse_pattern: Tensor, block_m: int, block_n: int) -> Tensor:
    """Whether a key block past which the queries are, and which one of them does not read, is read
    by no later one: a boolean scalar. `sparse_pattern` is [heads, query blocks, key blocks]."""
    pattern = sparse_pattern.to(torch.bool)
    first_query = torch.arange(pattern.size(1), device=pattern.device)[1:] * block_m
    end_key = torch.arange(1, pattern.size(2) + 1, device=pattern.device) * block_n
    past = first_query[:, None] >= end_key
    return ~(pattern[:, 1:] & ~pattern[:, :-1] & past).any()


def verify_sparse_pattern(sparse_pattern: Tensor) -> None:
    """Refuses what is not a 2-D or 3-D mask."""
    if sparse_pattern.dim() not in (2, 3):
        raise invalid(f"sparse_pattern: 2 or 3 dimensions, got shape {list(sparse_pattern.shape)}")


def is_causal(sparse_pattern: Tensor) -> bool:
    """Whether no block after the diagonal is set, in a square mask [heads, blocks, blocks]."""
    if sparse_pattern.size(-2) != sparse_pattern.size(-1):
        raise invalid(f"sparse_pattern: must be square, got shape {list(sparse_pattern.shape)}")
    return not bool(torch.triu(sparse_pattern.to(torch.int8), 1).any())


def merge_split_fwd_kernel_blocks(
    block_size: int, sparse_pattern: Tensor, block_m: int, block_n: int
) -> tuple[Tensor, Tensor]:
    """Compressed rows of the mask [heads, query blocks, key blocks] in tiles of `block_m` queries
    by `block_n` keys. Of merged query blocks the columns are pairs: the key block, and the queries
    of the tile up to the last block that reads it."""
    if block_size % block_n or (block_m % block_size and block_size % block_m):
        raise invalid(
            f"block_m, block_n: block_n divides block_size, block_m is a factor or a multiple of "
            f"it; got {block_m}, {block_n} for block_size {block_size}"
        )
    rows, columns = max(1, block_size // block_m), block_size // block_n
    tiles = sparse_pattern.repeat_interleave(rows, 1).repeat_interleave(columns, 2)
    if rows * columns > 1:
        last_query = torch.arange(1, tiles.size(1) + 1, device=tiles.device) * (block_size // rows)
        first_key = torch.arange(tiles.size(2), device=tiles.device) * block_n
        tiles = tiles * (last_query[:, None] > first_key).to(tiles.dtype)
    merged = block_m // block_size
    if merged <= 1:
        return dense_to_crow_col(tiles)
    if tiles.size(1) % merged:
        raise invalid(f"sparse_pattern: {tiles.size(1)} rows are no multiple of {merged}")
    grouped = tiles.reshape(tiles.size(0), -1, merged, tiles.size(2)) != 0
    queries = torch.arange(1, merged + 1, device=tiles.device)[:, None] * block_size
    return dense_to_crow_col((grouped * queries).amax(2).to(torch.int32), include_values=True)


def zero_stride(x: Tensor, dim: int = 0) -> Tensor:
    """`x` with stride 0 in `dim`, whose size must be 1 at most."""
    if x.size(dim) > 1:
        raise invalid(f"x: size {x.size(dim)} in dimension {dim} has a stride of its own")
    strides = list(x.stride())
    strides[dim] = 0
    return x.as_strided(x.shape, strides)


def multiple_of(x: int, y: int) -> int:
    """`x` rounded up to a multiple of `y`."""
    return -(-x // whole("y", y, 1)) * y


def is_hip() -> bool:
    """Whether PyTorch runs on AMD's devices."""
    return torch.version.hip is not None


def get_q_block_ids(past_len: int, q_len: int, block_size: int) -> range:
    """The blocks in which `q_len` queries after `past_len` tokens are."""
    return range(past_len // block_size, multiple_of(past_len + q_len, block_size) // block_size)

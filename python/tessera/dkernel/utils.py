# SPDX-License-Identifier: Apache-2.0
"""`dkernel.utils`: masks of patterns and their compressed rows.

Only names: a second copy of this file, as `dkernel.utils`, has the same functions.
"""

from tessera.dkernel._layout import (
    ccol_row_to_dense,
    crow_col_to_dense,
    dense_to_ccol_row,
    dense_to_crow_col,
    get_q_block_ids,
    is_causal,
    is_hip,
    is_kv_cache_efficient,
    merge_split_fwd_kernel_blocks,
    multiple_of,
    to_csr,
    verify_sparse_pattern,
    zero_stride,
)
from tessera.dkernel._masks import get_sparse_attn_mask

__all__ = [
    "ccol_row_to_dense",
    "crow_col_to_dense",
    "dense_to_ccol_row",
    "dense_to_crow_col",
    "get_q_block_ids",
    "get_sparse_attn_mask",
    "is_causal",
    "is_hip",
    "is_kv_cache_efficient",
    "merge_split_fwd_kernel_blocks",
    "multiple_of",
    "to_csr",
    "verify_sparse_pattern",
    "zero_stride",
]

# SPDX-License-Identifier: Apache-2.0
"""`dkernel.interface`: the modules, and merging of partial results.

Only names: a second copy of this file, as `dkernel.interface`, has the same classes.
"""

from tessera.dkernel._modules import LocalStrideSparseAttention, SparseAttention
from tessera.dkernel._partitions import combine_attn_partitions

__all__ = ["LocalStrideSparseAttention", "SparseAttention", "combine_attn_partitions"]

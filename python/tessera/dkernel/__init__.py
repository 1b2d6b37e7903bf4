# SPDX-License-Identifier: Apache-2.0
"""DKernel's modules over Tessera: change the import, keep the program.

    import sys, tessera.dkernel
    sys.modules["dkernel"] = tessera.dkernel

serves programs that say `import dkernel`; new ones import from here. Names, arguments, defaults,
shapes and types are those of DKernel 0.0.2. Grouped heads train, packed and padded batches have
gradients, LSE always works, and chunks after a past are an ordinary case. docs/python_dkernel.md
lists what differs.
"""

# Absolute imports: with sys.modules["dkernel"] set, `import dkernel.utils` loads that file a second
# time under its other name, where relative imports would look for `dkernel`'s parent.
from tessera.dkernel import interface, utils
from tessera.dkernel.interface import (
    LocalStrideSparseAttention,
    SparseAttention,
    combine_attn_partitions,
)
from tessera.dkernel.utils import get_sparse_attn_mask

__version__ = "0.0.2"  # of the interface

__all__ = [
    "LocalStrideSparseAttention",
    "SparseAttention",
    "combine_attn_partitions",
    "get_sparse_attn_mask",
    "interface",
    "utils",
]

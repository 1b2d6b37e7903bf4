# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers (5): attention of a model's layers by a pattern.

    import tessera.hf

    tessera.hf.register(pattern=tessera.S2(block=64, local=16, stride=8))
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tessera")

Padding on either side, packed rows, gradient checkpointing, `generate` with DynamicCache and
StaticCache, and torch.compile work as ever. What cannot be done is refused by name. S2Cache is a
cache whose layers keep what their pattern can still see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tessera

if TYPE_CHECKING:
    from tessera.hf._cache import S2Cache

__all__ = ["S2Cache", "register"]


def __getattr__(name: str) -> Any:
    if name != "S2Cache":  # which needs transformers
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tessera.hf._cache import S2Cache
    except ImportError as error:
        raise tessera.Unavailable(f"tessera.hf: transformers 5 is needed: {error}") from None
    return S2Cache


def register(
    name: str = "tessera",
    pattern: tessera.Pattern | Callable[[Any, int], tessera.Pattern] | None = None,
) -> None:
    """Makes `attn_implementation=name` known to transformers.

    pattern: of every attention layer; or a function of (config, layer index) for models whose
        layers differ. Its heads are those of the whole model.

    It registers an attention function and a mask function: with the first alone transformers would
    pass no mask, and padding would be read. Registering a name again replaces it.
    """
    if not isinstance(name, str) or not name:
        raise tessera.InvalidArgument(f"name: a word is needed, got {name!r}")
    if not isinstance(pattern, tessera.Pattern) and not callable(pattern):
        raise tessera.InvalidArgument(
            "pattern: tessera.S2, Dense, Window or Blocks, or a function of (config, layer index) "
            f"that returns one, is needed, got {pattern!r}"
        )
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    except ImportError as error:
        raise tessera.Unavailable(f"tessera.hf: transformers 5 is needed: {error}") from None
    from tessera.hf import _attention, _masks

    causal = masking_utils.causal_mask_function
    bidirectional = getattr(masking_utils, "bidirectional_mask_function", None)
    AttentionInterface.register(name, _attention.Attention(pattern))
    AttentionMaskInterface.register(name, _masks.Masks(causal, bidirectional))

# SPDX-License-Identifier: Apache-2.0
"""The words that a cache is made with, and how a wrong one is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from . import _errors, _native, _shapes

KV = {"int8": (torch.int8, _native.I8), "e4m3": (torch.float8_e4m3fn, _native.F8E4M3)}
PAGES = (16, 32, 64, 128, 256)
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "calculation overflowed")
MOST = 2**31 - 65536  # tokens of a sequence end below


def wrong(argument: str, needed: str, got: object) -> _errors.InvalidArgument:
    return _errors.InvalidArgument(f"KVCache: {argument}: {needed}, got {got}")


def number_of(argument: str, value: object, least: int, most: int = MOST - 1) -> int:
    number = _shapes.integer(f"KVCache: {argument}", value)
    if not least <= number <= most:
        raise wrong(argument, f"{least} to {most} is needed", number)
    return number


def check_words(max_tokens: Any, page: Any, max_chunk: Any, kv_dtype: Any) -> None:
    """Raises for what S2Cache, whose caches are made later, can check as well."""
    number_of("max_tokens", max_tokens, 1)
    if number_of("page", page, 1) not in PAGES:
        raise wrong("page", f"one of {PAGES} is needed", page)
    number_of("max_chunk", max_chunk, 1)
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in KV):
        raise wrong("kv_dtype", "'int8', 'e4m3' or None is needed", repr(kv_dtype))


def no_memory(error: BaseException) -> bool:
    """Whether NumPy or PyTorch found no memory, or cannot count as many bytes. For the CPU, and for
    sizes, PyTorch says so in words alone."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    told = str(error)
    return isinstance(error, RuntimeError) and any(words in told for words in _NO_MEMORY)


@contextlib.contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Where NumPy or PyTorch finds no memory, OutOfMemory says for what."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, _errors.Error) or not no_memory(error):
            raise
        line = str(error).partition("\n")[0]
        raise _errors.OutOfMemory(f"KVCache: {what}: {line}") from None


def place_of(device: torch.device | str | None) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise wrong("device", "the CPU or a CUDA device is needed", repr(device)) from None
    except TypeError:
        raise TypeError(f"KVCache: device: a device is needed, got {device!r}") from None
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise _errors.Unavailable(f"KVCache: device: {found}: PyTorch finds no CUDA device")
        index = torch.cuda.current_device() if found.index is None else found.index
        if index >= torch.cuda.device_count():
            most = torch.cuda.device_count() - 1
            raise wrong("device", f"cuda:0 to cuda:{most} is needed", found)
        return torch.device("cuda", index)
    if found.type != "cpu":
        raise wrong("device", "the CPU or a CUDA device is needed", found)
    return torch.device("cpu")

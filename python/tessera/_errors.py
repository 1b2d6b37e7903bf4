# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of the C library, with its message."""

from __future__ import annotations

import builtins
from typing import ClassVar


class Error(Exception):
    """What every failure of Tessera is. `status` is the name of the C status, such as
    "TESS_ERROR_INVALID"; the text names the argument, field or native call."""

    status: ClassVar[str] = "TESS_ERROR_?"


class InvalidArgument(Error, ValueError):
    """An argument that cannot be right, or that does not fit the others."""


class Unsupported(Error, NotImplementedError):
    """Legal, but nothing here does it."""


class Unavailable(Error, RuntimeError):
    """No such backend, device, driver or library on this machine."""


class OutOfMemory(Error, MemoryError):
    """No memory on the host or the device. Everything stays usable."""


class VersionMismatch(Error, RuntimeError):
    """The package and the library, a backend or a file are of versions that do not fit."""


class Busy(Error, RuntimeError):
    """Too many runs of one plan are under way."""


class TimedOut(Error, builtins.TimeoutError):
    """A wait reached its limit."""


class DeviceLost(Error, RuntimeError):
    """The device gave up; only a new process helps."""


class CorruptData(Error, ValueError):
    """Serialised bytes or a tune file are damaged."""


class NativeError(Error, RuntimeError):
    """A driver or a system call failed."""


# By the numbers of tess_status.
_NAMES: dict[type[Error], str] = {
    Error: "?",
    InvalidArgument: "INVALID",
    Unsupported: "UNSUPPORTED",
    Unavailable: "UNAVAILABLE",
    OutOfMemory: "OUT_OF_MEMORY",
    VersionMismatch: "VERSION",
    Busy: "BUSY",
    TimedOut: "TIMEOUT",
    DeviceLost: "DEVICE_LOST",
    CorruptData: "CORRUPT",
    NativeError: "NATIVE",
}
BY_STATUS = tuple(_NAMES)
for _kind, _name in _NAMES.items():
    _kind.status = f"TESS_ERROR_{_name}"

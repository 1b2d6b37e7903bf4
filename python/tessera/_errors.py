# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of the C library, with its message."""

from __future__ import annotations

import builtins


class Error(Exception):
    """What every failure of Tessera is. `status` is the name of the C status, such as
    "TESS_ERROR_INVALID"; the text names the argument, field or native call."""

    status = "TESS_ERROR_?"


class InvalidArgument(Error, ValueError):
    """An argument that cannot be right, or that does not fit the others."""

    status = "TESS_ERROR_INVALID"


class Unsupported(Error, NotImplementedError):
    """Legal, but nothing here does it."""

    status = "TESS_ERROR_UNSUPPORTED"


class Unavailable(Error, RuntimeError):
    """No such backend, device, driver or library on this machine."""

    status = "TESS_ERROR_UNAVAILABLE"


class OutOfMemory(Error, MemoryError):
    """No memory on the host or the device. Everything stays usable."""

    status = "TESS_ERROR_OUT_OF_MEMORY"


class VersionMismatch(Error, RuntimeError):
    """The package and the library, a backend or a file are of versions that do not fit."""

    status = "TESS_ERROR_VERSION"


class Busy(Error, RuntimeError):
    """Too many runs of one plan are under way."""

    status = "TESS_ERROR_BUSY"


class TimedOut(Error, builtins.TimeoutError):
    """A wait reached its limit."""

    status = "TESS_ERROR_TIMEOUT"


class DeviceLost(Error, RuntimeError):
    """The device gave up; only a new process helps."""

    status = "TESS_ERROR_DEVICE_LOST"


class CorruptData(Error, ValueError):
    """Serialised bytes or a tune file are damaged."""

    status = "TESS_ERROR_CORRUPT"


class NativeError(Error, RuntimeError):
    """A driver or a system call failed."""

    status = "TESS_ERROR_NATIVE"


# By the numbers of tess_status.
BY_STATUS: tuple[type[Error], ...] = (
    Error,
    InvalidArgument,
    Unsupported,
    Unavailable,
    OutOfMemory,
    VersionMismatch,
    Busy,
    TimedOut,
    DeviceLost,
    CorruptData,
    NativeError,
)

# SPDX-License-Identifier: Apache-2.0
"""One runtime and one device of each id in this process. A child of fork() makes its own."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from . import _errors, _native

_lock = threading.RLock()
_runtime: ctypes.c_void_p | None = None
_devices: dict[str, Device] = {}
_after_fork: list[Callable[[], None]] = []


class Device:
    """An open device. It is never closed: plans of the whole process use it."""

    def __init__(self, name: str) -> None:
        self.handle = ctypes.c_void_p()
        self.name = name
        desc = _native.new(_native.DeviceDesc, id=name.encode())
        _native.call("tess_device_open", runtime(), ctypes.byref(desc), ctypes.byref(self.handle))
        self.memory = _native.HOST if name.startswith("cpu") else _native.POINTER


def runtime() -> ctypes.c_void_p:
    """The runtime, made on first use."""
    global _runtime
    with _lock:
        if _runtime is None:
            made = ctypes.c_void_p()
            _native.call("tess_runtime_create", None, ctypes.byref(made))
            _runtime = made
        return _runtime


def device(name: str) -> Device:
    """The device of an id such as "cpu" or "cuda:0", opened on first use."""
    found = _devices.get(name)
    if found is None:
        with _lock:
            found = _devices.get(name)
            if found is None:
                found = _devices[name] = Device(name)
    return found


def after_fork(function: Callable[[], None]) -> None:
    """Calls `function` in every child of fork(), before anything else of the package runs there."""
    _after_fork.append(function)


def _forget() -> None:
    # Handles of the parent are of no use here, and their locks may be held by threads that this
    # process does not have. The library allows releasing them; the memory goes with the process.
    global _lock, _runtime
    _lock = threading.RLock()
    _runtime = None
    _devices.clear()
    for function in _after_fork:
        function()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _each(name: str, structure: Any, handle: ctypes.c_void_p) -> list[Any]:
    """The infos of a function that takes an index, until it says that there are no more."""
    found: list[Any] = []
    while True:
        info = _native.new(structure)
        try:
            _native.call(name, handle, len(found), ctypes.byref(info))
        except _errors.InvalidArgument:
            return found
        found.append(info)


def info(file: TextIO | None = None) -> None:
    """Prints which library is used, what devices and backends there are, and the settings.

    file: where to, standard output by default.
    """
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"info: file: an open text file is needed, got {file!r}")
    version = int(_native.library().tess_version())
    lines = [
        f"Tessera {version // 1000000}.{version // 1000 % 1000}.{version % 1000}",
        f"library: {_native.path()}",
    ]
    told = pathlib.Path(_native.path()).parent / "device_code.txt"
    if told.exists():  # beside the library of a wheel
        lines.append(f"device code: {told.read_text().strip()}")
    lines.append("backends:")
    for backend in _each("tess_runtime_backend", _native.BackendInfo, runtime()):
        count = f"{backend.device_count} device{'s' if backend.device_count != 1 else ''}"
        state = count if backend.status == 0 else backend.reason.decode(errors="replace")
        lines.append(f"  {backend.name.decode():8} {state}")
    lines.append("devices:")
    for found in _each("tess_runtime_device", _native.DeviceInfo, runtime()):
        lines.append(f"  {found.id.decode():8} {found.name.decode()} ({found.arch.decode()})")
    lines.append("settings:")
    for setting in _each("tess_runtime_setting", _native.SettingInfo, runtime()):
        value = setting.value.decode(errors="replace") or "unset"
        lines.append(f"  {setting.name.decode():22} {value} ({setting.source.decode()})")
    print("\n".join(lines), file=file or sys.stdout)

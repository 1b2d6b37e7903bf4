# SPDX-License-Identifier: Apache-2.0
"""The table of structures against the header: a C program prints sizes and offsets."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

from tessera import _errors, _native

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"


def _program() -> str:
    lines = ["#include <stdio.h>", "#include <tessera/tessera.h>", "int main(void) {"]
    for name, structure in _native.STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in structure._fields_:
            size = f"sizeof((({name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), {size});')
    values = {
        "TESS_PATTERN_BLOCKS": _native.BLOCKS,
        "TESS_PATTERN_S2": _native.S2,
        "TESS_PATTERN_WINDOW": _native.WINDOW,
        "TESS_PATTERN_HOMOGENEOUS": _native.HOMOGENEOUS,
        "TESS_PATTERN_PER_KV_HEAD": _native.PER_KV_HEAD,
        "TESS_PATTERN_BIDIRECTIONAL": _native.BIDIRECTIONAL,
        "TESS_OP_BACKWARD": _native.BACKWARD,
        "TESS_BF16": _native.BF16,
        "TESS_F16": _native.F16,
        "TESS_F8E4M3": _native.F8E4M3,
        "TESS_I8": _native.I8,
        "TESS_PLAN_DEVICE_LENGTHS": _native.DEVICE_LENGTHS,
        "TESS_PLAN_COMPACT": _native.COMPACT,
        "TESS_PLAN_APPEND": _native.APPEND,
        "TESS_BUFFER_HOST": _native.HOST,
        "TESS_BUFFER_POINTER": _native.POINTER,
        "TESS_STREAM_SUBMIT": _native.SUBMIT,
        "TESS_VERSION_NUMBER / 1000": _native.VERSION[0] * 1000 + _native.VERSION[1],
    }
    values |= {kind.status: n for n, kind in enumerate(_errors.BY_STATUS) if n}
    for name, value in values.items():
        lines.append(f'printf("value {name} %d %d\\n", (int)({name}), {value});')
    return "\n".join([*lines, "return 0; }"])


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(not INCLUDE.is_dir(), reason="the header is not here")
def test_structures_are_those_of_the_header(tmp_path: pathlib.Path) -> None:
    source, program = tmp_path / "print.c", tmp_path / "print"
    source.write_text(_program())
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    expected, found = [], []
    for line in printed.splitlines():
        if line.startswith("value "):
            *name, c_value, ours = line.split()
            assert c_value == ours, " ".join(name)
            continue
        expected.append(line)
    for name, structure in _native.STRUCTURES.items():
        found.append(f"{name} {_native.ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            found.append(f"{name}.{field} {place.offset} {place.size}")
    assert found == expected


def test_the_table_has_all_structures_of_the_header() -> None:
    if not INCLUDE.is_dir():
        pytest.skip("the header is not here")
    text = "".join(
        (INCLUDE / "tessera" / name).read_text() for name in ("tessera.h", "tessera_serving.h")
    )
    words = [line.split() for line in text.splitlines() if line.startswith("typedef struct tess_")]
    declared = {line[2] for line in words if line[-1] == "{"}
    assert len(declared) > 15
    assert declared == set(_native.STRUCTURES)

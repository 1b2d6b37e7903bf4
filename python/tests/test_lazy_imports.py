# SPDX-License-Identifier: Apache-2.0
"""What importing the package, and its adapters, does not import."""

import subprocess
import sys

import pytest


def imported(statement, *names):
    """Which of the modules a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print([n for n in {names!r} if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


ADAPTERS = ("tessera.dkernel", "tessera.hf", "tessera.megatron")


def test_the_package_imports_no_models():
    assert imported("import tessera", "transformers", "megatron", *ADAPTERS) == "[]"


@pytest.mark.parametrize("name", ["tessera.dkernel", "tessera.hf"])
def test_adapters_import_no_models(name):
    pytest.importorskip("torch")
    assert imported(f"import {name}", "transformers", "megatron") == "[]"

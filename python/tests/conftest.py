# SPDX-License-Identifier: Apache-2.0
"""Which library the tests use: the package's own, or the one that --library names."""

from __future__ import annotations

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--library", help="the libtessera.so to test, instead of the package's")


def pytest_configure(config: pytest.Config) -> None:
    import tessera

    tessera.load(config.getoption("--library"))


@pytest.fixture(params=[False, True], ids=["one", "apart"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths and tables of the host are those of the device, or, as on a GPU, copied to it."""
    monkeypatch.setattr("tessera._cache._apart", lambda device: request.param)

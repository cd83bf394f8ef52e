"""Fixtures of the interop tests: libzmq's side, and endpoints of the test's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.interop.libzmq import Libzmq

#: Gives an endpoint to bind, for `tcp` or `ipc`.
Fresh = Callable[[str], str]


@pytest.fixture
def libzmq() -> Iterator[Libzmq]:
    """A libzmq of the test's own; what it opened is closed at the end."""
    library = Libzmq()
    yield library
    library.close()


@pytest.fixture
def fresh() -> Iterator[Fresh]:
    """Endpoints: a port that the system picks, or an ipc path in a folder of the test's own."""
    # pytest's tmp_path can exceed the 107 bytes that a unix socket's path may have.
    folder = tempfile.mkdtemp(prefix="omq-")
    count = 0

    def endpoint(transport: str) -> str:
        nonlocal count
        count += 1
        return "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/{count}"

    yield endpoint
    shutil.rmtree(folder, ignore_errors=True)

"""A bus that tests have to themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from omq.goby import Daemon
from omq.goby.protobuf import TerminateRequest

#: Messages of each kind that has a scheme.
MESSAGES: list[Any] = ["text", "", "ü", {"a": [1, None, {"b": 1.5}]}, {}, TerminateRequest(target_pid=7)]


class Bus:
    """A gobyd in this process, and what portals are told to find it.

    Attributes:
        daemon: The gobyd.
        told: What portals are told.
    """

    def __init__(self, daemon: Daemon, told: dict[str, Any]) -> None:
        self.daemon = daemon
        self.told = told


Make = Callable[..., Bus]


@pytest.fixture(params=["ipc", "tcp"])
def bus(request: pytest.FixtureRequest, tmp_path: Path, free_port: int) -> Iterator[Make]:
    """Makes a gobyd, or the next one at the same place, on either transport."""
    with ExitStack() as stack:

        def made(**options: Any) -> Bus:
            told: dict[str, Any] = {"socket_name": tmp_path / "g"}
            if request.param == "tcp":
                told = {"transport": "tcp", "port": free_port}
                options.setdefault("host", "127.0.0.1")
            return Bus(stack.enter_context(Daemon(**told, **options)), told)

        yield made


@pytest.fixture
def told(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A bus over ipc that requires nobody; what portals are told to find it."""
    with Daemon(socket_name=tmp_path / "g"):
        yield {"socket_name": tmp_path / "g"}

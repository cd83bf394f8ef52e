"""The input of commands."""

from __future__ import annotations

import os
import select
from typing import Any

import pytest

from omq.cli.sockets import sources
from omq.cli.sockets.formats import Parts
from omq.cli.sockets.sources import UnbufferedInput, limited, repeated


def test_a_wait_is_in_pieces_between_which_handlers_of_signals_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes after the check for signals, and before the system call, does not interrupt that."""
    waits: list[float | None] = []

    class Poll:
        def register(self, file: Any, events: int) -> None:
            assert events == select.POLLIN

        def poll(self, timeout: float | None = None) -> list[Any]:
            waits.append(timeout)
            return ["ready"] * (len(waits) == 3)

    read, write = os.pipe()
    os.write(write, b"some")
    os.close(write)
    with monkeypatch.context() as patch, UnbufferedInput(read) as file:
        patch.setattr(select, "poll", Poll)
        assert file.read(4) == b"some"
    assert waits == [sources.SIGNAL_CHECK_MS] * 3


def test_bytes_are_read_as_they_arrive_and_the_end_is_empty() -> None:
    read, write = os.pipe()
    with UnbufferedInput(read) as file:
        os.write(write, b"some")
        assert file.read(100) == b"some"
        os.write(write, b"more")
        os.close(write)
        assert file.read(2) == b"mo"
        assert file.read(100) == b"re"
        assert file.read(100) == b""


@pytest.mark.parametrize(
    ("count", "found"),
    [(None, [[b"a", b"b"], [b"c"]]), (0, []), (1, [[b"a"]]), (2, [[b"a", b"b"]]), (3, [[b"a", b"b"], [b"c"]])],
)
def test_the_first_messages_are_taken(count: int | None, found: list[list[Parts]]) -> None:
    assert list(limited(iter([[b"a", b"b"], [b"c"]]), count)) == found


def test_messages_are_repeated_until_there_are_enough() -> None:
    assert list(limited(repeated([b"a", b"b"]), 3)) == [[b"a", b"b"], [b"a"]]

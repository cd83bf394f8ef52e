"""The messages that a command sends: an argument, files and directories, or standard input."""

from __future__ import annotations

import io
import itertools
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from omq.cli.sockets.formats import Format, InvalidMessage, Parts, RawFormat, parts_of

#: Lists of messages, as they arrive.
Batches = Iterator[list[Parts]]
SIGNAL_CHECK_MS: Final = 200


def messages_of(data: bytes, name: str, fmt: Format) -> list[Parts]:
    """Returns the messages in the value of an option.

    Raises:
        BadParameter: It is not valid in the format.
    """
    source = io.BytesIO(data)
    try:
        if isinstance(fmt, RawFormat) or not data:
            return [data]
        return [message for batch in fmt.decode(source) for message in batch]
    except InvalidMessage as fault:
        raise click.BadParameter(str(fault), param_hint=f"'{name}'") from None


class UnbufferedInput(io.FileIO):
    """A file without a buffer: a thread that reads it does not delay the end of the process.

    A signal that comes immediately before a read does not interrupt it. So `read` waits in pieces, between which Python
    runs the handlers of signals.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Waits for the next bytes, and returns them; empty at the end."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        while not poll.poll(SIGNAL_CHECK_MS):
            pass
        return super().read(size) or b""


def standard_input() -> BinaryIO:
    """Returns standard input.

    Raises:
        UsageError: It is closed.
    """
    if sys.stdin is None:
        raise click.UsageError("DATA or FILE is missing, and standard input is closed")
    try:
        return UnbufferedInput(sys.stdin.fileno(), closefd=False)
    except io.UnsupportedOperation:  # a test has replaced it
        return sys.stdin.buffer


def decoded(fmt: Format, source: BinaryIO, name: str) -> Batches:
    """Yields the messages of a file.

    Raises:
        ClickException: It cannot be read, or is not valid in the format.
    """
    try:
        yield from fmt.decode(source)
    except InvalidMessage as fault:
        raise click.ClickException(f"{name}: {fault}") from None


class Files:
    """Files, and the files below directories.

    Args:
        paths: The files and the directories.

    Attributes:
        total: The bytes of all files.

    Raises:
        OSError: A directory cannot be read.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [found for path in paths for found in _below(path)]  # each with its name in the tree
        self.total = sum(path.stat().st_size for path, _ in self._files)

    def batches(self, fmt: Format, show: Callable[[int, int], None], with_names: bool) -> Batches:
        """Yields the messages of the files.

        Args:
            fmt: Their format.
            show: Called with the bytes of finished messages, and the total.
            with_names: Each message begins with a part that has the name of its file.
        """
        finished = 0
        for path, name in self._files:
            with open(path, "rb") as file:
                for batch in decoded(fmt, file, str(path)):
                    yield [[name, *parts_of(one)] for one in batch] if with_names else batch
                    show(finished + file.tell(), max(self.total, 1))
            finished += path.stat().st_size


def _below(path: Path) -> list[tuple[Path, bytes]]:
    if not path.is_dir():
        return [(path, os.fsencode(path.name))]
    found = sorted(one for one in path.rglob("*") if one.is_file())
    return [(one, os.fsencode(one.relative_to(path))) for one in found]


def limited(batches: Batches, count: int | None) -> Batches:
    """Yields the first messages; `None` for all."""
    if count is None:
        yield from batches
        return
    for batch in batches if count else ():
        yield batch[:count]
        count -= min(count, len(batch))
        if not count:
            return


def repeated(messages: list[Parts]) -> Batches:
    """Yields the messages again and again."""
    return itertools.repeat(messages)


def one_by_one(batches: Batches) -> Iterator[Parts]:
    """Yields the messages of all batches."""
    return itertools.chain.from_iterable(batches)

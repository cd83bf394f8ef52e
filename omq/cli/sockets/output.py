"""Standard output of received messages."""

from __future__ import annotations

import sys

import click

from omq.cli.sockets.formats import Format, Parts


def is_terminal() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


class Output:
    """Prints messages.

    Args:
        fmt: Their format.
        quiet: True prints nothing.
    """

    def __init__(self, fmt: Format, quiet: bool = False) -> None:
        self._encode = fmt.encode
        self._quiet = quiet or sys.stdout is None

    def print(self, messages: list[Parts]) -> None:
        """Prints messages at once.

        Raises:
            BrokenPipeError: Standard output was closed.
            ClickException: It cannot be written.
        """
        if self._quiet:
            return
        try:
            sys.stdout.buffer.write(b"".join(map(self._encode, messages)))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as fault:
            raise click.ClickException(f"standard output: {fault.strerror or fault}") from None

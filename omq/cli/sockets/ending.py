"""The end of a command that sends."""

from __future__ import annotations

import time
from typing import Final

import click

import omq
from omq.errors import SendTimeout

#: Seconds that sent messages may take to leave after a signal.
SIGNAL_LINGER_S: Final = 1.0


def finish(socket: omq.Socket, interrupted: bool, timeout: float | None = None) -> None:
    """Waits until all messages have left, and closes the socket.

    Args:
        socket: The socket; its `linger` is the time that they have.
        interrupted: Whether a signal has ended the command: they have a second at most.
        timeout: Seconds in which something must leave, again and again; `None` for ever.

    Raises:
        ClickException: They have not left in time.
    """
    linger = socket.options.linger
    if interrupted:
        linger = SIGNAL_LINGER_S if linger is None else min(linger, SIGNAL_LINGER_S)
    try:
        _flush(socket, linger, timeout)
        socket.close(SIGNAL_LINGER_S)
    except (SendTimeout, KeyboardInterrupt):
        socket.stop()
        raise click.ClickException("messages that no peer has taken are lost") from None


def _flush(socket: omq.Socket, linger: float | None, timeout: float | None) -> None:
    """Flushes a socket; a slow peer has *timeout* seconds for the next bytes, not for all of them.

    Raises:
        SendTimeout: *linger* has passed.
        ClickException: *timeout* has passed.
    """
    end = None if linger is None else time.monotonic() + linger
    while True:
        left = None if end is None else max(end - time.monotonic(), 0.0)
        if timeout is None or (left is not None and left <= timeout):
            socket.flush(left)
            return
        before = socket.stats.sent_bytes
        try:
            socket.flush(timeout)
            return
        except SendTimeout:
            if socket.stats.sent_bytes == before:
                socket.stop()
                text = f"no peer has taken a message for {timeout:g} s (--timeout): those that wait are lost"
                raise click.ClickException(text) from None

"""The end of a command that sends."""

from __future__ import annotations

from typing import Final

import click

import omq
from omq.errors import SendTimeout

#: Seconds that sent messages may take to leave after a signal.
SIGNAL_LINGER_S: Final = 1.0


def finish(socket: omq.Socket, interrupted: bool) -> None:
    """Waits until all messages have left, and closes the socket.

    Args:
        socket: The socket; its `linger` is the time that they have.
        interrupted: Whether a signal has ended the command: they have a second at most.

    Raises:
        ClickException: They have not left in time.
    """
    linger = socket.options.linger
    if interrupted:
        linger = SIGNAL_LINGER_S if linger is None else min(linger, SIGNAL_LINGER_S)
    try:
        socket.flush(linger)
        socket.close(SIGNAL_LINGER_S)
    except (SendTimeout, KeyboardInterrupt):
        socket.stop()
        raise click.ClickException("messages that no peer has taken are lost") from None

"""The end of a command that sends."""

from __future__ import annotations

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
        timeout: Seconds that they have at most; `None` for ever.

    Raises:
        ClickException: They have not left in time.
    """
    limits = socket.options.linger, timeout, SIGNAL_LINGER_S if interrupted else None
    try:
        socket.flush(min((limit for limit in limits if limit is not None), default=None))
        socket.close(SIGNAL_LINGER_S)
    except (SendTimeout, KeyboardInterrupt):
        socket.stop()
        raise click.ClickException("messages that no peer has taken are lost") from None

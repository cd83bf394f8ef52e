from typing import Any

from omq.message import Peer

def snapshot(session: Any) -> Peer:
    """A peer that has finished its handshake, as users see it.

    Args:
        session: The engine's owner of the connection.
    """

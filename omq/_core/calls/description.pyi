from typing import Any

from omq.message import PeerInfo

def snapshot(session: Any) -> PeerInfo:
    """A peer that has finished its handshake, as users see it.

    Args:
        session: The engine's object for the connection.
    """

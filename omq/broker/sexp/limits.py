"""The limits of the S-expressions' listener and of its connections."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, sizes in bytes.

    Attributes:
        ping: Between two pings.
        handshake: Until a connection has said `Connect`.
        linger: For a peer to end its side after ours.
        closing: For answers to go out when the broker ends.
        unsent: Of messages of transient topics that wait for a slow subscriber.
        window: Of messages of kept topics that wait; the rest waits in the store.
        share: Of messages of round-robin topics that wait: what waits here is not given to others.
        publishing: Of messages that wait for the store; beyond, the connection is not read.
        answers: Of answers that wait for the client; beyond, the connection is not read.
    """

    ping: float = 25.0
    handshake: float = 30.0
    linger: float = 2.0
    closing: float = 2.0
    unsent: int = 64 << 20
    window: int = 256 << 10
    share: int = 64 << 10
    publishing: int = 8 << 20
    answers: int = 256 << 10

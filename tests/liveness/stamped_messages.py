"""The content of the messages of these tests: their sender, their number, and the time of sending."""

from __future__ import annotations

from struct import Struct

STAMP = Struct("<cHIq")  # BUSY or QUIET, the peer, the number, time.monotonic_ns(): one clock for all processes
BUSY, QUIET = b"B", b"Q"
SIZE = 50  # bytes of a busy peer's message
CYCLE = 4099  # a busy peer's numbers start again: a prime, so that no batch that is lost goes unseen


def busy_body(peer: int, number: int) -> bytes:
    """One message of a busy peer; its number is within the cycle."""
    return STAMP.pack(BUSY, peer, number, 0).ljust(SIZE, b".")

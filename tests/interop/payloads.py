"""Message contents: random, but the same in every run."""

from __future__ import annotations

from functools import cache
from random import Random

KIB, MIB = 1 << 10, 1 << 20


@cache
def octets(size: int, seed: int = 0) -> bytes:
    """Gives `size` bytes that depend on both arguments only."""
    return Random(f"{size}/{seed}").randbytes(size)


def parts(count: int, limit: int = 8 * KIB) -> list[bytes]:
    """Gives that many parts of 0 to `limit` bytes; the first is empty and the last is full."""
    sizes = [Random(count).randint(0, limit) for _ in range(count)]
    sizes[0], sizes[-1] = 0, limit
    return [octets(size, number) for number, size in enumerate(sizes)]


#: Every shape of message that a pair must carry: the edges of the short frame, of the copied and the
#: borrowed payload, and of the slab.
SHAPES: dict[str, list[bytes]] = {
    **{f"{size} bytes": [octets(size)] for size in (0, 1, 255, 256, 8191, 65536, MIB)},
    "2 parts": parts(2),
    "100 parts": parts(100),
}

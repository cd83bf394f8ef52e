"""Makes requests of what is published: bodies become records, and so many of these go out at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from omq._core.blocks import encode
from omq.broker.errors import TooLarge

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES: Final = 64 << 10  #: What is put into one request of many, about.
BLOCK_RECORDS: Final = 256  #: At most so many records.


def pack(bodies: Iterable[Buffer], limit: int) -> Iterator[tuple[bytes, int]]:
    """Makes records of bodies, and requests of records: what is in each, and how many.

    Raises:
        TooLarge: A body has more than *limit* bytes; what came before was given.
        TypeError: A body is none.
    """
    rest = iter(bodies)
    number = BLOCK_RECORDS // 4
    while some := list(islice(rest, number)):
        sizes = [check_body(body, limit) for body in some]
        total = sum(sizes)
        if total <= 2 * BLOCK_BYTES:
            yield encode(some), len(some)
        else:
            for start, stop in _cuts(sizes):
                yield encode(some[start:stop]), stop - start
        number = min(max(BLOCK_BYTES * len(some) // max(total, 1), 1), BLOCK_RECORDS)


def check_body(body: Buffer, limit: int) -> int:
    """The size of a body in bytes.

    Raises:
        TooLarge: It has more than *limit*.
        TypeError: It is none.
    """
    if isinstance(body, bytes):
        size = len(body)
    else:
        with memoryview(body) as view:
            size = view.nbytes
    if size > limit:
        raise TooLarge(f"a body of {size} bytes: the broker takes {limit} at most")
    return size


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where to cut bodies of these sizes; large ones stand alone."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > BLOCK_BYTES:
            yield start, index
            start, total = index, 0
        total += size
    yield start, len(sizes)

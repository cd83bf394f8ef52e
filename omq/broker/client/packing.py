"""Makes requests of what is published: bodies become records, and so many of these go out at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from omq._core.blocks import encode, encode_record
from omq.broker.client.checks import check_headers
from omq.broker.errors import TooLarge
from omq.broker.types import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES: Final = 64 << 10  #: What is put into one request of many, about.
BLOCK_RECORDS: Final = 256  #: At most so many records.


def pack(bodies: Iterable[Buffer | Record], limit: int) -> Iterator[tuple[bytes, int]]:
    """Makes records of bodies, and requests of records: what is in each, and how many.

    Raises:
        TooLarge: A body has more than *limit* bytes; what came before was given.
        TypeError: A body is none.
    """
    rest = iter(bodies)
    number = BLOCK_RECORDS // 4
    while some := list(islice(rest, number)):
        sizes = [_size(one, limit) for one in some]
        total = sum(sizes)
        if total <= 2 * BLOCK_BYTES:
            yield _encode(some), len(some)
        else:
            for start, stop in _cuts(sizes):
                yield _encode(some[start:stop]), stop - start
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


def _size(one: Buffer | Record, limit: int) -> int:
    """About the size of a record; raises as `check_body`."""
    if not isinstance(one, Record):
        return check_body(one, limit)
    check_headers(one.headers)
    beside = [one.key or b"", *(one.headers or {}).values()]
    return check_body(one.body, limit) + sum(memoryview(part).nbytes for part in beside)


def _encode(some: list[Buffer | Record]) -> bytes:
    """The records, one after the other."""
    try:
        return encode(some)  # type: ignore[arg-type]
    except TypeError:  # there is a Record among them, most likely
        each = (one if isinstance(one, Record) else Record(one) for one in some)
        return b"".join(encode_record(*one) for one in each)


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where to cut bodies of these sizes; large ones stand alone."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > BLOCK_BYTES:
            yield start, index
            start, total = index, 0
        total += size
    yield start, len(sizes)

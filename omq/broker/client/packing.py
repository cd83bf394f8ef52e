"""Makes requests of what is published: bodies become records, and so many of these go out at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from omq._core.blocks import encode, encode_record
from omq.broker.client.checks import check_headers
from omq.broker.client.request import Request
from omq.broker.errors import TooLarge
from omq.broker.types import Record, Records

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from omq.broker.client.client_core import ClientCore

BLOCK_BYTES: Final = 128 << 10  #: What is put into one request of many, about.
BLOCK_RECORDS: Final = 256  #: At most so many records.


def pack(
    bodies: Iterable[Buffer | Record | Records], limit: int, in_flight: int | None = None
) -> Iterator[tuple[bytes, int]]:
    """Makes records of bodies, and requests of records: what is in each, and how many.

    Args:
        bodies: The bodies; or `Records`, each a request of its own.
        limit: Bytes that a body may have.
        in_flight: How many records may wait for an answer; a request has a quarter of them at most. None: any number.

    Raises:
        TooLarge: A body has more than *limit* bytes; what came before was given.
        TypeError: A body is none, or there are `Records` and bodies.
    """
    rest: Iterator[Buffer | Record] = iter(bodies)  # type: ignore[arg-type]
    for first in rest:
        if isinstance(first, Records):
            yield from _encoded(first, rest)
            return
        rest = chain([first], rest)
        break
    most = BLOCK_RECORDS if in_flight is None else min(max(in_flight // 4, 1), BLOCK_RECORDS)
    number = min(BLOCK_RECORDS // 4, most)
    while some := list(islice(rest, number)):
        sizes = _sizes(some, limit)
        total = sum(sizes)
        if total <= 2 * BLOCK_BYTES:
            yield _encode(some), len(some)
        else:
            for start, stop in _cuts(sizes):
                yield _encode(some[start:stop]), stop - start
        number = min(max(BLOCK_BYTES * len(some) // max(total, 1), 1), most)


def _encoded(first: Records, rest: Iterator[object]) -> Iterator[tuple[bytes, int]]:
    """What is encoded already."""
    for one in chain([first], rest):
        if not isinstance(one, Records):
            raise TypeError(f"Records, and none among them of {type(one).__name__}, are expected")
        if one.count:
            yield one.data, one.count


def turn(
    core: ClientCore, size: int, count: int, asked: Collection[tuple[Request, int]], in_flight: int | None
) -> Callable[[], bool]:
    """What says whether one request of many more may be on its way.

    Args:
        core: Whose.
        size: Bytes of its records.
        count: How many they are.
        asked: The earlier ones, and how many records are in each.
        in_flight: How many records may wait for an answer; see `pack`.
    """
    has_turn = partial(core.has_turn, size)
    if in_flight is None:
        return has_turn
    room = max(in_flight - count, 0)
    return lambda: sum(some for request, some in asked if not request.done) <= room and has_turn()


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


def _sizes(some: list[Buffer | Record], limit: int) -> list[int]:
    """About the sizes of records; raises as `check_body`."""
    if set(map(type, some)) == {bytes}:  # as nearly always, and much sooner done
        sizes = list(map(len, some))  # type: ignore[arg-type]
        if max(sizes) <= limit:
            return sizes
    return [_size(one, limit) for one in some]


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

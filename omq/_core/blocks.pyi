"""Records and blocks: the codec of what the broker stores and sends.

The layout stands in docs/reference/broker-protocol.md.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from typing_extensions import Buffer

HEADER_SIZE: Final = 32
MAX_BODY: Final = 67_108_864
FASTEST: Final[str]

class BodyTooLarge(ValueError):
    """A record's body is above the limit."""

class Message:
    """One message of a topic.

    Attributes:
        id: Its number in the topic; 1 is the first.
        topic: The topic's name.
        body: Its content.
        key: Its key; `None` for none.
        headers: What the publisher said about it, by name; a new dict each time.
        timestamp: When the broker took it, in seconds since 1970.
    """

    def __init__(
        self,
        id: int,
        topic: str,
        body: bytes,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: float = 0.0,
    ) -> None: ...
    @property
    def id(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> dict[str, bytes]: ...
    @property
    def timestamp(self) -> float: ...

_Message = TypeVar("_Message", bound=Message)

def crc32c(data: Buffer, start: int = 0) -> int:
    """The CRC-32C of `data`; `start` is that of what came before."""

def crc32c_by_table(data: Buffer, start: int = 0) -> int:
    """The same without the processor's help, for machines that have none and for tests."""

def encode(bodies: Iterable[Buffer]) -> bytes:
    """The records of bodies without key and headers, one after the other."""

def encode_record(body: Buffer, key: bytes | None = None, headers: Mapping[str, Buffer] | None = None) -> bytes:
    """One record. `ValueError` for more than 65,535 headers, a name above 65,535 bytes, or 4 GiB in all."""

def header(first: int, count: int, timestamp_us: int, size: int) -> bytes:
    """The header of a block.

    Args:
        first: Id of its first record.
        count: Number of its records.
        timestamp_us: Microseconds since 1970.
        size: Bytes of its records.
    """

def read_header(data: Buffer) -> tuple[int, int, int, int]:
    """`first, count, timestamp_us, size` of the header at the beginning of `data`; `ValueError` where it is none."""

def check(records: Buffer, limit: int = MAX_BODY) -> int:
    """The number of records, once every field and checksum is found right.

    Args:
        records: Records, one after the other; nothing else.
        limit: The largest body allowed, in bytes.

    Raises:
        BodyTooLarge: A body is above the limit.
        ValueError: A record is not one; the text names it by its index.
    """

def named(records: bytes, head: bytes, first: int, count: int) -> bytes:
    """Records with one part more: a name each, which stands before the others.

    A record of one part has no key; the key of one of several says where each part ends (32 bits each, little-endian).

    Args:
        records: The records.
        head: What all names begin with.
        first: The number of the first one, as 12 hexadecimal digits its name's end; those behind it count up.
        count: How many records there are.

    Raises:
        ValueError: A record is damaged, is none of these, or there are not so many.
    """

def damaged(records: Buffer, count: int) -> list[tuple[int, int]]:
    """The index ranges `[start, stop)` of damaged records, out of `count`; empty where all are well."""

def slice(records: Buffer, start: int, stop: int) -> memoryview:
    """Records `[start, stop)`, by index, of well-formed records; a view, not a copy."""

def cuts(records: Buffer, target: int) -> list[tuple[int, int]]:
    """Where to cut well-formed records into pieces of at most `target` bytes; larger only where one record is.

    Each cut is `(bytes, records)`, counted from the beginning; the last one is the end.
    """

def decode(header: Buffer, records: Buffer, topic: str, kind: type[_Message] = ...) -> list[_Message]:
    """The messages of a block, checksums verified.

    Args:
        header: Its header.
        records: Its records.
        topic: The name that the messages carry.
        kind: `Message`, or a subclass; what a subclass adds is not set, and its `__init__` not called.

    Raises:
        ValueError: Something is not as it was written.
    """

"""A client of the ZMTP server, written from the protocol's page with libzmq's DEALER and without omq."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq

POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def u32(number: int) -> bytes:
    return struct.pack("!I", number)


def u64(number: int) -> bytes:
    return struct.pack("!Q", number)


def record(body: bytes, key: bytes | None = None, headers: dict[str, bytes] | None = None) -> bytes:
    """Encodes a record as on the page."""
    rest = bytes([(key is not None) | (headers is not None) << 1])
    if key is not None:
        rest += u32(len(key)) + key
    if headers is not None:
        rest += struct.pack("!H", len(headers))
        for name, value in headers.items():
            rest += struct.pack("!H", len(name.encode())) + name.encode() + u32(len(value)) + value
    rest += body
    return u32(len(rest) + 4) + u32(crc32c(rest)) + rest


def read_header(header: bytes) -> tuple[int, int, int, int]:
    """Returns count, first id, timestamp and size of a block, and checks the whole header."""
    assert len(header) == 32
    version, flags, zero, count, first, timestamp, size, checksum = struct.unpack("!BBHIQQII", header)
    assert (version, flags, zero) == (1, 0, 0)
    assert checksum == crc32c(header[:28])
    return count, first, timestamp, size


def read_block(header: bytes, records: bytes) -> list[tuple[int, bytes, bytes | None, dict[str, bytes]]]:
    """Returns id, body, key and headers of each message of a block."""
    count, first, _, size = read_header(header)
    assert size == len(records)
    found = []
    at = 0
    for id in range(first, first + count):
        length, checksum = struct.unpack_from("!II", records, at)
        rest = records[at + 8 : at + 4 + length]
        assert checksum == crc32c(rest)
        at += 4 + length
        flags, place = rest[0], 1
        key = None
        headers: dict[str, bytes] = {}
        if flags & 1:
            (length,) = struct.unpack_from("!I", rest, place)
            key, place = rest[place + 4 : place + 4 + length], place + 4 + length
        if flags & 2:
            (number,) = struct.unpack_from("!H", rest, place)
            place += 2
            for _ in range(number):
                (length,) = struct.unpack_from("!H", rest, place)
                name, place = rest[place + 2 : place + 2 + length].decode(), place + 2 + length
                (length,) = struct.unpack_from("!I", rest, place)
                headers[name], place = rest[place + 4 : place + 4 + length], place + 4 + length
        found.append((id, rest[place:], key, headers))
    assert at == size
    return found


class RawClient:
    """One connection.

    Args:
        endpoint: The broker's.
        hello: Sends HELLO first.
        options: Of the socket, as pyzmq names them.
    """

    def __init__(self, endpoint: str, *, hello: bool = True, client: str = "", **options: Any) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = 30_000  # a broker that recovers while other tests use both cores
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(endpoint)
        self._tag = 0
        self.others: list[list[bytes]] = []
        self.client = client or os.urandom(16).hex()
        if hello:
            self.welcome = json.loads(self.ask(b"HELLO", {"version": 1, "client": self.client})[0])

    def send(self, *parts: Any) -> None:
        """Sends a message; numbers become u64, dictionaries and lists JSON."""
        self.socket.send_multipart([_part(part) for part in parts])

    def next(self) -> list[bytes]:
        """Returns the next message that is not an answer."""
        return self.others.pop(0) if self.others else self.socket.recv_multipart()

    def answer(self, tag: bytes) -> list[bytes]:
        """Returns the next message with a tag; others wait for `next`."""
        for at, message in enumerate(self.others):
            if message[1] == tag:
                return self.others.pop(at)
        while True:
            message = self.socket.recv_multipart()
            if message[1] == tag:
                return message
            self.others.append(message)

    def ask(self, command: bytes, *parts: Any, expect: bytes = b"") -> list[bytes]:
        """Sends a request, and returns the parts after the tag of its answer."""
        self._tag += 1
        tag = b"q%d" % self._tag
        self.send(command, tag, *parts)
        name, _, *rest = self.answer(tag)
        assert name != b"ERROR" or expect == b"ERROR", rest
        assert not expect or name == expect, (name, rest)
        return rest

    def error(self, command: bytes, *parts: Any) -> str:
        """Sends a request that is refused, and returns the code of the error."""
        return self.ask(command, *parts, expect=b"ERROR")[0].decode()

    def create(self, name: str, **what: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(b"CREATE", {"name": name, **what}, expect=b"CREATED")[0])
        return found

    def append(self, topic: bytes, *records: bytes) -> int:
        return int.from_bytes(self.ask(b"APPEND", topic, b"".join(records), expect=b"PUBLISHED")[0], "big")

    def blocks(self, tag: bytes, number: int) -> list[tuple[int, bytes, bytes | None, dict[str, bytes]]]:
        """Returns the next messages of a subscription."""
        found: list[tuple[int, bytes, bytes | None, dict[str, bytes]]] = []
        while len(found) < number:
            name, _, header, records = self.answer(tag)
            assert name == b"BLOCK"
            found += read_block(header, records)
        return found

    def jobs(self, tag: bytes, number: int) -> list[tuple[int, bytes, int]]:
        """Returns the next messages of a consumer, with their delivery counts."""
        found: list[tuple[int, bytes, int]] = []
        while len(found) < number:
            name, _, header, records, counts = self.answer(tag)
            assert name == b"JOBS"
            messages = read_block(header, records)
            each = struct.unpack(f"!{len(counts) // 4}I", counts) or (1,) * len(messages)
            found += [(one[0], one[1], count) for one, count in zip(messages, each, strict=True)]
        return found

    def silent(self, seconds: float = 0.1) -> bool:
        """Returns whether no message arrives for a while."""
        return not self.others and not self.socket.poll(seconds * 1000)

    def close(self) -> None:
        self.socket.close(linger=0)


def _part(part: Any) -> bytes:
    if isinstance(part, int):
        return u64(part)
    if isinstance(part, dict | list):
        return json.dumps(part).encode()
    return part.encode() if isinstance(part, str) else part


@contextmanager
def raw(endpoint: str, **options: Any) -> Iterator[RawClient]:
    """Opens a connection, and closes it at the end."""
    client = RawClient(endpoint, **options)
    try:
        yield client
    finally:
        client.close()

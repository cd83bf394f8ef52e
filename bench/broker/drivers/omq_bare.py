"""omq's broker through a DEALER that speaks its protocol, with records encoded before, and without decoding."""

from __future__ import annotations

import json
import struct

import omq
from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob
from bench.broker.drivers.bare_client import slide_batches
from omq._core.blocks import encode, read_header

NAME = TOPIC.encode()
READ_BYTES = 4 << 20


class Client:
    """Publishes, consumes and replays."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._body, self._options = job.depth, job.body(), job.options
        self._records: dict[int, bytes] = {}
        self._in_flight: dict[bytes, int] = {}  # message counts by tag
        self._tag = 0
        self._socket = omq.DEALER(connect=job.endpoint, recv_timeout=ANSWER_TIMEOUT_S, send_timeout=ANSWER_TIMEOUT_S)

    def _ask(self, command: bytes, *parts: bytes, tag: bytes = b"asked") -> list[bytes]:
        self._socket.send_multipart([command, tag, *parts])
        return self._answer()

    def _answer(self) -> list[bytes]:
        parts = self._socket.recv_multipart()
        if parts[0] == b"ERROR":
            raise RuntimeError(repr(parts))
        return parts

    def create(self) -> None:
        wanted = {"name": TOPIC, "delivery": self._options.get("delivery", "broadcast")}
        wanted["persistence"] = self._options.get("persistence", "strong")
        self._ask(b"CREATE", json.dumps(wanted | {"settings": {}}).encode())

    def publish(self, count: int) -> None:
        slide_batches(count, self._depth, self._send, self._acknowledged)

    def trip(self) -> None:
        self._send(1)
        self._acknowledged()

    def _send(self, count: int) -> None:
        if count not in self._records:
            self._records[count] = encode([self._body] * count)
        self._tag += 1
        tag = b"%d" % self._tag
        self._in_flight[tag] = count
        self._socket.send_multipart([b"APPEND", tag, NAME, self._records[count]])

    def _acknowledged(self) -> int:
        return self._in_flight.pop(self._answer()[1])

    def arm(self) -> None:
        self._ask(b"HELLO", json.dumps({"version": 1, "client": "be" * 16}).encode())
        self._ask(b"CONSUME", NAME, json.dumps({"credit": self._depth}).encode(), tag=b"jobs")

    def consume(self, count: int) -> None:
        """Acknowledges each block with one range; the answer to `FLUSH` comes when all acknowledgements are durable."""
        while count > 0:
            _, some, first = self._block(self._answer())
            self._socket.send_multipart([b"ACK", b"jobs", struct.pack("!QQ", first, first + some - 1)])
            count -= some
        self._ask(b"FLUSH")

    @staticmethod
    def _block(parts: list[bytes]) -> tuple[int, int, int]:
        """Returns the size, the count and the first id of a block."""
        first, count, _, size = read_header(parts[2])
        assert len(parts[3]) == size
        return size, count, first

    def replay(self, count: int) -> None:
        """Sends READ from the beginning, one after the other."""
        at, taken = 1, 0
        while taken < count:
            asked = struct.pack("!Q", at), struct.pack("!Q", count + 1), struct.pack("!I", READ_BYTES)
            parts = self._ask(b"READ", NAME, *asked)
            taken += sum(read_header(header)[1] for header in parts[4::2])
            (at,) = struct.unpack("!Q", parts[2])

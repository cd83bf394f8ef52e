"""A quorum queue of RabbitMQ through a bare socket that speaks AMQP 0-9-1."""

from __future__ import annotations

import socket
import struct

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob
from bench.broker.drivers.bare_client import ReceiveBuffer, slide

FRAME = struct.Struct("!BHI")  # type, channel, size
METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
ACK = struct.Struct("!HHQB")
DELIVERED = (60, 60)
ACKNOWLEDGED, REFUSED = (60, 80), (60, 120)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Returns a frame."""
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def method(channel: int, of: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Returns the frame of a method."""
    return frame(METHOD, channel, struct.pack("!HH", *of) + arguments)


def short(text: str) -> bytes:
    """Returns a short string."""
    return bytes([len(text)]) + text.encode()


def long(text: bytes) -> bytes:
    """Returns a long string, or a table."""
    return struct.pack("!I", len(text)) + text


class Client:
    """Publishes and consumes; a quorum queue has no replay."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._size = job.depth, job.size
        self._socket = socket.create_connection(job.host, timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = ReceiveBuffer(self._socket)
        self._used = 0
        self._connect()
        body = job.body()
        publish = struct.pack("!H", 0) + short("") + short(TOPIC) + b"\0"
        properties = struct.pack("!HHQHB", 60, 0, len(body), 0x1000, 2)  # delivery mode 2: persistent
        self._message = method(1, (60, 40), publish) + frame(HEADER, 1, properties) + frame(BODY, 1, body)
        self._window = memoryview(self._message * job.depth)
        #: Acknowledgements may come out of order: the lowest missing tag, and the acknowledged ones above it.
        self._low, self._above = 1, set[int]()

    def _connect(self) -> None:
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._wait((10, 10))
        login = long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self._socket.sendall(method(0, (10, 11), login))
        tune = self._wait((10, 30))
        channels, size, _ = struct.unpack("!HIH", tune)
        opened = struct.pack("!HIH", channels, size, 0)  # no heartbeats
        self._socket.sendall(method(0, (10, 31), opened) + method(0, (10, 40), short("/") + b"\0\0"))
        self._wait((10, 41))
        self._socket.sendall(method(1, (20, 10), b"\0"))
        self._wait((20, 11))

    def _next(self) -> tuple[int, int, int]:
        """Waits for a frame; returns its type, and the start and the end of its payload."""
        while True:
            left = self._in.end - self._used
            if left >= FRAME.size:
                kind, _, size = FRAME.unpack_from(self._in.data, self._used)
                if left >= FRAME.size + size + 1:
                    start = self._used + FRAME.size
                    self._used = start + size + 1
                    return kind, start, start + size
            self._in.more(self._used)
            self._used = 0

    def _wait(self, wanted: tuple[int, int]) -> bytes:
        """Waits for a method, and returns its arguments."""
        while True:
            kind, start, end = self._next()
            if kind != METHOD:
                continue
            of = struct.unpack_from("!HH", self._in.data, start)
            if of == wanted:
                return bytes(self._in.data[start + 4 : end])
            if of in ((10, 50), (20, 40), REFUSED):
                raise RuntimeError(repr(bytes(self._in.data[start:end])))

    def create(self) -> None:
        table = long(short("x-queue-type") + b"S" + long(b"quorum"))
        self._socket.sendall(method(1, (50, 10), struct.pack("!H", 0) + short(TOPIC) + b"\x02" + table))
        self._wait((50, 11))
        self._socket.sendall(method(1, (85, 10), b"\0"))  # confirm.select
        self._wait((85, 11))

    def publish(self, count: int) -> None:
        each = len(self._message)
        slide(count, self._depth, lambda free: self._socket.sendall(self._window[: free * each]), self._acknowledged)

    def trip(self) -> None:
        self._socket.sendall(self._message)
        while not self._acknowledged():
            pass

    def _acknowledged(self) -> int:
        """Reads all acknowledgements that have arrived, at least one; returns their number."""
        before = self._low + len(self._above)
        while True:
            kind, start, end = self._next()
            if kind == METHOD:
                class_, number, tag, several = ACK.unpack_from(self._in.data, start)
                if (class_, number) != ACKNOWLEDGED:
                    raise RuntimeError(repr(bytes(self._in.data[start:end])))
                if several:
                    self._above = {above for above in self._above if above > tag}
                    self._low = max(self._low, tag + 1)
                else:
                    self._above.add(tag)
                while self._low in self._above:
                    self._above.remove(self._low)
                    self._low += 1
            if self._in.end == self._used:
                return self._low + len(self._above) - before

    def arm(self) -> None:
        self._socket.sendall(method(1, (60, 10), struct.pack("!IHB", 0, self._depth, 0)))
        self._wait((60, 11))
        self._socket.sendall(method(1, (60, 20), struct.pack("!H", 0) + short(TOPIC) + short("") + b"\0" + long(b"")))
        self._wait((60, 21))

    def consume(self, count: int) -> None:
        """Acknowledges all messages of a read with one `basic.ack`."""
        taken = 0
        tag = 0
        while taken < count:
            kind, start, _ = self._next()
            if kind == BODY:
                taken += 1
            elif kind == METHOD:
                if struct.unpack_from("!HH", self._in.data, start) != DELIVERED:
                    raise RuntimeError(repr(self._in.text()))
                at = start + 5 + self._in.data[start + 4]  # after the consumer's tag
                (tag,) = struct.unpack_from("!Q", self._in.data, at)
                continue
            else:
                continue
            # The rest of the read is less than a message.
            if taken == count or self._in.end - self._used < self._size:
                self._socket.sendall(method(1, (60, 80), struct.pack("!QB", tag, 1)))
        # An acknowledgement has no answer, but the declaration after it has.
        self._socket.sendall(method(1, (50, 10), struct.pack("!H", 0) + short(TOPIC) + b"\x01" + long(b"")))
        self._wait((50, 11))

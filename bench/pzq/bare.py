"""Producer and consumer on bare blocking sockets: ZMTP 3.1 with NULL, and no more of it than these frames need.

All messages have one size, and so have their answers and deliveries: what comes is counted in bytes, and looked at once
in a while. So it is the device that is measured, not its clients.
"""

from __future__ import annotations

import math
import select
import selectors
import socket
import struct
import time
from typing import Final, NamedTuple

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
ID: Final = b"%08d"
ANSWER: Final = 2 + 8 + 2 + 1 + 2  # bytes: id, 1, empty
TAKEN: Final = b"\1\x011\0\0"  # an answer's end
KEY: Final = 2 + 53
PATIENCE: Final = 60.0  # seconds
QUIET: Final = 1.0  # seconds


def frame(body: bytes, more: bool) -> bytes:
    """A frame on the wire."""
    if len(body) < 256:
        return bytes((more, len(body))) + body
    return struct.pack("!BQ", more | 2, len(body)) + body


def message(*parts: bytes) -> bytes:
    """A message on the wire."""
    return b"".join(frame(part, index < len(parts) - 1) for index, part in enumerate(parts))


class Bare:
    """A connection that has shaken hands."""

    def __init__(self, endpoint: str, kind: bytes) -> None:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(GREETING)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack("!I", len(kind)) + kind
        ready += b"\x08Identity" + struct.pack("!I", 0)
        self.socket.sendall(bytes((4, len(ready))) + ready)
        self.take(64)
        flags, size = self.take(2)
        assert flags == 4
        assert self.take(size).startswith(b"\x05READY")

    def take(self, size: int) -> bytes:
        """So many bytes."""
        taken = self.socket.recv(size)
        while len(taken) < size:  # the socket has a timeout, and so MSG_WAITALL does not wait
            more = self.socket.recv(size - len(taken))
            if not more:
                raise EOFError("the other side has hung up")
            taken += more
        return taken

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()


def produce(endpoint: str, count: int, size: int, window: int, batch: int) -> float:
    """Messages a second, with `window` of them waiting for their answers; `batch` go out in one call."""
    rate, lost = pipeline(endpoint, count, size, window, batch)
    assert not lost, lost
    return rate


def pipeline(
    endpoint: str, count: int, size: int, window: int, batch: int, *, lossy: bool = False
) -> tuple[float, int]:
    """Messages a second as `produce` says, and how many of them had no answer.

    Answers come in the messages' order: one tells that nothing waits before it any more, answered or not.

    Args:
        endpoint: The receive endpoint.
        count: Messages.
        size: Bytes of a body.
        window: How many may wait for their answers.
        batch: How many go out in one call.
        lossy: The last answers may be lost, too: where all is sent, a second without one ends it.

    Raises:
        TimeoutError: No answer has come for long.
    """
    producer = Bare(endpoint, b"DEALER")
    body = b"x" * size
    sent = [
        b"".join(message(ID % number, b"", body) for number in range(at, min(at + batch, count)))
        for at in range(0, count, batch)
    ]
    producer.socket.setblocking(False)
    waits = selectors.EVENT_READ | selectors.EVENT_WRITE
    with selectors.DefaultSelector() as selector:
        selector.register(producer.socket, waits)
        answered, got, at, out, began = 0, 0, 0, memoryview(b""), time.perf_counter()
        last, ended = b"", began
        while answered < count:
            may = at < len(sent) and at * batch - answered + batch <= window
            if not out and may:
                out, at = memoryview(sent[at]), at + 1
            over = lossy and not out and at == len(sent)
            if out:
                try:
                    out, ready = out[producer.socket.send(out) :], True
                except BlockingIOError:
                    selector.modify(producer.socket, waits)
                    ready = bool(selector.select(PATIENCE))
            else:
                selector.modify(producer.socket, selectors.EVENT_READ)
                ready = bool(selector.select(QUIET if over else PATIENCE))
            if not ready:
                if over and answered:
                    break
                raise TimeoutError(f"{answered} of {count} messages are answered, and no more")
            try:
                taken = producer.socket.recv(1 << 20)
            except BlockingIOError:
                continue
            if not taken:
                raise EOFError("the device has hung up")
            got += len(taken)
            last = (last + taken)[-2 * ANSWER :]
            if got >= ANSWER:
                end = len(last) - got % ANSWER
                assert last[end - len(TAKEN) : end] == TAKEN, last
                answered = int(last[end - ANSWER + 2 : end - len(TAKEN)]) + 1
                ended = time.perf_counter()
    producer.close()
    return answered / (ended - began), count - got // ANSWER


def ask(endpoint: str, count: int, size: int) -> float:
    """Messages a second, each of them once the one before is answered."""
    producer = Bare(endpoint, b"DEALER")
    body = b"x" * size
    sent = [message(ID % number, b"", body) for number in range(count)]
    began = time.perf_counter()
    for each in sent:
        producer.socket.sendall(each)
        producer.take(ANSWER)
    spent = time.perf_counter() - began
    producer.close()
    return count / spent


class Consumer:
    """Takes messages of one size and acknowledges each.

    Args:
        endpoint: The send endpoint.
        size: Bytes of a body.
        timeout: The device's `--ack-timeout`, in microseconds.
    """

    def __init__(self, endpoint: str, size: int, timeout: int) -> None:
        body = frame(b"x" * size, False)
        self._behind = b"\0\x011"  # the second frame of an acknowledgement
        self._length = KEY + 2 + 16 + 2 + len(str(timeout)) + 2 + len(body)
        self._body = body
        self._rest = b""
        self._bare = Bare(endpoint, b"ROUTER")
        self.key = b""  # of what came last

    def consume(self, count: int, until: float = math.inf) -> int:
        """Takes so many, or what comes until then, and says of each that it is done with it; how many these were."""
        taken = 0
        while taken < count and time.perf_counter() < until:
            taken += self._some()
        return taken

    def remaining(self, quiet: float, most: float) -> int:
        """Takes what comes until nothing has come for `quiet` seconds, for `most` of them; how many these were."""
        taken, until = 0, time.perf_counter() + most
        while time.perf_counter() < until and select.select([self._bare.socket], [], [], quiet)[0]:
            taken += self._some()
        return taken

    def _some(self) -> int:
        length, behind = self._length, self._behind
        came = self._bare.socket.recv(1 << 19)
        if not came:
            raise EOFError("the device has hung up")
        rest = self._rest + came
        whole = len(rest) // length
        if whole:
            acks = b"".join([rest[at : at + KEY] + behind for at in range(0, whole * length, length)])
            assert rest[length - len(self._body) : length] == self._body
            self.key = rest[2:KEY]
            rest = rest[whole * length :]
            self._bare.socket.sendall(acks)
        self._rest = rest
        return whole

    def close(self) -> None:
        """Hangs up."""
        self._bare.close()


def figure(endpoint: str, name: str) -> int:
    """A number that a device's monitor socket tells."""
    asking = Bare(endpoint, b"DEALER")
    asking.socket.sendall(message(b"MONITOR"))
    flags, size = asking.take(2)
    if (flags, size) == (1, 0):  # the original puts a delimiter before it
        flags, size = asking.take(2)
    assert flags == 0
    text = asking.take(size)
    asking.close()
    told = dict(line.split(": ", 1) for line in text.decode().splitlines())
    return int(told[name])


def messages_left(endpoint: str) -> int:
    """How many messages a device holds, as its monitor socket says."""
    return figure(endpoint, "messages")


class Drained(NamedTuple):
    """What came of consuming all: messages a second, how many are left, how many were taken, the last one's key."""

    rate: float
    left: int
    taken: int
    key: bytes


def drain(endpoints: dict[str, str], held: int, size: int, timeout: int, most: float = math.inf) -> Drained:
    """Consumes what a device holds, until its monitor says that nothing is left, for `most` seconds."""
    began = time.perf_counter()
    consumer = Consumer(endpoints["send"], size, timeout)
    taken = consumer.consume(held, began + most)
    until = min(began + most, time.perf_counter() + PATIENCE)
    while (left := messages_left(endpoints["monitor"])) and time.perf_counter() < until:
        taken += consumer.remaining(0.002, 0.05)
    spent = time.perf_counter() - began
    consumer.close()
    return Drained((held - left) / spent, left, taken, consumer.key)

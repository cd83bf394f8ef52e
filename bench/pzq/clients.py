"""Producer and consumer on bare blocking sockets: ZMTP 3.1 with NULL, without other frames than these.

All messages have one size, and so have their answers and deliveries: they are counted in bytes, and parsed once in a
while. So the device is measured, and not its clients.
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
ANSWER_BYTES: Final = 2 + 8 + 2 + 1 + 2  # id, 1, empty
ANSWER_END: Final = b"\1\x011\0\0"  # the end of an answer
KEY_BYTES: Final = 2 + 53
ANSWER_TIMEOUT_S: Final = 60.0
LAST_ANSWER_TIMEOUT_S: Final = 1.0


def frame(body: bytes, more: bool) -> bytes:
    """A frame on the wire."""
    if len(body) < 256:
        return bytes((more, len(body))) + body
    return struct.pack("!BQ", more | 2, len(body)) + body


def message(*parts: bytes) -> bytes:
    """A message on the wire."""
    return b"".join(frame(part, index < len(parts) - 1) for index, part in enumerate(parts))


def ready_command(kind: bytes, properties: bytes = b"") -> bytes:
    """Returns the READY command of a socket type, with more *properties*."""
    body = b"\x05READY\x0bSocket-Type" + struct.pack("!I", len(kind)) + kind + properties
    return bytes((4, len(body))) + body


class BareConnection:
    """A connection that has shaken hands."""

    def __init__(self, endpoint: str, kind: bytes) -> None:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(GREETING)
        self.socket.sendall(ready_command(kind, b"\x08Identity" + struct.pack("!I", 0)))
        self.take(64)
        flags, size = self.take(2)
        assert flags == 4
        assert self.take(size).startswith(b"\x05READY")

    def take(self, size: int) -> bytes:
        """Receives *size* bytes."""
        taken = self.socket.recv(size)
        while len(taken) < size:  # the socket has a timeout, and so MSG_WAITALL does not wait
            more = self.socket.recv(size - len(taken))
            if not more:
                raise EOFError("the other side has closed the connection")
            taken += more
        return taken

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()


def produce(endpoint: str, count: int, size: int, window: int, batch: int) -> float:
    """Returns the messages a second, with *window* of them in flight; *batch* leave in one call."""
    rate, lost = pipeline(endpoint, count, size, window, batch)
    assert not lost, lost
    return rate


def pipeline(
    endpoint: str, count: int, size: int, window: int, batch: int, *, lossy: bool = False
) -> tuple[float, int]:
    """Returns the messages a second like `produce`, and the number of messages without an answer.

    Answers come in the order of the messages: after one, no message before it is waited for, answered or not.

    Args:
        endpoint: The receive endpoint.
        count: Messages.
        size: Bytes of a body.
        window: Messages in flight at most.
        batch: Messages of one call.
        lossy: The last answers may be lost, too: a second without any ends the measurement once all is sent.

    Raises:
        TimeoutError: No answer has come in time.
    """
    producer = BareConnection(endpoint, b"DEALER")
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
                    ready = bool(selector.select(ANSWER_TIMEOUT_S))
            else:
                selector.modify(producer.socket, selectors.EVENT_READ)
                ready = bool(selector.select(LAST_ANSWER_TIMEOUT_S if over else ANSWER_TIMEOUT_S))
            if not ready:
                if over and answered:
                    break
                raise TimeoutError(f"{answered} of {count} messages are answered, and no more")
            try:
                taken = producer.socket.recv(1 << 20)
            except BlockingIOError:
                continue
            if not taken:
                raise EOFError("the device has closed the connection")
            got += len(taken)
            last = (last + taken)[-2 * ANSWER_BYTES :]
            if got >= ANSWER_BYTES:
                end = len(last) - got % ANSWER_BYTES
                assert last[end - len(ANSWER_END) : end] == ANSWER_END, last
                answered = int(last[end - ANSWER_BYTES + 2 : end - len(ANSWER_END)]) + 1
                ended = time.perf_counter()
    producer.close()
    return answered / (ended - began), count - got // ANSWER_BYTES


def ask(endpoint: str, count: int, size: int) -> float:
    """Returns the messages a second if each is sent once the one before is answered."""
    producer = BareConnection(endpoint, b"DEALER")
    body = b"x" * size
    sent = [message(ID % number, b"", body) for number in range(count)]
    began = time.perf_counter()
    for each in sent:
        producer.socket.sendall(each)
        producer.take(ANSWER_BYTES)
    spent = time.perf_counter() - began
    producer.close()
    return count / spent


class BareConsumer:
    """Receives messages of one size and acknowledges each.

    Args:
        endpoint: The send endpoint.
        size: Bytes of a body.
        timeout: The device's `--ack-timeout`, in microseconds.
    """

    def __init__(self, endpoint: str, size: int, timeout: int) -> None:
        body = frame(b"x" * size, False)
        self._ack_tail = b"\0\x011"  # the second frame of an acknowledgement
        self._length = KEY_BYTES + 2 + 16 + 2 + len(str(timeout)) + 2 + len(body)
        self._body = body
        self._rest = b""
        self._bare = BareConnection(endpoint, b"ROUTER")
        self.key = b""  # of the last message

    def consume(self, count: int, until: float = math.inf) -> int:
        """Receives *count* messages, or those until a time, and acknowledges each; returns their number."""
        taken = 0
        while taken < count and time.perf_counter() < until:
            taken += self._receive_some()
        return taken

    def consume_rest(self, quiet: float, limit: float) -> int:
        """Receives until nothing has come for *quiet* seconds, for *limit* seconds at most; returns the number."""
        taken, until = 0, time.perf_counter() + limit
        while time.perf_counter() < until and select.select([self._bare.socket], [], [], quiet)[0]:
            taken += self._receive_some()
        return taken

    def _receive_some(self) -> int:
        length, ack_tail = self._length, self._ack_tail
        came = self._bare.socket.recv(1 << 19)
        if not came:
            raise EOFError("the device has closed the connection")
        rest = self._rest + came
        whole = len(rest) // length
        if whole:
            acks = b"".join([rest[at : at + KEY_BYTES] + ack_tail for at in range(0, whole * length, length)])
            assert rest[length - len(self._body) : length] == self._body
            self.key = rest[2:KEY_BYTES]
            rest = rest[whole * length :]
            self._bare.socket.sendall(acks)
        self._rest = rest
        return whole

    def close(self) -> None:
        """Closes the connection."""
        self._bare.close()


def monitor_number(endpoint: str, name: str) -> int:
    """Returns a number from the monitor socket of a device."""
    asking = BareConnection(endpoint, b"DEALER")
    asking.socket.sendall(message(b"MONITOR"))
    flags, size = asking.take(2)
    if (flags, size) == (1, 0):  # the original puts a delimiter before it
        flags, size = asking.take(2)
    assert flags == 0
    text = asking.take(size)
    asking.close()
    numbers = dict(line.split(": ", 1) for line in text.decode().splitlines())
    return int(numbers[name])


def messages_left(endpoint: str) -> int:
    """Returns the number of messages that a device holds, from its monitor socket."""
    return monitor_number(endpoint, "messages")


class DrainResult(NamedTuple):
    """The result of `drain`: messages a second, the number left, the number received, and the last key."""

    rate: float
    left: int
    taken: int
    key: bytes


def drain(endpoints: dict[str, str], held: int, size: int, timeout: int, limit: float = math.inf) -> DrainResult:
    """Consumes all messages of a device, until its monitor reports that none is left, for *limit* seconds at most."""
    began = time.perf_counter()
    consumer = BareConsumer(endpoints["send"], size, timeout)
    taken = consumer.consume(held, began + limit)
    until = min(began + limit, time.perf_counter() + ANSWER_TIMEOUT_S)
    while (left := messages_left(endpoints["monitor"])) and time.perf_counter() < until:
        taken += consumer.consume_rest(0.002, 0.05)
    spent = time.perf_counter() - began
    consumer.close()
    return DrainResult((held - left) / spent, left, taken, consumer.key)

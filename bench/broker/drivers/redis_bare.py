"""Redis Streams through a bare socket that speaks RESP 2."""

from __future__ import annotations

import re
import socket

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob
from bench.broker.drivers.bare_client import ReceiveBuffer, slide

ID = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n")
READ_ENTRIES = 1000  # of one XREAD


def command(*words: bytes) -> bytes:
    """Returns a command in RESP 2."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Client:
    """Publishes, consumes and replays."""

    def __init__(self, job: ClientJob) -> None:
        self._depth = job.depth
        self._socket = socket.create_connection(job.host, timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = ReceiveBuffer(self._socket)
        self._used = 0
        body = job.body()
        self._stream = TOPIC.encode()
        self._message = command(b"XADD", self._stream, b"*", b"d", body)
        self._window = memoryview(self._message * job.depth)
        #: After the id of an entry: its field and value.
        self._tail = b"*2\r\n$1\r\nd\r\n$%d\r\n" % len(body)
        self._left = len(self._tail) + len(body) + 2

    def _line(self) -> bytes:
        """Waits for an answer of one line, and returns it."""
        while True:
            at = self._in.data.find(b"\r\n", self._used, self._in.end)
            if at >= 0:
                line = bytes(self._in.data[self._used : at])
                self._used = at + 2
                if line.startswith(b"-"):
                    raise RuntimeError(line.decode())
                return line
            self._more()

    def _more(self) -> None:
        self._in.more(self._used)
        self._used = 0

    def create(self) -> None:
        self._socket.sendall(command(b"XGROUP", b"CREATE", self._stream, b"shared", b"0", b"MKSTREAM"))
        self._line()

    def publish(self, count: int) -> None:
        each = len(self._message)
        slide(count, self._depth, lambda free: self._socket.sendall(self._window[: free * each]), self._acknowledged)

    def trip(self) -> None:
        self._socket.sendall(self._message)
        while not self._acknowledged():
            pass

    def _acknowledged(self) -> int:
        # An answer is `$15`, a line end, the id, a line end.
        self._more()
        self._used = self._in.data.rfind(b"\r\n", 0, self._in.end) + 2
        ids = self._in.data.count(b"-", 0, self._used)
        if self._in.data.find(b"-ERR", 0, self._used) >= 0 or self._in.data.find(b"-MISCONF", 0, self._used) >= 0:
            raise RuntimeError(repr(self._in.text()))
        # A line end in the middle of an answer does no harm: an id counts once its line is complete.
        return ids

    def arm(self) -> None: ...

    def _read_command(self, count: int) -> bytes:
        words = (b"XREADGROUP", b"GROUP", b"shared", b"me", b"COUNT", b"%d" % count, b"BLOCK", b"1000")
        return command(*words, b"STREAMS", self._stream, b">")

    def consume(self, count: int) -> None:
        """Reads half a window at a time, with two reads in flight; one XACK acknowledges all entries of a read."""
        batch = max(1, self._depth // 2)
        taken = acknowledged = in_flight = 0
        waiting: list[int] = []  # expected answers, in order: the entries of a read, or 0 of an XACK
        request = b""
        while acknowledged < count:
            # Not more than the rest, so that the last read does not wait for messages that never come.
            while in_flight <= batch and (step := min(batch, count - taken - in_flight)) > 0:
                request += self._read_command(step)
                waiting.append(step)
                in_flight += step
            if request:
                self._socket.sendall(request)
            if (asked := waiting.pop(0)) == 0:
                acknowledged += int(self._line()[1:])
                request = b""
                continue
            ids = self._entries()
            in_flight -= asked
            taken += len(ids)
            request = command(b"XACK", self._stream, b"shared", *ids) if ids else b""
            waiting += [0] if ids else []

    def _entries(self) -> list[bytes]:
        """Waits for the answer of a read, and returns its ids."""
        if self._line() == b"*-1":
            return []
        for _ in range(3):  # *2, $5, the stream's name
            self._line()
        count = int(self._line()[1:])
        ids = []
        for _ in range(count):
            self._line()  # *2
            self._line()  # $15
            ids.append(self._line())
            while self._in.end - self._used < self._left:
                self._more()
            self._used += self._left
        return ids

    def replay(self, count: int) -> None:
        """Sends XREAD from the beginning, each after the last id of the answer before."""
        last, taken = b"0-0", 0
        marker = self._tail
        while taken < count:
            self._socket.sendall(command(b"XREAD", b"COUNT", b"%d" % READ_ENTRIES, b"STREAMS", self._stream, last))
            if self._line() == b"*-1":
                raise RuntimeError(f"the stream has only {taken} entries")
            for _ in range(3):
                self._line()
            wanted = int(self._line()[1:])
            found, scanned = 0, self._used
            while True:
                found += self._in.data.count(marker, scanned, self._in.end)
                at = self._in.data.rfind(marker, scanned, self._in.end)
                if at >= 0:
                    scanned = at + len(marker)
                if found == wanted and at >= 0 and at + self._left <= self._in.end:
                    break
                if at >= 0 and found == wanted:
                    found, scanned = found - 1, at  # its body has not arrived
                before = self._used
                self._more()
                scanned -= before
            last = ID.findall(self._in.data, max(0, at - 60), at)[-1]
            self._used = at + self._left
            taken += found

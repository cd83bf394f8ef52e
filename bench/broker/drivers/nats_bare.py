"""NATS JetStream through a bare socket: its client protocol, and JetStream's API in JSON."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.broker.drivers import ANSWER_TIMEOUT_S, TOPIC, ClientJob
from bench.broker.drivers.bare_client import ReceiveBuffer, slide

INBOX = "_INBOX.bench"
DELIVERED = re.compile(rb"MSG \S+ \S+ (\$JS\.ACK\S+) [\d ]+\r\n")  # HMSG, too: two sizes
FLOW = re.compile(rb"(\$JS\.FC\.\S+)[ \r]")
MAX_LINE_BYTES = 300  # of the line before a message's body


class Client:
    """Publishes, consumes and replays."""

    settings: ClassVar[Mapping[str, bool]] = {}  # of the stream

    def __init__(self, job: ClientJob) -> None:
        self._depth = job.depth
        self._socket = socket.create_connection(job.host, timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = ReceiveBuffer(self._socket)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self._socket.sendall(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
        self._used = self._line(b"PONG\r\n")
        # 1 for answers of the API, 2 for acknowledgements, 3 for deliveries.
        self._socket.sendall(b"SUB %b.api 1\r\nSUB %b.ack 2\r\n" % ((INBOX.encode(),) * 2))
        body = job.body()
        self._message = b"PUB %b %b.ack %d\r\n%b\r\n" % (TOPIC.encode(), INBOX.encode(), len(body), body)
        self._window = memoryview(self._message * job.depth)

    def _line(self, wanted: bytes) -> int:
        while (at := self._in.data.find(wanted, 0, self._in.end)) < 0:
            if self._in.data.find(b"-ERR", 0, self._in.end) >= 0:
                raise ConnectionError(repr(self._in.text()))
            self._in.more()
        return at + len(wanted)

    def _ask(self, subject: str, **request: Any) -> dict[str, Any]:
        body = json.dumps(request).encode()
        self._socket.sendall(
            b"PUB $JS.API.%b %b.api %d\r\n%b\r\n" % (subject.encode(), INBOX.encode(), len(body), body)
        )
        while True:
            self._in.more(self._used)
            self._used = 0
            answer = re.search(rb"MSG \S+ 1 \d+\r\n(.*)\r\n", memoryview(self._in.data)[: self._in.end])
            if answer:
                self._used = answer.end()
                found: dict[str, Any] = json.loads(answer[1])
                if "error" in found:
                    raise RuntimeError(str(found["error"]))
                return found

    def create(self) -> None:
        self._ask(
            f"STREAM.CREATE.{TOPIC}", name=TOPIC, subjects=[TOPIC], storage="file", retention="limits", **self.settings
        )
        settings = {"durable_name": "shared", "ack_policy": "explicit", "deliver_policy": "all"}
        self._ask(
            f"CONSUMER.DURABLE.CREATE.{TOPIC}.shared",
            stream_name=TOPIC,
            config={**settings, "max_ack_pending": self._depth},
        )

    def publish(self, count: int) -> None:
        each = len(self._message)
        slide(count, self._depth, lambda free: self._socket.sendall(self._window[: free * each]), self._acknowledged)

    def trip(self) -> None:
        self._socket.sendall(self._message)
        while not self._acknowledged():
            pass

    def _acknowledged(self) -> int:
        self._in.more(self._used)
        data, end = self._in.data, self._in.end
        self._used = data.rfind(b"\r\n", 0, end) + 2 if end else 0
        if data.find(b'"error"', 0, end) >= 0 or data.find(b"-ERR", 0, end) >= 0:
            raise RuntimeError(repr(self._in.text()))
        self._answer_ping()
        return data.count(b'"seq":', 0, self._used)

    def _answer_ping(self) -> None:
        if self._in.data.find(b"PING\r\n", 0, self._in.end) >= 0:
            self._socket.sendall(b"PONG\r\n")

    def arm(self) -> None:
        self._socket.sendall(b"SUB %b.jobs 3\r\n" % INBOX.encode())

    def _pull(self, count: int) -> None:
        request = json.dumps({"batch": count, "expires": int(ANSWER_TIMEOUT_S * 1e9)}).encode()
        next_ = f"$JS.API.CONSUMER.MSG.NEXT.{TOPIC}.shared {INBOX}.jobs {len(request)}"
        self._socket.sendall(b"%b\r\n%b\r\n" % (b"PUB " + next_.encode(), request))

    def consume(self, count: int) -> None:
        """Pulls with two requests in flight, each for half of the window."""
        batch = max(1, self._depth // 2)
        asked = taken = 0
        last = b""
        while taken < count:
            while asked < count and asked - taken <= batch:
                step = min(batch, count - asked)
                self._pull(step)
                asked += step
            self._in.more(self._used)
            self._used = 0
            replies = []
            for found in DELIVERED.finditer(memoryview(self._in.data)[: self._in.end]):
                replies.append(found[1])
                self._used = found.end()
            self._used = max(self._used, self._in.end - MAX_LINE_BYTES)
            taken += len(replies)
            if not replies:
                continue
            if taken >= count:
                last = replies.pop()
            self._socket.sendall(b"".join([b"PUB %b 0\r\n\r\n" % reply for reply in replies]))
            self._answer_ping()
        # The last acknowledgement asks for an answer, which comes when it is processed.
        self._socket.sendall(b"PUB %b %b.ack 0\r\n\r\n" % (last, INBOX.encode()))
        while self._in.data.find(b"MSG %b.ack 2 " % INBOX.encode(), self._used, self._in.end) < 0:
            self._in.more(self._used)
            self._used = 0
        self._used = self._in.end

    def replay(self, count: int) -> None:
        """Reads with an ordered push consumer with flow control, as the official clients do."""
        inbox = f"{INBOX}.{id(object())}"
        self._socket.sendall(f"SUB {inbox} 4\r\n".encode())
        settings = {"ack_policy": "none", "deliver_policy": "all", "max_deliver": 1, "mem_storage": True}
        flow = {"deliver_subject": inbox, "flow_control": True, "idle_heartbeat": int(5e9)}
        # Deliveries may come before the answer: both are searched in one stream.
        request = json.dumps({"stream_name": TOPIC, "config": {**settings, **flow}}).encode()
        head = f"PUB $JS.API.CONSUMER.CREATE.{TOPIC} {INBOX}.api {len(request)}"
        self._socket.sendall(b"%b\r\n%b\r\n" % (head.encode(), request))
        taken = 0
        while taken < count:
            self._in.more(self._used)
            data, end = self._in.data, self._in.end
            self._used = data.rfind(b"\r\n", 0, end) + 2
            taken += data.count(b" $JS.ACK.", 0, self._used)
            if data.find(b"$JS.FC.", 0, self._used) >= 0:
                asked = FLOW.findall(data, 0, self._used)
                self._socket.sendall(b"".join([b"PUB %b 0\r\n\r\n" % subject for subject in asked]))
            if data.find(b"error", 0, self._used) >= 0:
                raise RuntimeError(repr(self._in.text()))
            self._answer_ping()
        self._socket.sendall(b"UNSUB 4\r\n")
        self._used = self._in.end

"""NATS JetStream through a bare socket, which publishes in atomic batches: one acknowledgement for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count as counting
from typing import ClassVar

from bench.broker.drivers import TOPIC, ClientJob, nats_bare
from bench.broker.drivers.bare_client import slide_batches
from bench.broker.drivers.nats_bare import INBOX

BATCH_ID_PLACE = b"#########"  # for the id of a batch in messages that are encoded before
COMMITTED = re.compile(rb'"count":(\d+)')


class Client(nats_bare.Client):
    """The client of `nats_bare` with another `publish`."""

    settings: ClassVar[Mapping[str, bool]] = {"allow_atomic": True}

    def __init__(self, job: ClientJob) -> None:
        super().__init__(job)
        self._body = job.body()
        self._names = counting(1)
        self._templates: dict[int, bytes] = {}

    def publish(self, count: int) -> None:
        slide_batches(count, self._depth, self._send, self._batched)

    def _send(self, count: int) -> None:
        if count not in self._templates:
            self._templates[count] = b"".join([self._encoded(n, n == count) for n in range(1, count + 1)])
        self._socket.sendall(self._templates[count].replace(BATCH_ID_PLACE, b"%09d" % next(self._names)))

    def _encoded(self, number: int, last: bool) -> bytes:
        head = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (BATCH_ID_PLACE, number)
        head += b"Nats-Batch-Commit: 1\r\n\r\n" if last else b"\r\n"
        answer = b"%b.ack " % INBOX.encode() if last else b""
        sizes = (len(head), len(head) + len(self._body))
        return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (TOPIC.encode(), answer, *sizes, head, self._body)

    def _batched(self) -> int:
        """Waits for acknowledgements, and returns the number of messages that they cover."""
        self._in.more(self._used)
        data, end = self._in.data, self._in.end
        self._used = data.rfind(b"\r\n", 0, end) + 2
        if data.find(b'"error"', 0, end) >= 0 or data.find(b"-ERR", 0, end) >= 0:
            raise RuntimeError(repr(self._in.text()))
        self._answer_ping()
        return sum(int(found[1]) for found in COMMITTED.finditer(data, 0, self._used))

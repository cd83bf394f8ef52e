"""A worker of a consumer group, as a process that writes to a file what it gets and what is confirmed.

Each line has the time of the system's monotonic clock, which all processes share:

    got NANOSECONDS ID BODY
    confirmed NANOSECONDS ID...

A message is confirmed once a flush has returned in the session in which it was delivered and acknowledged. After a lost
connection another worker may have it by then, and gets it again.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Final

import omq
import omq.broker

TOPIC: Final = "feed"
TIMEOUT_S: Final = 60.0  # of a call, which waits for the next broker


def work(endpoint: str, path: Path, group: str, seed: int) -> None:
    """Works until the process is killed."""
    chance = random.Random(seed)
    with (
        open(path, "ab", buffering=0) as log,
        omq.broker.Client(endpoint, timeout=TIMEOUT_S) as client,
        client.consume(TOPIC, group=group, replay="earliest", credit=20) as consumer,
    ):
        acked: list[tuple[int, int]] = []
        while True:
            messages: list[omq.broker.Delivery] = []
            with contextlib.suppress(omq.ReceiveTimeout):
                messages = consumer.recv_many(16, timeout=0.02)
            now = time.monotonic_ns()
            log.write(b"".join(b"got %d %d %b\n" % (now, message.id, message.body) for message in messages))
            for message in messages:
                message.ack()
                acked.append((message.id, message.session))
            if acked and (not messages or chance.random() < 0.3):
                session = client._connection.core.session
                client.flush(timeout=TIMEOUT_S)
                if client._connection.core.session == session:
                    ids = [b" %d" % id for id, own in acked if own == session]
                    log.write(b"confirmed %d%b\n" % (time.monotonic_ns(), b"".join(ids)))
                acked.clear()


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))

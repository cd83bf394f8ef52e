"""The subscriber of `demo_broker.py`, a process of its own that reads a topic from the beginning to its end."""

import hashlib
import json
import sys
import threading
import time
from contextlib import suppress
from subprocess import PIPE
from typing import Any, Final, Self

from child_processes import Child, end_with_input
from omq.broker import Client

REPORT_INTERVAL_S: Final = 0.05


class ReplayProcess:
    """Starts the subscriber and reads its reports.

    Args:
        topic: The topic.
        end: The key of the last message.

    Attributes:
        received: Messages so far, also those that came twice.
        size: Their bytes.
        repeated: Messages whose id had come before.
        missing: Ids that were passed over.
        seconds: From the subscription to the last message.
        digest: SHA-256 of all bodies in their order, once the last message has come.
        done: True once the last message has come.
    """

    def __init__(self, topic: str, end: bytes) -> None:
        self.received = self.size = self.repeated = self.missing = 0
        self.seconds = 0.0
        self.digest = ""
        self.done = False
        self._topic = topic
        self._end = end
        self._child: Child | None = None
        self._reader: threading.Thread | None = None

    def start(self, endpoint: str) -> None:
        """Subscribes."""
        self._child = Child("subscriber", __file__, endpoint, self._topic, self._end.decode(), stdout=PIPE)
        self._reader = threading.Thread(target=self._read, args=(self._child,), name="replay", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raises an error if the subscriber has failed.

        Raises:
            ChildError: It has.
        """
        if self._child is not None and self._child.status and not self.done:
            raise self._child.error(f"has ended with status {self._child.status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._child is not None:
            self._child.__exit__(*error)
        if self._reader is not None:
            self._reader.join()

    def _read(self, child: Child) -> None:
        with child.stdout as reports:
            for line in reports:
                # `done` comes last: a thread that sees it sees all the rest.
                for name, value in json.loads(line).items():
                    setattr(self, name, value)


def replay(endpoint: str, topic: str, end: bytes) -> None:
    """Reads a topic from the beginning to the message with the key *end*, and reports in lines of JSON."""
    digest = hashlib.sha256()
    received = size = repeated = missing = last = 0
    start = reported = time.monotonic()

    def report(*, done: bool = False) -> None:
        progress: dict[str, Any] = {"received": received, "size": size, "repeated": repeated, "missing": missing}
        progress |= {"seconds": time.monotonic() - start, "digest": digest.hexdigest() if done else "", "done": done}
        print(json.dumps(progress), flush=True)

    with suppress(BrokenPipeError), Client(endpoint) as client:
        with client.subscribe(topic, replay="earliest") as subscription:
            for message in subscription:
                if message.id <= last:
                    repeated += 1
                else:
                    missing += message.id - last - 1
                    last = message.id
                if message.key == end:
                    break
                received += 1
                size += len(message.body)
                digest.update(message.body)
                now = time.monotonic()
                if now > reported + REPORT_INTERVAL_S:
                    reported = now
                    report()
        report(done=True)


if __name__ == "__main__":
    end_with_input()
    replay(sys.argv[1], sys.argv[2], sys.argv[3].encode())

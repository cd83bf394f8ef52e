"""The publisher of `demo_broker.py`, a thread: it sends the blocks of files until the time is over."""

import hashlib
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, Self

from child_processes import ChildError
from file_blocks import FileSet, read_blocks
from omq.broker import Client
from omq.errors import OmqError

BATCH_MESSAGES: Final = 2000  # of one call
END: Final = b"end"  # the key of the last message
CALL_TIMEOUT_S: Final = 60.0  # the death of a broker and its restart are a part of it


class FeedPublisher:
    """Publishes blocks.

    Args:
        file_set: The files.
        topic: The topic.
        seconds: The time for publishing.
        limit: Bytes to publish at most.

    Attributes:
        block: Bytes of a message.
        published: Messages that the client has been given.
        acknowledged: Messages whose ids have come.
        size: Bytes that the client has been given.
        seconds: The time it took, once it is over.
        disordered: Calls whose ids do not follow those of the calls before.
        digest: SHA-256 of all bodies that were acknowledged, in their order, once it is over.
    """

    def __init__(self, file_set: FileSet, topic: str, seconds: float, limit: int) -> None:
        self.block = file_set.block
        self.published = self.acknowledged = self.size = self.disordered = 0
        self.seconds = 0.0
        self.digest = ""
        self._stock = file_set
        self._topic = topic
        self._time_limit = seconds
        self._limit = limit
        self._start = 0.0
        self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, endpoint: str) -> None:
        """Starts the thread."""
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(endpoint,), name="feed", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def elapsed(self) -> float:
        """Seconds since its start."""
        return self.seconds or (time.monotonic() - self._start if self._start else 0.0)

    def check(self) -> None:
        """Raises an error if it has failed.

        Raises:
            ChildError: It has.
        """
        if self._error is not None:
            raise ChildError(f"the feed has failed: {self._error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        # It ends by itself, or with the process if no broker answers.
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, endpoint: str) -> None:
        try:
            with Client(endpoint, timeout=CALL_TIMEOUT_S) as client:
                self._publish(client)
        except (OmqError, OSError) as error:
            self._error = error

    def _publish(self, client: Client) -> None:
        digest = hashlib.sha256()
        blocks = self._blocks()
        while not self._stopped and self.size < self._limit and self.elapsed < self._time_limit:
            bodies = list(islice(blocks, BATCH_MESSAGES))
            self.published += len(bodies)
            self.size += sum(map(len, bodies))
            ids = client.publish_many(self._topic, bodies)
            self.disordered += ids != list(range(self.acknowledged + 1, self.acknowledged + len(bodies) + 1))
            self.acknowledged += len(ids)
            for body in bodies:
                digest.update(body)
        self.digest = digest.hexdigest()
        self.seconds = time.monotonic() - self._start
        client.publish(self._topic, b"", key=END)

    def _blocks(self) -> Iterator[bytes]:
        """Yields the blocks of all files, over and over; passes over blocks that cannot be read any more."""
        while True:
            some = False
            for file in self._stock.files:
                for data in read_blocks(file, self._stock.block):
                    if data is not None:
                        some = True
                        yield data
            if not some:
                raise OSError("none of the files can be read any more")

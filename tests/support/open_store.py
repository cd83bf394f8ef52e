"""A store for tests, with calls that wait for writes."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from omq._core import blocks
from omq.store.errors import DamagedError
from omq.store.interface import Append, MakeTopic, Write
from omq.store.memory import MemoryStore

TIMEOUT_S = 30.0


class Opened:
    """A store with the results of its callbacks.

    Args:
        make: Creates the store, given its callbacks `notify` and `appended`.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._changed = threading.Condition()
        self.done: list[Write] = []
        self.grown: dict[int, int] = {}
        self.log = make(notify=self._notify, appended=self._appended)

    @classmethod
    def on_disk(cls, directory: Any, **options: Any) -> "Opened":
        from omq.store.lmdb.store import LmdbStore  # without lmdb its caller is skipped

        return cls(lambda **calls: LmdbStore(directory, **calls, **options))

    @classmethod
    def as_replica(cls, directory: Any, **options: Any) -> "Opened":
        from omq.store.lmdb.replica import LmdbReplica  # without lmdb its caller is skipped

        return cls(lambda **calls: LmdbReplica(directory, **calls, **options))

    @classmethod
    def in_memory(cls, **options: Any) -> "Opened":
        return cls(lambda **calls: MemoryStore(**calls, **options))

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *exc: object) -> None:
        self.log.close()

    def _notify(self, writes: list[Write]) -> None:
        with self._changed:
            self.done += writes
            self._changed.notify_all()

    def _appended(self, grown: dict[int, int]) -> None:
        with self._changed:
            self.grown.update(grown)
            self._changed.notify_all()

    def wait(self, writes: Iterable[Write]) -> None:
        """Waits until writes are finished."""
        with self._changed:
            for write in writes:
                assert self._changed.wait_for(lambda write=write: any(one is write for one in self.done), TIMEOUT_S)

    def wait_grown(self, topic: int, last: int) -> None:
        """Waits until an id of a topic can be read."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.grown.get(topic, 0) >= last, TIMEOUT_S)

    def try_(self, *writes: Write) -> None:
        """Submits writes together, and waits for them."""
        self.log.submit_many(writes)
        self.wait(writes)
        with self._changed:
            ours = set(map(id, writes))
            self.done = [one for one in self.done if id(one) not in ours]

    def do(self, write: Any) -> Any:
        """Applies one write and returns it; raises its error."""
        self.try_(write)
        if write.error is not None:
            raise write.error
        return write

    def make(self, name: str, delivery: str = "broadcast", persistence: str = "strong", **settings: Any) -> int:
        """Creates a topic; returns its id."""
        return self.do(MakeTopic(name, delivery, persistence, settings)).topic_id

    def append(
        self, topic: int, *bodies: bytes, producer: bytes = b"", sequence: int = 0, first_outstanding: int = 0
    ) -> Append:
        """Appends bodies."""
        return self.do(Append(topic, blocks.encode(bodies), len(bodies), producer, sequence, first_outstanding))

    def read(self, topic: int, start: int = 0, stop: int = 0) -> list[tuple[int, bytes]]:
        """Returns ids and bodies."""
        found = []
        with self.log.read(topic) as reader:
            for header, records in reader.blocks(start or reader.first, stop):
                found += [(message.id, message.body) for message in blocks.decode(header, records, "t")]
        return found

    def read_around(self, topic: int) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
        """Returns the readable messages, and the damaged ranges."""
        found, damaged = [], []
        start = self.log.topic(topic).first
        while True:
            try:
                with self.log.read(topic) as reader:
                    for header, records in reader.blocks(start):
                        found += [(message.id, message.body) for message in blocks.decode(header, records, "t")]
                return found, damaged
            except DamagedError as error:
                damaged.append((error.first, error.last))
                start = error.last + 1

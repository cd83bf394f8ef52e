"""Reads dead letters to move them back to the topics that they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from omq._core import blocks
from omq.broker.core.topic import Topic, TopicAdmission
from omq.broker.errors import BrokerError, StoreFull, broker_error
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import Store

#: The maximum number of dead letters of a batch.
MAX_BATCH: Final = 512
#: The maximum number of bytes of a batch; a single dead letter may have more.
MAX_BATCH_BYTES: Final = 1 << 20


class RequeueBatch:
    """The oldest dead letters of a topic, which are moved together.

    Args:
        dead: Their topic.
        up_to: The last id to move.
        target_of: Returns the topic to which a dead letter moves, or raises `BrokerError`.

    Attributes:
        moves: The id of each dead letter, and the id of the topic to which it moves.
        next: The id of the next dead letter; 0 if none is left.
    """

    def __init__(self, dead: Topic, up_to: int, target_of: Callable[[blocks.Message], Topic]) -> None:
        self.moves: list[tuple[int, int]] = []
        self.next = 0
        self._dead = dead
        self._up_to = up_to
        self._target_of = target_of
        self._size = 0
        self._admissions: dict[Topic, TopicAdmission | None] = {}
        self._reserved: dict[TopicAdmission, tuple[int, int]] = {}  # messages and bytes

    def read(self, store: Store) -> None:
        """Reads the dead letters, and reserves room for them in their topics.

        It ends before the first one that cannot be moved.

        Raises:
            BrokerError: That is the first one of the batch.
        """
        try:
            with store.read(self._dead.id) as reader:
                for header, records in reader.blocks(reader.first):
                    for message, size in _messages(header, records, MAX_BATCH + 1 - len(self.moves)):
                        self.next = message.id
                        if message.id > self._up_to or self._is_full(size):
                            return
                        self._add(message, size)
                self.next = 0
        except (BrokerError, StoreError) as error:
            if self.moves:
                self.next = max(self.next, self.moves[-1][0] + 1)
            elif isinstance(error, DamagedError) and error.first > self._up_to:
                self.next = error.first
            else:
                raise broker_error(error) from None

    def _is_full(self, size: int) -> bool:
        """Returns whether the batch has no room for a dead letter of this size."""
        return bool(self.moves) and (len(self.moves) >= MAX_BATCH or self._size + size > MAX_BATCH_BYTES)

    def _add(self, message: blocks.Message, size: int) -> None:
        target = self._target_of(message)
        if target not in self._admissions:
            self._admissions[target] = target.requeue_admission()
        admission = self._admissions[target]
        if admission is not None:
            if admission.has_waiting or not admission.reserve(1, size):
                raise StoreFull(f"topic {target.name!r} is full: no room for dead letter {message.id}")
            count, before = self._reserved.get(admission, (0, 0))
            self._reserved[admission] = count + 1, before + size
        self.moves.append((message.id, target.id))
        self._size += size

    def release(self) -> None:
        """Releases the reserved room, once the dead letters are moved or cannot be."""
        for admission, (count, size) in self._reserved.items():
            admission.release(count, size)
        self._reserved.clear()


def _messages(header: bytes, records: memoryview, limit: int) -> Iterator[tuple[blocks.Message, int]]:
    """Yields at most `limit` messages of a block, each with the bytes of its record."""
    first, count, when, _ = blocks.read_header(header)
    if count > limit:
        records = blocks.slice(records, 0, limit)
        header = blocks.header(first, limit, when, len(records))
    messages: list[blocks.Message] = blocks.decode(header, records, "")
    begin = 0
    for message, (end, _) in zip(messages, blocks.cuts(records, 1), strict=True):
        yield message, end - begin
        begin = end

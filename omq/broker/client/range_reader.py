"""What is asked of the broker to read a range of ids; no I/O."""

from __future__ import annotations

from typing import Final

from omq.broker import protocol
from omq.broker.client.client_core import ClientCore
from omq.broker.client.feeds import decoded
from omq.broker.client.packing import BLOCK_BYTES, BLOCK_RECORDS
from omq.broker.client.request import Request
from omq.broker.errors import Overrun
from omq.broker.protocol import u32, u64
from omq.broker.types import Message, TopicInfo

READ_BYTES: Final = 2 << 20  #: What one `READ` asks for.
MOST_BYTES: Final = 4 << 20  #: What one can get.


class RangeReader:
    """The requests of one `read`, one ahead of what is used.

    Args:
        core: The client.
        topic: The topic, as it is now.
        start: The first id; `None` for the oldest.
        stop: Behind the last id; `None` for the newest.
        limit: Messages at most; `None` for no bound.
        strict: What is no longer kept of the range is an error; else it is passed over.
        size: Bytes that one request asks for; `None`: as many as suit *limit*.
    """

    def __init__(
        self,
        core: ClientCore,
        topic: TopicInfo,
        start: int | None,
        stop: int | None,
        limit: int | None,
        *,
        strict: bool = False,
        size: int | None = None,
    ) -> None:
        self._strict = strict and start is not None
        self._at = start or 1  # the next id
        self._stop = topic.last + 1 if stop is None else stop
        self._refuse_gap(topic.name, topic.first)
        start = max(start or 1, topic.first)
        stop = topic.last + 1 if stop is None else min(stop, topic.last + 1)
        self._core = core
        self._topic = topic.name
        self._stop = stop
        self._left = limit
        usual = READ_BYTES if limit is None or limit > BLOCK_RECORDS else BLOCK_BYTES
        self._bytes = usual if size is None else size
        self.request: Request | None = None
        if start < stop and limit != 0:
            self._ask(start)

    def _refuse_gap(self, topic: str, first: int) -> None:
        """Raises where the next id is no longer kept."""
        if self._strict and self._at < min(first, self._stop):
            raise Overrun(f"topic {topic!r}: {self._at} is no longer kept, {first} is the oldest id that is", first)

    def _ask(self, start: int) -> None:
        parts = self._topic.encode(), u64(start), u64(self._stop), u32(self._bytes)
        self.request = self._core.request(protocol.READ, *parts)

    def blocks(self) -> list[bytes]:
        """Headers and records of the answer that has come; asks for what follows."""
        assert self.request is not None
        answer = self.request.result()
        self.request = None
        following = protocol.number(answer[0])
        self._refuse_gap(self._topic, protocol.number(answer[1]))
        self._at = following or self._stop
        if following and (self._left is None or self._left > 0):
            self._ask(following)
        return answer[2:]

    def messages(self, header: bytes, records: bytes) -> list[Message]:
        """The messages of one of the blocks; raises as `feeds.messages_of`."""
        found = decoded(header, records, self._topic, Message)
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        return found

    def close(self) -> None:
        """Nothing is read any more."""
        if self.request is not None:
            self._core.give_up(self.request)
            self.request = None

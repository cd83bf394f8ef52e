"""What is delivered to a connection of the ZMTP door, by tag: the sinks of its subscriptions and shares."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from omq.broker import protocol as p
from omq.broker.core.broadcast import Subscription
from omq.broker.core.share import Share
from omq.broker.core.topic import Topic
from omq.broker.errors import BrokerError


class Holder(Protocol):
    """The connection."""

    user: str | None
    peer: str
    tags: dict[bytes, Any]

    def put(self, parts: tuple[bytes | memoryview, ...]) -> None:
        """Sends a message."""

    def fail(self, tag: bytes, error: BrokerError) -> None:
        """Sends an error, which ends what its tag names."""

    def has_room(self) -> bool:
        """Whether its peer reads what it is sent."""


class Outgoing:
    """What is delivered under a tag: the sink of a subscription or a share."""

    door: Literal["zmtp", "sexp"] = "zmtp"

    def __init__(self, session: Holder, tag: bytes, topic: Topic) -> None:
        self.session = session
        self.tag = tag
        self.topic = topic
        self.user = session.user
        self.peer = session.peer
        self.started = False

    def ended(self, error: BrokerError | None) -> None:
        self.session.tags.pop(self.tag, None)
        if error is not None:
            self.session.fail(self.tag, error)

    def end(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def credit(self, more: int) -> None:
        raise NotImplementedError


class Reading(Outgoing):
    """A subscription's sink; its credit counts bytes."""

    subscription: Subscription

    def __init__(self, session: Holder, tag: bytes, topic: Topic, credit: int) -> None:
        super().__init__(session, tag, topic)
        self._credit = min(credit, p.MAX_CREDIT)

    def room(self) -> int:
        if not self.started or self._credit <= 0 or not self.session.has_room():
            return 0
        return self._credit

    def block(self, header: bytes, records: memoryview, counts: bytes) -> None:
        self._credit -= len(records)
        self.session.put((p.BLOCK, self.tag, header, records))

    def credit(self, more: int) -> None:
        # What a block took beyond the credit is owed: a client that gives back what it has used would else be sent more
        # and more ahead, by each block that exceeds what is left.
        self._credit = min(self._credit + more, p.MAX_CREDIT)
        self.subscription.more()

    def resume(self) -> None:
        self.subscription.more()

    def end(self) -> None:
        self.subscription.end()


class Working(Outgoing):
    """A share's sink; the core counts its credit, in messages."""

    share: Share

    def room(self) -> int:
        return 1 if self.started and self.session.has_room() else 0

    def block(self, header: bytes, records: memoryview, counts: bytes) -> None:
        self.session.put((p.JOBS, self.tag, header, records, counts))

    def credit(self, more: int) -> None:
        self.share.more(min(more, p.MAX_JOBS - min(self.share.credit, p.MAX_JOBS)))

    def resume(self) -> None:
        self.share.more(0)

    def end(self) -> None:
        self.share.end()

"""The streams that the broker delivers to a client by a tag, without I/O: subscriptions and consumers.

`omq.broker.client.client_protocol` has them.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet, ref

from omq._core.blocks import decode, read_header
from omq.broker import protocol
from omq.broker.errors import BrokerFailed
from omq.broker.protocol import u64
from omq.broker.types import Delivery, DeliveryConsumer, Message
from omq.errors import OmqError

CREDIT_BYTES: Final = 8 << 20  #: What a subscription lets the broker send ahead.

_MAX_ACK_BATCH: Final = 256  #: Acknowledgements in one message, at most.

#: A block that has arrived: header, records, counts, how many of the records are known already, and the first
#: connection whose ids are those of the block.
Block = tuple[bytes, bytes, bytes, int, int]

#: What was acknowledged: topic, its id, ids of messages.
Acked = tuple[str, int, list[int]]

_Message = TypeVar("_Message", bound=Message)


class LaterMessage(Message):
    """A message of a store that the broker had not when the subscription was made.

    Attributes:
        store: The first connection whose ids are those of this message.
    """

    __slots__ = ("store",)

    store: int


class StreamReader(Protocol):
    """A stream of either twin, which returns messages to callers."""

    def _take_undelivered(self) -> Iterable[Message]:
        """Removes and returns the decoded messages that no caller has received."""


class StreamState:
    """The deliveries under one tag: a subscription or a consumer.

    Attributes:
        topic: The topic's name.
        queue: Blocks that have arrived: header, records, counts, and how many of the records are known already.
        error: Why nothing follows; `None` where the holder ended it.
        ended: Whether nothing follows what is in the queue.
        wake: Called when something has come, or it has ended.
        reader: The stream that hands out what has come, as long as a caller has it.
        left: What a reader that is gone had not handed out.
        since: The first connection whose ids are those of now.
        topic_id: The topic's number; 0 before the broker has sent it.
    """

    command: bytes

    def __init__(self, tag: bytes, topic: str, credit: int) -> None:
        self.tag = tag
        self.topic = topic
        self.credit = credit
        self.queue: deque[Block] = deque()
        self.began = False
        self.in_force = False  # in this connection
        self.resumed = False
        self.ended = False
        self.error: OmqError | None = None
        self.wake: Callable[[], None] | None = None
        self.reader: ref[StreamReader] | None = None
        self.first_session = 0
        self.undelivered: Iterable[Message] = ()
        self.topic_id = 0
        _streams.add(self)

    @property
    def readable(self) -> bool:
        """Returns whether a reader need not wait."""
        return bool(self.queue) or self.ended

    def is_same_topic(self, answer: dict[str, Any]) -> bool:
        """Returns whether the topic that the broker has found is the one that this began with, and not a later one."""
        before, self.topic_id = self.topic_id, int(answer.get("topic_id", 0))
        return before in (0, self.topic_id)

    def begin(self) -> dict[str, Any]:
        """The argument of the request that begins it, or goes on with it."""
        raise NotImplementedError

    def handle_started(self, answer: dict[str, Any]) -> list[list[bytes]]:
        """Begins when the broker delivers. Returns what is to be sent."""
        raise NotImplementedError

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        """Takes a block in. Returns what is to be sent."""
        raise NotImplementedError

    def block_taken(self, records: bytes) -> list[bytes] | None:
        """Counts a block that has left the queue. Returns what is to be sent."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """The connection is lost."""
        self.in_force = False

    def start_over(self, position: int) -> bool:
        """Goes on after another id, because what follows is not kept. Returns whether something else was promised."""
        return False

    def renumber(self, session: int) -> None:
        """Starts over, because the broker has another store from this connection on, with other ids."""
        self.first_session = session
        self.topic_id = 0
        self.start_over(0)

    def discard(self) -> list[Message]:
        """Gives up what was not handed out; returns what its reader had."""
        self.queue.clear()
        reader = self.reader() if self.reader is not None else None
        return list(reader._take_undelivered()) if reader is not None else []

    def end(self, error: OmqError | None) -> None:
        """Ends the stream."""
        if not self.ended:
            self.ended, self.error, self.in_force = True, error, False
            self.notify()

    def notify(self) -> None:
        """Calls `wake`."""
        if self.wake is not None:
            self.wake()


_streams: WeakSet[StreamState] = WeakSet()


def _discard_all() -> None:
    for stream in list(_streams):
        stream.discard()


# Received messages are the parent's: in a forked child the next call finds none, and raises.
os.register_at_fork(after_in_child=_discard_all)


class SubscriptionState(StreamState):
    """A subscription.

    Attributes:
        last: The last id that has arrived.
        name: The name that the broker keeps a position under.
        position: Where that position is, as far as this side knows.
    """

    command = protocol.SUBSCRIBE

    def __init__(self, tag: bytes, topic: str, replay: str | int | None, name: str | None, credit: int) -> None:
        # The broker's own limit. With a larger credit here it would run out before this side returns any.
        super().__init__(tag, topic, min(credit, protocol.MAX_CREDIT_BYTES))
        # A caller that gives a start wants to begin there, where the name cannot go on.
        self.reset = replay is not None
        self.replay = "latest" if replay is None else replay
        self.name = name
        self.last = 0
        self.position = 0
        self._transient = False  # messages that are not read in time may be gone
        self._used_bytes = 0  # bytes of credit that were used up and not given back
        self._queued = 0  # bytes in the queue

    def begin(self) -> dict[str, Any]:
        self._used_bytes = 0
        credit = max(self.credit - self._queued, 1)
        # A name goes on where the broker has it. Where it has the name no more, nothing may be skipped by it.
        again = self.last if self.name is None else "earliest"
        argument = {"replay": again if self.began else self.replay, "name": self.name, "credit": credit}
        if self.reset and self.name is not None and not self.began:
            argument["reset"] = True  # where retention has overtaken the name, it starts over
        return argument

    def handle_started(self, answer: dict[str, Any]) -> list[list[bytes]]:
        self.in_force = True
        self._transient = answer.get("persistence") == "transient"
        if not self.began:
            self.began, self.last = True, int(answer["position"])
            self.position = self.last
        elif self.position > int(answer["position"]):
            return [[protocol.POSITION, self.tag, u64(self.position)]]  # it did not get there
        return []

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        first, count, _, size = read_header(header)
        last = first + count - 1
        known = max(self.last - first + 1, 0)
        if size != len(records) or not count:
            raise ValueError(f"a block of {count} records and {size} bytes came with {len(records)} bytes")
        if known >= count:  # the broker goes on where a name's position is, which may be further back
            return self._return_credit(len(records))
        self.last = last
        self.queue.append((header, records, b"", known, self.first_session))
        self._queued += len(records)
        self.notify()
        return None

    def block_taken(self, records: bytes) -> list[bytes] | None:
        self._queued -= len(records)
        return self._return_credit(len(records))

    def _return_credit(self, size: int) -> list[bytes] | None:
        self._used_bytes += size
        if not self.in_force or 4 * self._used_bytes < self.credit:
            return None
        size, self._used_bytes = self._used_bytes, 0
        return [protocol.CREDIT, self.tag, u64(size)]

    def start_over(self, position: int) -> bool:
        if not self.began or (position and (not self._transient or self.name is not None)):
            return False
        self.last = position
        if not position:
            self.position = 0  # it was one of other ids
        return True


class ConsumerState(StreamState):
    """A consumer of a round-robin topic."""

    command = protocol.CONSUME

    def __init__(self, tag: bytes, topic: str, ack_timeout: float, credit: int) -> None:
        super().__init__(tag, topic, min(credit, protocol.MAX_JOBS))
        self.ack_timeout = ack_timeout
        # Recent acknowledgements. The broker may redeliver such messages before it receives the ack, but no more of
        # them than the credit.
        self._recent_acks: OrderedDict[int, None] = OrderedDict()
        self.unsent_acks: list[int] = []  # acknowledged in this connection, and not sent
        self.unconfirmed: list[int] = []  # acknowledged, and not confirmed as durable by a flush
        self.ack_batch = max(1, min(self.credit // 4, _MAX_ACK_BATCH))  # what is sent at once

    def begin(self) -> dict[str, Any]:
        return {"ack_timeout": self.ack_timeout, "credit": self.credit}

    def handle_started(self, answer: dict[str, Any]) -> list[list[bytes]]:
        self.resumed, self.began, self.in_force = self.began, True, True
        return []

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        self.queue.append((header, records, counts, 0, self.first_session))
        self.notify()
        return None

    def block_taken(self, records: bytes) -> list[bytes] | None:
        return None

    def interrupt(self) -> None:
        super().interrupt()
        self.queue.clear()  # the broker has given it back
        self.unconfirmed += self.unsent_acks
        self.unsent_acks.clear()

    def remember(self, message_id: int, acked: bool) -> None:
        """Remembers what was acknowledged."""
        finished = self._recent_acks
        if not acked:
            finished.pop(message_id, None)
            return
        finished[message_id] = None
        if len(finished) > self.credit:
            finished.popitem(last=False)

    def start_over(self, position: int) -> bool:
        self._recent_acks.clear()  # those were other messages
        self.unconfirmed.clear()
        return False

    def may_be_redelivered(self, counts: bytes) -> bool:
        """Returns whether there may be anything in a block that was acknowledged."""
        return self.resumed or bool(counts)

    def take_unconfirmed(self) -> list[Acked]:
        """Returns the acknowledgements that may not be durable."""
        ids, self.unconfirmed = self.unconfirmed, []
        return [(self.topic, self.topic_id, ids)] if ids else []

    def undelivered_ids(self, session: int) -> list[int]:
        """Gives up what came in this connection and was not handed out; returns its ids."""
        found: list[int] = []
        for header, *_ in self.queue:
            first, count, *_ = read_header(header)
            found.extend(range(first, first + count))
        held = [one for one in [*self.discard(), *self.undelivered] if isinstance(one, Delivery)]
        found.extend(one.id for one in held if one.session == session)
        self.undelivered = ()
        return found

    def is_acked(self, message_id: int) -> bool:
        """Returns whether a message that comes again was acknowledged: in a lost connection, or after its time."""
        return message_id in self._recent_acks


def messages_of(stream: StreamState, block: Block) -> list[Message]:
    """Decodes the messages of a subscription's block that are new to it.

    Raises:
        BrokerFailed: The records are damaged.
    """
    header, records, _, known, store = block
    found: list[Message]
    if store:  # its ids may be those of messages of another store, which are acknowledged, too
        found = [*(later := decoded(header, records, stream.topic, LaterMessage))]
        for message in later:
            message.store = store
    else:
        found = decoded(header, records, stream.topic, Message)
    return found[known:] if known else found


def deliveries_of(stream: StreamState, block: Block, consumer: DeliveryConsumer, session: int) -> list[Delivery]:
    """Decodes a consumer's block; raises as `messages_of`."""
    header, records, counts, *_ = block
    found = decoded(header, records, stream.topic, Delivery)
    attempts = struct.unpack(f"!{len(found)}I", counts) if counts else repeat(1)
    for delivery, attempt in zip(found, attempts, strict=False):
        delivery.deliveries, delivery.consumer, delivery.session = attempt, consumer, session
    return found


def decoded(header: bytes, records: bytes, topic: str, kind: type[_Message]) -> list[_Message]:
    """Decodes a block; raises as `messages_of`."""
    try:
        return decode(header, records, topic, kind)
    except ValueError as error:
        raise BrokerFailed(f"{topic}: the broker sent records that are damaged: {error}") from error

"""The state of the streams that the broker delivers to a client, without I/O: subscriptions and consumers."""

from __future__ import annotations

import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakSet, ref

from omq._core.blocks import decode, read_header
from omq.broker import protocol
from omq.broker.errors import BrokerFailed
from omq.broker.protocol import u64
from omq.broker.start_time import StartTime
from omq.broker.types import Delivery, DeliveryConsumer, Message
from omq.errors import OmqError

CREDIT_BYTES: Final = 8 << 20  #: The default credit of a subscription.

_MAX_ACK_BATCH: Final = 256  #: The maximum number of acks in one message.

#: A received block: header, records, delivery counts (empty if all are 1), the number of its first records that had
#: arrived before, and `StreamState.first_session`.
Block = tuple[bytes, bytes, bytes, int, int]


class AckTarget(NamedTuple):
    """The work queue to which acknowledgements belong.

    Attributes:
        topic: The name of the topic.
        topic_id: Its id.
        group: The consumer group; empty in a round-robin topic.
        generation: The generation of the group; 0 in a round-robin topic.
    """

    topic: str
    topic_id: int
    group: str
    generation: int


#: Acknowledgements: the ids of messages of a work queue.
Acked = tuple[AckTarget, list[int]]

#: The start of a subscription: `"latest"`, `"earliest"`, an id or a time.
Replay = str | int | StartTime

_Message = TypeVar("_Message", bound=Message)


class LaterMessage(Message):
    """A message of a store that the broker did not have when the subscription began.

    Attributes:
        store: The `StreamState.first_session` of the store.
    """

    __slots__ = ("store",)

    store: int


def encode_replay(replay: Replay) -> str | int | dict[str, int]:
    """Returns a start as it stands in the JSON of a request."""
    return {"timestamp": replay.microseconds} if isinstance(replay, StartTime) else replay


class StreamReader(Protocol):
    """A stream of either twin, which returns messages to callers."""

    def _take_undelivered(self) -> Iterable[Message]:
        """Removes and returns the decoded messages that no caller has received."""


class StreamState:
    """The deliveries under one tag: a subscription or a consumer.

    Attributes:
        topic: The topic's name.
        queue: The received blocks that no caller has taken.
        began: True once the broker has confirmed the stream, in any connection.
        in_force: True while the broker has confirmed it in the present connection.
        resumed: True if the broker has confirmed it in more than one connection.
        ended: True if no block follows those in the queue.
        error: The reason of the end; `None` if the client ended the stream.
        wake: A function to call when a block has arrived, or the stream has ended; `None` for none.
        reader: A weak reference to the stream that returns the messages to callers.
        undelivered: The undelivered messages of a reader that was garbage-collected.
        first_session: The number of the first connection to the broker's present store, and of a consumer to the
            present generation of its group; 0 for the first one.
        topic_id: The topic's id; 0 before the broker has sent it.
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
        """Returns whether a reader does not have to wait."""
        return bool(self.queue) or self.ended

    def is_same_topic(self, answer: dict[str, Any]) -> bool:
        """Returns whether an answer has the topic id of earlier ones: the topic was not deleted and created again."""
        before, self.topic_id = self.topic_id, int(answer.get("topic_id", 0))
        return before in (0, self.topic_id)

    def begin(self) -> dict[str, Any]:
        """Returns the argument of the request that begins or resumes the stream."""
        raise NotImplementedError

    def handle_started(self, answer: dict[str, Any], session: int) -> list[list[bytes]]:
        """Handles the broker's confirmation of the stream.

        Args:
            answer: The argument of the confirmation.
            session: The number of the connection.

        Returns:
            The messages to send.
        """
        raise NotImplementedError

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        """Handles a received block. Returns the message to send; `None` for none.

        Raises:
            ValueError: The block is not valid.
        """
        raise NotImplementedError

    def block_taken(self, records: bytes) -> list[bytes] | None:
        """Handles the removal of a block from the queue. Returns the message to send; `None` for none."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Handles the loss of the connection."""
        self.in_force = False

    def start_over(self, position: int) -> bool:
        """Resumes after another id, as the next ids are no longer kept. Returns false if the stream has to end."""
        return False

    def renumber(self, session: int) -> None:
        """Starts over: from this connection on the broker has another store, with other ids.

        Args:
            session: The number of the connection.
        """
        self.first_session = session
        self.topic_id = 0
        self.start_over(0)

    def discard(self) -> list[Message]:
        """Drops the queue; removes and returns the undelivered messages of the reader."""
        self.queue.clear()
        reader = self.reader() if self.reader is not None else None
        return list(reader._take_undelivered()) if reader is not None else []

    def end(self, error: OmqError | None) -> None:
        """Ends the stream with an error; with `None` if the client ends it."""
        if not self.ended:
            self.ended, self.error, self.in_force = True, error, False
            self.notify()

    def notify(self) -> None:
        """Calls `wake`, if it is set."""
        if self.wake is not None:
            self.wake()


_streams: WeakSet[StreamState] = WeakSet()


def _discard_all() -> None:
    for stream in list(_streams):
        stream.discard()


# Received messages are the parent's: in a forked child the next call finds none, and raises.
os.register_at_fork(after_in_child=_discard_all)


class SubscriptionState(StreamState):
    """The state of a subscription.

    Attributes:
        last: The last id that has arrived.
        name: The name of the durable subscription; `None` if it is not durable.
        position: The last cursor that the client has sent or received.
    """

    command = protocol.SUBSCRIBE

    def __init__(
        self,
        tag: bytes,
        topic: str,
        replay: Replay | None,
        name: str | None,
        credit: int,
        take_over: bool = False,
    ) -> None:
        # The broker's limit: with a larger credit here, the broker's would run out before the client returns any.
        super().__init__(tag, topic, min(credit, protocol.MAX_CREDIT_BYTES))
        # With an explicit start, a durable subscription restarts there if retention has dropped the next messages.
        self.reset = replay is not None
        self.replay: Replay = "latest" if replay is None else replay
        self.name = name
        self.last = 0
        self.position = 0
        self._take_over = take_over
        self._transient = False  # retention may drop messages before they are read
        self._used_bytes = 0  # of credit, and not returned
        self._queued_bytes = 0

    def begin(self) -> dict[str, Any]:
        self._used_bytes = 0
        credit = max(self.credit - self._queued_bytes, 1)
        # The broker resumes a durable subscription at its cursor. If it no longer has it, no message may be skipped.
        again = self.last if self.name is None else "earliest"
        argument: dict[str, Any] = {
            "replay": again if self.began else encode_replay(self.replay),
            "name": self.name,
            "credit": credit,
        }
        if self.reset and self.name is not None and not self.began:
            argument["reset"] = True
        if self.name is not None and self.began:  # another client may have taken it over meanwhile
            argument["resume"] = True
        elif self._take_over:
            argument["take_over"] = True
        return argument

    def handle_started(self, answer: dict[str, Any], session: int) -> list[list[bytes]]:
        self.in_force = True
        self._transient = answer.get("persistence") == "transient"
        if not self.began:
            self.began, self.last = True, int(answer["position"])
            self.position = self.last
        elif self.position > int(answer["position"]):
            return [[protocol.POSITION, self.tag, u64(self.position)]]  # the broker has not received it
        return []

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        first, count = _check_block(header, records)
        last = first + count - 1
        known = max(self.last - first + 1, 0)
        if known >= count:  # the broker resumes at the cursor, which may be lower
            return self._return_credit(len(records))
        self.last = last
        self.queue.append((header, records, b"", known, self.first_session))
        self._queued_bytes += len(records)
        self.notify()
        return None

    def block_taken(self, records: bytes) -> list[bytes] | None:
        self._queued_bytes -= len(records)
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
            self.position = 0  # an id of the other store
        return True


class ConsumerState(StreamState):
    """The state of a consumer of a round-robin topic, or of a consumer group of a broadcast topic.

    Attributes:
        ack_timeout: Seconds after which a message without an ack is redelivered.
        group: The name of the group; `None` for a round-robin topic.
        generation: The generation of the group, which a move of the group raises; 0 without a group.
        unsent_acks: The ids acknowledged in this connection whose acknowledgements were not sent.
        unconfirmed: The acknowledged ids that no flush has confirmed as durable.
        ack_batch: The number of unsent acknowledgements at which they are sent.
    """

    command = protocol.CONSUME

    def __init__(
        self,
        tag: bytes,
        topic: str,
        ack_timeout: float,
        credit: int,
        group: str | None = None,
        replay: Replay | None = None,
    ) -> None:
        super().__init__(tag, topic, min(credit, protocol.MAX_PREFETCH))
        self.ack_timeout = ack_timeout
        self.group = group
        self.generation = 0
        self._replay = "latest" if replay is None else replay
        # Recent acknowledgements. The broker may redeliver such messages before it receives the ack, but no more of
        # them than the credit.
        self._recent_acks: OrderedDict[int, None] = OrderedDict()
        self.unsent_acks: list[int] = []
        self.unconfirmed: list[int] = []
        self.ack_batch = max(1, min(self.credit // 4, _MAX_ACK_BATCH))

    def begin(self) -> dict[str, Any]:
        argument: dict[str, Any] = {"ack_timeout": self.ack_timeout, "credit": self.credit}
        if self.group is not None:
            # If the broker no longer has the group, no message may be skipped.
            argument |= {"group": self.group, "replay": "earliest" if self.began else encode_replay(self._replay)}
        return argument

    def handle_started(self, answer: dict[str, Any], session: int) -> list[list[bytes]]:
        generation = int(answer.get("generation", 0))
        if self.began and generation != self.generation:
            # The group was moved, or deleted and created again: its messages count as never acknowledged.
            self.first_session = session
            self.start_over(0)
        self.generation = generation
        self.resumed, self.began, self.in_force = self.began, True, True
        return []

    def handle_block(self, header: bytes, records: bytes, counts: bytes) -> list[bytes] | None:
        _, count = _check_block(header, records)
        if len(counts) not in (0, 4 * count):
            raise ValueError(
                f"a block of {count} records has {len(counts)} bytes of delivery counts; expected 0 or {4 * count}"
            )
        self.queue.append((header, records, counts, 0, self.first_session))
        self.notify()
        return None

    def block_taken(self, records: bytes) -> list[bytes] | None:
        return None

    def interrupt(self) -> None:
        super().interrupt()
        self.queue.clear()  # the broker has requeued them
        self.unconfirmed += self.unsent_acks
        self.unsent_acks.clear()

    def remember(self, message_id: int, acked: bool) -> None:
        """Records that a message was acknowledged, or that it was nacked."""
        acks = self._recent_acks
        if not acked:
            acks.pop(message_id, None)
            return
        acks[message_id] = None
        if len(acks) > self.credit:
            acks.popitem(last=False)

    def start_over(self, position: int) -> bool:
        self._recent_acks.clear()
        self.unconfirmed.clear()
        return False

    def may_be_redelivered(self, counts: bytes) -> bool:
        """Returns whether a block with these delivery counts may contain messages that were acknowledged."""
        return self.resumed or bool(counts)

    def take_unconfirmed(self) -> list[Acked]:
        """Removes and returns the acknowledgements that are not confirmed as durable."""
        target = self.ack_target
        ids, self.unconfirmed = self.unconfirmed, []  # no call follows, as a signal handler may raise there
        return [(target, ids)] if ids else []

    @property
    def ack_target(self) -> AckTarget:
        """The work queue of its messages."""
        return AckTarget(self.topic, self.topic_id, self.group or "", self.generation)

    def undelivered_ids(self, session: int) -> list[int]:
        """Drops the deliveries of this connection that no caller has received; returns their ids."""
        found: list[int] = []
        for header, *_ in self.queue:
            first, count, *_ = read_header(header)
            found.extend(range(first, first + count))
        held = [one for one in [*self.discard(), *self.undelivered] if isinstance(one, Delivery)]
        found.extend(one.id for one in held if one.session == session)
        self.undelivered = ()
        return found

    def is_acked(self, message_id: int) -> bool:
        """Returns whether a redelivered message is acknowledged: in an earlier connection, or after its redelivery."""
        return message_id in self._recent_acks


def _check_block(header: bytes, records: bytes) -> tuple[int, int]:
    """Returns the first id and the number of the records of a block.

    Raises:
        ValueError: The header is not valid, or does not have the size of the records.
    """
    first, count, _, size = read_header(header)
    if size != len(records) or not 1 <= count <= size:  # a record has at least one byte
        raise ValueError(
            f"the header of a block announces {count} records in {size} bytes; the block has {len(records)} bytes"
        )
    return first, count


def messages_of(stream: StreamState, block: Block) -> list[Message]:
    """Decodes the messages of a subscription's block that had not arrived before.

    Raises:
        BrokerFailed: The records are damaged.
    """
    header, records, _, known, store = block
    found: list[Message]
    if store:  # its ids may be those of other messages of an earlier store
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

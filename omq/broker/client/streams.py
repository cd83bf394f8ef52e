"""Subscriptions and consumers: the base classes of both twins, and the blocking ones."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter, length_hint
from typing import Final, Generic, TypeVar
from weakref import ref

from omq.broker.client.connection import BlockingConnection, ClosesAtExit, ConnectionBase
from omq.broker.client.stream_state import (
    Block,
    ConsumerState,
    StreamState,
    SubscriptionState,
    deliveries_of,
    messages_of,
)
from omq.broker.errors import BrokerError, BrokerTimeout
from omq.broker.types import Delivery, Message, check_delay
from omq.errors import ClosedError, ReceiveTimeout, StateError
from omq.executor import run_blocking
from omq.socket_base import check_timeout, checked_count

_Message = TypeVar("_Message", bound=Message)
#: The result of a call that acknowledges: `None`, or in asyncio an awaitable.
_AckResult = TypeVar("_AckResult", bound=Awaitable[None] | None)

_session: Final = attrgetter("session")


class StreamBase(Generic[_Message, _AckResult]):
    """The base class of subscriptions and consumers of both twins."""

    _shown_as = ""  # in `repr`

    def __init__(self, connection: ConnectionBase, stream: StreamState) -> None:
        self._connection = connection
        self._stream = stream
        self._batch: Iterator[_Message] = iter(())
        stream.reader = ref(self)  # last: a signal handler may raise amid this

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._stream.topic

    @property
    def closed(self) -> bool:
        """Returns whether the stream was closed, or the broker has ended it: no more messages arrive."""
        return self._stream.ended

    def _decode(self, block: Block, session: int) -> list[_Message]:
        raise NotImplementedError

    def _is_current(self, message: _Message) -> bool:
        """Returns whether a message from the batch may still be returned to a caller."""
        return True

    def _ack_result(self) -> _AckResult:
        """Returns the result of a call that has acknowledged something."""
        raise NotImplementedError

    def _take_undelivered(self) -> list[_Message]:
        """Removes and returns the decoded messages that no caller has received; see `StreamState.discard`."""
        return list(self._batch)

    async def _end(self) -> None:
        """Ends the stream, and waits for the broker's confirmation."""
        connection = self._connection
        with connection.lock:
            ended = self._stream.ended
            request = None if ended else connection.core.cancel(self._stream)
            self._batch = iter(())  # its messages were returned to the broker
            connection.send_out()
            connection.wake_ready()
        if ended:
            return
        if request is not None:
            try:
                await connection.finish(request, connection.deadline())
            except BrokerTimeout:
                raise
            except BrokerError:
                pass  # the stream has ended, whatever the broker answers
        await connection.flush(connection.deadline())

    def __del__(self) -> None:
        # Nothing here may lock: any thread may drop the last reference, at any point.
        if not hasattr(self, "_batch"):
            return  # a signal handler has raised amid the constructor
        self._stream.undelivered = self._take_undelivered()
        self._connection.drop(self._stream)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "in force" if self._stream.in_force else "waits for the broker"
        return f"<{self._shown_as} of {self.topic!r}, {state}>"


class SubscriptionBase(StreamBase[Message, _AckResult]):
    """The base class of the subscriptions of both twins."""

    _stream: SubscriptionState

    @property
    def name(self) -> str | None:
        """The name of the durable subscription; `None` if it is not durable."""
        return self._stream.name

    def ack(self, message: Message | int) -> _AckResult:
        """Moves the cursor of a durable subscription. Does not wait; `Client.flush` and `Client.close` do.

        Args:
            message: The last finished message, or its id: a later subscription with the name resumes after it.

        Returns:
            `None`; in asyncio an awaitable that waits until the cursor is durable.

        Raises:
            StateError: The subscription is not durable.
            TypeError: *message* is neither a message nor a whole number.
            ValueError: *message* is a negative id, or a message of another topic.
            BrokerError: The broker has ended the subscription: `TakenOver` if another client has taken it over.
            ClosedError: The subscription or the client is closed.
        """
        if self._stream.name is None:
            raise StateError(f"this subscription of {self.topic!r} is not durable: subscribe with a name to ack")
        if not isinstance(message, Message):
            message = checked_count("message", message, 0)
        elif message.topic != self.topic:
            raise ValueError(f"message: is of topic {message.topic!r}; this subscription is of {self.topic!r}")
        connection = self._connection
        connection.check_usable()
        with connection.lock:
            if self._stream.ended:
                raise self._stream.error or ClosedError(f"the subscription of {self.topic!r} is closed")
            connection.core.move(self._stream, message)
            connection.send_out()
        return self._ack_result()

    def _decode(self, block: Block, session: int) -> list[Message]:
        return messages_of(self._stream, block)


class ConsumerBase(StreamBase[Delivery, _AckResult]):
    """The base class of the consumers of both twins. Calls return `None`, in asyncio an awaitable."""

    _stream: ConsumerState

    def ack(self, deliveries: Iterable[Delivery]) -> _AckResult:
        """Acknowledges several deliveries of this consumer in one request; see `Delivery.ack`.

        Raises:
            ValueError: A delivery is of another consumer. Nothing was acknowledged.
            TypeError: *deliveries* are not deliveries.
            BrokerError: The broker has ended the consumer: others get its messages.
            ClosedError: The consumer or the client is closed.
        """
        self._ack_or_nack(self._own(deliveries), True)
        return self._ack_result()

    def nack(self, deliveries: Iterable[Delivery], *, delay: float | None = None) -> _AckResult:
        """Requests redelivery of several messages of this consumer in one request; see `Delivery.nack`.

        Args:
            deliveries: The deliveries.
            delay: Seconds before the redelivery; 0 for at once; `None` for the topic's `retry_delay`.

        Raises:
            ValueError: A delivery is of another consumer, or *delay* is not 0 to 4,000,000 seconds.
            TypeError: *deliveries* are not deliveries, or *delay* is not a number.
            BrokerError: The broker has ended the consumer: others get its messages.
            ClosedError: The consumer or the client is closed.
        """
        self._ack_or_nack(self._own(deliveries), False, check_delay(delay))
        return self._ack_result()

    def acknowledge(self, delivery: Delivery) -> _AckResult:
        """Acknowledges a delivery; `Delivery.ack` calls it."""
        raise NotImplementedError  # each twin has its own, as each message calls it

    def retry(self, delivery: Delivery, delay: float | None) -> _AckResult:
        """Requests redelivery after *delay* seconds; `Delivery.nack` calls it."""
        self._ack_or_nack((delivery,), False, delay)
        return self._ack_result()

    def progress(self, delivery: Delivery) -> _AckResult:
        """Restarts the `ack_timeout` of a delivery; `Delivery.in_progress` calls it."""
        connection = self._connection
        connection.check_usable()
        with connection.lock:
            self._check_open()
            connection.core.progress(self._stream, delivery.session, delivery.id)
            connection.send_out()
        return self._ack_result()

    def _own(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Returns deliveries of this consumer as a list. An id names another message in another consumer."""
        if isinstance(deliveries, Message):
            raise TypeError("deliveries: must be an iterable of deliveries, not one; call its own ack or nack")
        listed = list(deliveries)
        for one in listed:
            if not isinstance(one, Delivery):
                raise TypeError(f"deliveries: must be deliveries of this consumer, not {one!r:.80}")
            if one.consumer is not self:
                raise ValueError(f"deliveries: message {one.id} of {one.topic!r} was delivered to another consumer")
        return listed

    def _ack_or_nack(self, deliveries: Sequence[Delivery], acked: bool, delay: float | None = None) -> None:
        connection = self._connection
        connection.check_usable()
        with connection.lock:
            self._check_open()
            for session, group in groupby(deliveries, key=_session):
                connection.core.ack_or_nack(self._stream, session, [one.id for one in group], acked, delay)
            connection.send_out()

    def _check_open(self) -> None:
        if self._stream.ended:
            closed = ClosedError(f"the consumer of {self.topic!r} is closed: others get its messages")
            raise self._stream.error or closed

    def _is_current(self, message: Delivery) -> bool:
        if message.session != self._connection.core.session:
            return False  # the broker delivers it again
        return not self._stream.is_acked(message.id)  # it may have come again, and then have been acknowledged

    def _decode(self, block: Block, session: int) -> list[Delivery]:
        stream = self._stream
        found = deliveries_of(stream, block, self, session)
        if not stream.may_be_redelivered(block[2]):
            return found
        if done := [one for one in found if stream.is_acked(one.id)]:
            with contextlib.suppress(ClosedError, BrokerError):
                self._ack_or_nack(done, True)  # the broker has not received it
        return [one for one in found if not stream.is_acked(one.id)]


class ClientStream(StreamBase[_Message, None], ClosesAtExit):
    """The base class of subscriptions and consumers of the blocking client."""

    _connection: BlockingConnection

    def __init__(self, connection: BlockingConnection, stream: StreamState) -> None:
        super().__init__(connection, stream)
        self._loaded: Block | None = None  # decoded into the batch, and still in the queue

    def _ack_result(self) -> None:
        return None

    def recv(self, *, timeout: float | None = None) -> _Message:
        """Returns the next message.

        Args:
            timeout: Seconds to wait; the client's `timeout` does not apply. `None` waits for ever, also while the
                broker cannot be reached; 0 never waits.

        Raises:
            ReceiveTimeout: No message arrived in time.
            BrokerError: The broker has ended the stream: `TopicError` if the topic was deleted, `Overrun` if retention
                has dropped the next messages.
            ValueError: *timeout* is negative or NaN.
            TypeError: *timeout* is not a number.
            ClosedError: The stream or the client is closed.
        """
        deadline = None if timeout is None else self._connection.deadline(check_timeout(timeout))
        while True:
            for message in self._batch:
                try:
                    if self._is_current(message):
                        return message
                except BaseException:
                    self._put_back([message])
                    raise
            self._load(deadline)

    def recv_many(self, limit: int | None = None, *, timeout: float | None = None) -> list[_Message]:
        """Returns the next messages that have arrived, at least one. Waits only if none has arrived.

        Args:
            limit: The largest number of messages; `None` for a whole block of the broker, whatever its size.
            timeout: Seconds to wait; the client's `timeout` does not apply. `None` waits for ever; 0 never waits.

        Raises:
            ReceiveTimeout: No message arrived in time.
            BrokerError: The broker has ended the stream; see `recv`.
            ValueError: *limit* is below 1, or *timeout* is negative or NaN.
            TypeError: *limit* is not a whole number, or *timeout* is not a number.
            ClosedError: The stream or the client is closed.
        """
        if limit is not None:
            limit = checked_count("limit", limit)
        deadline = None if timeout is None else self._connection.deadline(check_timeout(timeout))
        while True:
            taken = [*islice(self._batch, limit)]  # a signal handler that raises after this is handled below
            try:
                if messages := [message for message in taken if self._is_current(message)]:
                    return messages
            except BaseException:
                self._put_back(taken)
                raise
            if not taken:
                self._load(deadline)

    def _put_back(self, messages: list[_Message]) -> None:
        """Puts back messages that a signal handler's error has kept from the caller: the next call returns them."""
        with self._connection.lock:
            self._batch = iter([*messages, *self._batch])

    def __iter__(self) -> Iterator[_Message]:
        # A generator over a list runs hardly any Python code for a message.
        while True:
            yield from self._batch
            try:
                self._load(None)
            except ClosedError:
                return

    def __next__(self) -> _Message:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None

    def _load(self, deadline: float | None) -> None:
        """Waits for a block, and decodes it."""
        connection, stream = self._connection, self._stream
        connection.check_usable()
        connection.end_dropped()
        if not stream.readable and connection.core.unsent_consumers:
            with connection.lock:
                connection.send_acks()  # the broker may wait for them
        if not stream.readable and not connection.wait(self._is_ready, deadline):
            raise ReceiveTimeout(f"no message of {stream.topic!r} has arrived in time")
        with connection.lock:
            session = connection.core.session
            self._release_block()
            block = stream.queue[0] if stream.queue else None
            connection.send_out()
        if block is None:
            if stream.ended and not self._has_messages():
                raise stream.error or ClosedError(f"the {self._shown_as} of {stream.topic!r} is closed")
            return  # another thread was faster, or the connection is lost
        messages = self._decode(block, session)
        with connection.lock:
            if stream.queue and stream.queue[0] is block:
                batch = iter([*self._batch, *messages])  # another thread may have loaded one, too
                # The block stays in the queue until it is in the batch, because a signal handler may raise anywhere. No
                # handler runs between these two.
                self._loaded, self._batch = block, batch
                self._release_block()
                connection.send_out()
            connection.wake_ready()  # there may be some for other threads

    def _release_block(self) -> None:
        """Removes the block from the queue whose messages are in the batch."""
        queue = self._stream.queue
        if queue and queue[0] is self._loaded:
            self._connection.core.take_block(self._stream)
        self._loaded = None

    def _has_messages(self) -> bool:
        # Another thread may have filled the batch.
        return bool(self._stream.queue) or length_hint(self._batch) > 0

    def _is_ready(self) -> bool:
        return self._has_messages() or self._stream.ended

    def close(self) -> None:
        """Closes the stream, and waits for the broker's confirmation. Idempotent.

        Raises:
            BrokerTimeout: The broker has not confirmed in time; the stream is closed nevertheless.
        """
        connection = self._connection
        if connection.closed or connection.inherited:
            return
        if connection.in_wait or connection.in_lock:
            connection.drop(
                self._stream
            )  # in a signal handler: the call that it has interrupted, or the next one, ends it
            return
        run_blocking(self._end)


class Subscription(SubscriptionBase[None], ClientStream[Message]):
    """A subscription to a broadcast topic: messages in order, each once. Iterate over it, or call `recv`.

    After a lost connection or a restart of the broker it resumes after the last message that has arrived. Iteration
    ends when the subscription or its client is closed. Threads may share it.
    """

    _shown_as = "omq.broker.Subscription"


class Consumer(ConsumerBase[None], ClientStream[Delivery]):
    """A consumer of a round-robin topic or a consumer group; iterate over it, or call `recv`, and ack each `Delivery`.

    A message without an ack is redelivered after `ack_timeout`, after a lost connection, or when the consumer is
    closed. `ack` and `nack` do not wait. Acks are durable once a later `Client.flush`, `Client.publish` or `close`
    has returned. Threads may share a consumer.
    """

    _shown_as = "omq.broker.Consumer"

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledges a delivery; `Delivery.ack` calls it."""
        connection, stream = self._connection, self._stream
        connection.check_usable()
        with connection.lock:
            if stream.ended:
                self._check_open()
            connection.acknowledge(stream, delivery.session, delivery.id)

    def __iter__(self) -> Iterator[Delivery]:
        while True:
            for delivery in self._batch:
                try:
                    counts = self._is_current(delivery)
                except BaseException:
                    self._put_back([delivery])
                    raise
                if counts:
                    yield delivery
            try:
                self._load(None)
            except ClosedError:
                return

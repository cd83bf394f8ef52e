"""The blocking client of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omq.broker.client.calls import Calls
from omq.broker.client.connection import BlockingConnection, ClosesAtExit
from omq.broker.client.readers import BATCH_BYTES, PARTS, ColumnReader, RangeReader
from omq.broker.client.stream_state import CREDIT_BYTES
from omq.broker.client.streams import Consumer, Subscription
from omq.broker.errors import BrokerError
from omq.broker.protocol import DEFAULT_ACK_TIMEOUT_S, DEFAULT_PREFETCH
from omq.broker.types import Columns, Committed, DurableInfo, Message, Record, Records, TopicInfo
from omq.context import Context
from omq.executor import run_blocking
from omq.types import UNSET, Unset

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from omq.types import Security

__all__ = ["Client"]


class Client(ClosesAtExit):
    """A client of a broker. Threads may share it: one publishes while another one iterates over a subscription.

    The client connects in the background, and connects again after a lost connection. It then repeats the requests
    that have no answer, of which the broker stores nothing twice, and resumes its subscriptions and consumers.

    Args:
        endpoint: The endpoint of the broker's ZMTP listener.
        timeout: Seconds that a call waits for the broker, also for a connection. `None` waits for ever; 0 never waits.
        security: A `PlainClient` or `CurveClient`; `None` for a broker without authentication.
        context: The context of the client's socket; `None` for the default context.
        **options: More options of the client's DEALER socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint is not valid.
        OptionError: An option is unknown, or its value is not valid.
        ValueError: *timeout* is negative or not a number.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout: float | None = 30.0,
        security: Security | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> None:
        self._connection = BlockingConnection(endpoint, timeout, context, {"security": security, **options})
        self._calls = Calls(self._connection, Subscription, Consumer)

    @property
    def endpoint(self) -> str:
        """The endpoint of the broker's ZMTP listener."""
        return self._connection.endpoint

    @property
    def timeout(self) -> float | None:
        """The seconds that a call waits for the broker; `None` for ever."""
        return self._connection.timeout

    @property
    def broker(self) -> str:
        """The id of the broker's store, which no other store has; empty before the first connection."""
        return self._connection.core.broker

    # ------------------------------------------------------------------ topics

    def create(
        self, topic: str, *, delivery: str = "broadcast", persistence: str = "strong", **settings: Any
    ) -> TopicInfo:
        """Creates a topic, or returns an existing one that has the same settings.

        Args:
            topic: The topic's name: 1 to 255 bytes of UTF-8, without slashes and control characters.
            delivery: `"broadcast"`: every subscriber gets every message; `"round-robin"`: one consumer gets each.
            persistence: When a publication is answered. `"strong"`: after the fsync; `"weak"`: after the write, with an
                fsync every second; `"async"`: before the write; `"transient"`: at once, messages stay in memory.
            **settings: Each may be left out. `max_messages`, `max_bytes`, `max_age` (seconds): bounds of what is kept;
                no bound by default. `overflow`: the reaction of a full topic: `"block"` (publishers wait, within their
                timeout), `"reject"` (they get `StoreFull`; the default of round-robin topics and with `retain_for`) or
                `"drop-oldest"` (the default of broadcast topics; in a round-robin topic the oldest message without an
                ack becomes a dead letter). `retain_for`: the name of a durable subscription of a broadcast topic, which
                is created with it: messages are kept until it has acknowledged them. `max_deliveries`: deliveries
                after which a message becomes a dead letter; no bound by default. `dead_letter`: the topic of the dead
                letters. `retry_delay`: seconds before the redelivery of a message that was nacked or timed out, or a
                list with the seconds of each attempt; 0.1, doubling to 30, by default.

        Returns:
            The topic.

        Raises:
            TopicError: The topic exists with other settings, or the name or a setting is not valid.
            TypeError: The name is not a string.
            PermissionDenied: This client may not create it. In every call: the broker rejects the client's key, user
                or password.
            BrokerTimeout: The broker cannot be reached, or has not answered in time.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.create(topic, delivery=delivery, persistence=persistence, **settings))

    def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; its readers get a `TopicError`.

        Args:
            topic: The topic's name.

        Raises:
            BrokerError: As `create`; a `TopicError` if the topic does not exist.
        """
        run_blocking(lambda: self._calls.delete(topic))

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Returns the topics that this client may use.

        Args:
            topic: The name of the only topic to return; `None` returns all.

        Raises:
            BrokerError: As `create`; a `TopicError` if the named topic does not exist.
        """
        return run_blocking(lambda: self._calls.topics(topic))

    def durables(self, topic: str) -> list[DurableInfo]:
        """Returns the durable subscriptions of a broadcast topic.

        Args:
            topic: The topic's name.

        Raises:
            BrokerError: As `create`; a `TopicError` if there is no such broadcast topic.
        """
        return run_blocking(lambda: self._calls.durables(topic))

    def delete_durable(self, topic: str, name: str) -> None:
        """Deletes a durable subscription that no client has open.

        Args:
            topic: The topic's name.
            name: The subscription's name.

        Raises:
            BrokerError: As `create`; a `TopicError` if the topic does not exist, or a client has the subscription open.
        """
        run_blocking(lambda: self._calls.delete_durable(topic, name))

    # ------------------------------------------------------------------ publishing

    def publish(
        self, topic: str, body: Buffer, *, key: bytes | None = None, headers: Mapping[str, Buffer] | None = None
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it.

        Earlier acknowledgements of this client are then durable, too.

        Args:
            topic: The topic's name.
            body: The content: anything with a contiguous buffer, up to 64 MiB.
            key: A key, which readers get with the message; `None` for no key.
            headers: Values by name, which readers get with the message; `None` for none.

        Returns:
            The id of the message.

        Raises:
            BrokerTimeout: The broker cannot be reached, or has not answered in time. The message may be published; a
                second call then makes a second message.
            TopicError: The topic does not exist.
            MessageTooLarge: The body is larger than 64 MiB.
            TypeError: The body has no contiguous buffer, or the name of a header is not a string.
            PermissionDenied: This client may not publish to the topic.
            StoreFull: The topic or the broker's disk is full.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.publish(topic, body, key=key, headers=headers))

    def publish_many(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], *, in_flight: int | None = None
    ) -> list[int]:
        """Publishes messages in a pipeline, and waits until the topic's persistence holds for all.

        They are stored in their order. After an error some of them may be published, not always the first ones.

        Args:
            topic: The topic's name.
            bodies: The contents; see `publish`. A `Record` also has a key and headers; `Records` are many encoded
                messages. The iterable is consumed while earlier messages are answered, so a generator may yield any
                number of them.
            in_flight: The number of messages that may wait for their answers at once, which bounds the messages whose
                fate is unknown if the process dies. `None` bounds only their bytes, at 8 MiB.

        Returns:
            The ids of the messages, in their order.

        Raises:
            BrokerError: As `publish`; the client's `timeout` counts from one answer to the next.
            ValueError: *in_flight* is below 1.
            TypeError: *bodies* is a single body, or mixes `Records` with others.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.publish_many(topic, bodies, in_flight=in_flight))

    def stage(self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1) -> int:
        """Stores messages under a name, until `commit` publishes them or `abort` discards them.

        Readers do not get them before the commit. The broker deletes a stage that was not committed after a day. A
        stage belongs to one topic, and its messages are in the order of their sequences.

        Args:
            topic: The topic's name.
            bodies: The contents; see `publish_many`.
            stage: The stage's name, 1 to 255 bytes of UTF-8.
            sequence: The number of the call's first request, 1 or more. The broker stores a number once: a call may be
                repeated with the same bodies and the same number, also by another client.

        Returns:
            The sequence for the next call for this stage. Without bodies it is *sequence*, and there is no stage for
            `commit` to name.

        Raises:
            BrokerError: As `publish`, and where the stage belongs to another topic.
            ValueError: The stage's name or *sequence* is not valid.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.stage(topic, bodies, stage, sequence=sequence))

    def commit(self, commit: str, stages: Iterable[str]) -> list[Committed]:
        """Publishes stages atomically: readers get all of their messages, or after an error none.

        Args:
            commit: The commit's name, 1 to 255 bytes of UTF-8. A second commit of this name publishes nothing, and
                returns the result of the first: a call may be repeated, also by another client.
            stages: The names of 4,096 stages at most.

        Returns:
            The published stages, in the order of *stages*. Without stages the list is empty, and no request is sent.

        Raises:
            BrokerError: As `publish`, and where a stage does not exist: then nothing is published.
            ValueError: The name of the commit or of a stage is not valid.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.commit(commit, stages))

    def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Discards a stage; does nothing if it does not exist.

        Args:
            stage: The stage's name.
            prefix: True discards every stage whose name begins with *stage*.

        Raises:
            BrokerError: As `publish`.
            ValueError: The stage's name is not valid.
            ClosedError: The client is closed.
        """
        run_blocking(lambda: self._calls.abort(stage, prefix=prefix))

    # ------------------------------------------------------------------ reading

    def subscribe(
        self, topic: str, *, replay: str | int | None = None, name: str | None = None, credit: int = CREDIT_BYTES
    ) -> Subscription:
        """Subscribes to a broadcast topic, and returns once the subscription is in force.

        Args:
            topic: The topic's name.
            replay: The start. `"latest"`: messages published from now on; `"earliest"`: all that are kept; an id: those
                after it. `None` is `"latest"`.
            name: The name of a durable subscription: `Subscription.ack` moves its position, and a later subscription
                with the name resumes there and ignores *replay*. If retention has deleted that position, it restarts at
                *replay* if that was given, else the call raises `Overrun`. `None`: not durable.
            credit: Bytes that the broker may send ahead; values above 64 MiB count as 64 MiB.

        Raises:
            TopicError: The topic does not exist, or is not a broadcast topic; a client has the name open; the id is
                above the newest one.
            Overrun: The requested messages are no longer kept.
            ValueError: *replay* or *credit* is not valid.
            PermissionDenied: This client may not subscribe to the topic.
            BrokerTimeout: The broker cannot be reached, or has not answered in time.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.subscribe(topic, replay=replay, name=name, credit=credit))

    def consume(
        self, topic: str, *, ack_timeout: float = DEFAULT_ACK_TIMEOUT_S, credit: int = DEFAULT_PREFETCH
    ) -> Consumer:
        """Adds a consumer to a round-robin topic, and returns once the broker has confirmed it.

        Args:
            topic: The topic's name.
            ack_timeout: Seconds after which a message without an ack is delivered again. They count from its delivery,
                and restart with each ack of an earlier delivery: a consumer that works in order has them for each
                message.
            credit: Messages that may be in flight; values above 1,048,576 count as that. Use few if a message may kill
                the process: all in flight then count as delivered (`max_deliveries`).

        Raises:
            TopicError: The topic does not exist, or is not a round-robin topic.
            ValueError: *ack_timeout* or *credit* is not valid.
            PermissionDenied: This client may not consume the topic.
            BrokerTimeout: The broker cannot be reached, or has not answered in time.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.consume(topic, ack_timeout=ack_timeout, credit=credit))

    def read(
        self, topic: str, start: int | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Message]:
        """Reads the messages that are kept now, in order.

        Args:
            topic: The topic's name.
            start: The first id; `None` for the oldest that is kept.
            stop: The id before which to end; `None` to end after the newest id at the first step.
            limit: The largest number of messages; `None` for no bound.

        Returns:
            An iterator. Its steps raise as `subscribe`, and `Damaged` for damaged messages.

        Raises:
            TypeError: A bound is neither a whole number nor `None`.
            ClosedError: The client is closed.
        """
        self._connection.check_usable()
        return self._read(RangeReader(self._connection, topic, start, stop, limit=limit))

    def _read(self, reader: RangeReader) -> Iterator[Message]:
        try:
            while (blocks := run_blocking(reader.blocks)) is not None:
                for header, records in blocks:
                    yield from reader.messages(header, records)
        finally:
            reader.close()

    def read_columns(
        self,
        topic: str,
        start: int | None = None,
        stop: int | None = None,
        *,
        parts: Collection[str] = PARTS,
        batch_bytes: int = BATCH_BYTES,
        memory: Callable[[int], Buffer] = bytearray,
    ) -> Iterator[Columns]:
        """Reads the messages that are kept now, in order, as columns; makes no Python object for a message.

        Args:
            topic: The topic's name.
            start: The first id; `None` for the oldest that is kept.
            stop: The id before which to end; `None` to end after the newest id at the first step.
            parts: The columns in addition to ids and timestamps: any of `"bodies"`, `"keys"` and `"headers"`.
            batch_bytes: The approximate bytes of bodies, keys and headers in one step. A larger message gets a step of
                its own.
            memory: Allocates the memory for the bodies of one step: called with a number of bytes, it returns a
                writable buffer of that size or more.

        Returns:
            An iterator of one `Columns` for each step. Its steps raise as `subscribe`: `Overrun` if ids from *start* on
            are no longer kept, also if they are dropped meanwhile, and `Damaged`.

        Raises:
            ValueError: *parts* or *batch_bytes* is not valid.
            TypeError: A bound is neither a whole number nor `None`.
            ClosedError: The client is closed.
        """
        self._connection.check_usable()
        reader = RangeReader(self._connection, topic, start, stop, whole=True)
        return self._read_columns(reader, ColumnReader(topic, batch_bytes, parts, memory))

    def _read_columns(self, reader: RangeReader, columns: ColumnReader) -> Iterator[Columns]:
        try:
            while True:
                try:
                    blocks = run_blocking(reader.blocks)
                except BrokerError:
                    yield from columns.rest()  # the records before the error
                    raise
                if blocks is None:
                    break
                for header, records in blocks:
                    yield from columns.add(header, records)
            yield from columns.rest()
        finally:
            reader.close()

    def offset_after(self, topic: str, start: int, stop: int, size: int) -> int:
        """Returns the id before which the messages from *start* on have a number of bytes.

        Args:
            topic: The topic's name.
            start: The first id.
            stop: The id before which to end in any case.
            size: Bytes of the messages as they are stored, with keys, headers and sizes. At least one message counts.

        Returns:
            The id after the last of these messages; *stop* if there are fewer bytes.

        Raises:
            BrokerError: As `subscribe`.
            TypeError: *start*, *stop* or *size* is not a whole number.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.offset_after(topic, start, stop, size))

    def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every ack, nack and position of this client is durable.

        Args:
            timeout: Seconds; `None` for ever; by default the client's `timeout`.

        Raises:
            BrokerTimeout: The broker has not answered in time.
            ValueError: *timeout* is negative or not a number.
            ClosedError: The client is closed.
        """
        run_blocking(lambda: self._calls.flush(timeout=timeout))

    # ------------------------------------------------------------------ closing

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._connection.closed

    def close(self) -> None:
        """Flushes acknowledgements, returns unread deliveries, and closes; waiting calls raise. Idempotent.

        Called by a signal handler that has interrupted a waiting call, it lets that call close the client. If the
        handler has interrupted another method of this client, a thread closes it. Other calls in such a handler raise
        `StateError`.

        Raises:
            BrokerTimeout: The broker has not confirmed the acknowledgements in time: messages may be redelivered.
        """
        if not self._connection.closed and not self._connection.inherited:
            self._connection.close()

    def __repr__(self) -> str:
        return f"<omq.broker.Client {self.endpoint} {self._connection.state}>"

"""The blocking client of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omq.broker.client.calls import Calls
from omq.broker.client.connection import BlockingConnection, ClosesAtExit, Role
from omq.broker.client.readers import BATCH_BYTES, PARTS, ColumnReader, RangeReader
from omq.broker.client.stream_state import CREDIT_BYTES
from omq.broker.client.streams import Consumer, Subscription
from omq.broker.errors import BrokerError
from omq.broker.protocol import DEFAULT_ACK_TIMEOUT_S, DEFAULT_PREFETCH
from omq.broker.types import Columns, Committed, DurableInfo, GroupInfo, Message, Record, Records, TopicInfo
from omq.context import Context
from omq.executor import run_blocking
from omq.types import UNSET, Unset

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from omq.types import Security

__all__ = ["Client"]


class Client(ClosesAtExit):
    """A client of a broker. Threads may share it: one may publish while another iterates over a subscription.

    The client connects in the background, and reconnects after a lost connection. It then repeats unanswered requests,
    which the broker stores only once, and resumes its subscriptions and consumers. So it does if a cluster has another
    leader: it finds the leader within the timeout of the calls.

    Every call that waits for the broker may raise `BrokerTimeout` (the broker cannot be reached, or has not answered in
    time), `PermissionDenied` (the broker rejects the client's key, user or password, or does not permit the request),
    `BrokerFailed` (the broker cannot execute the request) and `ClosedError` (the client is closed).

    Args:
        endpoint: The endpoint of the broker's ZMTP listener. Of a cluster: those of some members, which the client
            tries in turn; it remembers those that a member names.
        timeout: Seconds that each call waits for the broker, including the connection. `None` waits for ever; 0 never
            waits.
        security: A `PlainClient` or `CurveClient`; `None` for a broker without authentication.
        context: The context of the client's socket; `None` for the default context.
        role: Which member of a cluster serves the client. `"leader"`: the leader, to which the client moves.
            `"any"`: each one; a follower may lag, and raises `NotLeader` for what only the leader executes. A broker in
            no cluster serves both.
        **options: More options of the client's DEALER socket; see `omq.Options`.

    Raises:
        EndpointError: An endpoint is not valid.
        OptionError: An option is unknown, or its value is not valid.
        ValueError: *timeout* is negative or NaN, *role* is not valid, or there is no endpoint.
        TypeError: *timeout* is not a number.
    """

    def __init__(
        self,
        endpoint: str | Iterable[str],
        *,
        timeout: float | None = 30.0,
        security: Security | None = None,
        context: Context | None = None,
        role: Role = "leader",
        **options: Any,
    ) -> None:
        self._connection = BlockingConnection(endpoint, timeout, context, {"security": security, **options}, role)
        self._calls = Calls(self._connection, Subscription, Consumer)

    @property
    def endpoint(self) -> str:
        """The endpoint of the broker that the client uses, or tries to reach."""
        return self._connection.endpoint

    @property
    def timeout(self) -> float | None:
        """The seconds that a call waits for the broker; `None` for ever."""
        return self._connection.timeout

    @property
    def broker(self) -> str:
        """The unique id of the broker's store; empty before the first connection."""
        return self._connection.core.broker

    # ------------------------------------------------------------------ topics

    def create(
        self, topic: str, *, delivery: str = "broadcast", persistence: str = "strong", **settings: Any
    ) -> TopicInfo:
        """Creates a topic, or returns an existing one that has the same settings.

        Args:
            topic: The topic's name: 1 to 255 bytes of UTF-8, without slashes and control characters.
            delivery: `"broadcast"`: every subscriber gets every message; `"round-robin"`: one consumer gets each.
            persistence: The time of the answer to a publication. `"strong"`: after the fsync; `"weak"`: after the
                write, with an fsync every second; `"async"`: before the write; `"transient"`: at once, messages stay
                in memory.
            **settings: All are optional. `max_messages`, `max_bytes`, `max_age` (seconds): retention limits; unlimited
                by default. `overflow`: the reaction of a full topic: `"block"` (publishers wait, within their timeout),
                `"reject"` (they get `StoreFull`; the default of round-robin topics and with `retention` or
                `retain_for`) or `"drop-oldest"` (the default of broadcast topics; in a round-robin topic the oldest
                message that is not in flight becomes a dead letter). `retention`: `"read"`: a broadcast topic keeps
                messages until all durable subscriptions and consumer groups have acknowledged them. `retain_for`: the
                name of a durable subscription of a broadcast topic. It is created with the topic, which keeps messages
                until it has acknowledged them. `inactive_threshold`: seconds after which a durable subscription or a
                group that no client has open is deleted; never by default. `max_deliveries`: attempts after which a
                message becomes a dead letter; unlimited by default. `dead_letter`: the topic of the dead letters.
                `retry_delay`: seconds before the redelivery of a message that was nacked, or attempted and overdue, or
                a list with the seconds of each attempt; by default 0.1, doubling to 30.

        Returns:
            The topic.

        Raises:
            TopicError: The topic exists with other settings (`alter` changes them), or the name or a setting is not
                valid or not known.
            StoreFull: The client's user has as many topics as it may have.
            TypeError: The name is not a string.
        """
        return run_blocking(lambda: self._calls.create(topic, delivery=delivery, persistence=persistence, **settings))

    def alter(self, topic: str, *, force: bool = False, **settings: Any) -> TopicInfo:
        """Changes settings of a topic that exists. They are durable, and apply to its messages and readers at once.

        Publishers that wait for room go on if there is room by the new settings. If the new `overflow` is `"reject"`,
        the others get `StoreFull`.

        Args:
            topic: The topic's name.
            force: True also makes changes that drop messages at once, or move unacknowledged ones to the dead letters
                because of a lower bound.
            **settings: The settings to change, as in `create`; `None` removes one, which then has its default. Others
                stay. Delivery and persistence cannot change.

        Returns:
            The topic.

        Raises:
            TopicError: The topic does not exist, a setting is not valid or cannot change, the dead-letter topics would
                form a cycle, or messages would be dropped: the text has their number. Nothing was changed.
            TypeError: The name is not a string, or *force* is not a bool.
        """
        return run_blocking(lambda: self._calls.alter(topic, force=force, **settings))

    def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; its readers get a `TopicError`.

        Args:
            topic: The topic's name.

        Raises:
            TopicError: The topic does not exist.
        """
        run_blocking(lambda: self._calls.delete(topic))

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Returns the topics that this client may use.

        Args:
            topic: The name of a single topic; `None` for all.

        Raises:
            TopicError: The named topic does not exist.
        """
        return run_blocking(lambda: self._calls.topics(topic))

    def durables(self, topic: str) -> list[DurableInfo]:
        """Returns the durable subscriptions of a broadcast topic.

        Args:
            topic: The topic's name.

        Raises:
            TopicError: The topic does not exist, or is not a broadcast topic.
        """
        return run_blocking(lambda: self._calls.durables(topic))

    def delete_durable(self, topic: str, name: str) -> None:
        """Deletes a durable subscription that no client has open.

        Args:
            topic: The topic's name.
            name: The subscription's name.

        Raises:
            TopicError: The topic or the subscription does not exist, or a client has the subscription open.
        """
        run_blocking(lambda: self._calls.delete_durable(topic, name))

    def groups(self, topic: str) -> list[GroupInfo]:
        """Returns the consumer groups of a broadcast topic.

        Args:
            topic: The topic's name.

        Raises:
            TopicError: The topic does not exist.
        """
        return run_blocking(lambda: self._calls.groups(topic))

    def seek_group(self, topic: str, name: str, replay: str | int | float | datetime) -> None:
        """Moves a consumer group: all messages after a position become unacknowledged, and all others acknowledged.

        Args:
            topic: The topic's name.
            name: The group's name.
            replay: The position: `"latest"`, `"earliest"`, an id (the group gets the messages after this id), or a time
                as in `subscribe`.

        Raises:
            TopicError: The topic or the group does not exist, the group has consumers, or *replay* is above the newest
                id.
            Overrun: The messages after *replay* are no longer kept.
            ValueError: *replay* is not valid.
        """
        run_blocking(lambda: self._calls.seek_group(topic, name, replay))

    def delete_group(self, topic: str, name: str) -> None:
        """Deletes a consumer group that has no consumers.

        Args:
            topic: The topic's name.
            name: The group's name.

        Raises:
            TopicError: The topic or the group does not exist, or the group has consumers.
        """
        run_blocking(lambda: self._calls.delete_group(topic, name))

    def purge(self, topic: str, *, up_to: int | None = None) -> int:
        """Drops messages of a topic, the oldest first.

        Of a round-robin topic it drops the messages that wait. Those in flight stay with their consumers, and return to
        the topic if they are not acknowledged. Of a broadcast topic it drops all. A subscription that has not received
        them gets an `Overrun`, as after retention. Publishers that wait for room then continue.

        Args:
            topic: The topic's name.
            up_to: The last id to drop, 1 or more; `None` for the newest one.

        Returns:
            The number of dropped messages. After a lost connection it may be too low, as the broker may have dropped
            them before.

        Raises:
            TopicError: The topic does not exist, has `retention` or `retain_for`, or *up_to* is above its newest id.
            PermissionDenied: The client does not have the permission `admin` for the topic.
            ValueError: *up_to* is below 1.
            TypeError: *up_to* is not a whole number.
        """
        return run_blocking(lambda: self._calls.purge(topic, up_to=up_to))

    def requeue(self, dead_topic: str, *, to: str | None = None, limit: int | None = None) -> int:
        """Moves dead letters back to the topics that they came from, in their order.

        Each moves exactly once, also if the broker is killed meanwhile. It loses its `omq-dead` headers, gets a new id,
        and its deliveries count from 1 again. Dead letters that arrive during the call stay. A subscription of the
        dead-letter topic that has not received the moved messages gets an `Overrun`.

        Args:
            dead_topic: The name of the dead-letter topic, a broadcast topic.
            to: The topic to which all move; `None`: each moves to the topic in its header `omq-dead-topic`.
            limit: The largest number of dead letters, 0 or more; `None` for all.

        Returns:
            The number of moved dead letters. After a lost connection it may be too low, as the broker may have moved
            some before.

        Raises:
            TopicError: The dead-letter topic does not exist, is a round-robin topic, or has `retention` or
                `retain_for`; or the topic of a dead letter is unknown or does not exist. The text has the number of
                dead letters that were moved before, also in the next two errors.
            StoreFull: The topic of a dead letter has no room for it, or the broker's disk is full. A round-robin topic
                with `overflow="drop-oldest"` also needs room.
            PermissionDenied: The client has neither `publish` nor `admin` for the topic of a dead letter, or not
                `admin` for the dead-letter topic.
            ValueError: *limit* is negative.
            TypeError: *to* is not a string, or *limit* is not a whole number.
        """
        return run_blocking(lambda: self._calls.requeue(dead_topic, to=to, limit=limit))

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        topic: str,
        body: Buffer,
        *,
        key: bytes | None = None,
        headers: Mapping[str, Buffer] | None = None,
        message_id: bytes | str | None = None,
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it.

        Earlier acknowledgements of this client are then also durable.

        Args:
            topic: The topic's name.
            body: The content: any object with a contiguous buffer, up to 64 MiB.
            key: The key of the message; `None` for no key.
            headers: The headers of the message, values by name; `None` for no headers.
            message_id: An idempotency key, 1 to 255 bytes, or text of that size in UTF-8. A second publish to the topic
                with this key by the same user stores nothing and returns the id of the first, for a day; a transient
                topic remembers the last 65,536 keys and producers. `None` for none.

        Returns:
            The id of the message.

        Raises:
            BrokerTimeout: The message may have been published: another call publishes it once if both have the same
                *message_id*, and may otherwise publish it twice.
            TopicError: The topic does not exist, or has another message with this *message_id*.
            MessageTooLarge: The body is larger than 64 MiB.
            ValueError: *message_id* is empty or longer than 255 bytes.
            TypeError: The body has no contiguous buffer, the name of a header is not a string, or *message_id* is
                neither bytes nor a string.
            StoreFull: The topic or the broker's disk is full, or the topic's owner has reached a limit.
        """
        return run_blocking(lambda: self._calls.publish(topic, body, key=key, headers=headers, message_id=message_id))

    def publish_many(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], *, in_flight: int | None = None
    ) -> list[int]:
        """Publishes messages in a pipeline, and waits until the topic's persistence holds for all.

        They are stored in order. After an error, some of them may be published, not necessarily the first ones.

        Args:
            topic: The topic's name.
            bodies: The contents; see `publish`. A `Record` also has a key and headers; `Records` are many encoded
                messages. The iterable is consumed while earlier messages await their answers, so a generator may yield
                any number of them.
            in_flight: The largest number of unanswered messages: if the process dies, these may or may not be
                published. `None` limits only their bytes, to 8 MiB.

        Returns:
            The ids of the messages, in their order.

        Raises:
            BrokerTimeout: The client's `timeout` has passed since the last answer.
            TopicError: The topic does not exist.
            MessageTooLarge: A body is larger than 64 MiB.
            StoreFull: The topic or the broker's disk is full, or the topic's owner has reached a limit.
            ValueError: *in_flight* is below 1.
            TypeError: *bodies* is a single body, mixes `Records` with others, or has a value that is not a body; or
                *in_flight* is not a whole number.
        """
        return run_blocking(lambda: self._calls.publish_many(topic, bodies, in_flight=in_flight))

    def stage(self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1) -> int:
        """Stores messages under a name, until `commit` publishes them or `abort` discards them.

        Readers do not get them before the commit. The broker deletes a stage a day after its first message, unless it
        is committed. A stage belongs to one topic. Its messages are published in the order of their sequences.

        Args:
            topic: The topic's name.
            bodies: The contents; see `publish_many`.
            stage: The stage's name, 1 to 255 bytes of UTF-8.
            sequence: The sequence of the call's first request, 1 or more. The broker stores each sequence of a stage
                once: any client may repeat a call with the same bodies and the same sequence.

        Returns:
            The sequence for the next call for this stage. Without bodies it is *sequence*, and no stage is created.

        Raises:
            TopicError: The topic does not exist.
            BrokerError: The stage belongs to another topic.
            MessageTooLarge: A body is larger than 64 MiB.
            StoreFull: The stages of the topic or the broker's disk are full.
            ValueError: The stage's name or *sequence* is not valid.
            TypeError: *bodies* is not valid (see `publish_many`), or *sequence* is not a whole number.
        """
        return run_blocking(lambda: self._calls.stage(topic, bodies, stage, sequence=sequence))

    def commit(self, commit: str, stages: Iterable[str]) -> list[Committed]:
        """Publishes stages atomically: readers get all of their messages, or after an error none.

        Args:
            commit: The commit's name, 1 to 255 bytes of UTF-8. A second commit of this name publishes nothing, and
                returns the result of the first: any client may repeat the call.
            stages: The names of the stages, at most 4,096.

        Returns:
            The published stages, in the order of *stages*. Without stages the list is empty, and no request is sent.

        Raises:
            BrokerError: A stage does not exist, or is listed twice: nothing is published.
            StoreFull: A topic or the broker's disk is full: nothing is published.
            ValueError: The name of the commit or of a stage is not valid.
            TypeError: *stages* is a single string, or a name is not a string.
        """
        return run_blocking(lambda: self._calls.commit(commit, stages))

    def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Discards a stage; does nothing if it does not exist.

        Args:
            stage: The stage's name.
            prefix: True discards every stage whose name begins with *stage*.

        Raises:
            ValueError: The stage's name is not valid.
            TypeError: The stage's name is not a string.
        """
        run_blocking(lambda: self._calls.abort(stage, prefix=prefix))

    # ------------------------------------------------------------------ reading

    def subscribe(
        self,
        topic: str,
        *,
        replay: str | int | float | datetime | None = None,
        name: str | None = None,
        take_over: bool = False,
        credit: int = CREDIT_BYTES,
    ) -> Subscription:
        """Subscribes to a broadcast topic, and returns once the subscription is in force.

        Args:
            topic: The topic's name.
            replay: The start. `"latest"`: new messages only; `"earliest"`: all that are kept; an `int`: the messages
                after this id; a time: the messages that the broker has stored since then. A time is a `datetime` with a
                time zone, or a `float` of seconds since 1970; see `offset_at`. `None` is `"latest"`.
            name: The name of a durable subscription, `None` for one that is not durable. The broker keeps its cursor,
                which `Subscription.ack` moves; a later subscription with the name resumes there and ignores *replay*.
                If retention has dropped messages after the cursor, it restarts at *replay*, and without *replay* the
                call raises `Overrun`.
            take_over: True ends the durable subscription of another client that has it open. Its calls raise
                `TakenOver`, and it can no longer move the cursor, even if it is stuck or cut off. Needs *name*.
            credit: Bytes that the broker may send ahead, 1 or more; values above 64 MiB count as 64 MiB.

        Raises:
            TopicError: The topic does not exist or is not a broadcast topic, a client has the durable subscription
                open and *take_over* is false, or *replay* is above the newest id or more than 10 seconds in the future.
            Overrun: The requested messages are no longer kept. For a time: it is before the oldest message, and earlier
                ones were dropped.
            ValueError: *replay* or *credit* is not valid, *replay* has no time zone, or *take_over* is true without
                *name*.
            TypeError: *credit* is not a whole number.
        """
        return run_blocking(
            lambda: self._calls.subscribe(topic, replay=replay, name=name, take_over=take_over, credit=credit)
        )

    def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        replay: str | int | float | datetime | None = None,
        ack_timeout: float = DEFAULT_ACK_TIMEOUT_S,
        credit: int = DEFAULT_PREFETCH,
    ) -> Consumer:
        """Adds a consumer to a round-robin topic or to a consumer group, and returns once the broker has confirmed it.

        Args:
            topic: The topic's name.
            group: The name of a consumer group of a broadcast topic; `None` for a round-robin topic. The members of a
                group share the messages, each goes to one of them. The group exists from its first consumer until
                `delete_group`; the topic keeps its messages for others, within its retention.
            replay: The start of a group that does not exist yet, as in `subscribe`. `None` is `"latest"`.
            ack_timeout: Seconds after which a message without an ack is redelivered. They count from the delivery, and
                restart with each ack of an earlier delivery: a consumer that works in order has them for each message.
            credit: The prefetch: messages that may be in flight, 1 or more; values above 1,048,576 count as 1,048,576.
                Use a small number if a message may crash the process: the crash counts as a delivery of each message in
                flight (`max_deliveries`).

        Raises:
            TopicError: The topic does not exist, is a broadcast topic and *group* is `None`, or is a round-robin topic
                and *group* is given; or *replay* is above the newest id.
            Overrun: The messages after *replay* are no longer kept.
            Damaged: The acks of the group are damaged: `seek_group` starts over.
            ValueError: *replay*, *ack_timeout* or *credit* is not valid, or *replay* is given without *group*.
            TypeError: *ack_timeout* is not a number, or *credit* is not a whole number.
        """
        return run_blocking(
            lambda: self._calls.consume(topic, group=group, replay=replay, ack_timeout=ack_timeout, credit=credit)
        )

    def read(
        self,
        topic: str,
        start: int | float | datetime | None = None,
        stop: int | float | datetime | None = None,
        *,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Reads the messages that are kept now, in order.

        Args:
            topic: The topic's name.
            start: The first id, or a time (see `subscribe`): the first message stored since then; `None` for the oldest
                kept.
            stop: The id or time before which to end; `None` to end after the message that is the newest at the first
                step.
            limit: The largest number of messages; `None` for no limit.

        Returns:
            An iterator. Its steps wait, and raise `TopicError` if the topic does not exist and `Damaged` for damaged
            messages. Ids that are no longer kept are skipped.

        Raises:
            TypeError: *start*, *stop* or *limit* has a wrong type.
            ValueError: *start*, *stop* or *limit* is negative, or a time has no time zone.
            TopicError: The topic's name is not valid.
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
        start: int | float | datetime | None = None,
        stop: int | float | datetime | None = None,
        *,
        parts: Collection[str] = PARTS,
        batch_bytes: int = BATCH_BYTES,
        memory: Callable[[int], Buffer] = bytearray,
    ) -> Iterator[Columns]:
        """Reads the messages that are kept now, in order, as columns, without a Python object for each message.

        Args:
            topic: The topic's name.
            start: The first id, or a time (see `subscribe`): the first message stored since then; `None` for the oldest
                kept.
            stop: The id or time before which to end; `None` to end after the message that is the newest at the first
                step.
            parts: The columns in addition to ids and timestamps: any of `"bodies"`, `"keys"` and `"headers"`.
            batch_bytes: The approximate bytes of bodies, keys and headers in one `Columns`. A larger message gets one
                of its own.
            memory: Allocates the memory for the bodies of one `Columns`: called with a number of bytes, it returns a
                writable buffer of at least that size.

        Returns:
            An iterator over `Columns`. Its steps wait, and raise `TopicError` if the topic does not exist, and
            `Damaged` for damaged messages. If *start* is given, they raise `Overrun` for messages that are no longer
            kept, also for those that retention drops during the iteration.

        Raises:
            ValueError: *start* or *stop* is negative, a time has no time zone, or *parts* or *batch_bytes* is not
                valid.
            TypeError: *start* or *stop* has a wrong type, or *batch_bytes* is not a whole number.
            TopicError: The topic's name is not valid.
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
        """Returns where to end a read that begins at *start*, to read about a number of bytes.

        Args:
            topic: The topic's name.
            start: The first id.
            stop: The largest result.
            size: The bytes of the messages as they are stored: with keys, headers and sizes.

        Returns:
            The id after the first messages that have *size* bytes together, at least one message. If there are fewer
            bytes, *stop*, or the id after the newest message if that is lower.

        Raises:
            TopicError: The topic does not exist.
            TypeError: *start*, *stop* or *size* is not a whole number.
            ValueError: *start*, *stop* or *size* is negative.
        """
        return run_blocking(lambda: self._calls.offset_after(topic, start, stop, size))

    def offset_at(self, topic: str, time: datetime | float) -> int:
        """Returns the id of the first message that the broker has stored at or after a time.

        Times are those of the broker's system clock, as in `Message.timestamp`. If it was set back, several messages
        may be the first one at or after a time; the result is one of them.

        Args:
            topic: The topic's name.
            time: A time with a time zone, or seconds since 1970.

        Returns:
            The id. If the time is before the oldest kept message, the id of that message. If all messages are earlier,
            also if the time is in the future, the id of the next message.

        Raises:
            TopicError: The topic does not exist.
            ValueError: *time* has no time zone, or is before 1970.
            TypeError: *time* is neither a `datetime` nor a number.
        """
        return run_blocking(lambda: self._calls.offset_at(topic, time))

    def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every earlier ack and nack of this client, and every cursor that it moved, is durable.

        Args:
            timeout: Seconds to wait; `None` for ever; the default is the client's `timeout`.

        Raises:
            ValueError: *timeout* is negative or NaN.
            TypeError: *timeout* is not a number.
        """
        run_blocking(lambda: self._calls.flush(timeout=timeout))

    # ------------------------------------------------------------------ closing

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._connection.closed

    def close(self) -> None:
        """Flushes acknowledgements, returns unread deliveries to the broker, and closes the client. Idempotent.

        Waiting calls then raise `ClosedError`.

        A signal handler may call it. If the handler has interrupted a waiting call, that call closes the client; if it
        has interrupted another method of the client, a background thread does. Other calls in such a handler raise
        `StateError`.

        Raises:
            BrokerTimeout: The broker has not confirmed the acknowledgements in time: messages may be redelivered.
        """
        if not self._connection.closed and not self._connection.inherited:
            self._connection.close()

    def __repr__(self) -> str:
        return f"<omq.broker.Client {self.endpoint} {self._connection.state}>"

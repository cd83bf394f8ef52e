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

    It connects when it is made, in the background, and again whenever the connection is lost: requests that have no
    answer are made again, and the broker stores nothing twice; subscriptions and consumers go on.

    Args:
        endpoint: The endpoint of the broker's ZMTP listener.
        timeout: Seconds that a call waits for the broker, also for a connection; `None` for ever.
        security: A `PlainClient` or `CurveClient`.
        context: What its socket shares with others; `None` for the default context.
        **options: More options of its DEALER socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint cannot be understood.
        OptionError: An option does not fit.
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
        """The id of the broker's store, which no other store has; empty until the broker has answered anything."""
        return self._connection.core.broker

    # ------------------------------------------------------------------ topics

    def create(
        self, topic: str, *, delivery: str = "broadcast", persistence: str = "strong", **settings: Any
    ) -> TopicInfo:
        """Makes a topic, or finds it as asked.

        Args:
            topic: Its name: 1 to 255 bytes of UTF-8, without slashes and control characters.
            delivery: `"broadcast"`: every subscriber gets every message; `"round-robin"`: one consumer gets each.
            persistence: `"strong"`: a message is on the disk before it is acknowledged; `"weak"`: it is written, and
                flushed every second; `"async"`: it is written some time; `"transient"`: it stays in memory.
            **settings: `max_messages`, `max_bytes`, `max_age` (seconds): what is kept. `overflow`: what a topic does
                that is full: `"block"` (publishers wait, within their timeout), `"reject"` (they get `StoreFull`, the
                default of round-robin and with `retain_for`) or `"drop-oldest"` (the default of broadcast; of
                round-robin the oldest unfinished message goes to the dead letters). `retain_for`: the name of a durable
                subscription of a broadcast topic, which exists from now on: messages are kept until it has acknowledged
                them, and dropped then. `max_deliveries`, and `dead_letter`, the topic that a message goes to after
                them. `retry_delay`: seconds that a delivery waits which was nacked or timed out, or a list of them, one
                for each attempt; 0.1, doubling to 30, if it is left out.

        Raises:
            TopicError: It is there with other settings; or the name or a setting does not fit.
            PermissionDenied: This client may not; or, in every call, the broker refuses its key, user or password.
            BrokerTimeout: The broker is not there, or has not answered.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.create(topic, delivery=delivery, persistence=persistence, **settings))

    def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; its readers get a `TopicError`. Raises as `create`."""
        run_blocking(lambda: self._calls.delete(topic))

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Returns all topics, or that one. Raises as `create`: a `TopicError` where it does not exist."""
        return run_blocking(lambda: self._calls.topics(topic))

    def durables(self, topic: str) -> list[DurableInfo]:
        """Returns the durable subscriptions of a broadcast topic. Raises as `create`."""
        return run_blocking(lambda: self._calls.durables(topic))

    def delete_durable(self, topic: str, name: str) -> None:
        """Deletes a durable subscription that no client has open. Raises as `create`."""
        run_blocking(lambda: self._calls.delete_durable(topic, name))

    # ------------------------------------------------------------------ publishing

    def publish(
        self, topic: str, body: Buffer, *, key: bytes | None = None, headers: Mapping[str, Buffer] | None = None
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it.

        What this client acknowledged before is then durable, too.

        Args:
            topic: The topic's name.
            body: Its content: anything with a contiguous buffer, up to 64 MiB.
            key: A key, for the readers.
            headers: More about it, by name.

        Returns:
            Its id.

        Raises:
            BrokerTimeout: The broker is not there, or has not answered. Whether the message was published is unknown.
                Publishing it again makes a second message if it was.
            TopicError: The topic does not exist.
            MessageTooLarge: The body is.
            PermissionDenied: This client may not publish there.
            StoreFull: The topic, or the broker's disk, has no room for it.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.publish(topic, body, key=key, headers=headers))

    def publish_many(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], *, in_flight: int | None = None
    ) -> list[int]:
        """Publishes messages, many on their way at once, and waits until the topic's persistence holds for all.

        They are stored in their order. After an error some of them may be published, not always the first ones.

        Args:
            topic: The topic's name.
            bodies: Their contents; see `publish`. A `Record` has a key and headers, too; `Records` are many messages,
                encoded already. They are taken one after the other while earlier ones are answered, so that a
                generator may give any number of them.
            in_flight: How many messages may wait for their answers at once: what is in doubt at most if the program
                dies. None: 8 MiB of them.

        Returns:
            Their ids.

        Raises:
            Exception: As `publish`; the client's `timeout` counts from one answer to the next.
            ValueError: *in_flight* is below 1.
        """
        return run_blocking(lambda: self._calls.publish_many(topic, bodies, in_flight=in_flight))

    def stage(self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1) -> int:
        """Keeps messages aside under a name, until `commit` publishes them or `abort` forgets them.

        They are not read before. Stages that are not committed vanish after a day. A stage is of one topic, and its
        messages are in the order of their sequences.

        Args:
            topic: The topic's name.
            bodies: Their contents; see `publish_many`.
            stage: The stage's name, 1 to 255 bytes of UTF-8.
            sequence: The number of the first request that this call makes. What the broker has under a number is not
                kept again: a call may be repeated with the same bodies and the same number, also by another client.

        Returns:
            The number with which the next call for this stage goes on. Without bodies that is *sequence*, and no
            stage is made: `commit` is not to name it.

        Raises:
            BrokerError: As `publish`, and where the stage is another topic's.
        """
        return run_blocking(lambda: self._calls.stage(topic, bodies, stage, sequence=sequence))

    def commit(self, commit: str, stages: Iterable[str]) -> list[Committed]:
        """Publishes stages at once: readers get all of their messages, or none where it fails.

        Args:
            commit: Names the commit, 1 to 255 bytes of UTF-8. A second one of this name publishes nothing, and returns
                what the first one did: so it may be repeated, also by another client.
            stages: The stages' names, 4,096 at most.

        Returns:
            What was published, in the order of the stages. Without stages that is nothing, and the broker is not asked.

        Raises:
            BrokerError: As `publish`, and where a stage is not there: then nothing is published.
        """
        return run_blocking(lambda: self._calls.commit(commit, stages))

    def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Discards a stage; does nothing if it does not exist. Raises as `publish`.

        Args:
            stage: Its name.
            prefix: Discards every stage whose name begins with *stage*.
        """
        run_blocking(lambda: self._calls.abort(stage, prefix=prefix))

    # ------------------------------------------------------------------ reading

    def subscribe(
        self, topic: str, *, replay: str | int | None = None, name: str | None = None, credit: int = CREDIT_BYTES
    ) -> Subscription:
        """Begins to read a broadcast topic, and returns once the subscription is in force.

        Args:
            topic: The topic's name.
            replay: `"latest"`: what is published from now on; `"earliest"`: everything that is kept; or an id: what
                comes after it. `None` is `"latest"`.
            name: The broker keeps the position under this name: `Subscription.ack` moves it, and a subscription by
                that name resumes from there and ignores `replay`. Where retention has deleted that position it restarts
                at `replay` if that was given, else it raises `Overrun`.
            credit: Bytes that the broker may send ahead; larger values count as 64 MiB.

        Raises:
            TopicError: The topic does not exist, or is not a broadcast topic; another subscription has the name; the id
                is beyond the newest.
            Overrun: What was asked for is no longer kept.
            PermissionDenied: This client may not subscribe to it.
            BrokerTimeout: The broker is not there, or has not answered.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.subscribe(topic, replay=replay, name=name, credit=credit))

    def consume(self, topic: str, *, ack_timeout: float = 30.0, credit: int = 100) -> Consumer:
        """Adds a consumer to a round-robin topic, and returns once the broker has confirmed it.

        Args:
            topic: The topic's name.
            ack_timeout: Seconds after which a message that was not acknowledged is delivered again. They count from its
                delivery, and again from each acknowledgement of one that was delivered before it: a consumer that works
                in order has them for each message.
            credit: Messages that the broker may deliver ahead of their acknowledgements, 1,048,576 at most. Use
                few where a message may kill the process: all in flight then count as delivered (`max_deliveries`).

        Raises:
            TopicError: The topic does not exist, or is not a round-robin topic.
            PermissionDenied: This client may not consume it.
            BrokerTimeout: The broker is not there, or has not answered.
            ClosedError: The client is closed.
        """
        return run_blocking(lambda: self._calls.consume(topic, ack_timeout=ack_timeout, credit=credit))

    def read(
        self, topic: str, start: int | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Message]:
        """Reads the messages that are kept now, in order.

        Args:
            topic: The topic's name.
            start: The first id; `None` for the oldest.
            stop: After the last id; `None` for the newest at the moment of the first step.
            limit: Messages at most; `None` for no bound.

        Returns:
            An iterator. Its steps raise as `subscribe`.
        """
        self._connection.refuse()
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
            start: The first id; `None` for the oldest.
            stop: After the last id; `None` for the newest at the moment of the first step.
            parts: What is wanted of a message besides its id and its timestamp: of `"bodies"`, `"keys"`, `"headers"`.
            batch_bytes: Bytes of bodies, keys and headers of one step, about; one message is taken whatever its size.
            memory: Returns a writable buffer of at least the bytes that it is called with, for the bodies of one step.

        Returns:
            An iterator. Its steps raise as `subscribe`: `Overrun` where ids from *start* on are no longer kept, also
            where they are dropped meanwhile, and `Damaged`.

        Raises:
            ValueError: A name or a number does not fit.
            ClosedError: The client is closed.
        """
        self._connection.refuse()
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
        """Returns the id up to which messages have a number of bytes, with what the broker keeps for each.

        Args:
            topic: The topic's name.
            start: The first id.
            stop: Where to end in any case.
            size: Bytes. One message is counted whatever its size.

        Returns:
            The id after the last of them; *stop* where no more follow.

        Raises:
            BrokerError: As `subscribe`.
        """
        return run_blocking(lambda: self._calls.offset_after(topic, start, stop, size))

    def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every acknowledgement, `nack` and position of this client is recorded.

        Args:
            timeout: Seconds; `None` for ever; left out, the client's.

        Raises:
            BrokerTimeout: The broker has not answered in time.
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

        In a signal handler that has interrupted a waiting call, that call closes the client; where it has interrupted
        any other method of this client, a thread does. Other calls in such a handler raise a `StateError`.

        Raises:
            BrokerTimeout: The broker has not confirmed that the acknowledgements are durable: messages may come again.
        """
        if not self._connection.closed and not self._connection.inherited:
            self._connection.close()

    def __repr__(self) -> str:
        return f"<omq.broker.Client {self.endpoint} {self._connection.state}>"

"""The blocking client of a broker."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from omq._core.blocks import encode_record
from omq.broker import protocol
from omq.broker.client.caller import Caller
from omq.broker.client.checks import (
    check_bodies,
    check_headers,
    check_in_flight,
    check_reading,
    check_sequence,
    check_share,
    check_stage,
    check_stages,
    check_subscription,
    patience,
)
from omq.broker.client.client_core import (
    State,
    describe,
    read_committed,
    read_first,
    read_names,
    read_topic,
    read_topics,
    write_stages,
)
from omq.broker.client.column_reader import BATCH_BYTES, PARTS, ColumnReader
from omq.broker.client.feeds import CREDIT_BYTES
from omq.broker.client.packing import check_body, pack, turn
from omq.broker.client.range_reader import MOST_BYTES, RangeReader
from omq.broker.client.request import Request
from omq.broker.client.streams import Consumer, Subscription
from omq.broker.errors import BrokerError, BrokerTimeout
from omq.broker.protocol import u64
from omq.broker.types import Columns, Committed, Message, NameInfo, Record, Records, TopicInfo
from omq.context import Context
from omq.types import UNSET, Unset

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer

    from omq.types import Security

__all__ = ["Client"]

log = logging.getLogger("omq")


class Client:
    """A client of a broker. Threads may share it: one publishes while another one iterates over a subscription.

    It connects when it is made, in the background, and again whenever the connection is lost: requests that have no
    answer are made again, and the broker stores nothing twice; subscriptions and consumers go on.

    Args:
        endpoint: Where the broker's ZMTP door is.
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
        self._caller = Caller(endpoint, timeout, context, {"security": security, **options})

    @property
    def endpoint(self) -> str:
        """Where the broker's ZMTP door is."""
        return self._caller.endpoint

    @property
    def timeout(self) -> float | None:
        """Seconds that a call waits for the broker; `None` for ever."""
        return self._caller.timeout

    @property
    def broker(self) -> str:
        """The id of the broker's store, which no other store has; empty until the broker has answered anything."""
        return self._caller.core.broker

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
        about = describe(topic, delivery, persistence, settings)
        return read_topic(self._caller.ask(protocol.CREATE, about))

    def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; who reads it gets a `TopicError`. Raises as `create`."""
        caller = self._caller
        caller.ask(protocol.DELETE, protocol.check_name(topic).encode())

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """All topics, or that one. Raises as `create`: a `TopicError` where there is no such topic."""
        parts = [] if topic is None else [protocol.check_name(topic).encode()]
        return read_topics(self._caller.ask(protocol.TOPICS, *parts))

    def names(self, topic: str) -> list[NameInfo]:
        """The names that the broker keeps positions of a broadcast topic under. Raises as `create`."""
        return read_names(self._caller.ask(protocol.NAMES, protocol.check_name(topic).encode()))

    def forget(self, topic: str, name: str) -> None:
        """Has the broker forget a name that nobody holds, with its position. Raises as `create`."""
        named = protocol.check_name(topic).encode(), protocol.check_name(name, "a subscription's name").encode()
        self._caller.ask(protocol.FORGET, *named)

    # ------------------------------------------------------------------ publishing

    def publish(
        self, topic: str, body: Buffer, *, key: bytes | None = None, headers: Mapping[str, Buffer] | None = None
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it.

        What this client acknowledged before is then durable, too.

        Args:
            topic: The topic's name.
            body: Its content: anything with a contiguous buffer, up to 64 MiB.
            key: A key, for whoever reads it.
            headers: More about it, by name.

        Returns:
            Its id.

        Raises:
            BrokerTimeout: The broker is not there, or has not answered. Whether the message was published is unknown.
                Publishing it again makes a second message if it was.
            TopicError: There is no such topic.
            MessageTooLarge: The body is.
            PermissionDenied: This client may not publish there.
            StoreFull: The topic, or the broker's disk, has no room for it.
            ClosedError: The client is closed.
        """
        caller = self._caller
        caller.refuse()
        check_body(body, caller.core.max_body)
        check_headers(headers)
        records = encode_record(body, key, headers)
        until = caller.until()
        if not caller.core.has_room(len(records)):
            caller.wait_for(partial(caller.core.has_room, len(records)), until, "room for a message")

        def ask() -> list[Request]:
            request = caller.core.append(topic, records)
            return [request, caller.core.flush()] if caller.core.dirty else [request]

        request, *flushes = caller.answered(ask, until)
        for flush in flushes:
            caller.flush(until, flush)
        return read_first(request)

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
        caller = self._caller
        check_bodies(bodies)
        check_in_flight(in_flight)
        protocol.check_name(topic)
        numbers: list[int] = []
        for request, count in self._ask_all(bodies, partial(caller.core.append, topic), in_flight):
            first = read_first(request)
            numbers.extend(range(first, first + count))
        caller.flush(caller.until())
        return numbers

    def _ask_all(
        self, bodies: Iterable[Buffer | Record | Records], ask: Callable[[bytes], Request], in_flight: int | None = None
    ) -> Iterator[tuple[Request, int]]:
        """Makes requests of bodies, many on their way at once; the answered ones in order, with their counts."""
        caller = self._caller
        caller.refuse()
        core = caller.core
        asked: deque[tuple[Request, int]] = deque()
        caller.settle_dropped()
        try:
            for records, count in pack(bodies, core.max_body, in_flight):
                may_append = turn(core, len(records), count, asked, in_flight)
                if not may_append():
                    caller.wait_for(may_append, caller.until(), "an answer to what was published")
                while asked and asked[0][0].done:
                    yield asked.popleft()
                caller.make(lambda: asked.append((ask(records), count)))  # noqa: B023 - called at once
            while asked:
                caller.finish(asked[0][0], caller.until())
                yield asked.popleft()
        finally:
            if asked:
                with caller.lock:
                    for request, _ in reversed(asked):  # else the broker might store later ones meanwhile
                        core.give_up(request)
                    caller.send_out()

    def stage(self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1) -> int:
        """Keeps messages aside under a name, until `commit` publishes them or `abort` forgets them.

        Nobody reads them before. Stages that nobody commits vanish after a day. A stage is of one topic, and its
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
        core, name = self._caller.core, check_stage(stage)
        check_bodies(bodies)
        protocol.check_name(topic)
        check_sequence(sequence)
        numbers = itertools.count(sequence)
        for request, _ in self._ask_all(bodies, lambda records: core.stage(topic, records, name, next(numbers))):
            request.result()
        return next(numbers)

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
        name, names = check_stage(commit, "a commit's name"), [check_stage(stage) for stage in check_stages(stages)]
        if not names:
            self._caller.refuse()
            return []
        return read_committed(self._caller.ask(protocol.COMMIT, name, write_stages(names)))

    def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Forgets a stage; one that is not there is forgotten. Raises as `publish`.

        Args:
            stage: Its name.
            prefix: Forgets every stage whose name begins so.
        """
        self._caller.ask(protocol.ABORT, check_stage(stage), *([b"all"] if prefix else []))

    # ------------------------------------------------------------------ reading

    def subscribe(
        self, topic: str, *, replay: str | int | None = None, name: str | None = None, credit: int = CREDIT_BYTES
    ) -> Subscription:
        """Begins to read a broadcast topic, and returns once the subscription is in force.

        Args:
            topic: The topic's name.
            replay: `"current"`: what is published from now on; `"beginning"`: everything that is kept; or an id: what
                comes after it. `None` is `"current"`.
            name: The broker keeps the position under this name: `Subscription.ack` moves it, and whoever subscribes by
                that name goes on there; then `replay` counts the first time only, and where retention has overtaken the
                position: who gave one begins there, and else it is an `Overrun`.
            credit: Bytes that the broker may send ahead; more than 64 MiB are as 64 MiB.

        Raises:
            TopicError: There is no such topic, or it is no broadcast topic; the name is held; the id is from the
                future.
            Overrun: What was asked for is no longer kept.
            PermissionDenied: This client may not subscribe to it.
            BrokerTimeout: The broker is not there, or has not answered.
            ClosedError: The client is closed.
        """
        caller = self._caller
        check_subscription(replay, name, credit)
        opened: list[Subscription] = []

        def ask() -> list[Request]:
            feed, request = caller.core.subscribe(topic, replay, name, credit)
            opened.append(Subscription(caller, feed))
            return [request]

        caller.answered(ask, caller.until())
        return opened[0]

    def consume(self, topic: str, *, ack_timeout: float = 30.0, credit: int = 100) -> Consumer:
        """Takes a share of a round-robin topic, and returns once it is in force.

        Args:
            topic: The topic's name.
            ack_timeout: Seconds after which a message that was not acknowledged is delivered again. They count from its
                delivery, and anew from each acknowledgement of one that was delivered before it: a consumer that works
                in order has them for each message.
            credit: Messages that the broker may deliver ahead of their acknowledgements, 1,048,576 at most. Where a
                message may kill the process, few: the delivery of all counts as a try (`max_deliveries`).

        Raises:
            TopicError: There is no such topic, or it is no round-robin topic.
            PermissionDenied: This client may not consume it.
            BrokerTimeout: The broker is not there, or has not answered.
            ClosedError: The client is closed.
        """
        caller = self._caller
        check_share(ack_timeout, credit)
        opened: list[Consumer] = []

        def ask() -> list[Request]:
            feed, request = caller.core.consume(topic, ack_timeout, credit)
            opened.append(Consumer(caller, feed))
            return [request]

        caller.answered(ask, caller.until())
        return opened[0]

    def read(
        self, topic: str, start: int | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Message]:
        """Reads what is kept now, in order.

        Args:
            topic: The topic's name.
            start: The first id; `None` for the oldest.
            stop: Behind the last id; `None` for the newest at the moment of the first step.
            limit: Messages at most; `None` for no bound.

        Returns:
            An iterator. Its steps raise as `subscribe`.
        """
        caller = self._caller
        caller.refuse()
        protocol.check_name(topic)
        check_reading(start, stop, limit)
        return self._read(topic, start, stop, limit)

    def _read(self, topic: str, start: int | None, stop: int | None, limit: int | None) -> Iterator[Message]:
        caller = self._caller
        (info,) = read_topics(caller.ask(protocol.TOPICS, topic.encode()))
        reader = caller.make(lambda: RangeReader(caller.core, info, start, stop, limit))
        try:
            while (request := reader.request) is not None:
                caller.finish(request, caller.until())
                blocks = caller.make(reader.blocks)
                for header, records in zip(blocks[::2], blocks[1::2], strict=True):
                    yield from reader.messages(header, records)
        finally:
            if reader.request is not None:
                caller.drop(reader.request)

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
        """Reads what is kept now, in order, as columns: no Python object is made of a message.

        Args:
            topic: The topic's name.
            start: The first id; `None` for the oldest.
            stop: Behind the last id; `None` for the newest at the moment of the first step.
            parts: What is wanted of a message beside its id and its timestamp: of `"bodies"`, `"keys"`, `"headers"`.
            batch_bytes: Bytes of bodies, keys and headers of one step, about; one message is taken whatever its size.
            memory: Gives a writable buffer of so many bytes, or more, in which the bodies of one step will stand.

        Returns:
            An iterator. Its steps raise as `subscribe`: `Overrun` where ids from *start* on are no longer kept, also
            where they are dropped meanwhile, and `Damaged`.

        Raises:
            ValueError: A name or a number does not fit.
            ClosedError: The client is closed.
        """
        caller = self._caller
        caller.refuse()
        protocol.check_name(topic)
        check_reading(start, stop, None)
        return self._read_columns(topic, start, stop, ColumnReader(topic, batch_bytes, parts, memory))

    def _read_columns(
        self, topic: str, start: int | None, stop: int | None, columns: ColumnReader
    ) -> Iterator[Columns]:
        caller = self._caller
        (info,) = read_topics(caller.ask(protocol.TOPICS, topic.encode()))
        reader = caller.make(lambda: RangeReader(caller.core, info, start, stop, None, strict=True, size=MOST_BYTES))
        try:
            while (request := reader.request) is not None:
                try:
                    caller.finish(request, caller.until())
                    blocks = caller.make(reader.blocks)
                except BrokerError:
                    yield from columns.rest()  # what is well before
                    raise
                for header, records in zip(blocks[::2], blocks[1::2], strict=True):
                    yield from columns.add(header, records)
            yield from columns.rest()
        finally:
            if reader.request is not None:
                caller.drop(reader.request)

    def reach(self, topic: str, start: int, stop: int, size: int) -> int:
        """How far so many bytes of messages reach, with what the broker keeps beside their bodies.

        Args:
            topic: The topic's name.
            start: The first id.
            stop: Where to end in any case.
            size: Bytes. One message is counted whatever its size.

        Returns:
            The id behind the last of them; *stop* where there are no more.

        Raises:
            BrokerError: As `subscribe`.
        """
        caller = self._caller
        named = protocol.check_name(topic).encode()
        check_reading(start, stop, size)
        while start < stop:
            answer = caller.ask(protocol.REACH, named, u64(start), u64(stop), u64(size))
            before, (start, seen) = start, map(protocol.number, answer)
            size -= seen
            if size <= 0 or start == before:
                break
        return start

    def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every acknowledgement, `nack` and position of this client is recorded.

        Args:
            timeout: Seconds from one answer of the broker to the next; `None` for ever; left out, the client's.

        Raises:
            BrokerTimeout: The broker has not said so in time.
            ClosedError: The client is closed.
        """
        caller = self._caller
        caller.refuse()
        seconds = caller.timeout if isinstance(timeout, Unset) else patience(timeout)
        with caller.lock:
            caller.say_gathered()
        caller.flush(None if seconds is None else time.monotonic() + seconds)

    # ------------------------------------------------------------------ life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._caller.closed

    def close(self) -> None:
        """Flushes what was acknowledged, gives back what is held, and ends; calls that wait raise. Idempotent.

        In a signal handler that has interrupted a call which waits, that call does so; where it has interrupted
        anything else of this client, a thread does. Other calls that wait, or amid anything else, raise a `StateError`
        there.

        Raises:
            BrokerTimeout: The broker has not said that what was acknowledged is durable: it may be delivered again.
        """
        if not self._caller.closed and not self._caller.inherited:
            self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BrokerTimeout as trouble:
            if error is None:
                raise
            log.warning("%s", trouble)

    def __repr__(self) -> str:
        caller = self._caller
        state = "closed" if self._caller.closed else "connected" if caller.core.state is State.UP else "not connected"
        return f"<omq.broker.Client {self.endpoint} {state}>"

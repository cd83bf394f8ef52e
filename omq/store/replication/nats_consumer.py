"""An ordered consumer of a JetStream stream: each message from a sequence on once, in order, as long as it is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple
from uuid import uuid4

from omq.store.errors import StoreError
from omq.store.replication.journal import JournalUnavailable
from omq.store.replication.nats_connection import PROBE_TIMEOUT_S, NatsApiError, NatsConnection, NatsMessage

#: The interval at which the server reports that it has nothing to send.
HEARTBEAT_INTERVAL_S: Final = 0.5
#: A consumer without a heartbeat for so long is replaced.
SILENCE_TIMEOUT_S: Final = 2.0
#: Seconds for which a reader looks for a server that has the stream.
MAX_OUTAGE_S: Final = 30.0
RETRY_DELAY_S: Final = 0.1


class StreamMessage(NamedTuple):
    """A message of a stream.

    Attributes:
        sequence: Its sequence in the stream.
        data: Its payload.
        headers: Its headers.
    """

    sequence: int
    data: bytes
    headers: dict[str, str]


async def consume(
    connection: NatsConnection,
    stream: str,
    after: int,
    begin: Callable[[int], Awaitable[None]],
    lags: Callable[[int], bool] = lambda _: False,
    subject: str = "",
) -> AsyncGenerator[StreamMessage, None]:
    """Yields the messages of a stream in order, without an end.

    Args:
        connection: The connection.
        stream: The name of the stream.
        after: The sequence after which to begin.
        begin: Called and awaited with the sequence before each consumer is created; its errors end the iteration.
        lags: Called with the sequence while nothing arrives; if it returns True, the server of the consumer lags,
            and the consumer is replaced.
        subject: Only messages with this subject; empty for all.

    Raises:
        JournalUnavailable: The servers have not answered for `MAX_OUTAGE_S`.
    """
    answered = left = time.monotonic()
    while True:
        started = after
        try:
            await begin(after)
            async with aclosing(_one_consumer(connection, stream, after, lags, subject)) as messages:
                async for message in messages:
                    if message is not None:
                        after = message.sequence
                        yield message
                    answered = time.monotonic()
        except NatsApiError as error:
            failure: StoreError = error.explained(f"reading the stream {stream!r}")
            if not isinstance(failure, JournalUnavailable):
                raise failure from error
        except JournalUnavailable as error:
            failure = error
        else:
            failure = JournalUnavailable(f"reading the stream {stream!r}: its consumer was interrupted")
        now = time.monotonic()
        if now - answered > MAX_OUTAGE_S or connection.closed:
            raise failure
        if now - max(answered, left) > connection.options.timeout:
            connection.leave(str(failure))  # another server may be on the side of the majority
            left = now
        if after == started:
            await asyncio.sleep(RETRY_DELAY_S)


async def _one_consumer(
    connection: NatsConnection, stream: str, after: int, lags: Callable[[int], bool], subject: str
) -> AsyncGenerator[StreamMessage | None, None]:
    """Yields messages until something is missing, and None for each heartbeat."""
    name = f"omq-{uuid4().hex}"
    async with connection.subscribed() as (inbox, queue):
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_INTERVAL_S * 1e9),
            "mem_storage": True,  # it is deleted a few seconds after the subscription
            "num_replicas": 1,
        }
        if subject:
            config["filter_subject"] = subject
        call = f"CONSUMER.CREATE.{stream}.{name}"
        await connection.call(call, {"stream_name": stream, "config": config}, PROBE_TIMEOUT_S, stay=True)
        expected = 1  # of the consumer's own sequence
        moved = time.monotonic()
        while (message := await _next(queue)) is not None:
            if message.reply and not message.reply.startswith("$JS.ACK."):
                await connection.notify(message.reply)  # a request of flow control
            elif message.reply:
                sequence, consumer_sequence = _sequences(message.reply)
                if consumer_sequence != expected:
                    return
                expected += 1
                after = sequence
                yield StreamMessage(sequence, message.data, message.headers or {})
                moved = time.monotonic()
            else:
                headers = message.headers or {}
                if headers.get("Status") != "100" or int(headers.get("Nats-Last-Consumer", 0)) >= expected:
                    return  # the consumer is deleted, or messages are lost
                if stalled := headers.get("Nats-Consumer-Stalled"):
                    await connection.notify(stalled)
                if time.monotonic() - moved > SILENCE_TIMEOUT_S and lags(after):
                    return
                yield None


async def _next(queue: asyncio.Queue[NatsMessage | None]) -> NatsMessage | None:
    """Returns the next message; None if nothing arrives in time, or the connection is lost."""
    if not queue.empty():
        return queue.get_nowait()
    try:
        async with asyncio.timeout(SILENCE_TIMEOUT_S):
            return await queue.get()
    except TimeoutError:
        return None


def _sequences(reply: str) -> tuple[int, int]:
    """Returns the sequences in the stream and in the consumer, from the subject for acknowledgements."""
    # $JS.ACK.STREAM.CONSUMER.DELIVERED.STREAM_SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING
    # $JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.DELIVERED.STREAM_SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING[.RANDOM]
    parts = reply.split(".")
    first = 5 if len(parts) == 9 else 7
    return int(parts[first]), int(parts[first + 1])

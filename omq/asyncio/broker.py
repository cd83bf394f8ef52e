"""The asyncio twin of `omq.broker`: the same client, whose calls are awaited.

import omq.asyncio.broker

async with omq.asyncio.broker.Client("tcp://127.0.0.1:5565") as client:
    await client.create("prices")
    await client.publish("prices", b"AAPL 189.95")
    async for message in await client.subscribe("prices", replay="earliest"):
        print(message.id, message.body)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omq.broker.client.async_connection import AsyncConnection
from omq.broker.client.async_streams import AsyncClosing
from omq.broker.client.async_streams import AsyncConsumer as Consumer
from omq.broker.client.async_streams import AsyncSubscription as Subscription
from omq.broker.client.calls import Calls
from omq.broker.client.connection import Role
from omq.broker.client.readers import BATCH_BYTES, PARTS, ColumnReader, RangeReader
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    BrokerTimeout,
    Busy,
    Damaged,
    NotLeader,
    Overrun,
    PermissionDenied,
    StoreFull,
    TakenOver,
    TopicError,
)
from omq.broker.server import AsyncServer as Server
from omq.broker.types import Columns, Committed, Delivery, DurableInfo, GroupInfo, Message, Record, Records, TopicInfo
from omq.context import Context
from omq.serving.cluster import Cluster

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from omq.types import Security

__all__ = [
    "BrokerError",
    "BrokerFailed",
    "BrokerTimeout",
    "Busy",
    "Client",
    "Cluster",
    "Columns",
    "Committed",
    "Consumer",
    "Damaged",
    "Delivery",
    "Message",
    "DurableInfo",
    "GroupInfo",
    "NotLeader",
    "Overrun",
    "PermissionDenied",
    "Record",
    "Records",
    "Server",
    "StoreFull",
    "Subscription",
    "TakenOver",
    "TopicError",
    "TopicInfo",
]


class Client(Calls[Subscription, Consumer], AsyncClosing):
    """A client of a broker; see `omq.broker.Client`.

    It belongs to the event loop of its first call, which starts to connect in the background.

    Args:
        endpoint: The endpoint of the broker's ZMTP listener. Of a cluster: those of some members, which the client
            tries in turn; it remembers those that a member names.
        timeout: Seconds that a call waits for the broker, also for a connection. `None` waits for ever; 0 never waits.
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

    _connection: AsyncConnection

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
        super().__init__(
            AsyncConnection(endpoint, timeout, context, {"security": security, **options}, role), Subscription, Consumer
        )

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
        """The id of the broker's store, which no other store has; empty before the first connection."""
        return self._connection.core.broker

    def read(
        self,
        topic: str,
        start: int | float | datetime | None = None,
        stop: int | float | datetime | None = None,
        *,
        limit: int | None = None,
    ) -> AsyncIterator[Message]:
        """Reads the messages that are kept now, in order; not awaited; see `omq.broker.Client.read`."""
        return self._read(RangeReader(self._connection, topic, start, stop, limit=limit))

    async def _read(self, reader: RangeReader) -> AsyncIterator[Message]:
        try:
            while (blocks := await reader.blocks()) is not None:
                for header, records in blocks:
                    for message in reader.messages(header, records):
                        yield message
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
    ) -> AsyncIterator[Columns]:
        """Reads the messages that are kept now, as columns; not awaited; see `omq.broker.Client.read_columns`."""
        reader = RangeReader(self._connection, topic, start, stop, whole=True)
        return self._read_columns(reader, ColumnReader(topic, batch_bytes, parts, memory))

    async def _read_columns(self, reader: RangeReader, columns: ColumnReader) -> AsyncIterator[Columns]:
        try:
            while True:
                try:
                    blocks = await reader.blocks()
                except BrokerError:
                    for batch in columns.rest():  # the records before the error
                        yield batch
                    raise
                if blocks is None:
                    break
                for header, records in blocks:
                    for batch in columns.add(header, records):
                        yield batch
            for batch in columns.rest():
                yield batch
        finally:
            reader.close()

    # ------------------------------------------------------------------ closing

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._connection.closed

    async def close(self) -> None:
        """Flushes acknowledgements, returns unread deliveries, and closes; see `omq.broker.Client.close`."""
        if not self._connection.closed and not self._connection.inherited:
            await self._connection.close()

    def __repr__(self) -> str:
        return f"<omq.asyncio.broker.Client {self.endpoint} {self._connection.state}>"

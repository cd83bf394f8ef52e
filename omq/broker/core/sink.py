"""The interface through which the core delivers."""

from __future__ import annotations

from typing import Literal, Protocol

from omq.broker.errors import BrokerError


class Sink(Protocol):
    """Takes what a subscription or a share delivers, for a server. All of it is called in the broker's loop.

    Attributes:
        listener: The server's name, for the statistics.
        user: The user id of its connection.
        peer: Where its client is.
    """

    listener: Literal["zmtp", "sexp"]
    user: str | None
    peer: str

    def room(self) -> int:
        """Returns the bytes of records that it takes now; at 0, `more` of the subscription is called once it has room.

        Shares count messages by themselves and ask only whether this is 0.
        """

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        """Takes a block.

        Args:
            header: 32 bytes; see docs/reference/broker-protocol.md.
            records: The store's own memory: valid until the call returns, and to be copied if they are to stay; unless
                they are a view over `bytes`.
            deliveries: A `u32` a record, which delivery this is; empty where all are 1, and for subscriptions.
        """

    def closed(self, error: BrokerError | None) -> None:
        """Ends: the topic is deleted, or cannot be read; `None` where the broker ends."""

"""The interfaces between the core and the clients of a server."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from omq.broker.errors import BrokerError


class ClientInfo(Protocol):
    """A client that sends a request.

    Attributes:
        user: The user id of its connection; `None` without one.
        peer: Its address.
    """

    user: str | None
    peer: str


def client_text(client: ClientInfo | None) -> str:
    """Returns a client as text for the log; `None` is the broker itself."""
    if client is None:
        return "the broker"
    return client.peer if client.user is None else f"{client.user} at {client.peer}"


def client_fields(client: ClientInfo | None) -> dict[str, Any]:
    """Returns the fields of a client in the log; empty for the broker itself."""
    return {} if client is None else {"user": client.user, "peer": client.peer}


class Sink(Protocol):
    """Receives the messages of one subscription or consumer. All methods are called in the broker's loop.

    Attributes:
        listener: The name of the server, for the statistics.
        user: The user id of the connection; `None` without one.
        peer: The address of the client.
    """

    listener: Literal["zmtp", "sexp"]
    user: str | None
    peer: str

    def room(self) -> int:
        """Returns the number of bytes of records that the sink accepts now.

        After it has returned 0, the sink calls `resume` of its subscription, or `more` of its consumer, once it has
        room. A consumer counts messages by its own credit and only compares the result with 0.
        """

    def send_block(self, header: bytes, records: memoryview, deliveries: bytes) -> None:
        """Sends a block of records to the client.

        Args:
            header: 32 bytes; see docs/reference/broker-protocol.md.
            records: The store's own memory, valid until the call returns. A sink that keeps it copies it, unless it is
                a view over `bytes`.
            deliveries: The delivery count of each record as `u32`; empty if all are 1, and for subscriptions.
        """

    def closed(self, error: BrokerError | None) -> None:
        """Reports that the delivery has ended.

        Args:
            error: The reason: the topic was deleted, cannot be read or is no longer permitted, or a send failed;
                `None` if the broker stops.
        """

"""A received message with what is known about its sender."""

from __future__ import annotations

from dataclasses import dataclass, field

from omq.errors import MultipartError


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A snapshot of one peer.

    Attributes:
        endpoint: The endpoint that it came through or was reached at.
        mechanism: The security mechanism in force, `"NULL"` for none; empty over inproc.
        identity: The name that it gave itself, or that a ROUTER gave it; empty for none.
        user_id: The name that authentication found for it; `None` without authentication.
        properties: Its metadata, by lower-case name.
        messages_in: Messages received from it.
        messages_out: Messages accepted for it.
        bytes_in: Bytes received from it.
        bytes_out: Bytes that left for it.
        dropped: Messages that were not sent to it because it was full. Of a bound udp endpoint: datagrams that came and
            were malformed, or larger than `max_message_size`.
        since: When its handshake was done: seconds since the epoch.
    """

    endpoint: str
    mechanism: str
    identity: bytes
    user_id: str | None
    properties: dict[bytes, bytes] = field(default_factory=dict)
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message.

    Attributes:
        parts: Its parts, as `recv_multipart` gives them.
        peer: Its sender.
        group: The group of a RADIO's message, else `None`. Bytes that are not UTF-8 stand as surrogates (PEP 383), so
            the name can be given to `send`, `join` and `leave`.
        routing_id: The sender's number on SERVER and PEER, else `None`.
    """

    parts: list[bytes]
    peer: PeerInfo
    group: str | None = None
    routing_id: int | None = None

    @property
    def body(self) -> bytes:
        """The only part.

        Raises:
            MultipartError: The message has several parts.
        """
        if len(self.parts) != 1:
            raise MultipartError(f"the message has {len(self.parts)} parts: see Message.parts")
        return self.parts[0]

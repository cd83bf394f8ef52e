"""A received message with its sender, and the statistics of a socket."""

from __future__ import annotations

from dataclasses import dataclass, field

from omq.errors import MultipartError


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A snapshot of one peer.

    Attributes:
        endpoint: The endpoint through which it connected, or at which it was reached.
        mechanism: The security mechanism in force, `"NULL"` for none; empty over inproc.
        identity: The identity that it gave itself, or that a ROUTER gave it; empty for none.
        user_id: The user id that authentication found; `None` without authentication.
        properties: Its metadata by lower-case name.
        messages_in: Messages received from it.
        messages_out: Messages accepted for it.
        bytes_in: Bytes received from it.
        bytes_out: Bytes sent to it.
        dropped: Messages not sent to it because its queue was full. For a bound udp endpoint: datagrams that arrived
            malformed, or larger than `max_message_size`.
        since: The time when its handshake finished, in seconds since the epoch.
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
class SocketStats:
    """The statistics of a socket, with those of peers that have gone. A message of several parts counts as one.

    Attributes:
        messages_sent: Messages that have left: the kernel has them, or an inproc peer. One for each peer that gets it.
        messages_received: Messages that have arrived, also those that wait to be received.
        sent_bytes: Bytes that have left, with framing and commands; over inproc those of the messages.
        received_bytes: Bytes that have arrived, likewise.
        messages_dropped: Messages that the socket has accepted or received, and dropped.
        send_queue_messages: Accepted messages that have not left.
        recv_queue_messages: Messages that can be received.
        reconnects: Connections that connected endpoints have got after their first ones.
        handshake_failures: Handshakes that have failed, apart from those that this side has given up.
        peers: Peers that have finished the handshake.
    """

    messages_sent: int
    messages_received: int
    sent_bytes: int
    received_bytes: int
    messages_dropped: int
    send_queue_messages: int
    recv_queue_messages: int
    reconnects: int
    handshake_failures: int
    peers: int


@dataclass(frozen=True, slots=True)
class Message:
    """A received message.

    Attributes:
        parts: Its parts, as `recv_multipart` returns them.
        peer: Its sender.
        group: The group of a message from a RADIO, else `None`. Bytes that are not UTF-8 appear as surrogates (PEP
            383), so that `send`, `join` and `leave` accept the name.
        routing_id: The sender's number on SERVER and PEER, else `None`.
    """

    parts: list[bytes]
    peer: PeerInfo
    group: str | None = None
    routing_id: int | None = None

    @property
    def body(self) -> bytes:
        """The content of a message with one part.

        Raises:
            MultipartError: The message has several parts.
        """
        if len(self.parts) != 1:
            raise MultipartError(f"the message has {len(self.parts)} parts: see Message.parts")
        return self.parts[0]

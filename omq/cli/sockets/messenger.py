"""Sends and receives the messages of a socket in the form of input and output: the first part may name the peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import omq
from omq.cli.sockets.formats import InvalidMessage, Parts, parts_of
from omq.types import TRAITS, Route, SocketType

BATCH_MESSAGES: Final = 1000  # that are sent or printed together
#: Types whose received messages begin with the name of the peer.
NAMES_PEER: Final = (SocketType.ROUTER, SocketType.STREAM)


class Messenger:
    """Sends and receives for a command.

    Args:
        socket: The socket.
        timeout: Seconds that each message may wait; `None` for ever.
        group: The group of all sent messages; `None`: the first part of each.
        peer: The peer of all sent messages, the number or the name; `None`: the first part of each.
    """

    def __init__(
        self, socket: omq.Socket, timeout: float | None, group: str | None = None, peer: int | bytes | None = None
    ) -> None:
        self.socket = socket
        self.timeout = timeout
        self._kind = socket.socket_type
        self._route = TRAITS[self._kind].route
        self._has_envelope = self._route is not None or self._kind is SocketType.DISH
        self._group = group
        self._peer = peer

    def send(self, messages: list[Parts]) -> None:
        """Sends messages.

        Raises:
            InvalidMessage: A message does not begin with its peer.
            SendTimeout: There was no room for one in time.
        """
        if self._route is None and self._peer is None:
            sent = 0
            while sent < len(messages):
                sent += self.socket.send_many(messages[sent:], timeout=self.timeout)
            return
        for message in messages:
            self._send_to(parts_of(message))

    def _send_to(self, parts: list[bytes]) -> None:
        send: Callable[..., Any] = self.socket.send_multipart
        if self._route is Route.GROUP:
            group, parts = (self._group, parts) if self._group is not None else (parts[0], parts[1:])
            send(_body(parts), group=group, timeout=self.timeout)
        elif self._route is Route.ROUTING_ID:
            number, parts = (self._peer, parts) if self._peer is not None else (_number(parts[0]), parts[1:])
            send(_body(parts), routing_id=number, timeout=self.timeout)
        else:
            send([self._peer, *parts], timeout=self.timeout)

    def receive(self) -> list[Parts]:
        """Waits for messages, and returns those that are there.

        Raises:
            ReceiveTimeout: There is not any in time.
        """
        if not self._has_envelope:
            return self.socket.recv_many(BATCH_MESSAGES, timeout=self.timeout)
        message = self.socket.recv_message(timeout=self.timeout)
        if message.group is not None:
            return [[message.group.encode(errors="surrogateescape"), *message.parts]]
        return [[str(message.routing_id).encode(), *message.parts]]

    def receive_one(self) -> Parts:
        """Waits for one message; see `receive`."""
        if self._has_envelope:
            return self.receive()[0]
        parts = self.socket.recv_multipart(timeout=self.timeout)
        return parts if len(parts) > 1 else parts[0]

    def split(self, message: Parts) -> tuple[list[bytes], list[bytes]]:
        """Returns the parts of a received message that lead back to its sender, and the others."""
        parts = parts_of(message)
        if self._kind in NAMES_PEER or self._route is Route.ROUTING_ID:
            count = 2 if self._kind is SocketType.ROUTER and parts[1:2] == [b""] else 1
            return parts[:count], parts[count:]
        return [], parts


def _body(parts: list[bytes]) -> list[bytes]:
    if not parts:
        raise InvalidMessage("a message has its peer or group as the first part, and a body after it")
    return parts


def _number(part: bytes) -> int:
    if not part.isdigit():
        raise InvalidMessage(f"{part[:40]!r}: the first part must be the number of a peer")
    return int(part)

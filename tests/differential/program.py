"""A program for a few sockets, as plain values: what it prints as can be pasted into a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.socket_types import ONE_PART

#: (seat, verb, arguments). The verbs:
#: - `bind`, `unbind`, `connect`, `disconnect`: the number of a place;
#: - `send`: the parts; `answer`: the parts behind the envelope of a ROUTER's last message; `late`: of the one before;
#: - `burst`: a number of messages of a size in a row; `leave`: the same to a place that is then disconnected;
#: - `recv`: one message; `drain`: all; `newest`: all, but the result is only the last and whether any was missing;
#: - `subscribe`, `unsubscribe`: a prefix, or the group of a DISH; `set`: an option and its value;
#: - `restart`: the socket is closed and opened again at the same places; `close`: the seconds to linger.
#: A peer's number (SERVER, PEER) and a group (RADIO, DISH) stand before the part as a part of their own.
Step = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """The sockets of a program, and their steps, one after the other.

    Attributes:
        transport: `tcp` or `inproc`.
        seats: The type and the options of each socket, by its name.
        steps: What they do.
        redials: Whether a connection that has ended is dialled again.
    """

    transport: str
    seats: dict[str, tuple[str, dict[str, Any]]]
    steps: list[Step] = field(default_factory=list)
    redials: bool = True

    @property
    def reference(self) -> str:
        """The library that the others are compared to: libzmq, or one of omq's twins where pyzmq lacks the types."""
        return "omq" if any(kind in ONE_PART for kind, _ in self.seats.values()) else "libzmq"

    def kind(self, seat: str) -> str:
        """The type of a seat's socket."""
        return self.seats[seat][0]

    def options(self, seat: str) -> dict[str, Any]:
        """The options of a seat's socket."""
        return self.seats[seat][1]

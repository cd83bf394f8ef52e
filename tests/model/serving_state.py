"""The model of which thread serves a socket: the case, and the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NO_CALLER = -1
EVENT = "event"  # the eventfd's place among what the epoll set reports
ROOM = "room"  # likewise EPOLLOUT
MAX_LOOKS = 2  # of the I/O thread, after which an event must have been served
OUT, SIGNALS, HANDLER, EPOLL, AWAKE, FOLLOW, LATE = "out", "signals", "handler", "epoll", "awake", "follow", "late"
SLOWER = {"soon": "twice", "twice": "late", "late": "late"}  # each pause is twice as long as the one before
TAKES = ("recv", "timed", "recv0")
SHOWS = ("shown", "readable")  # what a descriptor of the user's is; else there is "none", or it was "released"
SERVING = (SIGNALS, EPOLL, AWAKE)  # where a leader is one


@dataclass(frozen=True)
class Case:
    """The threads and peers of a case, and what they may do.

    Attributes:
        calls: What each caller may call, again and again: recv, timed, recv0, poll, poll0, send, fileno,
            release.
        peers: Messages that each peer sends.
        hwm: Messages that wait to be taken at which reading stops; 0 never.
        gulp: Whether one read takes all that has arrived, and not one message.
        turn: Messages that a turn has, and that are taken between two looks at the epoll set.
        works: Whether callers may work long on what they take.
        closes: Whether the socket is closed at some time.
        sleeps_long: Whether every sleep in the epoll set is a long one, or none.
        room: How often the peer that is written makes room, after the first message.
        main: The caller that signals interrupt: others run while it looks for them. NO_CALLER: none come.
        nested: A caller that is the handler of that one's signals: it calls in the middle of a call. NO_CALLER: no
            handler calls.
        mutation: What is not as in the code; empty: nothing.
    """

    calls: tuple[tuple[str, ...], ...]
    peers: tuple[int, ...] = (1,)
    hwm: int = 0
    gulp: bool = False
    turn: int = 2
    works: bool = False
    closes: bool = False
    sleeps_long: bool = False
    room: int = 0
    main: int = NO_CALLER
    nested: int = NO_CALLER
    mutation: str = ""


class ModelState:
    """The state, to be worked on. Lists have an entry for each caller, or for each peer."""

    def __init__(self, values: Any) -> None:
        self.__dict__ = dict(zip(NAMES, values, strict=True))
        for name in LISTS:
            self.__dict__[name] = list(self.__dict__[name])

    def freeze(self) -> tuple[Any, ...]:
        return tuple([tuple(value) if type(value) is list else value for value in self.__dict__.values()])


NAMES = (
    "sends", "kernel", "complete", "taken", "reading", "stopped", "ring", "turn", "sight", "last", "behind",
    "at", "op", "leading", "woken", "sem", "in_time", "seen", "readable", "writable", "leader", "event", "signalled",
    "inside", "ending", "closed", "open", "readable_event", "called", "watched", "dismissed", "drowsy", "roused",
    "fresh", "io", "changed", "watches", "reader", "timer", "pause", "alarm", "bell", "stopped_io", "looks", "put_off",
    "room", "rooms", "blocked",
)  # fmt: skip
LISTS = (
    "sends", "kernel", "complete", "taken", "reading", "stopped", "ring", "at", "op", "leading", "woken", "sem",
    "in_time", "seen", "readable", "writable", "bell",
)  # fmt: skip
START: dict[str, Any] = {
    "ring": (), "last": NO_CALLER, "behind": False, "readable": (), "writable": (), "leader": NO_CALLER,
    "event": False, "signalled": False, "inside": 0, "ending": False, "closed": False, "open": True,
    "readable_event": "none", "called": False,
    "watched": True, "dismissed": False, "drowsy": False, "roused": False, "fresh": False, "io": "idle",
    "changed": False,
    "watches": True, "reader": True, "timer": "none", "pause": "soon", "alarm": False, "bell": (), "stopped_io": False,
    "looks": 0, "put_off": False, "room": True, "blocked": False,
}  # fmt: skip

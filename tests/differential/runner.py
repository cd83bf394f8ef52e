"""Runs a program and reports what was to be seen of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omq.types import POLL_IN, POLL_OUT
from tests.differential.endpoints import EndpointTable
from tests.differential.libraries import LIBRARIES, Held, judge
from tests.differential.program import Program, Step
from tests.differential.quiescence import settle
from tests.differential.topology import Topology
from tests.support.socket_types import NUMBERED

CONNECTED_WITHIN = 1.0  # seconds within which a client has reached an endpoint with a listener

NUMBER = 4  # octets of a correlated request's number

Message = tuple[bytes, ...]


@dataclass(frozen=True)
class Seen:
    """The results of one step, when everything was quiet again.

    Attributes:
        outcome: `ok`, the class of the error, the message, or the messages.
        events: The result of poll for each socket.
        links: The connections at each place.
    """

    outcome: Any
    events: dict[str, str]
    links: dict[int, int]


@dataclass
class _Seat:
    kind: str
    held: Held
    bound: list[int] = field(default_factory=list)
    dialled: list[int] = field(default_factory=list)
    envelopes: list[Message] = field(default_factory=list)  # of the messages that were received
    closed: bool = False


class Run:
    """One run of a program.

    Args:
        program: The program.
        seating: The name of each seat's library.
    """

    def __init__(self, program: Program, seating: Mapping[str, str]) -> None:
        self._program = program
        self._places = EndpointTable(program.transport)
        self._libraries = {name: LIBRARIES[name]() for name in sorted(set(seating.values()))}
        self._attendants = frozenset[int]().union(*(one.attendants for one in self._libraries.values()))
        self._seating = seating
        self._seats: dict[str, _Seat] = {}
        self._standing = Topology(program)
        # A STREAM has closed a peer: how many connections there are, the program alone does not have any more.
        self._dismissed = False

    def run(self) -> list[Seen]:
        """Runs it to its end; the last of what was seen is what every socket had still to report."""
        try:
            for seat in self._program.seats:
                self._seats[seat] = _Seat(self._program.kind(seat), self._open(seat))
            seen = [self._take(step) for step in self._program.steps]
            rest = {name: self._drained(seat) for name, seat in self._seats.items() if not seat.closed}
            return [*seen, self._look(rest)]
        finally:
            for library in self._libraries.values():
                library.close()
            self._places.close()

    def _open(self, seat: str) -> Held:
        library = self._libraries[self._seating[seat]]
        redials = self._program.redials
        return library.open(self._program.kind(seat), self._program.options(seat), redials)

    # ------------------------------------------------------------------ steps

    def _take(self, step: Step) -> Seen:
        name, verb, *arguments = step
        seat = self._seats[name]
        if seat.closed:
            return self._look("closed", step)
        try:
            outcome = getattr(self, f"_do_{verb}")(name, seat, *arguments)
        except Exception as error:
            outcome = judge(error)
        return self._look("ok" if outcome is None else outcome, step)

    def _do_bind(self, name: str, seat: _Seat, place: int) -> None:
        seat.held.bind(self._places.endpoint(place))
        seat.bound.append(place)

    def _do_unbind(self, name: str, seat: _Seat, place: int) -> None:
        seat.held.unbind(self._places.endpoint(place))
        seat.bound.remove(place)

    def _do_connect(self, name: str, seat: _Seat, place: int) -> None:
        seat.held.connect(self._places.endpoint(place))
        seat.dialled.append(place)

    def _do_disconnect(self, name: str, seat: _Seat, place: int) -> None:
        seat.held.disconnect(self._places.endpoint(place))
        seat.dialled.remove(place)

    def _do_send(self, name: str, seat: _Seat, *parts: bytes) -> None:
        seat.held.send(*parts)

    def _do_burst(self, name: str, seat: _Seat, count: int, size: int) -> None:
        for number in range(count):
            seat.held.send((b"#%s%d " % (name.encode(), number)).ljust(size, b"."))

    def _do_newest(self, name: str, seat: _Seat) -> tuple[bytes, str]:
        numbers = [int(message[-1].split()[0][2:]) for message in self._drained(seat)]
        if not numbers:
            return b"none", ""
        every = numbers == list(range(numbers[-1] + 1))
        return b"%d" % numbers[-1], "and all before" if every else "and not all before"

    def _do_leave(self, name: str, seat: _Seat, place: int, count: int, size: int) -> None:
        self._do_burst(name, seat, count, size)
        self._do_disconnect(name, seat, place)

    def _do_answer(self, name: str, seat: _Seat, *parts: bytes) -> str | None:
        return self._answer(seat, -1, parts)

    def _do_late(self, name: str, seat: _Seat, *parts: bytes) -> str | None:
        return self._answer(seat, -2, parts)

    def _answer(self, seat: _Seat, which: int, parts: Message) -> str | None:
        if len(seat.envelopes) < -which:
            return "absent"
        self._dismissed = self._dismissed or (seat.kind == "STREAM" and parts == (b"",))
        seat.held.send(*seat.envelopes[which], *parts)
        return None

    def _do_recv(self, name: str, seat: _Seat) -> Message:
        return self._received(seat)

    def _do_drain(self, name: str, seat: _Seat) -> list[Message]:
        return self._drained(seat)

    def _do_subscribe(self, name: str, seat: _Seat, prefix: bytes) -> None:
        seat.held.subscribe(prefix)

    def _do_unsubscribe(self, name: str, seat: _Seat, prefix: bytes) -> None:
        seat.held.unsubscribe(prefix)

    def _do_set(self, name: str, seat: _Seat, option: str, value: Any) -> None:
        seat.held.set(option, value)

    def _do_restart(self, name: str, seat: _Seat) -> None:
        seat.held.close(0)
        seat.closed = True
        self._settle()
        seat.held, seat.closed = self._open(name), False
        for place in seat.bound:
            seat.held.bind(self._places.endpoint(place))
        for place in seat.dialled:
            seat.held.connect(self._places.endpoint(place))

    def _do_close(self, name: str, seat: _Seat, linger: float) -> None:
        seat.closed = True
        seat.held.close(linger)

    def _received(self, seat: _Seat) -> Message:
        parts = seat.held.recv()
        if seat.kind in (*NUMBERED, "STREAM"):
            seat.envelopes.append((parts[0],))
            return b"?", *parts[1:]
        if seat.kind != "ROUTER":
            return tuple(parts)
        head = parts.index(b"", 1) + 1 if b"" in parts[1:-1] else 1
        seat.envelopes.append(tuple(parts[:head]))
        # What a ROUTER made up as a name, and a REQ as the number of a request, shows only that it is there.
        if parts[0][:1] == b"\0":
            parts[0] = b"?"
        if len(parts) > 3 and head == 3 and len(parts[1]) == NUMBER:
            parts[1] = b"?"
        return tuple(parts)

    def _drained(self, seat: _Seat) -> list[Message]:
        """Everything that comes, also what there was no room for before; the bytes of a STREAM's peer as one."""
        taken: list[Message] = []
        known = len(seat.envelopes)
        while True:
            before = len(taken)
            try:
                while True:
                    taken.append(self._received(seat))
            except Exception as error:
                judge(error)
            if len(taken) == before:
                if seat.kind == "STREAM":
                    taken = _joined(seat.envelopes[known:], taken)
                # Whose turn it was is each library's own affair: what is answered must not depend on it.
                seat.envelopes[known:] = sorted(seat.envelopes[known:])
                return taken
            self._settle()

    # ------------------------------------------------------------------ looking

    def _look(self, outcome: Any, step: Step | None = None) -> Seen:
        if step is not None:
            self._standing.take(step)
        wanted = self._standing.links() if self._program.transport == "tcp" and not self._dismissed else {}
        end = time.monotonic() + CONNECTED_WITHIN
        while True:
            before = self._places.links()
            events = self._settle()
            links = self._places.links()
            there = before == links and all(links[place] >= number for place, number in wanted.items())
            if there or time.monotonic() > end:
                return Seen(outcome, events, {place: links[place] for place in wanted})

    def _settle(self) -> dict[str, str]:
        return dict(settle(self._events, self._attendants))

    def _events(self) -> dict[str, str]:
        return {name: _words(seat.held.events()) for name, seat in self._seats.items() if not seat.closed}


def _joined(peers: list[Message], taken: list[Message]) -> list[Message]:
    """Gives what a STREAM has received, peer by peer: the bytes between two notices are one message."""
    found: dict[Message, list[bytes]] = {}
    for peer, (_, body) in zip(peers, taken, strict=True):
        bodies = found.setdefault(peer, [])
        if body and bodies and bodies[-1]:
            bodies[-1] += body
        else:
            bodies.append(body)
    return [(b"?", body) for bodies in found.values() for body in bodies]


def _words(events: int) -> str:
    return ("in " if events & POLL_IN else "") + ("out" if events & POLL_OUT else "")


def run(program: Program, seating: Mapping[str, str] | str) -> list[Seen]:
    """Runs a program.

    Args:
        program: The program.
        seating: The name of each seat's library, or of everybody's.
    """
    if isinstance(seating, str):
        seating = dict.fromkeys(program.seats, seating)
    return Run(program, seating).run()

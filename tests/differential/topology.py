"""The connections at a step of a program, as far as the program alone determines them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.differential.program import Program, Step

_DIALS_ONCE = {"DEALER", "PUB", "REQ", "SUB"}  # `is_single_connect`, socket_base.cpp


@dataclass
class _Dial:
    """One `connect` that was not undone."""

    seat: str
    place: int
    peer: str | None = None
    spent: bool = False  # it was connected once, and is not dialled again


@dataclass
class Topology:
    """The state after some steps of a program.

    Attributes:
        program: The program.
        bound: Who listens at which place.
        dials: Every `connect` in force.
        closed: Who has closed its socket.
        parted: Who has lost a peer, or was left by one, at some time.
        cut: Who was connected when a `disconnect` ended that, on either side.
        returned: The clients of an endpoint whose listener left and came back, or may.
        undone: The clients that took a `connect` back before there was a listener.
        kept: Who was connected at a place, on either side, when that was unbound.
    """

    program: Program
    bound: dict[int, str] = field(default_factory=dict)
    dials: list[_Dial] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    parted: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)

    def peers(self, seat: str) -> list[str]:
        """Whom a seat is connected to."""
        found = [dial.peer for dial in self.dials if dial.seat == seat]
        found += [dial.seat for dial in self.dials if dial.peer == seat]
        return [peer for peer in found if peer is not None]

    def links(self) -> dict[int, int]:
        """Returns the number of connections at each place with a listener."""
        met = [(dial.place, dial.peer) for dial in self.dials]
        return {place: met.count((place, who)) for place, who in self.bound.items()}

    def take(self, step: Step) -> None:
        """Goes one step on."""
        seat, verb, *arguments = step
        if seat in self.closed:
            return
        place = arguments[0] if arguments else 0
        if verb == "bind" and place not in self.bound:
            self.bound[place] = seat
        elif verb == "unbind" and self.bound.get(place) == seat:
            del self.bound[place]
            for dial in self.dials:
                if dial.place == place and dial.peer == seat:
                    self.kept |= {dial.seat, seat}
        elif verb == "connect":
            if not self._ignores(seat, place):
                self.dials.append(_Dial(seat, place))
        elif verb in ("disconnect", "leave"):
            self._disconnect(seat, place)
        elif verb == "close":
            self.closed.add(seat)
            self.bound = {where: who for where, who in self.bound.items() if who != seat}
            self._part(seat)
            self.dials = [dial for dial in self.dials if dial.seat != seat]
        elif verb == "restart":
            self._part(seat)
            for dial in self.dials:
                dial.spent = dial.spent and dial.seat != seat
        self._meet()

    def _ignores(self, seat: str, place: int) -> bool:
        """Returns whether a second `connect` to a place has no effect."""
        if self.program.transport == "inproc" or self.program.kind(seat) not in _DIALS_ONCE:
            return False
        return any((dial.seat, dial.place) == (seat, place) for dial in self.dials)

    def _disconnect(self, seat: str, place: int) -> None:
        for dial in reversed(self.dials):
            if dial.seat == seat and dial.place == place:
                self.dials.remove(dial)
                if dial.peer is None:
                    self.undone.add(seat)
                else:
                    self.parted |= {seat, dial.peer}
                    self.cut |= {seat, dial.peer}
                return

    def _part(self, seat: str) -> None:
        for dial in self.dials:
            if dial.peer is not None and seat in (dial.seat, dial.peer):
                self.parted |= {dial.seat, dial.peer}
                if dial.seat != seat:
                    self.returned.add(dial.seat)
                dial.peer = None
                dial.spent = not self.program.redials

    def _meet(self) -> None:
        for dial in self.dials:
            if dial.peer is None and not dial.spent:
                dial.peer = self.bound.get(dial.place)
                if dial.peer is not None:
                    self._push_out(dial)

    def _push_out(self, heir: _Dial) -> None:
        """Disconnects the peer whose identity a new peer takes; over tcp it dials again and takes it back."""
        assert heir.peer is not None
        options = self.program.options
        identity = options(heir.seat).get("identity")
        if self.program.transport != "inproc" or not identity or not options(heir.peer).get("router_handover"):
            return
        for dial in self.dials:
            if dial is not heir and dial.peer == heir.peer and options(dial.seat).get("identity") == identity:
                self.parted |= {dial.seat, heir.peer}
                dial.peer, dial.spent = None, True


def standing(program: Program, steps: int) -> Topology:
    """Returns the state after the first *steps* steps."""
    found = Topology(program)
    for step in program.steps[:steps]:
        found.take(step)
    return found

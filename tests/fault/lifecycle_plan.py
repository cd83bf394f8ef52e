"""The plan of one lifecycle: some sockets and a list of steps, all of it from a seed.

A plan knows nothing of what its steps will meet: a step that makes no sense when its time comes (an unbind of what is
not bound) is made all the same, and has to fail as documented.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.socket_types import HELLO, ONE_PEER

#: Who may talk to whom; the first is on the left.
PATTERNS: dict[tuple[str, str], int] = {
    ("PUSH", "PULL"): 6,
    ("DEALER", "ROUTER"): 4,
    ("REQ", "REP"): 3,
    ("PUB", "SUB"): 4,
    ("PAIR", "PAIR"): 2,
    ("DEALER", "DEALER"): 2,
    ("XPUB", "XSUB"): 2,
    ("DEALER", "REP"): 1,
    ("REQ", "ROUTER"): 2,
    ("ROUTER", "ROUTER"): 1,
    ("SCATTER", "GATHER"): 2,
    ("CLIENT", "SERVER"): 4,
    ("CHANNEL", "CHANNEL"): 2,
    ("PEER", "PEER"): 3,
    ("RADIO", "DISH"): 3,
    # STREAM has no messages that could be counted: tests/interop/test_stream_same.py plays it by chance.
}
RECEIVES = {"PULL", "DEALER", "ROUTER", "REQ", "REP", "SUB", "PAIR", "XSUB", "XPUB"}
RECEIVES |= {"GATHER", "CLIENT", "SERVER", "CHANNEL", "PEER", "DISH"}
SENDS = {"PUSH", "DEALER", "ROUTER", "REQ", "REP", "PUB", "PAIR", "XPUB"}
SENDS |= {"SCATTER", "CLIENT", "SERVER", "CHANNEL", "PEER", "RADIO"}
#: Types that send to all their peers.
FANS_OUT = {"PUB", "XPUB", "RADIO"}
#: Their sockets keep what no peer takes; the others drop.
KEEPS = {"PUSH", "DEALER", "PAIR", "SCATTER", "CLIENT", "CHANNEL"}
#: Sockets of these sides keep what is sent until it is received.
LOSSLESS = {("PUSH", "PULL"), ("DEALER", "ROUTER"), ("DEALER", "DEALER"), ("PAIR", "PAIR")}
LOSSLESS |= {("SCATTER", "GATHER"), ("CLIENT", "SERVER"), ("CHANNEL", "CHANNEL")}
TRANSPORTS = ("tcp", "tcp", "ipc", "inproc")
HWMS = (1, 2, 10, 1000, 0)
TIMEOUTS = (0, 0, 0.0005, 0.002)
LINGERS = (0, 0, 0.001, 0.01)
SIZES = (0, 1, 10, 300, 3000, 5000, 20000, 200000)


@dataclass(frozen=True)
class Role:
    """A socket that is to be made: which side it is on, its type and options."""

    side: int
    kind: str
    options: dict[str, Any]
    owned: bool  # by a task group, in the asyncio twin


@dataclass(frozen=True)
class Step:
    """One thing to do: *what*, by which role, with what."""

    what: str
    who: int
    peer: int = 0
    amount: int = 0
    timeout: float | None = 0
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.who} peer={self.peer} amount={self.amount} timeout={self.timeout} {self.how}"


@dataclass(frozen=True)
class Plan:
    """One lifecycle.

    Attributes:
        calm: No step kills, resets or disconnects: then every message that was accepted has to come.
        own_context: Whether the sockets have a context of their own, which is terminated at the end.
        clean: Whether the survivors part before they meet again for the last exchange.
        proxied: Whether connections may go through the fault proxy.
    """

    seed: int
    transport: str
    calm: bool
    own_context: bool
    clean: bool
    proxied: bool
    cast: Sequence[Role]
    steps: Sequence[Step]
    ending: Sequence[Step]

    @property
    def kinds(self) -> tuple[str, str]:
        """The types of the two sides."""
        return self.cast[0].kind, self.cast[-1].kind

    @property
    def lossless(self) -> bool:
        """Returns whether every message that was accepted has to arrive."""
        # Of two PAIRs that dial each other both may turn one connection away that the other has begun to use.
        return self.calm and self.kinds in LOSSLESS and not (self.one_peer and self.count("connect") > 1)

    @property
    def one_peer(self) -> bool:
        """Returns whether each socket has one peer at a time."""
        return self.kinds[0] in ONE_PEER

    def count(self, *whats: str) -> int:
        """Returns the number of steps of these kinds."""
        return sum(step.what in whats for step in self.steps)

    @property
    def streams(self) -> int:
        """Returns how many connections there can be between two sockets at most."""
        kills = sum(STEPS[step.what][1] for step in self.steps)
        return (1 + self.count("connect")) * (1 + kills)


#: What a step may be, how often, and whether it can cost a connection.
STEPS: dict[str, tuple[int, bool]] = {
    "bind": (6, False),
    "connect": (8, False),
    "unbind": (2, False),
    "disconnect": (3, True),
    "send": (14, False),
    "send_multipart": (6, False),
    "send_many": (4, False),
    "recv": (10, False),
    "recv_multipart": (4, False),
    "recv_many": (4, False),
    "recv_into": (2, False),
    "recv_message": (2, False),
    "poll": (3, False),
    "stream": (6, False),  # sends in the background
    "drain": (6, False),  # receives in the background
    "cancel": (5, False),  # of something in the background
    "wait_for": (3, False),  # receives, and is cut off
    "wait_connected": (3, False),
    "pause": (6, False),
    "look": (2, False),
    "subscribe": (4, False),
    "unsubscribe": (1, False),
    "hwm": (1, False),
    "restart": (3, True),
    "close": (2, True),
    "stop": (2, True),
    "orphan": (1, True),
    "reset": (4, True),
    "drop": (2, True),
    "half_close": (1, True),
    "stall": (2, True),
    "release": (2, False),
    "split": (1, False),
    "swallow": (1, True),
}


def _options(chance: random.Random, kinds: tuple[str, str], side: int, calm: bool) -> dict[str, Any]:
    kind = kinds[side]
    options: dict[str, Any] = {"reconnect_interval": chance.choice([0.002, 0.005, (0.001, 0.008), 0.003])}
    if kind in SENDS:
        options["send_hwm"] = chance.choice(HWMS)
    if kind in RECEIVES:
        options["recv_hwm"] = chance.choice(HWMS)
    if not calm and chance.random() < 0.2:
        # An end that gives up may do so when the other one is through, and has sent something.
        options["handshake_timeout"] = chance.choice([0.01, 0.05, None])
    if chance.random() < 0.15:
        options["connect_timeout"] = 0.02
    if chance.random() < 0.2:
        # A busy machine is to end no connection in the last exchange: PINGs are many, and timeouts are long.
        options.update(heartbeat_interval=chance.choice([0.002, 0.01, 0.05]), heartbeat_timeout=5.0)
    rare: dict[str, list[tuple[str, Any]]] = {
        "PUSH": [("immediate", True)],
        "DEALER": [("immediate", True), ("identity", b"one"), ("identity", b"%d" % side)],
        "REQ": [("req_relaxed", True), ("req_correlate", True), ("identity", b"one")],
        "ROUTER": [("router_mandatory", True), ("router_handover", True), ("identity", b"r%d" % side)],
        "XPUB": [("xpub_verbose", True), ("xpub_nodrop", True)],
        "PUB": [("xpub_nodrop", True)],
        "SCATTER": [("immediate", True)],
        "CLIENT": [("immediate", True), ("hello_message", HELLO), ("hiccup_message", HELLO)],
        "SERVER": [("hello_message", HELLO), ("disconnect_message", HELLO)],
        "PEER": [("disconnect_message", HELLO), ("hiccup_message", HELLO)],
        "DISH": [("join", b"A")],
    }
    if kind == "PEER":
        options["hello_message"] = HELLO  # its peers know its number from a message only
    for name, value in rare.get(kind, []):
        if name == "req_correlate" and "ROUTER" in kinds:
            continue  # a caller that answers by hand would have to send the number back
        # A ROUTER lets the second connection of one name wait for as long as the first lasts, or ends the first.
        if chance.random() < 0.2 and not (calm and name in ("router_handover", "identity")):
            options[name] = value
    return options


def make(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    kinds = chance.choices(list(PATTERNS), list(PATTERNS.values()))[0]
    transport = chance.choice(TRANSPORTS)
    calm = chance.random() < 0.3
    numbers = (1, 1) if kinds[0] in ONE_PEER and calm else (chance.choice([1, 1, 2]), chance.choice([1, 1, 2, 3]))
    cast = [
        Role(side, kinds[side], _options(chance, kinds, side, calm), chance.random() < 0.3)
        for side in (0, 1)
        for _ in range(numbers[side])
    ]
    proxied = transport != "inproc" and not calm and chance.random() < 0.5
    known = [what for what, (_, kills) in STEPS.items() if not (kills and calm)]
    weights = [STEPS[what][0] for what in known]
    steps = [_meet(chance, cast, side) for side in (0, 1)]
    chance.shuffle(steps)
    steps += [_step(chance, what, cast) for what in chance.choices(known, weights, k=chance.randrange(4, 40))]
    return Plan(
        seed, transport, calm, chance.random() < 0.1, chance.random() < 0.5, proxied, cast, steps, _ending(chance, cast)
    )


def _meet(chance: random.Random, cast: Sequence[Role], side: int) -> Step:
    """The step with which a side enters: it binds, or connects, in either order."""
    mine = [number for number, role in enumerate(cast) if role.side == side]
    theirs = [number for number, role in enumerate(cast) if role.side != side]
    binds = (side == 0) == (len(mine) % 2 == 0)
    return Step("bind" if binds else "connect", chance.choice(mine), chance.choice(theirs))


def _step(chance: random.Random, what: str, cast: Sequence[Role]) -> Step:
    who = chance.randrange(len(cast))
    others = [number for number, role in enumerate(cast) if role.side != cast[who].side]
    how = ""
    if what in ("close", "restart"):
        how = chance.choice(["stop", "close"])
    elif what == "half_close":
        how = chance.choice(["up", "down"])
    elif what in ("send", "send_multipart", "stream"):
        how = str(chance.choice(SIZES))
    timeout: float | None = chance.choice(LINGERS if what in ("close", "restart") else TIMEOUTS)
    return Step(what, who, chance.choice(others), chance.choice([1, 2, 3, 10, 40]), timeout, how)


def _ending(chance: random.Random, cast: Sequence[Role]) -> list[Step]:
    """Returns the steps that end the sockets, in random order."""
    order = list(range(len(cast)))
    chance.shuffle(order)
    return [
        Step("end", who, timeout=chance.choice(LINGERS), how=chance.choice(["stop", "close", "orphan"]))
        for who in order
    ]

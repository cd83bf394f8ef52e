"""Draws programs: a topology of one or two hubs and one or two spokes, and what they do."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from omq.types import COMPATIBLE, SocketType
from tests.differential.program import Program, Step
from tests.differential.topology import standing
from tests.support.socket_types import NUMBERED, ONE_PART, PAIRS

KINDS = ("PAIR", "PUB", "SUB", "REQ", "REP", "DEALER", "ROUTER", "PULL", "PUSH", "XPUB", "XSUB")
NAMED = ("REQ", "DEALER", "ROUTER")
#: What has bytes and no messages: over tcp alone, with marks that count what each library makes of them.
STREAM_KINDS = ("STREAM",)
#: What pyzmq lacks.
TWINS_KINDS = tuple(sorted(ONE_PART))
#: They choose one of their peers for each message, each library in its own way: in a program they have one peer.
CHOOSING = ("PAIR", "PUSH", "DEALER", "REQ", "SCATTER", "CLIENT", "CHANNEL")
SENDING = ("PAIR", "PUB", "XPUB", "XSUB", "REQ", "REP", "DEALER", "ROUTER", "PUSH", *dict(PAIRS))
SUBSCRIBING = ("SUB", "DISH")
PREFIXES = (b"", b"A", b"AB")

_flag = st.just(True)
#: What may be set, by type: the name and the values of an option.
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "PAIR": {},
    "PUB": {"xpub_nodrop": _flag, "invert_matching": _flag, "conflate": _flag},
    "SUB": {"invert_matching": _flag, "conflate": _flag},
    "REQ": {"req_relaxed": _flag, "req_correlate": _flag, "probe_router": _flag},
    "REP": {},
    "DEALER": {"probe_router": _flag, "conflate": _flag},
    "ROUTER": {"router_mandatory": _flag, "router_handover": _flag, "probe_router": _flag},
    "PULL": {"conflate": _flag},
    "PUSH": {"conflate": _flag},
    "XPUB": {
        "xpub_verbose": _flag,
        "xpub_verboser": _flag,
        "xpub_manual": _flag,
        "xpub_nodrop": _flag,
        "xpub_welcome_message": st.just(b"A#welcome"),
        "invert_matching": _flag,
    },
    "XSUB": {"invert_matching": _flag},
    "STREAM": {},
    "SCATTER": {},
    "GATHER": {},
    "CHANNEL": {},
    "RADIO": {},
    "DISH": {"join": st.just(b"A")},
    "CLIENT": {"hello_message": _flag, "hiccup_message": st.just(b"hiccup")},
    "SERVER": {"hello_message": _flag, "disconnect_message": st.just(b"gone")},
    "PEER": {"disconnect_message": st.just(b"gone"), "hiccup_message": st.just(b"hiccup")},
}
#: What may be set on a socket in use, by type.
_marks = {"send_hwm": st.sampled_from((1, 2)), "recv_hwm": st.sampled_from((1, 2))}
LIVE: dict[str, dict[str, st.SearchStrategy[Any]]] = dict.fromkeys((*KINDS, *TWINS_KINDS), _marks) | {
    "ROUTER": {**_marks, "router_mandatory": st.booleans(), "router_handover": st.booleans()},
}
LINGER = 0.3  # seconds


class _Draft:
    """A program in the making: who is where, so that most of what is drawn makes sense."""

    def __init__(self, draw: st.DrawFn, transport: str, kinds: tuple[str, ...]) -> None:
        self._draw = draw
        self._transport = transport
        self._serial = 0
        hub = draw(st.sampled_from(kinds))
        fitting = sorted(one.value for one in COMPATIBLE[SocketType(hub)]) or [hub]
        spokes = [draw(st.sampled_from(fitting)) for _ in range(self._up_to_two(hub in CHOOSING))]
        hubs = [hub] * self._up_to_two(any(one in CHOOSING for one in spokes))
        shared = "ROUTER" in hubs and draw(st.integers(0, 5)) == 0
        self.redials = not shared and transport == "tcp"
        few = draw(st.integers(0, 3)) == 0
        kinds = dict(zip(("h", "i"), hubs, strict=False)) | dict(zip(("a", "b"), spokes, strict=False))
        self.hubs, self.spokes = [one for one in kinds if one in "hi"], [one for one in kinds if one in "ab"]
        self.seats = {}
        for name, kind in kinds.items():
            self.seats[name] = (kind, self._options(name, kind, spokes if name in self.hubs else hubs, shared, few))
        self.steps: list[Step] = []

    def _up_to_two(self, one: bool) -> int:
        return 1 if one else 1 + self._draw(st.booleans())

    def _options(self, name: str, kind: str, others: list[str], shared: bool, few: bool) -> dict[str, Any]:
        draw = self._draw
        options = {key: draw(values) for key, values in OPTIONS[kind].items() if draw(st.integers(0, 3)) == 0}
        if not {"REP", "ROUTER"}.isdisjoint(others) or self._transport == "inproc":
            # libzmq's keeps the newest part, which may be a name or a delimiter; before the bind it aborts over inproc.
            options.pop("conflate", None)
        if "REQ" in others and self._transport == "tcp":
            options.pop("probe_router", None)  # which libzmq's REQ takes for a reply again and again
        if "hello_message" in options or kind == "PEER":  # whose peers know its number from a message only
            options["hello_message"] = b"#%s0" % name.encode()
        if kind in NAMED and (kind == "ROUTER" or draw(st.integers(0, 3))):
            options["identity"] = b"twin" if shared and name in "ab" else name.encode()
        if kind == "STREAM":
            return options
        if few:
            options |= {"send_hwm": 1, "recv_hwm": 1}
        if draw(st.integers(0, 9)) == 0:
            options["immediate"] = True
        return options

    def program(self) -> Program:
        """Returns the program as far as it is drawn."""
        return Program(self._transport, self.seats, self.steps, self.redials)

    # ------------------------------------------------------------------ steps

    def step(self, *step: Any) -> None:
        self.steps.append(step)

    def prelude(self) -> None:
        """Binds and connects the sockets, in some order."""
        first = [(hub, "bind", place) for place, hub in enumerate(self.hubs, 1)]
        then = [(spoke, "connect", place) for spoke in self.spokes for place in range(1, len(self.hubs) + 1)]
        wants = [(one, "subscribe", self._prefix()) for one in self.seats if self.kind(one) in SUBSCRIBING]
        wants += [(one, "send", b"\1" + self._prefix()) for one in self.seats if self.kind(one) == "XSUB"]
        steps = [*first, *then, *wants]
        if self._draw(st.integers(0, 2)) == 0:
            steps = self._draw(st.permutations(steps))
        self.steps += steps

    def kind(self, name: str) -> str:
        return self.seats[name][0]

    def peers(self, name: str) -> list[str]:
        return self.spokes if name in self.hubs else self.hubs

    def _prefix(self) -> bytes:
        return self._draw(st.sampled_from(PREFIXES))

    def _conflates(self) -> bool:
        """Returns whether a socket keeps the newest message only: libzmq then keeps the newest part."""
        return any("conflate" in options for _, options in self.seats.values())

    def _tag(self, name: str) -> bytes:
        self._serial += 1
        return b"#%s%d" % (name.encode(), self._serial)

    def more(self) -> None:
        """One more step."""
        draw = self._draw
        live = [one for one in self.seats if one not in standing(self.program(), len(self.steps)).closed] or list(
            self.seats
        )
        name = draw(st.sampled_from(live))
        kind = self.kind(name)
        verbs = ["recv", "drain"] * 2
        if kind in SENDING:
            verbs += ["send"] * 6
        if kind in ("ROUTER", *NUMBERED):
            verbs += ["answer"] * 3
        if kind == "STREAM":
            verbs += ["answer"] * 8
        if kind in SUBSCRIBING:
            verbs += ["subscribe", "unsubscribe"] * 4
        if kind == "XPUB" and "xpub_manual" in self.seats[name][1]:
            verbs += ["subscribe", "unsubscribe"] * 4
        if kind in LIVE:
            verbs += ["set"]
        verbs += ["restart", "close"]
        verbs += ["bind", "unbind"] if name in self.hubs else ["connect", "disconnect"]
        verb = draw(st.sampled_from(verbs))
        if verb == "connect" and any(dial.seat == name for dial in standing(self.program(), len(self.steps)).dials):
            verb = "disconnect"
        if verb == "recv" and len(self.peers(name)) > 1 and kind != "REP":
            verb = "drain"
        if verb == "recv" and kind == "STREAM":
            verb = "drain"  # how many bytes one message has is each library's own affair
        self.step(name, verb, *self._arguments(name, kind, verb))

    def _arguments(self, name: str, kind: str, verb: str) -> tuple[Any, ...]:
        draw = self._draw
        if verb in ("subscribe", "unsubscribe"):
            return (self._prefix(),)
        if verb in ("bind", "unbind"):
            return (self.hubs.index(name) + 1,)
        if verb in ("connect", "disconnect"):
            return (draw(st.integers(1, len(self.hubs))),)
        if verb == "set":
            option = draw(st.sampled_from(sorted(LIVE[kind])))
            return (option, draw(LIVE[kind][option]))
        if verb == "close":
            return (draw(st.sampled_from((0, LINGER))),)
        if verb == "send":
            return self._message(name, kind)
        if verb == "answer":
            return self._answer(name)
        return ()

    def _message(self, name: str, kind: str) -> tuple[bytes, ...]:
        draw, tag = self._draw, self._tag(name)
        if kind in ONE_PART:
            # Numbers are drawn by each socket: what is not a number of any is one in each with a small chance only.
            routes = {"RADIO": (b"", b"A", b"AB", b"B"), "SERVER": (b"none",), "PEER": (b"none",)}
            return (draw(st.sampled_from(routes[kind])), tag) if kind in routes else (tag,)
        if kind in ("PUB", "XPUB"):
            topic = draw(st.sampled_from((b"", b"A", b"AB", b"B")))
            whole = self._conflates() or draw(st.booleans())
            return (topic + tag,) if whole else (topic, tag)
        if kind == "XSUB":
            prefix = self._prefix()
            return draw(
                st.sampled_from(
                    [(b"\1" + prefix,), (b"\0" + prefix,), (tag,), (b"", tag), (b"\1" + prefix, tag), (tag, b"\1A")]
                )
            )
        if kind == "ROUTER":
            peer = draw(st.sampled_from([*self.peers(name), "absent"]))
            identity = self.seats[peer][1].get("identity", b"?") if peer in self.seats else b"absent"
            return (identity, *self._answer(name))
        if kind == "DEALER" and "REP" in [self.kind(one) for one in self.peers(name)]:
            return draw(st.sampled_from([(b"", tag), (b"", tag), (b"x", b"", tag), (tag,)]))
        if kind in ("REQ", "REP") or self._conflates():
            return (tag,)
        return draw(st.sampled_from([(tag,), (tag,), (tag, b""), (b"", tag), (b"x", tag)]))

    def _answer(self, name: str) -> tuple[bytes, ...]:
        draw, tag = self._draw, self._tag(name)
        if self.kind(name) in NUMBERED:
            return (tag,)
        if self.kind(name) == "STREAM":
            return draw(st.sampled_from([(tag,), (tag,), (tag,), (b"",)]))
        if "REQ" in [self.kind(one) for one in self.peers(name)]:
            return (b"", tag) if self._transport == "tcp" else draw(st.sampled_from([(b"", tag), (b"", tag), (tag,)]))
        return draw(st.sampled_from([(tag,), (tag,), (b"", tag)]))


@st.composite
def programs(draw: st.DrawFn, transport: str, kinds: tuple[str, ...] = KINDS, most: int = 10) -> Program:
    """A program with a bounded number of steps after its sockets have met; its hubs are of one of some types."""
    draft = _Draft(draw, transport, kinds)
    draft.prelude()
    for _ in range(draw(st.integers(1, most))):
        draft.more()
    return draft.program()

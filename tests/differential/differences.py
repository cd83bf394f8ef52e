"""The intended differences between omq and libzmq: the list behind docs/explanation/differences.md."""

from __future__ import annotations

from tests.differential.compare import Difference
from tests.differential.program import Program
from tests.differential.rules import Rule, kind, messages, only_out, ours_more, theirs_more
from tests.differential.topology import Topology

CHOOSING = {"PAIR", "PUSH", "DEALER", "REQ"}
TWO = [("h", "bind", 1), ("a", "connect", 1)]


def _one_queue(program: Program, it: Difference, stood: Topology) -> bool:
    alone = it.seat in program.seats and program.kind(it.seat) in CHOOSING and not stood.peers(it.seat)
    if alone and (only_out(it) or (it.what == "outcome" and (it.ours, it.theirs) == ("ok", "again"))):
        return True
    return ours_more(it) and any(program.kind(one) in CHOOSING for one in stood.undone)


def _arrived_stays(program: Program, it: Difference, stood: Topology) -> bool:
    # With ZMQ_IMMEDIATE what has arrived stays there, too, and the connection with it until it has been received.
    left = [step[0] for step in program.steps[: it.index + 1] if step[1] == "disconnect"]
    if any(program.options(one).get("immediate") for one in left) and it.seat in stood.cut | {""}:
        return True
    if it.seat not in stood.parted:
        return False
    if it.what == "events" and kind(program, it) == "REP":
        return True
    # Once it has polled, libzmq has the first part in its hands, drops the others, and takes it for the next message's.
    torn = any(step[1] == "send" and len(step) > 3 for step in program.steps)
    if it.seat in stood.cut and torn and it.ours != "again":
        return True
    if "conflate" in program.options(it.seat):
        return ours_more(it)  # the end of a connection takes the place of the newest message
    return ours_more(it) and it.seat in stood.cut | stood.returned


def _redialled(program: Program, it: Difference, stood: Topology) -> bool:
    about = stood.returned | {peer for one in stood.returned for peer in stood.peers(one)}
    return program.transport == "tcp" and it.seat in about and (only_out(it) or ours_more(it))


def _honest(program: Program, it: Difference, stood: Topology) -> bool:
    if it.what == "events" and kind(program, it) in ("REP", "REQ") and theirs_more(it):
        return True
    # libzmq's REP drops a message without a delimiter when it is polled. That changes which peer has its turn next.
    malformed = any(program.kind(peer) == "DEALER" for peer in stood.peers(it.seat))
    if it.what == "outcome" and kind(program, it) == "REP" and malformed and it.ours and it.theirs:
        return True
    # Who looks has the message in its hands: it takes no room any more.
    looked_at = any(program.kind(peer) in ("REP", "REQ") for peer in stood.peers(it.seat))
    if looked_at and (only_out(it) or (it.ours, it.theirs) == ("ok", "again")):
        return True
    subscribers = {one for one in program.seats if program.kind(one) in ("SUB", "XSUB")}
    marked = any({"send_hwm", "recv_hwm"} & program.options(one).keys() for one in program.seats)
    if marked and subscribers & {it.seat}:
        return theirs_more(it)
    return (
        marked
        and bool(subscribers & {*stood.peers(it.seat)})
        and (only_out(it) or (it.ours, it.theirs) == ("again", "ok"))
    )


def _filters_when_taken(program: Program, it: Difference, stood: Topology) -> bool:
    changed = {seat for seat, verb, *_ in program.steps[: it.index + 1] if verb in ("unsubscribe", "subscribe")}
    inverted = "invert_matching" in program.options(it.seat)
    if kind(program, it) != "SUB" or it.seat not in changed:
        return False
    # libzmq keeps what it has looked at while it was wanted; and it has dropped by then what comes to be wanted later,
    # which reaches a SUB with inverted matching only.
    return theirs_more(it) or (inverted and ours_more(it))


def _at_its_mark(program: Program, it: Difference, stood: Topology) -> bool:
    small = {one for one in program.seats if program.options(one).get("recv_hwm")}
    left = bool(small & stood.parted) and any(step[1] in ("restart", "close") for step in program.steps[: it.index + 1])
    if not left or program.transport != "tcp":
        return False
    return it.what == "links" or only_out(it) or theirs_more(it) or (it.ours, it.theirs) == ("again", "ok")


def _conflates(program: Program, it: Difference, stood: Topology) -> bool:
    return program.transport == "inproc" and any("conflate" in options for _, options in program.seats.values())


def _mail(program: Program, it: Difference, stood: Topology) -> bool:
    return kind(program, it) == "XPUB" and "recv_hwm" in program.options(it.seat) and theirs_more(it)


def _later_parts(program: Program, it: Difference, stood: Topology) -> bool:
    sent = [step for step in program.steps[: it.index + 1] if step[1] == "send" and program.kind(step[0]) == "XSUB"]
    return any(part[:1] in (b"\0", b"\1") for step in sent for part in step[3:])


def _lingers_without_peer(program: Program, it: Difference, stood: Topology) -> bool:
    steps = program.steps[: it.index + 1]
    at_once = {step[0] for step in steps if step[1] == "restart" or (step[1] == "close" and step[2] == 0)}
    marked = any("send_hwm" in program.options(one) or "recv_hwm" in program.options(one) for one in program.seats)
    return program.transport == "inproc" and marked and bool(at_once) and it.seat in stood.parted and theirs_more(it)


def _gone_but_unread(program: Program, it: Difference, stood: Topology) -> bool:
    if kind(program, it) not in ("ROUTER", "PAIR", "DEALER") or it.seat not in stood.parted:
        return False
    return only_out(it) or ours_more(it) or it.step[1] in ("send", "answer", "late")


def _server_gone(program: Program, it: Difference, stood: Topology) -> bool:
    return kind(program, it) == "REQ" and it.seat in stood.parted and (only_out(it) or it.theirs == "state")


def _marks(program: Program, it: Difference, stood: Topology) -> bool:
    changed = [step[0] for step in program.steps[: it.index + 1] if step[1] == "set" and "hwm" in step[2]]
    about = {it.seat, *stood.peers(it.seat)} & set(changed)
    return bool(about) and (only_out(it) or (it.ours, it.theirs) == ("ok", "again") or ours_more(it))


def _immediate(program: Program, it: Difference, stood: Topology) -> bool:
    asked = any("immediate" in options for _, options in program.seats.values())
    refused = (it.ours, it.theirs) == ("again", "ok")
    return program.transport == "inproc" and asked and (only_out(it) or refused or theirs_more(it))


def _heir(program: Program, it: Difference, stood: Topology) -> bool:
    names = [options["identity"] for _, options in program.seats.values() if "identity" in options]
    probed = any("probe_router" in options for _, options in program.seats.values())
    return len(set(names)) < len(names) and (bool(stood.parted) or probed)


def _order_of_prefixes(program: Program, it: Difference, stood: Topology) -> bool:
    received = messages(it.ours)
    return kind(program, it) == "XPUB" and bool(received) and received == messages(it.theirs)


DIFFERENCES: tuple[Rule, ...] = (
    Rule(
        "one-queue",
        Program("tcp", {"h": ("PUSH", {})}, [("h", "bind", 1), ("h", "send", b"#h1")]),
        _one_queue,
    ),
    Rule(
        "arrived-stays",
        Program("tcp", {"h": ("PUSH", {}), "a": ("PULL", {})}, [*TWO, ("h", "send", b"#h1"), ("a", "disconnect", 1)]),
        _arrived_stays,
    ),
    Rule(
        "unbind-keeps",
        Program(
            "tcp",
            {"h": ("PUSH", {}), "a": ("PULL", {})},
            [*TWO, ("h", "unbind", 1), ("h", "send", b"#h1"), ("a", "drain")],
        ),
        lambda program, it, stood: program.transport == "tcp" and bool(stood.kept),
    ),
    Rule(
        "server-gone",
        Program(
            "tcp",
            {"h": ("REP", {}), "a": ("REQ", {})},
            [*TWO, ("a", "send", b"#a1"), ("h", "restart"), ("a", "send", b"#a2")],
        ),
        _server_gone,
    ),
    Rule(
        "redialled",
        Program(
            "tcp",
            {"h": ("ROUTER", {}), "a": ("DEALER", {"identity": b"a", "probe_router": True})},
            [*TWO, ("h", "drain"), ("h", "restart"), ("h", "drain")],
        ),
        _redialled,
    ),
    Rule(
        "poll-is-honest",
        Program("tcp", {"h": ("REP", {}), "a": ("DEALER", {})}, [*TWO, ("a", "send", b"#a1")]),
        _honest,
    ),
    Rule(
        "filtered-when-taken",
        Program(
            "tcp",
            {"h": ("PUB", {}), "a": ("SUB", {})},
            [*TWO, ("a", "subscribe", b"A"), ("h", "send", b"A#h1"), ("a", "unsubscribe", b"A"), ("a", "recv")],
        ),
        _filters_when_taken,
    ),
    Rule(
        "gone-at-its-mark",
        Program(
            "tcp",
            {"h": ("PUSH", {}), "a": ("PULL", {"recv_hwm": 1})},
            [*TWO, ("h", "send", b"#h1"), ("h", "restart")],
        ),
        _at_its_mark,
    ),
    Rule(
        "inproc-immediate",
        Program("inproc", {"a": ("PUSH", {"immediate": True})}, [("a", "connect", 1), ("a", "send", b"#a1")]),
        _immediate,
    ),
    Rule(
        "inproc-conflate",
        Program(
            "inproc",
            {"h": ("PULL", {"conflate": True}), "a": ("PUSH", {})},
            [*TWO, ("a", "send", b"#a1"), ("a", "send", b"#a2"), ("h", "drain")],
        ),
        _conflates,
    ),
    Rule(
        "later-parts",
        Program(
            "tcp",
            {"h": ("XPUB", {}), "a": ("XSUB", {})},
            [*TWO, ("a", "send", b"\1A"), ("a", "send", b"#a1", b"\1A"), ("h", "drain")],
        ),
        _later_parts,
    ),
    Rule(
        "prefixes-as-asked",
        Program(
            "tcp",
            {"h": ("XPUB", {}), "a": ("SUB", {})},
            [("a", "subscribe", b"B"), ("a", "subscribe", b"A"), *TWO, ("h", "drain")],
        ),
        _order_of_prefixes,
    ),
    Rule(
        "manual-without-peer",
        Program("tcp", {"h": ("XPUB", {"xpub_manual": True})}, [("h", "bind", 1), ("h", "subscribe", b"A")]),
        lambda program, it, stood: kind(program, it) == "XPUB" and (it.ours, it.theirs) == ("state", "ok"),
    ),
    Rule(
        "bounded-mail",
        Program(
            "tcp",
            {"h": ("XPUB", {"recv_hwm": 1}), "a": ("XSUB", {})},
            [*TWO, ("a", "send", b"\1A"), ("a", "send", b"#a1"), ("h", "drain")],
        ),
        _mail,
    ),
    Rule(
        "router-one-part",
        Program("tcp", {"h": ("ROUTER", {})}, [("h", "bind", 1), ("h", "send", b"a")]),
        lambda program, it, stood: kind(program, it) == "ROUTER" and len(it.step) == 3 and it.ours == "state",
    ),
    Rule(
        "inproc-endpoint-kept",
        Program(
            "inproc",
            {"h": ("PULL", {}), "a": ("PUSH", {})},
            [*TWO, ("h", "close", 0), ("a", "disconnect", 1)],
            redials=False,
        ),
        lambda program, it, stood: (
            program.transport == "inproc" and it.step[1] == "disconnect" and (it.ours, it.theirs) == ("ok", "invalid")
        ),
    ),
    Rule(
        "inproc-probe-early",
        Program(
            "inproc",
            {"h": ("ROUTER", {"identity": b"h", "probe_router": True}), "a": ("ROUTER", {"identity": b"a"})},
            [("a", "connect", 1), ("h", "bind", 1), ("a", "drain")],
        ),
        lambda program, it, stood: (
            program.transport == "inproc" and any("probe_router" in options for _, options in program.seats.values())
        ),
    ),
    Rule(
        "inproc-linger-zero",
        Program(
            "inproc",
            {"h": ("PAIR", {"send_hwm": 1, "recv_hwm": 1}), "a": ("PAIR", {"send_hwm": 1, "recv_hwm": 1})},
            [*TWO, ("h", "send", b"#h1"), ("h", "send", b"#h2"), ("h", "close", 0), ("a", "drain")],
            redials=False,
        ),
        _lingers_without_peer,
    ),
    Rule(
        "next-in-line",
        Program(
            "tcp",
            {
                "h": ("ROUTER", {}),
                "a": ("DEALER", {"identity": b"twin"}),
                "b": ("DEALER", {"identity": b"twin"}),
            },
            [*TWO, ("b", "connect", 1), ("a", "close", 0), ("b", "send", b"#b1"), ("h", "drain")],
            redials=False,
        ),
        _heir,
    ),
    Rule(
        "gone-but-unread",
        Program(
            "tcp",
            {"h": ("PAIR", {}), "a": ("PAIR", {})},
            [*TWO, ("a", "send", b"#a1"), ("a", "restart"), ("h", "send", b"#h2")],
        ),
        _gone_but_unread,
    ),
    Rule(
        "marks-in-steps",
        Program(
            "tcp",
            {"h": ("PULL", {}), "a": ("PUSH", {})},
            [*TWO, ("a", "send", b"#a1"), ("a", "set", "send_hwm", 1), ("h", "recv"), ("a", "send", b"#a2")],
        ),
        _marks,
    ),
    Rule(
        "stream-writable",
        Program("tcp", {"h": ("STREAM", {})}, [("h", "bind", 1)]),
        lambda program, it, stood: kind(program, it) == "STREAM" and only_out(it),
    ),
    Rule(
        "stream-new-id",
        Program(
            "tcp",
            {"h": ("STREAM", {}), "a": ("STREAM", {})},
            [*TWO, ("h", "close", 0), ("a", "drain"), ("a", "answer", b"#a1")],
        ),
        lambda program, it, stood: (
            kind(program, it) == "STREAM" and it.seat in stood.parted and (it.ours, it.theirs) == ("unroutable", "ok")
        ),
    ),
)

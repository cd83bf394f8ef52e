"""The differences between omq and libzmq that are defects: each is a strict xfail until it is fixed."""

from __future__ import annotations

from tests.differential.program import Program
from tests.differential.rules import Rule

TWO = [("h", "bind", 1), ("a", "connect", 1)]


FINDINGS: tuple[Rule, ...] = ()

#: What was such a finding once: these programs show the same with both.
MENDED = {
    "a SUB with conflate and what it has not subscribed to": Program(
        "tcp",
        {"h": ("XPUB", {"xpub_welcome_message": b"A#welcome"}), "a": ("SUB", {"conflate": True})},
        [*TWO, ("a", "drain")],
    ),
    "a PUSH that disconnects while its queue is full": Program(
        "tcp",
        {"h": ("PULL", {"recv_hwm": 1}), "a": ("PUSH", {"linger": 5})},
        [*TWO, ("a", "leave", 1, 64, 1 << 18), ("a", "close", 5), ("h", "newest")],
    ),
    "a late reply to the socket before": Program(
        "tcp",
        {"h": ("ROUTER", {}), "a": ("REQ", {"identity": b"a", "req_correlate": True})},
        [
            *TWO,
            ("a", "send", b"#a1"),
            ("h", "recv"),
            ("a", "restart"),
            ("a", "send", b"#a2"),
            ("h", "recv"),
            ("h", "late", b"#h1"),
            ("a", "recv"),
        ],
    ),
    "a PUB that conflates": Program(
        "tcp",
        {"h": ("SUB", {"recv_hwm": 1}), "a": ("PUB", {"conflate": True})},
        [*TWO, ("h", "subscribe", b""), ("a", "burst", 20, 1 << 20), ("h", "newest")],
    ),
    "a mandatory ROUTER whose peers are full": Program(
        "inproc",
        {
            "h": ("ROUTER", {"router_mandatory": True, "send_hwm": 1}),
            "a": ("DEALER", {"identity": b"a", "recv_hwm": 1}),
        },
        [*TWO, ("h", "send", b"a", b"#h1"), ("h", "send", b"a", b"#h2"), ("h", "send", b"a", b"#h3")],
    ),
    "a SUB that connects to the same place twice": Program(
        "tcp",
        {"h": ("PUB", {}), "a": ("SUB", {})},
        [
            *TWO,
            ("a", "connect", 1),
            ("a", "subscribe", b""),
            ("h", "send", b"#h1"),
            ("a", "drain"),
            ("a", "disconnect", 1),
            ("h", "send", b"#h2"),
            ("a", "drain"),
            ("a", "disconnect", 1),
        ],
    ),
    "a SUB that connects to the same name twice": Program(
        "inproc",
        {"h": ("PUB", {}), "a": ("SUB", {})},
        [*TWO, ("a", "connect", 1), ("a", "subscribe", b""), ("h", "send", b"#h1"), ("a", "drain")],
    ),
    "a PUSH that disconnects": Program(
        "tcp",
        {"h": ("PULL", {}), "a": ("PUSH", {"linger": 5})},
        [*TWO, ("a", "leave", 1, 200, 128), ("h", "newest")],
    ),
    "a peer that leaves an XPUB with xpub_verboser": Program(
        "tcp",
        {"h": ("XPUB", {"xpub_verboser": True}), "a": ("SUB", {}), "b": ("SUB", {})},
        [
            *TWO,
            ("b", "connect", 1),
            ("a", "subscribe", b"A"),
            ("b", "subscribe", b"A"),
            ("a", "close", 0),
            ("h", "drain"),
        ],
    ),
    "a SUB that asks again, and xpub_verbose": Program(
        "tcp",
        {"h": ("XPUB", {"xpub_verbose": True}), "a": ("SUB", {})},
        [*TWO, ("a", "subscribe", b"A"), ("a", "subscribe", b"A"), ("h", "drain")],
    ),
    "an XSUB's message of several parts that begins as a subscription": Program(
        "tcp",
        {"h": ("XPUB", {}), "a": ("XSUB", {})},
        [*TWO, ("a", "send", b"\1A", b"#a1"), ("h", "send", b"A#h1"), ("a", "drain")],
    ),
}

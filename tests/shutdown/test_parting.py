"""One side takes leave, by `disconnect`, `unbind`, a reset or half a close: what was accepted, or is here, arrives."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from tests.shutdown.process_pair import Part, Process, missing, play, side_by_side
from tests.shutdown.test_closing import BEATS, TCP, sampled, two_of_one_part, where
from tests.support.raw_peer import GREETING, frames, ready

pytestmark = pytest.mark.timeout(120)
TAKERS = ("omq", "asyncio", "zmq")


def parting(
    sender: str,
    receiver: str,
    way: str,
    count: int,
    size: int,
    endpoint: str,
    taking: dict[str, float] | None = None,
    kinds: tuple[str, str] = ("PUSH", "PULL"),
) -> Callable[[], str]:
    """A play: PUSH, or another type, sends, and disconnects or unbinds at once; PULL takes its time."""
    binds = way == "unbind"
    push = Part(sender, kinds[0], binds=binds, sends=count, size=size, end=way, options={"send_hwm": 0})
    pull = Part(receiver, kinds[1], binds=not binds, takes=count, absent=1.0, options=taking or {})
    return lambda: missing(play(push, pull, endpoint), count)


LOADS = [
    (one, other, *load)
    for one in ("omq", "asyncio")
    for other in TAKERS
    for load in [(200, 16, "tcp"), (80, 65536, "tcp"), (200, 16, "ipc")]
    if load[2] == "tcp" or (one, other) == ("omq", "asyncio")
]
FEW_LOADS = [("omq", "zmq", 80, 65536, "tcp"), ("asyncio", "omq", 200, 16, "tcp"), ("omq", "asyncio", 200, 16, "ipc")]


@sampled("loads", FEW_LOADS, LOADS)
def test_disconnect_delivers_what_was_accepted(tmp_path, loads):
    """A few small messages, more than the kernels hold, and more than the receiver's marks, which are low."""
    plays = [
        (
            f"{one} to {other}, {count} of {size} over {scheme}",
            parting(
                one, other, "disconnect", count, size, where(scheme, tmp_path, f"{one}{other}{count}"), {"recv_hwm": 10}
            ),
        )
        for one, other, count, size, scheme in loads
    ]
    assert side_by_side(plays) == []


@pytest.mark.slow
@two_of_one_part
@pytest.mark.parametrize("way", ["disconnect", "unbind"])
def test_a_type_of_one_part_delivers_what_was_accepted(way, seats):
    """Few small messages, or more than the kernels hold, and more than the receivers' marks, which are low."""
    plays = [
        (
            f"{'-'.join(kinds)} {one} to {other}, {count} of {size}",
            parting(one, other, way, count, size, TCP, {"recv_hwm": 10}, kinds),
        )
        for place, (kinds, one, other) in enumerate(seats)
        for count, size in [((200, 16), (80, 65536))[place % 2]]
    ]
    assert side_by_side(plays) == []


@sampled("seats", [("omq", "asyncio"), ("asyncio", "zmq"), ("omq", "omq")], [*product(TAKERS[:2], TAKERS)])
def test_unbind_lets_connections_go_on(seats):
    plays = [(f"{one} to {other}", parting(one, other, "unbind", 500, 1000, TCP)) for one, other in seats]
    assert side_by_side(plays) == []


def visiting(visitor: str, kind: str, server: str, *, late: bool, endpoints: list[str]) -> str:
    """A play: one socket visits several servers; gives what is wrong with what each has got."""
    count = 20
    other = {"PUSH": "PULL", "SCATTER": "GATHER", "CLIENT": "SERVER"}.get(kind, kind)
    visits = Part(visitor, kind, sends=count, size=100)
    serves = [Part(server, other, binds=True, takes=count, endpoint=one) for one in endpoints]
    processes: list[Process] = []
    try:
        if late:
            processes.append(Process(replace(visits, visits=endpoints)))
            processes[0].until("begun")
        servers = [Process(one) for one in serves]
        processes += servers
        if not late:
            processes.append(Process(replace(visits, visits=[one.until("at") for one in servers])))
        for place, one in enumerate(servers):
            got = [number - place * count for number in one.result()]
            if got != list(range(count)):
                return f"server {place} has {got}"
        return ""
    finally:
        for process in processes:
            process.finish()


KINDS = ("PUSH", "DEALER", "PAIR")
EVERY_VISIT = [(one, kind, other) for one in TAKERS[:2] for kind in KINDS for other in TAKERS]
#: Each library and each kind once; the slow test has every combination, and libzmq with itself.
VISITS = [("omq", "PUSH", "asyncio"), ("asyncio", "DEALER", "zmq"), ("omq", "PAIR", "omq")]
#: A PEER waits for its peer, and what RADIO and SERVER send before they know theirs is for nothing.
OURS_VISIT = [
    (one, kind, other)
    for one, other in (("omq", "asyncio"), ("asyncio", "omq"))
    for kind in ("SCATTER", "CLIENT", "CHANNEL")
]


@pytest.mark.parametrize(
    ("late", "visits"),
    [
        pytest.param(False, VISITS, id="early"),
        pytest.param(True, [("omq", "PUSH", "zmq"), ("asyncio", "PUSH", "omq")], id="late"),
        pytest.param(
            True,
            [*(one for one in EVERY_VISIT if one[1] == "PUSH"), ("zmq", "PUSH", "zmq")],
            id="each library, late",
            marks=[pytest.mark.slow, pytest.mark.timeout(300)],
        ),
        pytest.param(False, OURS_VISIT, id="one part", marks=pytest.mark.slow),
        pytest.param(True, OURS_VISIT, id="one part, late", marks=pytest.mark.slow),
        pytest.param(
            False,
            [*EVERY_VISIT, ("zmq", "PUSH", "zmq")],
            id="every kind",
            marks=[pytest.mark.slow, pytest.mark.timeout(300)],
        ),
    ],
)
def test_disconnect_before_there_is_a_connection_delivers_to_whom_it_was_meant_for(tmp_path, late, visits):
    """Each server gets what was sent while it was connected; also one that comes after `disconnect`."""
    plays = [
        (
            f"{one} {kind} to {other}",
            partial(
                visiting,
                one,
                kind,
                other,
                late=late,
                endpoints=[f"ipc://{tmp_path}/{one}{kind}{other}{place}" if late else TCP for place in range(3)],
            ),
        )
        for one, kind, other in visits
    ]
    assert side_by_side(plays) == []


def raw_sender(receiver: str, way: str, count: int, options: dict[str, float]) -> str:
    """A PUSH made by hand sends what the receiver's kernel has room for, and resets or half closes."""
    pull = Process(Part(receiver, "PULL", binds=True, takes=count, absent=0.5, options=options, endpoint=TCP))
    try:
        host, port = pull.until("at").removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), 10) as sock:
            sock.settimeout(10)
            sock.sendall(GREETING + ready(b"PUSH"))
            seen = b""
            while b"READY" not in seen:
                seen += sock.recv(4096)
            pull.until("begun")
            sock.sendall(b"".join(frames(number.to_bytes(8, "big") + bytes(100)) for number in range(count)))
            # All of it is with the receiver's kernel when ours has nothing left to be acknowledged.
            while _unacknowledged(sock):
                threading.Event().wait(0.001)
            if way == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            else:
                sock.shutdown(socket.SHUT_WR)
            return missing(pull.result(), count)
    finally:
        pull.finish()


def _unacknowledged(sock: socket.socket) -> int:
    import fcntl
    import termios

    (size,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(size)


KERNELS = [*product(("omq", "asyncio"), ({}, {"recv_hwm": 1}, {"recv_hwm": 5, **BEATS}))]


@pytest.mark.slow
@sampled("kernels", [KERNELS[0], KERNELS[4], KERNELS[2]], KERNELS)
@pytest.mark.parametrize("way", ["reset", "half a close"])
def test_what_our_kernel_has_is_read(way, kernels):
    plays = [
        (f"{receiver}, {options}", lambda receiver=receiver, options=options: raw_sender(receiver, way, 200, options))
        for receiver, options in kernels
    ]
    assert side_by_side(plays) == []

"""A sender closes, whatever the receiver does meanwhile: all that it has sent arrives."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import omq
from tests.shutdown.process_pair import Part, missing, play, side_by_side
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.socket_types import PAIRS
from tests.support.waits import least

pytestmark = pytest.mark.timeout(120)
LIBRARIES = ("omq", "asyncio", "zmq")
#: Each library on each side, and one of ours on one of them.
SEATS = [pair for pair in itertools.product(LIBRARIES, LIBRARIES) if pair != ("zmq", "zmq")]
BEATS = {"heartbeat_interval": 0.2, "heartbeat_timeout": 5.0}
SMALL = {"recv_buffer": 4096, "send_buffer": 4096}


TCP = "tcp://127.0.0.1:*"


def where(scheme: str, tmp_path: Path, name: str) -> str:
    return "tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{tmp_path}/{abs(hash(name)) % 10**9}"


def closed_sender(
    sender: str,
    receiver: str,
    count: int,
    size: int,
    endpoint: str,
    *,
    kill: bool = False,
    absent: float = 1.0,
    pace: float = 0.0,
    sending: dict[str, float] | None = None,
    taking: dict[str, float] | None = None,
    kinds: tuple[str, str] = ("PUSH", "PULL"),
) -> Callable[[], str]:
    """A play: PUSH, or another type, connects, sends and closes with endless linger; PULL takes its time."""
    sending = dict(sending or {})
    if kinds[0] == "RADIO":
        sending.setdefault("send_hwm", 0)  # it drops what has no room
    if sender == "zmq":
        # libzmq that closes while a small send buffer is full drops its last batch, and ends its side as if all were
        # sent: 472 of 604 messages of 24 bytes arrived, at libzmq as well.
        sending.pop("send_buffer", None)
    push = Part(sender, kinds[0], options=sending, sends=count, size=size, waits=kill)
    pull = Part(receiver, kinds[1], binds=True, options=taking or {}, takes=count, absent=absent, pace=pace)
    return lambda: missing(play(push, pull, endpoint, kill=kill), count)


#: Those in which something of ours takes from whatever closes first.
TAKERS = [("omq", "omq"), ("zmq", "omq"), ("zmq", "asyncio")]


def sampled(name: str, usual: list[Any], every: list[Any]) -> pytest.MarkDecorator:
    """A parametrization with a list of plays: a few that have each value once, and all with the slow tests."""
    slow = pytest.param(every, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(300)])
    return pytest.mark.parametrize(name, [pytest.param(usual, id="usual"), slow])


@sampled("seats", [("omq", "zmq"), ("asyncio", "omq"), ("zmq", "asyncio")], SEATS)
def test_a_receiver_that_is_absent_gets_all(seats):
    plays = [(f"{one} to {other}", closed_sender(one, other, 3000, 1000, TCP)) for one, other in seats]
    assert side_by_side(plays) == []


#: The types that pyzmq lacks, from one twin to the other; STREAM has no messages that could be counted.
EVERY_OURS = [(kinds, *twins) for kinds in PAIRS for twins in (("omq", "asyncio"), ("asyncio", "omq"))]
OURS = [seat for place, seat in enumerate(EVERY_OURS) if place % 4 in (0, 3)]
of_one_part = sampled("seats", OURS, EVERY_OURS)
#: One sends by the number of its peer, the other one to a group.
two_of_one_part = sampled("seats", [seat for seat in OURS if seat[0][0] in ("SERVER", "RADIO")], EVERY_OURS)


@pytest.mark.slow
@of_one_part
def test_a_receiver_of_one_part_that_is_absent_gets_all(seats):
    plays = [
        (f"{'-'.join(kinds)} {one} to {other}", closed_sender(one, other, 3000, 1000, TCP, kinds=kinds))
        for kinds, one, other in seats
    ]
    assert side_by_side(plays) == []


@pytest.mark.slow
@two_of_one_part
def test_a_sender_of_one_part_that_is_killed_after_close_has_lost_nothing(seats):
    plays = [
        (
            f"{'-'.join(kinds)} {one} to {other}",
            closed_sender(one, other, 1000, 1000, TCP, kill=True, kinds=kinds),
        )
        for kinds, one, other in seats
    ]
    assert side_by_side(plays) == []


@sampled("seats", TAKERS[::2], TAKERS)
def test_a_receiver_that_is_absent_gets_all_over_ipc(tmp_path, seats):
    """Not so libzmq's: where it has stopped reading it takes a hang-up for the end, and drops what it has not read."""
    plays = [
        (f"{one} to {other}", closed_sender(one, other, 3000, 1000, where("ipc", tmp_path, one + other)))
        for one, other in seats
    ]
    assert side_by_side(plays) == []


@pytest.mark.slow
def test_heartbeats_destroy_nothing():
    """Signs of life, asked for or given, are not written to whom they could make forget what it has sent."""
    plays = [
        (f"{one} to {other}, {who} asks", closed_sender(one, other, 3000, 1000, TCP, **{who: BEATS}))
        for one, other in TAKERS
        for who in ("sending", "taking")
    ]
    assert side_by_side(plays) == []


WINDOWS = [(*seat, *load) for load in ((200, 16), (100, 1000)) for seat in [*TAKERS, ("omq", "zmq")]]


@pytest.mark.slow
@sampled("windows", [WINDOWS[2], WINDOWS[3], WINDOWS[4]], WINDOWS)
def test_small_windows_lose_nothing(windows):
    plays = [
        (
            f"{one} to {other}, {count} of {size}",
            closed_sender(one, other, count, size, TCP, sending={**SMALL, **BEATS}, taking=SMALL),
        )
        for one, other, count, size in windows
    ]
    assert side_by_side(plays) == []


@sampled("seats", [*TAKERS[::2], ("asyncio", "zmq")], [*TAKERS, ("omq", "zmq"), ("asyncio", "zmq")])
def test_a_sender_that_is_killed_after_close_has_lost_nothing(seats):
    plays = [(f"{one} to {other}", closed_sender(one, other, 1000, 1000, TCP, kill=True)) for one, other in seats]
    assert side_by_side(plays) == []


#: The kernels of the two take nearly nothing, what the system lets them, and all of it.
BUFFERS = [{"recv_buffer": size, "send_buffer": size} for size in (1 << 16, 1 << 22)]
TALKS = [
    (*pair, common) for pair in [("omq", "omq"), ("omq", "zmq"), ("asyncio", "zmq")] for common in [{}, BEATS, *BUFFERS]
]


@sampled("talks", [TALKS[0], TALKS[5], TALKS[6], TALKS[11]], TALKS)
def test_a_closer_that_is_still_being_talked_to_has_lost_nothing(talks):
    """Closing with unread bytes resets: what the other side has not got by then would be gone.

    So would what the kernel of a libzmq has that stopped reading at its HWM: being closed while it speaks resets it.
    """

    def talk(one: str, other: str, common: dict[str, float]) -> Callable[[], str]:
        closes = Part(one, "DEALER", options=common, sends=2500, size=1000)
        options = {**common, "linger": 0}  # its last words may find no peer
        talks = Part(
            other, "DEALER", binds=True, options=options, sends=500, size=1000, chats=200, takes=2500, absent=2.5
        )
        return lambda: missing(play(closes, talks, TCP), 2500)

    plays = [(f"{one} to {other} {common}", talk(one, other, common)) for one, other, common in talks]
    assert side_by_side(plays) == []


@pytest.mark.alone
def test_closing_is_quick_where_nothing_is_left():
    """A socket for each request: the other side's thread is not waited for, nor a kernel that acknowledges late."""

    def close() -> float:
        took = []
        for _ in range(30):
            req = omq.REQ(connect=rep.endpoints[0])
            req.send(b"question")
            rep.send(rep.recv(timeout=10))
            assert req.recv(timeout=10) == b"question"
            begun = time.monotonic()
            req.close()
            took.append(time.monotonic() - begun)
        return median(took)

    with omq.REP(bind="tcp://127.0.0.1:*") as rep:
        assert least(close, 0.005) < 0.005  # it was 13 ms


@pytest.mark.alone
def test_closing_does_not_wait_for_a_peer_that_is_stopped(monkeypatch):
    monkeypatch.setattr("omq.engine.linger._KERNEL_TIMEOUT_S", 30.0)
    with omq.DEALER(bind="tcp://127.0.0.1:*", linger=0) as dealer:
        child = ForkedProcess(
            "-c",
            f"import zmq; s = zmq.Context().socket(zmq.DEALER); s.connect({dealer.endpoints[0]!r})\n"
            "while True: s.send(s.recv())",
            template=SOCKETS,
        )
        try:
            dealer.send(b"ping")
            assert dealer.recv(timeout=20) == b"ping"
            child.send_signal(signal.SIGSTOP)
            dealer.send(b"last")
            begun = time.monotonic()
            dealer.close(linger=None)
            assert time.monotonic() - begun < 5
        finally:
            child.kill()
            child.wait()


# Much of it


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seat", SEATS, ids="-".join)
def test_two_hundred_closed_senders_lose_nothing(seat, tmp_path):
    """Between them, of each kind of receiver, count, size and option of the two sides."""
    dice = random.Random("-".join(seat))
    plays = []
    for number in range(25):
        count = round(8 ** dice.uniform(0, 4.32))
        size = round(2 ** dice.uniform(4, 16))
        absent = dice.choice([0.0, 0.5, 2.0])
        pace = dice.choice([0.0, 0.0, 0.001]) if count < 2000 else 0.0
        sending = {**dice.choice([{}, SMALL]), **dice.choice([{}, BEATS])}
        taking = {**dice.choice([{}, SMALL]), **(dice.choice([{}, BEATS]) if seat[1] != "zmq" else {})}
        if seat[1] == "zmq":
            for name in BEATS:
                sending.pop(name, None)
        if "send_buffer" in sending or "recv_buffer" in taking:
            count = min(count, max(1, 2_000_000 // size))  # little windows are slow
        scheme = dice.choice(["tcp", "tcp", "ipc"]) if seat[1] != "zmq" else "tcp"
        kill = dice.random() < 0.3
        name = f"{number}: {count} of {size} over {scheme}, {absent=} {pace=} {kill=} {sending=} {taking=}"
        endpoint = where(scheme, tmp_path, f"{number}")
        plays.append(
            (
                name,
                closed_sender(
                    *seat, count, size, endpoint, kill=kill, absent=absent, pace=pace, sending=sending, taking=taking
                ),
            )
        )
    assert side_by_side(plays) == []

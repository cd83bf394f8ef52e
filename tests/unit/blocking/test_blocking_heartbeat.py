"""Heartbeats of blocking sockets: the I/O thread asks and answers while the owner computes, sleeps or waits."""

import os
import signal
import subprocess
import time

import pytest

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND

pytestmark = pytest.mark.alone

PEER = """
import sys, omq
with omq.PUSH(connect=sys.argv[1]) as push:
    push.wait_connected(timeout=10)
    print("here", flush=True)
    sys.stdin.read()
"""


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


@pytest.mark.parametrize("busy", [compute, time.sleep], ids=["computes", "sleeps"])
def test_an_owner_that_is_away_neither_dies_nor_kills(make, busy):
    """One that asks, one that is asked, and one that does both: it is away from all of them at once."""
    beating = {"heartbeat_interval": 0.2, "heartbeat_timeout": 0.4}
    pairs = {}
    for who in ("asks", "is asked", "both"):
        pull = make(omq.PULL, bind="tcp://127.0.0.1:*", **(beating if who != "is asked" else {}))
        push = make(omq.PUSH, connect=pull.endpoints[0], **(beating if who != "asks" else {}))
        push.send(b"before")
        assert pull.recv(timeout=BOUND) == b"before"
        pairs[who] = pull, push, pull.peers[0].since
    busy(1.2)
    for who, (pull, push, before) in pairs.items():
        push.send(b"after")
        assert pull.recv(timeout=BOUND) == b"after", who
        assert pull.peers[0].since == before, who


def test_a_peer_whose_messages_are_left_unread_is_not_taken_for_dead(make):
    """recv_hwm messages wait and reading has stopped, so that its PONGs cannot even be seen."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=10, heartbeat_interval=0.1, heartbeat_timeout=0.2)
    push = make(omq.PUSH, connect=pull.endpoints[0], send_hwm=0, send_buffer=8192)
    for _ in range(5000):
        push.send(bytes(2000))
    pull.wait_connected(timeout=BOUND)
    before = pull.peers[0].since
    compute(1.0)
    assert [len(pull.recv(timeout=BOUND)) for _ in range(5000)] == [2000] * 5000
    assert pull.peers[0].since == before


def test_a_call_that_waits_is_not_disturbed(make):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*", heartbeat_interval=0.05, heartbeat_timeout=0.2)
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv(timeout=0.6)
    push.send(b"x")
    assert pull.recv(timeout=BOUND) == b"x"
    assert len(pull.peers) == 1


def test_a_frozen_process_is_noticed(make):
    """Its kernel goes on to acknowledge what is sent: only the missing answers show it."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", heartbeat_interval=0.1)
    peer = ForkedProcess(
        *("-c", PEER, pull.endpoints[0]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, template=SOCKETS
    )
    try:
        assert peer.stdout.readline() == b"here\n"
        pull.wait_connected(timeout=BOUND)
        os.kill(peer.pid, signal.SIGSTOP)
        until(lambda: not pull.peers, "the end of the peer")
        os.kill(peer.pid, signal.SIGCONT)
        pull.wait_connected(timeout=BOUND)  # it is back, and dials again
    finally:
        peer.kill()
        peer.communicate()

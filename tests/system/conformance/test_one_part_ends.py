"""Ends of connections and calls of the types of one part: closed, reset, killed, cancelled, interrupted, forked."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess

import pytest

import omq
import omq.asyncio
from tests.support import raw_zmtp
from tests.support.fork_server import ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, until
from tests.system.conformance.test_one_part import PAIRS, RECEIVERS, ids

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")

FAST = {"reconnect_interval": 0.01}
ENDS = ["close", "reset", "half close"]


@pytest.mark.parametrize(("receiver", "sender"), RECEIVERS, ids=map(ids, RECEIVERS))
@pytest.mark.parametrize("end", ENDS)
def test_what_has_arrived_is_received_and_the_next_peer_is_served(twin, receiver, sender, end):
    one = twin(receiver, bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    host, port = one.endpoints[0].removeprefix("tcp://").split(":")
    for number in range(2):
        with socket.create_connection((host, int(port)), timeout=BOUND) as peer:
            peer.sendall(raw_zmtp.greeting() + raw_zmtp.ready(sender))
            peer.sendall(raw_zmtp.frame(b"%d" % number) * 3)
            until(lambda: one.peers and (end != "reset" or one.peers[0].messages_in == 3 or one.poll(0)))
            if end == "reset":  # which may overtake what nothing has read
                assert one.recv() == b"%d" % number
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == "half close":
                peer.shutdown(socket.SHUT_WR)
                until(lambda: not one.peers)
            else:
                peer.close()
        if end != "reset":
            assert [one.recv() for _ in range(3)] == [b"%d" % number] * 3
        until(lambda: not one.peers)
        while one.poll(0):
            assert one.recv() == b"%d" % number


SENDER = """
import sys, omq
kind, endpoint = sys.argv[1:]
one = getattr(omq, kind)()
if kind == "PEER":
    route = {"routing_id": one.connect_peer(endpoint, timeout=20)}
else:
    one.connect(endpoint)
    route = {"routing_id": one.recv_message(timeout=20).routing_id} if kind == "SERVER" else {}
for number in range(10):
    one.send(b"%d" % number, **route)
one.flush(timeout=20)
print("sent", flush=True)
sys.stdin.read()
"""


@each_value_once("twin", twin=["blocking", "asyncio"], sender__receiver=PAIRS)
def test_a_process_that_is_killed_costs_its_connection_only(twin, sender, receiver):
    one = twin(receiver, bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    if sender == "SERVER":
        one.send(b"here I am")
    for _ in range(2):
        with ForkedProcess(
            "-c", SENDER, sender, one.endpoints[0], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"sent\n"
            process.kill()
        assert [one.recv() for _ in range(10)] == [b"%d" % number for number in range(10)]
        until(lambda: not one.peers)
        if sender == "SERVER":
            one.send(b"here I am")


@pytest.mark.parametrize(("sender", "receiver"), PAIRS, ids=map(ids, PAIRS))
def test_a_cancelled_call_takes_nothing(sender, receiver):
    async def main():
        async with (
            getattr(omq.asyncio, receiver)(bind="inproc://cancelled", recv_timeout=BOUND) as other,
            getattr(omq.asyncio, sender)() as one,
        ):
            route = {}
            if sender == "PEER":
                route = {"routing_id": await one.connect_peer("inproc://cancelled", timeout=BOUND)}
            else:
                one.connect("inproc://cancelled")
            if sender == "SERVER":
                await other.send(b"here I am")
                route = {"routing_id": (await one.recv_message(timeout=BOUND)).routing_id}
            for number in range(50):
                task = asyncio.create_task(other.recv())
                await asyncio.sleep(0)
                await one.send(b"%d" % number, **route)
                task.cancel()
                try:
                    body = await task
                except asyncio.CancelledError:
                    body = await other.recv()
                assert body == b"%d" % number

    asyncio.run(main())


def test_a_cancelled_connect_peer_leaves_nothing_behind():
    async def main():
        async with omq.asyncio.PEER(**FAST) as near:
            task = asyncio.create_task(near.connect_peer("inproc://later"))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(omq.EndpointError, match="is not connected"):
                near.disconnect("inproc://later")
            async with omq.asyncio.PEER(bind="inproc://later") as far:
                route = await near.connect_peer("inproc://later", timeout=BOUND)
                assert len(near.peers) == 1
                await near.send(b"x", routing_id=route)
                assert await far.recv(timeout=BOUND) == b"x"

    asyncio.run(main())


class Interrupted(Exception):
    """The exception that the handler of the test's signal raises."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def alarm():
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_interrupts_connect_peer(alarm, free_place):
    with omq.Context() as context, omq.PEER(context, **FAST) as near:
        alarm()
        with pytest.raises(Interrupted):
            near.connect_peer(free_place)
        until(lambda: not near._engine.endpoints.dialers, "the end of the dialer")
        with omq.PEER(context, bind=free_place) as far:
            near.send(b"x", routing_id=near.connect_peer(free_place, timeout=BOUND))
            assert far.recv(timeout=BOUND) == b"x"


@pytest.mark.parametrize("kind", ["CLIENT", "SERVER", "GATHER", "CHANNEL", "PEER"])
def test_a_signal_interrupts_a_call_that_receives(alarm, kind):
    with omq.Context() as context, getattr(omq, kind)(context, bind="tcp://127.0.0.1:*") as one:
        alarm()
        with pytest.raises(Interrupted):
            one.recv()
        assert not one.poll(0)


@pytest.mark.parametrize("kind", ["CLIENT", "SERVER", "SCATTER", "GATHER", "CHANNEL", "PEER"])
def test_a_forked_child_cannot_use_it(kind):
    with omq.Context() as context, getattr(omq, kind)(context, bind="tcp://127.0.0.1:*") as one:
        calls = [lambda: one.bind("tcp://127.0.0.1:*")]
        if kind != "GATHER":
            route = {"routing_id": 1} if kind in ("SERVER", "PEER") else {}
            calls.append(lambda: one.send(b"x", timeout=0, **route))
        if kind != "SCATTER":
            calls.append(lambda: one.recv(timeout=0))
        if kind == "PEER":
            calls.append(lambda: one.connect_peer("inproc://x", timeout=0))
        child = os.fork()
        if not child:
            refused = 0
            for call in calls:
                try:
                    call()
                except omq.StateError:
                    refused += 1
                except BaseException:
                    pass
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)

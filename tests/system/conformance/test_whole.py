"""A message arrives whole or not at all: whichever side dies in the middle of it, and however large it is."""

from __future__ import annotations

import random
import socket as system
import subprocess
import textwrap
import threading
import time

import pytest

import omq
from bench.peers.bare_connections import GREETING
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, until
from tests.system.conformance.test_traps import raw_connection

LARGE = 16 << 20

TAKING = """
    import os, signal, sys
    import omq

    kind, endpoint, count, large = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    socket = getattr(omq, kind)(connect=endpoint, recv_hwm=1, linger=0)
    for _ in range(count):
        one, two, tag = socket.recv_multipart(timeout=30)
        whole = len(one) == len(two) == large and one[:8] == one[-8:] == two[:8] == two[-8:] == tag
        print(int.from_bytes(tag, "big") if whole else -1, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("DEALER", "DEALER")])
def test_multipart_is_all_or_nothing_when_peers_are_killed(twin, kinds, waits, transport, tmp_path):
    """Messages of two times 16 MiB and a tag, at marks of 1; each taker is killed, some in the middle of a message."""
    push = twin(kinds[0], bind=f"ipc://{tmp_path}/s" if transport == "ipc" else "tcp://127.0.0.1:*", send_hwm=1)
    over = threading.Event()

    def produce():
        number = 0
        while not over.is_set():
            tag = number.to_bytes(8, "big")
            body = tag + bytes(LARGE - 16) + tag
            try:
                push.send_multipart([body, body, tag], timeout=0.5 if waits else 0)
                number += 1
            except omq.SendTimeout:
                over.wait(0.002)
            except omq.ClosedError:
                return

    producer = threading.Thread(target=produce)
    producer.start()
    got = []
    chance = random.Random(5)
    try:
        for count in (1, 2, 1, 3):
            words = (kinds[1], push.endpoints[0], str(count), str(LARGE))
            program = textwrap.dedent(TAKING)
            taker = ForkedProcess("-c", program, *words, stdout=subprocess.PIPE, text=True, template=SOCKETS)
            if count == 2:
                time.sleep(0.2 + 0.3 * chance.random())
                taker.kill()
            lines = [int(line) for line in taker.communicate(timeout=60)[0].split()]
            assert len(lines) == count or count == 2
            got += lines
    finally:
        over.set()
        push.stop()
        producer.join()
    assert got == sorted(set(got)), "twice, or out of order"
    assert -1 not in got, "a torn message"


WHOLE = b"\0\5whole"
HALVES = {
    "a part and no more": b"\1\3abc\1\3def",
    "a part of a body": b"\0\x0aabc",
    "a part of a header": b"\2\0\0",
    "a part of a large body": b"\2" + (1 << 20).to_bytes(8, "big") + bytes(500_000),
    "a large part and half of the next": b"\3" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20) + b"\1\xffabc",
}


#: Who receives, and who sends to it.
SENDERS = [
    *[("PULL", b"PUSH"), ("ROUTER", b"DEALER"), ("REP", b"REQ"), ("SUB", b"PUB"), ("XPUB", b"XSUB")],
    *[("GATHER", b"SCATTER"), ("SERVER", b"CLIENT"), ("CLIENT", b"SERVER"), ("PEER", b"PEER"), ("CHANNEL", b"CHANNEL")],
]


@pytest.mark.parametrize("resets", [True, False])
@each_value_once("twin", twin=["blocking", "asyncio"], kinds=SENDERS, half=HALVES)
def test_a_message_whose_sender_dies_in_the_middle_is_not_delivered(twin, kinds, half, resets):
    kind, theirs = kinds
    socket = twin(kind, bind="tcp://127.0.0.1:*", **({"subscribe": b""} if kind == "SUB" else {}))
    envelope = b"\1\0" if kind == "REP" else b""
    peer = raw_connection(socket.endpoints[0], theirs)
    peer.sendall(envelope + WHOLE + envelope + HALVES[half])
    assert socket.recv_multipart(timeout=BOUND)[-1] == b"whole"
    if kind == "REP":
        socket.send(b"answer")
    assert not socket.poll(0.02)
    if resets:
        peer.setsockopt(system.SOL_SOCKET, system.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    until(lambda: not socket.peers)
    assert not socket.poll(0.02)
    peer = raw_connection(socket.endpoints[0], theirs)
    peer.sendall(envelope + b"\0\4next")
    assert socket.recv_multipart(timeout=BOUND)[-1] == b"next"
    peer.close()


def test_a_call_that_receives_into_a_buffer_survives_the_sender_in_the_middle(twin):
    """The kernel may write straight into that buffer: another peer's message comes out of it whole."""
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    buffer = bytearray(1 << 20)
    taking = twin.spawn(pull, "recv_into", buffer, timeout=BOUND)
    dying = raw_connection(pull.endpoints[0], b"PUSH")
    until(lambda: pull.peers)
    dying.sendall(b"\2" + (1 << 20).to_bytes(8, "big") + b"d" * 700_000)
    # Of a large frame that is not whole, the kernel may keep up to 512 KiB (`Receiver._set_low_water`).
    until(lambda: pull.peers[0].bytes_in > 700_000 - (512 << 10))
    dying.close()
    until(lambda: not pull.peers)
    assert not taking.done()
    good = raw_connection(pull.endpoints[0], b"PUSH")
    good.sendall(b"\2" + (900_000).to_bytes(8, "big") + b"g" * 900_000)
    assert taking.result() == 900_000
    assert buffer[:900_000] == b"g" * 900_000
    good.close()


@pytest.mark.parametrize("transport", ["tcp", "inproc"])
def test_a_peer_that_comes_back_does_not_overtake_its_earlier_messages(twin, inproc, transport):
    """No call receives while the sender goes and returns: the first connection's messages are taken first."""
    count = 600  # more than one turn
    if transport == "tcp":
        server = system.create_server(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    else:
        where = inproc
    pull = twin("PULL", connect=where, recv_hwm=0, reconnect_interval=0.01)
    sent = [b"%d" % number for number in range(3 * count)]
    for turn in range(3):
        part = sent[turn * count : (turn + 1) * count]
        if transport == "tcp":
            peer = accepted(server)
            peer.sendall(b"".join(bytes([0, len(body)]) + body for body in part))
            until(lambda: pull.peers and pull.peers[0].messages_in == count)
            peer.close()
        else:
            push = twin("PUSH", bind=where)
            assert push.send_many(part) == count
            until(lambda: pull.peers and pull.peers[0].messages_in == count)
            push.stop()
        until(lambda: not pull.peers)
    assert [pull.recv(timeout=BOUND) for _ in range(3 * count)] == sent
    if transport == "tcp":
        server.close()


def accepted(server):
    """A connection that a dialler has made, with the handshake of a PUSH."""
    peer, _ = server.accept()
    peer.settimeout(BOUND)
    peer.sendall(GREETING + b"\4\x1a\5READY\x0bSocket-Type\0\0\0\4PUSH")
    got = b""
    while len(got) < 64 + 2 or len(got) < 64 + 2 + got[65]:
        got += peer.recv(4096)
    return peer

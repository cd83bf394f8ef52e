"""Persistent topics at the S-expression server: messages and ids survive a restart."""

from __future__ import annotations

import socket
import struct

import lmdb  # noqa: F401
import pytest

from tests.support.waits import until
from tests.system.broker.sexp.sexp_server import CREATED, ERROR, MESSAGE, PUBLISHED, ServerThread


@pytest.mark.parametrize("sync", [b"Strong", b"Weak", b"Async"])
def test_a_topic_outlives_the_broker(tmp_path, sync):
    create = b"(Create t Broadcast (Persistent %b))" % sync
    ids = []
    for part in range(3):
        with ServerThread(directory=tmp_path) as running, running.peer(2, client=b"c") as peer:
            peer.send(create)
            assert peer.frame() == (CREATED, b"((id 1)(topic t))")
            peer.send(b"".join(b"(Publish t %d)" % at for at in range(part * 10, part * 10 + 10)))
            for _ in range(10):
                kind, payload = peer.frame()
                assert kind == PUBLISHED
                ids.append(struct.unpack(">QI", payload)[0])
            peer.subscribe(b"t", b"(From_message %d)" % (part * 7))
            found = [peer.message() for _ in range(part * 3 + 10)]
            assert [(id, body) for id, _, body in found] == [
                (at + 1, b"%d" % at) for at in range(part * 7, part * 10 + 10)
            ]
    assert ids == list(range(1, 31))


def test_a_slow_subscriber_of_a_strong_topic_misses_nothing(tmp_path):
    with ServerThread(directory=tmp_path) as running:
        topic = running.create("t", persistence="strong")
        body = bytes(100 << 10)
        with running.peer(receive_buffer=4096) as slow:
            slow.subscribe(b"t", b"From_beginning")
            for _ in range(100):
                running.publish("t", body)
            (connection,) = running.server.connections
            assert connection.transport.unsent < 1 << 20
            assert [slow.message() for _ in range(100)] == [(at, topic, body) for at in range(1, 101)]


def test_undelivered_jobs_survive_a_restart(tmp_path):
    body = bytes(100 << 10)
    count, delivered = 50, []
    with ServerThread(directory=tmp_path) as running:
        running.create("jobs", delivery="round-robin", persistence="strong")
        with running.peer(receive_buffer=4096) as slow:
            slow.subscribe(b"jobs")
            for _ in range(count):
                running.publish("jobs", body)
            (connection,) = running.server.connections
            until(lambda: connection.transport.unsent)
            delivered = list(range(1, 1 + (connection.transport.written - 8 - 26) // (17 + len(body))))
            slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: not running.server.connections)
    with ServerThread(directory=tmp_path) as running, running.peer() as other:
        other.subscribe(b"jobs")
        rest = [other.message()[0] for _ in range(count - len(delivered))]
        assert sorted(delivered + rest) == list(range(1, count + 1))


def test_retention_on_disk(tmp_path):
    with ServerThread(directory=tmp_path) as running:
        running.create("t", persistence="strong", max_messages=5)
        for at in range(1, 21):
            running.publish("t", b"%d" % at)
        with running.peer() as peer:
            peer.subscribe(b"t", b"(From_message 3)")
            kind, payload = peer.frame()
            assert kind == ERROR
            (oldest,) = (int(word) for word in payload.split()[-1:])
            assert oldest > 4
            kind, payload = peer.frame()
            assert (kind, struct.unpack_from(">Q", payload)[0]) == (MESSAGE, oldest)

"""The sockets of `omq.zmq.green`: a call that waits lets other greenlets run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

import omq.zmq.green as zmq

TIMEOUT_S = 20


@pytest.fixture
def context() -> Iterator[Any]:
    """A context that is destroyed after the test, which has a limited time."""
    made = zmq.Context()
    with gevent.Timeout(TIMEOUT_S):
        yield made
    made.destroy(linger=0)


def test_greenlets_talk_to_each_other(context: Any) -> None:
    reply, request = context.socket(zmq.REP), context.socket(zmq.REQ)
    reply.bind("tcp://127.0.0.1:*")
    request.connect(reply.last_endpoint.decode())

    def serve() -> None:
        for _ in range(50):
            reply.send_multipart([b"answer", *reply.recv_multipart()])

    server = gevent.spawn(serve)
    for number in range(50):
        request.send(b"%d" % number)
        assert request.recv_multipart() == [b"answer", b"%d" % number]
    server.get()


def test_two_greenlets_wait_for_one_socket(context: Any) -> None:
    first, second = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    receiver = gevent.spawn(first.recv)
    sender = gevent.spawn(first.send, b"sent")
    gevent.sleep(0.02)
    assert not receiver.ready()
    assert not sender.ready()
    first.bind("tcp://127.0.0.1:*")
    second.connect(first.last_endpoint.decode())
    sender.get()
    assert second.recv() == b"sent"
    second.send(b"received")
    assert receiver.get() == b"received"


def test_a_poller_waits_for_sockets(context: Any) -> None:
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint.decode())
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    assert poller.poll(10) == []
    gevent.spawn_later(0.02, push.send, b"x")
    assert poller.poll(10_000) == [(pull, zmq.POLLIN)]
    assert pull.recv() == b"x"
    assert push.poll(10_000, zmq.POLLOUT) == zmq.POLLOUT

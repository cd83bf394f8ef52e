"""Threads share one socket: the types of one part MUST allow that (RFC 41, RFC 49, RFC 51, RFC 52)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import omq
from tests.support.waits import BOUND

COUNT = 15_000  # messages of one thread


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes sockets of one context, which end with the test."""
    made: list[omq.Socket] = []

    with omq.Context() as context:

        def one(kind: str, **options: Any) -> Any:
            made.append(getattr(omq, kind)(context, **options))
            return made[-1]

        yield one
        for socket in made:
            socket.stop()


def together(*works: Callable[[], object]) -> None:
    """Has each run in a thread of its own; raises what the first to fail has raised."""
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * BOUND)
    for failure in failures:
        raise failure
    assert not any(thread.is_alive() for thread in threads)


def sending(socket: omq.Socket, first: int) -> None:
    for number in range(first, first + COUNT):
        socket.send(b"%d" % number, timeout=BOUND)


def receiving(socket: omq.Socket, taken: list[bytes]) -> None:
    taken.extend([socket.recv(timeout=BOUND) for _ in range(COUNT)])


def test_two_threads_ask_and_two_take_the_replies_of_a_client(make, endpoint):
    server = make("SERVER", bind=endpoint)
    client = make("CLIENT", connect=server.endpoints[0])
    replies: list[bytes] = []

    def serving():
        for _ in range(COUNT):
            message = server.recv_message(timeout=BOUND)
            server.send(message.body, routing_id=message.routing_id, timeout=BOUND)

    asking = [partial(sending, client, first) for first in (0, COUNT)]
    together(*asking, *[partial(receiving, client, replies)] * 2, serving, serving)
    assert sorted(map(int, replies)) == list(range(2 * COUNT))


@pytest.mark.parametrize(
    ("sender", "receiver"), [("SCATTER", "GATHER"), ("CHANNEL", "CHANNEL")], ids=["SCATTER", "CHANNEL"]
)
def test_two_threads_send_and_two_receive(make, endpoint, sender, receiver):
    other = make(receiver, bind=endpoint)
    one = make(sender, connect=other.endpoints[0])
    taken: list[bytes] = []
    together(*(partial(sending, one, first) for first in (0, COUNT)), *[partial(receiving, other, taken)] * 2)
    assert sorted(map(int, taken)) == list(range(2 * COUNT))


def test_each_thread_of_a_peer_connects_and_sends_to_its_own(make):
    near = make("PEER")

    def work(far):
        route = near.connect_peer(far.bind("tcp://127.0.0.1:*"), timeout=BOUND)
        for number in range(1000):
            near.send(b"%d" % number, routing_id=route, timeout=BOUND)
        assert [int(far.recv(timeout=BOUND)) for _ in range(1000)] == list(range(1000))

    together(*(partial(work, make("PEER", recv_hwm=0)) for _ in range(4)))

"""Waiting for sockets of `omq.zmq`: Poller, select, and the descriptor for event loops."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import omq.zmq as zmq

PairOf = Callable[[int, int], tuple[Any, Any]]


def test_a_poller_of_many_sockets_finds_the_one_that_is_ready(context: zmq.Context[Any]) -> None:
    poller, pulls = zmq.Poller(), [context.socket(zmq.PULL) for _ in range(20)]
    for number, pull in enumerate(pulls):
        pull.bind(f"inproc://many-{number}" if number % 2 else "tcp://127.0.0.1:*")
        poller.register(pull, zmq.POLLIN)
    assert poller.poll(0) == []
    for number in (3, 4):
        push = context.socket(zmq.PUSH)
        push.connect(pulls[number].last_endpoint.decode())
        sender = threading.Timer(0.05, push.send, (b"x",))
        sender.start()
        assert poller.poll(10_000) == [(pulls[number], zmq.POLLIN)]
        sender.join()
        assert pulls[number].recv() == b"x"
    poller.unregister(pulls[0])
    assert pulls[0] not in poller
    assert poller.poll(10) == []
    pulls[5].close()
    with pytest.raises(zmq.ZMQError):
        poller.poll(0)


def test_a_poller_waits_for_room(context: zmq.Context[Any]) -> None:
    poller, pushes = zmq.Poller(), [context.socket(zmq.PUSH) for _ in range(2)]
    for push in pushes:
        push.bind("tcp://127.0.0.1:*")
        poller.register(push, zmq.POLLOUT)
    assert poller.poll(20) == []
    pull = context.socket(zmq.PULL)
    pull.connect(pushes[1].last_endpoint.decode())
    assert poller.poll(10_000) == [(pushes[1], zmq.POLLOUT)]


def test_sockets_and_descriptors_together(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    reader, writer = os.pipe()
    try:
        poller = zmq.Poller()
        poller.register(pull, zmq.POLLIN)
        poller.register(reader, zmq.POLLIN)
        assert poller.poll(10) == []
        threading.Timer(0.05, os.write, (writer, b"x")).start()
        assert poller.poll(10_000) == [(reader, zmq.POLLIN)]
        os.read(reader, 1)
        threading.Timer(0.05, push.send, (b"x",)).start()
        assert poller.poll(10_000) == [(pull, zmq.POLLIN)]
    finally:
        os.close(reader)
        os.close(writer)


def test_select(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    push.send(b"x")
    assert zmq.select([pull], [], [], 10) == ([pull], [], [])
    assert zmq.select([], [push], [], 10) == ([], [push], [])


def readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def test_the_descriptor_shows_changes_once(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    fd = pull.fd
    assert pull.events == 0
    assert not readable(fd, 0)
    push.send(b"x")
    assert readable(fd, 10)
    assert pull.events == zmq.POLLIN
    assert not readable(fd, 0.02)  # a loop that ignores the message does not spin
    assert pull.recv() == b"x"
    push.send(b"y")
    assert readable(fd, 10)


def test_the_descriptor_shows_room(context: zmq.Context[Any]) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.bind("tcp://127.0.0.1:*")
    fd = push.fd
    assert push.events == 0
    assert not readable(fd, 0)
    pull.connect(push.last_endpoint.decode())
    deadline = time.monotonic() + 10
    while not push.events & zmq.POLLOUT:
        assert readable(fd, deadline - time.monotonic())

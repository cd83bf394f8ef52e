"""The descriptor of `FD`, as programs with an event loop use it: before and after the first endpoint."""

from __future__ import annotations

import select
from typing import Any

import pytest

import omq.zmq as zmq


def is_readable(socket: zmq.Socket[Any], timeout: float = 0) -> bool:
    return bool(select.select([socket.FD], [], [], timeout)[0])


def test_options_are_applied_that_are_set_after_it(context: zmq.Context[Any]) -> None:
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    assert router.FD > 0
    assert dealer.FD > 0
    router.router_mandatory = True
    dealer.identity = b"dealer"
    dealer.sndhwm = 5
    router.bind("tcp://127.0.0.1:*")
    dealer.connect(router.last_endpoint.decode())
    dealer.send(b"text")
    router.rcvtimeo = 10_000
    assert router.recv_multipart() == [b"dealer", b"text"]
    with pytest.raises(zmq.ZMQError, match="unreachable"):
        router.send_multipart([b"nowhere", b"text"])


@pytest.mark.parametrize("before", [True, False])
def test_it_is_readable_when_a_message_arrives(context: zmq.Context[Any], before: bool) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    if before:
        assert not is_readable(pull)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint.decode())
    assert pull.EVENTS == 0
    assert not is_readable(pull)
    push.send(b"text")
    assert is_readable(pull, 10)
    assert (pull.EVENTS, pull.recv()) == (zmq.POLLIN, b"text")
    assert not is_readable(pull)


@pytest.mark.parametrize("before", [True, False])
def test_it_is_readable_when_there_is_room(context: zmq.Context[Any], before: bool) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.immediate = True
    if before:
        assert push.FD > 0
    push.bind("tcp://127.0.0.1:*")
    assert push.FD > 0
    assert push.EVENTS == 0
    assert not is_readable(push)
    pull.connect(push.last_endpoint.decode())
    assert is_readable(push, 10)
    assert push.EVENTS == zmq.POLLOUT


def test_subclasses_may_have_attributes_of_their_own(context: zmq.Context[Any]) -> None:
    class Counting(zmq.Socket[bytes]):
        _state: int
        _descriptor: int

    push, pull = Counting(context, zmq.PUSH), context.socket(zmq.PULL)
    push._state = push._descriptor = 7
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint.decode())
    push.send(b"text")
    pull.rcvtimeo = 10_000
    assert (pull.recv(), push.EVENTS, push._state) == (b"text", zmq.POLLOUT, 7)
    push.close()

"""Wrong arguments of a proxy are refused, and the error names the argument."""

from __future__ import annotations

import asyncio

import pytest

import omq
import omq.asyncio
from tests.support.waits import BOUND, until
from tests.unit.proxy.conftest import TCP


@pytest.mark.parametrize(
    ("front", "back"),
    [
        (omq.PULL, omq.PULL),
        (omq.PUSH, omq.PUSH),
        (omq.SUB, omq.PULL),
        (omq.PUB, omq.PUSH),
        (omq.PUSH, omq.PUB),
    ],
    ids=str,
)
def test_types_that_cannot_forward(make, front, back):
    with pytest.raises(omq.StateError, match=r"frontend, backend: a .* and a .* socket cannot forward"):
        omq.proxy(make(front), make(back))


@pytest.mark.parametrize("twin", [omq, omq.asyncio], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("source", "target", "keyword"),
    [
        ("CLIENT", "SERVER", "routing_id="),
        ("DEALER", "SERVER", "routing_id="),
        ("PULL", "SERVER", "routing_id="),
        ("SERVER", "SERVER", "routing_id="),
        ("CHANNEL", "PEER", "routing_id="),
        ("PEER", "PEER", "routing_id="),
        ("PULL", "RADIO", "group="),
        ("DISH", "RADIO", "group="),
    ],
)
def test_a_target_that_sends_with_an_argument(make, twin, source, target, keyword):
    """One direction of some of these would pass, in silence about the other one."""

    async def refused(front, back):
        with pytest.raises(omq.StateError) as caught:
            await twin.proxy(front, back) if twin is omq.asyncio else twin.proxy(front, back)
        assert f"a {target} socket sends with {keyword} only" in str(caught.value)
        assert f"messages that a {source} socket receives cannot be forwarded to it" in str(caught.value)

    pair = [getattr(twin, kind)(make.context) for kind in (source, target)]
    for front, back in (pair, pair[::-1]):
        asyncio.run(refused(front, back))
    for one in pair:
        one.stop()


def test_one_socket_at_both_ends_that_sends_with_an_argument(make):
    server = make(omq.SERVER)
    with pytest.raises(omq.StateError, match="a SERVER socket sends with routing_id= only"):
        omq.proxy(server, server)


@pytest.mark.parametrize("name", ["frontend", "backend", "capture", "control"])
def test_what_is_no_blocking_socket(make, name):
    given = {"frontend": make(omq.PULL), "backend": make(omq.PUSH)}
    for wrong in ("tcp://127.0.0.1:1", 5, omq.asyncio.PULL(make.context)):
        with pytest.raises(TypeError, match=f"{name}: this proxy takes blocking sockets"):
            omq.proxy(**given | {name: wrong})
    if name in ("frontend", "backend"):
        with pytest.raises(TypeError, match=name):
            omq.proxy(**given | {name: None})


@pytest.mark.parametrize("name", ["frontend", "backend", "capture", "control"])
def test_a_closed_socket(make, name):
    kinds = {"frontend": omq.PULL, "backend": omq.PUSH, "capture": omq.PUB, "control": omq.PULL}
    given = {each: make(kind) for each, kind in kinds.items()}
    given[name].close()
    with pytest.raises(omq.ClosedError, match=f"given as {name} is closed"):
        omq.proxy(**given)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("frontend", "capture"),
        ("frontend", "control"),
        ("backend", "capture"),
        ("backend", "control"),
        ("capture", "control"),
    ],
)
def test_one_socket_for_two_purposes(make, first, second):
    given = {name: make(omq.PAIR) for name in ("frontend", "backend", "capture", "control")}
    given[second] = given[first]
    with pytest.raises(omq.StateError, match=f"{second}: .* is the {first} already"):
        omq.proxy(**given)


def test_types_of_capture_and_control(make):
    front, back = make(omq.PULL), make(omq.PUSH)
    with pytest.raises(omq.StateError, match="capture: must be a PUB, XPUB, PUSH, DEALER or PAIR socket, not a PULL"):
        omq.proxy(front, back, capture=make(omq.PULL))
    with pytest.raises(omq.StateError, match="control: must be a PAIR, PULL, SUB or REP socket, not a ROUTER"):
        omq.proxy(front, back, control=make(omq.ROUTER))


def test_a_second_proxy(make, proxied):
    proxy = proxied(omq.PULL, omq.PUSH)
    until(lambda: proxy.front.readable.waiting, "the proxy")
    with pytest.raises(omq.StateError, match="another proxy serves the PULL socket"):
        omq.proxy(proxy.front, make(omq.PUSH))
    sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
    sender.send(b"the first goes on")
    assert receiver.recv(timeout=BOUND) == b"the first goes on"


def test_sockets_of_several_contexts_fit(make, proxied):
    with omq.Context() as other, omq.PUSH(other, bind=TCP) as back:
        proxy = proxied(omq.PULL, back)
        sender, receiver = make(omq.PUSH, connect=proxy.front_end), make(omq.PULL, connect=proxy.back_end)
        sender.send(b"x")
        assert receiver.recv(timeout=BOUND) == b"x"
        proxy.command_proxy(b"TERMINATE")
        proxy.ends()

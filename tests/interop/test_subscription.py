"""Subscriptions between the two libraries: what each publisher learns, and what each subscriber gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Self

import pytest
import zmq
import zmq.asyncio

import omq.asyncio as omq
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, attended, endpoint_of
from tests.interop.payloads import octets
from tests.interop.run_coroutine import on_uvloop
from tests.interop.socket_pairs import joined, probed

BINDS = pytest.mark.parametrize("binds", [pytest.param(side, id=f"{side}-binds") for side in ("omq", "zmq")])
#: Lengths around the edge between a short and a long SUBSCRIBE command, and of a subscription message.
TOPICS = pytest.mark.parametrize("length", [0, 1, 244, 245, 246, 247, 254, 255, 256, 5000])
SUBSCRIBERS = pytest.mark.parametrize("kind", ["SUB", "XSUB"])
FENCE = b"~fence"


def on(prefix: bytes) -> bytes:
    """Returns XPUB's message about a subscription."""
    return b"\x01" + prefix


def off(prefix: bytes) -> bytes:
    """Returns XPUB's message about the end of a subscription."""
    return b"\x00" + prefix


async def zmq_subscribe(socket: Any, prefix: bytes) -> None:
    """Subscribes a SUB or XSUB of libzmq."""
    if socket.type == zmq.SUB:
        socket.subscribe(prefix)
    else:
        await socket.send(on(prefix))


async def zmq_unsubscribe(socket: Any, prefix: bytes) -> None:
    """Takes a subscription of libzmq's back."""
    if socket.type == zmq.SUB:
        socket.unsubscribe(prefix)
    else:
        await socket.send(off(prefix))


# --- omq subscribes, libzmq publishes ---------------------------------------------------------------


@pytest.mark.parametrize("when", ["as an option", "before the bind", "before the handshake", "after it"])
@SUBSCRIBERS
@on_uvloop
async def test_libzmq_xpub_learns_of_omq_subscription(libzmq: Libzmq, fresh: Fresh, when: str, kind: str) -> None:
    endpoint = fresh("ipc")
    options = {"subscribe": b"A"} if when == "as an option" else {}
    xpub = None if when == "before the bind" else libzmq.open("XPUB", bind=endpoint)
    async with getattr(omq, kind)(connect=endpoint, linger=0.0, **options) as sub:
        if when == "after it":
            await sub.wait_connected(timeout=5)
        if not options:
            sub.subscribe(b"A")
        xpub = xpub or libzmq.open("XPUB", bind=endpoint)
        assert await xpub.recv() == on(b"A")
        for message in (b"B", b"", b"A", b"AB"):
            await xpub.send(message)
        assert [await sub.recv(timeout=5) for _ in range(2)] == [b"A", b"AB"]


@SUBSCRIBERS
@BINDS
@on_uvloop
async def test_omq_unsubscribes_from_libzmq_xpub(libzmq: Libzmq, fresh: Fresh, kind: str, binds: str) -> None:
    mine = {"subscribe": [b"A", b"B"]}
    async with joined(libzmq, fresh("tcp"), kind, "XPUB", binds=binds, mine=mine) as (sub, xpub):
        assert {await xpub.recv(), await xpub.recv()} == {on(b"A"), on(b"B")}
        sub.unsubscribe(b"A")
        assert await xpub.recv() == off(b"A")
        for message in (b"A", b"AB", b"B", b"BA"):
            await xpub.send(message)
        assert [await sub.recv(timeout=5) for _ in range(2)] == [b"B", b"BA"]


@SUBSCRIBERS
@on_uvloop
async def test_omq_subscribes_twice_and_unsubscribes_once(libzmq: Libzmq, fresh: Fresh, kind: str) -> None:
    async with joined(libzmq, fresh("tcp"), kind, "XPUB", binds="zmq") as (sub, xpub):
        sub.subscribe(b"A")
        sub.subscribe(b"A")
        sub.unsubscribe(b"A")
        sub.subscribe(FENCE)
        assert [await xpub.recv(), await xpub.recv()] == [on(b"A"), on(FENCE)]
        await xpub.send(b"A is still in force")
        assert await sub.recv(timeout=5) == b"A is still in force"
        sub.unsubscribe(b"A")
        assert await xpub.recv() == off(b"A")
        await xpub.send(b"A is gone")
        await xpub.send(FENCE)
        assert await sub.recv(timeout=5) == FENCE


@SUBSCRIBERS
@TOPICS
@on_uvloop
async def test_libzmq_xpub_reads_omq_topics_of_every_length(
    libzmq: Libzmq, fresh: Fresh, kind: str, length: int
) -> None:
    topic = octets(length)
    async with joined(libzmq, fresh("tcp"), kind, "XPUB", binds="zmq", mine={"subscribe": topic}) as (
        sub,
        xpub,
    ):
        assert await xpub.recv() == on(topic)
        await xpub.send(topic + b"!")
        assert await sub.recv(timeout=5) == topic + b"!"
        sub.unsubscribe(topic)
        assert await xpub.recv() == off(topic)


@on_uvloop
async def test_omq_sub_and_libzmq_pub(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "SUB", "PUB", binds="omq", mine={"subscribe": b""}) as (sub, pub):
        await probed(pub, sub)
        sub.subscribe(b"A")
        sub.unsubscribe(b"")
        # PUB does not report what it has received: what it publishes until then is filtered the old way.
        seen = [b"B"]
        while b"B" in seen:
            for message in (b"A", b"B", b"A last"):
                await pub.send(message)
            seen = []
            while b"A last" not in seen:
                seen.append(await sub.recv(timeout=5))
        assert seen == [b"A", b"A last"]


@on_uvloop
async def test_omq_xsub_by_hand(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "XSUB", "XPUB", binds="zmq") as (xsub, xpub):
        await xsub.wait_connected(timeout=5)
        await xsub.send(on(b"A"))
        assert await xpub.recv() == on(b"A")
        await xpub.send_multipart([b"A", b"body"])
        assert await xsub.recv_multipart(timeout=5) == [b"A", b"body"]
        await xsub.send(off(b"A"))
        assert await xpub.recv() == off(b"A")
        await xsub.send(off(b"never there"))
        await xsub.send(b"a message, not a subscription")
        assert await xpub.recv() == b"a message, not a subscription"


@on_uvloop
async def test_omq_sub_subscribes_again_after_libzmq_comes_back(libzmq: Libzmq, fresh: Fresh) -> None:
    endpoint = fresh("ipc")
    xpub = libzmq.open("XPUB", bind=endpoint)
    async with omq.SUB(connect=endpoint, subscribe=b"A", reconnect_interval=0.01, linger=0.0) as sub:
        assert await xpub.recv() == on(b"A")
        xpub.close()
        sub.subscribe(b"B")
        xpub = libzmq.open("XPUB", bind=endpoint)
        assert {await xpub.recv(), await xpub.recv()} == {on(b"A"), on(b"B")}
        await xpub.send(b"A again")
        assert await sub.recv(timeout=5) == b"A again"


@on_uvloop
async def test_omq_sub_receives_from_several_libzmq_publishers(libzmq: Libzmq, fresh: Fresh) -> None:
    publishers = [libzmq.open("XPUB", bind=fresh("tcp")) for _ in range(3)]
    endpoints = [endpoint_of(publisher) for publisher in publishers]
    async with omq.SUB(connect=endpoints, subscribe=b"", linger=0.0) as sub:
        for number, publisher in enumerate(publishers):
            assert await publisher.recv() == on(b"")
            await publisher.send(b"%d" % number)
        assert {await sub.recv(timeout=5) for _ in publishers} == {b"0", b"1", b"2"}


# --- libzmq subscribes, omq publishes ---------------------------------------------------------------


@SUBSCRIBERS
@pytest.mark.parametrize("when", ["before the bind", "before the handshake", "after it"])
@on_uvloop
async def test_omq_xpub_learns_of_libzmq_subscription(libzmq: Libzmq, fresh: Fresh, when: str, kind: str) -> None:
    endpoint = fresh("ipc")
    sub = libzmq.open(kind, connect=endpoint)
    if when == "before the bind":
        await zmq_subscribe(sub, b"A")
    async with omq.XPUB(bind=endpoint, linger=0.0) as xpub:
        if when == "after it":
            await xpub.wait_connected(timeout=5)
        if when != "before the bind":
            await zmq_subscribe(sub, b"A")
        assert await xpub.recv(timeout=5) == on(b"A")
        for message in (b"B", b"", b"A", b"AB"):
            await xpub.send(message)
        assert [await sub.recv() for _ in range(2)] == [b"A", b"AB"]


@SUBSCRIBERS
@BINDS
@on_uvloop
async def test_libzmq_unsubscribes_from_omq_xpub(libzmq: Libzmq, fresh: Fresh, kind: str, binds: str) -> None:
    async with joined(libzmq, fresh("tcp"), "XPUB", kind, binds=binds) as (xpub, sub):
        for prefix in (b"A", b"B"):
            await zmq_subscribe(sub, prefix)
            assert await attended(sub, xpub.recv(timeout=5)) == on(prefix)
        await zmq_unsubscribe(sub, b"A")
        assert await xpub.recv(timeout=5) == off(b"A")
        for message in (b"A", b"AB", b"B", b"BA"):
            await xpub.send(message)
        assert [await sub.recv() for _ in range(2)] == [b"B", b"BA"]


@SUBSCRIBERS
@BINDS
@on_uvloop
async def test_libzmq_subscribes_to_omq_pub(libzmq: Libzmq, fresh: Fresh, kind: str, binds: str) -> None:
    async with joined(libzmq, fresh("tcp"), "PUB", kind, binds=binds) as (pub, sub):
        await zmq_subscribe(sub, b"A")
        await attended(sub, pub.wait_subscribed(b"A", timeout=5))
        for message in (b"B", b"", b"A", b"AB"):
            await pub.send(message)
        assert [await sub.recv() for _ in range(2)] == [b"A", b"AB"]
        await zmq_unsubscribe(sub, b"A")
        await zmq_subscribe(sub, FENCE)
        await pub.wait_subscribed(FENCE, timeout=5)
        await pub.send(b"A is gone")
        await pub.send(FENCE)
        assert await sub.recv() == FENCE


@SUBSCRIBERS
@TOPICS
@on_uvloop
async def test_omq_xpub_reads_libzmq_topics_of_every_length(
    libzmq: Libzmq, fresh: Fresh, kind: str, length: int
) -> None:
    topic = octets(length)
    async with joined(libzmq, fresh("tcp"), "XPUB", kind, binds="omq") as (xpub, sub):
        await zmq_subscribe(sub, topic)
        assert await xpub.recv(timeout=5) == on(topic)
        await xpub.send(topic + b"!")
        assert await sub.recv() == topic + b"!"
        await zmq_unsubscribe(sub, topic)
        assert await xpub.recv(timeout=5) == off(topic)


@pytest.mark.parametrize(
    ("options", "on_second", "off_first"),
    [
        pytest.param({}, [], [], id="plain"),
        pytest.param({"xpub_verbose": True}, [on(b"A")], [], id="verbose"),
        pytest.param({"xpub_verboser": True}, [on(b"A")], [off(b"A")], id="verboser"),
    ],
)
@on_uvloop
async def test_omq_xpub_reports_two_libzmq_subscribers(
    libzmq: Libzmq, fresh: Fresh, options: dict[str, Any], on_second: list[bytes], off_first: list[bytes]
) -> None:
    async with omq.XPUB(bind=fresh("tcp"), linger=0.0, **options) as xpub:
        one, two = (libzmq.open("SUB", connect=xpub.endpoints[0]) for _ in range(2))
        for sub, news in ((one, [on(b"A")]), (two, on_second)):
            sub.subscribe(b"A")
            sub.subscribe(FENCE)
            received = [*news, on(FENCE)] if sub is one or options else news
            assert [await xpub.recv(timeout=5) for _ in received] == received
        await xpub.wait_subscribed(FENCE, 2, timeout=5)
        one.unsubscribe(b"A")
        one.subscribe(b"after it")
        received = [*off_first, on(b"after it")]
        assert [await xpub.recv(timeout=5) for _ in received] == received
        await xpub.send(b"A for two")
        assert await two.recv() == b"A for two"
        two.unsubscribe(b"A")
        assert await xpub.recv(timeout=5) == off(b"A")


@on_uvloop
async def test_omq_xpub_learns_that_libzmq_subscriber_left(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "XPUB", "SUB", binds="omq", its={"subscribe": b"A"}) as (
        xpub,
        sub,
    ):
        assert await xpub.recv(timeout=5) == on(b"A")
        sub.close()
        assert await xpub.recv(timeout=5) == off(b"A")


@on_uvloop
async def test_libzmq_xpub_learns_that_omq_subscriber_left(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "SUB", "XPUB", binds="zmq", mine={"subscribe": b"A"}) as (
        sub,
        xpub,
    ):
        assert await xpub.recv() == on(b"A")
        await sub.close()
        assert await xpub.recv() == off(b"A")


@on_uvloop
async def test_libzmq_xsub_by_hand(libzmq: Libzmq, fresh: Fresh) -> None:
    async with joined(libzmq, fresh("tcp"), "XPUB", "XSUB", binds="omq") as (xpub, xsub):
        await xsub.send(on(b"A"))
        assert await xpub.recv(timeout=5) == on(b"A")
        await xpub.send_multipart([b"A", b"body"])
        assert await xsub.recv_multipart() == [b"A", b"body"]
        await xsub.send(b"a message, not a subscription")
        assert await xpub.recv(timeout=5) == b"a message, not a subscription"


@on_uvloop
async def test_libzmq_sub_subscribes_again_after_omq_comes_back(libzmq: Libzmq, fresh: Fresh) -> None:
    endpoint = fresh("ipc")
    sub = libzmq.open("SUB", reconnect_ivl=10, subscribe=b"A", connect=endpoint)
    for turn in (b"A first", b"A second"):
        async with omq.XPUB(bind=endpoint, linger=1.0) as xpub:
            assert await attended(sub, xpub.recv(timeout=5)) == on(b"A")
            await xpub.send(turn)
            assert await sub.recv() == turn


@on_uvloop
async def test_omq_welcomes_libzmq_subscribers(libzmq: Libzmq, fresh: Fresh) -> None:
    mine, its = {"xpub_welcome_message": b"W"}, {"subscribe": b"W"}
    async with joined(libzmq, fresh("tcp"), "XPUB", "SUB", binds="omq", mine=mine, its=its) as (_, sub):
        assert await sub.recv() == b"W"


@on_uvloop
async def test_libzmq_welcomes_omq_subscribers(libzmq: Libzmq, fresh: Fresh) -> None:
    mine, its = {"subscribe": b"W"}, {"xpub_welcome_msg": b"W"}
    async with joined(libzmq, fresh("tcp"), "SUB", "XPUB", binds="omq", mine=mine, its=its) as (sub, _):
        assert await sub.recv(timeout=5) == b"W"


@on_uvloop
async def test_inverted_matching(libzmq: Libzmq, fresh: Fresh) -> None:
    mine, its = {"invert_matching": True}, {"invert_matching": 1, "subscribe": b"A"}
    async with joined(libzmq, fresh("tcp"), "PUB", "SUB", binds="omq", mine=mine, its=its) as (pub, sub):
        await pub.wait_subscribed(b"A", timeout=5)
        await pub.send(b"A")
        await pub.send(b"B")
        assert await sub.recv() == b"B"


# --- either library in either seat: what libzmq's pair of them shows, every pair shows ---------------

SEATS = [pytest.param(up, down, id=f"{up}-{down}") for up in ("zmq", "omq") for down in ("zmq", "omq")]


class Seats:
    """An XPUB of one library, and subscribers of one library."""

    def __init__(self, libzmq: Libzmq, endpoint: str, up: str, down: str, **options: bool) -> None:
        self._libzmq, self._down = libzmq, down
        self._subscribers: list[Any] = []
        if up == "zmq":
            self.xpub = libzmq.open("XPUB", bind=endpoint, **{name: int(value) for name, value in options.items()})
            self._endpoint = endpoint_of(self.xpub)
        else:
            self.xpub = omq.XPUB(bind=endpoint, linger=0.0, **options)
            self._endpoint = self.xpub.endpoints[0]

    def join(self, kind: str = "SUB") -> Any:
        """One more subscriber."""
        if self._down == "zmq":
            one = self._libzmq.open(kind, connect=self._endpoint)
        else:
            one = getattr(omq, kind)(connect=self._endpoint, linger=0.0)
        self._subscribers.append(one)
        return one

    async def received(self, count: int) -> list[list[bytes]]:
        """Returns the next messages of the XPUB."""
        return [await self._attended(self.xpub.recv_multipart()) for _ in range(count)]

    async def _attended(self, awaited: Awaitable[Any]) -> Any:
        zmq_ones = [one for one in self._subscribers if isinstance(one, zmq.asyncio.Socket)]
        async with asyncio.timeout(5):
            return await (attended(zmq_ones[-1], awaited) if zmq_ones else awaited)

    async def leave(self, one: Any) -> None:
        """A subscriber goes."""
        self._subscribers.remove(one)
        await self._over(one)

    async def _over(self, one: Any) -> None:
        closing = one.close()
        if closing is not None:
            await closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in (*self._subscribers, self.xpub):
            await self._over(one)


@pytest.mark.parametrize(("up", "down"), SEATS)
@on_uvloop
async def test_each_subscription_of_one_peer_reaches_a_verbose_xpub(
    libzmq: Libzmq, fresh: Fresh, up: str, down: str
) -> None:
    async with Seats(libzmq, fresh("tcp"), up, down, xpub_verbose=True) as seats:
        sub = seats.join()
        for _ in range(2):
            sub.subscribe(b"A")
            assert await seats.received(1) == [[on(b"A")]]
        sub.unsubscribe(b"A")
        sub.subscribe(FENCE)
        assert await seats.received(1) == [[on(FENCE)]]
        sub.unsubscribe(b"A")
        assert await seats.received(1) == [[off(b"A")]]


@pytest.mark.parametrize(("up", "down"), SEATS)
@pytest.mark.parametrize(("option", "received"), [("xpub_verbose", []), ("xpub_verboser", [[off(b"A")]])])
@on_uvloop
async def test_what_an_xpub_receives_when_one_of_two_subscribers_leaves(
    libzmq: Libzmq, fresh: Fresh, up: str, down: str, option: str, received: list[list[bytes]]
) -> None:
    async with Seats(libzmq, fresh("tcp"), up, down, **{option: True}) as seats:
        stays, goes = seats.join(), seats.join()
        for one in (stays, goes):
            one.subscribe(b"A")
            assert await seats.received(1) == [[on(b"A")]]
        goes.subscribe(b"only mine")
        assert await seats.received(1) == [[on(b"only mine")]]
        await seats.leave(goes)
        assert sorted(await seats.received(1 + len(received))) == sorted([*received, [off(b"only mine")]])
        stays.unsubscribe(b"A")
        assert await seats.received(1) == [[off(b"A")]]


@pytest.mark.parametrize(("up", "down"), SEATS)
@on_uvloop
async def test_a_subscription_may_begin_a_message_of_several_parts(
    libzmq: Libzmq, fresh: Fresh, up: str, down: str
) -> None:
    async with Seats(libzmq, fresh("tcp"), up, down) as seats:
        xsub = seats.join("XSUB")
        await xsub.send(on(FENCE))
        assert await seats.received(1) == [[on(FENCE)]]
        await xsub.send(b"hello")
        await xsub.send_multipart([on(b"A"), b"two", b"parts"])
        await xsub.send_multipart([on(b"B"), off(b"A")])
        await xsub.send_multipart([b"last", b"one"])
        received = [[b"hello"], [on(b"A")], [b"two", b"parts"], [on(b"B")], [off(b"A")], [b"last", b"one"]]
        assert await seats.received(6) == received
        await seats.xpub.send(b"A no more")
        await seats.xpub.send(b"B yes")
        async with asyncio.timeout(5):
            assert await xsub.recv() == b"B yes"

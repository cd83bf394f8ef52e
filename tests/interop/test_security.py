"""PLAIN and CURVE with libzmq: both roles, tcp and ipc, every pair of types, and what bad peers may try."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import zmq
import zmq.auth.thread

import omq.asyncio as omq
from omq.event import EventKind, HandshakeFailure
from tests.interop.conftest import Fresh
from tests.interop.disconnect_reasons import verdicts
from tests.interop.libzmq import Libzmq, endpoint_of
from tests.interop.payloads import MIB, SHAPES, octets
from tests.interop.run_coroutine import on_uvloop
from tests.interop.socket_pairs import ONE_WAY, by_side, conversing, joined
from tests.support.raw_zmtp import command, dialled, frame, greeting

SERVER_PUBLIC, SERVER_SECRET = omq.curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = omq.curve_keypair()

ITS_SERVER = {"curve_server": 1, "curve_secretkey": SERVER_SECRET}
ITS_CLIENT = {
    "curve_serverkey": SERVER_PUBLIC,
    "curve_publickey": CLIENT_PUBLIC,
    "curve_secretkey": CLIENT_SECRET,
}
PAIRS = [pytest.param(pair, id=f"omq-{pair[0]}-zmq-{pair[1]}") for pair in by_side()]
SERVES = pytest.mark.parametrize("serves", ["omq", "zmq"])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "ipc"])


def curve_server(**how: Any) -> omq.CurveServer:
    return omq.CurveServer(SERVER_SECRET, **how)


def curve_client() -> omq.CurveClient:
    return omq.CurveClient(SERVER_PUBLIC, CLIENT_PUBLIC, CLIENT_SECRET)


@asynccontextmanager
async def handler(libzmq: Libzmq) -> AsyncIterator[zmq.auth.thread.ThreadAuthenticator]:
    """pyzmq's own ZAP handler in libzmq's context."""
    authenticator = zmq.auth.thread.ThreadAuthenticator(zmq.Context.shadow(libzmq._context.underlying))
    authenticator.start()
    try:
        yield authenticator
    finally:
        authenticator.stop()


async def bounced(talk: Any, pair: tuple[str, str], sizes: bool, answers: bool = True) -> None:
    async with talk as (first, second, before_first, before_second):
        shapes = SHAPES if sizes else {"small": [b"small"], "two": [b"one", b"two"]}
        for shape, message in shapes.items():
            await first.send_multipart([*before_first, *message])
            assert await second.recv_multipart() == [*before_second, *message], shape
            if not answers:
                break  # a REQ that gets no answer asks no second time
            if not set(pair) & set(ONE_WAY):
                await second.send_multipart([*before_second, *message])
                assert await first.recv_multipart() == [*before_first, *message], shape


@pytest.mark.parametrize("pair", PAIRS)
@SERVES
@TRANSPORTS
@on_uvloop
async def test_curve(libzmq: Libzmq, fresh: Fresh, pair: tuple[str, str], serves: str, transport: str) -> None:
    mine = {"security": curve_server(authorize={CLIENT_PUBLIC}) if serves == "omq" else curve_client()}
    its = ITS_CLIENT if serves == "omq" else ITS_SERVER
    talk = conversing(libzmq, fresh, pair, binds=serves, transport=transport, mine=mine, its=its)
    await bounced(talk, pair, sizes=transport == "tcp")


@pytest.mark.parametrize("pair", PAIRS)
@SERVES
@TRANSPORTS
@on_uvloop
async def test_plain(libzmq: Libzmq, fresh: Fresh, pair: tuple[str, str], serves: str, transport: str) -> None:
    async with handler(libzmq) as authenticator:
        authenticator.configure_plain(domain="*", passwords={"user": "word"})
        mine = {"security": omq.PlainServer({"user": "word"}) if serves == "omq" else omq.PlainClient("user", "word")}
        its = {"plain_username": b"user", "plain_password": b"word"} if serves == "omq" else {"plain_server": 1}
        talk = conversing(libzmq, fresh, pair, binds=serves, transport=transport, mine=mine, its=its)
        # libzmq's REQ, as a server of PLAIN, hangs up on every reply; on one of libzmq's own REP, too.
        await bounced(talk, pair, sizes=False, answers=(pair[1], serves) != ("REQ", "zmq"))


@pytest.mark.parametrize("serves", ["omq", "zmq"])
@on_uvloop
async def test_a_curve_client_may_bind_and_its_server_connect(libzmq: Libzmq, fresh: Fresh, serves: str) -> None:
    mine = {"security": curve_server() if serves == "omq" else curve_client()}
    its = ITS_CLIENT if serves == "omq" else ITS_SERVER
    binds = "zmq" if serves == "omq" else "omq"
    async with joined(libzmq, fresh("tcp"), "PUSH", "PULL", binds=binds, mine=mine, its=its) as (push, pull):
        await push.send(b"over")
        assert await pull.recv() == b"over"


@pytest.mark.parametrize("sender", ["omq", "zmq"])
@on_uvloop
async def test_a_curve_stream_of_all_sizes_keeps_its_order(libzmq: Libzmq, fresh: Fresh, sender: str) -> None:
    kinds = ("PUSH", "PULL") if sender == "omq" else ("PULL", "PUSH")
    secure: dict[str, Any] = {"mine": {"security": curve_server()}, "its": ITS_CLIENT}
    sizes = [
        0,
        1,
        30,
        31,
        222,
        223,
        255,
        256,
        479,
        480,
        4095,
        4096,
        4097,
        16_384,
        32_735,
        32_768,
        65_536,
        131_072,
        2 * MIB,
    ]
    messages = [octets(size) for size in sizes] * 3 + [octets(size) for size in range(0, 3000, 7)]
    async with joined(libzmq, fresh("tcp"), *kinds, binds="omq", **secure) as (ours, theirs):
        push, pull = (ours, theirs) if sender == "omq" else (theirs, ours)

        async def feed() -> None:
            for message in messages:
                await push.send(message)

        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            for number, message in enumerate(messages):
                assert await pull.recv() == message, f"message {number} of {len(message)} bytes"


@on_uvloop
async def test_a_publisher_seals_for_each_subscriber(libzmq: Libzmq, fresh: Fresh) -> None:
    async with omq.PUB(bind=fresh("tcp"), linger=0.0, security=curve_server()) as pub, AsyncExitStack() as stack:
        theirs = [libzmq.open("SUB", subscribe=b"", connect=pub.endpoints[0], **ITS_CLIENT) for _ in range(3)]
        ours = omq.SUB(connect=pub.endpoints[0], subscribe=b"", linger=0.0, security=curve_client())
        await stack.enter_async_context(ours)
        await pub.wait_subscribed(b"", 4, timeout=10)
        for number in range(200):
            await pub.send(b"%d" % number)
        for sub in [*theirs, ours]:
            assert [await sub.recv() for _ in range(200)] == [b"%d" % number for number in range(200)]


# --- who is let in ----------------------------------------------------------------------------------


@asynccontextmanager
async def failures(sock: Any) -> AsyncIterator[Any]:
    """The handshakes of a socket that fail, one after another."""
    async with sock.monitor() as monitor:

        async def following() -> Any:
            async with asyncio.timeout(10):
                async for event in monitor:
                    if event.kind is EventKind.HANDSHAKE_FAILED:
                        return event
                raise AssertionError("the monitor has ended")

        yield following


BAD = {
    "a-key-that-is-not-authorized": (ITS_CLIENT, HandshakeFailure.AUTHENTICATION, "not authorized"),
    "another-server-key": ({**ITS_CLIENT, "curve_serverkey": CLIENT_PUBLIC}, HandshakeFailure.PROTOCOL, "server_key"),
    "NULL": ({}, HandshakeFailure.MECHANISM, "the peer's mechanism is NULL, ours is CURVE"),
    "PLAIN": (
        {"plain_username": b"u", "plain_password": b"p"},
        HandshakeFailure.MECHANISM,
        "the peer's mechanism is PLAIN, ours is CURVE",
    ),
}


@pytest.mark.parametrize("case", BAD)
@on_uvloop
async def test_bad_clients_fail_with_a_name_and_good_ones_are_served(libzmq: Libzmq, fresh: Fresh, case: str) -> None:
    its, category, reason = BAD[case]
    good_public, good_secret = omq.curve_keypair()
    server = curve_server(authorize={good_public.decode()})
    async with omq.PULL(bind=fresh("tcp"), linger=0.0, security=server) as pull, failures(pull) as failed:
        bad = libzmq.open("PUSH", connect=pull.endpoints[0], **its)
        event = await failed()
        # libzmq may hang up at our greeting, before its own shows what it wants.
        assert event.category in (category, HandshakeFailure.HUNG_UP)
        assert reason in event.reason or (
            category is HandshakeFailure.MECHANISM and "another mechanism than CURVE" in event.reason
        )
        good = {**ITS_CLIENT, "curve_publickey": good_public, "curve_secretkey": good_secret}
        push = libzmq.open("PUSH", connect=pull.endpoints[0], **good)
        await push.send(b"good")
        message = await pull.recv_message(timeout=5)
        assert (message.body, message.peer.user_id, message.peer.mechanism) == (b"good", good_public.decode(), "CURVE")
        bad.close(linger=0)


@on_uvloop
async def test_our_clients_error_when_libzmq_refuses_it(libzmq: Libzmq, fresh: Fresh) -> None:
    async with handler(libzmq) as authenticator:
        authenticator.configure_plain(domain="*", passwords={"user": "word"})
        theirs = libzmq.open("PULL", bind=fresh("tcp"), plain_server=1)
        async with omq.PUSH(linger=0.0, security=omq.PlainClient("user", "wrong")) as push, failures(push) as failed:
            push.connect(endpoint_of(theirs))
            event = await failed()
            assert event.category is HandshakeFailure.AUTHENTICATION
            assert "'400'" in event.reason, event.reason


@on_uvloop
async def test_our_clients_error_when_the_server_key_is_wrong(libzmq: Libzmq, fresh: Fresh) -> None:
    theirs = libzmq.open("PULL", bind=fresh("tcp"), **ITS_SERVER)
    wrong = omq.CurveClient(CLIENT_PUBLIC)
    async with omq.PUSH(linger=0.0, security=wrong) as push, failures(push) as failed:
        push.connect(endpoint_of(theirs))
        assert "server_key is most likely not its public key" in (await failed()).reason


# --- bad peers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@on_uvloop
async def test_two_hundred_silent_connections_keep_no_client_out_cve_2020_15166(
    libzmq: Libzmq, fresh: Fresh, mechanism: str, transport: str
) -> None:
    """Half of them send a greeting, and nothing more; a client of libzmq's and one of ours get through."""
    server = {"NULL": None, "PLAIN": omq.PlainServer({"u": "p"}), "CURVE": curve_server(authorize={CLIENT_PUBLIC})}
    its = {"NULL": {}, "PLAIN": {"plain_username": b"u", "plain_password": b"p"}, "CURVE": ITS_CLIENT}
    ours = {"NULL": None, "PLAIN": omq.PlainClient("u", "p"), "CURVE": curve_client()}
    async with (
        AsyncExitStack() as silent,
        omq.PULL(bind=fresh(transport), linger=0.0, security=server[mechanism]) as pull,
    ):
        for number in range(200):
            peer = await silent.enter_async_context(dialled(pull.endpoints[0]))
            if number % 2:
                await peer.send(greeting(mechanism=mechanism.encode()))
        push = libzmq.open("PUSH", connect=pull.endpoints[0], **its[mechanism])
        await push.send(b"theirs")
        assert await pull.recv(timeout=5) == b"theirs"
        async with omq.PUSH(connect=pull.endpoints[0], linger=0.0, security=ours[mechanism]) as push:
            await push.send(b"ours")
            assert await pull.recv(timeout=5) == b"ours"


MESSAGE_FIRST = "a message before the handshake is done"
UNAUTHENTICATED = {
    "a-message-at-once": (frame(b"evil"), MESSAGE_FIRST),
    "a-MESSAGE-at-once": (frame(b"\x07MESSAGE" + bytes(8) + bytes(40)), MESSAGE_FIRST),
    "READY-of-NULL": (command(b"READY", b"\x0bSocket-Type\x00\x00\x00\x04PUSH"), "'READY' where CURVE does not"),
    "HELLO-short": (command(b"HELLO", bytes(193)), "a HELLO of CURVE with 193 bytes instead of 194"),
    "HELLO-long": (command(b"HELLO", bytes(195)), "a HELLO of CURVE with 195 bytes instead of 194"),
    "HELLO-of-version-2": (command(b"HELLO", b"\x02\x00" + bytes(192)), "a HELLO of CurveZMQ 2.0, which is not known"),
    "HELLO-of-zeros": (command(b"HELLO", b"\x01\x00" + bytes(192)), "the client's transient key has a low order"),
    "HELLO-misspelt": (command(b"HALLO", b"\x01\x00" + bytes(192)), "'HALLO' where CURVE does not allow it"),
    "INITIATE-first": (command(b"INITIATE", bytes(300)), "'INITIATE' where CURVE does not allow it"),
    "INITIATE-of-60-KiB": (command(b"INITIATE", bytes(60_000)), "'INITIATE' where CURVE does not allow it"),
    "ERROR": (command(b"ERROR", b"\x03400"), "'ERROR' where CURVE does not allow it"),
}


@pytest.mark.parametrize("case", UNAUTHENTICATED)
@on_uvloop
async def test_bytes_of_strangers_end_their_connection_and_no_other(libzmq: Libzmq, fresh: Fresh, case: str) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0, security=curve_server()) as pull, failures(pull) as failed:
        push = libzmq.open("PUSH", connect=pull.endpoints[0], **ITS_CLIENT)
        await push.send(b"before")
        assert await pull.recv(timeout=5) == b"before"
        sent, reason = UNAUTHENTICATED[case]
        async with dialled(pull.endpoints[0]) as peer:
            await peer.send(greeting(mechanism=b"CURVE") + sent)
            await peer.ended()
        event = await failed()
        assert event.category is HandshakeFailure.PROTOCOL
        assert reason in event.reason, event.reason
        await push.send(b"after")
        assert await pull.recv(timeout=5) == b"after"
        with pytest.raises(omq.Timeout):
            await pull.recv(timeout=0)


#: What peers of ZMTP 1.0 and 2.0 send at once, without waiting for anything: their greeting, and a message.
OLD = {
    "1.0-vanilla": (
        b"\x01\x00" + b"\x05\x00evil",
        "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported",
    ),
    "1.0-named": (
        b"\x05\x00name" + b"\x05\x00evil",
        "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported",
    ),
    "1.0-in-a-signature": (greeting((0, 0), mechanism=b"NULL") + frame(b"evil"), "a ZMTP 1.0 peer is not supported"),
    "2.0": (greeting((1, 0), mechanism=b"NULL") + frame(b"evil"), "a ZMTP 2.0 peer .revision 1. is not supported"),
    "2.1": (greeting((2, 0), mechanism=b"NULL") + frame(b"evil"), "a ZMTP 2.0 peer .revision 2. is not supported"),
}


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
@on_uvloop
async def test_an_old_header_does_not_skip_the_mechanism_1273(fresh: Fresh, mechanism: str, version: str) -> None:
    security = {"NULL": None, "PLAIN": omq.PlainServer({}), "CURVE": curve_server()}[mechanism]
    sent, reason = OLD[version]
    async with (
        omq.PULL(bind=fresh("tcp"), linger=0.0, security=security) as pull,
        verdicts(pull) as reported,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.send(sent)
        await peer.ended()
        await reported.failed(HandshakeFailure.PROTOCOL, reason)
        with pytest.raises(omq.Timeout):
            await pull.recv(timeout=0)


# --- sides that do not fit --------------------------------------------------------------------------

ROLES = {
    "PLAIN-clients": (omq.PlainClient("u", "p"), omq.PlainClient("u", "p"), "both sides are clients of PLAIN"),
    "CURVE-clients": (curve_client(), curve_client(), "both sides are clients of CURVE"),
    "PLAIN-servers": (omq.PlainServer({}), omq.PlainServer({}), "both sides are servers of PLAIN"),
    "CURVE-servers": (curve_server(), curve_server(), "both sides are servers of CURVE"),
    "PLAIN-and-CURVE": (omq.PlainClient("u", "p"), curve_server(), "the peer's mechanism is PLAIN, ours is CURVE"),
    "NULL-and-CURVE": (None, curve_server(), "the peer's mechanism is NULL, ours is CURVE"),
    "CURVE-and-NULL": (curve_client(), None, "the peer's mechanism is CURVE, ours is NULL"),
}


@pytest.mark.parametrize("case", ROLES)
@on_uvloop
async def test_sides_that_do_not_fit_name_it_and_receive_nothing(fresh: Fresh, case: str) -> None:
    theirs, ours, reason = ROLES[case]
    async with (
        omq.PULL(bind=fresh("tcp"), linger=0.0, security=ours) as pull,
        failures(pull) as failed_here,
        omq.PUSH(linger=0.0, security=theirs, reconnect_interval=None) as push,
        failures(push) as failed_there,
    ):
        await push.send(b"never received")
        push.connect(pull.endpoints[0])
        events = [await failed_here(), await failed_there()]
        # Who is second may find the connection gone already.
        assert {event.category for event in events} <= {HandshakeFailure.MECHANISM, HandshakeFailure.HUNG_UP}
        assert any(reason in event.reason for event in events), events
        assert not await pull.poll(timeout=0)

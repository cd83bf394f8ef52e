"""A stranger's attacks on a server of NULL or PLAIN: each case ends by a named error, and the next client is served.

Each byte of the greeting, of HELLO, INITIATE and READY, each length, replays, the wrong order and the wrong role. The
part of CURVE stands in test_curve_hostile.py, what a server may do to a client in test_false_server.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import omq.asyncio as omq
from omq.event import EventKind, HandshakeFailure
from tests.interop.conftest import Fresh
from tests.interop.disconnect_reasons import DisconnectReasons, body_of, cut, flipped, judged, renamed, verdicts
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import COMMAND, RawPeer, command, dialled, frame, greeting, properties, ready

_Failure = HandshakeFailure
GREETING = 64  # octets
METADATA = properties((b"Socket-Type", b"PUSH"))
COMMANDS = {
    ("NULL", "READY"): ready("PUSH"),
    ("PLAIN", "HELLO"): command(b"HELLO", b"\x04user\x04word"),
    ("PLAIN", "INITIATE"): command(b"INITIATE", METADATA),
}
EACH = pytest.mark.parametrize(("mechanism", "step"), COMMANDS, ids=lambda name: str(name))
NOT_ALLOWED = "does not allow it|without a proper name"
METADATA_OR_TYPE = "metadata|cannot name a property|socket type"


class Server:
    """A server of a mechanism, what it reports of its handshakes, and a proof that the next client is served."""

    def __init__(self, pull: Any, reported: DisconnectReasons, mechanism: str) -> None:
        self.pull = pull
        self.reported = reported
        self.endpoint: str = pull.endpoints[0]
        self._client = {} if mechanism == "NULL" else {"security": omq.PlainClient("user", "word")}

    async def next_client(self) -> None:
        async with omq.PUSH(connect=self.endpoint, **self._client) as push:
            await push.send(b"good", timeout=5)
            assert await self.pull.recv(timeout=5) == b"good"
            await self.reported.succeeded()


@asynccontextmanager
async def serving(fresh: Fresh, mechanism: str) -> AsyncIterator[Server]:
    """A server; at its end nothing but what the good clients sent has arrived."""
    security = {} if mechanism == "NULL" else {"security": omq.PlainServer({"user": "word"})}
    async with omq.PULL(bind=fresh("tcp"), linger=0, **security) as pull:
        async with verdicts(pull) as reported:
            yield Server(pull, reported, mechanism)
        assert not await pull.poll(timeout=0)


async def until(peer: RawPeer, mechanism: str, step: str) -> None:
    """Sends all that comes before a command."""
    await peer.send(greeting(mechanism=mechanism.encode()))
    await peer.read(GREETING)
    if step == "INITIATE":
        await peer.send(COMMANDS["PLAIN", "HELLO"])
        assert await peer.frame() == (COMMAND, b"\x07WELCOME")
    elif step == "READY":
        await peer.frame()


# --- the greeting -----------------------------------------------------------------------------------


def greeted(spoilt: bytes, mechanism: bytes) -> HandshakeFailure | None:
    """Returns how a handshake with this greeting ends (RFC 23, Greeting and Version Negotiation); `None`: well."""
    # Padding, minor version, an unknown role and filler mean nothing, and a higher major version is taken.
    good = re.fullmatch(rb"\xff.{8}\x7f[\x03-\xff].([A-Z0-9_.+-]{1,20})(\0*)(.).{31}", spoilt, re.DOTALL)
    if good is None or len(good[1] + good[2]) != 20:
        return _Failure.PROTOCOL
    both_serve = mechanism != b"NULL" and good[3] == b"\1"
    return _Failure.MECHANISM if good[1] != mechanism or both_serve else None


REFUSALS = {
    _Failure.PROTOCOL: "its greeting up to byte",
    _Failure.MECHANISM: "the peer's mechanism is|both sides are servers",
}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
@on_uvloop
async def test_each_bit_of_the_greeting(fresh: Fresh, mechanism: str) -> None:
    good = greeting(mechanism=mechanism.encode())
    first = "READY" if mechanism == "NULL" else "HELLO"
    ends = []
    async with serving(fresh, mechanism) as server:
        for bit in range(8 * GREETING):
            at = bit // 8
            spoilt = good[:at] + bytes([good[at] ^ 1 << bit % 8]) + good[at + 1 :]
            end = greeted(spoilt, mechanism.encode())
            async with dialled(server.endpoint) as peer:
                await peer.send(spoilt + COMMANDS[mechanism, first])
                if end is None:
                    await peer.read(GREETING)
                    if mechanism == "PLAIN":
                        assert await peer.frame() == (COMMAND, b"\x07WELCOME")
                        await peer.send(COMMANDS["PLAIN", "INITIATE"])
                    await server.reported.succeeded()
                else:
                    await peer.ended()
                    await server.reported.failed(end, REFUSALS[end])
            ends.append(end)
            if bit % 16 == 0:
                await server.next_client()
        await server.next_client()
    assert {_Failure.PROTOCOL, _Failure.MECHANISM, None} == set(ends)


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
@on_uvloop
async def test_each_length_of_the_greeting(fresh: Fresh, mechanism: str) -> None:
    security = {"security": omq.CurveServer(omq.curve_keypair()[1])} if mechanism == "CURVE" else {}
    if mechanism == "PLAIN":
        security = {"security": omq.PlainServer({})}
    async with omq.PULL(bind=fresh("tcp"), linger=0, **security) as pull, verdicts(pull) as reported:
        for size in range(GREETING):
            async with dialled(pull.endpoints[0]) as peer:
                await peer.read(GREETING)
                await peer.send(greeting(mechanism=mechanism.encode())[:size])
            # A side that sends nothing may not be a peer, unless one was awaited that could have another mechanism.
            hint = f": it may have another mechanism than {mechanism}" if security or size else "$"
            event = await reported.failed(_Failure.HUNG_UP, "during the handshake" + hint)
            assert (event.endpoint, event.mechanism) == (pull.endpoints[0], mechanism)


# --- the commands -----------------------------------------------------------------------------------


def reason_at(step: str, at: int) -> str:
    """Returns the reason for a command whose body was altered at this place."""
    if at <= len(step):
        return NOT_ALLOWED
    if step != "HELLO":
        return METADATA_OR_TYPE
    in_credentials = at - len(step) - 1 not in (0, 5)
    return "the peer was refused: '400'" if in_credentials else "ends inside a field|surplus bytes"


def altered(step: str, sent: bytes) -> Iterator[tuple[bytes, HandshakeFailure | None, str]]:
    """Each byte changed."""
    head = len(sent) - len(body_of(sent))
    for at, spoilt in enumerate(flipped(sent)):
        end: HandshakeFailure | None = judged(spoilt)
        reason = reason_at(step, at - head) if at >= head else ""
        if "was refused" in reason:
            end = _Failure.AUTHENTICATION
        if step != "HELLO" and renamed(sent, spoilt, b"Socket-Type"):
            end = None
        yield spoilt, end, reason


def shortened(step: str, sent: bytes) -> Iterator[tuple[bytes, HandshakeFailure | None, str]]:
    """The command with data of each length, and the frame cut off at each length by a stranger who hangs up."""
    for spoilt in cut(sent):
        end = judged(spoilt)
        reason = "ends inside a field" if step == "HELLO" else METADATA_OR_TYPE
        yield spoilt, end, reason if end is _Failure.PROTOCOL else ""


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("spoil", [altered, shortened])
@on_uvloop
async def test_each_byte_and_each_length(fresh: Fresh, mechanism: str, step: str, spoil: Any) -> None:
    cases = list(spoil(step, COMMANDS[mechanism, step]))
    async with serving(fresh, mechanism) as server:
        for spoilt, end, reason in cases:
            async with dialled(server.endpoint) as peer:
                await until(peer, mechanism, step)
                await peer.send(spoilt)
                if end is None:
                    await server.reported.succeeded()
                elif end is not _Failure.HUNG_UP:
                    await peer.ended()
            if end is not None:
                await server.reported.failed(end, reason)
            await server.next_client()
    assert len(cases) > 15


#: Where, what is sent there, and what that is called.
OUT_OF_PLACE: dict[str, tuple[str, str, bytes, str]] = {
    "NULL-greeting-twice": ("NULL", "READY", greeting(), "not a ZMTP frame header"),
    "NULL-a-message-first": ("NULL", "READY", frame(b"evil") + ready("PUSH"), "a message before the handshake is done"),
    "NULL-HELLO": ("NULL", "READY", COMMANDS["PLAIN", "HELLO"], "'HELLO' where NULL does not allow it"),
    "NULL-WELCOME": ("NULL", "READY", command(b"WELCOME"), "'WELCOME' where NULL does not allow it"),
    "NULL-INITIATE": ("NULL", "READY", COMMANDS["PLAIN", "INITIATE"], "'INITIATE' where NULL does not allow it"),
    "NULL-PING": ("NULL", "READY", command(b"PING", b"\0\0"), "'PING' where NULL does not allow it"),
    "PLAIN-INITIATE-first": ("PLAIN", "HELLO", COMMANDS["PLAIN", "INITIATE"], "'INITIATE' where PLAIN .*HELLO_AWAITED"),
    "PLAIN-HELLO-twice": ("PLAIN", "HELLO", COMMANDS["PLAIN", "HELLO"] * 2, "'HELLO' where PLAIN .*INITIATE_AWAITED"),
    "PLAIN-HELLO-again": ("PLAIN", "INITIATE", COMMANDS["PLAIN", "HELLO"], "'HELLO' where PLAIN .*INITIATE_AWAITED"),
    "PLAIN-WELCOME": ("PLAIN", "HELLO", command(b"WELCOME"), "'WELCOME' where PLAIN does not allow it"),
    "PLAIN-READY": ("PLAIN", "HELLO", ready("PUSH"), "'READY' where PLAIN does not allow it"),
    "PLAIN-ERROR": ("PLAIN", "HELLO", command(b"ERROR", b"\x03400"), "'ERROR' where PLAIN does not allow it"),
    "PLAIN-a-message-first": ("PLAIN", "HELLO", frame(b"evil"), "a message before the handshake is done"),
    "PLAIN-WELCOME-late": ("PLAIN", "INITIATE", command(b"WELCOME"), "'WELCOME' where PLAIN does not allow it"),
    "PLAIN-READY-late": ("PLAIN", "INITIATE", ready("PUSH"), "'READY' where PLAIN does not allow it"),
    "PLAIN-a-message-late": ("PLAIN", "INITIATE", frame(b"evil"), "a message before the handshake is done"),
}


@pytest.mark.parametrize("case", OUT_OF_PLACE)
@on_uvloop
async def test_replayed_reordered_and_in_the_wrong_role(fresh: Fresh, case: str) -> None:
    mechanism, step, sent, reason = OUT_OF_PLACE[case]
    async with serving(fresh, mechanism) as server:
        async with dialled(server.endpoint) as peer:
            await until(peer, mechanism, step)
            await peer.send(sent)
            await peer.ended()
        await server.reported.failed(_Failure.PROTOCOL, reason)
        await server.next_client()


@EACH
@on_uvloop
async def test_a_handshake_command_where_traffic_flows_is_ignored(fresh: Fresh, mechanism: str, step: str) -> None:
    """In the clear it is a command that traffic does not know, which RFC 23 has us ignore."""
    async with serving(fresh, mechanism) as server:
        async with dialled(server.endpoint) as peer:
            await until(peer, mechanism, "READY" if mechanism == "NULL" else "INITIATE")
            await peer.send(COMMANDS[mechanism, "READY" if mechanism == "NULL" else "INITIATE"])
            await server.reported.succeeded()
            before = server.pull.peers
            await peer.send(COMMANDS[mechanism, step] + command(b"READY", properties((b"Socket-Type", b"REP"))))
            await peer.send(frame(b"still a PUSH"))
            assert await server.pull.recv(timeout=5) == b"still a PUSH"
            (after,) = server.pull.peers
            assert (after.properties, after.since) == (before[0].properties, before[0].since)
        await server.next_client()


# --- strangers who do not go on, and strangers who go -----------------------------------------------


Sent = Callable[[str], bytes]
PARTS: dict[str, Sent] = {
    "nothing": lambda mechanism: b"",
    "a-greeting": lambda mechanism: greeting(mechanism=mechanism.encode()),
    "half-a-command": lambda mechanism: (
        greeting(mechanism=mechanism.encode()) + COMMANDS[mechanism, "READY" if mechanism == "NULL" else "HELLO"][:-1]
    ),
}


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
@pytest.mark.parametrize("part", PARTS)
@on_uvloop
async def test_a_reset_in_the_middle(fresh: Fresh, mechanism: str, part: str) -> None:
    async with serving(fresh, mechanism) as server:
        for _ in range(10):
            async with dialled(server.endpoint) as peer:
                await peer.send(PARTS[part](mechanism))
                await peer.read(GREETING)
                peer.reset()
            await server.reported.failed(_Failure.HUNG_UP)
            await server.next_client()


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
@pytest.mark.parametrize("part", PARTS)
@on_uvloop
async def test_a_stranger_who_falls_silent(fresh: Fresh, mechanism: str, part: str) -> None:
    """stream_timeout: accepted, then disconnected."""
    security = {} if mechanism == "NULL" else {"security": omq.PlainServer({})}
    async with (
        omq.PULL(bind=fresh("tcp"), linger=0, handshake_timeout=0.05, **security) as pull,
        pull.monitor() as monitor,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.send(PARTS[part](mechanism))
        await peer.ended()
        events = [await monitor.recv(timeout=5) for _ in range(3)]
        assert [event.kind for event in events] == [
            EventKind.ACCEPTED,
            EventKind.HANDSHAKE_FAILED,
            EventKind.DISCONNECTED,
        ]
        assert events[1].category is _Failure.TIMEOUT
        assert isinstance(events[2].error, omq.HandshakeTimeout)
        assert "handshake_timeout=0.05" in events[2].reason

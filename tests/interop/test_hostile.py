"""Bad peers: each loses its own connection, omq keeps serving the others, and nothing of it is delivered.

The rows named after an advisory or an issue number repeat what once broke libzmq.
"""

from __future__ import annotations

import asyncio
import gc
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import omq.asyncio as omq
from omq.errors import Timeout
from omq.event import HandshakeFailure
from tests.interop.conftest import Fresh
from tests.interop.disconnect_reasons import verdicts
from tests.interop.libzmq import Libzmq, endpoint_of
from tests.interop.payloads import MIB
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import (
    COMMAND,
    MORE,
    SIGNATURE,
    command,
    dialled,
    frame,
    greeting,
    header,
    listening,
    properties,
    ready,
)

EVIL = frame(b"evil")

# What is reported of it, as patterns.
OLD_OR_NONE = "a ZMTP 1.0 peer, or one that does not speak ZMTP, is not supported"
OLD = "a ZMTP 1.0 peer is not supported"
NO_SIGNATURE = "not a ZMTP signature"
NO_FRAME = "not a ZMTP frame header|bytes that are not a valid ZMTP frame"
NAMELESS = "a command without a proper name"
CUT_OFF = "metadata that ends inside the property"
TOO_LONG = "is longer than its metadata"
LARGE = "a message is larger than max_message_size=1000 bytes"
MANY = "a message has more than max_parts=10 parts"

#: Sent instead of a greeting; and what is reported of it.
GREETINGS: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", OLD_OR_NONE),
    "tls-client-hello": (bytes.fromhex("16030100f8010000f40303") + bytes(64), OLD_OR_NONE),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", OLD_OR_NONE),
    "telnet-#769": (b"\xff\xfb\x1f\xff\xfb\x20\xff\xfb\x18\xff\xfb\x27\xff\xfd\x01", NO_SIGNATURE),
    "zeros": (bytes(64), OLD_OR_NONE),
    "random": (b"\x5a" + Random(1).randbytes(4096), OLD_OR_NONE),
    "endless-ff": (b"\xff" * MIB, NO_SIGNATURE),
    "signature-ends-wrong": (b"\xff" + bytes(8) + b"\x01" + greeting()[10:], NO_SIGNATURE),
    "zmtp-1.0": (b"\x01\x00\x05\x00evil", OLD_OR_NONE),
    "zmtp-1.0-identity": (b"\x05\x00name\x05\x00evil", OLD_OR_NONE),
    "zmtp-1.0-long-length": (b"\xff" + (5).to_bytes(8, "big") + b"\x00evil", OLD),
    "zmtp-1.0-in-disguise": (SIGNATURE + b"\x00" + b"\x08" + b"\x00\x00" + EVIL, OLD),
    "zmtp-2.0": (SIGNATURE + b"\x01" + b"\x08" + b"\x00\x00" + EVIL, "a ZMTP 2.0 peer .revision 1. is not supported"),
    "zmtp-2.1": (SIGNATURE + b"\x02" + b"\x08" + b"\x00\x00" + EVIL, "a ZMTP 2.0 peer .revision 2. is not supported"),
    **{
        f"revision-{revision}-and-all-of-3.1": (
            greeting((revision, 0)) + ready("PUSH") + EVIL,
            f"a ZMTP 2.0 peer .revision {revision}. is not supported" if revision else OLD,
        )
        for revision in (0, 1, 2)
    },
    "GHSA-fc3w-v1-two-large": (
        b"\x01\x00" + (b"\xff" + (20_001).to_bytes(8, "big") + b"\x00" + bytes(20_000)) * 2,
        OLD_OR_NONE,
    ),
    "no-mechanism": (greeting(mechanism=b"") + ready("PUSH") + EVIL, "the peer names no mechanism"),
    "unknown-mechanism": (greeting(mechanism=b"GSSAPI") + EVIL, "the peer's mechanism is GSSAPI, ours is NULL"),
    "PLAIN": (
        greeting(mechanism=b"PLAIN") + command(b"HELLO", b"\x01u\x01p"),
        "the peer's mechanism is PLAIN, ours is NULL",
    ),
    "CURVE": (
        greeting(mechanism=b"CURVE", as_server=1) + command(b"HELLO", bytes(194)),
        "the peer's mechanism is CURVE, ours is NULL",
    ),
    "endless-mechanism": (SIGNATURE + b"\x03\x01" + b"N" * MIB, "the peer's mechanism is N{20}, ours is NULL"),
}

#: Sent after a good greeting, instead of a good READY.
HANDSHAKES: dict[str, tuple[bytes, str]] = {
    "message-before-READY": (EVIL + ready("PUSH"), "a message before the handshake is done"),
    "unknown-command": (command(b"STEADY"), "'STEADY' where NULL does not allow it"),
    "PING-before-READY": (command(b"PING", b"\0\0"), "'PING' where NULL does not allow it"),
    "HELLO-of-PLAIN": (command(b"HELLO", b"\x01u\x01p"), "'HELLO' where NULL does not allow it"),
    "ERROR": (command(b"ERROR", b"\x03no!"), "the peer refused the handshake: 'no!'"),
    "ERROR-cut-off": (command(b"ERROR", b"\xffno!"), "an ERROR whose reason has a wrong length"),
    "wrong-type-SUB": (ready("SUB"), "PULL and SUB are incompatible"),
    "wrong-type-PULL": (ready("PULL"), "PULL and PULL are incompatible"),
    "unknown-type": (ready("EVIL"), "unknown socket type 'EVIL'"),
    "empty-type": (ready(""), "unknown socket type ''"),
    "property-without-name": (command(b"READY", properties((b"", b"PUSH"))), "'' cannot name a property"),
    "property-name-cut-off": (command(b"READY", b"\xffSocket-Type"), CUT_OFF),
    "property-value-cut-off": (command(b"READY", b"\x0bSocket-Type\x00\x00\x00\x05PUSH"), TOO_LONG),
    "property-value-of-2^31": (command(b"READY", b"\x0bSocket-Type\x80\x00\x00\x00PUSH"), TOO_LONG),
    "property-value-of-2^32": (command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xffPUSH"), TOO_LONG),
    "property-length-cut-off": (command(b"READY", b"\x0bSocket-Type\x00\x00"), CUT_OFF),
    "READY-with-MORE": (bytes((COMMAND | MORE,)) + ready("PUSH")[1:], NO_FRAME),
    "READY-with-reserved-flag": (bytes((COMMAND | 0x80,)) + ready("PUSH")[1:], NO_FRAME),
    "READY-announces-2^40": (header(1 << 40, COMMAND) + b"\x05READY", "a frame announces 1099511627776 bytes"),
    "READY-announces-2^64": (header((1 << 64) - 1, COMMAND) + b"\x05READY", NO_FRAME),
    "READY-of-16-MiB": (ready("PUSH", (b"X-flood", bytes(16 * MIB))), "a frame announces 167772[0-9]{2} bytes"),
    "command-without-name": (frame(b"", COMMAND), NAMELESS),
    "command-name-empty": (frame(b"\x00READY", COMMAND), NAMELESS),
    "command-name-cut-off": (frame(b"\xffREADY", COMMAND), NAMELESS),
    "CVE-2019-6250-before-READY": (header((1 << 64) - 1) + bytes(5000), NO_FRAME),
    "random": (Random(2).randbytes(4096), NO_FRAME),
}

#: Sent after a good handshake.
TRAFFIC: dict[str, tuple[bytes, str]] = {
    "CVE-2019-6250": (b"\x02" + b"\xff" * 8 + b"A" * 5000, NO_FRAME),
    "#1488": (b"\xff\xff\xff\xff\xff\xff\xff\xff\xda\x00" + b"A" * 5000, NO_FRAME),
    "length-of-2^63": (header(1 << 63) + bytes(5000), NO_FRAME),
    "reserved-flag-8": (b"\x08\x04evil", NO_FRAME),
    "reserved-flag-128": (b"\x80\x04evil", NO_FRAME),
    "command-with-MORE": (bytes((COMMAND | MORE,)) + command(b"PING", b"\0\0")[1:], NO_FRAME),
    "command-without-name": (frame(b"", COMMAND), NAMELESS),
    "command-name-cut-off": (frame(b"\xffPING", COMMAND), NAMELESS),
    "PING-without-ttl": (command(b"PING"), "a PING has 2 to 18 bytes of data, but this one has 0"),
    "command-announces-2^40": (header(1 << 40, COMMAND) + b"\x04PING", "a command is larger than"),
    "larger-than-allowed": (frame(bytes(1001)), LARGE),
    "larger-than-allowed-announced": (header(1001), LARGE),
    "larger-than-allowed-announced-2^40": (header(1 << 40), LARGE),
    "larger-than-allowed-last-part": (frame(b"fine", MORE) + frame(bytes(1001)), LARGE),
    "too-many-parts": (frame(b"", MORE) * 11, MANY),
    "flood-of-empty-parts": (frame(b"", MORE) * 100_000, MANY),
    "random": (b"\xf0" + Random(3).randbytes(4096), NO_FRAME),
}


def rows(table: dict[str, tuple[bytes, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("bad", "reason"), [pytest.param(*row, id=name) for name, row in table.items()])


def category_of(reason: str) -> HandshakeFailure:
    """Returns the kind of failure that has this reason."""
    if "mechanism is" in reason:
        return HandshakeFailure.MECHANISM
    return HandshakeFailure.REFUSED if "refused" in reason else HandshakeFailure.PROTOCOL


@asynccontextmanager
async def served(libzmq: Libzmq, fresh: Fresh, **options: Any) -> AsyncIterator[Any]:
    """A PULL with a good libzmq peer; afterwards that peer and a new one still get their message through."""
    async with omq.PULL(bind=fresh("tcp"), linger=0.0, **options) as pull:
        bystander = libzmq.open("PUSH", connect=pull.endpoints[0])
        await bystander.send(b"before")
        assert await pull.recv(timeout=5) == b"before"
        yield pull
        await bystander.send(b"after")
        assert await pull.recv(timeout=5) == b"after"
        newcomer = libzmq.open("PUSH", connect=pull.endpoints[0])
        await newcomer.send(b"new")
        assert await pull.recv(timeout=5) == b"new"
        with pytest.raises(Timeout):
            await pull.recv_multipart(timeout=0)


@rows(GREETINGS)
@on_uvloop
async def test_bad_greeting(libzmq: Libzmq, fresh: Fresh, bad: bytes, reason: str) -> None:
    async with (
        served(libzmq, fresh) as pull,
        verdicts(pull) as reported,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.send(bad)
        await peer.ended()
        await reported.failed(category_of(reason), reason)


@rows(HANDSHAKES)
@on_uvloop
async def test_bad_handshake(libzmq: Libzmq, fresh: Fresh, bad: bytes, reason: str) -> None:
    async with (
        served(libzmq, fresh) as pull,
        verdicts(pull) as reported,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.greet()
        await peer.send(bad)
        await peer.ended()
        await reported.failed(category_of(reason), reason)


@rows(TRAFFIC)
@on_uvloop
async def test_bad_traffic(libzmq: Libzmq, fresh: Fresh, bad: bytes, reason: str) -> None:
    limits = {"max_message_size": 1000, "max_parts": 10}
    async with (
        served(libzmq, fresh, **limits) as pull,
        verdicts(pull) as reported,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.shake("PUSH")
        await peer.send(bad)
        await peer.ended()
        await reported.succeeded()
        await reported.lost(reason)


@on_uvloop
async def test_ping_with_too_long_a_context(libzmq: Libzmq, fresh: Fresh) -> None:
    # RFC 37 allows 16 bytes. libzmq echoes no more than that; hanging up is as good.
    async with served(libzmq, fresh) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(command(b"PING", bytes(2) + b"sixteen bytes !!and more"))
        try:
            assert await peer.frame() == (COMMAND, b"\x04PONGsixteen bytes !!")
        except (asyncio.IncompleteReadError, ConnectionError):
            await peer.ended()


@on_uvloop
async def test_what_is_just_within_the_limits(fresh: Fresh) -> None:
    limits: dict[str, Any] = {"max_message_size": 1000, "max_parts": 10}
    async with omq.PULL(bind=fresh("tcp"), linger=0.0, **limits) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(frame(bytes(1000)) + frame(b"", MORE) * 9 + frame(b"tenth"))
        assert await pull.recv(timeout=5) == bytes(1000)
        assert await pull.recv_multipart(timeout=5) == [b""] * 9 + [b"tenth"]


@on_uvloop
async def test_what_came_before_the_bad_bytes_is_delivered(fresh: Fresh) -> None:
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        await peer.send(frame(b"good") + frame(b"half", MORE) + b"\x80\x00")
        await peer.ended()
        assert await pull.recv(timeout=5) == b"good"
        with pytest.raises(Timeout):
            await pull.recv_multipart(timeout=0)


@on_uvloop
async def test_silent_connections_starve_no_client_ghsa_25wp(libzmq: Libzmq, fresh: Fresh) -> None:
    async with AsyncExitStack() as silent, served(libzmq, fresh) as pull:
        for _ in range(50):
            await silent.enter_async_context(dialled(pull.endpoints[0]))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(SIGNATURE, id="signature"),
        pytest.param(greeting()[:63], id="greeting-but-a-byte"),
        pytest.param(greeting(), id="greeting"),
        pytest.param(greeting() + ready("PUSH")[:-1], id="READY-but-a-byte"),
    ],
)
@on_uvloop
async def test_handshakes_take_only_so_long(libzmq: Libzmq, fresh: Fresh, sent: bytes) -> None:
    async with (
        served(libzmq, fresh, handshake_timeout=0.2) as pull,
        verdicts(pull) as reported,
        dialled(pull.endpoints[0]) as peer,
    ):
        await peer.send(sent)
        await peer.ended()
        await reported.failed(HandshakeFailure.TIMEOUT, "no handshake within handshake_timeout=0.2 s")


@pytest.mark.parametrize("end", ["FIN", "RST"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(greeting()[:11], id="part-of-a-greeting"),
        pytest.param(greeting(), id="greeting"),
        pytest.param(greeting() + ready("PUSH"), id="handshake"),
        pytest.param(greeting() + ready("PUSH") + frame(b"half", MORE), id="GHSA-wfr2-half-a-message"),
        pytest.param(greeting() + ready("PUSH") + header(MIB) + bytes(1000), id="half-a-frame"),
    ],
)
@on_uvloop
async def test_connections_that_break(libzmq: Libzmq, fresh: Fresh, sent: bytes, end: str) -> None:
    async with served(libzmq, fresh) as pull:
        for _ in range(20):
            async with dialled(pull.endpoints[0]) as peer:
                await peer.send(sent)
                if end == "RST":
                    peer.reset()


@on_uvloop
async def test_half_messages_leave_no_memory_ghsa_wfr2(fresh: Fresh) -> None:
    """A hundred parts of a mebibyte that promise more, each from a peer that goes: libzmq kept every one of them."""
    half = frame(bytes(MIB), MORE) + frame(bytes(MIB))[: MIB // 2]
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, verdicts(pull) as reported:
        for turn in range(100):
            if turn == 10:
                gc.collect()
                before = memory("VmRSS")
            async with dialled(pull.endpoints[0]) as peer:
                await peer.shake("PUSH")
                await peer.send(half + b"" if turn % 2 else half[: MIB + 9])
            await reported.succeeded()
            await reported.lost("the peer closed the connection", EOFError)
        gc.collect()
        assert memory("VmRSS") - before < 32 * MIB
        assert not await pull.poll(timeout=0)


def memory(key: str) -> int:
    """A figure of this process in bytes: `VmRSS` or `VmSize`."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("size", [1 << 31, 1 << 40, (1 << 63) - 1], ids=["2^31", "2^40", "2^63-1"])
@on_uvloop
async def test_announced_bytes_allocate_nothing(libzmq: Libzmq, fresh: Fresh, size: int) -> None:
    arrived = bytes(MIB)
    async with served(libzmq, fresh) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.shake("PUSH")
        gc.collect()
        resident, mapped = memory("VmRSS"), memory("VmSize")
        tracemalloc.start()
        try:
            await peer.send(command(b"PING", b"\0\0") + header(size))
            assert await peer.frame() == (COMMAND, b"\x04PONG")
            await peer.send(arrived)
            with pytest.raises(Timeout):
                await pull.recv(timeout=0.05)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 32 * MIB
        assert memory("VmRSS") - resident < 32 * MIB
        assert memory("VmSize") - mapped < 512 * MIB


# --- publishers -------------------------------------------------------------------------------------


@asynccontextmanager
async def published(libzmq: Libzmq, fresh: Fresh, kind: str) -> AsyncIterator[Any]:
    """A publisher with a good libzmq subscriber, which still gets its message afterwards."""
    async with getattr(omq, kind)(bind=fresh("tcp"), linger=0.0) as pub:
        sub = libzmq.open("SUB", subscribe=b"good", connect=pub.endpoints[0])
        await pub.wait_subscribed(b"good", timeout=5)
        yield pub
        await pub.send(b"good")
        assert await sub.recv() == b"good"


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
@on_uvloop
async def test_subscription_of_a_mebibyte_ghsa_qq65(libzmq: Libzmq, fresh: Fresh, kind: str) -> None:
    topic = b"t" * MIB
    async with published(libzmq, fresh, kind) as pub, dialled(pub.endpoints[0]) as peer:
        await peer.shake("SUB")
        await peer.send(command(b"SUBSCRIBE", topic) + command(b"CANCEL", topic) + command(b"SUBSCRIBE", b"f"))
        # It may be taken, or cost the peer its connection: it must not cost anybody else's.
        subscribed = asyncio.ensure_future(pub.wait_subscribed(b"f", timeout=5))
        ended = asyncio.ensure_future(peer.ended())
        await asyncio.wait({subscribed, ended}, return_when=asyncio.FIRST_COMPLETED)
        subscribed.cancel()
        ended.cancel()
        await asyncio.wait({subscribed, ended})


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
@on_uvloop
async def test_subscriber_that_sends_messages_ghsa_4p5v(libzmq: Libzmq, fresh: Fresh, kind: str) -> None:
    async with published(libzmq, fresh, kind) as pub, dialled(pub.endpoints[0]) as peer:
        await peer.shake("SUB")
        await peer.send((frame(b"ordinary", MORE) + frame(b"message")) * 5000 + frame(b"") * 5000)
        await peer.send(command(b"SUBSCRIBE", b"fence"))
        await pub.wait_subscribed(b"fence", timeout=5)


@rows(
    {
        "command-without-name": (frame(b"", COMMAND), NAMELESS),
        "CVE-2019-6250": (b"\x02" + b"\xff" * 8 + b"A" * 5000, NO_FRAME),
        "reserved-flag": (b"\x80\x02\x01A", NO_FRAME),
        "subscription-announces-2^63": (header(1 << 63) + b"\x01A", NO_FRAME),
    }
)
@on_uvloop
async def test_bad_subscriber(libzmq: Libzmq, fresh: Fresh, bad: bytes, reason: str) -> None:
    async with (
        published(libzmq, fresh, "XPUB") as pub,
        verdicts(pub) as reported,
        dialled(pub.endpoints[0]) as peer,
    ):
        await peer.shake("SUB")
        await peer.send(bad)
        await peer.ended()
        await reported.succeeded()
        await reported.lost(reason)


# --- bad servers ------------------------------------------------------------------------------------


@rows({name: GREETINGS[name] for name in ("http", "zmtp-1.0", "zmtp-2.0", "CURVE", "endless-ff", "random")})
@on_uvloop
async def test_bad_server(libzmq: Libzmq, fresh: Fresh, bad: bytes, reason: str) -> None:
    good = libzmq.open("PULL", bind=fresh("ipc"))
    async with listening() as listener, omq.PUSH(linger=0.0) as push, verdicts(push) as reported:
        push.connect(listener.endpoint)
        server = await listener.accept()
        await server.send(bad)
        await server.ended()
        await reported.failed(category_of(reason), reason)
        push.connect(endpoint_of(good))
        await push.wait_connected(timeout=5)
        for number in range(10):
            await push.send(b"%d" % number)
        assert [await good.recv() for _ in range(10)] == [b"%d" % number for number in range(10)]


@on_uvloop
async def test_a_wrong_type_is_answered_with_error(fresh: Fresh) -> None:
    # RFC 37: "it SHOULD handle errors by returning an ERROR command, and then disconnecting the peer".
    async with omq.PULL(bind=fresh("tcp"), linger=0.0) as pull, dialled(pull.endpoints[0]) as peer:
        await peer.greet()
        await peer.send(ready("SUB"))
        assert b"\x05ERROR" in await peer.ended()

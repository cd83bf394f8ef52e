"""A false server's attacks on a client: the handshake fails by a named error, no secret is sent, and it dials again.

Each byte of WELCOME and of READY, each length, the wrong order and the wrong role, and a weaker mechanism than ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq.asyncio as omq
from omq._core.wire.crypto import Secret
from omq.event import HandshakeFailure
from omq.types import SocketType
from omq.zmtp import z85
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.handshake import Handshake
from omq.zmtp.mechanism import Mechanism
from omq.zmtp.null import Null
from omq.zmtp.plain import PlainServer
from tests.interop.disconnect_reasons import body_of, cut, flipped, judged, renamed, verdicts
from tests.interop.run_coroutine import on_uvloop
from tests.support.raw_zmtp import COMMAND, command, frame, greeting, listening, ready

_Failure = HandshakeFailure
SERVER_PUBLIC, SERVER_SECRET = omq.curve_keypair()
GREETING = 64  # octets
COOKIES = CookieKeys()

SERVERS: dict[str, Callable[[], Mechanism]] = {
    "NULL": Null,
    "PLAIN": PlainServer,
    "CURVE": lambda: CurveServer(z85.decode(SERVER_PUBLIC), Secret(SERVER_SECRET), COOKIES),
}
CLIENTS: dict[str, dict[str, Any]] = {
    "NULL": {},
    "PLAIN": {"security": omq.PlainClient("user", "word")},
    "CURVE": {"security": omq.CurveClient(SERVER_PUBLIC)},
}
NAMED = "does not allow it|without a proper name"

#: Spoilt bytes, how the handshake ends (`None`: well), and what is reported of it.
Case = tuple[bytes, HandshakeFailure | None, str]


def reason_for(mechanism: str, step: str) -> str:
    """Returns the reason for data that were altered."""
    if mechanism == "CURVE":
        return f"an? {step} that does not open"
    return "metadata|cannot name a property|socket type|incompatible"


def altered(mechanism: str, step: str, sent: bytes) -> Iterator[Case]:
    """Each byte changed."""
    head = len(sent) - len(body_of(sent))
    for at, spoilt in enumerate(flipped(sent)):
        if mechanism != "CURVE" and step == "READY" and renamed(sent, spoilt, b"Socket-Type"):
            yield spoilt, None, ""
            continue
        in_name = head <= at <= head + len(step)
        yield spoilt, judged(spoilt), NAMED if in_name else reason_for(mechanism, step) if at >= head else ""


def shortened(mechanism: str, step: str, sent: bytes) -> Iterator[Case]:
    """The command with data of each length, and the frame cut off at each length by a server that hangs up."""
    for spoilt in cut(sent):
        end = judged(spoilt)
        reason = ""
        if end is _Failure.PROTOCOL:
            reason = reason_for(mechanism, step)
            if mechanism == "CURVE" and step == "WELCOME":
                reason = "instead of 160"
            elif mechanism == "CURVE" and len(body_of(spoilt)) - 1 - len(step) < 24:
                reason = "a READY of CURVE with"
        yield spoilt, end, reason


class FalseServer:
    """Answers a client with a spoilt command and, when it dials again, with a good one; for each way to spoil it.

    Attributes:
        spoilt: How each spoilt handshake is to end, when it is under way; `False` when there are no more.
        complaint: What went wrong here.
    """

    def __init__(self, mechanism: str, step: str, spoil: Any) -> None:
        self._mechanism, self._step, self._spoil = mechanism, step, spoil
        self._number, self._count, self._served = 0, 0, True
        self.spoilt: asyncio.Queue[Any] = asyncio.Queue()
        self.complaint: BaseException | None = None
        self.serving: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        try:
            if not self._count or self._number < self._count:
                async with asyncio.timeout(10):
                    await self._talk(reader, writer)
        except BaseException as error:
            self.complaint = error
            self.spoilt.put_nowait(False)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = Handshake(socket_type=SocketType.PULL, mechanism=SERVERS[self._mechanism]())
        writer.write(ours.start())
        while not ours.done:
            data = await reader.read(4096)
            assert data, "the client hangs up on a good server"
            sent = ours.receive(data)
            if ours.question is not None:
                sent += ours.answer()
            if self._served and self._step.encode() in sent:
                cases = list(self._spoil(self._mechanism, self._step, sent))
                self._count = len(cases)
                spoilt, end, reason = cases[self._number]
                writer.write(spoilt)
                self._served = False
                self.spoilt.put_nowait((end, reason))
                if end is _Failure.PROTOCOL:
                    await self._ended(reader)
                return
            writer.write(sent)
        self._served = True
        self._number += 1
        if self._number == self._count:
            self.spoilt.put_nowait(False)

    async def _ended(self, reader: asyncio.StreamReader) -> None:
        output = b""
        with contextlib.suppress(ConnectionError):
            output = await reader.read()
        # NULL sends its READY whatever comes; a peer that refuses our metadata reports why.
        fine = output == b"" or self._mechanism == "NULL"
        fine |= (self._mechanism, self._step) == ("PLAIN", "READY") and output[2:8] == b"\x05ERROR"
        assert fine, f"it goes on with a spoilt handshake: {output!r}"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [altered, shortened])
@pytest.mark.parametrize(
    ("mechanism", "step"),
    [("NULL", "READY"), ("PLAIN", "WELCOME"), ("PLAIN", "READY"), ("CURVE", "WELCOME"), ("CURVE", "READY")],
)
@on_uvloop
async def test_a_client_dials_again_after_each_bad_answer(mechanism: str, step: str, spoil: Any) -> None:
    false = FalseServer(mechanism, step, spoil)
    server = await asyncio.start_server(false.serve, "127.0.0.1", 0)
    count = 0
    try:
        async with (
            omq.PUSH(linger=0, reconnect_interval=0.001, **CLIENTS[mechanism]) as push,
            verdicts(push) as reported,
        ):
            push.connect(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            while expected := await false.spoilt.get():
                end, reason = expected
                if end is None:
                    await reported.succeeded()
                else:
                    await reported.failed(end, reason)
                await reported.succeeded()
                count += 1
            assert false.complaint is None, false.complaint
    finally:
        server.close()
        await asyncio.gather(*false.serving)
    assert count > 8


def recorded_welcome() -> bytes:
    """The WELCOME that the true server gave to another client."""
    secret = Secret()
    theirs = Handshake(
        socket_type=SocketType.PUSH, mechanism=CurveClient(z85.decode(SERVER_PUBLIC), secret.public(), secret)
    )
    ours = Handshake(socket_type=SocketType.PULL, mechanism=SERVERS["CURVE"]())
    return ours.receive(theirs.start() + theirs.receive(ours.start()))


HELLO = command(b"HELLO", b"\x01u\x01p")
REFUSED = (_Failure.REFUSED, "the peer refused the handshake: 'no!'")
DENIED = (_Failure.AUTHENTICATION, "the peer refused the handshake: '400'")

#: What a server sends after its greeting, and how that ends.
OUT_OF_PLACE: dict[str, tuple[str, bytes, tuple[HandshakeFailure, str]]] = {
    "NULL-greeting-twice": ("NULL", greeting(), (_Failure.PROTOCOL, "not a ZMTP frame header")),
    "NULL-HELLO": ("NULL", HELLO, (_Failure.PROTOCOL, "'HELLO' where NULL does not allow it")),
    "NULL-WELCOME": ("NULL", command(b"WELCOME"), (_Failure.PROTOCOL, "'WELCOME' where NULL")),
    "NULL-a-message": ("NULL", frame(b"evil"), (_Failure.PROTOCOL, "a message before the handshake is done")),
    "NULL-the-wrong-type": ("NULL", ready("PUB"), (_Failure.PROTOCOL, "PUSH and PUB are incompatible")),
    "NULL-ERROR": ("NULL", command(b"ERROR", b"\x03no!"), REFUSED),
    "NULL-ERROR-400": ("NULL", command(b"ERROR", b"\x03400"), DENIED),
    "PLAIN-a-client": ("PLAIN", HELLO, (_Failure.MECHANISM, "both sides are clients of PLAIN")),
    "PLAIN-READY-first": ("PLAIN", ready("PULL"), (_Failure.PROTOCOL, "'READY' where PLAIN does not allow it")),
    "PLAIN-INITIATE": ("PLAIN", command(b"INITIATE"), (_Failure.PROTOCOL, "'INITIATE' where PLAIN")),
    "PLAIN-WELCOME-twice": ("PLAIN", command(b"WELCOME") * 2, (_Failure.PROTOCOL, "'WELCOME' where .*INITIATE_SENT")),
    "PLAIN-WELCOME-with-data": ("PLAIN", command(b"WELCOME", b"x"), (_Failure.PROTOCOL, "1 surplus bytes")),
    "PLAIN-a-message": ("PLAIN", frame(b"evil"), (_Failure.PROTOCOL, "a message before the handshake is done")),
    "PLAIN-the-wrong-type": (
        "PLAIN",
        command(b"WELCOME") + ready("PUB"),
        (_Failure.PROTOCOL, "PUSH and PUB are incompatible"),
    ),
    "PLAIN-ERROR": ("PLAIN", command(b"ERROR", b"\x03no!"), REFUSED),
    "PLAIN-ERROR-400": ("PLAIN", command(b"ERROR", b"\x03400"), DENIED),
    "CURVE-a-client": (
        "CURVE",
        command(b"HELLO", bytes(194)),
        (_Failure.MECHANISM, "both sides are clients of CURVE"),
    ),
    "CURVE-READY-first": ("CURVE", command(b"READY", bytes(64)), (_Failure.PROTOCOL, "'READY' where CURVE")),
    "CURVE-WELCOME-of-zeros": (
        "CURVE",
        command(b"WELCOME", bytes(160)),
        (_Failure.PROTOCOL, "a WELCOME that does not open"),
    ),
    "CURVE-WELCOME-of-another": (
        "CURVE",
        recorded_welcome(),
        (_Failure.PROTOCOL, "a WELCOME that does not open: the peer does not have the key server_key"),
    ),
    "CURVE-a-MESSAGE": ("CURVE", command(b"MESSAGE", bytes(40)), (_Failure.PROTOCOL, "'MESSAGE' where CURVE")),
    "CURVE-a-message": ("CURVE", frame(b"evil"), (_Failure.PROTOCOL, "a message before the handshake is done")),
    "CURVE-ERROR": ("CURVE", command(b"ERROR", b"\x03no!"), REFUSED),
    "CURVE-ERROR-400": ("CURVE", command(b"ERROR", b"\x03400"), DENIED),
}


@pytest.mark.parametrize("case", OUT_OF_PLACE)
@on_uvloop
async def test_replayed_reordered_and_in_the_wrong_role(case: str) -> None:
    mechanism, sent, (end, reason) = OUT_OF_PLACE[case]
    async with (
        listening() as listener,
        omq.PUSH(linger=0, reconnect_interval=0.001, **CLIENTS[mechanism]) as push,
        verdicts(push) as reported,
    ):
        push.connect(listener.endpoint)
        for _ in range(2):  # it dials again, and is refused again
            server = await listener.accept()
            await server.send(greeting(mechanism=mechanism.encode()) + sent)
            await server.ended()
            event = await reported.failed(end, reason)
            assert (event.endpoint, event.mechanism) == (listener.endpoint, mechanism)


@pytest.mark.parametrize(("ours", "weaker"), [("PLAIN", "NULL"), ("CURVE", "NULL"), ("CURVE", "PLAIN")])
@on_uvloop
async def test_a_weaker_mechanism_gets_nothing_of_a_client_cve_2014_7202(ours: str, weaker: str) -> None:
    """A man in the middle cannot have the password or a message in the clear: the client sends only its greeting."""
    async with (
        listening() as listener,
        omq.PUSH(linger=0, reconnect_interval=None, **CLIENTS[ours]) as push,
        verdicts(push) as reported,
    ):
        await push.send(b"secret")
        push.connect(listener.endpoint)
        server = await listener.accept()
        first = command(b"WELCOME") if weaker == "PLAIN" else ready("PULL")
        await server.send(greeting(mechanism=weaker.encode()) + first)
        received = await server.ended()
        assert received[:12] == greeting()[:12]
        assert received[12:32].rstrip(b"\0").decode() == ours
        assert len(received) == GREETING
        await reported.failed(_Failure.MECHANISM, f"the peer's mechanism is {weaker}, ours is {ours}")


@pytest.mark.parametrize("mechanism", CLIENTS)
@pytest.mark.parametrize("sent_first", [0, 11, GREETING], ids=["nothing", "part-of-a-greeting", "greeting"])
@on_uvloop
async def test_a_server_that_falls_silent(mechanism: str, sent_first: int) -> None:
    """stream_timeout, the other side: connected, then disconnected, and dialled again."""
    timeout = {"handshake_timeout": 0.05, "reconnect_interval": 0.001}
    async with (
        listening() as listener,
        omq.PUSH(linger=0, **timeout, **CLIENTS[mechanism]) as push,
        push.monitor() as monitor,
    ):
        push.connect(listener.endpoint)
        server = await listener.accept()
        await server.send(greeting(mechanism=mechanism.encode())[:sent_first])
        await server.ended()
        events = [await monitor.recv(timeout=5) for _ in range(5)]
        order = ["connect_delayed", "connected", "handshake_failed", "disconnected", "connect_retried"]
        assert [event.kind for event in events] == order
        assert events[2].category is _Failure.TIMEOUT
        assert isinstance(events[3].error, omq.HandshakeTimeout)
        await listener.accept()


@on_uvloop
async def test_a_good_server_by_hand_is_taken() -> None:
    """The control: what the tables above spoil is taken as it is."""
    async with (
        listening() as listener,
        omq.PUSH(linger=0, **CLIENTS["PLAIN"]) as push,
        verdicts(push) as reported,
    ):
        push.connect(listener.endpoint)
        server = await listener.accept()
        await server.send(greeting(mechanism=b"PLAIN"))
        await server.read(GREETING)
        assert await server.frame() == (COMMAND, b"\x05HELLO\x04user\x04word")
        await server.send(command(b"WELCOME"))
        assert (await server.frame())[1].startswith(b"\x08INITIATE")
        await server.send(ready("PULL"))
        await reported.succeeded()

"""Who may come in: functions, sets that change, and a ZAP handler with every answer that it may give (RFC 27)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import omq.asyncio as omq
from omq.event import Event, EventKind, HandshakeFailure
from omq.types import Security

ZAP = "inproc://zeromq.zap.01"
PUBLIC, SECRET = omq.curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = omq.curve_keypair()
PLAIN = omq.PlainClient("user", "word")
CURVE = omq.CurveClient(PUBLIC, CLIENT_PUBLIC, CLIENT_SECRET)

Answer = Callable[[list[bytes]], list[bytes]]


def ok(request: list[bytes]) -> list[bytes]:
    return [b"1.0", request[1], b"200", b"OK", b"", b""]


async def outcome(client: Security | None, context: omq.Context | None = None, **server: Any) -> Event:
    """What the monitors of a server tell of one client's handshake."""
    made = {} if client is None else {"security": client}
    async with (
        omq.PULL(context, bind="tcp://127.0.0.1:*", linger=0.0, **server) as pull,
        pull.monitor() as monitor,
        omq.PUSH(connect=pull.endpoints[0], linger=0.0, reconnect_interval=None, **made),
        asyncio.timeout(5),
    ):
        async for event in monitor:
            if event.kind in (EventKind.HANDSHAKE_FAILED, EventKind.HANDSHAKE_SUCCEEDED):
                return event
    raise AssertionError("no event")


async def judged(answer: Answer, client: Security | None = PLAIN, **server: Any) -> tuple[Event, list[list[bytes]]]:
    """The outcome with a handler that answers like this, and what it was asked."""
    asked: list[list[bytes]] = []
    context = omq.Context()
    server.setdefault("security", omq.PlainServer(None) if client is PLAIN else None)
    async with omq.REP(context, bind=ZAP, linger=0.0) as rep:

        async def handle() -> None:
            while True:
                asked.append(await rep.recv_multipart())
                await rep.send_multipart(answer(asked[-1]))

        task = asyncio.create_task(handle())
        try:
            return await outcome(client, context, **server), asked
        finally:
            task.cancel()
            await asyncio.wait([task])


# --- functions and sets -----------------------------------------------------------------------------


@pytest.mark.parametrize("passwords", [{"user": "word"}, {b"user": b"word"}], ids=["str", "bytes"])
async def test_a_mapping_of_passwords(passwords: dict[Any, Any]) -> None:
    server = omq.PlainServer(passwords)
    assert (await outcome(PLAIN, security=server)).kind is EventKind.HANDSHAKE_SUCCEEDED
    for bad in (omq.PlainClient("user", "wor"), omq.PlainClient("use", "word"), omq.PlainClient("", "")):
        event = await outcome(bad, security=server)
        assert event.category is HandshakeFailure.AUTHENTICATION
        assert "word" not in event.reason
    del passwords[next(iter(passwords))]
    assert (await outcome(PLAIN, security=server)).kind is EventKind.HANDSHAKE_FAILED


async def test_functions_of_both_kinds() -> None:
    async def slow(username: bytes, password: bytes) -> bool:
        await asyncio.sleep(0)
        return (username, password) == (b"user", b"word")

    for check in (slow, lambda username, password: (username, password) == (b"user", b"word")):
        assert (await outcome(PLAIN, security=omq.PlainServer(check))).kind is EventKind.HANDSHAKE_SUCCEEDED
        wrong = omq.PlainClient("user", "x")
        assert (await outcome(wrong, security=omq.PlainServer(check))).kind is EventKind.HANDSHAKE_FAILED


async def test_a_function_that_raises_lets_nobody_in_and_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    def check(username: bytes, password: bytes) -> bool:
        raise KeyError(password)

    with caplog.at_level(logging.DEBUG, "omq"):
        event = await outcome(PLAIN, security=omq.PlainServer(check))
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert "KeyError" in event.reason
    assert "word" not in caplog.text.replace("password", "")


async def test_keys_in_every_form_in_a_set_that_changes() -> None:
    from omq.zmtp import z85

    allowed: set[Any] = set()
    server = omq.CurveServer(SECRET, authorize=allowed)
    assert "not authorized" in (await outcome(CURVE, security=server)).reason
    for form in (CLIENT_PUBLIC, CLIENT_PUBLIC.decode(), z85.decode(CLIENT_PUBLIC)):
        allowed.add(form)
        event = await outcome(CURVE, security=server)
        assert event.kind is EventKind.HANDSHAKE_SUCCEEDED
        assert event.peer is not None
        assert event.peer.user_id == CLIENT_PUBLIC.decode()
        allowed.remove(form)


async def test_authorize_gets_the_key_as_z85() -> None:
    seen = []

    async def authorize(key: bytes) -> bool:
        seen.append(key)
        return True

    assert (await outcome(CURVE, security=omq.CurveServer(SECRET, authorize))).kind is EventKind.HANDSHAKE_SUCCEEDED
    assert seen == [CLIENT_PUBLIC]


async def test_a_function_that_never_answers_runs_into_the_timeout() -> None:
    async def never(key: bytes) -> bool:
        await asyncio.Event().wait()
        return True

    event = await outcome(CURVE, security=omq.CurveServer(SECRET, never), handshake_timeout=0.1)
    assert event.category is HandshakeFailure.TIMEOUT


async def test_blocking_sockets_know_who_sent_a_message() -> None:
    import omq as blocking

    def run() -> str | None:
        with blocking.Context() as context:
            server = blocking.CurveServer(SECRET, {CLIENT_PUBLIC})
            with (
                blocking.PULL(context, bind="tcp://127.0.0.1:*", security=server) as pull,
                blocking.PUSH(context, connect=pull.endpoints[0], security=CURVE) as push,
            ):
                push.send(b"hi", timeout=5)
                return pull.recv_message(timeout=5).peer.user_id

    assert await asyncio.to_thread(run) == CLIENT_PUBLIC.decode()


# --- ZAP --------------------------------------------------------------------------------------------


async def test_what_a_handler_is_asked() -> None:
    from omq.zmtp import z85

    _, asked = await judged(ok, zap_domain="global", identity=b"name")
    assert asked == [[b"1.0", asked[0][1], b"global", b"127.0.0.1", b"name", b"PLAIN", b"user", b"word"]]
    _, asked = await judged(ok, CURVE, security=omq.CurveServer(SECRET))
    assert asked == [[b"1.0", asked[0][1], b"", b"127.0.0.1", b"", b"CURVE", z85.decode(CLIENT_PUBLIC)]]
    _, asked = await judged(ok, None, zap_domain="global")
    assert asked == [[b"1.0", asked[0][1], b"global", b"127.0.0.1", b"", b"NULL"]]
    _, asked = await judged(ok, None)
    assert asked == [], "without a domain NULL asks nobody"


async def test_what_a_handler_says_of_a_user() -> None:
    def answer(request: list[bytes]) -> list[bytes]:
        return [b"1.0", request[1], b"200", b"OK", b"joe", b"\x05Group\x00\x00\x00\x05staff"]

    event, _ = await judged(answer)
    assert event.peer is not None
    assert event.peer.user_id == "joe"
    assert event.peer.properties[b"group"] == b"staff"


@pytest.mark.parametrize("client", [PLAIN, CURVE, None], ids=["PLAIN", "CURVE", "NULL"])
@pytest.mark.parametrize("status", [b"300", b"400", b"500"])
async def test_refusals(client: Security | None, status: bytes) -> None:
    security = omq.CurveServer(SECRET) if client is CURVE else omq.PlainServer(None) if client is PLAIN else None
    event, _ = await judged(
        lambda request: [b"1.0", request[1], status, b"no", b"", b""], client, security=security, zap_domain="d"
    )
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert f"the ZAP handler says {status.decode()} 'no'" in event.reason
    # 300 is temporary: the peer is told nothing and comes again (RFC 27).
    assert ("not let in: ''" in event.reason) == (status == b"300")


MALFORMED: dict[str, tuple[Answer, str]] = {
    "version": (lambda r: [b"2.0", r[1], b"200", b"", b"", b""], "version '2.0'"),
    "request-id": (lambda r: [b"1.0", b"other", b"200", b"", b"", b""], "'other', which was not made"),
    "status-of-two-digits": (lambda r: [b"1.0", r[1], b"20", b"", b"", b""], "status '20'"),
    "status-of-four-digits": (lambda r: [b"1.0", r[1], b"2000", b"", b"", b""], "status '2000'"),
    "status-that-is-none": (lambda r: [b"1.0", r[1], b"123", b"", b"", b""], "status '123'"),
    "too-few-parts": (lambda r: [b"1.0", r[1], b"200", b"", b""], "6 frames instead of 7"),
    "too-many-parts": (lambda r: [b"1.0", r[1], b"200", b"", b"", b"", b""], "8 frames instead of 7"),
    "metadata": (lambda r: [b"1.0", r[1], b"200", b"", b"", b"\x05junk"], "metadata that ends"),
    "user-id-too-long": (lambda r: [b"1.0", r[1], b"200", b"", b"u" * 256, b""], "255 bytes"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_replies_let_nobody_in(case: str) -> None:
    answer, reason = MALFORMED[case]
    event, _ = await judged(answer)
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert reason in event.reason


async def test_a_handler_that_goes_away() -> None:
    context = omq.Context()
    rep = omq.REP(context, bind=ZAP, linger=0.0)

    async def leave() -> None:
        await rep.recv_multipart()
        rep.stop()

    task = asyncio.create_task(leave())
    event = await outcome(PLAIN, context, security=omq.PlainServer(None))
    await task
    assert "gone without an answer" in event.reason


async def test_without_a_handler() -> None:
    refused = await outcome(PLAIN, omq.Context(), security=omq.PlainServer(None))
    assert "none is bound at inproc://zeromq.zap.01" in refused.reason
    admitted = await outcome(CURVE, omq.Context(), security=omq.CurveServer(SECRET), zap_domain="d")
    assert admitted.kind is EventKind.HANDSHAKE_SUCCEEDED
    enforced = await outcome(None, omq.Context(), zap_domain="d", zap_enforce_domain=True)
    assert "zap_enforce_domain is set" in enforced.reason


async def test_enforcing_without_a_domain_asks_nobody() -> None:
    event, asked = await judged(ok, CURVE, security=omq.CurveServer(SECRET), zap_enforce_domain=True)
    assert event.kind is EventKind.HANDSHAKE_SUCCEEDED
    assert asked == []


async def test_a_set_and_a_handler_both_have_to_agree() -> None:
    event, asked = await judged(ok, CURVE, security=omq.CurveServer(SECRET, authorize=set()))
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert asked == []

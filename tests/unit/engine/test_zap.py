"""Authentication: functions, sets that change, and a ZAP handler with every answer that it may give (RFC 27)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import omq.asyncio as omq
from omq.errors import HandshakeError
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


SERVERS: dict[str, Security | None] = {
    "PLAIN": omq.PlainServer(None),
    "CURVE": omq.CurveServer(SECRET),
    "NULL": None,
}
CLIENTS: dict[str, Security | None] = {"PLAIN": PLAIN, "CURVE": CURVE, "NULL": None}
EACH_MECHANISM = pytest.mark.parametrize("mechanism", SERVERS)


async def outcome(client: Security | None, context: omq.Context | None = None, **server: Any) -> Event:
    """Returns the events of a server's monitor about one client's handshake."""
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


async def judged(
    answer: Answer, client: Security | None = PLAIN, context: omq.Context | None = None, **server: Any
) -> tuple[Event, list[list[bytes]]]:
    """The outcome with a handler that answers like this, and what it was asked."""
    asked: list[list[bytes]] = []
    context = context or omq.Context()
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


async def test_a_function_that_raises_lets_no_client_in_and_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    def check(username: bytes, password: bytes) -> bool:
        raise KeyError(password)

    with caplog.at_level(logging.DEBUG, "omq"):
        event = await outcome(PLAIN, security=omq.PlainServer(check))
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert "KeyError" in event.reason
    assert "word" not in caplog.text.replace("password", "")


async def test_a_function_may_refuse_a_client_for_a_time(caplog: pytest.LogCaptureFixture) -> None:
    def check(username: bytes, password: bytes) -> bool:
        raise HandshakeError("too many \u00e9" + "x" * 300)

    event = await outcome(PLAIN, security=omq.PlainServer(check))
    assert event.category is HandshakeFailure.REFUSED
    assert r"too_many_\\xe9xxx" in event.reason
    assert "raised" not in caplog.text


async def test_a_function_that_raises_beyond_exception_is_logged_and_lets_no_client_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Abort(BaseException):
        pass

    async def check(username: bytes, password: bytes) -> bool:
        raise Abort(password)

    event = await outcome(PLAIN, security=omq.PlainServer(check))
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert "authentication raised Abort" in caplog.text


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


async def test_a_function_that_ends_its_thread_does_not_end_the_contexts(caplog: pytest.LogCaptureFixture) -> None:
    import omq as blocking

    def leave(username: bytes, password: bytes) -> bool:
        raise SystemExit(3)

    def run() -> bytes:
        with blocking.Context() as context, blocking.PULL(context, bind="tcp://127.0.0.1:*") as pull:
            server = blocking.PULL(context, bind="tcp://127.0.0.1:*", security=omq.PlainServer(leave))
            client = blocking.PUSH(context, connect=server.endpoints[0], security=PLAIN)
            with server, client, blocking.PUSH(context, connect=pull.endpoints[0]) as push:
                with pytest.raises(blocking.Timeout):
                    client.wait_connected(timeout=0.1)
                push.send(b"it goes on", timeout=5)
                return pull.recv(timeout=5)

    async with asyncio.timeout(10):
        assert await asyncio.to_thread(run) == b"it goes on"
    assert "SystemExit" in caplog.text


async def test_a_function_that_closes_its_own_socket_closes_it_and_waits_for_nothing() -> None:
    """The function runs on the I/O thread, where nothing can wait for it: the rest goes on in the background."""
    import omq as blocking

    def run() -> None:
        def close(username: bytes, password: bytes) -> bool:
            pull.close()
            return True

        with (
            blocking.Context() as context,
            blocking.PULL(context, bind="tcp://127.0.0.1:*", security=omq.PlainServer(close)) as pull,
            blocking.PUSH(context, connect=pull.endpoints[0], security=PLAIN, linger=0),
        ):
            with pytest.raises(blocking.ClosedError):
                pull.recv(timeout=5)
            assert pull.closed

    await asyncio.to_thread(run)


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
    assert asked == [], "without a domain NULL asks no handler"


async def test_what_a_handler_returns_about_a_user() -> None:
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
    assert f"the ZAP handler answers {status.decode()} 'no'" in event.reason
    # 300 is temporary: the peer gets no answer and comes again (RFC 27).
    assert ("the peer was refused: ''" in event.reason) == (status == b"300")


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


@EACH_MECHANISM
@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_replies_let_no_client_in(case: str, mechanism: str) -> None:
    answer, reason = MALFORMED[case]
    event, asked = await judged(answer, CLIENTS[mechanism], security=SERVERS[mechanism], zap_domain="d")
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert isinstance(event.error, omq.AuthenticationError)
    assert reason in event.reason
    assert len(asked) == 1


@EACH_MECHANISM
async def test_a_handler_that_goes_away(mechanism: str) -> None:
    context = omq.Context()
    rep = omq.REP(context, bind=ZAP, linger=0.0)

    async def leave() -> None:
        await rep.recv_multipart()
        rep.stop()

    task = asyncio.create_task(leave())
    event = await outcome(CLIENTS[mechanism], context, security=SERVERS[mechanism], zap_domain="d")
    await task
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert "closed the connection without an answer" in event.reason


@EACH_MECHANISM
async def test_a_handler_that_never_answers_runs_into_the_timeout(mechanism: str) -> None:
    context = omq.Context()
    async with omq.REP(context, bind=ZAP, linger=0.0) as rep:
        event = await outcome(
            CLIENTS[mechanism], context, security=SERVERS[mechanism], zap_domain="d", handshake_timeout=0.1
        )
        assert event.category is HandshakeFailure.TIMEOUT
        assert isinstance(event.error, omq.HandshakeTimeout)
        assert (await rep.recv_multipart(timeout=5))[5] == mechanism.encode()


async def test_a_handler_that_comes_back_is_asked_again() -> None:
    context = omq.Context()
    first, _ = await judged(ok, context=context)
    assert first.kind is EventKind.HANDSHAKE_SUCCEEDED
    meanwhile = await outcome(PLAIN, context, security=omq.PlainServer(None))
    assert "none is bound at inproc://zeromq.zap.01" in meanwhile.reason
    again, asked = await judged(ok, context=context)
    assert again.kind is EventKind.HANDSHAKE_SUCCEEDED
    assert len(asked) == 1


def of_one_domain(request: list[bytes]) -> list[bytes]:
    """Answers as in libzmq's own test: the handler knows one domain."""
    good = request[2] == b"TEST"
    return [b"1.0", request[1], b"200" if good else b"400", b"OK" if good else b"BAD DOMAIN", b"", b""]


@EACH_MECHANISM
async def test_a_wrong_domain_is_refused(mechanism: str) -> None:
    known: dict[str, Any] = {"security": SERVERS[mechanism]}
    wrong, _ = await judged(of_one_domain, CLIENTS[mechanism], zap_domain="WRONG", **known)
    assert wrong.category is HandshakeFailure.AUTHENTICATION
    assert "the ZAP handler answers 400 'BAD DOMAIN'" in wrong.reason
    right, _ = await judged(of_one_domain, CLIENTS[mechanism], zap_domain="TEST", **known)
    assert right.kind is EventKind.HANDSHAKE_SUCCEEDED


ENDS = (EventKind.HANDSHAKE_FAILED, EventKind.HANDSHAKE_SUCCEEDED)


async def refusals(mechanism: str, statuses: list[bytes]) -> list[Event]:
    """Returns the events of a client's monitor until the handler's statuses are used up."""
    context = omq.Context()
    security = CLIENTS[mechanism]
    async with (
        omq.REP(context, bind=ZAP, linger=0.0) as rep,
        omq.PULL(context, bind="tcp://127.0.0.1:*", security=SERVERS[mechanism], zap_domain="d") as pull,
        omq.PUSH(linger=0.0, reconnect_interval=0.001, security=security) as push,
        push.monitor() as monitor,
    ):
        push.connect(pull.endpoints[0])
        found = []
        for status in statuses:
            request = await rep.recv_multipart(timeout=5)
            await rep.send_multipart([b"1.0", request[1], status, b"", b"", b""])
            while (event := await monitor.recv(timeout=5)).kind not in ENDS:
                pass
            found.append(event)
        return found


@EACH_MECHANISM
async def test_a_temporary_refusal_is_not_sent_and_the_client_connects_again(mechanism: str) -> None:
    first, second, third = await refusals(mechanism, [b"300", b"300", b"200"])
    for refused in (first, second):
        assert refused.category is HandshakeFailure.HUNG_UP
        assert "300" not in refused.reason
    assert third.kind is EventKind.HANDSHAKE_SUCCEEDED


@EACH_MECHANISM
@pytest.mark.parametrize("status", [b"400", b"500"])
async def test_a_refusal_is_sent_to_the_client_by_its_status(mechanism: str, status: bytes) -> None:
    refused, later = await refusals(mechanism, [status, b"200"])
    assert refused.category is HandshakeFailure.AUTHENTICATION
    assert isinstance(refused.error, omq.AuthenticationError)
    assert refused.reason == f"the peer refused the handshake: '{status.decode()}'"
    assert later.kind is EventKind.HANDSHAKE_SUCCEEDED


@EACH_MECHANISM
async def test_what_is_known_of_a_peer_comes_with_each_message(mechanism: str) -> None:
    """Socket-Type, User-Id, Peer-Address and what the handler adds (`zmq_msg_gets(3)`)."""
    context = omq.Context()
    async with (
        omq.REP(context, bind=ZAP, linger=0.0) as rep,
        omq.PULL(context, bind="tcp://127.0.0.1:*", security=SERVERS[mechanism], zap_domain="d") as pull,
        omq.PUSH(connect=pull.endpoints[0], linger=0.0, security=CLIENTS[mechanism]) as push,
    ):
        request = await rep.recv_multipart(timeout=5)
        await rep.send_multipart([b"1.0", request[1], b"200", b"OK", b"joe", b"\x05Group\x00\x00\x00\x05staff"])
        for parts in ([b"one"], [b"two", b"parts"]):
            await push.send_multipart(parts)
            message = await pull.recv_message(timeout=5)
            assert message.parts == parts
            peer = message.peer
            assert (peer.user_id, peer.mechanism, peer.endpoint) == ("joe", mechanism, pull.endpoints[0])
            assert (peer.properties[b"socket-type"], peer.properties[b"group"]) == (b"PUSH", b"staff")
            assert peer.properties.get(b"unknown") is None


async def test_a_user_id_of_255_octets_is_taken() -> None:
    event, _ = await judged(lambda request: [b"1.0", request[1], b"200", b"", b"u" * 255, b""])
    assert event.peer is not None
    assert event.peer.user_id == "u" * 255


@pytest.mark.parametrize("mechanism", ["CURVE", "NULL"])
async def test_a_domain_without_a_handler_is_ignored_unless_it_is_enforced(mechanism: str) -> None:
    client, server = CLIENTS[mechanism], SERVERS[mechanism]
    ignored = await outcome(client, omq.Context(), security=server, zap_domain="d")
    assert ignored.kind is EventKind.HANDSHAKE_SUCCEEDED
    enforced = await outcome(client, omq.Context(), security=server, zap_domain="d", zap_enforce_domain=True)
    assert enforced.category is HandshakeFailure.AUTHENTICATION
    assert "zap_enforce_domain is set" in enforced.reason


async def test_without_a_handler() -> None:
    refused = await outcome(PLAIN, omq.Context(), security=omq.PlainServer(None))
    assert "none is bound at inproc://zeromq.zap.01" in refused.reason
    admitted = await outcome(CURVE, omq.Context(), security=omq.CurveServer(SECRET), zap_domain="d")
    assert admitted.kind is EventKind.HANDSHAKE_SUCCEEDED
    enforced = await outcome(None, omq.Context(), zap_domain="d", zap_enforce_domain=True)
    assert "zap_enforce_domain is set" in enforced.reason


async def test_enforcing_without_a_domain_asks_no_handler() -> None:
    event, asked = await judged(ok, CURVE, security=omq.CurveServer(SECRET), zap_enforce_domain=True)
    assert event.kind is EventKind.HANDSHAKE_SUCCEEDED
    assert asked == []


async def test_a_set_and_a_handler_both_have_to_agree() -> None:
    event, asked = await judged(ok, CURVE, security=omq.CurveServer(SECRET, authorize=set()))
    assert event.category is HandshakeFailure.AUTHENTICATION
    assert asked == []

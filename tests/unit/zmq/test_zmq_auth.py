"""Authenticators of `omq.zmq`, in a thread and in a loop, with omq's sockets and with pyzmq's."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.zmq as zmq
from omq.zmq import auth
from omq.zmq.auth.asyncio import AsyncioAuthenticator
from omq.zmq.auth.thread import ThreadAuthenticator
from omq.zmq.utils.monitor import recv_monitor_message

TIMEOUT_MS = 10_000
Connect = Callable[..., Any]
SERVER, CLIENT = zmq.curve_keypair(), zmq.curve_keypair()


@pytest.fixture
def authenticator(context: zmq.Context[Any]) -> Iterator[ThreadAuthenticator]:
    made = ThreadAuthenticator(context)
    made.start()
    yield made
    made.stop()
    assert not made.is_alive()


@pytest.fixture
def accepted(context: zmq.Context[Any]) -> Callable[..., bool]:
    """Returns whether a PULL with some options accepts a PUSH with others."""

    def connect(server: dict[str, Any], client: dict[str, Any]) -> bool:
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for socket, options in ((pull, server), (push, client)):
            for name, value in options.items():
                setattr(socket, name, value)
        monitor = pull.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        monitor.rcvtimeo = TIMEOUT_MS
        pull.bind("tcp://127.0.0.1:*")
        push.reconnect_ivl = -1
        push.connect(pull.last_endpoint.decode())
        event = recv_monitor_message(monitor)["event"]
        pull.disable_monitor()
        return bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    return connect


NULL = ({"zap_domain": b"global"}, {})
PLAIN_SERVER = {"plain_server": True}
CURVE = (
    {"curve_secretkey": SERVER[1], "curve_publickey": SERVER[0], "curve_server": True},
    {"curve_secretkey": CLIENT[1], "curve_publickey": CLIENT[0], "curve_serverkey": SERVER[0]},
)


def test_peers_without_security_are_accepted(authenticator: ThreadAuthenticator, accepted: Connect) -> None:
    assert accepted(*NULL)


def test_allowed_and_denied_addresses(authenticator: ThreadAuthenticator, accepted: Connect) -> None:
    authenticator.deny("127.0.0.1")
    assert not accepted(*NULL)
    with pytest.raises(ValueError):
        authenticator.allow("127.0.0.2")


def test_other_addresses_than_the_allowed_ones(authenticator: ThreadAuthenticator, accepted: Connect) -> None:
    authenticator.allow("127.0.0.2")
    assert not accepted(*NULL)
    authenticator.allow("127.0.0.1")
    assert accepted(*NULL)
    with pytest.raises(ValueError):
        authenticator.deny("127.0.0.1")


def test_passwords(authenticator: ThreadAuthenticator, accepted: Connect) -> None:
    right = {"plain_username": b"admin", "plain_password": b"right"}
    assert not accepted(PLAIN_SERVER, right)
    authenticator.configure_plain(passwords={"admin": "right"})
    assert accepted(PLAIN_SERVER, right)
    assert not accepted(PLAIN_SERVER, {**right, "plain_password": b"wrong"})
    assert not accepted(PLAIN_SERVER, {**right, "plain_username": b"other"})
    assert not accepted({**PLAIN_SERVER, "zap_domain": b"elsewhere"}, right)


def test_keys_in_files(authenticator: ThreadAuthenticator, accepted: Connect, tmp_path: Path) -> None:
    authenticator.configure_curve(location=tmp_path)
    assert not accepted(*CURVE)
    public, secret = auth.create_certificates(tmp_path, "client", metadata={"name": "text"})
    assert (tmp_path / "client.key", tmp_path / "client.key_secret") == (Path(public), Path(secret))
    keys = auth.load_certificate(secret)
    assert auth.load_certificate(public) == (keys[0], None)
    assert stat.S_IMODE(Path(secret).stat().st_mode) == 0o600
    authenticator.configure_curve(location=tmp_path)
    assert accepted(CURVE[0], {**CURVE[1], "curve_publickey": keys[0], "curve_secretkey": keys[1]})
    assert not accepted(*CURVE)
    authenticator.configure_curve(location=auth.CURVE_ALLOW_ANY)
    assert accepted(*CURVE)


@pytest.mark.parametrize("answers_later", [False, True])
def test_keys_that_a_callback_accepts(
    authenticator: ThreadAuthenticator, accepted: Connect, answers_later: bool
) -> None:
    known = set[bytes]()

    class Provider:
        def callback(self, domain: str, key: bytes) -> Any:
            assert domain == "*"
            return self.later(key) if answers_later else key in known

        async def later(self, key: bytes) -> bool:
            await asyncio.sleep(0)
            return key in known

    authenticator.configure_curve_callback(credentials_provider=Provider())
    assert not accepted(*CURVE)
    known.add(CLIENT[0])
    assert accepted(*CURVE)


def test_the_user_id_is_the_key(context: zmq.Context[Any], authenticator: ThreadAuthenticator) -> None:
    authenticator.configure_curve(location=auth.CURVE_ALLOW_ANY)
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, options in zip((pull, push), CURVE, strict=True):
        for name, value in options.items():
            setattr(socket, name, value)
    pull.rcvtimeo = push.sndtimeo = TIMEOUT_MS
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint.decode())
    push.send(b"x")
    assert pull.recv(copy=False).get("User-Id") == CLIENT[0].decode()


def test_an_authenticator_in_a_loop(context: zmq.Context[Any], accepted: Connect) -> None:
    right = {"plain_username": b"admin", "plain_password": b"right"}

    async def run() -> None:
        authenticator = AsyncioAuthenticator(context)
        authenticator.configure_plain(passwords={"admin": "right"})
        authenticator.start()
        try:
            assert await asyncio.to_thread(accepted, PLAIN_SERVER, right)
            assert not await asyncio.to_thread(accepted, PLAIN_SERVER, {**right, "plain_password": b"wrong"})
        finally:
            authenticator.stop()

    asyncio.run(run())


def test_peers_of_pyzmq(context: zmq.Context[Any], authenticator: ThreadAuthenticator) -> None:
    pyzmq = pytest.importorskip("zmq")
    authenticator.configure_plain(passwords={"admin": "right"})
    pull = context.socket(zmq.PULL)
    pull.plain_server = True
    pull.rcvtimeo = TIMEOUT_MS
    pull.bind("tcp://127.0.0.1:*")
    with pyzmq.Context() as theirs, theirs.socket(pyzmq.PUSH) as wrong, theirs.socket(pyzmq.PUSH) as right:
        for socket, password in ((wrong, b"wrong"), (right, b"right")):
            socket.linger = 0
            socket.plain_username, socket.plain_password = b"admin", password
            socket.connect(pull.last_endpoint.decode())
            socket.send(password)
        assert pull.recv() == b"right"


def test_requests_that_are_not_zap(context: zmq.Context[Any], authenticator: ThreadAuthenticator) -> None:
    req = context.socket(zmq.REQ)
    req.rcvtimeo = TIMEOUT_MS
    req.connect("inproc://zeromq.zap.01")
    for request, text in (([b"1.0", b"7"], b"Not enough frames"), ([b"2.0", b"7", *[b""] * 4], b"Invalid version")):
        req.send_multipart(request)
        assert req.recv_multipart() == [b"1.0", b"7", b"400", text, b"", b""]


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.key").write_text("# public-key = x\n")
    with pytest.raises(ValueError, match="No public key"):
        auth.load_certificate(tmp_path / "empty.key")
    for load in (auth.load_certificate, auth.load_certificates):
        with pytest.raises(OSError, match="Invalid certificate"):
            load(tmp_path / "missing")

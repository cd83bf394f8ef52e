"""`socks_proxy`: connections that a proxy makes, and proxies that do not do what they should."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import zmq

import omq
from tests.support.waits import BOUND, until
from tests.system.conformance.socks_server import SocksServer
from tests.system.conformance.test_endpoint_options import frames, free_port, shake

USER = ("user", "word")
CREDENTIALS: dict[str, Any] = {"socks_username": "user", "socks_password": "word"}
ONCE: dict[str, Any] = {"reconnect_interval": None}


@pytest.fixture(params=["endpoint", "socket"])
def dialled(request, twin):
    """Makes a PUSH that is connected with these options, given for the endpoint or for the whole socket."""

    def make(endpoint: str, **options: Any) -> Any:
        if request.param == "socket":
            return twin("PUSH", connect=endpoint, linger=0, **options)
        one = twin("PUSH", linger=0)
        one.connect(endpoint, **options)
        return one

    return make


def failure(endpoint: str, twin: Any, **options: Any) -> str:
    """Returns the reason of the first failed attempt to connect, as a monitor reports it."""
    push = twin("PUSH", linger=0)
    monitor = push.monitor()
    push.connect(endpoint, **ONCE, **options)
    while (event := twin.event(monitor)).kind != "connect_failed":
        assert event.kind == "connect_delayed"
    assert isinstance(event.error, omq.ConnectError)
    return str(event.reason)


def test_messages_go_through_the_proxy_to_an_address(twin, dialled):
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    with SocksServer() as proxy:
        push = dialled(pull.endpoints[0], socks_proxy=proxy.address)
        push.send(b"x", timeout=BOUND)
        assert pull.recv(timeout=BOUND) == b"x"
        port = int(pull.endpoints[0].rpartition(":")[2]).to_bytes(2, "big")
        assert proxy.received == [[b"\5\1\0", b"\5\1\0\1\x7f\0\0\1" + port]]
        (peer,) = push.peers
        assert peer.endpoint == pull.endpoints[0]
        push.stop()


def test_the_proxy_looks_the_name_up(twin, dialled):
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    port = int(pull.endpoints[0].rpartition(":")[2])
    with SocksServer(names={b"far.invalid": port}) as proxy:
        push = dialled("tcp://far.invalid:77", socks_proxy=proxy.address.replace("127.0.0.1", "localhost"))
        push.send(b"x", timeout=BOUND)
        assert pull.recv(timeout=BOUND) == b"x"
        assert proxy.received == [[b"\5\1\0", b"\5\1\0\3\x0bfar.invalid\0\x4d"]]
        push.stop()


def test_a_name_and_a_password(twin, dialled):
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    with SocksServer(user=(b"user", b"word")) as proxy:
        push = dialled(pull.endpoints[0], socks_proxy=proxy.address, **CREDENTIALS)
        push.send(b"x", timeout=BOUND)
        assert pull.recv(timeout=BOUND) == b"x"
        assert proxy.received[0][:2] == [b"\5\1\2", b"\1\4user\4word"]
        push.stop()


def test_nothing_that_follows_the_reply_is_lost(twin):
    """The endpoint speaks first, and its bytes come right after the proxy's reply."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        reply = b"\5\0\0\4" + bytes(18)
        from tests.support.raw_peer import GREETING, ready

        pull = twin("PULL")
        with SocksServer(instead=(None, None, reply + GREETING + ready(b"PUSH") + frames(b"early"))) as proxy:
            pull.connect(endpoint, socks_proxy=proxy.address, **ONCE)
            assert pull.recv(timeout=BOUND) == b"early"
            pull.stop()


def test_an_endpoint_is_dialled_again_through_the_proxy(twin):
    with SocksServer() as proxy, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND)
        push = twin("PUSH", linger=0, reconnect_interval=0.01)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}", socks_proxy=proxy.address)
        for _ in range(3):
            line, _ = server.accept()
            line.settimeout(BOUND)
            with line:
                shake(line, kind=b"PULL")
        until(lambda: len(proxy.received) >= 3)
        push.stop()


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        ((b"HT", None, None), "does not speak SOCKS 5"),
        ((b"\4\0", None, None), "does not speak SOCKS 5"),
        ((b"\5\2", None, None), "chose the method 2, which was not offered"),
        ((b"\5\xff", None, None), "wants a user name"),
        ((None, None, b"HTTP"), "answered the request with"),
        *(
            ((None, None, bytes([5, code, 0, 1, *bytes(6)])), f"did not connect: {why}")
            for code, why in enumerate(
                [
                    "general failure",
                    "its rules",
                    "network unreachable",
                    "host unreachable",
                    "connection refused",
                    "TTL",
                ],
                1,
            )
        ),
        ((None, None, bytes([5, 77, 0, 1])), "unknown reply 77"),
        ((None, None, bytes([5, 0, 0, 9])), "unknown type 9"),
    ],
    ids=str,
)
def test_a_proxy_that_answers_what_it_should_not(twin, instead, why):
    with SocksServer(instead=instead) as proxy:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        reason = failure(endpoint, twin, socks_proxy=proxy.address)
        assert why in reason
        assert reason.count(endpoint) == 1
        assert proxy.address in reason


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("part", [b"\5", b"\5\0\0"], ids=repr)
def test_a_proxy_that_hangs_up_in_the_middle_of_an_answer(twin, step, part):
    instead: list[bytes | None] = [None, None, None]
    instead[step] = part[:1] if step == 0 else part
    with SocksServer(instead=tuple(instead), hangs_up=True) as proxy:
        assert (
            "closed the connection" in failure(f"tcp://127.0.0.1:{free_port()}", twin, socks_proxy=proxy.address)
            or step
        )


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_proxy_that_never_answers_has_as_long_as_a_handshake(twin, step):
    instead: list[bytes | None] = [None, None, None]
    instead[step] = b""
    with SocksServer(user=(b"user", b"word"), instead=tuple(instead)) as proxy:
        options = {"socks_proxy": proxy.address, **CREDENTIALS}
        reason = failure("tcp://127.0.0.1:9", twin, handshake_timeout=0.05, **options)
        assert "within handshake_timeout=0.05 s" in reason
        reason = failure("tcp://127.0.0.1:9", twin, connect_timeout=0.05, **options)
        assert "within connect_timeout=0.05 s" in reason


def test_closing_ends_an_attempt_that_waits_for_the_proxy(twin):
    with SocksServer(instead=(b"", None, None)) as proxy:
        push = twin("PUSH", linger=0)
        push.connect("tcp://127.0.0.1:9", socks_proxy=proxy.address)
        assert proxy.silent.wait(BOUND)
        push.close()


def test_a_password_that_is_wrong(twin):
    with SocksServer(user=(b"user", b"other")) as proxy:
        reason = failure("tcp://127.0.0.1:9", twin, socks_proxy=proxy.address, **CREDENTIALS)
        assert "refused the user name or the password" in reason
        assert "word" not in reason.replace("password", "")
    with SocksServer() as proxy:
        reason = failure("tcp://127.0.0.1:9", twin, socks_proxy=proxy.address, **CREDENTIALS)
        assert "wants a method other than a user name" in reason


def test_no_proxy_there(twin):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    assert "refused" in failure(endpoint, twin, socks_proxy=f"127.0.0.1:{free_port()}")


def test_a_refusal_that_the_proxy_reports_is_a_refusal(twin):
    push = twin("PUSH", linger=0, reconnect_interval=0.01, reconnect_stop="refused")
    monitor = push.monitor()
    with SocksServer() as proxy:
        push.connect(f"tcp://127.0.0.1:{free_port()}", socks_proxy=proxy.address)
        kinds = [twin.event(monitor).kind for _ in range(2)]
        assert kinds == ["connect_delayed", "connect_failed"]
        with pytest.raises(omq.Timeout):
            twin.event(monitor, 0.1)


def test_what_is_of_no_use_is_refused(twin):
    push = twin("PUSH")
    for call, endpoint in ((push.connect, "inproc://x"), (push.connect, "ipc://@x")):
        with pytest.raises(omq.OptionError, match="option 'socks_proxy' does not apply to"):
            call(endpoint, socks_proxy="127.0.0.1:1")
    with pytest.raises(omq.OptionError, match="option 'socks_proxy' is for connect, not for bind"):
        push.bind("tcp://127.0.0.1:*", socks_proxy="127.0.0.1:1")
    with pytest.raises(omq.OptionError, match="socks_username='user' needs socks_proxy"):
        push.connect("tcp://127.0.0.1:9", socks_username="user")
    with pytest.raises(omq.OptionError, match="socks_password=<str> needs socks_username"):
        push.connect("tcp://127.0.0.1:9", socks_proxy="127.0.0.1:1", socks_password="word")
    with pytest.raises(omq.OptionError, match=r"option socks_proxy='127.0.0.1:1' of the socket does not apply to ipc:"):
        twin("PUSH", socks_proxy="127.0.0.1:1").connect("ipc://@x")


# libzmq


@pytest.mark.parametrize("host", ["127.0.0.1", "far.invalid", "[::1]"])
@pytest.mark.parametrize("user", [None, USER], ids=["open", "password"])
def test_libzmq_sends_the_same_to_a_proxy(twin, host, user):
    """The refusal reaches the endpoint, too: libzmq 4.3.5 aborts where a proxy refuses."""
    pull = twin("PULL")
    try:
        port = int(pull.bind(f"tcp://{host.replace('far.invalid', '127.0.0.1')}:*").rpartition(":")[2])
    except omq.BindError:
        pytest.skip("this machine has no IPv6")
    endpoint = f"tcp://{host}:{port}"
    asked = None if user is None else (b"user", b"word")
    with SocksServer(user=asked, names={b"far.invalid": port}) as proxy:
        push = twin("PUSH", linger=0)
        push.connect(endpoint, socks_proxy=proxy.address, **({} if user is None else CREDENTIALS))
        pull.wait_connected(timeout=BOUND)
        context = zmq.Context()
        theirs = context.socket(zmq.PUSH)
        theirs.setsockopt(zmq.SOCKS_PROXY, proxy.address.encode())
        theirs.ipv6 = True
        if user is not None:
            theirs.setsockopt(99, b"user")  # ZMQ_SOCKS_USERNAME
            theirs.setsockopt(100, b"word")  # ZMQ_SOCKS_PASSWORD
        theirs.connect(endpoint)
        pull.wait_connected(2, timeout=BOUND)
        theirs.close(linger=0)
        context.term()
        push.stop()
        assert proxy.received[0] == proxy.received[1]


def test_libzmq_on_the_other_side_of_a_proxy(twin):
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = int(BOUND * 1000)
    pull.bind("tcp://127.0.0.1:*")
    with SocksServer() as proxy:
        push = twin("PUSH", connect=pull.getsockopt_string(zmq.LAST_ENDPOINT), socks_proxy=proxy.address, linger=0)
        push.send(b"x", timeout=BOUND)
        assert pull.recv() == b"x"
        push.stop()
    pull.close(linger=0)
    context.term()

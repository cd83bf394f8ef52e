"""ws:// and wss:// (RFC 45, ZWS 2.0): both twins, and a peer made by hand."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.event import EventKind
from tests.support.waits import BOUND
from tests.support.websocket_peer import HEADERS, KEY, contexts, frame, make_certificate, ready, request

PAIRS = [("PUSH", "PULL"), ("PUB", "SUB"), ("XPUB", "XSUB"), ("REQ", "REP"), ("DEALER", "ROUTER"), ("PAIR", "PAIR")]
PAIRS += [("CLIENT", "SERVER"), ("SCATTER", "GATHER")]
SIZES = [0, 1, 124, 125, 126, 255, 256, 65534, 65535, 65536, 1 << 20]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["ws", "wss"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sides(scheme: str, certificate: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options for `bind` and for `connect`."""
    if scheme == "ws":
        return {}, {}
    server, client = contexts(certificate)
    return {"tls": server}, {"tls": client}


def join(binds: Any, connects: Any, scheme: str, sides: tuple[dict[str, Any], dict[str, Any]], path: str = "") -> str:
    found = str(binds.bind(f"{scheme}://127.0.0.1:*{path}", **sides[0]))
    connects.connect(found, **sides[1])
    return found


@pytest.mark.parametrize("path", ["", "/", "/a/b"])
def test_sizes(twin: Any, scheme: str, sides: Any, path: str) -> None:
    pull, push = twin("PULL"), twin("PUSH")
    assert join(pull, push, scheme, sides, path).endswith(path or "/")
    for size in SIZES:
        body = os.urandom(size)
        push.send(body, timeout=BOUND)
        assert pull.recv(timeout=BOUND) == body


@pytest.mark.parametrize("first", ["left binds", "right binds"])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_pairs(twin: Any, scheme: str, sides: Any, left: str, right: str, first: str) -> None:
    sends, takes = twin(left), twin(right)
    join(*((sends, takes) if first == "left binds" else (takes, sends)), scheme, sides)
    if right in ("SUB", "XSUB"):
        takes.subscribe(b"top")
        if left == "XPUB":
            assert sends.recv(timeout=BOUND) == b"\x01top"
    body = b"topic and more"
    if left == "PUB":
        for _ in range(1000):
            sends.send(body)
            try:
                assert takes.recv(timeout=0.02) == body
                return
            except omq.ReceiveTimeout:
                continue
        pytest.fail("no message arrives")
    sends.send(body, timeout=BOUND)
    if right == "ROUTER":
        assert takes.recv_multipart(timeout=BOUND)[-1] == body
    elif right == "SERVER":
        assert bytes(takes.recv(timeout=BOUND)) == body
    else:
        assert takes.recv(timeout=BOUND) == body


def test_what_was_sent_before_close_arrives(twin: Any, scheme: str, sides: Any) -> None:
    pull, push = twin("PULL", recv_hwm=10_000), twin("PUSH", send_hwm=10_000)
    join(pull, push, scheme, sides)
    for number in range(500):
        push.send(b"%d" % number + bytes(500), timeout=BOUND)
    push.close(linger=BOUND)
    for number in range(500):
        assert pull.recv(timeout=BOUND).startswith(b"%d\0" % number)


def test_a_lost_connection_comes_again(twin: Any) -> None:
    push = twin("PUSH", reconnect_interval=0.01)
    first = twin("PULL")
    where = join(first, push, "ws", ({}, {}))
    push.send(b"one", timeout=BOUND)
    assert first.recv(timeout=BOUND) == b"one"
    first.close(linger=0)
    second = twin("PULL")
    second.bind(where)
    push.send(b"two", timeout=BOUND)
    assert second.recv(timeout=BOUND) == b"two"


@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
def test_security(twin: Any, scheme: str, sides: Any, mechanism: str) -> None:
    if mechanism == "PLAIN":
        server, client = omq.PlainServer({"ada": "pw"}), omq.PlainClient("ada", "pw")
    else:
        public, secret = omq.curve_keypair()
        server, client = omq.CurveServer(secret), omq.CurveClient(public)  # type: ignore[assignment]
    rep, req = twin("REP", security=server), twin("REQ", security=client)
    join(rep, req, scheme, sides)
    for body in (b"x", bytes(100_000)):
        req.send(body, timeout=BOUND)
        assert rep.recv(timeout=BOUND) == body
        rep.send(body, timeout=BOUND)
        assert req.recv(timeout=BOUND) == body


def test_heartbeats_are_pings(twin: Any) -> None:
    pull, push = twin("PULL"), twin("PUSH", heartbeat_interval=0.02, heartbeat_timeout=BOUND)
    join(pull, push, "ws", ({}, {}))
    for number in range(20):
        push.send(b"%d" % number, timeout=BOUND)
        assert pull.recv(timeout=BOUND) == b"%d" % number


def test_tls_is_for_wss_only_and_needed_to_bind(twin: Any) -> None:
    pull = twin("PULL")
    with pytest.raises(omq.OptionError, match="tls"):
        pull.bind("wss://127.0.0.1:*")
    for endpoint in ("ws://127.0.0.1:*", "tcp://127.0.0.1:*"):
        with pytest.raises(omq.OptionError, match="tls"):
            pull.bind(endpoint, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


# ---------------------------------------------------------------------- a client by hand


@pytest.fixture
def server(twin: Any) -> tuple[Any, Any, tuple[str, int]]:
    pull = twin("PULL", handshake_timeout=BOUND)
    monitor = pull.monitor()
    endpoint = str(pull.bind("ws://127.0.0.1:*/at"))
    return pull, monitor, ("127.0.0.1", int(endpoint.rpartition(":")[2].removesuffix("/at")))


def read_all(sock: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return found
        if not more:
            return found
        found += more


def ended(twin: Any, monitor: Any, kinds: set[EventKind]) -> None:
    while twin.event(monitor).kind not in kinds:
        pass


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


REQUESTS = {
    "no sub-protocol": (request(without("Sec-WebSocket-Protocol")), 400),
    "another sub-protocol": (request({**HEADERS, "Sec-WebSocket-Protocol": "chat"}), 400),
    "another mechanism": (request({**HEADERS, "Sec-WebSocket-Protocol": "ZWS2.0/CURVE"}), 400),
    "a short key": (request({**HEADERS, "Sec-WebSocket-Key": "eHg="}), 400),
    "no base64": (request({**HEADERS, "Sec-WebSocket-Key": "?" * 24}), 400),
    "no key": (request(without("Sec-WebSocket-Key")), 400),
    "two keys": (request(HEADERS, f"Sec-WebSocket-Key: {KEY}\r\n"), 400),
    "two hosts": (request(HEADERS, "Host: b\r\n"), 400),
    "no host": (request(without("Host")), 400),
    "no upgrade": (request(without("Upgrade")), 400),
    "a wrong version": (request({**HEADERS, "Sec-WebSocket-Version": "8"}), 426),
    "another path": (request(HEADERS, line="GET /x HTTP/1.1"), 404),
    "a path above": (request(HEADERS, line="GET / HTTP/1.1"), 404),
    "HTTP/1.0": (request(HEADERS, line="GET /at HTTP/1.0"), 400),
    "a host with a space": (request({**HEADERS, "Host": "a b"}), 400),
    "an absolute target of another path": (request(HEADERS, line="GET http://localhost/x HTTP/1.1"), 404),
    "an upgrade to another protocol": (request({**HEADERS, "Upgrade": "h2c, websockets"}), 400),
    "a post": (request(HEADERS, line="POST / HTTP/1.1"), 400),
    "no http": (b"\xff\0\0\0\0\0\0\0\1\x7f\r\n\r\n", 400),
    "a huge header": (request(HEADERS, "X: " + "x" * 9000 + "\r\n"), 431),
    "a header without end": (b"GET / HTTP/1.1\r\nX: " + b"x" * 9000, 431),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_bad_requests_are_answered_and_end(twin: Any, server: Any, case: str) -> None:
    octets, status = REQUESTS[case]
    _, monitor, address = server
    with socket.create_connection(address, timeout=BOUND) as sock:
        sock.sendall(octets)
        assert read_all(sock).startswith(b"HTTP/1.1 %d " % status)
    ended(twin, monitor, {EventKind.HANDSHAKE_FAILED})


ACCEPTED = {
    "an absolute target": request(HEADERS, line="GET http://localhost/at?q=1 HTTP/1.1"),  # RFC 9112, 3.2.2
    "an upgrade among others": request({**HEADERS, "Upgrade": "h2c, WebSocket, irc"}),  # RFC 9110, 7.8
    "a host of IPv6": request({**HEADERS, "Host": "[::1]:80"}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_unusual_requests_are_accepted(server: Any, case: str) -> None:
    _, _, address = server
    with socket.create_connection(address, timeout=BOUND) as sock:
        sock.sendall(ACCEPTED[case])
        assert sock.recv(13, socket.MSG_WAITALL) == b"HTTP/1.1 101 "


def open_by_hand(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=BOUND)
    for octet in request(HEADERS):
        sock.sendall(bytes((octet,)))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += sock.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"ZWS2.0/NULL" in answer
    sock.sendall(frame(ready("PUSH")))
    head = sock.recv(2, socket.MSG_WAITALL)
    assert head[0] == 0x82
    assert sock.recv(head[1], socket.MSG_WAITALL).startswith(b"\x02\x05READY")
    return sock


def test_a_peer_by_hand(twin: Any, server: Any) -> None:
    pull, _, address = server
    with open_by_hand(address) as sock:
        sock.sendall(frame(b"\1one") + frame(b"pong?", 0x89) + frame(b"\0two"))
        assert pull.recv_multipart(timeout=BOUND) == [b"one", b"two"]
        assert sock.recv(7, socket.MSG_WAITALL) == b"\x8a\x05pong?"
        for octet in frame(b"\0slow" + bytes(300)):
            sock.sendall(bytes((octet,)))
        assert pull.recv(timeout=BOUND) == b"slow" + bytes(300)


FRAMES = {
    "no mask": frame(b"\0x", masked=False),
    "a fragment": frame(b"\0x", 0x02),
    "a continuation": frame(b"\0x", 0x80),
    "a text": frame(b"\0x", 0x81),
    "a reserved opcode": frame(b"\0x", 0x83),
    "a reserved control opcode": frame(b"\0x", 0x8B),
    "a compressed frame": frame(b"\0x", 0xC2),
    "a long ping": frame(bytes(126), 0x89),
    "a fragment of a ping": frame(b"", 0x09),
    "an empty message": frame(b""),
    "unknown flags": frame(b"\x04x"),
    "a command and more": frame(b"\x03x"),
    "a length of 2 to the 63": b"\x82\xff" + b"\x80" + bytes(7),
    "a long form of a short length": b"\x82\xfe\0\x05",
    "half a close code": frame(b"\x03", 0x88),
}


@pytest.mark.parametrize("case", FRAMES)
def test_bad_frames_end_their_connection_alone(twin: Any, server: Any, case: str) -> None:
    pull, monitor, address = server
    with open_by_hand(address) as other, open_by_hand(address) as sock:
        sock.sendall(frame(b"\0before") + FRAMES[case])
        assert read_all(sock).endswith(b"\x88\x02\x03\xea")
        ended(twin, monitor, {EventKind.DISCONNECTED})
        other.sendall(frame(b"\0after"))
        assert {pull.recv(timeout=BOUND), pull.recv(timeout=BOUND)} == {b"before", b"after"}


def status(number: int) -> bytes:
    return number.to_bytes(2, "big")


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b""),
        *((status(number) + b"bye", status(number)) for number in (1000, 1001, 1003, 1007, 1014, 3000, 4999)),
        *((status(number), status(1002)) for number in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65535)),
        (status(1000) + b"\xff\xfe", status(1007)),
        (status(1000) + "à bientôt".encode(), status(1000)),
    ],
)
def test_a_close_frame_is_answered(twin: Any, server: Any, payload: bytes, answer: bytes) -> None:
    """RFC 6455, 5.5.1 and 7.4: with its own status, or with one that names what is wrong with it."""
    _, monitor, address = server
    with open_by_hand(address) as sock:
        sock.sendall(frame(payload, 0x88))
        assert read_all(sock) == bytes((0x88, len(answer))) + answer
    ended(twin, monitor, {EventKind.DISCONNECTED})


def test_a_length_above_max_message_size_ends_the_connection(twin: Any) -> None:
    pull = twin("PULL", max_message_size=1000)
    monitor = pull.monitor()
    endpoint = str(pull.bind("ws://127.0.0.1:*"))
    with open_by_hand(("127.0.0.1", int(endpoint.rpartition(":")[2].strip("/")))) as sock:
        sock.sendall(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"keys\0")
        read_all(sock)
        ended(twin, monitor, {EventKind.DISCONNECTED})


def test_a_request_that_never_ends_runs_into_handshake_timeout(twin: Any) -> None:
    pull = twin("PULL", handshake_timeout=0.1)
    monitor = pull.monitor()
    endpoint = str(pull.bind("ws://127.0.0.1:*"))
    with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2].strip("/"))), timeout=BOUND) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        assert read_all(sock) == b""
    ended(twin, monitor, {EventKind.HANDSHAKE_FAILED})

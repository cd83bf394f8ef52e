"""WebSockets with all types, with security, and with peers that know no ZMTP (RFC 45)."""

from __future__ import annotations

import fcntl
import signal
import socket
import ssl
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

import omq
from omq.event import EventKind
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.waits import BOUND, until
from tests.support.websocket_peer import (
    HEADERS,
    Client,
    Server,
    contexts,
    frame,
    make_certificate,
    place,
    ready,
    request,
)

WS = "ws://127.0.0.1:*"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def event(twin: Any, monitor: Any, kind: EventKind) -> Any:
    while True:
        found = twin.event(monitor)
        if found.kind is kind:
            return found


# ---------------------------------------------------------------------- types


def test_groups(twin: Any) -> None:
    radio, dish = twin("RADIO", bind=WS), twin("DISH")
    dish.connect(radio.endpoints[0])
    dish.join("news")
    radio.wait_subscribed("news", timeout=BOUND)
    radio.send(b"other", group="sport")
    radio.send(b"headlines", group="news")
    found = dish.recv_message(timeout=BOUND)
    assert (found.group, found.body) == ("news", b"headlines")
    dish.leave("news")
    until(lambda: radio.topics_count == 0)


def test_numbers(twin: Any) -> None:
    left, right = twin("PEER", bind=WS), twin("PEER")
    number = right.connect_peer(left.endpoints[0], timeout=BOUND)
    right.send(b"hello", routing_id=number)
    found = left.recv_message(timeout=BOUND)
    left.send(b"back", routing_id=found.routing_id)
    assert (found.body, right.recv(timeout=BOUND)) == (b"hello", b"back")


def test_a_channel_has_one_peer(twin: Any) -> None:
    left, right = twin("CHANNEL", bind=WS), twin("CHANNEL")
    right.connect(left.endpoints[0])
    for one, other in ((left, right), (right, left)):
        one.send(b"x", timeout=BOUND)
        assert other.recv(timeout=BOUND) == b"x"


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_type_without_zmtp_is_refused(twin: Any, scheme: str) -> None:
    with pytest.raises(omq.EndpointError, match="STREAM"):
        twin("STREAM", bind=f"{scheme}://127.0.0.1:*")


def test_types_that_do_not_fit_part(twin: Any) -> None:
    pull, push = twin("PULL", bind=WS), twin("PUB", reconnect_interval=None)
    monitor = pull.monitor()
    push.connect(pull.endpoints[0])
    assert "ncompatible" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)


def test_an_identity_is_known(twin: Any) -> None:
    router, dealer = twin("ROUTER", bind=WS), twin("DEALER", identity=b"ada")
    dealer.connect(router.endpoints[0])
    dealer.send(b"hello", timeout=BOUND)
    assert router.recv_multipart(timeout=BOUND) == [b"ada", b"hello"]
    router.send_multipart([b"ada", b"back"])
    assert dealer.recv(timeout=BOUND) == b"back"


# ---------------------------------------------------------------------- security


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_zap_handler_is_asked_with_the_peers_address(twin: Any, certificate: Path, scheme: str) -> None:
    server, client = contexts(certificate) if scheme == "wss" else (None, None)
    handler = twin("REP", bind="inproc://zeromq.zap.01")
    asked: list[list[bytes]] = []

    def answer() -> None:
        for _ in range(2):
            asked.append(handler.recv_multipart(timeout=BOUND))
            admits = asked[-1][7] == b"good"
            code, user = (b"200", b"user") if admits else (b"400", b"")
            handler.send_multipart([b"1.0", asked[-1][1], code, b"text", user, b""])

    thread = threading.Thread(target=answer)
    thread.start()
    pull = twin("PULL", security=omq.PlainServer(None), zap_domain="web")
    pull.bind(f"{scheme}://127.0.0.1:*", **({"tls": server} if server else {}))
    outcomes = []
    for password in ("good", "bad"):
        push = twin("PUSH", security=omq.PlainClient("ada", password), reconnect_interval=None)
        monitor = push.monitor()
        push.connect(pull.endpoints[0], **({"tls": client} if client else {}))
        while (found := twin.event(monitor)).kind not in (EventKind.HANDSHAKE_SUCCEEDED, EventKind.HANDSHAKE_FAILED):
            pass
        outcomes.append(found.kind)
    thread.join(BOUND)
    assert outcomes == [EventKind.HANDSHAKE_SUCCEEDED, EventKind.HANDSHAKE_FAILED]
    assert {tuple(request[2:4]) for request in asked} == {(b"web", b"127.0.0.1")}


@pytest.mark.parametrize("given", ["security", "zap_domain"])
def test_a_peer_without_a_mechanism_stays_outside_where_something_is_asked(twin: Any, given: str) -> None:
    options = {"security": omq.PlainServer({"a": "b"})} if given == "security" else {"zap_domain": "web"}
    pull = twin("PULL", bind=WS, **options)
    with Client(pull.endpoints[0], "ZWS2.0") as peer:
        assert peer.answer.startswith(b"HTTP/1.1 400 ")
    assert not pull.peers


# ---------------------------------------------------------------------- peers that know no ZMTP


def test_a_client_without_a_mechanism(twin: Any) -> None:
    router = twin("ROUTER", bind=WS)
    with connect(router.endpoints[0], subprotocols=["ZWS2.0"], compression=None, max_size=None) as peer:
        assert peer.subprotocol == "ZWS2.0"
        peer.send(b"\0ada")
        assert peer.recv(BOUND) == b"\0"
        for size in (0, 1, 124, 125, 126, 65535, 65536, 1 << 20):
            peer.send(b"\1first")
            peer.send(b"\0" + bytes(size))
            assert router.recv_multipart(timeout=BOUND) == [b"ada", b"first", bytes(size)]
            router.send_multipart([b"ada", b"more", bytes(size)])
            assert (peer.recv(BOUND), peer.recv(BOUND)) == (b"\1more", b"\0" + bytes(size))
        peer.ping().wait(BOUND)


def test_a_subscriber_without_a_mechanism(twin: Any) -> None:
    pub = twin("PUB", bind=WS)
    with connect(pub.endpoints[0], subprotocols=["ZWS2.0"], compression=None) as peer:
        peer.send(b"\0")
        peer.recv(BOUND)
        peer.send(b"\0\1top")
        pub.wait_subscribed(b"top", timeout=BOUND)
        pub.send(b"other")
        pub.send(b"topic")
        assert peer.recv(BOUND) == b"\0topic"
        peer.send(b"\0\0top")
        until(lambda: pub.topics_count == 0)


@pytest.mark.parametrize("chosen", ["ZWS2.0", "ZWS2.0/NULL"])
def test_a_server_by_hand(twin: Any, chosen: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dealer = twin("DEALER", identity=b"bob")
        dealer.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/a/path")
        with Server(listening, chosen) as peer:
            assert peer.line == "GET /a/path HTTP/1.1"
            assert peer.headers["sec-websocket-protocol"] == "ZWS2.0/NULL, ZWS2.0"
            if chosen == "ZWS2.0":
                peer.send(b"\0its name")
                assert peer.recv() == (0x82, b"\0bob")
            else:
                peer.send(ready("ROUTER"))
                assert peer.recv()[1].startswith(b"\x02\x05READY")
            masks = set()
            for size in (3, 200, 70_000):
                peer.send(b"\0" + bytes(size))
                assert dealer.recv(timeout=BOUND) == bytes(size)
                dealer.send(bytes(size), timeout=BOUND)
                assert peer.recv() == (0x82, b"\0" + bytes(size))
                masks.add(peer.mask)
            assert len(masks) == 3, "RFC 6455, 5.3: a fresh mask for each frame"


ANSWERS = {
    "another key": ({"Sec-WebSocket-Accept": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="}, "accept"),
    "another protocol": ({"Sec-WebSocket-Protocol": "chat"}, "chat"),
    "no protocol": ({"Sec-WebSocket-Protocol": None}, "None"),
    "an extension": ({"Sec-WebSocket-Extensions": "permessage-deflate"}, "xtension"),
    "no upgrade": ({"Upgrade": "h2c"}, "Upgrade"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_does_not_fit(twin: Any, case: str) -> None:
    headers, word = ANSWERS[case]
    push = twin("PUSH", reconnect_interval=None)
    monitor = push.monitor()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        push.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}")
        with Server(listening, "ZWS2.0", headers):
            assert word in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)


def test_a_subscription_is_a_message(twin: Any) -> None:
    sub = twin("SUB", bind=f"{WS}/at")
    sub.subscribe(b"top")
    with Client(sub.endpoints[0]) as peer:
        peer.send(ready("PUB"))
        assert peer.recv()[1].startswith(b"\x02\x05READY")
        assert peer.recv() == (0x82, b"\0\1top")
        peer.send(b"\0topic")
        assert sub.recv(timeout=BOUND) == b"topic"


@pytest.mark.parametrize("payload", [b"\1ada", b"\2ada", b"\0" + bytes(256)], ids=["more", "command", "long"])
def test_a_first_message_that_is_no_identity(twin: Any, payload: bytes) -> None:
    pull = twin("PULL", bind=WS)
    monitor = pull.monitor()
    with Client(pull.endpoints[0], "ZWS2.0") as peer:
        peer.send(payload)
        assert "identity" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)


def test_a_message_before_the_handshake_is_done(twin: Any) -> None:
    pull = twin("PULL", bind=WS)
    monitor = pull.monitor()
    with Client(pull.endpoints[0]) as peer:
        peer.send(b"\0too soon")
        assert "before the handshake is done" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)


# ---------------------------------------------------------------------- signs of life, and ends


def test_pings_in_the_handshake_are_answered_and_counted(twin: Any) -> None:
    pull = twin("PULL", bind=WS)
    monitor = pull.monitor()
    with Client(pull.endpoints[0]) as peer:
        peer.send(b"?", 0x89)
        assert peer.recv()[1].startswith(b"\x02\x05READY")
        assert peer.recv() == (0x8A, b"?")
        peer.sock.sendall(20 * frame(b"", 0x89))
        assert "PINGs" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)


def test_a_heartbeat_is_a_ping_that_every_peer_answers(twin: Any) -> None:
    pull = twin("PULL", bind=WS, heartbeat_interval=0.05, heartbeat_timeout=BOUND)
    with connect(pull.endpoints[0], subprotocols=["ZWS2.0"], compression=None, ping_interval=None) as peer:
        peer.send(b"\0")
        until(lambda: len(pull.peers) == 1)
        before = pull.peers[0].bytes_in
        until(lambda: pull.peers[0].bytes_in >= before + 3 * 6)  # PONGs, which the library sends by itself


def test_a_peer_that_answers_no_ping_is_given_up(twin: Any) -> None:
    pull = twin("PULL", bind=WS, heartbeat_interval=0.05, heartbeat_timeout=0.1)
    monitor = pull.monitor()
    with Client(pull.endpoints[0]) as peer:
        peer.send(ready("PUSH"))
        peer.recv()
        assert peer.recv()[0] == 0x89
        assert "PING" in str(event(twin, monitor, EventKind.DISCONNECTED).reason)


def test_a_time_to_live_gets_through(twin: Any) -> None:
    pull, push = twin("PULL", bind=WS), twin("PUSH", heartbeat_interval=0.1, heartbeat_ttl=0.3)
    push.connect(pull.endpoints[0])
    until(lambda: pull.peers and pull.peers[0].bytes_in > 40)  # a PING of 13 bytes after the handshake, and one more
    with Client(pull.endpoints[0]) as peer:
        monitor = pull.monitor()
        peer.send(ready("PUSH"))
        peer.send(b"\4PING\0\3", 0x89)
        assert peer.recv()[1].startswith(b"\x02\x05READY")
        assert event(twin, monitor, EventKind.DISCONNECTED).reason
    assert len(pull.peers) == 1


def test_close_is_sent_when_a_socket_leaves(twin: Any) -> None:
    push = twin("PUSH", bind=WS)
    with Client(push.endpoints[0]) as peer:
        peer.send(ready("PULL"))
        peer.recv()
        push.send(b"last", timeout=BOUND)
        push.close(linger=BOUND)
        assert [peer.recv(), peer.recv()] == [(0x82, b"\0last"), (0x88, b"\x03\xe8")]
        with pytest.raises(EOFError):
            peer.recv()


def test_a_close_in_the_handshake(twin: Any) -> None:
    pull = twin("PULL", bind=WS)
    monitor = pull.monitor()
    with Client(pull.endpoints[0]) as peer:
        peer.send(b"\x03\xf0no thanks", 0x88)
        reason = str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)
        assert "1008" in reason
        assert "no thanks" in reason


def test_what_a_closed_peer_has_not_got_goes_to_the_next_one(twin: Any) -> None:
    push = twin("PUSH", bind=WS, send_hwm=2000)
    with Client(push.endpoints[0], recv_buffer=4096) as peer:
        peer.send(ready("PULL"))
        peer.recv()
        until(lambda: len(push.peers) == 1)
        bodies = [b"%06d" % number + bytes(20_000) for number in range(1000)]
        for body in bodies:
            push.send(body, timeout=BOUND)
        peer.send(b"", 0x88)
        until(lambda: not push.peers)
    pull = twin("PULL", recv_hwm=0)
    pull.connect(push.endpoints[0])
    push.send(b"end", timeout=BOUND)
    got = []
    while (body := pull.recv(timeout=BOUND)) != b"end":
        got.append(body)
    assert len(got) > 500, "what no kernel had stays"
    assert got == bodies[-len(got) :]


SENDER = """
import ssl, sys
import omq
endpoint, cafile, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
more = {"tls": ssl.create_default_context(cafile=cafile)} if endpoint.startswith("wss") else {}
push = omq.PUSH(send_hwm=0)
push.connect(endpoint, **more)
for number in range(count):
    push.send(b"%06d" % number + bytes(20_000))
"""


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_what_a_process_has_sent_leaves_before_it_ends(certificate: Path, scheme: str) -> None:
    count = 1000
    options = {"tls": contexts(certificate)[0]} if scheme == "wss" else {}
    with omq.PULL(recv_hwm=10) as pull:
        endpoint = pull.bind(f"{scheme}://127.0.0.1:*", **options)
        with ForkedProcess("-c", SENDER, endpoint, certificate, str(count), template=SOCKETS) as sender:
            for number in range(count):
                if number == 20:
                    time.sleep(0.3)  # the receiver is slow: what the sender has left waits at its end
                assert pull.recv(timeout=BOUND).startswith(b"%06d" % number)
            assert sender.wait(BOUND) == 0


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_killed_peer_harms_no_other(certificate: Path, scheme: str) -> None:
    options = {"tls": contexts(certificate)[0]} if scheme == "wss" else {}
    with omq.PULL(recv_hwm=10) as pull, omq.PUSH(connect=pull.bind(WS)) as other:
        endpoint = pull.bind(f"{scheme}://127.0.0.1:*", **options)
        with ForkedProcess("-c", SENDER, endpoint, certificate, "100000") as sender:
            assert pull.recv(timeout=BOUND)
            sender.send_signal(signal.SIGKILL)
        other.send(b"alive", timeout=BOUND)
        while pull.recv(timeout=BOUND) != b"alive":
            pass

        def is_forgotten() -> bool:
            pull.recv_many(timeout=0) if pull.poll(0) else None  # what it had sent is read before its end
            return len(pull.peers) == 1

        until(is_forgotten)


@pytest.mark.parametrize("how", ["reset", "gone before an answer"])
def test_what_has_arrived_outlives_the_network(twin: Any, certificate: Path, how: str) -> None:
    server, client = contexts(certificate)
    dealer = twin("DEALER", recv_hwm=1)  # reads so little that most waits decrypted, or in the kernel
    count, body = 20, bytes(60_000)
    raw = socket.create_connection(place(dealer.bind("wss://127.0.0.1:*", tls=server)), BOUND)
    with client.wrap_socket(raw, server_hostname="127.0.0.1") as peer:
        peer.sendall(request(HEADERS) + frame(ready("DEALER")))
        dealer.wait_connected(timeout=BOUND)
        peer.sendall(b"".join(frame(b"\0%02d" % number + body) for number in range(count)))
        until(lambda: not struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
        if how == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how != "reset":
        for _ in range(5):  # the first one is answered with a reset, and the next one fails
            dealer.send(bytes(600), timeout=BOUND)
            time.sleep(0.02)
    found = [dealer.recv(timeout=BOUND)[:2] for _ in range(count)]
    assert found == [b"%02d" % number for number in range(count)]


STOPPED = """
import ssl, sys
import omq
endpoint, cafile = sys.argv[1:]
sub = omq.SUB(subscribe=b"")
sub.connect(endpoint, **({"tls": ssl.create_default_context(cafile=cafile)} if endpoint.startswith("wss") else {}))
sub.recv()
print("stopped", flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_the_reset_of_a_killed_peer_that_had_stopped_is_seen_at_once(certificate: Path, scheme: str) -> None:
    options = {"tls": contexts(certificate)[0]} if scheme == "wss" else {}
    with omq.PUB() as pub:
        endpoint = pub.bind(f"{scheme}://127.0.0.1:*", **options)
        monitor = pub.monitor()
        with ForkedProcess("-c", STOPPED, endpoint, certificate, stdout=subprocess.PIPE, text=True) as sub:
            assert sub.stdout is not None
            pub.wait_subscribed(timeout=BOUND)
            pub.send(b"stop")
            assert sub.stdout.readline() == "stopped\n"
            while pub.peers[0].dropped == 0:
                pub.send(bytes(60_000))  # until nothing has room for more
            sub.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        while monitor.recv(timeout=BOUND).kind is not EventKind.DISCONNECTED:
            pass
        pub.close()
        assert time.monotonic() - killed < 3.0, "a peer that may take something yet has five seconds"


def test_a_flood_of_pings_that_reads_no_answer_is_bounded(twin: Any) -> None:
    pull = twin("PULL", bind=WS)
    with Client(pull.endpoints[0], recv_buffer=4096) as peer, Client(pull.endpoints[0]) as other:
        for one in (peer, other):
            one.send(ready("PUSH"))
            one.recv()
        flood = frame(bytes(125), 0x89) * 1000
        before = resident()
        call = twin.spawn(pull, "recv", timeout=2 * BOUND)
        for _ in range(400):  # 50 MB
            peer.sock.sendall(flood)
        other.send(b"\0alive")
        assert call.result() == b"alive"
        assert resident() - before < 40 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---------------------------------------------------------------------- strangers


def test_strangers_are_distinguished(twin: Any, certificate: Path) -> None:
    server, client = contexts(certificate)
    pull = twin("PULL", bind=WS)
    monitor = pull.monitor()
    push = twin("PUSH", reconnect_interval=None)
    push.connect(pull.endpoints[0].replace("ws://", "wss://"), tls=client)
    assert "speaks TLS" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)
    push.connect(pull.endpoints[0].replace("ws://", "tcp://").rstrip("/"))
    assert "speaks ZMTP over tcp" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)
    own = push.monitor()
    push.connect(twin("PULL", bind="tcp://127.0.0.1:*").endpoints[0].replace("tcp://", "ws://"))
    assert event(twin, own, EventKind.HANDSHAKE_FAILED)
    secure = twin("PULL")
    seen = secure.monitor()
    secure.bind("wss://127.0.0.1:*", tls=server)
    with socket.create_connection(("127.0.0.1", int(secure.endpoints[0].rpartition(":")[2].rstrip("/")))) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert "TLS handshake has failed" in str(event(twin, seen, EventKind.HANDSHAKE_FAILED).reason)


def test_a_certificate_without_a_trusted_issuer(twin: Any, certificate: Path) -> None:
    pull = twin("PULL")
    seen = pull.monitor()
    pull.bind("wss://127.0.0.1:*", tls=contexts(certificate)[0])
    push = twin("PUSH", reconnect_interval=None)
    own = push.monitor()
    push.connect(pull.endpoints[0])
    assert "certificate verify failed" in str(event(twin, own, EventKind.HANDSHAKE_FAILED).reason)
    assert event(twin, seen, EventKind.HANDSHAKE_FAILED)


def test_a_client_is_asked_for_its_certificate(twin: Any, certificate: Path) -> None:
    server, client = contexts(certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(certificate)
    pull = twin("PULL")
    pull.bind("wss://127.0.0.1:*", tls=server)
    stranger = twin("PUSH")
    stranger.connect(pull.endpoints[0], tls=client)
    known = ssl.create_default_context(cafile=str(certificate))
    known.load_cert_chain(certificate)
    push = twin("PUSH")
    push.connect(pull.endpoints[0], tls=known)
    push.send(b"known", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"known"
    assert len(pull.peers) == 1


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00half a record"], ids=["silence", "half"])
def test_tls_that_never_begins_runs_into_handshake_timeout(twin: Any, certificate: Path, sent: bytes) -> None:
    pull = twin("PULL", handshake_timeout=0.2)
    monitor = pull.monitor()
    pull.bind("wss://127.0.0.1:*", tls=contexts(certificate)[0])
    with socket.create_connection(("127.0.0.1", int(pull.endpoints[0].rpartition(":")[2].rstrip("/")))) as sock:
        sock.settimeout(BOUND)
        sock.sendall(sent)
        assert "handshake_timeout=0.2" in str(event(twin, monitor, EventKind.HANDSHAKE_FAILED).reason)
        assert sock.recv(100) == b""

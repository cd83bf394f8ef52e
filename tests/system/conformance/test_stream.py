"""STREAM: plain TCP in both directions, with peers that know no ZMTP (zmq_socket(3), ZMQ_STREAM)."""

from __future__ import annotations

import http.client
import http.server
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import zmq

import omq
from omq._core.wire.raw import CHUNK
from omq.engine.lifecycle import DialerState
from tests.support import raw_zmtp
from tests.support.waits import BOUND, until

HASTE: dict[str, Any] = {"reconnect_interval": 0.01}


@pytest.fixture(params=["tcp", "ipc"])
def place(request, tmp_path):
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/s"


@pytest.fixture
def stream(twin):
    return twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND, send_timeout=BOUND)


def address(endpoint: str) -> tuple[str, int]:
    host, port = endpoint.removeprefix("tcp://").split(":")
    return host, int(port)


def dial(stream: Any, **options: int) -> socket.socket:
    """Connects a plain socket."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    plain.settimeout(BOUND)
    for name, value in options.items():
        plain.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    plain.connect(address(stream.endpoints[0]))
    return plain


def came(stream: Any) -> bytes:
    """Takes the message that a peer has come, and returns the peer's id."""
    peer, nothing = stream.recv_multipart()
    assert nothing == b""
    assert len(peer) == 5
    assert peer[:1] == b"\0"
    return bytes(peer)


def read(stream: Any, size: int) -> bytes:
    """Takes a number of bytes of the only peer."""
    found = b""
    while len(found) < size:
        found += stream.recv_multipart()[1]
    assert len(found) == size
    return found


def fill(stream: Any, limit: int, peer: bytes, *, body: bytes) -> int:
    """Sends to a peer until there is no room; returns how many messages were accepted, *limit* at most."""
    for number in range(limit):
        try:
            stream.send_multipart([peer, body], timeout=0)
        except omq.SendTimeout:
            return number
    return limit


def rest(plain: socket.socket) -> bytes:
    """Reads up to the end of the stream."""
    found = b""
    while more := plain.recv(65536):
        found += more
    return found


def pattern(size: int) -> bytes:
    """Returns bytes that show where they belong."""
    return b"".join(struct.pack(">I", number) for number in range(size // 4 + 1))[:size]


@contextmanager
def libzmq(**options: int) -> Iterator[Any]:
    """A STREAM of libzmq's."""
    context = zmq.Context()
    one = context.socket(zmq.STREAM)
    one.setsockopt(zmq.LINGER, 0)
    one.setsockopt(zmq.RCVTIMEO, int(BOUND * 1000))
    one.setsockopt(zmq.SNDTIMEO, int(BOUND * 1000))
    for name, value in options.items():
        one.setsockopt(getattr(zmq, name), value)
    try:
        yield one
    finally:
        one.close()
        context.term()


# ---------------------------------------------------------------------- messages


def test_bytes_come_with_the_peers_id_and_go_to_the_peer_that_it_names(stream):
    with dial(stream) as one, dial(stream) as other:
        ids = [came(stream), came(stream)]
        assert len(set(ids)) == 2
        by_id = {}
        for plain, sent in ((one, b"one"), (other, b"other")):
            plain.sendall(sent)
            peer, received = stream.recv_multipart()
            assert received == sent
            by_id[peer] = plain
        assert set(by_id) == set(ids)
        for peer, plain in by_id.items():
            stream.send_multipart([peer, b"for " + peer])
            assert plain.recv(100) == b"for " + peer


def test_a_message_has_the_endpoint_of_its_peer(stream):
    with dial(stream) as plain:
        came(stream)
        plain.sendall(b"x")
        message = stream.recv_message()
        assert (message.peer.endpoint, message.peer.mechanism) == (stream.endpoints[0], "")
        assert message.peer.identity == message.parts[0]
        assert [one.identity for one in stream.peers] == [message.parts[0]]


@pytest.mark.parametrize("size", [1, 255, 256, 8192, 8193, CHUNK - 1, CHUNK, CHUNK + 1, 131072, 1_000_003])
def test_bytes_of_any_number_come_in_order_and_whole(stream, size):
    body = pattern(size)
    with dial(stream) as plain:
        peer = came(stream)
        sender = threading.Thread(target=plain.sendall, args=(body,))
        sender.start()
        assert read(stream, size) == body
        sender.join()
        stream.send_multipart([peer, body])
        stream.send_multipart([peer, b""])
        assert rest(plain) == body


def test_a_message_has_as_many_bytes_as_one_read_brings_and_no_more(stream):
    with dial(stream) as plain:
        came(stream)
        threading.Thread(target=plain.sendall, args=(bytes(4_000_000),), daemon=True).start()
        sizes, left = [], 4_000_000
        while left:
            sizes.append(len(stream.recv_multipart()[1]))
            left -= sizes[-1]
        assert max(sizes) <= CHUNK
        assert min(sizes) > 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [10, 5000, 300_000])
def test_every_kind_of_buffer_leaves_as_its_bytes(stream, kind, size):
    body = pattern(size)
    with dial(stream) as plain:
        peer = came(stream)
        stream.send_multipart([kind(peer), kind(body)])
        stream.send_multipart([peer, b"end"])
        stream.send_multipart([peer, b""])
        assert rest(plain) == body + b"end"


@pytest.mark.parametrize("parts", [[b"one"], [b"one", b"two", b"three"]], ids=["one", "three"])
def test_a_message_is_an_id_and_bytes(stream, parts):
    with pytest.raises(omq.StateError, match=f"sends two parts.*this message has {len(parts)}"):
        stream.send_multipart(parts)


def test_calls_for_one_part_name_the_call_to_use(stream):
    with dial(stream) as plain:
        came(stream)
        plain.sendall(b"x")
        with pytest.raises(omq.MultipartError, match="recv_multipart"):
            stream.recv()
        assert stream.recv_multipart()[1] == b"x"


def test_many_messages_come_in_one_call(stream):
    with dial(stream) as plain:
        peer = came(stream)
        found: list[Any] = []
        for number in range(5):
            plain.sendall(b"%d" % number)
            found += stream.recv_many()
        assert [one[0] for one in found] == [peer] * len(found)
        assert b"".join(one[1] for one in found) == b"01234"


def test_two_streams_speak_with_each_other(twin, place):
    server = twin("STREAM", bind=place, recv_timeout=BOUND)
    client = twin("STREAM", connect=server.endpoints[0], recv_timeout=BOUND)
    to_server, to_client = came(client), came(server)
    for number in range(100):
        client.send_multipart([to_server, b"%03d" % number])
    assert read(server, 300) == b"".join(b"%03d" % number for number in range(100))
    server.send_multipart([to_client, pattern(200_000)])
    assert read(client, 200_000) == pattern(200_000)


# ---------------------------------------------------------------------- peers that come and go


@pytest.mark.parametrize("end", ["close", "reset", "half"])
def test_a_peer_that_goes_gives_a_message_after_its_last_bytes(stream, end):
    with dial(stream) as plain:
        peer = came(stream)
        plain.sendall(b"last words")
        if end == "reset":
            assert stream.recv_multipart() == [peer, b"last words"]  # a reset may destroy what was not read
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            plain.close()
        elif end == "half":
            plain.shutdown(socket.SHUT_WR)
            assert stream.recv_multipart() == [peer, b"last words"]
        else:
            plain.close()
            assert stream.recv_multipart() == [peer, b"last words"]
        assert stream.recv_multipart() == [peer, b""]
        until(lambda: not stream.peers)
        with pytest.raises(omq.UnroutableError, match=re.escape(repr(peer))):
            stream.send_multipart([peer, b"too late"])


def test_without_notices_only_bytes_come(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", stream_notify=False, recv_timeout=BOUND)
    with dial(stream) as plain:
        stream.wait_connected(timeout=BOUND)
        plain.sendall(b"x")
        peer, received = stream.recv_multipart()
        assert received == b"x"
        assert [one.identity for one in stream.peers] == [peer]
    until(lambda: not stream.peers)
    with dial(stream) as plain:
        plain.sendall(b"y")
        assert stream.recv_multipart()[1] == b"y"


def test_an_empty_message_closes_the_peer_after_what_was_accepted_has_left(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", linger=0.0, recv_timeout=BOUND, send_hwm=0)
    body = pattern(3_000_000)  # more than the kernels hold
    with dial(stream, SO_RCVBUF=4096) as plain:
        peer = came(stream)
        stream.send_multipart([peer, body])
        stream.send_multipart([peer, b"and this"])
        stream.send_multipart([peer, b""])
        with pytest.raises(omq.UnroutableError):
            stream.send_multipart([peer, b"not this"])
        with pytest.raises(omq.UnroutableError):
            stream.send_multipart([peer, b""])
        assert rest(plain) == body + b"and this"
    until(lambda: not stream.peers)


def test_a_peer_that_the_program_closes_gives_no_message(stream):
    """So does libzmq, whose pipe is gone by then."""
    with dial(stream) as plain:
        peer = came(stream)
        stream.send_multipart([peer, b""])
        assert rest(plain) == b""
    until(lambda: not stream.peers)
    with dial(stream) as plain:
        assert came(stream) != peer


def test_what_a_closed_peer_has_sent_before_can_be_taken(stream):
    with dial(stream) as plain:
        peer = came(stream)
        plain.sendall(b"question")
        assert stream.poll(BOUND)
        stream.send_multipart([peer, b""])
        assert stream.recv_multipart() == [peer, b"question"]
        assert rest(plain) == b""


def test_a_closed_peer_that_takes_nothing_is_given_up(twin, monkeypatch):
    monkeypatch.setattr("omq.engine.wire_session._SETTLE_TIMEOUT_S", 0.1)
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND, send_hwm=0)
    monitor = stream.monitor()
    with dial(stream, SO_RCVBUF=4096):
        peer = came(stream)
        stream.send_multipart([peer, bytes(20_000_000)])
        stream.send_multipart([peer, b""])
        while (event := twin.event(monitor)).kind is not omq.EventKind.DISCONNECTED:
            pass
        assert "the peer was closed and has taken nothing for 0.1 s" in str(event.reason)


@pytest.mark.parametrize("name", [b"", b"\0\0\0\0\0", b"stranger", bytes(300)], ids=["none", "zeros", "text", "long"])
@pytest.mark.parametrize("body", [b"x", b""], ids=["bytes", "close"])
def test_an_id_that_is_unknown_is_an_error(stream, name, body):
    with dial(stream):
        came(stream)
        with pytest.raises(omq.UnroutableError, match="no connected peer"):
            stream.send_multipart([name, body])


def test_what_was_accepted_for_a_peer_that_ends_its_side_still_leaves(stream):
    body = pattern(3_000_000)
    with dial(stream, SO_RCVBUF=4096) as plain:
        peer = came(stream)
        stream.send_multipart([peer, body])
        plain.shutdown(socket.SHUT_WR)
        assert rest(plain) == body
        assert stream.recv_multipart() == [peer, b""], "it has gone when all of that has left"


# ---------------------------------------------------------------------- the side that connects


def test_a_stream_speaks_with_a_plain_server(twin):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = twin("STREAM", connect=f"tcp://127.0.0.1:{server.getsockname()[1]}", recv_timeout=BOUND, **HASTE)
        plain, _ = server.accept()
        with plain:
            peer = came(client)
            client.send_multipart([peer, b"question"])
            assert plain.recv(100) == b"question"
            plain.sendall(b"answer")
            assert client.recv_multipart() == [peer, b"answer"]
        assert client.recv_multipart() == [peer, b""]
        again, _ = server.accept()
        with again:
            assert came(client) != peer, "an id names a connection"


def test_a_peer_that_the_program_closes_is_not_dialled_again(twin):
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        client = twin("STREAM", connect=endpoint, recv_timeout=BOUND, **HASTE)
        plain, _ = server.accept()
        client.send_multipart([came(client), b""])
        with plain:
            assert rest(plain) == b""
        until(lambda: not client.peers)
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
        server.settimeout(BOUND)
        client.connect(endpoint)  # the program may
        plain, _ = server.accept()
        plain.close()
        came(client)


def test_a_server_that_is_not_there_is_dialled_until_it_is(twin, free_port):
    client = twin("STREAM", connect=f"tcp://127.0.0.1:{free_port}", recv_timeout=BOUND, **HASTE)
    monitor = client.monitor()
    while twin.event(monitor).kind is not omq.EventKind.CONNECT_FAILED:
        pass
    assert not client.poll(0)
    with pytest.raises(omq.UnroutableError):
        client.send_multipart([b"\0abcd", b"x"])
    with socket.create_server(("127.0.0.1", free_port)) as server:
        plain, _ = server.accept()
        with plain:
            client.send_multipart([came(client), b"here"])
            assert plain.recv(100) == b"here"


def test_disconnect_ends_the_connection(twin):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = twin("STREAM", recv_timeout=BOUND)
        endpoint = client.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        plain, _ = server.accept()
        with plain:
            peer = came(client)
            client.send_multipart([peer, b"goodbye"])
            client.disconnect(endpoint)
            assert rest(plain) == b"goodbye"
            until(lambda: not client._engine._sessions)
            assert not client.poll(0), "the end of what the program has closed is not reported"


def test_a_connection_that_is_lost_for_good_gives_a_message(twin):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = twin("STREAM", recv_timeout=BOUND, reconnect_interval=None)
        client.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        plain, _ = server.accept()
        peer = came(client)
        plain.close()
        assert client.recv_multipart() == [peer, b""]


def test_many_short_connections_leave_nothing_behind(twin):
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        client = twin("STREAM", recv_timeout=BOUND)
        for _ in range(20):
            client.connect(endpoint)
            plain, _ = server.accept()
            with plain:
                client.send_multipart([came(client), b""])
                assert rest(plain) == b""
        until(lambda: not client.peers)
        dialers = getattr(client, "_socket", client)._engine.endpoints.open_dialers()
        assert dialers == []


# ---------------------------------------------------------------------- flow


def test_a_peer_that_sends_without_end_is_held_back(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_hwm=2, recv_buffer=65536, recv_timeout=BOUND)
    with dial(stream, SO_SNDBUF=65536) as flood, dial(stream) as quiet:
        ids = {came(stream), came(stream)}
        flood.setblocking(False)
        sent, still = 0, 0
        while still < 200:  # a fifth of a second without room
            try:
                sent += flood.send(bytes(65536))
                still = 0
            except BlockingIOError:
                still += 1
                time.sleep(0.001)
            assert sent < 8_000_000, "nothing holds it back"
        quiet.sendall(b"quiet")
        before = 0
        while (message := stream.recv_multipart())[1] != b"quiet":
            assert message[0] in ids
            before += 1
        assert before < 32, "another peer's turn comes soon"


@contextmanager
def flood(stream: Any, peers: int) -> Iterator[None]:
    """Has peers send without end, each in a thread."""
    plains = [dial(stream) for _ in range(peers)]
    over = threading.Event()

    def run(plain: socket.socket) -> None:
        with suppress(OSError):
            while not over.is_set():
                plain.sendall(bytes(65536))

    threads = [threading.Thread(target=run, args=(plain,), daemon=True) for plain in plains]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for plain in plains:
            plain.shutdown(socket.SHUT_RDWR)
        for thread, plain in zip(threads, plains, strict=True):
            thread.join(BOUND)
            plain.close()


def one_by_one(stream: Any) -> list[Any]:
    return [stream.recv_multipart()]


def many(stream: Any) -> list[Any]:
    return list(stream.recv_many())


def polled(stream: Any) -> list[Any]:
    assert stream.poll(BOUND)
    return [stream.recv_multipart(timeout=0)]


@pytest.mark.parametrize("take", [one_by_one, many, polled], ids=lambda take: take.__name__)
@pytest.mark.parametrize("hwm", [2, 1000])
def test_a_quiet_peer_is_served_among_busy_ones(twin, take, hwm):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_hwm=hwm, recv_timeout=BOUND, linger=0.0)
    with dial(stream) as quiet:
        name = came(stream)
        with flood(stream, 2):
            for _ in range(100):
                take(stream)  # they are at it
            for number in range(5):
                quiet.sendall(b"%d" % number)
                before = 0
                while True:
                    batch = take(stream)
                    mine = [at for at, one in enumerate(batch) if one[0] == name]
                    before += mine[0] if mine else len(batch)
                    if mine:
                        assert batch[mine[0]][1] == b"%d" % number
                        break
                # A turn has 512 KiB at most, which is 16 reads, and some are on their way.
                assert before < 200


def test_a_peer_that_reads_nothing_holds_up_no_other(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", send_hwm=4, send_buffer=65536, recv_timeout=BOUND)
    with dial(stream, SO_RCVBUF=4096) as slow:
        stuck = came(stream)
        accepted = fill(stream, 100, stuck, body=bytes(100_000))
        assert 4 <= accepted < 100
        with dial(stream) as other:
            stream.send_multipart([came(stream), b"at once"], timeout=BOUND)
            assert other.recv(100) == b"at once"
        assert slow.recv(1) == b"\0"
        left = accepted * 100_000 - 1
        while left:
            left -= len(slow.recv(min(left, 65536)))
        stream.send_multipart([stuck, b"again"], timeout=BOUND)
        assert slow.recv(100) == b"again"


def test_a_call_that_waits_for_a_peer_raises_when_the_peer_goes(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", send_hwm=1, recv_timeout=BOUND)
    with dial(stream, SO_RCVBUF=4096) as slow:
        peer = came(stream)
        assert fill(stream, 100, peer, body=bytes(1_000_000)) < 100
        call = twin.spawn(stream, "send_multipart", [peer, b"late"], timeout=BOUND)
        assert not call.done(0.05)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        slow.close()
        with pytest.raises(omq.UnroutableError):
            call.result()


def test_closing_waits_for_what_was_accepted(twin):
    body = pattern(3_000_000)
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    with dial(stream, SO_RCVBUF=4096) as plain:
        stream.send_multipart([came(stream), body])
        closing = twin.spawn(stream, "close", BOUND)
        assert rest(plain) == body
        closing.result()


def test_closing_waits_for_what_was_accepted_for_a_peer_that_is_closed(twin):
    body = pattern(3_000_000)
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    with dial(stream, SO_RCVBUF=4096) as plain:
        peer = came(stream)
        stream.send_multipart([peer, body])
        stream.send_multipart([peer, b""])
        closing = twin.spawn(stream, "close", BOUND)
        assert rest(plain) == body
        closing.result()


@pytest.mark.slow
def test_a_thousand_peers_come_at_once(twin):
    stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
    with ExitStack() as open_ones:
        plains = [open_ones.enter_context(dial(stream)) for _ in range(1000)]
        for number, plain in enumerate(plains):
            plain.sendall(b"%d" % number)
        seen: Counter[bytes] = Counter()
        sent = {}
        while len(sent) < 1000:
            peer, body = stream.recv_multipart()
            seen[peer] += 1
            if body:
                sent[body] = peer
        assert len(seen) == 1000
        assert set(seen.values()) == {2}, "of each: that it has come, and its bytes"
        for body, peer in sent.items():
            stream.send_multipart([peer, body])
        assert all(plain.recv(100) == b"%d" % number for number, plain in enumerate(plains))
    gone = {stream.recv_multipart()[0] for _ in range(1000)}
    assert gone == set(seen)


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("call", ["bind", "connect"])
def test_inproc_is_refused(twin, inproc, call):
    stream = twin("STREAM")
    with pytest.raises(omq.EndpointError, match=f"{call}: '{inproc}' does not fit a STREAM socket.*tcp, ipc"):
        getattr(stream, call)(inproc)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("identity", b"me"),
        ("metadata", {"X-a": "b"}),
        ("security", omq.PlainClient("a", "b")),
        ("handshake_timeout", 1.0),
        ("max_handshakes", 1),
        ("heartbeat_interval", 1.0),
        ("heartbeat_timeout", 1.0),
        ("heartbeat_ttl", 1.0),
        ("max_message_size", 1),
        ("max_parts", 1),
        ("zap_domain", "d"),
        ("zap_enforce_domain", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_belongs_to_zmtp_is_refused(twin, name, value):
    shown = "<PlainClient>" if name == "security" else re.escape(repr(value))
    with pytest.raises(omq.OptionError, match=f"option {name}={shown} does not fit a STREAM socket: it is for ZMTP"):
        twin("STREAM", **{name: value})
    if call := next(iter(sorted(omq.Options.endpoint_calls(name))), None):
        with pytest.raises(omq.OptionError, match=f"option {name}={shown} does not fit a STREAM socket"):
            getattr(twin("STREAM"), call)("tcp://127.0.0.1:1", **{name: value})


@pytest.mark.parametrize("option", ["router_mandatory", "router_notify", "probe_router", "conflate", "hello_message"])
def test_what_belongs_to_other_types_is_refused(twin, option):
    with pytest.raises(omq.OptionError, match=f"{option}.*STREAM"):
        twin("STREAM", **{option: True})


# ---------------------------------------------------------------------- programs that know nothing of it


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nConnection: close\r\n\r\n" + pattern(300_000)


def test_a_client_of_http_is_answered(twin, stream):
    asked: list[bytes] = []

    def serve() -> None:
        requests: dict[bytes, bytes] = {}
        while len(asked) < 2:
            peer, body = stream.recv_multipart()
            if not body:
                requests[peer] = b""  # it has come, or gone
            requests[peer] += body
            if requests[peer].endswith(b"\r\n\r\n"):
                asked.append(requests[peer])
                stream.send_multipart([peer, ANSWER])
                with suppress(omq.UnroutableError):  # it may be quicker: it knows how long the answer is
                    stream.send_multipart([peer, b""])

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    for path in ("/one", "/two"):
        connection = http.client.HTTPConnection(*address(stream.endpoints[0]), timeout=BOUND)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, pattern(300_000))
        connection.close()
    server.join(BOUND)
    assert [request.split(b" ")[1] for request in asked] == [b"/one", b"/two"]


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pattern(300_000))

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_of_http_is_asked(twin):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = twin("STREAM", connect=f"tcp://127.0.0.1:{server.server_port}", recv_timeout=BOUND)
        peer = came(client)
        client.send_multipart([peer, b"GET /%s HTTP/1.0\r\n\r\n" % (b"x" * 5000)])
        answer = b""
        while body := client.recv_multipart()[1]:
            answer += body
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n" + pattern(300_000))
        server.shutdown()


# ---------------------------------------------------------------------- libzmq


def exchange(ours: Any, theirs: Any) -> None:
    """Has two STREAMs speak both ways, and ours close the connection."""
    to_them, to_us = came(ours), theirs.recv_multipart()[0]
    body = pattern(500_000)
    ours.send_multipart([to_them, body])
    found = b""
    while len(found) < len(body):
        peer, more = theirs.recv_multipart()
        assert peer == to_us
        found += more
    assert found == body
    theirs.send_multipart([to_us, body])
    assert read(ours, len(body)) == body
    ours.send_multipart([to_them, b""])
    assert theirs.recv_multipart() == [to_us, b""]


def test_a_stream_of_libzmq_connects(stream):
    with libzmq() as theirs:
        theirs.connect(stream.endpoints[0])
        exchange(stream, theirs)


def test_a_stream_of_libzmq_is_connected_to(twin):
    with libzmq() as theirs:
        port = theirs.bind_to_random_port("tcp://127.0.0.1")
        exchange(twin("STREAM", connect=f"tcp://127.0.0.1:{port}", recv_timeout=BOUND), theirs)


def test_a_stream_of_libzmq_closes_the_connection(stream):
    with libzmq() as theirs:
        theirs.connect(stream.endpoints[0])
        to_us, to_them = theirs.recv_multipart()[0], came(stream)
        theirs.send_multipart([to_us, b"last"])
        assert stream.recv_multipart() == [to_them, b"last"]
        theirs.send_multipart([to_us, b""])
        # libzmq hangs up when its program next calls the socket.
        until(lambda: theirs.getsockopt(zmq.EVENTS) >= 0 and stream.poll(0))
        assert stream.recv_multipart() == [to_them, b""]


def handshake(ours: Any, peer: bytes) -> bytes:
    """Speaks ZMTP by hand with a DEALER; returns what has come behind its READY."""
    ours.send_multipart([peer, raw_zmtp.greeting() + raw_zmtp.ready("ROUTER")])
    found = b""
    while b"READY" not in found or len(found) < 64 + 2 + found[65]:
        found += ours.recv_multipart()[1]
    assert found[:1] == b"\xff"
    assert b"DEALER" in found
    return found[64 + 2 + found[65] :]


@pytest.mark.parametrize("connects", ["libzmq", "omq"])
def test_zmtp_is_spoken_with_libzmq_by_hand(twin, connects):
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, int(BOUND * 1000))
    dealer.setsockopt(zmq.LINGER, 0)
    try:
        if connects == "libzmq":
            stream = twin("STREAM", bind="tcp://127.0.0.1:*", recv_timeout=BOUND)
            dealer.connect(stream.endpoints[0])
        else:
            port = dealer.bind_to_random_port("tcp://127.0.0.1")
            stream = twin("STREAM", connect=f"tcp://127.0.0.1:{port}", recv_timeout=BOUND)
        peer = came(stream)
        received = handshake(stream, peer)
        stream.send_multipart([peer, raw_zmtp.frame(b"by hand")])
        assert dealer.recv_multipart() == [b"by hand"]
        dealer.send_multipart([b"a", b"b"])
        wanted = raw_zmtp.frame(b"a", raw_zmtp.MORE) + raw_zmtp.frame(b"b")
        while len(received) < len(wanted):
            received += stream.recv_multipart()[1]
        assert received == wanted
    finally:
        dealer.close()
        context.term()


def test_zmtp_is_spoken_with_omq_by_hand(twin, stream):
    dealer = twin("DEALER", connect=stream.endpoints[0], recv_timeout=BOUND)
    peer = came(stream)
    assert handshake(stream, peer) == b""
    stream.send_multipart([peer, raw_zmtp.frame(b"by hand")])
    assert dealer.recv() == b"by hand"
    stream.send_multipart([peer, b"\x7f not ZMTP"])
    assert stream.recv_multipart() == [peer, b""], "the DEALER has hung up"


def test_disconnect_passes_over_what_has_ended_by_itself(twin):
    """A connection that is lost for good does not stand for one to the same endpoint that lives."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        stream = twin("STREAM", recv_timeout=BOUND, reconnect_interval=None)
        stream.connect(place)
        living, _ = server.accept()
        stream.recv_multipart()
        stream.connect(place)
        lost, _ = server.accept()
        peer, _ = stream.recv_multipart()
        lost.close()
        assert stream.recv_multipart() == [peer, b""]
        dialers = stream._engine.endpoints.dialers[place]
        until(lambda: dialers[-1].state is DialerState.CLOSED)
        stream.disconnect(place)
        with living:
            living.settimeout(BOUND)
            assert living.recv(1) == b""

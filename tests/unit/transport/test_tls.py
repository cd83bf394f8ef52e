"""TlsRelay by itself: what the engine writes and reads at its end of the pair, and what the network sees."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omq.errors import HandshakeError
from omq.transport.tls import TlsRelay, why_unfit
from tests.support.waits import BOUND, until
from tests.support.websocket_peer import contexts, make_certificate, read


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


class Pair:
    """A relay as a server, and the network's other end."""

    def __init__(self, certificate: Path) -> None:
        self.server, self.client = contexts(certificate)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.other = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
        self.other.settimeout(BOUND)
        self.relay = TlsRelay(accepted.detach(), self.server, None)
        self.engine = socket.socket(fileno=self.relay.fd)
        self.engine.setblocking(True)
        self.engine.settimeout(BOUND)

    def open(self) -> ssl.SSLSocket:
        """The other end with TLS."""
        found = self.client.wrap_socket(self.other, server_hostname="127.0.0.1")
        self.other = found
        return found

    def close(self) -> None:
        self.engine.close()
        self.other.close()
        until(lambda: self.relay.is_over)


@pytest.fixture
def pair(certificate: Path) -> Iterator[Pair]:
    made = Pair(certificate)
    try:
        yield made
    finally:
        made.close()


def test_bytes_pass_both_ways(pair: Pair) -> None:
    other = pair.open()
    body = os.urandom(3_000_000)
    for sends, takes in ((pair.engine, other), (other, pair.engine)):
        thread = threading.Thread(target=sends.sendall, args=(body,))
        thread.start()
        assert read(takes, len(body)) == body
        thread.join(BOUND)


def test_the_engines_half_close_passes_on_and_the_other_side_goes_on(pair: Pair) -> None:
    other = pair.open()
    pair.engine.sendall(b"last")
    pair.engine.shutdown(socket.SHUT_WR)
    assert read(other, 4) == b"last"
    assert other.recv(1) == b"", "close_notify, and no error"
    until(lambda: pair.relay.delivered)
    other.sendall(b"still here")
    assert read(pair.engine, 10) == b"still here"


def test_the_other_sides_end_passes_on_behind_its_bytes(pair: Pair) -> None:
    other = pair.open()
    other.sendall(b"last")
    socket.socket.shutdown(other, socket.SHUT_WR)
    assert read(pair.engine, 4) == b"last"
    assert pair.engine.recv(1) == b""
    pair.engine.sendall(b"answer")
    assert read(other, 6) == b"answer"


def test_what_was_written_before_the_engine_closes_arrives(pair: Pair) -> None:
    other = pair.open()
    body = os.urandom(400_000)
    pair.engine.sendall(body)
    pair.engine.close()
    assert not pair.relay.delivered
    assert read(other, len(body)) == body
    until(lambda: pair.relay.is_over)
    assert pair.relay.delivered


def test_a_reader_that_stops_holds_the_sender_back(pair: Pair) -> None:
    other = pair.open()
    other.settimeout(0.3)
    sent = 0
    try:
        while sent < 200 << 20:
            sent += other.send(bytes(1 << 16))
    except TimeoutError:
        pass
    assert sent < 64 << 20, "what the kernels and the relay hold"
    other.settimeout(BOUND)


def test_a_reset_ends_the_engines_side(pair: Pair) -> None:
    other = pair.open()
    other.sendall(b"x")
    assert read(pair.engine, 1) == b"x"
    socket.socket.setsockopt(other, socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    assert pair.engine.recv(1) == b""
    assert isinstance(pair.relay.error, ConnectionResetError)
    assert pair.relay.delivered, "nothing more can leave"


def test_what_came_before_a_broken_record_is_read(pair: Pair) -> None:
    other = pair.open()
    body = os.urandom(1_300_000)  # more than the pair holds
    other.sendall(body)
    socket.socket.send(other, b"\x17\x03\x03\0\x20" + bytes(32))  # behind TLS's back
    until(lambda: pair.relay.error is not None)
    assert read(pair.engine, len(body)) == body
    assert pair.engine.recv(1) == b""
    assert isinstance(pair.relay.error, ssl.SSLError)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"], ids=["plain", "half"])
def test_a_handshake_that_fails_reports_why(pair: Pair, sent: bytes) -> None:
    pair.other.sendall(sent)
    pair.other.shutdown(socket.SHUT_WR)
    assert pair.engine.recv(1) == b""
    until(lambda: pair.relay.is_over)
    assert isinstance(pair.relay.error, HandshakeError)
    assert "the TLS handshake has failed" in str(pair.relay.error)


def test_an_engine_that_leaves_in_the_handshake_ends_the_connection(pair: Pair) -> None:
    pair.engine.close()
    assert pair.other.recv(1) == b""
    until(lambda: pair.relay.is_over)


def test_an_idle_relay_uses_no_time(pair: Pair) -> None:
    other = pair.open()
    other.sendall(b"x")
    read(pair.engine, 1)
    pair.engine.shutdown(socket.SHUT_WR)
    assert other.recv(1) == b""
    before = os.times()
    threading.Event().wait(0.5)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.2


def test_a_relay_whose_peer_does_not_read_uses_no_time_for_an_engine_that_has_left(pair: Pair) -> None:
    pair.open()
    pair.engine.settimeout(0.3)
    try:
        while True:
            pair.engine.send(bytes(1 << 16))
    except TimeoutError:
        pass
    pair.engine.close()
    before = os.times()
    threading.Event().wait(0.5)
    after = os.times()
    assert not pair.relay.is_over
    assert after.user + after.system - before.user - before.system < 0.2


def test_an_end_that_is_known_is_not_watched_for_nothing(pair: Pair) -> None:
    """The engine's end is not read while the network takes nothing: epoll would report its end again and again."""
    pair.open()
    relay = pair.relay
    until(lambda: relay.interest()[relay.local_fd] == 1)
    relay._to_net, relay._engine_closed = bytes(1 << 20), True
    try:
        assert relay.interest()[relay.local_fd] is None
    finally:
        relay._to_net, relay._engine_closed = b"", False


def test_a_forked_child_leaves_the_parents_connections_alone(pair: Pair) -> None:
    other = pair.open()
    child = os.fork()
    if child == 0:
        os._exit(0 if pair.relay.is_over else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.sendall(b"on")
    assert read(pair.engine, 2) == b"on"
    pair.engine.sendall(b"and on")
    assert read(other, 6) == b"and on"


def test_a_context_of_the_wrong_side_is_named(certificate: Path) -> None:
    server, client = contexts(certificate)
    assert "PROTOCOL_TLS_CLIENT" in why_unfit(client, as_server=True)
    assert "PROTOCOL_TLS_SERVER" in why_unfit(server, as_server=False)
    assert "certificate" in why_unfit(None, as_server=True)
    assert (
        why_unfit(server, as_server=True)
        == why_unfit(client, as_server=False)
        == why_unfit(None, as_server=False)
        == ""
    )

"""A connection with TLS: what was written on either side outlives the end of the other."""

from __future__ import annotations

import errno
import gc
import os
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from omq.transport import tls
from omq.transport.tls import TlsRelay
from tests.support.waits import BOUND, until
from tests.support.websocket_peer import contexts, make_certificate


def test_what_was_written_leaves_though_something_is_unread(tmp_path: Path) -> None:
    server, client = contexts(make_certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        raw = socket.create_connection(listening.getsockname(), BOUND)
        relay = TlsRelay(listening.accept()[0].detach(), server, None)
    with client.wrap_socket(raw, server_hostname="127.0.0.1") as peer:
        peer.sendall(b"never read")
        written = 0

        def is_full() -> bool:
            nonlocal written
            try:
                while True:
                    written += os.write(relay.fd, bytes(50_000))
            except BlockingIOError:
                time.sleep(0.1)  # the thread may make room
            return written > 1_000_000

        until(is_full)
        os.close(relay.fd)
        found = 0
        while data := peer.recv(65536):
            found += len(data)
            time.sleep(0.001)  # slow: the thread finds the end while much waits
    assert found == written


def test_what_is_written_waits_for_another_handshake(tmp_path: Path, free_port: int) -> None:
    """RFC 5246, 7.4.1.1: a server asks for one while the client sends."""
    certificate = make_certificate(tmp_path)
    _, client = contexts(certificate)
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{free_port}", "-tls1_2"]
    server = subprocess.Popen(
        [*command, "-nbio", "-cert", certificate, "-key", certificate],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        raw: list[socket.socket] = []

        def connects() -> bool:
            try:
                raw.append(socket.create_connection(("127.0.0.1", free_port), BOUND))
            except ConnectionRefusedError:
                return False
            return True

        until(connects)
        relay = TlsRelay(raw[0].detach(), client, "127.0.0.1")
        lines = [b"line %d" % number for number in range(400)]
        for number, line in enumerate(lines):
            os.write(relay.fd, line + b"\n")
            if number % 20 == 10:
                server.stdin.write(b"r\n")  # renegotiate
                server.stdin.flush()
            time.sleep(0.001)
        os.set_blocking(server.stdout.fileno(), False)
        found = b""

        def arrives() -> bool:
            nonlocal found
            found += server.stdout.read() or b""
            return lines[-1] + b"\n" in found

        until(arrives)
        assert [line for line in found.split(b"\n") if line.startswith(b"line ")] == lines
        assert relay.error is None
        os.close(relay.fd)
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


def test_a_thread_that_could_not_start_starts_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The thread needs two descriptors, of which there may be none left."""
    server, client = contexts(make_certificate(tmp_path))
    relays = tls._Relays()
    monkeypatch.setattr(tls, "_relays", relays)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        raw = socket.create_connection(listening.getsockname(), BOUND)
        accepted = listening.accept()[0]

    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(tls.select, "epoll", fail)
        with pytest.raises(OSError, match="too many open files"):
            TlsRelay(accepted.fileno(), server, None)
    assert len(os.listdir("/proc/self/fd")) == before
    relay = TlsRelay(accepted.detach(), server, None)
    with closing(client.wrap_socket(raw, server_hostname="127.0.0.1")) as peer:
        peer.sendall(b"x")
        found: list[bytes] = []

        def arrives() -> bool:
            try:
                found.append(os.read(relay.fd, 10))
            except BlockingIOError:
                return False
            return True

        until(arrives)
        assert found == [b"x"]
        os.close(relay.fd)


def test_the_thread_leaves_no_socket_to_be_reported_as_unclosed() -> None:
    def sockets() -> int:
        return sum(isinstance(found, socket.socket) for found in gc.get_objects())

    gc.collect()
    relays, before = tls._Relays(), sockets()
    relays.start()
    assert relays._bell is not None
    assert sockets() == before

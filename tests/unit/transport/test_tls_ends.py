"""A connection with TLS: what was written on either side outlives the end of the other."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from omq.transport.tls import TlsRelay
from tests.system.conformance.websocket_peer import contexts, make_certificate
from tests.waits import BOUND, until


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

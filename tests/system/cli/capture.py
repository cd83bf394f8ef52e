"""Captures of real connections, made by a relay."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

import omq
from tests.system.cli.command_process import BOUND

__all__ = ["CLIENT_PORT", "captured", "push_pull", "wrpcap"]

CLIENT_PORT, SERVER_PORT = 40_000, 5555
MAX_SEGMENT_BYTES = 1400


class Capture:
    """A relay between a client and a server that keeps the segments of a connection.

    Attributes:
        endpoint: The endpoint for the client.
        packets: The packets of the connection.
    """

    def __init__(self, server: str, *, ipv6: bool = False) -> None:
        self._server = int(server.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._network = IPv6(src="::1", dst="::1") if ipv6 else IP(src="127.0.0.1", dst="127.0.0.1")
        self._next = {CLIENT_PORT: 2**32 - 100, SERVER_PORT: 1000}
        self.packets: list[Any] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._server))
        self._keep(CLIENT_PORT, b"", "S")
        self._keep(SERVER_PORT, b"", "SA")
        back = threading.Thread(target=self._copy, args=(server, client, SERVER_PORT), daemon=True)
        back.start()
        self._copy(client, server, CLIENT_PORT)
        back.join()
        client.close()
        server.close()

    def _copy(self, source: socket.socket, target: socket.socket, port: int) -> None:
        try:
            while data := source.recv(65536):
                for at in range(0, len(data), MAX_SEGMENT_BYTES):
                    self._keep(port, data[at : at + MAX_SEGMENT_BYTES], "PA")
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _keep(self, port: int, data: bytes, flags: str) -> None:
        with self._lock:
            target = SERVER_PORT if port == CLIENT_PORT else CLIENT_PORT
            segment = TCP(sport=port, dport=target, seq=self._next[port], flags=flags) / data
            packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / self._network / segment
            packet.time = 1_700_000_000 + len(self.packets) / 1000
            self.packets.append(packet)
            self._next[port] = (self._next[port] + len(data) + ("S" in flags)) % 2**32

    def end(self) -> list[Any]:
        """Waits until the connection has ended, and returns its packets."""
        self._thread.join(BOUND)
        self._listener.close()
        return self.packets


@contextmanager
def captured(server: str, **options: Any) -> Iterator[Capture]:
    capture = Capture(server, **options)
    yield capture
    capture.end()


def push_pull(message: list[bytes], **options: Any) -> list[Any]:
    """Returns the packets of a PUSH of omq that sends a message to a PULL of libzmq."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.setsockopt(zmq.RCVTIMEO, 20_000)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        with (
            captured(f"tcp://127.0.0.1:{port}", **options) as capture,
            omq.PUSH(connect=capture.endpoint, reconnect_interval=None) as push,
        ):
            push.send_multipart(message)
            assert pull.recv_multipart() == message
        return capture.packets

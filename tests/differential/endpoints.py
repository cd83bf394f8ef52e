"""The places where the sockets of a program meet, and the number of connections at each."""

from __future__ import annotations

import itertools
import socket
import struct
from collections import Counter

_serial = itertools.count()


class EndpointTable:
    """Endpoints by number. A port is kept for its place, bound and never listening, while any socket listens there."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._kept: dict[int, socket.socket] = {}
        self._run = next(_serial)

    def endpoint(self, place: int) -> str:
        """The endpoint of a place."""
        if self._transport == "inproc":
            return f"inproc://differential-{self._run}-{place}"
        return f"tcp://127.0.0.1:{self._port(place)}"

    def links(self) -> dict[int, int]:
        """Connections of the listener at each place, also of one that has stopped listening; tcp only."""
        if not self._kept:
            return {}
        found = _connections()
        return {place: found[one.getsockname()[1]] for place, one in self._kept.items()}

    def close(self) -> None:
        """Gives the ports back."""
        for one in self._kept.values():
            one.close()

    def _port(self, place: int) -> int:
        if place not in self._kept:
            one = self._kept[place] = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        return int(self._kept[place].getsockname()[1])


# sock_diag(7): the kernel is asked for connections only; /proc/net/tcp takes 40 times as long, with all that once were.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_AND_DUMP = 0x301
_ESTABLISHED = 1
_DONE, _ERROR = 3, 2
_HEADER, _PORT_AT = 16, 20  # octets


def _connections() -> Counter[int]:
    """Returns the number of connections that have each port as their own."""
    found: Counter[int] = Counter()
    wanted = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED) + bytes(48)
    head = struct.pack("=IHHII", _HEADER + len(wanted), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + wanted)
        while True:
            answer = kernel.recv(1 << 16)
            while answer:
                size, kind = struct.unpack_from("=IH", answer)
                assert kind != _ERROR, "the kernel does not list its connections"
                if kind == _DONE:
                    return found
                found[struct.unpack_from("!H", answer, _PORT_AT)[0]] += 1
                answer = answer[(size + 3) & ~3 :]

"""TCP segments of a capture file, and the bytes of a direction in order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omq.errors import OmqError
from omq.serving.extras import missing_extra

SEQUENCE_MODULUS: Final = 1 << 32
SEQUENCE_WINDOW: Final = 1 << 31  # sequence numbers further ahead are behind
SYN: Final = 0x02  # the flag that opens a connection


class CaptureError(OmqError):
    """Raised when a file is not a capture."""


@dataclass(frozen=True)
class Segment:
    """A TCP segment.

    Attributes:
        time: The time of the capture, in seconds since 1970.
        source: The sender, as `host:port`.
        target: The receiver, as `host:port`.
        ports: The ports of both.
        sequence: The number of its first byte.
        starts: Whether it opens the connection (SYN).
        data: Its bytes.
    """

    time: float
    source: str
    target: str
    ports: tuple[int, int]
    sequence: int
    starts: bool
    data: bytes


def segments_of(path: Path) -> Iterator[Segment]:
    """Yields the TCP segments of a pcap or pcapng file.

    Raises:
        CaptureError: It is not such a file.
        ImportError: The package scapy is missing.
    """
    try:
        logging.getLogger("scapy").setLevel(logging.ERROR)  # it warns about networks of this machine
        from scapy.error import Scapy_Exception
        from scapy.layers.inet import TCP
        from scapy.layers.inet6 import IPv6
        from scapy.utils import PcapReader
    except ImportError as missing:
        raise missing_extra("omq sniff", missing, "sniff") from None
    try:
        with PcapReader(str(path)) as packets:
            for packet in packets:
                if TCP in packet:
                    yield _segment(packet, packet[TCP], isinstance(packet[TCP].underlayer, IPv6))
    except Scapy_Exception as fault:
        raise CaptureError(f"{path}: is not a pcap or pcapng file: {fault}") from None


def _segment(packet: Any, tcp: Any, is_ipv6: bool) -> Segment:
    network = tcp.underlayer
    source, target = (f"[{host}]" if is_ipv6 else host for host in (network.src, network.dst))
    data = bytes(tcp.payload)
    padding = tcp.payload.getlayer("Padding")
    if padding is not None:  # of a short Ethernet frame
        data = data[: len(data) - len(padding.load)]
    return Segment(
        time=float(packet.time),
        source=f"{source}:{tcp.sport}",
        target=f"{target}:{tcp.dport}",
        ports=(tcp.sport, tcp.dport),
        sequence=tcp.seq,
        starts=bool(int(tcp.flags) & SYN),
        data=data,
    )


class StreamAssembler:
    """Puts the segments of one direction into order.

    Attributes:
        from_start: Whether the capture has the start of the connection.
    """

    def __init__(self) -> None:
        self.from_start = False
        self._next: int | None = None
        self._waiting: dict[int, bytes] = {}  # segments after a gap, by their sequence numbers

    @property
    def waiting(self) -> int:
        """Returns the bytes after a gap in the capture."""
        return sum(map(len, self._waiting.values()))

    def add(self, segment: Segment) -> bytes:
        """Returns the bytes that this segment makes available, in order."""
        sequence = segment.sequence
        if segment.starts:
            self.from_start = True
            self._next = sequence = (sequence + 1) % SEQUENCE_MODULUS
        if not segment.data:
            return b""
        if self._next is None:
            self._next = sequence
        waiting = self._waiting.get(sequence, b"")
        self._waiting[sequence] = max(waiting, segment.data, key=len)
        found = []
        while (piece := self._take()) is not None:
            found.append(piece)
        return b"".join(found)

    def _take(self) -> bytes | None:
        """Takes the waiting bytes that come next, without those that were taken before."""
        assert self._next is not None
        for sequence, data in self._waiting.items():
            overlap = (self._next - sequence) % SEQUENCE_MODULUS
            if overlap < SEQUENCE_WINDOW:
                del self._waiting[sequence]
                fresh = data[overlap:]
                self._next = (self._next + len(fresh)) % SEQUENCE_MODULUS
                return fresh
        return None

"""Invented wires, and sketches of two that exist, for the seam between a connection and its wire."""

from __future__ import annotations

import struct

from omq._core.wire.framing import encode_frame
from omq._core.wire.py_codec import PyCodec
from omq.errors import LocalProtocolError, RemoteProtocolError

MORE, COMMAND, OWN = 1, 4, 8


class Xored(PyCodec):
    """Five octets of header, the payload's octets XORed, and two octets of sum behind it.

    Args:
        left: Frames that may be sent.
    """

    KEY = 0x5A
    HEAD = 5

    def __init__(self, left: int = 1 << 30) -> None:
        super().__init__(overhead=self.HEAD + 2, growth=1 << 16)
        self.left = left
        self._flags = 0  # of the large frame that is under way

    def encode_frame(self, flags: int, payload: bytes) -> bytes:
        if self.left == 0:
            raise LocalProtocolError("no frames are left")
        self.left -= 1
        return struct.pack(">IB", len(payload), flags) + self._body(payload) + self._sum(payload)

    def measure_frame(self, arrived: bytes) -> tuple[int, int, int, int | None, bool] | int | None:
        if len(arrived) < self.HEAD:
            return None
        size, self._flags = struct.unpack_from(">IB", arrived)
        # An odd size keeps to itself what kind it is, as a sealed frame does.
        return self.HEAD, size + 2, size, None if size % 2 else self._flags, False

    def decode_frame(self, frame: bytes) -> tuple[int, bytes] | int:
        self._flags = frame[4]
        return self.finish_body(frame[self.HEAD :])

    def finish_body(self, body: bytes) -> tuple[int, bytes] | int:
        payload = self._body(body[:-2])
        return (self._flags, payload) if self._sum(payload) == body[-2:] else -7

    def explain_error(self, found: int) -> Exception | None:
        return RemoteProtocolError(f"a sum that is wrong ({found})")

    def _body(self, payload: bytes) -> bytes:
        return payload.translate(bytes(octet ^ self.KEY for octet in range(256)))

    def _sum(self, payload: bytes) -> bytes:
        return struct.pack(">H", sum(payload) & 0xFFFF)


class Raw(PyCodec):
    """No frames: the octets that are there are a message, and a message is sent as its octets. Commands stay here."""

    def __init__(self) -> None:
        super().__init__(growth=9, borrows=True)

    def encode_frame(self, flags: int, payload: bytes) -> bytes:
        return b"" if flags & COMMAND else payload

    def encode_head(self, flags: int, size: int) -> bytes:
        return b""

    def measure_frame(self, arrived: bytes) -> tuple[int, int, int, int | None, bool] | int | None:
        return (0, len(arrived), len(arrived), 0, True) if arrived else None

    def decode_frame(self, frame: bytes) -> tuple[int, bytes] | int:
        return 0, frame


class Web(PyCodec):
    """Frames of a WebSocket (RFC 6455) around flags and payload, as RFC 45 has them; nothing is fragmented.

    Args:
        as_client: What we send is masked, and what the peer sends is not.
    """

    DATA, CLOSE, PING, PONG = 2, 8, 9, 10

    def __init__(self, *, as_client: bool) -> None:
        # The shortest frame has one octet more in front of a plain header than it needs: it grows by one.
        super().__init__(overhead=15, growth=1 << 15, borrows=not as_client)
        self._as_client = as_client
        self._mask = bytes(4)  # of the frame that is under way, and its flags
        self._flags = 0
        self._asked = b""
        self.answers: list[bytes] = []  # of the peer, to our PINGs

    def encode_frame(self, flags: int, payload: bytes) -> bytes:
        if flags & COMMAND and payload[:1] == b"\0":
            return self._frame(payload[1], payload[2:])
        return self._frame(self.DATA, bytes([flags]) + payload)

    def encode_head(self, flags: int, size: int) -> bytes:
        return self._head(self.DATA, size + 1) + bytes([flags])

    def measure_frame(self, arrived: bytes) -> tuple[int, int, int, int | None, bool] | int | None:
        if len(arrived) < 2:
            return None
        kind, size = arrived[0] & 0xF, arrived[1] & 0x7F
        masked, data = arrived[1] >> 7, kind == self.DATA
        if masked == self._as_client or arrived[0] >> 4 != 8:
            return -3
        long = {126: 2, 127: 8}.get(size, 0)
        head = 2 + long + 4 * masked + data
        if len(arrived) < head:
            return None
        if long:
            size = int.from_bytes(arrived[2 : 2 + long], "big")
        self._mask = arrived[2 + long : 6 + long] if masked else bytes(4)
        self._flags = arrived[head - 1] ^ self._mask[0] if data else COMMAND | OWN
        return head, size - data, size - data, self._flags, not masked

    def decode_frame(self, frame: bytes) -> tuple[int, bytes] | int:
        found = self.measure_frame(frame)
        assert isinstance(found, tuple)
        kind, body = frame[0] & 0xF, frame[found[0] :]
        if kind == self.DATA:
            return self.finish_body(body)
        if kind == self.CLOSE:
            return -1
        if kind == self.PING:
            self._asked = self._masked(body, 0)
        elif kind == self.PONG:
            self.answers.append(self._masked(body, 0))
        return COMMAND | OWN, b""

    def finish_body(self, body: bytes) -> tuple[int, bytes] | int:
        return self._flags, self._masked(body, 1)

    def answer_own(self) -> bytes | None:
        asked, self._asked = self._asked, b""
        return self.word(self.PONG, asked) if asked else None

    def explain_error(self, found: int) -> Exception | None:
        return None if found == -1 else RemoteProtocolError("no frame of a WebSocket")

    @staticmethod
    def word(kind: int, payload: bytes) -> bytes:
        """A frame of the WebSocket itself, as a command that `encode_frame` knows."""
        return encode_frame(bytes([0, kind]) + payload, command=True)

    def _head(self, kind: int, size: int) -> bytes:
        bit = 0x80 if self._as_client else 0
        if size < 126:
            return bytes([0x80 | kind, bit | size])
        if size < 1 << 16:
            return struct.pack(">BBH", 0x80 | kind, bit | 126, size)
        return struct.pack(">BBQ", 0x80 | kind, bit | 127, size)

    def _frame(self, kind: int, body: bytes) -> bytes:
        head = self._head(kind, len(body))
        if not self._as_client:
            return head + body
        self._mask = b"\x12\x34\x56\x78"
        return head + self._mask + self._masked(body, 0)

    def _masked(self, data: bytes, begin: int) -> bytes:
        """The octets with the mask laid over them, of which *begin* have been before."""
        mask = (self._mask * (len(data) // 4 + 2))[begin : begin + len(data)]
        return (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(len(data), "big")

"""Sealed traffic through a bare connection: every size, every limit, and what ends it."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import FrameDecoder, encode_frame
from omq._core.wire.pool import Pool
from omq.zmtp.command import ping

MORE, COMMAND = 1, 2
ROOT = Path(__file__).parents[3]
SIZES = [0, 1, 190, 222, 223, 255, 256, 479, 4096, 4097, 32_735, 32_736, 65_536, 65_537, 131_072, 1_100_000]


OPEN: list[Owner] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes what a test has opened."""
    yield
    for owner in OPEN:
        owner.far.close()
        owner.peer.close()
        owner.poller.close()
    OPEN.clear()


class Owner:
    """The engine's callbacks, and the peer's side of the connection."""

    def __init__(self, *, sent: int = 1, **limits: int) -> None:
        key = Secret()
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(5)
        self.poller = Poller(None)
        self.messages: list[list[bytes]] = []
        self.commands: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.theirs = CurveCipher(key, False, 2, sent)
        ours = CurveCipher(key, True, sent, 2)
        self.peer = Connection(
            self, near.detach(), self.poller, Pool(), None, 0, limits.get("size"), limits.get("parts"), None, ours
        )
        self.peer.start(b"")
        OPEN.append(self)

    def on_command(self, body: bytes) -> None:
        self.commands.append(body)

    def on_message(self, parts: list[bytes]) -> None:
        self.messages.append(parts)

    def on_lost(self, reason: Exception | None) -> None:
        self.lost.append(reason)
        self.peer.close()

    def sealed(self, payload: bytes, flags: int = 0) -> bytes:
        """A frame of the peer."""
        body = self.theirs.seal(payload, flags)
        assert body is not None
        return encode_frame(body)

    def receive(self, data: bytes, piece: int = 50_000) -> None:
        """Bytes arrive."""
        for at in range(0, len(data), piece):
            self.far.sendall(data[at : at + piece])
            self.poller.dispatch()

    def sent_frames(self, count: int) -> list[tuple[int, bytes]]:
        """The next frames that the connection has written, opened."""
        decoder, found = FrameDecoder(), []
        while len(found) < count:
            while (frame := decoder.next_frame()) is not None:
                assert frame[0] == 0, "libzmq sends MESSAGE in a frame of a message"
                opened = self.theirs.open(frame[1])
                assert not isinstance(opened, int)
                found.append(opened)
            if len(found) < count:
                decoder.feed(self.far.recv(1 << 20))
                self.poller.dispatch()
        return found


@pytest.mark.parametrize("piece", [7, 1000, 50_000])
def test_messages_of_every_size_arrive(piece: int) -> None:
    owner = Owner()
    payloads = [bytes([size % 251]) * size for size in SIZES if size * 7 < 500_000 or piece > 7]
    owner.receive(b"".join(owner.sealed(one) for one in payloads), piece)
    assert owner.messages == [[one] for one in payloads]
    assert owner.lost == []


@pytest.mark.parametrize("sizes", [range(330), range(440, 530), range(4060, 4110)], ids=str)
def test_neighbours_of_every_size_leave_each_other_alone(sizes: range) -> None:
    # Short frames are opened with what stands behind them in view, or, where nothing does, by themselves.
    owner = Owner()
    payloads = [bytes([number % 251]) * size for size in sizes for number in range(3)]
    owner.receive(b"".join(owner.sealed(one) for one in payloads))
    assert owner.messages == [[one] for one in payloads]
    alone = [bytes([size % 251]) * size for size in sizes]
    for one in alone:
        owner.receive(owner.sealed(one))
    assert owner.messages[len(payloads) :] == [[one] for one in alone]
    assert owner.lost == []


@pytest.mark.parametrize("size", [0, 10, 128, 600, 4096])
@pytest.mark.parametrize("followers", [0, 3])
def test_a_forged_frame_gives_nothing_and_neither_does_what_follows(size: int, followers: int) -> None:
    owner = Owner()
    good, forged = owner.sealed(b"good"), bytearray(owner.sealed(bytes(size)))
    forged[-1] ^= 1
    owner.receive(good + forged + b"".join(owner.sealed(bytes(size)) for _ in range(followers)))
    assert owner.messages == [[b"good"]]
    (reason,) = owner.lost
    assert "a MESSAGE whose box does not open" in str(reason)


def test_parts_and_commands_between_them() -> None:
    owner = Owner()
    wire = owner.sealed(b"one", MORE) + owner.sealed(b"\4PINGxx", COMMAND) + owner.sealed(bytes(300), MORE)
    wire += owner.sealed(b"\4PING" + bytes(40_000), COMMAND) + owner.sealed(bytes(40_000))
    owner.receive(wire)
    assert owner.messages == [[b"one", bytes(300), bytes(40_000)]]
    assert owner.commands == [b"\4PINGxx", b"\4PING" + bytes(40_000)]


def test_a_command_frame_around_it_is_taken_too() -> None:
    # RFC 26 calls MESSAGE a command; libzmq sends it as a message.
    owner = Owner()
    body = owner.theirs.seal(b"either way")
    assert body is not None
    owner.receive(encode_frame(body, command=True))
    assert owner.messages == [[b"either way"]]


def test_messages_leave_in_every_size() -> None:
    owner = Owner()
    payloads = [bytes([size % 251]) * size for size in SIZES if size < 100_000]
    for one in payloads:
        owner.peer.send_parts([one])
        owner.peer.flush_now()
        assert owner.sent_frames(1) == [(0, one)]


def test_control_frames_are_sealed() -> None:
    owner = Owner()
    owner.peer.control(ping(1, b"ctx") + encode_frame(b"\1topic"))
    assert owner.sent_frames(2) == [(COMMAND, b"\4PING\0\1ctx"), (0, b"\1topic")]


def refused(owner: Owner, data: bytes, match: str) -> None:
    owner.receive(owner.sealed(b"good") + data)
    assert owner.messages == [[b"good"]], "what came before stays"
    assert len(owner.lost) == 1
    assert match in str(owner.lost[0])


@pytest.mark.parametrize("size", [10, 40_000])
def test_a_message_replayed_1189(size: int) -> None:
    owner = Owner()
    first = owner.sealed(bytes(size))
    owner.receive(first)
    owner.receive(first)
    assert owner.messages == [[bytes(size)]]
    assert "replayed or reordered" in str(owner.lost[0])


@pytest.mark.parametrize("size", [0, 10, 40_000, 200_000])
def test_a_message_altered(size: int) -> None:
    owner = Owner()
    owner.receive(owner.sealed(b"good"))
    broken = bytearray(owner.sealed(bytes(size)))
    broken[-1] ^= 1
    owner.receive(bytes(broken))
    assert owner.messages == [[b"good"]]
    assert "does not open" in str(owner.lost[0])


def test_what_is_no_message_command() -> None:
    for data in (
        encode_frame(b"evil"),
        encode_frame(bytes(100)),
        encode_frame(b"\7MESSAGE"),
        encode_frame(b"", more=True),
    ):
        refused(Owner(), data, "not a MESSAGE command")


def test_reserved_flags() -> None:
    for flags in (3, 4, 0x80):
        owner = Owner()
        good = owner.sealed(b"good")
        owner.receive(good + owner.sealed(b"evil", flags))
        assert owner.messages == [[b"good"]]
        assert "reserved flags" in str(owner.lost[0])


@pytest.mark.parametrize("size", [1001, 40_000])
def test_too_large(size: int) -> None:
    owner = Owner(size=1000)
    owner.receive(owner.sealed(bytes(1000)) + owner.sealed(bytes(size)))
    assert owner.messages == [[bytes(1000)]]
    assert "max_message_size=1000" in str(owner.lost[0])


def test_an_announcement_of_more_than_anything_may_have() -> None:
    owner = Owner(size=1000)
    owner.receive(b"\2" + (1 << 40).to_bytes(8, "big"))
    assert "max_message_size=1000" in str(owner.lost[0])


def test_too_many_parts() -> None:
    owner = Owner(parts=2)
    owner.receive(b"".join(owner.sealed(b"", MORE) for _ in range(3)))
    assert "max_parts=2" in str(owner.lost[0])


def test_the_last_nonce_ends_the_connection() -> None:
    owner = Owner(sent=2**64 - 2)
    owner.peer.send_parts([b"last"])
    owner.peer.flush_now()
    assert owner.sent_frames(1) == [(0, b"last")]
    owner.peer.send_parts([b"one too many"])
    owner.peer.flush_now()
    owner.poller.dispatch()
    assert "nonces of this connection are used up" in str(owner.lost[0])
    assert owner.far.recv(10) == b""


class Late(Owner):
    """Its end is for another thread, as that of a blocking socket is, and comes a little later."""

    def end(self, reason: Exception | None) -> None:
        self.lost.append(reason)

    on_lost = end


@pytest.mark.parametrize("size", [40_000, 3_000_000])
def test_nothing_more_arrives_where_memory_was_short(size: int) -> None:
    """Neither what is sealed still, nor what came behind it; at whatever step there is none."""
    pytest.importorskip("_testcapi")
    # In a process without other threads, as those that talk to a Spark: they would meet the shortage instead.
    starve = f"from tests.unit.core.test_sealed import starve; starve({size})"
    done = subprocess.run([sys.executable, "-c", starve], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def starve(size: int) -> None:
    """Has each allocation in turn find no memory while a large message arrives."""
    import _testcapi as testing

    for step in range(40):
        owner = Late()
        wire = owner.sealed(b"before") + owner.sealed(bytes(size)) + owner.sealed(b"behind")
        owner.far.setblocking(False)
        testing.set_nomemory(step, step + 1)
        try:
            owner.poller.dispatch()
            sent = 0
            while sent < len(wire):
                sent += owner.far.send(memoryview(wire)[sent : sent + 50_000])
                owner.poller.dispatch()
        except (MemoryError, BlockingIOError):
            pass  # ours, or the reader has stopped
        finally:
            testing.remove_mem_hooks()
        owner.receive(b"")
        owner.poller.dispatch()
        everything = [[b"before"], [bytes(size)], [b"behind"]]
        assert owner.messages == everything[: len(owner.messages)]


def test_what_is_secret_is_no_business_of_the_collector() -> None:
    """The collector takes from an object what it refers to, and then the octets could not be wiped."""
    secret = Secret()
    assert not gc.is_tracked(secret)
    assert not gc.is_tracked(CurveCipher(secret, True, 0, 0))

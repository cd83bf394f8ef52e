"""Reading ahead of an owner that is busy: bytes and PINGs of which no thread with the GIL takes notice."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.asyncio
from omq._core.link.background import Background
from omq._core.link.connection import Connection
from omq._core.link.poller import Poller
from omq._core.queues.peer import RecvQueue, SendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq._core.wire.pool import Pool
from omq.zmtp.command import ping, pong
from tests.support.raw_zmtp import dialled
from tests.support.waits import until

SILENCE_S = 0.4  # seconds in which a look would have come


class Owner:
    """A connection whose owner reads when the test calls for it, and its peer.

    Args:
        family: Of the two sockets.
        sealed: Whether the traffic is encrypted.
        recv_hwm: Messages.
    """

    def __init__(self, family: socket.AddressFamily, *, sealed: bool = False, recv_hwm: int = 0) -> None:
        near, self.far = pair(family)
        near.setblocking(False)
        self.far.settimeout(10)
        self.background = Background()
        self.poller = Poller(None)
        self.recv_queue, send_queue = RecvQueue(WaitQueue()), SendQueue(WaitQueue())
        self.commands: list[bytes] = []
        self.lost: list[Exception | None] = []
        key = Secret()
        self.theirs = CurveCipher(key, False, 2, 1) if sealed else None
        ours = CurveCipher(key, True, 1, 2) if sealed else None
        self.peer = Connection(
            self, near.detach(), self.poller, Pool(), self.recv_queue, recv_hwm, None, None, None, ours,
            background=self.background,
        )  # fmt: skip
        send_queue.add(self.peer)
        self.peer.start(b"")

    def on_command(self, body: bytes) -> None:
        self.commands.append(body)

    def on_lost(self, reason: Exception | None) -> None:
        self.lost.append(reason)
        self.peer.close()

    def send_frames(self, frames: bytes) -> None:
        """The peer sends frames, sealed if the traffic is."""
        if self.theirs is None:
            self.far.sendall(frames)
            return
        while frames:
            size, flags = frames[1], frames[0]
            body = self.theirs.seal(frames[2 : 2 + size], 2 if flags & 4 else 0)
            assert body is not None
            self.far.sendall(encode_frame(body))
            frames = frames[2 + size :]

    def receive(self, size: int) -> bytes:
        """Returns what the peer gets, in the clear."""
        if self.theirs is not None:
            head = self.far.recv(2, socket.MSG_WAITALL)
            found = self.theirs.open(self.far.recv(head[1], socket.MSG_WAITALL))
            assert isinstance(found, tuple)
            return bytes((4, len(found[1]))) + found[1]
        return self.far.recv(size, socket.MSG_WAITALL)

    def receives_nothing(self) -> bool:
        self.far.settimeout(SILENCE_S)
        try:
            return self.far.recv(1) == b""
        except TimeoutError:
            return True
        finally:
            self.far.settimeout(10)

    def close(self) -> None:
        self.far.close()
        self.peer.close()
        self.poller.close()
        self.background.stop()


def pair(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    return near, far


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["tcp", "ipc"])
def family(request: pytest.FixtureRequest) -> socket.AddressFamily:
    return request.param


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.close()


@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_pings_are_answered_while_no_call_reads(family, owners, sealed):
    owners.append(owner := Owner(family, sealed=sealed))
    for context in (b"", b"one", b"x" * 16):
        owner.send_frames(ping(0, context))
        assert owner.receive(len(pong(context))) == pong(context)
    owner.poller.dispatch()
    assert owner.peer.pings == 3
    assert owner.receives_nothing()


@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_a_ping_behind_messages_is_answered_and_they_stay(family, owners, sealed):
    owners.append(owner := Owner(family, sealed=sealed))
    for _ in range(3):
        owner.send_frames(encode_frame(b"a message") * 5 + ping(0, b"!"))
        assert owner.receive(len(pong(b"!"))) == pong(b"!")
    owner.poller.dispatch()
    assert owner.peer.messages_in == 15
    assert owner.receives_nothing()


@pytest.mark.alone
def test_pings_are_answered_in_their_rhythm_for_as_long_as_no_call_reads(family, owners):
    """Longer than a peer would wait that gives itself three of its intervals."""
    owners.append(owner := Owner(family))
    gap, took = 0.1, []
    for _ in range(12):
        time.sleep(gap)
        begun = time.monotonic()
        owner.send_frames(ping(0, b"now"))
        assert owner.receive(len(pong(b"now"))) == pong(b"now")
        took.append(time.monotonic() - begun)
    assert sorted(took)[-3] < 3 * gap, took  # a busy machine may hold up one or two


def test_what_is_read_before_is_answered_by_who_reads(family, owners):
    owners.append(owner := Owner(family))
    owner.send_frames(ping(0, b"read"))
    owner.poller.dispatch()
    assert owner.receive(len(pong(b"read"))) == pong(b"read")
    assert owner.receives_nothing()


def test_a_ping_after_a_large_frame_is_answered(family, owners):
    """The owner has asked the kernel to report the rest of the frame as a whole, and goes away: a PING is small."""
    owners.append(owner := Owner(family))
    frame = encode_frame(bytes(400_000))
    owner.send_frames(frame[:100_000])
    while owner.peer.bytes_in < 100_000:
        owner.poller.dispatch()
    owner.send_frames(frame[100_000:])
    for _ in range(3):
        owner.send_frames(ping(0, b"!"))
        assert owner.receive(len(pong(b"!"))) == pong(b"!")
    owner.poller.dispatch()
    assert owner.peer.messages_in == 1


@pytest.mark.parametrize("cut", [1, 3, 60])
def test_read_ahead_begins_where_the_next_frame_begins(family, owners, cut):
    """Half of a frame has been read: the bytes of a PING within it are data."""
    owners.append(owner := Owner(family))
    frame = encode_frame(b"head" + ping(0, b"false") * 10)
    owner.send_frames(frame[:cut])
    owner.poller.dispatch()
    owner.send_frames(frame[cut:] + ping(0, b"true"))
    assert owner.receive(len(pong(b"true"))) == pong(b"true")
    owner.poller.dispatch()
    assert owner.peer.messages_in == 1


@pytest.mark.alone  # it closes before anybody looks
def test_a_peer_that_has_closed_is_not_written_to(owners):
    """The answer would be a reset, which destroys what its kernel still holds."""
    owners.append(owner := Owner(socket.AF_INET))
    owner.send_frames(encode_frame(b"last words") + ping(0))
    owner.far.shutdown(socket.SHUT_WR)
    assert owner.receives_nothing()


@pytest.mark.alone  # all is there before anybody looks
def test_a_peer_whose_messages_do_not_fit_any_more_is_not_written_to(owners):
    """The peer may have closed after data that our kernel has no room for."""
    owners.append(owner := Owner(socket.AF_INET))
    owner.far.setblocking(False)
    data = ping(0) + encode_frame(bytes(200)) * 1000
    try:
        while owner.far.send(data) == len(data):
            pass
    except BlockingIOError:
        pass
    owner.far.settimeout(10)
    time.sleep(0.05)  # its kernel goes on to send until ours is full
    while os.read(owner.far.fileno(), 65536) if readable(owner.far) else False:
        pass  # what was answered before
    assert owner.receives_nothing()


def readable(sock: socket.socket) -> bool:
    sock.settimeout(0.1)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(10)


def test_the_end_of_a_connection_ends_it(family, owners):
    owners.append(owner := Owner(family))
    owner.peer.close()
    owner.far.setblocking(False)
    assert owner.far.recv(1) == b""


PUBLIC, SECRET = omq.curve_keypair()
SECURITY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "null": ({}, {}),
    "curve": ({"security": omq.CurveServer(SECRET)}, {"security": omq.CurveClient(PUBLIC)}),
}


@contextlib.contextmanager
def sending(endpoint: str, messages: list[list[bytes]], options: dict[str, Any]) -> Iterator[None]:
    """Another thread sends, from a context of its own."""

    def send() -> None:
        with omq.Context() as context, omq.PUSH(context, connect=endpoint, **options) as push:
            for message in messages:
                push.send_multipart(message)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)


def bytes_read(pull: omq.asyncio.PULL) -> int:
    """Returns the bytes of the only peer that were read: by the owner, at once where it is slow, and ahead of it."""
    return omq.Context.default().background.read_ahead_bytes + pull.peers[0].bytes_in


@pytest.mark.parametrize("security", SECURITY)
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc://{}/s"])
async def test_what_was_read_ahead_comes_in_order_and_whole(endpoint: str, security: str, tmp_path: Path) -> None:
    """Much more than the kernel holds, and than one of the owner's turns takes, in frames of all sizes."""
    chance = random.Random(1)
    sizes = [0, 1, 50, 255, 256, 5_000, 40_000, 600_000]
    messages = [[b"%d" % i, *(bytes(chance.choice(sizes)) for _ in range(chance.choice((1, 1, 3))))] for i in range(80)]
    server, client = SECURITY[security]
    background = omq.Context.default().background
    async with omq.asyncio.PULL(bind=endpoint.format(tmp_path), **server) as pull:
        with sending(pull.endpoints[0], messages, client):
            got = [await pull.recv_multipart(timeout=20)]
            size = sum(map(len, itertools.chain(*messages)))
            until(
                lambda: bytes_read(pull) >= size,
                lambda: (background.read_ahead_bytes, pull.peers[0].bytes_in, size),
                10,
            )
            assert background.read_ahead_bytes > 4_000_000
            while len(got) < len(messages):
                got.append(await pull.recv_multipart(timeout=5))
        assert got == messages
        assert background.read_ahead_bytes == 0


async def test_a_mark_bounds_what_is_read_ahead() -> None:
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*", recv_hwm=10) as pull:
        with sending(pull.endpoints[0], [[bytes(100_000)] for _ in range(200)], {}):
            await pull.recv()
            until(lambda: bytes_read(pull) > 900_000, lambda: bytes_read(pull))
            time.sleep(SILENCE_S)  # noqa: ASYNC251 - the owner is busy
            assert bytes_read(pull) < 1_500_000
            for _ in range(199):
                await pull.recv(timeout=5)


@pytest.mark.parametrize("security", SECURITY)
async def test_a_message_of_many_parts_counts_once(security: str) -> None:
    """Also where the frames are sealed: as many messages are read ahead as the mark has room for."""
    server, client = SECURITY[security]
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*", recv_hwm=100, **server) as pull:
        with sending(pull.endpoints[0], [[bytes(10_000)] * 10 for _ in range(150)], client):
            await pull.recv_multipart()
            until(lambda: bytes_read(pull) > 9_900_000, lambda: bytes_read(pull))
            for _ in range(149):
                await pull.recv_multipart(timeout=5)


async def test_a_frame_that_is_too_large_is_left_to_the_owner() -> None:
    background = omq.Context.default().background
    async with (
        omq.asyncio.PULL(bind="tcp://127.0.0.1:*", max_message_size=1000) as pull,
        dialled(pull.endpoints[0]) as raw,
    ):
        await raw.shake("PUSH")
        await raw.send(encode_frame(b"small"))
        assert await pull.recv(timeout=5) == b"small"
        await raw.send(b"\2" + (1 << 40).to_bytes(8, "big") + bytes(100_000))
        time.sleep(SILENCE_S)  # noqa: ASYNC251 - the owner is busy
        assert background.read_ahead_bytes <= 65536
        with pytest.raises(omq.ReceiveTimeout):
            await pull.recv(timeout=0.2)
        assert not pull.peers
        assert background.read_ahead_bytes == 0

"""Commands to a peer that may have closed, over tcp: they wait while its kernel may have something left for us."""

import asyncio
import socket

import pytest

from omq._core.link.connection import Connection
from omq._core.wire.framing import encode_frame
from tests.support.bare_connection import Driven, Session
from tests.unit.conftest import until

ONE = encode_frame(bytes(1000))


def command(name, data=b""):
    return encode_frame(bytes([len(name)]) + name + data, command=True)


class Watchful(Session):
    """Counts how often it is notified that commands wait; looks when it is asked to."""

    def __init__(self):
        super().__init__()
        self.notified = 0

    def on_restrained(self, _):
        self.notified += 1


class Tcp(Driven):
    """One connection over tcp that reads one message, and then pauses; its kernel takes little."""

    def __enter__(self):
        super().__enter__()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            self.theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.theirs.settimeout(10)
        self.others.append(self.theirs)
        ours.setblocking(False)
        session = Watchful()
        session.peer = self.peer = Connection(session, ours.detach(), self.poller, self.pool, self.recv_queue, 1)
        self.sessions.append(session)
        self.send_queue.add(session.peer)
        session.peer.start(b"")
        return self

    async def flood(self):
        """The peer sends until no kernel takes more; gives the number of whole messages."""
        self.theirs.setblocking(False)
        sent = 0
        silent = 0
        while silent < 5:
            try:
                sent += self.theirs.send((ONE * 100)[sent % len(ONE) :])
                silent = 0
            except BlockingIOError:
                silent += 1
                await asyncio.sleep(0.01)
        assert self.peer.has_unread
        self.cut = ONE[sent % len(ONE) :] if sent % len(ONE) else b""
        return sent // len(ONE)

    def received_now(self):
        """The same, of a peer whose calls wait."""
        self.theirs.setblocking(False)
        try:
            return self.received()
        finally:
            self.theirs.settimeout(10)

    def received(self):
        """Returns the bytes that the peer has received, if any."""
        try:
            return self.theirs.recv(65536)
        except (BlockingIOError, ConnectionResetError):
            return b""


async def test_commands_leave_at_once_while_our_kernel_has_room():
    with Tcp() as core:
        core.peer.control(command(b"SUBSCRIBE", b"a"))
        assert await core.read(core.theirs, 13) == command(b"SUBSCRIBE", b"a")
        assert core.session.notified == 0


async def test_commands_leave_while_the_peer_sends_if_our_kernel_has_room_for_a_moment():
    with Tcp() as core:
        core.peer.pause()
        core.theirs.sendall(ONE)
        core.peer.control(command(b"SUBSCRIBE", b"a"))
        assert core.received_now() == b""
        assert core.session.notified == 1
        core.theirs.sendall(ONE)  # it is still speaking
        await asyncio.sleep(0.01)
        assert core.peer.look_again()
        assert core.received_now() == b""
        assert not core.peer.look_again()
        assert await core.read(core.theirs, 13) == command(b"SUBSCRIBE", b"a")


async def test_commands_wait_until_everything_is_read_and_keep_their_order():
    with Tcp() as core:
        count = await core.flood()
        waiting = [command(b"SUBSCRIBE", b"a"), command(b"CANCEL", b"a"), command(b"SUBSCRIBE", b"b")]
        core.peer.control(command(b"PONG", b"old"))
        for frame in waiting:
            core.peer.control(frame)
        core.peer.control(command(b"PONG", b"new"))
        assert not core.peer.probe(command(b"PING", b"\0\0"))
        for _ in range(count):
            assert core.received() == b""
            await core.recv()
        assert core.session.notified == 1  # it is to look
        assert core.received() == b""
        await until(lambda: not core.peer.look_again())
        await asyncio.sleep(0)
        assert core.received() == command(b"PONG", b"new") + b"".join(waiting)
        # There is room again.
        core.peer.control(command(b"PONG"))
        assert core.received() == command(b"PONG")


async def test_commands_are_dropped_if_the_end_comes_first():
    with Tcp() as core:
        count = await core.flood()
        core.peer.control(command(b"PONG"))
        core.peer.control(command(b"SUBSCRIBE", b"a"))
        core.theirs.close()  # over nothing unread: its kernel goes on sending
        for _ in range(count):
            assert len(await core.recv()) == 1000
        await until(lambda: core.session.lost)
        assert core.session.lost == [None]


async def test_subscriptions_do_not_wait_for_ever_behind_a_stream_that_never_pauses():
    with Tcp() as core:
        await core.flood()
        core.peer.control(command(b"SUBSCRIBE", b"a"))
        rest = core.cut
        taken = 0
        while not (sent_frame := core.received()):
            await core.recv()
            taken += 1
            while True:  # the peer is always ahead
                try:
                    rest = rest[core.theirs.send(rest or ONE) :] if rest else ONE[core.theirs.send(ONE) :]
                except BlockingIOError:
                    break
        assert sent_frame == command(b"SUBSCRIBE", b"a")
        assert 4_000_000 < taken * 1000 < 6_000_000


async def test_what_waits_is_bounded():
    with Tcp() as core:
        await core.flood()
        frame = command(b"SUBSCRIBE", bytes(100_000))
        waiting = 0
        while not core.received():
            core.peer.control(frame)
            waiting += 1
        assert 80 < waiting < 90


@pytest.mark.parametrize("how", ["goodbye", "close"])
async def test_commands_end_with_the_connection(how):
    with Tcp() as core:
        await core.flood()
        core.peer.control(command(b"SUBSCRIBE", b"a"))
        core.peer.half_close() if how == "goodbye" else core.peer.close()
        core.peer.control(command(b"PONG"))
        assert not core.peer.probe(command(b"PING", b"\0\0"))
        assert not core.peer.look_again()
        assert core.received() == b""

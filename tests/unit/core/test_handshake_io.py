"""The system calls of handshakes, without releasing the GIL: the same as Python's own calls, and one epoll set."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator

import pytest

from omq._core.link.handshake_io import HandshakePoller, accept, receive, transmit


class Loop:
    """The watched descriptors, and the exceptions of readers."""

    def __init__(self) -> None:
        self.watched: dict[int, object] = {}
        self.raised: list[Exception] = []

    def poller(self) -> HandshakePoller:
        return HandshakePoller(self.watched.__setitem__, self.watched.pop, self.raised.append)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_an_accepted_descriptor_does_not_block_and_comes_with_the_peers_address(family, host):
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} on this machine")
        listening.listen()
        listening.setblocking(False)
        assert accept(listening.fileno()) is None
        with socket.create_connection(listening.getsockname()[:2]) as client:
            select.select([listening], [], [], 5)
            fd, address = accept(listening.fileno())
            assert address == client.getsockname()[:2]
            assert not os.get_blocking(fd)
            assert not os.get_inheritable(fd)
            os.close(fd)


def test_a_unix_peer_has_no_address(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        client.connect(str(tmp_path / "s"))
        fd, address = accept(listening.fileno())
        assert address is None
        os.close(fd)


def test_what_the_system_refuses_is_its_own_error(pair):
    with pytest.raises(OSError, match="Invalid argument") as caught:
        accept(pair[0].fileno())
    assert caught.value.errno
    for call in (lambda: receive(999999), lambda: transmit(999999, b"x"), lambda: accept(999999)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()


def test_reading_and_writing_take_what_there_is(pair):
    ours, theirs = pair
    assert receive(ours.fileno()) is None
    theirs.send(b"x" * 5000)
    assert receive(ours.fileno()) == b"x" * 4096
    assert receive(ours.fileno()) == b"x" * 904
    assert transmit(ours.fileno(), b"abc") == 3
    assert theirs.recv(10) == b"abc"
    sent = 0
    while (more := transmit(ours.fileno(), bytes(65536))) > 0:
        sent += more
    assert sent > 65536
    theirs.close()
    with pytest.raises(BrokenPipeError):
        transmit(ours.fileno(), b"x")
    with pytest.raises(ConnectionResetError):  # what it had not read is lost
        receive(ours.fileno())
    assert receive(ours.fileno()) == b""


def test_a_reader_is_called_until_it_is_taken_out(loop, pair):
    ours, theirs = pair
    called: list[int] = []
    poller = loop.poller()
    poller.open()
    poller.open()
    assert list(loop.watched) == [poller.fd]
    poller.add(ours.fileno(), lambda: called.append(1))
    poller.serve()
    assert called == []
    theirs.send(b"x")
    poller.serve()
    poller.serve()
    assert called == [1, 1]
    poller.remove(ours.fileno())
    poller.remove(ours.fileno())
    poller.serve()
    assert called == [1, 1]
    poller.close()
    poller.close()
    assert poller.fd == -1
    assert not loop.watched


def test_a_reader_that_raises_keeps_no_other_from_being_served(loop, pair):
    ours, theirs = pair
    poller = loop.poller()
    poller.open()
    called: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    poller.add(ours.fileno(), fail)
    poller.add(theirs.fileno(), lambda: called.append(1))
    ours.send(b"x")
    theirs.send(b"x")
    poller.serve()
    assert called == [1]
    assert [str(error) for error in loop.raised] == ["no"]
    poller.close()


def test_a_reader_that_ends_another_one_is_the_last_of_it(loop, pair):
    ours, theirs = pair
    poller = loop.poller()
    poller.open()
    called: list[str] = []

    def end(other: socket.socket, name: str) -> None:
        called.append(name)
        poller.remove(other.fileno())

    poller.add(ours.fileno(), lambda: end(theirs, "ours"))
    poller.add(theirs.fileno(), lambda: end(ours, "theirs"))
    ours.send(b"x")
    theirs.send(b"x")
    poller.serve()
    assert len(called) == 1
    poller.close()


def test_a_poller_that_is_refused_stays_closed(pair):
    def refuse(fd: int, reader: object) -> None:
        raise OSError("no room")

    poller = HandshakePoller(refuse, print, print)
    with pytest.raises(OSError, match="no room"):
        poller.open()
    assert poller.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        poller.add(pair[0].fileno(), print)

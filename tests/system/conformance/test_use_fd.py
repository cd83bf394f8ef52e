"""`use_fd`: descriptors that the program has opened, which become omq's, or stay the program's where a call raises."""

from __future__ import annotations

import fcntl
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

import omq
import omq.asyncio
from tests.support.waits import BOUND, until
from tests.system.conformance.test_endpoint_options import frames, hung_up, ours, shake


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def listener(family: Any = socket.AF_INET, address: Any = ("127.0.0.1", 0)) -> socket.socket:
    made = socket.socket(family)
    made.bind(address)
    made.listen(5)
    return made


def endpoint_of(sock: socket.socket) -> str:
    return f"tcp://127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(params=["endpoint", "socket"])
def given(request, twin):
    """Makes a PULL that binds or connects with a descriptor, given for the endpoint or for the whole socket."""

    def make(call: str, endpoint: str, fd: int, **options: Any) -> Any:
        whole, part = ({"use_fd": fd}, {}) if request.param == "socket" else ({}, {"use_fd": fd})
        one = twin("PULL", **whole, **options)
        getattr(one, call)(endpoint, **part)
        return one

    return make


@pytest.fixture
def bound(given):
    return partial(given, "bind")


@pytest.mark.parametrize("wildcard", [False, True])
def test_a_descriptor_that_listens_is_bound_and_closed_with_the_socket(twin, bound, wildcard):
    opened = listener()
    endpoint = endpoint_of(opened)
    fd = opened.detach()
    pull = bound("tcp://127.0.0.1:*" if wildcard else endpoint, fd)
    assert pull.endpoints == [endpoint]
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    push = twin("PUSH", connect=endpoint)
    push.send(b"x", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"x"
    assert is_open(fd)
    pull.close()
    until(lambda: not is_open(fd))


def test_a_listening_unix_socket_is_bound_and_its_file_stays(twin, bound, tmp_path):
    path = tmp_path / "s"
    opened = listener(socket.AF_UNIX, str(path))
    fd = opened.detach()
    pull = bound(f"ipc://{path}", fd)
    assert pull.endpoints == [f"ipc://{path}"]
    twin("PUSH", connect=f"ipc://{path}").send(b"x", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"x"
    pull.unbind(f"ipc://{path}")
    until(lambda: not is_open(fd))
    assert path.exists()


def test_an_abstract_unix_socket_and_a_wildcard(twin, bound):
    name = f"omq-test-{os.getpid()}-{os.urandom(4).hex()}"
    fd = listener(socket.AF_UNIX, f"\0{name}").detach()
    pull = bound("ipc://*", fd)
    assert pull.endpoints == [f"ipc://@{name}"]
    twin("PUSH", connect=f"ipc://@{name}").send(b"x", timeout=BOUND)
    assert pull.recv(timeout=BOUND) == b"x"


def test_the_other_options_hold_for_it(twin):
    opened = listener()
    endpoint = endpoint_of(opened)
    pull = twin("PULL")
    pull.bind(endpoint, use_fd=opened.detach(), tos=0x20, send_buffer=70_000, tcp_keepalive=1)
    with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), BOUND) as line:
        shake(line)
        with ours(line) as end:
            assert end.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 140_000
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def unconnected() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


BAD_LISTENERS = {
    "it is not a listening socket; bind needs one": unconnected,
    "AF_UNIX": lambda: listener(socket.AF_UNIX, f"\0omq-{os.urandom(4).hex()}"),
    "SOCK_DGRAM": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "non-socket": lambda: open(os.devnull, "rb"),  # noqa: SIM115
}


@pytest.mark.parametrize("why", BAD_LISTENERS)
def test_a_descriptor_that_does_not_fit_bind_stays_the_programs(twin, bound, why):
    with BAD_LISTENERS[why]() as opened:
        fd = opened.fileno()
        with pytest.raises(
            omq.OptionError, match=f"(?i)option use_fd={fd}: must be the descriptor of a listening socket: .*{why}"
        ):
            bound("tcp://127.0.0.1:*", fd)
        assert is_open(fd)


def test_a_closed_descriptor_is_refused_by_its_number(twin, bound):
    with listener() as opened:
        fd = fcntl.fcntl(opened, fcntl.F_DUPFD, 700)  # a number that nothing else takes soon
    os.close(fd)
    with pytest.raises(omq.OptionError, match=f"option use_fd={fd}: must be .*[bB]ad file descriptor"):
        bound("tcp://127.0.0.1:*", fd)


def test_a_descriptor_of_another_address_is_refused(twin, bound, tmp_path):
    with listener() as opened, listener(socket.AF_UNIX, str(tmp_path / "s")) as other:
        with pytest.raises(omq.OptionError, match=rf"use_fd={opened.fileno()}: listens at {endpoint_of(opened)}, not"):
            bound("tcp://127.0.0.1:9", opened.fileno())
        with pytest.raises(omq.OptionError, match=rf"use_fd={other.fileno()}: listens at ipc://{tmp_path}/s, not"):
            bound(f"ipc://{tmp_path}/other", other.fileno())
        assert is_open(opened.fileno())
        assert is_open(other.fileno())


def test_a_device_that_is_not_there_leaves_the_descriptor_alone(twin):
    with listener() as opened:
        pull = twin("PULL")
        with pytest.raises(omq.BindError):
            pull.bind(endpoint_of(opened), use_fd=opened.fileno(), bind_device="nosuchdevice0")
        assert pull.endpoints == []
        assert is_open(opened.fileno())


def test_one_descriptor_serves_one_endpoint(twin):
    opened = listener()
    pull = twin("PULL", use_fd=opened.fileno())
    pull.bind(endpoint_of(opened))
    fd = opened.detach()
    with pytest.raises(omq.OptionError, match=f"option use_fd={fd} is already used for tcp://.*; open another"):
        pull.bind("tcp://127.0.0.1:*")
    with pytest.raises(omq.OptionError, match=f"option use_fd={fd} is already used"):
        pull.connect("tcp://127.0.0.1:9")
    assert is_open(fd)


def test_the_descriptor_of_the_whole_socket_serves_one_call_also_when_it_is_closed(twin):
    opened = listener()
    push = twin("PUSH", use_fd=socket.create_connection(opened.getsockname()).detach(), reconnect_interval=0.01)
    fd = push.options.use_fd
    push.connect(endpoint_of(opened))
    opened.accept()[0].close()
    opened.settimeout(BOUND)
    again, _ = opened.accept()  # dialled by the socket, whose new descriptor may have that number
    other = socket.create_connection(opened.getsockname())
    if not is_open(fd):
        os.dup2(other.fileno(), fd)
    with pytest.raises(omq.OptionError, match=f"use_fd={fd} of the socket was already used by a call"):
        push.connect("tcp://127.0.0.1:1")
    pull = twin("PULL", use_fd=listener().detach())
    pull.unbind(pull.bind("tcp://127.0.0.1:*"))
    with pytest.raises(omq.OptionError, match="was already used by a call"):
        pull.bind("tcp://127.0.0.1:*")
    for one in (opened, again, other):
        one.close()


def test_inproc_has_no_use_for_it(twin):
    pull = twin("PULL", use_fd=7)
    for call in (pull.bind, pull.connect):
        with pytest.raises(omq.OptionError, match="option use_fd=7 of the socket does not apply to inproc://x"):
            call("inproc://x")


# connect


@pytest.fixture
def dialled(given):
    return partial(given, "connect")


def test_a_descriptor_that_is_connected_is_the_first_connection_and_the_endpoint_is_dialled_after_it(dialled):
    with listener() as server:
        server.settimeout(BOUND)
        line = socket.create_connection(server.getsockname(), BOUND)
        mine, _ = server.accept()
        fd = line.detach()
        pull = dialled(endpoint_of(server), fd, reconnect_interval=0.01)
        with mine:
            mine.settimeout(BOUND)
            shake(mine)
            mine.sendall(frames(b"given"))
            assert pull.recv(timeout=BOUND) == b"given"
        until(lambda: not pull.peers)
        again, _ = server.accept()
        with again:
            again.settimeout(BOUND)
            shake(again)
            again.sendall(frames(b"dialled"))
            assert pull.recv(timeout=BOUND) == b"dialled"


def test_one_end_of_a_pair_of_unix_sockets_is_closed_with_the_socket(dialled):
    theirs, line = socket.socketpair()
    with theirs:
        theirs.settimeout(BOUND)
        fd = line.detach()
        pull = dialled("ipc://@omq-none", fd, reconnect_interval=None)
        shake(theirs)
        theirs.sendall(frames(b"x"))
        assert pull.recv(timeout=BOUND) == b"x"
        pull.close()
        assert hung_up(theirs)


def test_a_socket_that_is_closed_before_its_first_turn_closes_what_it_was_given(twin):
    theirs, line = socket.socketpair()
    with theirs:
        pull = twin("PULL")
        pull.connect("ipc://@omq-none", use_fd=line.detach(), reconnect_interval=None)
        pull.stop()
        assert hung_up(theirs)


def test_a_descriptor_that_does_not_fit_connect_stays_the_programs(twin, dialled):
    theirs, line = socket.socketpair()
    with theirs, line, unconnected() as alone, listener() as server:
        for endpoint, sock, why in (
            ("tcp://127.0.0.1:9", line, "AF_UNIX"),
            ("tcp://127.0.0.1:9", alone, "not connected"),
            ("tcp://127.0.0.1:9", server, "it is a listening socket; connect needs a connected one"),
        ):
            with pytest.raises(omq.OptionError, match=f"(?i)option use_fd={sock.fileno()}: must be .*{why}"):
                dialled(endpoint, sock.fileno())
            assert is_open(sock.fileno())


def test_an_asyncio_socket_that_never_had_a_loop_closes_what_it_was_given() -> None:
    theirs, line = socket.socketpair()
    with theirs:
        pull = omq.asyncio.PULL()
        pull.connect("ipc://@omq-none", use_fd=line.detach())
        pull.stop()
        assert hung_up(theirs)


# libzmq


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_libzmq_does_the_same(twin, kind, tmp_path: Path):
    """The descriptor is bound, is the socket's, and is closed with it; the file of an ipc endpoint stays."""
    found = []
    for library in ("omq", "libzmq"):
        path = tmp_path / library
        opened = listener() if kind == "tcp" else listener(socket.AF_UNIX, str(path))
        endpoint = endpoint_of(opened) if kind == "tcp" else f"ipc://{path}"
        fd = opened.detach()
        push = twin("PUSH")
        if library == "omq":
            pull = twin("PULL")
            names = [pull.bind(endpoint, use_fd=fd)]
            push.connect(endpoint)
            push.send(b"x", timeout=BOUND)
            got = pull.recv(timeout=BOUND)
            pull.close()
        else:
            context = zmq.Context()
            other = context.socket(zmq.PULL)
            other.setsockopt(zmq.USE_FD, fd)
            other.rcvtimeo = int(BOUND * 1000)
            other.bind(endpoint)
            names = [other.getsockopt_string(zmq.LAST_ENDPOINT)]
            push.connect(endpoint)
            push.send(b"x", timeout=BOUND)
            got = other.recv()
            other.close(linger=0)
            context.term()
        until(lambda fd=fd: not is_open(fd))
        push.stop()
        found.append((names == [endpoint], got, path.exists()))
    assert found[0] == found[1]

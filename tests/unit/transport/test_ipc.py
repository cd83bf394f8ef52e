"""Unix domain sockets: who gets a path, who keeps it, and what is left behind."""

import errno
import os
import secrets
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from omq.errors import BindError, ConnectError
from omq.options import Options
from omq.transport import ipc
from omq.transport.ipc import IpcEndpoint


@pytest.fixture
def listen():
    opened = []

    def bound(path, **options):
        sock, resolved, cleanup = ipc.listen(IpcEndpoint(None if path is None else str(path)), Options(**options))
        opened.append((sock, cleanup))
        return sock, resolved, cleanup

    yield bound
    for sock, cleanup in opened:
        cleanup()
        sock.close()


def address_of(path):
    return "\0" + path[1:] if path.startswith("@") else path


def reaches(listener, path):
    """Returns whether a plain socket that connects to the path reaches this listener."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(address_of(str(path)))
        except OSError:
            return False
        token = secrets.token_bytes(8)
        client.sendall(token)
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return False
        with accepted:
            accepted.settimeout(5)
            return accepted.recv(8) == token


def leave_stale(path):
    """Leaves the file of a listener that has gone without removing it."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
        gone.listen()


def test_a_listener_is_reached_at_its_path_and_leaves_nothing(listen, tmp_path):
    path = tmp_path / "socket"
    sock, resolved, cleanup = listen(path)
    assert resolved == f"ipc://{path}"
    assert not sock.getblocking()
    assert reaches(sock, path)
    assert os.listdir(tmp_path) == ["socket"]
    cleanup()
    sock.close()
    assert os.listdir(tmp_path) == []
    cleanup()  # a second time is harmless


@pytest.mark.parametrize("where", ["socket", "s" * 100, None])  # next to its path, in place, in a directory of its own
def test_a_socket_that_cannot_listen_leaves_nothing(listen, tmp_path, monkeypatch, where):
    class Deaf(socket.socket):
        def listen(self, backlog=0):
            raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(ipc.socket, "socket", Deaf)
    monkeypatch.setattr(ipc.tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BindError, match="no buffer space available") as caught:
        listen(where)
    assert caught.value.errno == errno.ENOBUFS
    assert os.listdir(tmp_path) == []


def test_a_relative_path_is_taken_as_it_is(listen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sock, resolved, _ = listen("here")
    assert resolved == "ipc://here"
    assert reaches(sock, tmp_path / "here")


def test_the_file_at_a_relative_path_goes_when_the_process_has_gone_elsewhere(listen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, cleanup = listen("here")
    monkeypatch.chdir("/")
    cleanup()
    assert os.listdir(tmp_path) == []


def test_a_path_in_use_is_a_bind_error_and_stays(listen, tmp_path):
    path = tmp_path / "socket"
    sock, resolved, _ = listen(path)
    with pytest.raises(BindError) as caught:
        listen(path)
    assert caught.value.errno == errno.EADDRINUSE
    assert f"{resolved}: address already in use" in str(caught.value)
    sock.accept()[0].close()  # the question whether anybody listens
    assert reaches(sock, path)
    assert os.listdir(tmp_path) == ["socket"]


def test_a_path_whose_listener_has_no_room_left_is_in_use(listen, tmp_path):
    path = tmp_path / "socket"
    listen(path, backlog=1)
    waiting = []
    try:
        while True:
            client = socket.socket(socket.AF_UNIX)
            waiting.append(client)
            client.setblocking(False)
            client.connect(str(path))
    except BlockingIOError:
        with pytest.raises(BindError, match="already in use"):
            listen(path)
    finally:
        for client in waiting:
            client.close()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_another_kind_is_in_use(listen, tmp_path, kind):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        with pytest.raises(BindError, match="already in use"):
            listen(path)
    assert path.exists()


def test_a_stale_file_is_replaced(listen, tmp_path):
    path = tmp_path / "socket"
    leave_stale(path)
    sock, _, _ = listen(path)
    assert reaches(sock, path)
    assert os.listdir(tmp_path) == ["socket"]


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"precious"), lambda path: path.mkdir()])
def test_a_file_that_is_no_socket_is_left_alone(listen, tmp_path, make):
    path = tmp_path / "socket"
    make(path)
    before = path.stat()
    with pytest.raises(BindError, match="not a socket") as caught:
        listen(path)
    assert caught.value.errno == errno.EADDRINUSE
    assert path.stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["socket"]


def test_a_link_is_not_followed(listen, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "socket").symlink_to("elsewhere")
    with pytest.raises(BindError, match="not a socket"):
        listen(tmp_path / "socket")
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_missing_directory_is_a_bind_error(listen, tmp_path):
    path = tmp_path / "none" / "socket"
    with pytest.raises(BindError) as caught:
        listen(path)
    assert caught.value.errno == errno.ENOENT
    assert str(path) in str(caught.value)


def test_a_file_that_belongs_to_another_by_now_is_not_removed(listen, tmp_path):
    path = tmp_path / "socket"
    _, _, cleanup = listen(path)
    path.unlink()
    successor, _, _ = listen(path)
    cleanup()
    assert reaches(successor, path)


def test_a_forked_child_removes_nothing(listen, tmp_path, monkeypatch):
    path = tmp_path / "socket"
    _, _, cleanup = listen(path)
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        cleanup()
    assert path.exists()


# Races


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_that_bind_one_path_at_once_exactly_one_gets_it(tmp_path, stale):
    path = tmp_path / "socket"
    many = 6
    start = threading.Barrier(many)

    def bind():
        start.wait()
        try:
            return ipc.listen(IpcEndpoint(str(path)), Options())
        except BindError as error:
            return error.errno

    with ThreadPoolExecutor(many) as pool:
        for _ in range(20):
            if stale:
                leave_stale(path)
            outcomes = [future.result() for future in [pool.submit(bind) for _ in range(many)]]
            won = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
            assert [outcome for outcome in outcomes if outcome not in won] == [errno.EADDRINUSE] * (many - 1)
            ((sock, _, cleanup),) = won
            while True:  # the losers have asked whether anybody listens
                try:
                    sock.accept()[0].close()
                except BlockingIOError:
                    break
            assert reaches(sock, path)
            cleanup()
            sock.close()
            assert os.listdir(tmp_path) == []


def test_a_socket_that_replaced_the_stale_one_in_between_is_left_alone(listen, tmp_path, monkeypatch):
    path = tmp_path / "socket"
    sock, _, _ = listen(path)
    answers = [True, False]  # stale when first looked at, in use when it is to be removed
    monkeypatch.setattr(ipc, "_is_stale", lambda _: answers.pop(0))
    with pytest.raises(BindError, match="already in use"):
        listen(path)
    assert answers == []
    assert reaches(sock, path)
    assert os.listdir(tmp_path) == ["socket"]


def test_a_stale_file_that_another_process_is_replacing_is_left_to_it(listen, tmp_path):
    path = tmp_path / "socket"
    leave_stale(path)
    found = path.stat()
    with socket.socket(socket.AF_UNIX) as right:
        right.bind(f"\0omq-stale-{found.st_dev:x}-{found.st_ino:x}")
        with pytest.raises(BindError, match="already in use"):
            listen(path)
    assert os.listdir(tmp_path) == ["socket"]
    sock, _, _ = listen(path)
    assert reaches(sock, path)


@pytest.mark.parametrize("before", ["nothing", "stale", "live", "file"])
@pytest.mark.parametrize("obstacle", ["no hard links", "no room for a longer name"])
def test_where_there_can_be_no_second_name_the_same_rules_hold(listen, tmp_path, monkeypatch, before, obstacle):
    path = tmp_path / "socket"
    if before == "stale":
        leave_stale(path)
    elif before == "live":
        owner, _, _ = listen(path)
    elif before == "file":
        path.write_bytes(b"precious")

    def refuse(source, target, **_):
        raise OSError(errno.EEXIST if os.path.lexists(target) else errno.EPERM, "no hard links here")

    if obstacle == "no hard links":
        monkeypatch.setattr(os, "link", refuse)
    else:
        monkeypatch.setattr(ipc, "_temporary_name", lambda _: None)
    if before in ("nothing", "stale"):
        sock, _, cleanup = listen(path)
        assert reaches(sock, path)
        cleanup()
        assert os.listdir(tmp_path) == []
    else:
        with pytest.raises(BindError, match="in use" if before == "live" else "not a socket"):
            listen(path)
        if before == "live":
            owner.accept()[0].close()
            assert reaches(owner, path)
        assert os.listdir(tmp_path) == ["socket"]


def test_the_longest_path_works(listen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = "x" * 107
    leave_stale(path)
    sock, _, _ = listen(path)
    assert reaches(sock, path)
    with pytest.raises(BindError, match="already in use"):
        listen(path)


# Wildcard and abstract names


def test_the_wildcard_is_a_private_path_that_goes_with_its_directory(listen):
    sock, resolved, cleanup = listen(None)
    path = resolved.removeprefix("ipc://")
    directory = os.path.dirname(path)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert reaches(sock, path)
    assert listen(None)[1] != resolved
    cleanup()
    assert not os.path.exists(directory)


def test_a_wildcard_that_cannot_be_bound_leaves_no_directory(listen, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 110)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(BindError, match="too long") as caught:
        listen(None)
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.listdir(deep) == []


def test_an_abstract_name_is_no_file_and_goes_with_its_socket(listen):
    name = f"@omq-test-{secrets.token_hex(8)}"
    sock, resolved, cleanup = listen(name)
    assert resolved == f"ipc://{name}"
    assert sock.getsockname() == b"\0" + name[1:].encode()
    assert reaches(sock, name)
    with pytest.raises(BindError, match=f"{name}: address already in use"):
        listen(name)
    cleanup()
    sock.close()
    assert reaches(listen(name)[0], name)


# Connecting, options


@pytest.mark.parametrize("abstract", [False, True])
def test_a_prepared_socket_only_has_to_be_connected(listen, tmp_path, abstract):
    path = f"@omq-test-{secrets.token_hex(8)}" if abstract else str(tmp_path / "socket")
    listener, _, _ = listen(path)
    sock, address = ipc.prepare(IpcEndpoint(path), Options())
    with sock:
        assert not sock.getblocking()
        sock.connect(address)
        accepted, _ = listener.accept()
        with accepted:
            sock.sendall(b"x")
            assert accepted.recv(1) == b"x"


def test_a_path_where_nothing_is_is_found_out_on_connecting(tmp_path):
    sock, address = ipc.prepare(IpcEndpoint(str(tmp_path / "none")), Options())
    with sock, pytest.raises(FileNotFoundError):
        sock.connect(address)


def test_a_wildcard_cannot_be_connected_to():
    with pytest.raises(ConnectError, match=r"ipc://\*"):
        ipc.prepare(IpcEndpoint(None), Options())


def test_the_buffers_are_set_on_every_kind_of_socket(listen, tmp_path):
    path = tmp_path / "socket"
    options = Options(send_buffer=70_000, recv_buffer=90_000)
    listener, _, _ = listen(path, send_buffer=70_000, recv_buffer=90_000)
    sock, address = ipc.prepare(IpcEndpoint(str(path)), options)
    sock.connect(address)
    accepted, _ = listener.accept()
    ipc.tune(accepted, options)
    for each in (listener, sock, accepted):
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 140_000  # socket(7): doubled
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 180_000
    sock.close()
    accepted.close()

"""Unix domain sockets: their endpoints, listening sockets, and sockets ready to connect.

See `zmq_ipc(7)` and `unix(7)`. libzmq deletes any file at the path; omq takes over only a socket file without a
listener.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from omq.errors import BindError, ConnectError, OptionError
from omq.options import Options
from omq.transport import descriptor
from omq.transport.base import Address, AddrInfo, Listening, Route, SettingsRecorder, StreamTransport, on_loan, refusal
from omq.types import MAX_PATH_BYTES
from omq.unpatched import socket

#: Attempts to take the path; each further one needs interference from another process.
_ATTEMPTS: Final = 8
#: The errors of link(2) on file systems without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

#: A Unix socket is writable again when three quarters of its buffer are free: with the usual 208 KiB, a sender
#: of large messages waits for an almost empty one. The system limits it to net.core.wmem_max (`socket(7)`).
_SEND_BUFFER_BYTES: Final = 524288

_UCRED: Final = "=iII"  # unix(7), SO_PEERCRED: struct ucred, with pid, uid and gid
_UCRED_BYTES: Final = struct.calcsize(_UCRED)
_SO_PEERGROUPS: Final = 59  # since Linux 4.13; the groups of the process at the time when it connected
_GROUPS_BYTES: Final = 1024  # the maximum of Python's getsockopt: 256 groups


@dataclass(frozen=True, slots=True)
class IpcEndpoint:
    """A Unix domain socket.

    Attributes:
        path: The path of the socket file, or `@` and an abstract name (`unix(7)`); `None` for a path that omq chooses
            (`*`).
    """

    scheme: ClassVar[str] = "ipc"
    path: str | None

    def __str__(self) -> str:
        return f"ipc://{'*' if self.path is None else self.path}"

    @property
    def abstract(self) -> bool:
        """Returns whether the name is abstract: it is not a file, and ends with its socket."""
        return self.path is not None and self.path.startswith("@")


class IpcTransport(StreamTransport[IpcEndpoint]):
    """Streams within one machine."""

    scheme = "ipc"
    hands_over = True
    bare = True
    families = frozenset({socket.AF_UNIX})
    options: ClassVar[frozenset[str]] = StreamTransport.options | {
        *("accept_gids", "accept_pids", "accept_uids", "backlog", "recv_buffer", "send_buffer", "use_fd"),
    }

    def parse(self, rest: str, *, bind: bool) -> IpcEndpoint:
        return _parse(rest, bind)

    def listen(self, endpoint: IpcEndpoint, options: Options) -> Listening:
        if options.use_fd is not None:
            sock = descriptor.listening(options.use_fd, self.families)
            return Listening([sock], listen_at(sock, endpoint, options))
        sock, text, cleanup = listen(endpoint, options)
        return Listening([sock], text, cleanup)

    def tune(self, sock: socket.socket, options: Options) -> None:
        tune(sock, options)

    def rejection(self, sock: socket.socket, address: Any, options: Options) -> str | None:
        if options.accept_uids is None and options.accept_gids is None and options.accept_pids is None:
            return None
        return _rejection(sock, options)

    def routes(self, endpoint: IpcEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> list[Route]:
        return [partial(prepare, endpoint, options)]

    def address(self, endpoint: IpcEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Address | None:
        if endpoint.path is None:
            return None
        recorder = SettingsRecorder()
        tune(recorder, options)
        family = socket.AF_UNIX
        return Address(family, struct.pack("=H", family) + _address(endpoint.path), tuple(recorder.settings))

    def endpoint_of(self, address: Any) -> str:
        path = os.fsdecode(address).replace("\0", "@")
        return f"ipc://{path}" if path else ""


def listen(endpoint: IpcEndpoint, options: Options) -> tuple[socket.socket, str, Callable[[], None]]:
    """Opens a listening socket.

    A socket file without a listener is replaced; a file that is in use, or is not a socket, is left alone. `*` stands
    for a file in a new directory that only this user can enter.

    Args:
        endpoint: The endpoint to bind.
        options: `backlog`, `send_buffer` and `recv_buffer` apply.

    Returns:
        The socket, non-blocking; the endpoint with its path; and a function to call on unbinding, before the socket is
        closed. It removes the file if it is still this socket's, does nothing in a forked child, and may be called
        again.

    Raises:
        BindError: The path is in use, or cannot be bound; see `errno`.
    """
    try:
        if endpoint.path is None:
            return _listen_in_private(options)
        if endpoint.abstract:
            return _bound(_address(endpoint.path), options), str(endpoint), lambda: None
        sock, identity = _listen_at(endpoint.path, options)
        return sock, str(endpoint), _remover(endpoint.path, identity)
    except OSError as error:
        raise refusal(BindError, endpoint, error) from error


def listen_at(sock: socket.socket, endpoint: IpcEndpoint, options: Options) -> str:
    """Prepares a socket passed in with `use_fd`; returns its endpoint. The program still owns the socket file.

    Raises:
        OptionError: Its path differs from the endpoint's. The program keeps the socket.
        BindError: The system refused an option. The program keeps the socket.
    """
    with on_loan(sock, BindError, endpoint):
        found = os.fsdecode(sock.getsockname()).replace("\0", "@")
        if endpoint.path is not None and os.path.abspath(found) != os.path.abspath(endpoint.path):
            raise OptionError(f"option use_fd={sock.fileno()}: listens at {IpcEndpoint(found)}, not at {endpoint}")
        tune(sock, options)
        sock.listen(options.backlog)
    return str(IpcEndpoint(found))


def prepare(endpoint: IpcEndpoint, options: Options) -> tuple[socket.socket, bytes]:
    """Makes a socket that is ready to connect.

    Args:
        endpoint: The endpoint to connect to.
        options: `send_buffer` and `recv_buffer` apply.

    Returns:
        A non-blocking socket, and the address to connect it to.

    Raises:
        ConnectError: The endpoint is a wildcard, or the system refused to make the socket.
    """
    if endpoint.path is None:
        raise ConnectError(errno.EINVAL, f"{endpoint}: cannot connect to a wildcard")
    try:
        return _new_socket(options), _address(endpoint.path)
    except OSError as error:
        raise refusal(ConnectError, endpoint, error) from error


def tune(sock: socket.socket | SettingsRecorder, options: Options) -> None:
    """Sets the buffers of an accepted socket, which, unlike TCP's, does not inherit them from its listener.

    Args:
        sock: The socket.
        options: `send_buffer` (512 KiB if `None`) and `recv_buffer` apply.

    Raises:
        OSError: The system refused an option.
    """
    send_buffer = _SEND_BUFFER_BYTES if options.send_buffer is None else options.send_buffer
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if options.recv_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.recv_buffer)


def _rejection(sock: socket.socket, options: Options) -> str | None:
    """Returns the reason to refuse the process at the other end. One rule that accepts it is enough, as in libzmq."""
    pid, uid, gid = struct.unpack(_UCRED, sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES))
    groups = {gid}
    if options.accept_gids is not None and gid not in options.accept_gids:
        groups |= _groups_of(sock)
    rules = (options.accept_uids, {uid}), (options.accept_gids, groups), (options.accept_pids, {pid})
    if any(accepted is not None and accepted & has for accepted, has in rules):
        return None
    names = (
        ("accept_uids", options.accept_uids),
        ("accept_gids", options.accept_gids),
        ("accept_pids", options.accept_pids),
    )
    given = " ".join(f"{name}={sorted(ids)}" for name, ids in names if ids is not None)
    return f"a process with uid {uid}, gid {gid}, pid {pid} is not of {given}"


def _groups_of(sock: socket.socket) -> set[int]:
    """Returns the supplementary groups of the process at the other end; empty if there are too many for one call."""
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return set()
    return set(struct.unpack(f"={len(found) // 4}I", found))


def _address(path: str) -> bytes:
    """Returns the socket address of a path or `@name`; an abstract one starts with a zero byte (`unix(7)`)."""
    encoded = os.fsencode(path)
    return b"\0" + encoded[1:] if encoded.startswith(b"@") else encoded


def _new_socket(options: Options) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        tune(sock, options)
    except OSError:
        sock.close()
        raise
    return sock


def _bound(address: bytes, options: Options) -> socket.socket:
    sock = _new_socket(options)
    try:
        sock.bind(address)
        try:
            sock.listen(options.backlog)
        except OSError:
            if not address.startswith(b"\0"):
                os.unlink(address)
            raise
    except OSError:
        sock.close()
        raise
    return sock


def _listen_in_private(options: Options) -> tuple[socket.socket, str, Callable[[], None]]:
    directory = tempfile.mkdtemp(prefix="omq-")  # mode 0700
    path = os.path.join(directory, "socket")
    try:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"the path {path} is too long for a socket")
        sock = _bound(os.fsencode(path), options)
    except OSError:
        os.rmdir(directory)
        raise
    return sock, str(IpcEndpoint(path)), _remover(path, _identity(os.lstat(path)), directory)


# Several processes may bind one path at the same time, and find the same stale file there. A lock file would stay
# behind, and a lock on the directory may be in use by others; so:
#
# - A socket is bound next to the path, under its own name, and listens before link(2) gives it the path. So a socket of
#   omq at a path has a listener from the first moment (between bind(2) and listen(2) a socket looks like a stale one),
#   and link fails if the path is taken.
# - unlink(2) takes a name, not a file: a file that was stale when it was checked may have been replaced by a new
# socket.   So only a process with the right to remove that very file does so, and checks again before. The right is an
# abstract   name made of the file's number: the system gives it to one process, without waiting, and takes it back when
# that   process ends. A process that does not get it has lost the race for the path.
#
# This holds among processes of one network namespace (abstract names end there), and not against a process that deletes
# any file.


def _listen_at(path: str, options: Options) -> tuple[socket.socket, tuple[int, int]]:
    """Listens at a path; also returns the identity of its file."""
    temporary = _temporary_name(path)
    if temporary is None:
        return _listen_in_place(path, options)
    sock = _bound(os.fsencode(temporary), options)
    try:
        identity = _identity(os.lstat(temporary))
        for _ in range(_ATTEMPTS):
            try:
                os.link(temporary, path, follow_symlinks=False)
            except FileExistsError:
                _clear(path)
            else:
                return sock, identity
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    except OSError as error:
        sock.close()
        if error.errno in _NO_LINKS and not os.path.lexists(path):
            return _listen_in_place(path, options)
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _listen_in_place(path: str, options: Options) -> tuple[socket.socket, tuple[int, int]]:
    """Does the same without a second name: without hard links, or without room for a longer name."""
    for attempt in range(_ATTEMPTS):
        try:
            sock = _bound(os.fsencode(path), options)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
            _clear(path)
        else:
            return sock, _identity(os.lstat(path))
    raise AssertionError("unreachable")


def _clear(path: str) -> None:
    """Removes a stale socket file; raises the reason why the path is not available."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as right:
        device, inode = _stale_file(path)
        right.bind(f"\0omq-stale-{device:x}-{inode:x}")
        if _stale_file(path) == (device, inode):
            os.unlink(path)


def _stale_file(path: str) -> tuple[int, int]:
    """Returns the identity of the socket file at the path, if it has no listener; raises otherwise."""
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EADDRINUSE, "a file that is not a socket is in the way")
    if not _is_stale(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return _identity(found)


def _is_stale(path: str) -> bool:
    """Returns whether a socket file has no listener. A listener sees a connection that closes at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:  # its backlog is full
            return False
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:  # it is for datagrams
                return False
            raise
        return False


def _temporary_name(path: str) -> str | None:
    """Returns a temporary name in the same directory; `None` if that exceeds the limit of a socket path."""
    name = f"{path}.{secrets.token_hex(4)}"
    return name if len(os.fsencode(name)) <= MAX_PATH_BYTES else None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _remover(path: str, identity: tuple[int, int], directory: str | None = None) -> Callable[[], None]:
    """Returns a function that removes a socket file, and its directory if that was made for it."""
    owner = os.getpid()
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)  # the process may change its directory, as daemons do

    def remove() -> None:
        if os.getpid() != owner:
            return
        # While the socket is open its inode cannot be another file's, and no process takes the path for stale.
        with suppress(OSError):
            if _identity(os.lstat(path)) == identity:
                os.unlink(path)
        if directory is not None:
            with suppress(OSError):
                os.rmdir(directory)

    return remove


def _parse(rest: str, bind: bool) -> IpcEndpoint:
    if rest == "*":
        if not bind:
            raise ValueError("path '*' is only for binding")
        return IpcEndpoint(None)
    if rest == "@":
        raise ValueError("the abstract name is empty")
    if "\0" in rest:
        raise ValueError("the path has a NUL character")
    try:
        size = len(os.fsencode(rest))
    except UnicodeError:
        raise ValueError("the path cannot be encoded for the file system") from None
    if size > MAX_PATH_BYTES:
        raise ValueError(f"the path has {size} bytes; at most {MAX_PATH_BYTES} are allowed")
    return IpcEndpoint(rest)

"""TLS between a network connection and the engine, on the standard library's `ssl`.

The engine reads and writes descriptors, mostly without the GIL, and OpenSSL can do neither for it from Python. So the
engine gets one end of a pair of descriptors. One thread of the process, which all such connections share, encrypts and
decrypts between the pair and the network.
"""

from __future__ import annotations

import fcntl
import os
import signal
import ssl
import struct
import termios
import time
from contextlib import ExitStack, suppress
from typing import Final

from omq.errors import HandshakeError
from omq.process_hooks import run_in_child
from omq.unpatched import select, socket, threading

_READ_BYTES: Final = 262144  # per read, of either side
_PAIR_BUFFER_BYTES: Final = 524288  # the buffer of each end of a pair: the usual one has 208 KiB
_MAX_PENDING_BYTES: Final = 524288  # held for a side that does not read; above that, the other side is not read
_MAX_STEPS_PER_TURN: Final = 8  # steps of one connection before others have their turn
_CLOSE_TIMEOUT_S: Final = 5.0  # after the engine's end, for the network to take more of the rest
_POLL_INTERVAL_S: Final = 0.02  # between two checks whether the peer's kernel has everything

_IN, _OUT = 1, 4  # EPOLLIN and EPOLLOUT, which a patched `select` may lack
_HUNG_UP = 0x18  # EPOLLHUP and EPOLLERR, which need not be asked for


#: Likely causes of some of OpenSSL's reasons.
_HINTS: Final = {"NO_SHARED_CIPHER": " (has the server's context a certificate?)"}


def why_unfit(context: ssl.SSLContext | None, *, as_server: bool) -> str:
    """Returns the reason why a context does not fit its side; empty if it fits."""
    if context is None:
        return "a server needs an ssl.SSLContext with a certificate" if as_server else ""
    if context.protocol is (ssl.PROTOCOL_TLS_CLIENT if as_server else ssl.PROTOCOL_TLS_SERVER):
        return f"is the context of a {'client' if as_server else 'server'} ({context.protocol.name})"
    return ""


class TlsRelay:
    """One connection with TLS.

    Args:
        fd: The network connection; owned from here on.
        context: The context of this side; `None` for a client that trusts the system's certificates.
        server_name: For a client, the host that the peer's certificate must name; `None` for a server.

    Attributes:
        fd: The engine's end of the pair; the caller owns it.
        error: The reason why the connection has ended; `None` if it is unknown.
    """

    def __init__(self, fd: int, context: ssl.SSLContext | None, server_name: str | None) -> None:
        self._net = socket.socket(fileno=fd)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = (context or ssl.create_default_context()).wrap_bio(
                self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
            )
            _relays.start()
            self._local, end = socket.socketpair()
        except BaseException:
            self._net.detach()  # it is the caller's again
            raise
        self._net.setblocking(False)
        for one in (self._local, end):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PAIR_BUFFER_BYTES)
        self.fd = end.detach()
        self.error: Exception | None = None
        self.is_over = False
        self.has_more_work = False  # it has work, though no descriptor is ready
        self._to_net = self._to_local = b""
        self._unencrypted = b""  # from the engine; waits for the peer's part of a renegotiation
        self._open = False  # the handshake is done
        self._net_ended = self._local_ended = False  # nothing more comes from there
        self._net_shut = self._local_shut = False  # nothing more goes there
        self._write_failed = False  # writing to the network has failed
        self._engine_closed = False  # the engine has closed its end
        self._moved = 0.0  # the last time that the network took bytes after that
        _relays.add(self)

    @property
    def delivered(self) -> bool:
        """Returns whether the peer's kernel has everything that the engine wrote; true for a closed connection."""
        return self.is_over or (self._net_shut and not _unsent(self._net))

    @property
    def remote_ip(self) -> str:
        """The peer's IP address; empty if it is unknown."""
        try:
            address: str = self._net.getpeername()[0]
        except OSError:
            return ""
        return address.partition("%")[0]

    # ------------------------------------------------------------------ on the thread

    @property
    def local_fd(self) -> int:
        return self._local.fileno()

    @property
    def descriptors(self) -> tuple[int, int]:
        return self._net.fileno(), self._local.fileno()

    def interest(self) -> dict[int, int | None]:
        """Returns the events to wait for, by descriptor; `None` removes it from the epoll set."""
        net = local = 0
        if not self._net_ended and len(self._to_local) < _MAX_PENDING_BYTES:
            net |= _IN
        if self._to_net:
            net |= _OUT
        if self._reads_local and not self._unencrypted:
            local |= _IN
        if self._to_local:
            local |= _OUT
        # Until the engine has closed its end, that event is waited for too; afterwards epoll would report it all the
        # time.
        local_events = None if self._engine_closed and not local else local
        return {self._net.fileno(): net or None, self._local.fileno(): local_events}

    @property
    def _reads_local(self) -> bool:
        if not self._open or self._local_ended or self._write_failed:
            return False
        return len(self._to_net) < _MAX_PENDING_BYTES

    def engine_closed(self) -> None:
        """Notes that the engine has closed its end: bytes that it has written leave, and nothing more is for it."""
        if not self._engine_closed:
            self._engine_closed = True
            self._moved = time.monotonic()
            self._to_local = b""
            self._local_shut = True

    def work(self) -> None:
        """Makes progress as far as both sides allow."""
        try:
            self.has_more_work = all(self._step() for _ in range(_MAX_STEPS_PER_TURN))
            self._pass_ends_on()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.fail(error)

    def _step(self) -> bool:
        """Moves bytes as far as possible now; returns whether there were any."""
        moved = False
        if not self._net_ended and len(self._to_local) < _MAX_PENDING_BYTES:
            moved |= self._read_net()
        if not self._open and not self._do_handshake():
            return self._flush() or moved
        moved |= self._decrypt()
        if self._reads_local:
            moved |= self._read_local()
        return self._flush() or moved

    def _read_net(self) -> bool:
        try:
            data = _receive(self._net)
        except OSError as error:
            self._fail_writing(error)
            data = b""
        if data is None:
            return False
        if data:
            self._incoming.write(data)
        else:
            self._net_ended = True
            self._incoming.write_eof()
        return True

    def _do_handshake(self) -> bool:
        """Continues TLS's handshake; true once it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._open = True
        return True

    def _decrypt(self) -> bool:
        moved = False
        while len(self._to_local) < _MAX_PENDING_BYTES and not self._net_shut_by_peer():
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._net_ended = True
                break
            except ssl.SSLError as error:  # a record that does not decrypt; those before it are genuine
                self._flush()  # sends the alert
                self._fail_writing(error)
                self._net_ended = True
                break
            if not data:
                self._net_ended = True
                break
            moved = True
            if not self._local_shut:
                self._to_local += data
        return moved

    def _net_shut_by_peer(self) -> bool:
        return self._net_ended and not self._incoming.pending and not self._tls.pending()

    def _read_local(self) -> bool:
        if not self._unencrypted:
            try:
                data = _receive(self._local)
            except OSError:
                data = b""  # the engine has closed its end with unread bytes; all that it wrote came before
            if data is None:
                return False
            self._local_ended = not data
            self._unencrypted = data
        try:
            while self._unencrypted:
                self._unencrypted = self._unencrypted[self._tls.write(self._unencrypted) :]
        except ssl.SSLWantReadError:
            return False  # RFC 5246, 7.4.1.1: the server has asked for another handshake
        return True

    def _flush(self) -> bool:
        """Writes pending bytes; false if none could be written."""
        moved = False
        if self._outgoing.pending:
            self._to_net += self._outgoing.read()
        if self._write_failed:
            self._to_net = b""
        if self._to_net:
            try:
                sent = _send(self._net, self._to_net)
            except OSError as error:
                self._fail_writing(error)
            else:
                self._to_net = self._to_net[sent:]
                moved = sent > 0
                if moved:
                    self._moved = time.monotonic()
        if self._to_local:
            try:
                sent = _send(self._local, self._to_local)
            except OSError:
                self.engine_closed()
            else:
                self._to_local = self._to_local[sent:]
                moved |= sent > 0
        return moved

    def _fail_writing(self, error: OSError) -> None:
        """Stops writing to the network; bytes that came from there before are still for the engine, as over tcp."""
        if not self._open:
            raise error
        if self.error is None and not self._engine_closed:
            self.error = error
        self._write_failed = self._net_shut = True
        self._to_net = b""

    def _pass_ends_on(self) -> None:
        """Forwards ends of the stream, and closes a connection that has ended on both sides."""
        if self._net_ended and not self._to_local and not self._local_shut:
            self._local_shut = True
            if not self._open:
                raise ssl.SSLEOFError("the peer closed the connection")
            self._local.shutdown(socket.SHUT_WR)
        if self._local_ended and not self._to_net and not self._net_shut:
            if self._open and not self._incoming.pending and not self._tls.pending():
                try:
                    self._tls.unwrap()  # writes close_notify (RFC 8446, 6.1); does not wait for the peer's
                except ssl.SSLError:
                    pass
                self._flush()
                if self._to_net:
                    return
            self._net_shut = True
            self._net.shutdown(socket.SHUT_WR)
        if self._write_failed and self._local_shut:
            self.close()  # the engine has all that had come, and now gets the end
        elif self._engine_closed:
            done = self._net_shut and (self._net_ended or not _unsent(self._net))
            if done or not self._open or time.monotonic() - self._moved > _CLOSE_TIMEOUT_S:
                self.close()

    def fail(self, error: Exception) -> None:
        if self.error is None and not self._engine_closed:
            hint = _HINTS.get(getattr(error, "reason", None) or "", "")
            self.error = error if self._open else HandshakeError(f"the TLS handshake has failed: {error}{hint}")
        try:
            self._flush()  # an alert of TLS may be pending
        except (OSError, ValueError):
            pass
        self.close()

    def close(self) -> None:
        """Closes it; decrypted bytes at the engine's end can still be read there."""
        if not self.is_over:
            self.is_over = True
            self._net.close()
            self._local.close()

    @property
    def needs_polling(self) -> bool:
        """Returns whether it must be served soon, though no descriptor is ready."""
        return self._engine_closed or self.has_more_work


class _Relays:
    """All connections with TLS of this process, and the thread that serves them; it starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fresh: list[TlsRelay] = []
        self._all: set[TlsRelay] = set()
        self._bell: int | None = None  # an eventfd(2): a socket would be reported as unclosed at the end
        self._poll: select.epoll | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._bell is None:
                with ExitStack() as opened:
                    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                    opened.callback(os.close, bell)
                    poll = select.epoll()
                    opened.callback(poll.close)
                    poll.register(bell, _IN)
                    threading.Thread(target=self._run, args=(bell, poll), name="omq tls", daemon=True).start()
                    opened.pop_all()
                self._bell, self._poll = bell, poll

    def add(self, relay: TlsRelay) -> None:
        """Serves one more connection; `start` was called before."""
        with self._lock:
            assert self._bell is not None
            self._fresh.append(relay)
            os.eventfd_write(self._bell, 1)

    def forget(self) -> None:
        """Resets a forked child: the thread is the parent's."""
        for relay in (*self._fresh, *self._all):
            relay.close()  # the engine closes its own end
        if self._bell is not None and self._poll is not None:
            self._poll.close()
            os.close(self._bell)
        self.__init__()  # type: ignore[misc]

    def _run(self, bell: int, poll: select.epoll) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        owners: dict[int, tuple[TlsRelay, int]] = {}  # by the descriptors that are in the epoll set
        polled: set[TlsRelay] = set()
        while True:
            ready: dict[TlsRelay, None] = dict.fromkeys(polled)
            timeout = 0.0 if any(relay.has_more_work for relay in polled) else _POLL_INTERVAL_S if polled else None
            for fd, events in poll.poll(timeout):
                owner = owners.get(fd)
                if owner is None:
                    with suppress(BlockingIOError):
                        os.eventfd_read(bell)
                    continue
                relay = owner[0]
                ready[relay] = None
                if events & _HUNG_UP and fd == relay.local_fd:
                    relay.engine_closed()
            with self._lock:
                ready.update(dict.fromkeys(self._fresh))
                self._all.update(self._fresh)
                self._fresh.clear()
            for relay in ready:
                before = relay.descriptors
                relay.work()
                if relay.is_over:
                    for fd in before:
                        owners.pop(fd, None)  # a closed descriptor has left the set
                    polled.discard(relay)
                    self._all.discard(relay)
                    continue
                try:
                    self._watch(relay, poll, owners)
                except OSError as error:  # the set takes no more descriptors (epoll_ctl(2), ENOSPC)
                    relay.fail(error)
                    for fd in before:
                        owners.pop(fd, None)
                    polled.discard(relay)
                    self._all.discard(relay)
                    continue
                if relay.needs_polling:
                    polled.add(relay)
                else:
                    polled.discard(relay)

    def _watch(self, relay: TlsRelay, poll: select.epoll, owners: dict[int, tuple[TlsRelay, int]]) -> None:
        """Updates the epoll set to the events that a connection waits for."""
        for fd, interest in relay.interest().items():
            known = owners.pop(fd, None)
            if interest is None:
                if known is not None:
                    poll.unregister(fd)
                continue
            if known is None:
                poll.register(fd, interest)
            elif known[1] != interest:
                poll.modify(fd, interest)
            owners[fd] = relay, interest


def _receive(sock: socket.socket) -> bytes | None:
    """Reads available bytes; empty at the end, `None` for nothing yet."""
    try:
        return sock.recv(_READ_BYTES)
    except (BlockingIOError, InterruptedError):
        return None


def _send(sock: socket.socket, data: bytes) -> int:
    """Writes as much as there is room for; returns the number of bytes."""
    try:
        return sock.send(data, socket.MSG_NOSIGNAL)
    except (BlockingIOError, InterruptedError):
        return 0


def _unsent(sock: socket.socket) -> int:
    """Returns the bytes that the peer's kernel has not confirmed (`tcp(7)`, SIOCOUTQ); our FIN may count as one."""
    try:
        found: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    except (OSError, ValueError):
        return 0
    return max(0, found - 1)


_relays = _Relays()
run_in_child(_relays.forget)

"""One process of a host owns the connection of a sink; the others write through it.

Spark gives the partitions of a stream to whatever worker process is free, so the next microbatch often runs in another
process. Closing the connection and opening it there would lose the messages on their way. So the process that opened
the connection stays its owner, and serves the other processes over a Unix socket. That socket's name is the claim: it
is in the abstract namespace, so the kernel lets one process have it and takes it back when that process dies, however
it dies.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa

import omq
from omq.unpatched import sleep, socket, threading

PATIENCE: Final = 5.0  # seconds that one who has come may take to say what he wants
LOOK: Final = 0.5  # seconds between two looks at how long a connection has not been used
BACKLOG: Final = 64  # processes that may wait for their turn

#: Serves one request: takes the request and the stream to answer on, and returns the result.
Serve = Callable[[dict[str, Any], BinaryIO], dict[str, Any]]


class OwnerLost(omq.OmqError):
    """The process that owned a connection ended while it served."""


def _name(key: str) -> str:
    return f"\0omq-spark/{os.getuid()}/{key}"


class Claim:
    """The right to a connection, and the thread that serves other processes.

    Args:
        key: The connection's name; see `pool.key_of`.
        keep: Seconds without use after which `expire` is called.
    """

    def __init__(self, key: str, keep: float) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._listener.bind(_name(key))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen(BACKLOG)
        self._listener.settimeout(LOOK)
        self._keep = keep
        self.lock = threading.Lock()
        self.used = time.monotonic()

    def start(self, serve: Serve, expire: Callable[[], None]) -> None:
        """Begins to serve."""
        threading.Thread(target=self._run, args=(serve, expire), name="omq-spark-relay", daemon=True).start()

    def _run(self, serve: Serve, expire: Callable[[], None]) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                with self.lock:
                    if time.monotonic() - self.used < self._keep:
                        continue
                    # A process that comes from here on finds the name free, and opens a connection of its own.
                    expire()
                    self.abandon()
                return
            except OSError:
                if self._listener.fileno() < 0:
                    return
                sleep(LOOK)  # no descriptor is left: processes that connect wait until one is
                continue
            with peer:
                if _is_ours(peer):
                    self._answer(peer, serve)

    def _answer(self, peer: socket.socket, serve: Serve) -> None:
        stream: Any
        with self.lock, peer.makefile("rwb") as stream:
            try:
                # Nobody else is served while one says nothing.
                peer.settimeout(PATIENCE)
                request = json.loads(stream.readline() or b"null")
                peer.settimeout(None)
                if request is None:
                    return
                try:
                    result = serve(request, stream)
                except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
                    result = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(result).encode() + b"\n")
                stream.flush()
            except OSError:
                pass  # the process that asked is gone
            finally:
                self.used = time.monotonic()

    def abandon(self) -> None:
        """Gives the name up; in a forked child, only closes the inherited descriptor: the parent still has the name."""
        self._listener.close()


def _is_ours(peer: socket.socket) -> bool:
    """Whether the process on the other side runs as our user: anybody may use an abstract name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _ask(key: str) -> socket.socket | None:
    """A connection to the owner; `None` if there is none."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        peer.connect(_name(key))
    except (ConnectionRefusedError, FileNotFoundError):
        peer.close()
        return None
    if not _is_ours(peer):
        peer.close()
        raise omq.StateError("another user's process has the name that a connection of ours needs")
    return peer


def deliver(key: str, request: dict[str, Any], batches: Iterator[pa.RecordBatch]) -> dict[str, Any] | None:
    """Writes through the owner, and waits until the owner has flushed; `None` if there is no owner, or no longer one.

    Raises:
        OwnerLost: The owner ended while it served; some of the rows have been sent.
        OmqError: What the owner raised.
    """
    peer = _ask(key)
    if peer is None:
        return None
    with peer, peer.makefile("rwb") as stream:
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            out = None
            for batch in batches:
                if out is None:
                    stream.write(b"rows\n")
                    out = pa.ipc.new_stream(stream, batch.schema)
                out.write_batch(batch)
            if out is None:
                stream.write(b"none\n")
            else:
                out.close()
            stream.flush()
            result = json.loads(stream.readline() or b"null")
        except OSError as error:
            raise OwnerLost("the process that owns the connection ended") from error
    return _checked(result)


def _checked(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise OwnerLost("the process that owns the connection ended")
    if "error" in result:
        raise omq.OmqError(result["error"])
    return result

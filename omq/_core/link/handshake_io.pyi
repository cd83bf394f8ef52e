from collections.abc import Callable

def accept(listening: int) -> tuple[int, tuple[str, int] | None] | None:
    """Accepts a connection; `None` where none waits.

    Returns:
        Its descriptor, which does not block, and the peer's address and port; `None` for one that has none.

    Raises:
        OSError: The connection is gone, or the system refuses.
    """

def receive(fd: int) -> bytes | None:
    """Reads 4 KiB at most; `None` where there is nothing to read, and empty at the end.

    Raises:
        OSError: The connection is broken.
    """

def transmit(fd: int, data: bytes) -> int:
    """Writes as many bytes as the kernel takes; returns their number.

    Raises:
        OSError: The connection is broken.
    """

def dial(family: int, name: bytes, settings: tuple[tuple[int, int, int], ...]) -> tuple[int, int]:
    """Begins to connect a new stream socket, which does not block.

    Args:
        family: Of the socket.
        name: The address to connect to, a `sockaddr`.
        settings: What is set first: level, option, value.

    Returns:
        The descriptor and 0, if it is connected, or `EINPROGRESS`; else -1 and the error's number.
    """

def progress(fd: int) -> int:
    """What has come of connecting a socket: 0, `EINPROGRESS`, or the error's number."""

class HeadStart:
    """A connection that has just begun: it is made, and our side of the handshake said, without waiting.

    Args:
        family: As for `dial`.
        name: As for `dial`.
        settings: As for `dial`.
        greeting: What is said if the connection is there at once.

    Attributes:
        fd: The descriptor; owned. -1 if the attempt has failed, or once it is taken or closed.
        said: What the kernel has taken of the greeting; empty, too, where the connection leads to itself.
    """

    fd: int
    said: bytes

    def __init__(
        self, family: int, name: bytes, settings: tuple[tuple[int, int, int], ...], greeting: bytes
    ) -> None: ...
    def take(self) -> int:
        """Gives the descriptor away."""

    def close(self) -> None:
        """Closes the descriptor, if it still has one."""

class HandshakePoller:
    """One epoll set for the handshakes of all connections that a socket accepts.

    A connection is watched for its handshake only, and joins another epoll set afterwards. An event loop makes an
    object for each descriptor, and needs seven system calls to watch it and to cease; a set of our own needs two.

    Args:
        watch: Watches a descriptor, and calls the given function when it is readable.
        unwatch: Ends that.
        report: Called with an exception that a reader has raised.
    """

    fd: int

    def __init__(
        self,
        watch: Callable[[int, Callable[[], None]], object],
        unwatch: Callable[[int], object],
        report: Callable[[Exception], object],
    ) -> None: ...
    def call(
        self,
        watch: Callable[[int, Callable[[], None]], object],
        unwatch: Callable[[int], object],
        report: Callable[[Exception], object],
    ) -> None:
        """Replaces the functions."""

    def open(self) -> None:
        """Makes the epoll set, unless it is there.

        Raises:
            OSError: The system gives no descriptor.
        """

    def add(self, fd: int, reader: Callable[[], None]) -> None:
        """Calls *reader* whenever a descriptor can be read; after `open`.

        Raises:
            OSError: The system watches no more of them.
        """

    def remove(self, fd: int) -> None:
        """Ceases to watch a descriptor; ignores one that is not watched."""

    def serve(self) -> None:
        """Calls the readers of descriptors that can be read, 64 at most."""

    def close_after_fork(self) -> None:
        """In a forked child: closes the set, which the parent has too."""

    def close(self) -> None:
        """Watches nothing any more. Idempotent."""

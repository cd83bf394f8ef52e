from collections.abc import Iterable, Sequence
from typing import Self

from typing_extensions import Buffer

from omq._core.calls.leader import LeaderCore
from omq._core.calls.readable_event import ReadableEvent
from omq.message import Message
from omq.types import Unset

class SyncCore(LeaderCore):
    """The message calls of a blocking socket."""

    def _set_timeouts(self, send: float | None, recv: float | None) -> None: ...
    def send(self, data: Buffer, *, timeout: float | Unset | None = ...) -> None:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type does not send, or not now.
            UnroutableError: No peer has the address (`router_mandatory`).
            ClosedError: The socket is closed.
        """

    def send_multipart(self, parts: Iterable[Buffer], *, timeout: float | Unset | None = ...) -> None:
        """Sends a whole message, atomically.

        Args:
            parts: The parts, at least one; see `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            Exception: As `send`.
        """

    def send_many(self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = ...) -> int:
        """Sends many messages.

        Args:
            messages: The messages: one part each, see `send`, or a list or a tuple of the parts of a message.
            timeout: Seconds for all of them; see `send`.

        Returns:
            How many were accepted: fewer than given only if the time was up after the first.

        Raises:
            Exception: As `send` and `send_multipart`. What was accepted before is sent.
        """

    def recv(self, *, timeout: float | Unset | None = ...) -> bytes:
        """Takes the next message, which has one part.

        Args:
            timeout: Seconds to wait; `None` for ever, 0 never; left out, `recv_timeout` holds.

        Raises:
            MultipartError: The message has several parts; it stays first in line.
            ReceiveTimeout: No message came in time.
            StateError: The type does not receive, or not now.
            ClosedError: The socket is closed.
        """

    def recv_multipart(self, *, timeout: float | Unset | None = ...) -> list[bytes]:
        """Takes the next message whole; raises as `recv`, but for `MultipartError`."""

    def recv_many(self, limit: int = 1024, *, timeout: float | Unset | None = ...) -> list[bytes | list[bytes]]:
        """Waits for a message and takes what else is there.

        After some 20 ms of work the call stops, whatever the limit: messages may come faster than it takes them.

        Args:
            limit: Messages to take at most, 1 or more.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            The messages: `bytes`, or a list of them where a message has several parts.
        """

    def recv_into(self, buffer: Buffer, *, timeout: float | Unset | None = ...) -> int:
        """Takes the next message, of one part, into a buffer.

        Args:
            buffer: Writable and contiguous.
            timeout: Seconds; see `recv`.

        Returns:
            The size of the message in bytes.

        Raises:
            MessageTooLarge: The message does not fit; it stays first in line and the buffer's content is undefined.
            MultipartError: The message has several parts; it stays first in line.
        """

    def recv_columns(self, data: Buffer, ends: Buffer, start: int = 0, *, timeout: float | Unset | None = ...) -> int:
        """Waits for a message and takes what else is there into columns, as Arrow keeps binary values.

        Bodies are copied behind one another; no Python object is made for a message.

        Args:
            data: Writable and contiguous: where the bodies go.
            ends: Writable and contiguous: gets the offset in `data` behind each body, 4 bytes each (int32, native
                byte order). Its size bounds how many messages are taken.
            start: The offset in `data` where the first body goes.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            How many messages were taken, at least 1. One that did not fit, or has several parts, stays first in line.

        Raises:
            MessageTooLarge: The first message does not fit behind `start`; it stays first in line.
            MultipartError: The first message has several parts; it stays first in line.
            StateError: The type does not receive, or shapes messages: REQ, REP, ROUTER, DISH, STREAM.
        """

    def recv_message(self, *, timeout: float | Unset | None = ...) -> Message:
        """Takes the next message as a `Message`: its parts and what is known about its sender."""

    def fileno(self) -> int:
        """A descriptor that is readable exactly while a message waits; level-triggered.

        The descriptor belongs to the socket: select on it, and do nothing else with it. From the first call of `fileno`
        until `release_fileno` the I/O thread reads for the socket.

        Raises:
            StateError: The type does not receive.
            ClosedError: The socket is closed.
        """

    def release_fileno(self) -> None:
        """Gives back the descriptor of `fileno`: the threads that call read for themselves again.

        Take the descriptor out of selectors and loops first. A thread that still selects on it wakes up: from now on it
        is readable, whether a message waits or not, as it is once the socket is closed. It stays open until the socket
        is closed, so that no file opened next gets its number, and `fileno` returns the same descriptor when it is
        called again. After `close` it closes the descriptor. Does nothing if `fileno` has not been called.

        Raises:
            StateError: The process has forked.
        """

    def poll(self, timeout: float | None = None, events: int = ...) -> int:
        """Waits until a message can be received or sent.

        Args:
            timeout: Seconds; `None` for ever.
            events: `POLL_IN`, `POLL_OUT` or both.

        Returns:
            The events that are ready; 0 if the time was up.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...

def wait_for_any(
    cores: list[SyncCore], events: int, timeout: float | None, room: ReadableEvent | None
) -> list[SyncCore]:
    """Waits until a message can be received from one of several sockets, or sent.

    Args:
        cores: The sockets, each once.
        events: `POLL_IN`, `POLL_OUT` or both; checked.
        timeout: Seconds; `None` for ever; checked.
        room: Becomes readable when one of them may have got room; `None` if that does not matter.

    Returns:
        Those that are ready, in their order; none if the time was up.
    """

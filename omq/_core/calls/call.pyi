import asyncio
from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import Any, Generic, Self, TypeVar

from typing_extensions import Buffer

from omq._core.calls.async_base import AsyncSocketBase
from omq._core.calls.waiter import AsyncTurn
from omq._core.queues.wait_queue import WaitQueue
from omq.message import Message
from omq.types import Unset

_T = TypeVar("_T", covariant=True)

class AsyncWaitQueue(WaitQueue):
    """Wakes the first call that waits; that call passes the wake-up on when it has what it wants."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A Future that is done at the next notification, by which closing waits for the queues to drain."""

    def wake_all(self) -> None:
        """Wakes every call: the socket's state has changed for all of them."""

class Call(Coroutine[Any, Any, _T], Generic[_T]):
    """One call on an asyncio socket. Nothing happens before it is awaited."""

    def __await__(self) -> Generator[Any, Any, _T]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> Any: ...
    def close(self) -> None: ...

class AsyncCore(AsyncSocketBase):
    """The message calls of an asyncio socket."""

    def _set_timeouts(self, send: float | None, recv: float | None) -> None: ...
    @property
    def readable(self) -> AsyncWaitQueue: ...
    @property
    def writable(self) -> AsyncWaitQueue: ...
    @property
    def turn(self) -> AsyncTurn: ...
    def _mark_closed(self) -> None: ...
    def send(self, data: Buffer, *, timeout: float | Unset | None = ...) -> Call[None]:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type does not send, or not now, or this is another loop.
            UnroutableError: No peer has the address (`router_mandatory`).
            ClosedError: The socket is closed.
        """

    def send_multipart(self, parts: Iterable[Buffer], *, timeout: float | Unset | None = ...) -> Call[None]:
        """Sends a whole message, atomically.

        Args:
            parts: The parts, at least one; see `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            Exception: As `send`.
        """

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = ...
    ) -> Call[int]:
        """Sends many messages.

        Args:
            messages: The messages: one part each, see `send`, or a list or a tuple of the parts of a message.
            timeout: Seconds for all of them; see `send`.

        Returns:
            How many were accepted: fewer than given only if the time was up after the first.

        Raises:
            Exception: As `send` and `send_multipart`. What was accepted before it, or before a cancellation, is sent.
        """

    def send_nowait(self, data: Buffer) -> None:
        """Sends a message of one part, or raises; it is not awaited (`asyncio.Queue.put_nowait`).

        The loop has no turn meanwhile: give it one now and then (`await asyncio.sleep(0)`) where many calls follow.

        Args:
            data: The part, see `send`.

        Raises:
            SendTimeout: There is no room, or earlier calls wait for it. Nothing was sent.
            Exception: As `send`.
        """

    def send_multipart_nowait(self, parts: Iterable[Buffer]) -> None:
        """Sends a whole message, or raises; see `send_nowait` and `send_multipart`."""

    def send_many_nowait(self, messages: Iterable[Buffer | Sequence[Buffer]]) -> int:
        """Sends as many messages as there is room for; see `send_nowait` and `send_many`.

        Returns:
            How many were accepted: at least one.

        Raises:
            SendTimeout: There is no room for the first.
            Exception: As `send_many`.
        """

    def poll_nowait(self, events: int = ...) -> int:
        """Returns which of the events are ready, 0 for none; it is not awaited. See `poll`."""

    def recv(self, *, timeout: float | Unset | None = ...) -> Call[bytes]:
        """Takes the next message, which has one part.

        Args:
            timeout: Seconds to wait; `None` for ever, 0 never; left out, `recv_timeout` holds.

        Raises:
            MultipartError: The message has several parts; it stays first in line.
            ReceiveTimeout: No message came in time.
            StateError: The type does not receive, or not now, or this is another loop.
            ClosedError: The socket is closed.
        """

    def recv_multipart(self, *, timeout: float | Unset | None = ...) -> Call[list[bytes]]:
        """Takes the next message whole; raises as `recv`, but for `MultipartError`."""

    def recv_many(self, limit: int = 1024, *, timeout: float | Unset | None = ...) -> Call[list[bytes | list[bytes]]]:
        """Waits for a message and takes what else is there.

        After some 5 ms of work the call stops, whatever the limit: messages may come faster than it takes them.

        Args:
            limit: Messages to take at most, 1 or more.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            The messages: `bytes`, or a list of them where a message has several parts.
        """

    def recv_into(self, buffer: Buffer, *, timeout: float | Unset | None = ...) -> Call[int]:
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

    def recv_message(self, *, timeout: float | Unset | None = ...) -> Call[Message]:
        """Takes the next message as a `Message`: its parts and what is known about its sender."""

    def poll(self, timeout: float | None = None, events: int = ...) -> Call[int]:
        """Waits until a message can be received or sent.

        Args:
            timeout: Seconds; `None` for ever.
            events: `POLL_IN`, `POLL_OUT` or both.

        Returns:
            The events that are ready; 0 if the time was up.
        """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Call[bytes]: ...

from collections.abc import Iterable, Sequence
from typing import NoReturn

from typing_extensions import Buffer

from omq._core.calls.call import AsyncCore, Call
from omq._core.calls.sync import SyncCore
from omq.types import Unset

class RoutedSyncCore(SyncCore):
    """The message calls of a blocking socket whose messages say whom they are for."""

    def send(
        self,
        data: Buffer,
        *,
        routing_id: int | None = ...,
        group: str | bytes | None = ...,
        timeout: float | Unset | None = ...,
    ) -> None:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            routing_id: The number of the peer that the message is for; SERVER and PEER.
            group: The group that the message is for; RADIO.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer, or `routing_id` or `group` is of another type.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type wants the other one of `routing_id` and `group`, or does not send now.
            UnroutableError: No peer has this number.
            ClosedError: The socket is closed.
        """

    def send_multipart(
        self,
        parts: Iterable[Buffer],
        *,
        routing_id: int | None = ...,
        group: str | bytes | None = ...,
        timeout: float | Unset | None = ...,
    ) -> None:
        """Sends a whole message, atomically.

        Args:
            parts: The parts: one, see `send`.
            routing_id: See `send`.
            group: See `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            MultipartError: There are several parts.
            Exception: As `send`.
        """

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = ...
    ) -> NoReturn:
        """Always raises: each message must say whom it is for, and a list of bodies has no place for that.

        Raises:
            StateError: Always.
        """

class RoutedAsyncCore(AsyncCore):
    """The message calls of an asyncio socket whose messages say whom they are for."""

    def send(
        self,
        data: Buffer,
        *,
        routing_id: int | None = ...,
        group: str | bytes | None = ...,
        timeout: float | Unset | None = ...,
    ) -> Call[None]:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            routing_id: The number of the peer that the message is for; SERVER and PEER.
            group: The group that the message is for; RADIO.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer, or `routing_id` or `group` is of another type.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type wants the other one of `routing_id` and `group`, or does not send now.
            UnroutableError: No peer has this number.
            ClosedError: The socket is closed.
        """

    def send_multipart(
        self,
        parts: Iterable[Buffer],
        *,
        routing_id: int | None = ...,
        group: str | bytes | None = ...,
        timeout: float | Unset | None = ...,
    ) -> Call[None]:
        """Sends a whole message, atomically.

        Args:
            parts: The parts: one, see `send`.
            routing_id: See `send`.
            group: See `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            MultipartError: There are several parts.
            Exception: As `send`.
        """

    def send_nowait(self, data: Buffer, *, routing_id: int | None = ..., group: str | bytes | None = ...) -> None:
        """Sends a message of one part, or raises; it is not awaited.

        Args:
            data: The part, see `send`.
            routing_id: See `send`.
            group: See `send`.

        Raises:
            SendTimeout: There is no room. Nothing was sent.
            Exception: As `send`.
        """

    def send_multipart_nowait(
        self, parts: Iterable[Buffer], *, routing_id: int | None = ..., group: str | bytes | None = ...
    ) -> None:
        """Sends a whole message, or raises; see `send_nowait` and `send_multipart`."""

    def send_many_nowait(self, messages: Iterable[Buffer | Sequence[Buffer]]) -> NoReturn:
        """Always raises; see `send_many`.

        Raises:
            StateError: Always.
        """

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = ...
    ) -> NoReturn:
        """Always raises: each message must say whom it is for, and a list of bodies has no place for that.

        Raises:
            StateError: Always.
        """

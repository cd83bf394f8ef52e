"""The calls of the types whose messages name a receiver next to their content: SERVER, PEER and RADIO.

They are not the calls of the other types, because one more keyword argument would cost time with each message.
"""

# stub: from omq.types import Unset

from omq._core.calls.call cimport AsyncCore, finish, send_to
from omq._core.calls.sync cimport SyncCore

from omq.errors import StateError
from omq.types import TRAITS, UNSET, Route, group_of


cdef object chosen(object wanted, str name, object routing_id, object group):
    """Returns the routing id or the group of a message, whichever the type wants."""
    given, other, unwanted = routing_id, group, Route.GROUP
    if wanted is Route.GROUP:
        given, other, unwanted = group, routing_id, Route.ROUTING_ID
    if other is not None:
        takers = ", ".join([kind.value for kind, traits in TRAITS.items() if traits.route is unwanted])
        raise StateError(f"a {name} socket does not take {unwanted.value}=: use it with {takers}")
    if given is None:
        raise StateError(f"a {name} socket needs the receiver of a message: {wanted.value}= is missing")
    if wanted is Route.GROUP:
        return group_of(given)
    # Queues look this value up under the socket's lock, where no user code may run: so only the exact type.
    if type(given) is not int:
        raise TypeError(f"routing_id={given!r}: must be a whole number, not {type(given).__name__}")
    return given


cdef class RoutedSyncCore(SyncCore):
    """The message calls of a blocking socket whose messages name a receiver."""

    def __cinit__(self, *_, **__):
        self._route = TRAITS[self.socket_type].route

    def send(
        self,
        data: Buffer,
        *,
        routing_id: int | None = None,
        group: str | bytes | None = None,
        timeout: float | Unset | None = UNSET,
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
        self._put(data, False, chosen(self._route, self._name(), routing_id, group), timeout)

    def send_multipart(
        self,
        parts: Iterable[Buffer],
        *,
        routing_id: int | None = None,
        group: str | bytes | None = None,
        timeout: float | Unset | None = UNSET,
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
        self._put(parts, True, chosen(self._route, self._name(), routing_id, group), timeout)

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = UNSET
    ) -> NoReturn:
        """Always raises: each message must name its receiver, and a list of bodies has no place for that.

        Raises:
            StateError: Always.
        """
        raise StateError(f"a {self._name()} socket sends one message at a time, with its receiver: use send()")


cdef class RoutedAsyncCore(AsyncCore):
    """The message calls of an asyncio socket whose messages name a receiver."""

    def __cinit__(self, *_, **__):
        self._route = TRAITS[self.socket_type].route

    def send(
        self,
        data: Buffer,
        *,
        routing_id: int | None = None,
        group: str | bytes | None = None,
        timeout: float | Unset | None = UNSET,
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
        return send_to(self, chosen(self._route, self._name(), routing_id, group), (data,), timeout)

    def send_multipart(
        self,
        parts: Iterable[Buffer],
        *,
        routing_id: int | None = None,
        group: str | bytes | None = None,
        timeout: float | Unset | None = UNSET,
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
        return send_to(self, chosen(self._route, self._name(), routing_id, group), parts, timeout)

    def send_nowait(
        self, data: Buffer, *, routing_id: int | None = None, group: str | bytes | None = None
    ) -> None:
        """Sends a message of one part, or raises; not a coroutine.

        Args:
            data: The part, see `send`.
            routing_id: See `send`.
            group: See `send`.

        Raises:
            SendTimeout: There is no room. Nothing was sent.
            Exception: As `send`.
        """
        return finish(send_to(self, chosen(self._route, self._name(), routing_id, group), (data,), 0.0))

    def send_multipart_nowait(
        self, parts: Iterable[Buffer], *, routing_id: int | None = None, group: str | bytes | None = None
    ) -> None:
        """Sends a whole message, or raises; see `send_nowait` and `send_multipart`."""
        return finish(send_to(self, chosen(self._route, self._name(), routing_id, group), parts, 0.0))

    def send_many_nowait(self, messages: Iterable[Buffer | Sequence[Buffer]]) -> NoReturn:
        """Always raises; see `send_many`.

        Raises:
            StateError: Always.
        """
        self.send_many(messages)

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = UNSET
    ) -> NoReturn:
        """Always raises: each message must name its receiver, and a list of bodies has no place for that.

        Raises:
            StateError: Always.
        """
        raise StateError(f"a {self._name()} socket sends one message at a time, with its receiver: use send()")

"""What the portals of both twins have in common: what they are told, and what they are asked."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar

from omq.context import Context
from omq.errors import ClosedError, UsageError
from omq.event import Event, EventKind
from omq.goby.dispatch import Handler, Inbox, TypeHandler
from omq.goby.identifier import checked_group, prefix_of
from omq.goby.scheme import Scheme, SchemeId
from omq.goby.session import Session
from omq.goby.wire import PLATFORM, PORT, Bus
from omq.unpatched import threading

BATCH: Final = 1024  # publications that are taken at once
LINGER: Final = 1.0  # seconds that publications have to leave when the portal closes
LIMIT: Final = 100  # losses that wait: one is enough to look
NAMING: Final = 0.2  # seconds that the manager has to say who is missing, behind a limit that is over
LOOK: Final = 1.0  # seconds between two looks whether the publisher is connected
RECONNECT: Final = 0.05  # seconds between two attempts to connect
HEARTBEAT: Final = 5.0  # seconds between two PINGs over tcp, and after one until something has to come (RFC 37)

# What wakes a portal that waits for the loss of a connection: none of its sockets' events.
NEWS: Final = Event(kind=EventKind.MISSED, time=0.0, reason="something was subscribed to")
LOSSES: Final = frozenset({EventKind.DISCONNECTED, EventKind.MONITOR_STOPPED, NEWS.kind})  # nothing else wakes it

_Subscription = TypeVar("_Subscription")


def check_callback(callback: Callable[[Any], object]) -> None:
    """Raises `UsageError` for a callback of which a call does nothing, or that is none."""
    if not callable(callback):
        raise UsageError(f"callback={callback!r}: cannot be called")
    for called in callback, type(callback).__call__:
        if inspect.iscoroutinefunction(called):
            kind, use = "coroutine function, and nobody would await it", "iterate over what subscribe() returns"
        elif inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            kind, use = "generator function, and nobody would iterate over it", "give a function that returns"
        else:
            continue
        raise UsageError(f"callback={getattr(callback, '__name__', repr(callback))}: is a {kind}: {use}")


class PortalBase(Generic[_Subscription]):
    """A client of a Goby bus, without what waits."""

    _raised: ClassVar[tuple[type[BaseException], ...]] = ()  # what callbacks may raise to end more than themselves

    def __init__(
        self,
        name: str,
        *,
        platform: str = PLATFORM,
        transport: str = "ipc",
        socket_name: str | os.PathLike[str] | None = None,
        address: str = "127.0.0.1",
        port: int = PORT,
        manager_timeout: float = 5.0,
        buffer: int | None = None,
        schemes: Iterable[Scheme] = (),
        context: Context | None = None,
    ) -> None:
        base = None if socket_name is None else os.fspath(socket_name)
        bus = Bus(platform, transport, base, address, port)
        self._session = Session(name, bus, manager_timeout, buffer, schemes, self._raised)
        self._outbox = self._session.outbox
        self._context = context
        self._options: dict[str, Any] = {"reconnect_interval": RECONNECT}
        if transport == "tcp":
            # A host that has lost its power says nothing, and a portal that only listens would wait for ever.
            self._options |= {"ipv6": True, "heartbeat_interval": HEARTBEAT}
        self._changing = threading.RLock()  # what the socket has subscribed to
        self._closed = False
        self._ends = False  # whether it is being closed: what leaves does so, and nothing more is kept
        self._calls = self._new_inbox(self._session.recv_hwm, shared=True)  # what callbacks are called with
        self._set_up()

    def _set_up(self) -> None:
        """The rest of the construction, the twin's."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """The client's name."""
        return self._session.name

    @property
    def released(self) -> bool:
        """Whether publications leave; else they wait for the hold's release."""
        return self._session.released

    @property
    def waiting(self) -> int:
        """Publications that wait for the release, or until what was subscribed to before them is in force."""
        return len(self._outbox)

    @property
    def malformed(self) -> int:
        """Publications that have come and could not be read: they are logged and passed over."""
        return self._session.dispatcher.malformations.count

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    # ------------------------------------------------------------------ subscriptions

    def subscribe(
        self,
        group: str | int,
        type: type,
        callback: Callable[[Any], object] | None = None,
        *,
        scheme: SchemeId | None = None,
        type_name: str | None = None,
    ) -> _Subscription:
        """Subscribes to a type in a group.

        Args:
            group: The group, not empty, without `/` and NUL.
            type: A protobuf class, `str`, `dict`, `bytes`, or what a scheme of one's own handles.
            callback: Called with each message, in a thread of the portal's; `None`: iterate over what is returned.
            scheme: A marshalling scheme's name or number; `None`: what fits the type. `bytes` need it.
            type_name: What the type is called; `None`: as its scheme says. `bytes` need it.

        Returns:
            An iterator of the messages.

        Raises:
            UsageError: The group does not fit, no scheme handles the type, or the callback does not fit.
            ClosedError: The portal is closed.
        """
        codec = self._session.schemes.codec(type, scheme, type_name)
        return self._add(TypeHandler(checked_group(group), codec, self._inbox_for(callback), callback))

    def subscribe_regex(
        self,
        group: str = ".*",
        type: str = ".*",
        schemes: Iterable[SchemeId] | None = None,
        callback: Callable[[Any], object] | None = None,
    ) -> _Subscription:
        """Subscribes to all that fits; what managers and portals say to each other does not.

        Args:
            group: A regular expression that fits the whole of a group.
            type: One that fits the whole of a type's name.
            schemes: Names or numbers of marshalling schemes; `None`: all.
            callback: Called with each publication, in a thread of the portal's; `None`: iterate over what is returned.

        Returns:
            An iterator of `Received`: `group`, `scheme`, `type` and `data`, the payload.

        Raises:
            UsageError: An expression is none, there is no such scheme, or the callback does not fit.
            ClosedError: The portal is closed.
        """
        return self._add(self._session.regex(group, type, schemes, self._inbox_for(callback), callback))

    def unsubscribe(
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Ends all of the portal's subscriptions to a type in a group, if there are any; see `subscribe`.

        Raises:
            UsageError: The group does not fit, or no scheme handles the type.
        """
        codec = self._session.schemes.codec(type, scheme, type_name)
        for handler in self._session.dispatcher.of(prefix_of(checked_group(group), codec.scheme, codec.type)):
            self._remove(handler)

    def register(self, scheme: Scheme) -> None:
        """Adds a marshalling scheme of one's own.

        Raises:
            UsageError: Another one has its name or number.
        """
        self._session.register(scheme)

    def _inbox_for(self, callback: Callable[[Any], object] | None) -> Inbox:
        if callback is None:
            return self._new_inbox(self._session.recv_hwm)
        check_callback(callback)
        return self._calls

    def _new_inbox(self, limit: int, *, shared: bool = False) -> Inbox:
        raise NotImplementedError

    def _inboxes(self) -> set[Inbox]:
        """Where publications wait for the portal's user."""
        return {self._calls, *(one.inbox for one in self._session.dispatcher.handlers if one.inbox is not None)}

    def _add(self, handler: Handler) -> _Subscription:
        raise NotImplementedError

    def _remove(self, handler: Handler) -> None:
        raise NotImplementedError

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self!r} is closed")

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Portal {self.name} at {self._session.bus.manager}>"

"""The base of the blocking and the asyncio sockets: options, subscriptions, peers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn, SupportsIndex

from omq._core.calls.attempt import checked_count as checked_count
from omq._core.calls.description import snapshot
from omq._core.clock import check_timeout as check_timeout
from omq._core.queues.groups import OwnGroups
from omq._core.queues.subscriptions import OwnSubscriptions, PublisherSendQueue
from omq.context import Context
from omq.engine.linger import linger_after_error
from omq.engine.socket import Engine
from omq.errors import ClosedError, ContextTerminated, EndpointError, SendTimeout, StateError, Timeout
from omq.message import PeerInfo, SocketStats
from omq.options import Options
from omq.types import TRAITS, UNSET, SocketType, group_of


class SocketBase:
    """The part of a socket that never waits.

    Attributes:
        socket_type: The socket's type.
    """

    socket_type: ClassVar[SocketType]
    _engine: Engine

    def __init_subclass__(cls, kind: SocketType | None = None, **rest: Any) -> None:
        """Gives the class its socket type, and the docstring of that type."""
        super().__init_subclass__(**rest)
        if kind is not None:
            cls.socket_type = kind
            cls.__doc__ = TRAITS[kind].text
            cls.__module__ = cls.__module__.removesuffix(".socket")  # where users find it

    def _refuse_second_init(self) -> None:
        """Raises if the socket has been initialized: its engine would lose its owner."""
        if hasattr(self, "_engine"):
            raise StateError(f"{self!r} is already initialized: __init__ runs once, when a socket is made")

    @classmethod
    def _context_of(cls, context: Any) -> Context:
        """Returns the context of a new socket.

        Raises:
            TypeError: The class has no socket type; or the argument is not a context, most likely an endpoint.
        """
        if not hasattr(cls, "socket_type"):
            raise TypeError(
                f"{cls.__module__}.{cls.__name__} has no socket type: make one of its types, such as omq.PUSH"
            )
        if context is None:
            return Context.default()
        if not isinstance(context, Context):
            raise TypeError(
                f"context={context!r}: must be a Context, not {type(context).__name__};"
                " give an endpoint as bind= or connect="
            )
        return context

    @property
    def closed(self) -> bool:
        """Returns whether the socket is closed, or closing."""
        return self._engine.closing

    def _closed_error(self, why: str = "is closed") -> ClosedError:
        """Returns the error of a call on a closed socket."""
        text = f"the {self.socket_type.value} socket {why}"
        if self._engine.context.closed:
            return ContextTerminated(f"{text}: its context has been terminated")
        return ClosedError(text)

    def _refuse_closed(self) -> None:
        """Raises if the socket is closed."""
        if self.closed:
            raise self._closed_error()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # A copy would share the engine, and closing one would close the other.
        raise TypeError(
            f"a {self.socket_type.value} socket cannot be copied or pickled: "
            "make another one where it is needed, and give that the endpoint"
        )

    # ------------------------------------------------------------------ dropped

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nothing here may wait: any thread may drop, or collect, the last reference. At the interpreter's end the names
        # of this module may be gone, so the function is an argument.
        engine = None if is_finalizing() else getattr(self, "_engine", None)
        if engine is None or engine.closing or engine.fork_guard.stale:
            return
        served = self._is_served
        in_use = served or engine.in_use
        complaint = f"unclosed {self!r}" if in_use else ""
        if in_use and served:
            self._end_dropped()
        elif not self._close_on_io_thread():
            engine.stop()
        if complaint:
            warnings.warn(complaint, ResourceWarning, stacklevel=2, source=self)

    @property
    def _is_served(self) -> bool:
        """Returns whether there is, or will be, a loop that the engine runs in."""
        return self._engine.in_loop

    def _end_dropped(self) -> None:
        """Closes the socket in its loop, with its linger; keeps the socket alive until then."""
        raise NotImplementedError

    def _close_on_io_thread(self, linger: Any = UNSET) -> bool:
        """Lets the context's I/O thread close a socket whose loop has ended; false if nothing is left to send."""
        return False

    # ------------------------------------------------------------------ options

    @property
    def options(self) -> Options:
        """The options in force."""
        return self._engine.options

    def set_options(self, **options: Any) -> None:
        """Changes options.

        Raises:
            OptionError: An option is unknown, does not fit the socket type, or has an invalid value.
            StateError: The option cannot be changed on a socket that is in use: bound, connected, or given messages.
            ClosedError: The socket is closed.
        """
        self._refuse_closed()
        self._engine_call(self._change_options, options)
        self._apply_options()

    def _change_options(self, options: dict[str, Any]) -> None:
        changed = Options.parse(self.socket_type, options, self._engine.options)
        fixed = [name for name in options if not Options.is_live(name)]
        if fixed and self._engine.in_use:
            raise StateError(f"option {fixed[0]!r} cannot be changed once the socket is in use")
        if fixed:
            self._engine.remake(changed)
            self._attach_queues()
        else:
            self._engine.reconfigure(changed)

    def _engine_call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Makes a call into the engine, on the engine's thread."""
        return call(*arguments)

    def _attach_queues(self) -> None:
        """Attaches the queues of the engine."""
        raise NotImplementedError

    def _apply_options(self) -> None:
        """Applies the options that the calls of this object use."""
        raise NotImplementedError

    @property
    def send_timeout(self) -> float | None:
        """The option `send_timeout`: seconds that sending waits by default; `None` waits for ever."""
        return self.options.send_timeout

    @send_timeout.setter
    def send_timeout(self, value: float | None) -> None:
        self.set_options(send_timeout=value)

    @property
    def recv_timeout(self) -> float | None:
        """The option `recv_timeout`: seconds that receiving waits by default; `None` waits for ever."""
        return self.options.recv_timeout

    @recv_timeout.setter
    def recv_timeout(self, value: float | None) -> None:
        self.set_options(recv_timeout=value)

    def _linger(self, linger: Any) -> float | None:
        """Returns the linger of one `close`; raises before anything ends if it is not valid."""
        given = {} if linger is UNSET else {"linger": linger}
        return Options.parse(self.socket_type, given, self._engine.options).linger

    def linger_after(self, error: BaseException) -> float | None:
        """Returns the linger after *error* has left a `with` block; makes `close` report at once what it waits for."""
        self._engine.report_at_once()
        options = self._engine.options
        return linger_after_error(options.linger, options.error_linger, error)

    # ------------------------------------------------------------------ endpoints

    def _endpoint_call(self, call: Callable[..., Any], endpoint: str, *options: dict[str, Any]) -> Any:
        """Makes a call that changes endpoints, on the engine's thread."""
        return call(endpoint, *options)

    def unbind(self, endpoint: str) -> None:
        """Stops listening on an endpoint; connections that it accepted stay.

        Raises:
            EndpointError: The endpoint is not bound.
            ClosedError: The socket is closed.
        """
        self._endpoint_call(self._engine.endpoints.unbind, endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Stops connecting to an endpoint and ends its connection, the newest one if it has several.

        The connection gets no new messages. It ends in the background when the messages accepted for it have left, or
        `linger` has passed; `close` waits for that, too. Messages that any peer may take stay for the other peers.
        Without other peers they leave with this connection; if there is no connection yet, dialling continues for them
        in the background.

        Raises:
            EndpointError: The endpoint is not connected.
            ClosedError: The socket is closed.
        """
        self._endpoint_call(self._engine.endpoints.disconnect, endpoint)

    @property
    def endpoints(self) -> list[str]:
        """The bound endpoints, resolved; empty once the socket is closed.

        A socket whose `close` waits still listens for peers that fetch its messages, and still has its endpoints.

        In a forked child, these are the parent's endpoints, to connect to.
        """
        return self._engine.endpoints.bound

    def drain(self) -> None:
        """Stops peers from sending, before `close`, without losing what they have sent. For types that only receive.

        The socket stops listening and dialling, and ends its side of each connection. A peer that runs omq sends the
        rest of the batch in progress, and keeps later messages for others; libzmq ends the connection at once. Messages
        that arrived can be received as before. `peers` is empty once every peer has ended its side: from then on
        nothing more arrives.

        The call does not wait, and may be repeated; threads that receive continue. To spare peers from waiting, it
        reads beyond `recv_hwm`, up to 16 MiB a connection. A handshake in progress is finished first, within
        `handshake_timeout`; its peer is in `peers` only then. Heartbeats no longer end a connection, because neither
        side can answer: a peer that hangs, or continues to send, stays in `peers` until it ends its side. So limit the
        wait for that, and `close` ends what is left.

        Raises:
            StateError: The type sends.
            ClosedError: The socket is closed.
        """
        if self._engine.pattern.send_queue is not None or self._engine.pattern.recv_queue is None:
            raise StateError(
                f"a {self.socket_type.value} socket sends: drain is only for types that receive and do not send"
            )
        self._refuse_closed()
        self._engine_call(self._engine.endpoints.drain)

    # ------------------------------------------------------------------ subscriptions

    @property
    def topics_count(self) -> int:
        """The number of distinct prefixes, or groups, in force: the socket's own, or its peers' (`ZMQ_TOPICS_COUNT`).

        Raises:
            StateError: The type has no subscriptions: it is not PUB, XPUB, SUB, XSUB, RADIO or DISH.
            ClosedError: The socket is closed.
        """
        types = SocketType
        self._engine.require_type(types.PUB, types.XPUB, types.SUB, types.XSUB, types.RADIO, types.DISH)
        self._refuse_closed()
        pattern: Any = self._engine.pattern
        return int(pattern.matcher.prefix_count)

    def subscribe(self, prefix: bytes) -> None:
        """Subscribes to messages whose first part starts with *prefix*; SUB and XSUB.

        On an XPUB with `xpub_manual`: accepts a subscription of the peer that the last message came from.

        Raises:
            StateError: The type has no subscriptions; or XPUB has received none.
            ClosedError: The socket is closed.
        """
        self._refuse_in_child()
        self._book().subscribe(_prefix(prefix))

    def unsubscribe(self, prefix: bytes) -> None:
        """Undoes one `subscribe` of the same prefix; SUB and XSUB.

        On an XPUB with `xpub_manual`: removes a subscription of the peer that the last message came from.

        Raises:
            StateError: The type has no subscriptions; or XPUB has received none.
            ClosedError: The socket is closed.
        """
        self._refuse_in_child()
        self._book().unsubscribe(_prefix(prefix))

    def join(self, group: str | bytes) -> None:
        """Joins a group, whose messages peers then send; DISH (RFC 48).

        Args:
            group: At most 255 bytes without a zero byte; text is sent in UTF-8. It may be empty.

        Raises:
            UsageError: The group is joined already, or the name is not valid.
            TypeError: The group is neither `str` nor `bytes`.
            StateError: The type is not DISH.
            ClosedError: The socket is closed.
        """
        self._groups().join(group_of(group))

    def leave(self, group: str | bytes) -> None:
        """Leaves a group; queued messages of the group are dropped. DISH.

        Raises:
            UsageError: The group is not joined.
        """
        self._groups().leave(group_of(group))

    def _groups(self) -> OwnGroups:
        """Returns the groups of a DISH."""
        self._refuse_in_child()
        self._engine.require_type(SocketType.DISH)
        self._refuse_closed()
        pattern: Any = self._engine.pattern
        groups: OwnGroups = pattern.groups
        return groups

    def _book(self) -> OwnSubscriptions | PublisherSendQueue:
        """Returns the object that keeps the subscriptions."""
        engine = self._engine
        book = engine.pattern.book
        if book is None:
            engine.require_type(SocketType.SUB, SocketType.XSUB)
        assert book is not None
        self._refuse_closed()
        return book

    def _refuse_in_child(self) -> None:
        """Raises in a forked child."""
        raise NotImplementedError

    def _not_in_time(self, what: str, timeout: float | None) -> Timeout:
        """Returns the error of a wait for peers or subscriptions, with the last failure if there was one."""
        last_failure = self._engine.reporter.last_failure
        return Timeout(f"not {what} within {timeout} s" + (f"; last failure: {last_failure}" if last_failure else ""))

    def _peer_id(self, found: int | None) -> int:
        """Returns the routing id for `connect_peer`; raises if the socket is closed."""
        if found is None:
            raise self._closed_error("was closed while a call waited")
        return found

    def _not_flushed(self, timeout: float | None) -> Exception:
        """Returns the error of a `flush` that has not finished."""
        if self.closed:
            return self._closed_error("was closed while a call waited")
        return SendTimeout(f"not all accepted messages have left within {timeout} s")

    def _connected(self, n: int) -> Callable[[], bool]:
        """Returns the condition that *n* peers have finished the handshake."""
        n = checked_count("n", n, 0)
        return lambda: self._engine.peer_count >= n

    def _refuse_unless_sending(self) -> None:
        """Raises if the type does not send."""
        if self._engine.pattern.send_queue is None:
            raise StateError(f"a {self.socket_type.value} socket does not send")

    def _subscribed(self, prefix: str | bytes | None, n: int) -> Callable[[], bool]:
        """Returns the condition that *n* subscriptions are in force."""
        self._engine.require_type(SocketType.PUB, SocketType.XPUB, SocketType.RADIO)
        n = checked_count("n", n, 0)
        if prefix is not None:
            prefix = group_of(prefix) if self.socket_type is SocketType.RADIO else _prefix(prefix)
        pattern: Any = self._engine.pattern

        def reached() -> bool:
            return bool(pattern.subscriptions(prefix) >= n)

        return reached

    # ------------------------------------------------------------------ peers

    def _may_monitor(self) -> Engine:
        """Returns the engine, for a monitor; raises if the socket is closed or inherited by a fork."""
        if self._engine.fork_guard.stale:
            raise StateError(f"the {self.socket_type.value} socket belongs to the parent process")
        self._refuse_closed()
        return self._engine

    @property
    def peers(self) -> list[PeerInfo]:
        """Snapshots of the peers that have finished the handshake; empty once the socket is closed.

        Raises:
            StateError: The process has forked.
        """
        self._refuse_in_child()
        return [snapshot(session) for session in self._engine.sessions]

    @property
    def stats(self) -> SocketStats:
        """The statistics since the socket was made, also of a closed one; any thread may read them.

        Raises:
            StateError: The process has forked.
        """
        self._refuse_in_child()
        return self._engine.stats()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._engine.peer_count} peers"
        return " ".join([f"<{type(self).__module__}.{type(self).__name__}", *self.endpoints, f"{state}>"])


def several(endpoints: str | Iterable[str] | None) -> Iterable[str]:
    """Returns one endpoint, several or none as an iterable."""
    if endpoints is None:
        return ()
    if isinstance(endpoints, str):
        return (endpoints,)
    if isinstance(endpoints, bytes | bytearray | memoryview) or not isinstance(endpoints, Iterable):
        raise EndpointError(f"endpoint={endpoints!r}: must be a str, not {type(endpoints).__name__}")
    return endpoints


def _prefix(prefix: object) -> bytes:
    if not isinstance(prefix, bytes):
        raise TypeError(f"prefix={prefix!r}: must be bytes, not {type(prefix).__name__}")
    return prefix

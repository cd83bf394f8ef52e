"""The endpoints of one socket: its listeners and its dialers, for all transports."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from omq._core.link.handshake_io import HeadStart
from omq._core.queues.send_queue import RoundRobin
from omq.engine.connect_attempts import ConnectAttempts
from omq.engine.datagram import DatagramDialer, DatagramListener, refuse_security
from omq.engine.dialer import Dialer
from omq.engine.dialer_base import DialerBase
from omq.engine.inproc import InprocDialer, InprocListener
from omq.engine.lifecycle import DialerState
from omq.engine.listener import Listener
from omq.engine.views import SocketView
from omq.errors import (
    AlreadyConnected,
    BindError,
    ConnectError,
    EndpointError,
    LocalProtocolError,
    OptionError,
    Timeout,
)
from omq.event import EventKind
from omq.options import Options
from omq.transport import (
    DatagramTransport,
    StreamTransport,
    Transport,
    check_fit,
    parse_endpoint,
    refusal,
    transport_of,
)
from omq.types import ONE_CONNECTION, TRAITS
from omq.zmtp.handshake_cache import null_handshake_bytes

_AnyListener: TypeAlias = Listener | DatagramListener | InprocListener
_AnyDialer: TypeAlias = Dialer | DatagramDialer | InprocDialer

_MAX_ENDED_DIALERS = 1000  # ended dialers that may be kept


class ConnectRoute(NamedTuple):
    """The parsed arguments of one call of `connect`.

    Attributes:
        name: The endpoint, as text.
        endpoint: The endpoint.
        transport: Its transport.
        options: The options of the endpoint.
    """

    name: str
    endpoint: Any
    transport: Any
    options: Options


class Endpoints:
    """The endpoints of one socket.

    Args:
        engine: The socket.

    Attributes:
        listeners: The listeners, by resolved endpoint.
        dialers: The dialers, by endpoint; several if the user has connected it several times.
        leaving: The dialers that were disconnected, and have messages for their endpoint.
    """

    def __init__(self, engine: SocketView) -> None:
        self._found = weakref.ref(engine)
        self.listeners: dict[str, _AnyListener] = {}
        self.dialers: dict[str, list[_AnyDialer]] = {}
        self.leaving: set[DialerBase] = set()
        self._ended = 0  # about the number of dialers that have ended by themselves
        self._some_immediate = False  # an endpoint has another value of `immediate` than the socket
        self._fd_used = False  # a call has used the socket's own `use_fd`
        # Endpoints that threads have queued and the I/O thread has not dialled, by name.
        self._queued: dict[str, tuple[ConnectRoute, HeadStart | None]] = {}

    @property
    def _engine(self) -> SocketView:
        """The socket, which outlives this object; the listeners and dialers keep it until they are closed."""
        engine = self._found()
        assert engine is not None
        return engine

    def start(self) -> None:
        """Starts to listen and dial: there is a loop."""
        for listener in self.listeners.values():
            listener.start()
        for dialer in self._dialling():
            dialer.start()

    def _dialling(self) -> Iterator[_AnyDialer]:
        return itertools.chain.from_iterable(self.dialers.values())

    def _all(self) -> tuple[Any, ...]:
        return (*self.listeners.values(), *self._dialling(), *self.leaving)

    def _options(self, call: str, text: str, transport: Transport[Any], given: Mapping[str, Any] | None) -> Options:
        """Returns the options of an endpoint; raises if its transport, or an option, does not fit the socket."""
        socket_type = self._engine.socket_type
        check_fit(transport, socket_type, call, text)
        options = self._engine.options.for_endpoint(socket_type, call, text, given or {}, transport.options)
        if isinstance(transport, DatagramTransport):
            refuse_security(text, options)
        transport.check(text, options, bind=call == "bind")
        return options

    # ------------------------------------------------------------------ bound

    def bind(self, text: str, given: Mapping[str, Any] | None = None) -> str:
        """Listens; returns the resolved endpoint. *given*: options for this endpoint alone."""
        endpoint = parse_endpoint(text, bind=True)
        transport = transport_of(endpoint)
        options = self._options("bind", text, transport, given)
        self._refuse_descriptor_in_use(options.use_fd)
        listener: _AnyListener
        try:
            if isinstance(transport, StreamTransport):
                listener = Listener(self._engine, transport, endpoint, options)
            elif isinstance(transport, DatagramTransport):
                listener = DatagramListener(self._engine, transport, endpoint, options)
            else:
                listener = InprocListener(self._engine, str(endpoint), options)
        except BindError as error:
            self._engine.emit(EventKind.BIND_FAILED, text, reason=error)
            raise
        # The file of an ipc endpoint was deleted and its path is free: the new listener replaces ours.
        before = self.listeners.pop(listener.endpoint, None)
        if before is not None:
            self._unlisten(before, "bound again: its file was deleted")
        self.listeners[listener.endpoint] = listener
        self._engine.emit(EventKind.LISTENING, listener.endpoint, descriptor=listener.descriptor)
        if self._engine.has_loop:
            self._start_listening(listener)
        self._record_descriptor(options.use_fd)
        return listener.endpoint

    def _start_listening(self, listener: _AnyListener) -> None:
        try:
            listener.start()
        except OSError as error:  # the loop cannot watch more descriptors
            del self.listeners[listener.endpoint]
            if isinstance(listener, Listener):
                listener.give_back()
            self._unlisten(listener, "the loop cannot accept connections")
            refused = refusal(BindError, listener.endpoint, error)
            self._engine.emit(EventKind.BIND_FAILED, listener.endpoint, reason=refused)
            raise refused from error

    def unbind(self, text: str) -> None:
        """Stops listening; accepted connections stay."""
        listener = self.listeners.pop(text, None) or self.listeners.pop(str(parse_endpoint(text, bind=True)), None)
        if listener is None:
            known = ", ".join(self.listeners) or "nothing"
            raise EndpointError(f"{text!r} is not bound; bound is {known}")
        self._unlisten(listener, "unbind")

    def stop_listening(self) -> None:
        """Unbinds everything."""
        for name in list(self.listeners):
            self._unlisten(self.listeners.pop(name), "the interpreter is exiting")

    def _unlisten(self, listener: _AnyListener, reason: str) -> None:
        descriptor = listener.descriptor
        listener.close()
        self._engine.emit(EventKind.CLOSED, listener.endpoint, reason=reason, descriptor=descriptor)

    @property
    def bound(self) -> list[str]:
        """The bound endpoints, resolved."""
        return list(self.listeners)

    # ------------------------------------------------------------------ connected

    def connect(self, text: str, given: Mapping[str, Any] | None = None) -> str:
        """Dials in the background; returns the endpoint. *given*: options for this endpoint alone."""
        route = self.route(text, given)
        before = self._dials_already(route)
        if before is not None:
            _refuse_other_options(before, route.options, given or {})
        else:
            self._dial(route)
        return route.name

    async def connect_peer(self, text: str, given: Mapping[str, Any], timeout: float | None) -> int | None:
        """Dials, and waits for the handshake; returns the peer's routing id, or `None` if the socket is closed.

        Without a peer, the endpoint is disconnected again.

        Raises:
            ConnectError: The dialer has ended.
            Timeout: No peer has connected in time.
        """
        route = self.route(text, given)
        dialer = self._dial(route)
        # Of this endpoint alone: the last failure of the whole socket may be another endpoint's.
        connect_attempts = ConnectAttempts(route.name)

        def connected_or_closed() -> bool:
            session = dialer.session
            return dialer.state is DialerState.CLOSED or (session is not None and session.is_linked)

        number: int | None = None
        self._engine.connect_attempts.add(connect_attempts)
        try:
            # No other step of the loop runs between the check and the reading.
            if await self._engine.wait_until(connected_or_closed, timeout) and dialer.state is not DialerState.CLOSED:
                assert dialer.session is not None
                number = dialer.session.peer.routing_id
            elif not self._engine.closing:
                why = f"; last failure: {connect_attempts.last_failure}" if connect_attempts.last_failure else ""
                if dialer.state is DialerState.CLOSED:
                    raise ConnectError(f"connect_peer: {route.name!r} has no peer, and dialling has stopped{why}")
                raise Timeout(f"no peer at {route.name} within {timeout} s{why}")
        finally:
            self._engine.connect_attempts.discard(connect_attempts)
            if number is None:
                self._withdraw(route.name, dialer)
        return number

    def _withdraw(self, name: str, dialer: _AnyDialer) -> None:
        """Ends a dialer that has found no peer; others of its endpoint stay."""
        dialers = self.dialers.get(name, [])
        if dialer in dialers:
            dialers.remove(dialer)
            if not dialers:
                del self.dialers[name]
            self._apply_immediate()
            dialer.close()

    def route(self, text: str, given: Mapping[str, Any] | None = None) -> ConnectRoute:
        """Parses the arguments of `connect`; on any thread."""
        endpoint = parse_endpoint(text, bind=False)
        transport = transport_of(endpoint)
        options = self._options("connect", text, transport, given)
        return ConnectRoute(str(endpoint), endpoint, transport, options)

    def queue_connect(self, route: ConnectRoute) -> bool:
        """Queues an endpoint for `dial_queued`, on any thread.

        Connects at once if no name has to be resolved and the mechanism is NULL (`_start_early`).

        Returns:
            Whether the endpoint is queued. Otherwise the caller must call `connect`: the transport has no stream
                (inproc, udp), the endpoint is connected or queued already, or an error of `use_fd` must reach the
                caller.
        """
        if not isinstance(route.transport, StreamTransport) or route.name in self.dialers or route.name in self._queued:
            return False
        if route.options.use_fd is not None:
            return False  # the caller must get the error of a descriptor that does not fit
        immediate, is_first = route.options.immediate, not (self.dialers or self._queued)
        self._queued[route.name] = route, None
        queue = self._engine.pattern.send_queue
        if (is_first or not immediate) and isinstance(queue, RoundRobin):
            queue.immediate = immediate  # for the next call of this thread: the I/O thread may dial later
        head_start = self._start_early(route)
        if route.name in self._queued:
            self._queued[route.name] = route, head_start
        elif head_start is not None:
            head_start.close()  # the I/O thread has dialled it already
        return True

    def cancel_connect(self, route: ConnectRoute) -> None:
        """Removes an endpoint from the queue unless `dial_queued` has dialled it; on any thread."""
        _, head_start = self._queued.pop(route.name, (route, None))
        if head_start is not None:
            head_start.close()

    def cancel_queued(self) -> None:
        """Removes all endpoints from the queue of a socket that is closed: `connect` may have been overtaken."""
        while self._queued:
            _, head_start = self._queued.popitem()[1]
            if head_start is not None:
                head_start.close()

    def _start_early(self, route: ConnectRoute) -> HeadStart | None:
        """Connects, and sends our side of the handshake, on the caller's thread; `None` where that is not possible.

        It is possible with a numeric address and the NULL mechanism, because our side does not depend on the peer's. A
        type with one peer does so for the first only: a peer that must be refused may not get a greeting.
        """
        engine, options = self._engine, route.options
        traits = TRAITS[engine.socket_type]
        if options.security is not None or options.zap_domain or not traits.handshakes:
            return None
        if traits.one_peer and (self.listeners or self.dialers or len(self._queued) > 1):
            return None
        answers = [lookup.known for lookup in route.transport.lookups(route.endpoint, options)]
        address = route.transport.address(route.endpoint, options, answers) if all(answers) else None
        if address is None:
            return None
        try:
            greeting = null_handshake_bytes(engine.socket_type, tuple(engine.properties(options).items()))
        except LocalProtocolError:
            return None  # the handshake reports it
        return HeadStart(address.family, address.name, address.settings, greeting)

    def dial_queued(self) -> None:
        """Dials the queued endpoints, unless another thread has done so."""
        while self._queued:
            route, head_start = self._queued.pop(next(iter(self._queued)))
            if self._dials_already(route) is None:
                self._dial(route, head_start)
            elif head_start is not None:
                head_start.close()

    def _dial(self, route: ConnectRoute, head_start: HeadStart | None = None) -> _AnyDialer:
        dialer: _AnyDialer
        if isinstance(route.transport, StreamTransport):
            fd = route.options.use_fd
            self._refuse_descriptor_in_use(fd)
            given = None if fd is None else route.transport.take_connected(fd, route.endpoint, route.options)
            dialer = Dialer(self._engine, route.transport, route.endpoint, route.options, given)
            self._record_descriptor(fd)
        elif isinstance(route.transport, DatagramTransport):
            dialer = DatagramDialer(self._engine, route.transport, route.endpoint, route.options)
        else:
            dialer = InprocDialer(self._engine, route.name, route.options)
        if self._ended > _MAX_ENDED_DIALERS:
            self._forget_ended()
        self.dialers.setdefault(route.name, []).append(dialer)
        self._some_immediate |= route.options.immediate is not self._engine.options.immediate
        self._apply_immediate()
        if self._engine.has_loop:
            if head_start is not None and isinstance(dialer, Dialer):
                dialer.start(head_start)
            else:
                dialer.start()
        return dialer

    def _apply_immediate(self) -> None:
        """Lets messages wait without a peer while a connected endpoint allows it; without one, the socket decides."""
        engine = self._engine
        queue = engine.pattern.send_queue
        if not self._some_immediate or engine.closed or not isinstance(queue, RoundRobin):
            return
        values = (one.options.immediate for one in self._dialling() if one.state is not DialerState.CLOSED)
        with engine.lock:
            queue.set_immediate(next(values, engine.options.immediate or bool(self._queued)) and all(values))
            if not all(route.options.immediate for route, _ in tuple(self._queued.values())):
                queue.set_immediate(False)

    def _refuse_descriptor_in_use(self, fd: int | None) -> None:
        """Raises if a descriptor of the program is, or was, in use by the socket already."""
        if fd is None:
            return
        one: Any
        for one in itertools.chain(self.listeners.values(), self.open_dialers()):
            held = isinstance(one, Listener) or (isinstance(one, Dialer) and one.holds_given)
            if held and one.options.use_fd == fd:
                raise OptionError(f"option use_fd={fd} is already used for {one.endpoint}; open another descriptor")
        if self._fd_used and fd == self._engine.options.use_fd:
            # It may be closed by now, and its number reused for another descriptor, such as one of our own.
            raise OptionError(
                f"option use_fd={fd} of the socket was already used by a call; pass one to each call instead"
            )

    def _record_descriptor(self, fd: int | None) -> None:
        """Records that the socket's own `use_fd` is in use."""
        if fd is not None and fd == self._engine.options.use_fd:
            self._fd_used = True

    def _dials_already(self, route: ConnectRoute) -> DialerBase | None:
        """Returns the dialer that makes a second one harmful. Over inproc a second one is made, as in libzmq."""
        if self._engine.socket_type not in ONE_CONNECTION or not isinstance(route.transport, StreamTransport):
            return None
        dialers = self.dialers.get(route.name, [])
        # Dialers that have given up do not count, and must not stay for a `disconnect` either.
        dialers[:] = [dialer for dialer in dialers if dialer.state is not DialerState.CLOSED]
        return dialers[0] if dialers else None

    def disconnect(self, text: str) -> None:
        """Removes an endpoint, or one of its dialers if there are several; see `DialerBase.disconnect`."""
        name = str(parse_endpoint(text, bind=False))
        dialers = self.dialers.get(name)
        if not dialers:
            known = ", ".join(self.dialers) or "nothing"
            raise EndpointError(f"{text!r} is not connected; connected is {known}")
        # Dialers that have ended come first: they have no connection, and would be taken for one that lives.
        dialers.sort(key=lambda dialer: dialer.state is not DialerState.CLOSED)
        # Added before the removal, so that a signal handler that raises leaves no dialer without an owner.
        self.leaving.add(dialers[-1])
        dialer = dialers.pop()
        if not dialers:
            del self.dialers[name]
        self._apply_immediate()
        dialer.disconnect()

    def drain(self) -> None:
        """Stops listening and dialling, and makes every peer stop sending."""
        for name in list(self.listeners):
            self._unlisten(self.listeners.pop(name), "drain")
        dialers = list(self._dialling())
        self.dialers.clear()
        for dialer in dialers:
            dialer.drain()
        self._engine.drain()

    def dialer_over(self, dialer: object) -> None:
        """Handles a dialer that has ended by itself."""
        if dialer in self.leaving:
            self.leaving.discard(dialer)
        else:
            self._ended += 1
            self._apply_immediate()
        self._engine.changed()

    def dialer_closed(self, dialer: object) -> None:
        """Handles a dialer that was closed."""
        if dialer in self.leaving:
            self.leaving.discard(dialer)
            self._engine.changed()

    def _forget_ended(self) -> None:
        """Removes dialers that have ended by themselves; otherwise only `disconnect` would."""
        self._ended = 0
        for name, dialers in list(self.dialers.items()):
            dialers[:] = [dialer for dialer in dialers if dialer.state is not DialerState.CLOSED]
            if not dialers:
                del self.dialers[name]

    # ------------------------------------------------------------------ their state

    @property
    def in_use(self) -> bool:
        """Returns whether there are any endpoints."""
        return bool(self.listeners or self.dialers or self.leaving)

    @property
    def can_end_unnoticed(self) -> bool:
        """Returns whether they can end unnoticed: no name is taken, no endpoint has messages of its own; any thread."""
        if self.listeners or self.leaving:
            return False
        return all(isinstance(one, Dialer) for dialers in tuple(self.dialers.values()) for one in tuple(dialers))

    @property
    def may_bring_peers(self) -> bool:
        """Returns whether an endpoint is bound, or is connected and has not given up."""
        dials = any(dialer.state is not DialerState.CLOSED for dialer in self._dialling())
        return dials or bool(self.listeners or self._queued)

    @property
    def names(self) -> list[str]:
        """The endpoints that may take accepted messages: connected, leaving, or bound."""
        leaving = (dialer.endpoint for dialer in self.leaving)
        return list(dict.fromkeys((*self.dialers, *leaving, *self.listeners)))

    @property
    def dialled(self) -> list[tuple[str, ...]]:
        """The endpoints that are connected, leaving or queued, each with its peer's address if known; on any thread."""
        found: list[tuple[str, ...]] = [(endpoint,) for endpoint in tuple(self._queued)]
        for dialer in self.open_dialers():
            session = dialer.session
            found.append((dialer.endpoint,) if session is None else (dialer.endpoint, session.remote_address))
        return found

    @property
    def reached(self) -> list[tuple[str, ...]]:
        """The same for peers that were dialled and have finished the handshake."""
        found = (dialer.session for dialer in self.open_dialers())
        return [(one.endpoint, one.remote_address) for one in found if one is not None and one.is_ready]

    def open_dialers(self) -> list[Any]:
        """The dialers that have not given up, including those that leave; on any thread."""
        found = itertools.chain(*(tuple(dialers) for dialers in tuple(self.dialers.values())), tuple(self.leaving))
        return [dialer for dialer in found if dialer.state is not DialerState.CLOSED]

    @property
    def unsent(self) -> int:
        """The number of messages queued for endpoints that were disconnected."""
        return sum(len(dialer.messages) for dialer in self.leaving)

    @property
    def drained(self) -> bool:
        """Returns whether no messages are queued for endpoints that were disconnected."""
        return not any(dialer.messages for dialer in self.leaving)

    # ------------------------------------------------------------------ the end

    def revive(self) -> None:
        """Dials again if the end of the program has cancelled all tasks of the loop."""
        for dialer in [*self._dialling(), *self.leaving]:
            dialer.revive()

    def leave_loop(self) -> None:
        """Leaves a loop that ends, or has ended."""
        for one in self._all():
            one.leave_loop()

    def enter_loop(self) -> None:
        """Continues in another loop, after the sessions."""
        for one in self._all():
            one.enter_loop()

    def last_steps(self) -> list[Callable[[], object]]:
        """Returns the steps that end all endpoints, in order."""
        steps: list[Callable[[], object]] = []
        steps += [partial(self._unlisten, listener, "the socket is closed") for listener in self.listeners.values()]
        steps += [dialer.close for dialer in self._dialling()]
        steps += [dialer.close for dialer in self.leaving]
        return [*steps, self.cancel_queued, self.listeners.clear, self.dialers.clear]

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child, and changes nothing else."""
        for one in self._all():
            one.close_after_fork()
        for _, head_start in self._queued.values():
            if head_start is not None:
                head_start.close()


def _refuse_other_options(before: DialerBase, options: Options, given: Mapping[str, Any]) -> None:
    """Raises unless the options given for an endpoint that is connected already are those in force."""
    for name in given:
        if getattr(before.options, name) != getattr(options, name):
            raise AlreadyConnected(f"{before.endpoint} is already connected with another {name!r}: disconnect it first")

"""The endpoints of one socket: its listeners and its dialers, whatever their transport."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from omq._core.link.handshake_io import HeadStart
from omq.engine.attempts import Attempts
from omq.engine.datagram import DatagramDialer, DatagramListener, refuse_security
from omq.engine.dialer import Dialer
from omq.engine.dialer_base import DialerBase
from omq.engine.inproc import InprocDialer, InprocListener
from omq.engine.lifecycle import DialerState
from omq.engine.listener import Listener
from omq.engine.views import SocketView
from omq.errors import BindError, ConnectError, EndpointError, LocalProtocolError, OptionError, Timeout
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
from omq.zmtp.rehearsed import opening

_AnyListener: TypeAlias = Listener | DatagramListener | InprocListener
_AnyDialer: TypeAlias = Dialer | DatagramDialer | InprocDialer

_MAX_ENDED_DIALERS = 1000  # dialers that may be remembered after their end


class ConnectRoute(NamedTuple):
    """The parsed arguments of one call of `connect`.

    Attributes:
        name: The endpoint, as a text.
        endpoint: The endpoint.
        transport: Its transport.
        options: What holds for it.
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
        listeners: What is bound, by its resolved endpoint.
        dialers: What is connected, by endpoint; more than once where the user has said so.
        leaving: What was disconnected, and has messages for its endpoint.
    """

    def __init__(self, engine: SocketView) -> None:
        self._found = weakref.ref(engine)
        self.listeners: dict[str, _AnyListener] = {}
        self.dialers: dict[str, list[_AnyDialer]] = {}
        self.leaving: set[DialerBase] = set()
        self._spent = 0  # dialers that have ended by themselves, about
        self._fd_spent = False  # the descriptor that the whole socket was given has served a call
        # What threads have asked for and the I/O thread has not begun, by endpoint.
        self._asked: dict[str, tuple[ConnectRoute, HeadStart | None]] = {}

    @property
    def _engine(self) -> SocketView:
        """The socket, which lives at least as long; what is bound and connected keeps it, and is let go at its end."""
        engine = self._found()
        assert engine is not None
        return engine

    def start(self) -> None:
        """There is a loop to serve them in."""
        for listener in self.listeners.values():
            listener.start()
        for dialer in self._dialling():
            dialer.start()

    def _dialling(self) -> Iterator[_AnyDialer]:
        return itertools.chain.from_iterable(self.dialers.values())

    def _all(self) -> tuple[Any, ...]:
        return (*self.listeners.values(), *self._dialling(), *self.leaving)

    def _options(self, call: str, text: str, transport: Transport[Any], given: Mapping[str, Any] | None) -> Options:
        """Returns what holds for an endpoint; raises if its transport, or an option, does not fit the socket."""
        socket_type = self._engine.socket_type
        check_fit(transport, socket_type, call, text)
        options = self._engine.options.for_endpoint(socket_type, call, text, given or {}, transport.options)
        if isinstance(transport, DatagramTransport):
            refuse_security(text, options)
        transport.check(text, options, bind=call == "bind")
        return options

    # ------------------------------------------------------------------ bound

    def bind(self, text: str, given: Mapping[str, Any] | None = None) -> str:
        """Listens; gives the resolved endpoint. *given*: options for this endpoint alone."""
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
                listener = InprocListener(self._engine, str(endpoint))
        except BindError as error:
            self._engine.emit(EventKind.BIND_FAILED, text, reason=error)
            raise
        # Somebody has deleted the file of an ipc endpoint, and its path is free: the new listener replaces ours.
        before = self.listeners.pop(listener.endpoint, None)
        if before is not None:
            self._unlisten(before, "bound anew: its file was gone")
        self.listeners[listener.endpoint] = listener
        self._engine.emit(EventKind.LISTENING, listener.endpoint)
        if self._engine.has_loop:
            self._start_listening(listener)
        self._note_descriptor(options.use_fd)
        return listener.endpoint

    def _start_listening(self, listener: _AnyListener) -> None:
        try:
            listener.start()
        except OSError as error:  # the loop takes no more descriptors
            del self.listeners[listener.endpoint]
            if isinstance(listener, Listener):
                listener.give_back()
            self._unlisten(listener, "nobody can accept")
            refused = refusal(BindError, listener.endpoint, error)
            self._engine.emit(EventKind.BIND_FAILED, listener.endpoint, reason=refused)
            raise refused from error

    def unbind(self, text: str) -> None:
        """Stops listening; connections that came in go on."""
        listener = self.listeners.pop(text, None) or self.listeners.pop(str(parse_endpoint(text, bind=True)), None)
        if listener is None:
            known = ", ".join(self.listeners) or "nothing"
            raise EndpointError(f"{text!r} is not bound; bound is {known}")
        self._unlisten(listener, "unbind")

    def stop_listening(self) -> None:
        """Unbinds everything."""
        for name in list(self.listeners):
            self._unlisten(self.listeners.pop(name), "the interpreter ends")

    def _unlisten(self, listener: _AnyListener, reason: str) -> None:
        listener.close()
        self._engine.emit(EventKind.CLOSED, listener.endpoint, reason=reason)

    @property
    def bound(self) -> list[str]:
        """The bound endpoints, resolved."""
        return list(self.listeners)

    # ------------------------------------------------------------------ connected

    def connect(self, text: str, given: Mapping[str, Any] | None = None) -> str:
        """Dials in the background; gives the endpoint. *given*: options for this endpoint alone."""
        route = self.route(text, given)
        before = self._dials_already(route)
        if before is not None:
            _refuse_others(before, route.options, given or {})
        else:
            self._dial(route)
        return route.name

    async def connect_peer(self, text: str, given: Mapping[str, Any], timeout: float | None) -> int | None:
        """Dials, and waits for the handshake; gives the peer's routing id, or `None` if the socket is closed meanwhile.

        Without a peer the endpoint is connected no longer.

        Raises:
            ConnectError: The dialer has ended.
            Timeout: There is no peer in time.
        """
        route = self.route(text, given)
        dialer = self._dial(route)
        # Of this endpoint alone: the last failure of the whole socket may be another endpoint's.
        attempts = Attempts(route.name)

        def settled() -> bool:
            session = dialer.session
            return dialer.state is DialerState.CLOSED or (session is not None and session.is_linked)

        number: int | None = None
        self._engine.attempts.add(attempts)
        try:
            # No other step of the loop comes between the look and the reading.
            if await self._engine.wait_until(settled, timeout) and dialer.state is not DialerState.CLOSED:
                assert dialer.session is not None
                number = dialer.session.peer.routing_id
            elif not self._engine.closing:
                why = f"; last failure: {attempts.trouble}" if attempts.trouble else ""
                if dialer.state is DialerState.CLOSED:
                    raise ConnectError(f"connect_peer: {route.name!r} has no peer, and is dialled no more{why}")
                raise Timeout(f"not a peer at {route.name} within {timeout} s{why}")
        finally:
            self._engine.attempts.discard(attempts)
            if number is None:
                self._withdraw(route.name, dialer)
        return number

    def _withdraw(self, name: str, dialer: _AnyDialer) -> None:
        """Ends a dialer that has brought no peer; others of its endpoint stay."""
        dialers = self.dialers.get(name, [])
        if dialer in dialers:
            dialers.remove(dialer)
            if not dialers:
                del self.dialers[name]
            dialer.close()

    def route(self, text: str, given: Mapping[str, Any] | None = None) -> ConnectRoute:
        """Parses the arguments of `connect`; on any thread."""
        endpoint = parse_endpoint(text, bind=False)
        transport = transport_of(endpoint)
        options = self._options("connect", text, transport, given)
        return ConnectRoute(str(endpoint), endpoint, transport, options)

    def ask(self, route: ConnectRoute) -> bool:
        """Notes an endpoint for `dial_asked`, on any thread, and begins to connect where no name has to be looked up.

        Returns:
            Whether `dial_asked` will not fail, and its effect not show before it has had time. A name that is connected
            already may have other options, and the two ends of a pipe see each other at once.
        """
        if not isinstance(route.transport, StreamTransport) or route.name in self.dialers or route.name in self._asked:
            return False
        if route.options.use_fd is not None:
            return False  # whether the descriptor fits, the caller is to know
        self._asked[route.name] = route, None
        head_start = self._begin(route)
        if route.name in self._asked:
            self._asked[route.name] = route, head_start
        elif head_start is not None:
            head_start.close()  # the I/O thread was quicker
        return True

    def ask_no_more(self, route: ConnectRoute) -> None:
        """Withdraws `ask` unless `dial_asked` has begun; on any thread."""
        _, head_start = self._asked.pop(route.name, (route, None))
        if head_start is not None:
            head_start.close()

    def _begin(self, route: ConnectRoute) -> HeadStart | None:
        """Connects on the caller's thread, and says what we have to say, where neither depends on anybody.

        So it is with an address in figures and the mechanism NULL: what we say does not follow from what the peer says.
        A type with one peer says it to the first only: one that has to be turned away must not hear a greeting.
        """
        engine, options = self._engine, route.options
        traits = TRAITS[engine.socket_type]
        if options.security is not None or options.zap_domain or not traits.handshakes:
            return None
        if traits.one_peer and (self.listeners or self.dialers or len(self._asked) > 1):
            return None
        answers = [lookup.known for lookup in route.transport.lookups(route.endpoint, options)]
        address = route.transport.address(route.endpoint, options, answers) if all(answers) else None
        if address is None:
            return None
        try:
            greeting = opening(engine.socket_type, tuple(engine.properties().items()))
        except LocalProtocolError:
            return None  # it is told where the handshake begins
        return HeadStart(address.family, address.name, address.settings, greeting)

    def dial_asked(self) -> None:
        """Connects the endpoints that `ask` has noted, unless another thread was quicker."""
        while self._asked:
            route, head_start = self._asked.pop(next(iter(self._asked)))
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
            self._note_descriptor(fd)
        elif isinstance(route.transport, DatagramTransport):
            dialer = DatagramDialer(self._engine, route.transport, route.endpoint, route.options)
        else:
            dialer = InprocDialer(self._engine, route.name, route.options)
        if self._spent > _MAX_ENDED_DIALERS:
            self._forget_spent()
        self.dialers.setdefault(route.name, []).append(dialer)
        if self._engine.has_loop:
            if head_start is not None and isinstance(dialer, Dialer):
                dialer.start(head_start)
            else:
                dialer.start()
        return dialer

    def _refuse_descriptor_in_use(self, fd: int | None) -> None:
        """Raises if a descriptor that the program gives is, or was, one of the socket's already."""
        if fd is None:
            return
        one: Any
        for one in itertools.chain(self.listeners.values(), self.open_dialers()):
            held = isinstance(one, Listener) or (isinstance(one, Dialer) and one.holds_given)
            if held and one.options.use_fd == fd:
                raise OptionError(f"option use_fd={fd}: is in use for {one.endpoint} already")
        if self._fd_spent and fd == self._engine.options.use_fd:
            # It may be closed by now, and its number that of another descriptor, such as one of our own.
            raise OptionError(
                f"option use_fd={fd} of the socket: has served a call already; give it to each call alone"
            )

    def _note_descriptor(self, fd: int | None) -> None:
        """Notes that a descriptor has become the socket's."""
        if fd is not None and fd == self._engine.options.use_fd:
            self._fd_spent = True

    def _dials_already(self, route: ConnectRoute) -> DialerBase | None:
        """The dialer beside which a second one would only do harm. Over inproc it is made, as in libzmq."""
        if self._engine.socket_type not in ONE_CONNECTION or not isinstance(route.transport, StreamTransport):
            return None
        dialers = self.dialers.get(route.name, [])
        # One that has given up by itself does not count, and is not to be left for a `disconnect` either.
        dialers[:] = [dialer for dialer in dialers if dialer.state is not DialerState.CLOSED]
        return dialers[0] if dialers else None

    def disconnect(self, text: str) -> None:
        """Out of the endpoints at once; it ends when what was accepted for it has left, or `linger` has passed."""
        name = str(parse_endpoint(text, bind=False))
        dialers = self.dialers.get(name)
        if not dialers:
            known = ", ".join(self.dialers) or "nothing"
            raise EndpointError(f"{text!r} is not connected; connected is {known}")
        # Behind those that have ended by themselves: they have no connection, and would stand for one that lives.
        dialers.sort(key=lambda dialer: dialer.state is not DialerState.CLOSED)
        # First, so that a signal handler that raises leaves no dialer without an owner.
        self.leaving.add(dialers[-1])
        dialer = dialers.pop()
        if not dialers:
            del self.dialers[name]
        dialer.disconnect()

    def drain(self) -> None:
        """Neither listens nor dials any more, and has every peer send nothing more."""
        for name in list(self.listeners):
            self._unlisten(self.listeners.pop(name), "drain")
        dialers = list(self._dialling())
        self.dialers.clear()
        for dialer in dialers:
            dialer.drain()
        self._engine.drain()

    def dialer_over(self, dialer: object) -> None:
        """A dialer has ended by itself."""
        if dialer in self.leaving:
            self.leaving.discard(dialer)
        else:
            self._spent += 1
        self._engine.changed()

    def dialer_closed(self, dialer: object) -> None:
        """A dialer was ended."""
        if dialer in self.leaving:
            self.leaving.discard(dialer)
            self._engine.changed()

    def _forget_spent(self) -> None:
        """Forgets dialers that have ended by themselves: else only `disconnect` would take them out."""
        self._spent = 0
        for name, dialers in list(self.dialers.items()):
            dialers[:] = [dialer for dialer in dialers if dialer.state is not DialerState.CLOSED]
            if not dialers:
                del self.dialers[name]

    # ------------------------------------------------------------------ what comes of them

    @property
    def in_use(self) -> bool:
        """Returns whether there are any endpoints."""
        return bool(self.listeners or self.dialers or self.leaving)

    @property
    def end_unnoticed(self) -> bool:
        """Returns whether their end cannot be noticed: no name is taken, nothing waits for an endpoint; any thread."""
        if self.listeners or self.leaving:
            return False
        return all(isinstance(one, Dialer) for dialers in tuple(self.dialers.values()) for one in tuple(dialers))

    @property
    def may_bring_peers(self) -> bool:
        """Returns whether something is bound, or an endpoint is connected that has not given up."""
        dials = any(dialer.state is not DialerState.CLOSED for dialer in self._dialling())
        return dials or bool(self.listeners or self._asked)

    @property
    def names(self) -> list[str]:
        """The endpoints that accepted messages may go to: connected, being left, or bound."""
        leaving = (dialer.endpoint for dialer in self.leaving)
        return list(dict.fromkeys((*self.dialers, *leaving, *self.listeners)))

    @property
    def dialled(self) -> list[tuple[str, ...]]:
        """The endpoints that are connected, or to be connected, each with the address of its peer; on any thread."""
        found: list[tuple[str, ...]] = [(endpoint,) for endpoint in tuple(self._asked)]
        for dialer in self.open_dialers():
            session = dialer.session
            found.append((dialer.endpoint,) if session is None else (dialer.endpoint, session.remote_address))
        return found

    @property
    def reached(self) -> list[tuple[str, ...]]:
        """The same of the peers that were dialled and have finished the handshake."""
        found = (dialer.session for dialer in self.open_dialers())
        return [(one.endpoint, one.remote_address) for one in found if one is not None and one.is_ready]

    def open_dialers(self) -> list[Any]:
        """The dialers that have not given up, those that leave among them; on any thread."""
        found = itertools.chain(*(tuple(dialers) for dialers in tuple(self.dialers.values())), tuple(self.leaving))
        return [dialer for dialer in found if dialer.state is not DialerState.CLOSED]

    @property
    def unsent(self) -> int:
        """Messages that wait for endpoints that were disconnected."""
        return sum(len(dialer.messages) for dialer in self.leaving)

    @property
    def drained(self) -> bool:
        """Returns whether nothing waits for an endpoint that was disconnected."""
        return not any(dialer.messages for dialer in self.leaving)

    # ------------------------------------------------------------------ the end

    def revive(self) -> None:
        """Dials on if the end of the program has cancelled all tasks of the loop."""
        for dialer in [*self._dialling(), *self.leaving]:
            dialer.revive()

    def leave_loop(self) -> None:
        """The loop ends, or has ended."""
        for one in self._all():
            one.leave_loop()

    def enter_loop(self) -> None:
        """Goes on in another loop, after the sessions."""
        for one in self._all():
            one.enter_loop()

    def last_steps(self) -> list[Callable[[], object]]:
        """Returns the steps that end them, in this order."""
        steps: list[Callable[[], object]] = []
        steps += [partial(self._unlisten, listener, "the socket is closed") for listener in self.listeners.values()]
        steps += [dialer.close for dialer in self._dialling()]
        steps += [dialer.close for dialer in self.leaving]
        steps += [head_start.close for _, head_start in tuple(self._asked.values()) if head_start is not None]
        return [*steps, self.listeners.clear, self.dialers.clear, self._asked.clear]

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptors that it inherited, and touches nothing else."""
        for one in self._all():
            one.close_after_fork()
        for _, head_start in self._asked.values():
            if head_start is not None:
                head_start.close()


def _refuse_others(before: DialerBase, options: Options, given: Mapping[str, Any]) -> None:
    """An endpoint that is connected already is not connected again: what is given for it must hold."""
    for name in given:
        if getattr(before.options, name) != getattr(options, name):
            raise OptionError(f"{before.endpoint} is connected already, with another {name!r}: disconnect it first")

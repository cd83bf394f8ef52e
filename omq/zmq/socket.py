"""Sockets."""

from __future__ import annotations

import operator
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

import omq
from omq import errors
from omq._core.zmq.calls import Handle, SocketCalls
from omq._core.zmq.frame import FrameData
from omq.types import POLL_OUT, TRAITS, Route
from omq.types import SocketType as Kind
from omq.zmq import constants
from omq.zmq.attributes import AttributeSetter, with_option_properties
from omq.zmq.constants import Errno, Event, PollEvent, SocketOption, SocketType, _OptType
from omq.zmq.context_state import ContextState, socket_at
from omq.zmq.endpoint_errors import endpoint_error, missing_error
from omq.zmq.error import ZMQBindError, ZMQError, error_of, translate
from omq.zmq.frame import COPY_THRESHOLD, Frame, default_copy_threshold
from omq.zmq.monitor import SocketMonitor
from omq.zmq.options import QUEUEING, OptionState, get_option, set_option
from omq.zmq.poll import Poller
from omq.zmq.tracker import MessageTracker
from omq.zmq.utils import jsonapi

_SNDMORE = int(constants.SNDMORE)
_DONTWAIT = int(constants.DONTWAIT)
_DEFAULT_PORTS = (49152, 65536)
#: Types whose messages begin with the receiver.
_ADDRESSED = frozenset({Kind.ROUTER, Kind.STREAM})

_T = TypeVar("_T")
_SocketT_co = TypeVar("_SocketT_co", bound="Socket[Any]", covariant=True)
_SocketReturnT_co = TypeVar("_SocketReturnT_co", covariant=True)


class _SocketContext(Generic[_SocketT_co]):
    """A `with` block that undoes a `bind` or `connect` at its end."""

    socket: _SocketT_co
    kind: str
    addr: Any

    def __init__(self, socket: _SocketT_co, kind: str, addr: Any) -> None:
        self.socket = socket
        self.kind = kind
        self.addr = addr

    def __repr__(self) -> str:
        return f"<SocketContext({self.kind}={self.addr!r})>"

    def __enter__(self) -> _SocketT_co:
        return self.socket

    def __exit__(self, *args: object) -> None:
        if self.socket.closed:
            return
        if self.kind == "bind":
            self.socket.unbind(self.addr)
        elif self.kind == "connect":
            self.socket.disconnect(self.addr)


@with_option_properties
class Socket(SocketCalls, AttributeSetter, Generic[_SocketReturnT_co]):
    """A socket; `Context.socket` makes one.

    Args:
        ctx_or_socket: The context, or another socket, for `shadow`.
        socket_type: The type, such as `zmq.PUSH`.
        shadow: A socket, or its `underlying`, that the new object is another face of.
        copy_threshold: Size in bytes from which `send` without `copy` shares the caller's memory; `None` for
            `zmq.COPY_THRESHOLD`.
    """

    context: Any = None
    copy_threshold: int = COPY_THRESHOLD
    type: SocketType
    _closed: bool
    _pid: int
    _shadow = False
    _shadow_obj: Any = None
    _monitor_socket: Any = None
    _type_name = "UNKNOWN"

    if TYPE_CHECKING:
        # The results of the compiled calls depend on the arguments, which the generated stubs do not describe.

        @overload
        def send(
            self,
            data: Frame,
            flags: int = 0,
            copy: bool = True,
            track: bool = False,
            routing_id: int | None = None,
            group: str | None = None,
        ) -> MessageTracker: ...

        @overload
        def send(
            self,
            data: Any,
            flags: int = 0,
            copy: Literal[True] = True,
            track: bool = False,
            routing_id: int | None = None,
            group: str | None = None,
        ) -> None: ...

        @overload
        def send(
            self,
            data: Any,
            flags: int = 0,
            *,
            copy: Literal[False],
            track: bool = False,
            routing_id: int | None = None,
            group: str | None = None,
        ) -> MessageTracker: ...

        @overload
        def send(
            self,
            data: Any,
            flags: int = 0,
            copy: bool = True,
            track: bool = False,
            routing_id: int | None = None,
            group: str | None = None,
        ) -> MessageTracker | None: ...

        def send(self, *args: Any, **kwargs: Any) -> Any: ...

        def send_multipart(
            self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any
        ) -> MessageTracker | None: ...

        @overload
        def recv(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> bytes: ...

        @overload
        def recv(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> Frame: ...

        @overload
        def recv(self, flags: int, copy: Literal[False], track: bool = False) -> Frame: ...

        @overload
        def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> bytes | Frame: ...

        def recv(self, *args: Any, **kwargs: Any) -> Any: ...

        @overload
        def recv_multipart(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> list[bytes]: ...

        @overload
        def recv_multipart(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> list[Frame]: ...

        @overload
        def recv_multipart(self, flags: int, copy: Literal[False], track: bool = False) -> list[Frame]: ...

        @overload
        def recv_multipart(
            self, flags: int = 0, copy: bool = True, track: bool = False
        ) -> list[bytes] | list[Frame]: ...

        def recv_multipart(self, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    def __init__(
        self: Socket[bytes], ctx_or_socket: Any, socket_type: int, *, copy_threshold: int | None = None
    ) -> None: ...

    @overload
    def __init__(self: Socket[bytes], *, shadow: Socket[Any] | int, copy_threshold: int | None = None) -> None: ...

    @overload
    def __init__(self: Socket[bytes], ctx_or_socket: Socket[Any]) -> None: ...

    def __init__(
        self: Any,
        ctx_or_socket: Any = None,
        socket_type: int = 0,
        *,
        shadow: Any = 0,
        copy_threshold: int | None = None,
    ) -> None:
        self._closed = True
        if isinstance(ctx_or_socket, Socket):
            shadow, ctx_or_socket = ctx_or_socket, None
        self.context = ctx_or_socket
        self.copy_threshold = default_copy_threshold() if copy_threshold is None else copy_threshold
        if shadow:
            self._shadow = True
            self._shadow_obj = shadow
            self.context = getattr(shadow, "context", None)
            handle = socket_at(int(getattr(shadow, "underlying", shadow)))
            if handle is None:
                raise error_of(Errno.ENOTSOCK)
            self._handle = handle
        else:
            if not hasattr(ctx_or_socket, "_state"):
                raise TypeError("context must be specified")
            if operator.index(socket_type) < 0:
                raise TypeError("socket_type must be specified")
            self._make(ctx_or_socket._state, operator.index(socket_type))
        self._closed = False
        self._pid = os.getpid()
        kind = SocketType[self._handle.state.kind.value]
        self.__dict__["type"] = kind
        self._type_name = kind.name

    def _make(self, context: ContextState | None, number: int) -> None:
        """Makes the omq socket."""
        if context is None or context.terminated:
            raise error_of(Errno.EFAULT)
        if context.terminating:
            raise ZMQError(constants.ETERM)
        kind = SocketType._value2member_map_.get(number)
        made = getattr(omq, kind.name, None) if isinstance(kind, SocketType) else None
        if made is None:
            raise error_of(Errno.EINVAL)
        context.check_room()
        try:
            # Nothing is queued before there is an endpoint to connect to: see `OptionState.for_endpoint`.
            socket = made(context.omq, immediate=made.socket_type in QUEUEING)
        except errors.OmqError as error:
            raise translate(error) from None
        self._handle = Handle(socket, context)
        self._handle.state = OptionState(self._handle)
        context.add(self._handle)
        if context.get(SocketOption.IPV6):
            set_option(self._handle.state, SocketOption.IPV6, 1)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end the names of this module may be gone, so the function is an argument.
        if (
            is_finalizing()
            or self._shadow
            or getattr(self, "_closed", True)
            or self._handle is None
            or self._handle.closed
        ):
            return
        warnings.warn(f"Unclosed socket {self}", ResourceWarning, stacklevel=2, source=self)
        self.close()

    _repr_cls = "zmq.Socket"

    def __repr__(self) -> str:
        kind = type(self)
        name = kind.__dict__.get("_repr_cls") or f"{kind.__module__}.{kind.__name__}"
        return f"<{name}(zmq.{self._type_name}) at {hex(id(self))}{' closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: Any, **kwargs: Any) -> None:
        self.close()

    def __copy__(self, memo: Any | None = None) -> Self:
        return type(self).shadow(self.underlying)

    __deepcopy__ = __copy__

    @classmethod
    def shadow(cls, address: int | Socket[Any]) -> Self:
        """Returns another face of a socket.

        Args:
            address: The socket, or its `underlying`.
        """
        return cls(shadow=address)

    @property
    def underlying(self) -> int:
        """A number for `shadow`; 0 once the socket is closed."""
        return 0 if self._closed else id(self._handle)

    @property
    def closed(self) -> bool:
        """Returns whether the socket is closed."""
        if not self._closed and self._handle.closed:
            self._closed = True
        return self._closed

    def close(self, linger: int | None = None) -> None:
        """Closes the socket; accepted messages leave in the background.

        Args:
            linger: Milliseconds that they have; `None` applies `LINGER`.
        """
        if self.context is not None:
            self.context._rm_socket(self)
        if self._closed or self._pid != os.getpid():
            return
        handle = self._handle
        linger = get_option(self._handle.state, SocketOption.LINGER) if linger is None else operator.index(linger)
        self._closed = True
        if handle.closed:
            return
        self._handle.state.release()
        handle.closed = True
        handle.context.close(handle, None if linger < 0 else linger / 1000)

    # ------------------------------------------------------------------ endpoints

    def bind(self, addr: str) -> _SocketContext[Self]:
        """Listens on an endpoint.

        Args:
            addr: The endpoint, such as `tcp://127.0.0.1:5555`.

        Returns:
            A context manager that calls `unbind` at its end.

        Raises:
            ZMQError: EADDRINUSE, EADDRNOTAVAIL, EINVAL, EPROTONOSUPPORT and others; see `zmq_bind(3)`.
        """
        return _SocketContext(self, "bind", self._open("bind", addr))

    def connect(self, addr: str) -> _SocketContext[Self]:
        """Connects to an endpoint, in the background.

        Args:
            addr: The endpoint, such as `tcp://127.0.0.1:5555`.

        Returns:
            A context manager that calls `disconnect` at its end.

        Raises:
            ZMQError: EINVAL, EPROTONOSUPPORT and others; see `zmq_connect(3)`.
        """
        self._open("connect", addr)
        return _SocketContext(self, "connect", addr)

    def _open(self, call: str, addr: Any) -> str:
        endpoint = _text_of(addr)
        try:
            self._check()
            options = self._handle.state.for_endpoint(call, endpoint)
            try:
                resolved = str(getattr(self._handle.omq, call)(endpoint, **options))
            except errors.AlreadyConnected:
                resolved = endpoint  # as in libzmq, a repeated `connect` of these types changes nothing
            self._handle.state.opened(resolved)
        except (errors.OmqError, ZMQError) as error:
            raise endpoint_error(error, self._handle, call, endpoint, addr) from None
        return resolved

    def unbind(self, addr: str) -> None:
        """Undoes a `bind`.

        Raises:
            ZMQError: ENOENT: The endpoint is not bound. EINVAL: It is not an endpoint.
        """
        self._shut("unbind", addr)

    def disconnect(self, addr: str) -> None:
        """Undoes all calls of `connect` with the endpoint.

        Raises:
            ZMQError: ENOENT: The endpoint is not connected. EINVAL: It is not an endpoint.
        """
        self._shut("disconnect", addr)

    def _shut(self, call: str, addr: Any) -> None:
        endpoint = _text_of(addr)
        self._check()
        try:
            if call == "unbind":
                self._handle.omq.unbind(endpoint)
            else:
                self._handle.state.disconnect(endpoint)
        except errors.OmqError as error:
            raise missing_error(error, self._handle, endpoint) from None

    def bind_to_random_port(self, addr: str, min_port: int = 49152, max_port: int = 65536, max_tries: int = 100) -> int:
        """Binds a free port.

        Args:
            addr: The endpoint without the port.
            min_port: The first port of the range.
            max_port: The end of the range, which is not in it.
            max_tries: Attempts.

        Returns:
            The port.

        Raises:
            ZMQBindError: No attempt has found a free port.
            ZMQError: As `bind`.
        """
        if (min_port, max_port) == _DEFAULT_PORTS:
            self.bind(f"{addr}:*")
            return int(self._handle.state.last_endpoint.rpartition(":")[2])
        for _ in range(max_tries):
            port = random.randrange(min_port, max_port)
            try:
                self.bind(f"{addr}:{port}")
            except ZMQError as error:
                if error.errno != Errno.EADDRINUSE:
                    raise
            else:
                return port
        raise ZMQBindError("Could not bind socket to random port.")

    # ------------------------------------------------------------------ options

    def set(self, option: int, optval: Any) -> None:
        """Sets an option.

        Args:
            option: The number, such as `zmq.LINGER`.
            optval: The value: a number, or bytes.

        Raises:
            ZMQError: EINVAL: There is no such option, the type does not have it, or the value is not valid.
            TypeError: The value has another type.
        """
        if isinstance(optval, str) and not self.closed:
            raise TypeError("unicode not allowed, use setsockopt_string")
        self._check()
        set_option(self._handle.state, operator.index(option), optval)

    def get(self, option: int) -> Any:
        """Returns an option; raises as `set`."""
        self._check()
        return get_option(self._handle.state, operator.index(option))

    setsockopt = set
    getsockopt = get

    def _check(self) -> None:
        """Raises if the socket is closed, or its context is terminated."""
        handle = self._handle
        if handle is None or self._closed or handle.closed:
            raise error_of(Errno.ENOTSOCK)
        if handle.context.terminating:
            raise error_of(constants.ETERM)

    def __dir__(self) -> list[str]:
        return [*dir(type(self)), *SocketOption.__members__]

    def __setattr__(self, key: str, value: Any) -> None:
        name = key.lower()
        if key not in self.__dict__ and name in ("subscribe", "unsubscribe"):
            if isinstance(value, str):
                value = value.encode()
            self.set(SocketOption[name.upper()], value)
            return
        super().__setattr__(key, value)

    @property
    def socket_type(self) -> int:
        """The type; deprecated."""
        warnings.warn("Socket.socket_type is deprecated, use Socket.type", DeprecationWarning, stacklevel=2)
        return int(self.type)

    def fileno(self) -> int:
        """Returns the descriptor of `FD`: readable when `EVENTS` may have changed."""
        return int(self.get(SocketOption.FD))

    def subscribe(self, topic: str | bytes) -> None:
        """Subscribes to messages that start with *topic*; SUB."""
        self.set(SocketOption.SUBSCRIBE, topic.encode() if isinstance(topic, str) else topic)

    def unsubscribe(self, topic: str | bytes) -> None:
        """Undoes a `subscribe`."""
        self.set(SocketOption.UNSUBSCRIBE, topic.encode() if isinstance(topic, str) else topic)

    def join(self, group: str | bytes) -> None:
        """Joins a group; DISH."""
        self._group("join", group)

    def leave(self, group: str | bytes) -> None:
        """Leaves a group; DISH."""
        self._group("leave", group)

    def _group(self, call: str, group: str | bytes) -> None:
        self._check()
        try:
            getattr(self._handle.omq, call)(group)
        except errors.UsageError:
            raise error_of(Errno.EINVAL) from None
        except errors.OmqError as error:
            raise translate(error, self._handle) from None

    def set_string(self, option: int, optval: str, encoding: str = "utf-8") -> None:
        """Sets an option to text."""
        if not isinstance(optval, str):
            raise TypeError(f"strings only, not {type(optval)}: {optval!r}")
        self.set(option, optval.encode(encoding))

    setsockopt_unicode = setsockopt_string = set_string

    def get_string(self, option: int, encoding: str = "utf-8") -> str:
        """Returns an option as text."""
        if SocketOption(option)._opt_type != _OptType.bytes:
            raise TypeError(f"option {option} will not return a string to be decoded")
        return str(self.get(option).decode(encoding))

    getsockopt_unicode = getsockopt_string = get_string

    def get_hwm(self) -> int:
        """Returns `SNDHWM`."""
        return int(self.get(SocketOption.SNDHWM))

    def set_hwm(self, value: int) -> None:
        """Sets `SNDHWM` and `RCVHWM`."""
        self.set(SocketOption.SNDHWM, value)
        self.set(SocketOption.RCVHWM, value)

    hwm = property(get_hwm, set_hwm, None, "`SNDHWM`; setting it sets `RCVHWM`, too.")

    # ------------------------------------------------------------------ messages: what the compiled calls leave

    def _send_part(
        self, data: Any, flags: int, copy: bool, track: bool, routing_id: int | None, group: str | None
    ) -> MessageTracker | None:
        """Sends a part with a receiver or a group, or raises for text or a closed socket; see `send`."""
        if isinstance(data, str) and not self.closed:
            raise TypeError("unicode not allowed, use send_string")
        self._check()
        if routing_id is not None or group is not None:
            # As libzmq notes them in a message, other types ignore them.
            frame: Any = data
            if not isinstance(data, FrameData):
                frame = Frame(data, track=track, copy=copy or None, copy_threshold=self.copy_threshold)
            if routing_id is not None:
                frame.set("routing_id", routing_id)
            if group is not None:
                frame.set("group", group)
            data = frame
        sent: MessageTracker | None = self._handle.send_part(self, data, flags, copy, track)
        return sent

    def _await_room(self, flags: int, payload: Any) -> None:
        """Waits for room before the first part of a message; raises what libzmq raises at the first part."""
        handle, kind = self._handle, self._handle.state.kind
        if not handle.sends:
            raise error_of(Errno.ENOTSUP)
        try:
            if kind in _ADDRESSED:
                mandatory = kind is Kind.STREAM or self._handle.state.values.get(SocketOption.ROUTER_MANDATORY)
                if mandatory and bytes(payload) not in handle.omq.send_queue.table:
                    raise error_of(Errno.EHOSTUNREACH)
                return
            timeout = 0 if flags & _DONTWAIT or kind is Kind.REP else self.get(SocketOption.SNDTIMEO)
            relaxed = self._handle.state.values.get(SocketOption.REQ_RELAXED)
            if kind is Kind.REQ and not relaxed and handle.omq.recv_queue.awaiting and not handle.omq.poll(0, POLL_OUT):
                raise error_of(constants.EFSM)
            if not handle.omq.poll(None if timeout < 0 else timeout / 1000, POLL_OUT):
                raise error_of(constants.EFSM if kind is Kind.REP else Errno.EAGAIN)
        except errors.OmqError as error:
            raise translate(error, handle) from None

    def _send_routed(self, payload: Any, flags: int, frame: Any) -> None:
        """Sends to a group or to a peer by its number."""
        keywords: dict[str, Any] = {"timeout": 0.0} if flags & _DONTWAIT else {}
        if TRAITS[self._handle.state.kind].route is Route.GROUP:
            keywords["group"] = (frame._group if frame is not None else None) or ""
        else:
            keywords["routing_id"] = (frame._routing_id if frame is not None else None) or 0
        try:
            self._handle.omq.send(payload, **keywords)
        except errors.OmqError as error:
            raise translate(error, self._handle) from None

    def _send_parts(self, msg_parts: Any, flags: int, copy: bool, track: bool) -> MessageTracker | None:
        """Sends a message part by part; see `send_multipart`."""
        for index, part in enumerate(msg_parts):
            if not isinstance(part, FrameData | bytes | memoryview):
                try:
                    memoryview(part)
                except Exception:
                    shown = repr(part)
                    shown = shown if len(shown) <= 32 else shown[:32] + "..."
                    raise TypeError(f"Frame {index} ({shown}) does not support the buffer interface.") from None
        for part in msg_parts[:-1]:
            self.send(part, _SNDMORE | flags, copy=copy, track=track)
        sent: MessageTracker | None = self.send(msg_parts[-1], flags, copy=copy, track=track)
        return sent

    def _deserialize(self, recvd: Any, load: Callable[[Any], Any]) -> Any:
        """Converts what `recv` has returned; asynchronous sockets override it."""
        return load(recvd)

    def send_serialized(
        self, msg: _T, serialize: Callable[[_T], Sequence[Any]], flags: int = 0, copy: bool = True, **kwargs: Any
    ) -> MessageTracker | None:
        """Sends the parts that *serialize* makes of an object."""
        return self.send_multipart(serialize(msg), flags=flags, copy=copy, **kwargs)

    def recv_serialized(self, deserialize: Callable[[list[Any]], Any], flags: int = 0, copy: bool = True) -> Any:
        """Takes a message, and returns what *deserialize* makes of its parts."""
        return self._deserialize(self.recv_multipart(flags=flags, copy=copy), deserialize)

    def send_string(
        self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8", **kwargs: Any
    ) -> MessageTracker | None:
        """Sends text."""
        if not isinstance(u, str):
            raise TypeError("str objects only")
        return self.send(u.encode(encoding), flags=flags, copy=copy, **kwargs)

    send_unicode = send_string

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Takes a part as text."""
        text: str = self._deserialize(self.recv(flags=flags), lambda part: part.decode(encoding))
        return text

    recv_unicode = recv_string

    def send_pyobj(
        self, obj: object, flags: int = 0, protocol: int = pickle.DEFAULT_PROTOCOL, **kwargs: Any
    ) -> MessageTracker | None:
        """Sends an object with `pickle`."""
        return self.send(pickle.dumps(obj, protocol), flags=flags, **kwargs)  # type: ignore[no-any-return]

    def recv_pyobj(self, flags: int = 0) -> Any:
        """Takes an object with `pickle`: only from peers that may run any code here."""
        return self._deserialize(self.recv(flags), pickle.loads)

    def send_json(self, obj: object, flags: int = 0, **kwargs: Any) -> None:
        """Sends an object as JSON; *kwargs* go to `json.dumps`."""
        routed = {name: kwargs.pop(name) for name in ("routing_id", "group") if name in kwargs}
        return self.send(jsonapi.dumps(obj, **kwargs), flags=flags, **routed)  # type: ignore[no-any-return]

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Takes an object as JSON; *kwargs* go to `json.loads`."""
        return self._deserialize(self.recv(flags), lambda part: jsonapi.loads(part, **kwargs))

    _poller_class = Poller

    def poll(self, timeout: int | None = None, flags: int = PollEvent.POLLIN) -> int:
        """Waits until a message can be received or sent.

        Args:
            timeout: Milliseconds; `None` waits for ever.
            flags: `POLLIN`, `POLLOUT` or both.

        Returns:
            The events that are ready; 0 after the timeout.
        """
        if self.closed:
            raise error_of(Errno.ENOTSUP)
        poller = self._poller_class()
        poller.register(self, flags)
        return int(dict(poller.poll(timeout)).get(self, 0))

    # ------------------------------------------------------------------ monitors

    def monitor(self, addr: str | bytes | None, events: int = Event.ALL) -> None:
        """Sends the events of the socket to a PAIR at an inproc endpoint; `None` stops that.

        Raises:
            ZMQError: EPROTONOSUPPORT: The endpoint is not an inproc one. EINVAL: It is not an endpoint.
        """
        endpoint = None if addr is None else _text_of(addr)
        self._check()
        self._handle.state.watch(endpoint, int(events))

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Self:
        """Returns a connected PAIR that receives the events of the socket.

        Args:
            events: The events; `None` for all.
            addr: The inproc endpoint; `None` for one of its own.
        """
        if self._monitor_socket is not None and not self._monitor_socket.closed:
            found: Self = self._monitor_socket
            return found
        if addr is None:
            addr = SocketMonitor.endpoint_of(self._handle)
        self.monitor(addr, Event.ALL if events is None else events)
        self._monitor_socket = self.context.socket(SocketType.PAIR)
        self._monitor_socket.connect(addr)
        made: Self = self._monitor_socket
        return made

    def disable_monitor(self) -> None:
        """Stops the monitor of the socket."""
        self._monitor_socket = None
        self.monitor(None, 0)


def _text_of(addr: Any) -> str:
    """Returns an endpoint as text."""
    if isinstance(addr, str):
        return addr
    if isinstance(addr, bytes):
        return addr.decode(errors="surrogateescape")
    if addr is None:
        raise TypeError("expected bytes, NoneType found")
    raise TypeError(f"Expected addr to be str, got addr={addr!r}")


SyncSocket: TypeAlias = Socket[bytes]

__all__ = ["Socket", "SyncSocket"]

"""The options of libzmq: how each is set and read on an omq socket.

omq has most of them under another name and in other units. An option of one endpoint is kept here, and given to each
later `bind` and `connect`, which is also when libzmq applies it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from omq import errors, security
from omq._core.zmq.calls import Handle
from omq.options import Options
from omq.types import TRAITS, Security, SocketType
from omq.zmq import constants
from omq.zmq.constants import EFSM, Errno, PollEvent, SecurityMechanism, _OptType
from omq.zmq.constants import SocketOption as Opt
from omq.zmq.descriptor import EventDescriptor
from omq.zmq.error import error_of, translate
from omq.zmq.monitor import SocketMonitor

_INT_MAX: Final = 2**31 - 1
#: The limit of IP; libzmq's option goes further.
_HOPS_MAX: Final = 255
_T = SocketType
_PUBLISHING: Final = frozenset({_T.PUB, _T.XPUB})
_THREAD_SAFE: Final = frozenset(kind for kind, traits in TRAITS.items() if traits.single_part)
#: Types that queue messages for any of their peers.
QUEUEING: Final = frozenset({_T.PUSH, _T.DEALER, _T.REQ, _T.PAIR, _T.CLIENT, _T.SCATTER, _T.CHANNEL})
#: Types whose LINGER is 0 unless it is set: they have nothing to send.
_NO_LINGER: Final = frozenset({_T.SUB, _T.XSUB, _T.DISH})
#: The options of endpoints that each kind of transport uses, where that is not all of them.
_LOCAL: Final = frozenset({"max_message_size", "max_parts", "peer_identity", "zap_domain", "zap_enforce_domain"})
_TCP_ONLY: Final = frozenset(
    {
        *("accept_filter", "socks_proxy", "socks_username", "socks_password", "bind_device", "tos", "priority"),
        *("tcp_keepalive", "tcp_keepalive_count", "tcp_keepalive_idle", "tcp_keepalive_interval"),
        *("tcp_user_timeout", "ipv6"),
    }
)
#: Options of ZMTP, which libzmq accepts on a STREAM, too, without effect.
_ZMTP_ONLY: Final = frozenset(
    {
        *("handshake_timeout", "heartbeat_interval", "heartbeat_timeout", "heartbeat_ttl"),
        *("identity", "max_message_size", "metadata", "zap_domain", "zap_enforce_domain"),
    }
)
_IPC_ONLY: Final = frozenset({"accept_uids", "accept_gids", "accept_pids"})


@dataclass(eq=False)
class OptionState:
    """The values of a socket's options, next to those that its omq socket has.

    Attributes:
        handle: The socket.
        values: Values that have been set, by number.
        endpoint: Options of omq for later endpoints, by name.
        last_endpoint: The endpoint of the last `bind` or `connect`.
        mechanism: The security mechanism that has been chosen.
        as_server: Whether the socket has the server's side of it.
        descriptor: The descriptor that `FD` has given out, or `None`.
        monitor: Sends the socket's events to a PAIR, or `None`.
    """

    handle: Handle
    values: dict[int, Any] = field(default_factory=dict)
    endpoint: dict[str, Any] = field(default_factory=lambda: _stop_words(0))
    last_endpoint: str = ""
    mechanism: SecurityMechanism = SecurityMechanism.NULL
    as_server: bool = False
    descriptor: EventDescriptor | None = None
    monitor: SocketMonitor | None = None

    @property
    def kind(self) -> SocketType:
        """The type of the socket."""
        kind: SocketType = self.handle.omq.socket_type
        return kind

    def change(self, **changes: Any) -> None:
        """Changes options of the omq socket; those of endpoints are kept for later ones.

        Raises:
            ZMQError: EINVAL: The value is not valid. EFSM: The option cannot be changed any more.
        """
        for name, value in changes.items():
            if self.kind is _T.STREAM and name in _ZMTP_ONLY:
                continue
            if Options.endpoint_calls(name):
                _checked(self.kind, name, value)
                self.endpoint[name] = value
                continue
            try:
                self.handle.omq.set_options(**{name: value})
            except errors.StateError:
                raise error_of(EFSM) from None
            except errors.OptionError:
                raise error_of(Errno.EINVAL) from None

    def disconnect(self, endpoint: str) -> None:
        """Ends all connections to an endpoint.

        Raises:
            EndpointError: The endpoint is not connected.
        """
        socket = self.handle.omq
        socket.disconnect(endpoint)
        with contextlib.suppress(errors.EndpointError):
            while True:
                socket.disconnect(endpoint)

    def opened(self, endpoint: str) -> None:
        """Notes an endpoint, from which messages may arrive from now on."""
        self.last_endpoint = endpoint
        if self.descriptor is not None:
            self.descriptor.attach()

    def watch(self, endpoint: str | None, events: int) -> None:
        """Sends the socket's events to a PAIR at an endpoint; `None` stops that."""
        if self.monitor is not None:
            self.monitor.stop()
            self.monitor = None
        if endpoint is not None:
            self.monitor = SocketMonitor(self.handle, endpoint, events)

    def release(self) -> None:
        """Gives back the descriptor, before the socket is closed."""
        if self.descriptor is not None:
            self.descriptor.close()
            self.descriptor = None

    def for_endpoint(self, call: str, endpoint: str) -> dict[str, Any]:
        """Returns the options of omq for one endpoint."""
        scheme = endpoint.partition("://")[0]
        found = {name: value for name, value in self.endpoint.items() if call in Options.endpoint_calls(name)}
        secured = self._security()
        if secured is not None:
            found["security"] = secured
        found = {name: value for name, value in found.items() if _applies(name, scheme)}
        if call == "connect" and self.kind in QUEUEING:
            # In libzmq only a connection has a queue, and over inproc it has one at once.
            found["immediate"] = scheme != "inproc" and bool(self.values.get(Opt.IMMEDIATE))
        return found

    def _security(self) -> Security | None:
        values = self.values
        if self.mechanism == SecurityMechanism.PLAIN:
            if self.as_server:
                return security.PlainServer(None)
            return security.PlainClient(values.get(Opt.PLAIN_USERNAME, b""), values.get(Opt.PLAIN_PASSWORD, b""))
        if self.mechanism == SecurityMechanism.CURVE:
            secret = values.get(Opt.CURVE_SECRETKEY)
            if self.as_server:
                if secret is None:
                    raise error_of(Errno.EINVAL)
                return security.CurveServer(secret)
            server = values.get(Opt.CURVE_SERVERKEY)
            if server is None:
                return None
            public = values.get(Opt.CURVE_PUBLICKEY) if secret is not None else None
            return security.CurveClient(server, public, secret)
        return None


def _applies(name: str, scheme: str) -> bool:
    """Returns whether endpoints of a scheme use an option."""
    if scheme == "inproc":
        return name in ("identity", "peer_identity")
    if scheme == "ipc":
        return name not in _TCP_ONLY
    if scheme == "udp":
        return name in ("multicast_hops", "multicast_loop", "ipv6", "max_message_size", "bind_device", "tos")
    return name not in _IPC_ONLY and name not in ("multicast_hops", "multicast_loop")


def _checked(kind: SocketType, name: str, value: Any) -> None:
    try:
        Options.parse(kind, {name: value})
    except errors.OptionError:
        raise error_of(Errno.EINVAL) from None


Get = Callable[[OptionState], Any]
Set = Callable[[OptionState, Any], None]


def _refuse(state: OptionState, value: Any = None) -> Any:
    raise error_of(Errno.EINVAL)


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option.

    Attributes:
        get: Reads it.
        set: Sets it, after a check of the value's type.
    """

    get: Get = _refuse
    set: Set = _refuse


def _kept(number: int, default: Any) -> Get:
    """Reads the value that was set, or the default."""
    return lambda state: state.values.get(number, default)


def _number(low: int, high: int = _INT_MAX) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not low <= value <= high:
            raise error_of(Errno.EINVAL)
        return int(value)

    return check


def _any(value: Any) -> Any:
    return value


def _truth(value: Any) -> int:
    return int(bool(value))


def _tenths(value: int) -> int:
    """Returns milliseconds as ZMTP sends them, in whole tenths of a second."""
    tenths = int(value / 100)
    if not 0 <= tenths <= 0xFFFF:
        raise error_of(Errno.EINVAL)
    return tenths * 100


def _text(low: int, high: int) -> Callable[[Any], bytes]:
    def check(value: Any) -> bytes:
        if not low <= len(value) <= high:
            raise error_of(Errno.EINVAL)
        return bytes(value)

    return check


def _option(
    number: int,
    default: Any,
    check: Callable[[Any], Any],
    apply: Callable[[Any], dict[str, Any]] | None = None,
    *,
    types: Iterable[SocketType] | None = None,
    reads: bool = True,
    silent: Iterable[SocketType] = (),
) -> OptionRow:
    """Returns the row of an option whose value is kept.

    Args:
        number: Its number.
        default: Its value if none was set.
        check: Returns the value to keep.
        apply: Returns the options of omq for the value; `None` if omq has none.
        types: The types that have it; `None` for all.
        reads: Whether it can be read.
        silent: Types on which libzmq accepts it without effect.
    """
    fitting = None if types is None else frozenset(types)

    def set_(state: OptionState, value: Any) -> None:
        fits = fitting is None or state.kind in fitting
        if not fits and state.kind not in silent:
            raise error_of(Errno.EINVAL)
        value = check(value)
        if fits and apply is not None:
            state.change(**apply(value))
        state.values[number] = value

    return OptionRow(_kept(number, default) if reads else _refuse, set_)


def _milliseconds(value: int) -> float | None:
    return None if value < 0 else value / 1000


def _positive_ms(value: int) -> float | None:
    return None if value <= 0 else value / 1000


def _reconnect(state: OptionState) -> None:
    first, most = state.values.get(Opt.RECONNECT_IVL, 100), state.values.get(Opt.RECONNECT_IVL_MAX, 0)
    if first < 0:
        state.change(reconnect_interval=None)
        return
    first = max(first, 1)
    state.change(reconnect_interval=(first / 1000, most / 1000) if most > first else first / 1000)


def _set_reconnect(number: int, check: Callable[[Any], int]) -> Set:
    def set_(state: OptionState, value: Any) -> None:
        state.values[number] = check(value)
        _reconnect(state)

    return set_


def _linger_default(state: OptionState) -> int:
    return int(state.values.get(Opt.LINGER, 0 if state.kind in _NO_LINGER else -1))


def _is_manual(state: OptionState) -> bool:
    """Returns whether the program of an XPUB makes the subscriptions itself."""
    return state.kind is _T.XPUB and any(map(state.values.get, (Opt.XPUB_MANUAL, Opt.XPUB_MANUAL_LAST_VALUE)))


def _subscribe(state: OptionState, prefix: bytes) -> None:
    if state.kind is not _T.SUB and not _is_manual(state):
        raise error_of(Errno.EINVAL)
    state.handle.omq.subscribe(prefix)


def _unsubscribe(state: OptionState, prefix: bytes) -> None:
    if state.kind is not _T.SUB and not _is_manual(state):
        raise error_of(Errno.EINVAL)
    state.handle.omq.unsubscribe(prefix)


def _identity(state: OptionState, value: bytes) -> None:
    if not 1 <= len(value) <= 255:
        raise error_of(Errno.EINVAL)
    state.change(identity=value)
    state.values[Opt.ROUTING_ID] = value


def _fd(state: OptionState) -> int:
    if state.descriptor is None:
        state.descriptor = EventDescriptor(state.handle)
        if state.last_endpoint:
            state.descriptor.attach()
    return state.descriptor.fileno()


def _events(state: OptionState) -> int:
    if state.descriptor is not None:
        state.descriptor.reset()
    return state.handle.ready(PollEvent.POLLIN | PollEvent.POLLOUT)


def _set_mechanism(mechanism: SecurityMechanism, number: int, check: Callable[[Any], Any]) -> Set:
    def set_(state: OptionState, value: Any) -> None:
        state.values[number] = check(value)
        state.mechanism, state.as_server = mechanism, False

    return set_


def _set_server(mechanism: SecurityMechanism, number: int) -> Set:
    def set_(state: OptionState, value: Any) -> None:
        state.values[number] = _number(0, 1)(value)
        state.as_server = bool(value)
        state.mechanism = mechanism if value else SecurityMechanism.NULL

    return set_


def _is_server(mechanism: SecurityMechanism) -> Get:
    return lambda state: int(state.as_server and state.mechanism == mechanism)


def _set_key(number: int) -> Set:
    def set_(state: OptionState, value: Any) -> None:
        if len(value) == 41 and value.endswith(b"\0"):
            value = value[:-1]
        if len(value) not in (32, 40):
            raise error_of(Errno.EINVAL)
        if len(value) == 40:
            try:
                security.z85_decode(value)
            except errors.UsageError:
                raise error_of(Errno.EINVAL) from None
        state.values[number] = value
        state.mechanism = SecurityMechanism.CURVE
        if number == Opt.CURVE_SERVERKEY:
            state.as_server = False

    return set_


def _set_ipv6(state: OptionState, value: Any) -> None:
    state.values[Opt.IPV6] = _number(0, 1)(value)
    state.change(ipv6=bool(value))


def _set_ipv4only(state: OptionState, value: Any) -> None:
    _set_ipv6(state, 1 - _number(0, 1)(value))


def _set_accept_filter(state: OptionState, value: bytes) -> None:
    known = state.values.setdefault(Opt.TCP_ACCEPT_FILTER, [])
    if not value:
        raise error_of(Errno.EINVAL)
    try:
        state.change(accept_filter=[*known, value.decode()])
    except UnicodeDecodeError:
        raise error_of(Errno.EINVAL) from None
    known.append(value.decode())


def _set_ipc_filter(number: int, name: str) -> Set:
    def set_(state: OptionState, value: Any) -> None:
        known = state.values.setdefault(number, [])
        state.change(**{name: [*known, int(value)]})
        known.append(int(value))

    return set_


def _notify_words(value: int) -> dict[str, Any]:
    words = [word for bit, word in ((1, "connect"), (2, "disconnect")) if value & bit]
    return {"router_notify": words}


def _stop_words(value: int) -> dict[str, Any]:
    # libzmq stops after a rejection in any case.
    words = ((1, "refused"), (2, "handshake failed"), (4, "after disconnect"))
    return {"reconnect_stop": ["rejected", *(word for bit, word in words if value & bit)]}


def _flag(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: bool(value)}


def _both(first: str, second: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {first: bool(value), second: bool(value)}


def _verbose(value: Any) -> dict[str, Any]:
    return {"xpub_verbose": bool(value), "xpub_verboser": False}


def _manual(value: Any) -> dict[str, Any]:
    return {"xpub_manual": True} if value else {"xpub_manual": False, "xpub_manual_last_value": False}


def _as(name: str, convert: Callable[[Any], Any] = _any) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: convert(value)}


def _buffer(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value if value > 0 else None}


def _decoded(value: bytes) -> str | None:
    try:
        return value.rstrip(b"\0").decode() or None
    except UnicodeDecodeError:
        raise error_of(Errno.EINVAL) from None


def _metadata(state: OptionState, value: bytes) -> None:
    name, separator, content = value.rstrip(b"\0").partition(b":")
    if not separator or not name.startswith(b"X-"):
        raise error_of(Errno.EINVAL)
    pairs = state.values.setdefault(Opt.METADATA, {})
    state.change(metadata={**pairs, name: content})
    pairs[name] = content


_BOOL: Final = _number(0, 1)
_COUNT: Final = _number(0)
_ROUTERS: Final = frozenset({_T.ROUTER, _T.REP})
_SIGNED: Final = _number(-1)

_ROWS: Final[dict[int, OptionRow]] = {
    Opt.AFFINITY: _option(Opt.AFFINITY, 0, int),
    Opt.ROUTING_ID: OptionRow(_kept(Opt.ROUTING_ID, b""), _identity),
    Opt.SUBSCRIBE: OptionRow(set=_subscribe),
    Opt.UNSUBSCRIBE: OptionRow(set=_unsubscribe),
    Opt.RATE: _option(Opt.RATE, 100, _number(1)),
    Opt.RECOVERY_IVL: _option(Opt.RECOVERY_IVL, 10000, _COUNT),
    Opt.SNDBUF: _option(Opt.SNDBUF, -1, _SIGNED, _buffer("send_buffer")),
    Opt.RCVBUF: _option(Opt.RCVBUF, -1, _SIGNED, _buffer("recv_buffer")),
    Opt.RCVMORE: OptionRow(lambda state: int(state.handle.has_more)),
    Opt.FD: OptionRow(_fd),
    Opt.EVENTS: OptionRow(_events),
    Opt.TYPE: OptionRow(lambda state: int(constants.SocketType[state.kind.value])),
    Opt.LINGER: OptionRow(_linger_default, _option(Opt.LINGER, -1, _SIGNED, _as("linger", _milliseconds)).set),
    Opt.RECONNECT_IVL: OptionRow(_kept(Opt.RECONNECT_IVL, 100), _set_reconnect(Opt.RECONNECT_IVL, _SIGNED)),
    Opt.RECONNECT_IVL_MAX: OptionRow(_kept(Opt.RECONNECT_IVL_MAX, 0), _set_reconnect(Opt.RECONNECT_IVL_MAX, _COUNT)),
    Opt.BACKLOG: _option(Opt.BACKLOG, 100, _COUNT, _as("backlog", lambda value: max(value, 1))),
    Opt.MAXMSGSIZE: _option(
        Opt.MAXMSGSIZE, -1, int, _as("max_message_size", lambda value: None if value < 0 else value)
    ),
    Opt.SNDHWM: _option(Opt.SNDHWM, 1000, _COUNT, _as("send_hwm")),
    Opt.RCVHWM: _option(Opt.RCVHWM, 1000, _COUNT, _as("recv_hwm")),
    Opt.MULTICAST_HOPS: _option(
        Opt.MULTICAST_HOPS,
        1,
        _number(1),
        _as("multicast_hops", lambda value: min(value, _HOPS_MAX)),
        types={_T.RADIO},
        silent=_T,
    ),
    Opt.RCVTIMEO: _option(Opt.RCVTIMEO, -1, _SIGNED, _as("recv_timeout", _milliseconds)),
    Opt.SNDTIMEO: _option(Opt.SNDTIMEO, -1, _SIGNED, _as("send_timeout", _milliseconds)),
    Opt.LAST_ENDPOINT: OptionRow(lambda state: state.last_endpoint.encode()),
    Opt.ROUTER_MANDATORY: _option(
        Opt.ROUTER_MANDATORY, 0, _COUNT, _flag("router_mandatory"), types={_T.ROUTER}, reads=False, silent={_T.REP}
    ),
    Opt.ROUTER_RAW: _option(Opt.ROUTER_RAW, 0, _number(0, 0), types=_ROUTERS, reads=False),
    Opt.TCP_KEEPALIVE: _option(Opt.TCP_KEEPALIVE, -1, _number(-1, 1), _as("tcp_keepalive")),
    Opt.TCP_KEEPALIVE_CNT: _option(
        Opt.TCP_KEEPALIVE_CNT, -1, _SIGNED, _as("tcp_keepalive_count", lambda value: min(value, 127) or -1)
    ),
    Opt.TCP_KEEPALIVE_IDLE: _option(
        Opt.TCP_KEEPALIVE_IDLE, -1, _SIGNED, _as("tcp_keepalive_idle", lambda value: min(value, 32767) or -1)
    ),
    Opt.TCP_KEEPALIVE_INTVL: _option(
        Opt.TCP_KEEPALIVE_INTVL, -1, _SIGNED, _as("tcp_keepalive_interval", lambda value: min(value, 32767) or -1)
    ),
    Opt.IMMEDIATE: _option(Opt.IMMEDIATE, 0, _BOOL),
    Opt.XPUB_VERBOSE: _option(Opt.XPUB_VERBOSE, 0, _COUNT, _verbose, types={_T.XPUB}, reads=False, silent={_T.PUB}),
    Opt.IPV6: OptionRow(_kept(Opt.IPV6, 0), _set_ipv6),
    Opt.IPV4ONLY: OptionRow(lambda state: 1 - state.values.get(Opt.IPV6, 0), _set_ipv4only),
    Opt.MECHANISM: OptionRow(lambda state: int(state.mechanism)),
    Opt.PLAIN_SERVER: OptionRow(
        _is_server(SecurityMechanism.PLAIN), _set_server(SecurityMechanism.PLAIN, Opt.PLAIN_SERVER)
    ),
    Opt.PLAIN_USERNAME: OptionRow(
        _kept(Opt.PLAIN_USERNAME, b""), _set_mechanism(SecurityMechanism.PLAIN, Opt.PLAIN_USERNAME, _text(1, 255))
    ),
    Opt.PLAIN_PASSWORD: OptionRow(
        _kept(Opt.PLAIN_PASSWORD, b""), _set_mechanism(SecurityMechanism.PLAIN, Opt.PLAIN_PASSWORD, _text(1, 255))
    ),
    Opt.CURVE_SERVER: OptionRow(
        _is_server(SecurityMechanism.CURVE), _set_server(SecurityMechanism.CURVE, Opt.CURVE_SERVER)
    ),
    Opt.CURVE_PUBLICKEY: OptionRow(set=_set_key(Opt.CURVE_PUBLICKEY)),
    Opt.CURVE_SECRETKEY: OptionRow(set=_set_key(Opt.CURVE_SECRETKEY)),
    Opt.CURVE_SERVERKEY: OptionRow(set=_set_key(Opt.CURVE_SERVERKEY)),
    Opt.PROBE_ROUTER: _option(
        *(Opt.PROBE_ROUTER, 0, _COUNT, _flag("probe_router")),
        types={_T.REQ, _T.DEALER, _T.ROUTER},
        reads=False,
        silent={_T.REP},
    ),
    Opt.REQ_CORRELATE: _option(Opt.REQ_CORRELATE, 0, _COUNT, _flag("req_correlate"), types={_T.REQ}, reads=False),
    Opt.REQ_RELAXED: _option(Opt.REQ_RELAXED, 0, _COUNT, _flag("req_relaxed"), types={_T.REQ}, reads=False),
    Opt.ZAP_DOMAIN: _option(Opt.ZAP_DOMAIN, b"", _text(1, 255), _as("zap_domain", lambda value: value.decode("ascii"))),
    Opt.ZAP_ENFORCE_DOMAIN: _option(Opt.ZAP_ENFORCE_DOMAIN, 0, _truth, _flag("zap_enforce_domain")),
    Opt.ROUTER_HANDOVER: _option(
        Opt.ROUTER_HANDOVER, 0, _COUNT, _flag("router_handover"), types={_T.ROUTER}, reads=False, silent={_T.REP}
    ),
    Opt.TOS: _option(Opt.TOS, 0, _COUNT, _as("tos", lambda value: value & 255)),
    Opt.CONNECT_ROUTING_ID: _option(
        *(Opt.CONNECT_ROUTING_ID, b"", _text(1, 255), _as("peer_identity")),
        types={_T.ROUTER, _T.STREAM},
        reads=False,
        silent={_T.REP},
    ),
    Opt.HANDSHAKE_IVL: _option(Opt.HANDSHAKE_IVL, 30000, _COUNT, _as("handshake_timeout", _positive_ms)),
    Opt.SOCKS_PROXY: _option(Opt.SOCKS_PROXY, b"", _text(1, 255), _as("socks_proxy", _decoded)),
    Opt.SOCKS_USERNAME: _option(Opt.SOCKS_USERNAME, b"", _text(0, 255), _as("socks_username", _decoded)),
    Opt.SOCKS_PASSWORD: _option(Opt.SOCKS_PASSWORD, b"", _text(0, 255), _as("socks_password", _decoded)),
    Opt.XPUB_NODROP: _option(Opt.XPUB_NODROP, 0, _COUNT, _flag("xpub_nodrop"), types=_PUBLISHING, reads=False),
    Opt.XPUB_MANUAL: _option(Opt.XPUB_MANUAL, 0, _COUNT, _manual, types={_T.XPUB}, reads=False, silent={_T.PUB}),
    Opt.XPUB_WELCOME_MSG: _option(
        *(Opt.XPUB_WELCOME_MSG, b"", _any, _as("xpub_welcome_message", lambda value: value or None)),
        types={_T.XPUB},
        reads=False,
        silent={_T.PUB},
    ),
    Opt.STREAM_NOTIFY: _option(Opt.STREAM_NOTIFY, 1, _BOOL, _flag("stream_notify"), types={_T.STREAM}, reads=False),
    Opt.HEARTBEAT_IVL: _option(Opt.HEARTBEAT_IVL, 0, _COUNT, _as("heartbeat_interval", _positive_ms)),
    Opt.HEARTBEAT_TTL: _option(Opt.HEARTBEAT_TTL, 0, _tenths, _as("heartbeat_ttl", lambda value: value / 1000)),
    Opt.HEARTBEAT_TIMEOUT: _option(Opt.HEARTBEAT_TIMEOUT, -1, _COUNT, _as("heartbeat_timeout", _positive_ms)),
    Opt.XPUB_VERBOSER: _option(
        *(Opt.XPUB_VERBOSER, 0, _COUNT, _both("xpub_verbose", "xpub_verboser")),
        types={_T.XPUB},
        reads=False,
        silent={_T.PUB},
    ),
    Opt.CONNECT_TIMEOUT: _option(Opt.CONNECT_TIMEOUT, 0, _COUNT, _as("connect_timeout", _positive_ms)),
    Opt.TCP_MAXRT: _option(
        Opt.TCP_MAXRT, 0, _COUNT, _as("tcp_user_timeout", lambda value: _positive_ms(min(value, 2_147_483_000)))
    ),
    Opt.THREAD_SAFE: OptionRow(lambda state: int(state.kind in _THREAD_SAFE)),
    Opt.MULTICAST_MAXTPDU: _option(Opt.MULTICAST_MAXTPDU, 1500, _number(1)),
    Opt.MULTICAST_LOOP: _option(Opt.MULTICAST_LOOP, 1, _truth, _flag("multicast_loop"), types={_T.RADIO}, silent=_T),
    Opt.USE_FD: _option(Opt.USE_FD, -1, _SIGNED, _as("use_fd", lambda value: None if value < 0 else value)),
    Opt.BINDTODEVICE: _option(Opt.BINDTODEVICE, b"", _text(1, 15), _as("bind_device", _decoded)),
    Opt.TCP_ACCEPT_FILTER: OptionRow(set=_set_accept_filter),
    Opt.IPC_FILTER_PID: OptionRow(set=_set_ipc_filter(Opt.IPC_FILTER_PID, "accept_pids")),
    Opt.IPC_FILTER_UID: OptionRow(set=_set_ipc_filter(Opt.IPC_FILTER_UID, "accept_uids")),
    Opt.IPC_FILTER_GID: OptionRow(set=_set_ipc_filter(Opt.IPC_FILTER_GID, "accept_gids")),
    Opt.LOOPBACK_FASTPATH: _option(Opt.LOOPBACK_FASTPATH, 0, _truth),
    Opt.METADATA: OptionRow(set=_metadata),
    Opt.ROUTER_NOTIFY: _option(Opt.ROUTER_NOTIFY, 0, _number(0, 3), _notify_words, types={_T.ROUTER}),
    Opt.XPUB_MANUAL_LAST_VALUE: _option(
        Opt.XPUB_MANUAL_LAST_VALUE,
        0,
        _COUNT,
        _both("xpub_manual", "xpub_manual_last_value"),
        types={_T.XPUB},
        reads=False,
        silent={_T.PUB},
    ),
    Opt.ONLY_FIRST_SUBSCRIBE: _option(
        Opt.ONLY_FIRST_SUBSCRIBE,
        0,
        _COUNT,
        _flag("only_first_subscribe"),
        types={_T.XPUB, _T.XSUB},
        reads=False,
        silent={_T.PUB},
    ),
    Opt.RECONNECT_STOP: _option(Opt.RECONNECT_STOP, 0, int, _stop_words),
    Opt.HELLO_MSG: _option(
        *(Opt.HELLO_MSG, b"", _any, _as("hello_message", lambda value: value or None)),
        types={_T.DEALER, _T.ROUTER, _T.CLIENT, _T.SERVER, _T.PEER},
        reads=False,
    ),
    Opt.DISCONNECT_MSG: _option(
        *(Opt.DISCONNECT_MSG, b"", _any, _as("disconnect_message", lambda value: value or None)),
        types={_T.ROUTER, _T.SERVER, _T.PEER},
        reads=False,
    ),
    Opt.HICCUP_MSG: _option(
        *(Opt.HICCUP_MSG, b"", _any, _as("hiccup_message", lambda value: value or None)),
        types={_T.DEALER, _T.CLIENT, _T.PEER},
        reads=False,
    ),
    Opt.PRIORITY: _option(Opt.PRIORITY, 0, _COUNT, _as("priority")),
    Opt.XSUB_VERBOSE_UNSUBSCRIBE: _option(
        *(Opt.XSUB_VERBOSE_UNSUBSCRIBE, 0, _COUNT, _flag("xsub_verbose_unsubscribe")), types={_T.XSUB}, reads=False
    ),
    Opt.TOPICS_COUNT: OptionRow(lambda state: _topics_count(state)),
}


def _topics_count(state: OptionState) -> int:
    try:
        return int(state.handle.omq.topics_count)
    except errors.StateError:
        raise error_of(Errno.EINVAL) from None


def _conflate(state: OptionState, value: Any) -> None:
    state.values[Opt.CONFLATE] = _BOOL(value)
    if "conflate" in TRAITS[state.kind].options:
        state.change(conflate=bool(value))


def _invert(state: OptionState, value: Any) -> None:
    state.values[Opt.INVERT_MATCHING] = int(bool(value))
    if "invert_matching" in TRAITS[state.kind].options:
        state.change(invert_matching=bool(value))


_ROWS[Opt.CONFLATE] = OptionRow(_kept(Opt.CONFLATE, 0), _conflate)
_ROWS[Opt.INVERT_MATCHING] = OptionRow(_kept(Opt.INVERT_MATCHING, 0), _invert)


def get_option(state: OptionState, number: int) -> Any:
    """Returns the value of an option.

    Raises:
        ZMQError: EINVAL: There is no such option, or it cannot be read.
    """
    row = _ROWS.get(number)
    if row is None:
        raise error_of(Errno.EINVAL)
    try:
        return row.get(state)
    except errors.OmqError as error:
        raise translate(error, state.handle) from None


def set_option(state: OptionState, number: int, value: Any) -> None:
    """Sets an option.

    Raises:
        TypeError: The value has another type.
        ZMQError: EINVAL: There is no such option, it cannot be set, or the value is not valid.
    """
    if isinstance(value, str):
        raise TypeError("unicode not allowed, use setsockopt_string")
    try:
        kind = Opt(number)._opt_type
    except ValueError:
        kind = _OptType.int
    wanted = bytes if kind == _OptType.bytes else int
    if not isinstance(value, wanted):
        raise TypeError(f"expected {wanted.__name__}, got: {value!r}")
    bound = 63 if kind == _OptType.int64 else 31
    if isinstance(value, int) and not -(2**bound) <= value < 2**bound:
        raise OverflowError(f"value too large to convert to {kind.value}: {value}")
    row = _ROWS.get(number)
    if row is None:
        raise error_of(Errno.EINVAL)
    try:
        row.set(state, value)
    except errors.OmqError as error:
        raise translate(error, state.handle) from None

"""The options of a socket: one frozen value, checked when it is made.

Units are seconds, bytes and messages. An option that is unknown, out of range, or meaningless for the
socket type raises `OptionError` with the offending value; none is accepted and ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network
from ssl import SSLContext
from typing import Any, Final

from omq import option_values as values
from omq.errors import OptionError
from omq.libzmq_options import MEANINGLESS, RENAMED
from omq.types import TRAITS, Security, SocketType, types_with

_ANY: Final = frozenset(SocketType)
_ZMTP: Final = frozenset(kind for kind, traits in TRAITS.items() if traits.handshakes)


def _option(
    default: Any,
    check: Callable[[Any], Any],
    types: frozenset[SocketType] = _ANY,
    *,
    live: bool = False,
    secret: bool = False,
    endpoint: frozenset[str] = frozenset(),
    strict: bool = False,
) -> Any:
    """One row of the table.

    Args:
        default: What holds where nothing is given.
        check: Gives a value as the option keeps it; raises `ValueError` that says what would fit.
        types: The types of sockets that it is for.
        live: Whether a change takes hold on a socket in use.
        secret: Whether its values are not to be shown.
        endpoint: The calls that take it for one endpoint; none where it is the whole socket's.
        strict: Whether a socket that has it refuses, in those calls, endpoints whose transport has no use for it.
    """
    metadata = {
        "check": check,
        "types": types,
        "live": live,
        "secret": secret,
        "endpoint": endpoint,
        "strict": strict,
    }
    return field(default=default, metadata=metadata)


_BIND: Final = frozenset({"bind"})
_CONNECT: Final = frozenset({"connect"})
_EITHER: Final = _BIND | _CONNECT


_HWM = values.whole(0, 2**31 - 1)
_TRISTATE = values.whole(-1, 1)
_IDS = values.numbers(0, 2**32 - 2, "a number")
_PIDS = values.numbers(1, 2**31 - 1, "a number")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options in force on a socket.

    Attributes:
        send_hwm: Messages that wait to be sent before `send` waits (or drops, where the type drops);
            0 for no bound (`ZMQ_SNDHWM`).
        recv_hwm: Messages that wait to be received before reading stops; 0 for no bound (`ZMQ_RCVHWM`).
        send_timeout: Seconds that `send` waits; `None` for ever, 0 never (`ZMQ_SNDTIMEO`).
        recv_timeout: Seconds that `recv` waits; `None` for ever, 0 never (`ZMQ_RCVTIMEO`).
        linger: Seconds that `close`, and `disconnect` in the background, let what was accepted leave; `None` for
            ever (`ZMQ_LINGER`).
        error_linger: Seconds that the end of a `with` block lets it leave when an exception leaves the block; the
            smaller of this and `linger` holds. `None`: as `linger` says.
        identity: The name that ROUTER peers know this socket by; empty for one that they choose
            (`ZMQ_ROUTING_ID`).
        metadata: What peers learn about this socket next to the properties of ZMTP, in `PeerInfo.properties`: a
            mapping, or pairs, of bytes or of text, which is sent in UTF-8; names begin with "X-" (`ZMQ_METADATA`).
        reconnect_interval: Seconds between two attempts to connect; a pair grows from the first to the
            second, with jitter; `None` never reconnects (`ZMQ_RECONNECT_IVL`, `ZMQ_RECONNECT_IVL_MAX`).
        reconnect_stop: What ends the attempts to connect for good: `"refused"` that nobody listens, `"handshake
            failed"` that a handshake came to nothing, `"after disconnect"` that a peer which was connected has
            gone; one or several (`ZMQ_RECONNECT_STOP`). Over inproc nobody is refused: a name may be bound later.
        connect_timeout: Seconds that one attempt to connect may take; `None` leaves it to the system
            (`ZMQ_CONNECT_TIMEOUT`).
        handshake_timeout: Seconds within which a new peer must finish its handshake; `None` for no limit
            (`ZMQ_HANDSHAKE_IVL`).
        heartbeat_interval: Seconds between two PINGs to each peer; `None` sends none (`ZMQ_HEARTBEAT_IVL`).
        heartbeat_timeout: Seconds after a PING within which something has to arrive, or the connection ends;
            `None` for `heartbeat_interval` (`ZMQ_HEARTBEAT_TIMEOUT`).
        heartbeat_ttl: Seconds of silence after which our peers may give us up, told to them with each PING; tenths
            count; `None` and 0 leave it to them (`ZMQ_HEARTBEAT_TTL`).
        max_handshakes: Connections of one bound endpoint (tcp, ipc) that may be in their handshake; more wait in its
            backlog until one of them is finished, or slow enough to be ended; `None` for no limit.
        max_connections: Connections that one bound endpoint (tcp, ipc) keeps; more are closed at once; `None` for no
            limit.
        max_message_size: Bytes that one received message may have, all its parts together; a larger one ends its
            connection before it is read; `None` for no limit, but of a message that is not whole no more than 4
            GiB are kept (`ZMQ_MAXMSGSIZE`).
        max_parts: Parts that one received message may have; more end the connection; `None` for 1048576.
        max_subscriptions: Different prefixes that one peer may subscribe to, 256 MiB of them in all; one more ends its
            connection; `None` for no limit.
        conflate: Keep only the newest message, in each direction; PUB for each subscriber that cannot take more now
            (`ZMQ_CONFLATE`).
        router_mandatory: `send` to an unknown identity raises `UnroutableError` instead of dropping
            (`ZMQ_ROUTER_MANDATORY`).
        router_handover: A new peer with an identity in use takes it over (`ZMQ_ROUTER_HANDOVER`).
        router_rename: Every peer gets a name that this socket makes, whatever it calls itself: peers that call
            themselves the same do not get in each other's way.
        router_notify: Messages about peers: `"connect"` of each that has finished its handshake, `"disconnect"` of
            each that has gone, one or both (True), as a message of the peer's identity and an empty part
            (`ZMQ_ROUTER_NOTIFY`).
        peer_identity: The name that this socket knows the peer of an endpoint by, whatever the peer calls itself, and
            also after it is connected again; empty for the peer's own. A STREAM gives a name that is in use to no
            second peer: that one gets another (`ZMQ_CONNECT_ROUTING_ID`).
        stream_notify: An empty message of each peer that comes, and of each that goes (`ZMQ_STREAM_NOTIFY`).
        probe_router: Send an empty message to each new peer (`ZMQ_PROBE_ROUTER`).
        hello_message: Sent to each new peer before anything else: bytes, or a list of parts; `None` for none
            (`ZMQ_HELLO_MSG`).
        disconnect_message: Received here, as if the peer had sent it last, when a peer that was accepted has gone:
            bytes, or a list of parts; `None` for none (`ZMQ_DISCONNECT_MSG`).
        hiccup_message: Received here, as if the peer had sent it last, when a connection that was dialled is lost, and
            before anything of the next one: bytes, or a list of parts; `None` for none (`ZMQ_HICCUP_MSG`).
        req_relaxed: `send` is allowed before the reply has come; the older request is given up
            (`ZMQ_REQ_RELAXED`).
        req_correlate: Prefix requests with an id and accept only the reply that carries it
            (`ZMQ_REQ_CORRELATE`).
        xpub_verbose: Pass every subscription to the application, not only new ones (`ZMQ_XPUB_VERBOSE`).
        xpub_verboser: Pass every unsubscription too (`ZMQ_XPUB_VERBOSER`).
        xpub_manual: Subscriptions of peers come to the application, and only what it then asks for with
            `subscribe` and `unsubscribe` is in force for that peer (`ZMQ_XPUB_MANUAL`).
        xpub_manual_last_value: As `xpub_manual`, and what is sent after a subscription was received goes to its peer
            alone, if it is in force: one message, such as the newest of its topic (`ZMQ_XPUB_MANUAL_LAST_VALUE`).
        xpub_nodrop: `send` waits for a full subscriber instead of dropping (`ZMQ_XPUB_NODROP`).
        xpub_welcome_message: Sent to each new subscriber; `None` for none (`ZMQ_XPUB_WELCOME_MSG`).
        only_first_subscribe: Of a message between XSUB and XPUB only the first part may be a subscription, and the
            others are a message, whatever they begin with. Otherwise each part of a message that begins with a
            subscription may be one (`ZMQ_ONLY_FIRST_SUBSCRIBE`).
        xsub_verbose_unsubscribe: Publishers get each end of a subscription, also where the same prefix was asked for
            more often, or never (`ZMQ_XSUB_VERBOSE_UNSUBSCRIBE`).
        invert_matching: Send to subscribers that do not match; set on both sides (`ZMQ_INVERT_MATCHING`).
        subscribe: The prefixes to subscribe to from the start (`ZMQ_SUBSCRIBE`).
        join: The groups to join from the start.
        immediate: Queue messages only for peers that are connected; `send` waits while there is none
            (`ZMQ_IMMEDIATE`).
        tcp_keepalive: 1 on, 0 off, -1 the system's default (`ZMQ_TCP_KEEPALIVE`).
        tcp_keepalive_count: Probes before the connection is given up; -1 the system's default.
        tcp_keepalive_idle: Seconds of silence before the first probe; -1 the system's default.
        tcp_keepalive_interval: Seconds between two probes; -1 the system's default.
        tcp_user_timeout: Seconds that sent bytes may stay unacknowledged before the system ends the connection, and
            an attempt to connect unanswered; `None` leaves it to the system (`ZMQ_TCP_MAXRT`).
        send_buffer: The kernel's send buffer in bytes; `None` leaves the system's, and has 512 KiB over ipc
            (`ZMQ_SNDBUF`).
        recv_buffer: The kernel's receive buffer in bytes; `None` leaves the system's (`ZMQ_RCVBUF`).
        backlog: Connections that may wait to be accepted (`ZMQ_BACKLOG`); net.core.somaxconn is the most.
        ipv6: Names and `*` stand for IPv6 addresses too (`ZMQ_IPV6`).
        tos: The IP type-of-service octet of what is sent (`ZMQ_TOS`).
        priority: The priority of what is sent in the queues of the network devices; above 6 only with CAP_NET_ADMIN, 0
            leaves the system's, which follows `tos` (`ZMQ_PRIORITY`).
        bind_device: The network device that traffic is bound to; `None` for any (`ZMQ_BINDTODEVICE`).
        multicast_hops: Routers that multicast datagrams may pass, and one more: 1 keeps them in the local network
            (`ZMQ_MULTICAST_HOPS`). Udp.
        multicast_loop: Multicast datagrams also reach the receivers on this machine (`ZMQ_MULTICAST_LOOP`). Udp.
        use_fd: A descriptor that the program has opened: for `bind` of a socket that listens, and whose address the
            endpoint names, for `connect` of one that is connected, instead of the first connection to the endpoint.
            It is omq's when the call returns, and is closed with the endpoint or the connection; where the call raises
            it stays the program's. The other options hold for it, too; `None` opens one (`ZMQ_USE_FD`). Tcp and ipc.
        accept_filter: The networks, one or several, that peers of a bound tcp endpoint may come from, as text or from
            `ipaddress`; all others are closed before their handshake. `None` for any (`ZMQ_TCP_ACCEPT_FILTER`).
        accept_uids: The ids of the users, one or several, whose processes may come to a bound ipc endpoint; all others
            are closed before their handshake, unless one of the two options that follow lets them in. `None` for no
            such rule (`ZMQ_IPC_FILTER_UID`).
        accept_gids: The same by groups: any of those that the peer's process is in (`ZMQ_IPC_FILTER_GID`).
        accept_pids: The same by processes (`ZMQ_IPC_FILTER_PID`).
        tls: The `ssl.SSLContext` of a wss endpoint; `None` for `ssl.create_default_context()`, to connect only.
        socks_proxy: The SOCKS 5 proxy that connections over tcp go through, as `"host:port"`. It looks the names of
            endpoints up; it has `handshake_timeout` to answer. `None` for none (`ZMQ_SOCKS_PROXY`).
        socks_username: The user's name at the proxy; `None` where it asks for none (`ZMQ_SOCKS_USERNAME`).
        socks_password: The user's password there, which goes to it unencrypted; `None` for an empty one
            (`ZMQ_SOCKS_PASSWORD`).
        busy_poll: Seconds that a blocking call looks for a message before it sleeps; 0 sleeps at once;
            `"adaptive"` looks for 50 us at most, while recent waits were short.
        security: How peers prove who they are, and whether traffic is encrypted: a `PlainServer`, `PlainClient`,
            `CurveServer` or `CurveClient`; `None` for neither (`ZMQ_PLAIN_*`, `ZMQ_CURVE_*`). Not for inproc.
        zap_domain: The domain that a ZAP handler is asked about; where there is no `security` it is asked only if this
            is set (RFC 27; `ZMQ_ZAP_DOMAIN`).
        zap_enforce_domain: Let nobody in when `zap_domain` is set and no ZAP handler is bound, and ask none when it is
            not set (`ZMQ_ZAP_ENFORCE_DOMAIN`).
    """

    send_hwm: int = _option(1000, _HWM, live=True)
    recv_hwm: int = _option(1000, _HWM, live=True)
    send_timeout: float | None = _option(None, values.seconds(none=True), live=True)
    recv_timeout: float | None = _option(None, values.seconds(none=True), live=True)
    linger: float | None = _option(None, values.seconds(none=True), live=True)
    error_linger: float | None = _option(5.0, values.seconds(none=True), live=True)
    identity: bytes = _option(b"", values.identity, _ZMTP)
    metadata: tuple[tuple[bytes, bytes], ...] = _option((), values.metadata, _ZMTP)
    reconnect_interval: float | tuple[float, float] | None = _option(0.1, values.reconnect, endpoint=_CONNECT)
    reconnect_stop: frozenset[str] = _option(frozenset(), values.words(values.RECONNECT_STOPS), endpoint=_CONNECT)
    connect_timeout: float | None = _option(None, values.seconds(none=True, positive=True), endpoint=_CONNECT)
    handshake_timeout: float | None = _option(30.0, values.seconds(none=True, positive=True), _ZMTP, endpoint=_EITHER)
    heartbeat_interval: float | None = _option(None, values.seconds(none=True, positive=True), _ZMTP, endpoint=_EITHER)
    heartbeat_timeout: float | None = _option(None, values.seconds(none=True, positive=True), _ZMTP, endpoint=_EITHER)
    heartbeat_ttl: float | None = _option(None, values.ttl, _ZMTP, endpoint=_EITHER)
    max_handshakes: int | None = _option(1000, values.whole(1, 2**31 - 1, none=True), _ZMTP, endpoint=_BIND)
    max_connections: int | None = _option(None, values.whole(1, 2**31 - 1, none=True), endpoint=_BIND)
    max_message_size: int | None = _option(None, values.whole(0, 2**63 - 1, none=True), _ZMTP, endpoint=_EITHER)
    max_parts: int | None = _option(None, values.whole(1, 2**31 - 1, none=True), _ZMTP, endpoint=_EITHER)
    max_subscriptions: int | None = _option(
        1_000_000, values.whole(1, 2**31 - 1, none=True), types_with("max_subscriptions")
    )
    conflate: bool = _option(False, values.flag, types_with("conflate"))
    router_mandatory: bool = _option(False, values.flag, types_with("router_mandatory"), live=True)
    router_handover: bool = _option(False, values.flag, types_with("router_handover"), live=True)
    router_rename: bool = _option(False, values.flag, types_with("router_rename"))
    router_notify: frozenset[str] = _option(frozenset(), values.notices, types_with("router_notify"))
    peer_identity: bytes = _option(b"", values.identity, types_with("peer_identity"), endpoint=_CONNECT)
    stream_notify: bool = _option(True, values.flag, types_with("stream_notify"))
    probe_router: bool = _option(False, values.flag, types_with("probe_router"))
    hello_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("hello_message"))
    disconnect_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("disconnect_message"))
    hiccup_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("hiccup_message"))
    req_relaxed: bool = _option(False, values.flag, types_with("req_relaxed"))
    req_correlate: bool = _option(False, values.flag, types_with("req_correlate"))
    xpub_verbose: bool = _option(False, values.flag, types_with("xpub_verbose"))
    xpub_verboser: bool = _option(False, values.flag, types_with("xpub_verboser"))
    xpub_manual: bool = _option(False, values.flag, types_with("xpub_manual"))
    xpub_manual_last_value: bool = _option(False, values.flag, types_with("xpub_manual_last_value"))
    xpub_nodrop: bool = _option(False, values.flag, types_with("xpub_nodrop"))
    xpub_welcome_message: bytes | None = _option(None, values.octets, types_with("xpub_welcome_message"))
    only_first_subscribe: bool = _option(False, values.flag, types_with("only_first_subscribe"))
    xsub_verbose_unsubscribe: bool = _option(False, values.flag, types_with("xsub_verbose_unsubscribe"))
    invert_matching: bool = _option(False, values.flag, types_with("invert_matching"))
    subscribe: tuple[bytes, ...] = _option((), values.prefixes, types_with("subscribe"))
    join: tuple[bytes, ...] = _option((), values.groups, types_with("join"))
    immediate: bool = _option(False, values.flag)
    tcp_keepalive: int = _option(-1, _TRISTATE, endpoint=_EITHER)
    tcp_keepalive_count: int = _option(-1, values.system_or(1, 127), endpoint=_EITHER)
    tcp_keepalive_idle: int = _option(-1, values.system_or(1, 32767), endpoint=_EITHER)
    tcp_keepalive_interval: int = _option(-1, values.system_or(1, 32767), endpoint=_EITHER)
    tcp_user_timeout: float | None = _option(
        None, values.seconds(none=True, positive=True, most=2147483.0), endpoint=_EITHER
    )
    send_buffer: int | None = _option(None, values.whole(1, 2**31 - 1, none=True), endpoint=_EITHER)
    recv_buffer: int | None = _option(None, values.whole(1, 2**31 - 1, none=True), endpoint=_EITHER)
    backlog: int = _option(4096, values.whole(1, 2**31 - 1), endpoint=_BIND)
    ipv6: bool = _option(False, values.flag, endpoint=_EITHER)
    tos: int = _option(0, values.whole(0, 255), endpoint=_EITHER)
    priority: int = _option(0, values.whole(0, 2**31 - 1), endpoint=_EITHER)
    bind_device: str | None = _option(None, values.device, endpoint=_EITHER)
    multicast_hops: int = _option(1, values.whole(1, 255), types_with("multicast_hops"), endpoint=_CONNECT, strict=True)
    multicast_loop: bool = _option(True, values.flag, types_with("multicast_loop"), endpoint=_CONNECT, strict=True)
    use_fd: int | None = _option(None, values.whole(0, 2**31 - 1, none=True), endpoint=_EITHER, strict=True)
    accept_filter: tuple[IPv4Network | IPv6Network, ...] | None = _option(
        None, values.networks, endpoint=_BIND, strict=True
    )
    accept_uids: frozenset[int] | None = _option(None, _IDS, endpoint=_BIND, strict=True)
    accept_gids: frozenset[int] | None = _option(None, _IDS, endpoint=_BIND, strict=True)
    accept_pids: frozenset[int] | None = _option(None, _PIDS, endpoint=_BIND, strict=True)
    socks_proxy: str | None = _option(None, values.proxy, endpoint=_CONNECT, strict=True)
    socks_username: str | None = _option(None, values.socks_text(1), endpoint=_CONNECT, strict=True)
    socks_password: str | None = _option(None, values.socks_text(0), secret=True, endpoint=_CONNECT, strict=True)
    tls: SSLContext | None = _option(None, values.tls, endpoint=_EITHER, strict=True)  # noqa: RUF009 - never copied
    busy_poll: float | str = _option(0.0, values.spin, live=True)
    security: Security | None = _option(None, values.security, _ZMTP, secret=True, endpoint=_EITHER)  # noqa: RUF009 - it never changes
    zap_domain: str = _option("", values.domain, _ZMTP, endpoint=_EITHER)
    zap_enforce_domain: bool = _option(False, values.flag, _ZMTP, endpoint=_EITHER)

    def __post_init__(self) -> None:
        for name, spec in _SPECS.items():
            object.__setattr__(self, name, _checked(name, spec, getattr(self, name)))

    @classmethod
    def parse(cls, socket_type: SocketType, given: dict[str, Any], base: Options | None = None) -> Options:
        """Checks options and gives the whole set.

        Args:
            socket_type: The type of the socket they are for.
            given: Option names and values.
            base: What holds for those not given; `None` for the defaults.

        Raises:
            OptionError: A name is unknown, the option does not fit the type, or a value does not fit.
        """
        for name, value in given.items():
            _refuse_unfitting(socket_type, name, value)
        return (_DEFAULTS if base is None else base)._with(given)

    def for_endpoint(
        self, socket_type: SocketType, call: str, endpoint: str, given: Mapping[str, Any], heeded: frozenset[str]
    ) -> Options:
        """Returns the options of one endpoint: these very options if nothing is given for it alone.

        Args:
            socket_type: The type of the socket they are for.
            call: `"bind"` or `"connect"`.
            endpoint: Its text, for errors.
            given: Option names and values.
            heeded: The options that its transport has a use for.

        Raises:
            OptionError: A name is unknown, an option is the whole socket's, or not for this call or this transport, or
                a value does not fit.
        """
        for name, value in given.items():
            calls = _spec(name)["endpoint"]
            if not calls:
                raise OptionError(f"option {name!r} is the whole socket's: it cannot be given for one endpoint")
            _refuse_unfitting(socket_type, name, value)
            if call not in calls:
                raise OptionError(f"option {name!r} is for {next(iter(calls))}, not for {call}")
            if name not in heeded:
                raise OptionError(f"option {name!r} means nothing for {endpoint}")
        for name in _STRICT:
            value = getattr(self, name)
            if name not in heeded and value != getattr(_DEFAULTS, name) and call in _SPECS[name]["endpoint"]:
                shown = _shown(_SPECS[name], value)
                raise OptionError(
                    f"option {name}={shown} of the socket means nothing for {endpoint}: give it to {call} alone"
                )
        found = self._with(given)
        if call == "connect":
            found._check_proxy()
        return found

    def _check_proxy(self) -> None:
        """Raises if there are credentials without what they are for."""
        for name, needs in (("socks_password", "socks_username"), ("socks_username", "socks_proxy")):
            value = getattr(self, name)
            if value is not None and getattr(self, needs) is None:
                raise OptionError(f"option {name}={_shown(_SPECS[name], value)} means nothing without {needs}")

    def _with(self, given: Mapping[str, Any]) -> Options:
        """Returns these options with some replaced; only those are checked, for a socket is made with few of fifty."""
        if not given:
            return self
        found = object.__new__(type(self))
        for name, spec in _SPECS.items():
            value = _checked(name, spec, given[name]) if name in given else getattr(self, name)
            object.__setattr__(found, name, value)
        return found

    @staticmethod
    def is_live(name: str) -> bool:
        """Returns whether a change of the option takes hold on a socket that is already in use."""
        return bool(_SPECS[name]["live"])

    @staticmethod
    def endpoint_calls(name: str) -> frozenset[str]:
        """The calls, of `bind` and `connect`, that take the option for one endpoint; none: it is the whole socket's."""
        calls: frozenset[str] = _SPECS[name]["endpoint"]
        return calls


def _spec(name: str) -> Any:
    """An option's row.

    Raises:
        OptionError: There is none.
    """
    spec = _SPECS.get(name)
    if spec is None:
        if name in MEANINGLESS:
            raise OptionError(f"option {name!r} of libzmq means nothing in omq: {MEANINGLESS[name]}")
        if name in RENAMED:
            raise OptionError(f"unknown option {name!r}; libzmq's option of this name is {RENAMED[name]!r} here")
        close = difflib.get_close_matches(name, _SPECS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known are: {', '.join(sorted(_SPECS))}"
        raise OptionError(f"unknown option {name!r}{hint}")
    return spec


def _refuse_unfitting(socket_type: SocketType, name: str, value: Any) -> None:
    """Raises if there is no such option, or the type has no use for it, or for the value."""
    spec = _spec(name)
    if socket_type in spec["types"]:
        several = spec["check"] is values.message and len(_checked(name, spec, value) or ()) > 1
        if several and TRAITS[socket_type].single_part:
            raise OptionError(f"option {name}={value!r}: messages of a {socket_type.value} socket have one part")
        return
    if spec["types"] is _ZMTP:
        raise OptionError(
            f"option {name}={_shown(spec, value)} does not fit a {socket_type.value} socket: it is for ZMTP, "
            "which that type does not speak"
        )
    fitting = ", ".join(t.value for t in SocketType if t in spec["types"])
    raise OptionError(f"option {name!r} does not fit a {socket_type.value} socket; it is for {fitting}")


def _checked(name: str, spec: Any, value: Any) -> Any:
    """A value as the option keeps it."""
    try:
        return spec["check"](value)
    except ValueError as wanted:
        raise OptionError(f"option {name}={_shown(spec, value)}: must be {wanted}") from None


def _shown(spec: Any, value: Any) -> str:
    """Returns a value for an error. What was meant to be a key or a password is not repeated."""
    return f"<{type(value).__name__}>" if spec["secret"] else repr(value)


_SPECS: Final[dict[str, Any]] = {f.name: f.metadata for f in fields(Options)}
_DEFAULTS: Final = Options()
_STRICT: Final = tuple(name for name, spec in _SPECS.items() if spec["strict"])

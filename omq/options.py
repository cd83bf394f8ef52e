"""The options of a socket: one frozen value, checked when it is made.

Units are seconds, bytes and messages. An option that is unknown, out of range or meaningless for the socket type raises
`OptionError` with the offending value: no option is accepted and then ignored.
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
    """Declares an option.

    Args:
        default: The value if none is given.
        check: Returns the value to store; raises `ValueError` with a description of the valid values.
        types: The socket types that have it.
        live: Whether it can be changed on a socket in use.
        secret: Whether errors hide its value.
        endpoint: The calls that take it for one endpoint; empty for an option of the whole socket.
        strict: Whether a socket that has it refuses, in those calls, endpoints whose transport does not use it.
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
        send_hwm: Messages that may be queued for sending before `send` waits (or drops, for types that drop); 0 for no
            limit (`ZMQ_SNDHWM`).
        recv_hwm: Received messages that may be queued before reading stops; 0 for no limit (`ZMQ_RCVHWM`).
        send_timeout: Seconds that `send` waits; `None` waits for ever, 0 does not wait (`ZMQ_SNDTIMEO`).
        recv_timeout: Seconds that `recv` waits; `None` waits for ever, 0 does not wait (`ZMQ_RCVTIMEO`).
        linger: Seconds that `close`, and `disconnect` in the background, give accepted messages to leave; `None` waits
            for ever (`ZMQ_LINGER`).
        error_linger: The same when an exception leaves a `with` block; the smaller of this and `linger` applies. `None`
            applies `linger`.
        identity: The name by which ROUTER peers know this socket; empty lets them choose one (`ZMQ_ROUTING_ID`).
        metadata: Properties that peers get in `PeerInfo.properties`, in addition to those of ZMTP: a mapping, or pairs,
            of bytes or of text, which is sent in UTF-8; names begin with "X-" (`ZMQ_METADATA`).
        reconnect_interval: Seconds between two attempts to connect, with jitter; a pair is the first and the longest
            delay of an exponential backoff; `None` never reconnects (`ZMQ_RECONNECT_IVL`, `ZMQ_RECONNECT_IVL_MAX`).
        reconnect_stop: The outcomes after which dialling stops for good: `"refused"` (the connection was refused),
            `"rejected"` (one side has rejected the other in the handshake: its password, key, mechanism or socket
            type, or bytes that are not ZMTP), `"handshake failed"` (that, or no answer), `"after disconnect"` (a
            connected peer has gone); one or several (`ZMQ_RECONNECT_STOP`). Over inproc no attempt is refused: a name
            may be bound later.
        connect_timeout: Seconds that one attempt to connect may take; `None` leaves it to the system
            (`ZMQ_CONNECT_TIMEOUT`).
        handshake_timeout: Seconds within which a new peer must finish its handshake; `None` for no limit
            (`ZMQ_HANDSHAKE_IVL`).
        heartbeat_interval: Seconds between two PINGs to each peer; `None` sends none (`ZMQ_HEARTBEAT_IVL`).
        heartbeat_timeout: Seconds after a PING within which bytes must arrive, or the connection ends; `None` applies
            `heartbeat_interval` (`ZMQ_HEARTBEAT_TIMEOUT`).
        heartbeat_ttl: Seconds of silence after which peers may end the connection, sent with each PING; rounded down to
            tenths; `None` and 0 leave it to them (`ZMQ_HEARTBEAT_TTL`).
        max_handshakes: Connections of one bound endpoint (tcp, ipc) that may be in their handshake; more wait in its
            backlog until one has finished, or is slow enough to be ended; `None` for no limit.
        max_connections: Connections of one bound endpoint (tcp, ipc); more are closed at once; `None` for no limit.
        max_message_size: Bytes of one received message, all parts together; a larger one ends its connection before it
            is read. `None` for no limit, but at most 4 GiB of an incomplete message are kept (`ZMQ_MAXMSGSIZE`).
        max_parts: Parts of one received message; more end the connection; `None` for 1048576.
        max_subscriptions: Distinct prefixes that one peer may subscribe to, 256 MiB in all; one more ends its
            connection; `None` for no limit.
        conflate: Keep only the newest message, in each direction; for PUB, only the newest one for each subscriber that
            is not ready (`ZMQ_CONFLATE`).
        router_mandatory: `send` to an unknown identity raises `UnroutableError` instead of dropping
            (`ZMQ_ROUTER_MANDATORY`).
        router_handover: A new peer takes over an identity that is in use (`ZMQ_ROUTER_HANDOVER`).
        router_rename: Give every peer an identity made by this socket and ignore the peer's own, so that peers with the
            same identity do not collide.
        router_notify: Deliver a message when a peer has finished its handshake (`"connect"`), when it has gone
            (`"disconnect"`), or both (True): the peer's identity and an empty part (`ZMQ_ROUTER_NOTIFY`).
        peer_identity: The identity by which this socket knows the peer of an endpoint, also after a reconnect; empty
            for the peer's own. If it is in use, a STREAM gives the peer another one (`ZMQ_CONNECT_ROUTING_ID`).
        stream_notify: Deliver an empty message when a peer connects, and when it disconnects (`ZMQ_STREAM_NOTIFY`).
        probe_router: Send an empty message to each new peer (`ZMQ_PROBE_ROUTER`).
        hello_message: Sent to each new peer before any other message: bytes, or a list of parts; `None` sends nothing
            (`ZMQ_HELLO_MSG`).
        disconnect_message: Received as the last message of an accepted peer that has gone: bytes, or a list of parts;
            `None` for none (`ZMQ_DISCONNECT_MSG`).
        hiccup_message: Received as the last message of a dialled connection that was lost, before any message of the
            next
            one: bytes, or a list of parts; `None` for none (`ZMQ_HICCUP_MSG`).
        req_relaxed: Allow `send` before the reply has come; the earlier request is abandoned (`ZMQ_REQ_RELAXED`).
        req_correlate: Prefix requests with an id and accept only the reply that carries it
            (`ZMQ_REQ_CORRELATE`).
        xpub_verbose: Pass every subscription to the application, not only new ones (`ZMQ_XPUB_VERBOSE`).
        xpub_verboser: Pass every unsubscription too (`ZMQ_XPUB_VERBOSER`).
        xpub_manual: Pass the subscriptions of peers to the application; only those that it then makes with `subscribe`
            and `unsubscribe` apply to the peer (`ZMQ_XPUB_MANUAL`).
        xpub_manual_last_value: As `xpub_manual`; in addition, the first message sent after a subscription was received
            goes to its peer alone, if the subscription is in force, such as the newest message of its topic
            (`ZMQ_XPUB_MANUAL_LAST_VALUE`).
        xpub_nodrop: `send` waits for a full subscriber instead of dropping (`ZMQ_XPUB_NODROP`).
        xpub_welcome_message: Sent to each new subscriber; `None` sends nothing (`ZMQ_XPUB_WELCOME_MSG`).
        only_first_subscribe: Between XSUB and XPUB, only the first part of a message may be a subscription. Otherwise
            each part of a message that begins with a subscription may be one (`ZMQ_ONLY_FIRST_SUBSCRIBE`).
        xsub_verbose_unsubscribe: Send every unsubscription to publishers, even if the same prefix is subscribed more
            often, or was never subscribed (`ZMQ_XSUB_VERBOSE_UNSUBSCRIBE`).
        invert_matching: Send to subscribers that do not match; set on both sides (`ZMQ_INVERT_MATCHING`).
        subscribe: The prefixes to subscribe to from the start (`ZMQ_SUBSCRIBE`).
        join: The groups to join from the start.
        immediate: Queue messages only for connected peers; `send` waits while there are not any. If endpoints are
            connected, while all of them have it (`ZMQ_IMMEDIATE`).
        tcp_keepalive: 1 on, 0 off, -1 the system's default (`ZMQ_TCP_KEEPALIVE`).
        tcp_keepalive_count: Probes before the system ends the connection; -1 for the system's default.
        tcp_keepalive_idle: Seconds of silence before the first probe; -1 for the system's default.
        tcp_keepalive_interval: Seconds between two probes; -1 for the system's default.
        tcp_user_timeout: Seconds that sent bytes may stay unacknowledged, or an attempt to connect unanswered, before
            the system ends the connection; `None` for the system's default (`ZMQ_TCP_MAXRT`).
        send_buffer: The kernel's send buffer in bytes; `None` for the system's default, or 512 KiB over ipc
            (`ZMQ_SNDBUF`).
        recv_buffer: The kernel's receive buffer in bytes; `None` for the system's default (`ZMQ_RCVBUF`).
        backlog: Connections that may wait to be accepted (`ZMQ_BACKLOG`); at most net.core.somaxconn.
        ipv6: Let names and `*` stand for IPv6 addresses too (`ZMQ_IPV6`).
        tos: The IP type-of-service byte of sent packets (`ZMQ_TOS`).
        priority: The priority of sent packets in the queues of the network devices; above 6 it needs CAP_NET_ADMIN; 0
            for the system's default, which follows `tos` (`ZMQ_PRIORITY`).
        bind_device: The network device to bind traffic to; `None` for any (`ZMQ_BINDTODEVICE`).
        multicast_hops: Networks that multicast datagrams may cross: 1 keeps them in the local one
            (`ZMQ_MULTICAST_HOPS`). Udp.
        multicast_loop: Deliver multicast datagrams to receivers on this machine too (`ZMQ_MULTICAST_LOOP`). Udp.
        use_fd: A descriptor that the program has opened: for `bind` a listening socket at the endpoint's address, for
            `connect` a connected one, which replaces the first connection to the endpoint. omq owns it once the call
            returns, and closes it with the endpoint or the connection; if the call raises, it stays the program's. The
            other options apply to it too; `None` opens a new one (`ZMQ_USE_FD`). Tcp and ipc.
        accept_filter: The networks, one or several, from which a bound tcp endpoint accepts peers, as text or from
            `ipaddress`; others are closed before their handshake. `None` for any (`ZMQ_TCP_ACCEPT_FILTER`).
        accept_uids: The ids of the users, one or several, whose processes a bound ipc endpoint accepts; others are
            closed before their handshake, unless `accept_gids` or `accept_pids` accepts them. `None` for no such rule
            (`ZMQ_IPC_FILTER_UID`).
        accept_gids: The same for any of the groups of the peer's process (`ZMQ_IPC_FILTER_GID`).
        accept_pids: The same for the id of the peer's process (`ZMQ_IPC_FILTER_PID`).
        tls: The `ssl.SSLContext` of a wss endpoint; `None` for `ssl.create_default_context()`, to connect only.
        socks_proxy: The SOCKS 5 proxy of tcp connections, as `"host:port"`. It resolves the names of endpoints, and
            must answer within `handshake_timeout`; `None` connects directly (`ZMQ_SOCKS_PROXY`).
        socks_username: The user name at the proxy; `None` if it needs none (`ZMQ_SOCKS_USERNAME`).
        socks_password: The password there, which is sent unencrypted; `None` for an empty one (`ZMQ_SOCKS_PASSWORD`).
        busy_poll: Seconds that a blocking call polls for a message before it sleeps; 0 sleeps at once; `"adaptive"`
            polls for at most 50 us while recent waits were short.
        security: How peers authenticate, and whether traffic is encrypted: a `PlainServer`, `PlainClient`,
            `CurveServer` or `CurveClient`; `None` for neither (`ZMQ_PLAIN_*`, `ZMQ_CURVE_*`). Not for inproc.
        zap_domain: The domain sent to a ZAP handler; without `security` the handler is asked only if this is set (RFC
            27; `ZMQ_ZAP_DOMAIN`).
        zap_enforce_domain: Refuse every peer if `zap_domain` is set and no ZAP handler is bound; ask no handler if it
            is not set (`ZMQ_ZAP_ENFORCE_DOMAIN`).
    """

    send_hwm: int = _option(1000, _HWM, live=True)
    recv_hwm: int = _option(1000, _HWM, live=True)
    send_timeout: float | None = _option(None, values.seconds(none=True), live=True)
    recv_timeout: float | None = _option(None, values.seconds(none=True), live=True)
    linger: float | None = _option(None, values.seconds(none=True), live=True)
    error_linger: float | None = _option(5.0, values.seconds(none=True), live=True)
    identity: bytes = _option(b"", values.identity, _ZMTP, endpoint=_EITHER)
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
    stream_notify: bool = _option(True, values.flag, types_with("stream_notify"), endpoint=_EITHER)
    probe_router: bool = _option(False, values.flag, types_with("probe_router"), live=True)
    hello_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("hello_message"))
    disconnect_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("disconnect_message"))
    hiccup_message: tuple[bytes, ...] | None = _option(None, values.message, types_with("hiccup_message"))
    req_relaxed: bool = _option(False, values.flag, types_with("req_relaxed"), live=True)
    req_correlate: bool = _option(False, values.flag, types_with("req_correlate"), live=True)
    xpub_verbose: bool = _option(False, values.flag, types_with("xpub_verbose"), live=True)
    xpub_verboser: bool = _option(False, values.flag, types_with("xpub_verboser"), live=True)
    xpub_manual: bool = _option(False, values.flag, types_with("xpub_manual"), live=True)
    xpub_manual_last_value: bool = _option(False, values.flag, types_with("xpub_manual_last_value"), live=True)
    xpub_nodrop: bool = _option(False, values.flag, types_with("xpub_nodrop"), live=True)
    xpub_welcome_message: bytes | None = _option(None, values.raw_bytes, types_with("xpub_welcome_message"), live=True)
    only_first_subscribe: bool = _option(False, values.flag, types_with("only_first_subscribe"))
    xsub_verbose_unsubscribe: bool = _option(False, values.flag, types_with("xsub_verbose_unsubscribe"))
    invert_matching: bool = _option(False, values.flag, types_with("invert_matching"), live=True)
    subscribe: tuple[bytes, ...] = _option((), values.prefixes, types_with("subscribe"))
    join: tuple[bytes, ...] = _option((), values.groups, types_with("join"))
    immediate: bool = _option(False, values.flag, endpoint=_CONNECT)
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
        """Checks options and returns the complete set.

        Args:
            socket_type: The socket's type.
            given: Values by option name.
            base: The values of the other options; `None` for the defaults.

        Raises:
            OptionError: A name is unknown, an option does not fit the type, or a value is not valid.
        """
        for name, value in given.items():
            _refuse_unfitting(socket_type, name, value)
        return (_DEFAULTS if base is None else base)._with(given)

    def for_endpoint(
        self, socket_type: SocketType, call: str, endpoint: str, given: Mapping[str, Any], supported: frozenset[str]
    ) -> Options:
        """Returns the options of one endpoint; `self` if *given* is empty.

        Args:
            socket_type: The socket's type.
            call: `"bind"` or `"connect"`.
            endpoint: The endpoint, for errors.
            given: Values by option name, for this endpoint alone.
            supported: The options that its transport uses.

        Raises:
            OptionError: A name is unknown, an option applies to the whole socket, or not to this call or this
                transport, or a value is not valid.
        """
        for name, value in given.items():
            calls = _spec(name)["endpoint"]
            if not calls:
                raise OptionError(f"option {name!r} applies to the whole socket: it cannot be given for one endpoint")
            _refuse_unfitting(socket_type, name, value)
            if call not in calls:
                raise OptionError(f"option {name!r} is for {next(iter(calls))}, not for {call}")
            if name not in supported:
                raise OptionError(f"option {name!r} does not apply to {endpoint}")
        for name in _STRICT:
            value = getattr(self, name)
            if name not in supported and value != getattr(_DEFAULTS, name) and call in _SPECS[name]["endpoint"]:
                shown = _shown(_SPECS[name], value)
                raise OptionError(
                    f"option {name}={shown} of the socket does not apply to {endpoint}: "
                    f"pass it to {call} of the endpoints that use it"
                )
        found = self._with(given)
        if call == "connect":
            found._check_proxy()
        return found

    def _check_proxy(self) -> None:
        """Raises if proxy credentials are given without the option that they need."""
        for name, needs in (("socks_password", "socks_username"), ("socks_username", "socks_proxy")):
            value = getattr(self, name)
            if value is not None and getattr(self, needs) is None:
                raise OptionError(f"option {name}={_shown(_SPECS[name], value)} needs {needs}")

    def _with(self, given: Mapping[str, Any]) -> Options:
        """Returns a copy with some options replaced; checks only those, because a socket sets few of some fifty."""
        if not given:
            return self
        found = object.__new__(type(self))
        for name, spec in _SPECS.items():
            value = _checked(name, spec, given[name]) if name in given else getattr(self, name)
            object.__setattr__(found, name, value)
        return found

    @staticmethod
    def is_live(name: str) -> bool:
        """Returns whether the option can be changed on a socket that is in use."""
        return bool(_SPECS[name]["live"])

    @staticmethod
    def endpoint_calls(name: str) -> frozenset[str]:
        """Returns which of `bind` and `connect` take the option for one endpoint; empty for one of the whole socket."""
        calls: frozenset[str] = _SPECS[name]["endpoint"]
        return calls


def _spec(name: str) -> Any:
    """Returns an option's row.

    Raises:
        OptionError: The option is unknown.
    """
    spec = _SPECS.get(name)
    if spec is None:
        if name in MEANINGLESS:
            raise OptionError(f"option {name!r} of libzmq does not exist in omq: {MEANINGLESS[name]}")
        if name in RENAMED:
            raise OptionError(f"unknown option {name!r}; libzmq's option of this name is {RENAMED[name]!r} here")
        close = difflib.get_close_matches(name, _SPECS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known options are: {', '.join(sorted(_SPECS))}"
        raise OptionError(f"unknown option {name!r}{hint}")
    return spec


def _refuse_unfitting(socket_type: SocketType, name: str, value: Any) -> None:
    """Raises if the option is unknown, or does not fit the type with this value."""
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
    """Returns a value as the option stores it."""
    try:
        return spec["check"](value)
    except ValueError as wanted:
        raise OptionError(f"option {name}={_shown(spec, value)}: must be {wanted}") from None


def _shown(spec: Any, value: Any) -> str:
    """Returns a value for an error; a secret appears as its type only."""
    return f"<{type(value).__name__}>" if spec["secret"] else repr(value)


_SPECS: Final[dict[str, Any]] = {f.name: f.metadata for f in fields(Options)}
_DEFAULTS: Final = Options()
_STRICT: Final = tuple(name for name, spec in _SPECS.items() if spec["strict"])

"""The socket types and their traits, one row for each type (RFC 23, RFC 28 and their companions)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final

from omq.errors import UsageError


class IdentityEnum(Enum):
    """Base of enumerations that are keys of often used tables: a member's hash is that of the object.

    The usual hash of a member is a Python function that hashes its name: two dozen calls for each connection.
    """

    __hash__ = object.__hash__


class SocketType(IdentityEnum):
    """A ZeroMQ socket type; the value is its name on the wire (RFC 23, section "The NULL Mechanism")."""

    PAIR = "PAIR"
    PUB = "PUB"
    SUB = "SUB"
    REQ = "REQ"
    REP = "REP"
    DEALER = "DEALER"
    ROUTER = "ROUTER"
    PULL = "PULL"
    PUSH = "PUSH"
    XPUB = "XPUB"
    XSUB = "XSUB"
    STREAM = "STREAM"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    RADIO = "RADIO"
    DISH = "DISH"
    GATHER = "GATHER"
    SCATTER = "SCATTER"
    PEER = "PEER"
    CHANNEL = "CHANNEL"


_T = SocketType


class Route(Enum):
    """The keyword argument of `send` for the destination of a message."""

    ROUTING_ID = "routing_id"  # a peer's number (RFC 41, RFC 51)
    GROUP = "group"  # all peers that have joined it (RFC 48)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """The traits of one socket type, next to its pattern (`omq.routing.PATTERNS`).

    Attributes:
        text: The docstring of its classes.
        accepts: The types that its peers may have; empty where `handshakes` is false.
        handshakes: Whether it speaks ZMTP; STREAM does not, and has no handshake.
        sends_identity: Whether it sends peers its identity in the Identity property (RFC 37, "The NULL Mechanism").
        one_connection: Whether it keeps one connection for each endpoint, because a second one would duplicate messages
            or lose replies. libzmq ignores a second `zmq_connect` of the same types (`is_single_connect`,
            socket_base.cpp).
        one_peer: Whether it has one peer at a time, and refuses a second one.
        single_part: Whether its messages have one part: sending more is refused, receiving more ends the connection.
        envelope: Frames on the wire before that part, where `single_part` holds.
        datagrams: The call, `bind` or `connect`, that takes datagram endpoints; empty where neither does.
        route: The keyword that `send` needs, where no part of the message names the destination.
        options: The options that only some types have, this one included.
    """

    text: str
    accepts: frozenset[SocketType]
    handshakes: bool = True
    sends_identity: bool = False
    one_connection: bool = False
    one_peer: bool = False
    single_part: bool = False
    envelope: int = 0
    datagrams: str = ""
    route: Route | None = None
    options: frozenset[str] = frozenset()


def _traits(text: str, accepts: str, *, options: str = "", **rest: Any) -> Traits:
    types = frozenset(SocketType(name) for name in accepts.split())
    return Traits(text=text, accepts=types, options=frozenset(options.split()), **rest)


#: The traits of each type.
TRAITS: Final[dict[SocketType, Traits]] = {
    _T.PAIR: _traits("Talks to exactly one peer (RFC 31).", "PAIR", one_peer=True),
    _T.PUB: _traits(
        "Gives each message to every peer that has subscribed to it (RFC 29).",
        "SUB XSUB",
        one_connection=True,
        options="conflate invert_matching max_subscriptions xpub_nodrop",
    ),
    _T.SUB: _traits(
        "Takes the messages that it has subscribed to (RFC 29).",
        "PUB XPUB",
        one_connection=True,
        options="conflate invert_matching subscribe",
    ),
    _T.REQ: _traits(
        "Sends a request, then takes its reply (RFC 28).",
        "REP ROUTER",
        sends_identity=True,
        one_connection=True,
        options="probe_router req_correlate req_relaxed",
    ),
    _T.REP: _traits("Takes a request, then sends its reply (RFC 28).", "REQ DEALER"),
    _T.DEALER: _traits(
        "Sends to its peers in turn and takes from all in turn (RFC 28).",
        "REP DEALER ROUTER",
        sends_identity=True,
        one_connection=True,
        options="conflate hello_message hiccup_message probe_router",
    ),
    _T.ROUTER: _traits(
        "Names each message's sender, and sends to the peer that is named (RFC 28).",
        "REQ DEALER ROUTER",
        sends_identity=True,
        options="disconnect_message hello_message probe_router router_handover router_mandatory router_notify "
        "router_rename peer_identity",
    ),
    _T.PULL: _traits("Takes messages from all its peers in turn (RFC 30).", "PUSH", options="conflate"),
    _T.PUSH: _traits("Gives each message to one of its peers, in turn (RFC 30).", "PULL", options="conflate"),
    _T.XPUB: _traits(
        "A PUB that also receives subscriptions: a byte 1, or 0 for the end of one, and the prefix (RFC 29).",
        "SUB XSUB",
        options="invert_matching max_subscriptions only_first_subscribe xpub_manual xpub_manual_last_value "
        "xpub_nodrop xpub_verbose xpub_verboser xpub_welcome_message",
    ),
    _T.XSUB: _traits(
        "A SUB that sends its subscriptions as messages and does not filter (RFC 29).",
        "PUB XPUB",
        options="invert_matching only_first_subscribe subscribe xsub_verbose_unsubscribe",
    ),
    _T.STREAM: _traits(
        "Speaks plain TCP with peers that know no ZMTP: each message names its peer (zmq_socket(3)).",
        "",
        handshakes=False,
        options="peer_identity stream_notify",
    ),
    _T.SERVER: _traits(
        "Takes messages from all its clients, and sends to the one that is named (RFC 41).",
        "CLIENT",
        single_part=True,
        route=Route.ROUTING_ID,
        options="disconnect_message hello_message",
    ),
    _T.CLIENT: _traits(
        "Sends to its servers in turn and takes from all in turn (RFC 41).",
        "SERVER",
        single_part=True,
        options="hello_message hiccup_message",
    ),
    _T.RADIO: _traits(
        "Gives each message to every peer that has joined its group (RFC 48).",
        "DISH",
        single_part=True,
        envelope=1,  # the group
        route=Route.GROUP,
        datagrams="connect",
        options="max_subscriptions multicast_hops multicast_loop",
    ),
    _T.DISH: _traits(
        "Takes the messages of the groups that it has joined (RFC 48).",
        "RADIO",
        single_part=True,
        envelope=1,
        datagrams="bind",
        options="join",
    ),
    _T.GATHER: _traits("Takes messages from all its peers in turn (RFC 49).", "SCATTER", single_part=True),
    _T.SCATTER: _traits("Gives each message to one of its peers, in turn (RFC 49).", "GATHER", single_part=True),
    _T.PEER: _traits(
        "Takes messages from all its peers, and sends to the one that is named (RFC 51).",
        "PEER",
        single_part=True,
        route=Route.ROUTING_ID,
        options="disconnect_message hello_message hiccup_message",
    ),
    _T.CHANNEL: _traits("Talks to exactly one peer (RFC 52).", "CHANNEL", one_peer=True, single_part=True),
}

#: The peer types that each type accepts.
COMPATIBLE: Final = {kind: traits.accepts for kind, traits in TRAITS.items()}

#: The types that send their identity to their peer.
SENDS_IDENTITY: Final = frozenset(kind for kind, traits in TRAITS.items() if traits.sends_identity)

#: The types that keep one connection for each endpoint.
ONE_CONNECTION: Final = frozenset(kind for kind, traits in TRAITS.items() if traits.one_connection)


def types_with(option: str) -> frozenset[SocketType]:
    """Returns the types that have an option that not all have."""
    return frozenset(kind for kind, traits in TRAITS.items() if option in traits.options)


#: The limit of a socket's path or abstract name: `sun_path` has 108 bytes, and one is for the NUL (`unix(7)`).
MAX_PATH_BYTES: Final = 107
#: The limit of a group's name (RFC 48, Group).
MAX_GROUP_BYTES: Final = 255


def group_of(value: object) -> bytes:
    """Returns a group's name as it is sent; text is encoded in UTF-8, as `Message.group` is decoded.

    Raises:
        TypeError: The value is neither `str` nor `bytes`.
        UsageError: The name is longer than 255 bytes, or has a zero byte.
    """
    # The exact type: calls use the name under the socket's lock, where no code of a derived class may run.
    if isinstance(value, str):
        try:
            group = str.encode(value, "utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise UsageError(f"group={value!r}: cannot be sent in UTF-8: {error.reason}") from None
    elif type(value) is bytes:
        group = value
    else:
        raise TypeError(f"group={value!r}: must be str or bytes, not {type(value).__name__}")
    if len(group) > MAX_GROUP_BYTES:
        raise UsageError(
            f"group={group[:20]!r}...: has {len(group)} bytes, more than {MAX_GROUP_BYTES} (RFC 48, Group)"
        )
    if b"\0" in group:
        raise UsageError(f"group={group!r}: has a zero byte (RFC 48, Group)")
    return group


#: `poll`: a message can be received (`ZMQ_POLLIN`).
POLL_IN: Final = 1
#: `poll`: a message can be sent (`ZMQ_POLLOUT`).
POLL_OUT: Final = 4


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "<the socket's own>"

    def __repr__(self) -> str:
        return self.value


#: Stands for an omitted argument: the socket's own option applies.
UNSET: Final = Unset.UNSET


class Security(ABC):
    """Base of the values of the option `security`, by which peers authenticate; see `omq.security`.

    Attributes:
        name: The mechanism, as RFC 23 spells it.
        as_server: Whether this side authenticates clients; otherwise it authenticates to a server.
    """

    name: ClassVar[str]
    as_server: ClassVar[bool]

    @abstractmethod
    def begin(self, cookies: Any) -> Any:
        """Returns a new mechanism for one connection.

        Args:
            cookies: The cookie keys of one socket's connections (`omq.zmtp.curve.CookieKeys`).
        """

    def judge(self, credentials: tuple[bytes, ...]) -> Any:
        """Decides whether to admit a peer with these credentials: a truth value, or an awaitable of one.

        `None` leaves the decision to a ZAP handler (RFC 27). It may raise `HandshakeError` to refuse the peer for a
        time: the text is sent to the peer, with `_` for blanks.
        """
        return None

    def user_of(self, credentials: tuple[bytes, ...]) -> str | None:
        """Returns the user id of a peer with these credentials; `None` for none."""
        return None

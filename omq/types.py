"""The socket types and which of them may talk to each other (RFC 23, RFC 28 and their companions)."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar, Final


class SocketType(Enum):
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

#: Which peer types each type accepts. STREAM speaks raw TCP and appears in no handshake.
COMPATIBLE: Final[dict[SocketType, frozenset[SocketType]]] = {
    _T.PAIR: frozenset({_T.PAIR}),  # RFC 31
    _T.PUB: frozenset({_T.SUB, _T.XSUB}),  # RFC 29
    _T.SUB: frozenset({_T.PUB, _T.XPUB}),
    _T.XPUB: frozenset({_T.SUB, _T.XSUB}),
    _T.XSUB: frozenset({_T.PUB, _T.XPUB}),
    _T.REQ: frozenset({_T.REP, _T.ROUTER}),  # RFC 28
    _T.REP: frozenset({_T.REQ, _T.DEALER}),
    _T.DEALER: frozenset({_T.REP, _T.DEALER, _T.ROUTER}),
    _T.ROUTER: frozenset({_T.REQ, _T.DEALER, _T.ROUTER}),
    _T.PULL: frozenset({_T.PUSH}),  # RFC 30
    _T.PUSH: frozenset({_T.PULL}),
    _T.STREAM: frozenset(),
    _T.SERVER: frozenset({_T.CLIENT}),  # RFC 41
    _T.CLIENT: frozenset({_T.SERVER}),
    _T.RADIO: frozenset({_T.DISH}),  # RFC 48
    _T.DISH: frozenset({_T.RADIO}),
    _T.GATHER: frozenset({_T.SCATTER}),  # RFC 49
    _T.SCATTER: frozenset({_T.GATHER}),
    _T.PEER: frozenset({_T.PEER}),  # RFC 51
    _T.CHANNEL: frozenset({_T.CHANNEL}),  # RFC 52
}

#: The types that name themselves to their peer with the Identity property (RFC 37, "The NULL Mechanism").
SENDS_IDENTITY: Final = frozenset({_T.REQ, _T.DEALER, _T.ROUTER})

#: Types to which a second connection to the same place can only do harm: it doubles messages, or its replies get lost.
#: libzmq ignores a second `zmq_connect` of these, and of no others (`is_single_connect`, socket_base.cpp).
ONE_CONNECTION: Final = frozenset({_T.DEALER, _T.SUB, _T.PUB, _T.REQ})

#: `poll`: a message can be received (`ZMQ_POLLIN`).
POLL_IN: Final = 1
#: `poll`: a message can be sent (`ZMQ_POLLOUT`).
POLL_OUT: Final = 4


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "<the socket's own>"

    def __repr__(self) -> str:
        return self.value


#: Stands for an argument that was left out: the socket's own option holds.
UNSET: Final = Unset.UNSET


class Security(ABC):
    """What the option `security` takes: how peers prove who they are; see `omq.security`.

    Attributes:
        name: The mechanism, as RFC 23 spells it.
        as_server: This side lets others in; a client proves itself to a server.
    """

    name: ClassVar[str]
    as_server: ClassVar[bool]

    @abstractmethod
    def begin(self, cookies: Any) -> Any:
        """A fresh mechanism for one connection.

        Args:
            cookies: What locks the cookies of one socket's connections (`omq.zmtp.curve.CookieKeys`).
        """

    def judge(self, credentials: tuple[bytes, ...]) -> Any:
        """Whether a peer with these credentials may come in: a truth value, an awaitable of one, or `None`.

        `None` leaves it to a ZAP handler (RFC 27).
        """
        return None

    def user_of(self, credentials: tuple[bytes, ...]) -> str | None:
        """Who a peer with these credentials is."""
        return None

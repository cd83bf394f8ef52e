"""The properties of the newer socket types that tests need: their pairs, and the keyword that `send` needs."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from omq.errors import OptionError
from omq.options import Options
from omq.types import TRAITS, Route, SocketType

#: Types whose messages have one part.
ONE_PART: Final = frozenset(kind.value for kind, traits in TRAITS.items() if traits.single_part)
#: Types that have one peer at a time.
ONE_PEER: Final = frozenset(kind.value for kind, traits in TRAITS.items() if traits.one_peer)
#: Types that send by the number of a peer.
NUMBERED: Final = frozenset(kind.value for kind, traits in TRAITS.items() if traits.route is Route.ROUTING_ID)
#: What sends, and what receives: each direction of the types whose messages have one part.
PAIRS: Final = (
    ("SCATTER", "GATHER"),
    ("CLIENT", "SERVER"),
    ("SERVER", "CLIENT"),
    ("CHANNEL", "CHANNEL"),
    ("PEER", "PEER"),
    ("RADIO", "DISH"),
)
#: What sends to each type that receives.
SENDER: Final = {receiver: sender for sender, receiver in PAIRS}
#: The group of RADIO and DISH.
GROUP: Final = "g"
#: What a peer is sent first, where its number could be known from a message only.
HELLO: Final = b"hello"


def fitting(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns those of some options that a type of socket takes."""
    found = {}
    for name, value in options.items():
        with contextlib.suppress(OptionError):
            Options.parse(SocketType(kind), {name: value})
            found[name] = value
    return found


def options_of(kind: str, peer: str) -> dict[str, Any]:
    """Returns the options of a type without which its peer could not send to it."""
    if kind == "DISH":
        return {"join": GROUP}
    return {"hello_message": HELLO} if (kind, peer) in (("CLIENT", "SERVER"), ("PEER", "PEER")) else {}


def joined(make: Any, sender: str, receiver: str, endpoint: str, bound: float, **options: Any) -> tuple[Any, Any, Any]:
    """Makes two sockets that know each other.

    Args:
        make: Makes a blocking socket of a type, with options.
        sender: The type that dials and sends.
        receiver: The type that is bound and receives.
        endpoint: Where.
        bound: Seconds that each step may take.
        **options: Options of both.

    Returns:
        The socket that sends, the one that receives, and the keywords that `send` needs.
    """
    two = make(receiver, bind=endpoint, **options_of(receiver, sender), **options)
    if sender == "PEER":
        one = make(sender, **options)
        route = {"routing_id": one.connect_peer(two.endpoints[0], timeout=bound)}
        two.wait_connected(timeout=bound)
        return one, two, route
    one = make(sender, connect=two.endpoints[0], **options)
    two.wait_connected(timeout=bound)
    if sender == "RADIO":
        one.wait_subscribed(GROUP, timeout=bound)
        return one, two, {"group": GROUP}
    if sender == "SERVER":
        return one, two, {"routing_id": one.recv_message(timeout=bound).routing_id}
    one.wait_connected(timeout=bound)
    return one, two, {}

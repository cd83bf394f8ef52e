"""Routing of messages: one pattern for each family of socket types. No I/O here.

A pattern configures the Cython queues that move messages (`omq._core.queues`) and runs only when peers, subscriptions
or options change.
"""

from omq.routing.base import Pattern, RoutedSession
from omq.routing.client_server import Server
from omq.routing.dealer_router import Dealer, Router
from omq.routing.pair import Pair
from omq.routing.pub_sub import Publisher, Subscriber
from omq.routing.push_pull import Pull, Push
from omq.routing.radio_dish import Dish, Radio
from omq.routing.req_rep import Reply, Request
from omq.routing.stream import Stream
from omq.types import SocketType

#: The pattern of each socket type that omq speaks.
PATTERNS: dict[SocketType, type[Pattern]] = {
    SocketType.PUSH: Push,
    SocketType.PULL: Pull,
    SocketType.PUB: Publisher,
    SocketType.XPUB: Publisher,
    SocketType.SUB: Subscriber,
    SocketType.XSUB: Subscriber,
    SocketType.REQ: Request,
    SocketType.REP: Reply,
    SocketType.DEALER: Dealer,
    SocketType.ROUTER: Router,
    SocketType.PAIR: Pair,
    SocketType.STREAM: Stream,
    # The types whose messages have one part. The table of types has their other traits.
    SocketType.SCATTER: Push,
    SocketType.GATHER: Pull,
    SocketType.CHANNEL: Pair,
    SocketType.CLIENT: Dealer,
    SocketType.SERVER: Server,
    SocketType.RADIO: Radio,
    SocketType.DISH: Dish,
    SocketType.PEER: Server,
}

__all__ = ["PATTERNS", "Pattern", "RoutedSession"]

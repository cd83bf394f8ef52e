"""Named queues: a broker with topics that persist and replay, and its clients."""

from omq.broker.errors import BrokerError, Overrun, PermissionDenied, StoreFull, TopicError
from omq.broker.server import Server

__all__ = [
    "BrokerError",
    "Overrun",
    "PermissionDenied",
    "Server",
    "StoreFull",
    "TopicError",
]

"""Named queues: a broker with topics that persist and replay, and its clients.

    import omq.broker

    with omq.broker.Client("tcp://127.0.0.1:5565") as client:
        client.create("prices")
        client.publish("prices", b"AAPL 189.95")
        for message in client.subscribe("prices", replay="earliest"):
            print(message.id, message.body)

`omq.asyncio.broker` has the same for `await`.
"""

from omq.broker.client.client import Client
from omq.broker.client.streams import Consumer, Subscription
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    BrokerTimeout,
    Busy,
    Damaged,
    NotLeader,
    Overrun,
    PermissionDenied,
    StoreFull,
    TakenOver,
    TopicError,
)
from omq.broker.server import Server
from omq.broker.types import Columns, Committed, Delivery, DurableInfo, GroupInfo, Message, Record, Records, TopicInfo
from omq.serving.cluster import Cluster

__all__ = [
    "BrokerError",
    "BrokerFailed",
    "BrokerTimeout",
    "Busy",
    "Client",
    "Cluster",
    "Columns",
    "Committed",
    "Consumer",
    "Damaged",
    "Delivery",
    "Message",
    "DurableInfo",
    "GroupInfo",
    "NotLeader",
    "Overrun",
    "PermissionDenied",
    "Record",
    "Records",
    "Server",
    "StoreFull",
    "Subscription",
    "TakenOver",
    "TopicError",
    "TopicInfo",
]

"""Store and forward: a device that keeps messages until a consumer has finished them, and its clients.

    import omq.pzq

    with omq.pzq.Device("data") as device:
        with omq.pzq.Producer(device.endpoints["receive"]) as producer:
            producer.send(b"job")
        with omq.pzq.Consumer(device.endpoints["send"]) as consumer:
            delivery = consumer.recv(timeout=5)
            delivery.ack()

Clients that were written for pzq (https://github.com/mkoppanen/pzq) work with it. `omq.asyncio.pzq` has the same for
`await`.
"""

from omq.pzq.client.consumer import Consumer, Delivery
from omq.pzq.client.producer import Producer
from omq.pzq.device.device import Device
from omq.pzq.errors import Malformed, NotReplicated, ProduceTimeout, PzqError, Refused
from omq.serving.cluster import Cluster

__all__ = [
    "Cluster",
    "Consumer",
    "Delivery",
    "Device",
    "Malformed",
    "NotReplicated",
    "ProduceTimeout",
    "Producer",
    "PzqError",
    "Refused",
]

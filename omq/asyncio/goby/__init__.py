"""The asyncio twin of `omq.goby`: the same daemon and portal, whose calls are awaited.

import omq.asyncio.goby

async with omq.asyncio.goby.Daemon(platform="auv"), omq.asyncio.goby.Portal("chat", platform="auv") as portal:
    texts = portal.subscribe("chat", str)
    await portal.wait_released(timeout=5)
    await portal.publish("chat", "hello")
    async for text in texts:
        print(text)
"""

from omq.asyncio.goby.daemon import Daemon
from omq.asyncio.goby.portal import Portal, Subscription
from omq.goby.dispatch import Received
from omq.goby.errors import BufferFull, GobyError, Malformed
from omq.goby.identifier import Group
from omq.goby.scheme import Scheme

__all__ = [
    "BufferFull",
    "Daemon",
    "GobyError",
    "Group",
    "Malformed",
    "Portal",
    "Received",
    "Scheme",
    "Subscription",
]

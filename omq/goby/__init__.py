"""A Goby 3 bus in Python: a client of its processes, and the daemon between them.

    import omq.goby

    with omq.goby.Daemon(platform="auv"), omq.goby.Portal("chat", platform="auv") as portal:
        texts = portal.subscribe("chat", str)
        portal.wait_released(timeout=5)
        portal.publish("chat", "hello")
        print(texts.recv(timeout=5))

Processes that were written for Goby 3 (https://goby.software) work with it. `omq.asyncio.goby` has the same for
`await`.
"""

from omq.serving.extras import missing_extra

try:
    import google.protobuf  # noqa: F401 - checked here, for all modules
except ImportError as missing:
    raise missing_extra("omq.goby", missing, "goby") from None

from omq.goby.application import Application
from omq.goby.daemon import Daemon
from omq.goby.dispatch import Received
from omq.goby.errors import BufferFull, GobyError, Malformed
from omq.goby.identifier import Group
from omq.goby.portal import Portal, Subscription
from omq.goby.scheme import Scheme

__all__ = [
    "Application",
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

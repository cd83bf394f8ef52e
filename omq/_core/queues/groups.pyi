from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Peer
from omq._core.queues.recv_queue import ShapedRecvQueue
from omq._core.queues.subscriptions import OwnSubscriptions, PublisherSendQueue
from omq._core.queues.wait_queue import WaitQueue

class UnaskedPeer(Peer):
    """A peer that has no way to join a group, and gets all of them; of a bounded size each."""

class RadioSendQueue(PublisherSendQueue):
    """RADIO: each message goes to every peer that has joined its group; a full one misses it (RFC 48)."""

class OwnGroups(OwnSubscriptions):
    """The groups of a DISH, and the peers that are asked for their messages."""

    def join(self, group: bytes) -> None:
        """Joins a group.

        Raises:
            UsageError: It is joined already.
        """

    def leave(self, group: bytes) -> None:
        """Leaves a group.

        Raises:
            UsageError: It is not joined.
        """

class GroupRecvQueue(ShapedRecvQueue):
    """DISH: the group of a message is kept apart from it; messages of groups that were not joined are dropped.

    Args:
        wait_queue: Where receiving calls wait.
        matcher: The groups that were joined.
    """

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher) -> None: ...

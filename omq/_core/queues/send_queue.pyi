from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Peer, SendQueue
from omq._core.queues.recv_queue import RequestRecvQueue
from omq._core.queues.wait_queue import WaitQueue
from omq._core.wire.waiting import WaitingMessages

class RoundRobin(SendQueue):
    """One queue; each message goes to the next peer that can be written (PUSH, DEALER, PAIR).

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait; 0 for no bound.
        conflate: Keep only the newest message that waits.
        immediate: Accept nothing while there is no peer.
    """

    def __init__(self, wait_queue: WaitQueue, hwm: int, conflate: bool = False, immediate: bool = False) -> None: ...
    @property
    def queue(self) -> WaitingMessages:
        """Accepted messages that no peer has got yet."""

    def surrender(self, messages: list[bytes | tuple[bytes, ...]]) -> None:
        """Moves the waiting messages to the end of *messages*: all or, where it raises, none."""

    def deliver(self, peer: Peer, messages: list[bytes | tuple[bytes, ...]]) -> None:
        """Gives *messages* to a peer outside routing; messages that it cannot take stay in the list."""

class RequestSendQueue(RoundRobin):
    """REQ: one request at a time, behind an empty delimiter (RFC 28)."""

    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        recv_queue: RequestRecvQueue,
        relaxed: bool,
        correlate: bool,
        immediate: bool = False,
    ) -> None: ...

class Distributor(SendQueue):
    """Each message goes to every subscriber whose prefixes it matches (PUB, XPUB; RFC 29).

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
        matcher: The subscriptions; `None` sends every message to every peer.
        nodrop: Wait for a full peer instead of dropping.
        invert: Send to those that do not match.
        conflate: Keep the newest message for a peer that cannot be written, and drop none.
    """

    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        matcher: Matcher | None,
        nodrop: bool = False,
        invert: bool = False,
        conflate: bool = False,
    ) -> None: ...
    @property
    def matcher(self) -> Matcher | None: ...

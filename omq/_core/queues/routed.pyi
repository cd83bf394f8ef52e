"""Send queues whose messages name their receiver."""

from omq._core.queues.peer import Peer, SendQueue
from omq._core.queues.recv_queue import ReplyRecvQueue
from omq._core.queues.wait_queue import WaitQueue

class RoutedSendQueue(SendQueue):
    """Each peer has a name: on ROUTER its identity, in the first part (RFC 28), else a number: the call's route.

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
        mandatory: An unknown peer is an error, and a full one makes `send` wait.
    """

    def __init__(self, wait_queue: WaitQueue, hwm: int, mandatory: bool) -> None: ...
    @property
    def table(self) -> dict[bytes | int, Peer]:
        """Peers by identity, or by number where they have one."""

    def set_mandatory(self, mandatory: bool) -> None: ...

class StreamSendQueue(RoutedSendQueue):
    """STREAM: bytes for the peer that the first part names; an empty part closes it (zmq_socket(3), ZMQ_STREAM).

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
    """

    def __init__(self, wait_queue: WaitQueue, hwm: int) -> None: ...

class ReplySendQueue(SendQueue):
    """REP: the reply goes to the peer that asked, behind the envelope of the request (RFC 28)."""

    def __init__(self, wait_queue: WaitQueue, hwm: int, recv_queue: ReplyRecvQueue) -> None: ...

from typing import Any, TypeVar

from omq._core.queues.wait_queue import WaitQueue

class Peer:
    """The other side of a connection or of an inproc pipe.

    Attributes:
        session: The engine's owner of this peer.
        identity: The name that ROUTER knows it by.
        routing_id: Its number, by which SERVER and PEER know it; `None` if it has none.
        origin: Where it comes from: a successor from there takes its turn behind it; `None`: unknown.
        slot: Its number among a send queue's peers; -1 while it has none.
        asking: How it takes subscriptions: 0 as messages, 1 as SUBSCRIBE and CANCEL, 2 as JOIN and LEAVE.
        messages_in: Messages received from it.
        messages_out: Messages accepted for it.
        bytes_in: Bytes received from it, framing included.
        bytes_out: Bytes that left for it, framing included.
        dropped: Messages not sent to it because it was full; of a bound udp endpoint, datagrams that were no message.
    """

    session: Any
    identity: bytes
    routing_id: int | None
    origin: object
    slot: int
    asking: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    dropped: int
    @property
    def dismissed(self) -> bool:
        """Returns whether the user has closed it, and no other peer."""

    @property
    def is_writable(self) -> bool: ...
    @property
    def has_messages(self) -> bool: ...
    @property
    def unsent(self) -> int:
        """Messages that the peer has accepted and that have not left."""

    def flush_now(self) -> None:
        """Hands the waiting bytes to the kernel."""

    def send_parts(self, parts: list[bytes]) -> None:
        """Sends a message of the library's own, whatever the high-water mark says."""

    def take_back(self) -> list[bytes | tuple[bytes, ...]]:
        """Takes back the messages that it has accepted and of which nothing has left; it gets nothing new."""

    def control(self, frames: bytes) -> int:
        """Sends frames that are encoded already, whatever the high-water mark says."""

    def command(self, name: bytes, data: bytes) -> int:
        """Sends a command of the socket's pattern, which the peer's pattern handles; see `control`."""

    def set_hwm_granularity(self, hwm_granularity: int) -> None:
        """Sets how exactly unsent messages are counted: in steps of at most so many."""

    def set_recv_hwm(self, hwm: int) -> None:
        """Sets how many messages may wait to be taken; 0 for no bound."""

    def pause(self) -> None:
        """Stops reading from this peer."""

    def resume(self) -> None:
        """Reads from this peer again."""

    def hand_to(self, recv_queue: RecvQueue) -> None:
        """Moves the peer and its waiting messages to another receive queue."""

    def leave_queue(self) -> None:
        """Leaves its receive queue: nobody takes what has arrived any more."""

_PeerT = TypeVar("_PeerT", bound=Peer)

def ended_peer(peer: _PeerT) -> _PeerT:
    """Returns what stands in for a peer whose connection is over: its counters, and nothing that it refers to."""

class RecvQueue:
    """One fair queue over all peers: each in turn, 256 messages or 512 KiB at most.

    Args:
        wait_queue: Where receiving calls wait.
    """

    def __init__(self, wait_queue: WaitQueue, *arguments: Any) -> None: ...
    @property
    def wait_queue(self) -> WaitQueue: ...
    def close(self) -> None:
        """Forgets all peers, and what has arrived: the socket is closed."""

    def hurry(self) -> int:
        """Makes turns short from now on: the owner has worked, or been away, for longer than a turn may last."""

class SendQueue:
    """Gives messages to peers. The derived classes choose the peers.

    Args:
        wait_queue: Where sending calls wait.

    Attributes:
        hwm: Messages that may wait; 0 for no bound.
        single_part: A call may give it messages of one part only.
        draining: Waiting batches leave with the loop's turns, which report it, and not by the flusher.
    """

    hwm: int
    single_part: bool
    draining: bool
    def __init__(self, wait_queue: WaitQueue, *arguments: Any) -> None: ...
    @property
    def wait_queue(self) -> WaitQueue: ...
    def entrust(self, peer: Peer) -> None:
        """Gives *peer*, which is about to leave, the messages that wait here for any peer: there is no other peer."""

    @property
    def heeds(self) -> bool:
        """Whether it handles peers' commands itself, in their order with the peers' messages."""

    @property
    def idle(self) -> bool:
        """Whether no accepted message waits here."""

    def close(self) -> None:
        """Arranges nothing any more: the socket is closed."""

    def set_schedule(self, schedule: Any) -> None:
        """Sets the function that arranges a call of `flush_turn` at the end of the turn; it takes no arguments."""

    def set_hwm(self, hwm: int) -> None:
        """Changes `hwm`; calls that wait for room look again."""

    def set_report(self, report: Any) -> None:
        """Sets the function that arranges a call of `report` in the engine's thread; it takes no arguments."""

    def report(self) -> None:
        """Tells the engine of changes; see `PublisherSendQueue`."""

    def flush_turn(self) -> None:
        """Writes the batches that have gathered."""

    def add(self, peer: Peer) -> None:
        """Adds a peer."""

    def reclaim(self, peer: Peer) -> None:
        """Takes back what *peer* has accepted and nothing of has left, where another peer may get it as well."""

    def remove(self, peer: Peer) -> None:
        """Removes a peer; ignores one that is not here."""

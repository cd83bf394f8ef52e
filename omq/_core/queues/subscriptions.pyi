from collections.abc import Callable, Iterable
from typing import Any

from omq._core.lock import SocketLock
from omq._core.queues.mailbox import Mailbox
from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Peer, RecvQueue
from omq._core.queues.send_queue import Distributor
from omq._core.queues.wait_queue import WaitQueue

class PublisherSendQueue(Distributor):
    """PUB and XPUB: keeps what each peer wants, and lets the XPUB's user know.

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
        nodrop: Wait for a full peer instead of dropping.
        invert: Send to those that do not match.
        conflate: Keep only the newest message for a peer that cannot be written.
        limit: Prefixes that one peer may have; `None` for no bound.
        recv_queue: Where the XPUB's user takes subscriptions and messages; `None` for a PUB.
        mailbox_hwm: Messages of each peer that may wait there; 0 for no bound.
        verbose: The user hears also of subscriptions that are not new.
        verboser: Likewise of their ends.
        manual: The user puts subscriptions in force.
        last_value: With *manual*: the message after a subscription is for its peer alone.
        only_first: Of a message only the first part may be a subscription.

    Attributes:
        watched: A call waits for subscriptions: the next change is reported.
        monitored: Every change is reported.
    """

    watched: bool
    monitored: bool
    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        *,
        nodrop: bool = False,
        invert: bool = False,
        conflate: bool = False,
        limit: int | None = None,
        recv_queue: RecvQueue | None = None,
        mailbox_hwm: int = 0,
        verbose: bool = False,
        verboser: bool = False,
        manual: bool = False,
        last_value: bool = False,
        only_first: bool = False,
    ) -> None: ...
    @property
    def matcher(self) -> Matcher:
        """The subscriptions in force."""

    @property
    def wanted(self) -> Matcher | None:
        """The peers' subscriptions, where the user puts them in force."""

    @property
    def mailbox(self) -> Mailbox | None:
        """The messages for the XPUB's user."""

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        """Sets the functions that `report` calls; the second gets session, prefix, and whether it begins or ends."""

    def set_lock(self, lock: SocketLock | None) -> None:
        """Sets the lock that the user's calls take; `None`: one thread makes them all."""

    def set_mailbox_hwm(self, hwm: int) -> None:
        """Changes how many messages of each peer may wait for the user."""

    def leave(self, peer: Peer) -> None:
        """Forgets the subscriptions of a gone peer: some of them now, the rest in the turns to come."""

    def subscribe(self, prefix: bytes) -> None:
        """Puts a subscription in force for the peer that the last message came from.

        Raises:
            StateError: No message has come.
        """

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes a subscription back; raises like `subscribe`."""

    def subscriptions(self, prefix: bytes | None = None) -> int:
        """The number of distinct pairs of peer and prefix in force; of this prefix only, if one is given."""

class OwnSubscriptions:
    """The subscriptions of a SUB or XSUB: how often each was asked for, and the publishers that are told.

    Args:
        wait_queue: Where calls wait for messages that are wanted; `None` if others can be taken, too.
        verbose: Publishers get each request to end a subscription, not only the last one.
    """

    def __init__(self, wait_queue: WaitQueue | None = None, verbose: bool = False) -> None: ...
    @property
    def matcher(self) -> Matcher:
        """The subscriptions; the slot is always 0."""

    def set_lock(self, lock: SocketLock | None) -> None:
        """Sets the lock that the user's calls take; `None`: one thread makes them all."""

    def add(self, peer: Peer) -> None:
        """Tells a new peer all subscriptions, and from now on their changes."""

    def remove(self, peer: Peer) -> None:
        """Tells a peer nothing more."""

    def subscribe(self, prefix: bytes) -> None:
        """Subscribes to a prefix; counts how often it was asked for."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes one `subscribe` of this prefix back; one that was never asked for is ignored."""

    def inherit(self, before: OwnSubscriptions, without: Iterable[bytes]) -> None:
        """Takes over another object's subscriptions, except one request each of *without*."""

class SubscriberSendQueue(Distributor):
    """XSUB: messages go to every publisher; those that start with 0 or 1 are subscriptions (RFC 29).

    Args:
        wait_queue: Where sending calls wait.
        hwm: Messages that may wait for one peer; 0 for no bound.
        own_subscriptions: Where subscriptions are kept.
        only_first: Of a message only the first part may be a subscription.
    """

    def __init__(
        self, wait_queue: WaitQueue, hwm: int, own_subscriptions: OwnSubscriptions, only_first: bool = False
    ) -> None: ...

"""PUB, XPUB, SUB and XSUB: messages to all peers that have subscribed to a prefix (RFC 29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from omq._core.lock import SocketLock
from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import RecvQueue
from omq._core.queues.recv_queue import ConflatedRecvQueue, FilteredRecvQueue
from omq._core.queues.subscriptions import OwnSubscriptions, PublisherSendQueue, SubscriberSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.types import SocketType
from omq.zmtp.command import Cancel, Subscribe


class Publisher(Pattern):
    """PUB and XPUB: a message goes to each peer that has subscribed to a prefix of its first part."""

    queues_messages = False
    #: The class that keeps the subscriptions of peers, and finds those that match a message.
    send_queue_type: ClassVar[type[PublisherSendQueue]] = PublisherSendQueue
    commands = frozenset({Subscribe.name, Cancel.name})  # the send queue handles them, in their order with the messages

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        if socket_type is SocketType.XPUB:
            # Subscriptions, and messages that XSUB sockets send upstream, are queued here for the XPUB's user.
            self.recv_queue = RecvQueue(readable)
        self.send_queue: PublisherSendQueue = self.send_queue_type(
            writable,
            options.send_hwm,
            conflate=options.conflate,
            limit=options.max_subscriptions,
            recv_queue=self.recv_queue,
            mailbox_hwm=options.recv_hwm,
            only_first=options.only_first_subscribe,
        )
        self._configure(options)

    def _configure(self, options: Options) -> None:
        """Applies the options that may change in use."""
        manual = options.xpub_manual or options.xpub_manual_last_value
        self.send_queue.configure(
            nodrop=options.xpub_nodrop,
            invert=options.invert_matching,
            verbose=options.xpub_verbose,
            verboser=options.xpub_verboser,
            manual=manual,
            last_value=options.xpub_manual_last_value,
        )
        self.book = self.send_queue if manual else None

    @property
    def matcher(self) -> Matcher:
        """The subscriptions of the peers."""
        return self.send_queue.matcher

    def share(self, lock: SocketLock | None) -> None:
        self.send_queue.set_lock(lock)

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        self.send_queue.listen(on_change, on_subscribed)

    def watch(self) -> None:
        self.send_queue.watched = True

    def monitor(self, on: bool) -> None:
        self.send_queue.monitored = on

    def connected(self, session: RoutedSession) -> None:
        super().connected(session)
        if self.options.xpub_welcome_message is not None:
            session.peer.send_parts([self.options.xpub_welcome_message])

    def disconnected(self, session: RoutedSession) -> None:
        if session in self.sessions:
            super().disconnected(session)
            self.send_queue.report()
            self.send_queue.leave(session.peer)

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        self.send_queue.set_mailbox_hwm(options.recv_hwm)
        self._configure(options)

    def subscriptions(self, prefix: bytes | None) -> int:
        """Returns the number of distinct pairs of peer and prefix in force; of *prefix* only, unless it is `None`."""
        return self.send_queue.subscriptions(prefix)


class Subscriber(Pattern):
    """SUB and XSUB: sends its subscriptions to every publisher, and receives from all."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.book = self.own_subscriptions = OwnSubscriptions(
            readable if socket_type is SocketType.SUB else None, options.xsub_verbose_unsubscribe
        )
        self._filter: FilteredRecvQueue | None = None
        if socket_type is SocketType.SUB:
            kind = ConflatedRecvQueue if options.conflate else FilteredRecvQueue
            self.recv_queue = self._filter = kind(readable, self.matcher)
            self._filter.set_invert(options.invert_matching)
            self.send_queue = None
        else:
            # zmq_socket(3): XSUB does not filter, because its user may forward for others.
            self.recv_queue = RecvQueue(readable)
            self.send_queue = SubscriberSendQueue(
                writable, options.send_hwm, self.own_subscriptions, options.only_first_subscribe
            )
        for prefix in options.subscribe:
            self.own_subscriptions.subscribe(prefix)

    @property
    def matcher(self) -> Matcher:
        """The subscriptions of this socket."""
        return self.own_subscriptions.matcher

    def share(self, lock: SocketLock | None) -> None:
        self.own_subscriptions.set_lock(lock)

    def inherit(self, before: Pattern) -> None:
        assert isinstance(before, Subscriber)
        self.own_subscriptions.inherit(before.own_subscriptions, before.options.subscribe)

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        if self._filter is not None:
            self._filter.set_invert(options.invert_matching)

    def connected(self, session: RoutedSession) -> None:
        super().connected(session)
        self.own_subscriptions.add(session.peer)

    def disconnected(self, session: RoutedSession) -> None:
        if session in self.sessions:
            super().disconnected(session)
            self.own_subscriptions.remove(session.peer)

"""PUB, XPUB, SUB and XSUB: messages to everyone who has subscribed to a prefix (RFC 29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omq._core.lock import SocketLock
from omq._core.queues.gate import Gate
from omq._core.queues.inlet import ConflateInlet, FilterInlet
from omq._core.queues.matcher import Matcher
from omq._core.queues.peer import Inlet
from omq._core.queues.subscriptions import PublisherOutlet, SubscriberOutlet, Wishes
from omq.options import Options
from omq.routing.base import Pattern, Session
from omq.types import SocketType


class Publisher(Pattern):
    """PUB and XPUB: a message goes to each peer that has subscribed to a prefix of its first part."""

    queues_messages = False

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        if socket_type is SocketType.XPUB:
            # Subscriptions, and messages that XSUB users send upstream, wait here for the XPUB's user.
            self.inlet = Inlet(readable)
        self.outlet: PublisherOutlet = PublisherOutlet(
            writable,
            options.send_hwm,
            nodrop=options.xpub_nodrop,
            invert=options.invert_matching,
            conflate=options.conflate,
            limit=options.max_subscriptions,
            inlet=self.inlet,
            mail_hwm=options.recv_hwm,
            verbose=options.xpub_verbose,
            verboser=options.xpub_verboser,
            manual=options.xpub_manual,
        )
        if options.xpub_manual:
            self.book = self.outlet

    @property
    def matcher(self) -> Matcher:
        """What is in force."""
        return self.outlet.matcher

    def share(self, lock: SocketLock | None) -> None:
        self.outlet.set_lock(lock)

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        self.outlet.listen(on_change, on_subscribed)

    def watch(self) -> None:
        self.outlet.watched = True

    def monitor(self, on: bool) -> None:
        self.outlet.monitored = on

    def connected(self, session: Session) -> None:
        super().connected(session)
        if self.options.xpub_welcome_message is not None:
            session.peer.send_parts([self.options.xpub_welcome_message])

    def disconnected(self, session: Session) -> None:
        if session in self.sessions:
            super().disconnected(session)
            self.outlet.report()
            self.outlet.leave(session.peer)

    def reconfigure(self, options: Options) -> None:
        super().reconfigure(options)
        self.outlet.set_mail_hwm(options.recv_hwm)

    def subscriptions(self, prefix: bytes | None) -> int:
        """The number of distinct pairs of peer and prefix in force; of this prefix only, if one is given."""
        return self.outlet.subscriptions(prefix)


class Subscriber(Pattern):
    """SUB and XSUB: tells every publisher what it wants, and takes what comes."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.book = self.wishes = Wishes(readable if socket_type is SocketType.SUB else None)
        if socket_type is SocketType.SUB:
            if options.conflate:
                self.inlet = ConflateInlet(readable, self.matcher, options.invert_matching)
            else:
                self.inlet = FilterInlet(readable, self.matcher, options.invert_matching)
            self.outlet = None
        else:
            # zmq_socket(3): XSUB does not filter; its user may forward for others.
            self.inlet = Inlet(readable)
            self.outlet = SubscriberOutlet(writable, options.send_hwm, self.wishes)
        for prefix in options.subscribe:
            self.wishes.subscribe(prefix)

    @property
    def matcher(self) -> Matcher:
        """What is wanted."""
        return self.wishes.matcher

    def share(self, lock: SocketLock | None) -> None:
        self.wishes.set_lock(lock)

    def inherit(self, before: Pattern) -> None:
        assert isinstance(before, Subscriber)
        self.wishes.inherit(before.wishes, before.options.subscribe)

    def connected(self, session: Session) -> None:
        super().connected(session)
        self.wishes.add(session.peer)

    def disconnected(self, session: Session) -> None:
        if session in self.sessions:
            super().disconnected(session)
            self.wishes.remove(session.peer)

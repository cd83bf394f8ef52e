"""PUB, XPUB, SUB and XSUB: messages to everyone who has subscribed to a prefix (RFC 29)."""

from __future__ import annotations

from omq._core.queues.inlet import ConflateInlet, FilterInlet
from omq._core.queues.matcher import Matcher
from omq._core.queues.outlet import FanOut, SubscriberOutlet
from omq._core.queues.peer import Gate, Inlet
from omq._core.queues.pipe import Pipe
from omq.errors import RemoteProtocolError, StateError
from omq.options import Options
from omq.routing.base import Pattern, Session
from omq.types import SocketType

MOST_BYTES = 256 << 20  # that the prefixes of one peer may have together, where their number has a limit
SUBSCRIBE, CANCEL = b"\1", b"\0"  # how XPUB and XSUB users see and make subscriptions (RFC 29)


class Publisher(Pattern):
    """PUB and XPUB: a message goes to each peer that has subscribed to a prefix of its first part."""

    queues_messages = False

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.matcher = Matcher()
        self.outlet: FanOut = FanOut(
            writable, options.send_hwm, self.matcher, options.xpub_nodrop, options.invert_matching, options.conflate
        )
        self._mail: Pipe | None = None
        # What does not fit into the mail, by prefix: a change, and its undoing takes it out again.
        self._late: dict[object, tuple[bytes, Session]] = {}
        # What each peer has asked for: the number of its prefixes, and their bytes.
        self._held: dict[Session, tuple[int, int]] = {}
        # ZMQ_XPUB_MANUAL: what peers have asked for; the application says what is in force.
        self._wanted = Matcher() if options.xpub_manual else None
        if socket_type is SocketType.XPUB:
            self.inlet = Inlet(readable)
            # Subscriptions, and messages that XSUB users send upstream, wait here for the XPUB's user.
            self._mail = Pipe(None, self.inlet, 0, None)

    def connected(self, session: Session) -> None:
        super().connected(session)
        if self.options.xpub_welcome_message is not None:
            session.peer.send_parts([self.options.xpub_welcome_message])

    def disconnected(self, session: Session) -> None:
        if session in self.sessions:
            slot = session.peer.slot
            self._held.pop(session, None)
            if self._wanted is not None:
                for prefix in self._wanted.prefixes_of(slot):
                    self._tell(CANCEL, prefix, session, True)
                self._wanted.remove_slot(slot)
            for prefix in self.matcher.remove_slot(slot):
                if self._wanted is None:
                    self._tell(CANCEL, prefix, session, True)
            super().disconnected(session)
            self.outlet.release(slot)
            self.on_change()

    def on_subscription(self, session: Session, prefix: bytes, subscribe: bool) -> None:
        slot = session.peer.slot
        if subscribe and not self._may_hold(session, prefix):
            return
        if self._wanted is not None:
            news = self._wanted.add(prefix, slot) if subscribe else self._wanted.drop(prefix, slot)
            self._count(session, prefix, subscribe, news)
            self._tell(SUBSCRIBE if subscribe else CANCEL, prefix, session, news > 0)
            return
        if subscribe:
            news = self.matcher.add(prefix, slot)
            # ZMQ_XPUB_VERBOSE: every subscription is news; otherwise only the first one of a prefix.
            if news == 1 or self.options.xpub_verbose or self.options.xpub_verboser:
                self._tell(SUBSCRIBE, prefix, session, news == 1)
        else:
            # A subscriber may have asked several times and takes it all back with one CANCEL, as libzmq does.
            news = self.matcher.drop(prefix, slot)
            if news == 1 or (news >= 0 and self.options.xpub_verboser):
                self._tell(CANCEL, prefix, session, news == 1)
        self._count(session, prefix, subscribe, news)
        if news > 0:
            self.on_subscribed(session, prefix, subscribe)
        self.on_change()

    def _may_hold(self, session: Session, prefix: bytes) -> bool:
        """Whether a peer may ask for one more prefix; if not, that costs it its connection."""
        limit = self.options.max_subscriptions
        if limit is None:
            return True
        number, size = self._held.get(session, (0, 0))
        if number < limit and size + len(prefix) <= MOST_BYTES:
            return True
        asked = self.matcher if self._wanted is None else self._wanted
        if asked.holds(prefix, session.peer.slot):
            return True
        session.end(RemoteProtocolError(f"the peer subscribes to more than max_subscriptions={limit} prefixes"))
        return False

    def _count(self, session: Session, prefix: bytes, subscribe: bool, news: int) -> None:
        if news > 0:
            number, size = self._held.get(session, (0, 0))
            step = 1 if subscribe else -1
            self._held[session] = number + step, size + step * len(prefix)

    def subscribe(self, prefix: bytes) -> None:
        """With xpub_manual: the peer that the last message came from gets messages with this prefix."""
        self._put_in_force(prefix, True)

    def unsubscribe(self, prefix: bytes) -> None:
        """With xpub_manual: that peer gets them no longer."""
        self._put_in_force(prefix, False)

    def _put_in_force(self, prefix: bytes, subscribe: bool) -> None:
        assert self._mail is not None
        session: Session | None = self._mail.session
        if session is None:
            raise StateError("xpub_manual: no subscription has been received yet that this could be for")
        if session in self.sessions:  # else it has gone meanwhile, and its subscriptions with it
            slot = session.peer.slot
            news = self.matcher.add(prefix, slot) if subscribe else self.matcher.drop(prefix, slot)
            if news > 0:
                self.on_subscribed(session, prefix, subscribe)
            self.on_change()

    def on_message(self, session: Session, parts: list[bytes]) -> None:
        # RFC 29 and ZMTP 3.0: a message that starts with 1 or 0 is a subscription or its end.
        if len(parts) == 1 and parts[0][:1] in (SUBSCRIBE, CANCEL):
            self.on_subscription(session, parts[0][1:], parts[0][:1] == SUBSCRIBE)
        elif self._mail is not None and self._mail_has_room():
            self._mail.deposit(tuple(parts) if len(parts) > 1 else parts[0], session)

    def subscriptions(self, prefix: bytes | None) -> int:
        """The number of distinct pairs of peer and prefix in force; of this prefix only, if one is given."""
        return len(self.matcher) if prefix is None else self.matcher.count(prefix)

    def _tell(self, kind: bytes, prefix: bytes, session: Session, change: bool) -> None:
        """Lets the XPUB's user know; *change*: the prefix is new to all subscribers, or nobody holds it any more."""
        if self._mail is None:
            return
        if not self._late and self._mail_has_room():
            self._mail.deposit(kind + prefix, session)
            return
        # With xpub_manual each peer's changes are news; otherwise those of all of them together.
        key = prefix if self._wanted is None else (session, prefix)
        if change and self._late.pop(key, None) is None:
            # The user lags. Changes of one prefix alternate, so no more is kept than the subscriptions differ.
            self._late[key] = (kind + prefix, session)
            self._mail.call_when_empty(self._deliver_late)

    def _deliver_late(self) -> None:
        assert self._mail is not None
        while self._late and self._mail_has_room():
            self._mail.deposit(*self._late.pop(next(iter(self._late))))
        if self._late:
            self._mail.call_when_empty(self._deliver_late)

    def _mail_has_room(self) -> bool:
        assert self._mail is not None
        return not self.options.recv_hwm or self._mail.unread < self.options.recv_hwm


class Subscriber(Pattern):
    """SUB and XSUB: tells every publisher what it wants, and takes what comes."""

    def __init__(self, socket_type: SocketType, options: Options, readable: Gate, writable: Gate) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.matcher = Matcher()
        if socket_type is SocketType.SUB:
            if options.conflate:
                self.inlet = ConflateInlet(readable)
            else:
                self.inlet = FilterInlet(readable, self.matcher, options.invert_matching)
            self.outlet = None
        else:
            # zmq_socket(3): XSUB does not filter; its user may forward for others.
            self.inlet = Inlet(readable)
            self.outlet = SubscriberOutlet(writable, options.send_hwm, self._change)
        for prefix in options.subscribe:
            self.subscribe(prefix)

    def subscribe(self, prefix: bytes) -> None:
        """Wants messages with this prefix; counts how often it was asked for."""
        self._change(True, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes one `subscribe` of this prefix back; one that was never asked for is ignored."""
        self._change(False, prefix)

    def inherit(self, before: Pattern) -> None:
        assert isinstance(before, Subscriber)
        for prefix in before.options.subscribe:
            before.matcher.remove(prefix, 0)
        for prefix, _ in before.matcher.prefixes():
            self.subscribe(prefix)
            while before.matcher.remove(prefix, 0) == 0:  # it was asked for more than once
                self.subscribe(prefix)

    def _change(self, subscribe: bool, prefix: bytes) -> None:
        # Publishers hear only of the first subscription to a prefix and of the end of the last.
        news = self.matcher.add(prefix, 0) if subscribe else self.matcher.remove(prefix, 0)
        if news == 1:
            for session in tuple(self.sessions):
                session.send_subscription(prefix, subscribe)

    def connected(self, session: Session) -> None:
        super().connected(session)
        for prefix, _ in self.matcher.prefixes():
            session.send_subscription(prefix, True)

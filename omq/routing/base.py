"""The base of every pattern: two queues, the sessions that are attached to them, and the rules of admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol
from weakref import WeakSet

from omq._core.lock import SocketLock
from omq._core.queues.notice import Notice
from omq._core.queues.peer import Peer, RecvQueue, SendQueue
from omq._core.queues.send_queue import RoundRobin
from omq._core.queues.subscriptions import OwnSubscriptions, PublisherSendQueue
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.types import TRAITS, SocketType, Traits
from omq.zmtp.command import TrafficCommand

#: Messages about peers that come and go which may wait; above that no new peer is admitted.
MAX_NOTICES: Final = 10_000


class Session(Protocol):
    """A pattern's view of one peer; the engine has one for a connection and one for an inproc pipe."""

    identity: bytes

    @property
    def peer(self) -> Peer:
        """Its queue."""
        ...

    @property
    def is_named(self) -> bool:
        """Returns whether this side has chosen its identity (`peer_identity`)."""
        ...

    @property
    def accepted(self) -> bool:
        """Returns whether the peer has dialled."""
        ...

    @property
    def comes_again(self) -> bool:
        """Returns whether this side has dialled, and will dial again."""
        ...

    def end(self, reason: Exception | None) -> None:
        """Ends this peer, and no other."""


class Pattern:
    """The routing of one socket.

    Attributes:
        recv_queue: Where received messages are taken; `None` if the type does not receive.
        send_queue: Where messages are accepted; `None` if the type does not send.
        book: Where the user subscribes; `None` if the type has no subscriptions.
        sessions: Every peer that takes part, in the order of arrival.
    """

    #: Whether messages of peers wait in the receive queue; if not, the send queue hears each at once.
    queues_messages = True

    #: The commands that its peers may send beside messages, by name; all others are ignored (RFC 23, Commands). `heed`
    #: gets them, except those that the send queue heeds, in their order with the messages (`SendQueue.heeds`).
    commands: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        self.socket_type = socket_type
        self.options = options
        self.recv_queue: RecvQueue | None = None
        self.send_queue: SendQueue | None = None
        self.book: OwnSubscriptions | PublisherSendQueue | None = None
        self.sessions: dict[Session, None] = {}
        # Peers whose end the user learns of, and messages about peers that the user has not taken.
        self._watched: set[Session] = set()
        self._notices: WeakSet[Notice] = WeakSet()

    def share(self, lock: SocketLock | None) -> None:
        """Sets the lock that the user's calls take if threads share the socket; `None`: one thread makes all."""

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        """Sets the functions that hear of subscriptions; only publishers have any.

        Args:
            on_change: Called when they have changed, once for each `watch`.
            on_subscribed: Called with each change, while the socket is monitored: the session, the prefix, and whether
                the subscription begins.
        """

    def watch(self) -> None:
        """A call waits for subscriptions: the next change is to be told."""

    def monitor(self, on: bool) -> None:
        """Sets whether each change of a subscription is to be told."""

    def refusal(self, identity: bytes) -> str | None:
        """Returns why one more peer cannot be admitted now, or `None` if it can."""
        if len(self._notices) < MAX_NOTICES:
            return None
        return f"{MAX_NOTICES} messages about peers that come and go wait to be received"

    def greet(self, session: Session) -> None:
        """Sends what a peer is to get before anything else."""
        if self.options.hello_message is not None:
            session.peer.send_parts(list(self.options.hello_message))

    def connected(self, session: Session) -> None:
        """A peer has finished its handshake; its queue is ready."""
        self.greet(session)
        session.peer.set_hwm_granularity(_hwm_granularity(self.options.send_hwm))
        if self.send_queue is not None:
            self.send_queue.add(session.peer)  # where memory is short it raises, and the session takes no part
        self.sessions[session] = None
        options = self.options
        notices = self.notices(options)
        if "connect" in notices:
            self._report(session, [b""])
        if "disconnect" in notices or options.disconnect_message or options.hiccup_message:
            self._watched.add(session)

    def notices(self, options: Options) -> frozenset[str]:
        """Returns which of `omq.option_values.PEER_NOTICES` the user gets an empty message about."""
        return options.router_notify

    def departed(self, session: Session) -> None:
        """The connection of a peer has ended, and nothing more comes of it: the user learns of that, once."""
        if session not in self._watched:
            return
        self._watched.discard(session)
        options = self.options
        found: list[bytes | tuple[bytes, ...]] = []
        if "disconnect" in self.notices(options):
            found.append(b"")
        if options.disconnect_message is not None and session.accepted:
            found.append(_as_taken(options.disconnect_message))
        if options.hiccup_message is not None and session.comes_again:
            found.append(_as_taken(options.hiccup_message))
        if found:
            self._report(session, found, after=session.peer)

    def _report(self, session: Session, messages: list[bytes | tuple[bytes, ...]], after: Peer | None = None) -> None:
        """Gives the user messages about a peer: after those of *after*, or before all that the peer will send."""
        if self.recv_queue is not None:
            notice = Notice(session, session.peer, messages)
            self._notices.add(notice)
            notice.stand(self.recv_queue, after)

    def disconnected(self, session: Session) -> None:
        """A peer is gone; what it sent stays in the receive queue."""
        if session in self.sessions:
            del self.sessions[session]
            if self.send_queue is not None:
                self.send_queue.remove(session.peer)

    def obey(self, session: Session, command: TrafficCommand) -> None:
        """A peer has sent a command that is the pattern's business: neither a sign of life nor an error.

        Raises:
            RemoteProtocolError: The peer asks for what it may not; that ends its connection.
        """
        if command.name in self.commands and session in self.sessions:
            self.heed(session, command)

    def heed(self, session: Session, command: TrafficCommand) -> None:
        """Does what one of `commands` asks for; raises as `obey`. `Peer.command` sends an answer."""

    def asking(self, by_command: bool) -> int:
        """Returns the form in which a peer gets subscriptions (`Peer.asking`).

        Args:
            by_command: Its version of ZMTP has commands for that.
        """
        # RFC 37, The Publish-Subscribe Pattern: commands from 3.1 on, messages before.
        return int(by_command)

    def surrender(self, messages: list[Any]) -> None:
        """Moves the messages that wait for any peer to the end of *messages*; types that choose one have some."""
        if isinstance(self.send_queue, RoundRobin):
            self.send_queue.surrender(messages)

    def reclaim(self, session: Session) -> None:
        """Takes back what a peer that ends has accepted and nothing of has left, where another one may get it."""
        if self.send_queue is not None:
            self.send_queue.reclaim(session.peer)

    def deliver(self, session: Session, messages: list[Any]) -> None:
        """Gives surrendered messages to a peer that takes no part in routing; what it cannot take stays in the list."""
        if isinstance(self.send_queue, RoundRobin):
            self.greet(session)
            self.send_queue.deliver(session.peer, messages)

    @property
    def traits(self) -> Traits:
        """The row of this type in the table of types."""
        return TRAITS[self.socket_type]

    def max_parts(self, options: Options) -> int | None:
        """Frames that a peer's message may have; more end its connection. `None` for as many as the core takes.

        Args:
            options: The options for the peer's endpoint.
        """
        return 1 + self.traits.envelope if self.traits.single_part else options.max_parts

    def reconfigure(self, options: Options) -> None:
        """Options have changed while the socket is in use."""
        self.options = options
        for session in tuple(self.sessions):
            self._tune(session)
        if self.send_queue is not None:
            self.send_queue.set_hwm(options.send_hwm)

    def inherit(self, before: Pattern) -> None:
        """Takes over the subscriptions of the pattern that this one replaces; it has had no peer yet."""

    def close(self) -> None:
        """The socket is closed, and so are its peers: what had arrived is gone."""
        if self.recv_queue is not None:
            self.recv_queue.close()
        if self.send_queue is not None:
            self.send_queue.close()

    def _tune(self, session: Session) -> None:
        """Gives a peer the marks in force."""
        session.peer.set_hwm_granularity(_hwm_granularity(self.options.send_hwm))
        session.peer.set_recv_hwm(0 if self.options.conflate else self.options.recv_hwm)

    @property
    def drops(self) -> str:
        """Returns why messages are dropped, on their way out or as datagrams come in; empty where none are."""
        if self.send_queue is not None:
            return "the peer is full"
        return "malformed, or larger than max_message_size" if self.traits.datagrams else ""

    @property
    def idle(self) -> bool:
        """Returns whether everything that was accepted for sending has left; on any thread."""
        if self.send_queue is None:
            return True
        return self.send_queue.idle and not any(session.peer.unsent for session in tuple(self.sessions))

    @property
    def unsent(self) -> int:
        """Messages that were accepted for sending and have not left, as far as they are counted one by one."""
        waiting = len(self.send_queue.queue) if isinstance(self.send_queue, RoundRobin) else 0
        return waiting + sum(session.peer.unsent for session in self.sessions)


def _as_taken(parts: tuple[bytes, ...]) -> bytes | tuple[bytes, ...]:
    return parts[0] if len(parts) == 1 else parts


def _hwm_granularity(hwm: int) -> int:
    """Returns how exactly unsent messages are counted: to a sixteenth of the mark, and never worse than 64."""
    return max(1, min(64, hwm // 16)) if hwm else 64

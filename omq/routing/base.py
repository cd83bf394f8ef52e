"""The base of every pattern: two queues, the sessions attached to them, and the rules of admission."""

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

#: Queued messages about peers that connect or disconnect; above that number, new peers are refused.
MAX_NOTICES: Final = 10_000


class RoutedSession(Protocol):
    """One peer, as a pattern uses it; the engine has a class for a connection and one for an inproc pipe.

    Attributes:
        identity: The peer's identity; empty if it has none.
        options: The options of the endpoint.
    """

    identity: bytes
    options: Options

    @property
    def peer(self) -> Peer:
        """The peer's queue."""
        ...

    @property
    def is_named(self) -> bool:
        """Returns whether this side has assigned the peer's identity (`peer_identity`)."""
        ...

    @property
    def accepted(self) -> bool:
        """Returns whether the peer has dialled."""
        ...

    @property
    def redials(self) -> bool:
        """Returns whether this side has dialled, and its dialer neither leaves nor has ended."""
        ...

    def end(self, reason: Exception | None) -> None:
        """Ends this peer."""


class Pattern:
    """The routing of one socket.

    Attributes:
        recv_queue: The queue of received messages; `None` if the type does not receive.
        send_queue: The queue of messages to send; `None` if the type does not send.
        book: The object with `subscribe` and `unsubscribe`; `None` if the type has no subscriptions.
        sessions: The peers that take part, in the order of arrival.
    """

    #: Whether messages of peers wait in the receive queue; if not, the send queue handles each at once.
    queues_messages = True

    #: The names of the commands that peers may send next to messages; others are ignored (RFC 23, Commands). `heed`
    #: gets them, except those that the send queue handles in their order with the messages (`SendQueue.heeds`).
    commands: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        self.socket_type = socket_type
        self.options = options
        self.recv_queue: RecvQueue | None = None
        self.send_queue: SendQueue | None = None
        self.book: OwnSubscriptions | PublisherSendQueue | None = None
        self.sessions: dict[RoutedSession, None] = {}
        # Peers whose end is reported to the user, and the messages about peers that the user has not received.
        self._watched: set[RoutedSession] = set()
        self._notices: WeakSet[Notice] = WeakSet()

    def share(self, lock: SocketLock | None) -> None:
        """Sets the lock of the user's calls, if threads share the socket; `None` if one thread makes all calls."""

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        """Sets the functions to call when subscriptions change; only publishers have any.

        Args:
            on_change: Called when they have changed, once after each `watch`.
            on_subscribed: Called with each change while the socket is monitored: the session, the prefix, and whether
                the subscription begins.
        """

    def watch(self) -> None:
        """Requests a call of `on_change` at the next change."""

    def monitor(self, on: bool) -> None:
        """Sets whether each change of a subscription is reported."""

    def refusal(self, identity: bytes) -> str | None:
        """Returns the reason why one more peer cannot be admitted now, or `None` if it can."""
        if len(self._notices) < MAX_NOTICES:
            return None
        return f"{MAX_NOTICES} messages about peers are queued to be received"

    def greet(self, session: RoutedSession) -> None:
        """Sends the messages that a new peer gets before any other."""
        if self.options.hello_message is not None:
            session.peer.send_parts(list(self.options.hello_message))

    def connected(self, session: RoutedSession) -> None:
        """Adds a peer that has finished its handshake."""
        self.greet(session)
        session.peer.set_hwm_granularity(_hwm_granularity(self.options.send_hwm))
        if self.send_queue is not None:
            self.send_queue.add(session.peer)  # raises if memory is short: then the session does not take part
        self.sessions[session] = None
        options = self.options
        notices = self.notices(session)
        if "connect" in notices:
            self._report(session, [b""])
        if "disconnect" in notices or options.disconnect_message or options.hiccup_message:
            self._watched.add(session)

    def notices(self, session: RoutedSession) -> frozenset[str]:
        """Returns which of `omq.option_values.PEER_NOTICES` the user gets an empty message for."""
        return self.options.router_notify

    def departed(self, session: RoutedSession) -> None:
        """Reports the end of a peer's connection to the user, once; nothing more comes from it."""
        if session not in self._watched:
            return
        self._watched.discard(session)
        options = self.options
        found: list[bytes | tuple[bytes, ...]] = []
        if "disconnect" in self.notices(session):
            found.append(b"")
        if options.disconnect_message is not None and session.accepted:
            found.append(_as_taken(options.disconnect_message))
        if options.hiccup_message is not None and session.redials:
            found.append(_as_taken(options.hiccup_message))
        if found:
            self._report(session, found, after=session.peer)

    def _report(
        self, session: RoutedSession, messages: list[bytes | tuple[bytes, ...]], after: Peer | None = None
    ) -> None:
        """Queues messages about a peer for the user: after those of *after*, or before all that the peer will send."""
        if self.recv_queue is not None:
            notice = Notice(session, session.peer, messages)
            self._notices.add(notice)
            notice.stand(self.recv_queue, after)

    def disconnected(self, session: RoutedSession) -> None:
        """Removes a peer that has gone; messages that it sent stay in the receive queue."""
        if session in self.sessions:
            del self.sessions[session]
            if self.send_queue is not None:
                self.send_queue.remove(session.peer)

    def obey(self, session: RoutedSession, command: TrafficCommand) -> None:
        """Handles a command of a peer that concerns the pattern: neither a heartbeat nor an error.

        Raises:
            RemoteProtocolError: The command is not allowed; the caller ends the connection.
        """
        if command.name in self.commands and session in self.sessions:
            self.heed(session, command)

    def heed(self, session: RoutedSession, command: TrafficCommand) -> None:
        """Carries out one of `commands`; raises as `obey`. `Peer.command` sends an answer."""

    def asking(self, by_command: bool) -> int:
        """Returns the form in which subscriptions are sent to a peer (`Peer.asking`).

        Args:
            by_command: Whether its version of ZMTP has commands for that.
        """
        # RFC 37, The Publish-Subscribe Pattern: commands from 3.1 on, messages before.
        return int(by_command)

    def surrender(self, messages: list[Any]) -> None:
        """Moves messages that are queued for any peer to the end of *messages*; only round-robin types have some."""
        if isinstance(self.send_queue, RoundRobin):
            self.send_queue.surrender(messages)

    def reclaim(self, session: RoutedSession) -> None:
        """Takes back the messages that an ending peer has not begun to send, if another peer may get them."""
        if self.send_queue is not None:
            self.send_queue.reclaim(session.peer)

    def deliver(self, session: RoutedSession, messages: list[Any]) -> None:
        """Gives surrendered messages to a peer that is not in routing; those that it cannot take stay in the list."""
        if isinstance(self.send_queue, RoundRobin):
            self.greet(session)
            self.send_queue.deliver(session.peer, messages)

    @property
    def traits(self) -> Traits:
        """The row of this type in the table of types."""
        return TRAITS[self.socket_type]

    def max_parts(self, options: Options) -> int | None:
        """Returns the number of frames that a message of a peer may have; `None` for the limit of the core.

        Args:
            options: The options of the peer's endpoint.
        """
        return 1 + self.traits.envelope if self.traits.single_part else options.max_parts

    def reconfigure(self, options: Options) -> None:
        """Applies options that have changed while the socket is in use."""
        self.options = options
        for session in tuple(self.sessions):
            self._tune(session)
        if self.send_queue is not None:
            self.send_queue.set_hwm(options.send_hwm)

    def inherit(self, before: Pattern) -> None:
        """Takes over the subscriptions of the pattern that this one replaces, before the first peer."""

    def close(self) -> None:
        """Closes the queues; messages that were not received are gone."""
        if self.recv_queue is not None:
            self.recv_queue.close()
        if self.send_queue is not None:
            self.send_queue.close()

    def _tune(self, session: RoutedSession) -> None:
        """Applies the current high-water marks to a peer."""
        session.peer.set_hwm_granularity(_hwm_granularity(self.options.send_hwm))
        session.peer.set_recv_hwm(0 if self.options.conflate else self.options.recv_hwm)

    @property
    def drops(self) -> str:
        """Returns the reason for which messages are dropped, when sent or as datagrams arrive; empty if none are."""
        if self.send_queue is not None:
            return "the peer is full"
        return "malformed, or larger than max_message_size" if self.traits.datagrams else ""

    @property
    def idle(self) -> bool:
        """Returns whether all accepted messages have left; on any thread."""
        if self.send_queue is None:
            return True
        return self.send_queue.idle and not any(session.peer.unsent for session in tuple(self.sessions))

    @property
    def unsent(self) -> int:
        """The number of accepted messages that have not left, as far as they are counted one by one."""
        waiting = len(self.send_queue.queue) if isinstance(self.send_queue, RoundRobin) else 0
        return waiting + sum(session.peer.unsent for session in self.sessions)


def _as_taken(parts: tuple[bytes, ...]) -> bytes | tuple[bytes, ...]:
    return parts[0] if len(parts) == 1 else parts


def _hwm_granularity(hwm: int) -> int:
    """Returns the step in which unsent messages are counted: a sixteenth of the mark, at most 64."""
    return max(1, min(64, hwm // 16)) if hwm else 64

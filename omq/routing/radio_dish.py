"""RADIO and DISH: messages to all peers that have joined a group (RFC 48)."""

from __future__ import annotations

from typing import Final

from omq._core.lock import SocketLock
from omq._core.queues.groups import GroupRecvQueue, OwnGroups, RadioSendQueue
from omq._core.queues.matcher import Matcher
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing.base import Pattern, RoutedSession
from omq.routing.pub_sub import Publisher
from omq.types import SocketType
from omq.zmtp.command import Join, Leave

_AS_JOIN: Final = 2  # `Peer.asking`


class Radio(Publisher):
    """A message goes to each peer that has joined its group."""

    send_queue_type = RadioSendQueue
    commands = frozenset({Join.name, Leave.name})


class Dish(Pattern):
    """Receives, from all peers in turn, the messages of the groups that it has joined."""

    def __init__(self, socket_type: SocketType, options: Options, readable: WaitQueue, writable: WaitQueue) -> None:
        super().__init__(socket_type, options, readable, writable)
        self.groups = OwnGroups(readable)
        self.recv_queue = GroupRecvQueue(readable, self.matcher)
        for group in options.join:
            self.groups.join(group)

    @property
    def matcher(self) -> Matcher:
        """The groups that this socket has joined."""
        return self.groups.matcher

    def share(self, lock: SocketLock | None) -> None:
        self.groups.set_lock(lock)

    def asking(self, by_command: bool) -> int:
        return _AS_JOIN  # RFC 37, The Radio-Dish Pattern: there is no other form

    def inherit(self, before: Pattern) -> None:
        assert isinstance(before, Dish)
        self.groups.inherit(before.groups, before.options.join)

    def connected(self, session: RoutedSession) -> None:
        super().connected(session)
        self.groups.add(session.peer)

    def disconnected(self, session: RoutedSession) -> None:
        if session in self.sessions:
            super().disconnected(session)
            self.groups.remove(session.peer)

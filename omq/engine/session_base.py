"""The base of sessions without a handshake: those of inproc and of datagrams."""

from __future__ import annotations

import asyncio
import time
import weakref

from omq._core.queues.peer import Peer, ended_peer
from omq.engine.dialer_base import DialerBase
from omq.engine.lifecycle import ConnectionState, StateMachine
from omq.engine.views import SocketView
from omq.options import Options
from omq.zmtp.handshake import PeerMetadata


class SessionBase(StateMachine[ConnectionState]):
    """Supervises one peer without a handshake.

    Args:
        engine: The socket.
        endpoint: The endpoint of ours that it belongs to.
        dialer: The dialer that has connected it; `None` if it was accepted, or is bound.
        options: The options of the endpoint.
    """

    peer: Peer
    descriptor: int | None = None

    def __init__(self, engine: SocketView, endpoint: str, dialer: DialerBase | None, options: Options) -> None:
        self.state = ConnectionState.CONNECTING
        self.engine = engine
        self.endpoint = endpoint
        self.options = options
        self.identity = b""
        self.user_id: str | None = None
        self.info: PeerMetadata | None = None
        self.since = time.time()
        self.remote_address = endpoint
        self.mechanism = ""
        self.dropped_reported = 0
        self.rejected = False
        self.ended: asyncio.Future[None] = engine.loop.create_future()
        self._dialer = dialer

    @property
    def accepted(self) -> bool:
        """Returns whether the peer has dialled."""
        return self._dialer is None

    @property
    def is_ready(self) -> bool:
        """Returns whether the session is ready, or only our side of the stream has ended (`CLOSING`)."""
        return self.state is ConnectionState.READY or self.state is ConnectionState.CLOSING

    @property
    def is_over(self) -> bool:
        """Returns whether it has ended."""
        return self.state is ConnectionState.OVER

    def cease(self) -> None:
        """Ends the session: over inproc, everything that was sent has arrived."""
        self.end(None)

    def end(self, reason: Exception | None = None) -> None:
        """Ends the session, once."""
        before = self.state
        if before is ConnectionState.OVER:
            return
        if not self.engine.on_loop_thread and self.engine.in_loop:
            self.engine.post(self.end, reason)
            return
        self.move(ConnectionState.OVER)
        self._tear_down(before, reason)
        if not self.ended.done() and self.engine.in_loop:
            self.ended.set_result(None)
        # Messages that were not received yet keep the peer, and so the session, which describes the sender.
        self.engine = weakref.proxy(self.engine)
        self._dialer = None
        self.peer = ended_peer(self.peer)

    def _tear_down(self, before: ConnectionState, reason: Exception | None) -> None:
        """Ends the peer's part in routing, and reports that; *before*: the state until now."""
        raise NotImplementedError

    def leave_loop(self) -> None:
        """Does nothing before a loop ends."""

    def enter_loop(self) -> None:
        """Continues in another loop."""
        if not self.is_over:
            self.ended = self.engine.loop.create_future()

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child."""

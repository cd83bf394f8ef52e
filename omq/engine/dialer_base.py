"""The base of all dialers: the delay between attempts, and the ways to end."""

from __future__ import annotations

import asyncio
import random

from omq.engine.lifecycle import DialerState, StateMachine
from omq.engine.views import Session, SocketView
from omq.options import Options


class Backoff:
    """The delays of a dialer between two attempts: `reconnect_interval`, with jitter.

    Args:
        options: The options of the endpoint.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._delay = _first_interval(options)

    def next(self, outcome: str) -> float | None:
        """Returns the seconds until the next attempt; `None` for no further attempt.

        Args:
            outcome: The outcome of the last attempt, in the words of `reconnect_stop`, or `"failed"`.
        """
        options = self._options
        if outcome == "after disconnect":
            self._delay = _first_interval(options)
        stops = options.reconnect_stop
        if self._delay is None or outcome in stops or (outcome == "rejected" and "handshake failed" in stops):
            return None
        delay, interval = self._delay, options.reconnect_interval
        self._delay = min(delay * 2, interval[1] if isinstance(interval, tuple) else delay)
        # Jitter spreads the clients of a server that restarts.
        return delay * random.uniform(0.75, 1.0)


def _first_interval(options: Options) -> float | None:
    """Returns the seconds before the first new attempt; `None` for no new attempt."""
    interval = options.reconnect_interval
    return interval[0] if isinstance(interval, tuple) else interval


def outcome_of(session: Session) -> str:
    """Returns the outcome of an attempt whose connection has ended, in the words of `reconnect_stop`."""
    if session.info is not None:
        return "after disconnect"
    return "rejected" if session.rejected else "handshake failed"


class DialerBase(StateMachine[DialerState]):
    """A dialer: it connects to one endpoint.

    If it is disconnected before it has a connection, it keeps the messages accepted for it and dials on.

    Attributes:
        session: The connection; `None` while there is none.
        messages: The messages accepted for the endpoint alone, once this dialer leaves.
        origin: Identifies the dialer where its connections are compared; has no reference to it.
        options: The options of the endpoint. Options of the whole socket, which may change in use, are the engine's.
    """

    session: Session | None

    def __init__(self, engine: SocketView, endpoint: str, options: Options) -> None:
        self.state = DialerState.NEW
        self.options = options
        self.engine = engine
        self.endpoint = endpoint
        self.messages: list[bytes | tuple[bytes, ...]] = []
        self.origin = object()
        self._had_connection = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def leaving(self) -> bool:
        """Returns whether its endpoint is disconnected, and it dials only to send the remaining messages."""
        return self.state is DialerState.LEAVING

    @property
    def dials_on(self) -> bool:
        """Returns whether its endpoint is connected to the socket, and it has not ended."""
        return self.state is not DialerState.LEAVING and self.state is not DialerState.CLOSED

    @property
    def wanted(self) -> bool:
        """Returns whether the dialer must connect.

        The socket wants peers, or the dialer is leaving and still has messages.
        """
        return bool(self.messages) if self.leaving else self.engine.wants_peers

    def revive(self) -> None:
        """Dials again if the end of the program has cancelled all tasks of the loop, including this dialer's."""

    def leave_loop(self) -> None:
        """Stops the timer, because the loop ends or has ended.

        In the next loop, unsent messages have until the end of `close`.
        """
        if self._timer is not None:
            if self.engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def enter_loop(self) -> None:
        """Continues in another loop, after the sessions."""
        raise NotImplementedError

    def go_on(self, target: DialerState) -> None:
        """Moves to another state, unless it is leaving."""
        if not self.leaving:
            self.move(target)

    def disconnect(self) -> None:
        """Stops dialling; if it has messages that no other peer can take, when they have left or `linger` has passed.

        A connection ends when the messages accepted for it have left, or `linger` has passed.
        """
        session = self.session
        if session is not None and session.is_linked:
            self._release()
            session.leave()
        elif self._may_carry(session):
            self._leave()
        else:
            self.close()

    def drain(self) -> None:
        """Stops dialling; a connection stays until the peer has sent the rest."""
        session = self.session
        self._release()
        if session is not None:
            session.cease()

    def connected(self) -> None:
        """Counts a connection that has finished its handshake."""
        self.engine.reconnects += self._had_connection
        self._had_connection = True

    def stop_dialling(self) -> None:
        """Stops dialling, because the user has closed the peer; the connection ends by itself."""
        self._release()
        self.engine.endpoints.dialer_over(self)

    def _release(self) -> None:
        """Stops dialling; the connection stays without the dialer."""
        self.session = None
        self.close()

    def _may_carry(self, session: Session | None) -> bool:
        """Returns whether messages are queued that only this dialer could deliver."""
        engine = self.engine
        if self.state is DialerState.CLOSED or not engine.in_loop or engine.pattern.idle:
            return False
        return engine.is_last(session)

    def _leave(self) -> None:
        linger = self.engine.options.linger
        # The messages come last: if a signal handler raises here, a dialer that leaves without messages ends by itself.
        self.move(DialerState.LEAVING)
        if linger:
            self._timer = self.engine.loop.call_later(linger, self.close)
        with self.engine.lock:
            self.engine.pattern.surrender(self.messages)
        if not self.messages or linger == 0:
            self.close()

    def give_up(self) -> None:
        """Stops dialling, because there is no reason to continue."""
        self._end()
        self.engine.endpoints.dialer_over(self)

    def close(self) -> None:
        """Stops dialling and ends the connection; drops the messages for the endpoint."""
        self._end()
        if self.session is not None and not self.session.ended.done():
            self.session.end(None)
        self.session = None
        self.engine.endpoints.dialer_closed(self)

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors of attempts in progress in a forked child."""

    def _end(self) -> None:
        if self.state is not DialerState.CLOSED:
            self.move(DialerState.CLOSED)
        if self._timer is not None and self.engine.in_loop:
            self._timer.cancel()
        self.messages.clear()

"""Reports of events to a socket's monitors and to the log; never for each message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from typing import Any, Protocol

from omq._core.calls.description import snapshot
from omq.engine.lifecycle import ConnectionState
from omq.engine.views import Session, SocketView
from omq.errors import AuthenticationError, HandshakeError, MechanismError, ProtocolError
from omq.event import Event, EventKind, HandshakeFailure, without_endpoint

log = logging.getLogger("omq")

_BEFORE_READY = frozenset({ConnectionState.CONNECTING, ConnectionState.HANDSHAKING})
_FAILURES = frozenset({EventKind.HANDSHAKE_FAILED, EventKind.CONNECT_FAILED, EventKind.ACCEPT_FAILED})
_SUCCEEDED = EventKind.HANDSHAKE_SUCCEEDED
_POLL_INTERVAL_S = 0.5  # seconds between two counts of dropped messages, while there is a monitor


class EventSink(Protocol):
    """An object that takes events, from any thread; must not wait."""

    def put(self, event: Event) -> None: ...


class Reporter:
    """The monitors of one socket. References to them are weak: the user keeps them alive.

    Attributes:
        last_failure: The endpoint of the last failure to connect, accept or shake hands, and its reason; empty after a
            handshake has succeeded.
    """

    def __init__(self, engine: SocketView) -> None:
        self._engine = engine
        self._monitors: list[weakref.ref[EventSink]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.last_failure = ""

    @property
    def is_read(self) -> bool:
        """Returns whether there are monitors, or events are logged."""
        return bool(self._monitors) or log.isEnabledFor(logging.DEBUG)

    def add(self, monitor: EventSink) -> None:
        """Sends events to a monitor from now on."""
        if not self._monitors:
            for session in self._engine.sessions:
                session.dropped_reported = session.peer.dropped
        self._monitors.append(weakref.ref(monitor, self._forget))
        self.tune()
        if self._engine.closed:
            # Another thread has closed the socket since the caller checked, and the monitors of that time have the
            # event.
            monitor.put(Event(kind=EventKind.MONITOR_STOPPED, time=time.time()))
        if self._engine.has_loop:
            self._engine.call(self.start)

    def remove(self, monitor: EventSink) -> None:
        """Stops sending events to a monitor. Idempotent."""
        for found in tuple(self._monitors):
            if found() is monitor:
                self._forget(found)

    def _forget(self, found: weakref.ref[EventSink]) -> None:
        with contextlib.suppress(ValueError):
            self._monitors.remove(found)
        with contextlib.suppress(ReferenceError):  # the collector has freed the socket with its monitor
            self.tune()

    def tune(self) -> None:
        """Reports subscriptions, of which there are many, only while the reports are read."""
        self._engine.pattern.monitor(bool(self._monitors) or log.isEnabledFor(logging.DEBUG))

    def emit(
        self,
        kind: EventKind,
        endpoint: str,
        session: Session | None,
        reason: str | BaseException | None,
        details: dict[str, Any],
    ) -> None:
        """Logs an event and sends it to the monitors; see `Engine.emit`."""
        if kind is _SUCCEEDED:
            self.last_failure = ""
        logged = log.isEnabledFor(logging.DEBUG)
        if reason is None and not logged and not self._monitors:
            return  # the usual case, kept cheap
        text = _text(reason)
        if kind in _FAILURES:
            detail = without_endpoint(text, endpoint)
            self.last_failure = f"{endpoint}: {detail}"
            for connect_attempts in self._engine.connect_attempts:
                if connect_attempts.endpoint == endpoint:
                    connect_attempts.last_failure = detail
        if logged:
            more = "".join(f" {name}={value!r}" for name, value in details.items())
            log.debug(
                "%s %s: %s%s%s",
                self._engine.socket_type.value,
                endpoint,
                kind,
                text and f": {without_endpoint(text, endpoint)}",
                more,
            )
        if not self._monitors:
            return
        if session is not None:
            details.setdefault("remote_address", session.remote_address)
            details.setdefault("mechanism", session.mechanism)
            details["descriptor"] = session.descriptor
            details["peer"] = snapshot(session) if session.state not in _BEFORE_READY and session.info else None
        error = reason if isinstance(reason, BaseException) else None
        if error is not None and kind is not EventKind.BIND_FAILED:  # that error is raised, too
            _drop_frames(error)
        event = Event(kind=kind, time=time.time(), endpoint=endpoint, reason=text, error=error, **details)
        for found in tuple(self._monitors):
            monitor = found()
            if monitor is not None:
                monitor.put(event)

    # ------------------------------------------------------------------ dropped messages

    def start(self) -> None:
        """Counts dropped messages from time to time, while there are monitors; in the engine's thread."""
        if self._monitors and self._timer is None and self._engine.pattern.drops:
            self._timer = self._engine.loop.call_later(_POLL_INTERVAL_S, self._count_dropped)

    def _count_dropped(self) -> None:
        self._timer = None
        try:
            closed = self._engine.closed
        except ReferenceError:  # the engine was collected before the timer was due
            return
        if not closed:
            for session in self._engine.sessions:
                self.report_dropped(session)
            self.start()

    def report_dropped(self, session: Session) -> None:
        """Reports the messages for a peer that were dropped since the last report."""
        dropped = session.peer.dropped
        if self._monitors and dropped > session.dropped_reported:
            count, session.dropped_reported = dropped - session.dropped_reported, dropped
            self._engine.emit(EventKind.DROPPED, session=session, reason=self._engine.pattern.drops, count=count)

    def stop(self) -> None:
        """Sends the last event, because the socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._engine.emit(EventKind.MONITOR_STOPPED)
        self._monitors.clear()


def failure(error: BaseException | None) -> HandshakeFailure:
    """Returns the kind of a handshake's failure."""
    match error:
        case None:
            return HandshakeFailure.STOPPED
        case MechanismError():
            return HandshakeFailure.MECHANISM
        case AuthenticationError():
            return HandshakeFailure.AUTHENTICATION
        case ProtocolError():
            return HandshakeFailure.PROTOCOL
        case TimeoutError():
            return HandshakeFailure.TIMEOUT
        case OSError() | EOFError():
            return HandshakeFailure.HUNG_UP
        case HandshakeError():
            return HandshakeFailure.REFUSED
    return HandshakeFailure.PROTOCOL


def _drop_frames(error: BaseException) -> None:
    """Removes the frames from an exception and its causes, which would keep the connection alive."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            found += (one.__cause__, one.__context__)


def _text(reason: str | BaseException | None) -> str:
    if isinstance(reason, BaseException):
        return str(reason) or type(reason).__name__
    return reason or ""

"""gobyd in a program: the manager and the router of a bus, and the threads that serve them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import Message

import omq
from omq.errors import ClosedError, ReceiveTimeout, UsageError
from omq.goby.config import read_gobyd
from omq.goby.errors import Malformed
from omq.goby.health import (
    ANSWERED_HEALTH,
    HEALTH_REPORT,
    HEALTH_REQUEST,
    HEALTH_RESPONSE,
    INTERVAL,
    REQUESTED_END,
    REQUESTED_HEALTH,
    TERMINATE_RESPONSE,
    TIMEOUT,
    HealthPoll,
    asked_to_end,
    process_health,
)
from omq.goby.identifier import head_of, split_frame
from omq.goby.manager import Manager
from omq.goby.protobuf import (
    GobyDaemonConfig,
    HealthRequest,
    InterProcessPortalConfig,
    ProcessHealth,
    Socket,
    TerminateRequest,
)
from omq.goby.router import BusRouter, socket_message
from omq.goby.scheme import parsed
from omq.goby.wire import REQUESTS, Bus, bracketed, bus_of
from omq.unpatched import threading

__all__ = ["Daemon"]

log = logging.getLogger("omq.goby")

NAME: Final = "gobyd"
_CLOCK_INTERVAL_S: Final = 0.25  # seconds after which the manager looks at its clock
_MAX_REQUESTS: Final = 10_000  # requests, or answers, that may wait


class Daemon:
    """The manager and the router of a bus (`gobyd`), in threads of their own.

    with omq.goby.Daemon(platform="auv", required_clients=["nav", "log"]) as daemon:
        print(daemon.endpoints["manager"], daemon.missing)

    Args:
        platform: The platform's name; `None`: the configuration's, or `default_goby_platform`.
        transport: `ipc` or `tcp`; `None`: the configuration's, or `ipc`.
        socket_name: ipc: what the paths of its sockets begin with; `None`: the configuration's, or `/tmp/goby_` and the
            platform.
        port: tcp: the manager's port, 0 for one that the system chooses; `None`: the configuration's, or 11144.
        required_clients: The clients that must be ready before any publishes, in addition to the configuration's.
        config: A `GobyDaemonConfig`, or a file of one: text protobuf, or TOML if its name ends in `.toml`.
        host: tcp: the address that it listens on; `*` for all, as Goby's own does.
        health_interval: Seconds between two requests for the health of all processes; `None`: it never asks.

    Attributes:
        endpoints: Where clients find it, once it is started: `manager`, `publish` (its XSUB), `subscribe` (its XPUB).
        name: What it is called on the bus: `gobyd`, unless the configuration has another name.

    Raises:
        UsageError: Something does not fit; the text names it.
    """

    def __init__(
        self,
        *,
        platform: str | None = None,
        transport: str | None = None,
        socket_name: str | os.PathLike[str] | None = None,
        port: int | None = None,
        required_clients: Iterable[str] = (),
        config: GobyDaemonConfig | str | os.PathLike[str] | None = None,
        host: str = "*",
        health_interval: float | None = INTERVAL,
    ) -> None:
        given = read_gobyd(Path(config)) if isinstance(config, str | os.PathLike) else config or GobyDaemonConfig()
        configured = bus_of(given.interprocess)
        self.bus = Bus(
            configured.platform if platform is None else platform,
            configured.transport if transport is None else transport,
            configured.socket_name if socket_name is None else os.fspath(socket_name),
            port=configured.port if port is None else port,
        )
        if health_interval is not None and not health_interval > 0:
            reason = "must be seconds, more than 0; None for never"
            raise UsageError(f"health_interval={health_interval!r}: {reason}").about("health_interval")
        self.name = given.app.name or NAME
        self.endpoints: dict[str, str] = {}
        self._required = tuple(dict.fromkeys([*given.hold.required_client, *required_clients]))
        for required in self._required:
            if not isinstance(required, str) or not required:
                reason = "a name is a text that is not empty"
                raise UsageError(f"required_clients={required!r}: {reason}").about("required_clients")
        self._marks: InterProcessPortalConfig = given.interprocess
        for mark in ("send_queue_size", "receive_queue_size"):
            if getattr(self._marks, mark) >= 2**31:
                raise UsageError(f"interprocess.{mark}={getattr(self._marks, mark)}: must be 2147483647 at most")
        self._host = host
        self._interval = health_interval
        self._manager: Manager | None = None
        self._lock = threading.Lock()  # of the manager
        self._ended = threading.Event()  # by a request to terminate
        self.on_terminate: Callable[[], object] = lambda: None
        self._context: omq.Context | None = None
        self._router: BusRouter | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: list[omq.Socket] = []
        self._round: HealthPoll | None = None

    # ------------------------------------------------------------------ start and close

    def start(self, *, ready: bool = True) -> None:
        """Serves; `with` does it.

        Args:
            ready: Whether it counts as ready itself from now on; else `ready` does so.

        Raises:
            BindError: An endpoint cannot be listened on.
            EndpointError: An endpoint cannot be understood.
            UsageError: It was started before.
        """
        if self._context is not None:
            raise UsageError("this daemon was started already: make another one")
        self._context = omq.Context()
        try:
            self._open(self._context)
        except BaseException:
            self.close()
            raise
        if ready:
            self.ready()

    def _open(self, context: omq.Context) -> None:
        bus, tcp = self.bus, self.bus.transport == "tcp"
        # First: a second daemon of the same bus is refused before it has touched anything.
        rep = omq.REP(context, linger=0.5, ipv6=tcp)
        self._sockets.append(rep)
        found = rep.bind(f"tcp://{self._host}:{bus.port or '*'}" if tcp else bus.manager)
        self._router = router = BusRouter(context, bus, self._marks, self._host, self._end)
        pub = omq.PUB(context, connect=router.inside[0], linger=0, send_hwm=_MAX_REQUESTS)
        wanted = [REQUESTS, REQUESTED_HEALTH, ANSWERED_HEALTH, REQUESTED_END]
        sub = omq.SUB(context, connect=router.inside[1], subscribe=wanted, recv_hwm=_MAX_REQUESTS)
        self._sockets += [pub, sub]
        self._manager = Manager(
            *(self.name, os.getpid(), self._required),
            socket_message(Socket.PUBLISH, router.publish, self._marks),
            socket_message(Socket.SUBSCRIBE, router.subscribe, self._marks),
        )
        self.endpoints.update(
            manager=self._reached(found),
            publish=self._reached(router.publish),
            subscribe=self._reached(router.subscribe),
        )
        router.start()
        pub.wait_subscribed(REQUESTS, timeout=10)
        self._begin(self._answer, rep, pub)
        self._begin(self._listen, sub, pub)

    def _reached(self, endpoint: str) -> str:
        """An endpoint by which this machine reaches what is bound."""
        scheme, _, rest = endpoint.partition("://")
        if scheme == "ipc":
            return endpoint
        host = "127.0.0.1" if self._host in ("*", "0.0.0.0") else bracketed(self._host)
        return f"tcp://{host}:{rest.rpartition(':')[2]}"

    def _begin(self, run: Callable[[omq.Socket, omq.Socket], None], source: omq.Socket, pub: omq.Socket) -> None:
        def live() -> None:
            try:
                run(source, pub)
            except ClosedError:
                pass
            except Exception:
                log.exception("the manager has failed")
                self._end()

        thread = threading.Thread(target=live, name="omq goby manager", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ready(self) -> None:
        """Reports itself ready, which every client waits for."""
        assert self._manager is not None
        with self._lock:
            self._manager.serves()
        self._publish_release(self._sockets[1])

    def wait_terminated(self, timeout: float | None = None) -> bool:
        """Waits until a process on the bus asks it to end (`goby::terminate::request`).

        Args:
            timeout: Seconds; `None` for ever.

        Returns:
            Whether a request came.
        """
        return self._ended.wait(timeout)

    def close(self) -> None:
        """Ends. Idempotent."""
        for socket in self._sockets[:1]:
            socket.close()  # clients that ask now wait for the next manager
        if self._router is not None:
            self._router.close()
        for socket in self._sockets:
            socket.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._context is not None:
            self._context.term()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ its state

    @property
    def missing(self) -> list[str]:
        """The required clients that are not ready; none once the hold is released."""
        if self._manager is None:
            return [*self._required, self.name]
        with self._lock:
            return self._manager.hold.missing(time.monotonic())

    @property
    def malformed(self) -> int:
        """Requests that could not be read."""
        return 0 if self._manager is None else self._manager.malformed

    # ------------------------------------------------------------------ what it does

    def _answer(self, rep: omq.Socket, pub: omq.Socket) -> None:
        """Answers the manager's own socket."""
        assert self._manager is not None
        while True:
            parts = rep.recv_multipart()
            with self._lock:
                # Only a single part is a request.
                reply = self._manager.answer(parts[0] if len(parts) == 1 else b"", time.monotonic())
            rep.send(reply)
            self._publish_release(pub)

    def _listen(self, sub: omq.Socket, pub: omq.Socket) -> None:
        """Reads what is published to the manager, and looks at the clock."""
        asked = time.monotonic()
        while True:
            try:
                parts = sub.recv_multipart(timeout=_CLOCK_INTERVAL_S)
            except ReceiveTimeout:
                pass
            else:
                if len(parts) == 1:
                    self._handle(parts[0], pub)
                else:
                    self._misread("a publication to the manager has several frames")
            self._publish_release(pub)
            asked = self._look_after_health(pub, asked)

    def _handle(self, frame: bytes, pub: omq.Socket) -> None:
        assert self._manager is not None
        if frame.startswith(REQUESTS):
            with self._lock:
                answer = self._manager.handle(frame, time.monotonic())
            if answer is not None:
                pub.send(answer)
            return
        try:
            payload = split_frame(frame)[1]
            if frame.startswith(REQUESTED_HEALTH):
                self._publish(pub, HEALTH_RESPONSE, process_health(self.name))
            elif frame.startswith(ANSWERED_HEALTH):
                health = parsed(ProcessHealth, payload)
                if self._round is not None:
                    self._round.answered(health)
            elif (response := asked_to_end(parsed(TerminateRequest, payload), self.name)) is not None:
                self._publish(pub, TERMINATE_RESPONSE, response)
                log.info("asked to end by %s", frame.split(b"/", 6)[4].decode("latin-1"))
                self._end()
        except (Malformed, UnicodeDecodeError) as fault:
            self._misread(str(fault))

    def _end(self) -> None:
        """Wakes `wait_terminated`, and calls `on_terminate`."""
        self._ended.set()
        self.on_terminate()

    def _misread(self, text: str) -> None:
        assert self._manager is not None
        with self._lock:
            self._manager.misread(text, time.monotonic())

    def _publish_release(self, pub: omq.Socket) -> None:
        """Publishes the release to the clients that wait for it."""
        assert self._manager is not None
        with self._lock:
            frames = self._manager.tick(time.monotonic())
        for frame in frames:
            pub.send(frame)

    def _look_after_health(self, pub: omq.Socket, asked: float) -> float:
        """Asks for health when it is time, and reports when the time to answer is up; gives when it last asked."""
        now = time.monotonic()
        if self._interval is None:
            return asked
        if self._round is not None and now - asked >= min(TIMEOUT, self._interval / 2):
            self._publish(pub, HEALTH_REPORT, self._round.report())
            self._round = None
        if now - asked >= self._interval:
            self._round = HealthPoll(self.bus.platform, [*self._required, self.name])
            self._publish(pub, HEALTH_REQUEST, HealthRequest())
            return now
        return asked

    def _publish(self, pub: omq.Socket, group: str, message: Message) -> None:
        head = head_of(group, "PROTOBUF", message.DESCRIPTOR.full_name, os.getpid(), threading.get_ident())
        pub.send(head + message.SerializeToString())

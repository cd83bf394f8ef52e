"""The daemon of a bus (gobyd): the sockets and threads of its manager and its router."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import Message

import omq
from omq.errors import ClosedError, ReceiveTimeout, StateError, UsageError
from omq.goby.config import read_gobyd
from omq.goby.errors import Malformed
from omq.goby.health import (
    HEALTH_INTERVAL_S,
    HEALTH_REPORT,
    HEALTH_REQUEST,
    HEALTH_REQUEST_PREFIX,
    HEALTH_RESPONSE,
    HEALTH_RESPONSE_PREFIX,
    HEALTH_TIMEOUT_S,
    TERMINATE_REQUEST_PREFIX,
    TERMINATE_RESPONSE,
    HealthPoll,
    process_health,
    terminate_response,
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
from omq.goby.scheme import parse_protobuf
from omq.goby.wire import MANAGER_REQUEST_PREFIX, Bus, bracketed, bus_of, check_client_name
from omq.unpatched import threading

__all__ = ["Daemon"]

log = logging.getLogger("omq.goby")

NAME: Final = "gobyd"
_TICK_INTERVAL_S: Final = 0.25  # between two calls of `Manager.tick`, at most
_MAX_REQUESTS: Final = 10_000  # that may wait; also of answers


class Daemon:
    """The manager and the router of a bus (`gobyd`), in threads of their own.

        with omq.goby.Daemon(platform="auv", required_clients=["nav", "log"]) as daemon:
            print(daemon.endpoints["manager"], daemon.missing)

    Args:
        platform: The platform's name, without `/`; `None`: the configuration's, or `default_goby_platform`.
        transport: `ipc` or `tcp`; `None`: the configuration's, or `ipc`.
        socket_name: ipc: the prefix of the sockets' paths; `None`: the configuration's, or `/tmp/goby_PLATFORM`.
        port: tcp: the manager's port, from 0 to 65535, 0 for any free port; `None`: the configuration's, or 11144.
        required_clients: The clients that must be ready before any client publishes, in addition to the
            configuration's: a name, or several names. A string is one name.
        config: A `GobyDaemonConfig`, or the path of its file: TOML if the name ends in `.toml`, else text protobuf.
            `None`: an empty configuration.
        host: tcp: the address to listen on; the default `*` listens on all, as Goby's gobyd does.
        health_interval: The seconds between two health requests to all processes, above 0; 10 by default. `None` sends
            none.

    Attributes:
        endpoints: The endpoints for clients by their names: `manager`, `publish` (where clients publish) and
            `subscribe`. Empty until the daemon is started.
        name: The daemon's name on the bus: the configuration's, or `gobyd`.
        on_terminate: A function without arguments, called in a thread of the daemon at a terminate request or failure.

    Raises:
        UsageError: An argument is not valid; the text names it.
    """

    def __init__(
        self,
        *,
        platform: str | None = None,
        transport: str | None = None,
        socket_name: str | os.PathLike[str] | None = None,
        port: int | None = None,
        required_clients: str | Iterable[str] = (),
        config: GobyDaemonConfig | str | os.PathLike[str] | None = None,
        host: str = "*",
        health_interval: float | None = HEALTH_INTERVAL_S,
    ) -> None:
        settings = _settings(config)
        bus = bus_of(settings.interprocess)
        self.bus = Bus(
            bus.platform if platform is None else platform,
            bus.transport if transport is None else transport,
            bus.socket_name if socket_name is None else os.fspath(socket_name),
            port=bus.port if port is None else port,
        )
        if health_interval is not None and (
            isinstance(health_interval, bool) or not isinstance(health_interval, int | float) or not health_interval > 0
        ):
            reason = "must be seconds, more than 0; None for never"
            raise UsageError(f"health_interval={health_interval!r}: {reason}").about("health_interval")
        self.name = settings.app.name or NAME
        self.endpoints: dict[str, str] = {}
        configured: Sequence[str] = settings.hold.required_client
        # bytes are iterable, too; as a single name, `check_client_name` rejects them.
        is_single = isinstance(required_clients, str | bytes) or not isinstance(required_clients, Iterable)
        names = [required_clients] if is_single else list(required_clients)
        for argument, group in (("hold.required_client", configured), ("required_clients", names)):
            for required in group:
                check_client_name(argument, required)
        self._required = tuple(dict.fromkeys([*configured, *names]))
        self._hwm_config: InterProcessPortalConfig = settings.interprocess
        for name in ("send_queue_size", "receive_queue_size"):
            if (hwm := getattr(self._hwm_config, name)) >= 2**31:
                raise UsageError(f"interprocess.{name}={hwm}: must be at most 2147483647")
        self._host = host
        self._health_interval = health_interval
        self._manager: Manager | None = None
        self._lock = threading.Lock()  # guards the manager
        self._terminated = threading.Event()  # set by a terminate request
        self.on_terminate: Callable[[], object] = lambda: None
        self._context: omq.Context | None = None
        self._router: BusRouter | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: list[omq.Socket] = []
        self._health_poll: HealthPoll | None = None

    # ------------------------------------------------------------------ start and close

    def start(self, *, ready: bool = True) -> None:
        """Starts the daemon, as `with` does.

        Args:
            ready: Whether the daemon is ready at once; if not, all clients are held until a call of `ready`.

        Raises:
            BindError: An endpoint cannot be bound.
            EndpointError: An endpoint is not valid.
            UsageError: The daemon was started before.
        """
        if self._context is not None:
            raise UsageError("this daemon was started already: create another one")
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
        # This socket is bound first: a second daemon of the same bus then fails before it has changed anything.
        rep = omq.REP(context, linger=0.5, ipv6=tcp)
        self._sockets.append(rep)
        manager_endpoint = rep.bind(f"tcp://{self._host}:{bus.port or '*'}" if tcp else bus.manager_endpoint)
        self._router = router = BusRouter(context, bus, self._hwm_config, self._host, self._terminate)
        pub = omq.PUB(context, connect=router.inproc_endpoints[0], linger=0, send_hwm=_MAX_REQUESTS)
        prefixes = [MANAGER_REQUEST_PREFIX, HEALTH_REQUEST_PREFIX, HEALTH_RESPONSE_PREFIX, TERMINATE_REQUEST_PREFIX]
        sub = omq.SUB(context, connect=router.inproc_endpoints[1], subscribe=prefixes, recv_hwm=_MAX_REQUESTS)
        self._sockets += [pub, sub]
        self._manager = Manager(
            *(self.name, os.getpid(), self._required),
            socket_message(Socket.PUBLISH, router.publish, self._hwm_config),
            socket_message(Socket.SUBSCRIBE, router.subscribe, self._hwm_config),
        )
        self.endpoints.update(
            manager=self._local_endpoint(manager_endpoint),
            publish=self._local_endpoint(router.publish),
            subscribe=self._local_endpoint(router.subscribe),
        )
        router.start()
        pub.wait_subscribed(MANAGER_REQUEST_PREFIX, timeout=10)
        self._start_thread(self._serve_requests, rep, pub)
        self._start_thread(self._serve_publications, sub, pub)

    def _local_endpoint(self, endpoint: str) -> str:
        """Returns the endpoint for clients on this machine to a bound endpoint."""
        scheme, _, rest = endpoint.partition("://")
        if scheme == "ipc":
            return endpoint
        host = "127.0.0.1" if self._host in ("*", "0.0.0.0") else bracketed(self._host)
        return f"tcp://{host}:{rest.rpartition(':')[2]}"

    def _start_thread(self, run: Callable[[omq.Socket, omq.Socket], None], source: omq.Socket, pub: omq.Socket) -> None:
        def serve() -> None:
            try:
                run(source, pub)
            except ClosedError:
                pass
            except Exception:
                log.exception("the manager has failed")
                self._terminate()

        thread = threading.Thread(target=serve, name="omq goby manager", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ready(self) -> None:
        """Marks the started daemon as ready, which all clients wait for. Idempotent.

        Raises:
            StateError: The daemon was not started.
        """
        if self._manager is None:
            raise StateError("this daemon was not started: call start first")
        with self._lock:
            self._manager.set_ready()
        self._publish_release(self._sockets[1])

    def wait_terminated(self, timeout: float | None = None) -> bool:
        """Waits for a terminate request on the bus (`goby::terminate::request`), or for a failure of the daemon.

        Args:
            timeout: In seconds; `None` waits for ever.

        Returns:
            Whether one of them happened in time.
        """
        return self._terminated.wait(timeout)

    def close(self) -> None:
        """Stops the daemon. Idempotent."""
        for socket in self._sockets[:1]:
            socket.close()  # requests from now on wait for the next manager
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

    # ------------------------------------------------------------------ state

    @property
    def missing(self) -> list[str]:
        """The required clients that are not ready, and the daemon itself until it is ready; empty after the release."""
        if self._manager is None:
            return [*self._required, self.name]
        with self._lock:
            return self._manager.hold.missing(time.monotonic())

    @property
    def malformed(self) -> int:
        """The number of requests that could not be parsed; they are logged and skipped."""
        return 0 if self._manager is None else self._manager.malformed

    # ------------------------------------------------------------------ threads

    def _serve_requests(self, rep: omq.Socket, pub: omq.Socket) -> None:
        """Answers requests at the manager's own socket."""
        assert self._manager is not None
        while True:
            parts = rep.recv_multipart()
            with self._lock:
                # A message of several parts is not a request.
                reply = self._manager.answer(parts[0] if len(parts) == 1 else b"", time.monotonic())
            rep.send(reply)
            self._publish_release(pub)

    def _serve_publications(self, sub: omq.Socket, pub: omq.Socket) -> None:
        """Handles publications to the manager, and sends releases and health requests when they are due."""
        health_requested_at = time.monotonic()
        while True:
            try:
                parts = sub.recv_multipart(timeout=_TICK_INTERVAL_S)
            except ReceiveTimeout:
                pass
            else:
                if len(parts) == 1:
                    self._handle(parts[0], pub)
                else:
                    self._count_malformed("a publication to the manager has several frames")
            self._publish_release(pub)
            health_requested_at = self._poll_health(pub, health_requested_at)

    def _handle(self, frame: bytes, pub: omq.Socket) -> None:
        assert self._manager is not None
        if frame.startswith(MANAGER_REQUEST_PREFIX):
            with self._lock:
                answer = self._manager.handle(frame, time.monotonic())
            if answer is not None:
                pub.send(answer)
            return
        try:
            payload = split_frame(frame)[1]
            if frame.startswith(HEALTH_REQUEST_PREFIX):
                self._publish(pub, HEALTH_RESPONSE, process_health(self.name))
            elif frame.startswith(HEALTH_RESPONSE_PREFIX):
                health = parse_protobuf(ProcessHealth, payload)
                if self._health_poll is not None:
                    self._health_poll.record(health)
            elif (response := terminate_response(parse_protobuf(TerminateRequest, payload), self.name)) is not None:
                self._publish(pub, TERMINATE_RESPONSE, response)
                log.info("terminate request of process %s", frame.split(b"/", 6)[4].decode("latin-1"))
                self._terminate()
        except (Malformed, UnicodeDecodeError) as fault:
            self._count_malformed(str(fault))

    def _terminate(self) -> None:
        """Ends `wait_terminated`, and calls `on_terminate`."""
        self._terminated.set()
        self.on_terminate()

    def _count_malformed(self, text: str) -> None:
        assert self._manager is not None
        with self._lock:
            self._manager.count_malformed(text)

    def _publish_release(self, pub: omq.Socket) -> None:
        """Publishes the release to the clients that wait for it."""
        assert self._manager is not None
        with self._lock:
            frames = self._manager.tick(time.monotonic())
        for frame in frames:
            pub.send(frame)

    def _poll_health(self, pub: omq.Socket, requested_at: float) -> float:
        """Sends a health request or a report when it is due; returns the time of the last request."""
        now = time.monotonic()
        if self._health_interval is None:
            return requested_at
        if self._health_poll is not None and now - requested_at >= min(HEALTH_TIMEOUT_S, self._health_interval / 2):
            self._publish(pub, HEALTH_REPORT, self._health_poll.report())
            self._health_poll = None
        if now - requested_at >= self._health_interval:
            self._health_poll = HealthPoll(self.bus.platform, [*self._required, self.name])
            self._publish(pub, HEALTH_REQUEST, HealthRequest())
            return now
        return requested_at

    def _publish(self, pub: omq.Socket, group: str, message: Message) -> None:
        head = head_of(group, "PROTOBUF", message.DESCRIPTOR.full_name, os.getpid(), threading.get_ident())
        pub.send(head + message.SerializeToString())


def _settings(config: object) -> GobyDaemonConfig:
    """Returns a configuration, which is read if it is a path.

    Raises:
        UsageError: The file cannot be read, or the value is neither a path nor a `GobyDaemonConfig`.
    """
    if isinstance(config, str | os.PathLike):
        return read_gobyd(Path(config))
    if config is None:
        return GobyDaemonConfig()
    if not isinstance(config, GobyDaemonConfig):
        raise UsageError(f"config={config!r}: must be a GobyDaemonConfig, or the path of a file of one").about("config")
    return config

"""The manager's protocol, without sockets: the router's endpoints, the ready clients, and the hold."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from omq.goby.errors import Malformed
from omq.goby.identifier import MANAGER_RESPONSE, head_of, split_frame
from omq.goby.protobuf import (
    PROVIDE_HOLD_STATE,
    PROVIDE_MISSING_CLIENTS,
    PROVIDE_PUB_SUB_SOCKETS,
    ManagerRequest,
    ManagerResponse,
    Socket,
)
from omq.goby.wire import read_message
from omq.serving.rate_limit import WARNING_INTERVAL_S, RateLimit

log = logging.getLogger("omq.goby")

CLIENT_IDLE_TIMEOUT_S: Final = 1.0  # until a silent client is not ready; clients send every 100 ms
MISSING_LOG_INTERVAL_S: Final = 5.0  # between two log lines with the same missing clients
MAX_WAITING_CLIENTS: Final = 10_000  # clients that are sent the release


class Hold:
    """The hold: no client publishes until all required clients are ready. Once released, it never begins again.

    Args:
        required: The names of the required clients.
    """

    def __init__(self, required: Iterable[str]) -> None:
        self.required = tuple(dict.fromkeys(required))
        self.released = not self.required
        # The process that has registered each required name, and the time of its last message.
        self._owners: dict[str, tuple[int, float]] = {}
        self._ready: dict[str, float] = {}  # the last message of each required client that is ready
        self._permanent: set[str] = set()

    def register(self, name: str, pid: int, now: float) -> None:
        """Registers a process under a name, and discards the state of an earlier one."""
        if name in self.required:
            self._owners[name] = pid, now
            if name not in self._permanent:
                self._ready.pop(name, None)

    def record(self, name: str, pid: int, ready: bool, now: float) -> bool:
        """Records a message of a client. After the idle timeout another process may take over the name.

        Args:
            name: The client's name.
            pid: The client's process.
            ready: Whether it reports that it is ready.
            now: The time in seconds.

        Returns:
            Whether the process owns the name.
        """
        if name not in self.required or self.released:
            return True
        owner, last = self._owners.get(name, (pid, now))
        if owner != pid and now - last <= CLIENT_IDLE_TIMEOUT_S:
            return False
        if owner != pid:
            self._ready.pop(name, None)  # that was reported by the other process
        self._owners[name] = pid, now
        if ready or name in self._ready:
            self._ready[name] = now
        return True

    def keep_ready(self, name: str) -> None:
        """Marks a required client as permanently ready; it need not report again."""
        if name in self.required:
            self._permanent.add(name)

    def missing(self, now: float) -> list[str]:
        """Returns the required clients that are not ready; an empty list after the release."""
        if self.released:
            return []
        for name in [name for name, last in self._ready.items() if now - last > CLIENT_IDLE_TIMEOUT_S]:
            del self._ready[name]
        return [name for name in self.required if name not in self._ready and name not in self._permanent]

    def holds(self, now: float) -> bool:
        """Returns whether clients are held; releases the hold once all required clients are ready."""
        if not self.released and not self.missing(now):
            self.released = True
        return not self.released


class Manager:
    """Answers clients, and sends the release to those that wait for it.

    Args:
        name: Its own name, which is also a required client.
        pid: Its process.
        required: The names of the required clients.
        publish: The socket where clients publish.
        subscribe: The socket where clients subscribe.

    Attributes:
        hold: The required clients and their readiness.
        malformed: The number of requests that could not be parsed.
        refused: The number of messages under a name that another process owns.
    """

    def __init__(self, name: str, pid: int, required: Iterable[str], publish: Socket, subscribe: Socket) -> None:
        self.hold = Hold([*required, name])
        self.hold.register(name, pid, 0.0)
        self.malformed = self.refused = 0
        self._name = name
        self._publish, self._subscribe = publish, subscribe
        self._head = head_of(MANAGER_RESPONSE, "PROTOBUF", "goby.zeromq.protobuf.ManagerResponse", pid, 0)
        self._waiting: dict[tuple[str, int], float] = {}  # held clients, and the times of their last requests
        self._last_log: tuple[list[str], float] = ([], float("-inf"))
        self._warning_limit = RateLimit(WARNING_INTERVAL_S)

    def set_ready(self) -> None:
        """Marks the manager itself as ready."""
        self.hold.keep_ready(self._name)

    def answer(self, frame: bytes, now: float) -> bytes:
        """Answers a request from the manager's own socket.

        Args:
            frame: The request.
            now: The time in seconds.

        Returns:
            The frame of the reply; empty if the request could not be parsed.
        """
        try:
            request = read_message(ManagerRequest, frame)
        except Malformed as fault:
            self.count_malformed(str(fault))
            return b""
        return self._answer(request, now).SerializeToString()

    def handle(self, frame: bytes, now: float) -> bytes | None:
        """Answers a request from a publication.

        Args:
            frame: The publication.
            now: The time in seconds.

        Returns:
            The publication with the answer; `None` if the request could not be parsed.
        """
        try:
            request = read_message(ManagerRequest, split_frame(frame)[1])
        except Malformed as fault:
            self.count_malformed(str(fault))
            return None
        response = self._answer(request, now)
        if request.request == PROVIDE_HOLD_STATE:
            client = request.client_name, request.client_pid
            if response.hold and (client in self._waiting or len(self._waiting) < MAX_WAITING_CLIENTS):
                self._waiting[client] = now
            else:
                self._waiting.pop(client, None)
        return self._head + response.SerializeToString()

    def tick(self, now: float) -> list[bytes]:
        """Returns the publications to send now: after the release, an answer to each client that waits.

        Logs the missing clients.
        """
        if self.hold.holds(now):
            missing = self.hold.missing(now)
            names, when = self._last_log
            if missing != names or now - when >= MISSING_LOG_INTERVAL_S:
                log.info("hold: waiting for %s", ", ".join(missing))
                self._last_log = missing, now
            return []
        if self._last_log[0]:
            log.info("hold: released")
            self._last_log = [], now
        waiting, self._waiting = self._waiting, {}
        return [
            self._head
            + ManagerResponse(
                request=PROVIDE_HOLD_STATE, client_name=name, client_pid=pid, hold=False
            ).SerializeToString()
            for (name, pid), last in waiting.items()
            if now - last < CLIENT_IDLE_TIMEOUT_S
        ]

    def _answer(self, request: ManagerRequest, now: float) -> ManagerResponse:
        name, pid = request.client_name, request.client_pid
        response = ManagerResponse(request=request.request, client_name=name, client_pid=pid)
        if request.request == PROVIDE_PUB_SUB_SOCKETS:
            if name == self._name:
                self._warn(f"a client has the name {name!r} of this manager: it is not required")
            else:
                self.hold.register(name, pid, now)
            response.publish_socket.CopyFrom(self._publish)
            response.subscribe_socket.CopyFrom(self._subscribe)
        elif request.request == PROVIDE_HOLD_STATE:
            if not self.hold.record(name, pid, request.ready, now):
                self.refused += 1
                self._warn(f"process {pid} has the name {name!r} of another process: its message is ignored")
            response.hold = self.hold.holds(now)
        elif request.request == PROVIDE_MISSING_CLIENTS:
            response.missing_client.extend(self.hold.missing(now))
            response.hold = self.hold.holds(now)
        return response

    def count_malformed(self, text: str) -> None:
        """Counts and logs a request that could not be parsed."""
        self.malformed += 1
        self._warn(text)

    def _warn(self, text: str) -> None:
        if self._warning_limit.passes():
            log.warning("manager: %s", text)

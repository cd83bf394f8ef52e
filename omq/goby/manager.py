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

log = logging.getLogger("omq.goby")

CLIENT_IDLE_TIMEOUT_S: Final = 1.0  # seconds until a silent client is not ready; clients send every 100 ms
MISSING_LOG_INTERVAL_S: Final = 5.0  # seconds between two log lines with the missing clients
LOG_INTERVAL_S: Final = 1.0  # seconds between two lines about what does not fit
MAX_WAITING: Final = 10_000  # clients that wait for the release


class Hold:
    """The hold until the required clients are ready. Nothing is published before; then it is over for good.

    Args:
        required: Their names.
    """

    def __init__(self, required: Iterable[str]) -> None:
        self.required = tuple(dict.fromkeys(required))
        self.released = not self.required
        # The process that has registered each required name, and the time of its last message.
        self._owners: dict[str, tuple[int, float]] = {}
        self._ready: dict[str, float] = {}  # the last message of each required client that is ready
        self._always: set[str] = set()

    def registered(self, name: str, pid: int, now: float) -> None:
        """Registers a process under a name, and discards the state of an earlier one."""
        if name in self.required:
            self._owners[name] = pid, now
            if name not in self._always:
                self._ready.pop(name, None)

    def record(self, name: str, pid: int, ready: bool, now: float) -> bool:
        """Records a message of a client. After the idle timeout another process may take over the name.

        Args:
            name: Its name.
            pid: Its process.
            ready: Whether it reports that it is ready.
            now: Seconds.

        Returns:
            Whether the process owns that name.
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

    def stays_ready(self, name: str) -> None:
        """Marks a client as ready for good."""
        if name in self.required:
            self._always.add(name)

    def missing(self, now: float) -> list[str]:
        """Required clients that are not ready; none once it is over."""
        if self.released:
            return []
        for name in [name for name, last in self._ready.items() if now - last > CLIENT_IDLE_TIMEOUT_S]:
            del self._ready[name]
        return [name for name in self.required if name not in self._ready and name not in self._always]

    def holds(self, now: float) -> bool:
        """Returns whether clients are held."""
        if not self.released and not self.missing(now):
            self.released = True
        return not self.released


class Manager:
    """Answers clients, and sends the release to those that wait.

    Args:
        name: Its own name, which is a required client, too.
        pid: Its process.
        required: The required clients.
        publish: Where clients publish.
        subscribe: Where they subscribe.

    Attributes:
        hold: The required clients and their readiness.
        malformed: Requests that could not be read.
        refused: Messages under a name that another process owns.
    """

    def __init__(self, name: str, pid: int, required: Iterable[str], publish: Socket, subscribe: Socket) -> None:
        self.hold = Hold([*required, name])
        self.hold.registered(name, pid, 0.0)
        self.malformed = self.refused = 0
        self._name = name
        self._publish, self._subscribe = publish, subscribe
        self._head = head_of(MANAGER_RESPONSE, "PROTOBUF", "goby.zeromq.protobuf.ManagerResponse", pid, 0)
        self._waiting: dict[tuple[str, int], float] = {}  # clients that are held, and when they last asked
        self._logged: tuple[list[str], float] = ([], float("-inf"))
        self._complained = float("-inf")

    def serves(self) -> None:
        """Marks the manager itself as ready."""
        self.hold.stays_ready(self._name)

    def answer(self, request: bytes, now: float) -> bytes:
        """Answers a request that has come to the manager's own socket.

        Args:
            request: The frame.
            now: Seconds.

        Returns:
            The frame of the reply; empty where the request could not be read.
        """
        try:
            asked = read_message(ManagerRequest, request)
        except Malformed as fault:
            self.misread(str(fault), now)
            return b""
        return self._answer(asked, now).SerializeToString()

    def handle(self, frame: bytes, now: float) -> bytes | None:
        """Answers a request that has come as a publication.

        Args:
            frame: The publication.
            now: Seconds.

        Returns:
            The publication that answers; `None` where the request could not be read.
        """
        try:
            asked = read_message(ManagerRequest, split_frame(frame)[1])
        except Malformed as fault:
            self.misread(str(fault), now)
            return None
        response = self._answer(asked, now)
        if asked.request == PROVIDE_HOLD_STATE:
            client = asked.client_name, asked.client_pid
            if response.hold and (client in self._waiting or len(self._waiting) < MAX_WAITING):
                self._waiting[client] = now
            else:
                self._waiting.pop(client, None)
        return self._head + response.SerializeToString()

    def tick(self, now: float) -> list[bytes]:
        """Returns what to publish now: as soon as the hold is over, an answer to each client that waits.

        Logs which clients are missing.
        """
        if self.hold.holds(now):
            missing = self.hold.missing(now)
            names, when = self._logged
            if missing != names or now - when >= MISSING_LOG_INTERVAL_S:
                log.info("hold: waiting for %s", ", ".join(missing))
                self._logged = missing, now
            return []
        if self._logged[0]:
            log.info("hold: released")
            self._logged = [], now
        waiting, self._waiting = self._waiting, {}
        return [
            self._head
            + ManagerResponse(
                request=PROVIDE_HOLD_STATE, client_name=name, client_pid=pid, hold=False
            ).SerializeToString()
            for (name, pid), last in waiting.items()
            if now - last < CLIENT_IDLE_TIMEOUT_S
        ]

    def _answer(self, asked: ManagerRequest, now: float) -> ManagerResponse:
        name, pid = asked.client_name, asked.client_pid
        response = ManagerResponse(request=asked.request, client_name=name, client_pid=pid)
        if asked.request == PROVIDE_PUB_SUB_SOCKETS:
            if name == self._name:
                self._complain(f"a client calls itself {name!r}, as this manager is called: it is not required", now)
            else:
                self.hold.registered(name, pid, now)
            response.publish_socket.CopyFrom(self._publish)
            response.subscribe_socket.CopyFrom(self._subscribe)
        elif asked.request == PROVIDE_HOLD_STATE:
            if not self.hold.record(name, pid, asked.ready, now):
                self.refused += 1
                self._complain(f"process {pid} speaks for {name!r}, which is another process: passed over", now)
            response.hold = self.hold.holds(now)
        elif asked.request == PROVIDE_MISSING_CLIENTS:
            response.missing_client.extend(self.hold.missing(now))
            response.hold = self.hold.holds(now)
        return response

    def misread(self, text: str, now: float) -> None:
        """Counts and logs a request that could not be read."""
        self.malformed += 1
        self._complain(text, now)

    def _complain(self, text: str, now: float) -> None:
        if now - self._complained >= LOG_INTERVAL_S:
            self._complained = now
            log.warning("manager: %s", text)

"""The coordinator of a stream: it knows the receiver of each partition, on whatever host of the cluster that is.

It lives in the process that Spark asks for offsets, so it begins and ends with a run of the query, and with it the
receivers.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from typing import Any, Final

from omq.spark.live.rpc import FROZEN_TIMEOUT_S, IDLE_TIMEOUT_S, Address, Channel, Server
from omq.unpatched import threading

START_TIMEOUT_S: Final = 30.0  # that a receiver may take to begin, after which another task may start one
STATUS_TIMEOUT_S: Final = 2.0  # that receivers may take to report


class _Registered:
    """A receiver, as the coordinator knows it."""

    def __init__(self, name: str, address: Address, channel: Channel) -> None:
        self.name = name
        self.address = address
        self.channel = channel
        self.status: dict[str, Any] = {}
        self.answered = 0  # the last request for a report that it has answered
        self.ended = False

    def send(self, **order: Any) -> None:
        """Sends it an order; that it has gone is noticed where its reports are read."""
        with contextlib.suppress(OSError):
            self.channel.send(order)


class Coordinator:
    """Answers the source, receivers, and tasks.

    Attributes:
        address: The address for receivers and tasks.
        secret: The stream's secret.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._receivers: dict[str, _Registered] = {}
        self._granted: dict[str, float] = {}  # until when a task may start a receiver
        self._failures: dict[str, list[dict[str, str]]] = {}  # of receivers at their start
        self._lost: list[dict[str, Any]] = []
        self._requests = itertools.count(1)
        self.secret = secrets.token_bytes(32)
        self._server = Server("coordinator", self.secret, self._serve)
        self.address = self._server.address

    # ------------------------------------------------------------------ for the source

    def commit(self, number: int) -> None:
        """Lets the receivers forget microbatches up to this one."""
        for one in self._all():
            one.send(commit=number)

    def status(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Returns the reports of the receivers, and the last reports of those that have died since the last call."""
        asked = self._all()
        request = next(self._requests)
        for one in asked:
            one.send(report=request)
        with self._changed:
            self._changed.wait_for(lambda: all(one.answered >= request or one.ended for one in asked), STATUS_TIMEOUT_S)
            lost, self._lost = self._lost, []
            return [{**one.status, "connection": one.name} for one in self._receivers.values()], lost

    def wait_ready(self, count: int, seconds: float) -> bool:
        """Waits until a microbatch has something to do; returns False if there is nothing in so many seconds.

        Args:
            count: How many receivers there are to be; a missing one is started by a microbatch.
            seconds: How long to wait.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    len(self._receivers) < count or any(one.status.get("ready") for one in self._receivers.values())
                ),
                seconds,
            )

    def close(self) -> None:
        """Ends the run, as the end of the process does."""
        self._server.close()
        for one in self._all():
            one.channel.close()

    def _all(self) -> list[_Registered]:
        with self._changed:
            return list(self._receivers.values())

    # ------------------------------------------------------------------ for receivers and tasks

    def _serve(self, channel: Channel) -> None:
        asked = channel.recv()
        if "register" in asked:
            name = asked["register"]
            found = asked if "address" in asked else self._started(channel, name)
            if found is not None:
                self._follow(_Registered(name, Address.from_json(found["address"]), channel))
        elif "is_alive" in asked:
            channel.send({"alive": self._is_alive(asked["is_alive"], asked["process"])})
        else:
            self._find(channel, asked)

    def _started(self, channel: Channel, name: str) -> dict[str, Any] | None:
        """Returns the first report of a receiver that starts; `None` if it fails."""
        found: dict[str, Any] = {"failed": "the receiver process has ended at its start", "kind": "StateError"}
        with contextlib.suppress(OSError, EOFError):
            found = channel.recv()
        if "failed" not in found:
            return found
        self._fail(name, found["failed"], found["kind"])
        return None

    def _fail(self, name: str, error: str, kind: str) -> None:
        """Answers the tasks that wait for a receiver with the reason why there is none."""
        with self._changed:
            self._granted.pop(name, None)
            self._failures.setdefault(name, []).append({"error": error, "kind": kind})
            self._changed.notify_all()

    def _follow(self, receiver: _Registered) -> None:
        """Keeps the reports of a receiver until it ends."""
        channel, name = receiver.channel, receiver.name
        channel.set_send_timeout(IDLE_TIMEOUT_S)
        # It reports all the time.
        channel.sock.settimeout(FROZEN_TIMEOUT_S)
        with self._changed:
            before = self._receivers.get(name)
            if before is not None and before.address != receiver.address:
                # It was taken for dead, and has a successor.
                receiver.send(end=True)
                return
            # It serves no task before this.
            receiver.send(serve=True)
            self._receivers[name] = receiver
            self._granted.pop(name, None)
            self._changed.notify_all()
        try:
            while True:
                found = channel.recv()
                with self._changed:
                    receiver.status = found["status"]
                    receiver.answered = found.get("request", receiver.answered)
                    self._changed.notify_all()
        finally:
            with self._changed:
                receiver.ended = True
                if self._receivers.get(name) is receiver:
                    del self._receivers[name]
                    self._lost.append({**receiver.status, "connection": name})
                self._changed.notify_all()

    def _find(self, channel: Channel, asked: dict[str, Any]) -> None:
        """Sends a task the address of its receiver, or has it start one."""
        name = asked["find"]
        if "failed" in asked:
            self._fail(name, asked["failed"], "StateError")
            return
        with self._changed:
            # A failure before the task first asked does not count: the next start may succeed.
            known = asked.get("failures", len(self._failures.get(name, ())))
            while True:
                failures = self._failures.get(name, [])
                now = time.monotonic()
                if name in self._receivers:
                    answer: dict[str, Any] = {"receiver": self._receivers[name].address.to_json()}
                    break
                if len(failures) > known:
                    answer = dict(failures[-1])
                    break
                if self._granted.get(name, now) < now:
                    # The task that was to start it may be no more.
                    del self._granted[name]
                    if "failures" in asked:
                        self._fail(
                            name, f"the receiver of {name} has not begun within {START_TIMEOUT_S:g} s", "StateError"
                        )
                elif name not in self._granted:
                    self._granted[name] = now + START_TIMEOUT_S
                    answer = {"start": True, "failures": len(failures)}
                    break
                else:
                    self._changed.wait(0.2)
        channel.send(answer)

    def _is_alive(self, name: str, process: str) -> bool:
        """Returns whether a receiver, to which a task has lost its connection, answers us."""
        with self._changed:
            receiver = self._receivers.get(name)
            if receiver is None or receiver.address.name != process:
                return False
            request = next(self._requests)
            receiver.send(report=request)
            self._changed.wait_for(lambda: receiver.answered >= request or receiver.ended)
            return not receiver.ended

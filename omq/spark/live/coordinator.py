"""The coordinator of a stream: it knows the receiver of each partition, on any host of the cluster.

It runs in the process that Spark asks for offsets. Therefore it begins and ends with a run of the query, and so do the
receivers.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from omq.spark.live.rpc import FROZEN_TIMEOUT_S, IDLE_TIMEOUT_S, Channel, ProcessAddress, RpcServer
from omq.unpatched import threading

STATUS_TIMEOUT_S: Final = 2.0  # for receivers to report


@dataclass(eq=False)
class _Registration:
    """A registered receiver."""

    name: str
    address: ProcessAddress  # for tasks
    channel: Channel
    status: dict[str, Any] = field(default_factory=dict)  # the last report
    answered: int = 0  # the number of the last request for a report that the receiver has answered

    def send(self, **order: Any) -> None:
        """Sends an order. The thread that reads the reports notices a receiver that has ended."""
        with contextlib.suppress(OSError):
            self.channel.send(order)


class Coordinator:
    """Serves the source, receivers and tasks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._receivers: dict[str, _Registration] = {}
        self._starting: set[str] = set()  # names of receivers that a task is starting
        self._lost_reports: list[dict[str, Any]] = []
        self._requests = itertools.count(1)
        self.secret = secrets.token_bytes(32)
        self._server = RpcServer("coordinator", self.secret, self._serve)
        self.address = self._server.address

    # ------------------------------------------------------------------ for the source

    def commit(self, number: int) -> None:
        """Orders the receivers to drop microbatches up to this one."""
        for one in self._registrations():
            one.send(commit=number)

    def status(self) -> list[dict[str, Any]]:
        """Returns the reports of the receivers."""
        registered = self._registrations()
        request = next(self._requests)
        for one in registered:
            one.send(report=request)
        with self._changed:
            self._changed.wait_for(
                lambda: all(self._has_answered(one, request) for one in registered), STATUS_TIMEOUT_S
            )
            return [{**one.status, "connection": one.name} for one in self._receivers.values()]

    def take_lost(self) -> list[dict[str, Any]]:
        """Returns the last reports of the receivers that have died since the last call."""
        with self._changed:
            lost, self._lost_reports = self._lost_reports, []
            return lost

    def wait_ready(self, count: int, seconds: float) -> bool:
        """Waits until the next microbatch would have rows; returns False after a timeout.

        With fewer receivers than *count*, the number of partitions, it does not wait: a microbatch starts the missing
        ones.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    len(self._receivers) < count or any(one.status.get("ready") for one in self._receivers.values())
                ),
                seconds,
            )

    def _registrations(self) -> list[_Registration]:
        with self._changed:
            return list(self._receivers.values())

    def _has_answered(self, receiver: _Registration, request: int) -> bool:
        """Returns whether a receiver has answered a request for a report, or is no longer registered."""
        return receiver.answered >= request or self._receivers.get(receiver.name) is not receiver

    # ------------------------------------------------------------------ for receivers and tasks

    def _serve(self, channel: Channel) -> None:
        request = channel.recv()
        if "register" in request:
            self._serve_receiver(_Registration(request["register"], ProcessAddress(*request["address"]), channel))
        else:
            self._serve_task(channel, request["find"], request["broken"])

    def _serve_receiver(self, receiver: _Registration) -> None:
        """Keeps the reports of a receiver until it ends."""
        channel, name = receiver.channel, receiver.name
        channel.set_send_timeout(IDLE_TIMEOUT_S)
        # It reports every REPORT_INTERVAL_S.
        channel.sock.settimeout(FROZEN_TIMEOUT_S)
        with self._changed:
            before = self._receivers.get(name)
            if before is not None and before.address != receiver.address:
                # This one counted as dead, and has been replaced.
                receiver.send(end=True)
                return
            # It serves tasks from here on.
            receiver.send(serve=True)
            # Its connection has only broken: nothing is lost.
            self._lost_reports = [one for one in self._lost_reports if one["process"] != receiver.address.name]
            self._receivers[name] = receiver
            self._changed.notify_all()
        try:
            while True:
                report = channel.recv()
                with self._changed:
                    receiver.status = report["status"]
                    # Two threads may have sent their requests in another order.
                    receiver.answered = max(receiver.answered, report.get("request", 0))
                    self._changed.notify_all()
        finally:
            with self._changed:
                if self._receivers.get(name) is receiver:
                    del self._receivers[name]
                    # A receiver that could not open its connection has not reported anything.
                    if receiver.status:
                        self._lost_reports.append(
                            {**receiver.status, "connection": name, "process": receiver.address.name}
                        )
                self._changed.notify_all()

    def _serve_task(self, channel: Channel, name: str, broken: str) -> None:
        """Sends a task the address of its receiver, or an order to start one. Only one task at a time starts it.

        *broken* is the name of the receiver process to which the task has lost its connection; empty for none. The
        process remains the receiver if it still answers.
        """
        with self._changed:
            suspect = self._receivers.get(name)
        if suspect is not None and suspect.address.name == broken:
            request = next(self._requests)
            suspect.send(report=request)  # without the lock: the suspect may not read
            with self._changed:
                # A receiver that does not report is no longer registered after FROZEN_TIMEOUT_S, so this wait ends.
                self._changed.wait_for(lambda: self._has_answered(suspect, request))
        with self._changed:
            self._changed.wait_for(lambda: name in self._receivers or name not in self._starting)
            found = self._receivers.get(name)
            if found is None:
                self._starting.add(name)
        if found is not None:
            channel.send({"receiver": found.address})
            return
        try:
            channel.send({"start": True})
            channel.recv()  # raises when the task disconnects: the receiver has registered, or the task has failed
        finally:
            with self._changed:
                self._starting.discard(name)
                self._changed.notify_all()

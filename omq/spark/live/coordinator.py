"""The coordinator of a stream: it knows the receiver of each partition, on whatever host of the cluster that is.

It lives in the process that Spark asks for offsets, so it begins and ends with a run of the query, and with it the
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

STATUS_TIMEOUT_S: Final = 2.0  # that receivers may take to report


@dataclass(eq=False)
class _Registered:
    """A receiver, as the coordinator knows it."""

    name: str
    address: ProcessAddress
    channel: Channel
    status: dict[str, Any] = field(default_factory=dict)
    answered: int = 0  # the last request for a report that it has answered
    ended: bool = False

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
        self._starting: set[str] = set()  # receivers that a task starts
        self._lost: list[dict[str, Any]] = []
        self._requests = itertools.count(1)
        self.secret = secrets.token_bytes(32)
        self._server = RpcServer("coordinator", self.secret, self._serve)
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
        """Waits until a microbatch has something to do; returns False if there is nothing within those seconds.

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

    def _all(self) -> list[_Registered]:
        with self._changed:
            return list(self._receivers.values())

    # ------------------------------------------------------------------ for receivers and tasks

    def _serve(self, channel: Channel) -> None:
        asked = channel.recv()
        if "register" in asked:
            self._follow(_Registered(asked["register"], ProcessAddress(*asked["address"]), channel))
        else:
            self._find(channel, asked["find"], asked["broken"])

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
            # It has lost nothing if it was not there for a moment.
            self._lost = [one for one in self._lost if one["process"] != receiver.address.name]
            self._receivers[name] = receiver
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
                    # One that could not open its connection has reported nothing.
                    if receiver.status:
                        self._lost.append({**receiver.status, "connection": name, "process": receiver.address.name})
                self._changed.notify_all()

    def _find(self, channel: Channel, name: str, broken: str) -> None:
        """Sends a task the address of its receiver, or has it start one: one task at a time.

        Args:
            channel: The connection to the task.
            name: The name of the receiver's connection.
            broken: The process to which the task has lost its connection: it is the receiver if it still answers.
        """
        with self._changed:
            suspect = self._receivers.get(name)
            if suspect is not None and suspect.address.name == broken:
                request = next(self._requests)
                suspect.send(report=request)
                self._changed.wait_for(lambda: suspect.answered >= request or suspect.ended)
            self._changed.wait_for(lambda: name in self._receivers or name not in self._starting)
            found = self._receivers.get(name)
            if found is None:
                self._starting.add(name)
        if found is not None:
            channel.send({"receiver": found.address})
            return
        try:
            channel.send({"start": True})
            channel.recv()  # its end: the receiver has started, or the task has failed
        finally:
            with self._changed:
                self._starting.discard(name)
                self._changed.notify_all()

"""The blocking sockets of omq."""

from __future__ import annotations

from time import monotonic, sleep
from types import ModuleType
from typing import Any

import omq
from bench.control import Control
from bench.peers import blocking_roles


class OmqSockets:
    """Opens sockets of omq.

    Args:
        module: `omq`, or `omq.asyncio`.
        options: The options of every socket.
    """

    def __init__(self, module: ModuleType, options: dict[str, Any]) -> None:
        self._module = module
        self._options = options

    def open(self, kind: str, hwm: int | None = None) -> Any:
        options: dict[str, Any] = {"subscribe": b""} if kind == "SUB" else {}
        if hwm is not None:
            options["recv_hwm" if kind == "SUB" else "send_hwm"] = hwm
        return getattr(self._module, kind)(**options, **self._options)

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def time_ready_messages(control: Control, job: dict[str, Any]) -> None:
    """Waits until all messages have arrived, then times nothing but their `recv`, by the machine's monotonic clock."""
    count = job["count"]
    with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0) as pub:
        sub = omq.SUB(connect=pub.endpoints[0], subscribe=b"", recv_hwm=0)
        pub.wait_subscribed(timeout=10)
        for message in [b"x" * job["size"]] * count:
            pub.send(message)
        while sub.peers[0].messages_in < count:
            sleep(0.01)
    recv = sub.recv
    control.report(ready=True)
    control.receive()
    started = monotonic()
    for _ in range(count):
        recv()
    control.report(count=count, started=started, ended=monotonic())
    control.receive()


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    if role == "ready":
        time_ready_messages(control, job)
    else:
        blocking_roles.run(OmqSockets(omq, job["options"]), role, control, job)

"""omq's blocking twin."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import omq
from bench.link import Link
from bench.peers import blocking


class _Sockets:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def open(self, kind: str, hwm: int | None = None) -> Any:
        options: dict[str, Any] = {"subscribe": b""} if kind == "SUB" else {}
        if hwm is not None:
            options["recv_hwm" if kind == "SUB" else "send_hwm"] = hwm
        return getattr(omq, kind)(**options, **self._options)

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def ready(link: Link, job: dict[str, Any]) -> None:
    """Lets messages arrive, then times nothing but their `recv`: the window on the machine's monotonic clock."""
    count = job["count"]
    with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0) as pub:
        sub = omq.SUB(connect=pub.endpoints[0], subscribe=b"", recv_hwm=0)
        pub.wait_subscribed(timeout=10)
        for message in [b"x" * job["size"]] * count:
            pub.send(message)
        while sub.peers[0].messages_in < count:
            sleep(0.01)
    recv = sub.recv
    link.tell(ready=True)
    link.take()
    started = monotonic()
    for _ in range(count):
        recv()
    link.tell(count=count, started=started, ended=monotonic())
    link.take()


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    if role == "ready":
        ready(link, job)
    else:
        blocking.run(_Sockets(job["options"]), role, link, job)

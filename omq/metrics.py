"""Prometheus metrics of sockets; needs the extra `metrics`.

    from prometheus_client import start_http_server
    from omq.metrics import SocketCollector

    SocketCollector({"orders": pull, "prices": pub})
    start_http_server(9100)

The metrics are those that `docs/howto/export-metrics.md` lists. Each scrape reads counters that every socket has; a
socket does nothing more because of a collector.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from omq._core.zmq.calls import SocketCalls
from omq.errors import ClosedError, StateError, UsageError
from omq.serving.extras import missing_extra
from omq.socket_base import SocketBase
from omq.unpatched import threading

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise missing_extra("omq.metrics", missing, "metrics") from None

__all__ = ["SocketCollector"]

#: A socket of `omq`, `omq.asyncio`, `omq.zmq` or `omq.zmq.asyncio`.
AnySocket: TypeAlias = SocketBase | SocketCalls

_PREFIX: Final = "omq_socket_"
_LABELS: Final = ("socket", "type")
#: The metrics: those of `omq.SocketStats`.
_METRICS: Final = (
    (CounterMetricFamily, "messages_sent", "Messages that the kernel has taken, or an inproc peer; one for each peer."),
    (CounterMetricFamily, "messages_received", "Messages that have arrived, also those that wait to be received."),
    (CounterMetricFamily, "sent_bytes", "Bytes that have left, with framing and commands."),
    (CounterMetricFamily, "received_bytes", "Bytes that have arrived, with framing and commands."),
    (CounterMetricFamily, "messages_dropped", "Messages that the socket has dropped."),
    (GaugeMetricFamily, "send_queue_messages", "Accepted messages that have not left."),
    (GaugeMetricFamily, "recv_queue_messages", "Messages that can be received."),
    (CounterMetricFamily, "reconnects", "Connections of a connected endpoint after its first one."),
    (CounterMetricFamily, "handshake_failures", "Handshakes that have failed."),
    (GaugeMetricFamily, "peers", "Peers that have finished the handshake."),
)


class SocketCollector(Collector):
    """Collects the metrics of sockets for Prometheus; any thread may call it.

    A collector has only weak references to its sockets. A socket that is closed, or that the program drops, leaves it.
    A registry accepts one collector of sockets: add further sockets to that.

    Args:
        sockets: Sockets, or sockets by name, as `add` takes them.
        registry: The registry that the collector joins; `None` for none.
    """

    def __init__(
        self,
        sockets: Iterable[AnySocket] | Mapping[str, AnySocket] = (),
        *,
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        self._sockets: dict[str, weakref.ref[SocketBase]] = {}
        self._lock = threading.Lock()
        named: Iterable[tuple[str | None, AnySocket]] = (
            sockets.items() if isinstance(sockets, Mapping) else ((None, socket) for socket in sockets)
        )
        for name, socket in named:
            self.add(socket, name)
        if registry is not None:
            registry.register(self)

    def add(self, socket: AnySocket, name: str | None = None) -> None:
        """Adds a socket.

        Args:
            socket: A socket of either twin, or of `omq.zmq`.
            name: The value of its label `socket`, which no other socket here has. `None` for its type and the first
                free number, such as `PUSH-1`: give sockets names if a restart may change their order.

        Raises:
            UsageError: Another socket has the name, or the socket is here already.
            TypeError: It is not a socket, or the name is not text.
            ClosedError: The socket is closed.
        """
        found = _socket_of(socket)
        if found.closed:
            raise ClosedError(f"the {found.socket_type.value} socket is closed")
        if not isinstance(name, str | None):
            raise TypeError(f"name={name!r}: must be a str, not {type(name).__name__}")
        with self._lock:
            for other, one in self._open():
                if one is found:
                    raise UsageError(f"{found!r} is here already, with the name {other!r}")
            if name in self._sockets:
                raise UsageError(f"name={name!r}: another socket has it; give each socket a name of its own")
            self._sockets[self._free_name(found) if name is None else name] = weakref.ref(found)

    def remove(self, socket: AnySocket) -> None:
        """Removes a socket; ignores one that is not here, such as a closed one."""
        found = _socket_of(socket)
        with self._lock:
            for name, one in self._open():
                if one is found:
                    del self._sockets[name]

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, each with a sample for each socket."""
        with self._lock:
            sockets = self._open()
        families: list[CounterMetricFamily | GaugeMetricFamily] = [
            family(_PREFIX + name, text, labels=_LABELS) for family, name, text in _METRICS
        ]
        for name, socket in sockets:
            try:
                stats = socket.stats
            except StateError:  # in a forked child: the parent has the socket
                continue
            labels = (name, socket.socket_type.value)
            for family, (_, metric, _) in zip(families, _METRICS, strict=True):
                family.add_metric(labels, getattr(stats, metric))
        yield from families

    def _free_name(self, socket: SocketBase) -> str:
        """Returns the type of a socket with the first number that is free."""
        kind, number = socket.socket_type.value, 1
        while f"{kind}-{number}" in self._sockets:
            number += 1
        return f"{kind}-{number}"

    def _open(self) -> list[tuple[str, SocketBase]]:
        """Returns the open sockets with their names, and forgets the others."""
        found = []
        for name, reference in tuple(self._sockets.items()):
            socket = reference()
            if socket is None or socket.closed:
                del self._sockets[name]
            else:
                found.append((name, socket))
        return found


def _socket_of(socket: object) -> SocketBase:
    """Returns the socket itself, or that of an object of `omq.zmq`.

    Raises:
        TypeError: It is not a socket.
    """
    found = socket._handle.omq if isinstance(socket, SocketCalls) else socket
    if not isinstance(found, SocketBase):
        raise TypeError(f"socket={socket!r:.80}: must be a socket, not {type(socket).__name__}")
    return found

"""Redis Streams through a bare socket, which publishes in transactions, with one fsync each."""

from __future__ import annotations

from bench.broker.drivers import redis_bare
from bench.broker.drivers.bare_client import slide_batches
from bench.broker.drivers.redis_bare import command

BEGIN, END = command(b"MULTI"), command(b"EXEC")


class Client(redis_bare.Client):
    """The client of `redis_bare` with another `publish`."""

    def publish(self, count: int) -> None:
        slide_batches(count, self._depth, self._send, self._acknowledged)

    def _send(self, count: int) -> None:
        self._socket.sendall(b"".join([BEGIN, self._window[: count * len(self._message)], END]))

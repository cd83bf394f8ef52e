"""omq's broker through `omq.broker.Client`, a consumer that takes and acknowledges what has come together."""

from __future__ import annotations

from bench.broker.drivers import PATIENCE, omq_client
from bench.broker.drivers.omq_client import FENCE


class Client(omq_client.Client):
    """As `omq_client`, but for `consume`."""

    def consume(self, count: int) -> None:
        while count > 0:
            jobs = self._jobs.recv_many(timeout=PATIENCE)
            self._jobs.ack(jobs)
            count -= len(jobs)
        self._broker.publish(FENCE, b"")

"""omq's broker through `omq.broker.Client`, a consumer that receives and acknowledges batches."""

from __future__ import annotations

from bench.broker.drivers import ANSWER_TIMEOUT_S, omq_client
from bench.broker.drivers.omq_client import FENCE


class Client(omq_client.Client):
    """The client of `omq_client` with another `consume`."""

    def consume(self, count: int) -> None:
        while count > 0:
            jobs = self._jobs.recv_many(timeout=ANSWER_TIMEOUT_S)
            self._jobs.ack(jobs)
            count -= len(jobs)
        self._broker.publish(FENCE, b"")

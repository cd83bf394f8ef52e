"""A consumer of a round-robin topic or of a consumer group."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omq.broker.core.sink import Sink
from omq.broker.errors import BrokerError, BrokerFailed
from omq.broker.protocol import u32
from omq.workqueue.consumer import DispatcherView, QueueConsumer
from omq.workqueue.queue import WorkQueue

log = logging.getLogger("omq.broker")


class TopicConsumer(QueueConsumer):
    """A consumer of a round-robin topic, or of a consumer group.

    Args:
        dispatcher: Delivers to it.
        sink: Receives its messages.
        ack_timeout: Seconds until an unacknowledged message is delivered again.
        credit: The messages that may be in flight.
        ended: Called when the consumer has ended.

    Attributes:
        sink: As the argument.
    """

    def __init__(
        self, dispatcher: DispatcherView, sink: Sink, ack_timeout: float, credit: int, ended: Callable[[], None]
    ) -> None:
        super().__init__(dispatcher, ack_timeout, credit)
        self.sink = sink
        self._ended = ended

    @property
    def generation(self) -> int:
        """The generation of its group; 0 without one."""
        return self._queues[0].generation

    def end(self) -> None:
        was_active = self.active
        super().end()
        if was_active:
            self._ended()

    def has_room(self) -> bool:
        return self.sink.room() > 0

    def send(self, queue: WorkQueue, header: bytes, records: memoryview, count: int, tries: int) -> None:
        self.sink.send_block(header, records, u32(tries) * count if tries > 1 else b"")

    def failed(self, error: Exception) -> None:
        self.terminate(BrokerFailed("the broker has failed to send"))

    def terminate(self, error: BrokerError | None) -> None:
        """Ends the consumer and reports *error* to its sink; `None` means that the broker stops."""
        self.end()
        try:
            self.sink.closed(error)
        except Exception:
            log.exception("the sink of a consumer failed")

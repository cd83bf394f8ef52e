"""The blocking consumer."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import omq
from omq.errors import ClosedError
from omq.pzq.client.client import DEFAULT_PREFETCH, DeliveryBase, SeenIds, consumer_options, deadline_of
from omq.types import UNSET, Unset

__all__ = ["Consumer", "Delivery"]


class Delivery(DeliveryBase):
    __doc__ = DeliveryBase.__doc__

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledges the message: it will not come again."""
        self._consumer._answer(self._answer(True))
        self._consumer._acked.add(self.key)

    def nack(self) -> None:
        """Asks for the message again, at once."""
        self._consumer._answer(self._answer(False))


class Consumer:
    """Takes messages from a device: iterate over it, or call `recv`. Threads may share it.

    with omq.pzq.Consumer("tcp://127.0.0.1:11132") as consumer:
        for delivery in consumer:
            print(delivery.body)
            delivery.ack()

    A message that is not acknowledged within the device's time is delivered again, to the next consumer; so are
    those which a consumer holds when its connection ends. The time of a message begins when the consumer has answered
    those before it. What was acknowledged and comes again is acknowledged again, and not given out.

    Args:
        endpoint: The device's send endpoint.
        prefetch: Messages that it may hold and has not acknowledged.
        **options: Of the socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint cannot be understood.
        OptionError: An option does not fit.
    """

    def __init__(self, endpoint: str, *, prefetch: int = DEFAULT_PREFETCH, **options: Any) -> None:
        self._socket = omq.ROUTER(connect=[endpoint], **consumer_options(prefetch, options))
        self._acked = SeenIds()

    def recv(self, *, timeout: float | Unset | None = UNSET) -> Delivery:
        """Waits for a message.

        Args:
            timeout: Seconds; `None` for ever, 0 never; left out, the option `recv_timeout` holds.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The consumer is closed.
            Malformed: What came is not a delivery: the peer is not a device.
        """
        end = deadline_of(self._socket, timeout)
        delivery = Delivery(self, self._socket.recv_multipart(timeout=timeout))
        while delivery.key in self._acked:
            # It was sent once more before its acknowledgement came.
            delivery.ack()
            remaining = None if end is None else max(end - time.monotonic(), 0)
            delivery = Delivery(self, self._socket.recv_multipart(timeout=remaining))
        return delivery

    def _answer(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None

    def close(self) -> None:
        """Ends; acknowledgements that were given leave first. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

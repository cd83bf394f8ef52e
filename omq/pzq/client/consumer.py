"""The blocking consumer."""

from __future__ import annotations

import time
from collections.abc import Iterable
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
        """Acknowledges the message: it is not redelivered.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._consumer._answer(self._answer(True))
        self._consumer._acked.add(self.key)

    def nack(self) -> None:
        """Returns the message for immediate redelivery.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._consumer._answer(self._answer(False))


class Consumer:
    """Receives messages from a device: iterate over it, or call `recv`. Threads may share it.

        with omq.pzq.Consumer("tcp://127.0.0.1:11132") as consumer:
            for delivery in consumer:
                print(delivery.body)
                delivery.ack()

    The device redelivers a message to the next consumer if it is not acknowledged before its ack deadline, or if the
    connection ends first. The deadline of a message counts from the answer to the message before it. A message that
    was acknowledged and is delivered again is acknowledged again, and not returned.

    Args:
        endpoint: The device's send endpoint, or those of all devices of a cluster.
        prefetch: The largest number of unacknowledged messages.
        **options: Options of the socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint is not valid.
        OptionError: An option is not valid.
    """

    def __init__(self, endpoint: str | Iterable[str], *, prefetch: int = DEFAULT_PREFETCH, **options: Any) -> None:
        self._socket = omq.ROUTER(**consumer_options(endpoint, prefetch, options))
        self._acked = SeenIds()

    def recv(self, *, timeout: float | Unset | None = UNSET) -> Delivery:
        """Waits for a message.

        Args:
            timeout: Seconds to wait; `None` waits for ever, 0 never waits; the default is the option `recv_timeout`.

        Raises:
            ReceiveTimeout: No message has arrived in time.
            ClosedError: The consumer is closed.
            Malformed: The message is not a delivery: the peer is not a device.
        """
        end = deadline_of(self._socket, timeout)
        delivery = Delivery(self, self._socket.recv_multipart(timeout=timeout))
        while delivery.key in self._acked:
            # The device redelivered it before it received the acknowledgement.
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
        """Sends the pending acknowledgements, and closes the consumer. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The state of messages that were delivered to a consumer."""

from __future__ import annotations

from typing import NamedTuple


class DeliveryState(NamedTuple):
    """The value of a range of messages that are in flight, or wait to be delivered again.

    Attributes:
        tries: Deliveries up to now.
        deadline: When they are delivered again, on the loop's clock; 0: at once.
        order: The number of this delivery among those to the consumer, from 1; 0: no consumer has them.
    """

    tries: int
    deadline: float = 0.0
    order: int = 0

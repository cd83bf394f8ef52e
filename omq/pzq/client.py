"""What both twins' clients have in common: what they send, and what they make of what they get."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from omq.errors import UsageError
from omq.pzq.errors import ProduceTimeout, Refused
from omq.pzq.wire import DELIVERIES, PREFETCH, REFUSED, STORED, dedup, has_dedup, read_delivery, read_reply

#: Messages of `send_many` that wait for their acknowledgements.
WINDOW: Final = 1000
#: Seconds without an answer after which everything that waits for one is sent again. The device knows repetitions.
AGAIN: Final = 1.0
#: Seconds that a producer waits for an answer.
TIMEOUT: Final = 10.0
#: Messages that a consumer holds at most.
HELD: Final = 1000

Body = bytes | Sequence[bytes]
Key = tuple[bytes, bytes]  # what the socket calls the device, and what the device calls the message
_Delivery = TypeVar("_Delivery", bound="DeliveryBase")


def parts_of(body: Body) -> list[bytes]:
    """The parts of a body.

    Raises:
        UsageError: It has none.
        TypeError: They are not bytes.
    """
    parts = [body] if isinstance(body, bytes | bytearray | memoryview) else list(body)
    if not parts:
        raise UsageError("a message has one part at least; it may be empty")
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"a body is bytes, or parts that are, not {type(part).__name__}")
    return [bytes(part) for part in parts]


class Unanswered:
    """Messages that a producer has sent and the device has not answered, in the order of sending.

    Args:
        producer: Who the producer says it is, 1 to 96 bytes; `None`: a name by chance.
    """

    def __init__(self, producer: bytes | None) -> None:
        if producer is not None and (not 1 <= len(producer) <= 96 or producer[0] == 0):
            raise UsageError("producer has 1 to 96 bytes, and does not begin with a zero byte")
        self._producer = os.urandom(12).hex().encode() if producer is None else producer
        self._sequence = 0
        self._waiting: dict[bytes, tuple[int, list[bytes]]] = {}
        self._refused: list[tuple[int, Refused]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self) -> None:
        """Forgets what nobody waits for any more."""
        self._waiting.clear()
        self._refused.clear()

    def compose(self, index: int, body: Body, headers: Iterable[bytes] = (), id: bytes | None = None) -> list[bytes]:
        """The frames of a message, which waits for its answer from now on.

        Raises:
            UsageError: A header is empty, or there is no body.
        """
        parts, own = parts_of(body), [bytes(header) for header in headers]
        if not all(own):
            raise UsageError("a header is not empty: an empty frame ends the headers")
        self._sequence += 1
        id = b"%d" % self._sequence if id is None else id
        mark = [] if has_dedup(own) else [dedup(self._producer, self._sequence)]
        frames = [id, *mark, *own, b"", *parts]
        self._waiting[id] = index, frames
        return frames

    def answered(self, frames: Sequence[bytes]) -> None:
        """An answer has come; one that nobody waits for, of a repetition, is passed over."""
        id, refused = read_reply(frames)
        found = self._waiting.pop(id, None)
        if found is not None and refused is not None:
            self._refused.append((found[0], refused))

    def again(self) -> list[list[bytes]]:
        """The frames of all that wait, to be sent once more."""
        return [frames for _, frames in self._waiting.values()]

    def result(self) -> None:
        """Raises what was refused.

        Raises:
            Refused: Something was; the first one, with the indexes of all.
        """
        if self._refused:
            self._refused.sort(key=lambda refused: refused[0])
            error = self._refused[0][1]
            error.indexes = tuple(index for index, _ in self._refused)
            self._refused.clear()
            raise error

    def late(self, seconds: float) -> ProduceTimeout:
        """What is raised when the time is up."""
        count = len(self._waiting)
        return ProduceTimeout(
            f"{count} messages were not acknowledged within {seconds:g} s: they may be stored, or not"
        )


def consumer_options(prefetch: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a consumer's socket.

    Raises:
        UsageError: `prefetch` does not fit.
    """
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or not 1 <= prefetch < 10**9:
        raise UsageError(f"prefetch={prefetch!r}: must be a whole number from 1 to 999999999")
    told = {DELIVERIES: b"1", PREFETCH: b"%d" % prefetch}
    # What the device has delivered is at hand: its own bound is `prefetch`.
    return {"recv_hwm": 0, "send_hwm": 0, "linger": 1.0, **options, "metadata": told}


class DeliveryBase:
    """A message that a device has delivered.

    Attributes:
        parts: The parts of its body.
        key: What the device calls it.
        sent: When the device sent it, in microseconds since 1970.
        deliveries: Which delivery this is, 1 is the first; 0: the device does not tell.
    """

    __slots__ = ("_consumer", "_peer", "deliveries", "key", "parts", "sent")

    def __init__(self, consumer: Any, frames: list[bytes]) -> None:
        self._consumer = consumer
        self._peer = frames[0]
        self.key, self.sent, self.deliveries, self.parts = read_delivery(frames)

    @property
    def body(self) -> bytes:
        """The parts, joined."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def _answer(self, done: bool) -> list[bytes]:
        return [self._peer, self.key, STORED if done else REFUSED]

    def __repr__(self) -> str:
        return f"<Delivery {self.key.decode(errors='backslashreplace')}, {len(self.body)} bytes>"

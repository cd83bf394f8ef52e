"""The parts of producers and consumers that the blocking and the asyncio twins share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from omq.errors import UsageError
from omq.pzq.errors import Malformed, ProduceTimeout, Refused
from omq.pzq.wire import (
    DELIVERIES,
    PREFETCH,
    REFUSED,
    STORED,
    check_body,
    dedup,
    has_dedup,
    read_delivery,
    read_reply,
)
from omq.socket_base import check_timeout
from omq.types import Unset
from omq.unpatched import threading

#: Messages of `send_many` that wait for acknowledgements at once.
MAX_IN_FLIGHT: Final = 1000
#: Seconds without an answer after which all unanswered messages are sent again. The device detects repeated ones.
RETRY_DELAY_S: Final = 1.0
#: Seconds that a producer waits for an answer.
DEFAULT_TIMEOUT_S: Final = 10.0
#: Messages that a consumer holds at most.
DEFAULT_PREFETCH: Final = 1000
#: Ids that a `SeenIds` remembers.
MAX_SEEN_IDS: Final = 65_536
#: Seconds between two heartbeats to a device of a cluster, and without an answer.
HEARTBEAT_INTERVAL_S: Final = 1.0
HEARTBEAT_TIMEOUT_S: Final = 3.0
#: Bytes of a producer's name.
MAX_NAME_BYTES: Final = 79

Body = bytes | Sequence[bytes]
Key = tuple[bytes, bytes]  # the peer identity of the device, and the key of the message
_Delivery = TypeVar("_Delivery", bound="DeliveryBase")


def device_options(endpoint: str | Iterable[str]) -> dict[str, Any]:
    """Returns the options of a client's socket for the endpoint of a device, or those of the devices of a cluster.

    Of these, only the leader accepts connections. One that hangs is left once it does not answer heartbeats.

    Raises:
        UsageError: There is no endpoint.
    """
    several = isinstance(endpoint, Iterable) and not isinstance(endpoint, str | bytes)
    endpoints = list(endpoint) if several else [endpoint]
    if not endpoints:
        raise UsageError("endpoint: is empty; expected at least one endpoint").about("endpoint")
    options = {"connect": endpoints, "linger": 1.0}
    if len(endpoints) > 1:
        options |= {"immediate": True}
        options |= {"heartbeat_interval": HEARTBEAT_INTERVAL_S, "heartbeat_timeout": HEARTBEAT_TIMEOUT_S}
    return options


def parts_of(body: Body) -> list[bytes]:
    """Returns the parts of a body.

    Raises:
        UsageError: The body has no parts.
        TypeError: A part is not bytes.
    """
    parts = [body] if isinstance(body, bytes | bytearray | memoryview) else list(body)
    if not parts:
        raise UsageError("body: must have at least one part, which may be empty")
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"body: must be bytes, or an iterable of bytes, not {type(part).__name__}")
    return [bytes(part) for part in parts]


def headers_of(headers: Iterable[bytes]) -> list[bytes]:
    """Returns the headers of a message.

    Raises:
        UsageError: A header is empty.
        TypeError: A header is not bytes.
    """
    # Iterating over bytes yields numbers, and `bytes(number)` makes that many zero bytes.
    single = isinstance(headers, str | bytes | bytearray | memoryview)
    own = [] if single else list(headers)
    if single or not all(isinstance(header, bytes | bytearray | memoryview) for header in own):
        raise TypeError(f"headers={headers!r:.80}: must be an iterable of bytes")
    if not all(own):
        raise UsageError("headers: a header must not be empty: an empty frame ends the headers")
    return [bytes(header) for header in own]


class SeenIds:
    """The last `MAX_SEEN_IDS` ids that were added. Threads may share it."""

    def __init__(self) -> None:
        self._ids: dict[bytes, None] = {}
        self._lock = threading.Lock()  # no thread may add an id while another one looks up the oldest

    def __contains__(self, id: bytes) -> bool:
        return id in self._ids

    def add(self, id: bytes) -> None:
        """Adds an id."""
        with self._lock:
            self._ids[id] = None
            if len(self._ids) > MAX_SEEN_IDS:
                del self._ids[next(iter(self._ids))]


class PendingSends:
    """Messages that a producer has sent and the device has not answered, in the order of sending.

    Args:
        producer: The prefix of the producer's name in the frames, 1 to 79 bytes; `None`: no prefix.
    """

    def __init__(self, producer: bytes | None) -> None:
        if producer is None:
            producer = b""
        elif not isinstance(producer, bytes):
            raise TypeError(f"producer={producer!r:.80}: must be bytes, not {type(producer).__name__}")
        elif not 1 <= len(producer) <= MAX_NAME_BYTES or producer[0] == 0:
            raise UsageError(
                f"producer={producer!r:.80}: must have 1 to {MAX_NAME_BYTES} bytes, and not begin with a zero byte"
            )
        else:
            producer += b"."
        # Sequences restart with each producer: without a random part, messages of a namesake would count as repeated.
        self._producer = producer + os.urandom(8).hex().encode()
        self._sequence = 0
        self._unanswered: dict[bytes, tuple[int, list[bytes]]] = {}
        self._refused: list[tuple[int, Refused]] = []
        self._given_up = SeenIds()  # ids that may still be answered

    def __len__(self) -> int:
        return len(self._unanswered)

    def reset(self) -> None:
        """Forgets the messages of an earlier call."""
        for id in self._unanswered:
            self._given_up.add(id)
        self._unanswered.clear()
        self._refused.clear()

    def compose(self, index: int, body: Body, headers: Iterable[bytes] = (), id: bytes | None = None) -> list[bytes]:
        """Returns the frames of a message, and records it as pending; returns no frames if it is too large.

        Raises:
            UsageError: A header is empty, or the body has no parts.
            TypeError: The id, a header or a part is not bytes.
        """
        parts, own = parts_of(body), headers_of(headers)
        if id is not None and not isinstance(id, bytes | bytearray | memoryview):
            raise TypeError(f"id={id!r:.80}: must be bytes, not {type(id).__name__}")
        try:
            check_body(sum(map(len, parts)))
        except Malformed as error:  # the device would refuse it, or disconnect
            self._refused.append((index, Refused(str(error))))
            return []
        self._sequence += 1
        id = b"%d" % self._sequence if id is None else bytes(id)
        if id in self._given_up:  # a late answer to the earlier message would be taken for this one
            id = b"%b %d" % (id, self._sequence)
        header = [] if has_dedup(own) else [dedup(self._producer, self._sequence)]
        frames = [id, *header, *own, b"", *parts]
        self._unanswered[id] = index, frames
        return frames

    def answered(self, frames: Sequence[bytes]) -> None:
        """Handles an answer; ignores it if no call waits for it."""
        id, refused = read_reply(frames)
        found = self._unanswered.pop(id, None)
        if found is not None and refused is not None:
            self._refused.append((found[0], refused))

    def to_resend(self) -> list[list[bytes]]:
        """Returns the frames of all pending messages."""
        return [frames for _, frames in self._unanswered.values()]

    def result(self) -> None:
        """Raises the error of the refused messages, if any.

        Raises:
            Refused: The error of the first refused message, with the indexes of all.
        """
        if self._refused:
            self._refused.sort(key=lambda refused: refused[0])
            error = self._refused[0][1]
            error.indexes = tuple(index for index, _ in self._refused)
            self._refused.clear()
            raise error

    @staticmethod
    def busy_error(seconds: float) -> ProduceTimeout:
        """Returns the error of a call that has timed out while an earlier call was running."""
        return ProduceTimeout(f"another call of this producer was running for {seconds:g} s: nothing was sent")

    def timeout_error(self, seconds: float) -> ProduceTimeout:
        """Returns the error of a call that has timed out."""
        if len(self._unanswered) == 1:
            return ProduceTimeout(f"a message was not acknowledged within {seconds:g} s: it may be stored, or not")
        return ProduceTimeout(
            f"{len(self._unanswered)} messages were not acknowledged within {seconds:g} s: they may be stored, or not"
        )


def consumer_options(endpoint: str | Iterable[str], prefetch: int, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a consumer's socket.

    Raises:
        UsageError: `prefetch` is not valid.
    """
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or not 1 <= prefetch < 10**9:
        raise UsageError(f"prefetch={prefetch!r}: must be a whole number from 1 to 999999999")
    properties = {DELIVERIES: b"1", PREFETCH: b"%d" % prefetch}
    more = options.get("metadata", ())
    metadata = [*(more.items() if isinstance(more, Mapping) else more), *properties.items()]
    # `prefetch` bounds the messages, so the socket need not.
    return {**device_options(endpoint), "recv_hwm": 0, "send_hwm": 0, **options, "metadata": metadata}


def deadline_of(socket: Any, timeout: float | Unset | None) -> float | None:
    """Returns the deadline of a consumer's wait; `None`: no deadline."""
    seconds = socket.recv_timeout if isinstance(timeout, Unset) else check_timeout(timeout)
    return None if seconds is None else time.monotonic() + seconds


class DeliveryBase:
    """A message that a device has delivered.

    Attributes:
        parts: The parts of its body.
        key: The device's key of the message.
        sent: The time at which the device sent it, in microseconds since 1970.
        deliveries: The delivery count, 1 for the first; 0: the device does not send it.
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

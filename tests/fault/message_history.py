"""Sent and received messages: every message carries its sender, its number and a checksum.

A history accounts for each message: it came once, whole, and behind those that were sent before it on the same
connection; or it is missing, and then the test decides whether it may be.
"""

from __future__ import annotations

import bisect
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

_HEAD = struct.Struct(">IIHI")  # sender, number, parts behind the head, crc32 of them and of what is before it


class Damaged(AssertionError):
    """A message is not what anybody sent."""


def compose(sender: int, number: int, bodies: Sequence[bytes] = (), topic: bytes = b"") -> list[bytes]:
    """A message: the head, behind *topic*, then the bodies."""
    return [topic + _HEAD.pack(sender, number, len(bodies), _sum(sender, number, topic, bodies)), *bodies]


def parse(parts: Sequence[bytes]) -> tuple[int, int]:
    """The sender and the number of a message.

    Raises:
        Damaged: It is half, or altered.
    """
    if not parts or len(parts[0]) < _HEAD.size:
        raise Damaged(f"no message of ours: {parts!r:.200}")
    sender, number, count, checksum = _HEAD.unpack(parts[0][-_HEAD.size :])
    if count != len(parts) - 1 or checksum != _sum(sender, number, parts[0][: -_HEAD.size], parts[1:]):
        raise Damaged(f"message {number} of sender {sender} has {len(parts) - 1} of {count} parts, or other bytes")
    return sender, number


def _sum(sender: int, number: int, topic: bytes, bodies: Sequence[bytes]) -> int:
    checksum = zlib.crc32(topic, zlib.crc32(b"%d %d %d" % (sender, number, len(bodies))))
    for body in bodies:
        checksum = zlib.crc32(body, zlib.crc32(b"%d" % len(body), checksum))
    return checksum


class History:
    """The messages of each sender, and those that each receiver got.

    Attributes:
        accepted: By sender, the numbers that its calls took.
        doubtful: Numbers that a call may have sent: it has begun, or was cut off (the beginning of a `send_many`).
        received: By sender and receiver, the numbers in the order in which they came. A receiver is a socket and which
            of its callers took the message: what several callers take at a time is in order for each of them.
    """

    def __init__(self) -> None:
        self.accepted: dict[int, list[int]] = defaultdict(list)
        self.doubtful: set[tuple[int, int]] = set()
        self.received: dict[tuple[int, tuple[str, str]], list[int]] = defaultdict(list)
        self._got: dict[int, set[int]] = defaultdict(set)

    def accept(self, sender: int, *numbers: int) -> None:
        """A call has returned, and so these belong to the socket."""
        self.accepted[sender].extend(numbers)

    def doubt(self, sender: int, numbers: Iterable[int]) -> None:
        """A call begins to send these, or was cut off between them."""
        self.doubtful.update((sender, number) for number in numbers)

    def receive(self, receiver: str, parts: Sequence[bytes], caller: str = "") -> tuple[int, int]:
        """A message has come; gives its sender and number."""
        sender, number = parse(parts)
        self.received[sender, (receiver, caller)].append(number)
        self._got[sender].add(number)
        return sender, number

    # ------------------------------------------------------------------ accounts

    def got(self, sender: int) -> set[int]:
        """Returns the messages of a sender that any receiver got."""
        return self._got[sender]

    def missing(self, sender: int) -> list[int]:
        """Returns the messages that a sender's socket accepted and no receiver got."""
        return sorted(set(self.accepted[sender]).difference(tuple(self.got(sender))))

    def check(self, streams: int = 1, fans_out: bool = False) -> None:
        """Nothing came that was not sent, nothing twice, and nothing out of order.

        Args:
            streams: How many connections there may have been between one sender and one receiver: what came over
                one is in order; two are not in step.
            fans_out: Whether each receiver gets each message, once on every connection.
        """
        seen: Counter[tuple[Any, ...]] = Counter()
        for (sender, receiver), numbers in self.received.items():
            known = set(self.accepted[sender])
            for number in numbers:
                assert number in known or (sender, number) in self.doubtful, (
                    f"{receiver} got message {number} of sender {sender}, which never sent it"
                )
                place = (sender, number) if not fans_out else (sender, number, receiver[0])
                seen[place] += 1
                assert seen[place] <= (streams if fans_out else 1), (
                    f"message {number} of sender {sender} came twice, now to {receiver}"
                )
            needed = disorder(numbers)
            assert needed <= streams, (
                f"{receiver} got the messages of sender {sender} as from {needed} streams, and there were {streams}: "
                f"{numbers!r:.400}"
            )


def disorder(numbers: Sequence[int]) -> int:
    """The fewest ascending streams that a sequence can be merged from: 1 if it is in order."""
    # Sorting into piles: each pile is a stream, and a number goes onto the pile with the nearest smaller top.
    tops: list[int] = []  # negated, ascending
    for number in numbers:
        place = bisect.bisect_right(tops, -number)
        if place == len(tops):
            tops.append(-number)
        else:
            tops[place] = -number
    return len(tops)


def runs_of(numbers: Iterable[int]) -> int:
    """Returns the number of unbroken stretches that some numbers form."""
    these = set(numbers)
    return sum(number - 1 not in these for number in these)

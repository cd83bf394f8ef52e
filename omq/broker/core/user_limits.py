"""The limits of users: what one of them uses leaves room for the others.

A user has the limits of its own row of `[[user_limit]]`, or else those of the row of `*`. Clients without a user, such
as S-expression clients, together are the user `*`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from omq.broker.core.permissions import ANY_CLIENT
from omq.broker.errors import Busy, StoreFull
from omq.errors import HandshakeError, UsageError
from omq.serving.rate_limit import RateLimit
from omq.unpatched import threading

log = logging.getLogger("omq.broker")

#: Seconds after which a publication above the rate is answered `busy`: a client that repeats it at once would send more
#: bytes than it may.
THROTTLE_DELAY_S: Final = 1.0
#: Seconds of its rate that a user may publish at once. Longer than `THROTTLE_DELAY_S`, so that a client that repeats
#: after this delay still publishes at its rate.
_BURST_S: Final = 2.0
#: Seconds within which a client must finish its handshake; an admitted one counts as long.
HANDSHAKE_TIMEOUT_S: Final = 30.0
#: Users that are known, above which those without connections and topics are forgotten.
_MIN_KNOWN_USERS: Final = 1024
#: The sizes of a user's topics are read at most for this part of the time.
_MEASURING_DIVISOR: Final = 20
_UNKNOWN_BYTES: Final = 2**62  # before the first measurement
_MAX_SHOWN_CHARACTERS: Final = 100  # of a user's name, in an error text


@dataclass(frozen=True, slots=True)
class UserLimit:
    """The limits of one user, or of each user without a row of its own: a row of `[[user_limit]]`.

    Attributes:
        who: A public key (40 characters of Z85), a user name, or `*`.
        connections: The maximum number of connections of ZeroMQ clients; `None` for no limit, as in all others.
        topics: The maximum number of existing topics that the user has created.
        bytes: The maximum number of bytes that these topics keep together, approximately.
        publish_byte_rate: The maximum number of bytes that the user publishes per second, on average.

    Raises:
        UsageError: A value is not valid.
    """

    who: str
    connections: int | None = None
    topics: int | None = None
    bytes: int | None = None
    publish_byte_rate: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.who, str) or not self.who:
            raise UsageError(f"who={self.who!r:.80}: must be a key, a user or '*'")
        for key in LIMITS:
            value = getattr(self, key)
            if value is not None and (type(value) is not int or not 1 <= value < 2**62):
                raise UsageError(f"{key}={value!r:.80}: must be a whole number, 1 to 2**62 - 1")


#: The limits of a row of `[[user_limit]]`.
LIMITS: Final = tuple(field.name for field in fields(UserLimit))[1:]


def user_limit_of(row: UserLimit | Mapping[str, Any]) -> UserLimit:
    """Converts a row of `[[user_limit]]`; a `UserLimit` is returned as it is.

    Raises:
        UsageError: `who` is missing, another key is not a limit, or a value is not valid.
    """
    if isinstance(row, UserLimit):
        return row
    if not isinstance(row, Mapping) or "who" not in row or not set(row) <= {"who", *LIMITS}:
        names = ", ".join(LIMITS)
        raise UsageError(f"a user limit must have the key who, and no others than {names}; got {row!r:.200}")
    return UserLimit(**row)


class OwnedTopic(Protocol):
    """A topic that a user has created."""

    def stored_bytes(self) -> int:
        """Returns the approximate bytes that the topic keeps or is about to; in any thread."""

    def owner_limits_changed(self) -> None:
        """Applies changed limits of the owner."""


class UserUsage:
    """The connections, topics and bytes of one user, and its limits.

    Attributes:
        user: The user.
        limit: Its limits.
        connections: The number of its connections.
        topics: The topics that it has created.
        creating: The number of topics that are being created for it.
    """

    __slots__ = (
        "_added",
        "_added_before",
        "_credit",
        "_credit_at",
        "_handshakes",
        "_lock",
        "_log_limit",
        "_measure_at",
        "_measured",
        "connections",
        "creating",
        "limit",
        "topics",
        "user",
    )

    def __init__(self, user: str, limit: UserLimit) -> None:
        self.user = user
        self.limit = limit
        self.connections = 0
        self.topics: dict[OwnedTopic, None] = {}
        self.creating = 0
        self._handshakes: deque[float] = deque()  # when clients were admitted that are not connected yet
        self._lock = threading.Lock()
        self._measured = _UNKNOWN_BYTES  # the bytes of its topics, when they were measured
        self._added = self._added_before = 0  # bytes that were published in all, and before the measurement
        self._measure_at = 0.0
        self._credit = _BURST_S * (limit.publish_byte_rate or 0)  # bytes; below 0 after a large publication
        self._credit_at = time.monotonic()
        self._log_limit = RateLimit()

    def set_limit(self, limit: UserLimit) -> None:
        """Replaces the limits. Connections, topics and bytes above them stay."""
        if limit.publish_byte_rate != self.limit.publish_byte_rate:
            self._credit = _BURST_S * (limit.publish_byte_rate or 0)
        self.limit = limit
        self._measured, self._measure_at = _UNKNOWN_BYTES, 0.0  # without a limit, nothing is counted
        for topic in tuple(self.topics):
            topic.owner_limits_changed()

    @property
    def idle(self) -> bool:
        """True if it has the same state as a user that is not known."""
        rate = self.limit.publish_byte_rate
        return not (
            self.connections
            or self.topics
            or self.creating
            or self._handshakes
            or (rate is not None and self._refilled(rate) < _BURST_S * rate)
        )

    def _refused(self, limit: str, text: str) -> str:
        """Logs that a limit was reached, once a minute for the user; returns the error text."""
        value = getattr(self.limit, limit)
        error = f"{limit}={value}: user {self.user!r:.{_MAX_SHOWN_CHARACTERS}} {text}"
        if self._log_limit.passes():
            log.warning("%s", error, extra={"event": "user_limit", "user": self.user, "limit": limit, "value": value})
        return error

    # ------------------------------------------------------------------ connections

    def admit(self) -> None:
        """Counts a client whose handshake is about to finish.

        Raises:
            HandshakeError: The user has as many connections as it may have.
        """
        limit = self.limit.connections
        if limit is None:
            return
        now = time.monotonic()
        while self._handshakes and self._handshakes[0] < now - HANDSHAKE_TIMEOUT_S:
            self._handshakes.popleft()  # it has failed since
        if self.connections + len(self._handshakes) >= limit:
            raise HandshakeError(self._refused("connections", f"has {self.connections} connections"))
        self._handshakes.append(now)

    def connected(self) -> None:
        """Counts a connection whose handshake has finished."""
        self.connections += 1
        if self._handshakes:
            self._handshakes.popleft()

    def disconnected(self) -> None:
        """Counts a connection that has ended."""
        self.connections -= 1

    # ------------------------------------------------------------------ topics and their bytes

    def check_topics(self) -> None:
        """Checks that the user may have another topic.

        Raises:
            StoreFull: It has as many as it may have.
        """
        limit, count = self.limit.topics, len(self.topics) + self.creating
        if limit is not None and count >= limit:
            raise StoreFull(self._refused("topics", f"has {count} topics; delete one first"))

    def add_topic(self, topic: OwnedTopic) -> None:
        """Adds a topic that the user has created."""
        self.topics[topic] = None

    def remove_topic(self, topic: OwnedTopic) -> None:
        """Removes a topic that was deleted."""
        self.topics.pop(topic, None)
        self._measure_at = 0.0

    def has_room(self, size: int) -> bool:
        """Returns whether the user's topics may keep *size* more bytes; in any thread."""
        limit = self.limit.bytes
        if limit is None or self._bytes + size <= limit:
            return True
        if time.monotonic() >= self._measure_at:
            # Of this thread: while others run, it costs nothing, and must not delay the next measurement.
            began = time.thread_time()
            added = self._added
            measured = sum(topic.stored_bytes() for topic in tuple(self.topics))
            with self._lock:
                self._measured, self._added_before = measured, added
            self._measure_at = time.monotonic() + _MEASURING_DIVISOR * (time.thread_time() - began)
        return self._bytes + size <= limit

    @property
    def _bytes(self) -> int:
        """The bytes of its topics at the last measurement, and those published since: at least what they keep."""
        with self._lock:
            return self._measured + self._added - self._added_before

    def add_bytes(self, size: int) -> None:
        """Counts bytes that are published to one of the user's topics; in any thread.

        Bytes that the topics drop count until the next measurement.
        """
        with self._lock:
            self._added += size

    def no_room(self, topic: str, size: int) -> StoreFull:
        """Returns the error of a publication for which the user has no room."""
        return StoreFull(
            self._refused(
                "bytes",
                f"has topics of about {self._bytes} bytes, no room for {size} more in {topic!r}; "
                "publish later, or delete messages or topics",
            )
        )

    # ------------------------------------------------------------------ the publish rate

    def publish(self, size: int) -> None:
        """Counts bytes that a ZeroMQ client publishes.

        Raises:
            Busy: The user has published more than its rate.
        """
        rate = self.limit.publish_byte_rate
        if rate is None:
            return
        if self._refill(rate) <= 0:
            raise Busy(self._refused("publish_byte_rate", "publishes more bytes per second; publish later"))
        self._credit -= size  # also more than it has: a large publication must not wait for ever

    @property
    def throttled(self) -> bool:
        """True while the user must not publish more."""
        rate = self.limit.publish_byte_rate
        return rate is not None and self._refilled(rate) <= 0

    def publish_delay(self, size: int) -> float:
        """Counts *size* published bytes, which may be 0; returns the seconds for which the user must not publish."""
        rate = self.limit.publish_byte_rate
        if rate is None:
            return 0.0
        self._credit = self._refill(rate) - size
        if self._credit > 0:
            return 0.0
        self._refused("publish_byte_rate", "publishes more bytes per second: it is slowed down")
        return -self._credit / rate

    def _refill(self, rate: int) -> float:
        self._credit, self._credit_at = self._refilled(rate), time.monotonic()
        return self._credit

    def _refilled(self, rate: int) -> float:
        return min(self._credit + (time.monotonic() - self._credit_at) * rate, _BURST_S * rate)


class UserLimits:
    """The limits and the usage of all users. Lives in the broker's loop.

    Args:
        limits: The limits, one row for each user; empty for no limits.

    Raises:
        UsageError: A user has two rows.
    """

    def __init__(self, limits: Iterable[UserLimit] = ()) -> None:
        self._limits = by_user(limits)
        self._anonymous = UserUsage(ANY_CLIENT, self._limit_of(ANY_CLIENT))
        self._usages: dict[str, UserUsage] = {}
        self._prune_above = _MIN_KNOWN_USERS

    def replace(self, limits: Iterable[UserLimit]) -> None:
        """Replaces all limits; raises as the constructor, and nothing is changed then."""
        self._limits = by_user(limits)
        for usage in (self._anonymous, *self._usages.values()):
            usage.set_limit(self._limit_of(usage.user))

    def of(self, user: str | None) -> UserUsage:
        """Returns the usage of a user; *user* is `None` for clients without one."""
        if user is None or user == ANY_CLIENT:
            return self._anonymous
        usage = self._usages.get(user)
        if usage is None:
            if len(self._usages) >= self._prune_above:
                self._usages = {name: one for name, one in self._usages.items() if not one.idle}
                self._prune_above = max(2 * len(self._usages), _MIN_KNOWN_USERS)
            usage = self._usages[user] = UserUsage(user, self._limit_of(user))
        return usage

    def _limit_of(self, user: str) -> UserLimit:
        return self._limits.get(user) or self._limits.get(ANY_CLIENT) or UserLimit(user)


def by_user(limits: Iterable[UserLimit]) -> dict[str, UserLimit]:
    """Returns limits by their users.

    Raises:
        UsageError: A user has two rows.
    """
    found: dict[str, UserLimit] = {}
    for limit in limits:
        if limit.who in found:
            raise UsageError(f"who={limit.who!r:.80}: has two rows of limits")
        found[limit.who] = limit
    return found

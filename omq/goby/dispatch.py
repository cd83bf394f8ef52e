"""A portal's subscriptions, and the dispatch of publications to them."""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from omq.errors import UsageError
from omq.goby.errors import Malformed
from omq.goby.identifier import INTERNAL, MAX_CACHED_IDENTIFIERS, Identifier, prefix_of, read_identifier, shown
from omq.goby.outbox import MAX_HELD_BYTES, MAX_HELD_PUBLICATIONS
from omq.goby.scheme import Codec
from omq.serving.rate_limit import WARNING_INTERVAL_S, RateLimit
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

EVERYTHING: Final = b"/"
MAX_CACHED_HEAD_BYTES: Final = 1024  # of one identifier
READER_TIMEOUT_S: Final = 0.1  # until a reader with a full inbox counts as stalled


class _Fields(NamedTuple):
    group: str
    scheme: str
    type: str
    data: bytes


class Received(_Fields):
    """A publication as a regex subscription returns it: a tuple of `group`, `scheme`, `type` and `data`.

    Attributes:
        group: The group on the wire, as a `str`: `nav`, `nav;3` or `3`.
        scheme: The scheme on the wire: a name, or a decimal number.
        type: The name of the type on the wire.
        data: The payload, not decoded.
        pid: The id of the publishing process; not in the tuple.
        thread: The id of the publishing thread, in hexadecimal; not in the tuple.
    """

    pid: int = 0
    thread: str = ""


def received(identifier: Identifier, payload: bytes) -> Received:
    """Returns a publication as a regex subscription does."""
    publication = Received(identifier.group, identifier.scheme, identifier.type, payload)
    publication.pid, publication.thread = identifier.pid, identifier.thread
    return publication


class ParseErrorLog:
    """Counts publications that could not be parsed, and logs them at a limited rate."""

    def __init__(self) -> None:
        self.count = 0
        self._limit = RateLimit(WARNING_INTERVAL_S)

    def note(self, text: str) -> None:
        """Counts a publication that could not be parsed, and logs the reason."""
        self.count += 1
        if self._limit.passes():
            suppressed = self._limit.suppressed
            more = f" ({suppressed} more since the last line)" if suppressed else ""
            log.warning("skipped: %s%s", text, more)


class Inbox:
    """A queue of publications; the twins add the waiting.

    It has room for a burst, such as the release of a hold. While it is full and its reader takes publications, the
    portal does not read: ZeroMQ's high-water marks then apply. If the reader stalls, further publications are dropped
    and counted, so that other subscriptions do not wait for it.

    Args:
        limit: How many may wait whatever their size. `MAX_HELD_PUBLICATIONS` more may wait while all have less than
            `MAX_HELD_BYTES`. 0: any number.
        shared: Several subscriptions use it, and it does not end with one of them.
    """

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        self.items: deque[Item] = deque()
        self.limit = limit
        self.shared = shared
        self.dropped = 0
        self.ended = False
        self.stalled = False
        self._bytes = 0
        self._taken_at = float("-inf")  # the time of the last `take`

    def put(self, items: list[Item]) -> Any:
        """Adds publications, as soon as there is room for them."""
        raise NotImplementedError

    def get(self, timeout: float | None) -> Any:
        """Waits for the next publication; returns `None` after the timeout, and if the inbox has ended."""
        raise NotImplementedError

    def end(self) -> None:
        """Accepts nothing more, and ends all waits."""
        raise NotImplementedError

    def accept(self, items: Sequence[Item], start: int) -> int:
        """Adds publications while there is room; returns the index of the first that was not added."""
        if self.ended:
            return len(items)
        end = len(items)
        if self.limit:
            limit = self.limit + MAX_HELD_PUBLICATIONS if self._bytes < MAX_HELD_BYTES else self.limit
            end = min(end, start + max(limit - len(self.items), 0))
        taken = items[start:end]
        self.items.extend(taken)
        self._bytes += sum([len(payload) for _, _, payload in taken])
        return end

    def wait_time(self) -> float:
        """Returns the seconds that the portal waits for room; 0 or less if the reader has stalled."""
        return READER_TIMEOUT_S + self._taken_at - time.monotonic()

    def drop(self, count: int) -> None:
        """Counts publications that are dropped because the reader has stalled."""
        if not self.stalled:
            what = "callbacks take too long" if self.shared else "a subscription is not read"
            log.warning("%s: publications are dropped, %d wait", what, len(self.items))
        self.stalled = True
        self.dropped += count

    def take(self) -> Item | None:
        """Removes and returns the next publication; `None` if the inbox is empty."""
        if not self.items:
            return None
        self.stalled = False
        self._taken_at = time.monotonic()
        item = self.items.popleft()
        self._bytes -= len(item[2])
        return item


class Handler:
    """The handler of one subscription's publications.

    Args:
        prefix: The ZeroMQ subscription that it needs.
        inbox: The inbox of its publications.
        callback: The function to call with each message; `None` for an iterator.

    Attributes:
        errors: How often the callback has failed.
        ended: Whether the subscription is closed; its publications in the inbox are then skipped.
    """

    def __init__(self, prefix: bytes, inbox: Inbox, callback: Callable[[Any], object] | None) -> None:
        self.prefix = prefix
        self.inbox = inbox
        self.callback = callback
        self.errors = 0
        self.ended = False

    def matches(self, identifier: Identifier) -> bool:
        """Returns whether the subscription includes a publication, which begins with its prefix."""
        return True

    def decode(self, identifier: Identifier, payload: bytes) -> Any:
        """Decodes a message for the user.

        Raises:
            ValueError: The payload does not parse.
        """
        raise NotImplementedError

    def call(
        self,
        identifier: Identifier,
        payload: bytes,
        parse_errors: ParseErrorLog,
        raised: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Calls the callback with a publication. An exception is logged, and the portal continues.

        Args:
            identifier: The publication's identifier.
            payload: The publication's payload.
            parse_errors: Counts a payload that does not parse.
            raised: The exceptions that are raised instead of logged.
        """
        assert self.callback is not None
        try:
            message = self.decode(identifier, payload)
        except raised:
            raise
        except BaseException as fault:  # of any kind: a custom scheme decodes
            parse_errors.note(parse_error_text(identifier, fault))
            return
        try:
            self.callback(message)
        except raised:
            raise
        except BaseException:
            self.errors += 1
            log.exception("a callback for /%s/%s/%s has failed", identifier.group, identifier.scheme, identifier.type)


class TypeHandler(Handler):
    """A subscription to one type in one group."""

    def __init__(self, group: str, codec: Codec, inbox: Inbox, callback: Callable[[Any], object] | None = None) -> None:
        super().__init__(prefix_of(group, codec.scheme, codec.type), inbox, callback)
        self._decode = codec.decode

    def decode(self, identifier: Identifier, payload: bytes) -> Any:
        return self._decode(payload)


class RegexHandler(Handler):
    """A subscription to all matching publications.

    Args:
        group: A regular expression that matches the whole group.
        type: A regular expression that matches the whole name of the type.
        schemes: The names of the schemes on the wire; `None`: all.
        inbox: The inbox of its publications.
        callback: The function to call with each publication; `None` for an iterator.

    Raises:
        UsageError: An expression is not valid.
    """

    def __init__(
        self,
        group: str,
        type: str,
        schemes: Collection[str] | None,
        inbox: Inbox,
        callback: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__(EVERYTHING, inbox, callback)
        self._group, self._type = _compiled("group", group), _compiled("type", type)
        self._schemes = None if schemes is None else frozenset(schemes)
        # Publications between managers and portals match only a pattern that names them.
        self._internal = "_internal" in group

    def matches(self, identifier: Identifier) -> bool:
        return (
            (self._schemes is None or identifier.scheme in self._schemes)
            and (self._internal or not identifier.group.startswith(INTERNAL))
            and self._type.fullmatch(identifier.type) is not None
            and self._group.fullmatch(identifier.group) is not None
        )

    def decode(self, identifier: Identifier, payload: bytes) -> Received:
        return received(identifier, payload)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise UsageError(f"{name}={pattern!r} is not a valid regular expression: must be a string")
    try:
        return re.compile(pattern, re.DOTALL)  # a group may contain a line feed
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{name}={pattern!r} is not a valid regular expression: {error}") from None


def parse_error_text(identifier: Identifier, fault: BaseException) -> str:
    """Returns the log text about a payload that does not parse."""
    reason = str(fault) or type(fault).__name__
    return f"a payload of /{identifier.group}/{identifier.scheme}/{identifier.type}/ does not parse: {reason}"


Item = tuple[Handler, Identifier, bytes]


class PublicationDispatcher:
    """Dispatches publications to a portal's subscriptions. All handlers of a prefix share one ZeroMQ subscription.

    Attributes:
        parse_errors: The publications that could not be parsed.
    """

    def __init__(self) -> None:
        self.parse_errors = ParseErrorLog()
        self._lock = threading.RLock()
        self._handlers: dict[bytes, list[Handler]] = {}  # by their prefixes
        self._routes: dict[bytes, tuple[Identifier, tuple[Handler, ...]]] = {}

    def add(self, handler: Handler) -> bytes | None:
        """Adds a subscription.

        Returns:
            The ZeroMQ subscription to make; `None` if it exists.
        """
        with self._lock:
            self._routes = {}
            handlers = self._handlers.setdefault(handler.prefix, [])
            handlers.append(handler)
            return handler.prefix if len(handlers) == 1 else None

    def remove(self, handler: Handler) -> bytes | None:
        """Removes a subscription, if it exists.

        Returns:
            The ZeroMQ subscription to end; `None` if another handler needs it.
        """
        with self._lock:
            self._routes = {}
            handlers = self._handlers.get(handler.prefix, [])
            if handler not in handlers:
                return None
            handlers.remove(handler)
            if handlers:
                return None
            del self._handlers[handler.prefix]
            return handler.prefix

    def handlers_of(self, prefix: bytes) -> list[Handler]:
        """Returns the subscriptions with a prefix."""
        with self._lock:
            return list(self._handlers.get(prefix, ()))

    @property
    def handlers(self) -> list[Handler]:
        """All subscriptions."""
        with self._lock:
            return [handler for handlers in self._handlers.values() for handler in handlers]

    @property
    def prefixes(self) -> list[bytes]:
        """All ZeroMQ subscriptions."""
        with self._lock:
            return list(self._handlers)

    def dispatch(self, frames: Sequence[bytes | list[bytes]]) -> dict[Inbox, list[Item]]:
        """Returns the publications for each inbox, in their order."""
        items: defaultdict[Inbox, list[Item]] = defaultdict(list)
        for frame in frames:
            if not isinstance(frame, bytes):
                self.parse_errors.note(f"a publication has {len(frame)} frames: {shown(frame[0])}")
                continue
            end = frame.find(b"\0")
            if end < 0:
                self.parse_errors.note(f"a publication has no NUL after its identifier: {shown(frame)}")
                continue
            head = frame[:end]
            route = self._routes.get(head) or self._route(head)
            if route is not None and route[1]:
                payload = frame[end + 1 :]
                for handler in route[1]:
                    items[handler.inbox].append((handler, route[0], payload))
        return items

    def _route(self, head: bytes) -> tuple[Identifier, tuple[Handler, ...]] | None:
        try:
            identifier = read_identifier(head)
        except Malformed as fault:
            self.parse_errors.note(str(fault))
            return None
        with self._lock:
            handlers = [*self._handlers.get(identifier.prefix, ()), *self._handlers.get(EVERYTHING, ())]
            route = identifier, tuple(handler for handler in handlers if handler.matches(identifier))
            if len(head) <= MAX_CACHED_HEAD_BYTES:
                if len(self._routes) >= MAX_CACHED_IDENTIFIERS:
                    self._routes = {}
                self._routes[head] = route
        return route

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
from omq.goby.identifier import INTERNAL, Identifier, prefix_of, read_identifier, shown
from omq.goby.scheme import Codec
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

EVERYTHING: Final = b"/"
LOG_INTERVAL_S: Final = 1.0  # seconds between two lines about what does not fit
MAX_HEADS: Final = 4096  # identifiers whose handlers are remembered
MAX_HEAD_BYTES: Final = 1024  # bytes of one
READER_TIMEOUT_S: Final = 0.1  # seconds that the portal waits for a reader whose inbox is full
MAX_BURST: Final = 10_000  # publications: as many as a portal keeps while they are held
MAX_BURST_BYTES: Final = 64 << 20


class _Fields(NamedTuple):
    group: str
    scheme: str
    type: str
    data: bytes


class Received(_Fields):
    """A publication that a regex subscription has found.

    Attributes:
        group: Its group.
        scheme: Its scheme, as it is called on the wire: a name, or a number in figures.
        type: Its type's name.
        data: Its payload.
        pid: The process that published it.
        thread: Its thread, in hexadecimal figures.
    """

    pid: int = 0
    thread: str = ""


def received(identifier: Identifier, payload: bytes) -> Received:
    """A publication as a regex subscription gives it."""
    one = Received(identifier.group, identifier.scheme, identifier.type, payload)
    one.pid, one.thread = identifier.pid, identifier.thread
    return one


class ParseErrorLog:
    """Counts publications that could not be parsed, and logs them at a limited rate."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = float("-inf")
        self._suppressed = 0

    def note(self, text: str) -> None:
        """Counts a publication that could not be parsed, and logs the reason."""
        self.count += 1
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL_S:
            self._suppressed += 1
            return
        more = f" ({self._suppressed} more since the last line)" if self._suppressed else ""
        self._logged_at, self._suppressed = now, 0
        log.warning("passed over: %s%s", text, more)


class Inbox:
    """A queue of publications; the twins add the waiting.

    It has room for a burst, such as the release of a hold. When it is full the portal stops reading for a moment, as
    long as its reader still takes publications: ZeroMQ's high-water marks then apply. If the reader takes nothing,
    further publications are dropped and counted, so that other subscriptions do not wait for it.

    Args:
        limit: How many may wait whatever their size, and `MAX_BURST` more of `MAX_BURST_BYTES`; 0: any number.
        shared: Several subscriptions use it: it does not end with one of them.
    """

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        self.items: deque[Item] = deque()
        self.limit = limit
        self.shared = shared
        self.dropped = 0
        self.ended = False
        self.stalled = False
        self._bytes = 0
        self._taken = float("-inf")  # when something was taken last

    def put(self, items: list[Item]) -> Any:
        """Takes publications, as soon as there is room for them; the twin's, as is `get`."""
        raise NotImplementedError

    def get(self, timeout: float | None) -> Any:
        """Waits for the next one; returns `None` if none comes in time, or it has ended."""
        raise NotImplementedError

    def end(self) -> None:
        """Takes nothing more, and ends all waits."""
        raise NotImplementedError

    def accept(self, items: Sequence[Item], start: int) -> int:
        """Takes as many as there is room for, and gives the index of the first that was not taken."""
        if self.ended:
            return len(items)
        end = len(items)
        if self.limit:
            most = self.limit + MAX_BURST if self._bytes < MAX_BURST_BYTES else self.limit
            end = min(end, start + max(most - len(self.items), 0))
        taken = items[start:end]
        self.items.extend(taken)
        self._bytes += sum([len(payload) for _, _, payload in taken])
        return end

    def wait_time(self) -> float:
        """Returns the seconds that the portal waits for room; 0 or less if the reader has stalled."""
        return READER_TIMEOUT_S + self._taken - time.monotonic()

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
        self._taken = time.monotonic()
        item = self.items.popleft()
        self._bytes -= len(item[2])
        return item


class Handler:
    """The handler of one subscription's publications.

    Args:
        prefix: The ZeroMQ subscription that it needs.
        inbox: The inbox of its publications.
        callback: The function to call with each message; `None`: an iterator takes them.

    Attributes:
        errors: How often the callback has failed.
        ended: The subscription is closed: its publications in an inbox are skipped.
    """

    def __init__(self, prefix: bytes, inbox: Inbox, callback: Callable[[Any], object] | None) -> None:
        self.prefix = prefix
        self.inbox = inbox
        self.callback = callback
        self.errors = 0
        self.ended = False

    def fits(self, identifier: Identifier) -> bool:
        """Returns whether it wants a publication that begins with its prefix."""
        return True

    def decode(self, identifier: Identifier, payload: bytes) -> Any:
        """Returns what the user receives.

        Raises:
            ValueError: The payload does not parse.
        """
        raise NotImplementedError

    def call(
        self,
        identifier: Identifier,
        payload: bytes,
        malformations: ParseErrorLog,
        raised: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Gives a publication to the callback; what it raises is logged, and the portal lives on.

        Args:
            identifier: The publication's.
            payload: The publication's.
            malformations: Where it counts if it does not parse.
            raised: What is not logged, but raised.
        """
        assert self.callback is not None
        try:
            message = self.decode(identifier, payload)
        except raised:
            raise
        except BaseException as fault:  # whatever it is, the payload does not parse
            malformations.note(does_not_parse(identifier, fault))
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
    """A subscription to all that fits.

    Args:
        group: A regular expression that fits the whole of the group.
        type: One that fits the whole of the type's name.
        schemes: The schemes, as they are called on the wire; `None`: all.
        inbox: See `Handler`.
        callback: See `Handler`.

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

    def fits(self, identifier: Identifier) -> bool:
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
        raise UsageError(f"{name}={pattern!r}: is not a valid regular expression: must be a text")
    try:
        return re.compile(pattern, re.DOTALL)  # a group may have a line feed, too
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{name}={pattern!r}: is not a valid regular expression: {error}") from None


def does_not_parse(identifier: Identifier, fault: BaseException) -> str:
    """Returns the log line about a payload that does not parse."""
    why = str(fault) or type(fault).__name__
    return f"a payload of /{identifier.group}/{identifier.scheme}/{identifier.type}/ does not parse: {why}"


Item = tuple[Handler, Identifier, bytes]


class PublicationDispatcher:
    """A portal's subscriptions. One ZeroMQ subscription stands for all handlers of an identifier.

    Attributes:
        malformations: Publications that could not be read.
    """

    def __init__(self) -> None:
        self.malformations = ParseErrorLog()
        self._lock = threading.RLock()
        self._handlers: dict[bytes, list[Handler]] = {}  # by their prefixes
        self._routes: dict[bytes, tuple[Identifier, tuple[Handler, ...]]] = {}

    def add(self, handler: Handler) -> bytes | None:
        """Adds a subscription.

        Returns:
            The ZeroMQ subscription to make; `None` if it is there already.
        """
        with self._lock:
            self._routes = {}
            handlers = self._handlers.setdefault(handler.prefix, [])
            handlers.append(handler)
            return handler.prefix if len(handlers) == 1 else None

    def remove(self, handler: Handler) -> bytes | None:
        """Takes a subscription away, if it is there.

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

    def of(self, prefix: bytes) -> list[Handler]:
        """The subscriptions to one identifier."""
        with self._lock:
            return list(self._handlers.get(prefix, ()))

    @property
    def handlers(self) -> list[Handler]:
        """All subscriptions."""
        with self._lock:
            return [one for some in self._handlers.values() for one in some]

    @property
    def prefixes(self) -> list[bytes]:
        """All ZeroMQ subscriptions."""
        with self._lock:
            return list(self._handlers)

    def sort(self, frames: Sequence[bytes | list[bytes]]) -> dict[Inbox, list[Item]]:
        """Returns the publications for each inbox, in their order."""
        found: defaultdict[Inbox, list[Item]] = defaultdict(list)
        for frame in frames:
            if not isinstance(frame, bytes):
                self.malformations.note(f"a publication has {len(frame)} frames: {shown(frame[0])}")
                continue
            end = frame.find(b"\0")
            if end < 0:
                self.malformations.note(f"a publication has no NUL after its identifier: {shown(frame)}")
                continue
            head = frame[:end]
            route = self._routes.get(head) or self._find(head)
            if route is not None and route[1]:
                payload = frame[end + 1 :]
                for handler in route[1]:
                    found[handler.inbox].append((handler, route[0], payload))
        return found

    def _find(self, head: bytes) -> tuple[Identifier, tuple[Handler, ...]] | None:
        try:
            identifier = read_identifier(head)
        except Malformed as fault:
            self.malformations.note(str(fault))
            return None
        with self._lock:
            found = [*self._handlers.get(identifier.prefix, ()), *self._handlers.get(EVERYTHING, ())]
            route = identifier, tuple(one for one in found if one.fits(identifier))
            if len(head) <= MAX_HEAD_BYTES:
                if len(self._routes) >= MAX_HEADS:
                    self._routes = {}
                self._routes[head] = route
        return route

"""A portal's life, without sockets: it finds the manager, waits while it is held, and finds it again.

The life is a generator: it yields what is to be done, one step at a time, and whoever owns the sockets does it,
blocking or awaiting. So both twins live the same life.

When is a subscription in force? A socket's subscriptions travel in their order: to the router's XPUB, from there
through the proxy to its XSUB, and from that to each publisher. A portal subscribes to a word of its own, and waits
until its own publisher has been told of that: then whatever was subscribed before is in force at the router. The
portal does so once before it says that it is ready: what it has subscribed to is then on its way to every publisher,
before anybody hears of the release. And it does so once more when it hears of the release, before it publishes: the
word comes to its publisher behind all that others have subscribed to. Whatever it subscribes to later holds its
publications up for the same time, about a millisecond: who subscribes to an answer, and then asks, gets it. The router
has sent the subscription on before it gets the question; and where the question has arrived, so has the subscription,
on one host, but by another connection: so a portal hears what its publisher has been told before it gives away what it
has received.

Whose hold is released? The manager's answers come by a connection of their own, which is made anew whenever another
router is found: what a gobyd has said that is gone by now, and nobody has heard yet, releases no other's hold. And a
callback that takes long, or itself waits for the release, keeps nobody from hearing of it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from omq.errors import ConnectError, StateError, UsageError
from omq.goby.dispatch import Dispatcher, Inbox, RegexHandler, TypeHandler
from omq.goby.errors import Malformed
from omq.goby.identifier import MANAGER_RESPONSE, checked_group, head_of
from omq.goby.outbox import LIMIT, Outbox
from omq.goby.protobuf import PROVIDE_HOLD_STATE, PROVIDE_MISSING_CLIENTS, ManagerResponse
from omq.goby.scheme import Codec, Scheme, SchemeId, Schemes
from omq.goby.wire import (
    HWM,
    Bus,
    Sockets,
    ask_hold,
    ask_missing,
    ask_sockets,
    read_response,
    read_sockets,
)
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

PERIOD: Final = 0.1  # seconds between two requests for the hold's state
SILENT: Final = 1.0  # seconds without an answer after which the manager is looked for again
BARRIER: Final = 1.0  # seconds that a portal waits for its own word
SETTLE: Final = 0.02  # seconds for subscriptions of clients that do not wait until theirs are in force
RETURN: Final = 0.5  # seconds for others to find a manager that was started again
PROMPT: Final = 0.02  # seconds between two requests out of turn
CHUNK: Final = 100  # publications that were held and leave at once
CHUNK_PAUSE: Final = 0.002  # seconds between them: no bound of ZeroMQ's on the way is to be reached
ROUTES: Final = 4096  # identifiers that are remembered
DEAF: Final = 5.0  # seconds after which a router that passes no subscriptions on is tried again


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the manager; gives its reply, `None` if there is none in time."""

    endpoint: str
    request: bytes
    timeout: float


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect the sockets; what they were connected to before, they leave."""

    sockets: Sockets


@dataclass(frozen=True, slots=True)
class Hear:
    """Hear the manager's answers by a connection of their own, a new one, and no more by the one before.

    `None`: hear none.
    """

    answers: Dispatcher | None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe to, or no longer to, a word; by the connection of all publications, or by that of the answers."""

    prefix: bytes
    wanted: bool = True
    hearing: bool = False


@dataclass(frozen=True, slots=True)
class AwaitSubscribed:
    """Wait until the publisher has a subscription to exactly this; gives whether it came in time."""

    prefix: bytes
    timeout: float


@dataclass(frozen=True, slots=True)
class AwaitNews:
    """Wait until `Session.wake` is called, also before; or the time is up."""

    timeout: float


@dataclass(frozen=True, slots=True)
class Where:
    """Gives by which connections the router is reached: others, if one was lost and found again; `None` if one is."""


@dataclass(frozen=True, slots=True)
class AwaitLoss:
    """Wait until the router is no longer reached by these connections, or the outbox is held; gives which of both."""

    at: object


@dataclass(frozen=True, slots=True)
class Send:
    """Publish; gives whether it has left in time."""

    frames: list[bytes]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """The hold is released, and what might leave has left; or it holds again."""

    released: bool


Step = Ask | Connect | Hear | Subscribe | AwaitSubscribed | AwaitNews | Where | AwaitLoss | Send | Pause | Tell
Life = Generator[Step, Any, None]


@dataclass(frozen=True, slots=True)
class Route:
    """How a publication to a group begins, and how its payload is made."""

    head: bytes
    encode: Callable[[Any], bytes]


class Session:
    """What both twins' portals have in common.

    Args:
        name: The client's name.
        bus: Which bus.
        manager_timeout: Seconds that the manager has to answer at first.
        buffer: Publications that may wait for the release.
        schemes: Marshalling schemes of one's own.
        raised: What callbacks may raise to end more than themselves; see `Dispatcher`.

    Attributes:
        dispatcher: The subscriptions.
        outbox: The publications that wait.
        released: Whether the hold is over, and what it kept has left.
        rounds: How often something has left, and all that had waited when it was let go.
        sockets: Where it is connected; `None` before the manager has told.
        wake: Called when the life is to go on; the twin's.

    Raises:
        UsageError: Something does not fit.
    """

    def __init__(
        self,
        name: str,
        bus: Bus,
        manager_timeout: float,
        buffer: int | None,
        schemes: Iterable[Scheme],
        raised: tuple[type[BaseException], ...] = (),
    ) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"name={name!r}: a client's name is a text that is not empty").about("name")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"name={name!r}: cannot be said in UTF-8: {error.reason}").about("name") from None
        if (
            isinstance(manager_timeout, bool)
            or not isinstance(manager_timeout, int | float)
            or not 0 < manager_timeout <= threading.TIMEOUT_MAX
        ):
            reason = f"must be seconds, more than 0, at most {threading.TIMEOUT_MAX:g}"
            raise UsageError(f"manager_timeout={manager_timeout!r}: {reason}").about("manager_timeout")
        if bus.transport == "tcp" and bus.port == 0:
            raise UsageError("port=0: is no port that a manager could be found at").about("port")
        self.name = name
        self.bus = bus
        self.pid = os.getpid()
        self.dispatcher = Dispatcher(raised)
        self.outbox = Outbox(LIMIT if buffer is None else buffer)
        self.schemes = Schemes(schemes)
        self.released = False
        self.rounds = 0
        self.sockets: Sockets | None = None
        self.wake: Callable[[], None] = lambda: None
        self._manager_timeout = manager_timeout
        self._ready = False
        self._hold = True
        self._prompted = False
        self._heard = 0.0  # when the manager last answered
        self._words = 0
        self._deaf = float("-inf")  # until when the router is taken for one that does not pass subscriptions on
        self._routes: dict[tuple[str | int, type, type, int], Route] = {}
        self._hearing = 0  # how often the manager was heard anew

    @property
    def recv_hwm(self) -> int:
        """Publications that may wait for whoever iterates."""
        return HWM if self.sockets is None else self.sockets.recv_hwm

    # ------------------------------------------------------------------ what the user does

    def ready(self) -> None:
        """The client is ready."""
        self.check_process()
        self._ready = True
        self.wake()

    def is_forked(self) -> bool:
        """Whether this is a forked child, where no thread of the portal runs, and locks may be held for ever."""
        return os.getpid() != self.pid

    def check_process(self) -> None:
        """Raises `StateError` in a forked child."""
        if self.is_forked():
            raise StateError(f"the portal {self.name} belongs to process {self.pid}: make another one behind a fork")

    def subscribed(self) -> None:
        """Something was subscribed to: what is published from now on leaves once that is in force."""
        self.outbox.hold()
        if self.released:
            self.wake()

    def route(self, group: str | int, kind: type, thread: int, scheme: SchemeId | None, type_name: str | None) -> Route:
        """How a publication begins, and how its payload is made.

        Raises:
            UsageError: The group does not fit, or no scheme handles the type.
            TypeError: The group is no text.
        """
        plain = scheme is None and type_name is None
        # The group's type is in the key, as `True` and `1.0` equal 1, and are no groups.
        if plain and (route := self._routes.get((group, group.__class__, kind, thread))) is not None:
            return route
        codec = self.schemes.codec(kind, scheme, type_name)
        route = Route(head_of(checked_group(group), codec.scheme, codec.type, self.pid, thread), codec.encode)
        if plain and type(group) in (str, int):
            if len(self._routes) >= ROUTES:
                self._routes = {}
            self._routes[group, type(group), kind, thread] = route
        return route

    def compose(
        self, group: str | int, message: Any, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> bytes:
        """The frame of a publication; see `route`."""
        route = self.route(group, message.__class__, threading.get_ident(), scheme, type_name)
        return route.head + route.encode(message)

    def regex(
        self,
        group: str,
        type: str,
        schemes: Iterable[SchemeId] | None,
        inbox: Inbox | None,
        callback: Callable[[Any], object] | None,
    ) -> RegexHandler:
        """A subscription to all that fits; see `RegexHandler`.

        Raises:
            UsageError: An expression is none, or there is no such scheme.
        """
        if isinstance(schemes, str | int):
            schemes = [schemes]
        wire = None if schemes is None else {self.schemes.wire_of(scheme) for scheme in schemes}
        return RegexHandler(group, type, wire, inbox, callback)

    def register(self, scheme: Scheme) -> None:
        """Adds a marshalling scheme; see `Schemes.register`."""
        self.schemes.register(scheme)
        self._routes = {}

    def missing_request(self, timeout: float) -> Ask:
        """Asks whom the hold waits for."""
        self.check_process()
        return Ask(self.bus.manager, ask_missing(self.name, self.pid), timeout)

    @staticmethod
    def missing_of(reply: bytes | None) -> list[str]:
        """Whom the hold waits for, as far as the manager tells."""
        try:
            response = ManagerResponse() if reply is None else read_response(reply)
        except Malformed:
            return []
        return list(response.missing_client) if response.request == PROVIDE_MISSING_CLIENTS else []

    def not_released(self, timeout: float | None, missing: list[str]) -> str:
        """What is raised where the hold is not released in time."""
        who = f": it waits for {', '.join(missing)}" if missing else ""
        return f"{self.bus.manager}: the hold was not released within {timeout:g} s{who}"

    def behind(self, rounds: int) -> Callable[[], bool]:
        """Whether something has left since so many rounds, or nothing will for a while: the router is lost."""
        return lambda: self.rounds != rounds or not self.released

    def not_left(self, timeout: float | None) -> str:
        """What is raised where publications have not left in time."""
        what = "what was subscribed to before them is in force" if self.released else "the router is found again"
        count = self.outbox.kept - self.outbox.left
        return f"{count} publications have not left within {timeout:g} s: they wait until {what}"

    # ------------------------------------------------------------------ what it does by itself

    def connect(self) -> Life:
        """Finds the manager for the first time.

        Raises:
            ConnectError: It does not answer in time, or not as a manager does.
        """
        reply = yield Ask(self.bus.manager, ask_sockets(self.name, self.pid), self._manager_timeout)
        if reply is None:
            timeout = f"{self._manager_timeout:g} s"
            raise self._not_found(f"no manager (gobyd) has answered at {self.bus.manager} within {timeout}")
        try:
            yield from self._go_to(read_sockets(reply, self.bus))
        except Malformed as fault:
            raise self._not_found(f"the process that answers at {self.bus.manager} is not a manager: {fault}") from None

    def _not_found(self, reason: str) -> ConnectError:
        name, value = self.bus.argument
        return ConnectError(f"{name}={value!r}: {reason}").about(name)

    def live(self) -> Life:
        """Waits for the release, publishes what was held, and begins anew whenever the router is lost."""
        settle = SETTLE
        while True:
            at = yield from self._wait_for_release(settle)
            while (yield from self._open(at)) and not (yield AwaitLoss(at)):
                pass
            self.outbox.hold()
            self._hold = True
            self.released = False
            log.info("%s: the router at %s is lost: publications wait", self.name, self.bus.manager)
            yield Tell(False)
            yield from self._find_again()
            settle = RETURN

    def _open(self, at: object) -> Generator[Step, Any, bool]:
        """Publishes what waits, once all is in force that was subscribed to before, and goes on until nothing waits.

        Args:
            at: The connections by which the release was heard. By others nothing leaves: it may be another router.

        Returns:
            Whether they are still there.
        """
        while not self.outbox.open:
            mark = self.outbox.let_go()
            if not (yield from self._barrier()) and (yield Where()) == at:
                log.warning("%s: the router passes no subscriptions on: what is published now may be lost", self.name)
                self._deaf = time.monotonic() + DEAF
            while (yield Where()) == at:
                frames = self.outbox.take(CHUNK)
                if self.outbox.left >= mark:
                    self.released = True
                    self.rounds += 1
                    yield Tell(True)
                if not frames:
                    break
                left = yield Send(frames)
                while not left and (yield Where()) == at:
                    # The router stalls: with more the publisher would reach its bound, and drop.
                    self.outbox.stall()
                    yield Tell(self.released)
                    left = yield Send([])
                if len(frames) == CHUNK:
                    yield Pause(CHUNK_PAUSE)
            else:
                return False
        return True

    def _go_to(self, sockets: Sockets) -> Life:
        changed = sockets != self.sockets
        self.sockets = sockets
        if changed:
            yield Connect(sockets)

    def _wait_for_release(self, settle: float) -> Generator[Step, Any, object]:
        """Asks until the hold is released, and gives subscriptions of others a moment.

        Returns:
            The connections by which it was heard: the release is that of the router at their ends.
        """
        first = at = None
        said = False
        self._heard = prompted = time.monotonic()
        while self._hold:
            ready = self._ready
            if at is None or (yield Where()) != at:
                said = ready
                at = yield from self._hear()
                first = first or at
                if at is not None:
                    self._heard = time.monotonic()
            if ready and not said:
                yield from self._barrier()
                said = True
            yield Send([ask_hold(self.name, self.pid, threading.get_ident(), ready)])
            end = time.monotonic() + PERIOD
            while self._hold and self._ready == ready and (left := end - time.monotonic()) > 0:
                yield AwaitNews(left)
                if self._prompted and time.monotonic() - prompted >= PROMPT:
                    self._prompted, prompted = False, time.monotonic()
                    break
            if self._hold and time.monotonic() - self._heard > SILENT:
                yield from self._find_again()
                self._heard = time.monotonic()
            if not self._hold and (at is None or (yield Where()) != at):
                self._hold = True  # who has released it may be gone
        yield Hear(None)
        yield Pause(settle if at == first else RETURN)
        return at

    def _hear(self) -> Generator[Step, Any, object]:
        """Hears the manager by a new connection: an answer of a gobyd that is gone is none of the next one's.

        Nor do the answers wait behind other publications, for callbacks that take long.

        Returns:
            The connections by which the router is reached. Those of the answers came after them.
        """
        yield from self._barrier()
        at = yield Where()
        self._hearing += 1
        answers = Dispatcher()
        answers.malformations = self.dispatcher.malformations
        codec = Codec("PROTOBUF", "goby.zeromq.protobuf.ManagerResponse", bytes, read_response)
        answers.add(TypeHandler(MANAGER_RESPONSE, codec, callback=partial(self._answered, self._hearing)))
        yield Hear(answers)
        self._hold = True
        yield from self._barrier(hearing=True)
        return at

    def _find_again(self) -> Life:
        """Asks the manager once more: it may have been started again, and have other ports."""
        said = float("-inf")
        self._deaf = float("-inf")
        while True:
            reply = yield Ask(self.bus.manager, ask_sockets(self.name, self.pid), SILENT)
            try:
                if reply is not None:
                    yield from self._go_to(read_sockets(reply, self.bus))
                    return
                fault = "does not answer"
            except Malformed as malformed:
                fault = str(malformed)
                yield Pause(PERIOD)
            if time.monotonic() - said > 5.0:
                said = time.monotonic()
                log.warning("%s: the manager at %s: %s", self.name, self.bus.manager, fault)

    def _barrier(self, *, hearing: bool = False) -> Generator[Step, Any, bool]:
        """Waits until all that was subscribed before is in force; see the module. Gives whether it is.

        Args:
            hearing: By the connection of the answers.
        """
        if time.monotonic() < self._deaf:
            return True
        self._words += 1
        word = f"/omq::goby::_word/{self.name.replace('/', '_')}/{self.pid}/{id(self):x}/{self._words}/".encode()
        yield Subscribe(word, hearing=hearing)
        passed = yield AwaitSubscribed(word, BARRIER / 2)
        if not passed and (yield AwaitSubscribed(b"", 0)):
            # No proxy, but something that takes all from publishers, and passes no subscription on.
            self._deaf, passed = time.monotonic() + DEAF, True
        passed = passed or (yield AwaitSubscribed(word, BARRIER / 2))
        yield Subscribe(word, wanted=False, hearing=hearing)
        return bool(passed)

    def _answered(self, hearing: int, response: ManagerResponse) -> None:
        """A manager has answered somebody; only who is meant takes it.

        Args:
            hearing: By which connection it has come; see `_hear`.
            response: The answer.
        """
        if response.request != PROVIDE_HOLD_STATE or hearing != self._hearing:
            return
        self._heard = time.monotonic()
        if response.client_name == self.name and response.client_pid == self.pid:
            self._hold = response.hold
        elif not response.hold:
            self._prompted = True  # ask at once
        else:
            return
        self.wake()

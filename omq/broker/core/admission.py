"""Admission of publications to a bounded topic: `overflow` decides about what has no room."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from omq.broker.core.rate_limit import RateLimit
from omq.broker.errors import BrokerError, Busy, StoreFull, WrongState

log = logging.getLogger("omq.broker")

#: The most bytes of one topic's publications that wait for room; beyond, the broker answers that it is busy.
_MAX_HELD_BYTES: Final = 16 << 20
#: The most bytes of all topics' publications that wait for room.
MAX_ALL_HELD_BYTES: Final = 256 << 20
#: Counted for each publication that waits, besides its messages: about what its objects take.
HELD_OVERHEAD_BYTES: Final = 3 << 10
#: Between two looks whether a topic has room again, where no event reports it.
_POLL_INTERVAL_S: Final = 0.25


class BoundedTopic(Protocol):
    """A topic whose messages are bounded.

    Attributes:
        name: Its name.
        deleted: It is gone, or about to go.
    """

    name: str
    deleted: bool

    def used(self) -> tuple[int, int]:
        """Returns the messages that count for the bounds, and about how many bytes they have; in any thread."""

    def refresh(self) -> None:
        """Takes note of what the store has dropped by itself."""

    def touch(self) -> None:
        """Takes note that messages wait or were refused."""


class Timer(Protocol):
    """Makes calls later."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the broker has ended by then."""


class Publication:
    """Messages that are to be published together.

    Args:
        count: Their number.
        size: Their bytes.
        submit: Hands them to the store.
        refuse: Answers with an error.
        probe: Asks the store whether they were published before, which answers them; `None` where that cannot be known.
        alive: Returns whether a client waits for the answer. Else it is refused, unless the store has it by then.
        reserves: Its place is taken until `Admission.answered`. If not, the store asks for room when it gets there.
        memory: Bytes that it keeps while it waits for room, besides its objects; `None`: those of its messages.
    """

    __slots__ = ("alive", "count", "held_bytes", "probe", "refuse", "reserves", "size", "submit")

    def __init__(
        self,
        count: int,
        size: int,
        submit: Callable[[], None],
        refuse: Callable[[BrokerError], None],
        probe: Callable[[Callable[[bool], None]], None] | None,
        alive: Callable[[], bool],
        *,
        reserves: bool = True,
        memory: int | None = None,
    ) -> None:
        self.held_bytes = HELD_OVERHEAD_BYTES + (size if memory is None else memory)
        self.reserves = reserves
        self.count = count
        self.size = size
        self.submit = submit
        self.refuse = refuse
        self.probe = probe
        self.alive = alive

    def release(self) -> None:
        """Lets go of the messages: what submits them refers to this publication, and the collector comes rarely."""
        self.submit = self.refuse = _nothing
        self.probe = None


def _nothing(*_: object) -> None:
    pass


class HeldBytes:
    """The account of what waits for room in all full topics of a broker.

    Attributes:
        used: Bytes of publications that wait.
    """

    def __init__(self) -> None:
        self.used = 0
        self._lines = RateLimit()

    def has_room(self, size: int) -> bool:
        """Returns whether a publication of `size` bytes may wait, and logs where it may not."""
        if not self.used or self.used + size <= MAX_ALL_HELD_BYTES:
            return True
        if self._lines.passes():
            log.warning("%d bytes wait for room in all full topics: publishers to one are answered busy", self.used)
        return False


class Admission:
    """Admits publications to a topic as long as it has room. Lives in the broker's loop.

    Args:
        topic: The topic.
        overflow: `reject` or `block`: what happens to the others.
        max_messages: How many messages it may have; `None` for no bound.
        max_bytes: How many bytes they may have, about; `None` for no bound.
        timer: Makes calls later.
        all_held: The account of what waits in all topics.

    Attributes:
        rejected: Messages that were refused, since the broker has started.
    """

    def __init__(
        self,
        topic: BoundedTopic,
        overflow: str,
        max_messages: int | None,
        max_bytes: int | None,
        timer: Timer,
        all_held: HeldBytes,
    ) -> None:
        self.rejected = 0
        self._topic = topic
        self._blocks = overflow == "block"
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._timer = timer
        self._submitted = self._submitted_bytes = 0  # handed to the store, and not answered
        self._held: deque[Publication] = deque()  # waiting for room, the first one first
        self._held_bytes = 0
        self._all_held = all_held
        self._polls = False
        self._lines = RateLimit()

    @property
    def blocked(self) -> int:
        """Messages that wait for room."""
        return sum(one.count for one in self._held)

    def has_room(self, count: int, size: int) -> bool:
        """Returns whether the topic takes `count` more messages of `size` bytes; in any thread."""
        messages, used = self._topic.used()
        messages += self._submitted
        used += self._submitted_bytes
        if not messages and self._blocks:
            return True  # what is larger than the whole topic would wait for ever
        if self._max_messages is not None and messages + count > self._max_messages:
            return False
        return self._max_bytes is None or used + size <= self._max_bytes

    def take(self, one: Publication) -> None:
        """Hands a publication to the store, keeps it until there is room, or refuses it."""
        self._topic.refresh()
        if not self._held and self.has_room(one.count, one.size):
            self._submit(one)
        elif not self._blocks:
            self._probe(one, lambda: self._reject(one))
        elif self._keep(one):
            self._probe(one, lambda: None)

    def hold(self, one: Publication) -> None:
        """Keeps what the store had no room for until there is some, or refuses it."""
        if self._blocks:
            self._keep(one)
        else:
            self._reject(one)

    def _keep(self, one: Publication) -> bool:
        """Keeps a publication until there is room; returns whether it was not too much, else it is refused."""
        size = one.held_bytes
        if self._held and self._held_bytes + size > _MAX_HELD_BYTES:
            waiting, where = self._held_bytes, "it"
        elif not self._all_held.has_room(size):
            waiting, where = self._all_held.used, "all full topics"
        else:
            self._held.append(one)
            self._held_bytes += size
            self._all_held.used += size
            self._topic.touch()
            self._log("those who publish wait")
            self._watch()
            return True
        one.refuse(
            Busy(f"topic {self._topic.name!r} is full, and {waiting} bytes wait for room in {where}; publish it later")
        )
        one.release()
        return False

    def answered(self, one: Publication) -> None:
        """The store has answered a publication."""
        self._submitted -= one.count
        self._submitted_bytes -= one.size
        one.release()
        self.go_on()

    def go_on(self) -> None:
        """There may be room: submits what waits for it."""
        while self._held:
            one = self._held[0]
            if one.alive() and not self._topic.deleted and not self.has_room(one.count, one.size):
                return
            self._forget(one)
            if one.alive():
                self._submit(one)  # a topic that was deleted is told by the store
            else:
                self._give_up(one)

    def end(self, error: BrokerError | None) -> None:
        """Refuses what waits for room; with `None` its clients are to send it again to the next broker."""
        held, self._held = self._held, deque()
        self._topic.touch()
        self._all_held.used -= self._held_bytes
        self._held_bytes = 0
        for one in held:
            if error is not None:
                one.refuse(error)
            one.release()

    def _submit(self, one: Publication) -> None:
        if one.reserves:
            self._submitted += one.count
            self._submitted_bytes += one.size
        one.submit()

    def _give_up(self, one: Publication) -> None:
        one.refuse(WrongState(f"given up by its publisher before topic {self._topic.name!r} had room"))
        one.release()

    def _forget(self, one: Publication) -> None:
        self._held.remove(one)
        self._topic.touch()
        self._held_bytes -= one.held_bytes
        self._all_held.used -= one.held_bytes

    def _probe(self, one: Publication, otherwise: Callable[[], None]) -> None:
        """Has the store answer a repetition, which needs no room; else makes a call."""
        if one.probe is None:
            otherwise()
            return

        def done(answered: bool) -> None:
            if not answered:
                otherwise()
                return
            if one in self._held:
                self._forget(one)
                one.release()
            elif not self._blocks:
                one.release()

        one.probe(done)

    def _reject(self, one: Publication) -> None:
        self.rejected += one.count
        self._topic.touch()
        self._log("what is published is refused")
        messages, used = self._topic.used()
        bounds = [
            f"{name}={bound}"
            for name, bound in (("max_messages", self._max_messages), ("max_bytes", self._max_bytes))
            if bound is not None
        ]
        one.refuse(
            StoreFull(
                f"topic {self._topic.name!r} is full: it has {messages} messages of about {used} bytes, no room for "
                f"{one.count} more, and {', '.join(bounds)}; publish fewer at once or later, or set overflow"
            )
        )
        one.release()

    def _log(self, what: str) -> None:
        if self._lines.passes():
            log.warning("topic %r is full: %s", self._topic.name, what)

    def _watch(self) -> None:
        if not self._polls and self._held:
            self._polls = True
            self._timer.later(_POLL_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._polls = False
        self._topic.refresh()
        for one in [one for one in self._held if not one.alive()]:
            self._forget(one)
            self._give_up(one)
        self.go_on()
        self._watch()

"""Faults of processes and of their network, at times that a seed determines."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

BRIEF: Final = (0.0, 1.5)  # seconds of a fault


class Member(Protocol):
    """A process or a machine that the faults concern. A fault of another name is a method of its own.

    `resume` ends what any method but `kill` has begun, in the same thread.
    """

    @property
    def name(self) -> str: ...
    def resume(self) -> None: ...


class ProcessMember(Member, Protocol):
    """A process."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def lose_power(self) -> None: ...
    def wipe(self) -> None: ...


@dataclass
class Target:
    """Members of which some are faulty at a time.

    Attributes:
        members: The members.
        faults: What may happen to them, `kill`, `power` and `wipe` of a process, or other methods; the shortest and
            longest time of each.
        most: The number of members that may be faulty at a time.
        calm_s: The longest time between two faults.
        leader: Returns the member that leads, if any. Half of the faults concern it alone.
        settle: Waits until all processes but the given one are as good as before the last fault.
    """

    members: Sequence[Member]
    faults: Mapping[str, tuple[float, float]]
    most: int = 1
    calm_s: float = 1.5
    leader: Callable[[], Member | None] = lambda: None
    settle: Callable[[Member | None], None] = lambda without: None

    def run(self, chance: random.Random, stop: threading.Event, log: list[str]) -> None:
        """Lets some kinds of faults happen until the event is set; all members are well afterwards."""
        faults = chance.sample(list(self.faults), chance.randint(1, len(self.faults)))
        while not stop.wait(chance.uniform(0, self.calm_s)):
            members = chance.sample(self.members, chance.randint(1, self.most))
            fault = chance.choice(faults)
            seconds = chance.uniform(*self.faults[fault])
            if chance.random() < 0.5 and (leader := self.leader()) is not None:
                members = [leader]
            log.append(f"{time.monotonic():.3f} {fault} {', '.join(member.name for member in members)} {seconds:.2f} s")
            self._let(fault, members, lambda seconds=seconds: stop.wait(seconds))  # type: ignore[misc]

    def _let(self, fault: str, members: Sequence[Member], wait: Callable[[], object]) -> None:
        if fault in ("kill", "power", "wipe"):
            self._kill(fault, members, wait)  # type: ignore[arg-type]
            return
        for member in members:
            getattr(member, fault)()
        wait()
        for member in members:
            member.resume()

    def _kill(self, fault: str, members: Sequence[ProcessMember], wait: Callable[[], object]) -> None:
        for member in members:
            member.kill()
        wait()
        for member in members:
            if fault == "power":
                member.lose_power()
            elif fault == "wipe":
                self.settle(member)  # its disk is not the only one with a message
                with contextlib.suppress(FileNotFoundError):  # it was killed before it had a directory
                    member.wipe()
            member.start()
        if fault == "wipe":
            self.settle(None)

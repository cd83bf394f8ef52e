"""A model of who serves a blocking socket's epoll set: callers, the I/O thread, and how they make way for each other.

It reads like the code, function by function: `leader.pyx`, `sync.pyx`, `peer.pyx`, `receiver.pyx`, `driver.py`. A step
is what runs between two places where the code lets go of the interpreter's lock. In Cython these are the places that
are marked: a sleep, and the look for signals. The driver is Python, and may be interrupted between two of its reads and
writes of what others see.

Times are not numbers here. The I/O thread looks again soon (10 ms), after twice that, or late (up to a second, while
a caller sleeps in the set); what a caller ought to read waits for two of its looks at most, and never for a late one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.model.explorer import State, Step
from tests.model.io_thread_model import Driving
from tests.model.serving_state import (
    AWAKE,
    EPOLL,
    EVENT,
    FOLLOW,
    HANDLER,
    LATE,
    MAX_LOOKS,
    NAMES,
    NO_CALLER,
    OUT,
    ROOM,
    SERVING,
    SHOWS,
    SIGNALS,
    START,
    TAKES,
    Case,
    ModelState,
)


class Serving(Driving):
    """All that may happen in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.peers = range(len(case.peers))
        self.callers = range(len(case.calls))
        self.backwards = False
        self.publishes = any("fileno" in ops for ops in case.calls)
        self.passing: dict[str, Callable[[ModelState], bool]] = {
            "a descriptor is ready and is not read": self._unread,
            "a call sleeps though a message is there": self._asleep,
            "a call waits for room that is there": self._unwritten,
            "close does not end": self._unclosed,
            "the eventfd stays readable": lambda w: w.event,
        }

    def initial(self) -> State:
        case = self.case
        peers, callers = len(case.peers), len(case.calls)
        values = dict(
            START, sends=case.peers, kernel=(0,) * peers, complete=(0,) * peers, taken=(0,) * peers,
            reading=(True,) * peers, stopped=(), turn=case.turn, sight=case.turn,
            at=(OUT,) * callers, op=("",) * callers, leading=(False,) * callers, woken=(False,) * callers,
            sem=(0,) * callers, in_time=(True,) * callers, seen=((),) * callers, rooms=case.room,
        )  # fmt: skip
        return tuple(values[name] for name in NAMES)

    # ------------------------------------------------------------------ what is promised

    def broken(self, w: ModelState) -> str | None:
        for p in self.peers:
            if w.sends[p] + w.kernel[p] + w.complete[p] + w.taken[p] != self.case.peers[p]:
                return "a message is lost, or taken twice"
            if self.case.hwm and not self.case.gulp and w.complete[p] > self.case.hwm:
                return "more messages wait than recv_hwm allows"
        if w.inside != sum(at in (EPOLL, AWAKE) for at in w.at):
            return "the callers in the epoll set are counted wrongly"
        if not w.open and w.inside:
            return "the epoll set is closed under a caller"
        if sum(w.leading) > 1 or sum(at == EPOLL for at in w.at) > 1:
            return "two callers lead"
        if (w.leader != NO_CALLER) != any(w.leading) or (w.leader != NO_CALLER and not w.leading[w.leader]):
            return "the leader is not the one who leads"
        if not w.closed and w.readable_event in SHOWS and (w.readable_event == "readable") != self._has(w):
            return "the descriptor of fileno() is wrong"
        if w.event != w.signalled:
            return "the eventfd is not what it was made to be"
        if w.looks > MAX_LOOKS:
            return f"an event waits for more than {MAX_LOOKS} looks"
        if self._late(w):
            return "the I/O thread looks late though no thread serves the epoll set"
        if w.readable_event in SHOWS and not (w.closed or w.watches or w.bell or w.io != "idle"):
            return "the descriptor is the user's, and the I/O thread does not watch"
        if w.dismissed and not (w.closed or w.io != "idle" or "give way" in w.bell):
            return "the I/O thread counts as asked to make way"
        return None

    def _late(self, w: ModelState) -> bool:
        # An alarm, or what was asked of the I/O thread, has it look soon; and so has the next step of its own.
        return (
            w.timer == "late" and w.io == "idle" and w.open and not w.closed
            and not w.alarm and not w.bell and not self._served(w) and all(at in (OUT, HANDLER, FOLLOW) for at in w.at)
        )  # fmt: skip

    def _has(self, w: ModelState) -> bool:
        return any(w.complete)

    def _served(self, w: ModelState) -> bool:
        return w.leader != NO_CALLER and w.at[w.leader] in SERVING

    def _ready(self, w: ModelState) -> tuple[Any, ...]:
        """Returns what epoll_wait would report."""
        ready: list[Any] = [p for p in self.peers if w.kernel[p] and w.reading[p]]
        if self.backwards:
            ready.reverse()
        if w.event:
            ready.append(EVENT)
        if w.blocked and w.room:
            ready.append(ROOM)
        return tuple(ready)

    def _unread(self, w: ModelState) -> bool:
        if w.closed or not w.open:
            return False
        # One that has enough unread stops; it goes on when its own messages are taken.
        return any(w.kernel[p] and (w.reading[p] or not w.complete[p]) for p in self.peers) or (w.blocked and w.room)

    def _asleep(self, w: ModelState) -> bool:
        # A thread whose signal handler runs is not asleep, and takes what there is when that is done.
        return not w.closed and self._has(w) and any(w.at[c] != HANDLER for c in w.readable)

    def _unwritten(self, w: ModelState) -> bool:
        return not w.closed and bool(w.writable) and not w.blocked

    def _unclosed(self, w: ModelState) -> bool:
        return w.closed and (w.open or any(at not in (OUT, HANDLER) for at in w.at))

    # ------------------------------------------------------------------ what may happen

    def view(self, state: State) -> ModelState:
        return ModelState(state)

    def steps(self, state: State, seen: ModelState) -> Iterator[Step]:
        acts = list(self._acts(seen))
        both = sum(map(bool, seen.kernel)) > 1
        for label, actor, act in acts:
            one = self._done(state, act)
            yield Step(label, actor, one)
            if both:
                # The kernel reports several in what order it likes.
                self.backwards = True
                other = self._done(state, act)
                self.backwards = False
                if other != one:
                    yield Step(label, actor, other)

    def _done(self, state: State, act: Callable[[ModelState], None]) -> State:
        w = ModelState(state)
        act(w)
        if self._served(w) or not (w.open and not w.closed and self._ready(w)):
            w.looks = 0
        return w.freeze()

    def _acts(self, w: ModelState) -> Iterator[tuple[str, str, Callable[[ModelState], None]]]:
        case = self.case
        for p in self.peers:
            if w.sends[p] and w.open:
                yield f"peer {p} sends", "", lambda w, p=p: self._arrive(w, p)
        if w.rooms and not w.room:
            yield "the peer makes room", "", self._make_room
        if case.closes and not w.closed:
            yield "a caller closes", "", self._mark_closed
        for c in self.callers:
            yield from self._caller_acts(w, c)
        yield from self._io_acts(w)

    def _arrive(self, w: ModelState, p: int) -> None:
        w.sends[p] -= 1
        w.kernel[p] += 1

    def _make_room(self, w: ModelState) -> None:
        w.rooms -= 1
        w.room = True

    # ------------------------------------------------------------------ callers: sync.pyx

    def _caller_acts(self, w: ModelState, c: int) -> Iterator[tuple[str, str, Callable[[ModelState], None]]]:
        at, who = w.at[c], f"caller {c}"
        if at == OUT:
            if c == self.case.nested and w.at[self.case.main] != HANDLER:
                return
            if not w.closed:
                for op in self.case.calls[c]:
                    if op not in ("fileno", "release") or (w.readable_event in SHOWS) == (op == "release"):
                        yield f"{who} calls {op}", "", lambda w, op=op: self._begin(w, c, op, False)
                        if self.case.works and w.sight <= 0:
                            yield f"{who} calls {op}, late", "", lambda w, op=op: self._begin(w, c, op, True)
        elif at == SIGNALS:
            yield f"{who} has seen to signals", who, lambda w: self._go_to_sleep(w, c)
            if self.case.nested != NO_CALLER:
                yield f"{who} runs a signal handler", "", lambda w: self._set(w, c, HANDLER)
        elif at == HANDLER:
            if w.at[self.case.nested] == OUT:
                yield f"{who}: the handler ends", "", lambda w: self._set(w, c, SIGNALS)
        elif at == EPOLL:
            if not w.open or self._ready(w):
                yield f"{who} wakes up in the set", who, lambda w: self._wake_up(w, c)
            elif w.op[c] == "timed":
                yield f"{who}: its time is up", "", lambda w: self._time_out(w, c, AWAKE)
            elif c == self.case.main:
                yield f"{who}: a nap is over, or a signal comes", "", lambda w: self._set(w, c, AWAKE)
        elif at == AWAKE:
            yield f"{who} leaves the set", who, lambda w: self._lead_on(w, c)
        elif at == FOLLOW:
            if w.sem[c]:
                yield f"{who} was woken", who, lambda w: self._follow_on(w, c)
            elif w.op[c] == "timed":
                yield f"{who}: its time is up", "", lambda w: self._time_out(w, c, LATE)
            elif c == self.case.main:
                yield f"{who}: a nap is over, or a signal comes", "", lambda w: self._set(w, c, LATE)
        elif at == LATE:
            yield f"{who} goes on", who, lambda w: self._tried(w, c)

    def _set(self, w: ModelState, c: int, at: str) -> None:
        w.at[c] = at

    def _begin(self, w: ModelState, c: int, op: str, late: bool) -> None:
        w.op[c], w.in_time[c] = op, True
        if self.case.mutation == "a call is taken for a look":
            w.fresh = True
        if op == "fileno":
            w.readable_event = "shown"
            self._serve(w, late)
            self._show_readable(w)
            if not w.watched and not w.called:
                w.called = True
                self._post(w, "come")
        elif op == "release":
            w.readable_event = "released"
        elif op == "send":
            if not self._put(w):
                w.writable.append(c)
                self._sleep(w, c)
        elif self._try(w, c, late):
            self._show_readable(w)
        else:
            if op in ("recv0", "poll0", "poll") or w.behind:
                w.fresh = True
                self._serve(w, late)
                if self._try(w, c, late):
                    if op in TAKES:
                        self._after_take(w)
                    return
            if op in ("recv0", "poll0"):
                return
            w.readable.append(c)
            self._sleep(w, c)

    def _try(self, w: ModelState, c: int, late: bool = False) -> bool:
        """`_try`, or `_ready` where the call takes nothing."""
        if w.op[c] in ("poll", "poll0"):
            return self._front(w) != NO_CALLER
        p = self._pick(w, late)
        if p == NO_CALLER:
            return False
        self._take(w, p)
        return True

    def _after_take(self, w: ModelState) -> None:
        w.behind = bool(w.ring) and w.complete[w.ring[0]] > 0
        self._show_readable(w)

    def _put(self, w: ModelState) -> bool:
        """`RoundRobin.put`, one peer, send_hwm 1: what the kernel does not take is all that may wait."""
        if w.blocked:
            return False
        if w.room:
            w.room = False
        else:
            w.blocked = True
        return True

    # ------------------------------------------------------------------ waiting: leader.pyx

    def _sleep(self, w: ModelState, c: int) -> None:
        w.woken[c] = False
        w.at[c] = SIGNALS
        if c == self.case.main:
            self._look_for_signals(w, c)
        else:
            self._go_to_sleep(w, c)  # no other thread runs in between

    def _look_for_signals(self, w: ModelState, c: int) -> None:
        if self.case.mutation != "who runs handlers does not stand aside":
            if w.leading[c]:
                w.leading[c] = False
                w.leader = NO_CALLER
            self._rouse(w)

    def _go_to_sleep(self, w: ModelState, c: int) -> None:
        """The rest of `_sleep`, with the lock again."""
        if w.closed or (w.woken[c] and self.case.mutation != "a wake-up before the sleep is not seen"):
            self._tried(w, c)
            return
        if w.leader == NO_CALLER or self.case.mutation == "two leaders":
            w.leader = c
            w.leading[c] = True
            self._dismiss(w)
        if w.leading[c]:
            self._calm(w)
            w.inside += 1
            w.at[c] = EPOLL
        else:
            w.at[c] = FOLLOW

    def _wake_up(self, w: ModelState, c: int) -> None:
        """The kernel's answer, before the lock is had."""
        w.seen[c] = self._ready(w)
        w.at[c] = AWAKE

    def _time_out(self, w: ModelState, c: int, at: str) -> None:
        w.in_time[c] = False
        w.seen[c] = ()
        w.at[c] = at

    def _lead_on(self, w: ModelState, c: int) -> None:
        w.inside -= 1
        seen, w.seen[c] = w.seen[c], ()
        if w.ending:
            if w.inside == 0:
                self._end(w)
        elif seen:
            self._drain(w)
            w.fresh = True
            w.woken[c] = True
            self._handle(w, seen)
        self._tried(w, c)

    def _follow_on(self, w: ModelState, c: int) -> None:
        w.sem[c] -= 1
        self._tried(w, c)

    def _tried(self, w: ModelState, c: int) -> None:
        """`_sleep` has returned into the loop of `_take`, `poll` or `_put`."""
        wait_queue = w.writable if w.op[c] == "send" else w.readable
        if w.closed:
            self._stand_up(w, wait_queue, c)
            return
        op = w.op[c]
        done = self._put(w) if op == "send" else self._try(w, c)
        if done or not w.in_time[c]:
            self._stand_up(w, wait_queue, c)
            if done and op in TAKES:
                self._after_take(w)
        else:
            self._sleep(w, c)

    def _stand_up(self, w: ModelState, wait_queue: list[int], c: int) -> None:
        mutation = self.case.mutation
        wait_queue.remove(c)
        w.at[c] = OUT
        w.woken[c], w.sem[c], w.in_time[c], w.op[c] = False, 0, True, ""
        if w.leading[c]:
            w.leading[c] = False
            w.leader = NO_CALLER
        if w.leader == NO_CALLER and mutation != "a wake-up is not passed on":
            for other in (w.readable, w.writable):
                if other:
                    self._wake_first(w, other)
                    break
        if wait_queue and mutation != "a wake-up is not passed on":
            self._notify(w, wait_queue)
        self._rouse(w)

    def _rouse(self, w: ModelState) -> None:
        if w.drowsy and self.case.mutation != "the I/O thread is not roused":
            w.drowsy = False
            w.roused = w.alarm = True

    def _calm(self, w: ModelState) -> None:
        if w.roused and self.case.sleeps_long:
            w.roused = w.alarm = False
            w.drowsy = self.case.mutation != "the I/O thread is calmed for good"

    def _wake(self, w: ModelState, c: int) -> None:
        if not w.woken[c]:
            w.woken[c] = True
            if w.leading[c]:
                self._signal(w)
            else:
                w.sem[c] = min(w.sem[c] + 1, 2)  # what is left over wakes once more, for nothing

    def _notify(self, w: ModelState, wait_queue: list[int]) -> None:
        self._wake_first(w, wait_queue)
        self._show_readable(w)

    def _wake_first(self, w: ModelState, wait_queue: list[int]) -> None:
        for c in wait_queue:
            self._wake(w, c)
            aside = w.at[c] in (SIGNALS, HANDLER)
            if not aside or self.case.mutation == "who runs handlers does not stand aside":
                return

    def _signal(self, w: ModelState) -> None:
        if not w.signalled and w.open and self.case.mutation != "the leader is not signalled":
            w.signalled = w.event = True

    def _drain(self, w: ModelState) -> None:
        if self.case.mutation == "a signal is not drained":
            return
        if w.signalled:
            w.signalled = w.event = False

    def _show_readable(self, w: ModelState) -> None:
        if w.readable_event in SHOWS and not w.closed:
            w.readable_event = "shown" if self._front(w) == NO_CALLER else "readable"

    def _dismiss(self, w: ModelState) -> None:
        if w.watched and not w.dismissed and w.readable_event not in SHOWS:
            w.dismissed = True
            self._post(w, "give way")

    def _post(self, w: ModelState, order: str) -> None:
        w.bell.append(order)

    def _mark_closed(self, w: ModelState) -> None:
        w.closed = True
        if self.case.mutation != "close wakes no caller":
            for c in (*w.readable, *w.writable):
                self._wake(w, c)
        self._post(w, "take over")
        self._post(w, "stop")

    def _close_descriptors(self, w: ModelState) -> None:
        w.ending = True
        if w.inside == 0 or self.case.mutation == "close does not wait":
            self._end(w)

    def _end(self, w: ModelState) -> None:
        w.open = w.event = w.signalled = False

    # ------------------------------------------------------------------ the epoll set: poller.pyx, receiver.pyx

    def _serve(self, w: ModelState, late: bool = False) -> None:
        if w.open:
            self._handle(w, self._ready(w))

    def _handle(self, w: ModelState, events: tuple[Any, ...]) -> None:
        for event in events:
            if event == ROOM:
                if w.blocked and w.room:
                    w.room = w.blocked = False
                    if self.case.mutation != "room is not reported":
                        self._notify(w, w.writable)
            elif event != EVENT:
                self._take_in(w, event)

    def _take_in(self, w: ModelState, p: int) -> None:
        hwm = self.case.hwm
        while w.kernel[p] and not (hwm and w.complete[p] >= hwm):
            got = w.kernel[p] if self.case.gulp else 1
            w.kernel[p] -= got
            w.complete[p] += got
        if w.complete[p]:
            self._arrived(w, p)
        if hwm and w.complete[p] >= hwm and p not in w.stopped:
            w.stopped.append(p)
            w.reading[p] = False

    # ------------------------------------------------------------------ the receive queue: peer.pyx

    def _arrived(self, w: ModelState, p: int) -> None:
        if p not in w.ring:
            if not w.ring:
                w.turn = self.case.turn
            elif w.last == w.ring[0]:
                w.turn = 0
            w.ring.append(p)
        if self.case.mutation != "an arrival is not reported":
            self._notify(w, w.readable)

    def _pick(self, w: ModelState, late: bool) -> int:
        if w.sight <= 0 and self.case.mutation != "a call is taken for a look":
            self._look(w, late)
        return self._front(w)

    def _look(self, w: ModelState, late: bool) -> None:
        w.sight = self.case.turn
        w.turn = min(w.turn, self.case.turn)
        w.fresh = True
        if not late:
            self._dismiss(w)
        self._serve(w)

    def _front(self, w: ModelState) -> int:
        while w.ring:
            p: int = w.ring[0]
            if w.complete[p] == 0:
                w.ring.pop(0)
                w.turn = self.case.turn
                self._resume(w, p)
            elif w.turn <= 0:
                w.turn = self.case.turn
                w.ring.append(w.ring.pop(0))
            else:
                return p
        return NO_CALLER

    def _take(self, w: ModelState, p: int) -> None:
        w.complete[p] -= 1
        w.taken[p] += 1
        w.turn -= 1
        w.sight -= 1
        w.last = p
        if w.complete[p] == 0:
            self._resume(w, p)

    def _resume(self, w: ModelState, p: int) -> None:
        if p in w.stopped and self.case.mutation != "reading is not resumed":
            w.stopped.remove(p)
            self._take_in(w, p)
            if p not in w.stopped and self.case.mutation != "refill does not watch again":
                w.reading[p] = True

    # ------------------------------------------------------------------ for people

    def show(self, state: State) -> str:
        now = dict(zip(NAMES, state, strict=True))  # type: ignore[arg-type]
        first = dict(zip(NAMES, self.initial(), strict=True))  # type: ignore[arg-type]
        return " ".join(f"{name}={value!r}" for name, value in now.items() if value != first[name])

"""Signal handlers that take their time, or call the very socket that their thread waits for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import omq
from tests.support import waits


@pytest.fixture
def linked(request: pytest.FixtureRequest) -> Iterator[tuple[omq.PULL, omq.PUSH]]:
    with omq.PULL() as pull, omq.PUSH() as push:
        push.connect(pull.bind(getattr(request, "param", "tcp://127.0.0.1:0")))
        push.send(b"first")
        assert pull.recv(timeout=10) == b"first"
        yield pull, push


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def install(function: Callable[[], None]) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            function()

        signal.signal(signal.SIGUSR1, handler)

    yield install
    signal.signal(signal.SIGUSR1, before)


def when_asleep(function: Callable[[], None]) -> threading.Thread:
    """Interrupts this thread, the main one, once it sleeps; then calls a function in another one."""
    main = threading.main_thread()
    assert threading.current_thread() is main
    assert main.native_id is not None
    native = main.native_id

    def run() -> None:
        waits.until(lambda: waits.sleeps(native), "the call that waits")
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
        function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_handler_receives(linked: tuple[omq.PULL, omq.PUSH], handle: Callable[[Callable[[], None]], None]) -> None:
    pull, push = linked
    inside = threading.Event()
    got: list[bytes] = []

    def handler() -> None:
        inside.set()
        got.append(pull.recv(timeout=10))

    def send() -> None:
        assert inside.wait(10)
        waits.until(lambda: pull.readable.waiting == 2, "the handler's call")
        push.send(b"for the handler")
        waits.until(lambda: got, "its message")
        push.send(b"for the call")

    handle(handler)
    sender = when_asleep(send)
    assert pull.recv(timeout=20) == b"for the call"
    sender.join()
    assert got == [b"for the handler"]


@pytest.mark.parametrize("first", [True, False], ids=["that leads", "that follows"])
def test_handler_takes_long(
    first: bool, linked: tuple[omq.PULL, omq.PUSH], handle: Callable[[Callable[[], None]], None]
) -> None:
    pull, push = linked
    inside = threading.Event()
    got: list[bytes] = []

    def receive() -> None:
        got.append(pull.recv(timeout=20))

    def handler() -> None:
        inside.set()
        waits.until(lambda: len(got) == 2, "what others receive meanwhile")

    def send() -> None:
        assert inside.wait(10)
        if first:
            others[0].start()
        others[1].start()
        waits.until(lambda: pull.readable.waiting == 3, "the calls that wait")
        for number in range(2):
            push.send(b"%d" % number)
            waits.until(lambda: len(got) > number, f"message {number}")  # noqa: B023
        waits.until(lambda: pull.readable.waiting == 1)
        push.send(b"for the call")

    others = [threading.Thread(target=receive) for _ in range(2)]
    if not first:
        others[0].start()
        waits.until(lambda: pull.readable.waiting == 1)
    handle(handler)
    sender = when_asleep(send)
    assert pull.recv(timeout=20) == b"for the call"
    for thread in (sender, *others):
        thread.join()
    assert got == [b"0", b"1"]


class Raised(Exception):
    pass


def fail() -> None:
    raise Raised


def when_pending(push: omq.PUSH, ready: Callable[[], bool]) -> threading.Thread:
    """Sends a message to the main thread, which sleeps in a call, after a signal that has not ended its sleep."""
    main = threading.main_thread().native_id
    assert main is not None

    def run() -> None:
        waits.until(lambda: ready() and waits.sleeps(main), "the call that waits")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        push.send(b"kept")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


CALLS: dict[str, Callable[[omq.PULL], object]] = {
    "recv": lambda pull: pull.recv(timeout=10),
    "recv_multipart": lambda pull: pull.recv_multipart(timeout=10),
    "recv_many": lambda pull: pull.recv_many(timeout=10),
    "recv_message": lambda pull: pull.recv_message(timeout=10),
    "recv_into": lambda pull: pull.recv_into(bytearray(64), timeout=10),
    "recv_columns": lambda pull: pull.recv_columns(bytearray(64), bytearray(64), timeout=10),
    "iteration": next,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_handler_that_raises_when_a_wait_ends_loses_no_message(
    call: Callable[[omq.PULL], object],
    linked: tuple[omq.PULL, omq.PUSH],
    handle: Callable[[Callable[[], None]], None],
) -> None:
    pull, push = linked
    handle(fail)
    for _ in range(5):
        sender = when_pending(push, lambda: True)
        with pytest.raises(Raised):
            call(pull)
        sender.join()
        assert pull.recv(timeout=10) == b"kept"


@pytest.mark.parametrize("raises", [True, False], ids=["that raises", "that takes long"])
@pytest.mark.parametrize(
    ("leads", "linked"),
    # Over inproc the message wakes the call that is first in line, and not the leader.
    [(True, "tcp://127.0.0.1:0"), (False, "inproc://handlers")],
    ids=["that leads", "that follows"],
    indirect=["linked"],
)
def test_a_handler_leaves_the_message_to_another_thread(
    leads: bool,
    raises: bool,
    linked: tuple[omq.PULL, omq.PUSH],
    handle: Callable[[Callable[[], None]], None],
) -> None:
    pull, push = linked
    main = threading.main_thread()
    got: list[bytes] = []
    followed = threading.Event()

    def handler() -> None:
        if not leads and not followed.is_set():
            # Meanwhile the other thread becomes the leader; this one stays first in line.
            waits.until(lambda: waits.sleeps(other.native_id or 0), "the other call that leads")
            followed.set()
            return
        if not raises:
            waits.until(lambda: got, "what the other thread receives meanwhile", 10)
        raise Raised

    def follow() -> None:
        waits.until(lambda: pull.readable.waiting == 1, "the call that leads")
        got.append(pull.recv(timeout=10))

    def ready() -> bool:
        if pull.readable.waiting < 2:
            return False
        if not leads and not followed.is_set():
            signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
            assert followed.wait(10)
        return waits.sleeps(other.native_id or 0)

    handle(handler)
    other = threading.Thread(target=follow)
    other.start()
    sender = when_pending(push, ready)
    with pytest.raises(Raised):
        pull.recv(timeout=10)
    sender.join()
    other.join()
    assert got == [b"kept"]


def test_a_handler_that_raises_while_large_messages_are_read_loses_few(
    linked: tuple[omq.PULL, omq.PUSH], handle: Callable[[Callable[[], None]], None]
) -> None:
    """A message is lost only between the end of a call and the assignment of its result."""
    pull, push = linked
    count, body = 1000, bytes(300_000)
    armed = False
    raised = received = 0

    def handler() -> None:
        nonlocal armed, raised
        if armed:
            armed = False
            raised += 1
            raise Raised

    def send() -> None:
        for _ in range(count):
            push.send(body, timeout=10)
        push.send(b"end", timeout=10)

    handle(handler)
    main = threading.main_thread().ident or 0
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    threads = [threading.Thread(target=send), threading.Thread(target=interrupt)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 20
        message = body
        while message != b"end":
            assert time.monotonic() < deadline
            try:
                armed = True
                message = pull.recv(timeout=2)
                armed = False
                received += 1
            except Raised:
                pass
            except omq.ReceiveTimeout:
                break  # the last message is lost
    finally:
        armed = False
        over.set()
        for thread in threads:
            thread.join()
    lost = count + 1 - received
    assert raised > 20
    assert lost < raised / 4, f"{lost} of {raised}"


def test_another_thread_leads_while_a_handler_takes_its_time(
    linked: tuple[omq.PULL, omq.PUSH], handle: Callable[[Callable[[], None]], None]
) -> None:
    """Also where the signal comes to another thread, so that it interrupts no sleep of the main one."""
    pull, push = linked
    began, done = threading.Event(), threading.Event()
    late = 0.0

    def slow() -> None:
        began.set()
        done.wait(10)

    def follow() -> None:
        nonlocal late
        sent = float(pull.recv(timeout=20))
        late = time.monotonic() - sent
        done.set()

    def interrupt(follower: threading.Thread) -> None:
        waits.until(lambda: waits.sleeps(threading.main_thread().native_id or 0), "the call that waits")
        follower.start()
        waits.until(lambda: waits.sleeps(follower.native_id or 0), "the other call")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert began.wait(10)
        push.send(b"%r" % time.monotonic())
        done.wait(10)
        push.send(b"last")

    def receive() -> float:
        began.clear()
        done.clear()
        follower = threading.Thread(target=follow)
        interrupter = threading.Thread(target=interrupt, args=[follower])
        interrupter.start()
        assert pull.recv(timeout=20) == b"last"
        interrupter.join()
        follower.join()
        return late

    handle(slow)
    assert waits.least(receive, 0.15, runs=3) < 0.15


@pytest.mark.parametrize("by_thread", [False, True], ids=["alone", "next to a thread that closes"])
def test_an_interrupted_term_waits_for_no_socket_any_more(
    handle: Callable[[Callable[[], None]], None], tmp_path: Path, *, by_thread: bool
) -> None:
    """All that it had begun to close is closed, but for what another thread still closes, whose timeout runs."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    handle(interrupt)
    context = omq.Context()
    pushes = [omq.PUSH(context, connect=f"ipc://{tmp_path}/{number}") for number in range(3)]
    for push in pushes:
        push.send(b"x")
    other = threading.Thread(target=pushes[1].close)
    if by_thread:
        other.start()
        waits.until(lambda: pushes[1].closed)
    thread = when_asleep(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        context.term()
    thread.join(10)
    assert [push._engine.closed for push in pushes] == [True, not by_thread, True]
    if by_thread:
        with omq.PULL(bind=f"ipc://{tmp_path}/1") as pull:
            assert pull.recv(timeout=10) == b"x"
        other.join(10)
        assert pushes[1]._engine.closed
    context.term()


def test_a_handler_that_begins_when_a_nap_ends_is_covered_for_like_any_other(linked, handle):
    """A signal that another thread gets interrupts no sleep: its handler runs when the main thread looks again."""
    pull, push = linked
    watched: list[bool] = []

    class Done(Exception):
        pass

    def away() -> None:
        deadline = time.monotonic() + 0.5
        while not (on := pull._engine.driver._watches) and time.monotonic() < deadline:
            time.sleep(0.005)
        watched.append(on)
        raise Done

    handle(away)

    def elsewhere() -> None:
        time.sleep(1.5)  # the naps of the call below are long by then, and the I/O thread looks rarely
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    for _ in range(2):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        with pytest.raises(Done):
            pull.recv(timeout=10)
        thread.join()
    assert watched == [True, True]
    push.send(b"last")
    assert pull.recv(timeout=10) == b"last"

"""Each message that a blocking proxy forwards is captured once, however it ends while the capture has no room."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

import omq
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND, stable, until
from tests.unit.proxy.conftest import TCP

COUNT = 300
SIZE = 50_000  # bytes: a few of them fill the kernel's buffers, whatever the marks are
SPIES = [
    (omq.PUSH, omq.PULL, {}),
    (omq.DEALER, omq.DEALER, {}),
    (omq.PAIR, omq.PAIR, {}),
    (omq.XPUB, omq.SUB, {"xpub_nodrop": True}),
]


class Interrupted(Exception):
    """The exception of a signal handler."""


class Line:
    """The sockets of a proxy: a sender has more than they all hold, and what the capture sends is not read."""

    def __init__(self, make, crew, kind, spy, options):
        self.front, self.back = make(omq.PULL, bind=TCP), make(omq.PUSH, bind=TCP)
        self.capture = make(kind, bind=TCP, send_hwm=1, **options)
        subscribed = {"subscribe": b""} if spy is omq.SUB else {}
        self.watcher = make(spy, connect=self.capture.endpoints[0], recv_hwm=1, **subscribed)
        self.capture.wait_connected(timeout=BOUND)
        self.receiver = make(omq.PULL, connect=self.back.endpoints[0])
        self._sender, self.sent = make(omq.PUSH, connect=self.front.endpoints[0]), 0
        crew(self._send)

    def _send(self):
        for number in range(COUNT):
            self._sender.send(b"%d:" % number + bytes(SIZE), timeout=BOUND)
            self.sent += 1

    def stalls(self):
        """Waits until nothing moves."""
        until(lambda: self.sent, "the first message")
        stable(lambda: self.sent)

    def take(self, crew, times):
        """Returns the numbers that arrive at the end, and at the capture."""
        taken = [[], []]

        def receive(socket, into):
            with contextlib.suppress(omq.ReceiveTimeout):
                for _ in range(times):
                    into.append(int(socket.recv(timeout=BOUND).split(b":")[0]))
                socket.recv(timeout=0.1)
                into.append("one too many")

        threads = [crew(receive, *one) for one in zip((self.receiver, self.watcher), taken, strict=True)]
        for thread in threads:
            thread.join(2 * BOUND)
        return taken


@pytest.fixture(params=SPIES, ids=lambda param: param[0].__name__)
def line(request, make, crew):
    return Line(make, crew, *request.param)


def _end_by_command(line, proxied, command):
    proxy = proxied(line.front, line.back, capture=line.capture)
    line.stalls()
    proxy.command_proxy(command)
    proxy.ends()


def _end_by_closing(line, make, crew):
    control = make(omq.PULL, bind=TCP)

    def run():
        with pytest.raises(omq.ClosedError):
            omq.proxy(line.front, line.back, capture=line.capture, control=control)

    thread = crew(run)
    line.stalls()
    control.close()
    thread.join(BOUND)


def _end_by_signal(line, crew):
    def interrupt(*_):
        raise Interrupted

    def stop():
        line.stalls()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        crew(stop)
        with pytest.raises(Interrupted):
            omq.proxy(line.front, line.back, capture=line.capture)
    finally:
        signal.signal(signal.SIGUSR1, before)


@each_value_once("line", line=SPIES, end=["KILL", "TERMINATE", "close", "signal"])
def test_no_copy_is_lost_and_none_is_made_twice(make, crew, proxied, line, end):
    for _ in range(2):
        if end == "close":
            _end_by_closing(line, make, crew)
        elif end == "signal":
            _end_by_signal(line, crew)
        else:
            _end_by_command(line, proxied, end.encode())
    proxied(line.front, line.back, capture=line.capture)
    forwarded, captured = line.take(crew, COUNT)
    assert forwarded == captured == list(range(COUNT))


def test_what_was_forwarded_by_then_has_been_captured(make, crew, proxied, line):
    """Without a proxy that comes after it: the copies do not wait for one."""
    proxy = proxied(line.front, line.back, capture=line.capture)
    line.stalls()
    proxy.command_proxy(b"KILL")
    proxy.ends()
    (peer,) = line.back.peers
    count = peer.messages_out  # not before the end: a slow proxy may only have paused
    assert 0 < count < COUNT
    forwarded, captured = line.take(crew, count)
    assert forwarded == captured == list(range(count))
    for number in range(count, COUNT):
        assert line.front.recv(timeout=BOUND).startswith(b"%d:" % number)

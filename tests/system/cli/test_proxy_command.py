"""`omq proxy` between peers of omq and of libzmq."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

import omq
from tests.support.fork_server import ForkedProcess
from tests.system.cli.command_process import BOUND, failed, finished, start

TCP = "tcp://127.0.0.1:*"


def endpoints(process: ForkedProcess, *sides: str) -> list[str]:
    """Returns the endpoints that the proxy has bound."""
    found = []
    for side in sides:
        line = process.stderr.readline().decode()
        assert line.startswith(f"omq: {side} bound to "), line
        found.append(line.split()[-1])
    return found


@contextmanager
def ended(process: ForkedProcess, number: int = signal.SIGTERM) -> Iterator[None]:
    """Sends a signal at the end, after which the proxy ends with status 0."""
    yield
    os.kill(process.pid, number)
    assert finished(process) == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_messages_and_subscriptions_pass(number: int) -> None:
    process = start("proxy", "xsub", "xpub", "--frontend-bind", TCP, "--backend-bind", TCP, "--capture", TCP)
    front, back, capture = endpoints(process, "frontend", "backend", "capture")
    with (
        ended(process, number),
        omq.PUB(connect=front) as pub,
        omq.SUB(connect=capture, subscribe=b"") as copies,
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
    ):
        copies.wait_connected(timeout=BOUND)
        sub.connect(back)
        sub.subscribe(b"A")
        pub.wait_subscribed(b"A", timeout=BOUND)
        pub.send_multipart([b"A", b"1"])
        assert sub.recv_multipart() == [b"A", b"1"]
        while copies.recv_multipart(timeout=BOUND) != [b"A", b"1"]:
            pass  # subscriptions pass, too


def test_requests_pass_to_what_the_backend_connects_to() -> None:
    with omq.REP(bind=TCP) as rep:
        process = start("proxy", "ROUTER", "DEALER", "--frontend-bind", TCP, "--backend-connect", rep.endpoints[0])
        (front,) = endpoints(process, "frontend")
        with ended(process), omq.REQ(connect=front) as req:
            req.send(b"hello")
            assert rep.recv(timeout=BOUND) == b"hello"
            rep.send(b"world")
            assert req.recv(timeout=BOUND) == b"world"


def test_sigusr1_and_an_interval_print_the_counts() -> None:
    sides = ("pull", "push", "--frontend-bind", TCP, "--backend-bind", TCP)
    process = start("proxy", *sides)
    front, back = endpoints(process, "frontend", "backend")
    with ended(process), omq.PUSH(connect=front) as push, omq.PULL(connect=back) as pull:
        for _ in range(3):
            push.send(b"12345")
            assert pull.recv(timeout=BOUND) == b"12345"
        os.kill(process.pid, signal.SIGUSR1)
        line = process.stderr.readline().decode()
        assert line == "omq: 3 messages (15 bytes) from the frontend, 0 messages (0 bytes) from the backend\n"
    process = start("proxy", *sides, "--statistics", "0.05")
    endpoints(process, "frontend", "backend")
    with ended(process):
        assert b"0 messages" in process.stderr.readline()
        assert process.stderr.readline().endswith(b"0 and 0 messages a second\n")


def test_what_was_received_before_a_signal_is_forwarded() -> None:
    process = start("proxy", "pull", "push", "--frontend-bind", TCP, "--backend-bind", TCP)
    front, back = endpoints(process, "frontend", "backend")
    with omq.PULL(connect=back) as pull, omq.PUSH(connect=front) as push:
        pull.wait_connected(timeout=BOUND)
        push.send_many([b"%d" % number for number in range(1000)])
        assert pull.recv(timeout=BOUND) == b"0"
        push.flush(BOUND)
        while b"1000 messages" not in (line := counts(process)):
            assert line
        os.kill(process.pid, signal.SIGTERM)
        assert [pull.recv(timeout=BOUND) for _ in range(999)] == [b"%d" % number for number in range(1, 1000)]
        finished(process)


def counts(process: ForkedProcess) -> bytes:
    os.kill(process.pid, signal.SIGUSR1)
    return bytes(process.stderr.readline())


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("xsub", "xpub", "--frontend-bind", TCP), 2, "--bind or --connect is missing"),
        (("some", "xpub"), 2, "'some'"),
        (("pull", "pull", "--frontend-bind", TCP, "--backend-bind", TCP), 2, "cannot forward"),
        (("pull", "push", "--frontend-bind", "tcp://127.0.0.1", "--backend-bind", TCP), 2, "tcp://127.0.0.1"),
    ],
)
def test_errors_are_one_line(words: tuple[str, ...], status: int, named: str) -> None:
    assert named in failed(start("proxy", *words), status)

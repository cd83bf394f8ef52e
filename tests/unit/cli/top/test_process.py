"""A process that `omq top` scrapes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from omq.cli.top.process import MonitoredProcess, url_of
from omq.errors import UsageError

BOUND_S = 30.0


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("9100", "http://127.0.0.1:9100/metrics"),
        ("host:9100", "http://host:9100/metrics"),
        ("[::1]:9100", "http://[::1]:9100/metrics"),
        ("http://host:9100", "http://host:9100/metrics"),
        ("http://host:9100/", "http://host:9100/metrics"),
        ("http://host/stats/prometheus?match=omq", "http://host/stats/prometheus?match=omq"),
        ("https://host", "https://host/metrics"),
    ],
)
def test_an_endpoint_is_a_url_or_a_part_of_it(endpoint: str, url: str) -> None:
    assert url_of(endpoint) == url


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "host:", "host:x", "0", "host:0", "host:65536", ":9100", "tcp://host:1", "file:///etc/passwd"],
)
def test_other_endpoints_are_not_valid(endpoint: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        url_of(endpoint)


@contextmanager
def answering(*pieces: bytes, delay: float = 0.0) -> Iterator[str]:
    """Answers one connection with these bytes, then keeps it open, and yields the endpoint."""
    over = Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for piece in pieces:
                connection.sendall(piece)
                if over.wait(delay):
                    return
            over.wait(BOUND_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join(BOUND_S)


def state_of(endpoint: str, timeout: float) -> str:
    process = MonitoredProcess(endpoint, timeout)
    process.start()
    process.wait(time.monotonic() + BOUND_S)
    assert not process.is_up
    assert not process.has_answered
    (row,) = process.rows()
    return row.state


def test_a_process_that_hangs_has_a_timeout() -> None:
    with answering() as endpoint:
        process = MonitoredProcess(endpoint, 0.3)
        (row,) = process.rows()
        assert row.state == "no answer yet"
        assert state_of(endpoint, 0.3) == "no answer within 0.3 s"


def test_an_answer_that_never_ends_has_a_timeout() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    started = time.monotonic()
    with answering(head, *[b"# comment\n"] * 1000, delay=0.05) as endpoint:
        assert state_of(endpoint, 0.4) == "no answer within 0.4 s"
    assert time.monotonic() - started < BOUND_S


def test_other_answers_are_named(free_port: int) -> None:
    with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as endpoint:
        assert state_of(endpoint, BOUND_S) == "status 404 of HTTP"
    with answering(b"SSH-2.0-OpenSSH\r\n") as endpoint:
        assert state_of(endpoint, BOUND_S).startswith("not a page of metrics: BadStatusLine")
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff") as endpoint:
        assert state_of(endpoint, BOUND_S).startswith("not a page of metrics: UnicodeDecodeError")
    assert state_of(f"127.0.0.1:{free_port}", BOUND_S) == "away: Connection refused"

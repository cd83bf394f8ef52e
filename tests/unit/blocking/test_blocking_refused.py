"""A message that a call cannot take stays first in line, whichever peer has something meanwhile."""

from __future__ import annotations

import array
import time
from collections.abc import Callable

import pytest

import omq
from tests.unit.blocking.conftest import BOUND

SEVERAL, LARGE = [b"A", b"a"], [b"A" * 100]


def columns(pull: omq.PULL) -> None:
    pull.recv_columns(bytearray(10), array.array("i", [0] * 8))


CALLS: list[tuple[str, Callable[[omq.PULL], object], list[bytes], type[Exception]]] = [
    ("recv", lambda pull: pull.recv(), SEVERAL, omq.MultipartError),
    ("recv_into", lambda pull: pull.recv_into(bytearray(10)), SEVERAL, omq.MultipartError),
    ("recv_into", lambda pull: pull.recv_into(bytearray(10)), LARGE, omq.MessageTooLarge),
    ("recv_columns", columns, SEVERAL, omq.MultipartError),
    ("recv_columns", columns, LARGE, omq.MessageTooLarge),
]


@pytest.mark.parametrize("pause", [0.0, 0.05])  # the I/O thread serves a socket that was not served for 10 ms
@pytest.mark.parametrize(
    ("name", "call", "message", "error"), CALLS, ids=[f"{call[0]}-{call[3].__name__}" for call in CALLS]
)
def test_a_refused_message_stays_first(
    name: str, call: Callable[[omq.PULL], object], message: list[bytes], error: type[Exception], pause: float
) -> None:
    with (
        omq.PULL(bind="tcp://127.0.0.1:*") as pull,
        omq.PUSH(connect=pull.endpoints[0]) as one,
        omq.PUSH(connect=pull.endpoints[0]) as other,
    ):
        pull.wait_connected(2, timeout=BOUND)
        one.send(b"first")
        assert pull.recv(timeout=BOUND) == b"first"
        for _ in range(5):
            for _ in range(3):
                one.send_multipart(message)
            assert pull.poll(BOUND)
            with pytest.raises(error):
                call(pull)
            other.send(b"other")
            time.sleep(pause)  # so that it is there, or is not
            assert pull.recv_multipart(timeout=BOUND) == message
            rest = [pull.recv_multipart(timeout=BOUND) for _ in range(3)]
            assert sorted(rest) == sorted([message, message, [b"other"]])

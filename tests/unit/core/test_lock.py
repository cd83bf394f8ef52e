"""The lock of a socket: whoever finds it taken leaves its work to the holder."""

import threading

import pytest

from omq._core.lock import SocketLock
from omq._core.queues.pipe import Pipe


class Interrupted:
    """A session that a signal handler interrupts when it hears of the first message."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.heard = 0

    def on_message(self, parts: list[bytes]) -> None:
        self.heard += 1
        if self.heard == 1:
            raise KeyboardInterrupt
        self.messages.append(parts)


def elsewhere(work, *arguments):
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for the lock"


def test_a_lock_is_free_when_a_handler_has_raised_in_what_others_left_to_do():
    lock, session = SocketLock(), Interrupted()
    one, other = Pipe(session, None, 0, None, lock), Pipe(None, None, 0, None)
    one.join(other)

    def hold():
        with lock:
            elsewhere(other.send_parts, [b"first"])
            elsewhere(other.send_parts, [b"second"])

    with pytest.raises(KeyboardInterrupt):
        hold()
    elsewhere(lock.__enter__)
    assert session.heard == 1
    one.arrive()
    assert session.messages == [[b"second"]]

"""The lock of a socket: a thread that finds it taken leaves its work to the holder."""

import threading
import time

import pytest

from omq._core.lock import SocketLock
from omq._core.queues.peer import RecvQueue
from omq._core.queues.pipe import Pipe
from omq._core.queues.subscriptions import PublisherSendQueue
from omq._core.queues.wait_queue import WaitQueue
from tests.support.waits import least


def elsewhere(work, *arguments):
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for the lock"


def test_a_lock_is_free_when_a_handler_has_raised_in_what_others_left_to_do():
    lock, send_queue = SocketLock(), PublisherSendQueue(WaitQueue(), 0)
    one, other = Pipe(None, None, 0, None, lock), Pipe(None, None, 0, None)
    one.join(other)
    send_queue.add(one)
    commands = []

    def interrupted():
        commands.append(send_queue.subscriptions())
        raise KeyboardInterrupt

    send_queue.listen(interrupted, lambda *_: None)
    send_queue.watched = True

    def hold():
        with lock:
            elsewhere(other.send_parts, [b"\1first"])
            elsewhere(other.send_parts, [b"\1second"])

    with pytest.raises(KeyboardInterrupt):
        hold()

    def free():
        with lock:
            assert commands == [1]

    elsewhere(free)
    one.arrive()
    assert send_queue.subscriptions() == 2


def test_what_others_left_to_do_takes_no_longer_each_the_more_there_is():
    """A producer over inproc leaves a call a message while a large frame of another peer is opened."""

    def seconds_for(count):
        lock = SocketLock()
        recv_queue = RecvQueue(WaitQueue())
        one, other = Pipe(None, recv_queue, 0, None, lock), Pipe(None, None, 0, None)
        one.join(other)

        def produce():
            for _ in range(count):
                other.send_parts([b"x"])

        with lock:
            elsewhere(produce)
            begun = time.process_time()
        assert one.unread == count
        return time.process_time() - begun

    few = min(seconds_for(10_000) for _ in range(3))
    assert least(lambda: seconds_for(160_000), 80 * few) < 80 * few, "16 times as much"

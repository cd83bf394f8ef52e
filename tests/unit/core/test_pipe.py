"""inproc: what one end sends the other, in another thread."""

import pytest

from omq._core.bell import Bell
from omq._core.queues.pipe import Pipe
from omq.errors import ReceiveTimeout
from tests.support.bare_connection import Driven


def elsewhere():
    """The bell of a loop in another thread, which looks when the test calls for it."""
    bell = Bell()
    bell.open()
    return bell


async def test_an_arrival_is_reported_in_the_loop_that_it_is_for():
    bell = elsewhere()
    with Driven() as core:
        receiver, sender = Pipe(None, core.recv_queue, 0, bell), Pipe(None, None, 0, None)
        sender.join(receiver)
        sender.send_parts([b"one"])
        sender.send_parts([b"two"])
        with pytest.raises(ReceiveTimeout):
            await core.recv(timeout=0)
        bell.answer()
        assert [await core.recv(timeout=0) for _ in range(2)] == [b"one", b"two"]
    bell.close()


async def test_word_of_room_goes_out_when_half_of_the_messages_are_gone():
    bell = elsewhere()
    with Driven() as core:
        receiver, sender = Pipe(None, core.recv_queue, 4, None), Pipe(None, None, 0, bell)
        sender.join(receiver)
        for number in range(4):
            sender.send_parts([b"%d" % number])
        assert not sender.is_writable
        assert [await core.recv() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        assert not sender.is_writable
        bell.answer()
        assert sender.is_writable
    bell.close()

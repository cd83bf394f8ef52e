"""inproc: what one end tells the other, in another thread."""

import threading

import pytest

from omq._core.queues.peer import Gate, Inlet
from omq._core.queues.pipe import Pipe
from tests.unit.core.driven import Driven


class Post:
    """Has functions called in another thread; the first time a signal handler raises meanwhile."""

    def __init__(self):
        self.posted = []

    def __call__(self, function):
        self.posted.append(function)
        if len(self.posted) == 1:
            raise KeyboardInterrupt


def made_elsewhere(*arguments):
    """The end that lives in another thread."""
    made = []
    thread = threading.Thread(target=lambda: made.append(Pipe(*arguments)))
    thread.start()
    thread.join()
    return made[0]


def test_word_of_an_arrival_goes_out_again_where_a_signal_handler_has_raised():
    post = Post()
    receiver, sender = made_elsewhere(None, Inlet(Gate()), 0, post), Pipe(None, None, 0, None)
    sender.join(receiver)
    with pytest.raises(KeyboardInterrupt):
        sender.send_parts([b"one"])
    sender.send_parts([b"two"])
    sender.send_parts([b"three"])
    assert post.posted == [receiver.arrive] * 2


async def test_a_message_stays_where_a_signal_handler_raises_while_it_is_taken():
    """Half of the messages gone, the sender is told that there is room."""
    post = Post()
    with Driven() as core:
        receiver, sender = Pipe(None, core.inlet, 4, None), made_elsewhere(None, None, 0, post)
        sender.join(receiver)
        for number in range(4):
            sender.send_parts([b"%d" % number])
        assert await core.recv() == b"0"
        with pytest.raises(KeyboardInterrupt):
            core.recv().send(None)
        assert [await core.recv() for _ in range(3)] == [b"1", b"2", b"3"]
        assert post.posted == [sender.reopen] * 2

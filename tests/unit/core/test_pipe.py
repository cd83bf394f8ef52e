"""inproc: what one end tells the other, in another thread."""

import threading

import pytest

from omq._core.queues.peer import Gate, Inlet
from omq._core.queues.pipe import Pipe


def test_word_of_an_arrival_goes_out_again_where_a_signal_handler_has_raised():
    posted = []

    def post(function):
        posted.append(function)
        if len(posted) == 1:
            raise KeyboardInterrupt

    made = []
    thread = threading.Thread(target=lambda: made.append(Pipe(None, Inlet(Gate()), 0, post)))
    thread.start()
    thread.join()
    sender = Pipe(None, None, 0, None)
    sender.join(made[0])
    with pytest.raises(KeyboardInterrupt):
        sender.send_parts([b"one"])
    sender.send_parts([b"two"])
    sender.send_parts([b"three"])
    assert posted == [made[0].arrive] * 2

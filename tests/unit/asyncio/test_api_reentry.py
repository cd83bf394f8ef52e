"""Calls whose messages, buffers or handles run code of anybody's: what it may do to the call, and what not."""

import asyncio
import contextlib
import copy
import pickle
import sys

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops


async def test_a_list_that_shrinks_while_send_many_waits_ends_it(make, inproc):
    push = make(omq.PUSH, bind=inproc, send_hwm=5)
    messages = [b"%d" % number for number in range(20)]
    sending = asyncio.create_task(push.send_many(messages))
    await asyncio.sleep(0)
    del messages[3:]
    pull = make(omq.PULL, connect=inproc)
    assert await sending == 5
    assert [await pull.recv(timeout=5) for _ in range(5)] == [b"%d" % number for number in range(5)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no class of Python's own has a buffer")
async def test_a_list_that_a_buffer_of_it_shrinks_ends_send_many(make, inproc):
    class Clears:
        def __buffer__(self, flags):
            messages.clear()
            return memoryview(b"last")

    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    messages = [b"first", Clears(), *[b"never"] * 1000]
    assert await push.send_many(messages) == 2
    assert await pull.recv_many() == [b"first", b"last"]


@pytest.mark.parametrize(
    "use",
    [
        lambda call: type(call)().send(None),
        lambda call: type(call).__new__(type(call)).__await__().__next__(),
        copy.copy,
        pickle.dumps,
    ],
    ids=["made", "made and awaited", "copied", "pickled"],
)
async def test_only_sockets_make_calls(make, inproc, use):
    pull = make(omq.PULL, bind=inproc)
    call = pull.recv()
    with pytest.raises(TypeError, match="call"):
        use(call)
    call.close()


@pytest.mark.parametrize("room", [False, True])
@pytest.mark.parametrize("call", ["send_many", "send_multipart"])
async def test_a_call_whose_own_messages_stop_the_socket_ends(make, inproc, call, room):
    push = make(omq.PUSH, bind=inproc, send_hwm=10 if room else 1)
    if not room:
        await push.send(b"1")

    def messages():
        yield b"x"
        push.stop()
        yield b"y"

    with contextlib.suppress(omq.ClosedError):
        await asyncio.wait_for(getattr(push, call)(messages()), 5)
    assert push.closed


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no class of Python's own has a buffer")
@pytest.mark.parametrize("what", ["close", "throw", "send"])
async def test_a_call_is_not_acted_on_by_what_it_runs(make, inproc, what):
    class Acts:
        def __buffer__(self, flags):
            with pytest.raises(RuntimeError):
                act()
            seen.append(self)
            return memoryview(b"x")

    def act():
        if what == "throw":
            call.throw(ValueError)
        elif what == "send":
            call.send(None)
        else:
            call.close()

    seen = []
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = push.send_many([Acts(), Acts(), b"y"])
    assert await call == 3
    assert len(seen) == 2
    assert await pull.recv_many() == [b"x", b"x", b"y"]

"""The end of a socket: close with its linger, stop, a parent that is cancelled; and what the calls in it see."""

import asyncio
import gc
import threading

import pytest

import omq.asyncio as omq
from omq.engine.lifecycle import DialerState
from omq.routing import PATTERNS
from tests.unit.conftest import on_both_loops, until

CALLS = {
    "recv": lambda socket: socket.recv(),
    "recv_multipart": lambda socket: socket.recv_multipart(),
    "recv_many": lambda socket: socket.recv_many(),
    "recv_into": lambda socket: socket.recv_into(bytearray(1)),
    "recv_message": lambda socket: socket.recv_message(),
    "poll": lambda socket: socket.poll(),
    "send": lambda socket: socket.send(b"x"),
    "send_multipart": lambda socket: socket.send_multipart([b"x"]),
    "send_many": lambda socket: socket.send_many([b"x"]),
    "wait_connected": lambda socket: socket.wait_connected(),
}


# Close


async def test_close_of_a_rep_delivers_its_reply(make, endpoint):
    rep, req = await make.linked(omq.REP, omq.REQ, endpoint)
    await req.send(b"much")
    await rep.recv()
    await rep.send(bytes(30_000_000))
    closing = asyncio.create_task(rep.close())
    assert len(await req.recv()) == 30_000_000
    await asyncio.wait_for(closing, 5)


#: The types that send to one of their peers, or to all, and what talks to each.
GONE = {
    omq.REP: omq.DEALER,
    omq.ROUTER: omq.DEALER,
    omq.PUB: omq.SUB,
    omq.PUSH: omq.PULL,
    omq.SCATTER: omq.GATHER,
    omq.CLIENT: omq.SERVER,
    omq.CHANNEL: omq.CHANNEL,
    omq.SERVER: omq.CLIENT,
    omq.PEER: omq.PEER,
    omq.RADIO: omq.DISH,
}


@pytest.mark.parametrize("kind", GONE)
async def test_close_does_not_wait_for_a_peer_that_has_gone(make, kind):
    """Messages that wait for a peer go with the peer, and so does the reason to wait."""
    named = {"hello_message": b"hello"} if kind in (omq.SERVER, omq.PEER) else {}
    one, other = await make.linked(
        kind,
        GONE[kind],
        "tcp://127.0.0.1:*",
        subscribe=b"",
        identity=b"id",
        join="g",
        recv_hwm=1,
        reconnect_interval=None,
        **named,
    )
    route = {}
    if kind is omq.RADIO:
        await one.wait_subscribed("g", timeout=5)
        route = {"group": "g"}
    elif kind in (omq.SERVER, omq.PEER):
        route = {"routing_id": (await one.recv_message(timeout=5)).routing_id}
    # The first fills the peer's queue, so that it reads nothing more: the second stays here, however quick the machine.
    for body in (b"little", bytes(30_000_000)):
        if kind is omq.REP:
            await other.send_multipart([b"", b"request"])
            await one.recv()
        if kind is omq.PUB:
            await one.wait_subscribed(timeout=5)
        await one.send_multipart([b"id", body] if kind is omq.ROUTER else [body], **route)
        await other.poll()
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    other.stop()
    await asyncio.wait_for(closing, 5)


async def test_the_linger_option_holds_when_none_is_given(make, inproc):
    push = make(omq.PUSH, connect=inproc, linger=0)
    await push.send(b"x")
    await asyncio.wait_for(push.close(), 10)
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")
    push.set_options(linger=0.01)
    await asyncio.wait_for(push.close(), 10)


@on_both_loops
async def test_leaving_the_block_closes(make, endpoint):
    async with omq.PULL(bind=endpoint) as pull:
        async with omq.PUSH(connect=pull.endpoints[0]) as push:
            await push.send(b"x")
        assert push.closed
        assert await pull.recv() == b"x"
    assert pull.closed
    with pytest.raises(omq.ClosedError):
        await pull.recv()


@on_both_loops
@pytest.mark.parametrize("how", ["close", "stop", "linger-0"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_calls_that_wait_end_with_the_socket(make, inproc, call, how):
    one = make(omq.PAIR, bind=inproc, send_hwm=1)
    await one.send(b"fills the queue")
    tasks = [asyncio.create_task(call(one)) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    if how == "stop":
        one.stop()
    else:
        await one.close(linger=0.01 if how == "close" else 0)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, omq.ClosedError)


async def test_two_closes_at_once_both_return(make, inproc):
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")
    closing = [asyncio.create_task(push.close()) for _ in range(2)]
    await asyncio.sleep(0)
    pull = make(omq.PULL, bind=inproc)
    assert await pull.recv() == b"x"
    await asyncio.wait_for(asyncio.gather(*closing), 5)


async def test_a_close_whose_linger_is_over_ends_the_other_well(make, inproc):
    """Both wait for the same thing; what ends one of them must not look like the other's cancellation."""
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")
    waiting = asyncio.create_task(push.close())
    await push.close(linger=0.01)
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize("first", [False, True], ids=["the second", "the first"])
async def test_a_cancelled_close_leaves_another_one_its_linger(make, inproc, first):
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")
    closing = [asyncio.create_task(push.close()) for _ in range(2)]
    await asyncio.sleep(0)
    ended = closing.pop(0 if first else 1)
    ended.cancel()
    await asyncio.wait([ended])
    assert ended.cancelled()
    await asyncio.sleep(0.02)
    assert not closing[0].done()
    pull = make(omq.PULL, bind=inproc)
    assert await pull.recv(timeout=5) == b"x"
    await asyncio.wait_for(closing[0], 5)
    assert push._engine.closed


async def test_the_last_of_several_that_is_cancelled_stops(make, inproc):
    push = make(omq.PUSH, connect=inproc)
    await push.send(b"x")
    closing = [asyncio.create_task(push.close()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in closing:
        task.cancel()
    await asyncio.wait(closing)
    assert push._engine.closed


@on_both_loops
async def test_a_cancelled_close_stops(make, inproc):
    push = make(omq.PUSH, connect=[inproc, "tcp://127.0.0.1:9"])
    await push.send(b"x")
    closing = asyncio.create_task(push.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert push._engine.closed
    pull = make(omq.PULL, bind=inproc)
    assert await pull.poll(0.01) == 0


@on_both_loops
async def test_close_leaves_no_task(make, endpoint):
    here = asyncio.all_tasks()
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    push.connect("tcp://127.0.0.1:9")
    push.connect("tcp://localhost:9")
    await push.close(linger=0)
    await pull.close()
    assert asyncio.all_tasks() == here


@pytest.mark.parametrize("kind", list(PATTERNS), ids=lambda kind: kind.value)
async def test_a_socket_that_was_never_used_closes(make, kind):
    make = getattr(omq, kind.value)
    closed, stopped = make(), make()
    await closed.close()
    stopped.stop()
    assert closed.closed
    assert stopped.closed


# A parent


@on_both_loops
async def test_a_group_waits_for_its_sockets(endpoint):
    finished = []

    async def main():
        async with asyncio.TaskGroup() as group:
            pull = omq.PULL(bind=endpoint, parent=group)
            push = omq.PUSH(connect=pull.endpoints[0], parent=group)
            await push.send(b"x")
            assert await pull.recv() == b"x"
            await push.close()
            group.create_task(pull.close())
        finished.append(True)

    await asyncio.wait_for(main(), 5)
    assert finished


@on_both_loops
async def test_a_parent_that_is_cancelled_stops_its_sockets(endpoint):
    sockets, ready = [], asyncio.Event()

    async def main():
        async with asyncio.TaskGroup() as group:
            pull = omq.PULL(bind=endpoint, parent=group)
            push = omq.PUSH(connect=[pull.endpoints[0], "tcp://127.0.0.1:9"], parent=group)
            sockets.extend([pull, push])
            await pull.wait_connected()
            ready.set()
            await pull.recv()

    task = asyncio.create_task(main())
    await ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert all(socket.closed for socket in sockets)


@on_both_loops
async def test_a_group_that_ends_at_once_stops_its_sockets(endpoint):
    """The socket's task in the group is cancelled before it has run a step."""
    made = []

    async def main():
        async with asyncio.TaskGroup() as group:
            made.append(omq.PULL(bind=endpoint, parent=group))
            raise LookupError

    with pytest.raises(ExceptionGroup):
        await main()
    assert made[0].closed


@on_both_loops
async def test_calls_outside_of_a_cancelled_group_raise(inproc):
    """The call waits in a task that the group knows nothing about."""
    made = []
    ready = asyncio.Event()

    async def main():
        async with asyncio.TaskGroup() as group:
            made.append(omq.PULL(bind=inproc, parent=group))
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(main())
    await ready.wait()
    outside = asyncio.create_task(made[0].recv())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(omq.ClosedError):
        await asyncio.wait_for(outside, 10)
    assert made[0].closed


async def test_a_failing_sibling_stops_the_groups_sockets(inproc):
    made = []

    async def fail():
        raise LookupError("sibling")

    async def main():
        async with asyncio.TaskGroup() as group:
            made.append(omq.PULL(bind=inproc, parent=group))
            group.create_task(fail())
            await made[0].recv()

    with pytest.raises(ExceptionGroup) as raised:
        await main()
    assert isinstance(raised.value.exceptions[0], LookupError)
    assert made[0].closed
    omq.PULL(bind=inproc).stop()


async def test_a_parent_that_takes_no_more_tasks_is_the_callers_to_know(make, inproc):
    async with asyncio.TaskGroup() as group:
        pass
    with pytest.raises(RuntimeError, match="finished"):
        omq.PULL(bind=[inproc, "tcp://127.0.0.1:*"], parent=group)
    gc.collect()
    make(omq.PULL, bind=inproc)


async def test_a_socket_that_its_parent_does_not_take_is_closed(inproc):
    """The socket would go on as an orphan at the second call, and nothing would accept at the first one's endpoint."""
    group = asyncio.TaskGroup()
    pull = omq.PULL(parent=group)
    with pytest.raises(RuntimeError, match="not been entered"):
        pull.bind(inproc)
    with pytest.raises(omq.ClosedError):
        pull.bind(inproc)
    omq.PULL(bind=inproc).stop()


# Nothing is left


async def test_closed_sockets_are_collected(endpoint):
    import weakref

    gc.collect()
    watched = []
    for _ in range(5):
        async with omq.PULL(bind=endpoint) as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
            await push.send(b"x")
            await pull.recv()
            watched += [weakref.ref(one._engine) for one in (pull, push)]
    del pull, push
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert [one for one in watched if one() is not None] == []


@on_both_loops
async def test_many_sockets_closed_while_they_connect(make, endpoint):
    """Sockets that end at every stage of connecting leave nothing behind and harm no other socket."""
    pull = make(omq.PULL, bind=endpoint)
    where = pull.endpoints[0]
    for turn in range(40):
        push = omq.PUSH(connect=where)
        for _ in range(turn % 8):
            await asyncio.sleep(0)
        push.stop()
    good = make(omq.PUSH, connect=where)
    await good.send(b"still here")
    assert await pull.recv(timeout=5) == b"still here"


async def test_stop_in_another_thread_has_the_loop_do_it(endpoint, monkeypatch):
    """Closed under the loop's eyes, a descriptor that it is about to watch ends the process."""
    socket = omq.PULL(bind=endpoint)
    threads = []
    driver = socket._engine.driver
    end = driver.stop
    monkeypatch.setattr(driver, "stop", lambda: (threads.append(threading.get_ident()), end()))
    waiting = asyncio.ensure_future(socket.recv())
    await asyncio.to_thread(socket.stop)
    with pytest.raises(omq.ClosedError):
        await asyncio.wait_for(waiting, 10)
    assert socket.closed
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("call", ["bind", "connect", "unbind", "disconnect"])
async def test_endpoints_belong_to_the_loops_thread(make, inproc, call):
    socket = make(omq.PULL, bind=inproc)
    with pytest.raises(omq.StateError, match="another thread"):
        await asyncio.to_thread(getattr(socket, call), inproc)
    assert socket.endpoints == [inproc]


async def test_close_delivers_after_all_tasks_were_cancelled(make, endpoint):
    """A program that ends cancels all tasks, and then closes: the one that dials is among them."""
    push = make(omq.PUSH, connect=endpoint, reconnect_interval=0.02)
    await push.send_many([b"x"] * 100)
    await asyncio.sleep(0.05)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(push.close())
    await asyncio.sleep(0.02)
    pull = make(omq.PULL, bind=endpoint)
    assert len([await pull.recv(timeout=5) for _ in range(100)]) == 100
    await asyncio.wait_for(closing, 5)


async def test_close_delivers_after_an_attempt_was_cancelled(make, free_place):
    push = make(omq.PUSH, connect=free_place, reconnect_interval=0.001)
    await push.send(b"x")
    ((dialer,),) = push._engine.endpoints.dialers.values()
    await until(lambda: dialer.state is DialerState.WAITING)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await until(dialer._task.done)
    closing = asyncio.create_task(push.close())
    pull = make(omq.PULL, bind=free_place)
    assert await pull.recv(timeout=5) == b"x"
    await asyncio.wait_for(closing, 5)


@pytest.mark.parametrize("way", ["timeout", "group"])
async def test_a_cancellation_bounds_the_wait_at_the_end_of_a_block(make, free_place, caplog, way):
    async def send():
        async with omq.PUSH(connect=free_place, error_linger=0.2) as push:
            await push.send(b"x")
            await asyncio.Event().wait()

    async def together():
        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            await asyncio.sleep(0.05)
            raise ValueError

    async with asyncio.timeout(10):
        if way == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await send()
        else:
            with pytest.raises(ExceptionGroup):
                await together()
    assert f"left: 1 message for {free_place} (linger=0.2 s)" in caplog.text
    assert f"dropped 1 message for {free_place}: linger is over" in caplog.text

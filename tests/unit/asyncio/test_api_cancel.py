"""Cancellation at every point of a call: nothing is lost, nothing is out of order, no waiter is forgotten."""

import asyncio
import contextlib
import gc
import random
import sys
import time
import warnings

import pytest

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_cancelled_recv_has_taken_nothing(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    task = asyncio.create_task(pull.recv())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await push.send(b"x")
    assert await pull.recv() == b"x"


async def test_a_recv_cancelled_after_its_wake_up_has_taken_nothing(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    task = asyncio.create_task(pull.recv())
    await turns()
    await push.send(b"x")  # wakes it; it has not run yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await pull.recv(timeout=0) == b"x"


async def test_a_cancelled_waiter_passes_its_wake_up_on(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    first, second = asyncio.create_task(pull.recv()), asyncio.create_task(pull.recv())
    await turns()
    await push.send(b"x")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == b"x"
    assert first.cancelled()


async def test_a_cancelled_sender_passes_its_wake_up_on(make, inproc):
    pull, push = make(omq.PULL, recv_hwm=1), make(omq.PUSH, send_hwm=1)
    push.bind(inproc)
    await push.send(b"0")
    first, second = asyncio.create_task(push.send(b"1")), asyncio.create_task(push.send(b"2"))
    await turns()
    pull.connect(inproc)
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert [await pull.recv(timeout=5), await pull.recv(timeout=5)] == [b"0", b"2"]
    assert await pull.poll(0.01) == 0


async def test_pending_receivers_are_served_in_order(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    tasks = []
    for _ in range(10):
        tasks.append(asyncio.create_task(pull.recv()))
        await asyncio.sleep(0)
    await push.send_many([b"%d" % number for number in range(10)])
    assert await asyncio.gather(*tasks) == [b"%d" % number for number in range(10)]


async def test_pending_senders_are_served_in_order(make, inproc):
    pull, push = make(omq.PULL, recv_hwm=1), make(omq.PUSH, send_hwm=1)
    push.bind(inproc)
    tasks = []
    for number in range(10):
        tasks.append(asyncio.create_task(push.send(b"%d" % number)))
        await asyncio.sleep(0)
    pull.connect(inproc)
    assert [await pull.recv(timeout=5) for _ in range(10)] == [b"%d" % number for number in range(10)]
    await asyncio.gather(*tasks)


async def test_a_call_cancelled_before_its_first_step_does_nothing(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    await push.send(b"kept")
    receiving, sending = asyncio.create_task(pull.recv()), asyncio.create_task(push.send(b"never"))
    receiving.cancel()
    sending.cancel()
    await asyncio.wait([receiving, sending])
    assert receiving.cancelled()
    assert sending.cancelled()
    assert await pull.recv(timeout=0) == b"kept"
    assert await pull.poll(0) == 0


async def test_a_call_cancelled_while_it_gives_the_loop_a_turn_does_nothing(make, inproc):
    """After 256 messages without a turn of the loop a call yields before it takes: ended there it has taken nothing."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    for number in range(2000):
        await push.send(b"%d" % number)
    got, ended = [], 0
    while len(got) < 2000:
        call = pull.recv()
        try:
            call.send(None)
        except StopIteration as stop:
            got.append(int(stop.value))
        else:
            call.close()
            ended += 1
    assert got == list(range(2000))
    assert ended >= 5  # the first of them may fall into a turn that was begun before


async def test_calls_that_are_made_at_once_are_served_in_their_order(make, endpoint):
    """Also behind one that lets the loop have a turn, in bursts of any size, and however slow the program is."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=0)
    numbers = iter(range(100_000))
    expected = []
    for burst in [600, *[2] * 300, 300, *[50] * 10, *[1] * 20]:
        mine = [next(numbers) for _ in range(burst)]
        expected += mine
        tasks = [asyncio.create_task(push.send(b"%d" % number)) for number in mine]
        await asyncio.sleep(0.002 if burst == 2 else 0)
        if burst == 600:
            assert [int(await pull.recv(timeout=5)) for _ in range(600)] == expected
            expected = []
        await asyncio.gather(*tasks)
    got = await asyncio.gather(*[pull.recv(timeout=5) for _ in expected])
    assert [int(message) for message in got] == expected


@pytest.mark.parametrize("timeout", [0, 5])
async def test_a_call_that_lets_others_go_first_is_not_overtaken(make, inproc, timeout):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    await asyncio.gather(*[push.send(b"%d" % number, timeout=timeout) for number in range(1000)])
    got = await asyncio.gather(*[pull.recv(timeout=timeout) for number in range(1000)])
    assert [int(message) for message in got] == list(range(1000))


async def test_send_many_keeps_its_own_order_and_lets_others_in(make, inproc):
    """A sender of list after list does not starve others, and a sender of single messages does not stop a list."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    rounds = dict.fromkeys(["one", "other", "single"], 0)

    def go_on():
        return rounds["one"] + rounds["other"] < 16

    async def lists(name):
        while go_on():
            await push.send_many([b"%s %d" % (name.encode(), number) for number in range(5000)])
            rounds[name] += 1

    async def single():
        while go_on():
            await push.send(b"single 0")
            rounds["single"] += 1

    got = {b"one": [], b"other": [], b"single": []}

    async def receive():
        while len(got[b"one"]) + len(got[b"other"]) < 5000 * (rounds["one"] + rounds["other"]) or not all(
            task.done() for task in tasks
        ):
            for message in await pull.recv_many(100_000, timeout=5):
                name, number = message.split()
                got[name].append(int(number))

    tasks = [asyncio.create_task(lists("one")), asyncio.create_task(lists("other")), asyncio.create_task(single())]
    await asyncio.gather(*tasks, receive())
    for name in (b"one", b"other"):
        assert got[name] == list(range(5000)) * rounds[name.decode()]
    assert 0.5 < (rounds["one"] + 1) / (rounds["other"] + 1) < 2
    assert rounds["single"] > 50 * max(rounds["one"], 1) > 0


async def test_a_list_gets_on_next_to_one_that_works_long_between_two_hasty_sends(make, inproc):
    pub = make(omq.PUB, bind=inproc)

    async def hasty():
        while True:
            end = time.thread_time() + 0.005
            while time.thread_time() < end:
                pass
            await pub.send(b"x", timeout=0)
            await asyncio.sleep(0)

    task = asyncio.create_task(hasty())
    await asyncio.sleep(0)
    assert await asyncio.wait_for(pub.send_many([b"x"] * 2000, timeout=1), 5) == 2000
    task.cancel()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("kept", [False, True])
async def test_eager_tasks_leave_the_loop_its_turn_and_keep_their_order(make, inproc, kept):
    """Eager tasks begin within the step of the task that makes them: if one lets others go first, the next do, too."""
    loop = asyncio.get_running_loop()
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    tasks = [asyncio.Task(push.send(b"%d" % number), loop=loop, eager_start=True) for number in range(5000)]
    await asyncio.gather(*tasks)
    for number in range(5000, 10_000):
        task = asyncio.Task(push.send(b"%d" % number), loop=loop, eager_start=True)
        if kept:
            tasks.append(task)
    await asyncio.sleep(0.05)
    assert [int(message) for message in await pull.recv_many(20_000)] == list(range(10_000))
    turns = 0

    async def other():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    competitor = asyncio.create_task(other())
    await asyncio.sleep(0)
    for _ in range(5000):
        await asyncio.Task(push.send(b"x"), loop=loop, eager_start=True)
    assert turns >= 5
    competitor.cancel()


async def test_asyncio_timeout_loses_nothing(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def sending():
        for number in range(200):
            await push.send(b"%d" % number)
            await asyncio.sleep(random.choice([0, 0, 0.0005]))

    task = asyncio.create_task(sending())
    got = []
    while len(got) < 200:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0003):
                got.append(int(await pull.recv()))
    await task
    assert got == list(range(200))


async def test_wait_for_loses_nothing(make, endpoint):
    """`wait_for` may drop the result of what it cancels; a call that is cancelled has none."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)

    async def sending():
        for number in range(200):
            await push.send(b"%d" % number)
            await asyncio.sleep(random.choice([0, 0.0005]))

    task = asyncio.create_task(sending())
    got = []
    while len(got) < 200:
        with contextlib.suppress(TimeoutError):
            got.append(int(await asyncio.wait_for(pull.recv(), 0.0005)))
    await task
    assert got == list(range(200))


async def test_a_cancelled_send_many_has_sent_a_beginning(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=5, recv_hwm=5)
    messages = [b"%d" % number for number in range(50)]
    task = asyncio.create_task(push.send_many(messages))
    await turns()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    got = []
    while await pull.poll(0.01):
        got += await pull.recv_many()
    assert got == messages[: len(got)]
    assert len(got) == 10


async def test_a_cancelled_poll_leaves_both_gates(make, inproc):
    one, other = await make.linked(omq.PAIR, omq.PAIR, inproc, send_hwm=1, recv_hwm=1)
    await one.send(b"1")
    await one.send(b"2")
    polling = asyncio.create_task(one.poll(None, omq.POLL_IN | omq.POLL_OUT))
    await turns()
    sending, receiving = asyncio.create_task(one.send(b"3")), asyncio.create_task(one.recv())
    await turns()
    polling.cancel()
    assert [await other.recv(), await other.recv()] == [b"1", b"2"]
    await asyncio.wait_for(sending, 5)
    await other.send(b"back")
    assert await asyncio.wait_for(receiving, 5) == b"back"
    assert polling.cancelled()


async def test_cancelled_waits_for_peers_leave_nothing(make, inproc):
    pub = make(omq.PUB, bind=inproc)
    for waiting in (pub.wait_connected(), pub.wait_subscribed()):
        task = asyncio.create_task(waiting)
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not pub._engine._watchers


async def test_random_cancellation_keeps_order_and_count(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=20, recv_hwm=20)
    chance = random.Random(7)
    total = 500

    async def sending():
        number = 0
        while number < total:
            task = asyncio.create_task(push.send(b"%d" % number))
            await turns(chance.randrange(3))
            if chance.random() < 0.3:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                number += 1

    sender = asyncio.create_task(sending())
    got = []
    while len(got) < total:
        task = asyncio.create_task(pull.recv())
        await turns(chance.randrange(4))
        if chance.random() < 0.3:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            got.append(int(await task))
    await sender
    assert got == list(range(total))


# The call object itself


async def test_tasks_gather_and_wait_for_take_calls(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    assert await asyncio.gather(push.send(b"1"), push.send_many([b"2", b"3"]), pull.recv()) == [None, 2, b"1"]
    assert await asyncio.wait_for(pull.recv(), 5) == b"2"
    async with asyncio.TaskGroup() as group:
        task = group.create_task(pull.recv())
    assert task.result() == b"3"
    assert await asyncio.shield(push.send(b"4")) is None
    assert await asyncio.ensure_future(pull.recv()) == b"4"
    done, _ = await asyncio.wait([asyncio.create_task(push.send(b"5"))])
    assert done.pop().result() is None


async def test_a_call_is_awaited_once(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    sending = push.send(b"x")
    await sending
    with pytest.raises(RuntimeError, match="once"):
        await sending
    receiving = pull.recv()
    assert await receiving == b"x"
    with pytest.raises(RuntimeError, match="once"):
        await receiving


async def test_two_tasks_cannot_await_one_call(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = pull.recv()
    first = asyncio.create_task(call)
    await turns()
    with pytest.raises(RuntimeError, match="another task"):
        await call
    await push.send(b"x")
    assert await first == b"x"


async def test_a_call_that_is_never_awaited_warns(make, inproc):
    pull = make(omq.PULL, bind=inproc)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pull.recv()
        gc.collect()
    assert [(one.category, "never awaited" in str(one.message)) for one in caught] == [(RuntimeWarning, True)]


async def test_close_ends_a_call_without_a_warning(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = pull.recv()
    call.close()
    call.close()
    with pytest.raises(RuntimeError, match="once"):
        await call
    await push.send(b"x")
    assert await pull.recv() == b"x"


async def test_close_of_a_call_that_waits_frees_its_place(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    call = pull.recv()
    waiter = call.send(None)
    assert waiter is not None
    behind = asyncio.create_task(pull.recv())
    await turns()
    call.close()
    await push.send(b"x")
    assert await asyncio.wait_for(behind, 5) == b"x"


@pytest.mark.parametrize("waiting", [False, True])
async def test_throw_raises_out_of_the_call(make, inproc, waiting):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    for thrown in (ValueError("boom"), ValueError):
        call = pull.recv()
        if waiting:
            call.send(None)
        with pytest.raises(ValueError):
            call.throw(thrown)
    await push.send(b"x")
    assert await pull.recv() == b"x"


async def test_throw_takes_the_older_form(make, inproc):
    pull = make(omq.PULL, bind=inproc)
    with pytest.raises(KeyError, match="key"):
        pull.recv().throw(KeyError, "key", None)
    with pytest.raises(KeyError, match="key"):
        pull.recv().throw(KeyError, KeyError("key"))


async def test_a_call_can_be_driven_by_hand(make, inproc):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc)
    with pytest.raises(StopIteration) as stopped:
        push.send(b"x").send(None)
    assert stopped.value.value is None
    with pytest.raises(StopIteration) as stopped:
        next(iter(pull.recv_multipart().__await__()))
    assert stopped.value.value == [b"x"]

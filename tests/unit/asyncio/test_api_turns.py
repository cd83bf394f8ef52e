"""The loop's turns: other tasks run next to one that calls on and on, whatever it calls and however long it works.

Time is what this thread has worked: what other processes take of the machine does not count here.
"""

import asyncio
import contextlib
import time

import pytest

import omq.asyncio as omq
from tests.support.async_waits import stable, until
from tests.support.parameters import each_value_once

#: Seconds of work that another task may wait for its turn.
GAP = 0.1

NOTHING = {
    "recv": lambda socket: socket.recv(timeout=0),
    "recv_multipart": lambda socket: socket.recv_multipart(timeout=0),
    "recv_many": lambda socket: socket.recv_many(timeout=0),
    "recv_into": lambda socket: socket.recv_into(bytearray(10), timeout=0),
    "recv_message": lambda socket: socket.recv_message(timeout=0),
    "poll": lambda socket: socket.poll(0),
}
NO_ROOM = {
    "send": lambda socket: socket.send(b"x", timeout=0),
    "send_multipart": lambda socket: socket.send_multipart([b"x", b"y"], timeout=0),
    "send_many": lambda socket: socket.send_many([b"x"], timeout=0),
    "poll": lambda socket: socket.poll(0, omq.POLL_OUT),
}


class Others:
    """A task next to the one that is tested: it notes the longest time between two of its turns."""

    def __init__(self):
        self.turns = 0
        self.gap = 0.0

    async def run(self):
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.gap = max(self.gap, now - last)
            self.turns += 1
            last = now

    async def run_with(self, work, rounds=None, seconds=0.15):
        """Awaits `work()` for *rounds*, or seconds, and returns the turns of the others meanwhile."""
        task = asyncio.create_task(self.run())
        await asyncio.sleep(0.01)
        self.turns = 0
        end = time.thread_time() + seconds
        done = 0
        while done < rounds if rounds else time.thread_time() < end:
            await work()
            done += 1
        self.gap = max(self.gap, 0.0 if self.turns else time.thread_time() - end + seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return self


async def assert_turns(work, least=10, rounds=None):
    """Others have their turns next to a task that awaits `work()` again and again."""
    others = await Others().run_with(work, rounds)
    assert others.turns >= least
    assert others.gap < GAP


async def assert_turns_in_vain(call, error, waiter, work):
    """The same for calls that raise *error* or find nothing, also while another task waits (*waiter*) for the same."""
    waiting = asyncio.create_task(waiter()) if waiter else None

    async def ask():
        with contextlib.suppress(error):
            await call()
        busy(work)

    await assert_turns(ask)
    if waiting:
        waiting.cancel()


def busy(seconds):
    """Computes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


#: Alone or behind one that waits, and the seconds of work between two calls.
IN_VAIN = pytest.mark.parametrize(
    ("waiter", "work"),
    [
        pytest.param(False, 0, id="alone"),
        pytest.param(True, 0.001, id="behind one that waits, and works"),
        pytest.param(True, 0, id="behind one that waits", marks=pytest.mark.slow),
        pytest.param(False, 0.001, id="alone, and works", marks=pytest.mark.slow),
    ],
)


@IN_VAIN
@pytest.mark.parametrize("call", NOTHING.values(), ids=NOTHING)
async def test_asking_for_what_is_not_there(make, inproc, call, waiter, work):
    pull = make(omq.PULL, bind=inproc)
    await assert_turns_in_vain(lambda: call(pull), omq.ReceiveTimeout, waiter and pull.recv, work)


@IN_VAIN
@pytest.mark.parametrize("call", NO_ROOM.values(), ids=NO_ROOM)
async def test_sending_where_there_is_no_room(make, inproc, call, waiter, work):
    push = make(omq.PUSH, bind=inproc, send_hwm=1)
    await push.send(b"1")
    await assert_turns_in_vain(lambda: call(push), omq.SendTimeout, waiter and (lambda: push.send(b"2")), work)


@pytest.mark.parametrize("work", [0, 0.001])
@pytest.mark.parametrize("timeout", [0, None])
@pytest.mark.parametrize("events", [omq.POLL_IN, omq.POLL_OUT], ids=["in", "out"])
async def test_polling_what_is_ready(make, inproc, events, timeout, work):
    """The poll could go on for ever: only another task takes what is there."""
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    await push.send(b"x")
    polled = push if events == omq.POLL_OUT else pull

    async def ask():
        assert await polled.poll(timeout, events) == events
        busy(work)

    await assert_turns(ask)


@pytest.mark.parametrize("idle", [0, 0.3], ids=["at the start", "after a pause"])
@each_value_once("endpoint", endpoint=["tcp", "ipc", "inproc"], style=["send", "send_multipart", "send_many"])
async def test_working_between_two_sends(make, endpoint, style, idle):
    """The time that the program works on each message is not known for the first ones of a burst."""
    _pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=0, recv_hwm=0)
    calls = {
        "send": lambda: push.send(b"x"),
        "send_multipart": lambda: push.send_multipart([b"x", b"y"]),
        "send_many": lambda: push.send_many([b"x"]),
    }
    if idle:
        for _ in range(2000):
            await calls[style]()
        await asyncio.sleep(idle)

    async def work():
        await calls[style]()
        busy(0.002)

    await assert_turns(work, 15, rounds=100)


@pytest.mark.parametrize("idle", [0, 0.3], ids=["at the start", "after a pause"])
async def test_working_on_each_message(make, inproc, idle):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    if idle:
        await push.send_many([b"x"] * 2000)
        for _ in range(2000):
            await pull.recv()
        await asyncio.sleep(idle)
    await push.send_many([b"x"] * 200)

    async def work():
        await pull.recv()
        busy(0.002)

    await assert_turns(work, 15, rounds=100)


async def rate(pairs):
    """Rounds a second of several tasks that share a socket; *pairs* are what each awaits in one round."""
    done = 0

    async def run(call):
        nonlocal done
        for _ in range(3000):
            await call()
            done += 1

    begun = time.thread_time()
    await asyncio.gather(*[run(call) for call in pairs])
    return done / (time.thread_time() - begun)


@pytest.mark.parametrize("what", ["PUB send", "PUSH send", "PULL recv", "PUSH send_many"])
async def test_tasks_that_share_a_socket_are_not_served_once_a_turn(make, inproc, what):
    """Once one of them has let the loop have a turn the others must not line up for good behind each other."""
    if what == "PUB send":
        pub = make(omq.PUB, bind=inproc)
        calls = [lambda: pub.send(b"x")] * 2
    else:
        pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
        if what == "PULL recv":
            await push.send_many([b"x"] * 60_000)
            calls = [pull.recv] * 2
        elif what == "PUSH send_many":
            calls = [lambda: push.send_many([b"x"] * 10), lambda: push.send(b"x")]
        else:
            calls = [lambda: push.send(b"x")] * 2
    turns = Others()
    slow = asyncio.create_task(turns.run())
    alone = await rate(calls[:1])
    turns.turns = 0
    both = await rate(calls)
    slow.cancel()
    assert turns.turns < 1500, "6000 calls are to need far fewer turns than that"
    assert both > alone / 8


@pytest.mark.parametrize("timeout", [0, 0.0001])
async def test_no_call_is_refused_what_is_there_because_others_have_let_the_loop_have_a_turn(make, inproc, timeout):
    pull, push = await make.linked(omq.PULL, omq.PUSH, inproc, send_hwm=0, recv_hwm=0)
    tasks = []
    for _ in range(500):
        tasks.append(push.send(b"x"))
        tasks.append(push.send(b"y", timeout=timeout))
    assert await asyncio.gather(*tasks, return_exceptions=True) == [None] * 1000
    tasks = []
    for _ in range(500):
        tasks.append(pull.recv())
        tasks.append(pull.recv(timeout=timeout))
    assert set(await asyncio.gather(*tasks, return_exceptions=True)) == {b"x", b"y"}


async def test_a_send_that_waits_for_one_peer_takes_no_turn_from_the_loop(make):
    """A router's call that waits for a full peer stands in the gate; who sends on to another one never waits."""
    router = make(omq.ROUTER, bind="tcp://127.0.0.1:*", router_mandatory=True, send_hwm=5)
    full = make(omq.DEALER, connect=router.endpoints[0], identity=b"full", recv_hwm=5)
    quick = make(omq.DEALER, connect=router.endpoints[0], identity=b"quick")
    await router.wait_connected(2, timeout=5)

    filled = 0

    async def fill():
        nonlocal filled
        while True:
            await router.send_multipart([b"full", bytes(100_000)])
            filled += 1

    async def drain():
        while True:
            await quick.recv_many()

    tasks = [asyncio.create_task(fill()), asyncio.create_task(drain())]
    await until(lambda: filled)
    await stable(lambda: filled)
    assert not tasks[0].done()
    await assert_turns(lambda: router.send_multipart([b"quick", b"x"]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    full.stop()


@pytest.mark.parametrize("refused", ["unroutable", "out of turn", "no bytes", "nothing"])
async def test_calls_that_are_refused_count_for_the_turn(make, inproc, refused):
    router = make(omq.ROUTER, bind=inproc, router_mandatory=True)
    rep = make(omq.REP, connect=inproc + "-absent")
    pub = make(omq.PUB, bind=inproc + "-pub")
    call, error = {
        "unroutable": (lambda: router.send_multipart([b"gone", b"x"]), omq.UnroutableError),
        "out of turn": (lambda: rep.send(b"x"), omq.StateError),
        "no bytes": (lambda: rep.send("text"), TypeError),
        "nothing": (lambda: pub.send_many([]), omq.OmqError),
    }[refused]

    await assert_turns_in_vain(call, error, None, 0)


@pytest.mark.parametrize("pause", [0.0015, 0.006])
async def test_a_program_that_rests_pays_no_turn_for_its_calls(make, inproc, pause):
    one, other = await make.linked(omq.PAIR, omq.PAIR, inproc)
    extra = 0
    for _ in range(50):
        for socket, answer in ((one, other), (other, one)):
            call = socket.send(b"x")
            try:
                call.send(None)
            except StopIteration:
                pass
            else:
                extra += 1
                call.close()
                await socket.send(b"x")
            assert await answer.recv(timeout=5) == b"x"
        await asyncio.sleep(pause)
    assert extra <= 3

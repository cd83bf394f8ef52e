"""The interpreter's exit with open sockets: it waits as long as linger allows, and logs that it waits."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from itertools import product

import pytest

import omq
from tests.support.parameters import each_value_once
from tests.support.waits import BOUND
from tests.system.blocking.conftest import unhurried

PRELUDE = """
import atexit, sys, threading, time
import omq

linger = eval(sys.argv[1])

def report(what):
    print(what, flush=True)

def stuck():
    '''A socket with messages that no peer takes.'''
    push = omq.PUSH(connect="tcp://127.0.0.1:9", linger=linger)
    push.send_many([b"x"] * 10)
    return push
"""


def _seconds_to_end(running, bound=10.0):
    assert running.line() == "leaving"
    before = time.monotonic()
    _, error = running.process.communicate(timeout=bound)
    return time.monotonic() - before, unhurried(error), running.process.returncode


def _logs_that_it_waits(running):
    line = running.process.stderr.readline()
    assert "waits until accepted messages have left" in line, line


@each_value_once(way=["pass", "sys.exit(0)", "raise ValueError('on purpose')"], linger=["0.5", "0"])
def test_exit_waits_for_what_is_pending_as_long_as_linger(program, linger, way):
    # Several of them wait at the same time: one after the other they would take six seconds.
    running = program(PRELUDE + f"pushes = [stuck() for _ in range(12)]\nreport('leaving')\n{way}", linger)
    seconds, error, status = _seconds_to_end(running)
    assert float(linger) - 0.1 <= seconds < float(linger) + 4
    assert status == ("ValueError" in way)
    assert ("waits until accepted messages have left" in error) == (linger != "0")
    assert ("linger=0.5 s" in error) == (linger != "0")
    assert ("on purpose" in error) == (status == 1)


def test_exit_with_endless_linger_waits_until_the_peer_comes(program):
    running = program(
        PRELUDE
        + """
with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
    endpoint = pull.endpoints[0]
push = omq.PUSH(connect=endpoint)
push.send_many([b"x"] * 10)
report(endpoint)
report("leaving")
""",
        "None",
    )
    endpoint = running.line()
    assert running.line() == "leaving"
    _logs_that_it_waits(running)
    time.sleep(0.1)  # it goes on waiting
    assert running.process.poll() is None, "it did not wait"
    with omq.PULL(omq.Context(), bind=endpoint) as pull:
        assert [pull.recv(timeout=5) for _ in range(10)] == [b"x"] * 10
        running.process.communicate(timeout=5)
        pull._context.term()
    assert running.process.returncode == 0


@pytest.mark.parametrize("linger", ["0", "0.5", "None"])
def test_exit_waits_for_nothing_where_nothing_is_pending(program, linger):
    running = program(
        PRELUDE
        + """
pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0], linger=linger)
router = omq.ROUTER(connect="tcp://127.0.0.1:9", linger=linger)
pub = omq.PUB(bind="inproc://x", linger=linger)
pub.send(b"unread")
never_used = omq.PUSH(linger=linger)
never_connected = omq.PUSH(linger=linger)
never_connected.send(b"no peer can come for it")
push.send(b"x")
assert pull.recv(timeout=5) == b"x"
report("leaving")
""",
        linger,
    )
    seconds, error, status = _seconds_to_end(running)
    assert (status, error) == (0, "")
    assert seconds < 4


def test_exit_with_daemon_threads_that_wait(program):
    running = program(
        PRELUDE
        + """
pull = omq.PULL(bind="tcp://127.0.0.1:*")
full = stuck()
full.set_options(send_timeout=None)
pair = omq.PAIR(bind="tcp://127.0.0.1:*", send_hwm=1, linger=linger)
pair.send(b"x")
waits = [pull.recv, pull.recv, pull.poll, lambda: pair.send(b"x"), pair.recv, pull.wait_connected,
         lambda: omq.wait([pull])]
for wait in waits:
    threading.Thread(target=wait, daemon=True).start()
while pull.readable.waiting < 3 or pair.writable.waiting + pair.readable.waiting < 2:
    time.sleep(0.001)
report("leaving")
""",
        "0.2",
    )
    seconds, error, status = _seconds_to_end(running)
    assert status == 0
    assert seconds < 8
    assert {line.partition(" ")[2].partition(" for ")[0] for line in error.splitlines()} == {
        "waits until accepted messages have left: 10 messages",
        "waits until accepted messages have left: 1 message",
        "has dropped 10 messages",
        "has dropped 1 message",
    }


#: What daemon threads do when the program ends.
DAEMONS = {
    "recv": "pull.recv()",
    "recv_many": "pull.recv_many()",
    "iteration": "[None for _ in pull]; report('it went on')",
    "poll": "pull.poll()",
    "poll and poll": "while True: pull.poll(0.01)",
    "omq.wait": "omq.wait([pull, other])",
    "send": "while True: full.send(b'x')",
    "publish": "while True: pub.send(b'x')",
    "wait_connected": "pull.wait_connected()",
    "connect": "while True: pub.connect('inproc://other'); pub.disconnect('inproc://other')",
    "a worker that logs": """while True:
        try:
            pull.recv()
        except Exception:
            logging.exception("I go on")""",
    "an event loop": "asyncio.run(work())",
    "an event loop for ever": "loop = asyncio.new_event_loop(); task = loop.create_task(work()); loop.run_forever()",
}


#: How they are started; the module threading knows nothing of the second kind.
THREAD, NAKED = "threading.Thread(target=work_on, daemon=True).start()", "start(work_on, ())"
LIKE_RECV = ("recv_many", "iteration", "poll", "wait_connected")  # they wait in the same place
USUAL = {(daemon, THREAD) for daemon in DAEMONS if daemon not in LIKE_RECV}
USUAL |= {("recv", NAKED), ("an event loop", NAKED)}
WAYS = [pytest.param(*way, marks=() if way in USUAL else pytest.mark.slow) for way in product(DAEMONS, (THREAD, NAKED))]


@pytest.mark.parametrize(("daemon", "start"), WAYS)
def test_daemon_threads_log_nothing_at_exit_and_what_was_sent_arrives(program, daemon, start):
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
        running = program(
            f"""
import asyncio, logging, sys, threading, time
from _thread import start_new_thread as start
import omq, omq.asyncio

def report(what):
    print(what, flush=True)

async def work():
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as one:
        await asyncio.gather(*[one.recv() for _ in range(3)])

begun = []

def work_on():
    begun.append(1)
    {DAEMONS[daemon]}

logging.getLogger("omq").addFilter(lambda record: "waits until accepted messages have left" not in record.getMessage())
pull, other = omq.PULL(bind="tcp://127.0.0.1:*"), omq.PULL(bind="tcp://127.0.0.1:*")
full, pub = omq.PUSH(bind="tcp://127.0.0.1:*", linger=0), omq.PUB(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=sys.argv[1])
for _ in range(3):
    {start}
while len(begun) < 3:
    time.sleep(0.001)
time.sleep(0.1)
push.send_many([b"%d" % number + bytes(100_000) for number in range(200)])
""",
            pull.endpoints[0],
        )
        got = [int(pull.recv(timeout=20).rstrip(b"\0")) for _ in range(200)]
        assert running.end() == ""
    assert got == list(range(200))


def test_no_file_stays_where_a_loop_in_a_daemon_thread_listened(program, tmp_path):
    running = program(
        """
import asyncio, sys, threading
import omq.asyncio as omq

async def work():
    async with omq.PULL(bind=sys.argv[1]) as one:
        ready.set()
        await one.recv()

ready = threading.Event()
threading.Thread(target=asyncio.run, args=[work()], daemon=True).start()
ready.wait()
""",
        f"ipc://{tmp_path}/s",
    )
    assert running.end() == ""
    assert not list(tmp_path.iterdir())


def test_exceptions_and_exits_in_with_blocks(program):
    for way, status in (("sys.exit(3)", 3), ("raise ValueError", 1), ("raise KeyboardInterrupt", -2)):
        running = program(
            PRELUDE
            + f"""
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
    with omq.PUSH(context, connect=pull.endpoints[0]) as push:
        push.send(b"x")
        report("leaving")
        {way}
""",
            "None",
        )
        seconds, _, got = _seconds_to_end(running)
        assert seconds < 8
        assert got in (status, 130) if status == -2 else got == status


def test_ctrl_c_ends_a_lingering_exit(program):
    import signal

    running = program(PRELUDE + "push = stuck()\nreport('leaving')", "None")
    assert running.line() == "leaving"
    _logs_that_it_waits(running)
    running.asleep()
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGINT)
    running.process.communicate(timeout=5)


def test_what_is_called_at_exit_may_still_use_sockets(program):
    source = (
        PRELUDE
        + """
def farewell():
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"x")
        report(pull.recv(timeout=5))
atexit.register(farewell)
kept = omq.PULL(bind="inproc://x")
"""
    )
    assert program(source, "0").end() == "b'x'\n"
    # Registered before omq is imported, so called after omq has ended: a default context is made again, and needs a
    # thread. Python 3.12 may have none by then.
    late = "import atexit\natexit.register(lambda: farewell())\n" + source.replace("atexit.register(farewell)", "")
    out, error = program(late, "0").process.communicate(timeout=BOUND)
    error = unhurried(error)
    if sys.version_info[:2] != (3, 12) or not error:
        assert (out, error) == ("b'x'\n", "")
    else:
        assert "StateError: the interpreter is shutting down" in error


OWN_PEERS = """
import asyncio, sys, threading
import omq, omq.asyncio

endpoint, binds, way = sys.argv[1:4]
others = sys.argv[4:]
options = {"recv_hwm": 1, "send_hwm": 5, "recv_buffer": 4096, "send_buffer": 4096}
context = omq.Context()

def peers(api, one, other):
    first = api.PUSH if binds == "PUSH" else api.PULL
    second = api.PULL if binds == "PUSH" else api.PUSH
    a = first(one, bind=endpoint, **options)
    b = second(other, connect=a.endpoints, **options)
    push, pull = (a, b) if binds == "PUSH" else (b, a)
    for each in others:
        push.connect(each)
    return push, pull

def fill(one, other):
    push, pull = peers(omq, one, other)
    push.wait_connected(timeout=20)
    pull.wait_connected(timeout=20)
    try:
        while True:
            push.send(b"x" * 100_000, timeout=0.2)
    except omq.SendTimeout:
        return push, pull

async def fill_async(kept):
    push, pull = peers(omq.asyncio, None, None)
    await push.wait_connected(timeout=20)
    await pull.wait_connected(timeout=20)
    try:
        while True:
            await push.send(b"x" * 100_000, timeout=0.2)
    except omq.SendTimeout:
        kept += push, pull

def fill_in_daemon():
    async def work():
        await fill_async(kept)
        full.set()
        await asyncio.sleep(1000)
    full = threading.Event()
    threading.Thread(target=asyncio.run, args=[work()], daemon=True).start()
    full.wait()

kept = []
if way == "blocking":
    kept += fill(None, None)
elif way == "two contexts":
    kept += fill(None, context)
elif way == "asyncio":
    asyncio.run(fill_async(kept))
else:
    fill_in_daemon()
print("leaving", flush=True)
"""

_OWN_PLACES = ["tcp://127.0.0.1:*", "tcp://*:*", "ipc", "inproc://own", "ws://127.0.0.1:*/at"]
_WAYS = ["blocking", "two contexts", "asyncio", "asyncio in a daemon thread"]


@each_value_once(place=_OWN_PLACES, binds=["PULL", "PUSH"], way=_WAYS)
def test_exit_gives_up_what_only_its_own_sockets_could_take(program, tmp_path, place, binds, way):
    if way == "two contexts" and place.startswith("inproc"):
        pytest.skip("contexts share no inproc names")
    running = program(OWN_PEERS, place if place != "ipc" else f"ipc://{tmp_path}/own", binds, way)
    _, error, status = _seconds_to_end(running, BOUND)
    assert status == 0
    assert re.search(r"PUSH has dropped \d+ messages? for .*: only sockets of this process could receive it", error), (
        error
    )
    assert "waits until accepted" not in error


@pytest.mark.parametrize("way", ["blocking", "two contexts"])
def test_exit_waits_for_another_process_although_it_has_peers_of_its_own(program, free_place, way):
    running = program(OWN_PEERS, "tcp://127.0.0.1:*", "PULL", way, free_place)
    assert running.line() == "leaving"
    _logs_that_it_waits(running)
    with omq.Context() as context, omq.PULL(context, bind=free_place) as pull:
        assert pull.recv(timeout=BOUND) == b"x" * 100_000
        _, error = running.process.communicate(timeout=BOUND)
    assert "dropped" not in error
    assert running.process.returncode == 0


def test_exit_waits_for_another_process_that_has_connected_next_to_its_own(program):
    wait = "print(kept[0].endpoints[0], flush=True); kept[0].wait_connected(2)"
    source = OWN_PEERS.replace('print("leaving"', wait + '\nprint("leaving"')
    running = program(source, "tcp://127.0.0.1:*", "PUSH", "blocking")
    endpoint = running.line()
    with omq.Context() as context, omq.PULL(context, connect=endpoint, recv_hwm=1, recv_buffer=4096) as pull:
        assert running.line() == "leaving"
        while running.process.poll() is None:
            with contextlib.suppress(omq.ReceiveTimeout):
                assert pull.recv(timeout=0.1) == b"x" * 100_000
        assert "dropped" not in running.process.stderr.read()


@pytest.mark.parametrize(
    "made",
    [
        "omq.PULL(bind='tcp://127.0.0.1:*')",
        "omq.asyncio.PULL(bind='tcp://127.0.0.1:*')",
        "omq.Context()",
        "zmq.Context()",
        "zmq.Context().socket(zmq.PULL)",
        "zmq.asyncio.Context().socket(zmq.PULL)",
        "omq.broker.Client('tcp://127.0.0.1:9')",
    ],
)
def test_what_outlives_the_modules_ends_silently(program, made):
    """A prompt of Python keeps the program's names until after the modules have been cleared."""
    if "broker" in made:
        pytest.importorskip("lmdb")
    source = f"""
import threading
import omq, omq.asyncio, omq.zmq as zmq, omq.zmq.asyncio
{"import omq.broker" if "broker" in made else ""}
threading.kept = [{made}]
print("leaving", flush=True)
"""
    running = program(source)
    _, error, status = _seconds_to_end(running)
    assert (error, status) == ("", 0)

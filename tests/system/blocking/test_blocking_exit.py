"""The interpreter's exit with open sockets: it waits as long as linger says, says so, and never longer."""

from __future__ import annotations

import sys
import time

import pytest

import omq
from tests.system.blocking.conftest import unhurried
from tests.waits import BOUND

PRELUDE = """
import atexit, sys, threading, time
import omq

linger = eval(sys.argv[1])

def say(what):
    print(what, flush=True)

def stuck():
    '''A socket with messages that nobody takes.'''
    push = omq.PUSH(connect="tcp://127.0.0.1:9", linger=linger)
    push.send_many([b"x"] * 10)
    return push
"""


def _seconds_to_end(running, bound=10.0):
    assert running.line() == "leaving"
    before = time.monotonic()
    _, error = running.process.communicate(timeout=bound)
    return time.monotonic() - before, unhurried(error), running.process.returncode


def _says_that_it_waits(running):
    line = running.process.stderr.readline()
    assert "waits for what it has accepted" in line, line


@pytest.mark.parametrize("linger", ["0", "0.5"])
@pytest.mark.parametrize("way", ["pass", "sys.exit(0)", "raise ValueError('on purpose')"])
def test_exit_waits_for_what_is_pending_as_long_as_linger_says(program, linger, way):
    # Several of them wait at the same time: one after the other they would take six seconds.
    running = program(PRELUDE + f"pushes = [stuck() for _ in range(12)]\nsay('leaving')\n{way}", linger)
    seconds, error, status = _seconds_to_end(running)
    assert float(linger) - 0.1 <= seconds < float(linger) + 4
    assert status == ("ValueError" in way)
    assert ("waits for what it has accepted" in error) == (linger != "0")
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
say(endpoint)
say("leaving")
""",
        "None",
    )
    endpoint = running.line()
    assert running.line() == "leaving"
    _says_that_it_waits(running)
    time.sleep(0.3)
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
pub.send(b"nobody")
never_used = omq.PUSH(linger=linger)
never_connected = omq.PUSH(linger=linger)
never_connected.send(b"nobody can come for it")
push.send(b"x")
assert pull.recv(timeout=5) == b"x"
say("leaving")
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
say("leaving")
""",
        "0.2",
    )
    seconds, error, status = _seconds_to_end(running)
    assert status == 0
    assert seconds < 2
    assert {line.partition(" ")[2].partition(" for ")[0] for line in error.splitlines()} == {
        "waits",
        "has dropped 10 messages",
        "has dropped 1 message",
    }


#: What daemon threads do when the program ends.
DAEMONS = {
    "recv": "pull.recv()",
    "recv_many": "pull.recv_many()",
    "iteration": "[None for _ in pull]; say('it went on')",
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
QUICK = ("recv", "publish", "an event loop")  # of the naked ones
WAYS = [
    *((daemon, THREAD) for daemon in DAEMONS),
    *(pytest.param(daemon, NAKED, marks=() if daemon in QUICK else pytest.mark.slow) for daemon in DAEMONS),
]


@pytest.mark.parametrize(("daemon", "start"), WAYS)
def test_daemon_threads_say_nothing_at_exit_and_what_was_sent_arrives(program, daemon, start):
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
        running = program(
            f"""
import asyncio, logging, sys, threading, time
from _thread import start_new_thread as start
import omq, omq.asyncio

def say(what):
    print(what, flush=True)

async def work():
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as one:
        await asyncio.gather(*[one.recv() for _ in range(3)])

begun = []

def work_on():
    begun.append(1)
    {DAEMONS[daemon]}

logging.getLogger("omq").addFilter(lambda told: "waits for what it has accepted" not in told.getMessage())
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
        say("leaving")
        {way}
""",
            "None",
        )
        seconds, _, got = _seconds_to_end(running)
        assert seconds < 2
        assert got in (status, 130) if status == -2 else got == status


def test_ctrl_c_ends_a_lingering_exit(program):
    import signal

    running = program(PRELUDE + "push = stuck()\nsay('leaving')", "None")
    assert running.line() == "leaving"
    _says_that_it_waits(running)
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
        say(pull.recv(timeout=5))
atexit.register(farewell)
kept = omq.PULL(bind="inproc://x")
"""
    )
    assert program(source, "0").end() == "b'x'\n"
    # Registered before omq is imported, so called after omq has ended: a default context is made anew, and needs a
    # thread. Python 3.12 may have none by then.
    late = "import atexit\natexit.register(lambda: farewell())\n" + source.replace("atexit.register(farewell)", "")
    out, error = program(late, "0").process.communicate(timeout=BOUND)
    error = unhurried(error)
    if sys.version_info[:2] != (3, 12) or not error:
        assert (out, error) == ("b'x'\n", "")
    else:
        assert "StateError: the interpreter ends" in error

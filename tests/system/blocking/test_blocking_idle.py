"""The cost of idle sockets, and of a computing thread for the calls next to it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.alone

IDLE = """
import resource, sys, threading, time
import omq

seconds = float(sys.argv[1])
first = omq.PULL(bind="tcp://127.0.0.1:*")
sockets = [first, omq.PUSH(connect=first.endpoints[0]), omq.ROUTER(bind="tcp://127.0.0.1:*")]
sockets += [omq.DEALER(connect=sockets[2].endpoints[0]) for _ in range(3)]
sockets += [omq.PUB(bind="inproc://p"), omq.SUB(connect="inproc://p", subscribe=b""), omq.PUSH()]
sockets += [omq.REP(bind="tcp://127.0.0.1:*")]
sockets[1].send(b"x")
assert first.recv(timeout=5) == b"x"
for dealer in sockets[3:6]:
    dealer.send(b"x")
    assert sockets[2].recv_multipart(timeout=5)[1] == b"x"
if sys.argv[2] == "asleep":
    threading.Thread(target=first.recv, daemon=True).start()
    threading.Thread(target=sockets[3].recv, daemon=True).start()
time.sleep(0.3)  # what they were made to do is over

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw

before = used()
if sys.argv[2] == "main":
    assert not sockets[9].poll(seconds)
else:
    time.sleep(seconds)
after = used()
print((after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds, flush=True)
import os
os._exit(0)
"""


def test_ten_idle_sockets_cost_next_to_nothing(program):
    """The programs run side by side: idle ones do not disturb others."""
    running = {how: program(IDLE, "2", how) for how in ("idle", "asleep", "main")}
    for how, one in running.items():
        share, switches = map(float, one.end().split())
        # Over a short window during other work; `python -m bench blocking-idle` measures the real figure.
        assert share < 0.02, f"{how}: {share:.2%} of a core"
        # A thread that looked each 10 ms would wake 100 times; a busy machine adds some of its own to a few.
        assert switches < 60, f"{how}: {switches} wake-ups a second"


LEISURELY = """
import os, threading, time
import omq

pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0])
push.wait_connected(timeout=5)

def send():
    while True:
        time.sleep(0.005)
        push.send(b"x")

threading.Thread(target=send, daemon=True).start()

def switches():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name, open(f"/proc/self/task/{task}/status") as status:
            if name.read().strip() == io:
                return int(next(line for line in status if line.startswith("voluntary")).split()[1])

io = "omq-io"
(thread,) = [thread for thread in threading.enumerate() if thread.name == io]
with open(f"/proc/self/task/{thread.native_id}/comm", "w") as name:
    name.write(io)
for _ in range(50):
    pull.recv(timeout=5)
before, began = switches(), time.monotonic()
for _ in range(150):
    pull.recv(timeout=5)
print((switches() - before) / (time.monotonic() - began), flush=True)
os._exit(0)
"""


def test_an_owner_who_receives_now_and_then_does_not_wake_the_io_thread_each_time(program):
    """If it looked after the owner every 10 ms, it took a quarter of two cores with a hundred subscribers."""
    assert float(program(LEISURELY).end()) < 40


@pytest.mark.slow
def test_ten_idle_sockets_use_ten_milliseconds_in_ten_seconds(program):
    share, _ = map(float, program(IDLE, "10", "idle").end().split())
    assert share * 10 <= 0.01


def test_calls_next_to_a_computing_thread_keep_the_gil(program):
    """A call that lets go of the GIL without need gets it back only after the switch interval, 5 ms."""
    source = """
import sys, threading, time
import omq

over = False

def compute():
    while not over:
        sum(range(100))

for endpoint in ("inproc://x", "tcp://127.0.0.1:*"):
    pull = omq.PULL(bind=endpoint, recv_hwm=0)
    push = omq.PUSH(connect=pull.endpoints[0], send_hwm=0)
    push.wait_connected(timeout=5)
    pull.wait_connected(timeout=5)
    over = False
    thread = threading.Thread(target=compute)
    thread.start()
    calls, began, own = 0, time.monotonic(), time.thread_time()
    while time.monotonic() - began < 0.5:
        for _ in range(100):
            push.send(b"x" * 100)
        received = 0
        while received < 100:
            try:
                pull.recv(timeout=0)
            except omq.ReceiveTimeout:
                calls += 1
                time.monotonic()
                continue
            received += 1
        calls += 200
    own = time.thread_time() - own
    over = True
    thread.join()
    print(f"{calls / own:.0f} {own:.2f}", end=" ")
    pull.close(0); push.close(0)
"""
    figures = [float(figure) for figure in program(source).end().split()]
    for rate, own in zip(figures[::2], figures[1::2], strict=True):
        assert rate > 100_000, f"{rate} calls in a second of its own"
        assert own > 0.075, f"it ran {own} s of half a second"

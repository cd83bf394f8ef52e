"""Monitors and listeners in programs of their own: Ctrl-C, a fork, and a process without descriptors to spare."""

from __future__ import annotations

import signal
import time

import pytest

import omq
from tests.support.parameters import each_value_once

SCARCE = """
import asyncio, os, resource, sys
import omq, omq.asyncio

def spend_all_but(count):
    '''Leaves a number of descriptors to open.'''
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def report(event):
    print(event.kind, event.error.errno if event.kind == "accept_failed" else "", flush=True)
"""

BLOCKING = """
pull = omq.PULL(bind=sys.argv[1])
monitor = pull.monitor()
spend_all_but(6)
print(pull.endpoints[0], flush=True)
while (event := monitor.recv(timeout=10)).kind != "accept_failed":
    pass
report(event)
assert pull.recv(timeout=15) == b"after all"
print("received", flush=True)
pull.close()
"""

ASYNC = """
async def main():
    pull = omq.asyncio.PULL(bind=sys.argv[1])
    monitor = pull.monitor()
    spend_all_but(6)
    print(pull.endpoints[0], flush=True)
    while (event := await monitor.recv(timeout=10)).kind != "accept_failed":
        pass
    report(event)
    assert await pull.recv(timeout=15) == b"after all"
    print("received", flush=True)
    await pull.close()
asyncio.run(main())
"""


TWINS = {"blocking": BLOCKING, "asyncio": ASYNC}


@each_value_once(scheme=["tcp", "ipc"], twin=TWINS)
def test_a_listener_without_descriptors_reports_it_and_recovers(program, twin, scheme, tmp_path):
    running = program(SCARCE + TWINS[twin], "tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{tmp_path}/s")
    endpoint = running.line()
    with omq.Context() as context:
        # Peers that finish their handshake: a connection that has not would have to make room.
        peers = [omq.PUSH(context, connect=endpoint) for _ in range(12)]
        assert running.line() == "accept_failed 24"  # EMFILE
        # It does not spin meanwhile.
        before = running.seconds()
        time.sleep(0.5)
        assert running.seconds() - before < 0.25
        for peer in peers:
            peer.stop()
        push = omq.PUSH(context, connect=endpoint)
        push.send(b"after all")
        assert running.line() == "received"
        running.end()


@pytest.mark.parametrize(
    "call",
    [
        "monitor.recv()",
        pytest.param("monitor.recv(timeout=60)", marks=pytest.mark.slow),
        "for event in monitor: pass",
    ],
)
def test_ctrl_c_interrupts_a_reader(program, call):
    running = program(f"""
import omq
with omq.PULL(bind="tcp://127.0.0.1:*") as pull, pull.monitor() as monitor:
    try:
        print("ready", flush=True)
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    # Nothing is broken by it.
    where = pull.bind("tcp://127.0.0.1:*")
    event = monitor.recv(timeout=5)
    print(event.kind, event.endpoint == where, flush=True)
""")
    assert running.line() == "ready"
    running.asleep()
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "interrupted"
    assert running.line() == "listening True"
    running.end()


def test_the_monitor_of_a_forked_child_raises(program):
    running = program("""
import os
import omq, omq.asyncio

pull = omq.PULL(bind="tcp://127.0.0.1:*")
other = omq.asyncio.PULL(bind="tcp://127.0.0.1:*")
monitors = [pull.monitor(), other.monitor()]
pull.bind("tcp://127.0.0.1:*")  # an event waits
child = os.fork()
if child == 0:
    code = 0
    for call in (monitors[0].recv, monitors[1].take, pull.monitor, other.monitor, lambda: next(monitors[0])):
        try:
            call()
        except omq.StateError:
            continue
        code = 1
    repr(monitors)
    for monitor in monitors:
        monitor.close()
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
""")
    assert running.end() == "0\n"

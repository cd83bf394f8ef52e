"""A process that runs out of descriptors keeps those that it has, and leaks no others."""

from __future__ import annotations

import subprocess

from tests.support.fork_server import SOCKETS, run
from tests.support.parameters import each_value_once

# For every number of descriptors that may be left, one attempt, which may fail with the system's error.
COMMON = """
import asyncio, contextlib, os, resource, sys, time
import omq, omq.asyncio, uvloop

def table():
    found = {}
    own = {str(fd) for context in omq.Context._all for fd in context.background.descriptors}
    for fd in set(os.listdir("/proc/self/fd")) - own:
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found

def same(before):
    # From the first time on that the I/O thread is kept out there are three more, of the thread that helps it; and one
    # in the epoll set of the bound socket from the first time on that the background thread reads for its owner.
    now = table()
    more = sorted(target for fd, target in now.items() if fd not in before)
    if more and more[0].endswith("/syscall"):
        more = more[1:]
        if "anon_inode:[eventpoll]" in more and "anon_inode:[eventfd]" in more:
            more.remove("anon_inode:[eventfd]")
            more.remove("anon_inode:[eventpoll]")
    if "anon_inode:[eventfd]" in more:
        more.remove("anon_inode:[eventfd]")
    return not more and all(now.get(fd) == target for fd, target in before.items())

class Scarce:
    def __init__(self, spare):
        self.spare = spare
        self.failed = False

    def __enter__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(table()) + 1 + self.spare, self.limits[1]))
        with contextlib.suppress(OSError):
            while True:
                self.held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(min(self.spare, len(self.held))):
            os.close(self.held.pop())
        return self

    def __exit__(self, kind, error, trace):
        for fd in self.held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        self.failed = kind is not None and issubclass(kind, OSError)
        return self.failed

END = time.monotonic() + 30
"""

BLOCKING = """
outcomes = []
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
    before = table()
    for spare in range(16):
        made = []
        with Scarce(spare) as scarce:
            made.append(ATTEMPT)
        outcomes.append(not scarce.failed)
        while made:
            made.pop().stop()
        while not same(before) and time.monotonic() < END:
            time.sleep(0.001)  # what is closed leaves in the I/O thread's own time
        assert same(before), f"with {spare} left, {before} became {table()}"
print(outcomes[0], outcomes[-1])
"""

ASYNCIO = """
async def main():
    outcomes = []
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as pull:
        context = None
        before = table()
        for spare in range(16):
            made = []
            with Scarce(spare) as scarce:
                made.append(ATTEMPT)
            outcomes.append(not scarce.failed)
            while made:
                made.pop().stop()
            while not same(before) and time.monotonic() < END:
                await asyncio.sleep(0.001)  # what is closed leaves in the loop's own time
            assert same(before), f"with {spare} left, {before} became {table()}"
    print(outcomes[0], outcomes[-1])

uvloop.run(main())
"""

ATTEMPTS = {
    "bind tcp": 'FACE.PULL(context, bind="tcp://127.0.0.1:*")',
    "bind ipc": 'FACE.PULL(context, bind=f"ipc://@omq-descriptors-{os.getpid()}")',
    "connect": "FACE.PUSH(context, connect=pull.endpoints[0])",
    "bind udp": 'FACE.DISH(context, bind="udp://127.0.0.1:*")',
    "connect udp": 'FACE.RADIO(context, connect="udp://127.0.0.1:9")',
    "fileno": "(lambda one: (one.fileno(), one)[1])(FACE.PULL(context))",
}


@each_value_once(twin=["blocking", "asyncio"], attempt=ATTEMPTS)
def test_a_process_out_of_descriptors_keeps_those_that_it_has(twin, attempt):
    """The standard input is the first that goes where an object that opened nothing closes descriptor 0."""
    face, rest = {"blocking": ("omq", BLOCKING), "asyncio": ("omq.asyncio", ASYNCIO)}[twin]
    source = COMMON + rest.replace("ATTEMPT", ATTEMPTS[attempt].replace("FACE", face))
    done = run("-c", source, stdin=subprocess.DEVNULL, template=SOCKETS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "True", done.stdout


THREADLESS = """
import threading

def refuse(thread):
    raise RuntimeError("can't start new thread")

start = threading.Thread.start
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*"):
    pass  # the first loop of a process opens what stays
with omq.Context() as context:
    before = table()
    threading.Thread.start = refuse
    for _ in range(3):
        try:
            omq.PULL(context, bind="tcp://127.0.0.1:*")
        except RuntimeError as error:
            assert "thread" in str(error)
    assert same(before), f"{before} became {table()}"
    threading.Thread.start = start
    omq.PULL(context, bind="tcp://127.0.0.1:*").close()
"""


def test_an_io_thread_that_the_system_does_not_give_leaves_nothing_behind():
    done = run("-c", COMMON + THREADLESS, template=SOCKETS)
    assert done.returncode == 0, done.stderr

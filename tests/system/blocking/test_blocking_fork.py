"""A forked child: its default context is new, and it does not touch the parent's sockets."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What a child process does with a parent's sockets: each call refuses at once, and closing is silent.
PRELUDE = """
import gc, multiprocessing, os, sys, threading, time
import omq

def refuse_all(sockets, context):
    began = time.monotonic()
    for socket in sockets:
        calls = [
            lambda: socket.send(b"x"), lambda: socket.send_many([b"x"]), lambda: socket.send_multipart([b"x"]),
            lambda: socket.recv(), lambda: socket.recv_many(), lambda: socket.recv_multipart(),
            lambda: socket.recv_into(bytearray(9)), lambda: socket.recv_message(), lambda: next(socket),
            lambda: socket.poll(), lambda: socket.poll(0, omq.POLL_OUT), lambda: socket.fileno(),
            lambda: socket.release_fileno(),
            lambda: socket.bind("tcp://127.0.0.1:*"), lambda: socket.connect("tcp://127.0.0.1:9"),
            lambda: socket.unbind("tcp://127.0.0.1:9"), lambda: socket.wait_connected(),
            lambda: omq.wait([socket], 1), lambda: socket.set_options(send_hwm=3),
            lambda: omq.PULL(context), lambda: context.check(), lambda: socket.peers,
        ]
        for number, call in enumerate(calls):
            try:
                call()
            except omq.StateError:
                continue
            raise SystemExit(f"call {number} did not refuse")
        repr(socket), socket.endpoints, socket.closed
        with socket:
            pass
        socket.stop()
        socket.close()
    context.term()
    assert time.monotonic() - began < 2, "it waited"

def use_default():
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"in the child")
        assert pull.recv(timeout=5) == b"in the child"
    assert omq.Context.default().check() is None

def traffic(push, pull, count=500):
    for n in range(count):
        push.send(b"%d" % n, timeout=5)
        assert pull.recv(timeout=5) == b"%d" % n
"""


def test_a_child_has_a_new_context_and_leaves_the_parent_alone(program):
    source = (
        PRELUDE
        + """
pull = omq.PULL(bind=sys.argv[1])
push = omq.PUSH(connect=pull.endpoints[0])
traffic(push, pull)
for way in ("return", "exit", "_exit", "drop"):
    push.send(b"on its way")
    pid = os.fork()
    if pid == 0:
        if way == "drop":
            del push, pull
            gc.collect()
            use_default()
            gc.collect()
            sys.exit(0)
        refuse_all([push, pull], push._context)
        use_default()
        if way == "_exit":
            os._exit(0)
        sys.exit(0)
    assert pull.recv(timeout=5) == b"on its way"
    traffic(push, pull)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, way
    traffic(push, pull)
push.close(); pull.close()
"""
    )
    for endpoint in ("tcp://127.0.0.1:*", "inproc://x"):
        program(source, endpoint).end()


@pytest.mark.parametrize("forks", [15, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(180)])])
def test_a_child_of_a_process_whose_threads_are_at_work(program, tmp_path, forks):
    """Threads may hold any lock, sleep, or have any message on its way at the moment of the fork."""
    source = (
        PRELUDE
        + """
pull = omq.PULL(bind=sys.argv[1], recv_hwm=50)
push = omq.PUSH(connect=pull.endpoints[0], send_hwm=50)
idle = omq.DEALER(bind="tcp://127.0.0.1:*")
push.wait_connected(timeout=5)
over = False
received = []

def send():
    n = 0
    while not over or n <= 100:
        push.send(b"%d" % n + b"x" * (n % 3 * 3000), timeout=5)
        n += 1
    push.send(b"end")

def receive():
    while True:
        message = pull.recv(timeout=5)
        if message == b"end":
            return
        received.append(int(message.rstrip(b"x")))

threads = [threading.Thread(target=work) for work in (send, receive)]
threads.append(threading.Thread(target=idle.poll, daemon=True))
for thread in threads:
    thread.start()
pids = []
for _ in range(int(sys.argv[2])):
    time.sleep(0.005)
    pid = os.fork()
    if pid == 0:
        refuse_all([push, pull, idle], push._context)
        use_default()
        sys.exit(0)
    pids.append(pid)
    if len(pids) == 4:
        assert os.waitstatus_to_exitcode(os.waitpid(pids.pop(0), 0)[1]) == 0
for pid in pids:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
over = True
for thread in threads[:2]:
    thread.join(10)
    assert not thread.is_alive()
assert received == list(range(len(received))) and len(received) > 100
idle.close(0)
"""
    )
    program(source, f"ipc://{tmp_path}/s", str(forks)).end(2.5 * forks + 20, silent=False)


def test_a_child_does_not_keep_the_parent_s_connections_and_ports(program):
    """The end of a parent's socket is seen at once, though a child lives on that inherited the descriptors."""
    source = (
        PRELUDE
        + """
pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0], reconnect_interval=None)
push.wait_connected(timeout=5)
here, there = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(there)
    os.read(here, 1)
    os._exit(0)
endpoint = pull.endpoints[0]
pull.stop()
end = time.monotonic() + 5
while push.peers and time.monotonic() < end:
    time.sleep(0.01)
assert not push.peers, "the connection is open still"
again = omq.PULL(bind=endpoint)
again.close()
os.write(there, b"x")
os.waitpid(pid, 0)
"""
    )
    program(source).end()


def test_a_child_does_not_keep_a_connection_that_the_parent_was_making(program):
    # Forks as soon as there is a descriptor, which may be before anybody has noted it.
    source = (
        PRELUDE
        + """
import socket

def sockets():
    # The TCP connections: the resolver has other sockets for a moment.
    with open("/proc/net/tcp") as table:
        inodes = {line.split()[9] for line in table}
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if link.startswith("socket:[") and link[8:-1] in inodes:
            found.append(link)
    return sorted(found)

server = socket.create_server(("127.0.0.1", 0), backlog=0)
fillers = [socket.socket() for _ in range(4)]
for one in fillers:  # the next one that comes gets no answer
    one.setblocking(False)
    one.connect_ex(server.getsockname())
before = sockets()
push = omq.PUSH(connect="tcp://127.0.0.1:%d" % server.getsockname()[1], linger=0)
end = time.monotonic() + 5
while sockets() == before and time.monotonic() < end:
    time.sleep(0.001)
assert len(sockets()) == len(before) + 1
pid = os.fork()
if pid == 0:
    os._exit(sockets() != before)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child has the connection, too"
push.stop()
server.close()
for one in fillers:
    one.close()
"""
    )
    program(source).end()


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(one, marks=pytest.mark.slow) for one in ("spawn", "forkserver"))]
)
def test_multiprocessing(tmp_path, method):
    path = tmp_path / "work.py"
    path.write_text("""
import multiprocessing, sys
import omq

def work(endpoint, number):
    with omq.PUSH(connect=endpoint) as push:
        for n in range(100):
            push.send(b"%d %d" % (number, n))

if __name__ == "__main__":
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
        processes = multiprocessing.get_context(sys.argv[1])
        pull.poll(0)
        with omq.PUSH(connect=pull.endpoints[0]) as push:
            push.send(b"9 9")
            assert pull.recv(timeout=5) == b"9 9"
        crew = [processes.Process(target=work, args=(pull.endpoints[0], n)) for n in range(3)]
        for one in crew:
            one.start()
        got = sorted(tuple(map(int, pull.recv(timeout=20).split())) for _ in range(300))
        assert got == [(number, n) for number in range(3) for n in range(100)]
        for one in crew:
            one.join(10)
            assert one.exitcode == 0
""")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), method], capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

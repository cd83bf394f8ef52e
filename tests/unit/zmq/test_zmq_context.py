"""Contexts of `omq.zmq`: their end, shadows, options, and forked children."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

import omq.zmq as zmq


def test_term_waits_for_sockets_and_interrupts_calls() -> None:
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind("tcp://127.0.0.1:*")
    waits, seen = threading.Event(), list[Any]()

    def receive() -> None:
        waits.set()
        try:
            socket.recv()
        except zmq.ContextTerminated as error:
            seen.append(error.errno)
        try:
            socket.recv()
        except zmq.ContextTerminated as error:
            seen.append(error.errno)
        seen.append(socket.closed)
        socket.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    assert waits.wait(10)
    context.term()
    receiver.join(10)
    assert seen == [zmq.ETERM, zmq.ETERM, False]
    assert context.closed


def test_options_are_inherited(context: zmq.Context[Any]) -> None:
    context.linger = 7
    context.subscribe = b"x"
    assert context.socket(zmq.PUSH).linger == 7
    del context.linger
    assert context.socket(zmq.PUSH).linger == -1


def test_the_number_of_sockets_is_limited(context: zmq.Context[Any]) -> None:
    context.max_sockets = 1
    first = context.socket(zmq.PUSH)
    with pytest.raises(zmq.ZMQError):
        context.socket(zmq.PUSH)
    first.close()
    context.socket(zmq.PUSH)


def test_a_shadow_of_a_terminated_context_makes_no_sockets() -> None:
    context: zmq.Context[Any] = zmq.Context()
    shadow: zmq.Context[Any] = zmq.Context.shadow(context)
    context.term()
    with pytest.raises(zmq.ZMQError) as caught:
        shadow.socket(zmq.PUB)
    assert caught.value.errno == zmq.EFAULT


PROGRAM = """
import omq.zmq as zmq
context = zmq.Context()
sockets = [context.socket(zmq.PUSH) for _ in range(2)]
for socket in sockets:
    socket.connect("tcp://127.0.0.1:1")
    socket.send(b"x")
sockets[0].close()
print("end", flush=True)
"""


def test_the_exit_does_not_wait_for_messages_without_a_peer() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "end\n")


def test_a_child_has_its_own_instance() -> None:
    parent: zmq.Context[Any] = zmq.Context.instance()
    socket = parent.socket(zmq.PULL)
    socket.bind("tcp://127.0.0.1:*")
    pid = os.fork()
    if pid == 0:
        ok = zmq.Context.instance() is not parent
        try:
            socket.recv(zmq.DONTWAIT)
            ok = False
        except zmq.ZMQError:
            pass
        socket.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    socket.close()
    parent.term()


EXIT_WITH_DAEMONS = """
import importlib, sys, threading
zmq = importlib.import_module(sys.argv[1])
context = zmq.Context.instance()
ready = threading.Barrier(4)
def wait(call):
    socket = context.socket(zmq.PULL)
    socket.bind("tcp://127.0.0.1:*")
    ready.wait()
    call(socket)
def select(socket):
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.poll()
calls = [lambda socket: socket.recv(), lambda socket: socket.recv_multipart(copy=False), select]
for call in calls:
    threading.Thread(target=wait, args=[call], daemon=True).start()
ready.wait()
"""


EXIT_WITH_UNSENT = """
import importlib, sys
zmq = importlib.import_module(sys.argv[1])
context = zmq.Context.instance()
sockets = [context.socket(kind) for kind in (zmq.REQ, zmq.PUSH)]
for socket in sockets:
    socket.connect("tcp://127.0.0.1:1")
    socket.send(b"unsent")
"""


@pytest.mark.parametrize("module", ["omq.zmq", "zmq"])
@pytest.mark.parametrize("program", [EXIT_WITH_DAEMONS, EXIT_WITH_UNSENT], ids=["daemons", "unsent"])
def test_nothing_is_reported_when_a_program_ends(program: str, module: str) -> None:
    pytest.importorskip("zmq")
    command = [sys.executable, "-c", program, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


INTERRUPTED = """
import signal
import omq
import omq.zmq as zmq
context = zmq.Context()
socket = context.socket(zmq.REQ)
socket.connect("tcp://127.0.0.1:1")
socket.send(b"unsent")
term = omq.Context.term
def interrupted_term(self, linger=None):
    omq.Context.term = term
    signal.raise_signal(signal.SIGINT)
omq.Context.term = interrupted_term
"""


def test_ctrl_c_at_the_exit_ends_a_program_with_unsent_messages() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, b"")

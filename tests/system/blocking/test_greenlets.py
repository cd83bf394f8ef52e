"""Programs that gevent or eventlet has patched: omq's threads stay threads, whatever was imported or made first.

What blocks, blocks all greenlets of its thread; `fileno()` is the way to wait without that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.optional_packages import require
from tests.support.parameters import each_value_once

LIMIT = 30  # seconds for a program

BEGINNING = """
import sys
library, order = sys.argv[1:]

def patch(when):
    if order != when:
        return
    if library == "gevent":
        import gevent.monkey
        gevent.monkey.patch_all(thread=when != "all but threads")
    else:
        import warnings
        warnings.simplefilter("ignore")
        import eventlet
        eventlet.monkey_patch()

patch("before the import")
patch("all but threads")
import omq
patch("after the import")
"""

PROGRAMS = {
    "sockets": """
        import os

        public, secret = omq.curve_keypair()
        mine, my_secret = omq.curve_keypair()
        keys = []

        def authorize(key):
            keys.append(key)
            return True

        context = omq.Context()
        pull = omq.PULL(context, bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret, authorize))
        monitor = pull.monitor()
        patch("while sockets live")
        named = pull.endpoints[0].replace("127.0.0.1", "localhost")
        push = omq.PUSH(context, connect=named, security=omq.CurveClient(public, public_key=mine, secret_key=my_secret))
        push.send(b"by name")
        assert pull.recv(timeout=20) == b"by name"
        assert len(keys) == 1
        assert monitor.recv(timeout=20).kind is omq.EventKind.ACCEPTED
        try:
            pull.recv(timeout=0.05)
        except omq.ReceiveTimeout:
            pass
        assert omq.wait([pull], timeout=0.05) == []
        push.wait_connected(timeout=20)
        push.flush(timeout=20)

        pid = os.fork()
        if pid == 0:
            try:
                pull.recv(timeout=0)
            except omq.StateError:
                with omq.PULL(bind="ipc://*") as there, omq.PUSH(connect=there.endpoints[0]) as here:
                    here.send(b"in the child")
                    os._exit(7 if there.recv(timeout=20) == b"in the child" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        push.close()
        context.term()
        try:
            pull.recv()
        except omq.ClosedError:
            pass
        else:
            raise AssertionError

        left = omq.PULL(bind="tcp://127.0.0.1:*")  # the interpreter closes them
        last = omq.PUSH(connect=left.endpoints[0])
        last.send(b"bye")
        assert left.recv(timeout=20) == b"bye"
    """,
    "asyncio": """
        import asyncio
        import uvloop
        import omq.asyncio

        patch("while sockets live")

        async def main():
            async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as pull:
                named = pull.endpoints[0].replace("127.0.0.1", "localhost")
                async with omq.asyncio.PUSH(connect=named) as push:
                    await push.send(b"from the loop")
                    assert await pull.recv(timeout=20) == b"from the loop"
                with omq.PUSH(connect=named) as push:
                    push.send(b"from a thread's own")
                    assert await pull.recv(timeout=20) == b"from a thread's own"
                try:
                    await pull.recv(timeout=0.05)
                except omq.ReceiveTimeout:
                    pass

        asyncio.run(main())
        uvloop.run(main())
    """,
    "broker": """
        import omq.broker

        patch("while sockets live")
        with omq.broker.Server(None, bind="tcp://127.0.0.1:*", memory=True) as server:
            with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
                client.create("jobs", delivery="round-robin", persistence="weak")
                client.publish("jobs", b"one")
                with client.consume("jobs") as consumer:
                    job = consumer.recv(timeout=20)
                    job.ack()
                    assert job.body == b"one"
    """,
    "greenlets": """
        import gevent
        import gevent.socket

        server = omq.REP(bind="tcp://127.0.0.1:*")
        patch("while sockets live")

        def receive(socket):
            gevent.socket.wait_read(socket.fileno())
            return socket.recv(timeout=0)

        def serve():
            while True:
                server.send(receive(server).upper())

        def ask(name):
            with omq.REQ(connect=server.endpoints[0]) as client:
                for number in range(3):
                    client.send(f"{name} {number}".encode())
                    assert receive(client) == f"{name.upper()} {number}".encode()
            return name

        serving = gevent.spawn(serve)
        names = ["ann", "bob", "cem", "dee"]
        asking = [gevent.spawn(ask, name) for name in names]
        gevent.joinall(asking, timeout=20)
        assert [one.value for one in asking] == names
        serving.kill()

        idle = omq.PULL(bind="tcp://127.0.0.1:*")
        try:
            with gevent.Timeout(0.05):
                receive(idle)
        except gevent.Timeout:
            print("gave up")
    """,
}
ORDERS = ["before the import", "after the import", "while sockets live", "all but threads"]


def run(library: str, order: str, program: str) -> subprocess.CompletedProcess[str]:
    require(library)
    code = BEGINNING + textwrap.dedent(PROGRAMS[program]) + "\nprint('done')\n"
    command = [sys.executable, "-c", code, library, order]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=dict(os.environ), check=False)


@each_value_once(program=PROGRAMS, order=ORDERS)
def test_gevent(program, order):
    if program == "broker":
        require("lmdb")
    done = run("gevent", order, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr


@pytest.mark.slow
@each_value_once(program=["sockets", "asyncio", "broker"], order=ORDERS[:3])
def test_eventlet(program, order):
    if program == "broker":
        require("lmdb")
    done = run("eventlet", order, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr

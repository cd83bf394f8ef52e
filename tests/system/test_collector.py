"""Finalizers use sockets, and the garbage collector runs them in the midst of a call, or in omq's thread."""

from __future__ import annotations

import gc
import textwrap
from itertools import repeat
from typing import Any

import pytest

import omq
from tests.support.fork_server import SOCKETS, run

BOUND = 60.0  # seconds that a program may take; each is done in one to three

COMMON = """
    import faulthandler, gc, sys, threading, time
    faulthandler.dump_traceback_later(50, exit=True)
    failed = []
    END = time.monotonic() + 0.8

    class Subscription:
        def __init__(self, sub, topic):
            self.sub, self.topic, self.me = sub, topic, self
            sub.subscribe(topic)
        def __del__(self):
            try:
                self.sub.unsubscribe(self.topic)
            except Exception as error:
                failed.append(error)
"""

UNSUBSCRIBES_IN_A_LOOP = """
    import asyncio
    import contextlib
    import omq.asyncio as omq

    async def main():
        pub = omq.XPUB(bind="tcp://127.0.0.1:*", send_hwm=0)
        sub = omq.SUB(connect=pub.endpoints[0], recv_hwm=0)
        sub.fileno()

        kept, number = [], 0
        while time.monotonic() < END:
            number += 1
            topic = b"t%d" % number
            subscription = Subscription(sub, topic)
            await pub.wait_subscribed(topic, timeout=10)
            del subscription  # not before: who is collected while it is waited for was never seen
            for _ in range(400):
                await pub.send_multipart([topic, b"body"])
            await asyncio.sleep(0.01)
            while await sub.poll(0):
                with contextlib.suppress(omq.ReceiveTimeout):  # a finalizer may have unsubscribed since
                    kept.append(await sub.recv_multipart(timeout=0))

    asyncio.run(main())
    assert not failed, failed
"""

UNSUBSCRIBES = """
    import omq
    pub = omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0)
    sub = omq.SUB(connect=pub.endpoints[0], subscribe=b"k", recv_hwm=0)
    pub.wait_subscribed(b"k", timeout=10)

    kept = []
    for number in range(100):
        Subscription(sub, b"t%d" % number)
        for _ in range(400):
            pub.send_multipart([b"k", b"v"])
        for _ in range(400):
            kept.append(sub.recv_multipart(timeout=10))
    assert not failed, failed
"""

LEAVES = """
    import omq
    radio = omq.RADIO(bind="tcp://127.0.0.1:*", send_hwm=0)
    dish = omq.DISH(connect=radio.endpoints[0], join="k", recv_hwm=0)
    radio.wait_subscribed("k", timeout=10)

    class Membership:
        def __init__(self, group):
            self.group, self.me = group, self
            dish.join(group)
        def __del__(self):
            try:
                dish.leave(self.group)
            except Exception as error:
                failed.append(error)

    kept = []
    for number in range(100):
        Membership("t%d" % number)
        for _ in range(400):
            radio.send(b"v", group="k")
        for _ in range(400):
            kept.append(dish.recv_message(timeout=10))
    assert not failed, failed
    gc.collect()
    dish.join("t0")  # it was left
"""

ANSWERS_BY_NUMBER = """
    import omq
    server = omq.SERVER(bind="tcp://127.0.0.1:*", send_hwm=0)
    client = omq.CLIENT(connect=server.endpoints[0], recv_hwm=0)

    class Job:
        def __init__(self, number):
            self.number, self.me = number, self
        def __del__(self):
            try:
                server.send(b"done", routing_id=self.number)
            except Exception as error:
                failed.append(error)

    kept = []
    for _ in range(60):
        for _ in range(300):
            client.send(b"v")
        for _ in range(300):
            kept.append(server.recv_message(timeout=10))
            Job(kept[-1].routing_id)
    gc.collect()
    for _ in kept:
        assert client.recv(timeout=10) == b"done"
    assert not failed, failed
"""

CLOSES_ANOTHER = """
    import omq
    pull = omq.PULL(bind="tcp://127.0.0.1:*")
    push = omq.PUSH(connect=pull.endpoints[0], linger=0)

    class Client:
        def __init__(self):
            self.socket, self.me = omq.DEALER(connect="tcp://127.0.0.1:9", linger=0.05), self
            self.socket.send(b"never")
        def __del__(self):
            try:
                self.socket.close()
            except Exception as error:
                failed.append(error)

    def feed():
        while time.monotonic() < END + 1:
            push.send_multipart([b"a", b"b"])
            time.sleep(0.0003)

    threading.Thread(target=feed).start()
    kept = []
    while time.monotonic() < END:
        kept.append(pull.recv_multipart(timeout=10))
        if len(kept) % 300 == 0:
            Client()
    assert not failed, failed
"""

CLOSES_WITHOUT_WAITING = """
    import omq
    context = omq.Context.default()
    pull = omq.PULL(bind="tcp://127.0.0.1:*")
    push = omq.PUSH(connect=pull.endpoints[0])
    threads, ended = set(), []

    class Client:
        def __init__(self):
            self.socket, self.me = omq.DEALER(connect="tcp://127.0.0.1:9"), self
            self.socket.send(b"never")
        def __del__(self):
            threads.add(threading.current_thread().name)
            ended.append(True)
            try:
                self.socket.close(linger=0)
            except Exception as error:
                failed.append(error)

    gc.set_threshold(50)
    for _ in range(300):
        Client()
        push.send(b"x")
        pull.recv(timeout=10)
    while len(ended) < 300:
        gc.collect()  # it does nothing while the other thread collects
        time.sleep(0.001)
    assert not failed, failed
    assert "omq-io" in threads, "the collector did not run where it was to"
    while context._dropped:
        time.sleep(0.01)
"""

TAKES_A_LOCK = """
    import omq
    pull = omq.PULL(bind="inproc://it")
    push = omq.PUSH(connect="inproc://it")
    push.wait_connected(timeout=10)
    lock = threading.Lock()

    class Item:
        def __init__(self):
            self.me = self
        def __del__(self):
            if threading.current_thread() is not thread:  # that one has it
                with lock:
                    pass

    def send():
        while time.monotonic() < END:
            with lock:
                push.send_multipart([b"a", b"b"], timeout=10)
            time.sleep(0.0001)

    thread = threading.Thread(target=send)
    thread.start()
    kept = []
    while thread.is_alive():
        if pull.poll(0.01):
            Item()
            kept.append(pull.recv_multipart())
"""

CLOSES_WHATEVER_STATE_IT_IS_IN = """
    import logging
    import omq
    logging.basicConfig()
    router = omq.ROUTER(bind="tcp://127.0.0.1:*")
    gc.disable()

    class Client:
        def __init__(self, socket):
            self.socket, self.me = socket, self
        def __del__(self):
            try:
                self.socket.close()
            except Exception as error:
                failed.append(error)

    def client(**options):
        socket = omq.DEALER(linger=0.05, **options)
        if options:
            socket.send(b"x")
        return Client(socket)

    for _ in range(3):
        clients = [client(), client(bind="tcp://127.0.0.1:*"), client(connect="inproc://absent")]
        clients += [client(connect="tcp://127.0.0.1:9"), client(connect="ipc:///nonexistent/file")]
        clients += [client(connect="tcp://localhost:9"), client(connect="tcp://unknown.invalid:9")]
        clients.append(client(connect=router.endpoints[0]))
        time.sleep(0.1)  # the absent have been dialled more than once
        del clients
        assert gc.collect()
        context = omq.Context.default()
        while context._dropped:
            time.sleep(0.01)
    assert not failed, failed
"""

CLOSES_WHATEVER_STATE_IT_IS_IN_IN_A_LOOP = """
    import asyncio
    import logging
    import omq.asyncio as omq
    logging.basicConfig()
    gc.disable()
    tasks = []

    class Client:
        def __init__(self, socket):
            self.socket, self.me = socket, self
        def __del__(self):
            tasks.append(asyncio.ensure_future(self.socket.close()))

    async def client(**options):
        socket = omq.DEALER(linger=0.05, **options)
        if options:
            await socket.send(b"x")
        return Client(socket)

    async def main():
        router = omq.ROUTER(bind="tcp://127.0.0.1:*")
        for _ in range(3):
            clients = [await client(), await client(bind="tcp://127.0.0.1:*")]
            clients += [await client(connect="tcp://127.0.0.1:9"), await client(connect="ipc:///nonexistent/file")]
            clients += [await client(connect="tcp://localhost:9"), await client(connect="tcp://unknown.invalid:9")]
            clients.append(await client(connect=router.endpoints[0]))
            await asyncio.sleep(0.1)
            del clients
            assert gc.collect()
            assert len(tasks) == 7
            await asyncio.gather(*tasks)
            tasks.clear()
        await router.close()

    asyncio.run(main())
    assert not failed, failed
"""

SENDS_AS_SOON_AS_IT_IS_MADE = """
    import omq
    gc.disable()
    pull = omq.PULL(bind="tcp://127.0.0.1:*")

    class Client:
        def __init__(self, accepted, waits, closes):
            self.socket, self.me = omq.PUSH(connect=pull.endpoints[0]), self
            self.waits, self.closes = waits, closes
            if accepted:
                self.socket.send(b"accepted")
        def __del__(self):
            try:
                if self.waits:
                    self.socket.wait_connected(timeout=10)
                self.socket.send(b"last")
                if self.closes:
                    self.socket.close()
            except Exception as error:
                failed.append(error)

    for accepted in (False, True):
        for waits in (False, True):
            for closes in (False, True):
                for _ in range(20):
                    Client(accepted, waits, closes)
                assert gc.collect()
                for _ in range(20 * (1 + accepted)):
                    pull.recv(timeout=10)
    assert not failed, failed
"""

PROGRAMS = {
    name: text for name, text in globals().items() if name.isupper() and isinstance(text, str) and name != "COMMON"
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_finalizer_finds_nothing_in_the_middle_of_a_step(program: str) -> None:
    text = textwrap.dedent(COMMON) + textwrap.dedent(PROGRAMS[program])
    done = run("-c", text, timeout=BOUND, template=SOCKETS)
    assert done.returncode == 0, done.stderr
    for complaint in ("Exception ignored", "was destroyed", "never retrieved"):
        assert complaint not in done.stderr, done.stderr


@pytest.mark.alone  # the steps are few where nothing keeps this process waiting
@pytest.mark.parametrize("size", [16, 1024])
def test_messages_sent_and_taken_in_few_steps_make_nothing_that_is_collected(size: int) -> None:
    """No guard keeps the collector out of those steps: there must be nothing in them that could begin a collection."""
    begun: list[str] = []

    def note(phase: str, _: Any) -> None:
        begun.append(phase)

    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0], send_hwm=0) as push:
        message = bytes(size)
        for _ in range(100):
            push.send(message)
            pull.recv(timeout=10)
        before = gc.get_threshold()
        gc.callbacks.append(note)
        gc.set_threshold(1)
        try:
            for _ in repeat(None, 500):
                push.send(message)
            for _ in repeat(None, 500):
                pull.recv(timeout=10)
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(note)
    assert len(begun) < 200  # omq's own thread makes some things meanwhile


IN_A_CYCLE = """
import asyncio, gc, logging, warnings
import omq.asyncio as omq

warnings.simplefilter("ignore", ResourceWarning)
reports = []

class Reports(logging.Handler):
    def emit(self, record):
        reports.append(record.getMessage())

logging.getLogger().addHandler(Reports())

async def main(turn):
    for number in range(30):
        context = omq.Context()
        push = omq.PUSH(context, bind=f"inproc://{turn}.{number}")
        pull = omq.PULL(context, connect=push.endpoints[0])
        await push.send(b"x")
        assert await pull.recv() == b"x"
        cycle = [push, pull]
        cycle.append(cycle)

for turn in range(10):
    asyncio.run(main(turn))
    gc.collect()
assert reports == [], reports
"""


@pytest.mark.timeout(60)
def test_sockets_that_the_collector_finds_in_a_cycle_end_without_a_report() -> None:
    """The collector clears weak references first: the code that closes the sockets must not need any."""
    done = run("-c", IN_A_CYCLE, timeout=50, template=SOCKETS)
    assert done.returncode == 0, done.stderr

"""An asyncio program that ends without `close`: what its sockets have accepted leaves all the same, or the log has it.

Each program is a process of its own, and its event loop has ended before its socket has connected.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import omq
from tests.support.parameters import each_value_once
from tests.support.socket_types import PAIRS, options_of
from tests.support.waits import until
from tests.system.blocking.conftest import Program, program, unhurried

__all__ = ["program"]

BOUND = 20.0  # seconds for one program

PRELUDE = """
import asyncio, gc, sys, threading, time, warnings
import uvloop
import omq, omq.asyncio
warnings.simplefilter("ignore", ResourceWarning)
warnings.simplefilter("ignore", DeprecationWarning)
kept = []

async def send(keep=None, count=10, size=1, connected=False, kind="PUSH", **options):
    push = getattr(omq.asyncio, kind)(**options)
    route = {}
    if kind == "PEER":
        route["routing_id"] = await push.connect_peer(sys.argv[1], timeout=20)
    else:
        push.connect(sys.argv[1])
    if kind == "RADIO":
        await push.wait_subscribed(timeout=20)
        route["group"] = "g"
    elif kind == "SERVER":
        route["routing_id"] = (await push.recv_message(timeout=20)).routing_id
    if connected:
        await push.wait_connected(timeout=20)
    for number in range(count):
        await push.send(b"%d." % number + bytes(size), **route)
    if keep == "global":
        kept.append(push)
    elif keep == "cycle":
        cycle = [push]
        cycle.append(cycle)

def by_hand(loop, work, close=True):
    asyncio.set_event_loop(loop)
    loop.run_until_complete(work)
    if close:
        loop.close()
"""

LOOPS = {
    "asyncio.run": "asyncio.run({work})",
    "uvloop.run": "uvloop.run({work})",
    "asyncio by hand": "by_hand(asyncio.SelectorEventLoop(), {work})",
    "uvloop by hand": "by_hand(uvloop.new_event_loop(), {work})",
    "asyncio, never closed": "by_hand(asyncio.SelectorEventLoop(), {work}, close=False)",
    "uvloop, never closed": "by_hand(uvloop.new_event_loop(), {work}, close=False)",
    "asyncio, kept": "loop = asyncio.SelectorEventLoop()\nloop.run_until_complete({work})",
}


#: What is dropped in its loop, and what is left to the end of the interpreter.
keeping = pytest.mark.parametrize("keep", [pytest.param(None, marks=pytest.mark.slow), "global"])


def numbers(pull: Any, count: int) -> list[int]:
    return [int(pull.recv(timeout=BOUND).partition(b".")[0]) for _ in range(count)]


def ended(running: Program, status: int = 0) -> str:
    """Waits for its end; gives its standard error, where no task and no callback complains."""
    try:
        _, error = running.process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        pytest.fail("it did not end")
    assert running.process.returncode == status, error
    assert "Traceback" not in error, error
    assert "Task was destroyed" not in error, error
    assert "Exception ignored" not in error, error
    return unhurried(error)


@each_value_once(transport=["tcp", "ipc"], loop=LOOPS, keep=[None, "global", "cycle"])
def test_what_was_sent_before_the_connection_was_there_arrives(
    program: Any, tmp_path: Path, transport: str, loop: str, keep: str | None
) -> None:
    place = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    with omq.Context() as context, omq.PULL(context, bind=place) as pull:
        running = program(PRELUDE + LOOPS[loop].format(work=f"send({keep!r})"), pull.endpoints[0])
        assert numbers(pull, 10) == list(range(10))
        assert "dropped" not in ended(running)


#: What a RADIO, a SERVER or a PEER sends before it knows its peer is for none: it waits for that.
@each_value_once(kind__other=PAIRS, loop__keep=[("asyncio.run", None), ("uvloop by hand", "global")])
def test_what_a_type_of_one_part_has_sent_arrives(program: Any, kind: str, other: str, loop: str, keep: Any) -> None:
    receiver = getattr(omq, other)
    with (
        omq.Context() as context,
        receiver(context, bind="tcp://127.0.0.1:*", linger=0, recv_hwm=10, **options_of(other, kind)) as pull,
    ):
        work = f"send({keep!r}, count=200, size=50_000, kind={kind!r})"
        running = program(PRELUDE + LOOPS[loop].format(work=work), pull.endpoints[0])
        assert numbers(pull, 200) == list(range(200))
        assert "dropped" not in ended(running)


@each_value_once(loop=LOOPS, keep=[None, "global"])
def test_what_a_connection_has_not_taken_yet_arrives(program: Any, loop: str, keep: str | None) -> None:
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*", recv_hwm=10) as pull:
        work = f"send({keep!r}, count=400, size=50_000, connected=True)"
        running = program(PRELUDE + LOOPS[loop].format(work=work), pull.endpoints[0])
        assert numbers(pull, 400) == list(range(400))
        assert "dropped" not in ended(running)


@keeping
def test_a_message_leaves_over_curve_too(program: Any, keep: str | None) -> None:
    public, secret = omq.curve_keypair()
    server = omq.CurveServer(secret)
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*", security=server) as pull:
        source = PRELUDE + f"asyncio.run(send({keep!r}, security=omq.CurveClient({public!r})))"
        running = program(source, pull.endpoints[0])
        assert numbers(pull, 10) == list(range(10))
        ended(running)


@keeping
def test_several_sockets_of_one_program_end_together(program: Any, keep: str | None) -> None:
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
        source = PRELUDE + f"async def main():\n    for _ in range(5): await send({keep!r})\nasyncio.run(main())"
        running = program(source, pull.endpoints[0])
        assert sorted(numbers(pull, 50)) == sorted(5 * list(range(10)))
        ended(running)


#: Within a handshake the peer has sent nothing yet: it goes on where the loop has ended.
HANDSHAKING = """
async def main():
    global push
    push = omq.asyncio.PUSH(connect=sys.argv[1])
    monitor = push.monitor()
    async for event in monitor:
        if event.kind is omq.EventKind.CONNECTED:
            break
    await push.send(b"0.")
    print("connected", flush=True)
asyncio.run(main())
"""


def test_a_handshake_goes_on_where_the_loop_has_ended(program: Any) -> None:
    import socket

    from omq.zmtp.greeting import Greeting  # noqa: F401 - the wire below is this one's

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND)
        running = program(PRELUDE + HANDSHAKING, f"tcp://127.0.0.1:{server.getsockname()[1]}")
        peer, _ = server.accept()
        with peer:
            peer.settimeout(BOUND)
            assert running.line() == "connected"
            assert running.next_error().startswith("PUSH waits until accepted messages")
            peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31))
            ready = b"\x05READY\x0bSocket-Type\0\0\0\x04PULL"
            peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
            got = b""
            while (data := peer.recv(4096)) != b"":
                got += data
            assert got.endswith(b"\0\x020.")
    ended(running)


@each_value_once(loop=["asyncio.run", "uvloop by hand"], keep=[None, "global"])
def test_an_absent_peer_is_waited_for_as_long_as_linger(
    program: Any, free_place: str, loop: str, keep: str | None
) -> None:
    running = program(PRELUDE + LOOPS[loop].format(work=f"send({keep!r}, linger=0.5)"), free_place)
    error = ended(running)
    assert f"PUSH waits until accepted messages have left: 10 messages for {free_place} (linger=0.5 s)" in error
    assert f"PUSH has dropped 10 messages for {free_place}: linger is over" in error


@each_value_once(loop=["asyncio.run", "uvloop by hand", "asyncio, never closed"], keep=[None, "global"])
def test_ctrl_c_ends_an_endless_wait(program: Any, free_place: str, loop: str, keep: str | None) -> None:
    running = program(PRELUDE + LOOPS[loop].format(work=f"send({keep!r})"), free_place)
    assert f"10 messages for {free_place} (linger=None: without a limit)" in running.next_error()
    running.asleep()
    running.process.send_signal(signal.SIGINT)
    assert f"PUSH has dropped 10 messages for {free_place}" in ended(running)


@keeping
def test_a_peer_that_comes_at_last_gets_it(program: Any, free_place: str, keep: str | None) -> None:
    running = program(PRELUDE + f"asyncio.run(send({keep!r}))", free_place)
    assert "waits until accepted messages have left" in running.next_error()
    with omq.Context() as context, omq.PULL(context, bind=free_place) as pull:
        assert numbers(pull, 10) == list(range(10))
        assert "dropped" not in ended(running)


@keeping
def test_linger_0_waits_for_nothing(program: Any, free_place: str, keep: str | None) -> None:
    running = program(PRELUDE + f"asyncio.run(send({keep!r}, linger=0))", free_place)
    assert ended(running) == ""


GOES_ON = {
    "dropped in the loop": "asyncio.run(send())",
    "dropped in the last turn, asyncio": "by_hand(asyncio.SelectorEventLoop(), send())",
    "dropped in the last turn, uvloop": "by_hand(uvloop.new_event_loop(), send())",
    "dropped with its context": "by_hand(asyncio.SelectorEventLoop(), send(context=omq.Context())); gc.collect()",
    "dropped with its context, uvloop": "by_hand(uvloop.new_event_loop(), send(context=omq.Context())); gc.collect()",
    "dropped before close": """
loop = asyncio.SelectorEventLoop()
loop.run_until_complete(send('global'))
kept.clear()
loop.close()""",
    "dropped after the loop": "asyncio.run(send('global')); kept.clear(); gc.collect()",
    "collected after the loop": "gc.disable(); asyncio.run(send('cycle')); gc.collect()",
    "closed in another loop": "asyncio.run(send('global')); asyncio.run(kept[0].close())",
    "the context ends": "asyncio.run(send('global')); omq.Context.default().term()",
}


@pytest.mark.parametrize("way", GOES_ON)
def test_a_message_leaves_while_the_program_goes_on_without_a_loop(program: Any, way: str) -> None:
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
        source = PRELUDE + GOES_ON[way] + "\nprint('goes on', flush=True)\nsys.stdin.read()"
        running = program(source, pull.endpoints[0])
        assert running.line() == "goes on"
        assert numbers(pull, 10) == list(range(10))
        until(lambda: not pull.peers)
        running.process.stdin.close()
        running.process.stdin = None
        assert ended(running) == ""


#: In the other two the program waits for its peer.
WAITS = [way for way in GOES_ON if way not in ("closed in another loop", "the context ends")]
USUAL = ("dropped in the loop", "dropped in the last turn, uvloop", "collected after the loop")


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in USUAL else pytest.mark.slow) for way in WAITS])
def test_a_message_waits_for_its_first_peer_without_a_loop(program: Any, free_place: str, way: str) -> None:
    """Nothing of a connection was there yet when the loop ended."""
    running = program(PRELUDE + GOES_ON[way] + "\nprint('goes on', flush=True)\nsys.stdin.read()", free_place)
    assert running.line() == "goes on"
    with omq.Context() as context, omq.PULL(context, bind=free_place) as pull:
        assert numbers(pull, 10) == list(range(10))
        until(lambda: not pull.peers)
    running.process.stdin.close()
    running.process.stdin = None
    assert "dropped" not in ended(running)


@keeping
def test_no_thread_is_needed_for_it(program: Any, keep: str | None) -> None:
    # From Python 3.12 on there are none once the interpreter begins to end.
    refuse = """
import _thread
def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")
_thread.start_new_thread = threading._start_new_thread = refuse
"""
    with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
        place = pull.endpoints[0].replace("127.0.0.1", "localhost")
        running = program(PRELUDE + refuse + f"asyncio.run(send({keep!r}))", place)
        assert numbers(pull, 10) == list(range(10))
        ended(running)


def test_a_loop_in_a_daemon_thread_gives_up_what_it_has_not_sent(program: Any, free_place: str) -> None:
    source = """
sent = threading.Event()
async def work():
    await send("global")
    sent.set()
    await asyncio.sleep(1000)
threading.Thread(target=asyncio.run, args=[work()], daemon=True).start()
sent.wait()
"""
    running = program(PRELUDE + source, free_place)
    assert "waits until accepted messages have left" in running.next_error()
    with omq.Context() as context, omq.PULL(context, bind=free_place) as pull:
        assert numbers(pull, 10) == list(range(10))
        ended(running)


def test_what_no_peer_can_take_over_inproc_is_reported(program: Any) -> None:
    assert "PUSH has dropped 10 messages" in ended(program(PRELUDE + "asyncio.run(send('global'))", "inproc://absent"))

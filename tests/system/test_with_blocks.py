"""The end of a `with` block with something unsent, in either twin: it reports what it waits for, and Ctrl-C ends it.

Each program is a process of its own. The endpoint that it sends to has no listener, and its linger has no end.
"""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytest

import omq
from tests.support.parameters import each_value_once
from tests.system.blocking.conftest import Program, program

__all__ = ["program"]

BOUND = 20.0  # seconds for one program

SYNC = """
import sys, time
import omq

def pushed(**options):
    push = omq.PUSH(connect=sys.argv[1], **options)
    push.send_many([b"x"] * 3)
    return push

def main():
    with {blocks}:
        print("leaving", flush=True)
        {way}

main()
"""

ASYNC = """
import asyncio, sys, time
import omq.asyncio as omq

async def pushed(**options):
    push = omq.PUSH(connect=sys.argv[1], **options)
    await push.send_many([b"x"] * 3)
    return push

async def main():
    async with {blocks}:
        print("leaving", flush=True)
        {way}

asyncio.run(main())
"""


def source(twin: str, way: str, options: str = "", sockets: int = 1) -> str:
    """A program that leaves a block, or several, in this way."""
    if twin == "context":
        blocks = "omq.Context() as context, " + ", ".join(["omq.PULL(context)"] * sockets)
        way = f"kept = pushed(context=context, {options})\n        {way}"
        return SYNC.format(blocks=blocks, way=way)
    text = SYNC if twin == "sync" else ASYNC
    call = f"pushed({options})" if twin == "sync" else f"await pushed({options})"
    return text.format(blocks=", ".join([call] * sockets), way=way)


def interrupt(running: Program) -> None:
    running.asleep()
    running.process.send_signal(signal.SIGINT)


def ended(running: Program) -> tuple[int, str]:
    """Its status, and the rest of its standard error."""
    try:
        _, error = running.process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        pytest.fail("it did not end")
    return running.process.returncode, error


WAYS = {"raise ValueError('on purpose')": 1, "sys.exit(3)": 3}


@each_value_once(twin=["sync", "async", "context"], way=WAYS)
def test_an_exception_bounds_the_wait_and_what_is_unsent_is_logged_at_once(
    program: Any, free_place: str, twin: str, way: str
) -> None:
    running = program(source(twin, way, "error_linger=0.5"), free_place)
    assert running.line() == "leaving"
    line = running.next_error()
    assert f"waits until accepted messages have left: 3 messages for {free_place} (linger=0.5 s)" in line
    status, error = ended(running)
    assert status == WAYS[way]
    assert f"PUSH has dropped 3 messages for {free_place}: linger is over" in error
    assert ("on purpose" in error) == (status == 1)


def test_the_smaller_of_both_lingers_holds(program: Any, free_place: str) -> None:
    running = program(source("sync", "raise ValueError", "error_linger=None, linger=0.2"), free_place)
    assert "(linger=0.2 s)" in running.next_error()
    assert ended(running)[0] == 1


@pytest.mark.parametrize("twin", ["sync", "async", "context"])
def test_a_peer_that_comes_in_time_gets_everything(program: Any, free_place: str, twin: str) -> None:
    running = program(source(twin, "raise ValueError('on purpose')", "error_linger=60"), free_place)
    assert "waits until accepted messages have left" in running.next_error()
    with omq.Context() as context, omq.PULL(context, bind=free_place) as pull:
        assert [pull.recv(timeout=BOUND) for _ in range(3)] == [b"x"] * 3
        status, error = ended(running)
    assert status == 1
    assert "dropped" not in error


@each_value_once(twin=["sync", "context"], sockets=[1, 2])
def test_ctrl_c_ends_the_wait_and_the_exception_goes_on(program: Any, free_place: str, twin: str, sockets: int) -> None:
    running = program(source(twin, "raise ValueError('on purpose')", "error_linger=None", sockets), free_place)
    assert "(linger=None: without a limit)" in running.next_error()
    interrupt(running)
    status, error = ended(running)
    assert status == 1
    assert "dropped 3 messages" in error
    assert "on purpose" in error
    assert "KeyboardInterrupt" not in error


@each_value_once(twin=["sync", "async", "context"], sockets=[1, 2])
def test_a_block_that_waits_without_end_logs_it_and_one_ctrl_c_ends_it(
    program: Any, free_place: str, twin: str, sockets: int
) -> None:
    running = program(source(twin, "before = time.monotonic()", "error_linger=0.5", sockets), free_place)
    assert running.line() == "leaving"
    before = time.monotonic()
    assert f"left: 3 messages for {free_place} (linger=None: without a limit)" in running.next_error()
    assert 0.5 < time.monotonic() - before < 10
    interrupt(running)
    status, error = ended(running)
    assert status == -signal.SIGINT
    assert error.count("dropped 3 messages") == (1 if twin == "context" else sockets)


@pytest.mark.parametrize("twin", ["sync", "async", "context"])
def test_ctrl_c_in_the_block_bounds_the_wait(program: Any, free_place: str, twin: str) -> None:
    way = "await asyncio.sleep(60)" if twin == "async" else "time.sleep(60)"
    running = program(source(twin, way, "error_linger=0.5"), free_place)
    assert running.line() == "leaving"
    interrupt(running)
    assert "(linger=0.5 s)" in running.next_error()
    status, error = ended(running)
    assert status == -signal.SIGINT
    assert "dropped 3 messages" in error


@each_value_once(twin=["sync", "async", "context"], sockets=[1, 2])
def test_a_second_ctrl_c_ends_that_wait(program: Any, free_place: str, twin: str, sockets: int) -> None:
    way = "await asyncio.sleep(60)" if twin == "async" else "time.sleep(60)"
    # In asyncio the second one ends the inner wait, and the outer one is bounded.
    bounds = "error_linger=None" if twin != "async" or sockets == 1 else "error_linger=0.5"
    running = program(source(twin, way, bounds, sockets), free_place)
    assert running.line() == "leaving"
    interrupt(running)
    assert "waits until accepted messages have left" in running.next_error()
    interrupt(running)
    status, error = ended(running)
    assert status == -signal.SIGINT
    assert "dropped 3 messages" in error


def test_nothing_is_logged_where_nothing_waits(program: Any) -> None:
    running = program(
        """
import omq

try:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"x")
        assert pull.recv(timeout=10) == b"x"
        raise ValueError
except ValueError:
    pass
"""
    )
    assert running.end() == ""

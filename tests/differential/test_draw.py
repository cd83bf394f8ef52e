"""Programs by chance: omq, in every seat and next to libzmq, shows what libzmq shows in every seat.

Of the types that pyzmq lacks, each of omq's twins shows what the other one shows.

What is drawn for `make test` is the same each time; the long runs draw something else each time. A program that fails
is made as short as it can be, and can be pasted as it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.differential.generator import KINDS, STREAM_KINDS, TWINS_KINDS, programs
from tests.differential.program import Program
from tests.differential.triage_process import Worker

HUBS, SPOKES = "hi", "ab"


def seatings(program: Program) -> list[Mapping[str, str]]:
    """Both twins, each alone; over tcp also each next to the reference."""
    reference = program.reference
    found = [dict.fromkeys(program.seats, twin) for twin in ("omq", "omq.asyncio") if twin != reference]
    if program.transport == "tcp":
        ours = "omq" if reference == "libzmq" else "omq.asyncio"
        found.append({seat: ours if seat in HUBS else reference for seat in program.seats})
        found.append({seat: ours if seat in SPOKES else reference for seat in program.seats})
    return found


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Yields the process that runs the programs."""
    one = Worker()
    yield one
    one.close()


def check(worker: Worker, transport: str, kinds: tuple[str, ...], examples: int, **usual: Any) -> None:
    """Compares *examples* programs."""
    judged = 0

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), **usual)
    @given(programs(transport, kinds))
    def compared(program: Program) -> None:
        nonlocal judged
        judged += 1
        found = worker.judge(program, seatings(program))
        assert not found, "\n".join(found)

    compared()
    assert worker.aborted < judged / 10, "hardly anything was compared"


@pytest.mark.parametrize(("transport", "examples"), [("tcp", 3), ("inproc", 8)])
def test_a_program_shows_what_it_shows_with_libzmq(worker: Worker, transport: str, examples: int) -> None:
    check(worker, transport, KINDS, examples, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "examples"), [("tcp", 4), ("inproc", 8)])
def test_a_program_shows_in_each_twin_what_it_shows_in_the_other(worker: Worker, transport: str, examples: int) -> None:
    check(worker, transport, TWINS_KINDS, examples, derandomize=True)


@pytest.mark.slow
def test_a_stream_shows_what_it_shows_with_libzmq(worker: Worker) -> None:
    check(worker, "tcp", STREAM_KINDS, 3, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs_of_streams_show_what_they_show_with_libzmq(worker: Worker) -> None:
    check(worker, "tcp", STREAM_KINDS, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds", [KINDS, TWINS_KINDS], ids=["libzmq", "twins"])
@pytest.mark.parametrize(("transport", "examples"), [("tcp", 600), ("inproc", 2000)])
def test_many_programs_show_the_same(worker: Worker, transport: str, examples: int, kinds: tuple[str, ...]) -> None:
    check(worker, transport, kinds, examples)

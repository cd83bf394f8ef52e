"""Every ready descriptor of a socket is served within its bound, whatever one busy peer does."""

from __future__ import annotations

from functools import cache

import pytest

from tests.liveness.limits import assert_served
from tests.liveness.scenario_run import Crowd, run_libzmq
from tests.liveness.scenarios import ASYNCIO, BLOCKING, KINDS, Scenario, chosen, combined, of_one_part, usual

pytestmark = pytest.mark.alone


USUAL = usual()
CHOSEN = [pytest.param(cell, id=str(cell), marks=() if cell in USUAL else pytest.mark.slow) for cell in chosen()]


@pytest.mark.parametrize("cell", CHOSEN)
def test_a_quiet_peer_is_served(cell: Scenario, crowd: Crowd) -> None:
    assert_served(cell, crowd)


#: Each kind with each twin; the rest is slow.
ONE_PART = [
    Scenario("recv", "GATHER", 4, 1, 50e-6, 1000, "omq"),
    Scenario("await recv_many", "GATHER", 1, 49, 0.0, 2, "raw"),
    Scenario("fileno", "SERVER", 1, 49, 10e-6, 1000, "raw"),
    Scenario("async for", "SERVER", 4, 1, 0.0, 1, "omq"),
    Scenario("recv_many", "CLIENT", 1, 1, 50e-6, 2, "omq"),
    Scenario("await recv", "CLIENT", 4, 1, 10e-6, 0, "raw"),
    Scenario("recv_columns", "PEER", 4, 1, 0.0, 1000, "omq"),
    Scenario("await recv_multipart", "PEER", 1, 49, 50e-6, 1, "raw"),
    Scenario("recv_into", "DISH", 1, 49, 10e-6, 2, "raw"),
    Scenario("await poll", "DISH", 4, 1, 50e-6, 1000, "raw"),
    Scenario("for", "DISH", 1, 1, 0.0, 0, "omq"),
]


@pytest.mark.parametrize("cell", ONE_PART, ids=str)
def test_a_quiet_peer_of_a_type_of_one_part_is_served(cell: Scenario, crowd: Crowd) -> None:
    assert_served(cell, crowd)


@pytest.mark.slow
@pytest.mark.parametrize("cell", of_one_part(), ids=str)
def test_a_quiet_peer_is_served_by_every_type_of_one_part(cell: Scenario, crowd: Crowd) -> None:
    assert_served(cell, crowd)


@pytest.mark.parametrize(
    "style",
    ["recv", "await recv_many", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fileno", "await recv"))],
)
def test_a_quiet_peer_is_served_when_the_owner_begins_to_work(style: str, crowd: Crowd) -> None:
    """The share that each peer may send in its turn was measured while its messages cost nothing."""
    assert_served(Scenario(style, "PULL", 4, 1, 10e-3, 1000, "raw", sudden=True), crowd)


@pytest.mark.parametrize("style", ["wait", "fileno"])
def test_a_quiet_peer_is_served_where_the_io_thread_reads_on(style: str, crowd: Crowd) -> None:
    """While the owner works, again and again: that does not count as a turn yet."""
    assert_served(Scenario(style, "PULL", 4, 1, 10e-3, 0, "omq"), crowd)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", BLOCKING + ASYNCIO)
def test_a_quiet_peer_is_served_in_every_style_by_every_type(style: str, kind: str, crowd: Crowd) -> None:
    cells = combined(style, kind)
    if not cells:
        pytest.skip(f"{style} does not take what a {kind} gets")
    failures = []
    for cell in cells:
        try:
            assert_served(cell, crowd, lambda cell=cell: _libzmq(cell, crowd))  # type: ignore[misc]
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, f"{len(failures)} of {len(cells)}:\n" + "\n".join(failures)


@cache
def _libzmq_result(cell: Scenario, crowd: Crowd) -> str:
    return str(run_libzmq(cell, crowd))


def _libzmq(cell: Scenario, crowd: Crowd) -> str:
    """Runs the same cell with libzmq, which has but one style."""
    return _libzmq_result(Scenario("recv", cell.kind, cell.busy, cell.quiet, cell.work, cell.hwm, cell.sender), crowd)

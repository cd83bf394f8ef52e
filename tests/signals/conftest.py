"""The programs of these tests wait most of the time: several run at once, and each test looks at what one has shown."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import fork_server

TOP = Path(__file__).parents[2]
AT_ONCE = 4

Finished = subprocess.CompletedProcess[str]


def _run(bound: float, *arguments: str) -> Finished:
    return fork_server.run("-m", *arguments, cwd=TOP, timeout=bound, template=fork_server.SOCKETS)


@pytest.fixture(scope="session")
def _pool(request: pytest.FixtureRequest) -> Iterator[Callable[[tuple[float, ...]], Finished]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = [item.callspec.params.get("run") for item in request.session.items if hasattr(item, "callspec")]
        running: dict[object, Future[Finished]] = {
            one: pool.submit(_run, *one) for one in wanted if isinstance(one, tuple)
        }
        yield lambda one: running[one].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def run(request: pytest.FixtureRequest, _pool: Callable[[tuple[float, ...]], Finished]) -> Finished:
    """A module that has run to its end. The parameter: seconds at most, its name, its arguments."""
    return _pool(request.param)

"""The peers' processes, which serve all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.liveness.scenario_run import Crowd


class _Crowds:
    """One that a failed test has left in the middle of a run is not used again."""

    def __init__(self) -> None:
        self.crowd: Crowd | None = None

    def end(self) -> None:
        if self.crowd is not None:
            self.crowd.close()
            self.crowd = None


@pytest.fixture(scope="session")
def _crowds() -> Iterator[_Crowds]:
    crowds = _Crowds()
    yield crowds
    crowds.end()


@pytest.fixture
def crowd(_crowds: _Crowds) -> Iterator[Crowd]:
    """Busy and quiet peers."""
    if _crowds.crowd is None:
        _crowds.crowd = Crowd()
    yield _crowds.crowd
    if not _crowds.crowd.idle:
        _crowds.end()

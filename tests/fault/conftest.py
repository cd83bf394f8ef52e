"""What holds for tests with faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.stream_endpoints import end_all


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    yield
    end_all()

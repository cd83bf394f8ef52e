"""A device that tests give their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from omq.pzq import Device

Make = Callable[..., Device]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes devices of one directory, one after the other; with a monitor, and a reaper that looks often."""
    with ExitStack() as stack:

        def made(**options: Any) -> Device:
            usual = {"monitor": "tcp://127.0.0.1:*", "reaper_frequency": 50_000}
            return stack.enter_context(Device(tmp_path / "data", **{**usual, **options}))

        yield made

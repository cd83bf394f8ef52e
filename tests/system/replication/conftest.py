"""Servers of NATS for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.nats_servers import NatsServers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """Three servers that all tests of a module share; none of them may stop one."""
    from tests.support.nats_servers import nats_servers

    with nats_servers(tmp_path_factory.mktemp("nats")) as running:
        yield running

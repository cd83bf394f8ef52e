"""Ten thousand connections of one socket: all of them are served, and an idle one costs little."""

from __future__ import annotations

import resource

import pytest

from bench.connections import KINDS, connections
from bench.peers.bare_connections import SPARE_DESCRIPTORS
from tests.support.parameters import each_value_once

LIMIT = 32  # KiB that an idle connection may take

count = pytest.mark.parametrize(
    "count",
    [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])],
)


@pytest.mark.slow
@count
@each_value_once(peer=["omq", "omq-asyncio"], kind=KINDS)
def test_every_connection_is_served_and_costs_little(peer, kind, count):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + SPARE_DESCRIPTORS:
        pytest.skip(f"a process may open {hard} descriptors, {count + SPARE_DESCRIPTORS} are needed")
    found = connections(peer, kind, count)
    assert found["served"] == count
    assert found["each"] < LIMIT

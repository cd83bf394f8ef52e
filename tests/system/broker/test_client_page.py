"""The fragments of the client's page run, next to a broker that has the topics which they name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.asyncio.broker
import omq.broker

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "broker-client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TOPICS = [
    "jobs:round-robin:weak",
    *(f"{name}:broadcast:weak" for name in ("orders", "prices", "results")),
]


class Finished(Exception):
    """Ends the loop of a fragment."""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with omq.broker.Server(tmp_path, bind="tcp://127.0.0.1:*", topics=TOPICS) as server:
        yield server.endpoints["zmtp"]


def done(body: bytes) -> None:
    assert body == b"work"
    raise Finished


def names_of_blocks(client: omq.broker.Client) -> dict[str, Any]:
    """Returns what the fragments use and do not define."""
    used = {"query": "query", "batch": 1, "partition": 0, "attempt": 0}
    return {"omq": omq, "client": client, "body": b"work", "bill": done, "rows": [b"row"], **used}


def test_each_fragment_runs(endpoint: str) -> None:
    with omq.broker.Client(endpoint, timeout=20) as client:
        client.publish("orders", b"work")
        names = names_of_blocks(client)
        count = 0
        for block in BLOCKS:
            if "async" in block or '"tcp://a:5565"' in block:
                continue
            if "has_rows" in block:
                block += 'stages = [f"{query}/{batch}/{partition}/{attempt}"]\n'
            try:
                exec(compile(block, "broker-client.md", "exec"), names)
            except Finished:
                assert "bill(" in block
            count += 1
        assert count == len(BLOCKS) - 2
        assert names["has_rows"]
        assert [message.body for message in client.read("results")] == [b"row"]


def test_the_fragment_for_asyncio_runs(endpoint: str) -> None:
    (block,) = (block for block in BLOCKS if "async" in block)
    lines = "".join(f"    {line}\n" for line in block.splitlines())
    names: dict[str, Any] = {"run": lambda body: done(body)}
    exec(compile(f"async def fragment(client):\n{lines}", "broker-client.md", "exec"), names)

    async def main() -> None:
        async with omq.asyncio.broker.Client(endpoint, timeout=20) as client:
            await client.publish("jobs", b"work")
            with pytest.raises(Finished):
                await names["fragment"](client)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_client_of_a_cluster_takes_several_endpoints() -> None:
    (block,) = (block for block in BLOCKS if '"tcp://a:5565"' in block)
    names: dict[str, Any] = {"omq": omq}
    exec(compile(block, "broker-client.md", "exec"), names)
    with names["client"] as client:
        assert isinstance(client, omq.broker.Client)

"""The HTTP server over a real connection, with the statistics of a fake broker."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from omq.broker.core.stats import BrokerStats, ClusterStats, TopicStats
from omq.broker.http.server import HttpServer
from omq.errors import UsageError
from tests.support.broker_stats import HOSTILE, statistics, topic
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops


@asynccontextmanager
async def served(stats: BrokerStats) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    server = HttpServer(lambda: stats)
    url = await server.start("127.0.0.1:0")
    try:
        async with aiohttp.ClientSession() as session:
            yield url, session
    finally:
        await server.close()


async def test_the_page_is_whole_and_allows_itself_nothing_else() -> None:
    async with served(statistics()) as (url, session), session.get(f"{url}/") as answer:
        text = await answer.text()
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200
        assert answer.content_type == "text/html"
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    addresses = set(re.findall(r"""(?:src|href)=["']([^"']*)""", text))
    assert {address for address in addresses if not address.startswith("data:")} == {
        "topics.json",
        "metrics",
        "healthz",
    }
    assert "@import" not in text


async def test_json_has_all_topics_with_rates() -> None:
    stats = statistics(topic("b", 1), topic(HOSTILE, 2, delivery="round-robin", backlog=7), topic("a", 3))
    async with served(stats) as (url, session), session.get(f"{url}/topics.json") as answer:
        assert answer.content_type == "application/json"
        reply = json.loads(await answer.text())
    assert [one["name"] for one in reply["topics"]] == [HOSTILE, "a", "b"]
    first = reply["topics"][0]
    assert (first["id"], first["first"], first["last"], first["bytes"]) == (2, 11, 1000, 1_030_000)
    assert (first["delivery"], first["persistence"]) == ("round-robin", "strong")
    assert (first["subscribers"], first["lag"], first["rate_in"]) == (0, 7, 0.0)
    assert reply["store"]["bytes"] == 5 * 2**20
    assert reply["rates"]["messages_in"] == 0.0


async def test_many_topics_are_encoded_in_a_thread() -> None:
    async with served(statistics(*(topic(f"t{n}", n) for n in range(1, 1001)))) as (url, session):
        async with session.get(f"{url}/topics.json") as answer:
            assert len(json.loads(await answer.text())["topics"]) == 1000
        async with session.get(f"{url}/metrics") as answer:
            assert 'omq_broker_messages_published_total{topic="t1000"} 1000.0' in await answer.text()


async def test_metrics_come_in_the_form_that_is_asked_for() -> None:
    async with served(statistics(topic("a", 1))) as (url, session):
        async with session.get(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert 'omq_broker_messages_published_total{topic="a"} 1000.0' in await answer.text()
        async with session.get(f"{url}/metrics", headers={"Accept": "application/openmetrics-text"}) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert (await answer.text()).endswith("# EOF\n")


async def test_health() -> None:
    stats = statistics()
    async with served(stats) as (url, session):

        async def ask() -> tuple[int, str]:
            async with session.get(f"{url}/healthz") as answer:
                return answer.status, await answer.text()

        assert await ask() == (200, "ok\n")
        stats["store"]["full"] = True
        assert await ask() == (200, "ok, but the disk is full\n")
        stats["store"]["failed"] = "fdatasync: EIO"
        assert await ask() == (503, "the store has failed: fdatasync: EIO\n")


async def test_a_broker_out_of_its_cluster_is_alive_and_not_ready() -> None:
    cluster: ClusterStats = {"name": "c", "node": "n", "role": "follower", "leader": [], "members": [], "trouble": ""}
    stats: BrokerStats = {**statistics(), "cluster": cluster}
    async with served(stats) as (url, session):

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"{url}/{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("readyz") == (200, "ok\n")
        cluster["trouble"] = "the journal is not connected"
        assert await ask("healthz") == (200, "ok, but the journal is not connected\n")
        assert await ask("readyz") == (503, "the journal is not connected\n")
        cluster["trouble"] = ""
        stats["store"]["failed"] = "fdatasync: EIO"
        assert await ask("readyz") == (503, "the store has failed: fdatasync: EIO\n")


@pytest.mark.parametrize("path", ["/", "/topics.json", "/metrics", "/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_methods_that_are_not_read_only_are_refused(path: str, method: str) -> None:
    async with served(statistics()) as (url, session), session.request(method, url + path) as answer:
        assert answer.status == 405
        assert "GET" in answer.headers["Allow"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_head_and_strange_paths() -> None:
    async with served(statistics()) as (url, session):
        async with session.head(f"{url}/") as answer:
            assert answer.status == 200
            assert await answer.read() == b""
        for path in ("/favicon.ico", "/topics.json/x", "/..%2f..%2fetc/passwd", "/<script>"):
            async with session.get(url + path) as answer:
                assert (answer.status, await answer.text()) == (404, "Not Found\n")


async def test_an_invalid_address() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        await HttpServer(statistics).start("nowhere")


class _Work:
    """Counts steps of work, and the most of them between two turns of the loop."""

    def __init__(self) -> None:
        self.total = self._since = self.most = 0

    def step(self) -> None:
        self.total += 1
        self._since += 1
        self.most = max(self.most, self._since)

    def turn(self) -> None:
        self._since = 0


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/topics.json", "/metrics"])
async def test_other_requests_have_turns_while_many_topics_are_encoded(path: str) -> None:
    """The loop has turns while topics are collected, and while an answer with them is encoded."""
    shares: list[tuple[float, float]] = []
    while not shares or (max(shares[-1]) >= 0.9 and len(shares) < 5):  # a busy machine spoils one of them, and not all
        shares.append(await _longest_work(path))
    assert max(shares[-1]) < 0.9, shares


async def _longest_work(path: str) -> tuple[float, float]:
    """Returns the largest parts of collecting and of encoding that were done in one turn of the loop."""
    collecting, encoding, count, looks = _Work(), _Work(), 3000, 0

    class Topic(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            encoding.step()
            return super().__getitem__(key)

    def topics() -> Iterator[TopicStats]:
        nonlocal looks
        looks += 1
        for number in range(count):
            end = time.perf_counter() + 0.0001
            while time.perf_counter() < end:
                pass
            collecting.step()
            yield Topic(topic(f"t{number}", number))  # type: ignore[misc]

    server = HttpServer(statistics, topics)
    url = await server.start("127.0.0.1:0")

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            collecting.turn()
            encoding.turn()

    ticking = asyncio.create_task(tick())
    try:
        async with aiohttp.ClientSession() as session:
            answers = await asyncio.gather(*(_length(session, url + path) for _ in range(3)))
    finally:
        ticking.cancel()
        await server.close()
    assert min(answers) > 50_000
    assert looks <= 3, "who asks at once shares a look"
    return collecting.most / count, encoding.most / (encoding.total / len(answers))


async def test_a_page_asks_less_often_where_an_answer_takes_long() -> None:
    def topics() -> Iterator[TopicStats]:
        time.sleep(0.2)
        yield topic("t", 1)

    server = HttpServer(statistics, topics)
    url = await server.start("127.0.0.1:0")
    refreshes = []
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.get(f"{url}/topics.json") as answer:
                    refreshes.append((await answer.json())["refresh"])
    finally:
        await server.close()
    assert refreshes[0] == 0
    assert 4 <= refreshes[1] < 30


async def answer_of(session: aiohttp.ClientSession, url: str, **query: str) -> dict[str, Any]:
    async with session.get(f"{url}/topics.json", params=query) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def test_topics_come_in_parts_by_their_names() -> None:
    stats = statistics(*(topic(f"T{number:03}", number) for number in range(250, 0, -1)), topic("other", 999))
    async with served(stats) as (url, session):
        names, after, parts = [], {}, 0
        while True:
            part = await answer_of(session, url, limit="100", match="t", **after)
            assert (part["count"], part["matching"]) == (251, 251)
            names += [one["name"] for one in part["topics"]]
            parts += 1
            if part["next"] is None:
                break
            after = {"after": part["next"]}
        assert parts == 3
        assert names == [f"T{number:03}" for number in range(1, 251)] + ["other"]

        part = await answer_of(session, url, match="t02", limit="1000")
        assert [one["name"] for one in part["topics"]] == [f"T02{digit}" for digit in range(10)]
        assert (part["count"], part["matching"], part["next"]) == (251, 10, None)
        assert (await answer_of(session, url, after="zzz"))["topics"] == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"limit": "0"}, "limit='0': must be a number of topics, at least 1"),
        ({"limit": "ten"}, "limit='ten'"),
        ({"limit": "-1"}, "limit='-1'"),
        ({"limit": "\u0663"}, "limit="),
        ({"limti": "5"}, "unknown parameter 'limti'; expected match, after, limit, since"),
    ],
)
async def test_a_query_that_means_nothing_is_refused_by_name(query: dict[str, str], text: str) -> None:
    async with (
        served(statistics(topic("a", 1))) as (url, session),
        session.get(f"{url}/topics.json", params=query) as answer,
    ):
        assert answer.status == 400
        assert text in await answer.text()


async def test_a_parameter_that_is_there_twice_is_refused() -> None:
    async with served(statistics()) as (url, session), session.get(f"{url}/topics.json?limit=1&limit=2") as answer:
        assert answer.status == 400


async def test_topics_that_have_not_changed_are_left_out() -> None:
    stats = statistics(topic("a", 1), topic("b", 2), topic("c", 3))
    async with served(stats) as (url, session):
        first = await answer_of(session, url)
        assert [one["id"] for one in first["topics"]] == [1, 2, 3]
        assert first["since"] is None
        same = await answer_of(session, url, since=first["revision"])
        assert (same["since"], same["ids"], same["topics"]) == (first["revision"], [1, 2, 3], [])

        stats["topics"] = [topic("a", 1), topic("bb", 4), topic("c", 3, last=1001)]
        await answer_of(session, url)  # what others ask does not matter
        for since in (first, same):
            new = await answer_of(session, url, since=since["revision"])
            assert (new["ids"], [one["id"] for one in new["topics"]]) == ([1, 4, 3], [4, 3])
        assert (await answer_of(session, url, since=new["revision"]))["topics"] == []

        for unknown in ("", "1", "x-1", first["revision"].replace("-", "-x"), f"{first['revision']}99", "\u0663"):
            full = await answer_of(session, url, since=unknown)
            assert (full["since"], len(full["topics"]), "ids" in full) == (None, 3, False)


async def _length(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        assert answer.status == 200
        return len(await answer.read())

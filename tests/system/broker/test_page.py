"""The status page in a real browser, with the statistics of a fake broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Client, Server
from omq.broker.core.stats import BrokerStats
from omq.broker.http.server import HttpServer
from tests.support.broker_stats import HOSTILE, statistics, topic
from tests.support.waits import until
from tests.system.broker.browser import Browser, browser, needs_browser

pytestmark = [pytest.mark.xdist_group("broker-page"), needs_browser, pytest.mark.timeout(120)]

PHONE = (390, 844)
DESKTOP = (1280, 800)


class StatsServer:
    """A server in a thread of its own, which serves `stats`."""

    def __init__(self) -> None:
        self.stats: BrokerStats = statistics()
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._server = HttpServer(lambda: self.stats)
        self._thread = threading.Thread(target=self._loop.run_forever)

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def start(self, address: str = "127.0.0.1:0") -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self.url = self._await(self._server.start(address))

    def stop(self) -> None:
        self._await(self._server.close())

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def server() -> Iterator[StatsServer]:
    made = StatsServer()
    made.start()
    yield made
    made.end()


@pytest.fixture
def look(window: Browser, server: StatsServer) -> Iterator[Callable[..., Browser]]:
    """Opens the page, and waits until it shows the statistics."""

    def opened(*topics: Any, size: tuple[int, int] = DESKTOP, **changes: Any) -> Browser:
        server.stats = statistics(*topics, **changes)
        window.size(*size)
        window.prefer("light")
        window.complaints()
        window.driver.get(server.url)
        until(lambda: window.text("#state") not in ("", "asking"), "the page shows nothing")
        return window

    yield opened
    window.driver.get("about:blank")  # no page of this server is left to complain about its end in the next test


def reader(**changes: Any) -> dict[str, Any]:
    made = {"kind": "subscriber", "listener": "zmtp", "name": None, "user": None, "peer": "tcp://10.0.0.4:53122"}
    return {**made, "position": 900, "lag": 100, "in_flight": 0, **changes}


@pytest.mark.slow
def test_the_page_shows_a_busy_broker(look: Callable[..., Browser]) -> None:
    prices = topic(
        "prices",
        1,
        settings={"max_age": 604800},
        subscriptions=[reader(name="ledger", user="alice"), reader(listener="sexp", lag=250)],
        names=[
            {"name": "ledger", "position": 900, "lag": 100, "held": True, "active": 1.0},
            {"name": "archive", "position": 500, "lag": 500, "held": False, "active": 1.0},
        ],
    )
    jobs = topic("jobs", 2, delivery="round-robin", persistence="weak", backlog=1234)
    window = look(prices, jobs)
    assert window.text("#state") == "serving"
    assert window.text("#title") == "Topics (2)"
    rows = window.run("return [...document.querySelectorAll('summary')].map(row => row.innerText.split(/\\s*\\n\\s*/))")
    assert rows[0] == ["jobs", "round-robin weak", "11 \u2013 1,000", "0.98 MiB", "0", "0", "0", "1,234"]
    assert rows[1] == ["prices", "broadcast strong", "11 \u2013 1,000", "0.98 MiB", "0", "0", "2", "500"]
    assert "5.00 MiB" in window.text("#tile-store")
    assert "50.0 GiB free" in window.text("#tile-store")
    assert "zmtp 3, sexp 1" in window.text("#tile-connections")
    assert "1 min 40 s" in window.text("#tile-uptime")
    window.run("document.querySelectorAll('details')[1].open = true")
    until(lambda: "ledger" in window.text("details:nth-child(2)"))
    inside = window.text("details:nth-child(2) .inside")
    for part in ("kept for 7 d", "Subscribers (2)", "alice", "10.0.0.4:53122", "250", "archive", "away", "reading"):
        assert part in inside
    assert window.complaints() == []


def test_the_page_shows_the_groups_of_a_topic(look: Callable[..., Browser]) -> None:
    groups = [
        {"name": f"g{number:02}", "lag": 1200 + number, "in_flight": 30, "consumers": 2, "active": 1.0}
        for number in range(60)
    ]
    groups[0]["name"] = HOSTILE
    window = look(topic("orders", 1, groups=groups))
    row = window.run("return document.querySelector('summary').innerText.split(/\\s*\\n\\s*/)")
    assert row[-1] == "1,259", "the lag of the slowest group"
    window.run("document.querySelector('details').open = true")
    until(lambda: "Consumer groups (60)" in window.text("details .inside"))
    lines = window.run(
        "return [...document.querySelectorAll('.inside .who')].map(row => row.innerText.split(/\\s*\\n\\s*/))"
    )
    assert lines[0] == ["Consumer groups (60)", "Consumers", "Lag", "In flight"]
    assert ["g07", "2", "1,207", "30"] in lines
    assert len(lines) == 51
    assert "and 10 more: see topics.json" in window.text("details .inside")
    assert window.complaints() == []


def test_the_page_refreshes_itself_and_leaves_open_what_is_open(
    look: Callable[..., Browser], server: StatsServer
) -> None:
    window = look(topic("prices", 1))
    window.run("document.querySelector('details').open = true; window.still = document.querySelector('details')")
    for name in ("in", "out"):
        assert "0 /s" in window.text(f"#tile-{name}")
    busy = topic("prices", 1, last=6000, published=6000, delivered=18000, published_bytes=6_240_000)
    server.stats = statistics(busy, topic("added", 2), uptime=105.0)
    until(lambda: "11 \u2013 6,000" in window.text("#topics"), "no refresh")
    assert window.text("#title") == "Topics (2)"
    assert window.run("return window.still.open && window.still === document.querySelectorAll('details')[1]")
    assert "/s" in window.text("#tile-in")
    assert "0 /s" not in window.text("#tile-in").split("\n")
    server.stats = statistics(topic("added", 2))
    until(lambda: window.text("#title") == "Topics (1)")


def test_the_page_asks_for_what_is_new_only(look: Callable[..., Browser], server: StatsServer) -> None:
    others = [topic(f"t{number}", number) for number in range(1, 21)]
    window = look(*others)
    window.run("""
        const ask = fetch;
        window.got = [];
        window.fetch = async (...what) => {
          const answer = await ask(...what);
          window.got.push((await answer.clone().json()).topics.length);
          return answer;
        };
    """)
    until(lambda: window.run("return window.got.includes(0)"), "topics that are the same are sent again")
    server.stats = statistics(*others[:4], topic("t5", 5, last=7000), *others[5:])
    until(lambda: "11 \u2013 7,000" in window.text("#topics"), "no refresh")
    assert max(window.run("return window.got")) == 1
    server.stop()
    server.start(server.url.removeprefix("http://"))
    server.stats = statistics(topic("a", 99), *others[:4], *others[5:])
    until(lambda: "Topics (20)" in window.text("#title") and "t5" not in window.text("#topics").split())
    assert window.run("return document.querySelectorAll('details').length") == 20


def test_a_hostile_name_is_text(look: Callable[..., Browser]) -> None:
    hostile = topic(
        HOSTILE,
        1,
        settings={"dead_letter": HOSTILE},
        subscriptions=[reader(name=HOSTILE, user=HOSTILE, peer=HOSTILE)],
        names=[{"name": HOSTILE, "position": 1, "lag": 0, "held": False, "active": 1.0}],
    )
    window = look(hostile, failed=HOSTILE, findings=[HOSTILE])
    window.run("document.querySelector('details').open = true")
    until(lambda: "Positions" in window.text("#topics"))
    assert window.run("return document.querySelector('summary bdi').textContent") == HOSTILE
    assert window.run("return document.querySelectorAll('img, main script, .note img').length") == 0
    assert window.run("return document.title") == "store failed · omq broker"
    assert window.complaints() == []


def test_a_broker_without_topics_shows_a_hint(look: Callable[..., Browser]) -> None:
    window = look()
    text = window.text("#empty")
    assert "There are no topics yet" in text
    assert 'omq.broker.Client("tcp://127.0.0.1:5555")' in text
    assert "omq broker DIR --topic prices:broadcast:strong" in text


@pytest.mark.parametrize(
    ("store", "state", "note"),
    [
        ({"failed": "fdatasync: Input/output error"}, "store failed", "nothing is acknowledged any more"),
        ({"full": True}, "disk full", "what is published is refused"),
        ({"findings": ["prices: ids 3 to 9 are damaged"]}, "serving", "ids 3 to 9 are damaged"),
    ],
)
def test_trouble_is_not_to_be_overlooked(
    look: Callable[..., Browser], store: dict[str, Any], state: str, note: str
) -> None:
    window = look(topic("prices", 1), **store)
    assert window.text("#state") == state
    assert note in window.text("#notes")
    assert window.run("return document.querySelector('.note').getBoundingClientRect().top") < 200


@pytest.mark.parametrize(
    ("changes", "state", "line"),
    [
        ({"role": "leader"}, "leader", "node b1 leads in the cluster orders · journal 1,234"),
        (
            {"leader": ["tcp://a:5565"]},
            "follower",
            "node b1 follows tcp://a:5565 in the cluster orders · journal 1,234",
        ),
        ({"trouble": "the disk is full"}, "trouble in the cluster", "node b1 follows no leader in the cluster orders"),
    ],
)
def test_the_page_shows_the_role(
    look: Callable[..., Browser], server: StatsServer, changes: dict[str, Any], state: str, line: str
) -> None:
    window = look(topic("prices", 1))
    assert window.run("return document.querySelector('#cluster').hidden")
    cluster: Any = {"name": "orders", "node": "b1", "role": "follower", "leader": [], "members": [], "trouble": ""}
    server.stats = {**server.stats, "cluster": {**cluster, **changes}, "journal_position": 1234}
    until(lambda: line in window.text("#cluster"))
    assert window.text("#state") == state
    assert changes.get("trouble", "") in window.text("#notes")


def test_a_lost_broker_is_reported_and_found_again(look: Callable[..., Browser], server: StatsServer) -> None:
    window = look(topic("prices", 1))
    server.stop()
    until(lambda: window.text("#state") == "no answer")
    assert "does not answer" in window.text("#notes")
    assert "prices" in window.text("#topics")
    server.start(server.url.removeprefix("http://"))
    until(lambda: window.text("#state") == "serving")
    assert window.text("#notes") == ""


def test_a_phone_need_not_scroll_sideways(look: Callable[..., Browser]) -> None:
    long = topic(
        "x" * 255,
        1,
        last=98_765_432_109,
        bytes=7 * 2**40,
        subscriptions=[
            reader(name="n" * 255, user="u" * 40, peer="tcp://[2001:db8:1234:5678:9abc:def0:1234:5678]:53122")
        ],
        names=[{"name": "n" * 255, "position": 98_765_432_100, "lag": 9, "held": True, "active": 1.0}],
        settings={"max_bytes": 10**12, "dead_letter": "d" * 255},
    )
    window = look(long, topic("prices", 2), size=PHONE, failed="/" + "long" * 60, findings=["f" * 300])
    window.run("for (const row of document.querySelectorAll('details')) row.open = true")
    until(lambda: "Positions" in window.text("#topics"))
    for width in (320, 390, 600, 800, 1100):
        window.size(width, 844)
        until(lambda width=width: window.run("return innerWidth") == width)
        scroll, inner = window.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert scroll <= inner, f"at {width} pixels"
        out = window.run(
            "return [...document.querySelectorAll('main *, header *, .note')].filter(e => e.getClientRects().length"
            " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
        )
        assert out == []


def test_a_short_name_is_not_broken_at_any_width(look: Callable[..., Browser]) -> None:
    window = look(topic("prices", 1, last=98_765_432_109))
    for width in (600, 800, 1000, 1130, 1300):
        window.size(width, 844)
        until(lambda width=width: window.run("return innerWidth") == width)
        height, line = window.run(
            "const name = document.querySelector('#topics .name');"
            "return [name.getBoundingClientRect().height, parseFloat(getComputedStyle(name).lineHeight)]"
        )
        assert height < 1.5 * line, f"at {width} pixels"


def test_light_and_dark(look: Callable[..., Browser]) -> None:
    window = look(topic("prices", 1))

    def brightness(what: str) -> float:
        color = window.run(f"return getComputedStyle(document.body).{what}")
        return sum(float(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))

    assert brightness("backgroundColor") > 600 > 200 > brightness("color")
    window.prefer("dark")
    assert brightness("backgroundColor") < 200 < 600 < brightness("color")


def test_a_broker_at_work(window: Browser, tmp_path: Path) -> None:
    topics = ("prices:broadcast:strong:max_age=3600", "jobs:round-robin:weak", f"{HOSTILE}:broadcast:transient")
    places = {"bind": "tcp://127.0.0.1:*", "sexp": "tcp://127.0.0.1:*", "http": "127.0.0.1:0"}
    topics = tuple(topic.replace("/", "") for topic in topics)
    with Server(tmp_path / "data", topics=topics, **places) as server, Client(server.endpoints["zmtp"]) as client:
        window.size(*DESKTOP)
        window.complaints()
        window.driver.get(server.endpoints["http"])
        until(lambda: window.text("#title") == "Topics (3)")
        client.publish_many("prices", [bytes(1000)] * 2000)
        client.publish_many("jobs", [b"a job"] * 50)
        with (
            client.subscribe("prices", replay="earliest", name="ledger") as subscription,
            client.consume("jobs", credit=10) as consumer,
        ):
            assert subscription.recv(timeout=10).id == 1
            assert consumer.recv(timeout=10).id == 1
            window.run("for (const row of document.querySelectorAll('details')) row.open = true")
            until(lambda: "Subscribers (1)" in window.text("#topics") and "Consumers (1)" in window.text("#topics"))
            shown = window.text("#topics")
            for part in ("1 \u2013 2,000", "1 \u2013 50", "ledger", "kept for 1 h", "2,000 published"):
                assert part in shown
            assert "fsync" in window.text("#tile-sync")
            assert "median" in window.text("#tile-sync")
            assert window.text("#state") == "serving"
        until(lambda: "Consumers (1)" not in window.text("#topics"))
        assert window.complaints() == []


def test_many_topics_can_be_filtered(look: Callable[..., Browser]) -> None:
    window = look(*(topic(f"topic.{number:04}", number) for number in range(1, 1001)))
    assert window.text("#title") == "Topics (1,000), the first 500 shown"
    window.run("const f = document.getElementById('filter'); f.value = '.09'; f.dispatchEvent(new Event('input'))")
    until(lambda: window.text("#title") == "Topics (1,000), 100 fit")
    assert window.run("return document.querySelectorAll('details').length") == 100
    began = time.monotonic()
    window.run("const f = document.getElementById('filter'); f.value = 'none'; f.dispatchEvent(new Event('input'))")
    until(lambda: "No topic has that" in window.text("#empty"))
    assert time.monotonic() - began < 5

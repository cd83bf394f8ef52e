"""Topics become what `broker.toml` and `--topic` declare; everything is checked before the first change."""

from __future__ import annotations

from typing import Any

import pytest

from omq.broker.config import TopicSpec
from omq.broker.core.broker import Broker
from omq.broker.errors import TopicError
from omq.broker.reconcile import TopicPlan
from omq.broker.server import AsyncServer
from tests.support.broker_core import append, core


def jobs(name: str, **settings: Any) -> TopicSpec:
    return TopicSpec(name, "round-robin", "weak", settings, place=f'broker.toml: [[topic]] number 1 ("{name}")')


def prices(name: str = "t", **settings: Any) -> TopicSpec:
    return TopicSpec(name, "broadcast", "weak", settings, place=f'broker.toml: [[topic]] number 1 ("{name}")')


async def declare(broker: Broker, *topics: TopicSpec) -> None:
    await TopicPlan(broker, topics).apply()


def settings_of(broker: Broker) -> dict[str, dict[str, Any]]:
    return {name: topic.settings for name, topic in sorted(broker.topics.items())}


async def test_topics_are_created_altered_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with core() as broker:
        await declare(broker, prices("a", max_age=60, max_messages=5), prices("b", max_age=60))
        await broker.create("other", persistence="weak", settings={"max_age": 1})
        before = dict(broker.topics)
        caplog.clear()
        await declare(broker, prices("a", max_age=90), prices("b", max_age=60), prices("c"))
        assert settings_of(broker) == {
            "a": {"max_age": 90.0},
            "b": {"max_age": 60.0},
            "c": {},
            "other": {"max_age": 1.0},
        }
        assert {name: topic for name, topic in broker.topics.items() if name != "c"} == before
        assert sorted(caplog.messages) == [
            "topic 'a': altered by the broker, max_messages from 5 to None, max_age from 60.0 to 90.0",
            "topic 'c': created by the broker, broadcast and weak, with no settings",
        ]


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (
            TopicSpec("t", "round-robin", "weak", place="broker.toml: here"),
            ["broker.toml: here", "'t'", 'delivery = "round-robin"', '"broadcast"', "cannot change", "delete"],
        ),
        (TopicSpec("t", "broadcast", "async"), ['persistence = "async"', '"weak"', "cannot change"]),
        (
            prices(max_messages=4),
            [
                'broker.toml: [[topic]] number 1 ("t")',
                "max_messages = 4: topic 't' has 20",
                "6 of the 10 messages",
                "`omq topic alter t max_messages=4 --force`",
                "delete",
            ],
        ),
        (
            prices(max_messages=20, retain_for="ahead"),
            ["retain_for = \"ahead\": topic 't' has no value", "7 of the 10"],
        ),
        (prices(max_messages=20, max_age=1e-9), ["max_age = 1e-09", "the oldest of the 10 messages"]),
    ],
)
async def test_a_topic_that_cannot_become_what_is_declared_is_named(wrong: TopicSpec, parts: list[str]) -> None:
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"max_messages": 20})
        await append(broker, topic, [b"x"] * 10)
        topic._cursors["ahead"] = 7  # type: ignore[attr-defined]
        with pytest.raises(TopicError) as caught:
            TopicPlan(broker, [prices("new"), wrong])
        for part in parts:
            assert part in str(caught.value)
        assert settings_of(broker) == {"t": {"max_messages": 20}}


async def test_the_command_of_an_error_is_quoted_for_the_shell() -> None:
    async with core() as broker:
        topic = await broker.create("it's two words", persistence="weak", settings={"max_messages": 20})
        await append(broker, topic, [b"x"] * 10)
        with pytest.raises(TopicError) as caught:
            TopicPlan(broker, [prices("it's two words", max_bytes=20)])
        assert """omq topic alter 'it'"'"'s two words' max_bytes=20 --force""" in str(caught.value)


async def test_dead_letter_topics_may_change_places() -> None:
    async with core() as broker:
        await declare(broker, jobs("a", dead_letter="b"), jobs("b", dead_letter="c"), jobs("c"))
        await declare(
            broker, jobs("a"), jobs("b", dead_letter="a"), jobs("c", dead_letter="b"), jobs("d", dead_letter="c")
        )
        await declare(
            broker, jobs("d"), jobs("c", dead_letter="d"), jobs("b", dead_letter="c"), jobs("a", dead_letter="b")
        )
        assert {name: one.get("dead_letter") for name, one in settings_of(broker).items()} == {
            "a": "b",
            "b": "c",
            "c": "d",
            "d": None,
        }


@pytest.mark.parametrize("declared", [("a", "c"), ("c",)])
async def test_a_cycle_of_dead_letter_topics_changes_nothing(declared: tuple[str, ...]) -> None:
    async with core() as broker:
        await declare(broker, jobs("a", dead_letter="b"), jobs("b", dead_letter="c"), jobs("c"))
        before = settings_of(broker)
        wanted = {"a": jobs("a", dead_letter="b", retry_delay=1), "c": jobs("c", dead_letter="a")}
        with pytest.raises(TopicError, match=r'number 1 \("c"\): .* would come back to it'):
            TopicPlan(broker, [prices("new"), *(wanted[name] for name in declared)])
        assert settings_of(broker) == before


async def test_a_topic_that_a_client_changes_after_the_check_is_named() -> None:
    async with core() as broker:
        await declare(broker, prices("a"), prices("b"))
        plan = TopicPlan(broker, [prices("a", max_age=60), prices("b", max_age=60)])
        await broker.delete("b")
        with pytest.raises(TopicError, match=r'number 1 \("b"\): there is no topic'):
            await plan.apply()
        assert settings_of(broker) == {"a": {"max_age": 60.0}}


async def test_a_server_alters_its_topics_at_its_start(tmp_path: Any) -> None:
    for settings in ({"max_messages": 10}, {"max_messages": 20, "max_age": 5.0}, {}, {"max_messages": 10}):
        async with AsyncServer(tmp_path, topics=[prices(**settings)]) as server:
            topic = server.broker.topic("t")
            assert topic.settings == settings
            if not topic.last:
                await append(server.broker, topic, [b"x"] * 8)
    refused = AsyncServer(tmp_path, topics=[prices(max_messages=3), prices("new")])
    with pytest.raises(TopicError, match="5 of the 8 messages"):
        await refused.start()
    async with AsyncServer(tmp_path, topics=["t:broadcast:weak:max_messages=8"]) as server:
        assert settings_of(server.broker) == {"t": {"max_messages": 8}}

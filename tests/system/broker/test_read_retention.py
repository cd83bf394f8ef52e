"""`retention="read"` and `inactive_threshold` of a broker process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.broker
from omq.broker import StoreFull, TopicError
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import Command, broker
from tests.system.broker.test_monitoring import entries, value

pytestmark = pytest.mark.timeout(120)

LISTENERS = ("--bind", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0", "--log-format", "json")


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with broker(tmp_path, tmp_path / "data", *LISTENERS) as started:
        yield started


def first(twin: Any, client: Any) -> int:
    """Returns the oldest id of the topic."""
    found: int = twin.wait(client.topics("t"))[0].first
    return found


@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
def test_a_topic_waits_for_durable_subscriptions_and_groups(command: Command, twin: Any, persistence: str) -> None:
    client = twin.Client(command.serving()["zmtp"], timeout=20)
    settings = {"retention": "read", "max_messages": 10}
    assert twin.wait(client.create("t", persistence=persistence, **settings)).settings == settings
    twin.wait(client.publish_many("t", [b"%d" % number for number in range(10)]))
    with pytest.raises(StoreFull, match="max_messages=10"):
        twin.wait(client.publish("t", b"x"))
    subscription = twin.wait(client.subscribe("t", name="n", replay="earliest"))
    consumer = twin.wait(client.consume("t", group="workers", replay=2))
    messages, jobs = twin.take(subscription, 10), twin.take(consumer, 8)
    twin.call(subscription.ack, messages[8])
    for job in jobs[1:]:
        twin.call(job.ack)
    twin.wait(client.flush())
    until(lambda: first(twin, client) == 3, "the group has message 3 in flight")
    twin.call(jobs[0].ack)
    twin.wait(client.flush())
    until(lambda: first(twin, client) == 10)
    assert twin.wait(client.publish_many("t", [b"x"] * 9))[-1] == 19
    for call in (lambda: client.purge("t"), lambda: client.requeue("t", to="other")):
        with pytest.raises(TopicError, match="retention='read'"):
            twin.wait(call())
    twin.wait(subscription.close())
    twin.wait(consumer.close())
    twin.wait(client.delete_durable("t", "n"))
    until(lambda: first(twin, client) == 11)
    twin.wait(client.delete_group("t", "workers"))
    assert twin.wait(client.alter("t", retention=None)).settings == {"max_messages": 10}
    assert twin.wait(client.publish("t", b"x")) == 20
    assert twin.wait(client.publish("t", b"x")) == 21
    until(lambda: first(twin, client) == 12)  # an async topic is answered before its commit
    with pytest.raises(TopicError, match="retention='all'"):
        twin.wait(client.alter("t", retention="all"))
    twin.wait(client.close())


def test_readers_get_all_messages_from_brokers_that_are_killed(tmp_path: Path, free_port: int) -> None:
    """Publishers wait for a durable subscription and for a group of two members."""
    topic = "t:broadcast:strong:retention=read:max_messages=6:overflow=block"
    endpoint = f"tcp://127.0.0.1:{free_port}"
    arguments = (tmp_path / "data", "--bind", endpoint, "--topic", topic, "--log-level", "error")
    count = 60
    subscribed: list[bytes] = []
    consumed: list[bytes] = []
    failures: list[BaseException] = []

    def run(call: Any) -> threading.Thread:
        def guard() -> None:
            try:
                with omq.broker.Client(endpoint, timeout=60) as client:
                    call(client)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guard)
        thread.start()
        return thread

    def subscribe(client: omq.broker.Client) -> None:
        with client.subscribe("t", name="n", replay="earliest") as subscription:
            while len(subscribed) < count:
                message = subscription.recv(timeout=60)
                subscribed.append(message.body)
                subscription.ack(message)
            client.flush(timeout=60)

    def consume(client: omq.broker.Client) -> None:
        with client.consume("t", group="workers", replay="earliest", credit=2) as consumer:
            while len(set(consumed)) < count:
                with contextlib.suppress(omq.ReceiveTimeout):
                    message = consumer.recv(timeout=0.1)
                    consumed.append(message.body)
                    message.ack()
            client.flush(timeout=60)

    def publish(client: omq.broker.Client) -> None:
        for number in range(count):
            client.publish("t", b"%d" % number)

    with broker(tmp_path, *arguments) as started:
        started.serving()
        with omq.broker.Client(endpoint, timeout=20) as client:
            client.subscribe("t", name="n", replay="earliest").close()
            client.consume("t", group="workers", replay="earliest").close()
        threads = [run(call) for call in (subscribe, consume, consume, publish)]
        until(lambda: len(subscribed) > 9 or failures)
        started.process.kill()
        started.ended()
    for goal in (30, count):
        with broker(tmp_path, *arguments) as started:
            until(lambda goal=goal: (len(subscribed) >= goal and len(set(consumed)) >= goal) or failures, bound=90)
            if goal < count:
                started.process.kill()
                started.ended()
                continue
            for thread in threads:
                thread.join(60)
            assert failures == []
            with omq.broker.Client(endpoint, timeout=20) as client:
                until(lambda: client.topics("t")[0].first == count + 1)
                assert [group.lag for group in client.groups("t")] == [0]
    assert subscribed == [b"%d" % number for number in range(count)]
    assert set(consumed) == set(subscribed)


def test_inactive_readers_are_deleted_logged_and_counted(tmp_path: Path) -> None:
    topic = "t:broadcast:strong:retention=read:retain_for=archiver:inactive_threshold=0.5"
    with broker(tmp_path, tmp_path / "data", *LISTENERS, "--topic", topic) as command:
        endpoints = command.serving()
        with omq.broker.Client(endpoints["zmtp"], timeout=20) as client:
            kept = client.subscribe("t", name="kept", replay="earliest")
            member = client.consume("t", group="kept group", replay="earliest")
            client.publish_many("t", [b"x"] * 3)
            client.subscribe("t", name="gone", replay="earliest").close()
            client.consume("t", group="gone group", replay="earliest").close()
            began = time.monotonic()
            until(lambda: [group.name for group in client.groups("t")] == ["kept group"])
            until(lambda: [durable.name for durable in client.durables("t")] == ["archiver", "kept"])
            assert time.monotonic() - began < 30
            until(lambda: value(endpoints, "readers_expired_total", topic="t") == 2)
            assert value(endpoints, "group_consumers", topic="t", group="gone group") is None
            assert [kept.recv(timeout=20).id for _ in range(3)] == [1, 2, 3]
            assert [member.recv(timeout=20).id for _ in range(3)] == [1, 2, 3]
        assert command.end() == 0
    found = [entry for entry in entries(command.log) if entry.get("event") == "reader_expired"]
    assert {entry.get("subscription") or entry.get("group") for entry in found} == {"gone", "gone group"}
    assert all((entry["topic"], entry["lag"]) == ("t", 3) and entry["idle"] >= 0.5 for entry in found)


def test_the_metrics_and_the_activity_of_groups(command: Command, twin: Any) -> None:
    endpoints = command.serving()
    began = time.time()
    client = twin.Client(endpoints["zmtp"], timeout=20)
    twin.wait(client.create("t", persistence="weak"))
    consumer = twin.wait(client.consume("t", group="billing", credit=4))
    twin.wait(client.consume("t", group="other"))
    twin.wait(client.publish_many("t", [b"x"] * 10))
    (message, *_) = twin.take(consumer, 2)
    twin.call(message.ack)
    twin.wait(client.flush())
    labels = {"topic": "t", "group": "billing"}
    until(lambda: value(endpoints, "group_lag_messages", **labels) == 9)
    until(lambda: value(endpoints, "group_in_flight_messages", **labels) == 4)
    assert value(endpoints, "group_consumers", **labels) == 1
    some = twin.wait(client.groups("t"))
    assert [group.name for group in some] == ["billing", "other"]
    active = some[0].active
    assert began - 1 <= active <= time.time() + 1
    # The status page may show statistics that were collected a moment ago.
    until(lambda: value(endpoints, "group_last_activity_timestamp_seconds", **labels) == pytest.approx(active))
    twin.wait(consumer.close())
    until(lambda: twin.wait(client.groups("t"))[0].active > active)
    until(lambda: value(endpoints, "group_consumers", **labels) == 0)
    twin.wait(client.delete_group("t", "billing"))
    until(lambda: value(endpoints, "group_consumers", **labels) is None)
    twin.wait(client.close())


@pytest.mark.parametrize("setting", ["retention=all", "inactive_threshold=0", "inactive_threshold=week"])
def test_an_invalid_setting_is_named(tmp_path: Path, setting: str) -> None:
    with broker(tmp_path, "--memory", "--topic", f"t:broadcast:weak:{setting}") as command:
        assert command.ended() == 2
        name, _, text = setting.partition("=")
        assert name in command.log
        assert text in command.log


def test_the_settings_of_a_file(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    row = '[[topic]]\nname = "t"\nretention = "read"\ninactive_threshold = 604800\n'
    config.write_text('bind = "tcp://127.0.0.1:*"\n' + row)
    with broker(tmp_path, tmp_path / "data", "--config", config) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            (info,) = client.topics("t")
            assert info.settings == {"retention": "read", "inactive_threshold": 604800.0}
        command.end()

"""Other settings of topics of a broker process: by a client, at the start and with SIGHUP."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.broker
from omq.broker import PermissionDenied, StoreFull, TopicError
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import Command, broker, get

pytestmark = pytest.mark.timeout(120)

LISTENERS = ("--bind", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0")


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


def test_a_client_alters_a_topic(tmp_path: Path, twin: Any) -> None:
    with broker(tmp_path, tmp_path / "data", *LISTENERS) as command:
        client = twin.Client(command.serving()["zmtp"], timeout=20)
        made = twin.wait(client.create("t", max_messages=100, max_age=3600))
        twin.wait(client.publish_many("t", [b"x"] * 50))
        altered = twin.wait(client.alter("t", max_messages=50, max_age=None, retain_for=None))
        assert (altered.id, altered.settings, altered.last) == (made.id, {"max_messages": 50}, 50)
        with pytest.raises(TopicError, match=r"max_messages=10: 40 of the 50 messages .* force"):
            twin.wait(client.alter("t", max_messages=10))
        assert twin.wait(client.topics("t"))[0] == altered
        assert twin.wait(client.alter("t", max_messages=10, force=True)).first == 41
        for wrong in ({"delivery": "round-robin"}, {"persistence": "weak"}):
            with pytest.raises(TopicError, match=r"cannot change.* create another topic"):
                twin.wait(client.alter("t", **wrong))
        for wrong in ({"max_messages": 0}, {"colour": "red"}, {"max_deliveries": 0}):
            with pytest.raises(TopicError, match=next(iter(wrong))):
                twin.wait(client.alter("t", **wrong))
        with pytest.raises(TopicError, match="no topic"):
            twin.wait(client.alter("nowhere", max_age=1))
        with pytest.raises(TypeError, match="force='yes': must be True or False"):
            twin.wait(client.alter("t", force="yes"))
        assert twin.wait(client.alter("t")).settings == {"max_messages": 10}
        twin.wait(client.close())


@pytest.mark.slow
@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
def test_settings_survive_a_kill_after_the_answer(tmp_path: Path, persistence: str) -> None:
    settings: dict[str, Any] = {"max_messages": 100}
    changes = [{"max_deliveries": 3, "retry_delay": [1.0, 2.0]}, {"max_messages": None}, {"max_age": 60.0}, {}]
    for turn in range(4):
        with broker(tmp_path, tmp_path / "data", *LISTENERS) as command:
            endpoint = command.serving()["zmtp"]
            with omq.broker.Client(endpoint, timeout=20) as client:
                if not turn:
                    client.create("j", delivery="round-robin", persistence=persistence, **settings)
                (topic,) = client.topics("j")
                assert topic.settings == settings
                settings = {key: value for key, value in {**settings, **changes[turn]}.items() if value is not None}
                assert client.alter("j", **changes[turn]).settings == settings
                command.process.kill()
            command.ended()


def test_the_next_subscription_starts_where_retain_for_began(tmp_path: Path) -> None:
    """The cursor is as durable as the settings."""
    with broker(tmp_path, tmp_path / "data", *LISTENERS) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            client.create("t", max_messages=5)
            client.publish_many("t", [b"x"] * 10)
            client.alter("t", retain_for="archiver")
            command.process.kill()
        command.ended()
    with broker(tmp_path, tmp_path / "data", *LISTENERS) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            with pytest.raises(StoreFull):
                client.publish("t", b"11")
            with client.subscribe("t", name="archiver") as reader:
                assert [reader.recv(timeout=10).id for _ in range(5)] == [6, 7, 8, 9, 10]
        assert command.end() == 0


class Publisher(threading.Thread):
    """Publishes a message, which may wait for room.

    Attributes:
        result: The id, or the error.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self._endpoint = endpoint
        self.result: int | Exception | None = None
        self.start()

    def run(self) -> None:
        with omq.broker.Client(self._endpoint, timeout=60) as client:
            try:
                self.result = client.publish("full", b"x")
            except Exception as error:
                self.result = error


def test_publishers_that_wait_go_on_or_are_refused(tmp_path: Path, twin: Any) -> None:
    with broker(tmp_path, tmp_path / "data", *LISTENERS) as command:
        endpoints = command.serving()
        client = twin.Client(endpoints["zmtp"], timeout=20)
        twin.wait(client.create("full", delivery="round-robin", max_messages=1, overflow="block"))
        twin.wait(client.publish("full", b"first"))

        def waiting(count: int) -> bool:
            line = b'omq_broker_topic_blocked_messages{topic="full"} %d.0' % count
            return line in get(endpoints["http"] + "/metrics")

        publishers = [Publisher(endpoints["zmtp"]) for _ in range(3)]
        until(lambda: waiting(3))
        twin.wait(client.alter("full", max_messages=2))
        until(lambda: waiting(2))
        twin.wait(client.alter("full", overflow="reject"))
        for publisher in publishers:
            publisher.join(20)
        results = sorted((publisher.result for publisher in publishers), key=lambda one: isinstance(one, Exception))
        assert results[0] == 2
        assert [type(result) for result in results[1:]] == [StoreFull, StoreFull]
        twin.wait(client.close())


def test_altering_needs_the_permission_admin(tmp_path: Path) -> None:
    users, path = tmp_path / "users", tmp_path / "broker.toml"
    users.write_text("alice:secret\nbob:secret\n")
    users.chmod(0o600)
    path.write_text(
        """
        memory = true
        [security]
        mechanism = "plain"
        users_file = "users"
        [[topic]]
        name = "t"
        persistence = "weak"
        [[permission]]
        who = "alice"
        topics = "t"
        may = ["admin"]
        [[permission]]
        who = "*"
        topics = "*"
        may = ["publish", "subscribe", "consume", "create", "delete"]
        """
    )
    with broker(tmp_path, "--config", path) as command:
        endpoint = command.serving()["zmtp"]

        def client(name: str) -> omq.broker.Client:
            return omq.broker.Client(endpoint, timeout=20, security=omq.PlainClient(name, "secret"))

        with client("bob") as bob, pytest.raises(PermissionDenied, match="bob may not admin 't'"):
            bob.alter("t", max_age=60)
        with client("alice") as alice:
            assert alice.alter("t", max_age=60).settings == {"max_age": 60.0}
            with pytest.raises(PermissionDenied):
                alice.alter("u", max_age=60)


# broker.toml


def row(name: str, **settings: Any) -> str:
    lines = [f"{key} = {value!r}" for key, value in {"name": name, "persistence": "strong", **settings}.items()]
    return "\n".join(["[[topic]]", *lines, ""])


def test_the_start_alters_the_topics_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    arguments = (tmp_path / "data", *LISTENERS, "--config", path)
    path.write_text(row("a", max_age=604800, max_messages=100))
    with broker(tmp_path, *arguments) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            client.publish_many("a", [b"x"] * 50)
        assert command.end() == 0
    path.write_text(row("a", max_age=1209600) + row("b"))
    with broker(tmp_path, *arguments) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            assert {info.name: info.settings for info in client.topics()} == {"a": {"max_age": 1209600.0}, "b": {}}
            assert client.topics("a")[0].last == 50
        changed = "max_messages from 100 to None, max_age from 604800.0 to 1209600.0"
        assert f"topic 'a': altered by the broker, {changed}" in command.log
        assert command.end() == 0
    path.write_text(row("b", max_age=60) + row("a", max_messages=10))
    with broker(tmp_path, *arguments) as command:
        assert command.ended() == 2
        for part in (
            f'{path}: [[topic]] number 2 ("a")',
            "max_messages = 10: topic 'a' has no value",
            "40 of the 50 messages",
            "`omq topic alter a max_messages=10 --force`",
        ):
            assert part in " ".join(command.log.split())
        assert "Traceback" not in command.log
    path.write_text(row("a", persistence="weak"))
    with broker(tmp_path, *arguments) as command:
        assert command.ended() == 2
        assert "cannot change" in " ".join(command.log.split())
    with broker(tmp_path, tmp_path / "data", *LISTENERS, "--topic", "a:broadcast:strong:max_messages=50") as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:
            assert {info.name: info.settings for info in client.topics()} == {"a": {"max_messages": 50}, "b": {}}
        assert command.end() == 0


def test_sighup_names_the_settings_that_need_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    bind, beat = 'bind = "tcp://127.0.0.1:*"\nmemory = true\n', "[heartbeat]\ninterval = 2\n[limits]\nconnections = 5\n"
    path.write_text(bind)
    with broker(tmp_path, "--config", path, "--http", "127.0.0.1:0", "--log-format", "json") as command:
        command.serving()
        for text in (bind, 'http = "127.0.0.1:1"\n' + bind, bind + beat, bind.replace("*", "0") + beat):
            path.write_text(text)
            before = command.log.count('"reloaded"')
            command.process.send_signal(signal.SIGHUP)
            until(lambda before=before: command.log.count('"reloaded"') > before, lambda: command.log)
        command.end()
        found = [json.loads(line) for line in command.log.splitlines()]
    assert [entry["settings"] for entry in found if entry["event"] == "restart_needed"] == [
        ["[limits] connections", "[heartbeat] interval"],
        ["bind", "[limits] connections", "[heartbeat] interval"],
    ]


def hang_up(command: Command, text: str) -> None:
    """Sends SIGHUP, and waits for the line of the log about it."""
    before = command.log.count("SIGHUP")
    command.process.send_signal(signal.SIGHUP)
    until(lambda: command.log.count("SIGHUP") > before, lambda: command.log)
    (line,) = [line for line in command.log.splitlines() if "SIGHUP" in line][before:]
    assert text in line


def test_sighup_creates_and_alters_topics_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(row("a", max_age=60) + row("b", max_messages=100))
    with broker(tmp_path, tmp_path / "data", *LISTENERS, "--config", path) as command:
        with omq.broker.Client(command.serving()["zmtp"], timeout=20) as client:

            def settings() -> dict[str, Any]:
                return {info.name: info.settings for info in client.topics()}

            client.publish_many("b", [b"x"] * 50)
            for wrong in (
                row("a", max_age=90) + row("c") + row("b", max_messages=10),
                row("a", max_age=90) + row("c") + row("b", delivery="round-robin"),
                row("a", max_age=90) + row("c") + row("b", max_messages=0),
                row("a", max_age=90) + "[[topic",
                row("a", max_age=90) + row("d", delivery="round-robin", dead_letter="a/b"),
            ):
                path.write_text(wrong)
                hang_up(command, "the previous users, keys, permissions, limits and topics stay in force")
                assert settings() == {"a": {"max_age": 60.0}, "b": {"max_messages": 100}}
            path.write_text(row("a", max_age=90) + row("c"))
            hang_up(command, "users, keys, permissions, limits and topics are read again")
            assert settings() == {"a": {"max_age": 90.0}, "b": {"max_messages": 100}, "c": {}}
            assert "topic 'a': altered by the broker, max_age from 60.0 to 90.0" in command.log
            client.alter("a", max_age=120, max_messages=7)
            hang_up(command, "are read again")
            assert settings()["a"] == {"max_age": 90.0}
            for _ in range(5):
                command.process.send_signal(signal.SIGHUP)
            until(lambda: settings()["a"] == {"max_age": 90.0})
        assert command.end() == 0
        assert "Traceback" not in command.log


def test_sighup_ends_a_broker_without_files(tmp_path: Path) -> None:
    with broker(tmp_path, tmp_path / "data", *LISTENERS, "--topic", "t:broadcast:strong") as command:
        command.serving()
        command.process.send_signal(signal.SIGHUP)
        assert command.ended() == -signal.SIGHUP

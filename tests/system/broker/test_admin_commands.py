"""`omq topic`, `omq durable` and `omq group` against real brokers on disk and in memory."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import omq
from omq.broker import Client, Server
from omq.broker.client.streams import Subscription
from omq.broker.core.permissions import Permission
from omq.broker.errors import TakenOver
from omq.cli.main import main
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until
from tests.system.broker.server_process import BOUND, MAIN, ROOT

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["disk", "memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    disk = request.param == "disk"
    with Server(tmp_path / "store" if disk else None, memory=not disk, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoints["zmtp"], timeout=20.0) as client:
        yield client


class Commands:
    """Runs commands against a broker."""

    def __init__(self, endpoint: str) -> None:
        self._given = ["--broker", endpoint, "--timeout", "20"]

    def run(self, *words: str, input: bytes | None = None, status: int = 0) -> str:
        """Runs a command, and returns its output once it has ended with this status."""
        result = CliRunner().invoke(main, [*words, *self._given], input=input, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.stdout if status == 0 else result.output

    def json(self, *words: str, **options: Any) -> Any:
        """Runs a command with `--json`, and returns the value that it prints."""
        return json.loads(self.run(*words, "--json", **options))

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """Runs a command with `--json`, and returns the object of each line."""
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]

    def fails(self, *words: str) -> str:
        """Runs a command that the broker refuses, and returns its one line."""
        (line,) = self.run(*words, status=1).splitlines()
        assert line.startswith("Error: ")
        return line


@pytest.fixture
def commands(server: Server) -> Commands:
    return Commands(server.endpoints["zmtp"])


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["body"] for row in rows]


# ---------------------------------------------------------------------- topics


def test_topics_are_created_listed_altered_and_deleted(commands: Commands, client: Client) -> None:
    assert commands.json("topic", "ls") == []
    weak = ("--persistence", "weak")
    made = commands.json("topic", "create", "prices", "max_age=86400", "max_bytes=none", *weak)
    assert (made["delivery"], made["persistence"], made["settings"]) == ("broadcast", "weak", {"max_age": 86400})
    assert commands.json("topic", "create", "prices", "max_age=86400", *weak)["id"] == made["id"]
    jobs = ("topic", "create", "jobs", "retry_delay=1,2.5", "--delivery", "round-robin", *weak)
    assert "settings     retry_delay=1,2.5" in commands.run(*jobs)

    assert [one["name"] for one in commands.json("topic", "ls")] == ["jobs", "prices"]
    head, *lines = commands.run("topic", "ls").splitlines()
    assert head.split()[:4] == ["NAME", "ID", "DELIVERY", "PERSISTENCE"]
    assert [line.split()[0] for line in lines] == ["jobs", "prices"]

    altered = commands.json("topic", "alter", "prices", "max_age=none", "max_messages=5", "overflow=reject")
    assert altered["settings"] == {"max_messages": 5, "overflow": "reject"}
    assert commands.json("topic", "info", "prices") == altered
    assert "overflow=reject" in commands.run("topic", "info", "prices")

    assert commands.json("topic", "delete", "prices", "--yes") == {"topic": "prices", "deleted": True}
    assert [one.name for one in client.topics()] == ["jobs"]
    assert commands.run("topic", "delete", "jobs", "--yes") == "jobs: deleted\n"
    assert client.topics() == []


def test_a_change_that_drops_messages_needs_force(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish_many("t", [b"a", b"b", b"c"])
    assert "'t'" in commands.fails("topic", "alter", "t", "max_messages=1")
    assert client.topics("t")[0].settings == {}
    assert commands.json("topic", "alter", "t", "max_messages=1", "--force")["settings"] == {"max_messages": 1}
    assert [message.body for message in client.read("t")] == [b"c"]


def test_errors_of_the_broker_name_the_topic_and_change_nothing(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish("t", b"kept")
    before = client.topics("t")[0]
    for words in (
        ("topic", "info", "none"),
        ("topic", "alter", "none", "max_age=1"),
        ("topic", "delete", "none", "--yes"),
        ("topic", "publish", "none", "b"),
        ("topic", "tail", "none"),
        ("topic", "peek", "none"),
        ("topic", "purge", "none", "--yes"),
        ("topic", "requeue", "none", "--yes"),
        ("durable", "ls", "none"),
        ("durable", "delete", "none", "d", "--yes"),
        ("durable", "seek", "none", "d", "earliest"),
        ("group", "ls", "none"),
        ("group", "delete", "none", "g", "--yes"),
        ("group", "seek", "none", "g", "earliest"),
    ):
        assert "'none'" in commands.fails(*words), words
    assert "'missing'" in commands.fails("durable", "delete", "t", "missing", "--yes")
    assert "'missing'" in commands.fails("durable", "seek", "t", "missing", "earliest")
    assert "'missing'" in commands.fails("group", "delete", "t", "missing", "--yes")
    assert "'missing'" in commands.fails("group", "seek", "t", "missing", "earliest")
    assert "delivery" in commands.fails("topic", "create", "t", "--delivery", "round-robin", "--persistence", "weak")
    assert "delivery" in commands.fails("topic", "alter", "t", "delivery=round-robin")
    assert "2" in commands.fails("topic", "purge", "t", "--up-to", "2", "--yes")
    assert client.durables("t") == []
    assert client.topics() == [before]


# ---------------------------------------------------------------------- messages


def test_messages_are_published_from_an_argument_a_file_and_standard_input(
    commands: Commands, client: Client, tmp_path: Path
) -> None:
    client.create("t", persistence="weak")
    extras = ("--key", "k", "--header", "source=demo", "--header", "empty=")
    assert commands.run("topic", "publish", "t", "first", *extras) == "t: 1 message published, id 1\n"
    (tmp_path / "body").write_bytes(b"second\n\xff")
    found = commands.json("topic", "publish", "t", "--file", str(tmp_path / "body"))
    assert found == {"topic": "t", "count": 1, "first": 2, "last": 2}
    assert commands.json("topic", "publish", "t", input=b"third\n")["last"] == 3
    assert commands.json("topic", "publish", "t", input=b"")["last"] == 4
    lines = commands.run("topic", "publish", "t", "--lines", *extras, input=b"fifth\n\nseventh")
    assert lines == "t: 3 messages published, ids 5 to 7\n"
    assert commands.json("topic", "publish", "t", "--lines", input=b"") == {
        "topic": "t",
        "count": 0,
        "first": None,
        "last": None,
    }
    messages = list(client.read("t"))
    assert [message.body for message in messages] == [
        b"first",
        b"second\n\xff",
        b"third\n",
        b"",
        b"fifth",
        b"",
        b"seventh",
    ]
    for message in messages:
        has = message.id in (1, 5, 6, 7)
        assert (message.key, message.headers) == ((b"k", {"source": b"demo", "empty": b""}) if has else (None, {}))


def test_a_message_id_stores_a_message_once(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    for _ in range(2):
        assert commands.json("topic", "publish", "t", "b", "--message-id", "order 17")["first"] == 1
    assert "'t'" in commands.fails("topic", "publish", "t", "other", "--message-id", "order 17")
    assert client.topics("t")[0].last == 1


def test_lines_before_an_error_are_counted(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak", max_messages=2, overflow="reject")
    client.publish_many("t", [b"a", b"b"])
    text = commands.run("topic", "publish", "t", "--lines", input=b"c\n", status=1)
    assert "before that, 0 messages were published" in text


def test_a_topic_is_peeked(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish_many("t", [b"%d" % number for number in range(1, 21)])
    client.publish("t", b"\xff", key=b"k", headers={"h": b"v"})
    assert bodies(commands.rows("topic", "peek", "t")) == [str(number) for number in range(1, 11)]
    assert bodies(commands.rows("topic", "peek", "t", "--start", "5", "--stop", "7")) == ["5", "6"]
    assert bodies(commands.rows("topic", "peek", "t", "--start", "5", "--limit", "1")) == ["5"]
    assert bodies(commands.rows("topic", "peek", "t", "--stop", "2020-01-01T00:00:00Z")) == []
    (last,) = commands.rows("topic", "peek", "t", "--start", "21")
    assert last.pop("timestamp") > 0
    assert last == {"topic": "t", "id": 21, "body_base64": "/w==", "key": "k", "headers": {"h": "v"}}
    (line,) = commands.run("topic", "peek", "t", "--start", "21").splitlines()
    assert line.split()[0] == "21"
    assert line.endswith(" key=k h=v body_base64=/w==")
    client.create("jobs", delivery="round-robin", persistence="weak")
    client.publish("jobs", b"job")
    assert bodies(commands.rows("topic", "peek", "jobs")) == ["job"]


def test_a_topic_is_tailed(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish_many("t", [b"a", b"b", b"c"])
    assert bodies(commands.rows("topic", "tail", "t", "--from", "earliest", "--limit", "2")) == ["a", "b"]
    assert bodies(commands.rows("topic", "tail", "t", "--from", "1", "--limit", "2")) == ["b", "c"]
    assert bodies(commands.rows("topic", "tail", "t", "--from", "2020-01-01T00:00:00Z", "--limit", "1")) == ["a"]
    client.purge("t", up_to=2)
    assert "3" in commands.fails("topic", "tail", "t", "--from", "0", "--limit", "1")
    client.create("jobs", delivery="round-robin", persistence="weak")
    assert "'jobs'" in commands.fails("topic", "tail", "jobs")


def test_a_topic_is_purged(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish_many("t", [b"a", b"b", b"c"])
    assert commands.json("topic", "purge", "t", "--up-to", "1", "--yes") == {"topic": "t", "dropped": 1}
    assert commands.run("topic", "purge", "t", "--yes") == "t: 2 messages dropped\n"
    assert list(client.read("t")) == []


def test_dead_letters_are_requeued(commands: Commands, client: Client) -> None:
    client.create("jobs", delivery="round-robin", persistence="weak", max_deliveries=1, retry_delay=0)
    client.create("other", delivery="round-robin", persistence="weak")
    client.publish_many("jobs", [b"a", b"b", b"c", b"d"])
    with client.consume("jobs") as consumer:
        for _ in range(4):
            consumer.recv(timeout=20).nack()
        client.flush()
        until(lambda: any(one.name == "jobs.dead" and one.last == 4 for one in client.topics()))
    found = commands.json("topic", "requeue", "jobs.dead", "--to", "other", "--limit", "1", "--yes")
    assert found == {"topic": "jobs.dead", "moved": 1}
    assert [message.body for message in client.read("other")] == [b"a"]
    assert commands.run("topic", "requeue", "jobs.dead", "--yes") == "jobs.dead: 3 dead letters moved\n"
    with client.consume("jobs") as consumer:
        returned = [consumer.recv(timeout=20) for _ in range(3)]
        assert [delivery.body for delivery in returned] == [b"b", b"c", b"d"]
        consumer.ack(returned)
    assert list(client.read("jobs.dead")) == []


# ---------------------------------------------------------------------- durable subscriptions and groups


def next_of(client: Client, name: str) -> bytes:
    """Returns the next message of a durable subscription of `t`."""
    with client.subscribe("t", name=name) as subscription:
        return subscription.recv(timeout=20).body


def test_durable_subscriptions_are_listed_moved_and_deleted(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.subscribe("t", name="d").close()
    client.publish_many("t", [b"a", b"b", b"c"])
    (row,) = commands.json("durable", "ls", "t")
    assert (row["name"], row["position"], row["lag"], row["held"]) == ("d", 0, 3, False)
    head, line = commands.run("durable", "ls", "t").splitlines()
    assert head.split() == ["NAME", "POSITION", "LAG", "HELD", "ACTIVE"]
    assert line.split()[:4] == ["d", "0", "3", "no"]

    moved = commands.json("durable", "seek", "t", "d", "2")
    assert (moved["name"], moved["position"], moved["lag"], moved["held"]) == ("d", 2, 1, False)
    assert next_of(client, "d") == b"c"
    assert commands.json("durable", "seek", "t", "d", "latest")["position"] == 3
    client.publish("t", b"d")
    assert next_of(client, "d") == b"d"
    assert commands.json("durable", "seek", "t", "d", "2020-01-01T00:00:00Z")["position"] == 0
    assert next_of(client, "d") == b"a"
    client.purge("t", up_to=1)
    assert "'t'" in commands.fails("durable", "seek", "t", "d", "0")
    assert "'t'" in commands.fails("durable", "seek", "t", "d", "5")
    assert "the oldest is 2, stored at" in commands.fails("durable", "seek", "t", "d", "2020-01-01T00:00:00Z")
    assert "in the future" in commands.fails("durable", "seek", "t", "d", "2200-01-01T00:00:00Z")
    assert client.durables("t")[0].position == 0
    # The message after the cursor was dropped.
    assert commands.json("durable", "seek", "t", "d", "earliest")["position"] == 1
    assert next_of(client, "d") == b"b"

    assert commands.json("durable", "delete", "t", "d", "--yes") == {"topic": "t", "name": "d", "deleted": True}
    assert client.durables("t") == []


def test_a_durable_subscription_that_is_open_is_moved_only_on_request(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    subscription = client.subscribe("t", name="d")
    client.publish_many("t", [b"a", b"b"])
    assert subscription.recv(timeout=20).body == b"a"
    assert "'d'" in commands.fails("durable", "seek", "t", "d", "latest")
    assert client.durables("t")[0].held
    assert "'d'" in commands.fails("durable", "delete", "t", "d", "--yes")
    assert commands.json("durable", "seek", "t", "d", "latest", "--take-over")["position"] == 2
    with pytest.raises(TakenOver):
        list(subscription)
    client.publish("t", b"c")
    assert next_of(client, "d") == b"c"


@pytest.mark.parametrize("setting", [{"retention": "read"}, {"retain_for": "d"}])
def test_a_cursor_that_cannot_move_back_is_reported(commands: Commands, client: Client, setting: Any) -> None:
    client.create("t", persistence="weak", **setting)
    client.subscribe("t", name="slow", replay="earliest").close()
    with client.subscribe("t", name="d", replay="earliest") as subscription:
        client.publish_many("t", [b"a", b"b", b"c"])
        subscription.ack([subscription.recv(timeout=20) for _ in range(3)][1])
        client.flush()
    line = commands.fails("durable", "seek", "t", "d", "0")
    if "retention" in setting:  # the message is kept for the other one
        assert "the cursor of 'd' in topic 't' is at 2, not at 0: a topic with retention" in line
    assert client.durables("t")[0].position == 2
    assert commands.json("durable", "seek", "t", "d", "2")["position"] == 2
    assert commands.json("durable", "seek", "t", "d", "latest")["position"] == 3


def test_a_cursor_that_another_client_has_taken_over_is_reported(
    commands: Commands, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t", persistence="weak")
    client.subscribe("t", name="d").close()
    client.publish_many("t", [b"a", b"b", b"c"])
    monkeypatch.setattr(Subscription, "ack", lambda *_: None)  # the broker ignores it
    line = commands.fails("durable", "seek", "t", "d", "3")
    assert "the cursor of 'd' in topic 't' is at 0, not at 3: it was taken over" in line


@pytest.mark.parametrize("kind", ["durable", "group"])
def test_a_reader_that_is_deleted_during_its_seek_is_an_error(
    commands: Commands, client: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client.create("t", persistence="weak")
    client.subscribe("t", name="n").close()
    client.consume("t", group="n").close()
    name = "durables" if kind == "durable" else "groups"
    found, calls = getattr(Client, name), 3 if kind == "durable" else 1

    def listed(self: Client, topic: str) -> list[Any]:
        nonlocal calls
        calls -= 1
        if not calls:
            client.delete_durable("t", "n") if kind == "durable" else client.delete_group("t", "n")
        return list(found(self, topic))

    monkeypatch.setattr(Client, name, listed)
    missing = {"durable": "durable subscription 'n'", "group": "consumer group 'n': it was deleted"}[kind]
    assert f"topic 't' has no {missing}" in commands.fails(kind, "seek", "t", "n", "latest")
    assert not calls


def test_groups_are_listed_moved_and_deleted(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    client.publish_many("t", [b"a", b"b", b"c"])
    with client.consume("t", group="g", replay="earliest") as consumer:
        consumer.ack([consumer.recv(timeout=20) for _ in range(3)])
        client.flush()
        (group,) = commands.json("group", "ls", "t")
        assert time.time() - group.pop("active") < 100
        assert group == {"name": "g", "lag": 0, "in_flight": 0, "consumers": 1}
        assert "'g'" in commands.fails("group", "seek", "t", "g", "earliest")
        assert "'g'" in commands.fails("group", "delete", "t", "g", "--yes")
    head, line = commands.run("group", "ls", "t").splitlines()
    assert head.split() == ["NAME", "LAG", "IN_FLIGHT", "CONSUMERS", "ACTIVE"]
    assert line.split()[:4] == ["g", "0", "0", "0"]
    for position, lag in (("earliest", 3), ("latest", 0), ("2", 1), ("2020-01-01T00:00:00Z", 3)):
        assert commands.json("group", "seek", "t", "g", position)["lag"] == lag
    assert commands.run("group", "delete", "t", "g", "--yes") == "t, g: deleted\n"
    assert client.groups("t") == []


def test_consumers_of_both_kinds_are_listed_and_deleted(commands: Commands, client: Client) -> None:
    client.create("t", persistence="weak")
    assert commands.json("consumer", "ls", "t") == []
    client.publish_many("t", [b"a", b"b", b"c"])
    reader = client.subscribe("t", name="r", replay="earliest")
    with client.consume("t", group="g", replay="earliest", credit=2) as consumer:
        consumer.ack([consumer.recv(timeout=20)])
        consumer.recv(timeout=20)
        client.flush()
        durable, group = commands.json("consumer", "ls", "t")
        for row in (durable, group):
            assert time.time() - row.pop("active") < 100
        assert durable == {"name": "r", "kind": "durable", "position": 0, "lag": 3, "in_flight": None, "open": 1}
        assert group | {"in_flight": 0} == {
            "name": "g", "kind": "group", "position": None, "lag": 2, "in_flight": 0, "open": 1,
        }  # fmt: skip
        assert 1 <= group["in_flight"] <= 2
        assert "'g'" in commands.fails("consumer", "delete", "t", "g", "--yes")
        assert "'r'" in commands.fails("consumer", "delete", "t", "r", "--yes")
    reader.close()
    head, *lines = commands.run("consumer", "ls", "t").splitlines()
    assert head.split() == ["NAME", "KIND", "POSITION", "LAG", "IN_FLIGHT", "OPEN", "ACTIVE"]
    assert [line.split()[:6] for line in lines] == [
        ["r", "durable", "0", "3", "-", "0"],
        ["g", "group", "-", "2", "0", "0"],
    ]
    shown = commands.json("consumer", "info", "t", "g")
    assert (shown["name"], shown["kind"], shown["lag"], shown["open"]) == ("g", "group", 2, 0)
    assert commands.run("consumer", "info", "t", "r").splitlines()[1].split() == ["kind", "durable"]

    client.consume("t", group="r").close()
    assert "--kind is missing" in commands.run("consumer", "info", "t", "r", status=2)
    assert "--kind is missing" in commands.run("consumer", "delete", "t", "r", "--yes", status=2)
    assert commands.run("consumer", "delete", "t", "r", "--kind", "group", "--yes") == "t, r: deleted\n"
    assert [one.name for one in client.groups("t")] == ["g"]
    assert commands.json("consumer", "delete", "t", "r", "--yes") == {
        "topic": "t", "name": "r", "kind": "durable", "deleted": True,
    }  # fmt: skip
    assert client.durables("t") == []
    assert commands.fails("consumer", "info", "t", "r") == "Error: topic 't' has no durable subscription or group 'r'"
    assert "no durable subscription 'g'" in commands.fails("consumer", "delete", "t", "g", "--kind", "durable", "--yes")
    assert "'gone'" in commands.fails("consumer", "ls", "gone")
    assert commands.run("consumer", "delete", "t", "g", "--yes") == "t, g: deleted\n"
    assert client.groups("t") == []


# ---------------------------------------------------------------------- security


def test_commands_authenticate_and_a_missing_permission_is_an_error(tmp_path: Path) -> None:
    files = {}
    for user, password in (("admin", "one"), ("reader", "two"), ("reader", "wrong")):
        files[user, password] = tmp_path / f"{user}-{password}"
        files[user, password].write_text(f"{user}:{password}\n")
        files[user, password].chmod(0o600)
    permissions = [
        Permission("admin", "*", ["create", "delete", "admin", "publish", "subscribe"]),
        Permission("reader", "*", ["subscribe"]),
    ]
    security = omq.PlainServer({"admin": "one", "reader": "two"})
    with Server(memory=True, bind="tcp://127.0.0.1:*", security=security, permissions=permissions) as server:
        commands = Commands(server.endpoints["zmtp"])
        admin = ("--broker-user-file", str(files["admin", "one"]))
        reader = ("--broker-user-file", str(files["reader", "two"]))
        commands.run("topic", "create", "t", "--persistence", "weak", *admin)
        commands.run("topic", "publish", "t", "a", *admin)
        assert bodies(commands.rows("topic", "peek", "t", *reader)) == ["a"]
        for words in (
            ("topic", "create", "u", "--persistence", "weak"),
            ("topic", "publish", "t", "b"),
            ("topic", "alter", "t", "max_age=1"),
            ("topic", "purge", "t", "--yes"),
            ("topic", "delete", "t", "--yes"),
        ):
            assert words[2] in commands.fails(*words, *reader)
        assert bodies(commands.rows("topic", "peek", "t", *reader)) == ["a"]
        refused = commands.fails("topic", "ls", "--broker-user-file", str(files["reader", "wrong"]))
        assert refused.startswith("Error: --broker tcp://")
        assert "has rejected this client" in refused


def test_commands_use_curve(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    mine = omq.curve_keypair()
    for name, key in (("broker", public), ("mine", mine[1])):
        (tmp_path / name).write_bytes(key)
        (tmp_path / name).chmod(0o600)
    security = omq.CurveServer(secret, [mine[0]])
    with Server(memory=True, bind="tcp://127.0.0.1:*", security=security) as server:
        commands = Commands(server.endpoints["zmtp"])
        keys = ("--broker-key-file", str(tmp_path / "broker"))
        own = ("--broker-secret-key-file", str(tmp_path / "mine"))
        assert commands.json("topic", "ls", *keys, *own) == []
        assert "has rejected this client" in commands.fails("topic", "ls", *keys)


# ---------------------------------------------------------------------- as processes


def start(endpoint: str, *words: str, stdin: int = subprocess.DEVNULL) -> ForkedProcess:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return ForkedProcess("-c", MAIN, *words, env={**os.environ, "OMQ_BROKER": endpoint}, stdin=stdin, **pipes)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Yields the endpoint of a broker in memory with the topic `t`."""
    with Server(memory=True, bind="tcp://127.0.0.1:*", topics=["t:broadcast:weak"]) as server:
        yield server.endpoints["zmtp"]


def published(endpoint: str, *found: bytes) -> None:
    with Client(endpoint, timeout=20.0) as client:
        client.publish_many("t", found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_tail(endpoint: str, number: signal.Signals) -> None:
    published(endpoint, b"a")
    with start(endpoint, "topic", "tail", "t", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline().endswith(b" a\n")
        published(endpoint, b"b")
        assert tail.stdout.readline().endswith(b" b\n")
        tail.send_signal(number)
        assert tail.wait(BOUND) == 0
        assert tail.communicate() == (b"", b"")


def test_a_closed_pipe_ends_a_command_quietly(endpoint: str) -> None:
    published(endpoint, *[b"x" * 1000] * 1000)
    for words in (("tail", "t", "--from", "earliest"), ("peek", "t", "--limit", "1000")):
        with start(endpoint, "topic", *words) as command:
            assert command.stdout is not None
            assert command.stderr is not None
            assert command.stdout.readline()
            command.stdout.close()
            assert command.wait(BOUND) == 1
            assert command.stderr.read() == b""


def test_lines_of_a_pipe_are_published_while_it_is_open(endpoint: str) -> None:
    with (
        Client(endpoint, timeout=20.0) as client,
        client.subscribe("t") as subscription,
        start(endpoint, "topic", "publish", "t", "--lines", stdin=subprocess.PIPE) as command,
    ):
        assert command.stdin is not None
        for body in (b"a", b"b"):
            command.stdin.write(body + b"\n")
            command.stdin.flush()
            assert subscription.recv(timeout=20).body == body
        assert command.communicate(timeout=BOUND) == (b"t: 2 messages published, ids 1 to 2\n", b"")
        assert command.returncode == 0


def test_closed_standard_input_is_an_error_of_an_argument(endpoint: str) -> None:
    for words, named in ((("publish", "t"), b"BODY is missing"), (("purge", "t"), b"--yes is missing")):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "topic", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMQ_BROKER": endpoint},
            preexec_fn=lambda: os.close(0),
            capture_output=True,
            timeout=BOUND,
        )
        assert (done.returncode, done.stderr.count(b"Error: ")) == (2, 1)
        assert named in done.stderr


def on_terminal(endpoint: str, answer: bytes, *words: str) -> tuple[int, bytes]:
    """Runs a command with a terminal as its standard input, and answers its question."""
    terminal, standard_input = pty.openpty()
    try:
        with start(endpoint, *words, stdin=standard_input) as command:
            assert command.stderr is not None
            question = command.stderr.read(1)
            while not question.endswith(b"]:"):
                more = command.stderr.read(1)
                assert more, question
                question += more
            os.write(terminal, answer)
            output, _ = command.communicate(timeout=BOUND)
            assert b"'t'" in question
            return command.returncode, output.strip()  # click may write the last space of the question there
    finally:
        os.close(terminal)
        os.close(standard_input)


def test_a_terminal_is_asked_for_confirmation(endpoint: str) -> None:
    published(endpoint, b"a", b"b")
    with Client(endpoint, timeout=20.0) as client:
        for answer, command in ((b"n\n", "delete"), (b"\n", "purge"), (b"no\n", "requeue")):
            assert on_terminal(endpoint, answer, "topic", command, "t") == (1, b"")
        assert len(list(client.read("t"))) == 2
        assert on_terminal(endpoint, b"y\n", "topic", "purge", "t") == (0, b"t: 2 messages dropped")
        assert on_terminal(endpoint, b"y\n", "topic", "delete", "t") == (0, b"t: deleted")
        assert client.topics() == []

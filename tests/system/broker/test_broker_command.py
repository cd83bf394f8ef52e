"""`omq broker` as a process: endpoints, security, reload and shutdown."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import omq
from omq.broker import BrokerFailed, Client, PermissionDenied, Server
from omq.broker.sexp import Client as SexpClient
from omq.cli.broker import broker as command
from omq.cli.pzq import pzq
from omq.errors import OmqError
from omq.pzq import Device
from omq.store.errors import StoreError
from tests.support.waits import until
from tests.system.broker.server_process import Command, broker, get

pytestmark = pytest.mark.timeout(120)

EVERYWHERE = ("--bind", "tcp://127.0.0.1:*", "--sexp", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0")


def test_all_servers_are_up_once_the_ready_file_exists(tmp_path: Path) -> None:
    with broker(tmp_path, "--memory", *EVERYWHERE, "--topic", "prices:broadcast:weak") as command:
        endpoints = command.serving()
        assert sorted(endpoints) == ["http", "sexp", "zmtp"]
        assert [name for name in tmp_path.iterdir() if name.name.startswith(".")] == []
        with Client(endpoints["zmtp"]) as client:
            assert client.publish_many("prices", [b"1", b"2"]) == [1, 2]
            with client.subscribe("prices", replay="earliest") as subscription:
                assert [subscription.recv(timeout=10).body for _ in range(2)] == [b"1", b"2"]
                stats = json.loads(get(f"{endpoints['http']}/topics.json"))
        (prices,) = stats["topics"]
        assert (prices["name"], prices["first"], prices["last"], prices["published"]) == ("prices", 1, 2, 2)
        assert prices["subscribers"] == 1
        assert stats["endpoints"]["zmtp"] == [endpoints["zmtp"]]
        assert stats["connections"]["zmtp"] == 1
        assert b'omq_broker_messages_published_total{topic="prices"} 2.0' in get(f"{endpoints['http']}/metrics")
        assert get(f"{endpoints['http']}/healthz") == b"ok\n"
        assert b"<title>omq broker</title>" in get(endpoints["http"])
        assert command.end() == 0
        assert not command.ready.exists()
        assert command.process.stdout is not None
        assert command.process.stdout.read() == b""
        assert endpoints["zmtp"] in command.log
        assert "Traceback" not in command.log


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_ends_it_in_an_orderly_way(tmp_path: Path, number: signal.Signals) -> None:
    with broker(tmp_path, "--memory", *EVERYWHERE) as command:
        endpoints = command.serving()
        # Connected clients do not keep it running.
        with Client(endpoints["zmtp"]) as client:
            client.create("t", persistence="weak")
            command.process.send_signal(number)
            assert command.ended() == 0
        assert f"{number.name}: ending" in command.log
        assert "Traceback" not in command.log


@pytest.mark.parametrize("recreated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_removed_directory_is_reported_at_once(tmp_path: Path, recreated: bool) -> None:
    (tmp_path / "other").mkdir()
    with broker(tmp_path, tmp_path / "data", *EVERYWHERE, "--topic", "t:broadcast:strong") as command:
        endpoints = command.serving()
        with Client(endpoints["zmtp"], timeout=20) as client:
            assert client.publish("t", b"a") == 1
            shutil.rmtree(tmp_path / "data")
            with contextlib.ExitStack() as stack:
                if recreated:
                    other = stack.enter_context(broker(tmp_path / "other", tmp_path / "data", *EVERYWHERE))
                    other.serving()
                with pytest.raises(BrokerFailed):
                    client.publish("t", b"b")
                with pytest.raises(urllib.error.HTTPError) as refused:
                    get(f"{endpoints['http']}/healthz")
                assert (refused.value.code, b"moved, removed or replaced" in refused.value.read()) == (503, True)
                assert json.loads(get(f"{endpoints['http']}/topics.json"))["store"]["failed"]
                assert command.end() == 0
                assert "Traceback" not in command.log
                if recreated:
                    assert other.end() == 0


def test_a_stale_ready_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text('{"zmtp": "tcp://127.0.0.1:1"}')
    with broker(tmp_path, "--memory", "--bind", "tcp://127.0.0.1:*") as command:
        assert command.serving()["zmtp"] != "tcp://127.0.0.1:1"
        assert command.end() == 0


def test_a_place_that_is_taken_is_named(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    with broker(tmp_path / "first", "--memory", "--http", "127.0.0.1:0") as first:
        taken = first.serving()["http"].removeprefix("http://")
        with broker(tmp_path / "second", "--memory", "--http", taken) as second:
            assert second.ended() == 1
            assert taken in second.log
            assert "Traceback" not in second.log
            assert not second.ready.exists()
        assert get(f"http://{taken}/healthz") == b"ok\n"


def test_keys_and_permissions(tmp_path: Path) -> None:
    pairs = {name: omq.curve_keypair() for name in ("broker", "writer", "reader", "stranger")}
    key = tmp_path / "broker.key"
    key.write_bytes(pairs["broker"][1])
    key.chmod(0o600)
    (tmp_path / "keys").write_bytes(b"%s writer\n%s reader\n" % (pairs["writer"][0], pairs["reader"][0]))
    path = tmp_path / "broker.toml"
    path.write_text(
        f"""
        bind = "tcp://127.0.0.1:*"
        memory = true
        [security]
        mechanism = "curve"
        secret_key_file = "broker.key"
        authorized_keys_file = "keys"
        [[topic]]
        name = "prices"
        persistence = "weak"
        [[permission]]
        who = '{pairs["writer"][0].decode()}'
        topics = "prices*"
        may = ["publish", "create"]
        [[permission]]
        who = "*"
        topics = "prices"
        may = ["subscribe"]
        """
    )
    with broker(tmp_path, "--config", path) as command:
        endpoint = command.serving()["zmtp"]

        def client(name: str) -> Client:
            public, secret = pairs[name]
            return Client(endpoint, timeout=10, security=omq.CurveClient(pairs["broker"][0], public, secret))

        with client("writer") as writer, client("reader") as reader:
            writer.create("prices.nyse", persistence="weak")
            assert writer.publish("prices", b"1") == 1
            with pytest.raises(PermissionDenied):
                writer.create("jobs", persistence="weak")
            with pytest.raises(PermissionDenied):
                reader.publish("prices", b"2")
            with pytest.raises(PermissionDenied):
                reader.subscribe("prices.nyse", replay="earliest")
            with reader.subscribe("prices", replay="earliest") as subscription:
                assert subscription.recv(timeout=10).body == b"1"
        public, secret = pairs["stranger"]
        stranger = Client(endpoint, timeout=1, security=omq.CurveClient(pairs["broker"][0], public, secret))
        with stranger, pytest.raises(omq.OmqError):
            stranger.publish("prices", b"3")
        assert command.end() == 0


def test_users_and_passwords(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("alice:secret\n")
    users.chmod(0o600)
    topic = ("--topic", "prices:broadcast:weak")
    with broker(tmp_path, "--memory", "--bind", "tcp://127.0.0.1:*", "--users-file", users, *topic) as command:
        endpoint = command.serving()["zmtp"]
        with Client(endpoint, timeout=10, security=omq.PlainClient("alice", "secret")) as client:
            assert client.publish("prices", b"1") == 1
        wrong = Client(endpoint, timeout=1, security=omq.PlainClient("alice", "wrong"))
        with wrong, pytest.raises(omq.OmqError):
            wrong.publish("prices", b"2")
        assert command.end() == 0


def test_sighup_reloads_users_and_permissions(tmp_path: Path) -> None:
    users, path = tmp_path / "users", tmp_path / "broker.toml"
    users.write_text("alice:secret\nbob:secret\n")
    users.chmod(0o600)

    def permit(*rows: str) -> None:
        some = "".join(f'[[permission]]\nwho = "{row}"\ntopics = "*"\nmay = ["publish", "subscribe"]\n' for row in rows)
        security = '[security]\nmechanism = "plain"\nusers_file = "users"\n'
        path.write_text('memory = true\n[[topic]]\nname = "t"\npersistence = "weak"\n' + security + some)

    def hang_up(command: Command, last_line: str) -> None:
        before = command.log.count("SIGHUP")
        command.process.send_signal(signal.SIGHUP)
        until(lambda: command.log.count("SIGHUP") > before, lambda: command.log)
        assert last_line in command.log.splitlines()[-1]

    permit("alice", "bob")
    with broker(tmp_path, "--config", path) as command:
        endpoint = command.serving()["zmtp"]

        def client(name: str, password: str = "secret") -> Client:
            return Client(endpoint, timeout=10, security=omq.PlainClient(name, password))

        with client("alice") as alice, client("bob") as bob:
            assert alice.publish("t", b"1") == 1
            reading = bob.subscribe("t", replay="earliest")
            assert reading.recv(timeout=10).body == b"1"
            users.write_text("nonsense\n")
            permit()
            hang_up(command, "stay in force")
            users.write_text("alice:secret\nbob:secret\n")
            stay = "the previous users, keys, permissions, limits and topics stay in force"
            hang_up(command, f"would allow every client everything; {stay}")
            assert alice.publish("t", b"2") == 2
            assert reading.recv(timeout=10).body == b"2"
            users.write_text("alice:other\nbob:secret\ncarol:secret\n")
            permit("alice", "carol")
            hang_up(command, "are read again")
            assert alice.publish("t", b"3") == 3
            with pytest.raises(PermissionDenied):
                list(reading)
            with pytest.raises(PermissionDenied):
                bob.publish("t", b"4")
        for name, password in (("carol", "secret"), ("alice", "other")):
            with client(name, password) as one:
                assert one.publish("t", b"4")
        assert command.end() == 0


def test_help_lists_what_there_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omq.cli.main", "broker", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for option in ("--bind", "--sexp", "--http", "--topic", "--config", "--memory", "--ready-file", "--mechanism"):
        assert option in done.stdout


def test_a_second_broker_on_the_directory_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "second").mkdir()
    with broker(tmp_path, data, "--bind", "tcp://127.0.0.1:*", "--topic", "t:broadcast:strong") as first:
        endpoint = first.serving()["zmtp"]
        with broker(tmp_path / "second", data, "--bind", "tcp://127.0.0.1:*") as second:
            assert second.ended() == 1
            assert str(data) in second.log
            assert "Traceback" not in second.log
            assert not second.ready.exists()
        # One that would have the same ready file leaves the first one's alone.
        with broker(tmp_path, data, "--bind", "tcp://127.0.0.1:*") as third:
            assert third.ended() == 1
        assert json.loads(first.ready.read_bytes())["zmtp"] == endpoint
        with Client(endpoint) as client:
            assert client.publish("t", b"1") == 1
        assert first.end() == 0


def test_persistent_messages_survive_each_kind_of_end(tmp_path: Path) -> None:
    arguments = (tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--topic", "t:broadcast:strong")
    for turn, kill in enumerate((True, False, True)):
        with broker(tmp_path, *arguments) as command:
            with Client(command.serving()["zmtp"]) as client:
                assert client.publish("t", b"%d" % turn) == turn + 1
                assert [message.body for message in client.read("t")] == [b"%d" % n for n in range(turn + 1)]
            if kill:
                command.process.kill()
                command.ended()
                assert command.ready.exists()
            else:
                assert command.end() == 0


def test_a_topic_that_is_there_with_other_settings_is_named(tmp_path: Path) -> None:
    with Server(tmp_path / "data", topics=["t:broadcast:strong"]):
        pass
    with broker(tmp_path, tmp_path / "data", "--topic", "t:round-robin:strong") as command:
        assert command.ended() == 2
        assert "'t'" in command.log
        assert "Traceback" not in command.log


@pytest.mark.parametrize("stored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_work_queues_that_are_each_others_dead_letter_topics_are_refused(tmp_path: Path, stored: bool) -> None:
    settings = "round-robin:strong:max_messages=2:overflow=drop-oldest:dead_letter="
    cycle = [("--topic", f"t:{settings}u"), ("--topic", f"u:{settings}t")]
    if stored:
        with broker(tmp_path, tmp_path / "data", *cycle.pop(0)) as command:
            command.serving()
            assert command.end() == 0
    with broker(tmp_path, tmp_path / "data", *(word for topic in cycle for word in topic)) as command:
        assert command.ended() == 2
        assert "its dead letters would come back to it" in command.log
        assert "another dead_letter" in command.log
        assert "Traceback" not in command.log


def test_a_directory_of_pzq_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    with Device(tmp_path / "pzq"):
        pass
    with broker(tmp_path, tmp_path / "pzq", *EVERYWHERE) as command:
        assert command.ended() == 1
        assert f"{tmp_path / 'pzq'} is a directory of `omq pzq`, and `omq broker` cannot open it" in command.log
        assert "Traceback" not in command.log
    with Server(tmp_path / "broker"):
        pass
    with (
        pytest.raises(StoreError, match="broker is a directory of `omq broker`, and `omq pzq` cannot open it"),
        Device(tmp_path / "broker"),
    ):
        pass
    endpoints = [f"--{name}-dsn=tcp://127.0.0.1:*" for name in ("receive", "send", "monitor")]
    done = CliRunner().invoke(pzq, ["--database", str(tmp_path / "broker"), *endpoints])
    assert done.exit_code == 1
    assert f"{tmp_path / 'broker'} is a directory of `omq broker`" in done.output
    assert "Traceback" not in done.output


def test_a_directory_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [""])
    assert done.exit_code == 2
    assert "empty" in done.output
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with broker(tmp_path, tmp_path / "data", descriptors=(500, before[1])) as command:
        command.serving()
        limits = Path(f"/proc/{command.process.pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3] == line.split()[4]
        assert re.search(r"descriptors: at most \w+, raised from 500\n", command.log)
        command.end()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_the_status_page_is_there_when_clients_have_all_places(tmp_path: Path) -> None:
    """Descriptors are reserved for it; a client above the limit is turned away, and the log reports it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    arguments = (tmp_path / "data", "--http", "127.0.0.1:0", "--topic", "t:broadcast:weak")
    with broker(tmp_path, *arguments, descriptors=(200, 200)) as command, ExitStack() as stack:
        endpoints = command.serving()
        sockets = [stack.enter_context(omq.DEALER(connect=endpoints["zmtp"], linger=0)) for _ in range(150)]
        served = 0
        for each in sockets:
            each.send_multipart([b"PING", b"x"])
        for each in sockets:
            try:
                served += each.recv_multipart(timeout=5.0 if served < 100 else 0.5) == [b"PONG", b"x"]
            except omq.ReceiveTimeout:
                break
        assert served == 136  # of 200, 64 are kept back
        until(lambda: "is turned away" in command.log)
        with urllib.request.urlopen(endpoints["http"] + "/healthz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
        sockets[0].send_multipart([b"PUBLISH", b"p", b"t", b"body"])
        assert sockets[0].recv_multipart(timeout=10.0)[0] == b"PUBLISHED"
        assert command.log.count("is turned away") == 1
        command.end()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard


def test_the_limit_of_connections_holds_for_each_kind_of_client(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("[limits]\nconnections = 1\n")
    with broker(tmp_path, "--memory", *EVERYWHERE, "--config", tmp_path / "broker.toml") as command:
        endpoints = command.serving()
        with Client(endpoints["zmtp"]) as client, SexpClient(endpoints["sexp"]) as other:
            client.create("t", persistence="weak")
            assert other.publish("t", b"1") == 1
            with pytest.raises(OmqError):
                SexpClient(endpoints["sexp"], timeout=5.0).publish("t", b"2")
            until(lambda: f"{endpoints['sexp']}: a client of" in command.log)
        command.end()


def test_the_log_has_endpoints_store_and_topics(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(tmp_path, data, "--bind", "tcp://*:*", "--topic", "a:broadcast:weak") as command:
        endpoint = command.serving()["zmtp"].replace("0.0.0.0", "127.0.0.1")
        with Client(endpoint) as client:
            client.create("b", persistence="weak", max_age=5)
            client.delete("b")
        until(lambda: "topic 'b': deleted" in command.log)
        assert f": 1 topic in {data}\n" in command.log
        assert re.search(
            r"topic 'b': created by tcp://127.0.0.1:\d+, broadcast and weak, with {'max_age': 5.0}", command.log
        )
        assert "topic 'a': created by the broker, broadcast and weak, with no settings" in command.log
        assert re.search(r"connections: at most \d+ \(zmtp\)", command.log)
        assert "tcp://*:*: every client may do everything" in command.log
        command.end()

"""`omq ingest` as a process between ordinary ZeroMQ peers and a broker, which both may be killed."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

import omq
from omq.broker import Client, Message
from omq.cli.ingest.command import ingest as ingest_command
from tests.support.chaos_proxy import UP, Proxy
from tests.support.cluster_members import Changes, Members
from tests.support.waits import until
from tests.system.broker.server_process import Command, broker, get

pytestmark = pytest.mark.timeout(120)

ANY = "tcp://127.0.0.1:*"
KEPT = "max_messages=50:overflow=block:retain_for=archiver"
TOPICS = (
    "--topic",
    "t:broadcast:strong",
    "--topic",
    f"kept:broadcast:strong:{KEPT}",
    "--topic",
    "jobs:round-robin:weak",
)


def started(folder: Path, *arguments: str | Path) -> AbstractContextManager[Command]:
    """Runs `omq ingest` with a folder for its ready file and its log, and kills it at the end if it still runs."""
    folder.mkdir(exist_ok=True)
    return broker(folder, *arguments, program="ingest")


def broker_at(folder: Path, port: int | str = "*", *arguments: str | Path) -> AbstractContextManager[Command]:
    return broker(folder, folder / "data", "--bind", f"tcp://127.0.0.1:{port}", *TOPICS, *arguments)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the endpoint of a broker of all tests."""
    with broker_at(tmp_path_factory.mktemp("broker")) as command:
        yield command.serving()["zmtp"]


@pytest.fixture
def zmtp(shared: str) -> str:
    """Returns the endpoint of a broker with the topics above, which are empty."""
    with Client(shared, timeout=20) as client:
        for topic in client.topics():
            client.delete(topic.name)
        client.create("t")
        client.create("kept", max_messages=50, overflow="block", retain_for="archiver")
        client.create("jobs", delivery="round-robin", persistence="weak")
    return shared


def read(endpoint: str, count: int, topic: str = "t") -> list[Message]:
    """Returns the messages of a topic, once it has as many as expected."""
    with Client(endpoint, timeout=20) as client:
        until(lambda: client.topics(topic)[0].last >= count, lambda: client.topics(topic))
        return list(client.read(topic))


def read_kept(endpoint: str, count: int) -> list[bytes]:
    """Reads and acknowledges messages as the reader of the topic `kept`."""
    bodies: list[bytes] = []
    with Client(endpoint, timeout=20) as client, client.subscribe("kept", name="archiver") as reader:
        while len(bodies) < count:
            message = reader.recv(timeout=20)
            bodies.append(message.body)
            reader.ack(message)
        client.flush()
    return bodies


def metric(http: str, name: str) -> float:
    found = re.search(rf"^omq_ingest_{name} (.*)$", get(f"{http}/metrics").decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# ---------------------------------------------------------------------- what it takes


def test_messages_are_published_once_while_the_leader_of_a_cluster_changes(tmp_path: Path, zmtp: str) -> None:
    count = 0
    with Members(zmtp) as cluster, Changes(cluster) as changes:
        arguments = ("--socket", "pull", "--bind", ANY, "--topic", "t", "--broker", ",".join(cluster.endpoints))
        with started(tmp_path / "i", *arguments) as command, omq.PUSH(connect=command.serving()["pull"]) as push:
            until_change = changes.count + 5
            while changes.count < until_change:
                push.send_many(numbered(100, count))
                count += 100
            push.flush()
            assert command.end() == 0, command.log
    assert [message.body for message in read(zmtp, count)] == numbered(count)


def test_messages_of_push_are_published_in_order(tmp_path: Path, zmtp: str) -> None:
    arguments = ("--socket", "pull", "--bind", ANY, "--bind", ANY, "--http", "127.0.0.1:0")
    with started(tmp_path / "i", *arguments, "--broker", zmtp, "--topic", "t") as command:
        endpoints = command.serving()
        assert sorted(endpoints) == ["http", "pull", "pull2"]
        with omq.PUSH(connect=endpoints["pull"]) as push:
            push.send_many(numbered(5000))
            push.send_multipart([b"AAPL", b"189.95"])
            push.send_multipart([b"", b"no key"])
            push.send(b"")
            push.send(large := b"x" * (9 << 20))  # more than a batch has room for
            push.send_many(numbered(10))
        messages = read(zmtp, 5014)
        assert [one.body for one in messages] == [
            *numbered(5000),
            *(b"189.95", b"no key", b"", large),
            *numbered(10),
        ]
        assert [one.key for one in messages if one.key is not None] == [b"AAPL"]
        until(lambda: metric(endpoints["http"], "messages_published_total") == 5014)
        assert metric(endpoints["http"], "messages_taken_total") == 5014
        assert metric(endpoints["http"], "in_flight_messages") == 0
        assert get(f"{endpoints['http']}/healthz") == b"ok\n"
        assert command.end() == 0
        assert not command.ready.exists()
        assert "5014 messages are published" in command.log
        assert "Traceback" not in command.log


def test_a_subscriber_takes_what_it_asks_for(tmp_path: Path, zmtp: str) -> None:
    with omq.PUB(bind=ANY) as first, omq.PUB(bind=ANY) as second:
        arguments = ("--socket", "SUB", "--connect", first.endpoints[0], "--connect", second.endpoints[0])
        with started(
            tmp_path / "i", *arguments, "--subscribe", "A", "--subscribe", "B", "--broker", zmtp, "--topic", "jobs"
        ) as command:
            command.serving()
            for pub in (first, second):
                pub.wait_subscribed(n=2, timeout=20)
                pub.send_many([b"A1", b"C2", b"B3"])
            with Client(zmtp, timeout=20) as client, client.consume("jobs") as consumer:
                jobs = [consumer.recv(timeout=20) for _ in range(4)]
                consumer.ack(jobs)
            assert sorted(job.body for job in jobs) == [b"A1", b"A1", b"B3", b"B3"]
            assert command.end() == 0


@pytest.mark.parametrize("name", ["GATHER", "DISH"])
def test_the_newer_types(tmp_path: Path, zmtp: str, name: str) -> None:
    join = ("--join", "prices", "--join", "news") if name == "DISH" else ()
    with started(tmp_path / "i", "--socket", name, "--bind", ANY, *join, "--broker", zmtp, "--topic", "t") as command:
        endpoint = command.serving()[name.lower()]
        if name == "GATHER":
            with omq.SCATTER(connect=endpoint) as scatter:
                scatter.send_many(numbered(100))
            assert [(one.key, one.body) for one in read(zmtp, 100)] == [(None, body) for body in numbered(100)]
        else:
            with omq.RADIO(connect=endpoint) as radio:
                radio.wait_subscribed(n=2, timeout=20)
                for group in ("prices", "weather", "news"):
                    radio.send(b"of " + group.encode(), group=group)
                messages = read(zmtp, 2)
            assert [(one.key, one.body) for one in messages] == [(b"prices", b"of prices"), (b"news", b"of news")]
        assert command.end() == 0


def test_a_peer_with_invalid_messages_loses_only_its_connection(tmp_path: Path, zmtp: str) -> None:
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "t") as command:
        endpoint = command.serving()["pull"]
        with omq.PUSH(connect=endpoint, reconnect_interval=None) as bad, omq.PUSH(connect=endpoint) as good:
            bad.wait_connected(timeout=20)
            bad.send_multipart([b"1", b"2", b"3"])
            until(lambda: not bad.peers)
            good.send(b"good")
            assert [one.body for one in read(zmtp, 1)] == [b"good"]
        assert command.end() == 0


# ---------------------------------------------------------------------- back-pressure


def test_peers_wait_while_the_topic_is_full_and_go_on_when_there_is_room(tmp_path: Path, zmtp: str) -> None:
    body = bytes(10_000)
    arguments = ("--in-flight-bytes", "200000", "--recv-hwm", "5", "--http", "127.0.0.1:0", "--topic", "kept")
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, *arguments) as command:
        endpoints = command.serving()
        with omq.PUSH(connect=endpoints["pull"], send_hwm=5) as push:
            sent = 0
            with contextlib.suppress(omq.SendTimeout):
                while sent < 10_000:
                    push.send(b"%05d" % sent + body, timeout=1.0)
                    sent += 1
            assert sent < 10_000
            # 50 are in the topic, two batches of at most twelve here, and the rest with the kernel.
            assert metric(endpoints["http"], "messages_taken_total") <= 74
            assert metric(endpoints["http"], "in_flight_messages") <= 24
            assert metric(endpoints["http"], "waiting_seconds") > 0.5
            assert get(f"{endpoints['http']}/healthz").startswith(b"ok")
            bodies = read_kept(zmtp, sent)
            assert [int(one[:5]) for one in bodies] == list(range(sent))
            until(lambda: metric(endpoints["http"], "in_flight_messages") == 0)
        assert command.end() == 0


def test_messages_refused_by_a_full_topic_are_published_once_there_is_room(tmp_path: Path, zmtp: str) -> None:
    with Client(zmtp, timeout=20) as client:
        client.create("small", delivery="round-robin", persistence="weak", max_messages=10, max_bytes=10_000)
        arguments = ("--broker", zmtp, "--topic", "small", "--http", "127.0.0.1:0")
        with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, *arguments) as command:
            endpoints = command.serving()
            with omq.PUSH(connect=endpoints["pull"]) as push:
                push.send_many(numbered(10))
                until(lambda: client.topics("small")[0].last == 10)
                push.send_many(numbered(40, 10))
            until(lambda: metric(endpoints["http"], "requests_refused_total") >= 2)
            with client.consume("small") as consumer:
                bodies = []
                while len(bodies) < 50:
                    job = consumer.recv(timeout=20)
                    bodies.append(job.body)
                    job.ack()
            assert bodies == numbered(50)
            assert command.end() == 0
            assert client.topics("small")[0].last == 50


# ---------------------------------------------------------------------- its end


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_makes_it_publish_what_the_peers_have_sent(tmp_path: Path, zmtp: str, number: signal.Signals) -> None:
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "kept") as command:
        endpoint = command.serving()["pull"]
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:  # libzmq's
            push.connect(endpoint)
            for body in numbered(900):
                push.send(body)
            push.close(linger=20_000)
            context.term()  # all is with the kernel, at least
        with Client(zmtp, timeout=20) as client:
            until(lambda: client.topics("kept")[0].last > 0)
        command.process.send_signal(number)
        until(lambda: not command.ready.exists())
        time.sleep(0.1)  # it does not end: the topic is full
        assert command.process.poll() is None
        assert read_kept(zmtp, 900) == numbered(900)
        assert command.ended() == 0
        assert "900 messages are published" in command.log


@pytest.mark.slow
def test_a_message_that_takes_long_to_arrive_is_published_after_a_signal(tmp_path: Path, zmtp: str) -> None:
    body = bytes(3 << 20)
    with (
        started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "t") as command,
        Proxy() as proxy,
    ):
        link = proxy.link(command.serving()["pull"])
        link.set(delay=0.08)  # for each 64 KiB: four seconds for the body
        with omq.PUSH(connect=link.endpoint, linger=0) as push:
            push.send(body)
            until(lambda: any(relay.passed[UP] > 1 << 17 for relay in link.relays))
            command.process.terminate()
            assert command.ended() == 0
    assert [len(one.body) for one in read(zmtp, 1)] == [len(body)]


def test_a_second_signal_ends_it_at_once(tmp_path: Path, zmtp: str) -> None:
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "kept") as command:
        endpoint = command.serving()["pull"]
        with omq.PUSH(connect=endpoint) as push:
            push.send_many(numbered(100))
        command.process.terminate()
        until(lambda: not command.ready.exists())
        command.process.terminate()
        assert command.ended() == -signal.SIGTERM


@pytest.mark.slow
def test_ingest_waits_for_a_broker_and_can_be_ended_meanwhile(tmp_path: Path, free_port: int) -> None:
    arguments = ("--socket", "PULL", "--bind", ANY, "--broker", f"tcp://127.0.0.1:{free_port}", "--topic", "t")
    with started(tmp_path / "first", *arguments) as first, started(tmp_path / "second", *arguments) as second:
        until(lambda: f"the broker at tcp://127.0.0.1:{free_port} has not answered" in first.log)
        assert not first.ready.exists()  # it does not serve without its broker
        assert first.end() == 0
        with broker_at(tmp_path, free_port) as command:
            command.serving()
            with omq.PUSH(connect=second.serving()["pull"]) as push:
                push.send(b"x")
            assert len(read(f"tcp://127.0.0.1:{free_port}", 1)) == 1
            assert second.end() == 0


def test_a_topic_that_is_deleted_ends_it(tmp_path: Path, zmtp: str) -> None:
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "t") as command:
        with omq.PUSH(connect=command.serving()["pull"]) as push:
            push.send(b"kept")
            read(zmtp, 1)
            with Client(zmtp, timeout=20) as client:
                client.delete("t")
            push.send(b"lost")
            assert command.ended() == 1
        assert "1 messages that were received are not acknowledged, and are lost" in command.log
        assert "there is no topic 't'" in command.log
        assert "Traceback" not in command.log


# ---------------------------------------------------------------------- deaths


class Pushing(threading.Thread):
    """Sends numbered messages until it is stopped.

    Attributes:
        sent: How many.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._socket = omq.PUSH(connect=endpoint, send_hwm=100, reconnect_interval=0.02)
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        with self._socket:
            while not self._over.is_set():
                try:
                    self._socket.send(b"%d" % self.sent, timeout=0.1)
                except omq.SendTimeout:
                    continue
                self.sent += 1
                if self.sent % 50 == 0:
                    time.sleep(0.001)

    def end(self) -> int:
        """Stops it once the kernel has all messages, and returns how many it has sent."""
        self._over.set()
        self.join(20)
        return self.sent


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_broker_that_dies_costs_nothing_and_doubles_nothing(
    tmp_path: Path, free_port: int, number: signal.Signals
) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", endpoint, "--topic", "t") as command:
        pushing = None
        last = 0
        for _ in range(2):
            with broker_at(tmp_path, free_port) as serving:
                serving.serving()
                pushing = pushing or Pushing(command.serving()["pull"])
                with Client(endpoint, timeout=20) as client:
                    until(lambda last=last, client=client: client.topics("t")[0].last > last + 1000)
                    last = client.topics("t")[0].last
                serving.process.send_signal(number)
                serving.ended()
        assert pushing is not None
        with broker_at(tmp_path, free_port) as serving:
            serving.serving()
            sent = pushing.end()
            assert command.end() == 0
            assert [one.body for one in read(endpoint, sent)] == numbered(sent)


def test_a_kill_loses_only_the_messages_in_memory(tmp_path: Path, zmtp: str, free_port: int) -> None:
    at = f"tcp://127.0.0.1:{free_port}"
    arguments = ("--socket", "PULL", "--bind", at, "--broker", zmtp, "--topic", "t", "--http", "127.0.0.1:0")
    pushing = Pushing(at)
    acknowledged = 0
    for _ in range(2):
        with started(tmp_path / "i", *arguments) as command:
            http = command.serving()["http"]
            until(lambda http=http: metric(http, "messages_published_total") > 1000)
            acknowledged += int(metric(http, "messages_published_total"))
            command.process.kill()
            command.ended()
    with started(tmp_path / "i", *arguments) as command:
        command.serving()
        sent = pushing.end()
        assert command.end() == 0
    numbers = [int(one.body) for one in read(zmtp, 1)]
    assert len(numbers) >= acknowledged
    assert numbers == sorted(set(numbers))  # in order, and none twice
    assert numbers[-1] == sent - 1
    lost = sorted(set(range(sent)) - set(numbers))
    gaps = sum(1 for before, number in zip([-2, *lost], lost, strict=False) if number != before + 1)
    assert gaps <= 2  # one at each death


# ---------------------------------------------------------------------- security


def certificate(folder: Path, name: str) -> tuple[bytes, Path, Path]:
    """Makes a key pair; returns the public key, its file, and the file of the secret key."""
    public, secret = omq.curve_keypair()
    files = folder / f"{name}.public", folder / f"{name}.secret"
    for file, key in zip(files, (public, secret), strict=True):
        file.write_bytes(key)
        file.chmod(0o600)
    return public, *files


@pytest.mark.parametrize("binds", [True, False])
def test_curve_on_both_sides(tmp_path: Path, binds: bool) -> None:
    keys = {name: certificate(tmp_path, name) for name in ("broker", "ingest", "peer", "stranger")}
    allowed = tmp_path / "allowed"
    curve = ("--mechanism", "curve", "--secret-key-file", keys["broker"][2], "--authorized-keys-file", allowed)
    allowed.write_bytes(keys["ingest"][0] + b" ingest\n" + keys["peer"][0] + b" peer\n")
    with broker_at(tmp_path, "*", *curve) as serving:
        zmtp = serving.serving()["zmtp"]
        arguments: tuple[str | Path, ...] = (
            *("--broker", zmtp, "--topic", "t", "--broker-key-file", keys["broker"][1]),
            *("--broker-secret-key-file", keys["ingest"][2], "--curve-secret-key-file", keys["ingest"][2]),
        )
        secret = keys["peer"][2].read_bytes()
        if binds:
            more = ("--socket", "PULL", "--bind", ANY, "--curve-authorized-keys-file", allowed)
            with started(tmp_path / "i", *arguments, *more) as command:
                endpoint = command.serving()["pull"]
                security = omq.CurveClient(keys["ingest"][0], secret_key=secret)
                with omq.PUSH(connect=endpoint, security=security) as push:
                    push.send(b"sealed")
                    assert_reads(zmtp, keys, secret)
                stranger = omq.CurveClient(keys["ingest"][0], secret_key=keys["stranger"][2].read_bytes())
                with omq.PUSH(connect=endpoint, security=stranger, linger=0) as push, pytest.raises(omq.Timeout):
                    push.wait_connected(timeout=0.5)
                assert command.end() == 0
        else:
            with omq.PUSH(bind=ANY, security=omq.CurveServer(secret, {keys["ingest"][0]})) as push:
                more = ("--socket", "PULL", "--connect", push.endpoints[0], "--curve-server-key-file", keys["peer"][1])
                with started(tmp_path / "i", *arguments, *more) as command:
                    command.serving()
                    push.send(b"sealed")
                    assert_reads(zmtp, keys, secret)
                    assert command.end() == 0


def assert_reads(zmtp: str, keys: dict[str, tuple[bytes, Path, Path]], secret: bytes) -> None:
    security = omq.CurveClient(keys["broker"][0], secret_key=secret)
    with Client(zmtp, timeout=20, security=security) as client:
        until(lambda: client.topics("t")[0].last == 1)


def test_a_user_with_a_password(tmp_path: Path) -> None:
    users, user = tmp_path / "users", tmp_path / "user"
    users.write_text("feed:secret\nother:word\n")
    user.write_text("feed:secret\n")
    for file in (users, user):
        file.chmod(0o600)
    with broker_at(tmp_path, "*", "--users-file", users) as serving:
        zmtp = serving.serving()["zmtp"]
        arguments = ("--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "t", "--broker-user-file", user)
        with started(tmp_path / "i", *arguments) as command:
            with omq.PUSH(connect=command.serving()["pull"]) as push:
                push.send(b"x")
            with Client(zmtp, timeout=20, security=omq.PlainClient("other", "word")) as client:
                until(lambda: client.topics("t")[0].last == 1)
            assert command.end() == 0
        user.write_text("feed:wrong\n")
        with started(tmp_path / "i", *arguments) as command:
            assert command.ended() == 1
            assert "Traceback" not in command.log


# ---------------------------------------------------------------------- what does not fit


NEEDED = ("--socket", "PULL", "--bind", ANY, "--broker", "tcp://127.0.0.1:1", "--topic", "t")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (NEEDED[2:], "--socket"),
        (NEEDED[:2] + NEEDED[4:], "--bind or --connect"),
        ((*NEEDED, "--socket", "PUSH"), "--socket"),
        ((*NEEDED, "--subscribe", "A"), "--subscribe is for SUB, not for PULL"),
        ((*NEEDED, "--join", "A"), "--join is for DISH, not for PULL"),
        ((*NEEDED, "--socket", "DISH"), "--join GROUP is missing"),
        ((*NEEDED, "--bind", "tcp://"), "tcp://"),
        ((*NEEDED, "--connect", "tcp://127.0.0.1:*"), "127.0.0.1"),
        ((*NEEDED, "--bind", "udp://127.0.0.1:1"), "udp"),
        ((*NEEDED, "--broker", "nonsense"), "nonsense"),
        ((*NEEDED, "--topic", "a/b"), "a/b"),
        ((*NEEDED, "--in-flight-bytes", "1"), "--in-flight-bytes"),
        ((*NEEDED, "--recv-hwm", "0"), "--recv-hwm"),
        ((*NEEDED, "--http", "nonsense"), "--http"),
        ((*NEEDED, "--curve-secret-key-file", "none"), "none"),
        ((*NEEDED, "--curve-authorized-keys-file", "KEYS"), "needs --curve-secret-key-file"),
        (
            (*NEEDED, "--curve-authorized-keys-file", "KEYS", "--curve-server-key-file", "KEY"),
            "does not go with --curve-server-key-file",
        ),
        ((*NEEDED, "--curve-server-key-file", "BAD"), "holds no key"),
        ((*NEEDED, "--broker-secret-key-file", "KEY"), "needs --broker-key-file"),
        ((*NEEDED, "--broker-user-file", "USERS"), "one line name:password, not 2"),
        ((*NEEDED, "--broker-user-file", "USER", "--broker-key-file", "KEY"), "does not go with --broker-key-file"),
    ],
)
def test_arguments_that_do_not_fit_are_named(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    key = omq.curve_keypair()[0].decode()
    files = {"KEY": key, "KEYS": key, "BAD": "no key", "USERS": "a:b\nc:d\n", "USER": "a:b\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    command_line = [str(tmp_path / one) if one in files else one for one in arguments]
    result = CliRunner().invoke(ingest_command, command_line)
    assert result.exit_code == 2, result.output
    assert named in " ".join(result.output.replace("│", " ").split())


def test_a_topic_that_is_not_there_and_an_endpoint_that_is_taken(tmp_path: Path, zmtp: str) -> None:
    with started(tmp_path / "i", "--socket", "PULL", "--bind", ANY, "--broker", zmtp, "--topic", "none") as command:
        assert command.ended() == 1
        assert "there is no topic 'none'" in command.log
    with started(tmp_path / "j", "--socket", "PULL", "--bind", zmtp, "--broker", zmtp, "--topic", "t") as command:
        assert command.ended() == 1
        assert zmtp in command.log
        assert "Traceback" not in command.log

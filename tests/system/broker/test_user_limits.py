"""Limits of users of a real broker: one user's load leaves room for the others."""

from __future__ import annotations

import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import omq
from omq.broker import Busy, Client, StoreFull
from omq.broker.sexp import Client as SexpClient
from omq.errors import OmqError, Timeout
from tests.support.waits import until
from tests.system.broker.server_process import Command, broker, get

pytestmark = pytest.mark.timeout(120)


class LimitedBroker:
    """A broker in memory with the users alice and bob.

    Args:
        folder: Where its files are.
        limits: Rows of `[[user_limit]]`.
    """

    def __init__(self, folder: Path, limits: str) -> None:
        self.folder = folder
        self.path = folder / "broker.toml"
        (folder / "users").write_text("alice:secret\nbob:secret\n")
        (folder / "users").chmod(0o600)
        self.write(limits)
        self.command: Command

    def write(self, limits: str) -> None:
        """Writes the configuration."""
        self.path.write_text(
            'memory = true\nbind = "tcp://127.0.0.1:*"\nsexp = "tcp://127.0.0.1:*"\nhttp = "127.0.0.1:0"\n'
            f'[security]\nmechanism = "plain"\nusers_file = "users"\n{limits}'
        )

    def client(self, user: str, timeout: float = 20.0) -> Client:
        endpoint = self.command.serving()["zmtp"]
        return Client(endpoint, timeout=timeout, security=omq.PlainClient(user, "secret"))

    def failed_handshakes(self) -> set[str]:
        """Returns the kinds of handshakes that have failed."""
        text = get(self.command.serving()["http"] + "/metrics").decode()
        return set(re.findall(r'handshake_failures_total{reason="(\w+)"} [1-9]', text))

    def hang_up(self, line: str) -> None:
        """Lets the broker read its file again, and waits for the line in its log."""
        before = self.command.log.count(line)
        self.command.process.send_signal(signal.SIGHUP)
        until(lambda: self.command.log.count(line) > before, lambda: self.command.log)


@pytest.fixture
def limited(tmp_path: Path) -> LimitedBroker:
    return LimitedBroker(tmp_path, "")


def served(server: LimitedBroker, limits: str) -> ExitStack:
    """Starts the broker with limits; the stack ends it."""
    server.write(limits)
    stack = ExitStack()
    server.command = stack.enter_context(broker(server.folder, "--config", server.path))
    server.command.serving()
    return stack


def test_a_user_has_a_number_of_connections(limited: LimitedBroker) -> None:
    with served(limited, '[[user_limit]]\nwho = "*"\nconnections = 2\n'), ExitStack() as clients:
        alices = [clients.enter_context(limited.client("alice")) for _ in range(2)]
        for alice in alices:
            alice.topics()
        text = "connections=2: user 'alice' has 2 connections"
        with limited.client("alice", timeout=1.0) as third, pytest.raises(Timeout, match=text.replace(" ", "_")):
            third.topics()
        assert text in limited.command.log
        assert limited.failed_handshakes() == {"refused"}  # `authentication` has an alert for wrong passwords
        with limited.client("bob") as bob:
            bob.topics()
        # The next one waits until there is room.
        with limited.client("alice") as fourth:
            alices[0].close()
            fourth.topics()
        limited.write('[[user_limit]]\nwho = "alice"\nconnections = 3\n')
        limited.hang_up("are read again")
        for _ in range(2):
            clients.enter_context(limited.client("alice")).topics()
        limited.write('[[user_limit]]\nwho = "alice"\nconnections = 0\n')
        limited.hang_up("connections=0: must be a whole number")
        with limited.client("alice", timeout=1.0) as more, pytest.raises(Timeout, match="connections=3"):
            more.topics()


def test_a_key_has_a_number_of_connections(tmp_path: Path) -> None:
    pairs = {name: omq.curve_keypair() for name in ("broker", "client", "other")}
    key = tmp_path / "broker.key"
    key.write_bytes(pairs["broker"][1])
    key.chmod(0o600)
    path = tmp_path / "broker.toml"
    path.write_text(
        'memory = true\n[security]\nmechanism = "curve"\nsecret_key_file = "broker.key"\n'
        '[[user_limit]]\nwho = "*"\nconnections = 1\n'
    )
    with broker(tmp_path, "--config", path) as command:
        endpoint = command.serving()["zmtp"]

        def client(name: str, timeout: float) -> Client:
            return Client(endpoint, timeout=timeout, security=omq.CurveClient(pairs["broker"][0], *pairs[name]))

        with client("client", 20.0) as first, client("other", 20.0) as other:
            first.topics()
            other.topics()
            with client("client", 1.0) as second, pytest.raises(Timeout, match="connections=1:_user_"):
                second.topics()


def test_many_connections_at_once(limited: LimitedBroker) -> None:
    with served(limited, '[[user_limit]]\nwho = "*"\nconnections = 5\n'), ExitStack() as stack:
        endpoint = limited.command.serving()["zmtp"]
        flood = [
            stack.enter_context(omq.DEALER(connect=endpoint, security=omq.PlainClient("alice", "secret"), linger=0))
            for _ in range(40)
        ]
        until(lambda: sum(bool(dealer.peers) for dealer in flood) == 5)
        with limited.client("bob") as bob:
            bob.topics()
        assert sum(bool(dealer.peers) for dealer in flood) == 5


def test_topics_and_bytes_of_a_user(limited: LimitedBroker) -> None:
    rows = '[[user_limit]]\nwho = "*"\ntopics = 2\nbytes = 100_000\n'
    with (
        served(limited, rows),
        limited.client("alice") as alice,
        limited.client("bob") as bob,
    ):
        for name in ("a", "b"):
            alice.create(name, persistence="weak")
        with pytest.raises(StoreFull, match="topics=2: user 'alice' has 2 topics"):
            alice.create("c", persistence="weak")
        bob.create("c", persistence="weak")
        alice.publish("a", bytes(90_000))
        for publisher in (alice, bob):
            with pytest.raises(StoreFull, match="bytes=100000: user 'alice' has topics of about"):
                publisher.publish("b", bytes(20_000))
        alice.publish("c", bytes(90_000))
        alice.purge("a")
        bob.publish("b", bytes(20_000))
        alice.delete("a")
        alice.create("d", persistence="weak")
        # S-expression clients have no user.
        with SexpClient(limited.command.serving()["sexp"]) as sexp:
            sexp.create("s1", persistence="transient")
            sexp.create("s2", persistence="transient")
            with pytest.raises(OmqError, match=r"topics=2: user '\*'"):
                sexp.create("s3", persistence="transient")


@pytest.mark.slow
def test_a_publisher_is_slowed_to_its_rate(limited: LimitedBroker) -> None:
    rows = '[[user_limit]]\nwho = "alice"\npublish_byte_rate = 1_000_000\n'
    with (
        served(limited, rows),
        limited.client("alice", timeout=60) as alice,
        limited.client("bob") as bob,
    ):
        alice.create("t", persistence="weak", max_messages=10, overflow="drop-oldest")
        began = time.monotonic()
        ids = alice.publish_many("t", [bytes(100_000)] * 60)
        took = time.monotonic() - began
        assert ids == list(range(1, 61))  # each once, in order
        assert took > 2.5  # 6 MB, less what may be published at once
        bob.publish_many("t", [bytes(100_000)] * 60)
        assert "user 'bob'" not in limited.command.log
        assert "publish_byte_rate=1000000: user 'alice' publishes more bytes per second" in limited.command.log


def test_a_client_without_retries_gets_busy(limited: LimitedBroker) -> None:
    with served(limited, '[[user_limit]]\nwho = "*"\npublish_byte_rate = 1000\n'):
        endpoint = limited.command.serving()["zmtp"]
        with omq.DEALER(connect=endpoint, security=omq.PlainClient("alice", "secret")) as dealer:
            dealer.send_multipart([b"CREATE", b"1", b'{"name": "t", "persistence": "weak"}'])
            assert dealer.recv_multipart(timeout=10)[0] == b"CREATED"
            dealer.send_multipart([b"PUBLISH", b"2", b"t", bytes(5000)])
            assert dealer.recv_multipart(timeout=10)[0] == b"PUBLISHED"
            dealer.send_multipart([b"PUBLISH", b"3", b"t", b"x"])
            command, tag, code, text = dealer.recv_multipart(timeout=10)[:4]
            assert (command, tag, code) == (b"ERROR", b"3", Busy.code.encode())
            assert text.startswith(b"publish_byte_rate=1000: user 'alice'")


def test_s_expression_clients_share_a_rate_over_new_connections(limited: LimitedBroker) -> None:
    with served(limited, '[[user_limit]]\nwho = "*"\npublish_byte_rate = 10_000\n'):
        endpoint = limited.command.serving()["sexp"]
        with SexpClient(endpoint, timeout=60) as first:
            first.create("t", persistence="transient")
            first.publish("t", b"x" * 45_000)  # more than may be published at once
        began = time.monotonic()
        with SexpClient(endpoint, timeout=60) as second:
            assert second.publish("t", b"x" * 45_000) == 2
        assert time.monotonic() - began > 1.5


def test_s_expression_clients_are_read_more_slowly(limited: LimitedBroker) -> None:
    rows = '[[user_limit]]\nwho = "*"\npublish_byte_rate = 10_000\n[[user_limit]]\nwho = "bob"\ntopics = 9\n'
    with served(limited, rows), SexpClient(limited.command.serving()["sexp"], timeout=60) as sexp:
        sexp.create("t", persistence="transient")
        began = time.monotonic()
        for _ in range(5):
            sexp.publish("t", b"x" * 10_000)
        assert time.monotonic() - began > 1.5

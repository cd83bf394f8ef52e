"""Connections whose sides prove to each other that they know a secret."""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

import omq
from omq.spark.live import trusted
from omq.spark.live.trusted import Channel, Place, Server, Unreachable, reach

SECRET = b"s" * 32


def echo(channel: Channel) -> None:
    while True:
        told, descriptors = channel.receive()
        beside = [channel.beside(size) for size in told.pop("beside", ())]
        channel.send({**told, "descriptors": len(descriptors)}, beside)
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    found = Server(f"omq-test/{secrets.token_hex(8)}", SECRET, echo)
    yield found
    found.close()


@pytest.fixture(params=["this host", "another host"])
def place(server: Server, request: pytest.FixtureRequest) -> Place:
    mine = server.place
    return mine if request.param == "this host" else Place("elsewhere", mine.name, mine.addresses, mine.port)


def test_messages_go_both_ways_with_bytes_beside_them(place: Place) -> None:
    with contextlib.closing(reach(place, SECRET)) as channel:
        assert channel.local == (place.host != "elsewhere")
        body = os.urandom(3 << 20)
        for _ in range(3):
            channel.send({"a": 1}, [b"", memoryview(body)])
            told = channel.hear()
            assert told == {"a": 1, "descriptors": 0, "beside": [0, len(body)]}
            assert [bytes(channel.beside(size)) for size in told["beside"]] == [b"", body]


def test_descriptors_go_along_on_one_host(server: Server, tmp_path: Path) -> None:
    with contextlib.closing(reach(server.place, SECRET)) as channel, (tmp_path / "file").open("w") as file:
        channel.send({"n": 2}, descriptors=[file.fileno(), file.fileno()])
        assert channel.hear() == {"n": 2, "descriptors": 2}


def test_one_who_does_not_know_the_secret_is_told_nothing(place: Place) -> None:
    with pytest.raises(Unreachable):
        reach(place, b"t" * 32)


def test_a_server_that_does_not_know_the_secret_is_told_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    false = Server(f"omq-test/{secrets.token_hex(8)}", b"t" * 32, lambda channel: heard.append(channel.hear()))
    with contextlib.closing(false), pytest.raises(Unreachable, match=r"stranger|gone|no answer"):
        reach(false.place, SECRET).send({"hello": True})
    assert not heard


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000)], ids=["silent", "http", "noise"])
def test_a_stranger_is_let_go_and_harms_nobody(words: bytes, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "PATIENCE", 0.3)
    strangers = [socket.create_connection(("127.0.0.1", server.place.port)) for _ in range(10)]
    for one in strangers:
        one.sendall(words)
        one.settimeout(20)
    with contextlib.closing(reach(server.place, SECRET)) as channel:
        assert channel.ask({"b": 2})["b"] == 2
    for one in strangers:
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while data := one.recv(100):
                got += data
        assert len(got) <= trusted.NONCE
        one.close()


def test_what_was_said_once_proves_nothing_when_it_is_said_again(server: Server) -> None:
    def nonce(sock: socket.socket) -> bytes:
        return sock.recv(trusted.NONCE, socket.MSG_WAITALL)

    with socket.create_connection(("127.0.0.1", server.place.port)) as first:
        theirs, ours = nonce(first), b"o" * trusted.NONCE
        proof = trusted._proof(SECRET, b"comes", theirs + ours)
        first.sendall(ours + proof)
        assert nonce(first) == trusted._proof(SECRET, b"serves", theirs + ours)
    with socket.create_connection(("127.0.0.1", server.place.port)) as second:
        nonce(second)
        second.sendall(ours + proof)
        with contextlib.suppress(ConnectionResetError):
            assert second.recv(100) == b""


def test_one_name_has_one_server(server: Server) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(server.place.name, SECRET, echo)


def test_nobody_is_there() -> None:
    with pytest.raises(Unreachable, match="nobody-here"):
        reach(Place(trusted.this_host(), "nobody-here", ("127.0.0.1",), 1), SECRET)


def test_a_closed_channel_wakes_who_waits(server: Server) -> None:
    channel = reach(server.place, SECRET)
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(OSError, EOFError):
            channel.hear()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    channel.close()
    assert ended.wait(20)


def test_the_addresses_are_those_that_others_may_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    assert trusted.addresses() == ("127.0.0.3",)
    monkeypatch.delenv("SPARK_LOCAL_IP")
    found = trusted.addresses()
    assert found == ("127.0.0.1",) or not any(one.startswith("127.") for one in found)


def test_one_for_whom_no_thread_can_be_had_comes_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused = []

    def starved(thread: threading.Thread) -> None:
        if thread.name == "omq-spark-serve" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starved)
    place = Place("elsewhere", server.place.name, server.place.addresses, server.place.port)
    with pytest.raises(Unreachable):
        reach(place, SECRET)
    with contextlib.closing(reach(place, SECRET)) as channel:
        assert channel.ask({"a": 1}) == {"a": 1, "descriptors": 0}
    assert refused
    assert not server._strangers


def test_what_the_other_side_would_refuse_is_not_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "MOST", 1000)
    with contextlib.closing(reach(place, SECRET)) as channel:
        with pytest.raises(omq.StateError, match=r"\d+ bytes .* where a stream can have 1000"):
            channel.send({"a": "x" * 1000})
        assert channel.ask({"a": 1}) == {"a": 1, "descriptors": 0}

"""Calls between processes that prove to each other that they know a secret."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow  # noqa: F401
import pytest

import omq
from omq.spark.live import rpc
from omq.spark.live.rpc import Channel, ProcessAddress, RpcServer, Unreachable, connect

SECRET = b"s" * 32


def echo(channel: Channel) -> None:
    while True:
        message, attached, descriptors = channel.receive()
        channel.send({**message, "descriptors": len(descriptors)}, attached)
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RpcServer]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    found = RpcServer("test", SECRET, echo)
    yield found
    found.close()


@pytest.fixture(params=["this host", "another host"])
def place(server: RpcServer, request: pytest.FixtureRequest) -> ProcessAddress:
    return server.address if request.param == "this host" else server.address._replace(host="elsewhere")


def test_messages_are_sent_both_ways_with_bytes_attached(place: ProcessAddress) -> None:
    with contextlib.closing(connect(place, SECRET)) as channel:
        assert channel.local == (place.host != "elsewhere")
        body = os.urandom(3 << 20)
        for _ in range(3):
            channel.send({"a": 1}, [b"", memoryview(body)])
            assert channel.receive() == ({"a": 1, "descriptors": 0}, [b"", body], [])


def test_descriptors_are_sent_on_one_host(server: RpcServer, tmp_path: Path) -> None:
    with contextlib.closing(connect(server.address, SECRET)) as channel, (tmp_path / "file").open("w") as file:
        channel.send({"n": 2}, descriptors=[file.fileno(), file.fileno()])
        assert channel.recv() == {"n": 2, "descriptors": 2}


def test_a_client_without_the_secret_is_sent_nothing(place: ProcessAddress) -> None:
    with pytest.raises(Unreachable) as raised:
        connect(place, b"t" * 32)
    assert not raised.value.refused


def test_a_server_without_the_secret_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    false = RpcServer("test", b"t" * 32, lambda channel: received.append(channel.recv()))
    with contextlib.closing(false), pytest.raises(Unreachable, match=r"does not know|has closed|no answer"):
        connect(false.address, SECRET).send({"hello": True})
    assert not received


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000)], ids=["silent", "http", "noise"])
def test_an_unauthenticated_peer_is_disconnected_and_does_no_harm(
    words: bytes, server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "HANDSHAKE_TIMEOUT_S", 0.3)
    unknown = [socket.create_connection(("127.0.0.1", server.address.port)) for _ in range(10)]
    for one in unknown:
        one.sendall(words)
        one.settimeout(20)
    with contextlib.closing(connect(server.address, SECRET)) as channel:
        assert channel.call({"b": 2})["b"] == 2
    for one in unknown:
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while data := one.recv(100):
                got += data
        assert len(got) <= rpc.NONCE_BYTES
        one.close()


def test_a_replayed_proof_is_rejected(server: RpcServer) -> None:
    def nonce(sock: socket.socket) -> bytes:
        return sock.recv(rpc.NONCE_BYTES, socket.MSG_WAITALL)

    with socket.create_connection(("127.0.0.1", server.address.port)) as first:
        theirs, ours = nonce(first), b"o" * rpc.NONCE_BYTES
        proof = rpc._proof(SECRET, b"client", theirs + ours)
        first.sendall(ours + proof)
        assert nonce(first) == rpc._proof(SECRET, b"server", theirs + ours)
    with socket.create_connection(("127.0.0.1", server.address.port)) as second:
        nonce(second)
        second.sendall(ours + proof)
        with contextlib.suppress(ConnectionResetError):
            assert second.recv(100) == b""


def test_an_address_without_a_process_is_refused() -> None:
    with pytest.raises(Unreachable, match="no-process") as raised:
        connect(ProcessAddress(rpc.this_host(), "no-process", ("127.0.0.1",), 1), SECRET)
    assert raised.value.refused


def test_closing_a_channel_wakes_its_receiving_thread(server: RpcServer) -> None:
    channel = connect(server.address, SECRET)
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(OSError, EOFError):
            channel.recv()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    channel.close()
    assert ended.wait(20)


def test_addresses_follow_spark_local_ip_and_exclude_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    assert rpc.addresses() == ("127.0.0.3",)
    monkeypatch.delenv("SPARK_LOCAL_IP")
    found = rpc.addresses()
    assert found == ("127.0.0.1",) or not any(one.startswith("127.") for one in found)


def test_a_peer_without_a_thread_is_disconnected_and_retries(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused = []

    def starved(thread: threading.Thread) -> None:
        if thread.name == "omq-spark-serve" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starved)
    place = server.address._replace(host="elsewhere")
    with pytest.raises(Unreachable):
        connect(place, SECRET)
    with contextlib.closing(connect(place, SECRET)) as channel:
        assert channel.call({"a": 1}) == {"a": 1, "descriptors": 0}
    assert refused


def test_the_oldest_of_too_many_unauthenticated_peers_is_disconnected(
    server: RpcServer,
) -> None:
    known = connect(server.address._replace(host="elsewhere"), SECRET)
    unknown = [socket.create_connection(("127.0.0.1", server.address.port)) for _ in range(rpc.MAX_UNAUTHENTICATED)]
    oldest = unknown[0]
    oldest.settimeout(rpc.HANDSHAKE_TIMEOUT_S / 2)
    unknown.append(socket.create_connection(("127.0.0.1", server.address.port)))
    assert len(oldest.recv(100)) == rpc.NONCE_BYTES
    assert oldest.recv(100) == b""
    assert known.call({"a": 1})["a"] == 1
    for one in [*unknown, known]:
        one.close()


def test_a_message_above_the_limit_is_not_sent(place: ProcessAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 1000)
    with contextlib.closing(connect(place, SECRET)) as channel:
        with pytest.raises(omq.StateError, match=r"a message has \d+ bytes; the maximum is 1000"):
            channel.send({"a": "x" * 1000})
        assert channel.call({"a": 1}) == {"a": 1, "descriptors": 0}

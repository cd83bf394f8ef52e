"""`omq sniff`: captures of real connections of omq and libzmq, written by scapy."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgWriter, wrpcap

import omq
from tests.system.cli.capture import CLIENT_PORT, captured, push_pull
from tests.system.cli.command_process import BOUND, failed, finished, run, start


def rows(path: Path, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("sniff", path, "--json", *words).splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "capture.pcap"


def test_greetings_commands_and_messages(path: Path) -> None:
    wrpcap(str(path), push_pull([b"hello", b"\x00\xff"]))
    found = rows(path)
    assert [row["kind"] for row in found].count("greeting") == 2
    ready = {row["source"]: row for row in found if row.get("name") == "READY"}
    assert ready["127.0.0.1:40000"]["Socket-Type"] == "PUSH"
    assert ready["127.0.0.1:5555"]["Socket-Type"] == "PULL"
    (message,) = (row for row in found if row["kind"] == "message")
    assert (message["source"], message["target"]) == ("127.0.0.1:40000", "127.0.0.1:5555")
    assert message["parts"] == ["hello", {"base64": "AP8="}]
    assert message["time"] >= 1_700_000_000
    lines = run("sniff", path).decode().splitlines()
    assert any(
        line.endswith("127.0.0.1:40000 > 127.0.0.1:5555 message 2 parts, 7 bytes: hello\t\\x00\\xff") for line in lines
    )
    assert run("sniff", path, "--port", "80") == b""


@pytest.mark.parametrize("seed", range(5))
def test_segments_in_any_order_and_again(seed: int, path: Path) -> None:
    body = bytes(range(256)) * 100
    packets = push_pull([body])
    shuffle = random.Random(seed)
    packets += shuffle.sample(packets, 5)
    head, rest = packets[:2], packets[2:]
    shuffle.shuffle(rest)
    wrpcap(str(path), [*head, *rest])
    (message,) = (row for row in rows(path) if row["kind"] == "message")
    assert base64.b64decode(message["parts"][0]["base64"]) == body


def test_pcapng_and_ipv6(path: Path) -> None:
    with PcapNgWriter(str(path)) as writer:
        writer.write(push_pull([b"hello"], ipv6=True))
    (message,) = (row for row in rows(path) if row["kind"] == "message")
    assert (message["source"], message["parts"]) == ("[::1]:40000", ["hello"])


def test_curve_is_shown_as_encrypted(path: Path) -> None:
    _, secret = omq.curve_keypair()
    server = omq.CurveServer(secret)
    with omq.PULL(bind="tcp://127.0.0.1:*", security=server) as pull:
        with captured(pull.endpoints[0]) as capture:
            client = omq.CurveClient(server.public_key)
            with omq.PUSH(connect=capture.endpoint, security=client, reconnect_interval=None) as push:
                push.send(b"hello")
                assert pull.recv(timeout=BOUND) == b"hello"
        wrpcap(str(path), capture.packets)
    found = rows(path)
    assert {row["mechanism"] for row in found if row["kind"] == "greeting"} == {"CURVE"}
    assert [row["name"] for row in found if row["kind"] == "command"] == ["HELLO", "WELCOME", "INITIATE", "READY"]
    assert [row["size"] for row in found if row["kind"] == "encrypted"] == [5]
    assert "hello" not in json.dumps(found)


def test_plain_hides_the_password(path: Path) -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*", security=omq.PlainServer({"joe": "secret"})) as pull:
        with captured(pull.endpoints[0]) as capture:
            client = omq.PlainClient("joe", "secret")
            with omq.PUSH(connect=capture.endpoint, security=client, reconnect_interval=None) as push:
                push.send(b"hello")
                pull.recv(timeout=BOUND)
        wrpcap(str(path), capture.packets)
    text = run("sniff", path).decode()
    assert "HELLO username=joe password=***" in text
    assert "secret" not in text


def test_subscriptions_and_heartbeats(path: Path) -> None:
    with (
        omq.PUB(bind="tcp://127.0.0.1:*") as pub,
        captured(pub.endpoints[0]) as capture,
        omq.SUB(connect=capture.endpoint, subscribe=b"AAPL", heartbeat_interval=0.05) as sub,
    ):
        pub.wait_subscribed(b"AAPL", timeout=BOUND)
        while not any(b"\x04PONG" in bytes(packet) for packet in list(capture.packets)):
            pub.send(b"AAPL")
            sub.recv(timeout=BOUND)
    wrpcap(str(path), capture.packets)
    text = run("sniff", path).decode()
    for wanted in ("SUBSCRIBE prefix=AAPL", "PING ttl=", "PONG", "message 4 bytes: AAPL"):
        assert wanted in text


def test_the_rest_of_the_traffic_is_reported(path: Path) -> None:
    whole = push_pull([b"x" * 10_000])
    late = [packet for packet in push_pull([b"x"]) if packet[TCP].sport == CLIENT_PORT][-1:]
    late[0][TCP].sport += 1
    late[0][TCP].payload.load = late[0][TCP].payload.load[-3:]
    lost = [packet for packet in whole if packet[TCP].sport != CLIENT_PORT or len(packet[TCP].payload) < 1400]
    wrpcap(str(path), lost + late)
    process = start("sniff", path)
    _, err = process.communicate(BOUND)
    text = err.decode()
    assert "127.0.0.1:40000 > 127.0.0.1:5555: the capture lacks bytes" in text
    assert "began before the capture" in text
    assert process.wait(BOUND) == 0


def test_another_file_is_named(path: Path) -> None:
    path.write_bytes(b"something else, and long enough to be read as the head of a capture")
    assert f"{path}: is not a pcap or pcapng file" in failed(start("sniff", path))
    path.write_bytes(b"")
    assert f"{path}: is not a pcap or pcapng file" in failed(start("sniff", path))


def test_a_capture_without_tcp_prints_nothing(path: Path) -> None:
    wrpcap(str(path), [Ether() / IP() / b"some"])
    assert finished(start("sniff", path)) == b""

"""The options of the data source: known, missing and invalid ones."""

from pathlib import Path
from typing import Any

import pyarrow  # noqa: F401
import pytest

import omq
from omq.spark.live.settings import SocketSettings
from omq.spark.options import has_option

PULL = {"socket": "PULL", "connect": "tcp://127.0.0.1:1"}


def test_names_have_no_case_and_values_have_types() -> None:
    found = SocketSettings.parse(
        "read",
        {
            "SOCKET": "sub",
            "Connect": "tcp://a:1, tcp://b:2",
            "subscribe": "a,b",
            "maxrows": "10",
            "MAXBYTES": "2m",
            "RECV_HWM": "7",
            "ipv6": "true",
            "reconnect_interval": "0.5,4",
            "connect_timeout": "none",
            "identity": "me",
        },
    )
    assert found.connect == ("tcp://a:1", "tcp://b:2")
    assert (found.max_rows, found.max_bytes) == (10, 2 << 20)
    assert dict(found.options) == {
        "subscribe": (b"a", b"b"),
        "recv_hwm": 7,
        "ipv6": True,
        "reconnect_interval": (0.5, 4.0),
        "connect_timeout": None,
        "identity": b"me",
    }


def test_an_empty_prefix_subscribes_to_everything() -> None:
    given = {"socket": "SUB", "connect": "tcp://a:1", "subscribe": ""}
    assert dict(SocketSettings.parse("readStream", given).options) == {"subscribe": (b"",)}


@pytest.mark.parametrize(
    ("use", "given", "complaint"),
    [
        ("read", PULL, "a batch needs a limit"),
        (
            "read",
            {**PULL, "maxrow": "1"},
            "unknown option 'maxrow'; did you mean 'maxRows'. known options: socket, bind, connect.*maxSeconds",
        ),
        ("read", {**PULL, "triggerSeconds": "1"}, "not an option of read: 'triggerSeconds'"),
        ("readStream", {**PULL, "maxRows": "1"}, "'maxRows'; did you mean 'maxRowsPerTrigger'"),
        ("read", {**PULL, "maxRows": "0"}, "option maxRows='0': must be a whole number above 0"),
        ("read", {**PULL, "maxRows": "1", "batchBytes": "x"}, "option batchBytes='x'"),
        ("read", {**PULL, "maxRows": "1", "recv_hwm": "x"}, "option recv_hwm='x': must be a value of type int"),
        ("read", {**PULL, "maxRows": "1", "recv_hwm": "-1"}, "option recv_hwm=-1"),
        ("read", {**PULL, "maxRows": "1", "send_hwm": "x"}, "send_hwm"),
        ("read", {**PULL, "maxRows": "1", "subscribe": "a"}, "does not fit a PULL socket"),
        ("read", {"connect": "tcp://a:1", "maxRows": "1"}, "'socket' is missing: read takes PULL or SUB"),
        ("read", {**PULL, "socket": "PUSH", "maxRows": "1"}, "socket='PUSH': read takes PULL or SUB"),
        ("read", {"socket": "PULL", "maxRows": "1"}, "option 'connect' or 'bind' is missing"),
        ("read", {**PULL, "socket": "SUB", "maxRows": "1"}, "option 'subscribe' is missing"),
        ("read", {**PULL, "maxRows": "1", "columns": "value,key"}, "columns='key': expected one of value, parts"),
        ("read", {**PULL, "maxRows": "1", "columns": "topic"}, "expected one of value, parts, endpoint, timestamp"),
        ("read", {**PULL, "maxRows": "1", "columns": "value,value"}, "twice"),
        ("read", {**PULL, "connect": "tcp://a:1,tcp://b:1", "maxRows": "1", "partitions": "2"}, "a single endpoint"),
        ("read", {"socket": "PULL", "bind": "tcp://a:1", "maxRows": "1", "partitions": "2"}, "bound only once"),
        ("readStream", {**PULL, "connect": ""}, "option connect='': must be an endpoint"),
        ("readStream", {**PULL, "connect": " , "}, "option connect=' , ': must be an endpoint"),
        ("write", {"socket": "PUSH", "bind": ""}, "option bind='': must be an endpoint"),
        ("readStream", {**PULL, "connect": "tcp://a"}, "option 'connect': endpoint 'tcp://a'"),
        ("readStream", {**PULL, "connect": "tcp://a:1,b:2"}, "option 'connect': endpoint 'b:2'"),
        ("readStream", {**PULL, "connect": "tcp://*:1"}, "option 'connect': endpoint"),
        ("write", {"socket": "PUSH", "bind": "tcp://a:99999"}, "option 'bind': endpoint 'tcp://a:99999'"),
        ("readStream", {**PULL, "connect": "inproc://a"}, "connect='inproc://a': inproc stays within a process"),
        (
            "readStream",
            {"socket": "SUB", "subscribe": "", "connect": "tcp://a:1, tcp://a:1"},
            "'tcp://a:1' is given twice; every message would arrive twice",
        ),
        ("readStream", {"socket": "PULL", "bind": "tcp://a:1,tcp://a:1"}, "bound only once"),
        ("readStream", {**PULL, "socket": "SUB", "subscribe": "", "partitions": "2"}, "each connection of a SUB gets"),
        ("read", {**PULL, "maxRows": "1", "linger": "1"}, "not an option of read: 'linger'"),
        ("write", {**PULL, "socket": "PUSH", "recv_hwm": "1"}, "not an option of write: 'recv_hwm'"),
        ("write", {**PULL, "socket": "PUSH", "maxRows": "5"}, "not an option of write: 'maxRows'; known"),
        ("write", PULL, "write takes PUSH or PUB"),
        (
            "read",
            {**PULL, "maxRows": "1", "connectTimeout": "0"},
            "connectTimeout='0': must be seconds above 0, or none",
        ),
        ("read", {**PULL, "maxRows": "1", "failOnConnectTimeout": "yes"}, "must be true or false"),
        ("write", {**PULL, "socket": "PUSH", "topic": "a"}, "are for a PUB, not for a PUSH"),
        ("write", {**PULL, "socket": "PUSH", "checkpointLocation": "a"}, "unknown option"),
        (
            "read",
            {**PULL, "maxRows": "1", "curveServerKeyFile": "a", "curveAuthorizedKeysFile": "b"},
            "exclude each other",
        ),
        ("read", {**PULL, "maxRows": "1", "curveAuthorizedKeysFile": "b"}, "'curveSecretKeyFile' is missing"),
    ],
)
def test_an_invalid_option_is_reported(use: str, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(omq.OptionError, match=complaint):
        SocketSettings.parse(use, given)


def test_sparks_own_options_of_a_streaming_write_are_ignored() -> None:
    given = {"socket": "PUSH", "connect": "tcp://a:1", "checkpointLocation": "/c", "queryName": "q"}
    assert SocketSettings.parse("writeStream", given).options == ()


def test_partitions() -> None:
    assert (
        SocketSettings.parse("read", {**PULL, "maxRows": "1", "partitions": "3"}).endpoints
        == ("tcp://127.0.0.1:1",) * 3
    )
    both = {"socket": "PULL", "bind": "tcp://b:1", "connect": "tcp://c:1", "maxRows": "1"}
    assert SocketSettings.parse("read", both).endpoints == ("tcp://b:1", "tcp://c:1")


def test_the_schema_names_a_topic_only_for_a_sub() -> None:
    usual = "value binary, endpoint string, timestamp timestamp, sequence bigint"
    assert SocketSettings.parse("readStream", PULL).schema == usual
    sub = SocketSettings.parse("readStream", {**PULL, "socket": "SUB", "subscribe": ""})
    assert sub.schema.startswith("value binary, topic binary, endpoint")


@pytest.mark.parametrize(
    "name", ["maxRowsPerTrigger", "maxBytesPerTrigger", "triggerSeconds", "quietSeconds", "QUIETSECONDS"]
)
def test_each_option_of_a_stream_only_selects_a_stream(name: str) -> None:
    assert SocketSettings.streams({**PULL, name: "5"})
    assert not SocketSettings.streams({**PULL, "maxRows": "5"})


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "triggerseconsd",
            "unknown option 'triggerseconsd'; did you mean 'triggerSeconds'. known options: .*maxRows.*trigger",
        ),
        ("keepSeconds", "not an option of read or readStream: 'keepSeconds'; known options: "),
        ("send_hwm", "not an option of read or readStream: 'send_hwm'"),
        ("provider", "CREATE TABLE .*createOrReplaceTempView"),
    ],
)
def test_an_unknown_option_of_a_read_is_reported_before_its_kind_is_known(name: str, complaint: str) -> None:
    with pytest.raises(omq.OptionError, match=complaint):
        SocketSettings.streams({**PULL, name: "5"})


def _files(folder: Path, **keys: bytes) -> dict[str, str]:
    for name, key in keys.items():
        (folder / name).write_bytes(key + b"\n")
    return {name: str(folder / name) for name in keys}


def test_curve_keys_are_read_from_files_and_stand_nowhere_else(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    client_public, client_secret = omq.curve_keypair()
    server: Any = SocketSettings.parse(
        "write",
        {
            "socket": "PUSH",
            "bind": "tcp://127.0.0.1:*",
            **_files(tmp_path, curveSecretKeyFile=secret, curveAuthorizedKeysFile=client_public),
        },
    )
    assert secret.decode() not in repr(server)
    with server.open(linger=0) as push:
        (tmp_path / "c").mkdir()
        client = SocketSettings.parse(
            "read",
            {
                "socket": "PULL",
                "connect": push.endpoints[0],
                "maxRows": "1",
                **_files(tmp_path / "c", curveServerKeyFile=public, curveSecretKeyFile=client_secret),
            },
        )
        with client.open() as pull:
            push.send(b"sealed")
            assert pull.recv(timeout=10) == b"sealed"
            assert push.peers[0].user_id == client_public.decode()


def test_an_invalid_key_file_is_named_with_its_option(tmp_path: Path) -> None:
    given = {"socket": "PULL", "connect": "tcp://127.0.0.1:5555", "maxRows": "1"}
    missing = SocketSettings.parse("read", {**given, "curveServerKeyFile": str(tmp_path / "none")})
    with pytest.raises(omq.OptionError, match=r"curveServerKeyFile='.*/none' cannot be read: No such file"):
        missing.open()
    for text in (b"no key", b"\xff"):
        wrong = SocketSettings.parse("read", {**given, **_files(tmp_path, curveServerKeyFile=text)})
        with pytest.raises(omq.OptionError, match=r"curveServerKeyFile='.*/curveServerKeyFile'"):
            wrong.open()


#: A text for every option of a socket, and the value that it stands for.
EVERY: dict[str, tuple[str, Any]] = {
    "send_hwm": ("7", 7),
    "recv_hwm": ("8", 8),
    "send_timeout": ("1.5", 1.5),
    "recv_timeout": ("2", 2.0),
    "linger": ("0", 0.0),
    "error_linger": ("2", 2.0),
    "identity": ("me", b"me"),
    "reconnect_interval": ("0.5,4", (0.5, 4.0)),
    "reconnect_stop": ("refused, after disconnect", frozenset({"refused", "after disconnect"})),
    "connect_timeout": ("3", 3.0),
    "handshake_timeout": ("none", None),
    "heartbeat_interval": ("5", 5.0),
    "heartbeat_timeout": ("4", 4.0),
    "heartbeat_ttl": ("6", 6.0),
    "max_handshakes": ("10", 10),
    "max_connections": ("11", 11),
    "max_message_size": ("1000", 1000),
    "max_parts": ("2", 2),
    "max_subscriptions": ("13", 13),
    "conflate": ("true", True),
    "xpub_nodrop": ("True", True),
    "invert_matching": ("true", True),
    "subscribe": ("a,b", (b"a", b"b")),
    "immediate": ("true", True),
    "tcp_keepalive": ("1", 1),
    "tcp_keepalive_count": ("3", 3),
    "tcp_keepalive_idle": ("20", 20),
    "tcp_keepalive_interval": ("21", 21),
    "tcp_user_timeout": ("9", 9.0),
    "send_buffer": ("65536", 65536),
    "recv_buffer": ("65536", 65536),
    "backlog": ("12", 12),
    "ipv6": ("true", True),
    "tos": ("16", 16),
    "priority": ("3", 3),
    "bind_device": ("lo", "lo"),
    "busy_poll": ("adaptive", "adaptive"),
    "zap_domain": ("home", "home"),
    "zap_enforce_domain": ("true", True),
}


@pytest.mark.parametrize(("use", "types"), [("read", ("PULL", "SUB")), ("writeStream", ("PUSH", "PUB"))])
def test_every_option_of_a_socket_is_an_option_of_spark_and_in_force(use: str, types: tuple[str, ...]) -> None:
    own = {"columns", "partitions", "topic", "subscribers", "socket", "bind", "connect"}
    named = {name for name in SocketSettings.OPTIONS.known(use) if name.islower() and name not in own}
    assert named <= EVERY.keys()
    tried = set()
    for kind in types:
        usual = {"socket": kind, "connect": "tcp://127.0.0.1:1"} | ({"maxRows": "1"} if use == "read" else {})
        if kind == "SUB":
            usual["subscribe"] = ""
        fitting = {name for name in named if has_option(omq.SocketType(kind), name)}
        for name in fitting:
            text, value = EVERY[name]
            with SocketSettings.parse(use, {**usual, name: text}).open() as sock:
                assert getattr(sock.options, name) == value, name
        tried |= fitting
    assert tried == named


def test_a_read_ends_by_its_bounds_and_by_no_other_name() -> None:
    with pytest.raises(omq.OptionError, match=r"not an option of read: 'recv_timeout'.*maxSeconds"):
        SocketSettings.parse("read", {**PULL, "maxRows": "1", "recv_timeout": "1"})

"""The settings of a member of a cluster: each error names the setting, or the option, and its value."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from omq.broker.config import cluster_of, read_config
from omq.broker.server import AsyncServer
from omq.cli.broker import broker as command
from omq.errors import UsageError
from omq.serving.cluster import Cluster
from omq.store.errors import StoreError
from omq.store.lmdb.store_directory import REPLICA
from omq.store.replication.journal import JournalUnusable
from tests.support.cluster_servers import ClusterServer
from tests.support.memory_journal import JournalThread
from tests.support.websocket_peer import make_certificate

VALID: dict[str, Any] = {"name": "test", "servers": "nats://a:4222"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": ""}, "name=''"),
        ({"name": "a.b"}, "name='a.b'"),
        ({"name": None}, "name=None"),
        ({"node": "x y"}, "node='x y'"),
        ({"node": ""}, "node=''"),
        ({"servers": ()}, "servers: is empty"),
        ({"servers": "a:4222"}, "servers='a:4222'"),
        ({"servers": ["nats://a", "http://b"]}, "servers='http://b'"),
        ({"servers": "nats://a:port"}, "servers='nats://a:port'"),
        ({"servers": [7]}, "servers='7'"),
        ({"servers": "http://user:secret@b"}, "servers='b'"),
        ({"advertise": "tcp://*:5555"}, "advertise='tcp://*:5555'"),
        ({"advertise": ["tcp://a:5555", "tcp://0.0.0.0:5555"]}, "advertise='tcp://0.0.0.0:5555'"),
        ({"advertise": "tcp://a:*"}, "advertise='tcp://a:*'"),
        ({"advertise": "a"}, "advertise='a'"),
        ({"advertise": "http://a:5555"}, "advertise='http://a:5555'"),
        ({"advertise": "tcp://a:99999"}, "advertise='tcp://a:99999'"),
        ({"advertise": 5}, "advertise=5"),
        ({"servers": 5}, "servers=5"),
        ({"servers": None}, "servers: is empty"),
        ({"credentials": Path("/no/such.creds")}, "credentials='/no/such.creds'"),
        ({"ca": Path("/no/such.pem")}, "ca='/no/such.pem'"),
        ({"ca": Path(__file__)}, "ca="),
        ({"tls": True}, "tls=True: must be an ssl.SSLContext"),
        ({"lease": 0.1}, "lease=0.1"),
        ({"lease": float("nan")}, "lease=nan"),
        ({"lease": "3"}, "lease='3'"),
        ({"lease": True}, "lease=True"),
        ({"replicas": 2}, "replicas=2"),
        ({"replicas": True}, "replicas=True"),
        ({"servers_sync": "yes"}, "servers_sync='yes'"),
        ({"snapshot_bytes": 1000}, "snapshot_bytes=1000"),
        ({"snapshot_bytes": 0}, "snapshot_bytes=0"),
        ({"snapshot_bytes": 1e9}, "snapshot_bytes=1000000000.0"),
        ({"snapshot_bytes": True}, "snapshot_bytes=True"),
        ({"snapshot_bytes": "256MB"}, "snapshot_bytes='256MB'"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        Cluster(**{**VALID, **changes})
    assert str(raised.value).startswith(text)
    assert raised.value.argument == next(iter(changes))
    assert "secret" not in str(raised.value)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(Cluster(name="test", servers="nats://user:secret@a", password="secret", token="secret"))


def test_endpoints() -> None:
    bound = ["tcp://127.0.0.1:5555", "ipc:///tmp/broker"]
    assert Cluster(**VALID).endpoints(bound) == tuple(bound)
    assert Cluster(**VALID, advertise="tcp://broker:5555").endpoints(["tcp://0.0.0.0:5555"]) == ("tcp://broker:5555",)
    for everywhere in ("tcp://0.0.0.0:5555", "tcp://[::]:5555", "tcp://*:5555"):
        with pytest.raises(UsageError, match="advertise: is missing: tcp://"):
            Cluster(**VALID).endpoints([everywhere])


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ("", ["--cluster", "test"], "--replicated: is missing"),
        ("", ["--replicated", "nats://a"], "--cluster: is missing"),
        ("", ["--replicated", "http://a", "--cluster", "test"], "--replicated='http://a'"),
        ("", ["--replicated", "nats://a,", "--cluster", "test"], "--replicated=''"),
        ("", ["--replicated", "nats://a", "--cluster", "a.b"], "--cluster='a.b'"),
        ("", ["--replicated", "nats://a", "--cluster", "test", "--node", "x y"], "--node='x y'"),
        ("", ["--replicated", "nats://a", "--cluster", "test", "--advertise", "tcp://*:1"], "--advertise='tcp://*:1'"),
        ("", ["--replicated", "nats://a", "--cluster", "test", "--bind", "tcp://0.0.0.0:*"], "--advertise: is missing"),
        (
            "",
            ["--replicated", "nats://a", "--cluster", "test", "--topic", "t:broadcast:strong"],
            "state that all have it by --servers-sync (servers_sync = true in [cluster])",
        ),
        ("[cluster]\nname = 'test'\nservers = 'nats://a'\nlease = 0\n", [], "broker.toml: [cluster]: lease=0"),
        (
            "[cluster]\nlease = 0\n",
            ["--replicated", "nats://a", "--cluster", "test"],
            "broker.toml: [cluster]: lease=0",
        ),
        (
            "[cluster]\nsnapshot_bytes = 0\n",
            ["--replicated", "nats://a", "--cluster", "test"],
            "broker.toml: [cluster]: snapshot_bytes=0",
        ),
        ("[cluster]\nnodes = 3\n", [], "broker.toml: nodes = 3: is not a key of [cluster]"),
        ("[cluster]\ncredentials = 3\n", [], "broker.toml: [cluster]: credentials = 3"),
        ("cluster = 'test'\n", [], 'broker.toml: cluster = "test": must be a table'),
    ],
)
def test_wrong_options(tmp_path: Path, content: str, options: list[str], text: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(content)
    result = CliRunner().invoke(command, [str(tmp_path / "data"), "--config", str(path), *options])
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.output.split())


def test_a_cluster_needs_a_directory() -> None:
    result = CliRunner().invoke(command, ["--memory", "--replicated", "nats://a", "--cluster", "test"])
    assert result.exit_code == 2
    assert "--memory" in result.output
    with pytest.raises(UsageError, match="memory=True: a member of a cluster needs a directory"):
        AsyncServer(memory=True, cluster=Cluster(**VALID))
    with pytest.raises(UsageError, match="bind: is empty"):
        AsyncServer("data", bind=None, sexp="tcp://127.0.0.1:*", cluster=Cluster(**VALID))


def test_a_file_has_all_settings(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    (tmp_path / "c.creds").touch()
    path.write_text(
        "[cluster]\nname = 'test'\nservers = ['nats://a', 'nats://b']\nnode = 'x'\nadvertise = 'tcp://a:1'\n"
        "servers_sync = true\nlease = 5\nreplicas = 5\nuser = 'u'\npassword = 'p'\ncredentials = 'c.creds'\n"
        f"domain = 'd'\ntoken = 't'\nsnapshot_bytes = 2000000\nca = '{make_certificate(tmp_path).name}'\n"
    )
    assert cluster_of(read_config(path).cluster) == Cluster(
        name="test",
        servers=["nats://a", "nats://b"],
        node="x",
        advertise="tcp://a:1",
        servers_sync=True,
        lease=5,
        replicas=5,
        user="u",
        password="p",
        credentials=tmp_path / "c.creds",
        ca=tmp_path / "both.pem",
        domain="d",
        token="t",
        snapshot_bytes=2_000_000,
    )


def test_a_journal_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        journal = JournalThread()
        node = ClusterServer(journal, tmp_path, "b0", {})

        async def unusable() -> Any:
            raise JournalUnusable("the NATS servers run without JetStream")

        node._connect = unusable  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="without JetStream"):
            await node.server.start()
        journal.close()

    asyncio.run(run())


def test_the_directory_of_another_cluster_is_refused_by_name(tmp_path: Path) -> None:
    async def run(name: str) -> None:
        journal = JournalThread()
        try:
            async with ClusterServer(journal, tmp_path, "b0", {"cluster": Cluster(**{**VALID, "name": name})}).server:
                pass
        finally:
            journal.close()

    asyncio.run(run("orders"))
    with pytest.raises(StoreError, match=r"/b0 is a replica of the cluster 'orders', not of 'billing': give another"):
        asyncio.run(run("billing"))
    path = tmp_path / "b0" / "format"
    row = json.loads(path.read_bytes())
    path.write_text(
        json.dumps({key: value for key, value in row.items() if key != "cluster"})
    )  # as an older omq has left it
    asyncio.run(run("orders"))
    assert json.loads(path.read_bytes()) == row

    async def alone(directory: Path) -> None:
        async with AsyncServer(directory):
            pass

    for directory in (tmp_path / "b0", tmp_path / "b0" / REPLICA):
        with pytest.raises(StoreError, match="is a replica of the cluster 'orders', and can only be opened as that"):
            asyncio.run(alone(directory))
    path.unlink()
    with pytest.raises(StoreError, match=r"/b0/replica is a replica of the cluster 'orders', not of 'billing': give"):
        asyncio.run(run("billing"))


def test_a_node_keeps_its_id(tmp_path: Path) -> None:
    async def run(node: str | None) -> str:
        journal = JournalThread()
        one = ClusterServer(journal, tmp_path, "b0", {"cluster": Cluster(**VALID, node=node)})
        async with one.server:
            member = one.server._member
            assert member is not None
            found = member.node
        journal.close()
        return found

    first = asyncio.run(run(None))
    assert len(first) == 16
    assert asyncio.run(run(None)) == first
    assert asyncio.run(run("given")) == "given"
    (tmp_path / "b0" / "node").write_text("not valid\n")
    with pytest.raises(UsageError, match=r"node: .*/b0/node has 'not valid', which is not a valid id"):
        asyncio.run(run(None))

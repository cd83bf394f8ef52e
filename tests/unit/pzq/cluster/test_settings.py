"""The cluster settings of a device."""

from __future__ import annotations

from typing import Any

import pytest

from omq.errors import UsageError
from omq.pzq.cluster import settings

USUAL: dict[str, Any] = {
    "receive": "tcp://127.0.0.1:1",
    "broadcast": "tcp://127.0.0.1:3",
    "nodes": ["tcp://127.0.0.2:1", "tcp://10.9.8.7:1"],
    "replicas": 1,
    "timeout_nodes": 10_000_000,
    "timeout_replication": 100_000,
    "allow_replicas_from": ["10.1.0.0/16"],
}


def test_a_peers_name_is_its_host_with_our_broadcast_port() -> None:
    found = settings.read_settings(**USUAL)
    assert found is not None
    assert found.name == "tcp://127.0.0.1:3"
    assert found.peers == {"tcp://127.0.0.2:3": "tcp://127.0.0.2:1", "tcp://10.9.8.7:3": "tcp://10.9.8.7:1"}
    assert (found.timeout, found.replication_timeout) == (10.0, 0.1)


@pytest.mark.parametrize(
    ("remote", "admitted"),
    [
        ("tcp://127.0.0.1:55", True),
        ("tcp://10.9.8.7:1", True),
        ("tcp://[::ffff:10.9.8.7]:1", True),
        ("tcp://10.1.2.3:5", True),
        ("tcp://10.9.8.8:1", False),
        ("tcp://[2001:db8::1]:1", False),
        ("", False),
    ],
)
def test_who_may_speak_as_a_node(remote: str, admitted: bool) -> None:
    found = settings.read_settings(**USUAL)
    assert found is not None
    assert found.admits(remote) is admitted


def test_a_device_alone_belongs_to_no_cluster() -> None:
    alone = {**USUAL, "nodes": [], "replicas": 0, "broadcast": None, "allow_replicas_from": []}
    assert settings.read_settings(**alone) is None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"nodes": ["tcp://127.0.0.1:1"]}, "nodes='tcp://127.0.0.1:1': is this node itself"),
        ({"nodes": ["tcp://127.0.0.2:1"] * 2}, "nodes='tcp://127.0.0.2:1': is listed twice"),
        ({"nodes": ["tcp://no-such-host.invalid:1"]}, "nodes='tcp://no-such-host.invalid:1': the host is not known"),
        ({"nodes": ["127.0.0.2"]}, "nodes='127.0.0.2': must be an endpoint"),
        ({"nodes": [""]}, "nodes='': must be an endpoint"),
        ({"nodes": ["tcp://127.0.0.2:70000"]}, "nodes='tcp://127.0.0.2:70000': must be an endpoint"),
        ({"replicas": 3}, "replicas=3: there are only 2 other nodes"),
        ({"nodes": []}, "replicas=1: no other nodes can keep them"),
        ({"nodes": [], "replicas": 0}, r"broadcast='tcp://127.0.0.1:3': needs nodes \(--nodes\)"),
        ({"broadcast": None}, "broadcast is missing: the nodes tcp://127.0.0.2:1,tcp://10.9.8.7:1"),
        ({"broadcast": "tcp://*:3"}, "broadcast='tcp://*:3': must name the host"),
        ({"replicas": -1}, "replicas=-1: must be a whole number"),
        ({"timeout_nodes": 0}, "timeout_nodes=0: must be a whole number"),
        ({"timeout_replication": 1.5}, "timeout_replication=1.5: must be a whole number"),
        ({"allow_replicas_from": ["somewhere"]}, "allow_replicas_from='somewhere': must be an address"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_value(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error.replace("*", r"\*")):
        settings.read_settings(**{**USUAL, **changes})

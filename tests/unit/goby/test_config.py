"""Configurations of gobyd: text protobuf, and TOML of the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omq.errors import UsageError
from omq.goby import Daemon
from omq.goby.config import read_gobyd, read_toml

TEXT = """
app { name: "gobyd_2" glog_config { tty_verbosity: DEBUG1 file_log { file_dir: "/tmp" } } }
router_threads: 4
interprocess { platform: "auv" transport: TCP tcp_port: 4000 send_queue_size: 7 receive_queue_size: 9 }
hold { required_client: "nav" required_client: "log" }
"""
TOML = """
router_threads = 4
[app]
name = "gobyd_2"
[app.glog_config]
tty_verbosity = "DEBUG1"
file_log = { file_dir = "/tmp" }
[interprocess]
platform = "auv"
transport = "TCP"
tcp_port = 4000
send_queue_size = 7
receive_queue_size = 9
[hold]
required_client = ["nav", "log"]
"""


@pytest.mark.parametrize(("name", "text"), [("gobyd.pb.cfg", TEXT), ("gobyd.toml", TOML)])
def test_both_agree(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    config = read_gobyd(tmp_path / name)
    assert config.app.name == "gobyd_2"
    assert config.router_threads == 4
    assert list(config.hold.required_client) == ["nav", "log"]
    daemon = Daemon(config=tmp_path / name, platform="usv", required_clients=["view", "nav"])
    assert (daemon.bus.platform, daemon.bus.transport, daemon.bus.port, daemon.name) == ("usv", "tcp", 4000, "gobyd_2")
    assert daemon.missing == ["nav", "log", "view", "gobyd_2"]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.cfg", "interprocess { platfrm: 'x' }", "platfrm"),
        ("a.cfg", "interprocess { transport: PGM }", "PGM"),
        ("a.cfg", "intervehicle { }", "intervehicle"),
        ("a.cfg", "hold {", "1:"),
        ("a.toml", "[interprocess]\nplatfrm = 1", "platfrm"),
        ("a.toml", "[interprocess]\ntcp_port = -1", "tcp_port"),
        ("a.toml", "[interprocess", "not valid TOML"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, name: str, text: str, named: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=named) as caught:
        read_gobyd(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_required_client_is_one_name_or_several(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text('hold { required_client: "log" }')
    assert Daemon(required_clients="nav").missing == ["nav", "gobyd"]
    assert Daemon(required_clients=("nav", "log", "nav"), config=tmp_path / "a.cfg").missing == ["log", "nav", "gobyd"]


@pytest.mark.parametrize("given", [b"nav", [b"nav"], None, 5, "", [""], ["nav", "\ud800"]])
def test_a_name_that_no_client_can_have_is_not_required(given: Any) -> None:
    with pytest.raises(UsageError, match=r"^required_clients=.*: (must be|cannot be)"):
        Daemon(required_clients=given)


def test_a_required_client_of_a_file_is_named_as_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[hold]\nrequired_client = "nav"')
    with pytest.raises(UsageError, match=r"a\.toml: .*required_client.* nav "):
        Daemon(config=tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text('[hold]\nrequired_client = [""]')
    with pytest.raises(UsageError, match=r"^hold\.required_client=''"):
        Daemon(config=tmp_path / "a.toml")


@pytest.mark.parametrize("given", [{"config": {}}, {"config": 5}, {"health_interval": "5"}, {"health_interval": True}])
def test_an_argument_of_another_type_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(given))}="):
        Daemon(**given)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing"):
        read_toml(tmp_path / "nothing.toml")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="latin"):
        read_gobyd(tmp_path / "latin")

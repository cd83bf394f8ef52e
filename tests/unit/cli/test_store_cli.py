"""`omq store`: reports about a directory."""

import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from omq._core import blocks
from omq.cli.main import main
from omq.store.interface import Append, DeleteTopic, Trim
from tests.support.open_store import Opened


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, words)], catch_exceptions=False)


def broker(*words: object) -> Result:
    return CliRunner().invoke(main, ["broker", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    with Opened.on_disk(directory) as log:
        prices = log.make("prices", max_bytes=10**6)
        log.append(prices, *[b"price %d" % i for i in range(10)])
        log.do(Append(prices, blocks.encode_record(b"\xff", b"k", {"h": b"v"}), 1))
        log.do(Trim(prices, 3))
        log.append(log.make("weak", "round_robin", "weak"), b"job")
        log.make("gone", persistence="transient")
    return directory


def test_a_good_store_is_well(directory: Path) -> None:
    result = run("verify", directory)
    assert result.exit_code == 0
    assert "prices: 9 messages" in result.output
    assert "weak: 1 messages" in result.output


def test_damage_is_reported(directory: Path) -> None:
    path = directory / "strong" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"price 4", b"PRICE 4"))
    result = run("verify", directory)
    assert result.exit_code == 1
    assert "ids 5 to 5 of topic 1 are damaged" in result.output
    result = run("dump", directory, "--topic", "prices")
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [3, 4, 6, 7, 8, 9, 10, 11]


def test_a_dump_has_everything(directory: Path) -> None:
    rows = [json.loads(line) for line in run("dump", directory).stdout.splitlines()]
    assert [(row["topic"], row["id"]) for row in rows] == [*(("prices", id) for id in range(3, 12)), ("weak", 1)]
    assert rows[0]["body"] == "price 2"
    assert rows[8]["body_base64"] == "/w=="
    assert rows[8]["key"] == "k"
    assert rows[8]["headers"] == {"h": "v"}
    some = run("dump", directory, "--topic", "prices", "--start", 5, "--stop", 7).stdout.splitlines()
    assert [json.loads(line)["id"] for line in some] == [5, 6]


def test_statistics_are_shown(directory: Path) -> None:
    assert "prices: broadcast, strong, ids 3 to 11" in run("stats", directory).output
    assert "weak: round-robin, weak, ids 1 to 1" in run("stats", directory).output
    row = json.loads(run("stats", directory, "--json").output)
    assert row["orderly"]
    assert [topic["delivery"] for topic in row["topics"]] == ["broadcast", "round-robin", "broadcast"]
    assert [topic["name"] for topic in row["topics"]] == ["prices", "weak", "gone"]
    assert row["files"]["strong"]["used_bytes"] > 0


@pytest.mark.parametrize("command", ["verify", "dump", "stats"])
def test_a_store_that_cannot_be_opened_is_reported(directory: Path, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nothing")
    assert result.exit_code == 1
    assert "there is no store here" in result.output
    assert not (tmp_path / "nothing").exists()
    with Opened.on_disk(directory):
        result = run(command, directory)
        assert result.exit_code == 1
        assert "in use by process" in result.output
    path = directory / "strong" / "data.mdb"
    path.write_bytes(path.read_bytes()[:10000])
    result = run(command, directory)
    assert result.exit_code == 1
    assert "its end is missing" in result.output


@pytest.mark.parametrize("command", ["verify", "dump", "stats", "compact"])
def test_an_error_of_the_system_is_a_line(directory: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("omq.store.lmdb.store_directory.os.open", refuse)  # as of the lock of another user's broker
    result = run(command, directory)
    assert (result.exit_code, result.output) == (1, f"Error: {directory / 'lock'}: Permission denied\n")
    monkeypatch.undo()
    result = run(command, directory / ("x" * 300))
    assert result.exit_code == 1
    assert result.output.endswith(": File name too long\n")


def test_looking_changes_nothing(directory: Path) -> None:
    def state() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}

    before = state()
    for command in ("verify", "dump", "stats"):
        assert run(command, directory).exit_code == 0
    assert state() == before


def test_an_unknown_topic_is_reported(directory: Path) -> None:
    result = run("dump", directory, "--topic", "nothing")
    assert result.exit_code == 1
    assert "no topic 'nothing'" in result.output


def test_a_store_is_compacted(directory: Path) -> None:
    with Opened.on_disk(directory) as log:
        dropped = log.make("dropped")
        log.append(dropped, bytes(3_000_000))
        log.do(DeleteTopic(dropped))
        log.append(log.make("last"), b"")
    result = run("compact", directory)
    assert result.exit_code == 0, result.output
    strong, weak = (line.split() for line in result.output.splitlines())
    assert (strong[0], weak[0]) == ("strong:", "weak:")
    assert int(strong[1]) > 3_000_000 > 100_000 > int(strong[4])
    assert run("verify", directory).exit_code == 0
    with Opened.on_disk(directory):
        result = run("compact", directory)
        assert result.exit_code == 1
        assert "in use by process" in result.output


def test_statistics_tell_used_from_free_bytes(directory: Path) -> None:
    with Opened.on_disk(directory) as log:
        dropped = log.make("dropped")
        log.append(dropped, bytes(3_000_000))
        log.do(DeleteTopic(dropped))
        log.append(log.make("last"), b"")
    strong = json.loads(run("stats", directory, "--json").output)["files"]["strong"]
    assert strong["file_bytes"] > 3_000_000 > 100_000 > strong["used_bytes"]


def test_a_snapshot_and_a_restored_store_are_recognized(directory: Path, tmp_path: Path) -> None:
    id = json.loads(run("stats", directory, "--json").output)["id"]
    assert broker("snapshot", directory, tmp_path / "snapshot").exit_code == 0
    row = json.loads(run("stats", tmp_path / "snapshot", "--json").output)
    assert (row["id"], row["origin"]) == (id, {})
    assert f"snapshot of store {id}, taken at {row['snapshot']}" in run("stats", tmp_path / "snapshot").output
    assert broker("restore", tmp_path / "snapshot", tmp_path / "restored").exit_code == 0
    restored = json.loads(run("stats", tmp_path / "restored", "--json").output)
    assert restored["origin"] == {"store": id, "time": row["snapshot"]}
    assert restored["id"] != id
    assert f"restored from a snapshot of store {id}" in run("stats", tmp_path / "restored").output

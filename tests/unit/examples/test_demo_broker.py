"""The verdict and the table of `demo_broker.py`; no broker is started here."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from demo_broker import Demo, DemoResult, demo_broker, table
from file_blocks import FileSet
from topic_publisher import FeedPublisher
from topic_subscriber import ReplayProcess


def outcome(**changes: Any) -> DemoResult:
    """A thousand messages in two seconds, one of them without a broker; and what is to be otherwise."""
    feed = FeedPublisher(FileSet(1024), "files", 2.0, 10**9)
    feed.published = feed.acknowledged = 1000
    feed.size, feed.seconds, feed.digest = 1_024_000, 2.0, "same"
    replay = ReplayProcess("files", b"end")
    replay.received, replay.size, replay.seconds, replay.digest, replay.done = 1000, 1_024_000, 1.5, "same", True
    for name, value in changes.items():
        side, _, attribute = name.partition("_")
        setattr({"feed": feed, "replay": replay}[side], attribute, value)
    return DemoResult(feed, replay, away=1.0)


def drawn(result: DemoResult) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(table(result))
    console.file.close()
    return console.export_text()


def test_all_is_well() -> None:
    result = outcome()
    assert (result.failed, result.lost) == (False, 0)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in drawn(result).splitlines() if "│" in line]
    assert rows == [
        ["published", "1,000", "1.0", "", ""],
        ["acknowledged", "1,000", "1.0", "1.00", "1,000"],
        ["received", "1,000", "1.0", "0.50", "2,000"],
        ["lost", "0", "", "", ""],
        ["came twice", "0", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"replay_received": 990, "replay_digest": "other"}, 10),
        ({"replay_received": 1001, "replay_repeated": 1}, 0),
        ({"replay_received": 1001, "replay_repeated": 2}, 1),
        ({"replay_missing": 3}, 0),
        ({"replay_digest": "other"}, 0),
        ({"replay_digest": ""}, 0),
        ({"feed_disordered": 1}, 0),
        ({"feed_acknowledged": 999}, 0),
    ],
)
def test_a_broken_promise_is_seen(changes: dict[str, Any], lost: int) -> None:
    result = outcome(**changes)
    assert result.failed
    assert result.lost == lost


def test_a_broken_promise_fails_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for result, status in ((outcome(), 0), (outcome(replay_received=1), 1)):
        monkeypatch.setattr(Demo, "run", lambda self, result=result: result)
        done = CliRunner().invoke(demo_broker, ["--dir", str(tmp_path)])
        assert done.exit_code == status, done.output

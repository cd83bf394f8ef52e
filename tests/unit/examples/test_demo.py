"""The arithmetic of `demo.py`, its table, and its errors; nothing is streamed here."""

import hashlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from click.testing import CliRunner, Result

import demo as demo_module
from child_processes import ChildError
from demo import LibraryResult
from file_blocks import FileSet, read_file_set
from hash_processes import CLOCK, DIGEST, FEED_DIGESTS, FEED_START, FEED_UNREAD, NUMBER, PROGRESS
from hash_rounds import ProcessGroup, Round


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def file_set_of(root: Path) -> FileSet:
    return read_file_set(root, block=1024, limit=10**9, seconds=60.0)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(demo_module.demo, [str(argument) for argument in arguments])


def play(file_set: FileSet, *, spoil: int | None = None, repeat: int = 0) -> Round:
    """A round in which everything arrived after half a second, but for what is asked to be spoilt."""
    result = Round()
    result.note(FEED_START, [CLOCK.pack(100.0)])
    digests = [*file_set.digests]
    if spoil is not None:
        digests[spoil] = digest(b"something else")
    records = [DIGEST.pack(*record) for record in enumerate(digests)]
    records += records[:repeat]
    result.note(FEED_DIGESTS, [PROGRESS.pack(1, 100.5, file_set.size), b"".join(records)])
    return result


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 2000)
    return tmp_path


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the streaming by rounds of `play`."""

    def arrange(**spoil: int) -> None:
        async def run_round(name: str, file_set: FileSet, show: Callable[[Round], None]) -> Round:
            result = play(file_set, **spoil)
            show(result)
            return result

        monkeypatch.setattr(demo_module, "run_round", run_round)

    return arrange


def test_a_round_adds_up_its_news() -> None:
    result = Round()
    result.note(FEED_START, [CLOCK.pack(10.0)])
    result.note(FEED_DIGESTS, [PROGRESS.pack(0, 12.0, 7), DIGEST.pack(0, digest(b"a")) + DIGEST.pack(1, digest(b"b"))])
    result.note(FEED_DIGESTS, [PROGRESS.pack(1, 11.0, 5), DIGEST.pack(2, digest(b"c"))])
    result.note(FEED_UNREAD, [NUMBER.pack(3)])
    assert result.digests == {0: digest(b"a"), 1: digest(b"b"), 2: digest(b"c")}
    assert (result.size, result.shares, result.unread, result.blocks) == (12, [2, 1], {3}, 4)
    assert result.seconds == 2.0
    assert result.repeated == 0


def test_a_block_that_comes_twice_is_noticed() -> None:
    result = Round()
    record = DIGEST.pack(0, digest(b"a"))
    result.note(FEED_DIGESTS, [PROGRESS.pack(0, 1.0, 1), record])
    result.note(FEED_DIGESTS, [PROGRESS.pack(1, 1.0, 1), record])
    assert result.repeated == 1


def test_a_score_fails_by_a_wrong_digest_and_by_a_repeated_block(tree: Path) -> None:
    file_set = file_set_of(tree)
    good, wrong, twice = LibraryResult("omq"), LibraryResult("omq"), LibraryResult("omq")
    good.add(play(file_set), file_set)
    wrong.add(play(file_set, spoil=2), file_set)
    twice.add(play(file_set, repeat=1), file_set)
    assert [score.failed for score in (good, wrong, twice)] == [False, True, True]
    assert "1 DIFFER" in wrong.cells(file_set)[-1]
    assert "1 came twice" in twice.cells(file_set)[-1]


def test_a_file_that_changes_meanwhile_is_no_failure(tree: Path) -> None:
    file_set = file_set_of(tree)
    (tree / "a").write_bytes(b"z" * 2000)
    score = LibraryResult("omq")
    score.add(play(file_set_of(tree)), file_set)
    assert not score.failed
    assert "2 changed" in score.cells(file_set)[-1]


def test_the_column_has_medians_and_rates(tree: Path) -> None:
    file_set = file_set_of(tree)
    score = LibraryResult("omq")
    for end in (100.25, 101.0, 100.5):
        result = play(file_set)
        result.end = end
        score.add(result, file_set)
    assert score.cells(file_set) == ["3", "6,000", "6", "0.500", "12", "0", "all match the disk"]


def test_a_good_run_prints_a_table_and_succeeds(tree: Path, played: Callable[..., None]) -> None:
    played()
    result = invoke("--dir", tree, "--rounds", "2")
    assert result.exit_code == 0, result.output
    assert "3 files, 0.0 MB" in result.output
    assert "omq, round 2 of 2: 0 + 3 messages in 0.500 s" in result.output
    assert "all match the disk" in result.output
    assert "omq does 1.00 times what pyzmq does in the same time" in result.output


@pytest.mark.parametrize("spoil", [{"spoil": 0}, {"repeat": 1}])
def test_a_bad_digest_fails_the_command(tree: Path, played: Callable[..., None], spoil: dict[str, int]) -> None:
    played(**spoil)
    result = invoke("--dir", tree, "--rounds", "1")
    assert result.exit_code == 1
    assert "what arrived is not what was sent" in result.output


def test_without_pyzmq_its_column_names_how_to_get_it(
    tree: Path, played: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    played()
    monkeypatch.setattr(demo_module, "installed", lambda name: name == "omq")
    result = invoke("--dir", tree, "--rounds", "1")
    assert result.exit_code == 0, result.output
    assert "pip install pyzmq" in " ".join(result.output.split())
    assert "pyzmq, round" not in result.output


def test_ctrl_c_has_its_exit_code(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(name: str, file_set: FileSet, show: Callable[[Round], None]) -> Round:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "run_round", interrupted)
    result = invoke("--dir", tree)
    assert result.exit_code == 130
    assert "interrupted" in result.output


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    result = invoke("--dir", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_a_file_is_no_directory(tree: Path) -> None:
    result = invoke("--dir", tree / "a")
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_an_empty_directory_is_reported_with_what_was_skipped(tmp_path: Path) -> None:
    result = invoke("--dir", tmp_path)
    assert result.exit_code == 1
    assert "has no readable file" in result.output
    (tmp_path / "link").symlink_to("nothing")
    assert "(skipped: 1 links)" in " ".join(invoke("--dir", tmp_path).output.split())


def test_help() -> None:
    assert "--dir" in invoke("-h").output


def test_a_lost_process_is_reported_and_none_stays() -> None:
    def children() -> set[int]:
        return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))

    before = children()
    with ProcessGroup() as group:
        for worker in range(2):
            group.start("worker", library="pyzmq", feed="tcp://127.0.0.1:9", endpoint="", worker=worker)
        started = children() - before
        assert len(started) == 2
        os.kill(min(started), signal.SIGKILL)
        with pytest.raises(ChildError, match="the worker process ended early, with code -9"):
            uvloop.run(group.watch())
    assert not started & children()

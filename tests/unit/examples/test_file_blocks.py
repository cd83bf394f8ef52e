"""The blocks of the demos: the files of a directory, and the check of those that came back."""

import hashlib
import os
from collections import Counter
from pathlib import Path

import pytest

import file_blocks
from file_blocks import File, FileSet, read_blocks, read_file_set, recheck, spans, standard_library


def file_set_of(root: Path, *, block: int = 4, limit: int = 10**9, seconds: float = 60.0) -> FileSet:
    return read_file_set(root, block=block, limit=limit, seconds=seconds)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, [(0, 0)]),
        (1, [(0, 1)]),
        (4, [(0, 4)]),
        (5, [(0, 4), (4, 1)]),
        (8, [(0, 4), (4, 4)]),
    ],
)
def test_spans_cover_a_file_without_gap(size: int, expected: list[tuple[int, int]]) -> None:
    assert list(spans(size, 4)) == expected


def test_every_block_has_its_digest_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"0123456789")
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d").write_bytes(b"xyz")
    file_set = file_set_of(tmp_path)
    assert [(Path(file.path).name, file.size) for file in file_set.files] == [("a", 0), ("b", 10), ("d", 3)]
    assert file_set.digests == [hashlib.sha256(part).digest() for part in (b"", b"0123", b"4567", b"89", b"xyz")]
    assert file_set.size == 13
    assert file_set.skipped == Counter()
    assert file_set.cut == ""


def test_links_pipes_and_what_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "to-nothing").symlink_to("nothing")
    (tmp_path / "round-and-round").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    genuine = os.open

    def refuse(path: str, *rest: int) -> int:
        if path.endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return genuine(path, *rest)

    monkeypatch.setattr(file_blocks.os, "open", refuse)
    file_set = file_set_of(tmp_path)
    assert [Path(file.path).name for file in file_set.files] == ["file"]
    assert file_set.skipped == {"links": 4, "special files": 1, "unreadable": 1}


def test_a_directory_that_cannot_be_listed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").write_bytes(b"abc")
    (tmp_path / "closed").mkdir()
    genuine = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return genuine(path)

    monkeypatch.setattr(file_blocks.os, "scandir", refuse)
    file_set = file_set_of(tmp_path)
    assert len(file_set.files) == 1
    assert file_set.skipped == {"unreadable": 1}


def test_the_limit_cuts_the_last_file(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"0123456789")
    file_set = file_set_of(tmp_path, limit=15)
    assert [file.size for file in file_set.files] == [10, 5]
    assert file_set.digests[-1] == hashlib.sha256(b"4").digest()
    assert "--limit" in file_set.cut


def test_the_time_ends_the_reading(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    file_set = file_set_of(tmp_path, seconds=-1.0)
    assert file_set.files == []
    assert "could be read" in file_set.cut


def test_names_that_are_no_text_take_part(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9", "wb") as file:
        file.write(b"abc")
    assert file_set_of(tmp_path).size == 3


def test_pruned_directories_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "skip").mkdir()
    (tmp_path / "skip" / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"abc")
    file_set = read_file_set(tmp_path, block=4, limit=100, seconds=60.0, prune=frozenset({"skip"}))
    assert [Path(file.path).name for file in file_set.files] == ["b"]


def test_a_file_that_shrank_gives_no_short_block(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"012345")
    assert list(read_blocks(File(str(path), 8), 4)) == [b"0123", None]


def test_a_file_that_is_gone_gives_nothing(tmp_path: Path) -> None:
    assert list(read_blocks(File(str(tmp_path / "gone"), 5), 4)) == [None, None]


def test_a_file_that_became_a_link_or_a_pipe_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert list(read_blocks(File(str(tmp_path / "link"), 3), 4)) == [None]
    assert list(read_blocks(File(str(tmp_path / "pipe"), 3), 4)) == [None]


def test_recheck_distinguishes_a_changed_file_from_a_wrong_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"01234567")
    (tmp_path / "b").write_bytes(b"89")
    file_set = file_set_of(tmp_path)
    (tmp_path / "a").write_bytes(b"0123WXYZ")
    received = {1: hashlib.sha256(b"WXYZ").digest(), 2: hashlib.sha256(b"other").digest(), 99: b""}
    assert recheck(file_set, received) == {2, 99}


def test_the_standard_library_is_a_directory_with_modules() -> None:
    assert (standard_library() / "asyncio" / "__init__.py").is_file()

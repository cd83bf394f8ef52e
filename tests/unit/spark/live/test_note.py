"""What a coordinator leaves for the one that stands in for it."""

import os
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

from omq.spark.live.note import Note

TOLD = {"secret": "00ff", "port": 1234}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"omq-spark-{os.getuid()}"


def test_it_is_read_by_the_next_one_until_it_is_taken_away(folder: Path) -> None:
    note = Note("a")
    assert note.read() == {}
    note.write(TOLD)
    assert Note("a").read() == TOLD
    assert Note("b").read() == {}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["a.json"]
    note.remove()
    assert note.read() == {}
    note.remove()


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"secret": "xy", "port": 1}', '{"secret": "00"}'])
def test_one_that_is_spoilt_is_none(folder: Path, spoilt: str) -> None:
    Note("a").write(TOLD)
    (folder / "a.json").write_text(spoilt)
    assert Note("a").read() == {}


def test_a_folder_that_others_can_read_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    Note("a").write(TOLD)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    Note("a").write(TOLD)
    assert list(folder.iterdir()) == []

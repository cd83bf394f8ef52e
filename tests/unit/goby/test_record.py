"""Recordings: what is written is read, up to the damage."""

from __future__ import annotations

import struct
from errno import ENOSPC
from pathlib import Path

import pytest

from omq.errors import UsageError
from omq.goby import Malformed
from omq.goby.record import MAGIC, Recorder, Recording, frame_of, publication_of

FRAMES = [b"/chat/CSTR/CSTR/26115/e845c3cbd36f7a03/\0msg%d\0" % number for number in range(5)]


def recorded(path: Path) -> Path:
    with Recorder(path) as recorder:
        for number, frame in enumerate(FRAMES):
            recorder.append(frame, 1000 + number)
        assert recorder.count == 5
    return path


def read(path: Path) -> tuple[list[tuple[int, bytes]], str | None]:
    with Recording(path) as recording:
        return list(recording), recording.damage


WHOLE = [(1000 + number, frame) for number, frame in enumerate(FRAMES)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read(recorded(tmp_path / "log")) == (WHOLE, None)


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log")
    recorder.close()
    recorder._path = Path("/dev/full")
    with (
        open("/dev/full", "wb", buffering=0) as recorder._file,  # type: ignore[assignment]
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
    ):
        recorder.append(FRAMES[0], 1)


def test_a_logger_that_is_killed_leaves_whole_records(tmp_path: Path) -> None:
    """Whenever the buffer is written, there is no head in the file without its publication."""
    path = tmp_path / "log"
    written = set()
    with Recorder(path) as recorder:
        for number in range(2000):
            recorder.append(FRAMES[0], number)
            if (size := path.stat().st_size) not in {0, *written}:
                written.add(size)
                assert read(path)[1] is None
    assert len(written) > 2


def test_a_publication_that_no_reader_takes_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omq.goby.record.MAX_PUBLICATION_BYTES", len(FRAMES[0]))
    large = FRAMES[0] + b"x"
    with Recorder(tmp_path / "log") as recorder:
        for frame in (FRAMES[0], large, large, FRAMES[1]):
            recorder.append(frame, 1)
        assert (recorder.count, recorder.too_large) == (2, 2)
    assert read(tmp_path / "log") == ([(1, FRAMES[0]), (1, FRAMES[1])], None)
    assert caplog.text.count(f"a publication has {len(large)} bytes; a recording takes at most {len(large) - 1}") == 1


def test_it_is_a_recording_from_the_beginning(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log"):
        assert read(tmp_path / "log") == ([], None)


def test_publications_are_the_same_again() -> None:
    publication = publication_of(FRAMES[0])
    assert publication == ("chat", "CSTR", "CSTR", b"msg0\0")
    assert frame_of(publication) == FRAMES[0]
    with pytest.raises(Malformed):
        publication_of(b"/chat/CSTR/")


def test_every_cut_leaves_the_records_before_it(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "log").read_bytes()
    one = 16 + len(FRAMES[0])
    for size in range(len(MAGIC), len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        found, damage = read(tmp_path / "cut")
        good, rest = divmod(size - len(MAGIC), one)
        assert found == WHOLE[:good]
        assert (damage is not None) == (rest != 0)


def test_a_byte_that_changes_ends_it_there(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "log").read_bytes()
    one = 16 + len(FRAMES[0])
    for place in range(len(MAGIC), len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0x41
        (tmp_path / "spoilt").write_bytes(spoilt)
        found, damage = read(tmp_path / "spoilt")
        assert found == WHOLE[: (place - len(MAGIC)) // one]
        assert damage is not None


def test_a_damaged_end_is_set_aside_and_gone_on_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = recorded(tmp_path / "log")
    torn = struct.pack("<IIQ", 99, 0, 0) + b"half"
    with path.open("ab") as file:
        file.write(torn)
    with Recorder(path) as recorder:
        recorder.append(FRAMES[0], 2000)
    assert f"moved to {path}.damaged" in caplog.text
    assert read(path) == ([*WHOLE, (2000, FRAMES[0])], None)
    assert (tmp_path / "log.damaged").read_bytes() == torn


def test_what_is_good_behind_damage_is_not_lost(tmp_path: Path) -> None:
    path = recorded(tmp_path / "log")
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    spoilt[len(MAGIC) + 20] ^= 0xFF
    path.write_bytes(spoilt)
    (tmp_path / "log.damaged").write_bytes(b"of another time")
    Recorder(path).close()
    assert read(path) == ([], None)
    assert (tmp_path / "log.damaged").read_bytes() == b"of another time"
    assert (tmp_path / "log.damaged.1").read_bytes() == spoilt[len(MAGIC) :]


def test_one_at_a_time_records_into_a_file(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log") as recorder:
        recorder.append(*reversed(WHOLE[0]))
        with pytest.raises(UsageError, match="another process records into it"):
            Recorder(tmp_path / "log")
        assert (tmp_path / "log").exists()
    with Recorder(tmp_path / "log") as recorder:
        recorder.append(*reversed(WHOLE[1]))
    assert read(tmp_path / "log") == (WHOLE[:2], None)


@pytest.mark.parametrize("content", [b"", b"omq", b"something else\n", b"\x7fELF" + bytes(100)])
def test_what_is_no_recording_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UsageError, match="not a recording"):
        Recording(tmp_path / "file")
    if content:
        with pytest.raises(UsageError, match="not a recording"):
            Recorder(tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content
    else:
        Recorder(tmp_path / "file").close()
        assert read(tmp_path / "file") == ([], None)


def test_what_finds_no_room_aside_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    path = recorded(tmp_path / "log")
    with path.open("ab") as file:
        file.write(b"torn")
    before = path.read_bytes()
    monkeypatch.setattr("omq.goby.record.shutil.copyfileobj", full)
    with pytest.raises(OSError, match=r"moving the damaged part.*log\.damaged"):
        Recorder(path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("log", before)]

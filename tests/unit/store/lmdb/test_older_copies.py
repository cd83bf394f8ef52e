"""No id is assigned twice after the strong environment became older, by a damaged meta page or a restored copy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omq.store.errors import OutOfSpace, StoreFailed
from omq.store.interface import Acknowledge, DeleteTopic, Trim
from omq.store.internal import SkipIds
from omq.store.lmdb import data_file
from omq.store.lmdb.applier import Applier
from omq.store.lmdb.layout import id_ranges
from omq.store.lmdb.opening import SKIPPED_IDS, SKIPPED_TOPIC_IDS
from tests.support.open_store import Opened

KINDS = ("strong", "weak", "async", "transient")


def file_of(directory: Path) -> Path:
    return directory / "strong" / "data.mdb"


def spoil_newest(directory: Path) -> None:
    """Gives the newest meta page an old transaction number, so that LMDB uses the other one."""
    file = file_of(directory)
    one, two = data_file.read_metas(file)[0]
    assert one is not None
    assert two is not None
    data = bytearray(file.read_bytes())
    data[(0 if one.transaction > two.transaction else 4096) + data_file.META_BYTES - 8] = 0
    file.write_bytes(data)


def killed(directory: Path) -> None:
    """Changes the file `session` to its state after a kill."""
    session = json.loads((directory / "session").read_bytes())
    (directory / "session").write_text(json.dumps(session | {"orderly": False, "left": None}))


def is_older(store: Opened) -> bool:
    return any("strong: it is not as it was left" in finding for finding in store.log.findings)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_damaged_meta_page(directory: Path, orderly: bool) -> None:
    with Opened.on_disk(directory) as store:
        topic, jobs = store.make("t"), store.make("jobs", "round_robin")
        store.append(jobs, b"one", b"two")
        store.do(Acknowledge(jobs, [(2, 2)]))
        store.append(topic, b"a", producer=b"p", sequence=1)
        store.append(topic, b"b", b"c", producer=b"p", sequence=2)
    spoil_newest(directory)
    if not orderly:
        killed(directory)
    with Opened.on_disk(directory) as store:
        assert is_older(store)
        again = store.append(topic, b"d", producer=b"p", sequence=2)
        assert again.first == (4 if orderly else SKIPPED_IDS + 4)
        assert not again.duplicate  # the first append with this sequence is lost
        assert store.read_around(topic) == ([(1, b"a"), (again.first, b"d")], [(2, again.first - 1)])
        job = store.append(jobs, b"three").first
        assert job == (3 if orderly else SKIPPED_IDS + 3)
        assert list(store.log.ack_set(jobs).missing(1, job)) == [(1, 1), (job, job)]
    # The consumer got an error and continues from here.
    with Opened.on_disk(directory) as store:
        assert not is_older(store)
        assert store.append(topic, b"e").first == again.first + 1


def test_a_damaged_meta_page_without_saved_ids(directory: Path) -> None:
    """An earlier version has closed the store."""
    with Opened.on_disk(directory) as store:
        topic = store.make("t")
        store.append(topic, b"a")
        store.append(topic, b"b")
    session = json.loads((directory / "session").read_bytes())
    del session["given"], session["checksum"]
    (directory / "session").write_text(json.dumps(session))
    spoil_newest(directory)
    with Opened.on_disk(directory) as store:
        assert store.append(topic, b"c").first > SKIPPED_IDS


def test_a_reader_gets_an_error_for_ids_missing_at_the_end(directory: Path) -> None:
    with Opened.on_disk(directory) as store:
        topic = store.make("t")
        store.append(topic, b"a")
        store.append(topic, b"b", b"c")
    spoil_newest(directory)
    with Opened.on_disk(directory) as store:
        assert store.log.topic(topic).last == 3
        assert store.read_around(topic) == ([(1, b"a")], [(2, 3)])


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restored_older_copy(directory: Path, orderly: bool, again: Callable[..., Opened]) -> None:
    store = again()
    topics = {kind: store.make(kind, persistence=kind) for kind in KINDS}
    last = {kind: store.append(topic, b"a").first for kind, topic in topics.items()}
    store.log.close()
    copy = directory.with_name("copy")
    shutil.copy(file_of(directory), copy)
    store = again()
    for kind, topic in topics.items():
        for _ in range(3):
            last[kind] = store.append(topic, b"b").first
    deleted = store.make("deleted")
    store.do(DeleteTopic(deleted))
    store.log.close()
    shutil.copy(copy, file_of(directory))
    if not orderly:
        killed(directory)
    store = again()
    assert is_older(store)
    for kind, topic in topics.items():
        first = store.append(topic, b"c").first
        assert first > last[kind]
        if orderly and kind in ("strong", "weak"):
            assert first == last[kind] + 1
    made = store.make("made")
    assert made == deleted + 1 + (0 if orderly else SKIPPED_TOPIC_IDS)
    store = again()
    assert not is_older(store)


def test_after_a_kill_there_is_no_finding_about_older_copies(directory: Path, again: Callable[..., Opened]) -> None:
    store = again()
    topics = {kind: store.make(kind, persistence=kind) for kind in KINDS}
    for topic in topics.values():
        store.append(topic, b"a")
    store.do(DeleteTopic(topics.pop("weak")))
    store.log.close()
    killed(directory)
    store = again()
    assert store.log.findings == ["the store was not shut down cleanly"]
    assert store.append(topics["strong"], b"b").first == 2


@pytest.mark.parametrize("delivery", ["broadcast", "round_robin"])
def test_skipped_ids_do_not_count_as_messages(
    directory: Path, again: Callable[..., Opened], delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = again()
    topic = store.make("t", delivery, "async")
    other = store.make("other", persistence="async")
    store.append(topic, b"1", b"2", b"3")
    for number in range(4, 6):
        store.log.close()
        killed(directory)
        store = again()
        first = store.append(topic, b"%d" % number).first
        store.append(other, b"x" * 10)
        store.wait_grown(topic, first)
        state = store.log.topic(topic)
        assert first > 1 << 20
        assert [state.messages(position) for position in (0, 1, 3, first - 1, first)] == [
            number,
            number - 1,
            number - 3,
            1,
            0,
        ]
        assert state.messages(0, first + 5) == number + 5
        assert len(state.jumped) == number - 3
    store = again()
    assert store.log.topic(topic) == state
    store.do(Trim(topic, first))
    state = store.log.topic(topic)
    assert (state.messages(0), len(state.jumped)) == (1, 2), "what is lost is known on"
    assert store.log.findings == []
    monkeypatch.setattr("omq.store.lmdb.applier.MAX_SKIPPED_RANGES", 1)
    first = store.append(topic, b"6").first
    store.do(Trim(topic, first))
    jumped = store.log.topic(topic).jumped
    assert jumped == state.jumped[1:]
    with store.log._weak.read() as reading:
        kept = [(first, last) for _, first, last in id_ranges(reading, b"j" + topic.to_bytes(4, "big"))]
    assert kept == list(jumped)
    store.do(DeleteTopic(other))


def test_nothing_is_written_if_ids_cannot_be_skipped(directory: Path, monkeypatch) -> None:
    with Opened.on_disk(directory) as store:
        topic = store.make("t")
        store.append(topic, b"a")
        store.append(topic, b"b")
    spoil_newest(directory)

    def full(applier: Applier, write: SkipIds) -> None:
        raise OutOfSpace("no space")

    with monkeypatch.context() as short:
        short.setattr(Applier, "_skip_ids", full)
        with Opened.on_disk(directory) as store:
            assert "no space" in str(store.log.broken)
            with pytest.raises(StoreFailed):
                store.append(topic, b"c")
            assert store.read(topic) == [(1, b"a")]
    with Opened.on_disk(directory) as store:
        assert store.append(topic, b"c").first > 2

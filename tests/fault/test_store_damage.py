"""Damaged files of a store: reads return only written records, no process crashes, and damage is reported."""

import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import Acknowledge, Append, CommitStages, DeleteTopic, SetCursor, Stage, Trim
from omq.store.internal import ExpireState
from omq.store.lmdb import data_file
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.layout import topic_key
from omq.store.lmdb.store import LmdbStore
from tests.support.open_store import Opened

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
Truth = dict[str, dict[int, str]]


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """Returns a store with rows of every kind, after a clean shutdown."""
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        directory = Path(path) / "store"
        with Opened.on_disk(directory) as log:
            for kind in ("strong", "weak"):
                topic = log.make(kind, persistence=kind)
                for i in range(12):
                    log.append(
                        topic, *[b"%d %d " % (i, j) + bytes(i * 40) for j in range(9)], producer=b"p", sequence=i + 1
                    )
                log.do(Stage(topic, blocks.encode([b"staged" * 100] * 20), 20, kind.encode()))
                log.do(CommitStages(b"commit" + kind.encode(), [kind.encode()]))
                log.append(topic, *[b"%d" % j + bytes(1000) for j in range(60)])
            jobs = log.make("jobs", "round_robin", "strong")
            log.append(jobs, *[b"job %d" % j for j in range(200)])
            log.do(Acknowledge(jobs, [(1, 20), (30, 40)], 60, {25: 2}))
        yield directory


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


def read_all(directory: Path) -> dict[str, object]:
    """Returns the error of opening a store, or its messages and damaged ranges."""
    try:
        store = LmdbStore(directory, notify=lambda writes: None)
    except DamagedError as error:
        return {"refused": str(error)}
    with store:
        found: dict[str, dict[int, str]] = {}
        damaged: dict[str, list[tuple[int, int]]] = {}
        for state in store.topics():
            start = state.first
            read = found.setdefault(state.name, {})
            for _ in range(1000):
                try:
                    with store.read(state.id) as reader:
                        for header, records in reader.blocks(start):
                            for message in blocks.decode(header, records, state.name):
                                read[message.id] = digest(message.body)
                    break
                except DamagedError as error:
                    damaged.setdefault(state.name, []).append((error.first, error.last))
                    start = error.last + 1
            try:
                store.ack_set(state.id)
                store.cursors(state.id)
            except DamagedError:
                damaged.setdefault(state.name, [])
        return {"found": found, "damaged": damaged, "findings": store.findings}


def in_a_process_of_its_own(directory: Path) -> dict[str, object]:
    """Does the same in a process, and reports its crash."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(read_all(directory), pipe)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"it died: {status}"
    result: dict[str, object] = json.loads(text)
    return result


def compare(result: dict[str, object], truth: Truth, what: str) -> None:
    """Checks a result: everything read was written, and everything missing is reported."""
    if "refused" in result:
        assert "damaged" in str(result["refused"]), what
        return
    for topic_id, (name, every) in enumerate(truth.items(), 1):
        refused = (f"topic {name!r}: ", f"topic {topic_id}, whose name")
        findings: list[str] = result["findings"]  # type: ignore[assignment]
        if any(text.startswith(refused) and "it is refused until the store is restored" in text for text in findings):
            continue
        read = {int(id): body for id, body in result["found"].get(name, {}).items()}  # type: ignore[attr-defined]
        damaged = result["damaged"].get(name, [])  # type: ignore[attr-defined]
        for id, body in read.items():
            assert every.get(id) == body, f"{what}: {name} {id} is not what was written"
        older = f"/{'weak' if name == 'weak' else 'strong'}: it is not as it was left"
        if any(older in text for text in result["findings"]):  # type: ignore[attr-defined]
            continue  # an older state is reported as a whole
        for id in every.keys() - read.keys():
            assert any(first <= id <= last for first, last in damaged), f"{what}: {name} {id} is missing without a word"


@pytest.fixture(scope="module")
def truth(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    copy = tmp_path_factory.mktemp("truth") / "store"
    shutil.copytree(original, copy)
    result = in_a_process_of_its_own(copy)
    assert result["damaged"] == {}
    assert result["findings"] == []
    found: Truth = {name: {int(id): body for id, body in some.items()} for name, some in result["found"].items()}  # type: ignore[attr-defined]
    assert len(found["strong"]) == len(found["weak"]) == 12 * 9 + 20 + 60
    return found


def spoiled(
    original: Path, truth: Truth, name: str, spoil: Callable[[bytearray], bytes], what: str
) -> dict[str, object]:
    """Checks a copy of the store in which one file is damaged."""
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        copy = Path(path) / "store"
        shutil.copytree(original, copy)
        file = copy / name
        file.write_bytes(spoil(bytearray(file.read_bytes())))
        result = in_a_process_of_its_own(copy)
    compare(result, truth, what)
    return result


def flip(offset: int, bit: int) -> Callable[[bytearray], bytes]:
    def change(data: bytearray) -> bytes:
        data[offset] ^= 1 << bit
        return bytes(data)

    return change


def flips(original: Path, truth: Truth, seed: int, number: int) -> None:
    chance = random.Random(seed)
    for name in ("strong/data.mdb", "weak/data.mdb"):
        size = (original / name).stat().st_size
        for _ in range(number):
            # Half of the damage goes to the trees, as most of the file is records.
            offset = chance.randrange(size)
            if chance.random() < 0.5:
                offset = offset // 4096 * 4096 + chance.randrange(200)
            bit = chance.randrange(8)
            spoiled(original, truth, name, flip(offset, bit), f"{name}: bit {bit} of {offset}")


@pytest.mark.slow
def test_flipped_bits_are_found(original: Path, truth: Truth) -> None:
    flips(original, truth, 1, 8)


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_flipped_bits_are_found_many_times(original: Path, truth: Truth, seed: int) -> None:
    flips(original, truth, seed, 200)


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["strong/data.mdb", "weak/data.mdb"])
def test_each_byte_of_the_meta_pages(original: Path, truth: Truth, name: str) -> None:
    for page in (0, 4096):
        for offset in range(160):
            spoiled(original, truth, name, flip(page + offset, offset % 8), f"{name}: {page + offset}")


@pytest.mark.parametrize("orderly", [True, False])
def test_the_state_before_is_not_taken_for_the_newest(original: Path, truth: Truth, orderly: bool) -> None:
    """The newest meta page of the weak environment has an old transaction number."""
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        copy = Path(path) / "store"
        shutil.copytree(original, copy)
        if not orderly:
            session = json.loads((copy / "session").read_bytes())
            (copy / "session").write_text(json.dumps(session | {"orderly": False}))
        file = copy / "weak" / "data.mdb"
        one, two = data_file.read_metas(file)[0]
        assert one is not None
        assert two is not None
        newest = 0 if one.transaction > two.transaction else 4096
        data = bytearray(file.read_bytes())
        data[newest + data_file.META_BYTES - 8] = 0
        file.write_bytes(data)
        result = in_a_process_of_its_own(copy)
    assert any("weak: it is not as it was left" in text for text in result["findings"])  # type: ignore[attr-defined]
    compare(result, truth, "an older transaction")


@pytest.mark.parametrize("name", ["strong/data.mdb", "weak/data.mdb"])
def test_a_file_without_its_end_is_looked_at_before_it_is_mapped(original: Path, truth: Truth, name: str) -> None:
    size = (original / name).stat().st_size
    for left in (1, 100, 4096, 5000, 8192, size // 2, size - 4096, size - 1):
        result = spoiled(original, truth, name, lambda data, left=left: bytes(data[:left]), f"{name}: {left} bytes")
        assert "refused" in result


def test_a_file_that_is_no_store_is_refused(original: Path, truth: Truth) -> None:
    result = spoiled(original, truth, "strong/data.mdb", lambda data: b"text" * 5000, "text")
    assert "meta page" in str(result["refused"])


@pytest.mark.slow
def test_pages_of_zeros_are_found(original: Path, truth: Truth) -> None:
    size = (original / "strong/data.mdb").stat().st_size
    for page in range(0, size, 4096 * 5):

        def blank(data: bytearray, page: int = page) -> bytes:
            data[page : page + 4096] = bytes(4096)
            return bytes(data)

        spoiled(original, truth, "strong/data.mdb", blank, f"page at {page}")


def spoil_rows(directory: Path, name: str, key: bytes) -> None:
    """Flips a bit in every copy of a row's value in the data file."""
    path = directory / name / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.find(key)
    assert at >= 0
    while at >= 0:
        data[at + len(key) + 3] ^= 1
        at = data.find(key, at + 1)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", [b"t", b"n", b"w", b"s", b"r", b"v"])
def test_a_damaged_row_costs_its_topic_alone(tmp_path: Path, kind: bytes) -> None:
    directory = tmp_path / "store"
    with Opened.on_disk(directory) as log:
        log.append(log.make("other"), b"a")
        weak = "weak" if kind == b"v" else "strong"
        jobs = log.make("jobs", "round_robin", weak)
        log.append(jobs, *[b"job"] * 50)
        log.do(Acknowledge(jobs, [(1, 5), (20, 30)], 40, {7: 2}))
    spoil_rows(directory, "strong", topic_key(kind, jobs))
    for _ in range(2):
        with Inspector(directory) as offline:
            assert any("is damaged" in str(error) for error in offline.check_rows())
        with Opened.on_disk(directory) as log:
            assert [state.name for state in log.log.topics()] == ["other"]
            assert "is damaged" in log.log.findings[0]
            if kind != b"t":
                assert list(log.log.refused) == ["jobs"]
                with pytest.raises(DamagedError, match="jobs"):
                    log.make("jobs", "round_robin", weak)
            log.append(1, b"more")
    with Inspector(directory) as offline:
        assert [topic.name for topic in offline.topics.values() if topic.id not in (jobs,)] == ["other"]


def test_other_damaged_rows_are_reported_to_each_reader(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with Opened.on_disk(directory) as log:
        topic = log.make("t")
        log.append(topic, b"a", producer=b"producer", sequence=1)
        log.do(SetCursor(topic, "mine", 1))
        log.do(SetCursor(topic, "yours", 1))
        for stage in (b"stage one", b"stage two", b"stage six"):
            log.do(Stage(topic, blocks.encode([b"staged " + stage]), 1, stage))
        log.do(CommitStages(b"commit one", [b"stage one"]))
    for key in (b"o\0\0\0\1mine", b"d\0\0\0\1\x08producer" + bytes(7) + b"\1", b"Gstage two", b"ccommit one"):
        spoil_rows(directory, "strong", key)
    with Inspector(directory) as offline:
        assert len(offline.check_rows()) == 4
    with Opened.on_disk(directory) as log:
        assert log.log.findings == [
            "topic 't': the cursor 'mine' is damaged: it is refused until a subscription resets it"
        ]
        assert log.log.cursors(topic) == {"mine": -1, "yours": 1}
        for write in (
            Append(topic, blocks.encode([b"a"]), 1, b"producer", 1),
            CommitStages(b"commit one", [b"stage one"]),
            CommitStages(b"commit two", [b"stage two"]),
        ):
            with pytest.raises(DamagedError):
                log.do(write)
        log.log._writers["strong"].submit(ExpireState())
        assert log.append(topic, b"b", producer=b"another", sequence=1).first == 3
        assert log.do(CommitStages(b"commit six", [b"stage six"])).published == [(b"stage six", topic, 4, 1)]
        log.do(SetCursor(topic, "mine", 2))
        log.do(DeleteTopic(log.make("u")))
    with Opened.on_disk(directory) as log:
        assert log.log.cursors(topic) == {"mine": 2, "yours": 1}


def test_damage_is_named_kept_aside_and_read_around(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with Opened.on_disk(directory) as log:
        topic = log.make("t")
        for i in range(5):
            log.append(topic, *[b"<%d %d>" % (i, j) + bytes(1000) for j in range(10)])
    path = directory / "strong" / "data.mdb"
    data = path.read_bytes()
    for body in (b"<1 3>", b"<1 4>", b"<3 9>"):
        assert data.count(body) == 1
        data = data.replace(body, b"!" + body[1:])
    path.write_bytes(data)
    expected = [(14, 15), (40, 40)]
    with Opened.on_disk(directory) as log:
        found, damaged = log.read_around(topic)
        assert damaged == expected
        assert [id for id, _ in found] == [id for id in range(1, 51) if id not in (14, 15, 40)]
        log.append(topic, b"more")
        assert [damage[1:] for damage in log.log.stats().damaged] == expected
        assert len(list((directory / "quarantine").iterdir())) == 2
    with Opened.on_disk(directory) as log:
        assert len(log.log.findings) == 2
        assert "14 to 15" in log.log.findings[0]
        assert str(directory / "quarantine") in log.log.findings[0]
        assert log.read_around(topic)[1] == expected
        log.do(Trim(topic, 45))
        assert [id for id, _ in log.read(topic)] == list(range(45, 52))


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_full_disk(small_disk: Path, kind: str) -> None:
    with Opened.on_disk(small_disk / "store") as log:
        topic, jobs = log.make("t", persistence=kind), log.make("jobs", "round_robin", kind)
        log.append(jobs, *[b"job"] * 50)
        kept = 0
        error = None
        while error is None:
            write = Append(topic, blocks.encode([bytes(5000)]), 1)
            log.try_(write)
            error = write.error
            kept += error is None
        assert isinstance(error, OutOfSpace)
        assert kept > 20
        assert log.log.broken is None
        assert [id for id, _ in log.read(topic)] == list(range(1, kept + 1))
        log.do(Trim(topic, kept // 2))
        for _ in range(3):
            log.do(Acknowledge(jobs, [(1, 5)]))
            log.log._flusher.flush()
        assert log.append(topic, b"small").first == kept + 1
    assert re.fullmatch(rf"the disk is full: .*/{kind}/data.mdb", str(error))
    with Opened.on_disk(small_disk / "store") as log:
        assert log.read(topic)[-1] == (kept + 1, b"small")


def test_an_async_topic_on_a_full_disk(small_disk: Path) -> None:
    """Later appends are refused, and those that were answered before the disk was known to be full are kept."""
    with Opened.on_disk(small_disk / "store") as log:
        topic = log.make("t", persistence="async")
        bodies: list[bytes] = []
        for number in range(1000):
            body = b"%5000d" % number
            write = Append(topic, blocks.encode([body]), 1)
            log.try_(write)
            if write.error is not None:
                break
            bodies.append(body)
            assert write.first == len(bodies)
        assert isinstance(write.error, OutOfSpace)
        assert log.log.full
        assert log.log.broken is None
        for _ in range(20):
            with pytest.raises(OutOfSpace):
                log.append(topic, bytes(5000))
        read = len(log.read(topic))
        assert 20 < read < len(bodies)
        log.do(Trim(topic, 20))
        log.log._flusher.flush()  # pages of dropped records are reusable once the last sync does not need them
        log.log._flusher.flush()
        log.wait_grown(topic, len(bodies))
        assert log.read(topic) == list(enumerate(bodies, 1))[19:]
        assert log.append(topic, b"small").first == len(bodies) + 1
    with Opened.on_disk(small_disk / "store") as log:
        assert log.log.findings == []
        assert log.read(topic)[-1] == (len(bodies) + 1, b"small")

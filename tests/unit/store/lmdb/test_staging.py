"""Stages of the store on disk."""

from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.errors import StageError
from omq.store.interface import AbortStage, CommitStages, Stage
from omq.store.lmdb.inspector import Inspector
from tests.support.open_store import Opened


@pytest.mark.parametrize(
    "kinds", [("strong", "weak"), ("weak", "strong"), ("strong", "transient"), ("transient", "weak")]
)
def test_names_of_stages_and_commits_are_unique_in_the_store(store: Opened, kinds: tuple[str, str]) -> None:
    one, two = (store.make(kind, persistence=kind) for kind in kinds)
    record = blocks.encode([b"x"])
    store.do(Stage(one, record, 1, b"s", 1))
    with pytest.raises(StageError, match="another persistence"):
        store.do(Stage(two, record, 1, b"s", 1))
    first = store.do(CommitStages(b"c", [b"s"]))
    assert first.published == [(b"s", one, 1, 1)]
    # The commit frees the name of the stage, but not its own.
    store.do(Stage(two, record, 1, b"s", 1))
    again = store.do(CommitStages(b"c", [b"s"]))
    assert (again.published, again.repeated) == (first.published, True)
    store.do(Stage(one, record, 1, b"t", 1))
    for stages in ([b"s", b"t"], [b"t", b"s"]):
        with pytest.raises(StageError, match="of transient topics separately"):
            store.do(CommitStages(b"d", stages))
    assert store.log.topic(two).last == 0


def test_a_stage_that_exists_twice_is_not_half_committed(store: Opened, monkeypatch) -> None:
    one, two = store.make("one"), store.make("two", persistence="weak")
    for writer in store.log._writers.values():
        monkeypatch.setattr(writer.applier, "_in_other_engine", lambda key: False)
    for topic in one, two:
        store.do(Stage(topic, blocks.encode([b"x"]), 1, b"s", 1))
    monkeypatch.undo()
    with pytest.raises(StageError, match="twice"):
        store.do(CommitStages(b"c", [b"s"]))
    store.do(AbortStage(b"s"))
    assert store.do(CommitStages(b"c", [b"s"])).published == [(b"s", two, 1, 1)]


def test_a_staged_piece_that_lacks_records_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with Opened.on_disk(directory) as log:
        log.do(Stage(log.make("t"), blocks.encode([b"x"]), 2, b"s", 1))
    with Inspector(directory) as offline:
        (damage,) = offline.check_rows()
    assert str(damage).endswith(" is damaged: it has 1 records; expected 2")

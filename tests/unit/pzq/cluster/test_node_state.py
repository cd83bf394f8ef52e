"""The file in which a node keeps what it states."""

from __future__ import annotations

import json
from dataclasses import asdict
from errno import ENOSPC
from pathlib import Path

import pytest

from omq.pzq.cluster import node_state
from omq.pzq.cluster.node_state import SPARE_BYTES, NodeState, NodeStateFile
from omq.store.errors import DamagedError

KEPT = NodeState(
    *("5" * 32, "tcp://a:1", (6, 7), True, {"tcp://b:1": (3, "tcp://a:1")}),
    former=("tcp://a:2",),
    known={"tcp://b:1": ("6" * 32, 5)},
)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    file = NodeStateFile(tmp_path)
    assert file.load() is None
    file.save(KEPT)
    assert NodeStateFile(tmp_path).load() == KEPT
    quiet = NodeState(KEPT.store, KEPT.name, (6, 7, 8), False, None)
    file.save(quiet)
    assert NodeStateFile(tmp_path).load() == quiet
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "cluster.spare"]


@pytest.mark.parametrize(
    "change", [{"incarnations": "x"}, {"records": {"a": 1}}, {"records": 7}, {"known": None}, {"name": ...}, None]
)
def test_a_damaged_file_is_named(tmp_path: Path, change: dict[str, object] | None) -> None:
    found = {**asdict(KEPT), **(change or {})}
    text = json.dumps({name: value for name, value in found.items() if value is not ...})
    (tmp_path / "cluster.json").write_text(text if change else text[:-9])
    with pytest.raises(DamagedError, match=r"cluster\.json: not a valid state of a node"):
        NodeStateFile(tmp_path).load()


def test_on_a_full_disk_its_place_is_taken_of_what_was_kept_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = tmp_path / "cluster.spare"
    where, write = "omq.pzq.cluster.node_state.write_durably", node_state.write_durably

    def full(path: Path, text: bytes) -> None:
        if spare.exists():
            raise OSError(ENOSPC, "full")
        write(path, text)

    file = NodeStateFile(tmp_path)
    file.save(KEPT)
    assert spare.stat().st_size == SPARE_BYTES
    monkeypatch.setattr(where, full)
    changed = NodeState(KEPT.store, KEPT.name, (9,), True, {})
    file.save(changed)
    assert file.load() == changed
    assert spare.exists(), "it is kept free again where there is room"

    def no_room(path: Path, text: bytes) -> None:
        raise OSError(ENOSPC, "full")

    monkeypatch.setattr(where, no_room)
    with pytest.raises(OSError, match="full"):
        file.save(KEPT)
    assert file.load() == changed

"""Checks of LMDB's data file without LMDB."""

from pathlib import Path

import lmdb
import pytest

from omq.store.errors import DamagedError
from omq.store.lmdb.data_file import check_structure, read_meta, read_metas
from omq.store.lmdb.flusher import restore_meta


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as environment:
        for i in range(5):
            with environment.begin(write=True) as transaction:
                transaction.put(b"%d" % i, bytes(9000))
        info, stat = environment.info(), environment.stat()
    path = tmp_path / "data.mdb"
    meta = read_meta(path)
    assert meta is not None
    assert (meta.transaction, meta.last_page, meta.page_size) == (info["last_txnid"], info["last_pgno"], stat["psize"])
    return path


def test_no_file_and_an_empty_one_have_no_meta_page(tmp_path: Path) -> None:
    assert read_meta(tmp_path / "data.mdb") is None
    (tmp_path / "data.mdb").touch()
    assert read_meta(tmp_path / "data.mdb") is None


def test_the_newer_meta_page_counts(path: Path) -> None:
    metas, size = read_metas(path)
    assert sorted(meta.transaction for meta in metas) == [4, 5]
    assert size == path.stat().st_size
    assert read_meta(path).transaction == 5


def test_a_short_file_is_damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedError, match="its end is missing"):
        read_meta(path)
    path.write_bytes(data[:4096])
    with pytest.raises(DamagedError, match="meta page 1"):
        read_meta(path)


def test_a_file_of_anything_else_is_damaged(path: Path) -> None:
    path.write_bytes(b"\xff" * 9000)
    with pytest.raises(DamagedError, match="both meta pages"):
        read_meta(path)


def test_restoring_a_meta_page_restores_its_state(path: Path) -> None:
    meta = read_meta(path)
    with lmdb.open(str(path.parent), map_size=1 << 24) as environment:
        pin = environment.begin()
        for i in range(7):
            with environment.begin(write=True) as transaction:
                transaction.put(b"%d" % i, bytes([i]) * 5000)
        pin.abort()
    restore_meta(path, meta)
    assert check_structure(path.parent) == []
    with lmdb.open(str(path.parent), map_size=1 << 24) as environment:
        with environment.begin() as transaction:
            assert list(transaction.cursor()) == [(b"%d" % i, bytes(9000)) for i in range(5)]
        with environment.begin(write=True) as transaction:
            transaction.put(b"new", b"")
    assert read_meta(path).transaction == 6


def test_trees_are_checked_within_limits(path: Path) -> None:
    assert check_structure(path.parent) == []
    assert "too large" in check_structure(path.parent, 0)[0]
    data = bytearray(path.read_bytes())
    data[4096 * 3 + 10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="damaged"):
        check_structure(path.parent)

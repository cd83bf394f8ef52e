"""`omq keygen`."""

from __future__ import annotations

from pathlib import Path

import pytest

import omq
from omq.keyfiles import read_keys, read_public_key, read_secret_key
from tests.system.cli.command_process import BOUND, failed, run, start


def test_a_key_pair_is_written_as_key_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "server.key"
    process = start("keygen", path, "--metadata", "name=a server")
    printed, notes = process.communicate(BOUND)
    assert notes.decode() == f"omq: wrote {path}\nomq: wrote {path}_secret\n"
    secret = read_secret_key(Path(f"{path}_secret"))
    assert omq.curve_public(secret) == read_public_key(path) == printed.removesuffix(b"\n")
    assert Path(f"{path}_secret").stat().st_mode & 0o777 == 0o600
    assert omq.load_certificate(path).metadata == {"name": "a server"}


def test_both_outputs_are_authorized_keys(tmp_path: Path) -> None:
    path, listed = tmp_path / "client.key", tmp_path / "authorized"
    listed.write_bytes(run("keygen", path))
    public = read_public_key(path)
    assert read_keys(listed) == read_keys(path) == read_keys(Path(f"{path}_secret")) == {public}


def test_a_damaged_certificate_is_no_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_text('metadata\ncurve\n    public-key = "short"\n')
    with pytest.raises(omq.UsageError, match="neither a valid certificate nor a list of public keys"):
        read_keys(path)


def test_existing_keys_are_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "server.key"
    run("keygen", path)
    before = path.read_bytes()
    assert f"{path}: exists already" in failed(start("keygen", path))
    path.unlink()
    assert f"{path}_secret: exists already" in failed(start("keygen", path))
    assert not path.exists()
    run("keygen", path, "--force")
    assert path.read_bytes() != before


def test_arguments_that_are_not_valid_are_named(tmp_path: Path) -> None:
    assert "NAME=VALUE" in failed(start("keygen", tmp_path / "k", "--metadata", "name"), 2)
    assert "metadata" in failed(start("keygen", tmp_path / "k", "--metadata", 'a="'), 2)
    assert "No such file" in failed(start("keygen", tmp_path / "nowhere" / "k"))

"""The files of keys and users."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import omq
from omq.errors import UsageError
from omq.keyfiles import SecurityFiles, read_keys, read_secret_key, read_users
from omq.security import z85_decode


def written(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "file"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_secret_key_alone(tmp_path: Path) -> None:
    _, secret = omq.curve_keypair()
    assert read_secret_key(written(tmp_path, secret + b"\n")) == secret


def test_a_secret_key_in_a_certificate(tmp_path: Path) -> None:
    _, secret = omq.curve_keypair()
    public_path, secret_path = omq.security.save_certificate(tmp_path / "broker.key", secret)
    assert read_secret_key(Path(secret_path)) == secret
    with pytest.raises(UsageError, match="public key alone"):
        read_secret_key(Path(public_path))


@pytest.mark.parametrize("content", [b"", b"not a key", b"\xff" * 40, b'"' * 40, b"x" * 4096])
def test_a_file_without_a_secret_key(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=f"secret_key_file = {path}: ") as raised:
        read_secret_key(path)
    assert "xxxx" not in str(raised.value)


def test_keys_that_are_let_in(tmp_path: Path) -> None:
    first, second = omq.curve_keypair()[0], omq.curve_keypair()[0]
    text = b"# who may come in\n\n%s alice's laptop\r\n  %s\n  #%s\n" % (first, second, second[1:])
    assert read_keys(written(tmp_path, text)) == {first, second}


def test_no_key_begins_as_a_remark_does() -> None:
    with pytest.raises(UsageError):
        omq.security.z85_decode(b"#0000" * 8)


def test_a_line_that_is_no_key_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, omq.curve_keypair()[0] + b"\nalice\n")
    with pytest.raises(UsageError, match=f"authorized_keys_file = {path}: line 2: "):
        read_keys(path)


def test_users(tmp_path: Path) -> None:
    path = written(tmp_path, "# users\nalice:secret:with colons \n\njürgen:pässword\n")
    assert read_users(path) == {"alice": "secret:with colons ", "jürgen": "pässword"}


@pytest.mark.parametrize(("text", "line"), [("alice\n", 1), ("a:b\n:x\n", 2), ("a:\n", 1), ("a:b\n\na:c\n", 3)])
def test_a_line_that_is_no_user_is_named_and_no_password_shown(tmp_path: Path, text: str, line: int) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=f"users_file = {path}: line {line}: "):
        read_users(path)


def test_files_that_others_may_read_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_users(written(tmp_path, "a:b\n"))
        assert caplog.text == ""
        read_users(written(tmp_path, "a:b\n", 0o644))
    assert "chmod 600" in caplog.text


def test_what_is_loaded(tmp_path: Path) -> None:
    assert SecurityFiles().load().security is None
    users = written(tmp_path, "a:b\n")
    assert isinstance(SecurityFiles("plain", users_file=users).load().security, omq.PlainServer)
    public, secret = omq.curve_keypair()
    key = tmp_path / "key"
    key.write_bytes(secret)
    key.chmod(0o600)
    server = SecurityFiles("curve", secret_key_file=key).load().security
    assert isinstance(server, omq.CurveServer)
    assert server.public_key == public
    with pytest.raises(UsageError, match=r"authorized_keys_file = .*gone: cannot be read: No such file"):
        SecurityFiles("curve", secret_key_file=key, authorized_keys_file=tmp_path / "gone").load()


@pytest.mark.parametrize(
    ("mechanism", "files", "named"),
    [
        ("gssapi", {}, "gssapi"),
        ("plain", {}, "users_file is missing"),
        ("curve", {"users_file": Path("u"), "secret_key_file": Path("k")}, "users_file"),
        ("curve", {"authorized_keys_file": Path("a")}, "secret_key_file is missing"),
        ("null", {"secret_key_file": Path("k")}, "secret_key_file"),
    ],
)
def test_what_does_not_go_together(mechanism: str, files: dict[str, Path], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SecurityFiles(mechanism, **files)


def test_the_permitted_keys_change_in_use(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(0o600)
    files = SecurityFiles("plain", users_file=users)
    users.write_text("alice:old\nbob:secret\n")
    admission = files.load()
    users.write_text("alice:new\ncarol:secret\n")
    admission.become(files.load())
    judged = [admission.security.judge((name, b"secret")) for name in (b"bob", b"carol")]
    assert judged == [False, True]
    assert admission.security.judge((b"alice", b"new"))
    assert not admission.security.judge((b"alice", b"old"))


def test_a_mechanism_needs_another_start_and_so_does_a_list_of_keys(tmp_path: Path) -> None:
    users, key, keys = tmp_path / "users", tmp_path / "key", tmp_path / "keys"
    public, secret = omq.curve_keypair()
    for path, content in ((users, b"alice:secret\n"), (key, secret), (keys, public)):
        path.touch(0o600)
        path.write_bytes(content)
    plain = SecurityFiles("plain", users_file=users).load()
    everybody = SecurityFiles("curve", secret_key_file=key).load()
    some = SecurityFiles("curve", secret_key_file=key, authorized_keys_file=keys).load()
    for one, other in ((plain, everybody), (everybody, some), (some, everybody)):
        with pytest.raises(UsageError, match="restart the server"):
            one.become(other)
    some.become(some)
    assert some.security.judge((z85_decode(public.decode()),))

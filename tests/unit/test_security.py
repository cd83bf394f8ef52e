"""Keys, Z85, certificate files, and objects that keep their secrets to themselves."""

import copy
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

import omq
from omq._core.wire.crypto import Secret
from omq.broker.config import read_config
from omq.errors import UsageError
from omq.zmtp import z85


def test_key_pairs_are_those_of_libzmq() -> None:
    public, secret = omq.curve_keypair()
    assert len(public) == len(secret) == 40
    assert zmq.curve_public(secret) == public == omq.curve_public(secret)
    theirs, hidden = zmq.curve_keypair()
    assert (
        omq.curve_public(hidden) == omq.curve_public(hidden.decode()) == omq.curve_public(z85.decode(hidden)) == theirs
    )
    assert omq.curve_keypair() != (public, secret)


@pytest.mark.parametrize("key", [b"", b"short", bytes(31), bytes(33), "x" * 39, "\\" * 40, "#" * 40, "ü" * 20])
def test_a_bad_secret_key_is_refused_and_not_repeated(key: Any) -> None:
    with pytest.raises(UsageError, match="32 bytes, or 40 characters of Z85") as caught:
        omq.CurveServer(key)
    assert not key or (key if isinstance(key, str) else repr(key)) not in str(caught.value)


def test_keys_of_a_wrong_kind() -> None:
    public, secret = omq.curve_keypair()
    with pytest.raises(UsageError, match="not int"):
        omq.CurveServer(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not NoneType"):
        omq.CurveServer(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="server_key: must be 32 bytes"):
        omq.CurveClient(b"short")
    with pytest.raises(UsageError, match="low order"):
        omq.CurveClient(bytes(32))
    with pytest.raises(UsageError, match="not the public half"):
        omq.CurveClient(public, omq.curve_keypair()[0], secret)
    with pytest.raises(UsageError, match="needs its secret_key"):
        omq.CurveClient(public, public)
    with pytest.raises(UsageError, match="put a single key into a set"):
        omq.CurveServer(secret, authorize=public)
    with pytest.raises(UsageError, match="at most 255 are allowed"):
        omq.PlainClient("u", "p" * 256)
    with pytest.raises(UsageError, match="authenticate: must be a function"):
        omq.PlainServer([("u", "p")])  # type: ignore[arg-type]


def test_nothing_shows_a_secret() -> None:
    public, secret = omq.curve_keypair()
    shown = [omq.CurveServer(secret), omq.CurveClient(public, None, secret), omq.PlainClient("user", "pass-word")]
    shown += [omq.PlainServer({"user": "pass-word"}), omq.Options(security=omq.CurveServer(secret))]
    text = "".join(f"{one!r} {one!s}" for one in shown)
    assert secret.decode() not in text
    assert "pass-word" not in text
    assert secret.decode() not in repr(omq.Certificate(public, secret))


def test_secrets_are_not_copied() -> None:
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            call(Secret())


def test_z85_both_ways() -> None:
    assert omq.z85_encode(bytes.fromhex("864FD26FB559F75B")) == b"HelloWorld"
    assert omq.z85_decode("HelloWorld") == bytes.fromhex("864FD26FB559F75B")
    with pytest.raises(UsageError):
        omq.z85_decode("short!")


@pytest.fixture
def pair() -> tuple[bytes, bytes]:
    return omq.curve_keypair()


def test_certificates_are_read_by_pyzmq(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    public, secret = pair
    open_path, secret_path = omq.save_certificate(tmp_path / "me.key", secret, {"name": "Joe Doe"})
    assert zmq.auth.load_certificate(open_path) == (public, None)
    assert zmq.auth.load_certificate(secret_path) == (public, secret)
    assert omq.load_certificate(open_path) == omq.Certificate(public, None, {"name": "Joe Doe"})
    assert omq.load_certificate(secret_path) == omq.Certificate(public, secret, {"name": "Joe Doe"})
    assert stat.S_IMODE(Path(secret_path).stat().st_mode) == 0o600
    assert secret.decode() not in Path(open_path).read_text()


def test_certificates_of_pyzmq_are_read(tmp_path: Path) -> None:
    open_path, secret_path = zmq.auth.create_certificates(tmp_path, "me", {"name": "Joe"})
    public, secret = zmq.auth.load_certificate(secret_path)
    assert omq.load_certificate(open_path).public_key == public
    found = omq.load_certificate(secret_path)
    assert (found.public_key, found.secret_key) == (public, secret)


def test_a_number_is_not_taken_for_a_path_and_no_descriptor_is_closed(pair: tuple[bytes, bytes]) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    for call in (
        lambda: omq.load_certificate(descriptor),
        lambda: omq.save_certificate(descriptor, pair[1]),
        lambda: read_config(descriptor),
    ):
        with pytest.raises(TypeError, match=f"path: must be a str or an os.PathLike, not int: {descriptor}"):
            call()
    os.close(descriptor)  # which is still open


HALF = "\ud800"  # of a surrogate pair: no codec takes it


def test_text_that_cannot_be_encoded_is_refused_by_name(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    for what, call in {
        "username: cannot be encoded": lambda: omq.PlainClient(HALF, "x"),
        "password: cannot be encoded": lambda: omq.PlainClient("x", HALF),
        "path: .* cannot be encoded": lambda: omq.load_certificate(HALF),
        "path: .* cannot be encoded for": lambda: omq.save_certificate(HALF, pair[1]),
        "'name' = .* cannot be in a certificate": lambda: omq.save_certificate(
            tmp_path / "me", pair[1], {"name": HALF}
        ),
    }.items():
        with pytest.raises(omq.UsageError, match=what):
            call()
    assert not list(tmp_path.iterdir())


def test_certificates_of_czmq_are_read(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    public, secret = pair
    text = f"""#   ****  Generated on 2024-01-01 00:00:00 by CZMQ  ****
#   ZeroMQ CURVE **Secret** Certificate
#   DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions.

metadata
    email = "joe@example.com"
    name = "Joe"
curve
    public-key = "{public.decode()}"
    secret-key = "{secret.decode()}"
"""
    (tmp_path / "me_secret").write_text(text)
    found = omq.load_certificate(tmp_path / "me_secret")
    assert found == omq.Certificate(public, secret, {"email": "joe@example.com", "name": "Joe"})


def test_a_secret_file_that_was_open_to_others_is_not_any_more(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    (tmp_path / "me.key_secret").write_text("old")
    (tmp_path / "me.key_secret").chmod(0o666)
    _, secret_path = omq.save_certificate(tmp_path / "me.key", pair[1])
    assert stat.S_IMODE(Path(secret_path).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "curve\n", 'curve\n    secret-key = "x"\n', 'metadata\n    public-key = "x"\n'])
def test_what_is_no_certificate(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.key").write_text(text)
    with pytest.raises(UsageError, match="not a valid certificate"):
        omq.load_certificate(tmp_path / "bad.key")


def test_metadata_that_have_no_place(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(UsageError, match="without quotes and line ends"):
        omq.save_certificate(tmp_path / "me.key", pair[1], {"name": 'a" \n curve'})
    assert list(tmp_path.iterdir()) == []


EXCHANGE = """
import omq
public, secret = omq.curve_keypair()
with omq.PULL(bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret)) as pull:
    with omq.PUSH(connect=pull.endpoints[0], security=omq.CurveClient(public)) as push:
        for size in (0, 1, 31, 32, 300, 4096, 4097, 70_000):
            push.send(bytes(size))
            assert pull.recv(timeout=10) == bytes(size)
print("through")
"""


def run(library: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMQ_LIBSODIUM": library}
    return subprocess.run(
        [sys.executable, "-c", EXCHANGE], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_another_libsodium_than_that_of_pynacl() -> None:
    brought = sorted((Path(zmq.__file__).parents[1] / "pyzmq.libs").glob("libsodium*.so*"))
    if not brought:
        pytest.skip("pyzmq is not of a wheel that brings its libsodium")
    done = run(str(brought[0]))
    assert done.stdout == "through\n", done.stderr


@pytest.mark.parametrize("library", ["/nowhere/libsodium.so", "libc.so.6"])
def test_a_library_that_is_no_libsodium_is_named(library: str) -> None:
    done = run(library)
    assert done.returncode == 1
    assert f"UsageError: OMQ_LIBSODIUM='{library}': not a valid libsodium" in done.stderr

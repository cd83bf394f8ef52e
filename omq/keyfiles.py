"""Files of a server's security: its secret key, the authorized keys, the users with their passwords."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omq.errors import UsageError
from omq.security import CurveServer, PlainServer, load_certificate, z85_decode
from omq.types import Security
from omq.zmtp.curve import KEY_BYTES, KEY_CHARACTERS

__all__ = ["KEY_CHARACTERS", "MECHANISMS", "Admission", "SecurityFiles"]

LOG: Final = logging.getLogger("omq.keys")

MECHANISMS: Final = ("null", "plain", "curve")
#: The files of each mechanism; it needs the first one.
FILES: Final = {
    "null": (),
    "plain": ("users_file",),
    "curve": ("secret_key_file", "authorized_keys_file"),
}
PATHS: Final = ("secret_key_file", "authorized_keys_file", "users_file")


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """A mechanism and its files, as in `[security]` of a `broker.toml`.

    Attributes:
        mechanism: `null`, `plain` or `curve`.
        secret_key_file: CURVE: the server's secret key, as a certificate (`omq.save_certificate`) or alone.
        authorized_keys_file: CURVE: the public keys to admit, one a line, each with an optional remark; `None`: every
            key.
        users_file: PLAIN: `name:password`, one a line.

    Raises:
        UsageError: The mechanism is not known, does not use one of the files, or lacks the one that it needs.
    """

    mechanism: str = "null"
    secret_key_file: Path | None = None
    authorized_keys_file: Path | None = None
    users_file: Path | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise UsageError(f'mechanism = "{self.mechanism}": must be one of {", ".join(MECHANISMS)}').about(
                "mechanism"
            )
        takes: tuple[str, ...] = FILES[self.mechanism]
        for key in PATHS:
            path = getattr(self, key)
            if path is not None and key not in takes:
                raise UsageError(f'{key} = "{path}": mechanism "{self.mechanism}" does not use it').about(key)
        if takes and getattr(self, takes[0]) is None:
            raise UsageError(f'{takes[0]} is missing: mechanism "{self.mechanism}" needs it').about(takes[0])

    def load(self) -> Admission:
        """Reads the files.

        Raises:
            UsageError: A file cannot be read, or a line of it is not valid; the text names the file and the line.
        """
        users: dict[str, str] = {}
        keys: set[bytes] = set()
        if self.mechanism == "plain":
            assert self.users_file is not None
            users.update(read_users(self.users_file))
            return Admission(self, PlainServer(users), users, keys)
        if self.mechanism == "curve":
            assert self.secret_key_file is not None
            if self.authorized_keys_file is not None:
                keys.update(read_keys(self.authorized_keys_file))
            allowed = None if self.authorized_keys_file is None else keys
            return Admission(self, CurveServer(read_secret_key(self.secret_key_file), allowed), users, keys)
        return Admission(self, None, users, keys)


@dataclass(frozen=True, slots=True)
class Admission:
    """The clients to admit, read from the files.

    Attributes:
        files: The files that list them.
        security: The `security` option for the server's socket; it reads `users` and `keys`. `None` without a
            mechanism.
        users: Passwords by user name.
        keys: The public keys to admit.
    """

    files: SecurityFiles
    security: Security | None
    users: dict[str, str]
    keys: set[bytes]

    def become(self, other: Admission) -> None:
        """Replaces the admitted clients by those of *other*, which was read later; the server's own key stays.

        Raises:
            UsageError: *other* has another mechanism, or only one of the two restricts the keys.
        """
        for key in ("mechanism", "authorized_keys_file"):
            before, now = getattr(self.files, key), getattr(other.files, key)
            if before != now and (key == "mechanism" or None in (before, now)):
                raise UsageError(f"{key} was {before} at the start and is {now} now: restart the server to change it")
        # Added before others are removed, so that a client in both is never refused.
        self.users.update(other.users)
        for user in self.users.keys() - other.users.keys():
            del self.users[user]
        self.keys.update(other.keys)
        self.keys.intersection_update(other.keys)


def read_secret_key(path: Path) -> bytes:
    """Reads the secret key of a file: a certificate, or 40 characters of Z85 and nothing else.

    Raises:
        UsageError: The file cannot be read, or holds no secret key.
    """
    key = "secret_key_file"
    text = _text(path, key).strip()
    _warn_if_readable(path)
    if len(text) == KEY_CHARACTERS:
        return _checked_key(text, key, path)
    try:
        certificate = load_certificate(path)
    except UsageError:
        raise _invalid(key, path, "holds no key: neither a certificate nor 40 characters of Z85") from None
    if certificate.secret_key is None:
        raise _invalid(key, path, f"holds a public key alone; the secret one may be in {path}_secret")
    return certificate.secret_key


def read_public_key(path: Path) -> bytes:
    """Returns the public key of a file: a certificate, or 40 characters of Z85 and nothing else.

    Raises:
        UsageError: The file cannot be read, or holds no key.
    """
    key = "public_key_file"
    text = _text(path, key).strip()
    if len(text) == KEY_CHARACTERS:
        return _checked_key(text, key, path)
    try:
        return load_certificate(path).public_key
    except UsageError:
        raise _invalid(key, path, "holds no key: neither a certificate nor 40 characters of Z85") from None


def read_keys(path: Path) -> frozenset[bytes]:
    """Reads the public keys of a file: a certificate, or one a line, with an optional remark.

    Lines that begin with "#" are comments.

    Raises:
        UsageError: The file cannot be read, or a line has no key.
    """
    key = "authorized_keys_file"
    keys = set()
    text = _text(path, key)
    if any(line.rstrip() == "curve" for line in text.splitlines()):  # the section of a certificate
        try:
            return frozenset([load_certificate(path).public_key])
        except UsageError:
            raise _invalid(key, path, "is neither a valid certificate nor a list of public keys") from None
    for number, line in _lines(text):
        # "#" is a character of Z85, but no key begins with it: its first four bytes would exceed 32 bits.
        if not line.lstrip().startswith("#"):
            keys.add(_checked_key(line.split()[0], key, path, f"line {number}: "))
    return frozenset(keys)


def read_users(path: Path) -> dict[str, str]:
    """Reads passwords by user name. Lines that begin with "#" are comments.

    Raises:
        UsageError: The file cannot be read, or a line is not `name:password`.
    """
    key = "users_file"
    users: dict[str, str] = {}
    for number, line in _lines(_text(path, key)):
        if line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        if not (name and password):
            raise _invalid(key, path, f"line {number}: must be of the form name:password")
        if name in users:
            raise _invalid(key, path, f'line {number}: user "{name}" is listed twice')
        users[name] = password
    _warn_if_readable(path)
    return users


def _text(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _invalid(key, path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _invalid(key, path, "is not UTF-8") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not blank, with their numbers. Leading blanks stay: they may belong to a password."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _checked_key(text: str, key: str, path: Path, line: str = "") -> bytes:
    try:
        if len(text) == KEY_CHARACTERS and len(z85_decode(text)) == KEY_BYTES:
            return text.encode("ascii")
    except UsageError:
        pass
    # The key is not shown: it may be a secret one in the wrong place.
    raise _invalid(key, path, f"{line}is not a valid key of 40 characters of Z85")


def _invalid(key: str, path: Path, reason: str) -> UsageError:
    return UsageError(f"{key} = {path}: {reason}").about(key)


def _warn_if_readable(path: Path) -> None:
    if os.stat(path).st_mode & 0o077:
        LOG.warning("users other than the owner may read %s: run chmod 600 %s", path, path)

"""Files of CURVE keys, in the format of czmq's certificates."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Final

from omq.zmq.security import curve_keypair

_HEAD: Final = "#   ****  Made by omq on {}  ****\n#   {}\n\n"
_PUBLIC_NOTE: Final = "The public key of CURVE: check its origin before you trust it."
_SECRET_NOTE: Final = "The SECRET key of CURVE: keep this file to yourself."
_ENDS: Final = b" \t'\""


def create_certificates(
    key_dir: str | os.PathLike[str], name: str, metadata: dict[str, str] | None = None
) -> tuple[str, str]:
    """Makes a key pair and writes it to `NAME.key` and `NAME.key_secret`.

    Args:
        key_dir: The folder.
        name: The name of the files.
        metadata: Texts that are written to the secret file.

    Returns:
        The paths of the public and the secret file.
    """
    public, secret = (key.decode() for key in curve_keypair())
    base = os.path.join(key_dir, name)
    public_file, secret_file = f"{base}.key", f"{base}.key_secret"
    _write(public_file, 0o666, _PUBLIC_NOTE, {}, {"public-key": public})
    _write(secret_file, 0o600, _SECRET_NOTE, metadata or {}, {"public-key": public, "secret-key": secret})
    return public_file, secret_file


def _write(path: str, mode: int, note: str, metadata: dict[str, str], keys: dict[str, str]) -> None:
    lines = ["metadata", *(f"    {_text(name)} = {_text(value)}" for name, value in metadata.items())]
    lines += ["curve", *(f'    {name} = "{key}"' for name, key in keys.items())]
    content = _HEAD.format(datetime.datetime.now(), note) + "\n".join(lines) + "\n"
    # The mode is set when the file is made, so the secret is never readable for others.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def load_certificate(filename: str | os.PathLike[str]) -> tuple[bytes, bytes | None]:
    """Reads a file of keys.

    Returns:
        The public key, and the secret key or `None`.

    Raises:
        OSError: There is no such file.
        ValueError: The file has no public key.
    """
    path = Path(filename)
    if not path.exists():
        raise OSError(f"Invalid certificate file: {filename}")
    keys: dict[bytes, bytes] = {}
    for line in path.read_bytes().splitlines():
        name, separator, value = line.strip().partition(b"=")
        if separator and name.rstrip() in (b"public-key", b"secret-key"):
            keys[name.rstrip()] = value.strip(_ENDS)
    if b"public-key" not in keys:
        raise ValueError(f"No public key found in {filename}")
    return keys[b"public-key"], keys.get(b"secret-key")


def load_certificates(directory: str | os.PathLike[str] = ".") -> dict[bytes, bool]:
    """Reads the public keys of all `*.key` files of a folder.

    Returns:
        `True`, by key.

    Raises:
        OSError: There is no such folder.
    """
    if not os.path.isdir(directory):
        raise OSError(f"Invalid certificate directory: {directory}")
    return {load_certificate(path)[0]: True for path in Path(directory).glob("*.key")}


__all__ = ["create_certificates", "load_certificate", "load_certificates"]

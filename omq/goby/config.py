"""Configurations: text protobuf, or TOML with the same names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from omq.errors import UsageError
from omq.goby.protobuf import GobyDaemonConfig

_M = TypeVar("_M", bound=Message)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        UsageError: The file cannot be read, or is not valid TOML.
    """
    try:
        return tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def read_message(path: Path, kind: type[_M]) -> _M:
    """Reads a message from a file: TOML if its name ends in `.toml`, else text protobuf.

    Args:
        path: The file.
        kind: The message's class.

    Raises:
        UsageError: The file cannot be read, or has a field that the message does not have; the text names it.
    """
    message = kind()
    try:
        if path.suffix == ".toml":
            return json_format.ParseDict(read_toml(path), message)
        return text_format.Parse(_read_text(path), message)
    except (json_format.ParseError, text_format.ParseError) as error:
        raise UsageError(f"{path}: {error}") from None


def read_gobyd(path: Path) -> GobyDaemonConfig:
    """Reads the configuration of a gobyd.

    Raises:
        UsageError: The file cannot be read, or has a field that `GobyDaemonConfig` does not have.
    """
    try:
        return read_message(path, GobyDaemonConfig)
    except UsageError as error:
        if "intervehicle" not in str(error):
            raise
        raise UsageError(
            f"{path}: intervehicle: this gobyd has no intervehicle portal; remove it, or run Goby's own gobyd"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None

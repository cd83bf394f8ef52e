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
    """The tables of a file.

    Raises:
        UsageError: It cannot be read, or is not valid TOML.
    """
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: no TOML: {error}") from None


def read_message(path: Path, kind: type[_M]) -> _M:
    """A message out of a file: TOML where its name ends in `.toml`, else text protobuf.

    Args:
        path: The file.
        kind: The message's class.

    Raises:
        UsageError: It cannot be read, or something in it is not the message's; the text names it.
    """
    message = kind()
    try:
        if path.suffix == ".toml":
            return json_format.ParseDict(read_toml(path), message)
        return text_format.Parse(_text(path), message)
    except (json_format.ParseError, text_format.ParseError) as error:
        raise UsageError(f"{path}: {error}") from None


def read_gobyd(path: Path) -> GobyDaemonConfig:
    """The configuration of a gobyd.

    Raises:
        UsageError: It cannot be read, or something in it is not of `GobyDaemonConfig`.
    """
    try:
        return read_message(path, GobyDaemonConfig)
    except UsageError as error:
        if "intervehicle" not in str(error):
            raise
        raise UsageError(
            f"{path}: intervehicle: this gobyd has no portal between vehicles: leave that out, or run Goby's own gobyd"
        ) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None

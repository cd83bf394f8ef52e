"""Z85: bytes as printable text."""

from __future__ import annotations

from typing import Final

import omq

#: The 85 characters, by the number that each stands for.
Z85CHARS: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
#: The number, by character.
Z85MAP: Final = {character: number for number, character in enumerate(Z85CHARS)}


def encode(rawbytes: bytes) -> bytes:
    """Encodes bytes.

    Raises:
        ValueError: The length is not a multiple of 4.
    """
    return omq.z85_encode(rawbytes)


def decode(z85bytes: bytes | str) -> bytes:
    """Decodes text.

    Raises:
        ValueError: The text is not Z85.
    """
    return omq.z85_decode(z85bytes)


__all__ = ["Z85CHARS", "Z85MAP", "decode", "encode"]

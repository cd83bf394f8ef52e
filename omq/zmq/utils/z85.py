"""Z85: bytes as printable text."""

from __future__ import annotations

import omq


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


__all__ = ["decode", "encode"]

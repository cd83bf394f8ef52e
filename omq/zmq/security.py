"""Keys of CURVE, and which parts of libzmq there are."""

from __future__ import annotations

from typing import Final

import omq
from omq import errors
from omq.zmq.constants import Errno
from omq.zmq.error import error_of

_CAPABILITIES: Final = frozenset({"ipc", "curve", "plain", "draft", "ws", "wss"})


def has(capability: str) -> bool:
    """Returns whether a transport, a mechanism, or `"draft"` is there."""
    return str.encode(capability).decode() in _CAPABILITIES


def curve_keypair() -> tuple[bytes, bytes]:
    """Makes a key pair for CURVE: the public and the secret key, 40 characters of Z85 each."""
    return omq.curve_keypair()


def curve_public(secret_key: bytes | str) -> bytes:
    """Returns the public key of a secret key, as 40 characters of Z85.

    Raises:
        ValueError: The key does not have 40 characters.
        ZMQError: EINVAL: The key is not Z85.
    """
    key = secret_key.encode() if isinstance(secret_key, str) else secret_key
    if len(key) != 40:
        raise ValueError("secret key must be a 40 byte z85 encoded string")
    try:
        return omq.curve_public(key)
    except errors.UsageError:
        raise error_of(Errno.EINVAL) from None

"""Messages of a topic as columns, for programs that have them so: laid out as Apache Arrow does, without a dependency.

`Client.read_columns` gives them; what is to be published or staged is made of them by `encode_columns`.
"""

from __future__ import annotations

from collections.abc import Iterator

from omq._core.columns import Strings
from omq._core.columns import encode_columns as _encode
from omq.broker.errors import TooLarge
from omq.broker.protocol import MAX_BODY_BYTES
from omq.broker.types import Columns, Maps, Records, Texts

__all__ = ["Columns", "Maps", "Records", "Strings", "Texts", "encode_columns"]

#: Bytes of records that are encoded at once, about.
TARGET_BYTES = 1 << 20


def encode_columns(
    bodies: Strings,
    *,
    keys: Strings | None = None,
    headers: tuple[Strings, Strings, Strings] | None = None,
    target: int = TARGET_BYTES,
) -> Iterator[Records]:
    """Makes records of columns, some at a time: what `Client.publish_many` and `stage` take in place of bodies.

    Args:
        bodies: The bodies.
        keys: The keys; `None` where no message has one.
        headers: A column that counts how many headers each row has, and their names and values; `None` for none.
        target: Bytes of records at a time, about; one message is encoded whatever its size.

    Raises:
        TooLarge: A body has more than 64 MiB; what came before was given.
        ValueError: A row cannot be a message: its body or a header is null, or the name of a header does not fit.
    """
    row = 0
    while row < len(bodies):
        begun = row
        try:
            data, row = _encode(bodies, row, target, keys=keys, headers=headers, limit=MAX_BODY_BYTES)
        except ValueError as error:
            if type(error) is ValueError:
                raise
            raise TooLarge(f"{error}: the broker takes {MAX_BODY_BYTES} bytes at most") from None
        yield Records(data, row - begun)

"""Messages of a topic as columns in the layout of Apache Arrow, without a dependency on it.

`Client.read_columns` returns columns, and `encode_columns` makes records of them for `publish_many` and `stage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omq._core.columns import Strings
from omq._core.columns import encode_columns as _encode
from omq.broker.errors import TooLarge
from omq.broker.protocol import MAX_BODY_BYTES
from omq.broker.types import Columns, Maps, Records, Texts

__all__ = ["Columns", "Maps", "Records", "Strings", "Texts", "encode_columns"]

TARGET_BYTES: Final = 1 << 20  #: Of the records in one `Records`, about.


def encode_columns(
    bodies: Strings,
    *,
    keys: Strings | None = None,
    headers: tuple[Strings, Strings, Strings] | None = None,
    target: int = TARGET_BYTES,
) -> Iterator[Records]:
    """Yields the messages of columns as records, which `Client.publish_many` and `stage` accept as bodies.

    Args:
        bodies: The bodies.
        keys: The keys; `None` if no message has one.
        headers: Three columns: the headers of each row (only their offsets count), and the names and the values of all
            headers; `None` if no message has headers.
        target: The approximate bytes of each `Records`. A larger message gets one of its own.

    Raises:
        TooLarge: A body has more than 64 MiB; earlier records were yielded.
        ValueError: A row is not a valid message: its body or a header is null, or the name of a header is not valid.
    """
    row = 0
    while row < len(bodies):
        first = row
        try:
            data, row = _encode(bodies, row, target, keys=keys, headers=headers, limit=MAX_BODY_BYTES)
        except ValueError as error:
            if type(error) is ValueError:
                raise
            raise TooLarge(f"{error}; at most {MAX_BODY_BYTES} bytes are allowed") from None
        yield Records(data, row - first)

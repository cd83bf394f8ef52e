"""Makes columns of the blocks that a read of a range gives; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

from omq._core.columns import Gatherer
from omq.broker.errors import BrokerFailed
from omq.broker.types import Columns, Maps, Texts

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_BYTES: Final = 16 << 20  #: What columns have of bodies, keys and headers, about.
#: What may be wanted of a message beside its id and its timestamp.
PARTS: Final = ("bodies", "keys", "headers")


class ColumnReader:
    """Gathers blocks into columns.

    Args:
        topic: The topic's name, for messages.
        batch_bytes: Bytes of bodies, keys and headers in them, about; one message is taken whatever its size.
        parts: What is wanted of a message; see `PARTS`.
        memory: Gives a writable buffer of so many bytes, or more, in which the bodies will stand.

    Raises:
        ValueError: A number or a name does not fit.
    """

    def __init__(self, topic: str, batch_bytes: int, parts: Collection[str], memory: Callable[[int], Buffer]) -> None:
        if batch_bytes < 1:
            raise ValueError(f"batch_bytes={batch_bytes!r}: must be bytes, at least 1")
        if unknown := [part for part in parts if part not in PARTS]:
            raise ValueError(f"parts={unknown[0]!r}: known are {', '.join(PARTS)}")
        self._topic = topic
        self._limit = batch_bytes
        self._gatherer = Gatherer(batch_bytes, **{part: part in parts for part in PARTS})
        self._new = memory if "bodies" in parts else None
        self._memory: Buffer | None = None

    def add(self, header: bytes, records: bytes) -> Iterator[Columns]:
        """Adds a block; gives the columns that it has filled.

        Raises:
            BrokerFailed: The broker sent what is damaged.
        """
        gatherer = self._gatherer
        try:
            gatherer.load(header, records)
            self._begin(self._limit)
            while (wanted := gatherer.fill()) is not None:
                if gatherer.count:
                    yield self._take()
                    self._begin(max(self._limit, wanted))
                else:
                    self._memory = None  # too small
                    self._begin(wanted)
        except ValueError as error:
            raise BrokerFailed(f"{self._topic}: the broker sent records that are damaged: {error}") from error

    def rest(self) -> Iterator[Columns]:
        """What is left."""
        if self._gatherer.count:
            yield self._take()

    def _begin(self, size: int) -> None:
        """Has memory ready for the next row."""
        if self._new is not None and self._memory is None:
            self._memory = self._new(size)
            self._gatherer.begin(self._memory)

    def _take(self) -> Columns:
        count, ids, timestamps, ends, size, keys, headers = self._gatherer.take()
        bodies, self._memory = self._memory, None
        return Columns(
            count,
            ids,
            timestamps,
            ends,
            bodies,
            size,
            None if keys is None else Texts(*keys),
            None if headers is None else Maps(headers[0], Texts(*headers[1]), Texts(*headers[2]), *headers[3:]),
        )

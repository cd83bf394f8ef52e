"""Records from and to columns, as Apache Arrow lays them out: no Python object for a message.

A column of texts or bytes is its ends (one more than there are rows: where each begins and ends), its data, and a bit a
row that says whether there is a value. Headers are such a column of maps: ends, and behind them names and values.
"""

from typing_extensions import Buffer

#: Ends of 32 bits, data, bits or `None` where every row has a value, and how many have none.
_Strings = tuple[bytes, bytes, bytes | None, int]
#: Ends of 32 bits, names, values, bits or `None` where every row has headers, and how many have none.
_Maps = tuple[bytes, _Strings, _Strings, bytes | None, int]

class Gatherer:
    """Gathers the records of blocks into columns, checksums verified. One thread at a time.

    Args:
        limit: Bytes of bodies, keys and headers that are gathered, about; one record is taken whatever its size.
        bodies: Whether bodies are wanted.
        keys: Whether keys are.
        headers: Whether headers are.
    """

    def __init__(self, limit: int, *, bodies: bool = True, keys: bool = True, headers: bool = True) -> None: ...
    @property
    def count(self) -> int:
        """Rows that are gathered."""

    def begin(self, memory: Buffer) -> None:
        """Says where the bodies of the next rows go: a writable buffer, which is held until `take`."""

    def load(self, header: Buffer, records: Buffer) -> None:
        """A block whose records are to be gathered; `ValueError` where its header is none, or of other records."""

    def fill(self) -> int | None:
        """Gathers records of the block.

        Returns:
            `None` once the block is used up. Else the bytes of the next body, which does not fit any more: `take` the
            rows that are there, or, where there are none, `begin` with more memory, and call this again.

        Raises:
            ValueError: A record is not as it was written. The rest of the block is gone.
        """

    def take(self) -> tuple[int, bytes, bytes, bytes, int, _Strings | None, _Maps | None]:
        """What was gathered.

        Returns:
            How many rows; their ids and timestamps (microseconds since 1970), 64 bits each; the ends of their bodies,
            32 bits each; bytes of the memory that the bodies take; keys; headers.
        """

class Strings:
    """A column to read from: texts or bytes, or how many headers each row has.

    Args:
        ends: Where rows begin, and the last one ends; in the processor's own order of bytes.
        data: The bytes; `None` where there are none.
        rows: How many.
        valid: A bit a row: whether it has a value; `None` where all have.
        start: The first row's place in *ends* and *valid*.
        wide: Whether ends have 64 bits; else 32.
        counts: Whether ends count rows of other columns, as those of headers do.

    Raises:
        ValueError: Ends or bits are too few, or lead beyond the data.
    """

    def __init__(
        self,
        ends: Buffer,
        data: Buffer | None,
        rows: int,
        *,
        valid: Buffer | None = None,
        start: int = 0,
        wide: bool = False,
        counts: bool = False,
    ) -> None: ...
    def __len__(self) -> int: ...

def encode_columns(
    bodies: Strings,
    start: int,
    target: int,
    *,
    keys: Strings | None = None,
    headers: tuple[Strings, Strings, Strings] | None = None,
    limit: int = ...,
    most: int = 65536,
) -> tuple[bytes, int]:
    """Records of the rows from *start* on, one after the other.

    Args:
        bodies: Their bodies.
        start: The first row.
        target: Bytes of records, about; one row is taken whatever its size.
        keys: Their keys; `None` where there are none.
        headers: A column that counts how many each row has, their names and their values; `None` where there are none.
        limit: The largest body allowed, in bytes.
        most: Records at most.

    Returns:
        The records, and the row behind the last of them.

    Raises:
        BodyTooLarge: The body of the first row is above the limit. Of a later one the next call says so.
        ValueError: The first row cannot be a record: its body or a header is null, a name is too long or not UTF-8.
    """

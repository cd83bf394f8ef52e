"""The data source `omq`: passes Spark's calls to the provider that the options choose."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

import omq
from omq.spark.errors import hidden_traceback
from omq.spark.live.source import PROVIDER as SOCKETS
from omq.spark.options import READS, SPARK_OPTIONS, WRITES
from omq.spark.provider import Provider
from omq.spark.topics.source import PROVIDER as TOPICS

#: The options that choose a live socket or a broker's topics; a live PUB has an option `topic`, too.
_SOCKET: Final = "socket"
_TOPICS: Final = {"topic": "topic", "topics": "topics", "topicpattern": "topicPattern"}
#: The only option that Spark passes for a table of its catalog.
_TABLE: Final = "provider"


class _FailedReader(DataSourceStreamReader):
    """A reader that raises the error of its creation when Spark first calls it.

    If `streamReader` raised the error, Spark would report an `UnboundLocalError` instead.
    """

    def __init__(self, error: omq.OmqError) -> None:
        self._error = error

    @hidden_traceback()
    def _raise_error(self, *_: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = commit = getDefaultReadLimit = _raise_error  # noqa: N815


class OmqDataSource(DataSource):
    """`format("omq")`. Every call goes to the provider of live sockets or to that of a broker's topics."""

    @classmethod
    def name(cls) -> str:
        return "omq"

    def _read_provider(self) -> Provider[Any]:
        """Returns the provider of a read."""
        chosen = self._chosen()
        if _SOCKET in chosen and len(chosen) > 1:
            raise omq.OptionError(
                f"options 'socket' and {_TOPICS[chosen[1]]!r} exclude each other: a read has either a live socket or"
                " topics of a broker"
            )
        if not chosen and _TABLE not in self.options:
            raise omq.OptionError(
                f"{self._unknown(READS)}option 'socket' is missing (for a live socket), or 'topic', 'topics' or"
                " 'topicPattern' (for topics of a broker)"
            )
        return TOPICS if chosen and chosen != [_SOCKET] else SOCKETS

    def _write_provider(self, rows: StructType) -> Provider[Any]:
        """Returns the provider of a write: live sockets if the option `socket` is given, otherwise topics.

        Raises:
            OptionError: Neither an option nor a column names a topic.
        """
        chosen = self._chosen()
        if _SOCKET in chosen:
            return SOCKETS
        if not chosen and "topic" not in rows.fieldNames():
            raise omq.OptionError(
                f"{self._unknown(WRITES)}option 'socket' is missing (for a live socket), or an option or a column"
                " 'topic' (for a topic of a broker)"
            )
        return TOPICS

    def _chosen(self) -> list[str]:
        given = {name.lower() for name in self.options}
        return [name for name in (_SOCKET, *_TOPICS) if name in given]

    def _unknown(self, uses: Iterable[str]) -> str:
        """Returns a clause about the first unknown option: most likely the missing one is misspelt."""
        both = [*TOPICS.settings.OPTIONS.known(*uses), *SOCKETS.settings.OPTIONS.known(*uses)]
        names = {name.lower(): name for name in both}
        for name in self.options:
            if name.lower() not in names and name.lower() not in SPARK_OPTIONS:
                close = get_close_matches(name.lower(), names, 1)
                meant = f"did you mean {names[close[0]]!r}? " if close else ""
                return f"unknown option {name!r}; {meant}"
        return ""

    @hidden_traceback()
    def schema(self) -> str:
        return self._read_provider().schema(self.options)

    @hidden_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        return self._read_provider().reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return self._read_provider().stream_reader(self.options, schema)
        except omq.OmqError as error:
            return _FailedReader(error)

    @hidden_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return self._write_provider(schema).writer(self.options, schema, overwrite)

    @hidden_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return self._write_provider(schema).stream_writer(self.options, schema, overwrite)

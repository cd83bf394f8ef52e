"""The base class of the options of one read or write, for every kind of endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pyspark.sql.types import StructField, StructType

import omq
from omq.spark.options import MAX_ARROW_BYTES, MIB, READS, Option, OptionSet, at_most, count, flag, size, words

#: The options of every kind of endpoint.
SHARED_OPTIONS: Final = (
    Option("columns", READS, words, "names of columns, separated by commas"),
    Option("batchBytes", READS, at_most(MAX_ARROW_BYTES, size), "bytes above 0 (16m is 16 MiB), 1g at most"),
)
WHOLE_NUMBER: Final = (count, "a whole number above 0")
BYTES: Final = (size, "bytes above 0 (16m is 16 MiB)")
FLAG: Final = (flag, "true or false")


def read_secret(option: str, path: str) -> str:
    """Returns the text of a file with a key or a password.

    Raises:
        OptionError: The file cannot be read, or is not text in UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise omq.OptionError(f"option {option}={path!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise omq.OptionError(f"option {option}={path!r}: the file is not text in UTF-8") from None


def check_endpoint(option: str, endpoint: str, kind: omq.SocketType) -> None:
    """Raises an `OptionError` for an endpoint that a socket in Spark cannot `bind` or `connect` to."""
    try:
        omq.check_endpoint(endpoint, bind=option == "bind", socket_type=kind)
    except omq.EndpointError as error:
        raise omq.OptionError(f"option {option!r}: {error}") from None
    if endpoint.startswith("inproc:"):
        raise omq.OptionError(
            f"option {option}={endpoint!r}: inproc stays within a process, and Spark's tasks have several; use"
            " ipc or tcp"
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one read or write.

    Attributes:
        OPTIONS: The known options.
        COLUMNS: The columns of a read and their types, in the order of the default schema.
        NULLABLE: A clause about nulls, after the schema in errors.
        use: `read`, `readStream`, `write` or `writeStream`.
        columns: Names of the columns; empty for the default ones.
        batch_bytes: The approximate size of a record batch.
        max_rows: The maximum number of rows of a read or a microbatch; `None` for no limit.
        max_bytes: The maximum number of bytes of a read or a microbatch, approximately; `None` for no limit.
        fail_on_data_loss: Whether lost messages fail the query; otherwise they are logged.
        options: The options of the socket itself.
    """

    OPTIONS: ClassVar[OptionSet]
    COLUMNS: ClassVar[Mapping[str, str]]
    NULLABLE: ClassVar = ""

    use: str
    columns: tuple[str, ...] = ()
    batch_bytes: int = 16 * MIB
    max_rows: int | None = None
    max_bytes: int | None = None
    fail_on_data_loss: bool = True
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, use: str, given: Mapping[str, str], *, limit_required: bool = True) -> Self:
        """Checks Spark's options.

        Args:
            use: `read`, `readStream`, `write` or `writeStream`.
            given: Texts by name; upper and lower case are the same.
            limit_required: Whether a batch read of a live socket needs a limit.

        Raises:
            OptionError: An option is unknown, not for this use, or missing, or a value is not valid.
        """
        own, options = cls.OPTIONS.parse(use, given)
        cls._check_together(use, own, options, limit_required)
        found = cls(use=use, options=tuple(sorted(options.items())), **cls._fields(use, own))
        found.check()
        return found

    @classmethod
    def streams(cls, given: Mapping[str, str]) -> bool:
        """Returns whether there are options that only a streaming read has.

        Raises:
            OptionError: An option is unknown, or not for reads.
        """
        return cls.OPTIONS.streams(given)

    @classmethod
    def _check_together(cls, use: str, own: dict[str, Any], options: dict[str, Any], limit_required: bool) -> None:
        """Raises an `OptionError` for options that are missing, or exclude or need each other."""
        raise NotImplementedError

    @classmethod
    def _fields(cls, use: str, own: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields for the endpoint's own options: `maxRowsPerTrigger` becomes `max_rows`."""
        return {re.sub("[A-Z]", r"_\g<0>", name.removesuffix("PerTrigger")).lower(): own[name] for name in own}

    def check(self) -> None:
        """Raises an `OptionError` for values that are not valid, or that cannot be combined."""
        known = self._known_columns()
        for name in self.columns:
            if name not in known:
                raise omq.OptionError(f"option columns={name!r}: expected one of {', '.join(known)}")
        if len(set(self.columns)) < len(self.columns):
            raise omq.OptionError(f"option columns={','.join(self.columns)!r}: a name is given twice")

    def _known_columns(self) -> tuple[str, ...]:
        return tuple(self.COLUMNS)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns of a read."""
        return self.columns or tuple(self.COLUMNS)

    @property
    def schema(self) -> str:
        """The schema of a read, as Spark writes it."""
        return ", ".join(f"{name} {self.COLUMNS[name]}" for name in self.read_columns)

    def selected(self, wanted: StructType) -> Self:
        """Returns the settings with the columns of a schema that the user may have given.

        Raises:
            OptionError: A column is unknown, or has another type.
        """
        chosen = replace(self, columns=tuple(wanted.fieldNames()))
        chosen.check()
        if not all(map(self._fits, wanted.fields)):
            raise omq.OptionError(
                f"the schema does not match: a read of these columns has {chosen.schema}{self.NULLABLE}; use that"
            )
        return chosen

    def _fits(self, field: StructField) -> bool:
        """Returns whether the type of a column is that of a read."""
        return bool(field.dataType.simpleString() == self.COLUMNS[field.name])

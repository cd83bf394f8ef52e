"""The PySpark version that the data source needs."""

from __future__ import annotations

import re
from typing import Any, Final

import pyspark
from pyspark.sql.datasource import DataSource

import omq

#: The first release with admission control for Python sources.
OLDEST_PYSPARK: Final = (4, 2)


def is_supported() -> bool:
    """Returns whether the installed PySpark is new enough."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is None or (int(found[1]), int(found[2])) >= OLDEST_PYSPARK


def require_pyspark() -> None:
    """Checks the installed PySpark.

    Raises:
        StateError: It is older than `OLDEST_PYSPARK`.
    """
    if not is_supported():
        needed = ".".join(map(str, OLDEST_PYSPARK))
        raise omq.StateError(
            f"omq.spark needs PySpark {needed} or newer, and {pyspark.__version__} is installed:"
            f" pip install 'pyspark>={needed}'"
        )


class UnsupportedSource(DataSource):
    """The data source `omq` for a PySpark that is too old: every use of it raises the reason.

    Spark does not report an error during its search for data sources, only DATA_SOURCE_NOT_FOUND.
    """

    def __init__(self, options: Any) -> None:
        require_pyspark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "omq"

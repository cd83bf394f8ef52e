"""The Spark query of `demo_replicated.py`, a process of its own: it copies a topic to another one, exactly once."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from child_processes import Child, end_with_input

TIMEOUT_S: Final = 60  # of its clients


class CopyQuery(Child):
    """The process. Leaving the block kills it with its JVM.

    Args:
        folder: The directory of its log, its checkpoint and its temporary files.
        endpoints: Those of all brokers.
        source: The topic that it reads.
        sink: The topic that it writes.
    """

    def __init__(self, folder: Path, endpoints: list[str], source: str, sink: str) -> None:
        super().__init__("Spark query", __file__, folder, ",".join(endpoints), source, sink, log=folder / "query.log")

    def check(self) -> None:
        """Raises an error if the query has ended.

        Raises:
            ChildError: It has.
        """
        if self.status is not None:
            raise self.error(f"has ended with status {self.status}")

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        super().__exit__(*error)


def copy(folder: str, endpoints: str, source: str, sink: str) -> None:
    """Copies the topic until it is killed."""
    from demo_spark import session

    os.environ["SPARK_LOCAL_DIRS"] = folder
    os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:-UsePerfData -Djava.io.tmpdir={folder}"
    spark = session()
    reader = spark.readStream.format("omq").option("connect", endpoints).option("topic", source)
    frame = reader.option("startingOffsets", "earliest").option("columns", "value").option("timeout", TIMEOUT_S).load()
    writer = frame.writeStream.format("omq").option("connect", endpoints).option("topic", sink)
    writer.option("checkpointLocation", f"{folder}/checkpoint").option("timeout", TIMEOUT_S).start().awaitTermination()


if __name__ == "__main__":
    end_with_input()
    copy(*sys.argv[1:])

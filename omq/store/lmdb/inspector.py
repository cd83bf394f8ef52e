"""Read-only access to a store that no process has open."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator

from omq._core import blocks
from omq._core.blocks import Message
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import Append
from omq.store.lmdb.applier import Applier
from omq.store.lmdb.catalog import ENGINES, REPLICA_ENGINES, Catalog, StoredTopic
from omq.store.lmdb.data_file import DATA_FILE, check_structure, read_meta
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.layout import PIECE, STAGE, Applied, description, id_ranges, without_checksum
from omq.store.lmdb.opening import check_tails
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.store_directory import StoreDirectory
from omq.store.lmdb.wal import read_log


class Inspector:
    """The files of a store. A context manager.

    Args:
        directory: The directory of the store.
        limit: The effort above which the trees of an environment are not checked; see `check_structure`.

    Attributes:
        format: The file `format` of the store.
        id: The id of the store.
        clean_shutdown: The last process to open the store has closed it.
        catalog: All topics.
        topics: The topics by id, without damaged ones. Transient topics have no records.
        unchecked: A sentence for each environment whose trees were not checked.

    Raises:
        StoreLocked: Another process has the store open.
        DamagedError: The files are damaged: LMDB must not open them.
    """

    def __init__(self, directory: str | os.PathLike[str], limit: int | None = None) -> None:
        self._directory = StoreDirectory(directory, readonly=True)
        self.format = self._directory.format
        self.id = self._directory.id
        self.clean_shutdown = self._directory.clean_shutdown
        self.catalog = Catalog(REPLICA_ENGINES if self.format.replica else ENGINES)
        self.topics: dict[int, StoredTopic] = {}
        self.unchecked: list[str] = []
        self._environments: dict[str, Environment] = {}
        self._logged: defaultdict[int, list[Append]] = defaultdict(list)  # appends that are only in the write-ahead log
        try:
            self._open(limit)
        except BaseException:
            self.close()
            raise

    def _open(self, limit: int | None) -> None:
        for name in ("strong", "weak"):
            where = self._directory.directory / name
            if read_meta(where / DATA_FILE) is None:
                raise DamagedError(f"{where / DATA_FILE}: damaged: the file is missing, or empty")
            self.unchecked += check_structure(where, limit)
            self._environments[name] = Environment(where, sync=False, readonly=True)
        catalog = self.catalog
        applier = Applier(None, lambda topic, last: None, self._directory.clock)
        with self._environments["strong"].read() as strong, self._environments["weak"].read() as weak:
            catalog.load(strong)
            for topic in catalog.topics.values():
                if topic.engine != "memory":
                    try:
                        applier.load(strong if topic.engine == "strong" else weak, topic)
                    except DamagedError as error:
                        catalog.damaged[topic.id] = error
        self.topics = {id: topic for id, topic in catalog.topics.items() if id not in catalog.damaged}
        for write in read_log(self._directory.directory / "weak", self.id):
            if write.topic_id in self.topics and write.first > self.topics[write.topic_id].last:
                self._logged[write.topic_id].append(write)

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files and releases the lock of the directory."""
        for environment in self._environments.values():
            environment.close()
        self._directory.release()

    def environment(self, topic: StoredTopic) -> Environment:
        """Returns the environment of a topic."""
        return self._environments["strong" if topic.engine == "strong" else "weak"]

    @property
    def applied(self) -> Applied:
        """The last entry of the journal that a replica has applied. Raises `DamagedError`."""
        with self._environments["strong"].read() as reading:
            return Applied.load(reading)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of each data file, and the bytes of it in use."""
        return {name: environment.sizes() for name, environment in self._environments.items()}

    def find(self, name: str) -> StoredTopic:
        """Returns a topic by its name."""
        for topic in self.topics.values():
            if topic.name == name:
                return topic
        raise StoreError(f"there is no topic {name!r}")

    def known_damage(self) -> list[str]:
        """Returns sentences about damage that is recorded, or that opening the store has found."""
        found = [str(error) for error in self.catalog.damaged.values()]
        for topic in self.topics.values():
            found += [str(error) for error in check_tails(self.environment(topic), [topic])]
        for environment in self._environments.values():
            with environment.read() as reading:
                found += [
                    f"topic {self.topics[id].name!r}: ids {first} to {last} are damaged"
                    for id, first, last in id_ranges(reading, b"q")
                    if id in self.topics
                ]
        return found

    def check_rows(self) -> list[DamagedError]:
        """Returns the damage of all rows except messages. A topic with such damage may be missing in `topics`."""
        return [error for environment in self._environments.values() for error in _check_rows(environment)]

    def check(self, topic: StoredTopic) -> tuple[int, int, list[DamagedError]]:
        """Reads a whole topic; returns the number of its records, their bytes, and the damaged ranges."""
        records = size = 0
        damaged: list[DamagedError] = []
        for found in self._blocks(topic, topic.first):
            if isinstance(found, DamagedError):
                damaged.append(found)
            else:
                records += blocks.read_header(found[0])[1]
                size += len(found[1])
        return records, size, damaged

    def messages(self, topic: StoredTopic, start: int = 0, stop: int = 0) -> Iterator[Message | DamagedError]:
        """Yields the messages of a topic in order, and an error for each damaged range."""
        for found in self._blocks(topic, max(start, topic.first), stop):
            if isinstance(found, DamagedError):
                yield found
            else:
                decoded: list[Message] = blocks.decode(*found, topic.name)
                yield from (message for message in decoded if start <= message.id and not 0 < stop <= message.id)

    def _blocks(
        self, topic: StoredTopic, start: int, stop: int = 0
    ) -> Iterator[tuple[bytes, bytes | memoryview] | DamagedError]:
        """Yields header and records of each block, or an error for a damaged range; the write-ahead log's come last."""
        if topic.engine == "memory":
            return
        while start <= topic.last:
            dense = topic.engine == "strong"
            with LmdbReader(self.environment(topic), topic.id, dense, lambda error: None) as reader:
                try:
                    for header, records in reader.blocks(start, stop):
                        first, count, _, _ = blocks.read_header(header)
                        start = first + count
                        yield header, records
                    break
                except DamagedError as error:
                    damage = error
                except StoreError as error:
                    damage = DamagedError(str(error), topic.id, start, topic.last)
            yield damage
            start = damage.last + 1
        for write in self._logged[topic.id]:
            yield blocks.header(write.first, write.count, write.timestamp, len(write.records)), write.records


def _check_rows(environment: Environment) -> list[DamagedError]:
    """Verifies every row except blocks, which `Inspector.check` reads; returns the damage."""
    found: list[DamagedError] = []
    stages: set[int] = set()
    with environment.read() as reading:
        for raw, value in reading.cursor():
            key, kind = bytes(raw), bytes(raw[:1])
            try:
                if kind == b"g":
                    _, stage, _, _, count = PIECE.unpack(key)
                    if stage in stages and (records := blocks.check(value, len(value))) != count:
                        raise ValueError(f"it has {records} records; expected {count}")
                elif kind == b"G":
                    stages.add(STAGE.unpack(without_checksum(key, value))[0])
                elif kind != b"b":
                    without_checksum(key, value)
            except (DamagedError, ValueError, struct.error) as error:
                why = "" if isinstance(error, DamagedError) else f"{description(key)} is damaged: "
                found.append(DamagedError(f"{environment.path}: {why}{error}"))
    return found

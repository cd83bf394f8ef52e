"""A store that nobody has open, looked at without changing it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

from omq._core import blocks
from omq._core.blocks import Message
from omq.store.errors import DamagedError, StoreError
from omq.store.interface import Append
from omq.store.lmdb.catalog import Catalog
from omq.store.lmdb.data_file import look
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.ledger import Ledger
from omq.store.lmdb.notes import look as look_at_notes
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.session import Session
from omq.store.lmdb.topic import Topic
from omq.store.lmdb.verify import check_rows, check_structure, check_topic


class Offline:
    """The files of a store. A context manager.

    Args:
        directory: Where it is.

    Attributes:
        id: Of the store.
        orderly: It was closed in order.
        topics: Its topics, by id; transient ones have nothing.

    Raises:
        StoreLocked: A broker has it open.
        DamagedError: LMDB may not open it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._session = Session(directory, readonly=True)
        self.id = self._session.id
        self.orderly = self._session.orderly
        self.topics: dict[int, Topic] = {}
        self._environments: dict[str, Environment] = {}
        self._noted: defaultdict[int, list[Append]] = defaultdict(list)  # what whoever opens it next will write
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for name in ("strong", "weak"):
            where = self._session.directory / name
            if look(where / "data.mdb") is None:
                raise DamagedError(f"{where / 'data.mdb'}: damaged: the file is missing, or empty")
            check_structure(where)
            self._environments[name] = Environment(where, sync=False, readonly=True)
        catalog = Catalog()
        ledger = Ledger(None, lambda topic, last: None, self._session.clock)
        with self._environments["strong"].read() as strong, self._environments["weak"].read() as weak:
            catalog.load(strong)
            for topic in catalog.topics.values():
                if topic.persistence != "transient":
                    try:
                        ledger.load(strong if topic.persistence == "strong" else weak, topic)
                    except DamagedError as error:
                        catalog.damaged[topic.id] = error
        self.topics = {id: topic for id, topic in catalog.topics.items() if id not in catalog.damaged}
        noted, _, _, file = look_at_notes(self._session.directory / "weak" / "notes", self.id)
        if file >= 0:
            os.close(file)
        for write in noted:
            if write.topic_id in self.topics and write.first > self.topics[write.topic_id].last:
                self._noted[write.topic_id].append(write)

    def __enter__(self) -> Offline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the directory back."""
        for environment in self._environments.values():
            environment.close()
        self._session.end()

    def environment(self, topic: Topic) -> Environment:
        """Where a topic is."""
        return self._environments["strong" if topic.persistence == "strong" else "weak"]

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Bytes of each file, and bytes of it in use."""
        return {name: environment.sizes() for name, environment in self._environments.items()}

    def find(self, name: str) -> Topic:
        """A topic by its name."""
        for topic in self.topics.values():
            if topic.name == name:
                return topic
        raise StoreError(f"there is no topic {name!r}")

    def check_rows(self) -> list[DamagedError]:
        """What is damaged of all that is no message; a topic of which such a row is damaged may not be in `topics`."""
        return [error for environment in self._environments.values() for error in check_rows(environment)]

    def check(self, topic: Topic) -> tuple[int, int, list[DamagedError]]:
        """Reads a topic from end to end: its records, their bytes, and what is damaged."""
        if topic.persistence == "transient":
            return 0, 0, []
        records, size, damaged = check_topic(self.environment(topic), topic)
        noted = self._noted[topic.id]
        records += sum(write.count for write in noted)
        return records, size + sum(len(write.records) for write in noted), damaged

    def messages(self, topic: Topic, start: int = 0, stop: int = 0) -> Iterator[Message | DamagedError]:
        """Messages of a topic, and in between what is damaged of it."""
        if topic.persistence == "transient":
            return
        start = max(start, topic.first)
        while start <= topic.last:
            dense = topic.persistence == "strong"
            with LmdbReader(self.environment(topic), topic.id, dense, lambda error: None) as reader:
                try:
                    for header, records in reader.blocks(start, stop):
                        start = int.from_bytes(header[8:16], "big") + int.from_bytes(header[4:8], "big")
                        yield from blocks.decode(header, records, topic.name)
                    break
                except DamagedError as error:
                    found = error
                except StoreError as error:
                    found = DamagedError(str(error), topic.id, start, topic.last)
            yield found
            start = found.last + 1
        for write in self._noted[topic.id]:
            header = blocks.header(write.first, write.count, write.timestamp, len(write.records))
            noted: list[Message] = blocks.decode(header, write.records, topic.name)
            yield from (message for message in noted if start <= message.id and not 0 < stop <= message.id)

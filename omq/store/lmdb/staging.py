"""Stages: records that wait for a commit. They are written once and published by reference."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from omq.store.block_builder import pieces
from omq.store.errors import DamagedError, StageError
from omq.store.interface import MAX_SEQUENCE, CommitStages, Stage
from omq.store.lmdb.layout import NEXT_STAGE, NUMBER, PIECE, STAGE, rows, with_checksum, without_checksum

STAGE_RETENTION_US: Final = 86_400_000_000  # of an uncommitted stage
COMMIT_RETENTION_US: Final = 30 * STAGE_RETENTION_US  # of the name of a commit


class Stages:
    """The stages of an environment, and its commits."""

    def put(self, transaction: Any, write: Stage, now: int) -> None:
        """Stores records in a stage, unless it has their sequence."""
        key = b"G" + write.stage
        row = transaction.get(key)
        if write.sequence > MAX_SEQUENCE:
            raise StageError(f"sequence={write.sequence} is above {MAX_SEQUENCE}, the highest in a stage")
        if row is None:
            number, made, highest = self._number(transaction), now, 0
        else:
            number, topic_id, made, highest = STAGE.unpack(without_checksum(key, row))
            if topic_id != write.topic_id:
                raise StageError("the stage {} belongs to another topic", write.stage)
        sequence = write.sequence or highest + 1
        if sequence > MAX_SEQUENCE:
            raise StageError("the stage {} has used all sequences", write.stage)
        if sequence <= highest and next(self._pieces(transaction, number, sequence), None) is not None:
            return
        for part, (piece, count) in enumerate(pieces(write.records, write.count)):
            transaction.put(PIECE.pack(b"g", number, sequence, part, count), piece)
        transaction.put(key, with_checksum(key, STAGE.pack(number, write.topic_id, made, max(highest, sequence))))

    @staticmethod
    def _number(transaction: Any) -> int:
        """Returns the number of a new stage."""
        row = transaction.get(NEXT_STAGE)
        number: int = NUMBER.unpack(without_checksum(NEXT_STAGE, row))[0] if row is not None else 1
        transaction.put(NEXT_STAGE, with_checksum(NEXT_STAGE, NUMBER.pack(number + 1)))
        return number

    @staticmethod
    def _pieces(transaction: Any, number: int, sequence: int | None = None) -> Iterator[tuple[bytes, int, int]]:
        """Yields key, count and size of each piece of a stage, in order, of one sequence or of all."""
        prefix = b"g" + NUMBER.pack(number) + (b"" if sequence is None else NUMBER.pack(sequence))
        for key, value in rows(transaction, prefix):
            yield key, PIECE.unpack(key)[4], len(value)

    def find(self, transaction: Any, stage: bytes) -> tuple[int, int] | None:
        """Returns the number and the topic id of a stage; `None` for an unknown name."""
        key = b"G" + stage
        row = transaction.get(key)
        if row is None:
            return None
        number, topic_id, _, _ = STAGE.unpack(without_checksum(key, row))
        return number, topic_id

    def measure(self, transaction: Any, number: int) -> tuple[int, int]:
        """Returns the number of records of a stage, and their bytes."""
        records = total = 0
        for _, count, size in self._pieces(transaction, number):
            records += count
            total += size
        return records, total

    def publish(self, transaction: Any, stage: bytes) -> list[tuple[bytes, int, int]]:
        """Deletes a stage and returns its pieces, which stay stored."""
        found = self.find(transaction, stage)
        assert found is not None
        transaction.delete(b"G" + stage)
        return list(self._pieces(transaction, found[0]))

    def drop(self, transaction: Any, stage: bytes) -> None:
        """Deletes a stage and its pieces."""
        for key, _, _ in self.publish(transaction, stage):
            transaction.delete(key)

    def drop_all(self, transaction: Any, prefix: bytes) -> None:
        """Deletes the stages whose names have a prefix."""
        for key in [key for key, _ in rows(transaction, b"G" + prefix)]:
            self.drop(transaction, key[1:])

    def known(self, transaction: Any, commit: bytes) -> tuple[list[tuple[bytes, int, int, int]], dict[int, str]] | None:
        """Returns `published` and `names` of an earlier commit of this name; `None` for a new name."""
        key = b"c" + commit
        row = transaction.get(key)
        if row is None:
            return None
        found = json.loads(without_checksum(key, row))
        names = {int(id): name for id, name in found.get("names", {}).items()}
        return [(b64decode(stage), *rest) for stage, *rest in found["published"]], names

    def record(self, transaction: Any, write: CommitStages, now: int) -> None:
        """Stores the result of a commit."""
        key = b"c" + write.commit
        some = [(b64encode(stage).decode(), *rest) for stage, *rest in write.published]
        transaction.put(
            key, with_checksum(key, json.dumps({"at": now, "published": some, "names": write.names}).encode())
        )

    def drop_old(self, transaction: Any, now: int, limit: int) -> int:
        """Deletes at most `limit` uncommitted stages and names of commits that are too old; returns their number."""
        stages = list(
            islice((stage for stage, _, made in self._all(transaction) if made < now - STAGE_RETENTION_US), limit)
        )
        commits: list[bytes] = []
        for key, value in rows(transaction, b"c"):
            with suppress(DamagedError, ValueError, KeyError):
                if json.loads(without_checksum(key, value))["at"] < now - COMMIT_RETENTION_US:
                    commits.append(key)
            if len(commits) == limit:
                break
        for stage in stages:
            self.drop(transaction, stage)
        for key in commits:
            transaction.delete(key)
        return len(stages) + len(commits)

    def drop_topic(self, transaction: Any, topic_id: int) -> None:
        """Deletes the stages of a topic."""
        for stage in [stage for stage, topic, _ in self._all(transaction) if topic == topic_id]:
            self.drop(transaction, stage)

    @staticmethod
    def _all(transaction: Any) -> Iterator[tuple[bytes, int, int]]:
        """Yields name, topic id and time of creation of each stage. Skips a damaged one; calls that name it raise."""
        for key, value in rows(transaction, b"G"):
            with suppress(DamagedError, struct.error):
                _, topic_id, made, _ = STAGE.unpack(without_checksum(key, value))
                yield key[1:], topic_id, made

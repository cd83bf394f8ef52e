"""Snapshots in the object store of JetStream, in the format that `nats object` reads.

An object consists of chunks under a subject of its own, and of metadata that name this subject. So a new snapshot
replaces the old one at once, when its metadata do. They do that only if no other snapshot has come in between, and only
then chunks that no metadata name are deleted: those of the old snapshot, and of uploads that were interrupted.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import tarfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple, cast
from uuid import uuid4

from omq.executor import in_thread
from omq.store.errors import DamagedError, StoreError
from omq.store.lmdb.store_directory import sync_directory
from omq.store.replication.journal import JournalUnavailable, JournalUnusable
from omq.store.replication.nats_connection import (
    NO_MESSAGE,
    PROBE_TIMEOUT_S,
    SEQUENCE_IN_USE,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    NatsApiError,
    NatsConnection,
    Window,
    result,
)
from omq.store.replication.nats_consumer import RETRY_DELAY_S, consume

CHUNK_BYTES: Final = 256 * 1024
MAX_UPLOADS: Final = 3
_NAME: Final = "snapshot"
_POSITION: Final = "Omq-Position"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


class _Snapshot(NamedTuple):
    """The newest snapshot, as its metadata describe it."""

    sequence: int  # of the metadata
    position: int
    nuid: str
    chunks: int
    size: int
    digest: str


class NatsSnapshots:
    """The snapshots of a cluster.

    Args:
        connection: The connection.
        bucket: The name of the bucket.
        replicas: The servers that keep a copy.
        metadata: What the stream of the bucket is marked with.
    """

    def __init__(self, connection: NatsConnection, bucket: str, replicas: int, metadata: dict[str, str]) -> None:
        self._connection = connection
        self._stream = f"OBJ_{bucket}"
        self._chunks = f"$O.{bucket}.C."
        self._meta = f"$O.{bucket}.M.{base64.urlsafe_b64encode(_NAME.encode()).decode()}"
        self._bucket = bucket
        self._config = {
            "name": self._stream,
            "subjects": [f"{self._chunks}>", f"$O.{bucket}.M.>"],
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": False,
            "metadata": metadata,
        }

    async def position(self) -> int | None:
        """Returns the position of the newest snapshot; None if there is no snapshot."""
        newest = await self._newest()
        return newest and newest.position

    async def put(
        self, position: int, directory: Path, progress: Callable[[int, int], None] | None, *, always: bool = False
    ) -> int:
        """Stores the files of a directory as the newest snapshot, unless there is one of a later position.

        Args:
            position: The position of the snapshot.
            directory: Its directory.
            progress: Called with the bytes that were sent, and their total.
            always: Also replace a snapshot of a later position.

        Returns:
            The position of the snapshot that it replaces; 0 if it replaces none.
        """
        for _ in range(MAX_UPLOADS):
            old = await self._newest()
            if old is not None and old.position > position and not always:
                return 0
            if await self._replace(old, position, directory, progress):
                return 0 if old is None else old.position
        raise JournalUnavailable(f"the snapshot of the position {position} is not stored: other nodes store theirs")

    async def _replace(
        self, old: _Snapshot | None, position: int, directory: Path, progress: Callable[[int, int], None] | None
    ) -> bool:
        """Stores a snapshot; returns False if another one has come in between."""
        await self._created()
        nuid = uuid4().hex
        size, chunks, digest = await self._upload(nuid, directory, progress)
        unused = await self._subjects() - {self._chunks + nuid}
        meta = {
            "name": _NAME,
            "bucket": self._bucket,
            "nuid": nuid,
            "size": size,
            "chunks": chunks,
            "digest": f"SHA-256={base64.urlsafe_b64encode(digest).decode()}",
            "headers": {_POSITION: [str(position)]},
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        headers = {"Nats-Rollup": "sub", _EXPECTED: str(old.sequence if old else 0)}
        try:
            await self._publish([(self._meta, json.dumps(meta).encode(), headers)])
        except NatsApiError as error:
            if error.code not in (WRONG_LAST_SEQUENCE, SEQUENCE_IN_USE):
                raise
            return False  # the next one deletes these chunks
        # Uploads that have begun before the metadata were replaced cannot replace them again.
        for subject in unused:
            await self._connection.call(f"STREAM.PURGE.{self._stream}", {"filter": subject})
        return True

    async def get(self, target: Path, progress: Callable[[int, int], None] | None) -> int | None:
        """Copies the newest snapshot to a directory, and returns its position; None if there is no snapshot."""
        while (newest := await self._newest()) is not None:
            partial = target.with_name(f"{target.name}.{newest.nuid}")
            try:
                await self._download(newest, partial, progress)
                partial.rename(target)
                sync_directory(target.parent)
                return newest.position
            except (DamagedError, JournalUnavailable):
                now = await self._newest()
                if now is None or now.nuid == newest.nuid:
                    raise
            finally:
                await in_thread(shutil.rmtree, partial, True)
        return None

    async def _created(self) -> None:
        """Creates the bucket if necessary, and waits until it has a leader."""
        deadline = time.monotonic() + self._connection.options.timeout
        while True:
            try:
                await self._create()
                # Nothing is stored, because no subject has a message with this sequence.
                await self._connection.request(f"{self._chunks}none", b"", {_EXPECTED: str(2**62)})
                return
            except JournalUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_DELAY_S)

    async def _create(self) -> None:
        try:
            await self._connection.call(f"STREAM.INFO.{self._stream}", timeout=PROBE_TIMEOUT_S, stay=True)
        except NatsApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            await self._connection.call(f"STREAM.CREATE.{self._stream}", self._config)

    async def _newest(self) -> _Snapshot | None:
        try:
            answer = await self._connection.call(f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._meta})
        except NatsApiError as error:
            if error.code in (STREAM_NOT_FOUND, NO_MESSAGE):
                return None
            raise
        message = answer["message"]
        meta = json.loads(base64.b64decode(message.get("data", "")))
        if meta.get("deleted"):
            return None
        try:
            return _Snapshot(
                message["seq"],
                int(meta["headers"][_POSITION][0]),
                meta["nuid"],
                meta["chunks"],
                meta["size"],
                meta["digest"],
            )
        except (KeyError, IndexError, ValueError) as error:
            raise JournalUnusable(
                f"the object {_NAME!r} of the bucket {self._bucket!r} is not a snapshot of omq; delete it"
            ) from error

    async def _subjects(self) -> set[str]:
        """Returns the subjects that have chunks."""
        found: set[str] = set()
        while True:
            request = {"subjects_filter": f"{self._chunks}>", "offset": len(found)}
            answer = await self._connection.call(f"STREAM.INFO.{self._stream}", request)
            subjects = answer["state"].get("subjects") or {}
            found.update(subjects)
            if not subjects or len(found) >= answer.get("total", 0):
                return found

    async def _publish(self, messages: list[tuple[str, bytes, dict[str, str] | None]]) -> None:
        for answer in await self._connection.send(messages):
            _check(result(await answer, self._stream).data)

    async def _upload(
        self, nuid: str, directory: Path, progress: Callable[[int, int], None] | None
    ) -> tuple[int, int, bytes]:
        """Sends the chunks, and returns their bytes, number and checksum."""
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        window = Window()
        total = await in_thread(_size, directory)
        stopped = False

        async def send(chunk: bytes, done: int) -> None:
            if stopped:
                raise StoreError("the upload was cancelled")
            while len(waiting) >= window.size:
                answer, began = waiting.popleft()
                _check(result(await answer, self._stream).data)
                window.adapt(time.monotonic() - began)
            began = time.monotonic()
            (answer,) = await self._connection.send([(self._chunks + nuid, chunk, None)])
            waiting.append((answer, began))
            if progress is not None:
                progress(min(done, total), total)

        size = min(CHUNK_BYTES, self._connection.max_payload)
        writer = _ChunkWriter(size, lambda *given: _in_loop(loop, send(*given)))
        try:
            await in_thread(_write_tar, directory, writer)
        finally:
            stopped = True  # the thread does not end with a cancelled task
        for answer, _ in waiting:
            _check(result(await answer, self._stream).data)
        return writer.size, writer.chunks, writer.digest.digest()

    async def _download(self, newest: _Snapshot, target: Path, progress: Callable[[int, int], None] | None) -> None:
        async def begin(_: int) -> None:
            found = await self._connection.call(f"STREAM.INFO.{self._stream}", {"subjects_filter": subject})
            if (found["state"].get("subjects") or {}).get(subject) != newest.chunks:
                raise DamagedError(f"the snapshot of the position {newest.position} has lost chunks")

        left = newest.chunks
        subject = self._chunks + newest.nuid
        messages = consume(self._connection, self._stream, 0, begin, lambda _: left > 0, subject)
        done = 0
        digest = hashlib.sha256()
        stopped = False

        async def receive() -> bytes:
            nonlocal left, done
            if stopped:
                raise StoreError("the download was cancelled")
            if not left:
                return b""
            left -= 1
            chunk = (await anext(messages)).data
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, newest.size)
            return chunk

        loop = asyncio.get_running_loop()
        reader = _ChunkReader(lambda: cast("bytes", _in_loop(loop, receive())))
        try:
            await in_thread(_read_tar, reader, target)
        except tarfile.TarError as error:
            raise DamagedError(f"the snapshot of the position {newest.position} is damaged: {error}") from error
        finally:
            stopped = True
            with suppress(RuntimeError):  # the thread of a cancelled task still reads
                await messages.aclose()
        if left or newest.digest != f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}":
            raise DamagedError(f"the snapshot of the position {newest.position} differs from its checksum")


class _ChunkWriter:
    """A file for `tarfile` that sends what is written in chunks."""

    def __init__(self, limit: int, send: Callable[[bytes, int], object]) -> None:
        self.size = 0
        self.chunks = 0
        self.digest = hashlib.sha256()
        self._limit = limit
        self._send = send
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        while len(self._buffer) >= self._limit:
            self._flush()
        return len(data)

    def finish(self) -> None:
        if self._buffer:
            self._flush()

    def _flush(self) -> None:
        chunk = bytes(self._buffer[: self._limit])
        del self._buffer[: self._limit]
        self.digest.update(chunk)
        self.size += len(chunk)
        self.chunks += 1
        self._send(chunk, self.size)


class _ChunkReader:
    """A file for `tarfile` that reads chunks as they arrive."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size and (chunk := self._receive()):
            self._buffer += chunk
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def finish(self) -> None:
        """Reads what follows the end of the archive."""
        while self._receive():
            pass


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _write_tar(directory: Path, writer: _ChunkWriter) -> None:
    with tarfile.open(fileobj=cast("IO[bytes]", writer), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(directory).as_posix(), recursive=False)
    writer.finish()


def _read_tar(reader: _ChunkReader, target: Path) -> None:
    target.mkdir(parents=True)
    with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            source = archive.extractfile(member)
            if not member.isfile() or source is None or name.is_absolute() or ".." in name.parts:
                raise DamagedError(f"a snapshot has the file {member.name!r}, which is not one of a store")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
    reader.finish()
    for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        sync_directory(directory)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Any) -> Any:
    """Runs a coroutine in the loop for another thread, and returns its result."""
    try:
        return asyncio.run_coroutine_threadsafe(call, loop).result()
    except CancelledError as error:
        raise StoreError("the loop has ended") from error


def _check(data: bytes) -> None:
    answer = json.loads(data)
    if error := answer.get("error"):
        raise NatsApiError(error.get("err_code", 0), error.get("description", ""))

"""The journal of a cluster as a stream of NATS JetStream.

Which answers are certain. A server that was the leader of the stream, and does not know yet that it is not, still
answers. `STREAM.INFO` and `STREAM.MSG.GET` check only what the server believes to be, and an expected last sequence is
checked before the message is proposed to the other servers. So their answers may be old, and a message can be rejected
by the old leader and stored by the new one. Only these are certain:

- A positive answer to an append: a majority has the message, and all messages before it.
- A message that is read: its sequence never gets another one.

Therefore `last` appends a message without an entry and returns its sequence, and an append that was rejected for its
expected sequence reads which message has that sequence. Each message carries the nonce of its append.

JetStream has an error that a majority confirms, "wrong last msg ID", but a stream stops for good after it (2.15).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

from omq.store.errors import StoreError
from omq.store.replication.journal import (
    RESTORE,
    SERVERS_NEEDED,
    Fenced,
    JournalEntry,
    JournalUnavailable,
    JournalUnusable,
    Sending,
    Truncated,
)
from omq.store.replication.lease import DEFAULT_LEASE_S
from omq.store.replication.nats_connection import (
    NO_MESSAGE,
    PROBE_TIMEOUT_S,
    STORE_FAILED,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    NatsApiError,
    NatsConnection,
    NatsOptions,
    NoResponders,
    Window,
    result,
)
from omq.store.replication.nats_consumer import StreamMessage, consume
from omq.store.replication.nats_snapshots import NatsSnapshots

#: Bytes of one message at most; larger ones are slow to replicate.
MAX_CHUNK_BYTES: Final = 1024 * 1024
#: Bytes that `max_payload` of the servers must allow at least.
MIN_CHUNK_BYTES: Final = 4096
RETRY_DELAY_S: Final = 0.02
#: Seconds in which the leader of a stream answers, if there is one.
LEADER_TIMEOUT_S: Final = 0.2
#: Seconds for which the servers have to answer that the stream does not exist. The one that answers may have become
#: their leader, and not know yet of a stream that was just created.
MISSING_S: Final = 3.0

_VERSION: Final = 1
_ENTRY: Final = "Omq-Entry"  # the header with a `_Head`
_MORE: Final = 1  # a flag: another chunk follows
_NO_ENTRY: Final = 2  # a flag: this sequence has no entry
_EXPECTED: Final = "Nats-Expected-Last-Sequence"
_CLUSTER: Final = "omq-cluster"
_JOURNAL: Final = "omq-journal"
_LEASE: Final = "omq-lease"
#: The limits of a stream, by the description of the error for what exceeds them.
_LIMITS: Final = {"maximum messages exceeded": "max_msgs", "maximum bytes exceeded": "max_bytes"}
_log = logging.getLogger("omq.replication")


class NatsJournal:
    """The journal of a cluster of brokers, in a stream with replicas on several NATS servers.

    Use `NatsJournal.connect`.

    Args:
        connection: The connection.
        cluster: The name of the cluster.
        replicas: The servers that keep a copy.
        max_bytes: The bytes that the journal may take; -1 for no limit.
        sync_always: The operator states that all servers have `sync_interval: always`. Then an append is on the disks
            of a majority when it is acknowledged; otherwise in their memory. NATS reports the setting only at the
            monitoring port and to the system account, so a client of another account cannot check it.
        lease: The duration of the lease in seconds, if the stream does not exist yet.

    Attributes:
        sync_always: The statement of the operator.
        lease: The duration of the lease in seconds, as the stream has it. See `Journal`.
        failure: See `Journal`.
        identity: A random text that the stream got when it was created. Another text is another journal.
    """

    def __init__(
        self,
        connection: NatsConnection,
        cluster: str,
        replicas: int = 3,
        max_bytes: int = -1,
        sync_always: bool = False,
        lease: float = DEFAULT_LEASE_S,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", cluster):
            raise ValueError(f"cluster: {cluster!r} is not a valid name; use up to 64 letters, digits, '-' and '_'")
        if not 0 < lease < math.inf:
            raise ValueError(f"lease: {lease} is not valid; expected a number of seconds above 0")
        self.sync_always = sync_always
        self.lease = lease
        self.failure = ""
        self.identity = ""
        self._connection = connection
        self._cluster = cluster
        self._stream = f"OMQ_{cluster}"
        self._subject = f"omq.journal.{cluster}"
        self._announced = f"omq.members.{cluster}"
        self._snapshots = NatsSnapshots(connection, f"omq_{cluster}", replicas, {_CLUSTER: cluster})
        self._missing_since: float | None = None  # when the servers answered that the stream does not exist
        self._last = 0  # the highest sequence that is known to be taken
        self._config: dict[str, Any] = {
            "name": self._stream,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_bytes": max_bytes,
            "max_age": 0,
            "discard": "new",
            "duplicate_window": 0,
            "allow_rollup_hdrs": False,
            "deny_delete": True,
            "deny_purge": False,
            "allow_direct": False,
        }

    @classmethod
    async def connect(
        cls,
        options: NatsOptions,
        cluster: str,
        *,
        replicas: int = 3,
        max_bytes: int = -1,
        sync_always: bool = False,
        lease: float = DEFAULT_LEASE_S,
        create: bool = True,
    ) -> NatsJournal:
        """Connects to the servers, and creates the stream or checks its settings.

        Args:
            options: The servers.
            cluster: The name of the cluster.
            replicas: The servers that keep a copy.
            max_bytes: The bytes that the journal may take; -1 for no limit.
            sync_always: The operator states that all servers have `sync_interval: always`.
            lease: The duration of the lease in seconds, if the stream does not exist yet; otherwise its own is used.
            create: Create the stream if it does not exist, unless there is a snapshot of an earlier one.

        Raises:
            JournalUnavailable: The servers do not answer.
            JournalUnusable: JetStream is not enabled, the stream has other settings, or it was deleted.
        """
        connection = NatsConnection(options)
        try:
            journal = cls(connection, cluster, replicas, max_bytes, sync_always, lease)
            await connection.open()
            await journal._open(create)
        except BaseException:
            await connection.close()
            raise
        return journal

    @classmethod
    async def check_missing(cls, options: NatsOptions, cluster: str) -> None:
        """Checks that the servers have no journal of a cluster.

        Raises:
            JournalUnavailable: The servers do not answer.
            JournalUnusable: The stream exists, or JetStream is not enabled.
        """
        connection = NatsConnection(options)
        try:
            journal = cls(connection, cluster)
            await connection.open()
            info = await journal._elected(lambda: journal._found(PROBE_TIMEOUT_S))
        finally:
            await connection.close()
        if info is not None:
            state = info["state"]
            raise JournalUnusable(
                f"the stream {journal._stream!r} exists, with the sequences {state['first_seq']} to "
                f"{state['last_seq']}; to replace it, stop the brokers, and delete it: "
                f"`nats stream rm {journal._stream}`"
            )

    @classmethod
    async def restore(
        cls,
        options: NatsOptions,
        cluster: str,
        position: int,
        snapshot: Path,
        first: bytes,
        *,
        replicas: int = 3,
        lease: float = DEFAULT_LEASE_S,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Begins a new journal after a snapshot. Call `check_missing` before.

        Args:
            options: The servers.
            cluster: The name of the cluster.
            position: The position of the snapshot, after which the journal begins.
            snapshot: The directory of the snapshot. It replaces any snapshot that the servers have.
            first: The first entry.
            replicas: The servers that keep a copy.
            lease: The duration of the lease in seconds.
            progress: Called with the bytes of the snapshot that were sent, and their total.

        Raises:
            JournalUnavailable: The servers do not answer.
            JournalUnusable: The stream exists, or the servers cannot keep it.
        """
        connection = NatsConnection(options)
        try:
            journal = cls(connection, cluster, replicas, lease=lease)
            await connection.open()
            await journal._restore(position, snapshot, first, progress)
        finally:
            await connection.close()

    async def _restore(
        self, position: int, snapshot: Path, first: bytes, progress: Callable[[int, int], None] | None
    ) -> None:
        try:
            await self._snapshots.put(position, snapshot, progress, always=True)
        except NatsApiError as error:
            raise error.explained("storing the snapshot") from error
        self._config["first_seq"] = position + 1
        await self._open(True)
        if (sequence := await self.append(first, position)) != position + 1:
            raise JournalUnusable(f"the stream {self._stream!r} begins at {sequence} instead of {position + 1}")

    async def append(self, payload: bytes | bytearray, expected: int, sending: Sending | None = None) -> int:
        """Appends an entry, and waits until a majority of the servers has it. See `Journal.append`."""
        if not payload:
            raise ValueError("payload: is empty; expected an entry")
        nonces: set[str] = set()
        deadline = time.monotonic() + self._connection.options.timeout
        start = expected  # all messages up to it are known
        assembler = _ChunkAssembler()
        while True:
            nonce = os.urandom(8).hex()
            nonces.add(nonce)
            chunks = self._chunks(payload, nonce)
            try:
                count, strays = await self._append(chunks, start, sending)
                if count == len(chunks):
                    last = start + count
                else:
                    for head, data in chunks[:count]:
                        assembler.add(head, data)
                    start += count
                    last, start = await self._find_append(nonces, start, assembler, strays)
            except NoResponders as error:
                await self._without_leader(error, deadline)
            else:
                if last:
                    self._last = max(self._last, last)
                    return last
                if count:
                    deadline = time.monotonic() + self._connection.options.timeout
                elif time.monotonic() > deadline:
                    break
            await asyncio.sleep(RETRY_DELAY_S)
        if (last := await self.last()) <= expected:
            raise self._backwards(last, expected)
        raise JournalUnavailable(
            f"append to the journal {self._stream!r}: its servers disagree whether {expected} is the last sequence"
        )

    async def read(self, after: int) -> AsyncIterator[JournalEntry]:
        """Yields all entries after a sequence. See `Journal.read`."""
        position = after  # of the last message that was read
        assembler = _ChunkAssembler()

        async def begin(_: int) -> None:
            await self._begin(position)

        def lags(_: int) -> bool:
            return self._last > position

        while True:
            async with aclosing(consume(self._connection, self._stream, position, begin, lags)) as messages:
                async for message in messages:
                    if message.sequence != position + 1:
                        break
                    position = message.sequence
                    self._last = max(self._last, position)
                    yield JournalEntry(position, assembler.add(self._head(message), message.data))
            await self._gap(position)

    async def last(self) -> int:
        """Returns the last sequence, confirmed by a majority. See `Journal.last`."""
        headers = {_ENTRY: str(_Head(False, True, 0, os.urandom(8).hex()))}
        deadline = time.monotonic() + self._connection.options.timeout
        known = self._last  # a reader may have this message before its acknowledgement arrives
        while True:
            (answer,) = await self._connection.send([(self._subject, b"", headers)])
            try:
                last: int = (await self._acknowledged(answer))["seq"]
                break
            except NoResponders as error:
                await self._without_leader(error, deadline)
            await asyncio.sleep(RETRY_DELAY_S)
        if last <= known:
            raise self._backwards(last, known)
        self._last = max(self._last, last)
        return last

    async def entry(self, sequence: int) -> bytes | None:
        """Returns the entry whose last chunk has a sequence. See `Journal.entry`."""
        if (message := await self._message(sequence)) is None:
            return None
        head = self._head(message)
        assembler = _ChunkAssembler()
        for earlier in range(sequence - (head.chunk if head is not None else 0), sequence):
            if (chunk := await self._message(earlier)) is None:
                return None
            assembler.add(self._head(chunk), chunk.data)
        return assembler.add(head, message.data) or b""

    async def size(self) -> int:
        """Returns the bytes that the journal keeps. See `Journal.size`."""
        return int((await self._checked(PROBE_TIMEOUT_S, stay=True))["bytes"])

    async def is_complete(self) -> bool:
        """Returns whether a new node can come to the state of the others. See `Journal.is_complete`."""
        first = int((await self._checked(PROBE_TIMEOUT_S, stay=True))["first_seq"])
        return first <= 1 or (await self._snapshot_position() or 0) >= first - 1

    async def truncate(self, below: int) -> None:
        """Drops the entries with sequences below this one. See `Journal.truncate`."""
        if below <= 1:
            return
        if below > self._last + 1 and below > (last := await self.last()) + 1:
            raise ValueError(f"below: {below} is not valid; the last sequence is {last}")
        await self._call("truncating the journal", f"STREAM.PURGE.{self._stream}", {"seq": below})

    async def put_snapshot(
        self, position: int, directory: Path, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Stores the files of a directory as the newest snapshot. See `Journal.put_snapshot`.

        Args:
            position: The sequence of the last entry that the snapshot contains.
            directory: The snapshot.
            progress: Called with the bytes that were sent, and their total.
        """
        try:
            return await self._snapshots.put(position, directory, progress)
        except NatsApiError as error:
            raise error.explained("storing a snapshot") from error

    async def get_snapshot(self, target: Path, progress: Callable[[int, int], None] | None = None) -> int | None:
        """Copies the newest snapshot to a directory. See `Journal.get_snapshot`.

        Args:
            target: The directory, which is created.
            progress: Called with the bytes that were received, and their total.

        Raises:
            DamagedError: The snapshot differs from its checksum.
        """
        try:
            return await self._snapshots.get(target, progress)
        except NatsApiError as error:
            raise error.explained("copying the newest snapshot") from error

    async def announce(self, payload: bytes) -> None:
        """Sends a message to all nodes that are connected now. See `Journal.announce`."""
        await self._connection.notify(self._announced, payload)

    async def announcements(self) -> AsyncGenerator[bytes, None]:
        """Yields what nodes announce. See `Journal.announcements`."""
        while not self._connection.closed:
            with suppress(JournalUnavailable):
                async with self._connection.subscribed(self._announced) as (_, queue):
                    while (message := await queue.get()) is not None:
                        yield message.data
            await asyncio.sleep(RETRY_DELAY_S)

    async def close(self) -> None:
        """Ends the connection."""
        await self._connection.close()

    async def _call(
        self,
        action: str,
        name: str,
        request: dict[str, Any] | None = None,
        timeout: float | None = None,
        stay: bool = False,
    ) -> Any:
        try:
            return await self._connection.call(name, request, timeout, stay)
        except NatsApiError as error:
            if error.code == STREAM_NOT_FOUND:
                raise self._missing() from error
            raise error.explained(action) from error

    async def _elected(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call until the servers have leaders, and returns its result."""
        deadline = time.monotonic() + self._connection.options.timeout
        while True:
            try:
                return await call()
            except JournalUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_DELAY_S)

    async def _open(self, create: bool) -> None:
        """Opens the stream as soon as the servers have leaders."""
        info = await self._elected(lambda: self._info(create))
        self._check(info)
        self.identity = info["config"]["metadata"][_JOURNAL]
        if (lease := float(info["config"]["metadata"][_LEASE])) != self.lease:
            _log.warning(
                "the cluster %r has a lease of %g s since its journal was created; lease=%g is ignored",
                self._cluster,
                lease,
                self.lease,
            )
            self.lease = lease
        if self._connection.max_payload < MIN_CHUNK_BYTES:
            raise JournalUnusable(
                f"max_payload of the NATS servers allows {self._connection.max_payload} bytes next to headers; "
                f"set at least {2 * MIN_CHUNK_BYTES}"
            )

    async def _info(self, create: bool) -> Any:
        if (info := await self._found(PROBE_TIMEOUT_S)) is not None:
            return info
        if not create:
            raise self._missing()
        if "first_seq" not in self._config and (position := await self._snapshot_position()) is not None:
            raise JournalUnusable(
                f"the stream {self._stream!r} was deleted, and its snapshot up to {position} is still there; {RESTORE}"
            )
        return await self._create()

    async def _found(self, timeout: float) -> Any:
        """Returns the answer to `STREAM.INFO`; None if the servers do not know the stream."""
        try:
            return await self._connection.call(f"STREAM.INFO.{self._stream}", timeout=timeout)
        except NoResponders as error:
            if self._connection.has_jetstream:
                raise
            raise JournalUnusable(
                "the NATS servers run without JetStream; add `jetstream { store_dir: ... }` to their configuration"
            ) from error
        except NatsApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise error.explained(f"opening the journal {self._stream!r}") from error
        return None

    async def _create(self) -> Any:
        metadata = {_CLUSTER: self._cluster, _JOURNAL: uuid4().hex, _LEASE: str(self.lease)}
        try:
            return await self._connection.call(f"STREAM.CREATE.{self._stream}", {**self._config, "metadata": metadata})
        except NatsApiError as error:
            if error.code == STREAM_NAME_IN_USE:
                raise JournalUnavailable(f"another node creates the journal {self._stream!r}") from error
            raise error.explained(f"creating the journal {self._stream!r}") from error

    def _check(self, info: Any) -> None:
        """Raises JournalUnusable if the stream is not the journal of this cluster, or its settings lose entries."""
        config = info["config"]
        metadata = config.get("metadata") or {}
        if metadata.get(_CLUSTER) != self._cluster or not metadata.get(_JOURNAL):
            raise JournalUnusable(
                f"the stream {self._stream!r} is not the journal of the cluster {self._cluster!r}: its metadata name "
                f"{metadata.get(_CLUSTER)!r}; choose another name for the cluster, or delete the stream"
            )
        wrong = [] if _is_lease(found := metadata.get(_LEASE, "")) else [f"{_LEASE} {found!r} in its metadata"]
        free = {"name", "duplicate_window", "max_bytes", "allow_direct", "num_replicas"}
        for name, wanted in self._config.items():
            found = config.get(name, False if isinstance(wanted, bool) else 0)
            if name not in free and found != wanted:
                wrong.append(f"{name} {found!r} instead of {wanted!r}")
        if (found := config.get("num_replicas", 1)) < (wanted := self._config["num_replicas"]):
            wrong.append(f"num_replicas {found} instead of {wanted}")
        if (found := config.get("max_msg_size", -1)) != -1:
            wrong.append(f"max_msg_size {found} instead of -1")
        if config.get("persist_mode", "default") not in ("", "default"):
            wrong.append(f"persist_mode {config['persist_mode']!r} instead of 'default'")
        wrong += [f"{name} set" for name in ("sealed", "mirror", "sources", "subject_transform") if config.get(name)]
        if wrong:
            raise JournalUnusable(
                f"the stream {self._stream!r} cannot be the journal: it has {', '.join(wrong)}; "
                f"change it with `nats stream edit {self._stream}`"
            )

    def _chunks(self, payload: bytes | bytearray, nonce: str) -> list[_Chunk]:
        limit = min(MAX_CHUNK_BYTES, self._connection.max_payload)
        count = max(1, -(-len(payload) // limit))
        size = -(-len(payload) // count)
        view = memoryview(payload)
        return [
            (_Head(index < count - 1, False, index, nonce), view[index * size : (index + 1) * size])
            for index in range(count)
        ]

    async def _append(
        self, chunks: list[_Chunk], expected: int, sending: Sending | None = None
    ) -> tuple[int, dict[int, _Stray]]:
        """Sends chunks.

        Returns:
            The number of those that were stored before one had another expected sequence; and those that were stored
            after it, as they were sent already, by their sequences.
        """
        in_flight: deque[tuple[int, asyncio.Future[Any], float, Callable[[], None]]] = deque()
        strays: dict[int, _Stray] = {}
        sent = stored = 0
        rejected = False
        window = Window()
        while in_flight or (sent < len(chunks) and not rejected):
            while sent < len(chunks) and len(in_flight) < window.size and not rejected:
                head, data = chunks[sent]
                headers = {_EXPECTED: str(expected + sent), _ENTRY: str(head)}
                renew = sending() if sending is not None else _nothing
                now = time.monotonic()
                (answer,) = await self._connection.send([(self._subject, data, headers)])
                in_flight.append((sent, answer, now, renew))
                sent += 1
            index, answer, began, renew = in_flight.popleft()
            try:
                sequence = (await self._acknowledged(answer))["seq"]
            except NatsApiError as error:
                if error.code != WRONG_LAST_SEQUENCE:
                    raise
                rejected = True
                continue
            if rejected:
                strays[sequence] = chunks[index], renew
                continue
            stored += 1
            if sequence != expected + stored:
                raise JournalUnusable(
                    f"the stream {self._stream!r} has stored a message at {sequence} instead of {expected + stored}"
                )
            renew()
            window.adapt(time.monotonic() - began)
        return stored, strays

    async def _acknowledged(self, future: asyncio.Future[Any]) -> Any:
        """Returns the answer to a message.

        Raises:
            NatsApiError: The message was rejected for its expected sequence.
            NoResponders: The stream has no leader, and did not get the message.
        """
        try:
            message = result(await future, self._subject)
        except NoResponders as error:
            if not self.failure:  # a leader without space refuses a message, and steps down
                self.failure = f"the journal {self._stream!r} has no leader: {SERVERS_NEEDED}"
            raise NoResponders(self.failure) from error
        stored = json.loads(message.data)
        if failure := stored.get("error"):
            rejected = NatsApiError(failure.get("err_code", 0), failure.get("description", ""))
            if rejected.code == WRONG_LAST_SEQUENCE:
                raise rejected
            # Another server may have stored the same message.
            self.failure = str(rejected.explained(f"append to the journal {self._stream!r}"))
            if limit := await self._limit(rejected):
                self.failure = f"{rejected}: the stream {self._stream!r} has {limit}; raise or remove this limit"
            raise JournalUnavailable(self.failure) from rejected
        if stored.get("stream") != self._stream:
            raise JournalUnusable(
                f"the stream {stored.get('stream')!r} has the subject {self._subject!r} of the journal; delete it"
            )
        self._missing_since = None
        self.failure = ""
        return stored

    async def _limit(self, error: NatsApiError) -> str:
        """Returns the limit of the stream that an append has reached, such as `max_msgs=1000`; empty if it has none."""
        name = _LIMITS.get(error.description) if error.code == STORE_FAILED else None
        if name is None:
            return ""
        try:
            config = (await self._connection.call(f"STREAM.INFO.{self._stream}", timeout=PROBE_TIMEOUT_S))["config"]
        except StoreError:
            return name
        return f"{name}={config.get(name)}"

    async def _without_leader(self, error: NoResponders, deadline: float) -> None:
        """Returns while there may be an election; raises an error after the deadline, or if the stream was deleted."""
        if time.monotonic() > deadline:
            raise error
        try:
            await self._checked(timeout=LEADER_TIMEOUT_S, stay=True)
        except JournalUnavailable:
            pass

    async def _find_append(
        self, nonces: set[str], last: int, assembler: _ChunkAssembler, strays: dict[int, _Stray]
    ) -> tuple[int, int]:
        """Reads what is stored after a sequence.

        Args:
            nonces: The nonces of an append.
            last: The sequence, up to which the messages after the one that the append expected at first are known.
            assembler: Has got these messages.
            strays: Chunks of the append that are known to be stored, by their sequences.

        Returns:
            The sequence at which its entry ends, 0 if it is not stored; and the last sequence that is known.

        Raises:
            Fenced: Another entry has one of its sequences.
        """
        state = await self._checked()
        if state["first_seq"] > last + 1:
            raise JournalUnavailable(f"the journal {self._stream!r} was truncated up to {state['first_seq'] - 1}")
        while True:
            head: _Head | None
            data: bytes | memoryview
            if (stray := strays.get(last + 1)) is not None:
                last += 1
                (head, data), renew = stray
                renew()
            elif (message := await self._message(last + 1)) is not None:
                last = message.sequence
                head, data = self._head(message), message.data
                if head is not None and head.nonce not in nonces and not head.no_entry:
                    end = max(last, state["last_seq"])
                    raise Fenced(f"the journal {self._stream!r} has another entry at {last}", end)
            else:
                return 0, last
            if assembler.add(head, data):
                return last, last

    async def _message(self, sequence: int) -> StreamMessage | None:
        """Returns a message; None if the server that answers does not have it."""
        try:
            answer = await self._connection.call(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence})
        except NatsApiError as error:
            if error.code == NO_MESSAGE:
                return None
            if error.code == STREAM_NOT_FOUND:
                raise self._missing() from error
            raise JournalUnavailable(str(error.explained(f"reading the sequence {sequence}"))) from error
        lines = base64.b64decode(answer["message"].get("hdrs", "")).decode(errors="replace").split("\r\n")
        headers = {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
        return StreamMessage(sequence, base64.b64decode(answer["message"].get("data", "")), headers)

    def _head(self, message: StreamMessage) -> _Head | None:
        """Returns the head of a message; None if it is not from a broker."""
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)\.(\w+)", message.headers.get(_ENTRY, ""))
        if found is None:
            _log.warning(
                "the message %d of the stream %s is not from a broker; restrict who may publish to %s",
                message.sequence,
                self._stream,
                self._subject,
            )
            return None
        version, flags, index = map(int, found.group(1, 2, 3))
        if version != _VERSION:
            raise JournalUnusable(
                f"the journal {self._stream!r} has entries of format {version}, this omq reads {_VERSION}; upgrade omq"
            )
        return _Head(bool(flags & _MORE), bool(flags & _NO_ENTRY), index, found[4])

    async def _checked(self, timeout: float | None = None, stay: bool = False) -> Any:
        """Returns the state of the stream, if it is still the same one."""
        info = await self._call("reading the journal", f"STREAM.INFO.{self._stream}", None, timeout, stay)
        if (info["config"].get("metadata") or {}).get(_JOURNAL) != self.identity:
            raise JournalUnusable(f"the stream {self._stream!r} was deleted and created again; {RESTORE}")
        self._missing_since = None
        return info["state"]

    async def _begin(self, position: int) -> None:
        """Checks that the messages after a position are there."""
        state = await self._checked(PROBE_TIMEOUT_S, stay=True)
        if (first := state["first_seq"]) > position + 1:
            await self._truncated(position, first)
        if state["last_seq"] < position and (last := await self.last()) <= position:
            raise self._backwards(last, position)

    async def _gap(self, position: int) -> None:
        """Returns if the message after a position is there nevertheless."""
        await self._begin(position)
        if await self._message(position + 1) is None:
            await self._begin(position)  # it may have been truncated meanwhile
            raise JournalUnusable(f"the journal {self._stream!r} has lost the sequence {position + 1}; {RESTORE}")

    async def _truncated(self, position: int, first: int) -> None:
        snapshot = await self._snapshot_position()
        if snapshot is None or snapshot < first - 1:
            has = "there is no snapshot" if snapshot is None else f"the newest snapshot ends at {snapshot}"
            raise JournalUnavailable(
                f"the stream {self._stream!r} was purged up to {first - 1}, and {has}. A leader stores one within "
                f"a minute; without a leader {RESTORE}"
            )
        raise Truncated(f"the journal begins at {first}, after the position {position}; load the snapshot", first)

    async def _snapshot_position(self) -> int | None:
        try:
            return await self._snapshots.position()
        except NatsApiError as error:
            raise error.explained("reading the newest snapshot") from error

    def _backwards(self, last: int, known: int) -> StoreError:
        return JournalUnusable(
            f"the journal {self._stream!r} ends at {last}, but {known} was stored; the stream was deleted and created "
            f"again, or restored from a backup; {RESTORE}"
        )

    def _missing(self) -> StoreError:
        """Returns the error for the answer that the stream does not exist."""
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since < MISSING_S:
            return JournalUnavailable(f"the servers do not know the stream {self._stream!r}")
        return JournalUnusable(f"the stream {self._stream!r} was deleted; {RESTORE}")


def _is_lease(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


class _Head(NamedTuple):
    """The header of each message."""

    more: bool  # another chunk of the entry follows
    no_entry: bool
    chunk: int  # its index
    nonce: str  # of the append

    def __str__(self) -> str:
        flags = (_MORE if self.more else 0) | (_NO_ENTRY if self.no_entry else 0)
        return f"{_VERSION}.{flags}.{self.chunk}.{self.nonce}"


_Chunk: TypeAlias = tuple[_Head, bytes | memoryview]
#: A chunk that is stored after a message of another append, and what renews the lease if that one has no entry.
_Stray: TypeAlias = tuple[_Chunk, Callable[[], None]]


def _nothing() -> None:
    """Does nothing."""


class _ChunkAssembler:
    """The chunks of one entry, as they arrive."""

    def __init__(self) -> None:
        self._nonce = ""
        self._chunks: list[bytes | memoryview] = []

    def add(self, head: _Head | None, data: bytes | memoryview) -> bytes | None:
        """Adds a message.

        A message that does not continue the entry before it ends that entry; without the first chunk it is dropped.

        Returns:
            The entry, if this is its last chunk; empty bytes for a message without an entry; None within an entry.
        """
        if (
            head is None
            or head.no_entry
            or (head.chunk and (head.nonce, head.chunk) != (self._nonce, len(self._chunks)))
        ):
            self._chunks.clear()
            self._nonce = ""
            return b""
        if head.chunk == 0:
            self._chunks.clear()
        self._nonce = head.nonce
        self._chunks.append(data)
        if head.more:
            return None
        entry = b"".join(self._chunks)
        self._chunks.clear()
        self._nonce = ""
        return entry

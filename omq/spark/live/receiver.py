"""The receiver of a partition: a process that has the connection, and the messages that Spark has not committed.

Spark ends idle Python workers after a minute, and may run the next microbatch on another host, so no worker can have
the connection. The first task that needs a partition starts this process, and the tasks of all hosts read from it. It
belongs to the run of a query (`coordinator`), not to an executor: it outlives a killed executor, and ends with the
query.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import pickle
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import omq
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server
from omq.spark.buffer_pool import SharedBlock, SharedBufferPool, available_bytes
from omq.spark.live.columns import MessageBatch
from omq.spark.live.connection import LiveConnection, ReadProgress
from omq.spark.live.rpc import IDLE_TIMEOUT_S, SEND_TIMEOUT_S, Channel, ProcessAddress, RpcServer, Unreachable, connect
from omq.spark.live.settings import SocketSettings
from omq.unpatched import queue, subprocess, threading

log = logging.getLogger("omq.spark")

# The limits of a microbatch without limits in the options. All of it is in memory until it is committed.
MAX_MICROBATCH_ROWS: Final = 1 << 24
MAX_MICROBATCH_BYTES: Final = 1 << 30
MIN_MICROBATCH_BYTES: Final = 64 << 20  # of the limit in bytes, where memory is short
MEMORY_DIVISOR: Final = 8  # a microbatch may use an eighth of the available memory
DEFAULT_TRIGGER_S: Final = 1.0
DEFAULT_AVAILABLE_NOW_S: Final = 10.0  # of all microbatches together

HEARTBEAT_INTERVAL_S: Final = 2.0  # to a task that waits for messages
REPORT_INTERVAL_S: Final = 0.5  # to the coordinator
READY_POLL_INTERVAL_S: Final = 0.05  # between two checks whether a microbatch would have rows
RECONNECT_DELAY_S: Final = 0.1
RECONNECT_TIMEOUT_S: Final = 60.0  # for the network to the coordinator
START_TIMEOUT_S: Final = 60.0  # for a new process to open its connection
#: Added to the log at a query's end where the peer binds; an omq peer keeps its messages.
_LIBZMQ_NOTE: Final = (
    ". A libzmq peer drops the messages that it had queued for this connection (up to its SNDHWM): these are lost, too,"
    " and not counted here"
)


@dataclass
class ReadRequest(InputPartition):
    """One connection in one microbatch: the part that a task reads."""

    name: str
    endpoint: str
    after: int  # the number of the last committed microbatch
    microbatch: int
    available_now: bool
    coordinator: ProcessAddress
    secret: bytes


class Microbatch:
    """The messages of a partition in a microbatch. Any number of readers may follow it while it grows.

    Attributes:
        read: The number of messages that a reader has taken; the largest of all readers.
        bytes: The bytes of all bodies.
        is_complete: Whether it has ended, with or without an error.
        bounded: Whether it ended at a limit of rows or bytes.
        error: The error with which it ended; `None` without one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows = self.read = self.bytes = 0
        self.is_complete = self.bounded = self._claimed = False
        self.error: Exception | None = None
        self._batches: list[MessageBatch] = []
        self._changed = threading.Condition()

    def add(self, batch: MessageBatch) -> None:
        """Appends a batch."""
        with self._changed:
            self._batches.append(batch)
            self.rows += batch.count
            self.bytes += batch.size
            self._changed.notify_all()

    def end(self, bounded: bool, error: Exception | None = None) -> None:
        """Ends the microbatch."""
        with self._changed:
            self.is_complete, self.bounded, self.error = True, bounded, error
            self._changed.notify_all()

    def claim(self) -> bool:
        """Returns True to the one caller that must fill the microbatch: it is new, or has failed and continues."""
        with self._changed:
            is_free, self._claimed = not self._claimed or self.error is not None, True
            if is_free:
                self.is_complete, self.error = False, None
            return is_free

    def follow(self, heartbeat_interval_s: float | None = None, skip: int = 0) -> Iterator[MessageBatch | None]:
        """Yields all batches until the end of the microbatch, and raises the error with which it ended.

        Args:
            heartbeat_interval_s: Seconds without a batch after which it yields `None`; `None` to wait without that.
            skip: The number of batches that the reader has already.

        Raises:
            StateError: The microbatch has fewer than *skip* batches.
        """
        with self._changed:
            if skip > len(self._batches):
                raise omq.StateError(
                    f"microbatch {self.number} has {len(self._batches)} batches, and a task had {skip} of it"
                )
            rows = sum(one.count for one in self._batches[:skip])
        index = skip
        while True:
            with self._changed:
                if len(self._batches) == index and not self.is_complete:
                    self._changed.wait(heartbeat_interval_s)
                batch = self._batches[index] if len(self._batches) > index else None
                if batch is None and self.error is not None:
                    raise self.error
                if batch is None and self.is_complete:
                    return
            if batch is not None or heartbeat_interval_s is not None:
                yield batch
            if batch is not None:
                index += 1
                rows += batch.count
                self.read = max(self.read, rows)


class Receiver:
    """The connection of a partition, and its uncommitted microbatches.

    Attributes:
        last: The newest microbatch; `None` before the first.
        changed: Set when there is something to report.
    """

    def __init__(self, settings: SocketSettings, endpoint: str) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._uncommitted: dict[int, Microbatch] = {}  # by number
        self._committed = -1
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._max_bytes = max(MIN_MICROBATCH_BYTES, min(MAX_MICROBATCH_BYTES, available_bytes() // MEMORY_DIVISOR))
        blocks = max(4, self._max_bytes // settings.batch_bytes + 4)
        self._connection = LiveConnection(settings, endpoint, SharedBufferPool(blocks))
        self._gathered_s = 0.0  # of all microbatches
        self._first_arrival = math.inf  # the time of the first messages
        self._ready = False
        self.changed = threading.Event()
        self.last: Microbatch | None = None
        self._thread = threading.Thread(target=self._run, name="omq-spark-take", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=READY_POLL_INTERVAL_S)
            except queue.Empty:
                # The coordinator waits for the change.
                if self._ready != (ready := self._connection.ready):
                    self._ready = ready
                    self.changed.set()
                continue
            if job is None:
                return
            job()

    # ------------------------------------------------------------------ reading

    def read(self, request: dict[str, Any]) -> Microbatch:
        """Returns the microbatch of a request, and begins to fill it unless another request has done so.

        Raises:
            StateError: The microbatch has been committed.
            Unreachable: The receiver is closing.
        """
        self.commit(request["after"])
        number = request["read"]
        with self._lock:
            if number <= self._committed:
                raise omq.StateError(f"microbatch {number} has been committed, and its messages are no longer kept")
            if self._connection.interrupted.is_set():
                raise Unreachable(f"{self._connection.endpoint}: the receiver is closing")
            found = self._uncommitted.setdefault(number, Microbatch(number))
            if found.claim():
                self._jobs.put(lambda: self._take(found, request["available_now"]))
        return found

    def _take(self, microbatch: Microbatch, available_now: bool) -> None:
        connection = self._connection
        self.last = microbatch
        failure: Exception | None = None
        started_at = time.monotonic()
        progress = self._progress(microbatch, available_now)
        try:
            for batch in connection.take(progress):
                microbatch.add(batch)
                self._first_arrival = min(self._first_arrival, time.monotonic())
        except Exception as error:
            failure = error
        self._gathered_s += time.monotonic() - started_at
        if available_now and progress.timed_out:
            log.warning(
                "%s: messages still arrived after availableNow had read for %g s; the next run reads the others. A"
                " larger triggerSeconds reads for longer",
                connection.endpoint,
                self._trigger_s(available_now),
            )
        # Before the task ends: Spark plans the next microbatch at once.
        self._ready = connection.ready
        microbatch.end(failure is None and progress.bounded, failure)
        self.changed.set()

    def _trigger_s(self, available_now: bool) -> float:
        """Returns the seconds that a microbatch gathers; with `availableNow`, of all microbatches together."""
        return self._settings.max_seconds or (DEFAULT_AVAILABLE_NOW_S if available_now else DEFAULT_TRIGGER_S)

    def _progress(self, microbatch: Microbatch, available_now: bool) -> ReadProgress:
        """Returns the limits of the rest of a microbatch, which may have failed before."""
        settings = self._settings
        seconds = self._trigger_s(available_now)
        if available_now:
            # With triggerSeconds, Spark's time between small microbatches counts, too. By default only the time of
            # reads counts, so that messages which are there are all read, in any number of microbatches.
            spent = self._gathered_s if settings.max_seconds is None else time.monotonic() - self._first_arrival
            seconds = max(seconds - max(spent, 0.0), 0.0)
        return ReadProgress(
            (settings.max_rows or MAX_MICROBATCH_ROWS) - microbatch.rows,
            (settings.max_bytes or self._max_bytes) - microbatch.bytes,
            seconds,
            settings.quiet_seconds if available_now else None,
        )

    def commit(self, number: int) -> None:
        """Drops microbatches up to this one."""
        with self._lock:
            self._committed = max(self._committed, number)
            self._uncommitted = {key: one for key, one in self._uncommitted.items() if key > self._committed}

    def close(self) -> None:
        """Ends the current read, closes the connection, and logs the number of lost messages."""
        with self._lock:
            self._connection.interrupted.set()
            self._jobs.put(None)
        self._thread.join()
        arrived = self._connection.close()
        uncommitted = sum(one.rows for one in list(self._uncommitted.values()))
        if arrived or uncommitted:
            log.warning(
                "%s: the receiver has ended. Of %d messages in the newest microbatches, those that Spark has not"
                " committed are lost; %d that had arrived and were not read are lost, too%s",
                self._connection.endpoint,
                uncommitted,
                arrived,
                _LIBZMQ_NOTE if self._connection.endpoint in self._settings.connect else "",
            )

    def status(self) -> dict[str, Any]:
        """Returns the report for the coordinator."""
        uncommitted = list(self._uncommitted.values())
        last = self.last
        return {
            "endpoint": self._connection.endpoint,
            "microbatch": None if last is None else last.number,
            "bounded": last is not None and last.bounded,
            "rows": sum(one.rows for one in uncommitted),
            "unread": sum(one.rows - one.read for one in uncommitted),
            "bytes": sum(one.bytes for one in uncommitted),
            "ready": self._ready,
            **self._connection.stats(),
        }


# ---------------------------------------------------------------------- the process


class _ReceiverServer:
    """Serves tasks, and the coordinator's orders, until the query ends or another receiver replaces this one."""

    def __init__(self, settings: SocketSettings, request: ReadRequest) -> None:
        self.endpoints: dict[str, str] = {}
        self._settings = settings
        self._request = request
        self._receiver: Receiver | None = None
        self._registered = threading.Event()
        self._closing = threading.Event()
        self._channel = connect(request.coordinator, request.secret)
        self._server = RpcServer("receiver", request.secret, self._serve_task)
        self._thread = threading.Thread(target=self._run, name="omq-spark-coordinator", daemon=True)

    async def start(self) -> None:
        """Starts the thread of the coordinator's orders."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._end = functools.partial(loop.call_soon_threadsafe, task.cancel)
        self._thread.start()

    async def close(self) -> None:
        """Stops serving, and closes the connection."""
        self._closing.set()
        self._server.close()
        self._channel.close()
        self._thread.join()
        if self._receiver is not None:
            self._receiver.close()

    def _run(self) -> None:
        may_continue = True
        try:
            while may_continue and not self._closing.is_set():
                with contextlib.suppress(OSError, EOFError):
                    self._channel.set_send_timeout(IDLE_TIMEOUT_S)
                    self._channel.send({"register": self._request.name, "address": self._server.address})
                    may_continue = "serve" in self._channel.recv() and self._open_receiver()
                    if may_continue:
                        self._serve_coordinator(self._channel)
                self._registered.clear()
                self._channel.close()
                may_continue = may_continue and self._reconnect()
        finally:
            self._end()

    def _open_receiver(self) -> bool:
        """Opens the connection the first time; returns False if that fails."""
        if self._receiver is None:
            try:
                self._receiver = Receiver(self._settings, self._request.endpoint)
            except Exception as error:
                print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
                return False
            # The task that started this process reads its standard output to the end.
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.close(devnull)
        self._registered.set()
        return True

    def _reconnect(self) -> bool:
        """Connects to the coordinator again; returns False if the query has ended."""
        deadline = time.monotonic() + RECONNECT_TIMEOUT_S
        while time.monotonic() < deadline and not self._closing.is_set():
            try:
                self._channel = connect(self._request.coordinator, self._request.secret)
                return True
            except Unreachable as error:
                if error.refused:
                    break
                self._closing.wait(RECONNECT_DELAY_S)
        return False

    def _serve_coordinator(self, channel: Channel) -> None:
        """Executes the coordinator's orders, and reports to it, until the connection to it ends."""
        receiver = self._receiver
        assert receiver is not None
        ended = threading.Event()

        def report() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    channel.send({"status": receiver.status()})
                    receiver.changed.wait(REPORT_INTERVAL_S)
                    receiver.changed.clear()

        reporter = threading.Thread(target=report, name="omq-spark-report", daemon=True)
        reporter.start()
        try:
            while True:
                order = channel.recv()
                if "commit" in order:
                    receiver.commit(order["commit"])
                else:
                    channel.send({"status": receiver.status(), "request": order["report"]})
        finally:
            ended.set()
            reporter.join()

    def _serve_task(self, channel: Channel) -> None:
        """Sends the messages of a microbatch to a task."""
        channel.set_send_timeout(SEND_TIMEOUT_S)
        request = channel.recv()
        receiver = self._receiver
        if receiver is None or not self._registered.is_set():
            return  # the query may have ended, or another receiver may have replaced this one
        sent: list[MessageBatch] = []  # the task maps their memory until it disconnects
        try:
            for batch in receiver.read(request).follow(HEARTBEAT_INTERVAL_S, request["skip"]):
                if batch is None:
                    channel.send({"heartbeat": True})
                else:
                    sent.append(batch)
                    _send(channel, batch)
            answer: dict[str, Any] = {"done": True}
        except Unreachable:
            return  # the receiver is closing: the task looks for the next one
        except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        channel.send(answer)
        with contextlib.suppress(OSError, EOFError):
            channel.recv()  # raises when the task disconnects


def _send(channel: Channel, batch: MessageBatch) -> None:
    """Sends a batch: its block's descriptor to a task on this host, if it is in a block, otherwise its bytes."""
    # Attached: there may be a run for each message, which is too much for the JSON.
    runs = array("q", itertools.chain.from_iterable(batch.runs))
    message = {"endpoint": batch.endpoint, "first": batch.first, "size": batch.size}
    if channel.local and isinstance(batch.block, SharedBlock):
        channel.send({**message, "block": len(batch.block)}, [runs], [batch.block.descriptor])
    else:
        memory = [batch.body, batch.ends, *([] if batch.starts is None else [batch.starts])]
        channel.send(message, [runs, *memory])


def start(settings: SocketSettings, request: ReadRequest) -> dict[str, Any] | None:
    """Starts the receiver of a partition, and waits until it has registered; returns its error if it cannot.

    Raises:
        OSError: The process cannot be started.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "omq.spark.live.receiver"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
    ) as process:
        output, _ = process.communicate(pickle.dumps((settings, request)), timeout=START_TIMEOUT_S)
    if process.returncode:
        raise OSError(f"{' '.join(command)} has failed; see its standard error")
    return dict(json.loads(output)) if output else None


def main() -> None:
    """Runs the receiver that standard input describes."""
    settings, request = pickle.loads(sys.stdin.buffer.read())
    # The task that started this process does not wait for its end, and may be killed before.
    if os.fork():
        os._exit(0)
    log_to_stderr("warning")
    raise_descriptor_limit(log)
    run_server(_ReceiverServer(settings, request), log)


if __name__ == "__main__":
    main()

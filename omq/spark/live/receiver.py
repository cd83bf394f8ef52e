"""The receiver of a partition: a process of its own, which has the connection, and what Spark has not committed.

Spark's workers come and go: one that has had nothing to do for a minute is ended, the next microbatch goes to another,
perhaps on another host. So none of them has the connection. The first task that wants a partition starts this process,
and all tasks, on whatever host, read through it. It belongs to the run of a query (see `coordinator`), not to an
executor: it outlives a killed executor, and ends with the query.
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
from omq.spark.buffer_pool import SharedBlock, SharedBufferPool, available
from omq.spark.live.columns import MessageBatch
from omq.spark.live.connection import LiveConnection, ReadProgress
from omq.spark.live.rpc import IDLE_TIMEOUT_S, SEND_TIMEOUT_S, Channel, ProcessAddress, RpcServer, Unreachable, connect
from omq.spark.live.settings import SocketSettings
from omq.unpatched import queue, subprocess, threading

log = logging.getLogger("omq.spark")

MAX_BATCH_BYTES: Final = 1 << 30  # of a microbatch without a bound of its own: all is kept until it is committed
MIN_BATCH_BYTES: Final = 64 << 20  # to which that goes down where memory is short
MEMORY_PART: Final = 8  # a microbatch may use an eighth of the available memory
GATHERING_S: Final = 1.0  # for a microbatch without triggerSeconds
DRAINING_S: Final = 10.0  # likewise for all microbatches of one availableNow
MAX_BATCH_ROWS: Final = 1 << 24  # likewise of a microbatch without a bound of its own
ALIVE_INTERVAL_S: Final = 2.0  # after which a task that waits is sent a sign of life
REPORT_INTERVAL_S: Final = 0.5  # between two reports to the coordinator
POLL_INTERVAL_S: Final = 0.05  # between two looks at whether a microbatch would have something
RETRY_DELAY_S: Final = 0.1
DETACHED_TIMEOUT_S: Final = 60.0  # for which the network to the coordinator may be broken
START_TIMEOUT_S: Final = 60.0  # for a new process to read its plan
#: Added to the report at a query's end where the peer binds; an omq peer keeps its messages.
_NOT_COUNTED: Final = (
    ". A libzmq peer drops what it had queued for this connection (up to its SNDHWM) if it sent faster than Spark read:"
    " that is lost, and not counted here"
)


@dataclass
class ReadRequest(InputPartition):
    """One connection in one microbatch: the part that a task reads.

    Attributes:
        name: The name of the connection.
        endpoint: The endpoint of that.
        after: The last microbatch that is committed.
        microbatch: The microbatch to read.
        drains: Whether the query ends with what is there (`availableNow`).
        coordinator: The address of the coordinator.
        secret: The stream's secret.
    """

    name: str
    endpoint: str
    after: int
    microbatch: int
    drains: bool
    coordinator: ProcessAddress
    secret: bytes


class Microbatch:
    """The part of a microbatch that one partition has, for any number of readers, which may begin before its end.

    Attributes:
        number: Its number, as the end offset has it.
        rows: Messages.
        read: Messages that some reader has had.
        bytes: Bytes of their bodies.
        over: Whether nothing more comes.
        bounded: Whether it ended because there was no more room in it.
        error: Why it ended, if that was not as it should be.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows = self.read = self.bytes = 0
        self.over = self.bounded = self._begun = False
        self.error: Exception | None = None
        self._taken: list[MessageBatch] = []
        self._changed = threading.Condition()

    def add(self, taken: MessageBatch) -> None:
        """Appends what was taken."""
        with self._changed:
            self._taken.append(taken)
            self.rows += taken.count
            self.bytes += taken.size
            self._changed.notify_all()

    def end(self, bounded: bool, error: Exception | None = None) -> None:
        """Nothing more comes."""
        with self._changed:
            self.over, self.bounded, self.error = True, bounded, error
            self._changed.notify_all()

    def begin(self) -> bool:
        """Returns True to the caller that is to fill it: it is new, or has failed, and goes on where it failed."""
        with self._changed:
            is_free, self._begun = not self._begun or self.error is not None, True
            if is_free:
                self.over, self.error = False, None
            return is_free

    def follow(self, poll_interval_s: float | None = None, at: int = 0) -> Iterator[MessageBatch | None]:
        """Yields all batches from the first to the end of the microbatch.

        Args:
            poll_interval_s: Seconds without a batch after which it yields `None`; `None`: it never does.
            at: The number of batches to skip, from the first.

        Raises:
            Exception: The error with which the microbatch ended.
            StateError: The microbatch has fewer batches.
        """
        with self._changed:
            if at > len(self._taken):
                raise omq.StateError(
                    f"microbatch {self.number} has {len(self._taken)} batches, and a task had {at} of it"
                )
            rows = sum(one.count for one in self._taken[:at])
        while True:
            with self._changed:
                if len(self._taken) == at and not self.over:
                    self._changed.wait(poll_interval_s)
                taken = self._taken[at] if len(self._taken) > at else None
                if taken is None and self.error is not None:
                    raise self.error
                if taken is None and self.over:
                    return
            if taken is not None or poll_interval_s is not None:
                yield taken
            if taken is not None:
                at += 1
                rows += taken.count
                self.read = max(self.read, rows)


class Receiver:
    """The connection of a partition, and the microbatches that were taken from it.

    Args:
        settings: The options of the read.
        endpoint: The endpoint of the connection.

    Attributes:
        last: The last microbatch that was begun.
        changed: Set when there is something to report.
    """

    def __init__(self, settings: SocketSettings, endpoint: str) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: dict[int, Microbatch] = {}  # that Spark has not committed, by their numbers
        self._committed = -1
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._max_bytes = max(MIN_BATCH_BYTES, min(MAX_BATCH_BYTES, available() // MEMORY_PART))
        blocks = max(4, self._max_bytes // settings.batch_bytes + 4)
        self._connection = LiveConnection(settings, endpoint, SharedBufferPool(blocks))
        self._drained_s = 0.0  # for which the microbatches of a drain have gathered
        self._drain_begun = math.inf  # when its first messages came
        self._ready = False
        self.changed = threading.Event()
        self.last: Microbatch | None = None
        self._thread = threading.Thread(target=self._run, name="omq-spark-take", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=POLL_INTERVAL_S)
            except queue.Empty:
                # It is reported at once when a microbatch would have something.
                if self._ready != (ready := self._connection.ready):
                    self._ready = ready
                    self.changed.set()
                continue
            if job is None:
                return
            job()

    # ------------------------------------------------------------------ reading

    def read(self, request: dict[str, Any]) -> Microbatch:
        """Returns the microbatch that a task asks for; the first request has it taken.

        Args:
            request: `read`, its number; `after`, that of the last one which is committed; `given`, how many batches of
                it the task has had; and `drains`, whether the query ends with what is there.

        Raises:
            StateError: It has been committed.
        """
        self.commit(request["after"])
        number = request["read"]
        with self._lock:
            if number <= self._committed:
                raise omq.StateError(f"microbatch {number} has been committed, and is not kept any more")
            found = self._kept.setdefault(number, Microbatch(number))
        if found.begin():
            self._jobs.put(lambda: self._take(found, request["drains"]))
        return found

    def _take(self, microbatch: Microbatch, drains: bool) -> None:
        connection = self._connection
        self.last = microbatch
        failed: Exception | None = None
        begun = time.monotonic()
        try:
            for taken in connection.take(self._rest(microbatch, drains)):
                microbatch.add(taken)
                self._drain_begun = min(self._drain_begun, time.monotonic())
        except Exception as error:
            failed = error
        self._drained_s += time.monotonic() - begun
        if drains and connection.cut:
            log.warning(
                "%s: messages still came after availableNow had taken them for %g s; the next run takes the others"
                " (option triggerSeconds)",
                connection.endpoint,
                self._seconds(drains),
            )
        # Before the task is answered: Spark asks for the next microbatch at once.
        self._ready = connection.ready
        microbatch.end(failed is None and connection.bounded, failed)
        self.changed.set()

    def _seconds(self, drains: bool) -> float:
        """Returns how long a microbatch gathers, or all of a drain do."""
        return self._settings.max_seconds or (DRAINING_S if drains else GATHERING_S)

    def _rest(self, microbatch: Microbatch, drains: bool) -> ReadProgress:
        """Returns a read of what a microbatch may still have, which may have begun before, in the time of a drain."""
        settings = self._settings
        seconds = self._seconds(drains)
        if drains:
            # Under a cap a microbatch gathers in no time, and Spark takes its own for each: an explicit triggerSeconds
            # means all of it. Else what is there is to be read whole, however many microbatches it needs.
            spent = self._drained_s if settings.max_seconds is None else time.monotonic() - self._drain_begun
            seconds = max(seconds - max(spent, 0.0), 0.0)
        return ReadProgress(
            (settings.max_rows or MAX_BATCH_ROWS) - microbatch.rows,
            (settings.max_bytes or self._max_bytes) - microbatch.bytes,
            seconds,
            settings.quiet_seconds if drains else None,
        )

    def commit(self, number: int) -> None:
        """Forgets microbatches up to this one."""
        with self._lock:
            self._committed = max(self._committed, number)
            self._kept = {one: kept for one, kept in self._kept.items() if one > self._committed}

    def close(self) -> None:
        """Stops taking, closes the connection, and logs how many messages are lost with the query."""
        self._connection.interrupted.set()
        self._jobs.put(None)
        self._thread.join()
        arrived = self._connection.close()
        uncommitted = sum(one.rows for one in list(self._kept.values()))
        if arrived or uncommitted:
            log.warning(
                "%s: the receiver has ended. Lost are %d messages of microbatches that are not known to be committed,"
                " and %d that had arrived and were not read%s",
                self._connection.endpoint,
                uncommitted,
                arrived,
                _NOT_COUNTED if self._connection.endpoint in self._settings.connect else "",
            )

    def status(self) -> dict[str, Any]:
        """Returns the report for the coordinator."""
        kept = list(self._kept.values())
        last = self.last
        return {
            "endpoint": self._connection.endpoint,
            "microbatch": None if last is None else last.number,
            "bounded": last is not None and last.bounded,
            "rows": sum(one.rows for one in kept),
            "unread": sum(one.rows - one.read for one in kept),
            "bytes": sum(one.bytes for one in kept),
            "ready": self._ready,
            **self._connection.health(),
        }


# ---------------------------------------------------------------------- the process


class _Process:
    """Serves tasks and the coordinator, until the query ends or the coordinator has another receiver.

    Args:
        settings: The options of the read.
        request: The request of the task that has started the process.
    """

    def __init__(self, settings: SocketSettings, request: ReadRequest) -> None:
        self.endpoints: dict[str, str] = {}
        self._settings = settings
        self._request = request
        self._receiver: Receiver | None = None
        self._attached = threading.Event()
        self._ending = threading.Event()
        self._channel = connect(request.coordinator, request.secret)
        self._server = RpcServer("receiver", request.secret, self._serve)
        self._thread = threading.Thread(target=self._follow, name="omq-spark-follow", daemon=True)

    async def start(self) -> None:
        """Begins to follow the coordinator."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._end = functools.partial(loop.call_soon_threadsafe, task.cancel)
        self._thread.start()

    async def close(self) -> None:
        """Stops serving, closes the connection, and logs what is lost with the query."""
        self._ending.set()
        self._server.close()
        self._channel.close()
        self._thread.join()
        if self._receiver is not None:
            self._receiver.close()

    def _follow(self) -> None:
        goes_on = True
        try:
            while goes_on and not self._ending.is_set():
                with contextlib.suppress(OSError, EOFError):
                    self._channel.set_send_timeout(IDLE_TIMEOUT_S)
                    self._channel.send({"register": self._request.name, "address": self._server.address})
                    goes_on = "serve" in self._channel.recv() and self._begin()
                    if goes_on:
                        self._obey(self._channel)
                self._attached.clear()
                self._channel.close()
                goes_on = goes_on and self._attach()
        finally:
            self._end()

    def _begin(self) -> bool:
        """Opens the connection, at first; returns False if it cannot."""
        if self._receiver is None:
            try:
                self._receiver = Receiver(self._settings, self._request.endpoint)
            except Exception as error:
                print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
                return False
            # The task that has started us reads our standard output to its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
        self._attached.set()
        return True

    def _attach(self) -> bool:
        """Connects to the coordinator again; returns False if the query has ended."""
        deadline = time.monotonic() + DETACHED_TIMEOUT_S
        while time.monotonic() < deadline and not self._ending.is_set():
            try:
                self._channel = connect(self._request.coordinator, self._request.secret)
                return True
            except Unreachable as error:
                if error.refused:
                    break
                self._ending.wait(RETRY_DELAY_S)
        return False

    def _obey(self, channel: Channel) -> None:
        """Does what the coordinator orders, and reports to it, until that is gone."""
        receiver = self._receiver
        assert receiver is not None
        gone = threading.Event()

        def report() -> None:
            with contextlib.suppress(OSError):
                while not gone.is_set():
                    channel.send({"status": receiver.status()})
                    receiver.changed.wait(REPORT_INTERVAL_S)
                    receiver.changed.clear()

        reporting = threading.Thread(target=report, name="omq-spark-report", daemon=True)
        reporting.start()
        try:
            while True:
                order = channel.recv()
                if "commit" in order:
                    receiver.commit(order["commit"])
                else:
                    channel.send({"status": receiver.status(), "request": order["report"]})
        finally:
            gone.set()
            reporting.join()

    def _serve(self, channel: Channel) -> None:
        """Sends one task the microbatch that it asks for."""
        channel.set_send_timeout(SEND_TIMEOUT_S)
        request = channel.recv()
        receiver = self._receiver
        if receiver is None or not self._attached.is_set():
            return  # another process may have the partition by now, or the query has ended
        sent: list[MessageBatch] = []  # while the task may look at it
        try:
            for taken in receiver.read(request).follow(ALIVE_INTERVAL_S, request["given"]):
                if taken is None:
                    channel.send({"waits": True})
                else:
                    sent.append(taken)
                    _send(channel, taken)
            answer: dict[str, Any] = {"done": True}
        except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        channel.send(answer)
        with contextlib.suppress(OSError, EOFError):
            channel.recv()  # its end


def _send(channel: Channel, taken: MessageBatch) -> None:
    """Sends what was taken: on this host the descriptor of the block that holds it, if there is one."""
    # One for each message, if each came by itself: too much for a message.
    runs = array("q", itertools.chain.from_iterable(taken.runs))
    message = {"endpoint": taken.endpoint, "first": taken.first, "size": taken.size}
    if channel.local and isinstance(taken.block, SharedBlock):
        channel.send({**message, "block": len(taken.block)}, [runs], [taken.block.descriptor])
    else:
        memory = [taken.body, taken.ends, *([] if taken.starts is None else [taken.starts])]
        channel.send(message, [runs, *memory])


def start(settings: SocketSettings, request: ReadRequest) -> dict[str, Any] | None:
    """Starts the receiver of a partition, and waits until it has registered; returns its error if it cannot begin.

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
        raise OSError(f"{' '.join(command)} has failed: see its standard error")
    return dict(json.loads(output)) if output else None


def main() -> None:
    """Runs the process."""
    settings, request = pickle.loads(sys.stdin.buffer.read())
    # The task that has started this process does not wait for its end, and may be killed before.
    if os.fork():
        os._exit(0)
    log_to_stderr("warning")
    raise_descriptor_limit(log)
    run_server(_Process(settings, request), log)


if __name__ == "__main__":
    main()

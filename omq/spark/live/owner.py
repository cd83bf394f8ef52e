"""The owner of a partition: a process of its own, which has the connection, and what Spark has not committed.

Spark's workers come and go: one that has had nothing to do for a minute is ended, the next microbatch goes to another,
perhaps on another host. So none of them has the connection. The first task that wants a partition starts this process,
and all tasks, on whatever host, read through it. It belongs to the stream (see `coordinator`), not to an executor, and
outlives both a killed executor and, for `keepSeconds`, the query itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import math
import os
import pickle
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.live.columns import Messages, Shape, Taken
from omq.spark.live.microbatch import Microbatch, Uncommitted
from omq.spark.live.process import detach, launch, speak_nowhere
from omq.spark.live.receive import Limits
from omq.spark.live.settings import Settings
from omq.spark.live.shared_memory import SharedBlock, SharedMemory
from omq.spark.live.standing import StandingConnection
from omq.spark.live.trusted import VANISHED, Channel, Place, Server, Unreachable, reach
from omq.spark.memory import available
from omq.unpatched import queue, threading

log = logging.getLogger("omq.spark")

BYTES: Final = 1 << 30  # of a microbatch that has no bound of its own: all of it is kept until it is committed
LEAST: Final = 64 << 20  # to which that goes down where memory is short
PART: Final = 8  # the part of the memory that is available, as one in so many, that it may have
MESSAGES: Final = 1 << 24  # likewise of a microbatch that has no bound of its own
ALIVE: Final = 2.0  # seconds after which a task that waits is told that we are there
TELL: Final = 0.5  # seconds between two reports to the coordinator
AGAIN: Final = 0.1  # seconds between two attempts to find the coordinator again
AWAY: Final = 5.0  # seconds that it may be away before the connection ends
NAMED: Final = 100  # characters of subscriptions that stand in a connection's name; more are a digest there
#: Added to the report at a query's end where the peer binds; an omq peer keeps its messages.
_NOT_COUNTED: Final = (
    ". A libzmq peer drops what it had queued for this connection (up to its SNDHWM) if it sent faster than Spark read:"
    " that is lost, and not counted here"
)


@dataclass(frozen=True)
class Plan:
    """What an owner is told at its start.

    Attributes:
        settings: The options of the read.
        name: What the connection is called; see `name_of`.
        endpoint: Its endpoint.
        coordinator: Where the coordinator is.
        secret: The stream's secret.
    """

    settings: Settings
    name: str
    endpoint: str
    coordinator: Place
    secret: bytes


class Owner:
    """The connection of a partition, and the microbatches that were taken from it.

    Args:
        settings: The options of the read.
        endpoint: The endpoint of the connection.

    Attributes:
        resting: Whether the query has ended.
        last: The last microbatch that was begun.
        changed: Set when one is over: there is something to tell.
    """

    def __init__(self, settings: Settings, endpoint: str) -> None:
        self._settings = settings
        self._uncommitted = Uncommitted()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._most = max(LEAST, min(BYTES, available() // PART))
        blocks = max(4, self._most // settings.batch_bytes + 4)
        self._memory = SharedMemory(blocks)
        self._connection = StandingConnection(settings, endpoint, self._memory, SharedMemory(blocks))
        self._drain = ""
        self._drained = 0.0  # seconds that its microbatches have gathered
        self._drains_since = math.inf  # when its first messages came
        self.resting = False
        self.changed = threading.Event()
        self.last: Microbatch | None = None
        self._thread = threading.Thread(target=self._run, name="omq-spark-take", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    # ------------------------------------------------------------------ reading

    def read(self, request: dict[str, Any]) -> Microbatch:
        """The microbatch that a task asks for; its first reader has it taken.

        Args:
            request: `read`, its number; `after`, that of the last one which is committed; `limits`; `columns`;
                `settings`, pickled; `given`, how many batches of it the task has had; `planned`, whether this run of
                the query has planned it; and `drain`, a name for all microbatches of one `availableNow`, or nothing.
        """
        self._uncommitted.commit(request["after"])
        found, fresh = self._uncommitted.find(request["read"])
        last = self.last
        # Where this process had the microbatch before it, no other can have read anything for this one.
        is_next = last is not None and last.number >= found.number - 1
        if fresh and not found.rows and not request["planned"] and not is_next:
            log.warning(
                "%s: microbatch %d was planned by a former run of the query, and is read anew: if anything had been"
                " read for it, that is lost",
                self._connection.endpoint,
                found.number,
            )
        if fresh:
            self._jobs.put(lambda: self._take(found, request))
        return found

    def _take(self, microbatch: Microbatch, request: dict[str, Any]) -> None:
        connection = self._connection
        self.last = microbatch
        try:
            if self.resting:
                raise omq.StateError("the query has ended")
            settings: Settings = pickle.loads(bytes.fromhex(request["settings"]))
            connection.awake(settings)
            limits = self._limits(request, microbatch, settings)
            begun = time.monotonic()
            try:
                shape = Shape(tuple(request["columns"]), settings.batch_bytes, settings.socket == "SUB")
                for taken in connection.take(shape, limits):
                    microbatch.add(taken)
                    self._drains_since = min(self._drains_since, time.monotonic())
            finally:
                self._drained += time.monotonic() - begun
            if request["drain"] and connection.cut:
                log.warning(
                    "%s: messages still came after availableNow had taken them for %g s; the next run takes the others"
                    " (option triggerSeconds)",
                    connection.endpoint,
                    request["limits"]["seconds"],
                )
            microbatch.end(connection.bounded)
        except Exception as error:
            microbatch.end(False, error)
        finally:
            self.changed.set()

    def _limits(self, request: dict[str, Any], microbatch: Microbatch, settings: Settings) -> Limits:
        """What is left of a request's limits, where its microbatch has begun before, and of the time of a drain."""
        wanted = Limits(**request["limits"])
        if request["drain"] != self._drain:
            self._drain, self._drained, self._drains_since = request["drain"], 0.0, math.inf
        seconds = wanted.seconds
        if request["drain"] and seconds is not None:
            # Under a cap a microbatch gathers in no time, and Spark takes its own for each: who has said how long it
            # may take means all of it. Else what is there is to be read whole, however many microbatches it needs.
            spent = self._drained if settings.max_seconds is None else time.monotonic() - self._drains_since
            seconds = max(seconds - max(spent, 0.0), 0.0)
        return Limits(
            rows=(MESSAGES if wanted.rows is None else wanted.rows) - microbatch.rows,
            bytes=(self._most if wanted.bytes is None else wanted.bytes) - microbatch.bytes,
            seconds=seconds,
            quiet=wanted.quiet,
        )

    def commit(self, number: int) -> None:
        """Forgets microbatches up to this one."""
        self._uncommitted.commit(number)

    # ------------------------------------------------------------------ the query's end

    def rest(self) -> None:
        """Takes leave of the peers: what has arrived is kept for the query's next run, and nothing more comes.

        Until `go_on` no microbatch is begun: a task that is late would connect again.
        """
        if self.resting:
            return
        self.resting = True
        self._connection.interrupted.set()
        done = threading.Event()

        def job() -> None:
            try:
                self._connection.retire()
                self._memory.trim()
            except Exception as error:
                log.warning("%s: %s", self._connection.endpoint, error)
            finally:
                done.set()

        self._jobs.put(job)
        done.wait()
        if not self.idle:
            log.warning(
                "%s: the query has ended. What is kept for its next run, if it begins within keepSeconds=%g: %d"
                " messages of microbatches that may not be committed, and %d that had arrived and were not read%s",
                self._connection.endpoint,
                self._settings.keep_seconds,
                sum(one.rows for one in self._uncommitted),
                self._connection.held,
                _NOT_COUNTED if self._connection.endpoint in self._settings.connect else "",
            )

    def go_on(self) -> None:
        """Microbatches may be begun again: the query's next run is there."""
        self._connection.interrupted.clear()
        self.resting = False

    @property
    def idle(self) -> bool:
        """Whether nothing is kept that a next run could want."""
        return not self._connection.held and not any(one.rows for one in self._uncommitted)

    def close(self) -> None:
        """Closes the connection; says what nobody will read."""
        self._connection.interrupted.set()
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        kept = sum(one.rows for one in self._uncommitted)
        if kept:
            log.warning(
                "%s: %d messages of microbatches that were not known to be committed are let go of",
                self._connection.endpoint,
                kept,
            )

    def status(self) -> dict[str, Any]:
        """What can be told of it."""
        kept = list(self._uncommitted)
        last = self.last
        return {
            "endpoint": self._connection.endpoint,
            "microbatch": None if last is None else last.number,
            "over": last is None or last.over,
            "bounded": last is not None and last.bounded,
            "rows": sum(one.rows for one in kept),
            "unread": sum(one.rows - one.read for one in kept),
            "bytes": sum(one.bytes for one in kept),
            **self._connection.health(),
        }


# ---------------------------------------------------------------------- the process


class _Process:
    """Serves readers and the coordinator."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._owner = Owner(plan.settings, plan.endpoint)
        name = f"omq-spark/{os.getuid()}/{os.getpid()}/{os.urandom(8).hex()}"
        self._ended = threading.Event()
        self._attached = threading.Event()
        self._words = _Words()
        log.addHandler(self._words)
        self._server = Server(name, plan.secret, self._serve)

    def run(self, channel: Channel) -> None:
        """Serves until the coordinator has no more use for it."""
        until: float | None = None
        while not self._ended.is_set():
            try:
                channel.watch()
                channel.send(
                    {
                        "own": self._plan.name,
                        "place": self._server.place.told(),
                    }
                )
                until = None
                self._obey(channel)
            except (OSError, EOFError):
                pass
            self._attached.clear()
            channel.close()
            # The coordinator has gone, or the way to it. Most likely it is back in a moment, or another one is.
            begun = time.monotonic()
            until = until or begun + self._plan.settings.keep_seconds
            while not self._ended.is_set():
                if time.monotonic() > begun + AWAY:
                    self._rest()
                    if time.monotonic() > until or self._owner.idle:
                        self._ended.set()
                        break
                try:
                    channel = reach(self._plan.coordinator, self._plan.secret)
                    break
                except Unreachable:
                    self._ended.wait(AGAIN)
        self._server.close()
        self._owner.close()

    def _obey(self, channel: Channel) -> None:
        """Does what the coordinator says, and tells it how things are."""
        gone = threading.Event()

        def tell() -> None:
            with contextlib.suppress(OSError):
                while not gone.is_set():
                    self._owner.changed.wait(TELL)
                    self._owner.changed.clear()
                    channel.send({"status": self._owner.status(), "said": self._words.take()})

        telling = threading.Thread(target=tell, name="omq-spark-tell", daemon=True)
        telling.start()
        try:
            while True:
                order = channel.hear()
                if "commit" in order:
                    self._owner.commit(order["commit"])
                elif "tell" in order:
                    channel.send({"status": self._owner.status(), "told": order["tell"]})
                elif "serve" in order:
                    self._owner.go_on()
                    self._attached.set()
                elif "rest" in order:
                    self._rest()
                    if self._owner.idle:
                        self._ended.set()
                        channel.send({"leaves": True})
                        return
                elif "end" in order:
                    self._ended.set()
                    return
        finally:
            gone.set()
            telling.join()

    def _rest(self) -> None:
        self._attached.clear()
        self._owner.rest()
        if not self._words.forwarding:
            self._words.forwarding = True
            speak_nowhere()

    def _serve(self, channel: Channel) -> None:
        """Gives one task what it asks for."""
        channel.watch(VANISHED)
        request = channel.hear()
        if not self._attached.is_set():
            # Somebody else may have the partition by now, or the query has ended.
            channel.send({"later": True})
            return
        sent: list[Taken] = []  # while the task may look at it
        try:
            for taken in self._owner.read(request).follow(ALIVE, request["given"]):
                if taken is None:
                    channel.send({"alive": True})
                else:
                    sent.append(taken)
                    _send(channel, taken)
            answer: dict[str, Any] = {"done": True}
        except (omq.OmqError, OSError, pa.ArrowException, TypeError, ValueError) as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        channel.send(answer)
        with contextlib.suppress(OSError, EOFError):
            channel.hear()  # its end


class _Words(logging.Handler):
    """Warnings for the driver's log, once standard error leads nowhere.

    Attributes:
        forwarding: Whether they are gathered.
    """

    forwarding = False

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if not self.forwarding:
            try:
                print(text, file=sys.stderr, flush=True)
                return
            except (OSError, ValueError):
                # It was a pipe of a process that has died. The caller must not take this for a broken connection.
                self.forwarding = True
                speak_nowhere()
        self._said.append(text)

    def take(self) -> list[str]:
        """What was said since."""
        said, self._said = self._said, []
        return said


def _send(channel: Channel, taken: Taken) -> None:
    """Sends what was taken: on this host the descriptors of the blocks in which it stands, if it stands in such."""
    marks = taken.marks
    # One for each message, if each came by itself: too much for a message.
    runs = array("q", itertools.chain.from_iterable(marks.runs))
    message = {"endpoint": marks.endpoint, "first": marks.first, "size": taken.size}
    if isinstance(taken, Messages):
        parts = pa.array(taken.messages, pa.list_(pa.binary()))
        batch = pa.RecordBatch.from_arrays([parts], ["parts"])
        channel.send({**message, "as": "messages"}, [runs, batch.serialize()])
        return
    shared = [block for block in taken.blocks or () if isinstance(block, SharedBlock)]
    if channel.local and len(shared) == 2:
        descriptors = [block.descriptor for block in shared]
        channel.send({**message, "as": "blocks", "sizes": [len(block) for block in shared]}, [runs], descriptors)
    else:
        channel.send({**message, "as": "columns"}, [runs, taken.ends, taken.body])


def names_of(settings: Settings) -> list[str]:
    """What the connections of a stream's partitions are called: by what their messages are, not by how they come."""
    found = []
    times: Counter[str] = Counter()
    wanted = _wanted(settings)
    for endpoint in settings.endpoints:
        found.append(" ".join([settings.socket, endpoint, f"#{times[endpoint]}", *wanted]))
        times[endpoint] += 1
    return found


def _wanted(settings: Settings) -> list[str]:
    subscriptions = sorted(dict(settings.options).get("subscribe") or ())
    shown = [one.hex() or "everything" for one in subscriptions]
    if sum(map(len, shown)) <= NAMED:
        return shown
    digest = hashlib.sha256(" ".join(shown).encode()).hexdigest()
    return [f"{len(shown)} subscriptions with the digest {digest[:32]}"]


def start(plan: Plan) -> None:
    """Starts the owner of a partition, which tells the coordinator when it serves, or why it does not.

    Raises:
        OSError: The process cannot be started.
    """
    launch("omq.spark.live.owner", pickle.dumps(plan))


def main() -> None:
    """The process."""
    plan: Plan = pickle.loads(sys.stdin.buffer.read())
    detach()
    channel = reach(plan.coordinator, plan.secret)
    # From here on the coordinator notices our end.
    channel.send({"own": plan.name, "begins": True})
    try:
        process = _Process(plan)
    except Exception as error:
        channel.send({"failed": str(error), "kind": type(error).__name__})
        channel.close()
        return
    process.run(channel)


if __name__ == "__main__":
    main()

"""Programs on the hosts of `tests.support.network_namespaces`: a peer that sends, and a driver whose microbatches hop.

Spark gives a task to any executor with a free core, by chance. So that each microbatch goes where it is wanted, a job
that does nothing takes the cores of all executors, and lets go of one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EXECUTOR_TIMEOUT_S = 120.0  # seconds that an executor may take to come, or a killed one to go
SUBSCRIBING = 300.0  # seconds that a PUB waits for its subscription: Spark starts meanwhile
ALONE = 3  # microbatches that do not wait for the successor of a killed executor
DIGITS = 8  # of a message's number, which it begins with
COLUMNS = "number bigint, sequence bigint, host string"
END = -1  # stands for a number in the row that a task ends with


def report(**facts: Any) -> None:
    """Reports facts to the program that started this one."""
    print("reported", json.dumps(facts), flush=True)


# ---------------------------------------------------------------------- the peer that sends


def feed(kind: str, address: str, size: int, count: int) -> None:
    """Sends messages that begin with their numbers; reports the endpoint, then that all are sent.

    Args:
        kind: `PUSH` or `PUB`.
        address: Where it listens.
        size: Bytes of a message.
        count: How many; 0 for no end, of messages without a number.
    """
    import omq

    # Little stands between sender and reader, so that most microbatches are read while the feed goes on.
    options: dict[str, Any] = {"send_hwm": 100, "send_buffer": 65536} if count else {}
    if kind == "PUB":
        options["xpub_nodrop"] = True
    with getattr(omq, kind)(bind=f"tcp://{address}:*", linger=0, **options) as sock:
        threading.Thread(target=_obey, args=(sock,), daemon=True).start()
        report(url=sock.endpoints[0])
        if kind == "PUB":
            sock.wait_subscribed(timeout=SUBSCRIBING)
        if not count:
            messages = [b"x" * size] * max(1, min(256, (1 << 22) // size))
            while True:
                sock.send_many(messages)
        for number in range(count):
            sock.send(b"%0*d" % (DIGITS, number) + b"x" * (size - DIGITS))
        sock.flush(None)
        report(sent=count)
        threading.Event().wait()


def _obey(sock: Any) -> None:
    """Reports how many connections there are, at each request, and ends with standard input."""
    for _ in sys.stdin:
        report(peers=len(sock.peers))
    os._exit(0)


# ---------------------------------------------------------------------- what runs in executors


def executor() -> int:
    """The process of the executor that this Python worker belongs to: the parent of what workers are forked from."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def ask(gate: tuple[str, int], why: str) -> None:
    """Reports to the driver where a task is and why it asks, and waits until it may go on."""
    with socket.create_connection(gate) as peer, peer.makefile("rw") as stream:
        stream.write(json.dumps({"why": why, "host": socket.gethostname(), "executor": executor()}) + "\n")
        stream.flush()
        stream.readline()


def fill(gate: tuple[str, int], _: Iterator[Any]) -> None:
    """A task that keeps a core busy for as long as the driver wants."""
    ask(gate, "fills")


def noted(gate: tuple[str, int] | None, batches: Iterator[Any]) -> Iterator[Any]:
    """Numbers of messages, and the host that read them; at last a row that names where the task ran.

    Args:
        gate: Where to ask when the first rows have gone by; `None`: nowhere.
        batches: Record batches of a read.
    """
    import pyarrow as pa

    host = socket.gethostname()

    def made(numbers: list[int], sequences: list[int]) -> Any:
        return pa.RecordBatch.from_pydict({"number": numbers, "sequence": sequences, "host": [host] * len(numbers)})

    for batch in batches:
        if not len(batch):
            continue
        numbers = [int(bytes(value.as_buffer()[:DIGITS])) for value in batch.column("value")]
        yield made(numbers, batch.column("sequence").to_pylist())
        if gate is not None:
            ask(gate, "reads")
            gate = None
    yield made([END], [END])


# ---------------------------------------------------------------------- the driver


class Gate:
    """A server that tasks ask before they go on.

    Args:
        address: The driver's address.
        hosts: The hosts of the executors.
        run: Runs a job of as many tasks as there are hosts, each of which asks here.
    """

    def __init__(self, address: str, hosts: list[str], run: Callable[[], object]) -> None:
        self._hosts = hosts
        self._run = run
        self._changed = threading.Condition()
        self._arrived: set[str] = set()
        self._free: str | None = None
        self._victim: str | None = None
        self._executors: dict[str, int] = {}
        #: The host whose executor was killed.
        self.killed: str | None = None
        self._listener = socket.create_server((address, 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        # Who asked may be killed meanwhile.
        with contextlib.suppress(OSError), peer, peer.makefile("rw") as stream:
            asked = json.loads(stream.readline())
            with self._changed:
                self._executors[asked["host"]] = asked["executor"]
                if asked["why"] == "fills":
                    self._keep(asked["host"])
                elif self._victim is not None:
                    self._kill(self._victim)
            stream.write("go on\n")
            stream.flush()

    def _keep(self, host: str) -> None:
        self._arrived.add(host)
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._free is None or (self._free == host and self._is_full))

    @property
    def _is_full(self) -> bool:
        return self._arrived.issuperset(self._hosts)

    def _kill(self, host: str) -> None:
        self._victim, self.killed = None, host
        pid = self._executors[host]
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
        watched = os.pidfd_open(pid)
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        select.select([watched], [], [], EXECUTOR_TIMEOUT_S)
        os.close(watched)
        # What ran there runs again where there is room.
        self._let_go()

    def _let_go(self) -> None:
        self._free = None
        self._arrived.clear()
        self._changed.notify_all()

    def arm(self, host: str) -> None:
        """Has the executor of a host killed once the next task that reads has had its first rows."""
        with self._changed:
            self._victim = host

    @contextlib.contextmanager
    def only(self, host: str) -> Iterator[None]:
        """While this lasts, tasks run on one host: all other executors are busy."""
        with self._changed:
            self._free = host
        filling = threading.Thread(target=self._run)
        filling.start()
        try:
            with self._changed:
                full = self._changed.wait_for(lambda: self._is_full, EXECUTOR_TIMEOUT_S)
                assert full, f"executors are free on {sorted(self._arrived)} only, of {self._hosts}"
            yield
        finally:
            with self._changed:
                self._let_go()
            filling.join()


class Driver:
    """A session on the cluster, and a stream that is read in microbatches, each on the next host.

    Args:
        master: The URL of the master.
        address: The driver's address.
        hosts: The hosts of the executors. Microbatch 0 is read on the first.
        conf: The session's configuration.
        options: The options of the read.
    """

    def __init__(
        self, master: str, address: str, hosts: list[str], conf: dict[str, str], options: dict[str, str]
    ) -> None:
        from tests.system.spark.conftest import session

        self._spark = session(master, **conf)
        self._hosts = hosts
        self._options = options
        self.gate = Gate(address, hosts, self._fill)

    def _fill(self) -> None:
        n = len(self._hosts)
        self._spark.sparkContext.parallelize(range(n), n).foreachPartition(functools.partial(fill, self.gate.address))

    def reader(self, number: int) -> str:
        """The host that is to read a microbatch."""
        return self._hosts[number % len(self._hosts)]

    def at(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Has a microbatch read on its host."""
        return self.gate.only(self.reader(number))

    def run(self, work: Callable[[Iterator[Any]], Iterator[Any]] | None, sink: Callable[[Any, int], None]) -> None:
        """Runs the query until standard input ends; reports if it fails."""
        frame = self._spark.readStream.format("omq").options(**self._options).load()
        if work is not None:
            frame = frame.mapInArrow(work, COLUMNS)
        # The driver alone writes it, so it may stand where the executors do not see it.
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"/tmp/{os.getpid()}").start()

        ending = threading.Event()

        def end() -> None:
            sys.stdin.read()
            ending.set()
            query.stop()

        threading.Thread(target=end, daemon=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            if not ending.is_set():
                report(failed=str(error))
        finally:
            self._spark.stop()


def read(*, counts: bool = False, kill: str = "", at: int = 0, **given: Any) -> None:
    """A stream whose every row is reported, microbatch by microbatch.

    Args:
        counts: Whether a `count()` comes before each `collect()`, on another host.
        kill: The host whose executor is killed; empty for none.
        at: The microbatch in which it is, once the first rows of that have been read.
        **given: See `Driver`.
    """
    driver = Driver(**given)
    gate = driver.gate

    def sink(frame: Any, number: int) -> None:
        counted = None
        if counts:
            with driver.at(number + 1):
                counted = frame.count()
        if kill and number == at:
            gate.arm(kill)
        # An executor is killed: the next microbatches run without it, and then on its host again.
        alone = gate.killed and number <= at + ALONE
        with contextlib.nullcontext() if alone else driver.at(number):
            rows = frame.collect()
        ends = [row for row in rows if row.number == END]
        report(
            batch=number,
            host=ends[0].host,
            tasks=len(ends),
            # The row that a task ends with is not a message.
            counted=counted if counted is None else counted - len(ends),
            numbers=[row.number for row in rows if row.number != END],
            sequences=[row.sequence for row in rows if row.number != END],
            killed=gate.killed,
        )

    driver.run(functools.partial(noted, gate.address if kill else None), sink)


def measure(**given: Any) -> None:
    """A stream into `noop`; how long each microbatch takes, and on which host."""
    driver = Driver(**given)

    def sink(frame: Any, number: int) -> None:
        with driver.at(number):
            begun = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            took = time.perf_counter() - begun
        report(batch=number, host=driver.reader(number), seconds=took)

    driver.run(None, sink)


if __name__ == "__main__":
    {"feed": feed, "read": read, "measure": measure}[sys.argv[1]](**json.loads(sys.argv[2]))

"""Clients of brokers that are killed, stopped and emptied by a seed, and the check of what the clients have seen.

Publishers and readers use a topic, whose history must be linearizable. Workers of a work queue and of a consumer group
take messages, each of which must not be delivered after its ack was confirmed. In the end everything that was
acknowledged must be there once.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import omq
from omq.broker import BrokerError, Client, Consumer, Delivery
from tests.fault.history_faults import Target
from tests.support.linearizability import Job, Log, Operation, Prefix, check_parts, linearize
from tests.support.waits import until

LOG: Final = "log"
GROUP: Final = "workers"
JOBS: Final = "jobs"
QUICK_S: Final = 2.0  # the timeout of calls during the faults: some of them must have an unknown outcome
PATIENT_S: Final = 60.0
DRAIN_S: Final = 90.0
PUBLISH_INTERVAL_S: Final = 0.05
MOVE_CHANCE: Final = 0.05  # that a client looks for the leader again after an operation
FILLER: Final = "filler"
FILL_BYTES: Final = 64 * 1024
FILL_INTERVAL_S: Final = 0.1


class Brokers(Protocol):
    """The brokers of a run.

    Attributes:
        persistence: The persistence of the topics.
        targets: What may be faulty; the first of them is in each run.
        fills: A client is to publish large messages, so that the journal grows.
    """

    persistence: str
    targets: list[Target]
    fills: bool

    def client(self, timeout: float) -> Client:
        """Returns a client whose requests are answered by the leader."""
        ...

    def each(self) -> list[Client]:
        """Returns a client of each broker of a cluster, also of one that lags."""
        ...

    def end(self, chance: random.Random) -> None:
        """Lets happen after the other faults what is to happen in each run."""
        ...

    def log(self) -> str:
        """Returns what the processes have logged."""
        ...


class History:
    """The operations of the clients of one object."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def call(self, client: str, call: Any, do: Callable[[], Any], since: float = 0.0) -> Any:
        """Executes an operation; returns its result, or `None` if its outcome is unknown.

        Args:
            client: The name of the client.
            call: The operation.
            do: Executes it.
            since: The time from which it may have its effect; 0: now.
        """
        called = since or time.monotonic()
        try:
            result = do()
        except omq.Timeout:
            self.operations.append(Operation(client, call, None, called))
            return None
        self.operations.append(Operation(client, call, result, called, time.monotonic()))
        return result

    def bodies(self, name: str, *, known: bool = True) -> set[bytes]:
        """Returns the bodies of one kind of operations; with `known`, of those that have returned."""
        return {
            one.call[1] for one in self.operations if one.call[0] == name and (not known or one.returned < float("inf"))
        }


class Run:
    """A run with faults.

    Args:
        brokers: The brokers.
        seed: Determines the faults, and what the clients do.
    """

    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.topic = History()
        self.jobs = History()
        self.group = History()
        self.lagging: list[Prefix] = []
        self.faults: list[str] = []
        self.messages: list[tuple[int, bytes]] = []  # of the topic in the end
        self._chance = random.Random(seed)
        self._stop = threading.Event()  # ends the faults, publishers and readers
        self._drained = threading.Event()  # ends the workers
        self._checked = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Runs the clients and the faults, and checks the history."""
        try:
            self._run(seconds)
        finally:
            self._checked.set()

    def _run(self, seconds: float) -> None:
        with self.brokers.client(PATIENT_S) as client:
            client.create(LOG, persistence=self.brokers.persistence)
            client.create(JOBS, delivery="round-robin", persistence=self.brokers.persistence)
            client.create(FILLER, persistence=self.brokers.persistence, max_bytes=2 * FILL_BYTES)
            client.consume(LOG, group=GROUP, replay="earliest").close()
        work = [partial(self._publish, f"p{number}") for number in range(2)]
        work += [partial(self._read, f"r{number}") for number in range(2)]
        work += [partial(self._produce, "producer")]
        work += [partial(self._read_lagging, client) for client in self.brokers.each()]
        work += [self._fill] if self.brokers.fills else []
        workers = [partial(self._work, f"w{number}", JOBS, None, self.jobs) for number in range(3)]
        workers += [partial(self._work, f"g{number}", LOG, GROUP, self.group) for number in range(3)]
        chances = [random.Random(self._chance.random()) for _ in range(len(work) + len(workers))]
        clients = [self._thread(run, chances.pop()) for run in work]
        workers_ = [self._thread(run, chances.pop()) for run in workers]
        # Faults may leave no time for a message, and a history without one shows nothing.
        until(lambda: self._errors or self.topic.bodies("append"), bound=PATIENT_S)
        first, *others = self.brokers.targets
        targets = [first, *self._chance.sample(others, self._chance.randint(0, len(others)))]
        healed = [threading.Event() for _ in targets]
        for target, event in zip(targets, healed, strict=True):
            self._thread(partial(self._let_fail, target, event), random.Random(self._chance.random()))
        try:
            self._stop.wait(seconds)
        finally:
            self._stop.set()
            for event in healed:
                event.wait()
            for thread in clients:
                thread.join()
            if not self._errors:
                self.brokers.end(self._chance)
            with contextlib.suppress(AssertionError):
                until(self._is_drained, bound=DRAIN_S)
            self._drained.set()
            for thread in workers_:
                thread.join()
        for error in self._errors:
            raise error
        self._check()

    def _thread(self, run: Callable[[random.Random], None], chance: random.Random) -> threading.Thread:
        def guarded() -> None:
            try:
                run(chance)
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()
                self._drained.set()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _let_fail(self, target: Target, healed: threading.Event, chance: random.Random) -> None:
        try:
            target.run(chance, self._stop, self.faults)
        finally:
            healed.set()
        self._checked.wait()  # the system ends the processes that a thread has started with the thread

    # ------------------------------------------------------------------ clients

    def _clients(self) -> Iterator[Client]:
        """Yields a client, and another one each time, which looks for the leader again."""
        while not self._stop.is_set():
            with contextlib.suppress(omq.Timeout), self.brokers.client(QUICK_S) as client:
                yield client

    def _publish(self, name: str, chance: random.Random) -> None:
        bodies = self._bodies(name, chance)
        for client in self._clients():
            for body in bodies:
                id = self.topic.call(name, ("append", body), partial(client.publish, LOG, body))
                if chance.random() < (0.5 if id is None else MOVE_CHANCE):
                    break

    def _produce(self, name: str, chance: random.Random) -> None:
        with self.brokers.client(QUICK_S) as client:
            for body in self._bodies(name, chance):
                self.jobs.call(name, ("publish", body), partial(client.publish, JOBS, body))

    def _bodies(self, name: str, chance: random.Random) -> Iterator[bytes]:
        number = 0
        while not self._stop.wait(chance.uniform(0, PUBLISH_INTERVAL_S)):
            number += 1
            yield f"{name}.{number}".encode()

    def _fill(self, chance: random.Random) -> None:
        for client in self._clients():
            for body in filling():
                with contextlib.suppress(omq.Timeout):
                    client.publish(FILLER, body)
                if self._stop.wait(chance.uniform(0, 2 * FILL_INTERVAL_S)) or chance.random() < 0.02:
                    break

    def _read(self, name: str, chance: random.Random) -> None:
        for client in self._clients():
            while not self._stop.wait(chance.uniform(0, 0.3)):
                found = self.topic.call(name, ("read",), partial(_prefix, client))
                if chance.random() < (0.5 if found is None else MOVE_CHANCE):
                    break

    def _read_lagging(self, client: Client, chance: random.Random) -> None:
        # Its broker may not have the topic yet, or answer nothing as it ceases to lead.
        with contextlib.suppress(BrokerError), client:
            while not self._stop.wait(chance.uniform(0, 0.3)):
                with contextlib.suppress(BrokerError):
                    self.lagging.append(_prefix(client))

    def _work(self, name: str, topic: str, group: str | None, history: History, chance: random.Random) -> None:
        while not self._drained.is_set():
            with self.brokers.client(PATIENT_S) as client:
                since = time.monotonic()
                with contextlib.suppress(omq.Timeout):
                    consumer = client.consume(topic, group=group, credit=1, ack_timeout=PATIENT_S)
                    while not self._drained.is_set() and chance.random() > 0.02:
                        since = self._work_once(name, client, consumer, history, since, chance)
                    consumer.close()

    def _work_once(
        self, name: str, client: Client, consumer: Consumer, history: History, since: float, chance: random.Random
    ) -> float:
        """Takes a message; returns the time since which the next one may have been sent."""
        try:
            delivery = consumer.recv(timeout=0.2)
        except omq.ReceiveTimeout:
            return since
        body = bytes(delivery.body)
        history.operations.append(Operation(name, ("take", body), None, since, time.monotonic()))
        since = time.monotonic()
        if chance.random() < 0.1:
            delivery.nack()
        else:
            history.call(name, ("ack", body), partial(_confirm, client, delivery))
        return since

    def _is_drained(self) -> bool:
        return bool(self._errors) or not (
            self.jobs.bodies("publish") - self.jobs.bodies("ack", known=False)
            or self.topic.bodies("append") - self.group.bodies("ack", known=False)
        )

    # ------------------------------------------------------------------ what must hold

    def _check(self) -> None:
        with self.brokers.client(PATIENT_S) as client:
            self.topic.call("last", ("read",), lambda: Prefix.of(self._final(client)))
        ids = {body: id for id, body in self.messages}
        assert len(ids) == len(self.messages), "a message of the topic is there twice"
        lost = self.topic.bodies("append") - ids.keys()
        assert not lost, f"acknowledged and lost: {sorted(lost)[:9]}"
        linearize(Log(), _known(self.topic.operations, ids))
        prefixes = {Prefix.of(self.messages[:count]) for count in range(len(self.messages) + 1)}
        strange = [prefix for prefix in self.lagging if prefix not in prefixes]
        assert not strange, f"a broker that may lag had something else than the topic: {strange[:3]}"
        self._check_each()
        self._check_work(self.jobs, self.jobs.bodies("publish"))
        appends = [
            replace(one, call=("publish", one.call[1])) for one in self.topic.operations if one.call[0] == "append"
        ]
        self.group.operations += appends
        self._check_work(self.group, self.topic.bodies("append"))

    def _check_each(self) -> None:
        """Waits until each broker has what the leader has."""
        for number, client in enumerate(self.brokers.each()):
            found: list[tuple[int, bytes]] = []
            end = time.monotonic() + PATIENT_S
            with client:
                while found != self.messages:
                    assert time.monotonic() < end, f"broker {number} has {Prefix.of(found)} in the end"
                    with contextlib.suppress(BrokerError, omq.Timeout):
                        found = _messages(client)

    def _final(self, client: Client) -> list[tuple[int, bytes]]:
        self.messages = _messages(client)
        return self.messages

    @staticmethod
    def _check_work(history: History, published: set[bytes]) -> None:
        undelivered = published - history.bodies("take")
        assert not undelivered, f"acknowledged and never delivered: {sorted(undelivered)[:9]}"
        unfinished = published - history.bodies("ack", known=False)  # one in doubt may have been recorded
        assert not unfinished, f"never acknowledged: {sorted(unfinished)[:9]}"
        check_parts(Job(), history.operations, lambda one: one.call[1])


def filling() -> Iterator[bytes]:
    """Yields large messages."""
    for number in itertools.count():
        yield number.to_bytes(8, "big") * (FILL_BYTES // 8)


def _messages(client: Client) -> list[tuple[int, bytes]]:
    return [(message.id, bytes(message.body)) for message in client.read(LOG)]


def _prefix(client: Client) -> Prefix:
    return Prefix.of(_messages(client))


def _confirm(client: Client, delivery: Delivery) -> None:
    """Acknowledges a delivery, and waits until the broker has recorded it in the session of the delivery.

    Raises:
        Timeout: It may not have: after a lost connection another worker may have the message.
    """
    delivery.ack()
    client.flush(timeout=PATIENT_S)
    if client._connection.core.session != delivery.session:
        raise omq.Timeout("the connection was lost")


def _known(operations: list[Operation], ids: dict[bytes, int]) -> list[Operation]:
    """Returns the operations with an effect: an append without an answer has an id if it is stored in the end."""
    found = []
    for one in operations:
        if one.returned < float("inf"):
            found.append(one)
        elif one.call[0] == "append" and one.call[1] in ids:
            found.append(replace(one, result=ids[one.call[1]]))
    return found

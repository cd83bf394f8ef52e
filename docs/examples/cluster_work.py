"""The clients of `demo_replicated.py`: publishers, a subscriber and workers, each a thread with a client of its own."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Self, TypeVar

from child_processes import ChildError
from omq.broker import Client, Delivery
from omq.errors import Timeout

CALL_TIMEOUT_S: Final = 60.0  # an election of the servers and one of the brokers are a part of it
RECEIVE_TIMEOUT_S: Final = 0.2
PREFETCH: Final = 100  # jobs of a worker
END_TIMEOUT_S: Final = 2.0
_T = TypeVar("_T")


def body_of(number: int, size: int) -> bytes:
    """Returns the body of a message: its number, filled up."""
    return b"%d " % number + bytes(size)


def number_of(body: bytes) -> int:
    """Returns the number of a message."""
    return int(body.partition(b" ")[0])


class ClusterClient:
    """A thread that works with the cluster until it is stopped.

    Args:
        name: Its name in errors.
        endpoints: Those of all brokers; the client finds the leader.

    Attributes:
        pause: The longest time between two successes.
        waiting: Seconds since the last success.
    """

    def __init__(self, name: str, endpoints: list[str]) -> None:
        self._name = name
        self._endpoints = endpoints
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._last = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.pause = 0.0

    def work(self, client: Client) -> None:
        """Works until it is stopped."""
        raise NotImplementedError

    def succeeded(self) -> None:
        """Counts a success."""
        now = time.monotonic()
        self.pause = max(self.pause, now - self._last) if self._last else 0.0
        self._last = now

    @property
    def waiting(self) -> float:
        """Seconds since the last success; 0 before the first one."""
        return time.monotonic() - self._last if self._last else 0.0

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raises an error if it has failed.

        Raises:
            ChildError: It has.
        """
        if self._error is not None:
            raise ChildError(f"the {self._name} has failed: {self._error}")

    def stop(self) -> None:
        """Asks it to end."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            with Client(self._endpoints, timeout=CALL_TIMEOUT_S) as client:
                self.work(client)
        except Exception as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(END_TIMEOUT_S)


class NumberPublisher(ClusterClient):
    """Publishes numbered messages at an even pace.

    Args:
        topic: The topic.
        endpoints: Those of all brokers.
        rate: Messages a second.
        batch: Messages of a call.
        size: Bytes of a message.
        published: The number of messages that the topic has already.

    Attributes:
        acknowledged: The number of messages whose ids have come; their numbers are below it.
    """

    def __init__(
        self, topic: str, endpoints: list[str], *, rate: float, batch: int, size: int, published: int = 0
    ) -> None:
        super().__init__(f"publisher of {topic!r}", endpoints)
        self.acknowledged = published
        self._topic = topic
        self._interval = batch / rate
        self._batch = batch
        self._size = size

    def work(self, client: Client) -> None:
        while not self._stopped.wait(self._interval):
            numbers = range(self.acknowledged, self.acknowledged + self._batch)
            ids = client.publish_many(self._topic, [body_of(number, self._size) for number in numbers])
            self.acknowledged += len(ids)
            self.succeeded()


class NumberSubscriber(ClusterClient):
    """Receives all messages of a topic.

    Attributes:
        received: How often each number has come.
    """

    def __init__(self, topic: str, endpoints: list[str]) -> None:
        super().__init__(f"subscriber of {topic!r}", endpoints)
        self.received: Counter[int] = Counter()
        self._topic = topic

    def work(self, client: Client) -> None:
        with client.subscribe(self._topic, replay="earliest") as subscription:
            while not self._stopped.is_set():
                if messages := received(subscription.recv_many):
                    self.received.update(number_of(message.body) for message in messages)
                    self.succeeded()


class FinishedJobs:
    """The jobs that all workers have done.

    Attributes:
        ids: The ids of each number; more than one if the job is stored twice.
        deliveries: The number of deliveries.
    """

    def __init__(self) -> None:
        self.ids: dict[int, set[int]] = {}
        self.deliveries = 0
        self._lock = threading.Lock()

    def add(self, jobs: list[Delivery]) -> None:
        """Adds jobs."""
        with self._lock:
            self.deliveries += len(jobs)
            for job in jobs:
                self.ids.setdefault(number_of(job.body), set()).add(job.id)

    @property
    def stored(self) -> Counter[int]:
        """The number of ids of each number."""
        return Counter({number: len(ids) for number, ids in self.ids.items()})

    @property
    def again(self) -> int:
        """The deliveries of jobs that were delivered before."""
        return self.deliveries - self.stored.total()


class JobThread(ClusterClient):
    """Takes jobs of a work queue, and acknowledges them.

    Args:
        topic: The queue.
        endpoints: Those of all brokers.
        finished: Where it adds what it has done.
    """

    def __init__(self, topic: str, endpoints: list[str], finished: FinishedJobs) -> None:
        super().__init__(f"worker of {topic!r}", endpoints)
        self._topic = topic
        self._finished = finished

    def work(self, client: Client) -> None:
        consumer = client.consume(self._topic, credit=PREFETCH)
        while not self._stopped.is_set():
            if jobs := received(consumer.recv_many):
                self._finished.add(jobs)
                consumer.ack(jobs)
                self.succeeded()


def received(receive: Callable[..., list[_T]]) -> list[_T]:
    """Returns what comes in a short time."""
    try:
        return receive(timeout=RECEIVE_TIMEOUT_S)
    except Timeout:
        return []

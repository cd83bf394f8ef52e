"""A broker that is killed again and again while messages become dead letters, are requeued, and topics are purged."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from pathlib import Path
from typing import Final

import omq.broker
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 60.0  # of a call, which waits for the next broker


class DeadLetterChaos:
    """Lets each message fail once, requeues it, and acknowledges it under its second id.

    Attributes:
        ids: The ids under which each job was delivered, by its body.
        acked: The bodies of the jobs that were acknowledged.
        purged: By topic, the highest id up to which a purge has succeeded.
    """

    def __init__(self, directory: Path, seed: int, port: int, jobs: str, dead: str) -> None:
        self._chance = random.Random(seed)
        self._directory = directory
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._topics = [
            f"jobs:round-robin:{jobs}:max_deliveries=1:dead_letter=dead:retry_delay=0",
            f"dead:broadcast:{dead}",
            f"log:broadcast:{dead}",
            f"waste:round-robin:{jobs}",
        ]
        self._broker: ForkedProcess | None = None
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self.published: list[bytes] = []
        self.ids: dict[bytes, set[int]] = {}
        self.acked: set[bytes] = set()
        self.purged = {"log": 0, "waste": 0}

    # ------------------------------------------------------------------ the broker

    def begin(self) -> None:
        """Starts the broker; the clients connect to it by themselves."""
        command = ["omq.cli.main", "broker", str(self._directory), "--bind", self._endpoint]
        command += [part for topic in self._topics for part in ("--topic", topic)] + ["--log-level", "error"]
        self._broker = ForkedProcess("-m", *command, cwd=ROOT, stderr=subprocess.PIPE)

    def kill(self) -> None:
        """Kills the broker."""
        if self._broker is not None:
            self._broker.kill()
            _, text = self._broker.communicate()
            self._broker = None
            assert b"Traceback" not in text, text.decode()

    # ------------------------------------------------------------------ the clients

    def run(self, kills: int) -> None:
        """Runs the clients, and kills the broker at random moments meanwhile; then lets them finish, and checks."""
        threads = [threading.Thread(target=self._guard, args=(call,)) for call in (self._work, self._operate)]
        self.begin()
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                self._ended.wait(self._chance.uniform(0.6, 2.0))  # a start takes about half a second
                self.kill()
                self.begin()
            threads[1].join()
            self._check()
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            self.kill()

    def _guard(self, call: object) -> None:
        try:
            assert callable(call)
            call()
        except BaseException as error:
            self._failure = self._failure or error
            self._ended.set()

    def _work(self) -> None:
        """Lets jobs fail the first time, and acknowledges them under their second id."""
        with omq.broker.Client(self._endpoint, timeout=TIMEOUT_S) as client, client.consume("jobs") as consumer:
            while not self._ended.is_set():
                with contextlib.suppress(omq.ReceiveTimeout):
                    for job in consumer.recv_many(16, timeout=0.1):
                        self.ids.setdefault(job.body, set()).add(job.id)
                        assert job.headers == {"own": b"v"}, job.headers
                        if job.id == min(self.ids[job.body]):
                            job.nack()
                        else:
                            job.ack()
                            self.acked.add(job.body)

    def _operate(self) -> None:
        """Publishes jobs, requeues dead letters, and purges two other topics."""
        chance = random.Random(self._chance.random())
        with omq.broker.Client(self._endpoint, timeout=TIMEOUT_S) as client:
            for turn in range(25):
                bodies = [b"%d.%d" % (turn, number) for number in range(chance.randrange(1, 30))]
                self.published += bodies
                client.publish_many("jobs", [omq.broker.Record(body, None, {"own": b"v"}) for body in bodies])
                for letter in client.read("dead", limit=3):
                    assert (letter.headers["omq-dead-topic"], letter.headers["own"]) == (b"jobs", b"v")
                    assert letter.headers["omq-dead-deliveries"] == b"1"
                client.requeue("dead", limit=chance.choice([1, 3, 20, None]))
                topic = chance.choice(["log", "waste"])
                last = client.publish_many(topic, [b"x"] * chance.randrange(1, 20))[-1]
                up_to = chance.randrange(self.purged[topic] + 1, last + 1)
                client.purge(topic, up_to=up_to)
                self.purged[topic] = up_to
            until(lambda: self._ended.is_set() or self._finished(client), self._missing, 2 * TIMEOUT_S)
            client.flush()

    def _finished(self, client: omq.broker.Client) -> bool:
        """Requeues what is left; returns whether nothing is, and all jobs are acknowledged."""
        client.requeue("dead")
        (info,) = client.topics("dead")
        return info.first > info.last and self.acked == set(self.published)

    def _missing(self) -> str:
        return f"not acknowledged: {sorted(set(self.published) - self.acked)[:9]}; {self._failure!r}"

    # ------------------------------------------------------------------ what must hold

    def _check(self) -> None:
        """Compares what was published with what was delivered and with what is stored."""
        assert self._failure is None, self._failure
        assert set(self.ids) == set(self.published)
        twice = {body: ids for body, ids in self.ids.items() if len(ids) != 2}
        assert not twice, f"jobs were requeued more than once: {twice}"
        with omq.broker.Client(self._endpoint, timeout=TIMEOUT_S) as client:
            info = {one.name: one for one in client.topics()}
            assert info["jobs"].last == 2 * len(self.published), "each was published once and requeued once"
            kept = [message.id for message in client.read("log")]
            assert kept == list(range(self.purged["log"] + 1, info["log"].last + 1))
            left = info["waste"].last - self.purged["waste"]
            with client.consume("waste", credit=1000) as consumer:
                got = [next(iter(consumer)).id for _ in range(left)]
                assert sorted(got) == list(range(self.purged["waste"] + 1, info["waste"].last + 1))

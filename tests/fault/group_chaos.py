"""Workers of consumer groups and a broker that are killed again and again, and what the workers did meanwhile."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import omq.broker
from tests.fault.group_worker import TIMEOUT_S, TOPIC
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until

ROOT: Final = Path(__file__).parents[2]
WORKERS: Final = 4  # of the group `workers`; the group `audit` has one
BATCHES: Final = 60
MAX_BATCH: Final = 80


@dataclass
class Log:
    """The deliveries and confirmed acks of a group, as its workers have written them.

    Attributes:
        got: Time, process and body of each delivery, by id.
        confirmed: The earliest time at which the ack of a message was confirmed, by id.
    """

    got: dict[int, list[tuple[int, str, bytes]]] = field(default_factory=lambda: defaultdict(list))
    confirmed: dict[int, int] = field(default_factory=dict)


class GroupChaos:
    """Publishes to a topic with two groups, and kills workers and the broker at random moments.

    Attributes:
        published: The bodies by id.
    """

    def __init__(self, directory: Path, seed: int, port: int, persistence: str) -> None:
        self._chance = random.Random(seed)
        self._directory = directory
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._persistence = persistence
        self._broker: ForkedProcess | None = None
        self._workers: dict[str, ForkedProcess] = {}  # by the name of their file
        self._started = 0
        self._failure: BaseException | None = None
        self.published: dict[int, bytes] = {}
        self._count = 0

    # ------------------------------------------------------------------ processes

    def start_broker(self) -> None:
        """Starts the broker; the clients connect to it by themselves."""
        command = ["omq.cli.main", "broker", str(self._directory / "data")]
        command += ["--bind", self._endpoint, "--topic", f"{TOPIC}:broadcast:{self._persistence}"]
        command += ["--log-level", "error"]
        self._broker = ForkedProcess("-m", *command, cwd=ROOT, stderr=subprocess.PIPE)

    def kill_broker(self) -> None:
        """Kills the broker."""
        if self._broker is not None:
            self._broker.kill()
            _, text = self._broker.communicate()
            self._broker = None
            assert b"Traceback" not in text, text.decode()

    def start_worker(self, group: str) -> str:
        """Starts a worker; returns the name of its file."""
        self._started += 1
        name = f"{group}.{self._started}"
        command = ["tests.fault.group_worker", self._endpoint, str(self._directory / name), group]
        command.append(str(self._chance.randrange(1 << 30)))
        self._workers[name] = ForkedProcess("-m", *command, cwd=ROOT, stderr=subprocess.PIPE)
        return name

    def kill_worker(self, name: str) -> None:
        """Kills a worker, which must not have failed before."""
        process = self._workers.pop(name)
        process.kill()
        _, text = process.communicate()
        assert not text, text.decode()

    def kill_all(self) -> None:
        """Kills all processes."""
        for name in list(self._workers):
            self.kill_worker(name)
        self.kill_broker()

    # ------------------------------------------------------------------ a history

    def run(self, kills: int) -> None:
        """Runs all phases, and checks what must hold."""
        self.start_broker()
        try:
            with omq.broker.Client(self._endpoint, timeout=TIMEOUT_S) as client:
                for group in ("workers", "audit"):
                    client.consume(TOPIC, group=group, replay="earliest").close()
                self._work_with_kills(client, kills)
                self._finish(client)
                self._check_logs()
                self._work_alone(client)
                self._seek(client)
        finally:
            self.kill_all()

    def _publish(self, client: omq.broker.Client, count: int) -> list[int]:
        bodies = [b"%d" % number for number in range(self._count, self._count + count)]
        self._count += count
        ids = client.publish_many(TOPIC, bodies)
        self.published |= zip(ids, bodies, strict=True)
        return list(ids)

    def _work_with_kills(self, client: omq.broker.Client, kills: int) -> None:
        """Publishes in the background while workers and the broker are killed."""
        for group in ("workers",) * WORKERS + ("audit",):
            self.start_worker(group)
        sizes = [self._chance.randrange(1, MAX_BATCH) for _ in range(BATCHES)]

        def publish() -> None:
            try:
                for size in sizes:
                    self._publish(client, size)
                    time.sleep(0.02)
            except BaseException as error:
                self._failure = error

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for _ in range(kills):
                time.sleep(self._chance.uniform(0.2, 1.2))
                if self._chance.random() < 0.5:
                    self.kill_broker()
                    self.start_broker()
                else:
                    name = self._chance.choice(list(self._workers))
                    self.kill_worker(name)
                    self.start_worker(name.partition(".")[0])
        finally:
            publisher.join()
        assert self._failure is None, self._failure

    def _finish(self, client: omq.broker.Client) -> None:
        """Waits until both groups have acknowledged everything."""

        def lags() -> list[int]:
            return [group.lag for group in client.groups(TOPIC)]

        until(lambda: lags() == [0, 0], lambda: f"the groups lag: {client.groups(TOPIC)}", 2 * TIMEOUT_S)
        for name in list(self._workers):
            self.kill_worker(name)

    def _work_alone(self, client: omq.broker.Client) -> None:
        """One worker gets what is published meanwhile in the order of its arrival."""
        until(lambda: all(group.consumers == 0 for group in client.groups(TOPIC)), "all workers have gone")
        name = self.start_worker("workers")
        ids = [id for _ in range(20) for id in self._publish(client, self._chance.randrange(1, MAX_BATCH))]
        until(lambda: self._group(client, "workers").lag == 0, bound=TIMEOUT_S)
        self.kill_worker(name)
        got = [id for id, *_ in self._deliveries(name)]
        assert got == ids == sorted(ids)

    def _seek(self, client: omq.broker.Client) -> None:
        """Moves a group back, and kills the broker at once: exactly the messages after the position come again."""
        ids = sorted(self.published)
        position = self._chance.choice(ids[:-1])
        client.seek_group(TOPIC, "audit", position)
        self.kill_broker()
        self.start_broker()
        assert self._group(client, "audit").lag == len(ids) - ids.index(position) - 1
        assert self._group(client, "workers").lag == 0
        name = self.start_worker("audit")
        until(lambda: self._group(client, "audit").lag == 0, bound=TIMEOUT_S)
        self.kill_worker(name)
        assert [id for id, *_ in self._deliveries(name)] == [id for id in ids if id > position]

    def _group(self, client: omq.broker.Client, name: str) -> omq.broker.GroupInfo:
        (found,) = [group for group in client.groups(TOPIC) if group.name == name]
        return found

    # ------------------------------------------------------------------ what must hold

    def _deliveries(self, name: str) -> list[tuple[int, int, bytes]]:
        """Returns id, time and body of each delivery to a worker."""
        lines = [line.split(b" ", 3) for line in self._lines(name)]
        return [(int(words[2]), int(words[1]), words[3]) for words in lines if words[0] == b"got"]

    def _lines(self, name: str) -> list[bytes]:
        path = self._directory / name
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # it may have been killed as it wrote

    def _log(self, group: str) -> Log:
        log = Log()
        for path in self._directory.glob(f"{group}.*"):
            for id, when, body in self._deliveries(path.name):
                log.got[id].append((when, path.name, body))
            for line in self._lines(path.name):
                if line.startswith(b"confirmed "):
                    when, *ids = map(int, line.split()[1:])
                    for id in ids:
                        log.confirmed[id] = min(when, log.confirmed.get(id, when))
        return log

    def _check_logs(self) -> None:
        """Compares what was published with what the workers did."""
        assert sorted(self.published) == list(range(1, len(self.published) + 1)), "ids are dense"
        for group in ("workers", "audit"):
            log = self._log(group)
            missing = self.published.keys() - log.got.keys()
            assert not missing, f"{group}: not delivered: {sorted(missing)[:9]}"
            assert log.confirmed, f"{group}: nothing was confirmed"
            for id, deliveries in log.got.items():
                assert {body for _, _, body in deliveries} == {self.published[id]}
                late = [one for one in deliveries if one[0] > log.confirmed.get(id, one[0])]
                assert not late, f"{group}: message {id} was confirmed at {log.confirmed[id]}, and came again: {late}"

"""Rows (a server, its settings and its clients), cases of rows, and the targets of omq."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.plan import P50, P99, RATE, Metric

OMQ, FLOOR = "omq", "floor"
PEERS = (OMQ, "nats", "redis", "rabbitmq", FLOOR)
#: The server's own memory after the run, without what it maps.
MEMORY = Metric("memory", "server MiB", 0, less_is_better=True)
#: The processors' time for a message, which is more stable than a rate where other programs run.
SERVER = Metric("server", "server us", 2, less_is_better=True)
CLIENT = Metric("client", "clients us", 2, less_is_better=True)

TOPICS = 100  # with a cursor each
#: The time to the first message of a cursor, one after the other and all at once (ms), and the broker's memory (MiB).
RESUMED = {"worst": 1000.0, "all": 1000.0, "memory": 300.0}


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: Its name.
        peer: One of `PEERS`.
        service: The server, a key of `bench.broker.servers.STARTERS`.
        drivers: Modules of `bench.broker.drivers`: the better one counts.
        settings: The server's settings, by its own names.
        options: The options of the client.
        bound: The ratio to the best peer that the row of omq has to reach, in the first metric.
        limits: Bounds by the key of a metric: the least value, or the largest one where less is better.
        stores: The server keeps the messages.
    """

    label: str
    peer: str
    service: str
    drivers: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    bound: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    stores: bool = True

    def with_targets(self, bound: float | None = None, **limits: float) -> Row:
        """Returns the row with targets."""
        return replace(self, bound=bound, limits=limits)

    def with_options(self, **options: str) -> Row:
        """Returns the row with more options of its client."""
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True)
class BrokerCase:
    """One table.

    Attributes:
        key: Its name in files.
        scenario: Its kind, as on the command line and in `bench.broker.measure`.
        title: The load.
        rows: omq's first, floors last; the first floor is the base of ratios.
        metrics: The columns; the first one counts.
    """

    key: str
    scenario: str
    title: str
    rows: tuple[Row, ...]
    metrics: tuple[Metric, ...] = (RATE, SERVER, CLIENT, MEMORY)

    @property
    def weight(self) -> int:
        """Its approximate share of the time of all cases."""
        filling = {"replay": 10, "start": 5, "resume": 20}
        return filling.get(self.scenario, 0) + sum(1 + len(row.drivers) for row in self.rows)


@dataclass(frozen=True)
class BrokerLoad:
    """The load of the command line.

    Attributes:
        size: Bytes of a message.
        depth: Messages in flight.
        seconds: How long a measured burst should last.
        messages: Messages that are replayed.
        kept: Messages that are stored while cursors resume.
    """

    size: int
    depth: int
    seconds: float
    messages: int
    kept: int


def _omq(persistence: str) -> Row:
    return Row(f"omq, {persistence}", OMQ, "omq", ("omq_client",), {}, {"persistence": persistence})


NATS = Row("NATS JetStream, sync in 2 min", "nats", "nats", ("nats_bare", "nats_official"))  # its default
NATS_SECOND = replace(NATS, label="NATS JetStream, sync in 1 s", settings={"sync_interval": "1s"})
NATS_ALWAYS = replace(NATS, label="NATS JetStream, sync always", settings={"sync_interval": "always"})
_REDIS = ("redis_bare", "redis_official")
REDIS = Row("Redis Streams, everysec", "redis", "redis", _REDIS, {"appendfsync": "everysec"})
REDIS_ALWAYS = Row("Redis Streams, always", "redis", "redis", _REDIS, {"appendfsync": "always"})
RABBIT = Row("RabbitMQ, quorum queue", "rabbitmq", "rabbitmq", ("rabbit_bare", "rabbit_official"))
FILE = Row("bare file, read or written", FLOOR, "sink", ("floor_file",))
FILE_SYNC = Row("bare file, fdatasync", FLOOR, "sink", ("floor_file",), {}, {"sync": "yes"})
SOCKET = Row("bare socket", FLOOR, "sink", ("floor_socket",), stores=False)

STRONG, WEAK, ASYNC = _omq("strong"), _omq("weak"), _omq("async")


def _bare(row: Row) -> Row:
    """Returns the row with a client that only speaks the protocol, as the bare ones of the peers do."""
    return replace(row, label=f"{row.label}, bare client", drivers=("omq_bare",), bound=None, limits={})


def _group(row: Row) -> Row:
    """Returns the row with a consumer group of a broadcast topic in place of a round-robin topic."""
    return replace(row.with_options(delivery="broadcast", group="bench"), label=f"{row.label}, group")


SAFE_PEERS = (REDIS_ALWAYS, NATS_ALWAYS, RABBIT)
LAZY_PEERS = (REDIS, NATS_SECOND)
#: The drivers that publish batches, by peer; a row that publishes takes the better driver.
BATCHES = {"nats": "nats_batches", "redis": "redis_batches"}


def _may_batch(*rows: Row) -> tuple[Row, ...]:
    return tuple(
        replace(row, drivers=(*row.drivers, BATCHES[row.peer])) if row.peer in BATCHES else row for row in rows
    )


def cases(load: BrokerLoad) -> list[BrokerCase]:
    """Returns all cases."""
    shared = {"delivery": "round-robin"}
    both = ("omq_client", "omq_batches")
    strong, weak, lazy = (replace(row.with_options(**shared), drivers=both) for row in (STRONG, WEAK, ASYNC))
    strong_group, weak_group = map(_group, (strong, weak))
    many = f"{load.messages:,} messages"
    return [
        BrokerCase(
            "publish-strong",
            "publish",
            "publish, acknowledged after an fsync",
            (STRONG.with_targets(2.0), _bare(STRONG), *_may_batch(*SAFE_PEERS), FILE_SYNC, SOCKET),
        ),
        BrokerCase(
            "publish-weak",
            "publish",
            "publish, acknowledged before an fsync",
            (
                WEAK.with_targets(1.5),
                _bare(WEAK),
                ASYNC.with_targets(1.5),
                *_may_batch(*LAZY_PEERS, NATS),
                FILE,
                SOCKET,
            ),
        ),
        BrokerCase(
            "latency-strong",
            "latency",
            "one publish, acknowledged after an fsync",
            (STRONG, _bare(STRONG), *SAFE_PEERS, FILE_SYNC, SOCKET),
            (P50, P99),
        ),
        BrokerCase(
            "consume-strong",
            "consume",
            "consume with acknowledgements that are synced",
            (strong, _bare(strong), strong_group, *SAFE_PEERS, SOCKET),
        ),
        BrokerCase(
            "consume-weak",
            "consume",
            "consume with acknowledgements that are not synced",
            (weak, _bare(weak), weak_group, lazy, *LAZY_PEERS, SOCKET),
        ),
        BrokerCase(
            "together-strong",
            "together",
            "publish and consume at once, synced",
            (strong, _bare(strong), *_may_batch(*SAFE_PEERS), SOCKET),
        ),
        BrokerCase(
            "together-weak",
            "together",
            "publish and consume at once, not synced",
            (weak, _bare(weak), lazy, *_may_batch(*LAZY_PEERS), SOCKET),
        ),
        BrokerCase(
            "replay",
            "replay",
            f"replay {many} from the beginning",
            (
                replace(WEAK, label="omq, read").with_options(by="read").with_targets(rate=1e6),
                replace(WEAK, label="omq, subscribe").with_options(by="subscribe").with_targets(rate=1e6),
                replace(_bare(WEAK), label="omq, read, bare client"),
                *LAZY_PEERS,
                SOCKET,
                FILE,
            ),
        ),
        BrokerCase(
            "start",
            "start",
            f"the first message of a read, at a random place among {many}",
            tuple(
                Row(f"omq, from {words}", OMQ, "omq", ("omq_start",), {}, {"persistence": "weak", "start": start})
                for words, start in (("an id", "id"), ("a time", "time"))
            ),
            (P50, P99),
        ),
        BrokerCase(
            "resume",
            "resume",
            f"a cursor resumes, in each of {TOPICS} topics; {load.kept:,} messages are stored",
            tuple(
                Row(f"omq, {state}", OMQ, "omq", ("omq_cursors",), {}, {"state": state}).with_targets(**RESUMED)
                for state in ("running", "restarted", "killed")
            ),
            (
                Metric("worst", "slowest ms", 1, less_is_better=True),
                Metric("middle", "median ms", 1, less_is_better=True),
                Metric("all", "all at once ms", 1, less_is_better=True),
                Metric("opens", "opens after s", 2, less_is_better=True),
                MEMORY,
            ),
        ),
    ]


SCENARIOS = ("publish", "latency", "consume", "together", "replay", "start", "resume")

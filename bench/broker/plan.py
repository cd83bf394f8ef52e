"""What is compared: rows (a server, how it is configured, its clients), cases of rows, and what omq has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.plan import P50, P99, RATE, Metric

OMQ, FLOOR = "omq", "floor"
PEERS = (OMQ, "nats", "redis", "rabbitmq", FLOOR)
#: The server's own memory after the run, without what it maps.
MEMORY = Metric("memory", "server MiB", 0, less_is_better=True)
#: The processors' time for a message, which says more than a rate where other programs run.
SERVER = Metric("server", "server us", 2, less_is_better=True)
CLIENT = Metric("client", "clients us", 2, less_is_better=True)

TOPICS = 100  # with a named subscription each
#: Until a name's first message is there, one name after the other and all at once: ms; and the broker's memory: MiB.
RESUMED = {"worst": 1000.0, "all": 1000.0, "memory": 300.0}


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: Its name.
        peer: Whose it is: one of `PEERS`.
        service: The server, a key of `bench.broker.services.STARTERS`.
        drivers: Modules of `bench.broker.drivers`: the better one counts.
        settings: How the server is configured, in its own words.
        options: What the client is asked for.
        bound: What omq's row has to reach in the first metric: times the best peer.
        limits: What it has to keep to, by the key of a metric: at least so much, at most where less is better.
        stores: Its server keeps what is published.
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

    def aims(self, bound: float | None = None, **limits: float) -> Row:
        """The same row with targets."""
        return replace(self, bound=bound, limits=limits)

    def asks(self, **options: str) -> Row:
        """The same row whose client is asked for more."""
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True)
class Case:
    """One table.

    Attributes:
        key: Its name in files.
        scenario: What the command line calls its kind; also how it is measured (`bench.broker.measure`).
        title: What the load is.
        rows: omq's first, floors last; the first floor is the one that ratios are told to.
        metrics: The columns; the first one counts.
    """

    key: str
    scenario: str
    title: str
    rows: tuple[Row, ...]
    metrics: tuple[Metric, ...] = (RATE, SERVER, CLIENT, MEMORY)

    @property
    def weight(self) -> int:
        """How long it takes beside the others, more or less: its share of a time that is given for all."""
        filling = {"replay": 10, "resume": 20}
        return filling.get(self.scenario, 0) + sum(1 + len(row.drivers) for row in self.rows)


@dataclass(frozen=True)
class Load:
    """What the command line asks for.

    Attributes:
        size: Bytes of a message.
        depth: Messages under way.
        seconds: How long a measured burst should last.
        messages: How many are replayed.
        kept: How many are stored while names resume.
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
    """The same through a client that only speaks the protocol, as the peers' bare ones do: what the broker can."""
    return replace(row, label=f"{row.label}, bare client", drivers=("omq_bare",), bound=None, limits={})


SAFE_PEERS = (REDIS_ALWAYS, NATS_ALWAYS, RABBIT)
LAZY_PEERS = (REDIS, NATS_SECOND)
#: How a peer publishes many at once, where it can; whoever publishes has the choice.
BATCHES = {"nats": "nats_batches", "redis": "redis_batches"}


def _may_batch(*rows: Row) -> tuple[Row, ...]:
    return tuple(
        replace(row, drivers=(*row.drivers, BATCHES[row.peer])) if row.peer in BATCHES else row for row in rows
    )


def cases(load: Load) -> list[Case]:
    """All of them."""
    shared = {"delivery": "round-robin"}
    both = ("omq_client", "omq_batches")
    strong, weak, lazy = (replace(row.asks(**shared), drivers=both) for row in (STRONG, WEAK, ASYNC))
    many = f"{load.messages:,} messages"
    return [
        Case(
            "publish-strong",
            "publish",
            "publish, acknowledged after an fsync",
            (STRONG.aims(2.0), _bare(STRONG), *_may_batch(*SAFE_PEERS), FILE_SYNC, SOCKET),
        ),
        Case(
            "publish-weak",
            "publish",
            "publish, acknowledged before an fsync",
            (WEAK.aims(1.5), _bare(WEAK), ASYNC.aims(1.5), *_may_batch(*LAZY_PEERS, NATS), FILE, SOCKET),
        ),
        Case(
            "latency-strong",
            "latency",
            "one publish, acknowledged after an fsync",
            (STRONG, _bare(STRONG), *SAFE_PEERS, FILE_SYNC, SOCKET),
            (P50, P99),
        ),
        Case(
            "consume-strong",
            "consume",
            "consume with acknowledgements that are synced",
            (strong, _bare(strong), *SAFE_PEERS, SOCKET),
        ),
        Case(
            "consume-weak",
            "consume",
            "consume with acknowledgements that are not synced",
            (weak, _bare(weak), lazy, *LAZY_PEERS, SOCKET),
        ),
        Case(
            "together-strong",
            "together",
            "publish and consume at once, synced",
            (strong, _bare(strong), *_may_batch(*SAFE_PEERS), SOCKET),
        ),
        Case(
            "together-weak",
            "together",
            "publish and consume at once, not synced",
            (weak, _bare(weak), lazy, *_may_batch(*LAZY_PEERS), SOCKET),
        ),
        Case(
            "replay",
            "replay",
            f"replay {many} from the beginning",
            (
                replace(WEAK, label="omq, read").asks(by="read").aims(rate=1e6),
                replace(WEAK, label="omq, subscribe").asks(by="subscribe").aims(rate=1e6),
                replace(_bare(WEAK), label="omq, read, bare client"),
                *LAZY_PEERS,
                SOCKET,
                FILE,
            ),
        ),
        Case(
            "resume",
            "resume",
            f"a name that was away resumes, in each of {TOPICS} topics; {load.kept:,} messages are stored",
            tuple(
                Row(f"omq, {state}", OMQ, "omq", ("omq_names",), {}, {"state": state}).aims(**RESUMED)
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


SCENARIOS = ("publish", "latency", "consume", "together", "replay", "resume")

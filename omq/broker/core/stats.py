"""The statistics of the broker: the shape of `Broker.stats()`, and of `/topics.json`.

Counters only ever grow while the broker runs, and begin at 0 with it. Readers take rates from them.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class SubscriptionStats(TypedDict):
    """One subscription or consumer that is in force."""

    kind: Literal["subscriber", "consumer"]
    door: Literal["zmtp", "sexp"]
    name: str | None  # of the named position, if it has one
    user: str | None  # the user, if the mechanism has one
    peer: str  # where it is
    position: int  # ids up to it were sent
    lag: int  # messages that are stored and were not sent to it yet
    in_flight: int  # a consumer's: sent, and not acknowledged yet


class CursorStats(TypedDict):
    """One position that the broker keeps under a name."""

    name: str
    position: int
    lag: int  # messages after the position
    held: bool  # whether a subscription by that name is open now


class TopicStats(TypedDict):
    """One topic."""

    name: str
    id: int
    delivery: Literal["broadcast", "round-robin"]
    persistence: Literal["transient", "strong", "weak", "async"]
    settings: dict[str, int | float | str]  # those that are set
    first: int  # the oldest id kept
    last: int  # the newest id given
    bytes: int  # kept now
    messages: int  # kept now
    backlog: int  # round robin: neither acknowledged nor in flight; broadcast: 0
    published: int  # messages accepted (counter)
    published_bytes: int  # (counter)
    delivered: int  # messages sent to subscribers and consumers (counter)
    delivered_bytes: int  # (counter)
    redelivered: int  # deliveries that were not the first (counter)
    dead_lettered: int  # messages that went to the dead-letter topic (counter)
    rejected: int  # messages that were refused as the topic was full (counter)
    blocked: int  # messages whose publishers wait for room in the topic
    dropped: int  # round robin, overflow drop-oldest: unfinished work that went to the dead letters (counter)
    expired: int  # round robin: unfinished work that max_age has dropped (counter)
    subscriptions: list[SubscriptionStats]
    names: list[CursorStats]


class EnvironmentStats(TypedDict):
    """One of the store's two environments, `strong` or `weak`."""

    bytes: int  # its file on disk
    commits: int  # (counter)
    syncs: int  # fsyncs (counter)
    sync_seconds: float  # spent in them (counter)
    #: How many fsyncs took at most each bound, and more than the bound before (counters); the last is inf.
    sync_buckets: list[tuple[float, int]]


class StoreStats(TypedDict):
    """The store. `directory` is `None` where everything is kept in memory."""

    directory: str | None
    free: int | None  # bytes that the file system still has; `None`: in memory, or the directory is gone
    full: bool  # what is written finds no space; reads go on, writes are tried again
    failed: str | None  # an fsync failed, and nothing is acknowledged any more: its error
    findings: list[str]  # what opening found, and what was quarantined since
    environments: dict[str, EnvironmentStats]


class BrokerStats(TypedDict):
    """The whole."""

    version: str  # of omq
    endpoints: dict[str, list[str]]  # where it listens, by server: zmtp, sexp, http
    broker: str  # id of the store
    started: float  # seconds since 1970
    uptime: float  # seconds
    connections: dict[str, int]  # open now, by server: zmtp, sexp
    handshakes_failed: int  # clients that were not let in, for a wrong key or password for instance (counter)
    refused: dict[str, int]  # requests answered by an error, by its code (counters)
    store: StoreStats
    topics: list[TopicStats]

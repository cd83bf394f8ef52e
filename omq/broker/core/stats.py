"""The statistics of the broker: the types of `Broker.stats()` and of `/topics.json`.

Counters start at 0 with the broker and never decrease while it runs.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class SubscriptionStats(TypedDict):
    """One open subscription or consumer."""

    kind: Literal["subscriber", "consumer"]
    listener: Literal["zmtp", "sexp"]
    name: str | None  # of the durable subscription or the consumer group
    user: str | None  # None without a mechanism that identifies users
    peer: str  # the address of the client
    position: int  # the last id that was sent
    lag: int  # stored messages that were not sent to it yet
    in_flight: int  # consumers: messages that were sent and are not acknowledged


class CursorStats(TypedDict):
    """The cursor of one durable subscription."""

    name: str
    position: int
    lag: int  # messages after the position
    held: bool  # a subscription with this name is open
    active: float  # when it was last opened, acknowledged or closed, or the broker started; in seconds since 1970


class GroupStats(TypedDict):
    """One consumer group."""

    name: str
    lag: int  # messages that are not acknowledged by the group
    in_flight: int  # those of them that consumers have
    consumers: int
    #: When a consumer last joined, got or acknowledged a message, or left, or the broker started; seconds since 1970.
    active: float


class TopicStats(TypedDict):
    """One topic."""

    name: str
    id: int
    delivery: Literal["broadcast", "round-robin"]
    persistence: Literal["transient", "strong", "weak", "async"]
    settings: dict[str, int | float | str]  # without defaults
    owner: str | None  # the user who has created it; None: the broker, or an older version
    first: int  # the oldest id in the store
    last: int  # the newest id
    bytes: int  # in the store
    messages: int  # in the store
    backlog: int  # round robin: neither acknowledged nor in flight; broadcast: 0
    in_flight: int  # round robin: delivered and not acknowledged; broadcast: 0
    published: int  # messages accepted (counter)
    published_bytes: int  # (counter)
    delivered: int  # messages sent to subscribers and consumers (counter)
    delivered_bytes: int  # (counter)
    redelivered: int  # deliveries that were not the first (counter)
    dead_lettered: int  # messages moved to the dead-letter topic (counter)
    rejected: int  # messages rejected because the topic was full (counter)
    blocked: int  # messages whose publishers wait for room in the topic
    dropped: int  # round robin, overflow drop-oldest: unacknowledged messages moved to the dead letters (counter)
    expired: int  # unacknowledged messages of a work queue or a group that retention has dropped (counter)
    readers_expired: int  # durable subscriptions and groups that inactive_threshold has deleted (counter)
    subscriptions: list[SubscriptionStats]
    names: list[CursorStats]  # those that this broker has created last come last
    groups: list[GroupStats]  # the same


class LatencyStats(TypedDict):
    """A histogram of durations (counters)."""

    seconds: float  # total
    buckets: list[tuple[float, int]]  # upper bounds in seconds and counts, not cumulative; the last bound is inf


class EnvironmentStats(TypedDict):
    """One of the store's two environments, `strong` or `weak`."""

    bytes: int  # the size of its file
    used: int  # bytes of the file in use; the rest is free pages, which are reused
    commits: int  # (counter)
    syncs: int  # fsyncs (counter)
    sync_seconds: float  # total duration of the fsyncs (counter)
    #: A histogram of fsync durations: upper bounds in seconds and counts (counters). The last bound is inf.
    sync_buckets: list[tuple[float, int]]


class StoreStats(TypedDict):
    """The store."""

    directory: str | None  # `None` for a store in memory
    free: int | None  # bytes free in the file system; `None` in memory, or if the directory is missing
    full: bool  # the disk is full: reads continue, writes are retried
    failed: str | None  # the error of a failed fsync: nothing is acknowledged any more
    findings: list[str]  # problems found when the store was opened, and quarantined messages
    environments: dict[str, EnvironmentStats]


class ClusterStats(TypedDict):
    """The cluster of a broker, as in `WELCOME`."""

    name: str
    node: str  # the id of this broker
    role: Literal["leader", "follower"]
    leader: list[str]  # its endpoints; empty: it is not known
    members: list[str]  # the first endpoint of each known member
    trouble: str  # why this broker takes no part in the cluster now; empty if it does


class BrokerStats(TypedDict):
    """The whole broker."""

    version: str  # of omq
    endpoints: dict[str, list[str]]  # by server: zmtp, sexp, http
    broker: str  # the id of the store
    started: float  # seconds since 1970
    uptime: float  # seconds
    connections: dict[str, int]  # open connections by server: zmtp, sexp
    max_connections: dict[str, int]  # the maximum number of connections by server
    #: Connections that could not be accepted (counters): by server, and by reason as in `AcceptFailure`
    accepts_failed: dict[str, dict[str, int]]
    handshake_failures: dict[str, int]  # by `HandshakeFailure`, for instance `authentication` (counters)
    refused: dict[str, int]  # requests answered with an error, by its code (counters)
    publish: dict[str, LatencyStats]  # from the arrival of publications to their answers, by persistence
    store: StoreStats
    topics: list[TopicStats]
    cluster: ClusterStats | None  # None: the broker is in no cluster
    journal_position: int  # the last entry of the journal of the cluster that this broker has applied

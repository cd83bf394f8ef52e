"""Sample statistics of a broker."""

from __future__ import annotations

import math
from typing import Any

from omq.broker.core.stats import BrokerStats, TopicStats

#: A topic's name that wants to be markup, and reads from right to left.
HOSTILE = "<img src=x onerror=document.title='taken'>\"'&amp;\u202eevil"


def topic(name: str, number: int, **changes: Any) -> TopicStats:
    """Returns the statistics of a topic with messages 11 to 1,000."""
    made: TopicStats = {
        "name": name,
        "id": number,
        "delivery": "broadcast",
        "persistence": "strong",
        "settings": {},
        "owner": None,
        "first": 11,
        "last": 1000,
        "bytes": 1_030_000,
        "messages": 990,
        "backlog": 0,
        "in_flight": 0,
        "published": 1000,
        "published_bytes": 1_040_000,
        "delivered": 3000,
        "delivered_bytes": 3_120_000,
        "redelivered": 0,
        "dead_lettered": 0,
        "rejected": 0,
        "blocked": 0,
        "dropped": 0,
        "expired": 0,
        "readers_expired": 0,
        "subscriptions": [],
        "names": [],
        "groups": [],
    }
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def statistics(*topics: TopicStats, uptime: float = 100.0, **store: Any) -> BrokerStats:
    """Returns the statistics of a broker that was started a hundred seconds ago."""
    made: BrokerStats = {
        "version": "0.1.0",
        "broker": "5f0c",
        "endpoints": {"zmtp": ["tcp://127.0.0.1:5555"], "sexp": ["tcp://127.0.0.1:5556"]},
        "started": 1_750_000_000.0,
        "uptime": uptime,
        "connections": {"zmtp": 3, "sexp": 1},
        "max_connections": {"zmtp": 896, "sexp": 896},
        "accepts_failed": {"zmtp": {"max_connections": 4, "descriptors": 2, "other": 0}},
        "refused": {"topic": 2},
        "cluster": None,
        "journal_position": 0,
        "handshake_failures": {"authentication": 2, "timeout": 1},
        "publish": {"strong": {"seconds": 0.5, "buckets": [(0.001, 90), (0.01, 9), (math.inf, 1)]}},
        "store": {
            "directory": "/var/lib/omq",
            "free": 50 * 2**30,
            "full": False,
            "failed": None,
            "findings": [],
            "environments": {
                "strong": {
                    "bytes": 4 * 2**20,
                    "used": 3 * 2**20,
                    "commits": 40,
                    "syncs": 40,
                    "sync_seconds": 0.08,
                    "sync_buckets": [(0.001, 10), (0.002, 20), (0.004, 9), (math.inf, 1)],
                },
                "weak": {
                    "bytes": 2**20,
                    "used": 2**19,
                    "commits": 7,
                    "syncs": 0,
                    "sync_seconds": 0.0,
                    "sync_buckets": [(math.inf, 0)],
                },
            },
        },
        "topics": list(topics),
    }
    made["store"].update(store)  # type: ignore[typeddict-item]
    return made

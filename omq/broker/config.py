"""What a broker is told by its file, `broker.toml`, and by its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["TopicSpec"]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that is to be there: a row of `[[topic]]`, or a `--topic`.

    Attributes:
        name: Its name.
        delivery: `broadcast` or `round-robin`.
        persistence: `transient`, `strong`, `weak` or `async`.
        settings: `max_messages`, `max_bytes`, `max_age`, `max_deliveries`, `dead_letter`.
    """

    name: str
    delivery: str = "broadcast"
    persistence: str = "strong"
    settings: Mapping[str, int | float | str] = field(default_factory=dict)

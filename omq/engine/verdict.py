"""The decision about a peer that asks for admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a peer.

    Attributes:
        refusal: `None` lets it in; else the reason for its ERROR command, empty to say nothing.
        why: More about a refusal, for our own log.
        user_id: Its user id; `None` for none.
        metadata: What the handler wants to be known about it, by lower-case name.
    """

    refusal: bytes | None = None
    why: str = ""
    user_id: str | None = None
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)

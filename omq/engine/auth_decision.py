"""The decision whether to admit a peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AuthDecision:
    """The decision whether to admit a peer.

    Attributes:
        refusal: `None` admits it; else the reason for its ERROR command, empty to send none.
        why: Details of a refusal, for our own log.
        user_id: Its user id; `None` for none.
        metadata: Properties of the peer that the ZAP handler adds, by lower-case name.
    """

    refusal: bytes | None = None
    why: str = ""
    user_id: str | None = None
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)

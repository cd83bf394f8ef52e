"""The permissions of users on topics.

Without any permission in force every client may do everything. With one, only what a permission grants is
allowed: they add up, and their order means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final, Literal, get_args

from omq.errors import UsageError

#: `subscribe` is also needed to read by range; `publish` also to stage and to commit.
Action = Literal["publish", "subscribe", "consume", "create", "delete"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
EVERYBODY: Final = "*"
MAX_CACHED: Final = 4096  # answers that are kept


@dataclass(frozen=True, slots=True)
class Permission:
    """One grant: a row of `[[permission]]`.

    Attributes:
        who: A public key (40 characters of Z85), a user name, or `*`: every client, also without a key and a name.
        topics: A pattern of topic names: `*` stands for any characters, `?` for one, `[a-z]` for one of these.
        may: What they may do.

    Raises:
        UsageError: A value does not fit.
    """

    who: str
    topics: str
    may: frozenset[str]

    def __init__(self, who: str, topics: str, may: Iterable[str]) -> None:
        if not isinstance(who, str) or not who:
            raise UsageError(f"who is a key, a user or '*', not {who!r}")
        if not isinstance(topics, str) or not topics:
            raise UsageError(f"topics is a pattern such as 'prices.*', not {topics!r}")
        if isinstance(may, str) or not isinstance(may, Iterable):
            raise UsageError(f"may is a list of {', '.join(ACTIONS)}, not {may!r}")
        actions = list(may)
        for action in actions:
            if action not in ACTIONS:
                raise UsageError(f"may is a list of {', '.join(ACTIONS)}; {action!r} is not one of them")
        object.__setattr__(self, "who", who)
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "may", frozenset(actions))


def permission_of(row: Permission | Mapping[str, Any]) -> Permission:
    """A permission in either of its forms: as it is, or as a row of `[[permission]]`.

    Raises:
        UsageError: It has other keys than `who`, `topics` and `may`, or a value does not fit.
    """
    if isinstance(row, Permission):
        return row
    if not isinstance(row, Mapping) or set(row) != {"who", "topics", "may"}:
        raise UsageError(f"a permission has who, topics and may; this is {row!r}")
    return Permission(**row)


class Permissions:
    """All permissions of a broker, looked up quickly.

    Args:
        permissions: The grants; none of them: everything is allowed.
    """

    def __init__(self, permissions: Iterable[Permission] = ()) -> None:
        self._grants: dict[str, list[tuple[re.Pattern[str], frozenset[str]]]] = {}
        for permission in permissions:
            pattern = re.compile(translate(permission.topics))
            self._grants.setdefault(permission.who, []).append((pattern, permission.may))
        self._cache: dict[tuple[str | None, str], frozenset[str]] = {}

    def __bool__(self) -> bool:
        """Returns whether anything is restricted at all."""
        return bool(self._grants)

    def allows(self, user: str | None, action: str, topic: str) -> bool:
        """Returns whether a user may do that.

        Args:
            user: The user id of the connection (`Peer.user_id`): a key or a user name; `None` without one.
            action: One of `ACTIONS`.
            topic: The name of the topic, which need not exist.
        """
        return not self._grants or action in self.granted(user, topic)

    def granted(self, user: str | None, topic: str) -> frozenset[str]:
        """Returns all that a user may do to a topic."""
        if not self._grants:
            return _ALL
        granted = self._cache.get((user, topic))
        if granted is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            granted = self._cache[user, topic] = self._collect(user, topic)
        return granted

    def _collect(self, user: str | None, topic: str) -> frozenset[str]:
        # A user named "*" gets only the grants to all.
        rows = [*self._grants.get(EVERYBODY, ())]
        if user is not None and user != EVERYBODY:
            rows += self._grants.get(user, ())
        return frozenset().union(*(may for pattern, may in rows if pattern.fullmatch(topic)))


_ALL: Final = frozenset(ACTIONS)

"""The permissions of users on topics.

Without any permission every client may do everything. With at least one, a client may do only what a permission grants.
Permissions add up, and their order does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final, Literal, get_args

from omq.errors import UsageError

#: Reading a range of ids needs `subscribe`, staging and committing `publish`; altering, purging and requeueing `admin`.
Action = Literal["publish", "subscribe", "consume", "create", "delete", "admin"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
ANY_CLIENT: Final = "*"
MAX_CACHED: Final = 4096  # pairs of user and topic


@dataclass(frozen=True, slots=True)
class Permission:
    """One grant: a row of `[[permission]]`.

    Attributes:
        who: A public key (40 characters of Z85), a user name, or `*` for every client, with or without a key or name.
        topics: A pattern of topic names: `*` matches any characters, `?` one, `[a-z]` one of the set.
        may: The actions that are granted.

    Raises:
        UsageError: A value is not valid.
    """

    who: str
    topics: str
    may: frozenset[str]

    def __init__(self, who: str, topics: str, may: Iterable[str]) -> None:
        if not isinstance(who, str) or not who:
            raise UsageError(f"'who' must be a key, a user or '*', not {who!r}")
        if not isinstance(topics, str) or not topics:
            raise UsageError(f"'topics' must be a pattern such as 'prices.*', not {topics!r}")
        if isinstance(may, str) or not isinstance(may, Iterable):
            raise UsageError(f"'may' must be a list of {', '.join(ACTIONS)}, not {may!r}")
        actions = list(may)
        for action in actions:
            if action not in ACTIONS:
                raise UsageError(f"'may' must be a list of {', '.join(ACTIONS)}; {action!r} is not one of them")
        object.__setattr__(self, "who", who)
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "may", frozenset(actions))


def permission_of(row: Permission | Mapping[str, Any]) -> Permission:
    """Converts a row of `[[permission]]` to a permission; a `Permission` is returned as it is.

    Raises:
        UsageError: The keys are not `who`, `topics` and `may`, or a value is not valid.
    """
    if isinstance(row, Permission):
        return row
    if not isinstance(row, Mapping) or set(row) != {"who", "topics", "may"}:
        raise UsageError(f"a permission must have exactly the keys who, topics and may; got {row!r:.200}")
    return Permission(**row)


class Permissions:
    """All permissions of a broker, with a cache of lookups.

    Args:
        permissions: The grants; empty allows everything.
    """

    def __init__(self, permissions: Iterable[Permission] = ()) -> None:
        self._grants: dict[str, list[tuple[re.Pattern[str], frozenset[str]]]] = {}
        for permission in permissions:
            pattern = re.compile(translate(permission.topics))
            self._grants.setdefault(permission.who, []).append((pattern, permission.may))
        self._cache: dict[tuple[str | None, str], frozenset[str]] = {}

    def __bool__(self) -> bool:
        """Returns whether there is any permission, so that access is restricted."""
        return bool(self._grants)

    def allows(self, user: str | None, action: str, topic: str) -> bool:
        """Returns whether a user may perform an action on a topic.

        Args:
            user: The user id of the connection (`PeerInfo.user_id`): a key or a user name; `None` without one.
            action: One of `ACTIONS`.
            topic: The name of the topic, which need not exist.
        """
        return not self._grants or action in self.granted(user, topic)

    def granted(self, user: str | None, topic: str) -> frozenset[str]:
        """Returns all actions that a user may perform on a topic."""
        if not self._grants:
            return _ALL
        granted = self._cache.get((user, topic))
        if granted is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            granted = self._cache[user, topic] = self._collect(user, topic)
        return granted

    def _collect(self, user: str | None, topic: str) -> frozenset[str]:
        # A user with the name "*" gets only the grants to every client.
        rows = [*self._grants.get(ANY_CLIENT, ())]
        if user is not None and user != ANY_CLIENT:
            rows += self._grants.get(user, ())
        return frozenset().union(*(may for pattern, may in rows if pattern.fullmatch(topic)))


_ALL: Final = frozenset(ACTIONS)

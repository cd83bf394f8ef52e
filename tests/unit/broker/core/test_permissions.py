"""Permissions: grants add up, and without any everything is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from omq.broker.core.permissions import ACTIONS, MAX_CACHED, Permission, Permissions, permission_of
from omq.errors import UsageError


def test_without_permissions_every_client_may_do_everything() -> None:
    permissions = Permissions()
    assert not permissions
    assert all(permissions.allows(user, action, "t") for action in ACTIONS for user in (None, "alice"))
    assert permissions.granted(None, "t") == set(ACTIONS)


def test_one_permission_forbids_all_that_none_grants() -> None:
    permissions = Permissions([Permission("alice", "prices", ["publish"])])
    assert permissions
    assert permissions.allows("alice", "publish", "prices")
    assert not permissions.allows("alice", "subscribe", "prices")
    assert not permissions.allows("alice", "publish", "jobs")
    assert not permissions.allows("bob", "publish", "prices")
    assert not permissions.allows(None, "publish", "prices")


def test_grants_add_up_in_whatever_order() -> None:
    rows = [
        Permission("*", "*", ["subscribe"]),
        Permission("alice", "prices*", ["publish"]),
        Permission("alice", "*", ["create", "delete"]),
    ]
    for order in (rows, rows[::-1]):
        permissions = Permissions(order)
        assert permissions.granted("alice", "prices.nyse") == {"subscribe", "publish", "create", "delete"}
        assert permissions.granted("alice", "jobs") == {"subscribe", "create", "delete"}
        assert permissions.granted(None, "jobs") == {"subscribe"}


@pytest.mark.parametrize(
    ("pattern", "fits", "strange"),
    [
        ("prices", ["prices"], ["prices2", "Prices", "my prices", "price"]),
        ("prices.*", ["prices.", "prices.a.b"], ["prices", "xprices.a"]),
        ("?", ["a", "ä"], ["", "ab"]),
        ("[ab]*", ["a", "bcd"], ["c"]),
        ("*", ["", "whatever", "two words", "a.b"], []),
        ("a(b|c)+", ["a(b|c)+"], ["ab", "abc"]),
    ],
)
def test_patterns(pattern: str, fits: list[str], strange: list[str]) -> None:
    permissions = Permissions([Permission("*", pattern, ["publish"])])
    assert [name for name in fits if permissions.allows(None, "publish", name)] == fits
    assert [name for name in strange if permissions.allows(None, "publish", name)] == []


def test_a_user_named_like_the_wildcard_gets_only_its_grants() -> None:
    permissions = Permissions([Permission("*", "open", ["publish"]), Permission("alice", "*", ["publish"])])
    assert permissions.allows("*", "publish", "open")
    assert not permissions.allows("*", "publish", "closed")


def test_the_cache_is_bounded() -> None:
    permissions = Permissions([Permission("*", "t*", ["publish"])])
    for number in range(2 * MAX_CACHED + 10):
        assert permissions.allows(None, "publish", f"t{number}")
    assert len(permissions._cache) <= MAX_CACHED


@pytest.mark.parametrize(
    ("who", "topics", "may", "named"),
    [
        ("", "*", ["publish"], "who"),
        (3, "*", ["publish"], "3"),
        ("*", "", ["publish"], "topics"),
        ("*", "*", "publish", "'publish'"),
        ("*", "*", ["publish", "drink"], "'drink'"),
        ("*", "*", [["publish"]], "publish"),
        ("*", "*", None, "None"),
    ],
)
def test_what_does_not_fit_is_named(who: str, topics: str, may: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Permission(who, topics, may)


def test_the_forms_of_a_permission() -> None:
    made = Permission("*", "prices", ["publish"])
    assert permission_of(made) is made
    assert permission_of({"who": "*", "topics": "prices", "may": ["publish"]}) == made
    for wrong in ({"who": "*", "topics": "*"}, {"who": "*", "topics": "*", "may": [], "not": 1}, "prices"):
        value: Any = wrong
        with pytest.raises(UsageError, match="who, topics and may"):
            permission_of(value)

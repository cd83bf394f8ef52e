"""Admission of clients by their user's number of connections."""

from __future__ import annotations

import pytest

import omq
from omq.broker.core.user_limits import UserLimit, UserLimits
from omq.broker.zmtp.user_security import UserSecurity
from omq.errors import HandshakeError
from omq.types import Security

PUBLIC, SECRET = omq.curve_keypair()
ALICE = (b"alice", b"secret")


def limited(security: Security, **limits: int) -> UserSecurity:
    return UserSecurity(security, UserLimits([UserLimit("*", **limits)]))


@pytest.mark.parametrize("security", [omq.PlainServer({"alice": "secret"}), omq.CurveServer(SECRET)])
def test_it_has_the_mechanism_of_the_other_object(security: Security) -> None:
    wrapped = limited(security, connections=1)
    assert (wrapped.name, wrapped.as_server, repr(wrapped)) == (security.name, True, repr(security))
    assert type(wrapped.begin(None)) is type(security.begin(None))


def test_a_client_that_is_not_admitted_does_not_count() -> None:
    security = limited(omq.PlainServer({"alice": "secret"}), connections=1)
    for _ in range(3):
        assert not security.judge((b"alice", b"wrong"))
    assert security.judge(ALICE)
    with pytest.raises(HandshakeError, match="connections=1: user 'alice'"):
        security.judge(ALICE)
    assert not security.judge((b"alice", b"wrong"))


def test_a_decision_that_is_left_to_others_counts() -> None:
    security = limited(omq.CurveServer(SECRET), connections=1)
    key = (bytes(32),)
    assert security.judge(key) is None
    with pytest.raises(HandshakeError, match="connections=1"):
        security.judge(key)
    assert security.user_of(key) == omq.z85_encode(bytes(32)).decode()


async def test_a_decision_that_takes_time_counts() -> None:
    async def check(username: bytes, password: bytes) -> bool:
        return password == b"secret"

    security = limited(omq.PlainServer(check), connections=1)
    assert not await security.judge((b"alice", b"wrong"))
    assert await security.judge(ALICE)
    with pytest.raises(HandshakeError, match="connections=1"):
        await security.judge(ALICE)


def test_without_a_limit_all_are_admitted() -> None:
    security = limited(omq.PlainServer({"alice": "secret"}), topics=1)
    for _ in range(10):
        assert security.judge(ALICE)

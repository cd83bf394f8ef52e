"""Identifiers and groups, byte by byte."""

from __future__ import annotations

import pytest

from omq.errors import UsageError
from omq.goby import Group, Malformed
from omq.goby.identifier import Identifier, checked_group, head_of, prefix_of, read_identifier, split_frame
from omq.goby.wire import MANAGER_REQUEST_PREFIX, MANAGER_RESPONSE_PREFIX

LIVE = b"/chat/CSTR/CSTR/26115/e845c3cbd36f7a03/\0msg0\0"


def test_a_live_frame_is_read_and_made() -> None:
    head, payload = split_frame(LIVE)
    assert payload == b"msg0\0"
    assert read_identifier(head) == Identifier("chat", "CSTR", "CSTR", 26115, "e845c3cbd36f7a03")
    assert head_of("chat", "CSTR", "CSTR", 26115, 0xE845C3CBD36F7A03) + payload == LIVE


def test_subscriptions_end_with_a_slash() -> None:
    assert prefix_of("chat", "CSTR", "CSTR") == b"/chat/CSTR/CSTR/"
    internal = "/goby::zeromq::_internal_manager_{0}/PROTOBUF/goby.zeromq.protobuf.Manager{1}/"
    assert MANAGER_REQUEST_PREFIX.decode() == internal.format("request", "Request")
    assert MANAGER_RESPONSE_PREFIX.decode() == internal.format("response", "Response")


@pytest.mark.parametrize(
    "head",
    [
        *(
            b"",
            b"/",
            b"/chat",
            b"/chat/CSTR/CSTR/",
            b"/chat/CSTR/CSTR/1",
            b"/chat/CSTR/CSTR/1/ab",
            b"chat/CSTR/CSTR/1/ab/",
        ),
        *(
            b"//CSTR/CSTR/1/ab/",
            b"/chat//CSTR/1/ab/",
            b"/chat/CSTR//1/ab/",
            b"/chat/CSTR/CSTR//ab/",
            b"/chat/CSTR/CSTR/1//",
        ),
        *(b"/chat/CSTR/CSTR/one/ab/", b"/chat/CSTR/CSTR/-1/ab/", b"/\xff/CSTR/CSTR/1/ab/"),
        b"/chat/CSTR/CSTR/" + b"9" * 5000 + b"/ab/",
    ],
)
def test_a_part_that_is_missing_is_malformed(head: bytes) -> None:
    with pytest.raises(Malformed):
        read_identifier(head)


def test_a_frame_without_nul_is_malformed() -> None:
    with pytest.raises(Malformed, match="no NUL"):
        split_frame(b"/chat/CSTR/CSTR/1/ab/")


@pytest.mark.parametrize("group", ["", "a/b", "a\0b", "/", "\ud800"])
def test_a_group_that_would_not_stand_on_the_wire_is_refused(group: str) -> None:
    with pytest.raises(UsageError, match="group"):
        checked_group(group)
    with pytest.raises(ValueError, match="group"):
        Group(group)


def test_groups_have_numbers() -> None:
    assert Group("nav", 3) == "nav;3"
    assert Group(number=7) == "7"
    assert Group("nav") == "nav"
    assert checked_group(7) == "7"
    with pytest.raises(TypeError):
        checked_group(True)
    with pytest.raises(TypeError):
        checked_group(b"nav")  # type: ignore[arg-type]

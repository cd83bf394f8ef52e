"""Any bytes on a bus are read as what was published, or are malformed; nothing else happens."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from omq.goby import Malformed
from omq.goby.dispatch import Inbox, PublicationDispatcher, RegexHandler, TypeHandler
from omq.goby.identifier import Identifier, head_of, read_identifier, split_frame
from omq.goby.manager import Manager
from omq.goby.protobuf import ManagerRequest, Socket
from omq.goby.scheme import Schemes
from tests.support.hypothesis_profiles import examples

PARTS = st.text(min_size=1).filter(lambda text: not set(text) & set("/\0")).filter(lambda text: text.isprintable())
NUMBERS = st.integers(0, 2**63)


@examples(200)
@given(PARTS, PARTS, PARTS, NUMBERS, NUMBERS, st.binary())
def test_what_is_sent_is_read(group: str, scheme: str, type_: str, pid: int, thread: int, payload: bytes) -> None:
    head, found = split_frame(head_of(group, scheme, type_, pid, thread) + payload)
    assert found == payload
    assert read_identifier(head) == Identifier(group, scheme, type_, pid, f"{thread:x}")


@examples(300)
@given(st.binary() | st.lists(st.sampled_from([b"/", b"a", b"\0", b"1", b"\xff"])).map(b"".join))
def test_any_bytes_are_an_identifier_or_malformed(frame: bytes) -> None:
    try:
        identifier = read_identifier(split_frame(frame)[0])
    except Malformed:
        pass
    else:
        assert frame.startswith(identifier.prefix + b"%d" % identifier.pid) or frame.split(b"/")[4].startswith(b"0")
    dispatcher, inbox = PublicationDispatcher(), Inbox(0)
    got: list[Any] = []
    dispatcher.add(RegexHandler(".*", ".*", None, inbox, got.append))
    dispatcher.add(TypeHandler("a", Schemes().codec(ManagerRequest), inbox, got.append))
    for handler, identifier, payload in dispatcher.dispatch([frame])[inbox]:
        handler.call(identifier, payload, dispatcher.parse_errors)
    assert len(got) + dispatcher.parse_errors.count >= 1


@examples(300)
@given(st.binary())
def test_any_bytes_are_a_request_or_malformed(request: bytes) -> None:
    manager = Manager("gobyd", 1, ["a"], Socket(socket_type=1), Socket(socket_type=2))
    manager.set_ready()
    manager.answer(request, 0.0)
    manager.handle(b"/a/b/c/1/d/\0" + request, 0.0)
    assert manager.hold.holds(0.0) or manager.hold.missing(0.0) == ["a"]

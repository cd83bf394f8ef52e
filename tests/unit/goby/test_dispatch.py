"""The dispatch of a publication to handlers, and the times when a ZeroMQ subscription is made and dropped."""

from __future__ import annotations

from typing import Any

import pytest

from omq.errors import UsageError
from omq.goby.dispatch import (
    MAX_HELD_BYTES,
    MAX_HELD_PUBLICATIONS,
    READER_TIMEOUT_S,
    Inbox,
    Item,
    PublicationDispatcher,
    RegexHandler,
    TypeHandler,
)
from omq.goby.identifier import read_identifier
from omq.goby.protobuf import ManagerRequest
from omq.goby.scheme import Scheme, Schemes

CHAT = b"/chat/CSTR/CSTR/26115/e845c3cbd36f7a03/\0msg0\0"


def chat(into: Any, kind: type = str) -> TypeHandler:
    if isinstance(into, Inbox):
        return TypeHandler("chat", Schemes().codec(kind), into)
    return TypeHandler("chat", Schemes().codec(kind), Inbox(0), into)


def dispatch(
    dispatcher: PublicationDispatcher, frames: list[bytes | list[bytes]], raised: tuple[type[BaseException], ...] = ()
) -> None:
    """Sorts publications, and calls the callbacks that want them."""
    for items in dispatcher.dispatch(frames).values():
        for handler, identifier, payload in items:
            handler.call(identifier, payload, dispatcher.parse_errors, raised)


def test_one_subscription_for_all_handlers_of_an_identifier() -> None:
    dispatcher = PublicationDispatcher()
    first, second, other = chat(print), chat(print), chat(print, dict)
    assert dispatcher.add(first) == b"/chat/CSTR/CSTR/"
    assert dispatcher.add(second) is None
    assert dispatcher.add(other) == b"/chat/JSON/nlohmann::json/"
    assert dispatcher.prefixes == [b"/chat/CSTR/CSTR/", b"/chat/JSON/nlohmann::json/"]
    assert dispatcher.remove(first) is None
    assert dispatcher.remove(first) is None, "it is gone already"
    assert dispatcher.remove(second) == b"/chat/CSTR/CSTR/"
    one, two = RegexHandler(".*", ".*", None, Inbox(0)), RegexHandler("x", "y", None, Inbox(0))
    assert dispatcher.add(one) == b"/"
    assert dispatcher.add(two) is None
    assert dispatcher.remove(two) is None
    assert dispatcher.remove(one) == b"/"
    assert dispatcher.handlers == [other]


def test_publications_reach_who_wants_them_in_their_order() -> None:
    dispatcher, got = PublicationDispatcher(), []
    inbox, every = Inbox(0), Inbox(0)
    subscription = chat(got.append)
    dispatcher.add(subscription)
    dispatcher.add(chat(inbox))
    dispatcher.add(RegexHandler("ch.*", ".*", ["CSTR"], every))
    frames: list[bytes | list[bytes]] = [CHAT, CHAT.replace(b"msg0", b"msg1"), CHAT.replace(b"/chat/", b"/chatter/")]
    found = dispatcher.dispatch(frames)
    for _, identifier, payload in found[subscription.inbox]:
        subscription.call(identifier, payload, dispatcher.parse_errors)
    assert got == ["msg0", "msg1"]
    assert [handler.decode(identifier, payload) for handler, identifier, payload in found[inbox]] == ["msg0", "msg1"]
    received = [handler.decode(identifier, payload) for handler, identifier, payload in found[every]]
    assert received == [
        ("chat", "CSTR", "CSTR", b"msg0\0"),
        ("chat", "CSTR", "CSTR", b"msg1\0"),
        ("chatter", "CSTR", "CSTR", b"msg0\0"),
    ]
    assert (received[0].group, received[0].scheme, received[0].type, received[0].data) == received[0]
    assert (received[0].pid, received[0].thread) == (26115, "e845c3cbd36f7a03")


def test_a_handler_that_comes_or_goes_is_seen_at_once() -> None:
    dispatcher, first, second = PublicationDispatcher(), [], []
    dispatcher.add(chat(first.append))
    dispatch(dispatcher, [CHAT])
    late = chat(second.append)
    dispatcher.add(late)
    dispatch(dispatcher, [CHAT])
    dispatcher.remove(late)
    dispatch(dispatcher, [CHAT])
    assert (len(first), len(second)) == (3, 1)


@pytest.mark.parametrize(
    "frame",
    [
        *(b"", b"\0", b"/", b"/chat/CSTR/CSTR/", b"/chat/CSTR/CSTR/\0msg", b"/chat/CSTR/CSTR/1/\0msg"),
        *(b"/chat/CSTR/CSTR/x/ab/\0msg", b"/chat/CSTR/CSTR/1/ab/msg", [CHAT, b""], [b"", b""]),
    ],
)
def test_what_cannot_be_read_is_counted_and_the_rest_goes_on(
    frame: bytes | list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(chat(got.append))
    dispatcher.add(RegexHandler(".*", ".*", None, Inbox(0), got.append))
    dispatch(dispatcher, [frame, frame, CHAT])
    assert len(got) == 2
    assert dispatcher.parse_errors.count == 2
    assert len(caplog.records) == 1, "the log is not flooded"


def test_a_payload_that_does_not_parse_is_counted() -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(TypeHandler("g", Schemes().codec(ManagerRequest), Inbox(0), got.append))
    head = b"/g/PROTOBUF/goby.zeromq.protobuf.ManagerRequest/1/ab/\0"
    good = ManagerRequest(request=1, client_name="a", client_pid=1)
    dispatch(dispatcher, [head + b"garbage", head, head + good.SerializeToString()])
    assert got == [good]
    assert dispatcher.parse_errors.count == 2


def test_a_payload_that_is_too_deep_is_counted() -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(TypeHandler("g", Schemes().codec(dict), Inbox(0), got.append))
    document = b"\x05\0\0\0\0"
    for _ in range(20_000):
        document = (len(document) + 8).to_bytes(4, "little") + b"\x03a\0" + document + b"\0"
    head = b"/g/JSON/nlohmann::json/1/ab/\0"
    dispatch(dispatcher, [head + document, head + b"\x05\0\0\0\0"])
    assert got == [{}]
    assert dispatcher.parse_errors.count == 1


def test_a_callback_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, got = PublicationDispatcher(), []

    def fail(_: object) -> None:
        raise RuntimeError("no")

    failing = chat(fail)
    dispatcher.add(failing)
    dispatcher.add(chat(got.append))
    dispatch(dispatcher, [CHAT, CHAT])
    assert got == ["msg0", "msg0"]
    assert failing.errors == 2
    assert "a callback for /chat/CSTR/CSTR has failed" in caplog.text


def test_expressions_fit_the_whole_and_not_what_managers_send() -> None:
    dispatcher, got = PublicationDispatcher(), []
    internal = b"/goby::zeromq::_internal_manager_request/PROTOBUF/goby.zeromq.protobuf.ManagerRequest/1/a/\0"
    dispatcher.add(RegexHandler("cha", ".*", None, Inbox(0), got.append))
    dispatcher.add(RegexHandler(".*", "CST", None, Inbox(0), got.append))
    dispatcher.add(RegexHandler(".*", ".*", ["JSON"], Inbox(0), got.append))
    dispatcher.add(RegexHandler(".*", ".*Request", None, Inbox(0), got.append))
    dispatch(dispatcher, [CHAT, internal])
    assert got == []
    dispatcher.add(RegexHandler("goby::zeromq::_internal.*", ".*", None, Inbox(0), got.append))
    dispatch(dispatcher, [internal])
    assert len(got) == 1
    for group, kind in (("(", ".*"), (".*", "*"), (None, ".*")):
        with pytest.raises(UsageError, match="regular expression"):
            RegexHandler(group, kind, None, Inbox(0))  # type: ignore[arg-type]


def test_many_identifiers_are_not_kept_for_ever() -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(chat(got.append))
    dispatch(dispatcher, [b"/chat/CSTR/CSTR/%d/ab/\0x\0" % pid for pid in range(10_000)])
    assert len(got) == 10_000
    assert len(dispatcher._routes) <= 4096


def items_of(count: int, size: int = 1) -> list[Item]:
    identifier = read_identifier(CHAT[: CHAT.index(b"\0")])
    return [(chat(print), identifier, (b"%d" % number).ljust(size)) for number in range(count)]


def test_an_inbox_is_bounded_and_drops_what_is_not_taken() -> None:
    inbox, items = Inbox(3), items_of(MAX_HELD_PUBLICATIONS + 5)
    assert inbox.accept(items, 0) == MAX_HELD_PUBLICATIONS + 3
    assert inbox.accept(items, MAX_HELD_PUBLICATIONS + 3) == MAX_HELD_PUBLICATIONS + 3
    assert inbox.wait_time() < 0, "nothing was ever taken"
    inbox.drop(2)
    assert (inbox.dropped, inbox.stalled) == (2, True)
    assert inbox.take() == items[0]
    assert not inbox.stalled
    assert 0 < inbox.wait_time() <= READER_TIMEOUT_S
    assert inbox.accept(items, MAX_HELD_PUBLICATIONS + 4) == MAX_HELD_PUBLICATIONS + 5
    inbox.ended = True
    assert inbox.accept(items, 0) == MAX_HELD_PUBLICATIONS + 5, "what comes after the end is not delivered"


def test_the_bytes_of_a_burst_are_bounded() -> None:
    inbox, items = Inbox(3), items_of(5, MAX_HELD_BYTES // 4)
    assert inbox.accept(items[:4], 0) == 4
    assert inbox.accept(items, 4) == 4
    for _ in range(2):
        assert inbox.take() is not None
    assert inbox.accept(items, 4) == 5


@pytest.mark.parametrize("known", [False, True])
def test_a_publication_without_a_nul_is_passed_over_also_where_its_identifier_is_known(known: bool) -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(chat(got.append))
    if known:
        dispatch(dispatcher, [CHAT])
    dispatch(dispatcher, [CHAT[: CHAT.index(b"\0")]])
    assert got == ["msg0"] * known
    assert dispatcher.parse_errors.count == 1


def test_long_identifiers_are_not_remembered() -> None:
    dispatcher = PublicationDispatcher()
    dispatcher.add(RegexHandler("nothing", ".*", None, Inbox(0)))
    for number in range(100):
        dispatch(dispatcher, [b"/%d%s/CSTR/CSTR/1/a/\0" % (number, b"g" * 100_000)])
    assert sum(map(len, dispatcher._routes)) < 100_000


def test_a_pattern_fits_a_group_of_two_lines() -> None:
    dispatcher, got = PublicationDispatcher(), []
    dispatcher.add(RegexHandler(".*", ".*", None, Inbox(0), got.append))
    dispatch(dispatcher, [b"/two\nlines/CSTR/CSTR/1/a/\0text\0"])
    assert [one.group for one in got] == ["two\nlines"]


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_whatever_a_scheme_raises_means_that_a_payload_does_not_parse(fault: BaseException) -> None:
    def decode(kind: type, payload: bytes) -> Any:
        raise fault

    dispatcher, got = PublicationDispatcher(), []
    schemes = Schemes([Scheme(300, "ODD", lambda kind: kind is complex, bytes, decode, lambda kind: "Odd")])
    dispatcher.add(TypeHandler("chat", schemes.codec(complex), Inbox(0), got.append))
    dispatcher.add(chat(got.append))
    dispatch(dispatcher, [b"/chat/300/Odd/1/a/\0x", CHAT])
    assert (got, dispatcher.parse_errors.count) == (["msg0"], 1)


@pytest.mark.parametrize(
    "pattern", [b"nav.*", 5, "a{99999999999}", "(" * 50_000], ids=["bytes", "number", "many", "deep"]
)
def test_what_is_no_regular_expression_is_named(pattern: Any) -> None:
    for group, kind in ((pattern, ".*"), (".*", pattern)):
        with pytest.raises(UsageError, match="is not a valid regular expression"):
            RegexHandler(group, kind, None, Inbox(0))


@pytest.mark.parametrize(("through", "raised"), [((SystemExit, KeyboardInterrupt), True), ((), False)])
def test_what_ends_a_program_is_raised_in_the_waiting_call(
    through: tuple[type[BaseException], ...], raised: bool
) -> None:
    dispatcher = PublicationDispatcher()

    def leave(text: str) -> None:
        raise SystemExit(3)

    leaving = chat(leave)
    dispatcher.add(leaving)
    if raised:
        with pytest.raises(SystemExit):
            dispatch(dispatcher, [CHAT], through)
    else:
        dispatch(dispatcher, [CHAT, CHAT], through)
        assert leaving.errors == 2

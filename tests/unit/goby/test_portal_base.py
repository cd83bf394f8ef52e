"""A portal's life, step by step, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import cached_property
from types import SimpleNamespace, coroutine
from typing import Any

import pytest

from omq.errors import ConnectError, UsageError
from omq.goby import BufferFull
from omq.goby.outbox import Outbox, OutboxOpening
from omq.goby.portal import BlockingInbox
from omq.goby.portal_base import SEND_BATCH_PUBLICATIONS, PortalBase
from omq.goby.protobuf import ManagerRequest, ManagerResponse, Socket
from omq.goby.wire import MANAGER_REQUEST_PREFIX, Sockets

Step = SimpleNamespace


def reply(publish: str = "/s.xsub", subscribe: str = "/s.xpub") -> bytes:
    response = ManagerResponse(request=1, client_name="nav", client_pid=1)
    for socket, path in ((response.publish_socket, publish), (response.subscribe_socket, subscribe)):
        socket.socket_type, socket.transport, socket.socket_name = Socket.PUBLISH, Socket.IPC, path
    return response.SerializeToString()


@coroutine
def suspended(step: Step) -> Generator[Step, Any, Any]:
    return (yield step)


class Portal(PortalBase[None]):
    """A portal without sockets: the router passes all on, and the manager answers.

    Whatever waits suspends its life, with what it waits for.

    Attributes:
        steps: What was done: a kind, and what belongs to it.
        at: The connections by which the router is reached; `None`: none.
        deaf: The router passes no subscriptions on; with `everything` it has subscribed to everything.
        stalls: Calls after which a stalled router goes on.
    """

    _inbox_type = BlockingInbox

    def __init__(self, *, holds: Iterable[bool] = (), deaf: bool = False, **options: Any) -> None:
        self.steps: list[Step] = []
        self.requests: list[ManagerRequest] = []
        self.published: list[bytes] = []
        self.answers = iter(holds)
        self.deaf, self.everything = deaf, True
        self.at: object = "a router"
        self.stalls = 0
        self.reply: bytes | None = reply()
        super().__init__(**{"name": "nav", "socket_name": "/s", **options})

    @cached_property
    def life(self) -> Coroutine[Any, Any, None]:
        return self._run_lifecycle()

    def _set_up(self) -> None: ...

    def find(self) -> None:
        """Finds its manager."""
        for _ in driven(self._find_manager()):
            pass

    def until(self, *kinds: str, where: Callable[[Step], bool] = lambda step: True) -> Step:
        """Lives until a step of a kind is to be done, another one than that of before, if there was one."""
        return next(step for step in driven(self.life) if step.kind in kinds and where(step))

    def lose(self, at: object = "another router") -> None:
        """Is connected to another router from now on, or to none."""
        self.at = at

    def keep(self, *frames: bytes) -> bool:
        return all(self._outbox.put(frame) for frame in frames)

    def of(self, kind: str) -> list[Any]:
        return [step for step in self.steps if step.kind == kind]

    async def step(self, kind: str, **fields: Any) -> None:
        step = Step(kind=kind, **fields)
        await suspended(step)
        self.steps.append(step)

    def announce(self, *, hold: bool, name: str = "nav", pid: int | None = None, number: int | None = None) -> None:
        """The manager answers; the answer comes by the newest connection, or by an older one."""
        response = ManagerResponse(request=2, client_name=name, client_pid=pid or self._pid, hold=hold)
        self._handle_answer(response, number or self._answer_socket_number)

    def _notify(self) -> None:
        self.steps.append(Step(kind="notify", released=self._released))

    def _connect(self, at: Sockets) -> None:
        self._router = at
        self.steps.append(Step(kind="connect", at=at))

    def _connections(self) -> object:
        return self.at

    def _subscribe(self, prefix: bytes, *, wanted: bool = True, by_answers: bool) -> None:
        self.steps.append(Step(kind="subscribe", prefix=prefix, wanted=wanted, by_answers=by_answers))

    async def _request(self, request: bytes, timeout: float) -> bytes | None:
        await self.step("ask", request=request)
        return self.reply

    async def _open_answer_socket(self) -> None:
        await self.step("open answers")
        self._answer_socket_number += 1

    async def _close_answer_socket(self) -> None:
        self.steps.append(Step(kind="end answers"))

    async def _wait_subscribed(self, prefix: bytes, timeout: float) -> bool:
        await self.step("barrier")
        return not self.deaf if prefix else self.deaf and self.everything

    async def _wait_woken(self, timeout: float) -> None:
        await self.step("news")

    async def _pause(self, seconds: float) -> None:
        await self.step("pause", seconds=seconds)

    async def _wait_lost(self, at: object) -> bool:
        await self.step("loss", at=at)
        return at != self.at

    async def _transmit(self, frames: list[bytes]) -> bool:
        await self.step("send", frames=frames)
        for frame in frames:
            if frame.startswith(MANAGER_REQUEST_PREFIX):
                self.requests.append(ManagerRequest.FromString(frame.partition(b"\0")[2]))
                self.announce(hold=next(self.answers, False))
            else:
                self.published.append(frame)
        self.stalls -= 1
        return self.stalls < 0


def driven(life: Coroutine[Any, Any, None]) -> Generator[Step, None, None]:
    """The steps of a life, each of which is done when the next one is asked for."""
    while True:
        try:
            yield life.send(None)
        except StopIteration:
            return


def connected(**options: Any) -> Portal:
    """A portal that is released."""
    portal = Portal(**options)
    portal.find()
    portal.until("loss")
    portal.steps.clear()
    return portal


def frames(count: int) -> list[bytes]:
    return [b"/g/%d" % number for number in range(count)]


def test_a_portal_asks_the_manager_where_to_connect() -> None:
    portal = Portal()
    portal.find()
    assert ManagerRequest.FromString(portal.of("ask")[0].request).client_name == "nav"
    [connect] = portal.of("connect")
    assert (connect.at.publish, connect.at.subscribe) == ("ipc:///s.xsub", "ipc:///s.xpub")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, r"socket_name='/s': no manager \(gobyd\) has answered at ipc:///s.manager within 5 s"),
        (b"garbage", "socket_name='/s': the process that answers at ipc:///s.manager is not a manager"),
    ],
)
def test_without_a_manager_it_fails(answer: bytes | None, text: str) -> None:
    portal = Portal()
    portal.reply = answer
    with pytest.raises(ConnectError, match=text):
        portal.find()


def test_what_was_kept_leaves_in_its_order_after_the_release() -> None:
    portal = Portal(holds=[True, True, False])
    assert portal.keep(*frames(450))
    portal.until("loss")
    assert portal.published == frames(450)
    assert portal._outbox.open
    assert not portal.keep(b"late"), "nothing is kept any more"
    assert len(portal.requests) == 3
    assert [step.released for step in portal.of("notify")][-1]
    assert len(portal.of("open answers")) == len(portal.of("end answers")) == 1


def test_its_own_word_stands_before_ready_and_before_what_it_publishes() -> None:
    portal = Portal(holds=[True, False])
    portal.ready()
    portal.keep(b"/g/")
    portal.until("loss")
    words = [index for index, step in enumerate(portal.steps) if step.kind == "subscribe" and step.wanted]
    sent = [index for index, step in enumerate(portal.steps) if step.kind == "send"]
    assert [request.ready for request in portal.requests] == [True, True]
    assert words[1] < sent[0] < sent[1] < words[2] < sent[2]
    assert [portal.steps[index].by_answers for index in words] == [False, True, False]
    for index in words:
        subscribed, barrier, unsubscribed = portal.steps[index : index + 3]
        assert barrier.kind == "barrier"
        assert unsubscribed == Step(**{**vars(subscribed), "wanted": False})
    assert len({portal.steps[index].prefix for index in words}) == 3, "each word is another one"


def test_ready_is_sent_at_once() -> None:
    portal = Portal(holds=[True] * 100)
    portal.until("news")
    portal.ready()
    assert ManagerRequest.FromString(portal.until("send").frames[0].partition(b"\0")[2]).ready


def test_an_answer_to_another_client_only_has_it_ask() -> None:
    portal = Portal(holds=[True] * 100)
    portal.until("news")
    portal.announce(hold=False, pid=portal._pid + 1)
    portal.announce(hold=False, name="other")
    assert portal._hold
    assert portal._other_released


@pytest.mark.parametrize("everything", [True, False])
def test_a_router_that_passes_no_subscriptions_on_is_no_reason_to_wait_for_ever(everything: bool) -> None:
    portal = Portal(deaf=True)
    portal.everything = everything
    portal.keep(b"/g/")
    portal.until("loss")
    assert portal.published == [b"/g/"]
    assert portal._no_barrier_until > 0


def test_a_router_that_is_lost_before_what_was_kept_leaves_costs_nothing() -> None:
    portal = Portal(deaf=True)
    portal.keep(b"/g/")
    portal.everything = False
    portal.lose(None)
    portal.until("send", where=lambda step: len(portal.requests) == 2)
    assert portal.published == []
    portal.deaf = False
    portal.lose("a router")
    portal.until("loss")
    assert portal.published == [b"/g/"]


def test_a_router_that_is_lost_is_found_again_with_other_sockets() -> None:
    portal = connected()
    portal.reply = reply("/other.xsub", "/other.xpub")
    portal.lose()
    portal.until("ask")
    assert portal.keep(b"/g/meanwhile"), "publications wait again"
    portal.until("loss")
    released = [step.released for step in portal.of("notify")]
    assert (released[0], released[-1]) == (False, True)
    assert portal.of("connect")[0].at.publish == "ipc:///other.xsub"
    assert portal.published == [b"/g/meanwhile"]
    assert max(step.seconds for step in portal.of("pause")) >= 0.5, "others find it, too"


def test_a_router_that_is_lost_while_what_was_kept_leaves_costs_what_is_under_way() -> None:
    portal = Portal()
    portal.find()
    portal.keep(*frames(2 * SEND_BATCH_PUBLICATIONS + 50))
    portal.until("pause", where=lambda step: bool(portal.published))
    assert not portal._outbox.open
    portal.lose(None)
    assert len(portal.published) == SEND_BATCH_PUBLICATIONS
    portal.until("ask")
    assert not portal.released
    portal.lose()
    portal.until("loss")
    assert portal._outbox.open
    assert portal.published == frames(2 * SEND_BATCH_PUBLICATIONS + 50), "the rest waited for the next one"


def test_what_is_published_behind_a_late_subscription_leaves_once_that_is_in_force() -> None:
    portal = connected()
    portal._hold_publications()
    assert portal._woken, "it goes on at once"
    assert portal.keep(b"/g/a")
    portal.until("barrier")
    assert portal.published == []
    assert portal.keep(b"/g/b")
    portal._hold_publications()
    assert portal.keep(b"/g/c"), "what comes behind another one waits for that"
    portal.until("barrier")
    assert portal.published == [b"/g/a", b"/g/b"]
    portal.until("loss")
    assert portal.published == [b"/g/a", b"/g/b", b"/g/c"]
    assert portal._outbox.open
    assert len(portal.of("barrier")) == 2
    assert all(step.released for step in portal.of("notify"))
    assert (portal._outbox.kept, portal._outbox.sent) == (3, 3)


def test_a_router_may_be_lost_while_a_late_subscription_is_on_its_way() -> None:
    portal = connected()
    portal._hold_publications()
    portal.keep(b"/g/")
    portal.deaf, portal.everything = True, False
    portal.until("barrier")
    portal.lose(None)
    portal.until("ask")
    assert not portal.released
    assert portal.published == []
    portal.deaf = False
    portal.lose()
    assert portal.until("loss").at == "another router"
    assert portal.published == [b"/g/"]


def test_a_router_that_is_lost_and_found_while_a_late_subscription_is_on_its_way_gets_nothing_unasked() -> None:
    portal = connected()
    asked = len(portal.requests)
    portal._hold_publications()
    portal.keep(b"/g/")
    portal.until("barrier")
    portal.lose()  # the word passes there
    portal.answers = iter([True, False])
    portal.until("ask")
    assert not portal.released
    assert portal.published == [], "others have not found it yet"
    portal.until("loss")
    assert len(portal.requests) == asked + 2, "its hold is asked for"
    assert max(step.seconds for step in portal.of("pause")) >= 0.5
    assert portal.published == [b"/g/"]


@pytest.mark.parametrize("moment", ["pause", "barrier", "loss"])
def test_a_router_that_is_lost_between_the_release_and_the_first_wait_for_that_is_noticed(moment: str) -> None:
    portal = Portal()
    portal.find()
    portal.until(moment, where=lambda step: not portal._hold)
    portal.lose()
    portal.answers = iter([True] * 100)
    portal.keep(b"/g/")
    portal.until("news")
    assert portal._hold, "the hold of the next one"
    assert not portal.released
    assert portal.published == []


def test_a_release_of_a_router_that_is_lost_meanwhile_does_not_count() -> None:
    portal = Portal(holds=[False, True, False])
    portal.until("send")
    portal.lose()
    portal.until("loss")
    assert len(portal.requests) == 3
    assert max(step.seconds for step in portal.of("pause")) >= 0.5, "others find it, too"


def test_a_late_release_does_not_count_for_the_next_router() -> None:
    portal = Portal(holds=[True] * 100)
    portal.until("news")
    before = portal._answer_socket_number
    portal.lose()
    portal.until("open answers")
    portal.announce(hold=False, number=before)
    portal.until("news")
    assert portal._answer_socket_number != before
    portal.announce(hold=False, number=before)
    assert portal._hold
    portal.announce(hold=False)
    assert not portal._hold


def test_a_router_that_stalls_is_given_no_more_until_it_goes_on() -> None:
    portal = Portal()
    portal.keep(*frames(450))
    portal.until("send", where=lambda step: step.frames == frames(450)[400:])
    with pytest.raises(OutboxOpening):
        portal.keep(b"/g/450")
    portal.stalls = 5
    for _ in range(4):
        assert portal.until("send").frames == []
        assert len(portal.published) == 450
        assert not portal._outbox.open
    assert portal.keep(b"/g/450"), "no caller is kept waiting"
    portal.until("loss")
    assert portal.published == frames(451)
    assert portal._outbox.open


def test_a_manager_that_is_the_same_again_needs_no_other_connections() -> None:
    portal = connected()
    portal.lose()
    portal.until("loss")
    assert portal.of("connect") == []
    assert len(portal.of("ask")) == 1


def test_identifiers_are_made_once() -> None:
    portal = Portal()
    assert portal._route("g", str, 1) is portal._route("g", str, 1)
    assert portal._compose("g", "x").startswith(b"/g/CSTR/CSTR/%d/" % portal._pid)
    assert portal._compose("g", "x").endswith(b"/\0x\0")
    assert portal._compose("g", b"raw", 99, "T").startswith(b"/g/99/T/")
    for number in range(10_000):
        portal._route(f"g{number}", str, 1)
    assert len(portal._routes) <= 4096


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("name", ""), ("name", None), ("name", "\ud800"), ("buffer", 0), ("buffer", 1.5)),
        *(("manager_timeout", value) for value in (0, "5", float("nan"), float("inf"), 10**400)),
        ("port", 0),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        Portal(**{"transport": "tcp", name: value})


def test_the_outbox_is_bounded() -> None:
    outbox = Outbox(2)
    outbox.put(b"a")
    outbox.put(b"b")
    with pytest.raises(BufferFull, match=r"2 publications.*buffer=2"):
        outbox.put(b"c")
    assert outbox.take(1) == [b"a"]
    assert outbox.put(b"c")
    assert outbox.take(9) == [b"b", b"c"]
    assert not outbox.open
    assert outbox.take(9) == []
    assert outbox.open
    assert (outbox.kept, outbox.sent) == (3, 3)
    outbox.hold()
    outbox.release()
    assert outbox.put(bytes(65 << 20)), "one may, whatever its size"
    outbox.take(1)
    assert (outbox.kept, outbox.sent) == (4, 3), "it is on its way"
    with pytest.raises(OutboxOpening):
        outbox.put(b"d")
    outbox.hold()
    assert outbox.put(b"d"), "it does not open after all"
    with pytest.raises(BufferFull, match="bytes"):
        outbox.put(bytes(64 << 20))


def test_a_portal_that_publishes_all_the_time_is_not_held() -> None:
    portal = Portal()
    sent, refused = frames(450), 0
    portal.keep(*sent)
    while (step := portal.until("send", "loss")).kind == "send":
        if step.frames and step.frames[0] in sent:
            try:
                assert portal.keep(b"/g/more%d" % len(sent))
                sent.append(b"/g/more%d" % len(sent))
            except OutboxOpening:
                refused += 1
    assert portal._outbox.open
    assert portal.released
    assert portal.published == sent
    assert refused == 1, "nothing overtakes the last ones, and nothing is kept behind them"


def test_a_router_that_passes_no_subscriptions_on_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("omq.goby.portal_base.time.monotonic", lambda: now)
    portal = Portal(deaf=True)
    portal.until("loss")
    for later, asked in ((1.0, False), (100.0, True)):
        now += later
        portal.steps.clear()
        portal._hold_publications()
        portal.until("loss")
        assert bool(portal.of("barrier")) == asked

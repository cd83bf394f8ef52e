"""A portal's life, step by step, without sockets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from omq.errors import ConnectError, UsageError
from omq.goby import BufferFull
from omq.goby.dispatch import Dispatcher
from omq.goby.outbox import Closing, Outbox
from omq.goby.protobuf import ManagerRequest, ManagerResponse, Socket
from omq.goby.session import (
    CHUNK,
    Ask,
    AwaitLoss,
    AwaitNews,
    AwaitSubscribed,
    Connect,
    Hear,
    Life,
    Pause,
    Send,
    Session,
    Step,
    Subscribe,
    Tell,
    Where,
)
from omq.goby.wire import REQUESTS, RESPONSES, Bus


def session(**options: Any) -> Session:
    given = {"name": "nav", "bus": Bus(socket_name="/s"), "manager_timeout": 5.0, "buffer": None, "schemes": ()}
    return Session(**{**given, **options})


def reply(publish: str = "/s.xsub", subscribe: str = "/s.xpub") -> bytes:
    response = ManagerResponse(request=1, client_name="nav", client_pid=1)
    for socket, path in ((response.publish_socket, publish), (response.subscribe_socket, subscribe)):
        socket.socket_type, socket.transport, socket.socket_name = Socket.PUBLISH, Socket.IPC, path
    return response.SerializeToString()


_S = TypeVar("_S", bound=Step)


class World:
    """Does the steps of a life: a router that passes all on, and a manager that answers."""

    def __init__(self, session: Session, *, holds: Iterable[bool] = (), deaf: bool = False) -> None:
        self.session = session
        self.steps: list[Step] = []
        self.requests: list[ManagerRequest] = []
        self.published: list[bytes] = []
        self.answers = iter(holds)
        self.deaf = deaf
        self.everything = True  # whether a deaf router has subscribed to everything
        self.at: object = "a router"  # by which connections it is reached; `None`: by none
        self.stalls = 0  # calls after which a stalled router goes on
        self.reply: bytes | None = reply()
        self.hears: Dispatcher | None = None  # where the manager's answers go

    def run(self, life: Life, until: type[Step] | None = None) -> None:
        """Does steps until one of a kind is to be done, or the life ends."""
        try:
            self.go_on(life, next(life), until)
        except StopIteration:
            assert until is None

    def go_on(self, life: Life, step: Step, until: type[_S] | None) -> _S:
        """The same from a step that is not done yet; gives the one that is to be done."""
        while until is None or not isinstance(step, until):
            self.steps.append(step)
            step = life.send(self.do(step))
        return step

    def do(self, step: Step) -> Any:
        match step:
            case Ask():
                return self.reply
            case AwaitSubscribed(prefix):
                return not self.deaf if prefix else self.deaf and self.everything
            case Send(frames):
                for frame in frames:
                    if frame.startswith(REQUESTS):
                        self.answer(ManagerRequest.FromString(frame.partition(b"\0")[2]))
                    else:
                        self.published.append(frame)
                self.stalls -= 1
                return self.stalls < 0
            case Where():
                return self.at
            case Hear(answers):
                self.hears = answers
            case AwaitLoss(at):
                return at != self.at
        return None

    def answer(self, request: ManagerRequest) -> None:
        self.requests.append(request)
        hold = next(self.answers, False)
        response = ManagerResponse(request=2, client_name="nav", client_pid=request.client_pid, hold=hold)
        self.say(response)

    def say(self, response: ManagerResponse, heard_by: Dispatcher | None = None) -> None:
        """The manager says something; it is heard by the connection of the answers, or by an older one."""
        to = heard_by or self.hears
        assert to is not None
        to.sort([RESPONSES + b"1/a/\0" + response.SerializeToString()])

    def of(self, kind: type[Step]) -> list[Any]:
        return [step for step in self.steps if isinstance(step, kind)]


def test_it_asks_the_manager_where_to_connect() -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    assert world.of(Ask)[0].endpoint == "ipc:///s.manager"
    assert ManagerRequest.FromString(world.of(Ask)[0].request).client_name == "nav"
    [connect] = world.of(Connect)
    assert (connect.sockets.publish, connect.sockets.subscribe) == ("ipc:///s.xsub", "ipc:///s.xpub")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, r"socket_name='/s': no manager \(gobyd\) has answered at ipc:///s.manager within 5 s"),
        (b"garbage", "socket_name='/s': the process that answers at ipc:///s.manager is not a manager"),
    ],
)
def test_without_a_manager_it_fails(answer: bytes | None, text: str) -> None:
    one = session()
    world = World(one)
    world.reply = answer
    with pytest.raises(ConnectError, match=text):
        world.run(one.connect())


def test_what_was_kept_leaves_in_its_order_after_the_release() -> None:
    one = session()
    for number in range(450):
        assert one.outbox.put(b"/g/%d" % number)
    world = World(one, holds=[True, True, False])
    world.run(one.live(), AwaitLoss)
    assert world.published == [b"/g/%d" % number for number in range(450)]
    assert one.outbox.open
    assert not one.outbox.put(b"late"), "nothing is kept any more"
    assert len(world.requests) == 3
    assert [step.released for step in world.of(Tell)] == [True]
    first, last = world.of(Hear)
    assert (first.answers is None, last.answers) == (False, None)


def test_its_own_word_stands_before_ready_and_before_what_it_publishes() -> None:
    one = session()
    one.ready()
    one.outbox.put(b"/g/")
    world = World(one, holds=[True, False])
    world.run(one.live(), AwaitLoss)
    words = [index for index, step in enumerate(world.steps) if isinstance(step, Subscribe) and step.wanted]
    sent = [index for index, step in enumerate(world.steps) if isinstance(step, Send)]
    assert [request.ready for request in world.requests] == [True, True]
    assert words[1] < sent[0] < sent[1] < words[2] < sent[2]
    said = [step for step in world.steps if isinstance(step, Subscribe) and step.wanted]
    assert [word.hearing for word in said] == [False, True, False]
    for index, word in zip(words, said, strict=True):
        assert isinstance(world.steps[index + 1], AwaitSubscribed)
        assert world.steps[index + 2] == Subscribe(word.prefix, wanted=False, hearing=word.hearing)
    assert len({word.prefix for word in said}) == 3, "each word is another one"


def test_ready_is_said_at_once() -> None:
    one = session()
    world = World(one, holds=[True] * 100)
    life = one.live()
    world.run(life, AwaitNews)
    one.ready()
    step = life.send(None)
    step = world.go_on(life, step, Send)
    assert ManagerRequest.FromString(step.frames[0].partition(b"\0")[2]).ready


def test_an_answer_to_somebody_else_only_has_it_ask() -> None:
    one = session()
    world = World(one, holds=[True] * 100)
    life = one.live()
    world.run(life, AwaitNews)
    for name, pid in (("nav", one.pid + 1), ("other", one.pid)):
        world.say(ManagerResponse(request=2, client_name=name, client_pid=pid, hold=False))
    assert one._hold
    assert one._prompted


@pytest.mark.parametrize("everything", [True, False])
def test_a_router_that_passes_no_subscriptions_on_is_no_reason_to_wait_for_ever(everything: bool) -> None:
    one = session()
    one.outbox.put(b"/g/")
    world = World(one, deaf=True)
    world.everything = everything
    world.run(one.live(), AwaitLoss)
    assert world.published == [b"/g/"]
    assert one._deaf


def test_a_router_that_is_lost_before_what_was_kept_leaves_costs_nothing() -> None:
    one = session()
    one.outbox.put(b"/g/")
    world = World(one, deaf=True)
    world.everything, world.at = False, None
    life = one.live()
    step = next(life)
    while len(world.requests) < 2:
        step = life.send(world.do(step))
    assert world.published == []
    world.deaf, world.at = False, "a router"
    step = world.go_on(life, step, AwaitLoss)
    assert world.published == [b"/g/"]


def test_a_router_that_is_lost_is_found_again_with_other_sockets() -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    life = one.live()
    world.run(life, AwaitLoss)
    world.steps.clear()
    world.reply = reply("/other.xsub", "/other.xpub")
    step = life.send(True)
    assert not one.outbox.open, "publications wait again"
    one.outbox.put(b"/g/meanwhile")
    world.go_on(life, step, AwaitLoss)
    assert [step.released for step in world.of(Tell)] == [False, True]
    assert world.of(Connect)[0].sockets.publish == "ipc:///other.xsub"
    assert world.published == [b"/g/meanwhile"]
    assert max(step.seconds for step in world.of(Pause)) >= 0.5, "others find it, too"


def test_a_router_that_is_lost_while_what_was_kept_leaves_costs_what_is_under_way() -> None:
    one = session()
    count = 2 * CHUNK + 50
    for number in range(count):
        one.outbox.put(b"/g/%d" % number)
    world = World(one)
    world.run(one.connect())
    life = one.live()
    step = next(life)
    while not world.published:
        step = life.send(world.do(step))
    assert not one.outbox.open
    world.at = None
    lost = len(world.published)
    step = world.go_on(life, step, Tell)
    assert not step.released
    world.at = "another router"
    step = world.go_on(life, step, AwaitLoss)
    assert one.outbox.open
    assert world.published == [b"/g/%d" % number for number in range(count)], "the rest waited for the next one"
    assert lost == CHUNK


def test_what_is_published_behind_a_late_subscription_leaves_once_that_is_in_force() -> None:
    one = session()
    woken = []
    one.wake = lambda: woken.append(one.outbox.open)
    world = World(one)
    life = one.live()
    world.run(life, AwaitLoss)
    assert one.released
    world.steps.clear()
    woken.clear()
    one.subscribed()
    assert woken == [False], "it goes on at once, and holds by then"
    assert one.outbox.put(b"/g/a")
    step = life.send(False)
    while not isinstance(step, AwaitLoss):
        if isinstance(step, AwaitSubscribed):
            if not world.of(AwaitSubscribed):
                assert world.published == []
                assert one.outbox.put(b"/g/b")
                one.subscribed()
                assert one.outbox.put(b"/g/c"), "what comes behind another one waits for that"
            else:
                assert world.published == [b"/g/a", b"/g/b"]
        world.steps.append(step)
        step = life.send(world.do(step))
    assert world.published == [b"/g/a", b"/g/b", b"/g/c"]
    assert one.outbox.open
    assert one.released
    assert len(world.of(AwaitSubscribed)) == 2
    assert [step.released for step in world.of(Tell)] == [True, True]
    assert (one.outbox.kept, one.outbox.left) == (3, 3)


def test_a_router_may_be_lost_while_a_late_subscription_is_on_its_way() -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    life = one.live()
    world.run(life, AwaitLoss)
    world.steps.clear()
    one.subscribed()
    one.outbox.put(b"/g/")
    world.deaf, world.everything, world.at = True, False, None
    step = life.send(False)
    step = world.go_on(life, step, Tell)
    assert not step.released
    assert not one.released
    assert world.published == []
    world.deaf, world.at = False, "another router"
    step = world.go_on(life, step, AwaitLoss)
    assert step.at == "another router"
    assert world.published == [b"/g/"]


def test_a_router_that_is_lost_and_found_while_a_late_subscription_is_on_its_way_gets_nothing_unasked() -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    life = one.live()
    world.run(life, AwaitLoss)
    asked = len(world.requests)
    one.subscribed()
    one.outbox.put(b"/g/")
    step = world.go_on(life, life.send(False), AwaitSubscribed)
    world.at = "another router"  # the word passes there
    world.answers = iter([True, False])
    step = world.go_on(life, step, Tell)
    assert not step.released
    assert world.published == [], "others have not found it yet"
    world.steps.clear()
    world.go_on(life, step, AwaitLoss)
    assert len(world.requests) == asked + 2, "its hold is asked for"
    assert max(step.seconds for step in world.of(Pause)) >= 0.5
    assert world.published == [b"/g/"]


@pytest.mark.parametrize("moment", [Pause, AwaitSubscribed, Tell])
def test_a_router_that_is_lost_between_the_release_and_the_first_wait_for_that_is_noticed(moment: type[Step]) -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    life = one.live()
    step = next(life)
    while one._hold or not isinstance(step, moment):
        step = life.send(world.do(step))
    world.at = "another router"
    world.answers = iter([True] * 100)
    one.outbox.put(b"/g/")
    step = world.go_on(life, step, AwaitNews)
    assert one._hold, "the hold of the next one"
    assert not one.released
    assert world.published == []


def test_a_release_of_a_router_that_is_lost_meanwhile_is_none() -> None:
    one = session()
    world = World(one, holds=[False, True, False])
    life = one.live()
    step = world.go_on(life, next(life), Send)
    found = world.do(step)
    assert not one._hold
    world.at = "another router"
    world.go_on(life, life.send(found), AwaitLoss)
    assert len(world.requests) == 3
    assert max(step.seconds for step in world.of(Pause)) >= 0.5, "others find it, too"


def test_a_release_that_is_heard_late_is_none_of_the_next_router() -> None:
    one = session()
    world = World(one, holds=[True] * 100)
    life = one.live()
    step = world.go_on(life, next(life), AwaitNews)
    before = world.hears
    world.at = "another router"
    step = world.go_on(life, life.send(None), Hear)
    world.say(ManagerResponse(request=2, client_name="nav", client_pid=one.pid, hold=False), before)
    step = world.go_on(life, step, AwaitNews)
    assert world.hears is not before
    world.say(ManagerResponse(request=2, client_name="nav", client_pid=one.pid, hold=False), before)
    assert one._hold
    world.say(ManagerResponse(request=2, client_name="nav", client_pid=one.pid, hold=False))
    assert not one._hold


def test_a_router_that_stalls_is_given_no_more_until_it_goes_on() -> None:
    one = session()
    for number in range(450):
        one.outbox.put(b"/g/%d" % number)
    world = World(one)
    life = one.live()
    step = next(life)
    while not (isinstance(step, Send) and step.frames == [b"/g/%d" % number for number in range(400, 450)]):
        step = life.send(world.do(step))
    with pytest.raises(Closing):
        one.outbox.put(b"/g/450")
    world.stalls = 5
    step = life.send(world.do(step))
    for _ in range(8):
        assert len(world.published) == 450
        assert not one.outbox.open
        step = life.send(world.do(step))
    assert one.outbox.put(b"/g/450"), "nobody is kept waiting"
    world.go_on(life, step, AwaitLoss)
    assert world.published == [b"/g/%d" % number for number in range(451)]
    assert one.outbox.open


def test_a_manager_that_is_the_same_again_needs_no_other_connections() -> None:
    one = session()
    world = World(one)
    world.run(one.connect())
    life = one.live()
    world.run(life, AwaitLoss)
    world.steps.clear()
    step = life.send(True)
    world.go_on(life, step, AwaitLoss)
    assert world.of(Connect) == []
    assert len(world.of(Ask)) == 1


def test_identifiers_are_made_once() -> None:
    one = session()
    assert one.route("g", str, 1, None, None) is one.route("g", str, 1, None, None)
    assert one.compose("g", "x").startswith(b"/g/CSTR/CSTR/%d/" % one.pid)
    assert one.compose("g", "x").endswith(b"/\0x\0")
    assert one.compose("g", b"raw", 99, "T").startswith(b"/g/99/T/")
    for number in range(10_000):
        one.route(f"g{number}", str, 1, None, None)
    assert len(one._routes) <= 4096


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": None},
        {"manager_timeout": 0},
        {"manager_timeout": "5"},
        {"buffer": 0},
        {"buffer": 1.5},
        {"bus": Bus(transport="tcp", port=0)},
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any]) -> None:
    [name] = given
    with pytest.raises(UsageError, match="port=" if name == "bus" else f"{name}="):
        session(**given)


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
    assert (outbox.kept, outbox.left) == (3, 3)
    outbox.hold()
    outbox.let_go()
    assert outbox.put(bytes(65 << 20)), "one may, whatever its size"
    outbox.take(1)
    assert (outbox.kept, outbox.left) == (4, 3), "it is on its way"
    with pytest.raises(Closing):
        outbox.put(b"d")
    outbox.hold()
    assert outbox.put(b"d"), "it does not open after all"
    with pytest.raises(BufferFull, match="bytes"):
        outbox.put(bytes(64 << 20))


def test_who_publishes_all_the_time_keeps_nothing_closed() -> None:
    one = session()
    kept = [b"/g/%d" % number for number in range(450)]
    for frame in kept:
        assert one.outbox.put(frame)
    world = World(one)
    life = one.live()
    step, sent, refused = next(life), list(kept), 0
    while not isinstance(step, AwaitLoss):
        if isinstance(step, Send) and step.frames and step.frames[0] in sent:
            try:
                assert one.outbox.put(b"/g/more%d" % len(sent))
                sent.append(b"/g/more%d" % len(sent))
            except Closing:
                refused += 1
        world.steps.append(step)
        step = life.send(world.do(step))
    assert one.outbox.open
    assert one.released
    assert world.published == sent
    assert refused == 1, "nothing overtakes the last ones, and nothing is kept behind them"


def test_a_router_that_passes_no_subscriptions_on_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("omq.goby.session.time.monotonic", lambda: now)
    one = session()
    world = World(one, deaf=True)
    life = one.live()
    world.run(life, AwaitLoss)
    for later, asked in ((1.0, False), (100.0, True)):
        now += later
        world.steps.clear()
        one.subscribed()
        step = life.send(False)
        world.go_on(life, step, AwaitLoss)
        assert bool(world.of(AwaitSubscribed)) == asked

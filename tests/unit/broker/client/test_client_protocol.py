"""A client's state against a scripted broker: whatever is cut and when, nothing is lost, repeated or kept for ever."""

from __future__ import annotations

import itertools
import json
import random
import sys
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omq._core import blocks
from omq.broker import protocol
from omq.broker.client import calls as packing
from omq.broker.client import client_protocol as module
from omq.broker.client.calls import pack
from omq.broker.client.client_protocol import ClientProtocol, LeaderElsewhere, PendingRequest, State, read_first
from omq.broker.client.stream_state import ConsumerState, SubscriptionState, deliveries_of, messages_of
from omq.broker.errors import NotLeader, Overrun, SyntaxFault, TooLarge, TopicError, VersionFault
from omq.broker.protocol import u64
from omq.broker.start_time import StartTime
from omq.errors import ClosedError
from tests.support.fake_broker import ScriptedBroker, Topic
from tests.support.hypothesis_profiles import examples

NAME = bytes(range(16))


some = st.sampled_from([0, 1, 2, 100, 100])  # messages


class ClientMachine(RuleBasedStateMachine):
    """Plays a client with one topic of each kind, and cuts its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = ScriptedBroker()
        self.broker.topics = {"t": Topic(), "j": Topic()}
        self.core = ClientProtocol(NAME)
        self.published: list[tuple[PendingRequest, list[bytes]]] = []
        self.given_up: list[list[bytes]] = []
        self.readings: list[tuple[SubscriptionState, list[int]]] = []
        self.acked: set[int] = set()
        self.done: list[int] = []
        self.jobs: list = []
        self.share: ConsumerState | None = None
        self.number = 0

    # ------------------------------------------------------------------ events from outside

    @precondition(lambda self: self.core.state is State.DOWN)
    @rule(welcomed=st.sampled_from([True, True, True, False]))
    def connect(self, welcomed: bool) -> None:
        self.core.connected()
        if welcomed:
            self.pass_on(1, 1, 1)

    @precondition(lambda self: self.core.state is not State.DOWN)
    @rule(sent=some, seen=some, taken=some, killed=st.booleans())
    def cut(self, sent: int, seen: int, taken: int, killed: bool) -> None:
        self.pass_on(sent, seen, taken)
        self.core.lost()
        self.broker.cut(killed)

    @precondition(lambda self: self.broker.leads)
    @rule()
    def step_down(self) -> None:
        self.broker.step_down()

    @precondition(lambda self: not self.broker.leads)
    @rule()
    def lead(self) -> None:
        self.broker.leads = True

    @rule(sent=some, seen=some, blocks=st.integers(0, 3), taken=some)
    def pass_on(self, sent: int, seen: int, taken: int, blocks: int = 0) -> None:
        """Lets a number of messages come one step further."""
        for _ in range(min(sent, len(self.core.out))):
            self.broker.up.append(self.core.out.popleft())
        for _ in range(min(seen, len(self.broker.up))):
            self.broker.step()
        for _ in range(blocks):
            self.broker.pump()
        for _ in range(min(taken, len(self.broker.down))):
            try:
                self.core.receive(self.broker.down.popleft())
            except LeaderElsewhere:
                self.core.lost()
                self.broker.cut()
                break

    # ------------------------------------------------------------------ what a user does

    @rule(topic=st.sampled_from("tj"), count=st.integers(1, 3))
    def publish(self, topic: str, count: int) -> None:
        bodies = [b"%s%d" % (topic.encode(), self.number + n) for n in range(count)]
        self.number += count
        self.published.append((self.core.append(topic, blocks.encode(bodies)), bodies))

    @precondition(lambda self: any(not request.done for request, _ in self.published))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiting = [one for one in self.published if not one[0].done]
        one = data.draw(st.sampled_from(waiting))
        self.core.give_up(one[0])
        self.published.remove(one)
        self.given_up.append(one[1])

    @precondition(lambda self: len(self.readings) < 3)
    @rule(name=st.sampled_from([None, None, "n"]), credit=st.sampled_from([1, 60, 1000]))
    def subscribe(self, name: str | None, credit: int) -> None:
        if name is None or all(feed.name is None for feed, _ in self.readings):
            feed, _ = self.core.subscribe("t", "earliest", name, credit)
            self.readings.append((feed, []))

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        feed, got = data.draw(st.sampled_from(self.readings))
        if (block := self.core.take_block(feed)) is not None:
            got += [message.id for message in messages_of(feed, block)]

    @precondition(lambda self: any(feed.name for feed, _ in self.readings))
    @rule()
    def move(self) -> None:
        for feed, got in self.readings:
            if feed.name and got:
                self.core.move(feed, got[-1])

    @precondition(lambda self: self.share is None)
    @rule(credit=st.integers(1, 5))
    def consume(self, credit: int) -> None:
        self.share, _ = self.core.consume("j", 30.0, credit)

    @precondition(lambda self: self.share is not None)
    @rule()
    def work(self) -> None:
        if (block := self.core.take_block(self.share)) is not None:
            for job in deliveries_of(self.share, block, self, self.core.session):
                if self.share.is_acked(job.id):
                    self.core.ack_or_nack(self.share, job.session, [job.id], True)
                else:
                    self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), done=st.sampled_from([True, True, False]), together=st.booleans())
    def ack_or_nack(self, data: st.DataObject, done: bool, together: bool) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self.jobs.remove(job)
        if done:
            if job.session == self.core.session:
                assert job.id not in self.acked, "a message was delivered after its acknowledgement"
            self.acked.add(job.id)
        if done and together:
            self.core.add_ack(self.share, job.session, job.id)
        else:
            self.core.ack_or_nack(self.share, job.session, [job.id], done)

    # ---------------------------------------------------------------------- invariants

    @invariant()
    def what_is_in_flight_is_counted(self) -> None:
        waiting = [request for request, _ in self.published if not request.done]
        assert self.core.in_flight_bytes == sum(request.size for request in waiting)

    @invariant()
    def readings_have_everything_in_order(self) -> None:
        for _, got in self.readings:
            assert got == list(range(1, len(got) + 1))

    @invariant()
    def answers_are_true(self) -> None:
        for request, bodies in self.published:
            if request.done:
                first = read_first(request)
                stored = self.broker.topics[request_topic(bodies)].bodies
                assert stored[first - 1 : first - 1 + len(bodies)] == bodies

    def teardown(self) -> None:
        self.broker.leads = True
        self.settle_down()
        self.what_is_in_flight_is_counted()
        assert self.core.in_flight_bytes == 0
        for topic in "tj":
            stored = self.broker.topics[topic].bodies
            assert len(stored) == len(set(stored)), "stored twice"
            wanted = [body for _, bodies in self.published for body in bodies if request_topic([body]) == topic]
            assert set(stored) >= set(wanted)
            maybe = {body for bodies in self.given_up for body in bodies}
            assert set(stored) <= set(wanted) | maybe
        assert all(request.done for request, _ in self.published)
        for _, got in self.readings:
            assert got == list(range(1, len(self.broker.topics["t"].bodies) + 1))
        for feed, _ in self.readings:
            if feed.name and feed.position:
                assert self.broker.topics["t"].names["n"] == feed.position
        if self.share is not None:
            assert self.broker.topics["j"].acknowledged == set(range(1, len(self.broker.topics["j"].bodies) + 1))

    def settle_down(self) -> None:
        moved = True
        while moved:
            if self.core.state is State.DOWN:  # also again: it receives what a follower has sent
                self.core.connected()
            self.core.queue_acks()
            moved = bool(self.core.out or self.broker.up or self.broker.down)
            self.pass_on(100, 100, 0)
            moved |= self.broker.pump()
            self.pass_on(0, 0, 100)
            for feed, got in self.readings:
                while (block := self.core.take_block(feed)) is not None:
                    got += [message.id for message in messages_of(feed, block)]
                    moved = True
            if self.share is not None:
                self.work()
                for job in self.jobs:
                    self.core.ack_or_nack(self.share, job.session, [job.id], True)
                    moved = True
                self.jobs.clear()


def request_topic(bodies: list[bytes]) -> str:
    return bodies[0][:1].decode()


ClientMachine.TestCase.settings = examples(60, stateful_step_count=50)
TestWhateverIsCutNothingIsLostOrRepeated = ClientMachine.TestCase


@pytest.mark.parametrize("seed", range(100))
def test_what_a_flush_covers_is_durable_whatever_is_cut_and_killed(seed, monkeypatch):
    monkeypatch.setattr(module, "_MAX_UNCONFIRMED_ACKS", 3)
    chance = random.Random(seed)
    machine = ClientMachine()
    topic = machine.broker.topics["j"]
    topic.bodies = [b"j%d" % n for n in range(20)]
    machine.consume(5)
    flush: PendingRequest | None = None
    waited: set[int] = set()
    for _ in range(150):
        core, what = machine.core, chance.random()
        if core.state is State.DOWN:
            machine.broker.leads |= chance.random() < 0.5
            core.connected()
        elif what < 0.02:
            machine.broker.step_down()
        elif what < 0.08:
            machine.cut(chance.choice([0, 1, 5]), chance.choice([0, 1, 5]), 5, chance.random() < 0.5)
        elif what < 0.4:
            machine.pass_on(3, 3, chance.choice([0, 3]), 1)
        elif what < 0.6:
            machine.work()
        elif what < 0.85:
            for job in machine.jobs[: chance.randint(1, 3)]:
                machine.jobs.remove(job)
                machine.acked.add(job.id)
                if chance.random() < 0.5:
                    core.add_ack(machine.share, job.session, job.id)
                else:
                    core.ack_or_nack(machine.share, job.session, [job.id], True)
        elif core.dirty and flush is None:
            flush, waited = core.flush(), set(machine.acked)
            if chance.random() < 0.2:
                core.give_up(flush)
                flush = None
        # As `BlockingConnection.flush` does.
        if flush is not None and flush.done and not core.resuming:
            if flush.session == core.session or not core.dirty:
                assert waited <= topic.durable
            flush = None
    machine.broker.leads = True
    machine.settle_down()
    assert topic.acknowledged == set(range(1, 21))


# ------------------------------------------------------------------ one by one


def ready() -> ClientProtocol:
    """A client that was welcomed."""
    core = ClientProtocol(NAME)
    core.connected()
    hello = core.out.popleft()
    core.receive([protocol.WELCOME, hello[1], b'{"version": 1, "broker": "b", "max_body": 10}'])
    return core


def test_a_client_sends_hello_first_and_nothing_else_before_the_answer():
    core = ClientProtocol(NAME)
    request = core.request(protocol.TOPICS)
    assert not core.out
    core.connected()
    assert [message[0] for message in core.out] == [protocol.HELLO]
    hello = core.out.popleft()
    assert json.loads(hello[2]) == {"version": 1, "client": NAME.hex()}
    core.receive([protocol.WELCOME, hello[1], b'{"version": 1}'])
    assert [message[:2] for message in core.out] == [[protocol.TOPICS, request.tag]]


def test_a_repeated_append_has_its_sequence_and_the_first_outstanding_one():
    core = ready()
    one, two = core.append("t", b"1"), core.append("t", b"2")
    first = [list(message) for message in core.out]
    assert [message[4:] for message in first] == [[NAME, u64(1), u64(1)], [NAME, u64(2), u64(1)]]
    core.receive([protocol.PUBLISHED, one.tag, u64(7)])
    assert read_first(one) == 7
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b"{}"])
    assert [message[4:] for message in core.out] == [[NAME, u64(2), u64(2)]]
    assert not two.done


def test_another_version_ends_every_call():
    core = ClientProtocol(NAME)
    core.connected()
    request, (feed, begin) = core.request(protocol.TOPICS), core.subscribe("t", "latest", None, 10)
    core.receive([protocol.ERROR, core.out.popleft()[1], b"version", b"no"])
    for one in (request, begin, core.request(protocol.TOPICS)):
        with pytest.raises(VersionFault):
            one.result()
    assert isinstance(feed.error, VersionFault)


def welcome_of(role: str, **changes: Any) -> bytes:
    """The argument of a WELCOME by a member of a cluster."""
    cluster = {"name": "orders", "node": "n", "role": role, "leader": ["tcp://h:1"], "members": ["tcp://h:1"]}
    return json.dumps({"version": 1, "broker": "b", "cluster": {**cluster, **changes}}).encode()


def test_a_follower_gets_nothing_but_hello():
    core = ClientProtocol(NAME)
    request, (feed, _) = core.append("t", b"1"), core.subscribe("t", "earliest", None, 100)
    core.connected()
    hello = core.out.popleft()
    with pytest.raises(LeaderElsewhere, match=r"^a follower of the cluster 'orders', whose leader is tcp://h:1$"):
        core.receive([protocol.WELCOME, hello[1], welcome_of("follower")])
    assert not core.out
    assert core.broker == "", "the store of a broker that does not serve the client does not count"
    assert core.cluster is not None
    assert (core.cluster.leader, core.cluster.members) == (("tcp://h:1",), ("tcp://h:1",))
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("leader")])
    assert [message[:2] for message in core.out] == [[protocol.APPEND, request.tag], [protocol.SUBSCRIBE, feed.tag]]


def test_a_follower_serves_a_client_that_takes_any_member():
    core = ClientProtocol(NAME, follows_leader=False)
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("follower", leader=[])])
    request, (feed, begin) = core.append("t", b"1"), core.subscribe("t", "earliest", "n", 100)
    core.receive([protocol.ERROR, request.tag, b"not-leader", b"a follower"])
    core.receive([protocol.ERROR, feed.tag, b"not-leader", b"a follower"])
    for one in (request, begin):
        with pytest.raises(NotLeader, match=r"^a follower$"):
            one.result()
    assert isinstance(feed.error, NotLeader)
    assert core.in_flight_bytes == 0


@pytest.mark.parametrize("what", ["request", "open stream", "beginning stream", "given up"])
def test_not_leader_ends_the_session_and_is_not_the_answer(what):
    core = ready()
    request = core.append("t", b"1")
    feed, begin = core.subscribe("t", "earliest", "n", 100)
    if what == "open stream":
        core.receive([protocol.SUBSCRIBED, feed.tag, b'{"topic_id": 1, "position": 0}'])
    gone = core.request(protocol.TOPICS)
    core.give_up(gone)
    tag = {"request": request.tag, "given up": gone.tag}.get(what, feed.tag)
    with pytest.raises(LeaderElsewhere, match=r"^no$"):
        core.receive([protocol.ERROR, tag, b"not-leader", b"no"])
    assert not request.done
    assert not feed.ended
    assert begin.done is (what == "open stream")
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("leader")])
    append, subscribe = sorted(core.out)
    assert append == [protocol.APPEND, request.tag, b"t", b"1", NAME, u64(1), u64(1)]
    assert subscribe[:2] == [protocol.SUBSCRIBE, feed.tag]
    assert json.loads(subscribe[3]).get("resume", False) is (what == "open stream")


@pytest.mark.parametrize(
    "changes",
    [{"leader": None}, {"leader": [1]}, {"members": [["a", 1]]}, {"members": 5}, {"leader": [None]}],
)
def test_a_cluster_that_is_not_valid_is_refused(changes):
    core = ClientProtocol(NAME)
    core.connected()
    with pytest.raises(SyntaxFault):
        core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("leader", **changes)])


def test_a_broker_of_another_cluster_does_not_serve_the_client():
    core = ClientProtocol(NAME, follows_leader=False)
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("follower")])
    request = core.append("t", b"1")
    for welcome, text in (
        (welcome_of("leader", name="billing"), "a broker of the cluster 'billing', and others are of 'orders'"),
        (b'{"version": 1, "broker": "other"}', "a broker without a cluster, and others are of 'orders'"),
    ):
        core.connected()
        with pytest.raises(LeaderElsewhere, match=f"^{text}: give endpoints of one cluster$"):
            core.receive([protocol.WELCOME, core.out.popleft()[1], welcome])
        assert not core.out
        assert core.cluster is None, "its members are not tried"
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], welcome_of("leader")])
    assert core.out[0][0] == protocol.APPEND
    assert not request.done


def test_a_follower_without_a_leader_names_the_trouble():
    core = ClientProtocol(NAME)
    core.connected()
    text = r"^a follower of the cluster 'orders', which has no leader now \(the disks are full\)$"
    with pytest.raises(LeaderElsewhere, match=text):
        core.receive(
            [protocol.WELCOME, core.out.popleft()[1], welcome_of("follower", leader=[], trouble="the disks are full")]
        )


@pytest.mark.parametrize("cluster", [b"null", b"5", b"[]", b"{}", b'{"name": "c"}'])
def test_a_cluster_without_its_keys_is_refused(cluster):
    core = ClientProtocol(NAME)
    core.connected()
    with pytest.raises(SyntaxFault):
        core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "b", "cluster": %s}' % cluster])


@pytest.mark.parametrize(
    "message",
    [
        b"WELCOME",
        [b"BLOCK"],
        [protocol.BLOCK, u64(2), b"short", b""],
        [protocol.BLOCK, u64(2), blocks.header(1, 1, 0, 5), b"1234"],
        [protocol.SUBSCRIBED, u64(2), b"{"],
        [protocol.SUBSCRIBED, u64(2), b"{}"],
        [protocol.ERROR, u64(2)],
        [protocol.ERROR, u64(2), b"topic", b"\xff"],
    ],
)
def test_what_is_no_message_of_the_protocol_is_refused(message):
    core = ready()
    core.subscribe("t", "earliest", None, 100)
    with pytest.raises(SyntaxFault):
        core.receive(message)


@pytest.mark.parametrize(
    "parts",
    [
        [b"short", b""],
        [blocks.header(1, 1, 0, 5), b"1234"],
        [blocks.header(1, 1, 0, len(blocks.encode([b"x"]))), blocks.encode([b"x"]), b"\0\0\0\1\0"],
    ],
)
def test_a_block_for_a_consumer_is_checked(parts):
    core = ready()
    feed, begin = core.consume("t", 30.0, 10)
    core.receive([protocol.CONSUMING, begin.tag, b"{}"])
    with pytest.raises(SyntaxFault):
        core.receive([protocol.JOBS, feed.tag, *parts])
    assert not feed.queue


def test_an_answer_without_a_waiter_is_passed_over():
    core = ready()
    for message in ([b"NEW", b"x"], [protocol.PUBLISHED, b"x", u64(1)], [protocol.ERROR, b"x", b"topic", b"?"]):
        core.receive(message)
    request = core.request(protocol.TOPICS)
    core.receive([protocol.PUBLISHED, request.tag, u64(1)])  # no answer to that
    assert not request.done


def test_an_error_ends_a_subscription_and_names_what_is_kept():
    core = ready()
    feed, begin = core.subscribe("t", 5, None, 100)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 5}'])
    core.receive([protocol.ERROR, feed.tag, b"overrun", b"gone", u64(9), u64(0)])
    assert feed.ended
    assert isinstance(feed.error, Overrun)
    assert feed.error.first == 9


def test_an_abandoned_subscription_is_cancelled():
    core = ready()
    feed, begin = core.subscribe("t", "latest", None, 100)
    core.give_up(begin)
    assert [message[:2] for message in core.out][-1] == [protocol.CANCEL, feed.tag]
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])
    core.receive([protocol.CANCELLED, feed.tag])
    assert feed.ended


def test_a_delete_that_is_repeated_is_done_where_nothing_is_left():
    core = ready()
    request = core.request(protocol.DELETE, b"t")
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b"{}"])
    core.receive([protocol.ERROR, request.tag, b"topic", b"there is none"])
    assert request.result() == []
    other = core.request(protocol.DELETE, b"t")
    core.receive([protocol.ERROR, other.tag, b"topic", b"there is none"])
    with pytest.raises(TopicError):
        other.result()


def test_closing_ends_what_waits():
    core = ready()
    request, (feed, _) = core.request(protocol.TOPICS), core.subscribe("t", "latest", None, 100)
    core.close()
    with pytest.raises(ClosedError):
        request.result()
    assert feed.ended


def test_credit_never_grows_above_what_was_given():
    core = ready()
    feed, begin = core.subscribe("t", "earliest", None, 100)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    core.out.clear()
    credit, first = 100, 1
    for _ in range(50):
        records = blocks.encode([b"x" * 70])
        credit -= len(records)
        core.receive([protocol.BLOCK, feed.tag, blocks.header(first, 1, 0, len(records)), records])
        first += 1
        assert core.take_block(feed) is not None
        credit += sum(protocol.number(message[2]) for message in core.out)
        core.out.clear()
        assert 0 < credit <= 100


def test_more_credit_than_the_broker_grants_is_given_back_like_what_it_grants(monkeypatch):
    monkeypatch.setattr(protocol, "MAX_CREDIT_BYTES", 400)
    core = ready()
    feed, begin = core.subscribe("t", "earliest", None, 100 * 400)
    assert json.loads(core.out.pop()[3])["credit"] == 400
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    credit = 400
    for first in range(1, 50):
        assert credit > 0, "the broker waits for credit, and the client for messages"
        header, records = block(first, [b"x" * 70])
        credit -= len(records)
        core.receive([protocol.BLOCK, feed.tag, header, records])
        assert core.take_block(feed) is not None
        credit = min(credit + sum(protocol.number(message[2]) for message in core.out), 400)
        core.out.clear()


def test_a_share_asks_for_no_more_than_the_broker_grants():
    core = ready()
    core.consume("t", 30.0, 1 << 40)
    assert json.loads(core.out.pop()[3])["credit"] == protocol.MAX_PREFETCH


def test_bodies_are_packed_by_size_and_large_ones_stand_alone():
    bodies = [b"s" * 1000] * 300 + [b"l" * 100_000] * 3 + [b""] * 1000
    packed = list(pack(bodies, 1 << 20))
    assert sum(count for _, count in packed) == len(bodies)
    assert max(count for _, count in packed) <= packing.BLOCK_RECORDS
    assert all(count == 1 or len(records) < 3 * packing.BLOCK_BYTES for records, count in packed)
    got = []
    for records, count in packed:
        got += blocks.decode(blocks.header(1, count, 0, len(records)), records, "t")
    assert [message.body for message in got] == bodies
    assert sum(b"l" in message.body for message in got) == 3
    with pytest.raises(TooLarge):
        list(pack([b"12345"], 4))
    with pytest.raises(TypeError):
        list(pack(["text"], 4))


def block(first: int, bodies: list[bytes]) -> tuple[bytes, bytes]:
    records = blocks.encode(bodies)
    return blocks.header(first, len(bodies), 0, len(records)), records


def welcome_again(core: ClientProtocol) -> None:
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "b"}'])


def test_a_named_subscription_passes_over_what_it_has_had():
    core = ready()
    feed, begin = core.subscribe("t", "earliest", "n", 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    core.receive([protocol.BLOCK, feed.tag, *block(1, [b"1", b"2", b"3"])])
    assert [message.id for message in messages_of(feed, core.take_block(feed))] == [1, 2, 3]
    core.move(feed, 2)
    welcome_again(core)
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])  # the move was lost
    assert core.out[-1] == [protocol.POSITION, feed.tag, u64(2)]
    core.receive([protocol.BLOCK, feed.tag, *block(1, [b"1", b"2"])])
    assert core.take_block(feed) is None
    core.receive([protocol.BLOCK, feed.tag, *block(3, [b"3", b"4"])])
    assert [message.id for message in messages_of(feed, core.take_block(feed))] == [4]


def test_a_subscription_that_goes_on_counts_what_waits_against_its_credit():
    core = ready()
    feed, begin = core.subscribe("t", "earliest", None, 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    header, records = block(1, [b"x" * 100])
    core.receive([protocol.BLOCK, feed.tag, header, records])
    welcome_again(core)
    assert json.loads(core.out[-1][3]) == {"replay": 1, "name": None, "credit": 1000 - len(records)}
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 1}'])
    assert core.take_block(feed) is not None


def test_a_share_forgets_what_waits_and_acknowledges_again_what_it_had():
    core = ready()
    feed, begin = core.consume("t", 30.0, 10)
    core.receive([protocol.CONSUMING, begin.tag, b"{}"])
    core.receive([protocol.JOBS, feed.tag, *block(1, [b"1"])])
    (job,) = deliveries_of(feed, core.take_block(feed), None, core.session)
    core.ack_or_nack(feed, job.session, [job.id], True)
    core.receive([protocol.JOBS, feed.tag, *block(2, [b"2"])])
    welcome_again(core)
    assert not feed.queue
    core.receive([protocol.CONSUMING, feed.tag, b"{}"])
    core.ack_or_nack(feed, job.session, [7], False)  # of another connection: the broker has it already
    assert core.out[-1][0] == protocol.CONSUME
    assert feed.is_acked(1)
    assert not feed.is_acked(2)


def share_with_jobs(credit, count):
    core = ready()
    feed, begin = core.consume("t", 30.0, credit)
    core.receive([protocol.CONSUMING, begin.tag, b'{"topic_id": 3}'])
    core.receive([protocol.JOBS, feed.tag, *block(1, [b"x"] * count)])
    core.take_block(feed)
    core.out.clear()
    return core, feed


def test_acknowledgements_are_sent_together_once_there_are_enough_of_them():
    core, feed = share_with_jobs(credit=16, count=8)
    assert [core.add_ack(feed, core.session, number) for number in (1, 2, 4, 5)] == [False, False, False, True]
    assert core.unsent_consumers
    assert core.dirty
    assert not core.out
    core.queue_acks()
    assert not core.unsent_consumers
    (output,) = core.out
    assert output == [protocol.ACK, feed.tag, protocol.pack_ranges([(1, 2), (4, 5)])]


@pytest.mark.parametrize("what", ["flush", "cancel", "nack"])
def test_acknowledgements_are_sent_before_what_follows(what):
    core, feed = share_with_jobs(credit=16, count=8)
    core.add_ack(feed, core.session, 3)
    if what == "flush":
        core.flush()
    elif what == "cancel":
        core.cancel(feed)
    else:
        core.ack_or_nack(feed, core.session, [4], False)
    assert [message[0] for message in core.out] == [protocol.ACK, what.upper().encode()]


def test_unsent_acknowledgements_are_forgotten_with_their_connection():
    core, feed = share_with_jobs(credit=16, count=8)
    core.add_ack(feed, core.session, 3)
    welcome_again(core)
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3}'])
    core.out.clear()
    core.queue_acks()
    assert not core.unsent_consumers
    assert not core.out
    assert feed.is_acked(3)  # it is acknowledged when it comes again
    assert not core.add_ack(feed, core.session - 1, 4)
    assert not core.unsent_consumers


def test_acks_that_may_not_be_durable_are_repeated_before_a_consumer_resumes():
    core, feed = share_with_jobs(credit=16, count=8)
    core.ack_or_nack(feed, core.session, [1, 2], True)
    flush = core.flush()
    core.add_ack(feed, core.session, 4)
    welcome_again(core)
    assert [message[0] for message in core.out] == [protocol.REACK, protocol.CONSUME, protocol.FLUSH]
    claim = core.out[0]
    assert claim[2:] == [b"t", u64(3), protocol.pack_ranges([(1, 2), (4, 4)])]
    core.receive([protocol.FLUSHED, flush.tag])
    assert flush.session != core.session
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3}'])
    assert core.resuming
    welcome_again(core)
    assert core.out[0] == claim  # there was no answer
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3}'])
    core.receive([protocol.REACKED, claim[1]])
    assert not core.resuming
    assert core.dirty  # the one that came behind the flush
    core.flush()
    assert not core.dirty


def test_late_acks_are_repeated_at_once():
    core, feed = share_with_jobs(credit=16, count=8)
    before = core.session
    welcome_again(core)
    core.out.clear()
    core.ack_or_nack(feed, before, [1, 2], True)
    core.add_ack(feed, before, 3)
    assert [message[:1] + message[2:] for message in core.out] == [
        [protocol.REACK, b"t", u64(3), protocol.pack_ranges([pair])] for pair in [(1, 2), (3, 3)]
    ]
    assert core.dirty


def test_a_flush_covers_no_more_than_was_sent():
    core = ready()
    feed, begin = core.subscribe("t", "earliest", "n", 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    feed.last = 5
    core.move(feed, 5)
    welcome_again(core)
    flush = core.flush()
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])
    assert core.out[-1][0] == protocol.POSITION  # behind the flush
    assert flush.session != core.session
    assert core.dirty
    assert core.flush().session == core.session


def test_a_flush_covers_many_acknowledgements_without_a_call(monkeypatch):
    monkeypatch.setattr(module, "_MAX_UNCONFIRMED_ACKS", 3)
    core, feed = share_with_jobs(credit=16, count=8)
    core.ack_or_nack(feed, core.session, [1, 2], True)
    assert [message[0] for message in core.out] == [protocol.ACK]
    core.ack_or_nack(feed, core.session, [3], True)
    assert [message[0] for message in core.out] == [protocol.ACK, protocol.ACK, protocol.FLUSH]
    core.receive([protocol.FLUSHED, core.out[-1][1]])
    welcome_again(core)
    assert [message[0] for message in core.out] == [protocol.CONSUME]


def test_acks_of_a_consumer_that_has_ended_are_repeated():
    core, feed = share_with_jobs(credit=16, count=8)
    core.ack_or_nack(feed, core.session, [1], True)
    core.lost()
    assert core.cancel(feed) is None
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "b"}'])
    assert [message[0] for message in core.out] == [protocol.REACK]


def member_with_jobs():
    """Returns a client whose consumer of a group has acknowledged the first two of three messages."""
    core = ready()
    feed, begin = core.consume("t", 30.0, 16, "g", 7)
    assert json.loads(core.out[-1][3]) == {"ack_timeout": 30.0, "credit": 16, "group": "g", "replay": 7}
    core.receive([protocol.CONSUMING, begin.tag, b'{"topic_id": 3, "generation": 5}'])
    core.receive([protocol.JOBS, feed.tag, *block(8, [b"x"] * 3)])
    core.take_block(feed)
    core.ack_or_nack(feed, core.session, [8, 9], True)
    return core, feed


def test_acks_of_a_group_are_repeated_with_its_name():
    core, feed = member_with_jobs()
    welcome_again(core)
    reack, consume = core.out
    assert (reack[0], reack[2:]) == (
        protocol.REACK_GROUP,
        [b"t", u64(3), b"g", u64(5), protocol.pack_ranges([(8, 9)])],
    )
    assert (consume[0], json.loads(consume[3])["replay"]) == (protocol.CONSUME, "earliest")
    core.receive([protocol.ERROR, reack[1], b"topic", b"topic 't' has no consumer group 'g'"])
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3, "generation": 6}'])
    assert not core.resuming
    assert not feed.ended


def test_a_move_of_the_group_ends_the_acks_before_it():
    core, feed = member_with_jobs()
    before = core.session
    welcome_again(core)
    core.out.clear()
    core.ack_or_nack(feed, before, [10], True)  # the client does not know of the move yet
    assert core.out.pop()[5] == u64(5)
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3, "generation": 6}'])
    core.ack_or_nack(feed, before, [10], True)
    core.add_ack(feed, before, 10)
    core.ack_or_nack(feed, before, [10], False)
    core.queue_acks()
    assert not core.out
    assert not any(feed.is_acked(id) for id in (8, 9, 10)), "they are delivered to the program again"
    core.ack_or_nack(feed, core.session, [8], True)
    assert core.out.pop() == [protocol.ACK, feed.tag, protocol.pack_ranges([(8, 8)])]
    welcome_again(core)
    (reack,) = (message for message in core.out if message[2:5] == [b"t", u64(3), b"g"] and message[5] == u64(6))
    assert reack[6] == protocol.pack_ranges([(8, 8)])


def test_the_acks_of_a_group_that_was_not_moved_stay():
    core, feed = member_with_jobs()
    before = core.session
    welcome_again(core)
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 3, "generation": 5}'])
    core.out.clear()
    assert feed.is_acked(8)
    core.ack_or_nack(feed, before, [10], True)
    reack = core.out.pop()
    assert (reack[0], reack[6]) == (protocol.REACK_GROUP, protocol.pack_ranges([(10, 10)]))


def test_acks_of_a_group_are_not_those_of_another_store():
    core, feed = member_with_jobs()
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "another"}'])
    (consume,) = core.out
    assert (consume[0], json.loads(consume[3])["replay"]) == (protocol.CONSUME, "earliest")
    core.receive([protocol.CONSUMING, feed.tag, b'{"topic_id": 8}'])
    core.add_ack(feed, core.session - 1, 10)  # of a message of the old store
    core.queue_acks()
    assert len(core.out) == 1


def test_another_store_is_read_from_its_beginning():
    core = ready()
    feed, begin = core.subscribe("t", "latest", "n", 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 40, "persistence": "strong"}'])
    core.move(feed, 40)
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "another"}'])
    assert json.loads(core.out.pop()[3])["replay"] == "earliest"
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])
    core.move(feed, 39)  # of a message of the old store
    assert not core.out
    core.receive([protocol.BLOCK, feed.tag, *block(1, [b"1"])])
    assert core.take_block(feed) is not None


def test_messages_of_a_store_that_is_gone_move_no_position_of_another():
    core = ready()
    feed, begin = core.subscribe("t", "earliest", "n", 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 0}'])
    core.receive([protocol.BLOCK, feed.tag, *block(1, [b"old 1", b"old 2"])])
    old = messages_of(feed, core.take_block(feed))
    core.receive([protocol.BLOCK, feed.tag, *block(3, [b"old 3"])])
    for store in (b"another", b"a third"):
        core.lost()
        core.connected()
        core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "%s"}' % store])
        core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])
        core.receive([protocol.BLOCK, feed.tag, *block(1, [b"new %d" % number for number in range(5)])])
        core.out.clear()
        while len(feed.queue) > 1:
            old += messages_of(feed, core.take_block(feed))
        core.out.clear()
        for message in old:
            core.move(feed, message)
        assert not core.out
        old = messages_of(feed, core.take_block(feed))
        core.move(feed, old[1])
        assert core.out[-1] == [protocol.POSITION, feed.tag, u64(2)]


@pytest.mark.parametrize(("persistence", "ended"), [("strong", True), ("transient", False)])
def test_what_was_dropped_meanwhile_ends_a_subscription_unless_it_is_transient(persistence, ended):
    core = ready()
    feed, begin = core.subscribe("t", "earliest", None, 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 5, "persistence": "%s"}' % persistence.encode()])
    welcome_again(core)
    core.receive([protocol.ERROR, feed.tag, b"overrun", b"gone", u64(100), u64(0)])
    assert feed.ended is ended
    if ended:
        assert isinstance(feed.error, Overrun)
    else:
        assert json.loads(core.out[-1][3])["replay"] == 99


def test_an_abandoned_flush_is_due_again():
    core, feed = share_with_jobs(credit=16, count=8)
    core.ack_or_nack(feed, core.session, [1], True)
    flush = core.flush()
    assert not core.dirty
    core.give_up(flush)
    assert core.dirty
    assert flush.done  # for another call that waits for it
    again = core.flush()
    core.receive([protocol.FLUSHED, again.tag])
    core.give_up(again)
    assert not core.dirty


def test_a_flush_whose_making_an_exception_leaves_is_due_again():
    """A signal handler may raise where each function begins, for instance."""

    def trace(frame: Any, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(("client_protocol.py", "stream_state.py")):
            return None
        if event in ("call", "line") and (event == "call" or frame.f_code.co_name in traced) and next(steps) == place:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    traced = ("flush", "_flush", "_enter", "_send", "_queue_message")
    before = sys.gettrace()
    for place in itertools.count():
        core, feed = share_with_jobs(credit=16, count=8)
        core.ack_or_nack(feed, core.session, [1, 2], True)
        steps, mark = itertools.count(), core.mark()
        sys.settrace(trace)
        try:
            core.flush()
            break
        except KeyboardInterrupt:
            core.give_up_since(mark)
            assert core.dirty, place
            assert core.flushing is None or core.flushing.done, place
        finally:
            sys.settrace(before)
        again = core.flush()
        assert [numbers for *_, numbers in again.acked] == [[1, 2]], place
        core.receive([protocol.FLUSHED, again.tag])
        assert not core.dirty
        assert not core._requests
    assert place > 20


def begins(core: ClientProtocol, kind: str) -> tuple[SubscriptionState | ConsumerState, bytes]:
    """A feed of either kind, which the broker has begun; and the word for that."""
    if kind == "share":
        feed, word = core.consume("t", 30.0, 10)[0], protocol.CONSUMING
    else:
        feed, word = core.subscribe("t", "earliest", "n" if kind == "named" else None, 1000)[0], protocol.SUBSCRIBED
    core.receive([word, feed.tag, b'{"topic_id": 7, "position": 0}'])
    return feed, word


@pytest.mark.parametrize("kind", ["share", "subscription", "named"])
def test_a_topic_that_was_made_again_meanwhile_ends_what_reads_it(kind):
    core = ready()
    feed, word = begins(core, kind)
    welcome_again(core)
    core.receive([word, feed.tag, b'{"topic_id": 7, "position": 0}'])
    assert not feed.ended
    welcome_again(core)
    core.receive([word, feed.tag, b'{"topic_id": 8, "position": 0}'])
    assert isinstance(feed.error, TopicError)
    assert core.out[-1][:2] == [protocol.CANCEL, feed.tag]
    core.receive([protocol.JOBS if kind == "share" else protocol.BLOCK, feed.tag, *block(1, [b"x"]), b""])
    assert core.take_block(feed) is None


@pytest.mark.parametrize("kind", ["share", "subscription", "named"])
def test_another_store_may_give_the_topic_any_id(kind):
    core = ready()
    feed, word = begins(core, kind)
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "another"}'])
    core.receive([word, feed.tag, b'{"topic_id": 8, "position": 0}'])
    assert not feed.ended
    welcome_again(core)


def test_what_was_acknowledged_of_one_store_is_not_done_in_another():
    core, feed = share_with_jobs(credit=10, count=3)
    core.ack_or_nack(feed, core.session, [1], True)
    core.lost()
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b'{"broker": "another"}'])
    core.receive([protocol.CONSUMING, feed.tag, b"{}"])
    core.ack_or_nack(feed, core.session - 1, [2], True)  # sent late
    core.add_ack(feed, core.session - 1, 3)
    assert not any(feed.is_acked(number) for number in (1, 2, 3))


def test_a_named_subscription_skips_nothing_where_its_name_is_forgotten():
    core = ready()
    feed, begin = core.subscribe("t", "latest", "n", 1000)
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 5}'])
    welcome_again(core)
    assert json.loads(core.out[-1][3])["replay"] == "earliest"
    core.receive([protocol.SUBSCRIBED, feed.tag, b'{"position": 0}'])
    assert core.out[-1] == [protocol.POSITION, feed.tag, u64(5)]


def test_what_is_asked_before_there_is_a_connection_is_no_repetition():
    core = ClientProtocol(NAME)
    request = core.request(protocol.DELETE, b"t")
    core.connected()
    core.receive([protocol.WELCOME, core.out.popleft()[1], b"{}"])
    core.receive([protocol.ERROR, request.tag, b"topic", b"there is none"])
    with pytest.raises(TopicError):
        request.result()


def refuse(core: ClientProtocol, *requests: PendingRequest) -> None:
    """The broker answers some requests with `busy`."""
    for request in requests:
        core.receive([protocol.ERROR, request.tag, b"busy", b"too much"])


def output(core: ClientProtocol) -> list[bytes]:
    """The tags of the client's messages."""
    tags = [message[1] for message in core.out]
    core.out.clear()
    return tags


def test_what_a_busy_broker_refuses_is_asked_for_again_in_its_order():
    core = ready()
    one, two, three = (core.append("t", b"%d" % n) for n in range(3))
    output(core)
    core.receive([protocol.PUBLISHED, one.tag, u64(1)])
    refuse(core, three, two)
    assert core.is_busy
    assert not two.done
    four = core.append("t", b"3")
    read = core.request(protocol.TOPICS)
    assert output(core) == [read.tag]  # what is published comes behind what was refused
    core.repeat()
    assert [message[5:] for message in core.out] == [[u64(n), u64(2)] for n in (2, 3, 4)]
    assert output(core) == [two.tag, three.tag, four.tag]
    assert not core.is_busy
    core.receive([protocol.PUBLISHED, two.tag, u64(2)])
    assert read_first(two) == 2


def test_what_is_given_up_is_not_asked_for_again():
    core = ready()
    one, two = core.append("t", b"1"), core.request(protocol.TOPICS)
    refuse(core, one, two)
    output(core)
    core.give_up(one)
    core.give_up(two)
    assert not core.is_busy
    assert core.in_flight_bytes == 0
    core.repeat()
    assert output(core) == []


def test_what_may_wait_for_room_is_withdrawn_once_it_is_given_up():
    core = ready()
    one, two = core.append("t", b"1"), core.request(protocol.TOPICS)
    output(core)
    for request in (one, two, one):
        core.give_up(request)
    assert list(core.out) == [[protocol.CANCEL, one.tag]]


def test_what_a_busy_broker_refused_is_asked_for_once_in_the_next_connection():
    core = ready()
    one = core.append("t", b"1")
    refuse(core, one)
    welcome_again(core)
    assert not core.is_busy
    assert output(core) == [one.tag]
    core.repeat()
    assert output(core) == []


def test_a_busy_broker_is_left_alone_for_longer_each_time_until_it_answers():
    core = ready()
    pauses = [core.busy_backoff.next() for _ in range(20)]
    assert pauses[0] < 0.03
    assert pauses[5] > pauses[0]
    assert 0.7 < pauses[-1] <= 1.0
    request = core.request(protocol.TOPICS)
    core.receive([protocol.TOPICS, request.tag, b"[]"])
    assert core.busy_backoff.next() < 0.03


def test_untaken_jobs_are_given_back():
    core, feed = share_with_jobs(credit=16, count=3)  # which were taken
    core.receive([protocol.JOBS, feed.tag, *block(4, [b"x"] * 2)])
    core.cancel(feed)
    assert [message[0] for message in core.out] == [protocol.RETURN, protocol.CANCEL]
    assert core.out[0] == [protocol.RETURN, feed.tag, protocol.pack_ranges([(4, 5)])]


def test_a_time_is_sent_until_the_subscription_has_begun():
    core = ready()
    core.subscribe("t", StartTime(1_500_000), None, 1000)
    assert json.loads(core.out[-1][3])["replay"] == {"timestamp": 1_500_000}
    welcome_again(core)
    assert json.loads(core.out[-1][3])["replay"] == {"timestamp": 1_500_000}
    core.receive([protocol.SUBSCRIBED, core.out[-1][1], b'{"position": 5}'])
    welcome_again(core)
    assert json.loads(core.out[-1][3])["replay"] == 5


@pytest.mark.parametrize(("replay", "reset"), [(None, False), ("latest", True), ("earliest", True), (3, True)])
def test_only_a_given_replay_restarts_a_durable_subscription(replay, reset):
    core = ready()
    _, begin = core.subscribe("t", replay, "n", 1000)
    options = json.loads(core.out[-1][3])
    assert options.get("reset", False) is reset
    assert options["replay"] == (replay or "latest")
    core.receive([protocol.SUBSCRIBED, begin.tag, b'{"position": 5}'])
    welcome_again(core)
    assert "reset" not in json.loads(core.out[-1][3])


def test_a_resumed_subscription_does_not_take_over_again():
    core = ready()
    core.subscribe("t", None, "n", 1000, take_over=True)
    core.lost()
    welcome_again(core)
    request = core.out[-1]  # the broker has not answered the first one
    assert (request[0], json.loads(request[3])["take_over"]) == (protocol.SUBSCRIBE, True)
    core.receive([protocol.SUBSCRIBED, request[1], b'{"topic_id": 1, "position": 0}'])
    core.lost()
    welcome_again(core)
    assert core.out[-1][0] == protocol.SUBSCRIBE
    assert "take_over" not in json.loads(core.out[-1][3])


def test_a_repeated_append_has_its_message_id():
    core = ready()
    core.append("t", blocks.encode([b"x"]), b"order 17")
    sent = core.out.popleft()
    assert sent[4:] == [NAME, u64(1), u64(1), b"order 17"]
    core.lost()
    welcome_again(core)
    assert core.out[-1] == sent

"""The decisions of one node of a cluster, given events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omq.pzq.cluster.acked_keys import AckCheckpoint, parse_checkpoints
from omq.pzq.cluster.actions import (
    Answer,
    Broadcast,
    ForgetRemoteAck,
    Persist,
    RecordAcks,
    RecordRemoteAck,
    Replica,
    Restarted,
)
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.leadership import Leadership, StaleDirectory
from omq.pzq.cluster.node import SCAN_LIMIT, Node
from omq.pzq.cluster.replica_batch import consecutive_keys
from omq.pzq.wire import key_format, stem_of

TIMEOUT_S = 10.0
ACK_REPORTS = ("ASK", "TOLD", "GONE")
STORES = {name: f"{name}0" * 16 for name in "abc"}


def keys_of_store(name: str) -> Callable[[int], str]:
    """Keys of messages that were stored in one store."""
    return lambda number: f"17|{name:0<8}-0000-8000-8000-{number:012x}"


A, B, C, OLD = map(keys_of_store, ("a", "b", "c", "0"))


def node(*peers: str, replicas: int = 1) -> Node:
    """Node `a`, which has its disk."""
    leadership = Leadership(
        "a", peers, timeout=TIMEOUT_S, incarnations=[1], now=0.0, store="a0", leaders={}, fenced=len(peers) > 1
    )
    return Node(leadership, replicas=replicas, replication_timeout=0.1, is_mine=lambda key: key[:-12] == A(0)[:-12])


def state(number: int, **more: Any) -> dict[str, Any]:
    """Returns a peer's state message."""
    usual = {"incarnations": [1], "number": number, "store": "p0", "records": {}, "heard": {}, "holds": {}, "known": {}}
    return {**usual, **more}


def done(one: Node, *kinds: type | str) -> list[Any]:
    """Returns the actions of these kinds, and messages."""
    actions, one.actions = one.actions, []
    return [action for action in actions if {type(action), getattr(action, "kind", None)} & {*kinds}]


def send(one: Node, kind: str, sender: str, origin: str, lists: dict[str, Any], now: float) -> None:
    """Has a peer report something about messages."""
    incarnation = one.leadership.peers[sender].incarnation
    one.receive(kind, {"from": sender, "incarnation": incarnation, "to": one.name, "origin": origin, **lists}, now)


def receive_state(one: Node, peer: str, reports: dict[str, Any], now: float) -> bool:
    """Has a peer report its state; returns whether it is another incarnation than before."""
    before = len(one.actions)
    one.receive("KALV", {"from": peer, **reports}, now)
    return Restarted(peer) in one.actions[before:]


def receive_from(one: Node, *peers: str, now: float = 1.0, number: int = 1, **more: Any) -> None:
    for peer in peers:
        receive_state(one, peer, state(number, **more), now)


def test_a_message_is_answered_once_enough_replicas_have_it() -> None:
    one = node("b", "c", replicas=2)
    receive_from(one, "b", "c")
    done(one)
    one.produced([A(1)], 1, 1.0)
    assert done(one, Replica, Answer) == [Replica("b", "a", [A(1)]), Replica("c", "a", [A(1)])]
    one.replicated("b", [A(1)], 1.0)
    one.replicated("b", [A(1)], 1.0)
    assert not done(one, Answer)
    one.replicated("c", [A(1)], 1.05)
    assert done(one, Answer) == [Answer([A(1)], True)]
    one.expire(2.0)
    assert not done(one, Answer)


def test_an_answer_does_not_wait_for_ever_and_the_message_stays() -> None:
    one = node("b", "c")
    one.produced([A(1)], 1, 1.0)
    one.produced_again(A(1), 1.09)  # does not make it wait again
    assert done(one, Answer, Replica) == []
    one.expire(1.2)
    assert done(one, Answer) == [Answer([A(1)], False)]
    receive_from(one, "c", now=2.0)
    one.tick(2.0)
    (asked,) = done(one, *ACK_REPORTS)
    assert (asked.kind, asked.body["to"], asked.body["keys"]) == ("ASK", "c", [A(1)])
    send(one, "TOLD", "c", "a", {"want": [A(1)]}, 2.0)
    assert done(one, Replica) == [Replica("c", "a", [A(1)])]
    one.replicated("c", [A(1)], 2.0)
    one.produced_again(A(1), 2.0)
    assert done(one, Answer) == [Answer([A(1)], True)]


def test_one_of_five_in_sight_is_no_majority() -> None:
    one = node("b", "c", "d", "e")
    receive_from(one, "b")
    done(one)
    one.produced([A(1)], 1, 1.0)
    one.replicated("b", [A(1)], 1.0)
    assert not done(one, Answer)
    receive_from(one, "c", now=1.01)
    one.produced_again(A(1), 1.02)
    assert done(one, Answer) == [Answer([A(1)], True)]


def test_a_consumed_message_needs_no_replica() -> None:
    one = node("b", "c")
    receive_from(one, "b")
    done(one)
    one.produced([A(1)], 1, 1.0)
    one.consumed("a", [A(1)])
    assert done(one, Answer, "REMOVES") == [Answer([A(1)], True), Broadcast("REMOVES", {"from": "a", "keys": [A(1)]})]
    one.tick(3.0)
    assert not done(one, *ACK_REPORTS, Replica)


def test_what_was_acknowledged_elsewhere_is_remembered_until_all_know() -> None:
    one = node("b", "c")
    receive_from(one, "b", "c")
    one.stored("b", [B(1)], 1, 1.0)
    done(one)
    one.consumed("b", [B(1)])
    assert done(one, RecordRemoteAck, "REMOVES") == [
        RecordRemoteAck("b", B(1)),
        Broadcast("REMOVES", {"from": "a", "keys": [B(1)]}),
    ]
    assert not one.wanted("b", [B(1)])
    one.tick(2.0)
    reports = done(one, *ACK_REPORTS)
    assert [(report.kind, report.body["to"]) for report in reports] == [("GONE", "b"), ("GONE", "c")]
    for peer in "bc":
        assert not done(one, ForgetRemoteAck)
        send(one, "TOLD", peer, "b", {"gone": [B(1)]}, 2.0)
    assert done(one, ForgetRemoteAck) == [ForgetRemoteAck(B(1))]


def test_a_replica_that_its_owner_has_acknowledged_goes() -> None:
    one = node("b", "c")
    one.stored("b", [B(1)], 1, 1.0)
    receive_from(one, "b")
    one.tick(2.0)
    (asked,) = done(one, *ACK_REPORTS)
    assert (asked.kind, asked.body["to"], asked.body["origin"]) == ("ASK", "b", "b")
    send(one, "TOLD", "b", "b", {"gone": [B(1)]}, 2.0)
    assert done(one, RecordAcks) == [RecordAcks("b", {B(1): 1})]
    assert one.replicas() == 0


def test_an_owner_reports_what_it_has_what_it_wants_and_what_is_acknowledged() -> None:
    one = node("b", "c")
    one.load([([A(1)], 1)], {}, [])
    receive_from(one, "b")
    done(one)
    send(one, "ASK", "b", "a", {"keys": [A(1), A(2), OLD(3)]}, 1.0)
    (reports,) = done(one, *ACK_REPORTS)
    assert (reports.body["have"], reports.body["gone"], reports.body["want"]) == ([A(1)], [A(2)], [OLD(3)])


def test_a_lease_ends_before_others_may_take_over() -> None:
    one = node("b", "c")
    receive_from(one, "b", "c", now=0.0)
    one.tick(0.0)
    (sent,) = done(one, "KALV")
    assert not one.leadership.delivers("a", 0.0)
    receive_from(one, "b", now=5.0, number=2, heard={"a": [1, sent.body["number"]]})
    assert one.leadership.delivers("a", 7.9)
    assert not one.leadership.delivers("a", 8.1)
    receive_from(one, "c", now=6.0, number=2, heard={"a": [0, sent.body["number"]]})  # of a run before
    assert not one.leadership.delivers("a", 8.1)


def test_a_candidacy_of_a_peer_ends_a_lease_only_by_a_handover() -> None:
    one = node("b", "c")
    receive_from(one, "b", "c", now=20.0, holds={"b": 1})
    one.stored("b", [B(1)], 1, 1.0)
    one.leadership.leaders["b"] = (1, "a")
    one._add_remote_ack("b", B(0), ["b"])
    receive_from(one, "b", now=21.0, number=2, records={"b": [2, "b"]})
    assert one.leadership.leader_epoch("b") == (1, "a")
    assert not one.leadership.delivers("b", 21.0)
    send(one, "TOLD", "b", "b", {"gone": [B(0)]}, 21.0)
    assert one.leadership.leader_epoch("b") == (2, "b")


def test_what_was_acknowledged_for_an_owner_with_another_name_by_now_is_no_matter() -> None:
    one = node("b", "c")
    one.load([], {}, [("before", OLD(1))])
    receive_from(one, "b", "c")
    one.tick(2.0)
    assert {report.body["origin"] for report in done(one, "GONE")} == {"before"}
    assert not one.wanted("b", [OLD(1)])


def leading_node(*peers: str, now: float = 30.0) -> Node:
    """Node `a`, which has the queue of `c`, dead by now, and replicas of it; *peers* support it."""
    one = node("b", "c", "d", "e")
    one.load([], {"c": [([C(1), C(2)], 1)]}, [])
    one.leadership.leaders["c"] = (1, "a")
    sent = 0
    for number in (2, 3):
        for peer in peers:
            receive_from(
                one, peer, now=now, number=number, records={"c": [1, "a"]}, heard={"a": [1, sent]}, holds={"c": 0}
            )
        one.tick(now)
        sent = [
            report.body["number"] for report in one.actions if isinstance(report, Broadcast) and report.kind == "KALV"
        ][-1]
    for peer in peers:
        receive_from(one, peer, now=now, number=4, records={"c": [1, "a"]}, heard={"a": [1, sent]}, holds={"c": 0})
    assert one.leadership.delivers("c", now)
    return one


def test_the_living_are_asked_what_they_know_before_a_dead_owners_messages_are_delivered() -> None:
    one = leading_node("b", "d")
    asked = {report.body["to"]: report.body["keys"] for report in done(one, *ACK_REPORTS)}
    assert asked == {"b": [C(1), C(2)], "d": [C(1), C(2)]}
    assert not one.delivers("c", 30.0)
    send(one, "TOLD", "b", "c", {"have": [C(1)], "want": [C(2)]}, 31.0)
    assert not done(one, Replica)  # they are kept where the owner sent them
    send(one, "TOLD", "d", "c", {"have": [C(1)]}, 31.0)
    assert not one.delivers("c", 31.0)
    send(one, "TOLD", "d", "c", {"gone": [C(2)]}, 31.0)
    assert done(one, RecordAcks) == [RecordAcks("c", {C(2): 2})]
    assert one.delivers("c", 31.0)


def test_a_replica_that_comes_meanwhile_is_asked_about_as_well() -> None:
    one = leading_node("b", "d")
    for peer in "b", "d":
        send(one, "TOLD", peer, "c", {"have": [C(1), C(2)]}, 31.0)
    assert one.delivers("c", 31.0)
    one.stored("c", [C(3)], 3, 31.0)
    assert not one.delivers("c", 31.0)
    one.consumed("c", [C(3)])
    assert one.delivers("c", 31.0)


def test_a_node_without_state_of_a_dead_owners_messages_is_not_waited_for() -> None:
    one = leading_node("b", "d")
    send(one, "TOLD", "b", "c", {"have": [C(1), C(2)]}, 31.0)
    done(one)
    for now in 36.0, 41.0:
        assert not one.delivers("c", now)
        for peer in "b", "d":
            receive_from(one, peer, now=now, number=int(now), records={"c": [1, "a"]}, holds={"c": 0})
        one.tick(now)
        assert {report.body["to"] for report in done(one, *ACK_REPORTS)} == {"d"}  # which may know after all
    assert one._takeover.is_complete("c", 41.0)


def test_a_restarted_peer_is_asked_again() -> None:
    one = leading_node("b", "d")
    for peer in "b", "d":
        send(one, "TOLD", peer, "c", {"have": [C(1), C(2)]}, 31.0)
    done(one)
    receive_from(one, "b", now=32.0, number=1, incarnations=[1, 2])
    one.tick(32.0)
    assert [report.body["keys"] for report in done(one, *ACK_REPORTS)] == [[C(1), C(2)]]
    assert not one._takeover.is_complete("c", 32.0)


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ({}, "not a valid state of a node: 'incarnations'"),
        ({"incarnations": "x"}, "incarnations='x': must be a whole number"),
        (state(1, incarnations=[]), "not a valid state of a node"),
        (state(1, known={"a": 7}), "not a valid state of a node"),
        (state(1, known={"a": ["p0", -1]}), "known=-1: must be a whole number"),
        (state(1, records={"a": 1}), "not a valid state of a node"),
        (state(1, records={"a": ["x", "b"]}), "records='x': must be a whole number"),
        (state(1, heard=[]), "not a valid state of a node"),
        (state(1, holds={"a": 0.5}), "holds=0.5: must be a whole number"),
        (state(1 << 63), f"number={1 << 63}: must be a whole number"),
    ],
)
def test_an_invalid_state_is_refused(reports: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        receive_state(node("b"), "b", reports, 1.0)


def stored_keys(owner: str, first: int, count: int) -> Keys:
    """Keys of messages of an owner's store, as nodes make them."""
    return consecutive_keys(key_format(STORES[owner], 7), 100, first, count)


def stated(owner: str, *ranges: list[int], at: int = 200) -> dict[str, dict[str, list[Any]]]:
    return {owner: {stem_of(STORES[owner], 7): [at, ranges]}}


def test_what_an_owner_has_stated_is_known_after_its_end_and_passed_on() -> None:
    one, other = node("b", "c"), node("b", "c")
    one.receive("DONE", {"from": "b", "stated": stated("b", [1, 5])}, 1.0)
    one.tick(1.0)
    reports = done(one, "DONE")[-1].body
    other.receive("DONE", {**reports, "from": "c"}, 1.0)
    keys = stored_keys("b", 1, 8)
    for each in one, other:
        done(each)
        assert list(each.wanted("b", keys)) == list(keys[5:])
        send(each, "ASK", "c", "b", {"keys": list(keys)}, 1.0)
        (report,) = done(each, *ACK_REPORTS)
        assert report.body["gone"] == keys[:5]
        assert report.body["want"] == keys[5:]


def test_its_own_is_sent_when_it_changes_and_all_of_it_after_a_while() -> None:
    one = node("b", "c")
    stem = stem_of(STORES["a"], 7)
    receive_from(one, "b", "c", now=1.0)
    one.receive("DONE", {"from": "b", "stated": stated("b", [1, 5])}, 1.0)
    one.tick(1.0)
    assert list(done(one, "DONE")[0].body["stated"]) == ["b"]
    one.tick(2.0)
    assert not done(one, "DONE")
    one.acked.add_checkpoint("a", stem, AckCheckpoint(300, [(1, 7)]))
    one.tick(3.0)
    assert done(one, "DONE")[0].body == {"from": "a", "stated": {"a": {stem: [300, [(1, 7)]]}}}
    one.tick(4.0)
    assert not done(one, "DONE")
    one.tick(1.0 + 2 * TIMEOUT_S)
    assert set(done(one, "DONE")[0].body["stated"]) == {"a", "b"}
    receive_from(one, "c", now=22.0, incarnations=[1, 2])  # it was restarted
    one.tick(22.0)
    assert set(done(one, "DONE")[0].body["stated"]) == {"a", "b"}


@pytest.mark.parametrize(
    "reports", [[], {}, {"from": "b"}, {"from": "x", "stated": {}}, {"from": "b", "stated": {"b": 1}}]
)
def test_invalid_checkpoints_are_rejected(reports: Any) -> None:
    with pytest.raises(ValueError, match=r"DONE|ack checkpoints"):
        node("b").receive("DONE", reports, 1.0)


def test_an_owner_gets_its_own_statement_where_its_store_has_lost_that() -> None:
    stem = stem_of(STORES["a"], 7)
    one = node("b", "c")
    before, since = stored_keys("a", 1, 5), consecutive_keys(key_format(STORES["a"], 7), 250, 6, 3)
    one.load([(before, 1), (since, 6)], {}, [])
    one.acked.add_checkpoint("a", stem, AckCheckpoint(160, [(1, 1)]))
    one.receive("DONE", {"from": "b", "stated": {**stated("a", [1, 2], [4, 9]), "x": {}}}, 1.0)
    one._scan()
    assert list(one.own) == [before[2], *since], "it covers nothing that was stored after it"
    assert one.acked.next_time("a", stem, 5) == 201


def test_a_restarted_peer_is_asked_about_all() -> None:
    """Its disk may be as it was, and have lost what it had not synced."""
    one = node("b", "c")
    receive_from(one, "b", "c")
    one.produced([A(1)], 1, 1.0)
    one.replicated("b", [A(1)], 1.0)
    done(one)
    receive_from(one, "b", incarnations=[1, 2])
    one.tick(2.0)
    (asked,) = [report for report in done(one, *ACK_REPORTS) if report.body["to"] == "b"]
    assert (asked.kind, asked.body["keys"]) == ("ASK", [A(1)])


def test_an_owner_learns_what_is_lost_of_its_replicas() -> None:
    one = node("b", "c")
    one.stored("b", [B(1), B(2)], 1, 1.0)
    one.lost("b", [B(2)])
    (reports,) = done(one, *ACK_REPORTS)
    assert (reports.kind, reports.body["to"], reports.body["want"]) == ("TOLD", "b", [B(2)])
    owner = Node(
        Leadership("b", "ac", timeout=TIMEOUT_S, incarnations=[1], now=0.0, store="b0", leaders={}, fenced=True),
        replicas=1,
        replication_timeout=0.1,
        is_mine=lambda key: True,
    )
    receive_from(owner, "a")
    owner.produced([B(1), B(2)], 1, 1.0)
    done(owner)
    owner.receive("TOLD", reports.body, 1.0)
    assert done(owner, Replica) == [Replica("a", "b", [B(2)])]


def test_acknowledged_replicas_are_dropped_before_any_of_them_is_delivered() -> None:
    one, count = leading_node("b", "d"), SCAN_LIMIT + 9
    one.stored("c", stored_keys("c", 1, count), 1, 30.0)
    every = [C(1), C(2), *stored_keys("c", 1, count)]
    for peer in "bd":
        send(one, "TOLD", peer, "c", {"have": every}, 30.0)
    assert one.delivers("c", 30.0)
    one.receive_checkpoints(
        parse_checkpoints(stated("c", [1, 5], [7, SCAN_LIMIT + 3], [SCAN_LIMIT + 5, SCAN_LIMIT + 5]))
    )
    done(one)
    one._scan()
    assert not one.delivers("c", 30.0)
    one._scan()
    assert one.delivers("c", 30.0)
    left = [*stored_keys("c", 6, 1), *stored_keys("c", SCAN_LIMIT + 4, 1), *stored_keys("c", SCAN_LIMIT + 6, 4)]
    assert list(one.held["c"]) == [C(1), C(2), *left]
    assert [key for action in done(one, RecordAcks) for key in action.positions] == [
        key for key in every[2:] if key not in left
    ]


def test_what_owners_have_stated_is_looked_for_where_a_queue_is_taken_over() -> None:
    one = node("b", "c")
    one.receive("DONE", {"from": "b", "stated": stated("c", [1, 3])}, 1.0)
    one.load([], {"c": [(stored_keys("c", 1, 5), 1)]}, [])
    one.leadership.leaders["c"] = (1, "a")
    receive_from(one, "b", now=2.0, number=2)
    assert not one.delivers("c", 2.0)
    one._scan()
    assert list(one.held["c"]) == list(stored_keys("c", 4, 2))


def test_messages_that_the_store_has_lost_are_taken_back_from_others() -> None:
    lost: set[str] = set()
    keys = list(stored_keys("a", 1, 3))
    leadership = Leadership(
        "a", "bc", timeout=TIMEOUT_S, incarnations=[1], now=0.0, store="a0", leaders={}, fenced=True
    )
    one = Node(leadership, replicas=1, replication_timeout=0.1, is_mine=lambda key: key in keys and key not in lost)
    receive_from(one, "b", "c")
    one.produced(keys, 1, 1.0)
    one.replicated("b", keys, 1.0)
    lost.add(keys[1])
    one.lost("a", [keys[1]])
    assert one.positions("a", keys) == [1, 3]
    assert {report.body["to"]: report.body["want"] for report in done(one, *ACK_REPORTS)} == {
        "b": [keys[1]],
        "c": [keys[1]],
    }
    send(one, "ASK", "b", "a", {"keys": keys}, 1.0)
    (report,) = done(one, *ACK_REPORTS)
    assert (report.body["have"], report.body["want"]) == ([keys[0], keys[2]], [keys[1]])
    assert list(one.wanted("a", keys)) == [keys[1]]
    one.stored("a", [keys[1]], 9, 1.0)
    one.consumed("a", [keys[1]])
    assert not one.wanted("a", keys)


def test_what_is_acknowledged_while_it_is_being_stored_is_not_kept() -> None:
    one = node("b", "c")
    receive_from(one, "b")
    assert one.wanted("b", [B(1), B(2)]) == [B(1), B(2)]
    one.receive("REMOVES", {"from": "b", "keys": [B(2)]}, 1.0)
    one.stored("b", [B(1), B(2)], 5, 1.0)
    assert done(one, RecordAcks) == [RecordAcks("b", {B(2): 6})]
    assert one.holds() == {"b": 1}


def test_what_an_owner_has_got_back_is_replicated_again() -> None:
    one = node("b", "c")
    receive_from(one, "b", "c")
    one.stored("a", [OLD(1)], 1, 1.0)
    one.tick(2.0)
    asked = done(one, *ACK_REPORTS)
    assert {(report.kind, report.body["to"], *report.body["keys"]) for report in asked} == {
        ("ASK", "b", OLD(1)),
        ("ASK", "c", OLD(1)),
    }
    send(one, "TOLD", "b", "a", {"have": [OLD(1)]}, 2.0)
    send(one, "TOLD", "c", "a", {"want": [OLD(1)]}, 2.0)
    assert done(one, Replica) == [Replica("c", "a", [OLD(1)])]
    one.replicated("c", [OLD(1)], 2.0)
    receive_from(one, "b", now=3.0, number=2, store="another")  # its disk is lost
    one.tick(3.0)
    (asked,) = done(one, *ACK_REPORTS)
    assert (asked.body["to"], asked.body["keys"]) == ("b", [OLD(1)])
    one.consumed("a", [OLD(1)])
    one.tick(9.0)
    assert {report.kind for report in done(one, *ACK_REPORTS)} == {"GONE"}


def test_what_a_peer_had_no_room_for_is_asked_about_at_the_next_tick() -> None:
    one = node("b", "c")
    receive_from(one, "b")
    done(one)
    one.produced([A(1), A(2)], 1, 1.0)
    (replica,) = done(one, Replica)
    one.unsent("b", replica.keys)
    one.tick(1.1)
    (asked,) = done(one, *ACK_REPORTS)
    assert (asked.body["to"], asked.body["keys"]) == ("b", [A(1), A(2)])


def test_messages_of_an_earlier_incarnation_count_for_nothing() -> None:
    one = node("b", "c")
    receive_from(one, "b")
    one.produced([A(1)], 1, 1.0)
    assert receive_state(one, "b", state(1, incarnations=[1, 2], store="another"), 1.0)
    done(one)
    one.receive("TOLD", {"from": "b", "incarnation": 1, "to": "a", "origin": "a", "have": [A(1)]}, 1.0)
    assert not done(one, Answer)
    one.tick(2.0)
    (asked,) = done(one, *ACK_REPORTS)
    assert (asked.kind, asked.body["keys"]) == ("ASK", [A(1)])
    one.receive("TOLD", {"from": "b", "incarnation": 2, "to": "a", "origin": "a", "have": [A(1)]}, 2.0)
    one.produced_again(A(1), 2.0)
    assert done(one, Answer) == [Answer([A(1)], True)]


def test_the_shortest_timeout_bounds_a_lease() -> None:
    one = node("b", "c")
    receive_from(one, "b", "c", now=0.0, timeout=1.0)
    one.tick(0.0)
    (sent,) = done(one, "KALV")
    receive_from(one, "b", "c", now=0.1, number=2, timeout=1.0, heard={"a": [1, sent.body["number"]]})
    assert one.leadership.delivers("a", 0.7)
    assert not one.leadership.delivers("a", 0.9)
    assert one.leadership.keep_alive_interval() == 0.1


def test_a_node_whose_clock_was_set_back_and_whose_disk_is_lost_counts_again() -> None:
    one = node("b", "c")
    receive_from(one, "b", incarnations=[9])
    assert receive_state(one, "b", state(1, incarnations=[3], store="another"), 30.0)
    assert one.leadership.alive("b", 30.0)
    assert not receive_state(one, "b", state(1, incarnations=[3], store="another"), 50.0), "it comes twice"
    assert not one.leadership.alive("b", 50.0)


@pytest.mark.parametrize("starts", [[1, 2, 4], [1, 4]])
def test_an_older_copy_of_a_directory_is_refused(starts: list[int]) -> None:
    one = node("b", "c")
    receive_from(one, "b", incarnations=[1, 2, 3])
    with pytest.raises(StaleDirectory, match="the directory of b is an older copy") as error:
        receive_state(one, "b", state(1, incarnations=starts), 20.0)
    assert error.value.node == "b"
    assert not one.leadership.alive("b", 20.0)
    receive_from(one, "b", now=20.0, incarnations=[1, 2, 3, 5])
    assert one.leadership.alive("b", 20.0)
    receive_from(one, "b", now=30.0, incarnations=[1, 4], store="another")  # a directory that was empty
    assert one.leadership.alive("b", 30.0)


def test_a_node_learns_from_its_peers_that_its_directory_is_an_older_copy() -> None:
    one = node("b", "c")
    receive_from(one, "b", known={"a": ["a0", 1]})
    with pytest.raises(StaleDirectory) as error:
        receive_state(one, "c", state(1, known={"a": ["a0", 2]}), 1.0)
    assert error.value.node == "a"
    receive_from(one, "c", number=2, known={"a": ["another", 7]})  # which it had before


def test_an_older_copy_is_known_by_those_who_were_started_again_since() -> None:
    receive_from(before := node("b", "c"), "b", incarnations=[1, 2])
    again = Leadership(
        "a", "bc", timeout=TIMEOUT_S, incarnations=[1, 7], now=0.0, store="a0", leaders={}, fenced=True,
        known={**before.leadership.known, "x": ("x0", 1)},
    )  # fmt: skip
    assert again.known == {"b": ("p0", 2)}
    assert not again.alive("b", 0.0)
    with pytest.raises(StaleDirectory):
        again.receive("b", state(1, incarnations=[1, 3]), 1.0)


def test_a_directory_that_was_started_too_often_meanwhile_is_believed() -> None:
    receive_from(one := node("b", "c"), "b", incarnations=[1, 2])
    receive_from(one, "b", now=2.0, incarnations=[*range(10, 74)])
    assert one.leadership.alive("b", 2.0)


def test_what_cannot_be_kept_is_taken_back() -> None:
    one = node("b", "c")
    one.stored("c", [C(1)], 1, 1.0)
    receive_from(one, "b", now=12.0)
    one.tick(12.0)
    kept = done(one, Persist)
    assert one.leadership.leaders == {"c": (1, "a")}
    one.leadership.restore(kept[0].before)
    assert one.leadership.leaders == {}
    one.tick(13.0)
    assert done(one, Persist) == kept


@pytest.mark.parametrize(
    "body",
    [
        {"origin": "absent", "keys": [A(1)]},
        {"origin": "b", "keys": ["\ud800"]},
        {"origin": "b", "keys": [7]},
        {"origin": "b", "keys": [A(1) + "0"]},
        {"origin": ["b"], "keys": []},
    ],
)
def test_what_names_no_message_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        node("b").receive("GONE", {"from": "b", "to": "a", **body}, 1.0)

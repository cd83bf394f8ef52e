"""Three nodes as processes: what is acknowledged survives its owner, one of them delivers it, then it ends."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq

from omq.errors import ReceiveTimeout
from omq.pzq import Consumer, NotReplicated, Producer
from tests.support.libzmq_pzq_clients import raw
from tests.support.ports import held
from tests.support.pzq_nodes import HOSTS, Node, cluster, consume, empty, have, produce, running, take, until, whole

pytestmark = pytest.mark.timeout(120)


def nothing(node: Node, seconds: float = 1.0) -> bool:
    """Returns whether a node delivers nothing for a while."""
    with Consumer(node.send) as consumer:
        try:
            consumer.recv(timeout=seconds)
        except ReceiveTimeout:
            return True
        return False


def states(node: Node, ranges: list[list[int]]) -> bool:
    """Returns whether a node has on its disk that these messages of some topic are acknowledged."""
    kept = node.database / "done.json"
    stated = json.loads(kept.read_bytes()) if kept.exists() else {}
    return any(stated_ranges == ranges for topics in stated.values() for _, stated_ranges, *_ in topics.values())


def bodies(count: int, name: str = "m") -> list[bytes]:
    return [f"{name}{number}".encode() for number in range(count)]


def test_what_is_acknowledged_is_on_the_others_and_ends_everywhere(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "2") as nodes:
        produce(nodes[0], *bodies(50))
        until(lambda: [node.figures()["replicas"] for node in nodes] == [0, 50, 50], "both others have all")
        assert [node.figures()["own_messages"] for node in nodes] == [50, 0, 0]
        assert [node.figures()["messages"] for node in nodes] == [50, 50, 50]  # replicas count, too
        assert nothing(nodes[1], 0.5)
        assert consume(nodes[0], 50) == bodies(50)
        empty(nodes)


def test_a_killed_owners_messages_are_delivered_by_one_and_do_not_come_back(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        produce(nodes[0], *bodies(40))
        assert consume(nodes[0], 10) == bodies(40)[:10]
        have(nodes[1:], 30)
        nodes[0].kill()
        assert consume(nodes[1], 20) == bodies(40)[10:30]
        assert nothing(nodes[2], 0.5)
        nodes[0].start()
        whole(nodes)
        assert consume(nodes[0], 10) == bodies(40)[30:]
        empty(nodes)
        produce(nodes[0], b"afterwards")
        assert consume(nodes[0], 1) == [b"afterwards"]
        empty(nodes)


def all_but_ten(nodes: list[Node], count: int) -> None:
    """The first node's messages are replicated, the second node is killed, and ten are left unacknowledged."""
    produce(nodes[0], *bodies(count))
    have(nodes[1:], count)
    nodes[1].kill()
    assert consume(nodes[0], count - 10) == bodies(count)[:-10]


def only_the_last(nodes: list[Node], count: int) -> None:
    """While the owner is dead the two others deliver the ten that are left, and nothing is left when it is back."""
    assert take(nodes[1:], lambda found: len(found) >= 10) == sorted(bodies(count)[-10:])
    assert nothing(nodes[1], 0.5)
    assert nothing(nodes[2], 0.5)
    nodes[0].start()
    whole(nodes)
    empty(nodes)


@pytest.mark.slow
def test_a_node_that_was_away_delivers_nothing_that_was_acknowledged_meanwhile(tmp_path: Path) -> None:
    count = 3000  # more than are asked about at a time
    with cluster(tmp_path, "--replicas", "2") as nodes:
        all_but_ten(nodes, count)
        until(lambda: nodes[2].figures()["replicas"] == 10, "the third one knows what is acknowledged")
        nodes[0].kill()
        nodes[1].start()
        only_the_last(nodes, count)


@pytest.mark.slow
def test_nothing_that_was_acknowledged_comes_back_where_only_a_disk_knows_of_it(tmp_path: Path) -> None:
    """One node is away, one is restarted, and then the owner, which has reported it, dies."""
    count = 3000
    with cluster(tmp_path, "--replicas", "2") as nodes:
        all_but_ten(nodes, count)
        until(lambda: states(nodes[2], [[1, count - 10]]), "the third one has kept what the owner has stated")
        nodes[2].kill()
        nodes[0].kill()
        nodes[2].start()
        nodes[1].start()
        only_the_last(nodes, count)


@pytest.mark.slow
def test_what_was_acknowledged_out_of_order_does_not_come_back(tmp_path: Path) -> None:
    count = 400
    with cluster(tmp_path, "--replicas", "2") as nodes:
        produce(nodes[0], *bodies(count))
        have(nodes[1:], count)
        nodes[1].kill()
        with Consumer(nodes[0].send, prefetch=count) as consumer:
            for delivery in [consumer.recv(timeout=10) for _ in range(count)][1::2]:
                delivery.ack()
            gaps = [[number, number] for number in range(2, count + 1, 2)]
            until(lambda: states(nodes[2], gaps), "the third one has kept what the owner has stated")
        nodes[2].kill()
        nodes[0].kill()
        nodes[2].start()
        nodes[1].start()
        assert sorted(consume(nodes[1], count // 2)) == sorted(bodies(count)[::2])
        assert nothing(nodes[1], 0.5)


@pytest.mark.slow
def test_nothing_that_was_acknowledged_comes_back_to_an_owner_without_its_disk(tmp_path: Path) -> None:
    count = 3000
    with cluster(tmp_path, "--replicas", "2") as nodes:
        all_but_ten(nodes, count)
        until(lambda: states(nodes[2], [[1, count - 10]]), "the third one has kept what the owner has stated")
        nodes[2].kill()  # so it does not remember what it received one by one
        nodes[0].kill()
        shutil.rmtree(nodes[0].database)
        for node in nodes[2], nodes[0], nodes[1]:
            node.start()
        assert sorted(consume(nodes[0], 10)) == sorted(bodies(count)[-10:])
        whole(nodes)
        assert nothing(nodes[0])
        empty(nodes)


@pytest.mark.slow
def test_a_stopped_owner_delivers_nothing_once_it_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        produce(nodes[0], *bodies(20))
        with Consumer(nodes[0].send, prefetch=1) as consumer:
            first = consumer.recv(timeout=10)
            nodes[0].signal(signal.SIGSTOP)
            assert sorted(consume(nodes[1], 20)) == sorted(bodies(20))
            nodes[0].signal(signal.SIGCONT)
            first.ack()
            with pytest.raises(ReceiveTimeout):
                consumer.recv(timeout=1.5)
        whole(nodes)
        empty(nodes)


@pytest.mark.slow
def test_a_replica_without_its_disk_gets_what_it_lacks(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "2") as nodes:
        produce(nodes[0], *bodies(30))
        nodes[1].kill()
        shutil.rmtree(nodes[1].database)
        nodes[1].start()
        until(lambda: nodes[1].figures()["replicas"] == 30, "the replica is whole again")
        assert consume(nodes[0], 30) == bodies(30)
        empty(nodes)


def test_an_owner_without_its_disk_gets_back_what_is_its_own(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        produce(nodes[0], *bodies(30))
        have(nodes[1:], 30)
        nodes[0].kill()
        shutil.rmtree(nodes[0].database)
        nodes[0].start()
        until(lambda: nodes[0].figures()["messages"] == 30, "the owner has its messages back")
        found = nodes[0].figures()
        assert (found["own_messages"], found["recovered"], found["replicas"]) == (30, 30, 0)
        assert consume(nodes[0], 30) == bodies(30)
        empty(nodes)


def test_a_minority_does_not_acknowledge_replicated_messages(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1", "--timeout-replication", "500000") as nodes:
        nodes[1].kill()
        nodes[2].kill()
        with Producer(nodes[0].receive, timeout=10) as producer, pytest.raises(NotReplicated):
            producer.send(b"alone")
        nodes[1].start()
        nodes[2].start()
        whole(nodes)
        until(lambda: nodes[2].figures()["replicas"] == 1, "the message is replicated when the others are back")
        assert consume(nodes[0], 1) == [b"alone"]
        empty(nodes)


@pytest.mark.slow
def test_kills_under_load(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        delivered: Counter[bytes] = Counter()
        for turn in range(6):
            victim = nodes[turn % 3]
            for node in nodes:
                produce(node, *bodies(100, f"{turn}.{node.host}."))
            delivered.update(consume(nodes[(turn + 1) % 3], 20))
            victim.kill()
            heir = next(node for node in nodes if node is not victim)
            delivered.update(consume(heir, 50))
            victim.start()
            whole(nodes)
        for node in nodes:
            while node.figures()["messages"] != node.figures()["replicas"]:  # or the store is not so far yet
                with suppress(ReceiveTimeout), Consumer(node.send) as consumer:
                    (delivery := consumer.recv(timeout=2)).ack()
                    delivered[delivery.body] += 1
        empty(nodes)
        assert len(delivered) == 1800


@pytest.mark.slow
def test_nodes_that_lose_their_disks_one_after_another(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        produce(nodes[0], *bodies(30))
        have(nodes[1:], 30)
        for node in nodes:
            node.kill()
            shutil.rmtree(node.database)
            node.start()
            until(lambda node=node: node.figures()["messages"] == 30, "it is filled again")  # type: ignore[misc]
        assert sorted(consume(nodes[0], 30)) == sorted(bodies(30))
        empty(nodes)


def test_what_was_taken_is_answered_before_the_end(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "2", "--timeout-replication", "3000000") as nodes:
        nodes[2].signal(signal.SIGSTOP)
        with raw(zmq.DEALER, nodes[0].receive) as producer:
            for number in range(50):
                producer.send_multipart([b"%d" % number, b"", b"m"])
            until(lambda: nodes[1].figures()["replicas"] == 50, "all are taken, and no answer is due")
            nodes[0].signal(signal.SIGTERM)
            nodes[2].signal(signal.SIGCONT)
            answers = [producer.recv_multipart() for _ in range(50)]
        assert {answer[1] for answer in answers} == {b"1"}
        assert len({answer[0] for answer in answers}) == 50
        assert nodes[0].process is not None
        assert nodes[0].process.wait(10) == 0


def dead(node: Node, count: int) -> list[bytes]:
    with Consumer(node.dead_letter) as consumer:
        found = [consumer.recv(timeout=10) for _ in range(count)]
        for delivery in found:
            delivery.ack()
        return [b"|".join(delivery.parts) for delivery in found]


def reject(node: Node, times: int) -> None:
    with Consumer(node.send) as consumer:
        for _ in range(times):
            consumer.recv(timeout=10).nack()
        with pytest.raises(ReceiveTimeout):
            consumer.recv(timeout=0.5)


@pytest.mark.slow
def test_a_dead_owners_messages_become_dead_letters_as_well(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "2", "--max-deliveries", "3", dead_letters=True) as nodes:
        with Producer(nodes[0].receive, timeout=15) as producer:
            producer.send(b"poison")
            producer.send([b"of two", b"parts"])
        nodes[0].kill()
        reject(nodes[1], 6)
        until(lambda: nodes[1].figures()["dead_letters"] == 2, "both are dead letters where they were delivered")
        assert sorted(dead(nodes[1], 2)) == [b"of two|parts", b"poison"]
        nodes[0].start()
        whole(nodes)
        empty(nodes)


@pytest.mark.slow
def test_a_message_that_came_back_to_its_owner_becomes_a_dead_letter(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "2", "--max-deliveries", "3", dead_letters=True) as nodes:
        produce(nodes[0], b"another")
        nodes[0].kill()
        shutil.rmtree(nodes[0].database)
        nodes[0].start()
        reject(nodes[0], 3)
        assert dead(nodes[0], 1) == [b"another"]
        empty(nodes)


@pytest.mark.slow
def test_what_is_acknowledged_while_it_is_replicated_does_not_come_back(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1", "--hard-sync") as nodes:
        with Consumer(nodes[0].send) as consumer, raw(zmq.DEALER, nodes[0].receive) as producer:
            for number in range(1000):
                producer.send_multipart([b"%d" % number, b"", b"m"])
                consumer.recv(timeout=10).ack()
            until(lambda: nodes[0].figures()["messages"] == 0, "all is acknowledged")
            time.sleep(0.2)  # for the last of it to arrive
        nodes[0].kill()
        assert nothing(nodes[1], 3.0)


def test_a_message_that_is_not_replicated_is_stored_all_the_same(tmp_path: Path) -> None:
    options = ("--replicas", "1", "--timeout-replication", "500000")
    with cluster(tmp_path, *options) as nodes, Producer(nodes[0].receive, timeout=15) as producer:
        for node in nodes[1:]:
            node.kill()
        for _ in range(2):
            with pytest.raises(NotReplicated):
                producer.send(b"once", headers=[b"DEDUP:me:17"])
        assert nodes[0].figures()["own_messages"] == 1
        with pytest.raises(NotReplicated):
            producer.send(b"twice")
        assert nodes[0].figures()["own_messages"] == 2
        for node in nodes[1:]:
            node.start()
        whole(nodes)

        def is_replicated() -> bool:
            with suppress(NotReplicated):
                producer.send(b"once", headers=[b"DEDUP:me:17"])
                return True
            return False

        until(is_replicated, "another node has it")
        until(lambda: [node.figures()["replicas"] for node in nodes] == [0, 2, 2], "the others have both")
        assert consume(nodes[0], 2) == [b"once", b"twice"]
        empty(nodes)


@pytest.mark.slow
def test_a_fourth_node_joins_a_running_cluster(tmp_path: Path) -> None:
    """The guide's procedure: the new node starts, and the others start again with its name, one after the other."""
    hosts = (*HOSTS, "127.0.0.4")
    options = ["--replicas", "1", "--timeout-replication", "10000000"]
    with ExitStack() as kept:
        ports = [kept.enter_context(held(*hosts)) for _ in range(4)]
        nodes = [Node(number, ports, tmp_path, options) for number in range(3)]
        kept.enter_context(running(nodes))
        whole(nodes)
        expected = bodies(50)
        produce(nodes[0], *expected)
        nodes.append(Node(3, ports, tmp_path, options, hosts=hosts))
        nodes[3].start()
        for number in range(3):
            nodes[number].kill(signal.SIGTERM)
            nodes[number] = Node(number, ports, tmp_path, options, hosts=hosts)
            nodes[number].start()
            until(lambda here=nodes[number]: here.figures()["nodes_alive"] == 4, "it has all the others")
            expected += (sent := bodies(5, f"while {number} "))
            produce(nodes[number], *sent)
        until(lambda: all(node.figures()["nodes_alive"] == 4 for node in nodes), "all nodes are alive")
        produce(nodes[3], *(sent := bodies(5, "fourth ")))
        expected += sent
        until(lambda: [node.figures()["own_messages"] for node in nodes] == [55, 5, 5, 5], "each has its own")
        until(lambda: [node.figures()["replicas"] for node in nodes] == [15, 65, 65, 65], "each has the others'")
        nodes[0].kill()
        assert take(nodes[1:], lambda found: len(found) >= len(expected)) == sorted(expected)
        nodes[0].start()
        empty(nodes)

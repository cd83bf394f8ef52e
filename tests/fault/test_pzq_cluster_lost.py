"""A node's lost store: its messages come back from the others, and acknowledged ones do not."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from omq.errors import ReceiveTimeout
from omq.pzq import Consumer, NotReplicated
from tests.support.ports import held
from tests.support.pzq_nodes import (
    HOSTS,
    TIMEOUT_S,
    Node,
    cluster,
    consume,
    empty,
    have,
    produce,
    running,
    take,
    until,
    whole,
)

pytestmark = pytest.mark.timeout(120)
COUNT = 20


def bodies(name: str, count: int = COUNT) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def everything(nodes: list[Node]) -> list[bytes]:
    """Returns the messages that any node delivers until nothing is left."""
    return take(nodes, lambda found: not any(node.figures()["messages"] for node in nodes))


class Power:
    """Of a node without --hard-sync: as its disk was when it last was synced."""

    def __init__(self, node: Node, before: bytes = b"") -> None:
        self._node, self._weak = node, node.database / "weak"
        until(lambda: self._synced() not in (b"", before), "it is synced")
        self.synced = self._synced()
        self._data = (self._weak / "data.mdb").read_bytes()

    def _synced(self) -> bytes:
        path = self._weak / "synced"
        return path.read_bytes() if path.exists() else b""

    def lost(self) -> bool:
        """The node is killed, and its host has lost its power; not where a sync came between."""
        self._node.kill()
        if self._synced() != self.synced:
            return False
        (self._weak / "data.mdb").write_bytes(self._data)
        session = self._node.database / "session"
        session.write_text(json.dumps({**json.loads(session.read_text()), "boot": "another"}) + "\n")
        return True


def after(node: Node, *some: bytes, acked: int = 0) -> Power:
    """Produces, has consumers acknowledge some, and waits until that is synced."""
    before = Power(node).synced
    if some:
        produce(node, *some)
        consume(node, acked)
        until(lambda: node.figures()["messages"] == len(some) - acked, "it is noted")
        return Power(node, before)
    return Power(node)


def states(node: Node, number: int, owner: Node | None = None) -> bool:
    """Returns whether a node has on its disk that *number* messages, its own or an owner's, are acknowledged."""
    kept = json.loads((node.database / "done.json").read_bytes())
    stated = kept.get((owner or node).broadcast, {}).values()
    return any(ranges and ranges[0][1] >= number for _, ranges, *_ in stated)


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Iterator[Path]]:
    """One for each attempt."""
    return (tmp_path / str(number) for number in range(8))


def test_a_lost_tail_comes_back(directories: Iterator[Path]) -> None:
    for directory in directories:
        directory.mkdir()
        with cluster(directory, "--replicas", "2") as nodes:
            power = after(nodes[0], b"before", acked=1)
            produce(nodes[0], *bodies("tail"))
            if not power.lost():
                continue
            nodes[0].start()
            until(lambda: nodes[0].figures()["messages"] == COUNT, "the tail is back")
            assert sorted(consume(nodes[0], COUNT)) == sorted(bodies("tail"))
            empty(nodes)
            return
    raise AssertionError("a sync came between, each time")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "acked"),
    [(0, 0), (5, 5), pytest.param(5, 4, marks=pytest.mark.fault)],
    ids=str,
)
def test_a_lost_tail_comes_back_and_stays(directories: Iterator[Path], before: int, acked: int) -> None:
    """The queue may have been empty before or not. The same holds where the owner is restarted in an orderly way."""
    for directory in directories:
        directory.mkdir()
        with cluster(directory, "--replicas", "2") as nodes:
            power = after(nodes[0], *bodies("before", before), acked=acked)
            produce(nodes[0], *bodies("tail"))
            if not power.lost():
                continue
            nodes[0].start()
            whole(nodes)
            left = COUNT + before - acked
            until(lambda: nodes[0].figures()["messages"] == left, "the tail is back")  # noqa: B023
            produce(nodes[0], *bodies("later"))
            with Consumer(nodes[0].send, prefetch=1000) as consumer:
                got = [consumer.recv(timeout=20) for _ in range(left + COUNT)]
                for delivery in got:
                    if not delivery.body.startswith(b"tail"):
                        delivery.ack()
                until(lambda: nodes[0].figures()["messages"] == COUNT, "only the tail is left")
            nodes[0].kill(signal.SIGTERM)
            nodes[0].start()
            whole(nodes)
            have(nodes[1:], COUNT)
            nodes[2].kill(signal.SIGTERM)
            assert everything(nodes[:2]) == sorted(bodies("tail"))
            empty(nodes[:2])
            # A node that was away since has the tail still; no node remembers of each message that it was acknowledged.
            until(lambda: states(nodes[0], before + COUNT), "it is kept")
            for node in nodes[:2]:
                node.kill(signal.SIGTERM)
                node.start()
                until(lambda: all(node.figures()["nodes_alive"] == 2 for node in nodes[:2]), "both are alive")
            nodes[2].start()
            whole(nodes)
            empty(nodes)
            assert everything(nodes) == []
            return
    raise AssertionError("a sync came between, each time")


@pytest.mark.slow
def test_a_holder_gets_again_what_it_has_lost(directories: Iterator[Path]) -> None:
    for directory in directories:
        directory.mkdir()
        with cluster(directory, "--replicas", "2") as nodes:
            produce(nodes[0], b"before")
            power = Power(nodes[1], Power(nodes[1]).synced)
            produce(nodes[0], *bodies("tail"))
            if not power.lost():
                continue
            nodes[1].start()
            whole(nodes)
            have(nodes[1:], COUNT + 1)
            return
    raise AssertionError("a sync came between, each time")


def damage(node: Node, body: bytes) -> None:
    """Flips a bit of a message on a node's disk."""
    with (node.database / "strong" / "data.mdb").open("r+b") as file:
        at = file.read().index(body)
        file.seek(at)
        file.write(bytes([body[0] ^ 1]))


def large(number: int) -> bytes:
    return b"message %02d" % number + bytes(3000)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.fault)])
def test_a_damaged_message_that_is_back_stays_where_its_owner_is_started_again(tmp_path: Path, number: int) -> None:
    with cluster(tmp_path, "--replicas", "2", "--hard-sync") as nodes:
        for n in range(10):
            produce(nodes[0], large(n))
        have(nodes[1:], 10)
        damage(nodes[0], large(5))
        assert consume(nodes[0], 9) == [large(n) for n in range(10) if n != 5]
        until(lambda: nodes[0].figures()["messages"] == nodes[0].figures()["recovered"] == 1, "it is back")
        nodes[0].kill(number)
        nodes[0].start()
        whole(nodes)
        have(nodes[1:], 1)
        assert consume(nodes[0], 1) == [large(5)]
        empty(nodes)


@pytest.mark.fault
def test_a_message_whose_record_is_damaged_while_a_consumer_has_it_comes_once(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1", "--hard-sync", "--ack-timeout", "60000000") as nodes:
        nodes[2].kill()
        until(lambda: nodes[0].figures()["nodes_alive"] == 2, "the third one is missed")
        for n in range(10):
            produce(nodes[0], large(n))
        with Consumer(nodes[0].send, prefetch=100) as consumer:
            got = [consumer.recv(timeout=20) for _ in range(10)]
            damage(nodes[0], large(5))
            nodes[1].kill()
            nodes[2].start()
            have(nodes[2:], 9)  # the owner has read for it, and found the damage
            for delivery in got:
                delivery.ack()
            until(lambda: nodes[0].figures()["messages"] == 0, "all are acknowledged")
        nodes[1].start()
        whole(nodes)
        empty(nodes)
        assert nodes[0].figures()["delivered"] == 10


def put_back(node: Node, copy: Path) -> None:
    """The directory is as it was when it was copied."""
    shutil.rmtree(node.database)
    shutil.copytree(copy, node.database)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.fault)], ids=["owner", "holder"])
@pytest.mark.parametrize(
    "restarted", [False, pytest.param(True, marks=pytest.mark.fault)], ids=["at once", "restarted"]
)
def test_a_directory_that_is_put_back_as_it_was_is_refused(tmp_path: Path, which: int, restarted: bool) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        others = [node for node in nodes if node is not nodes[which]]
        produce(nodes[0], *bodies("old"))
        consume(nodes[0], COUNT // 2)
        nodes[which].kill(signal.SIGTERM)
        shutil.copytree(nodes[which].database, tmp_path / "copy")
        nodes[which].start()
        whole(nodes)
        consume(nodes[0], COUNT // 2)
        produce(nodes[0], *bodies("new"))
        have(nodes[1:], COUNT)
        for node in nodes if restarted else [nodes[which]]:
            node.kill()
        put_back(nodes[which], tmp_path / "copy")
        if restarted:  # alone, it cannot know
            for _ in range(2):
                nodes[which].start()
                nodes[which].kill()
            for node in others:
                node.start()
        nodes[which].start()
        until(lambda: "delivers and replicates nothing" in nodes[which].log.read_text(), "the node reports it")
        for node in others:
            until(lambda: "has no part in the cluster" in node.log.read_text(), "so do the others")  # noqa: B023
            assert f"the directory of {nodes[which].broadcast} is an older copy" in node.log.read_text()
        with pytest.raises(NotReplicated):
            produce(nodes[which], b"lost with the copy")
        with Consumer(nodes[which].send) as consumer, pytest.raises(ReceiveTimeout):
            consumer.recv(timeout=2 * TIMEOUT_S)
        # As a new node it is filled by the others, and nothing that was acknowledged is lost or comes back.
        nodes[which].kill(signal.SIGTERM)
        shutil.rmtree(nodes[which].database)
        nodes[which].start()
        whole(nodes)
        have(nodes[1:], COUNT)
        until(lambda: nodes[0].figures()["messages"] == COUNT, "the owner has what was not acknowledged")
        produce(nodes[0], *bodies("newest"))
        have(nodes[1:], 2 * COUNT)
        assert everything(nodes) == sorted(bodies("new") + bodies("newest"))


@pytest.mark.fault
def test_a_copy_of_a_node_that_ran_is_refused_where_others_have_what_was_stored_since(tmp_path: Path) -> None:
    """Its incarnation is that of the directory that it is a copy of, so only other nodes' records distinguish it."""
    with cluster(tmp_path, "--replicas", "2", "--hard-sync") as nodes:
        produce(nodes[0], *bodies("old"))
        nodes[0].signal(signal.SIGSTOP)
        shutil.copytree(nodes[0].database, tmp_path / "copy")
        nodes[0].signal(signal.SIGCONT)
        whole(nodes)
        produce(nodes[0], *bodies("new"))
        nodes[0].kill()
        put_back(nodes[0], tmp_path / "copy")
        nodes[0].start()
        for node in nodes:
            until(lambda: "is too old to have stored" in node.log.read_text(), "all report it")  # noqa: B023
        found = []
        for node in nodes[1:]:
            with Consumer(node.send) as consumer, suppress(ReceiveTimeout):
                while True:
                    delivery = consumer.recv(timeout=3 * TIMEOUT_S)
                    found.append(delivery.body)
                    delivery.ack()
        assert sorted(found) == sorted(bodies("old") + bodies("new"))


@pytest.mark.fault
def test_a_copied_directory_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1") as nodes:
        produce(nodes[0], *bodies("old"))
        consume(nodes[0], COUNT)
        empty(nodes)
        for node in nodes[:2]:
            node.kill(signal.SIGTERM)
        shutil.rmtree(nodes[1].database)
        shutil.copytree(nodes[0].database, nodes[1].database)
        for node in nodes[:2]:
            node.start()
        whole(nodes)
        produce(nodes[1], *bodies("second"))
        produce(nodes[0], *bodies("first"))
        assert sorted(consume(nodes[0], COUNT)) == sorted(bodies("first"))
        nodes[1].kill(signal.SIGTERM)
        nodes[1].start()
        whole(nodes)
        assert sorted(consume(nodes[1], COUNT)) == sorted(bodies("second"))
        empty(nodes)
        assert all("has a copy of the directory of" in node.log.read_text() for node in nodes)


@pytest.mark.slow
def test_remote_acks_are_kept_by_every_node_that_received_them(tmp_path: Path) -> None:
    """The node that announced it is gone when the owner is back, and the other one was restarted."""
    with cluster(tmp_path, "--replicas", "2", "--hard-sync") as nodes:
        produce(nodes[0], *bodies("m"))
        have(nodes[1:], COUNT)
        nodes[0].kill()
        acknowledged = consume(nodes[1], COUNT - 5)
        have(nodes[1:], 5)
        time.sleep(2 * TIMEOUT_S)  # no counter shows that it has confirmed
        nodes[2].kill(signal.SIGTERM)
        nodes[2].start()
        until(lambda: nodes[2].figures()["nodes_alive"] == 2, "it is alive again")
        nodes[1].kill()
        nodes[0].start()
        until(lambda: nodes[0].figures()["nodes_alive"] == 2, "the owner is back")
        left = sorted({*bodies("m")} - {*acknowledged})
        assert everything([nodes[0], nodes[2]]) == left


@pytest.mark.fault
def test_what_had_come_back_is_delivered_by_a_node_with_another_name(tmp_path: Path) -> None:
    with ExitStack() as kept:
        ports = [kept.enter_context(held(*HOSTS)) for _ in range(5)]
        nodes = [Node(number, ports[:4], tmp_path, ["--replicas", "2"]) for number in range(3)]
        with running(nodes):
            whole(nodes)
            produce(nodes[0], *bodies("m"))
            have(nodes[1:], COUNT)
            nodes[0].kill()
            shutil.rmtree(nodes[0].database)
            nodes[0].start()
            until(lambda: nodes[0].figures()["messages"] == COUNT, "they are back")
            for node in nodes:
                node.kill(signal.SIGTERM)
        nodes = [Node(number, [*ports[:3], ports[4]], tmp_path, ["--replicas", "2"]) for number in range(3)]
        for attempt in range(2):
            with running(nodes):
                whole(nodes)
                if not attempt:
                    assert "it has left this cluster" in nodes[1].log.read_text()
                    assert {*consume(nodes[0], COUNT // 2)} <= {*bodies("m")}
                else:
                    assert len(everything(nodes[:1])) == COUNT // 2
                for node in nodes:
                    node.kill(signal.SIGTERM)

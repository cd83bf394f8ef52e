"""A durable subscription that another client takes over: its holder is fenced, whether it works or hangs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Server, TakenOver, TopicError
from tests.support.chaos_proxy import Proxy
from tests.support.fork_server import ForkedProcess
from tests.system.broker.client_twins import TWINS, twins

#: A holder that has acknowledged its first message, and then does nothing.
HOLDER = """
import sys, time
import omq.broker
with omq.broker.Client(sys.argv[1], timeout=20) as client, client.subscribe("feed", name="reader") as reader:
    reader.ack(reader.recv(timeout=20))
    client.flush()
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(params=["memory", "disk"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    where: Any = {"memory": True} if request.param == "memory" else {"directory": tmp_path / "data"}
    with Server(**where, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    twin.wait(client.create("feed", persistence="weak"))
    twin.wait(client.publish_many("feed", [b"%d" % number for number in range(1, 6)]))
    yield client
    twin.wait(client.close())


def test_the_holder_gets_taken_over_and_cannot_move_the_cursor(twin: Any, server: Server, client: Any) -> None:
    holder = twin.wait(client.subscribe("feed", replay="earliest", name="reader"))
    messages = twin.take(holder, 3)
    twin.call(holder.ack, messages[0])
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    with pytest.raises(TopicError, match="already open"):
        twin.wait(other.subscribe("feed", name="reader"))
    twin.wait(client.flush())
    taken = twin.wait(other.subscribe("feed", name="reader", take_over=True))
    assert [message.id for message in twin.take(taken, 2)] == [2, 3]
    assert [message.id for message in twin.take(holder, 2)] == [4, 5]  # they had arrived before
    for _ in range(2):
        with pytest.raises(TakenOver, match="reader"):
            twin.wait(holder.recv(timeout=20.0))
        with pytest.raises(TakenOver, match="reader"):
            twin.call(holder.ack, messages[1])
    twin.wait(client.flush())
    (durable,) = twin.wait(client.durables("feed"))
    assert (durable.position, durable.held) == (1, True)
    twin.wait(other.close())


def test_a_free_name_can_be_taken_over_as_well(twin: Any, client: Any) -> None:
    first = twin.wait(client.subscribe("feed", replay="earliest", name="reader", take_over=True))
    assert [message.id for message in twin.take(first, 1)] == [1]
    twin.wait(first.close())


@pytest.mark.parametrize("how", ["stopped", "stuck"])
def test_a_holder_that_does_not_answer_is_replaced_at_once(twin: Any, server: Server, client: Any, how: str) -> None:
    twin.wait(client.publish("feed", b"6"))
    reader = twin.wait(client.subscribe("feed", replay="earliest", name="reader"))
    twin.wait(reader.close())
    with ForkedProcess("-c", HOLDER, server.endpoints["zmtp"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holds\n"
            if how == "stopped":
                process.send_signal(signal.SIGSTOP)
            taken = twin.wait(client.subscribe("feed", name="reader", take_over=True))
            assert [message.id for message in twin.take(taken, 5)] == [2, 3, 4, 5, 6]
            twin.call(taken.ack, 6)
            twin.wait(client.flush())
            process.send_signal(signal.SIGCONT)
            (durable,) = twin.wait(client.durables("feed"))
            assert (durable.position, durable.held) == (6, True)
        finally:
            process.kill()


def receive_twice(twin: Any, holder: Any) -> None:
    """Receives the last message, which may have arrived before the cut, and what follows it."""
    for _ in range(2):
        twin.wait(holder.recv(timeout=20.0))


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_holder_that_was_cut_off_is_taken_over(twin: Any, server: Server, client: Any, closed: bool) -> None:
    """Also if the other client has closed the subscription by then."""
    with Proxy() as proxy:
        link = proxy.link(server.endpoints["zmtp"])
        cut_off = twin.Client(link.endpoint, timeout=20.0)
        holder = twin.wait(cut_off.subscribe("feed", replay="earliest", name="reader", take_over=True))
        messages = twin.take(holder, 4)
        link.refuse()
        link.reset()
        twin.call(holder.ack, messages[3])  # it cannot be sent
        taken = twin.wait(client.subscribe("feed", name="reader", take_over=True))
        twin.call(taken.ack, 2)
        if closed:
            twin.wait(taken.close())
        link.admit()
        with pytest.raises(TakenOver, match="another client has taken over 'reader' of topic 'feed'"):
            receive_twice(twin, holder)
        twin.wait(cut_off.flush())
        (durable,) = twin.wait(client.durables("feed"))
        assert (durable.position, durable.held) == (2, not closed)
        twin.wait(cut_off.close())


def test_a_holder_that_was_cut_off_continues_if_no_other_client_came(twin: Any, server: Server, client: Any) -> None:
    with Proxy() as proxy:
        link = proxy.link(server.endpoints["zmtp"])
        cut_off = twin.Client(link.endpoint, timeout=20.0)
        for take_over in (False, True):
            holder = twin.wait(cut_off.subscribe("feed", replay=0, name="reader", take_over=take_over))
            before = len(list(twin.take(holder, 1)))
            link.reset()
            assert before + len(twin.take(holder, 4)) == 5
            twin.wait(holder.close())
        twin.wait(cut_off.close())


def test_take_over_needs_a_name(twin: Any, client: Any) -> None:
    with pytest.raises(ValueError, match=r"^take_over=True: needs the name"):
        twin.wait(client.subscribe("feed", take_over=True))
    assert twin.wait(client.durables("feed")) == []


def test_a_take_over_that_fails_leaves_the_holder(twin: Any, server: Server, client: Any) -> None:
    holder = twin.wait(client.subscribe("feed", replay="earliest", name="reader"))
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    with pytest.raises(TopicError, match="there is no topic"):
        twin.wait(other.subscribe("nowhere", name="reader", take_over=True))
    with pytest.raises(TopicError, match="above the newest id"):
        twin.wait(other.subscribe("feed", replay=99, name="another", take_over=True))
    assert [message.id for message in twin.take(holder, 5)] == [1, 2, 3, 4, 5]
    twin.wait(other.close())

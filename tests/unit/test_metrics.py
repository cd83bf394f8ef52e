"""The collector of sockets for Prometheus."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import omq
import omq.asyncio
import omq.zmq
import omq.zmq.asyncio
from omq.metrics import SocketCollector
from tests.support.fork_server import run
from tests.support.waits import BOUND, until

NAMES = {
    "omq_socket_messages_sent_total",
    "omq_socket_messages_received_total",
    "omq_socket_sent_bytes_total",
    "omq_socket_received_bytes_total",
    "omq_socket_messages_dropped_total",
    "omq_socket_reconnects_total",
    "omq_socket_handshake_failures_total",
    "omq_socket_send_queue_messages",
    "omq_socket_recv_queue_messages",
    "omq_socket_peers",
}
Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Any] = []

    def create(kind: type[omq.Socket], **options: Any) -> Any:
        made.append(kind(**options))
        return made[-1]

    yield create
    for socket in made:
        socket.stop()


def samples(collector: SocketCollector) -> dict[tuple[str, str, str], float]:
    """Returns the values by metric without its prefix, name and type of the socket."""
    return {
        (sample.name.removeprefix("omq_socket_"), sample.labels["socket"], sample.labels["type"]): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def names_of(collector: SocketCollector) -> list[tuple[str, str]]:
    return sorted({(name, kind) for _, name, kind in samples(collector)})


def test_each_metric_has_a_sample_for_each_socket(make: Make) -> None:
    registry = CollectorRegistry()
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    push = make(omq.PUSH, connect=pull.endpoints[0])
    SocketCollector({'a "\\\n': push, "": pull}, registry=registry)
    push.send(bytes(100))
    until(lambda: pull.poll(0))
    families = [*text_string_to_metric_families(generate_latest(registry).decode())]
    assert {sample.name for family in families for sample in family.samples} == NAMES
    assert all(family.documentation.endswith(".") for family in families)
    found = {
        (sample.name, sample.labels["socket"], sample.labels["type"]): sample.value
        for family in families
        for sample in family.samples
    }
    assert len(found) == 2 * len(NAMES)
    assert found["omq_socket_messages_sent_total", 'a "\\\n', "PUSH"] == 1
    assert found["omq_socket_sent_bytes_total", 'a "\\\n', "PUSH"] == 102
    assert found["omq_socket_recv_queue_messages", "", "PULL"] == 1
    assert found["omq_socket_peers", "", "PULL"] == 1


def test_the_metrics_are_the_statistics() -> None:
    names = {re.sub("^omq_socket_|_total$", "", name) for name in NAMES}
    assert names == {field.name for field in fields(omq.SocketStats)}


def test_the_default_name_is_the_type_and_the_first_free_number(make: Make) -> None:
    first, second = make(omq.PUSH), make(omq.PUSH)
    collector = SocketCollector([first, make(omq.SUB)], registry=None)
    collector.add(second)
    assert names_of(collector) == [("PUSH-1", "PUSH"), ("PUSH-2", "PUSH"), ("SUB-1", "SUB")]
    first.close()
    collector.add(make(omq.PUSH), "feed")
    collector.add(make(omq.PUSH))
    assert names_of(collector) == [("PUSH-1", "PUSH"), ("PUSH-2", "PUSH"), ("SUB-1", "SUB"), ("feed", "PUSH")]


def test_names_and_sockets_are_unique(make: Make) -> None:
    push = make(omq.PUSH)
    collector = SocketCollector({"feed": push}, registry=None)
    with pytest.raises(omq.UsageError, match="name='feed'"):
        collector.add(make(omq.PULL), "feed")
    with pytest.raises(omq.UsageError, match="is here already, with the name 'feed'"):
        collector.add(push, "other")
    assert names_of(collector) == [("feed", "PUSH")]
    push.close()
    collector.add(make(omq.PULL), "feed")
    assert names_of(collector) == [("feed", "PULL")]


def test_other_arguments_are_refused(make: Make) -> None:
    collector = SocketCollector(registry=None)
    with pytest.raises(TypeError, match=r"socket='tcp://.*': must be a socket, not str"):
        collector.add("tcp://127.0.0.1:5555")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name=7: must be a str, not int"):
        collector.add(make(omq.PUSH), 7)  # type: ignore[arg-type]
    push = make(omq.PUSH)
    push.close()
    with pytest.raises(omq.ClosedError, match="the PUSH socket is closed"):
        collector.add(push)
    assert samples(collector) == {}


def test_removed_closed_and_dropped_sockets_leave(make: Make) -> None:
    removed, closed, stays = make(omq.PUSH), make(omq.PUSH), make(omq.PUSH)
    collector = SocketCollector({"removed": removed, "closed": closed, "stays": stays}, registry=None)
    collector.add(omq.PUSH(), "dropped")
    gc.collect()
    collector.remove(removed)
    collector.remove(removed)
    closed.close()
    collector.remove(closed)
    assert names_of(collector) == [("stays", "PUSH")]
    stays.send(b"x")
    collector.add(removed, "removed")
    assert samples(collector)["send_queue_messages", "removed", "PUSH"] == 0


def test_a_registry_has_one_collector_of_sockets(make: Make) -> None:
    registry = CollectorRegistry(auto_describe=True)
    collector = SocketCollector(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        SocketCollector(registry=registry)
    collector.add(make(omq.PUSH), "late")
    assert registry.get_sample_value("omq_socket_peers", {"socket": "late", "type": "PUSH"}) == 0
    registry.unregister(collector)
    assert b"omq_socket" not in generate_latest(registry)


def test_the_default_registry_is_that_of_prometheus_client(make: Make) -> None:
    collector = SocketCollector({"default": make(omq.PUSH)})
    try:
        assert REGISTRY.get_sample_value("omq_socket_peers", {"socket": "default", "type": "PUSH"}) == 0
    finally:
        REGISTRY.unregister(collector)


async def test_asyncio_sockets_are_collected_by_another_thread() -> None:
    async with omq.asyncio.PULL(bind="tcp://127.0.0.1:*") as pull:
        collector = SocketCollector([pull], registry=None)
        async with omq.asyncio.PUSH(connect=pull.endpoints[0]) as push:
            collector.add(push)
            await push.send(b"x")
            assert await pull.recv(timeout=5) == b"x"
            found: list[dict[tuple[str, str, str], float]] = []
            thread = threading.Thread(target=lambda: found.append(samples(collector)))
            thread.start()
            thread.join(BOUND)
            assert found[0]["messages_sent_total", "PUSH-1", "PUSH"] == 1
            assert found[0]["messages_received_total", "PULL-1", "PULL"] == 1
    assert samples(collector) == {}


async def test_sockets_of_the_pyzmq_face_are_collected() -> None:
    with omq.zmq.Context() as context, omq.zmq.asyncio.Context() as tasks:
        pull = tasks.socket(omq.zmq.PULL)
        push = context.socket(omq.zmq.PUSH)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        collector = SocketCollector({"in": pull}, registry=None)
        collector.add(push)
        with pytest.raises(omq.UsageError, match="is here already"):
            collector.add(omq.zmq.Socket(shadow=push))
        push.send(b"x")
        assert await pull.recv() == b"x"
        assert samples(collector)["messages_sent_total", "PUSH-1", "PUSH"] == 1
        assert samples(collector)["messages_received_total", "in", "PULL"] == 1
        collector.remove(pull)
        assert names_of(collector) == [("PUSH-1", "PUSH")]
        push.close(0)
        assert samples(collector) == {}
        pull.close(0)


def test_a_forked_child_has_no_sockets(make: Make) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    collector = SocketCollector([pull], registry=None)
    child = os.fork()
    if not child:
        status = 1
        try:
            with pytest.raises(omq.StateError):
                _ = pull.stats
            status = 2 if samples(collector) else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert names_of(collector) == [("PULL-1", "PULL")]


def test_sockets_come_and_go_while_threads_collect(make: Make) -> None:
    collector = SocketCollector(registry=None)
    failures: list[BaseException] = []
    over = threading.Event()

    def collect() -> None:
        try:
            while not over.is_set():
                samples(collector)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    for _ in range(50):
        pull = make(omq.PULL, bind="inproc://collected")
        push = make(omq.PUSH, connect="inproc://collected")
        collector.add(pull)
        collector.add(push)
        push.send(b"x")
        pull.recv(timeout=BOUND)
        collector.remove(pull)
        push.stop()
        pull.stop()
    over.set()
    thread.join(BOUND)
    assert not thread.is_alive()
    assert not failures


def test_without_the_package_the_extra_is_named() -> None:
    done = run("-c", "import sys; sys.modules['prometheus_client'] = None; import omq.metrics")
    assert "ImportError: omq.metrics needs prometheus_client: pip install 'omq-zmtp[metrics]'" in done.stderr


def test_omq_itself_does_not_import_the_package() -> None:
    # A new interpreter: that of the fork server has loaded the package.
    code = "import sys, omq, omq.asyncio, omq.zmq; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    assert done.stdout == "False\n"

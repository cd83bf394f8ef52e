"""Traces of OpenTelemetry through a broker, with both twins of the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from omq.broker import Record, Server
from omq.broker.tracing import extract, inject
from tests.support.fork_server import run
from tests.system.broker.client_twins import TWINS, twins

BOUND = 20.0


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=BOUND)
    yield client
    for name in ("events", "jobs", "dead"):
        if any(topic.name == name for topic in twin.wait(client.topics())):
            twin.wait(client.delete(name))
    twin.wait(client.close())


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Returns the exported spans by name."""
    return {span.name: span for span in exporter.get_finished_spans()}


def assert_is_child(child: ReadableSpan, parent: ReadableSpan) -> None:
    assert child.context.trace_id == parent.context.trace_id
    assert child.parent is not None
    assert child.parent.span_id == parent.context.span_id
    assert child.parent.is_remote


def test_each_reader_continues_the_trace(
    twin: Any, client: Any, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    twin.wait(client.create("events", persistence="transient"))
    subscription = twin.wait(client.subscribe("events"))
    with tracer.start_as_current_span("publish"):
        twin.wait(client.publish("events", b"1", headers=inject()))
        twin.wait(client.publish_many("events", [Record(b"2", b"key", inject({"source": b"demo"})), b"3"]))
    for message in [*twin.take(subscription, 3), *twin.all(client.read("events"))]:
        name = f"handle {message.body.decode()}"
        with tracer.start_as_current_span(name, context=extract(message)):
            pass
        exported = spans(exporter)
        if message.body == b"3":
            assert exported[name].parent is None
            assert message.headers == {}
        else:
            assert_is_child(exported[name], exported["publish"])
    twin.wait(subscription.close())


def test_a_redelivery_and_a_dead_letter_continue_the_trace(
    twin: Any, client: Any, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    settings = {"max_deliveries": 2, "dead_letter": "dead", "retry_delay": 0}
    twin.wait(client.create("dead", persistence="transient"))
    twin.wait(client.create("jobs", delivery="round-robin", persistence="transient", **settings))
    dead = twin.wait(client.subscribe("dead", replay="earliest"))
    with tracer.start_as_current_span("publish"):
        twin.wait(client.publish("jobs", b"1", headers=inject()))
    consumer = twin.wait(client.consume("jobs"))
    for number in (1, 2):
        (job,) = twin.take(consumer, 1)
        assert job.deliveries == number
        with tracer.start_as_current_span(f"attempt {number}", context=extract(job)):
            twin.call(job.nack)
    (letter,) = twin.take(dead, 1)
    with tracer.start_as_current_span("letter", context=extract(letter)):
        pass
    exported = spans(exporter)
    for name in ("attempt 1", "attempt 2", "letter"):
        assert_is_child(exported[name], exported["publish"])
    twin.wait(consumer.close())
    twin.wait(dead.close())


def test_a_trace_spans_two_processes(
    twin: Any, client: Any, server: Server, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    twin.wait(client.create("events", persistence="transient"))
    subscription = twin.wait(client.subscribe("events"))
    code = """
import sys
from opentelemetry.sdk.trace import TracerProvider
import omq.broker
from omq.broker.tracing import inject
with omq.broker.Client(sys.argv[1]) as client, TracerProvider().get_tracer("other").start_as_current_span("p") as span:
    client.publish("events", b"1", headers=inject())
    print(f"{span.get_span_context().trace_id:032x}")
"""
    done = run("-c", code, server.endpoints["zmtp"])
    assert done.returncode == 0, done.stderr
    (message,) = twin.take(subscription, 1)
    with tracer.start_as_current_span("handle", context=extract(message)):
        pass
    assert f"{spans(exporter)['handle'].context.trace_id:032x}" == done.stdout.strip()
    twin.wait(subscription.close())

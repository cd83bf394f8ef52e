"""OpenTelemetry's context in headers, without a broker."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from omq.broker import Message, Record
from omq.broker.tracing import extract, inject
from tests.support.fork_server import run

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPAN = trace.set_span_in_context(
    NonRecordingSpan(
        SpanContext(TRACE_ID, SPAN_ID, False, TraceFlags(TraceFlags.SAMPLED), TraceState([("vendor", "value")]))
    ),
    context.Context(),
)


def span_of(message: Message | Record) -> SpanContext:
    return trace.get_current_span(extract(message, context=context.Context())).get_span_context()


def test_headers_carry_the_context() -> None:
    assert inject(context=SPAN) == {"traceparent": PARENT, "tracestate": b"vendor=value"}
    token = context.attach(baggage.set_baggage("tenant", "ä b", SPAN))
    try:
        found = inject({"source": b"demo", "traceparent": b"old"})
    finally:
        context.detach(token)
    assert found == {
        "source": b"demo",
        "traceparent": PARENT,
        "tracestate": b"vendor=value",
        "baggage": b"tenant=%C3%A4+b",
    }


def test_the_context_comes_back() -> None:
    headers = inject({"source": b"\xff"}, context=baggage.set_baggage("tenant", "ä b", SPAN))
    message = Message(1, "orders", b"17", headers=headers)  # type: ignore[arg-type]
    found = span_of(message)
    assert (found.trace_id, found.span_id, found.is_remote) == (TRACE_ID, SPAN_ID, True)
    assert found.trace_flags.sampled
    assert found.trace_state["vendor"] == "value"
    assert baggage.get_baggage("tenant", extract(message)) == "ä b"
    assert span_of(Record(b"17", None, {"traceparent": bytearray(PARENT)})) == SpanContext(
        TRACE_ID, SPAN_ID, True, TraceFlags(TraceFlags.SAMPLED)
    )


def test_without_a_span_headers_stay() -> None:
    headers = {"source": b"demo", "traceparent": PARENT}
    assert inject(headers, context=context.Context()) == headers
    assert inject(context=context.Context()) == {}


@pytest.mark.parametrize("value", [b"", b"00-0-0-0", b"\xff\x00", PARENT.replace(b"-b7", b"-zz"), b"x" * 1000])
def test_headers_that_are_not_valid_leave_the_context(value: bytes) -> None:
    message = Message(1, "orders", b"17", headers={"traceparent": value, "tracestate": value, "baggage": value})
    assert not span_of(message).is_valid
    assert trace.get_current_span(extract(message, context=SPAN)).get_span_context().span_id == SPAN_ID
    assert not span_of(Record(b"17")).is_valid


def test_nothing_is_imported_without_it() -> None:
    code = "import sys, omq.broker, omq.asyncio.broker; print(any('opentelemetry' in name for name in sys.modules))"
    assert run("-c", code).stdout == "False\n"


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "omq.broker.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError) as raised:
        import omq.broker.tracing  # noqa: F401 - the import is the test
    text = "omq.broker.tracing needs opentelemetry-api: pip install 'omq-zmtp[tracing]'"
    assert str(raised.value) == text

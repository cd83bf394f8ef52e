"""OpenTelemetry's trace context in the headers of messages; needs the extra `tracing`.

    from omq.broker.tracing import extract, inject

    client.publish("orders", body, headers=inject())
    ...
    with tracer.start_as_current_span("ship", context=extract(message)):
        ...

The headers are those of the program's propagators (`OTEL_PROPAGATORS`): by default W3C's `traceparent` and
`tracestate`, and `baggage`. Both functions are for the clients of both twins, which create no spans of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from omq.serving.extras import missing_extra

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context
except ImportError as missing:
    raise missing_extra("omq.broker.tracing", missing, "tracing") from None

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["extract", "inject"]


class HasHeaders(Protocol):
    """A message with headers, such as `omq.broker.Message`, `Delivery` and `Record`."""

    @property
    def headers(self) -> Mapping[str, Buffer] | None:
        """The headers, values by name."""


def inject(headers: Mapping[str, Buffer] | None = None, *, context: Context | None = None) -> dict[str, Buffer]:
    """Returns headers for `publish` or a `Record`, with the context of the current span.

    Args:
        headers: Other headers of the message. Those of an earlier context are replaced; without a current span they
            stay, so that a program that only forwards messages does not end their traces.
        context: The context; `None` for the current one.
    """
    texts: dict[str, str] = {}
    propagate.inject(texts, context)
    return {**(headers or {}), **{name: text.encode() for name, text in texts.items()}}


def extract(message: HasHeaders, *, context: Context | None = None) -> Context:
    """Returns the context that the headers of a message carry, for the spans of its consumer.

    Args:
        message: The message.
        context: The context that the headers are added to, and the result if they carry none; `None` for the current
            one.
    """
    texts = {name: bytes(value).decode(errors="replace") for name, value in (message.headers or {}).items()}
    return propagate.extract(texts, context)

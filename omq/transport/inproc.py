"""inproc: names within one context (`zmq_inproc(7)`), without descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omq.transport.base import LocalTransport


@dataclass(frozen=True, slots=True)
class InprocEndpoint:
    """A name within one context.

    Attributes:
        name: Any text that is not empty.
    """

    scheme: ClassVar[str] = "inproc"
    name: str

    def __str__(self) -> str:
        return f"inproc://{self.name}"


class InprocTransport(LocalTransport[InprocEndpoint]):
    """Connects two sockets without the kernel."""

    scheme = "inproc"

    def parse(self, rest: str, *, bind: bool) -> InprocEndpoint:
        return InprocEndpoint(rest)

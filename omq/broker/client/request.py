"""Requests of a client to its broker."""

from __future__ import annotations

from collections.abc import Callable

from omq.broker.client.feeds import Acked, Feed
from omq.errors import OmqError


class Request:
    """A request to the broker.

    Attributes:
        command: Its command.
        done: Whether it is over: then there is an `answer` or an `error`.
        answer: The parts of the answer behind its tag.
        error: Why there is no answer.
        wake: Called once it is over.
        session: The number of the connection that a flush is about, unless another one is made meanwhile; 0 for none.
    """

    __slots__ = (
        "acked",
        "answer",
        "command",
        "done",
        "error",
        "feed",
        "parts",
        "repeated",
        "sent",
        "sequence",
        "session",
        "size",
        "tag",
        "wake",
    )

    def __init__(self, command: bytes, tag: bytes, parts: tuple[bytes, ...]) -> None:
        self.command = command
        self.tag = tag
        self.parts = parts
        self.sequence = 0  # of an APPEND
        self.size = 0  # bytes of its records
        self.feed: Feed | None = None  # that it begins
        self.acked: list[Acked] = []  # what is durable with a FLUSH's answer
        self.session = 0
        self.sent = False
        self.repeated = False  # sent in an earlier connection, too
        self.done = False
        self.answer: list[bytes] = []
        self.error: OmqError | None = None
        self.wake: Callable[[], None] | None = None

    def result(self) -> list[bytes]:
        """Returns the answer.

        Raises:
            BrokerError: The broker has refused.
            ClosedError: The client was closed.
        """
        if self.error is not None:
            raise self.error
        return self.answer

    def finish(self, answer: list[bytes], error: OmqError | None = None) -> None:
        """Ends the request with an answer or an error, and calls `wake`."""
        self.done, self.answer, self.error, self.parts = True, answer, error, ()
        if self.wake is not None:
            self.wake()

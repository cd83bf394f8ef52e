"""A handler of `logging` that publishes records."""

from __future__ import annotations

import logging
from copy import copy
from typing import Any, Final

from omq.zmq.constants import PUB
from omq.zmq.context import Context
from omq.zmq.socket import Socket

#: Separates a subtopic from the text of a record.
TOPIC_DELIM: Final = "::"
_PLACED: Final = "%(levelname)s %(filename)s:%(lineno)d - %(message)s\n"


class PUBHandler(logging.Handler):
    """Publishes each record as two parts: the topic `ROOT.LEVEL.SUBTOPIC`, and the text.

    A record has a subtopic if its text is `SUBTOPIC::TEXT`.

    Args:
        interface_or_socket: A PUB, or the endpoint that a new one binds.
        context: The context of the new one; `None` for a context of its own.
        root_topic: The begin of all topics.

    Attributes:
        formatters: The formatter of each level.
        ctx: The context.
        socket: The PUB.
    """

    formatters: dict[int, logging.Formatter | None]
    ctx: Context[Any]
    socket: Socket[Any]

    def __init__(
        self, interface_or_socket: str | Socket[Any], context: Context[Any] | None = None, root_topic: str = ""
    ) -> None:
        super().__init__()
        self.root_topic = root_topic
        self.formatters = {
            logging.DEBUG: logging.Formatter(_PLACED),
            logging.INFO: logging.Formatter("%(message)s\n"),
            logging.WARNING: logging.Formatter(_PLACED),
            logging.ERROR: logging.Formatter(_PLACED.replace("\n", " - %(exc_info)s\n")),
            logging.CRITICAL: logging.Formatter(_PLACED),
        }
        if isinstance(interface_or_socket, Socket):
            self.socket = interface_or_socket
            self.ctx = self.socket.context
        else:
            self.ctx = context or Context()
            self.socket = self.ctx.socket(PUB)
            self.socket.bind(interface_or_socket)

    @property
    def root_topic(self) -> str:
        """The begin of all topics."""
        return self._root_topic

    @root_topic.setter
    def root_topic(self, value: str) -> None:
        self.setRootTopic(value)

    def setRootTopic(self, root_topic: str) -> None:  # noqa: N802
        """Sets the begin of all topics."""
        self._root_topic = root_topic.decode() if isinstance(root_topic, bytes) else root_topic

    def setFormatter(self, fmt: logging.Formatter | None, level: int = logging.NOTSET) -> None:  # noqa: N802
        """Sets the formatter of one level; of all levels if none is given."""
        for one in self.formatters if level == logging.NOTSET else (level,):
            self.formatters[one] = fmt

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        formatter = self.formatters[record.levelno]
        assert formatter is not None
        return formatter.format(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Publishes a record."""
        topic, separator, text = str(record.msg).partition(TOPIC_DELIM)
        if separator:
            record = copy(record)  # other handlers get the record as it was
            record.msg = text
        else:
            topic = ""
        try:
            content = self.format(record).encode()
        except Exception:
            self.handleError(record)
            return
        topics = [one for one in (self.root_topic, record.levelname, topic) if one]
        self.socket.send_multipart([".".join(topics).encode("utf8", "replace"), content])


class TopicLogger(logging.Logger):
    """A logger whose methods take a subtopic before the text: `logger.debug("topic.sub", "text")`."""

    def log(self, level: int, topic: str, msg: str, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Logs a text at a level, under a subtopic."""
        super().log(level, f"{topic}{TOPIC_DELIM}{msg}", *args, **kwargs)


def _with_topic(method: Any) -> Any:
    def call(self: TopicLogger, topic: str, msg: str, *args: Any, **kwargs: Any) -> None:
        method(self, topic + TOPIC_DELIM + msg, *args, **kwargs)

    return call


for _name in ("debug", "info", "warn", "warning", "error", "exception", "critical", "fatal"):
    if hasattr(logging.Logger, _name):
        setattr(TopicLogger, _name, _with_topic(getattr(logging.Logger, _name)))

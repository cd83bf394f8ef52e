"""Prints the records that a `PUBHandler` publishes."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any, Final

from omq.zmq.constants import SUB
from omq.zmq.context import Context

#: The colors of a terminal, by level.
_COLORS: Final = {
    "DEBUG": "\033[96m",
    "INFO": "\033[97m",
    "WARNING": "\033[33m",
    "ERROR": "\033[91m",
    "CRITICAL": "\033[91m",
}
_RESET: Final = "\033[39m"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ZMQ Log Watcher", description=__doc__)
    parser.add_argument("zmq_pub_url", help="endpoint of the PUB")
    parser.add_argument("-t", "--topic", default="", help="only records whose topics begin with this")
    parser.add_argument("--timestamp", action="store_true", help="print the local time, too")
    parser.add_argument("--separator", default=" | ", help="text between topic and message")
    parser.add_argument("--dateformat", default="%Y-%d-%m %H:%M", help="format of the time")
    parser.add_argument("--align", action="store_true", help="pad topics to the same width")
    parser.add_argument("--color", action="store_true", help="color by level")
    return parser


def _aligned(topics: list[str], widths: dict[int, int]) -> str:
    """Returns a topic, padded to the widest one so far."""
    padded = [*topics, *[" "] * (len(widths) - len(topics))]
    for column, part in enumerate(padded):
        widths[column] = max(len(part), widths.get(column, 0))
    return ".".join(part.ljust(widths[column]) for column, part in enumerate(padded))


def main() -> None:
    """Runs the command until it is interrupted."""
    arguments = _parser().parse_args()
    widths: dict[int, int] = {}
    context: Context[Any] = Context()
    sub = context.socket(SUB)
    sub.subscribe(arguments.topic)
    sub.connect(arguments.zmq_pub_url)
    try:
        while True:
            topic, message = (part.decode().strip() for part in sub.recv_multipart())
            topics = topic.split(".")
            color = _COLORS.get(topics[0 if len(topics) == 1 else 1], "") if arguments.color else ""
            time = f"{datetime.now():{arguments.dateformat}} " if arguments.timestamp else ""
            shown = _aligned(topics, widths) if arguments.align else topic
            print(f"{time}{color}{shown}{arguments.separator}{message}{_RESET if color else ''}", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        context.destroy(linger=0)


if __name__ == "__main__":
    main()

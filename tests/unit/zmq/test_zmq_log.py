"""Log records over a PUB of `omq.zmq`."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import omq.zmq as zmq
from omq.zmq.log.handlers import PUBHandler, TopicLogger


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = TopicLogger("test")
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


@pytest.fixture
def sub(context: zmq.Context[Any], logger: logging.Logger) -> Any:
    """A SUB that gets the records of the logger."""
    pub, made = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    made.rcvtimeo = pub.rcvtimeo = 10_000
    made.subscribe(b"")
    pub.bind("inproc://log")
    made.connect("inproc://log")
    assert pub.recv() == b"\x01"
    handler = PUBHandler(pub, root_topic="root")
    assert (handler.socket, handler.ctx) == (pub, context)
    logger.addHandler(handler)
    return made


def test_topics_and_formats(logger: Any, sub: Any) -> None:
    logger.info("sub.topic", "text %d", 1)
    assert sub.recv_multipart() == [b"root.INFO.sub.topic", b"text 1\n"]
    logger.log(logging.WARNING, "", "text")
    topic, text = sub.recv_multipart()
    assert topic == b"root.WARNING"
    assert re.fullmatch(rb"WARNING handlers\.py:\d+ - text\n", text)  # as with pyzmq
    logger.handlers[0].setFormatter(logging.Formatter("%(name)s"), logging.DEBUG)
    logger.debug("sub", "text")
    assert sub.recv_multipart() == [b"root.DEBUG.sub", b"test"]
    logger.handlers[0].root_topic = ""
    logger.handlers[0].setFormatter(logging.Formatter("%(levelno)d"))
    logger.critical("", "text")
    assert sub.recv_multipart() == [b"CRITICAL", b"50"]


def test_a_record_stays_as_it_was(logger: Any, sub: Any) -> None:
    seen = list[str]()

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    logger.addHandler(Keeper())
    logger.info("sub", "text")
    assert sub.recv_multipart()[1] == b"text\n"
    assert seen == ["sub::text"]


def test_the_command_prints_records(context: zmq.Context[Any]) -> None:
    pub = context.socket(zmq.XPUB)
    pub.rcvtimeo = 30_000
    pub.bind("tcp://127.0.0.1:*")
    command = [sys.executable, "-m", "omq.zmq.log", pub.last_endpoint.decode(), "-t", "root"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert pub.recv() == b"\x01root"
            record = logging.LogRecord("test", logging.INFO, "file", 1, "sub::text", None, None)
            PUBHandler(pub, root_topic="root").emit(record)
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "root.INFO.sub | text\n"
        finally:
            watcher.terminate()

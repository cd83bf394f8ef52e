"""The page of pyzmq's options names each one, with omq's name for it, and what the face does."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

import omq.zmq as zmq
from omq.options import Options

PAGES = Path(__file__).parents[3] / "docs" / "reference"
TYPES = [kind.name for kind in zmq.SocketType if kind.name != "DGRAM"]
VALUES = (0, 1, b"a", b"a" * 40, b"X-a:b", b"127.0.0.1:1", b"1.2.3.4")


def table(page: str) -> list[list[str]]:
    lines = (PAGES / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]


ROWS = {re.findall(r"`(\w+)`", row[0])[0]: row for row in table("pyzmq-options.md")}
#: omq's name for each of libzmq's, of the page of omq's options.
OMQ = {name: row[0].strip("`") for row in table("options.md") for name in re.findall(r"`ZMQ_(\w+)`", row[-1])}


def test_the_page_names_each_option_with_all_its_names() -> None:
    named = [re.findall(r"`(\w+)`", row[0]) for row in ROWS.values()]
    found: dict[str, list[str]] = {}
    for name, option in zmq.SocketOption.__members__.items():
        found.setdefault(option.name, []).append(name)
    assert named == list(found.values())


@pytest.mark.parametrize("name", ROWS)
def test_the_page_has_the_name_that_omq_has(name: str) -> None:
    named = re.findall(r"`(\w+)`", ROWS[name][1])
    assert [one for one in named if one in Options.__slots__] or name not in OMQ
    if name in OMQ:
        assert OMQ[name] in named


@pytest.mark.parametrize("name", ROWS)
def test_the_face_does_what_the_page_says(name: str, context: zmq.Context[Any]) -> None:
    option, found = zmq.SocketOption[name], set()
    for kind in TYPES:
        with context.socket(getattr(zmq, kind)) as socket:
            with contextlib.suppress(zmq.ZMQError):
                socket.get(option)
                found.add("read")
            for value in VALUES:
                with contextlib.suppress(zmq.ZMQError, TypeError):
                    socket.set(option, value)
                    found.add("set")
    assert (
        ROWS[name][2].strip(" |").partition(";")[0]
        in {
            frozenset({"set", "read"}): ("set, read", "no effect"),
            frozenset({"set"}): ("set",),
            frozenset({"read"}): ("read",),
            frozenset(): ("refused",),
        }[frozenset(found)]
    )


def test_conflate_is_refused_after_bind() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind("tcp://127.0.0.1:*")
        with pytest.raises(zmq.ZMQError) as caught:
            socket.setsockopt(zmq.CONFLATE, 1)
        assert caught.value.errno == zmq.EFSM

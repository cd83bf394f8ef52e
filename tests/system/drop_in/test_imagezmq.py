"""imagezmq: images go to hubs, with and without replies, on omq and on libzmq."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import waits
from tests.support.drop_in_programs import MARKS, PROGRAMS, Installed, library_in, library_of

pytestmark = MARKS
PROGRAM = PROGRAMS / "imagezmq_program.py"
COUNT = 20
FACES = pytest.mark.parametrize(
    ("hub_face", "sender_face"),
    [
        pytest.param(True, True, id="all"),
        pytest.param(True, False, id="hub"),
        pytest.param(False, True, id="sender"),
    ],
)


def library(face: bool) -> set[str]:
    return {"omq" if face else "libzmq"}


def line_of(programs: Installed, name: str, number: int) -> str:
    """Returns a line that a program prints."""
    waits.until(lambda: programs.text(name).count("\n") > number, lambda: programs.text(name), 60)
    return programs.text(name).splitlines()[number]


@FACES
def test_images_with_replies(installed: Callable[..., Installed], hub_face: bool, sender_face: bool) -> None:
    programs = installed("imagezmq", "numpy")
    hub = programs.start("hub", PROGRAM, "receive", "grey", "small", "colour", face=hub_face)
    endpoint = line_of(programs, "hub", 0)
    names = ("grey", "small")
    senders = [programs.start(name, PROGRAM, "send", endpoint, name, "no", face=sender_face) for name in names]
    assert [one.wait(60) for one in senders] == [0, 0]
    last: dict[str, Any] = programs.result("imagezmq_program.py", "send", endpoint, "colour", "yes", face=sender_face)
    assert hub.wait(60) == 0
    found = json.loads(line_of(programs, "hub", 1))
    assert (library_in(found.pop("maps")), found) == (library(hub_face), {"good": 3 * COUNT, "jpeg": True})
    for sent in (last, *(json.loads(programs.text(name)) for name in names)):
        assert (library_in(sent["maps"]), sent["good"]) == (library(sender_face), True)


@FACES
def test_published_images(installed: Callable[..., Installed], hub_face: bool, sender_face: bool) -> None:
    programs = installed("imagezmq", "numpy")
    sender = programs.start("sender", PROGRAM, "publish", face=sender_face)
    endpoint = line_of(programs, "sender", 0)
    found = programs.result("imagezmq_program.py", "subscribe", endpoint, face=hub_face)
    assert library_of(sender.pid) == library(sender_face)
    assert (library_in(found.pop("maps")), found) == (library(hub_face), {"good": COUNT, "in_order": True})

"""The classes of the two twins: one a type, made from its row in the table of types."""

from __future__ import annotations

import inspect
import pickle
from types import ModuleType

import pytest

import omq
import omq.asyncio
from omq.routing import PATTERNS
from omq.types import TRAITS, SocketType

MODULES = pytest.mark.parametrize("module", [omq, omq.asyncio], ids=["blocking", "asyncio"])


@MODULES
def test_every_type_that_has_a_pattern_has_its_class_and_no_other_has(module: ModuleType) -> None:
    exported = {kind for kind in SocketType if hasattr(module, kind.value)}
    assert exported == set(PATTERNS)
    assert {kind.value for kind in exported} <= set(module.__all__)


@MODULES
@pytest.mark.parametrize("kind", list(PATTERNS), ids=lambda kind: kind.value)
def test_a_class_is_what_its_name_promises(module: ModuleType, kind: SocketType) -> None:
    made = getattr(module, kind.value)
    assert made.socket_type is kind
    assert made.__name__ == made.__qualname__ == kind.value
    assert made.__module__ == module.__name__
    assert issubclass(made, module.Socket)
    assert made.__doc__ == TRAITS[kind].text
    assert inspect.getdoc(made) == TRAITS[kind].text
    assert pickle.loads(pickle.dumps(made)) is made


@MODULES
def test_a_class_of_the_users_own_is_of_the_type_that_it_derives_from(module: ModuleType) -> None:
    class Feed(module.PULL):
        """Mine."""

    class Old(module.Socket):
        socket_type = SocketType.PUSH

    assert (Feed.socket_type, Feed.__doc__) == (SocketType.PULL, "Mine.")
    assert Old.socket_type is SocketType.PUSH
    for made in (Feed, Old):
        socket = made()
        assert repr(socket) == f"<{made.__module__}.{made.__name__} 0 peers>"
        socket.stop()

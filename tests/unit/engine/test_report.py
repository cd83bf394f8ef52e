"""The monitors of a socket, as its reporter keeps them."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

from omq.engine.report import Reporter


class Monitor:
    def put(self, event: object) -> None:
        pass


class View(types.SimpleNamespace):
    """The view that a reporter has of its socket."""


def test_a_monitor_may_be_freed_after_its_socket() -> None:
    view: Any = View(sessions=[], pattern=mock.Mock(), closed=False, has_loop=False)
    reporter = Reporter(weakref.proxy(view))
    monitor = Monitor()
    reporter.add(monitor)
    forget: Callable[[Any], None] = reporter._forget
    (found,) = reporter._monitors
    del view
    forget(found)  # as the end of the monitor calls it
    assert not reporter._monitors

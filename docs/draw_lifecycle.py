"""Draws docs/reference/lifecycle.md from the engine's table: `python docs/draw_lifecycle.py`."""

from __future__ import annotations

import re
from pathlib import Path

from omq.engine.lifecycle import TABLE, ConnectionState, DialerState, ListenerState, SocketState, State

PAGE = Path(__file__).parent / "reference" / "lifecycle.md"

HEAD = """# The life of sockets and connections

Drawn from the table in `omq/engine/lifecycle.py` by `python docs/draw_lifecycle.py`. Tests hold that this page and the
table agree, and that the engine goes through every line of it. A part that would take another way raises in tests and
debug builds, and is logged elsewhere.

Whatever ends a connection (`close`, `stop`, `disconnect`, the peer, an error), the end has one order, and happens once:
out of routing, descriptor closed, monitors told, those who wait for it told. A socket ends its listeners, its dialers
and its connections so, then what else it has begun, then its descriptors; `monitor_stopped` is the last event.

What monitors are told is in the last column ([`Event`](../../omq/event.py)).
"""

PARTS: dict[str, type[State]] = {
    "Socket": SocketState,
    "Listener": ListenerState,
    "Dialer": DialerState,
    "Connection": ConnectionState,
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_part(name, states) for name, states in PARTS.items())])


def _part(name: str, states: type[State]) -> str:
    members = list(states)
    rows = [row for row in TABLE if type(row.source) is states]
    drawn = [f"    [*] --> {members[0].name}"]
    drawn += [f"    {row.source.name} --> {row.target.name}: {_label(row.cause)}" for row in rows]
    drawn.append(f"    {members[-1].name} --> [*]")
    lines = [f"## {name}", "", states.__doc__ or "", "", "```mermaid", "stateDiagram-v2", *drawn, "```", ""]
    lines += ["| State | Means |", "| --- | --- |", *(f"| {one.name} | {one.value} |" for one in members), ""]
    lines += ["| From | To | When | Monitors are told |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.source.name} | {row.target.name} | {row.cause} | {_events(row.events)} |" for row in rows]
    return "\n".join([*lines, ""])


def _label(cause: str) -> str:
    # Mermaid takes a colon or a semicolon for the end of a label.
    return re.sub(r"[:;]", ",", cause).replace("`", "")


def _events(events: str) -> str:
    return events.replace(" | ", " or ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

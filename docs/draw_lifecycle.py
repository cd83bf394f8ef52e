"""Draws docs/reference/lifecycle.md from the engine's table: `python docs/draw_lifecycle.py`."""

from __future__ import annotations

import re
from pathlib import Path

from omq.engine.lifecycle import TABLE, ConnectionState, DialerState, ListenerState, SocketState, State

PAGE = Path(__file__).parent / "reference" / "lifecycle.md"

HEAD = """# States and events of sockets and connections

Generated from the table in `omq/engine/lifecycle.py` by `python docs/draw_lifecycle.py`. Tests check that this page
and the table agree, and that the engine uses every transition. An undeclared transition raises in tests and debug
builds, and is logged elsewhere.

Every end of a connection (`close`, `stop`, `disconnect`, the peer, an error) happens once and in one order: it leaves
routing, its descriptor closes, monitors get their event, waiting calls wake. A socket ends its listeners, dialers and
connections in this way, then its other parts and its descriptors; `monitor_stopped` is the last event.

The last column has the event that monitors receive ([`Event`](../../omq/event.py)).
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
    lines += ["| From | To | When | Event |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.source.name} | {row.target.name} | {row.cause} | {_events(row.events)} |" for row in rows]
    return "\n".join([*lines, ""])


def _label(cause: str) -> str:
    # Mermaid takes a colon or a semicolon for the end of a label.
    return re.sub(r"[:;]", ",", cause).replace("`", "")


def _events(events: str) -> str:
    return events.replace(" | ", " or ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

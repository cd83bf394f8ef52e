"""Checks of Grafana's dashboards and of the expressions of Prometheus in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

#: Labels that Prometheus adds.
TARGET: Final = {"job", "instance"}
METRIC: Final = re.compile(r"\b(?:omq|process)_\w+")
COLUMNS: Final = 24
_GROUPING: Final = re.compile(r"\b(?:by|on|without|group_left)\s*\(([\w\s,]*)\)")
_SELECTOR: Final = re.compile(r"((?:omq|process)_\w+)\{([^}]*)\}")


class Dashboard:
    """A dashboard.

    Args:
        path: Its file.
    """

    def __init__(self, path: Path) -> None:
        self._content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self._panels: list[dict[str, Any]] = self._content["panels"]

    @property
    def expressions(self) -> list[str]:
        """The expressions of all panels."""
        return [target["expr"] for panel in self._panels for target in panel.get("targets", ())]

    @property
    def queries(self) -> list[str]:
        """The queries of the variables, except for that of the data source."""
        return [one["definition"] for one in self._content["templating"]["list"] if "definition" in one]

    @property
    def misplaced(self) -> list[str]:
        """The titles of panels that overlap an earlier one or the right edge, or have its id."""
        taken: set[tuple[int, int]] = set()
        ids: set[int] = set()
        found = []
        for panel in self._panels:
            place = panel["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
            if cells & taken or columns.stop > COLUMNS or panel["id"] in ids:
                found.append(panel["title"])
            taken |= cells
            ids.add(panel["id"])
        return found


def unknown_names(expression: str, labels: Mapping[str, set[str]]) -> set[str]:
    """Returns the metrics and labels of an expression that do not exist.

    Args:
        expression: The expression.
        labels: The labels of each sample, by its name.
    """
    metrics = {*METRIC.findall(expression)}
    known = TARGET.union(*(labels.get(metric, set()) for metric in metrics))
    found = metrics - labels.keys()
    for names in _GROUPING.findall(expression):
        found |= {*re.findall(r"\w+", names)} - known
    for metric, selector in _SELECTOR.findall(expression):
        found |= {*re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)} - labels.get(metric, set()) - TARGET
    return found

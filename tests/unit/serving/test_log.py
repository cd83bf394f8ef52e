"""The log as JSON, and the events in the sources."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omq.serving.log import JsonFormatter
from tests.support.fork_server import run

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "broker-log.md"
#: The sources of the lines that `omq broker` logs.
SOURCES = ("omq/broker", "omq/serving", "omq/store", "omq/workqueue", "omq/cli/broker.py")


def formatted(message: str, *arguments: object, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    """Returns the parsed line of a record."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.getLogger("omq.broker").makeRecord(
        "omq.broker", logging.WARNING, "file.py", 7, message, arguments, exc_info, extra=extra
    )
    record.created = 1_750_000_000.0625
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert line.isascii()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_time_level_logger_message_and_the_fields_of_its_event() -> None:
    assert formatted("topic %r is full", "a", event="topic_full", topic="a", count=3) == {
        "time": "2025-06-15T15:06:40.062Z",
        "level": "warning",
        "logger": "omq.broker",
        "message": "topic 'a' is full",
        "event": "topic_full",
        "topic": "a",
        "count": 3,
    }


def test_names_that_clients_choose_stay_in_one_line() -> None:
    name = 'a\nb\u2028c\udc80"}\\'
    found = formatted("%s", name, event="x", topic=name)
    assert (found["message"], found["topic"]) == (name, name)


def test_values_without_a_json_form_become_text() -> None:
    found = formatted("m", path=Path("/a"), body=b"\xff", names={"a"})
    assert (found["path"], found["body"], found["names"]) == ("/a", "b'\\xff'", "{'a'}")


def test_a_traceback_is_one_field() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        found = formatted("failed", error=error)
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: a\nb")
    assert found["message"] == "failed"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_program_logs_in_the_format(log_format: str) -> None:
    program = (
        "import logging; from omq.serving.log import log_to_stderr\n"
        f"log_to_stderr('warning', {log_format!r})\n"
        "logging.getLogger('omq.a').info('low')\n"
        "logging.getLogger('omq.a').warning('high %d', 7, extra={'event': 'e'})\n"
    )
    done = run("-c", program)
    (line,) = done.stderr.splitlines()
    if log_format == "json":
        found = json.loads(line)
        assert (found["level"], found["logger"], found["message"], found["event"]) == (
            "warning",
            "omq.a",
            "high 7",
            "e",
        )
    else:
        assert line.endswith("WARNING omq.a: high 7")
    assert done.stdout == ""


# ------------------------------------------------------------------ the sources


def extras() -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Yields the place and the known keys of each `extra` of a call."""
    for source in SOURCES:
        root = ROOT / source
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for keyword in node.keywords if isinstance(node, ast.Call) else ():
                    if keyword.arg == "extra":
                        assert isinstance(keyword.value, ast.Dict), f"{path}:{node.lineno}"
                        keys = zip(keyword.value.keys, keyword.value.values, strict=True)
                        yield (
                            f"{path}:{node.lineno}",
                            {key.value: value for key, value in keys if isinstance(key, ast.Constant)},
                        )


def test_fields_do_not_replace_attributes_of_a_record() -> None:
    """`logging` raises a `KeyError` for such a field."""
    standard = {*vars(logging.makeLogRecord({})), "message", "asctime", "time", "level", "logger", "exception"}
    found = [*extras()]
    assert len(found) > 20
    for place, fields in found:
        assert not standard & fields.keys(), place


def test_the_page_lists_the_events() -> None:
    events = set()
    for place, fields in extras():
        event = fields.get("event")
        assert isinstance(event, ast.Constant), f"{place} has no event"
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.value), place
        events.add(event.value)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == events

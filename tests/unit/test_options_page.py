"""The page of options names each one, with its default, its types, whether it is live, and which calls take it."""

import dataclasses
from pathlib import Path

import pytest

from omq.options import Options
from omq.types import SocketType

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def test_the_page_names_every_option_once_in_their_order() -> None:
    assert [row[0].strip("`") for row in ROWS] == list(FIELDS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_the_page_is_true(row: list[str]) -> None:
    name, default, meaning, types, live, endpoint, _ = row
    field = FIELDS[name.strip("`")]
    assert default.strip("`") == repr(field.default)
    assert meaning
    fitting = [one for one in SocketType if one in field.metadata["types"]]
    others = [one for one in SocketType if one not in fitting]
    listed = " ".join(one.value for one in fitting)
    assert types == ("all" if not others else "all but STREAM" if others == [SocketType.STREAM] else listed)
    assert endpoint == " ".join(sorted(Options.endpoint_calls(field.name)))
    assert live == ("yes" if Options.is_live(field.name) else "")

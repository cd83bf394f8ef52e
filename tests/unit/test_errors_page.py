"""The reference page of errors lists every public exception, with its bases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def described(package: str) -> dict[str, list[str]]:
    """Returns the bases that the page gives each exception of a package."""
    text = PAGE.read_text()
    section = re.search(rf"^## [^\n]*`{re.escape(package)}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"{PAGE.name} has no section of {package}"
    return {name: re.findall(r"`(\w+)`", bases) for name, bases in _ROW.findall(section[1])}


@pytest.mark.parametrize("package", ["omq", "omq.broker", "omq.pzq", "omq.goby"])
def test_the_page_has_each_public_exception_with_its_bases(package: str) -> None:
    module = pytest.importorskip(package, exc_type=ImportError)
    public = {
        name: [base.__name__ for base in value.__bases__]
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__.startswith(package)
    }
    assert public
    assert described(package) == public

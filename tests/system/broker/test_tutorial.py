"""The tutorial of the broker: its files are written, its commands run, and their output is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ports import held
from tests.system.broker.tutorial_reader import ROOT, Reader, steps

PAGE = (ROOT / "docs" / "tutorial" / "broker.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.timeout(180)


def test_the_tutorial_as_a_new_user_does_it(tmp_path: Path) -> None:
    with held() as zmtp, held() as http, Reader(tmp_path, {"5555": str(zmtp), "8222": str(http)}) as reader:
        for name, kind, content in steps(PAGE):
            reader.do(name, kind, content)
        reader.end()
        assert reader.commands >= 10


def test_the_security_of_the_page_is_read(tmp_path: Path) -> None:
    from omq.broker.config import read_config

    (tables,) = (content for name, kind, content in steps(PAGE) if kind == "toml" and not name)
    path = tmp_path / "broker.toml"
    path.write_text(tables)
    config = read_config(path)
    assert config.security.mechanism == "curve"
    assert [permission.topics for permission in config.permissions] == ["prices*", "*"]

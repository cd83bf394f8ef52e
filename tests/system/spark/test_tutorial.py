"""The tutorial of the broker with Spark: its files are written, its commands run, and their output is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ports import held
from tests.system.broker.tutorial_reader import ROOT, Reader, steps

PAGE = (ROOT / "docs" / "tutorial" / "broker-with-spark.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_as_a_new_user_does_it(tmp_path: Path, environment: None) -> None:
    with held() as zmtp, Reader(tmp_path, {"5555": str(zmtp)}, timeout=300, quiet=False) as reader:
        for name, kind, content in steps(PAGE):
            reader.do(name, kind, content)
        reader.end()
        assert reader.commands == 9

"""The modules that `omq.spark` imports."""

import subprocess
import sys

import pytest

import omq.spark


def test_a_coordinator_begins_without_arrow() -> None:
    """The import of Arrow would delay a query's first row."""
    code = "import sys, omq.spark.live.coordinator; print({'pyarrow', 'pyspark', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "set()"


def test_every_exported_name_exists() -> None:
    for name in omq.spark.__all__:
        assert callable(getattr(omq.spark, name))
    with pytest.raises(AttributeError, match=r"module 'omq\.spark' has no attribute 'pull_batch'"):
        _ = omq.spark.pull_batch  # type: ignore[attr-defined]

